"""Priors on the signal.

base: the interface. iid: independent columns, gaussian (also of unequal variances), discrete
(binary, sparse, peaks) or positive; columns and field_averages hold their one formula and its
averages. spectral: matrices defined by their spectrum; factors: those that are products of factors.
"""

from jaxsmi.priors.base import AbstractPrior, Traits
from jaxsmi.priors.discrete import BernoulliGauss, GaussianMixture, Rademacher
from jaxsmi.priors.factors import ProductPrior, WishartPrior
from jaxsmi.priors.gaussian import Gaussian, GaussianProfile
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.spectral import AbstractMatrixLaw, SpectralPrior

__all__ = [
    "AbstractIidPrior",
    "AbstractMatrixLaw",
    "AbstractPrior",
    "BernoulliGauss",
    "Gaussian",
    "GaussianMixture",
    "GaussianProfile",
    "ProductPrior",
    "Rademacher",
    "SpectralPrior",
    "Traits",
    "WishartPrior",
]
