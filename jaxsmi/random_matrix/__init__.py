"""Spectra of sums of large random matrices: densities, Hilbert transforms, edges, shrinkage. symmetric.py: Wishart plus noise."""

from jaxsmi.random_matrix.symmetric import Spectrum, mutual_information, shrinkage_error, spectrum

__all__ = ["Spectrum", "mutual_information", "shrinkage_error", "spectrum"]
