"""Numerical methods, independent of models.

linear_algebra: functions of symmetric matrices. quadrature: rules in one variable, and series.
refining, with refining_rules and refining_sums: integrals that refine themselves. nets: randomised
points, and control variates. roots: zeros in a bracket. fixed_point: fixed points and their
errors. implicit: derivatives of solutions. continuation: limits
of a small parameter. random_matrix: spectra. memory: how much of an integral is worked on at once.
"""
