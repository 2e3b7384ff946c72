"""Foundations that every other package uses.

arrays: precision, tracing. validate: validation of arguments. options: records of settings.
codes: result codes. results: solutions and thresholds. data: data sets. whitening, moments: the
covariance of inputs, and tests of it [theory: inputs, Eqs. (1) to (13)]. driver: the loop of all
iterations. functions: user functions as pytrees. progress: bars. display: text and HTML of
objects. setup: settings of JAX for a process.
"""
