"""Priors on the signal: iid columns (Gaussian, binary, sparse), and matrices known by their spectrum."""

from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.iid import AbstractIidPrior, BernoulliGauss, Gaussian, Rademacher
from jaxsmi.priors.product import ProductPrior
from jaxsmi.priors.spectral import AbstractSpectralPrior
from jaxsmi.priors.wishart import WishartPrior

__all__ = [
    "AbstractIidPrior",
    "AbstractPrior",
    "AbstractSpectralPrior",
    "BernoulliGauss",
    "Gaussian",
    "ProductPrior",
    "Rademacher",
    "WishartPrior",
]
