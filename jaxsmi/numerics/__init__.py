"""Quadrature, refining integrals, roots, fixed points, implicit derivatives, random matrices."""
