"""Foundations that every other package uses.

arrays: precision, tracing, user functions as pytrees. validate: validation of arguments. options:
settings of calls and of JAX. data: data sets, and the covariance of inputs [theory: inputs, Eqs.
(1) to (13)]. driver: the loop of all iterations, its progress bar, result codes and solutions.
display: text of objects.
"""
