"""What several test files need: statistics of independent
values, exact answers, published tables, counted compilations."""

import contextlib
import csv
import functools
import logging

import equinox as eqx
import jax
import numpy as np

import jaxsmi as smi

# Statistics ----------------------------------------------------------------------------------


def mean_and_error(values, axis=0):
    """Mean of independent values along an axis, and its standard error."""
    values = np.asarray(values)
    error = values.std(axis=axis, ddof=1) / np.sqrt(values.shape[axis])
    return values.mean(axis=axis), error


def z_scores(values, target=0.0, axis=0):
    """Mean of independent values minus its target, in
    standard errors; exact agreement counts as zero."""
    mean, error = mean_and_error(values, axis)
    exact = np.abs(mean - target) < 1e-12
    return np.where(exact, 0.0, (mean - target) / np.maximum(error, 1e-300))


# Models and their exact answers --------------------------------------------------------------


@functools.cache
def two_layers():
    """Two layers of attention on two tokens with skip connections: the example of most tests."""
    return smi.DeepAttention(depth=2, tokens=2, skip=1.0)


def linear_overlap(alpha, noise):
    """Bayes-optimal overlap of the linear channel, q =
    q̂/(1 + q̂) with q̂ = α/(1 - q + Δ): a quadratic."""
    b = alpha + 1 + noise
    return (b - (b**2 - 4 * alpha) ** 0.5) / 2


def result(solution):
    """The result code of one solution, by name."""
    return smi.Result(int(solution.result))


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@eqx.filter_jit
def respond(channel, statistic, omega, V, key=None):
    """The posteriors of a batch of samples; compiled once
    for each kind of channel and each shape."""
    return channel.respond(statistic, omega, V, key)


def gauss_legendre(low, high, count):
    """Nodes and weights on an interval."""
    x, w = np.polynomial.legendre.leggauss(count)
    return 0.5 * (high + low) + 0.5 * (high - low) * x, 0.5 * (high - low) * w


# Files and programs --------------------------------------------------------------------------


def published_columns(path, *names):
    """Columns of a table of published numbers, one array each, stacked (names, rows)."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return np.array([[float(row[name]) for row in rows] for name in names])


@contextlib.contextmanager
def compilations():
    """Names of what JAX compiles inside the block."""
    names, logger = [], logging.getLogger("jax._src.interpreters.pxla")

    class Recorder(logging.Handler):
        def emit(self, record):
            if "Compiling" in record.getMessage():
                names.append(record.getMessage().split()[1])

    recorder, level, propagate = Recorder(), logger.level, logger.propagate
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield names
    finally:
        logger.removeHandler(recorder)
        logger.setLevel(level)
        logger.propagate = propagate
