"""Priors on the signal.

base: the interface. iid: independent columns, and Gaussian ones (also of unequal variances) in
closed form; discrete: binary, sparse, peaks; field_averages: their averages over fields. spectral:
matrices defined by their spectrum; eigenvalues: given ones; factors: products of factors.
"""

from jaxsmi.core import validate
from jaxsmi.priors.base import AbstractPrior, Traits
from jaxsmi.priors.discrete import AbstractEntries, BernoulliGauss, GaussianMixture, Rademacher
from jaxsmi.priors.eigenvalues import Spectrum
from jaxsmi.priors.factors import ProductPrior, WishartPrior
from jaxsmi.priors.iid import AbstractIidPrior, Gaussian, GaussianProfile, power_law
from jaxsmi.priors.spectral import AbstractMatrixLaw, SpectralPrior

__all__ = [
    "AbstractEntries",
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
    "Spectrum",
    "Traits",
    "WishartPrior",
    "power_law",
]

validate.suggest_names(__name__, "smi.priors")
