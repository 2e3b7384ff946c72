"""Foundations that every other package uses.

arrays: precision, tracing, user functions as pytrees. validate: validation of arguments. options:
settings of calls and of JAX. data: data sets; whitening: coordinates in which their covariance is
the identity; second_moments: a test of that [theory: inputs, Eqs. (1) to (13)]. driver: the loop of
all iterations and its progress bar; results: their codes; solution: what they return. display: text
of objects.
"""
