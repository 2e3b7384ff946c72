"""Priors on the signal.

base: the declared face. iid: columns that are independent, as gaussian and discrete (binary,
    sparse) weights; mixture and
field_averages are their one formula and its averages. spectral: matrices known by their spectrum,
as wishart and product."""

from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.discrete import AbstractMixturePrior, BernoulliGauss, Rademacher
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.product import ProductPrior
from jaxsmi.priors.spectral import AbstractSpectralPrior
from jaxsmi.priors.wishart import WishartPrior

__all__ = [
    "AbstractIidPrior",
    "AbstractMixturePrior",
    "AbstractPrior",
    "AbstractSpectralPrior",
    "BernoulliGauss",
    "Gaussian",
    "ProductPrior",
    "Rademacher",
    "WishartPrior",
]
