"""Priors on the signal.

base: the interface. iid: independent columns, Gaussian, discrete (binary, sparse, peaks) or
positive (half_line); columns, nodes and field_averages hold their one formula and its averages;
profile: Gaussian columns of unequal variances. spectral: matrices defined by their spectrum,
wishart (symmetric) or product (rectangular).
"""

from jaxsmi.priors.base import AbstractPrior, Traits
from jaxsmi.priors.discrete import BernoulliGauss, GaussianMixture, Rademacher
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.positive import Positive
from jaxsmi.priors.product import ProductPrior
from jaxsmi.priors.profile import GaussianProfile
from jaxsmi.priors.spectral import AbstractMatrixLaw, SpectralPrior
from jaxsmi.priors.wishart import WishartPrior

__all__ = [
    "AbstractIidPrior",
    "AbstractMatrixLaw",
    "AbstractPrior",
    "BernoulliGauss",
    "Gaussian",
    "GaussianMixture",
    "GaussianProfile",
    "Positive",
    "ProductPrior",
    "Rademacher",
    "SpectralPrior",
    "Traits",
    "WishartPrior",
]
