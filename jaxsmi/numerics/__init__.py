"""Numerical methods, independent of models.

linear_algebra: small matrices. quadrature: points and weights of averages. refining, with
refining_rules and refining_sums: integrals that refine themselves. roots: zeros in a bracket.
minimum: minima. fixed_point, anderson: fixed points. implicit: derivatives of solutions by their
equations. continuation: limits of a small parameter. symmetric_spectrum, rectangular_spectrum (by
way of rectangular_branches): laws of a matrix plus noise.
"""
