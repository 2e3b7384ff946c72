"""Spectra of sums of large random matrices: densities, Hilbert transforms, edges, shrinkage.

base.py: what the laws share. symmetric.py: eigenvalues of a Wishart-like matrix plus noise.
rectangular.py: singular values of a product plus noise, by way of the real roots in branches.py.
"""
