"""Priors on the signal.

base: the declared face. iid: independent columns, gaussian, discrete (binary, sparse, peaks) or
positive (half_line, quadrant); mixture, nodes and field_averages hold their one formula and its
averages; profile: Gaussian columns of unequal variances. spectral: matrices known by their
spectrum, wishart (symmetric) or product (rectangular).
"""

from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.discrete import (
    AbstractMixturePrior,
    BernoulliGauss,
    GaussianMixture,
    Rademacher,
)
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.positive import Positive
from jaxsmi.priors.product import ProductPrior
from jaxsmi.priors.profile import GaussianProfile
from jaxsmi.priors.spectral import AbstractSpectralPrior
from jaxsmi.priors.wishart import WishartPrior

__all__ = [
    "AbstractIidPrior",
    "AbstractMixturePrior",
    "AbstractPrior",
    "AbstractSpectralPrior",
    "BernoulliGauss",
    "Gaussian",
    "GaussianMixture",
    "GaussianProfile",
    "Positive",
    "ProductPrior",
    "Rademacher",
    "WishartPrior",
]
