"""What several test files need: statistics of independent
values, exact answers, published tables, counted compilations."""

import contextlib
import csv
import functools
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.channels.attention_link import hardmax
from jaxsmi.numerics.linear_algebra import triangular_root
from jaxsmi.sgd.problem import pair_of
from jaxsmi.sgd.sample_averages import net_averages

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


def differences(function, at, step=1e-5):
    """Central differences of a function of several numbers, in each of them."""
    at = np.asarray(at, float)
    steps = np.broadcast_to(step, at.shape)
    sides = ((at + h, at - h, 2 * h.sum()) for h in np.diag(steps))
    return np.array([(function(*up) - function(*down)) / width for up, down, width in sides])


def averages_of_nets(model, M, Q, points, nets, key):
    """The averages of online SGD over a fresh sample at overlaps, (nets, ..) each, on nets."""
    pair = pair_of(model)
    law = net_averages(pair, triangular_root(pair.gram), key, points, nets)
    at = lambda net: net.at(jnp.asarray(M), jnp.asarray(Q))
    return eqx.filter_jit(lambda law: law.over_nets(at))(law)


# Models and their exact answers --------------------------------------------------------------


def runs_of(model, seeds, *, dimension, alpha, dtype=None, solver=smi.gamp, **options):
    """Message passing, or another solver, on a data set of each seed: (data, solution) one by
    one."""
    for seed in range(seeds):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=dimension, alpha=alpha, dtype=dtype)
        yield data, solver(model, data, key=key, **options)


def attention_network(model, W, x):
    """y (M, M) of `DeepAttention` on one input x (M, D), layer by layer [theory: deep-attention,
    Eqs. (2), (3)]."""

    def attention(X, layer, w):
        # parts of a head: its query and its key, which are one where they are tied
        h = jnp.einsum("md,hprd->hpmr", X, w.reshape(layer.heads, -1, layer.rank, X.shape[1]))
        scores = jnp.einsum("hmr,hnr->hmn", h[:, 0], h[:, -1]) / X.shape[1]
        if model.activation == "hardmax":
            return jnp.mean(hardmax(scores), axis=0)
        return jnp.mean(jax.nn.softmax(model.beta * scores, axis=-1), axis=0)

    ends = np.cumsum([layer.indices for layer in model.layers])[:-1]
    *inner, last = jnp.split(jnp.asarray(W), ends)
    X = jnp.asarray(x)
    for skip, layer, w in zip(model.skip, model.layers[:-1], inner, strict=True):
        X = skip * X + attention(X, layer, w) @ X
    return attention(X, model.layers[-1], last)


@functools.cache
def two_layers():
    """Two layers of attention on two tokens with skip connections: the example of most tests."""
    return smi.DeepAttention(depth=2, tokens=2, skip=1.0)


def linear_overlap(alpha, noise):
    """Bayes-optimal overlap of the linear channel, q =
    q̂/(1 + q̂) with q̂ = α/(1 - q + Δ): a quadratic."""
    b = alpha + 1 + noise
    return (b - (b**2 - 4 * alpha) ** 0.5) / 2


def directed_regression():
    """y = z1* + ½ z2*² + 0.3 ξ, whose teacher overlaps with a direction of its inputs: R* = 0.6."""
    inputs = smi.Tokens(encoding=[1.0, -0.5], cross=[0.6])
    link = lambda z: z[0, 0] + 0.5 * z[0, 1] ** 2
    return smi.MultiIndex(link, indices=1, tokens=2, noise=0.09, inputs=inputs)


def assert_measured(solution, known, accuracy, largest):
    """First entries of fields of a solution: within five of their standard errors and the relative
    `accuracy` of known values, in a table; errors are at most `largest` of these."""
    bars = {"overlap": solution.stderr, **solution.stderrs}
    for name, value in known.items():
        found, bar = (float(np.ravel(x)[0]) for x in (getattr(solution, name), bars[name]))
        assert abs(found - value) < 5 * bar + accuracy * abs(value) + 1e-12, (name, found, bar)
        assert bar <= largest * (abs(value) or 1.0), (name, bar)


def result(solution):
    """The result code of one solution, by name."""
    return smi.Result(int(solution.result))


def slow_but(names, *quick):
    """Parameters of a test, of which all but the quick ones run with the slow tests."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


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
