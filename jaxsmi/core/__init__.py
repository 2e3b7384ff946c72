"""Foundations that every other package uses.

arrays: precision, tracing, user functions as pytrees. validate: validation of arguments. options:
settings of calls and of JAX. results: result codes, solutions, thresholds. data: data sets. inputs:
the covariance of inputs [theory: inputs, Eqs. (1) to (13)]. driver: the loop of all iterations, and
its progress bar. display: text of objects.
"""
