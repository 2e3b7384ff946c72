"""Spectra of sums of large random matrices: densities, Hilbert transforms, edges, shrinkage.

base.py: what the laws share. symmetric.py: eigenvalues of a Wishart-like matrix plus noise.
rectangular.py: singular values of a product plus noise, by way of the real roots in branches.py.
"""

from jaxsmi.numerics.random_matrix.base import AbstractSpectrum
from jaxsmi.numerics.random_matrix.rectangular import (
    RectangularSpectrum,
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.numerics.random_matrix.symmetric import (
    Spectrum,
    mutual_information,
    shrinkage_error,
    spectrum,
)

__all__ = [
    "AbstractSpectrum",
    "RectangularSpectrum",
    "Spectrum",
    "mutual_information",
    "rectangular_error",
    "rectangular_information",
    "rectangular_spectrum",
    "shrinkage_error",
    "spectrum",
]
