"""Spectra of sums of large random matrices: densities, Hilbert transforms, edges, shrinkage.

symmetric.py: Wishart plus noise. rectangular.py: singular values of a product plus noise.
"""

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
    "RectangularSpectrum",
    "Spectrum",
    "mutual_information",
    "rectangular_error",
    "rectangular_information",
    "rectangular_spectrum",
    "shrinkage_error",
    "spectrum",
]
