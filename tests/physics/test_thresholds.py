"""Weak recovery against exact values, the honesty of its error bars, and its derivatives."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln, xlogy

import jaxsmi as smi
from helpers import differences, mean_and_error, result
from jaxsmi import Result
from jaxsmi.numerics.fixed_point import apply
from jaxsmi.numerics.linear_algebra import conjugation
from jaxsmi.thresholds.weak import leading_eigenmatrix

KEY, SLOW = jax.random.key(0), pytest.mark.slow
PHASE = smi.links.phase_retrieval()


def log_counts(y, z):  # of mean 2 z²
    rate = 2.0 * z[0, 0] ** 2
    return xlogy(y, rate) - rate - gammaln(y + 1.0)


COUNTS = smi.MultiIndex(log_likelihood=log_counts, outcomes=np.arange(70.0), indices=1)
KNOWN = {  # model, points, α and its error, what is learned
    "phase retrieval": (PHASE, 2**13, 0.5, 0, [[1.0]]),
    "phase retrieval, squared": (smi.links.phase_retrieval(squared=True), 2**13, 0.5, 0, [[1.0]]),
    # exact on any points
    "sign of a product": (smi.links.sign_product(2), 2**10, np.pi**2 / 4, 0, np.eye(2) / 2),
    # known to half a unit of the last digit
    "product": (smi.links.product(2), 2**13, 0.59375, 5e-6, np.eye(2) / 2),
    "square and parity": (smi.links.square_plus_sign_parity(), 2**14, 0.57517, 5e-6, np.diag([1, 0, 0])),
    # the counts that are cut off
    "counts": (COUNTS, 2**10, 1 / 2 + 1 / 8, 1e-5, [[1.0]]),
    "one layer, 2 tokens": (smi.DeepAttention(1, 2), 2**13, 1 / 6, 0, [[1.0]]),
    "one layer, 3 tokens": (smi.DeepAttention(1, 3), 2**13, 1 / 12, 0, [[1.0]]),
    "one layer, 4 tokens": (smi.DeepAttention(1, 4), 2**13, 1 / 20, 0, [[1.0]]),
    # by an independent quadrature [theory: deep-attention, Table 1]
    "two layers": (smi.DeepAttention(2, 2), 2**14, 0.186, 0.002, np.diag([0, 1])),
}  # fmt: skip
QUICK = ("phase retrieval", "one layer, 2 tokens")


def weak(model, points, key=KEY, **options):
    return smi.weak_recovery(model, key=key, averages=smi.Averages(points=points), **options)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[SLOW] * (n not in QUICK)) for n in KNOWN])
def test_weak_recovery_at_known_values(name):
    model, points, alpha, error, subspace = KNOWN[name]
    threshold = weak(model, points)
    assert result(threshold) == Result.SUCCESS
    assert abs(float(threshold.alpha) - alpha) < 4 * float(threshold.stderr) + error + 1e-6
    assert float(threshold.stderr) < 0.02 * alpha
    np.testing.assert_allclose(threshold.subspace, subspace, atol=1e-6)


@SLOW
def test_an_even_link_that_jumps_tells_nothing_at_first_order():
    """y = 1 where |z| > 0.6, and label noise: nodes that were not even in t gave E[z|y] = 1e-3 with
    an error of 1e-6, and a threshold of zero. With the odds p of y = 1
    λ = (2Kφ(K))² ∫ (N_1 - N_0)²/(p N_1 + (1 - p) N_0) dy."""
    K, noise = 0.6, 0.1
    law = lambda z: jnp.where(jnp.abs(z[0, 0]) > K, 1.0, 0.0)
    model = smi.MultiIndex(law, indices=1, noise=noise)
    found = weak(model, 2**11)
    y = np.linspace(-3.0, 4.0, 7001)
    one, zero = (np.exp(-((y - x) ** 2) / (2 * noise)) for x in (1.0, 0.0))
    p = math.erfc(K / math.sqrt(2.0))
    ratio = (one - zero) ** 2 / (p * one + (1.0 - p) * zero)
    density = np.sum(ratio) * (y[1] - y[0]) / math.sqrt(2 * np.pi * noise)
    rate = (2.0 * K * math.exp(-(K**2) / 2)) ** 2 / (2 * np.pi) * density
    assert abs(float(found.alpha) * rate - 1.0) < 4 * float(found.stderr) * rate + 1e-3


@SLOW
def test_parity_of_three_signs_is_never_learned():
    threshold = weak(smi.links.sign_product(3), 2**8)
    assert np.isposinf(float(threshold.alpha))
    assert not np.any(np.asarray(threshold.subspace))


@pytest.mark.parametrize("model", [smi.links.sign(), smi.links.linear(0.1)], ids=["sign", "linear"])
def test_a_trivial_subspace_is_learned_at_once(model):
    threshold = weak(model, 2**10)
    assert float(threshold.alpha) == 0.0
    np.testing.assert_allclose(threshold.subspace, [[1.0]], atol=1e-12)


@SLOW
def test_the_threshold_scales_with_the_prior():
    """Fields of variance 4 scale the label of phase retrieval, not its threshold."""
    model = smi.links.phase_retrieval(prior=smi.priors.Gaussian(jnp.asarray([[4.0]])))
    one = weak(PHASE, 2**10)
    np.testing.assert_allclose(weak(model, 2**10).alpha, one.alpha, rtol=1e-10)


def test_the_error_bar_covers_the_truth():
    """95 % intervals over 60 keys: at least 50 hold the truth (binomial: fewer than 50 has
    probability 3e-4)."""
    intervals = [weak(PHASE, 2**9, jax.random.key(k)).interval() for k in range(60)]
    assert sum(low <= 0.5 <= high for low, high in intervals) >= 50


def test_an_oscillating_map_is_solved():
    """y = (sign z11 z21, sign z22 z32): F(diag(a, b, c)) = (4/π²) diag(b, a + c, b), which plain
    power iteration never solves.

    G of the two labels s, t = ±1 by hand: E[z11 z21|s] = 2s/π in token 1, E[z22 z32|t] = 2t/π in
    token 2.
    """
    G = np.zeros((4, 3, 2, 3, 2))
    for n, (s, t) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):
        G[n, 0, 0, 1, 0] = G[n, 1, 0, 0, 0] = 2 * s / np.pi
        G[n, 1, 1, 2, 1] = G[n, 2, 1, 1, 1] = 2 * t / np.pi
    G = jnp.asarray(G)
    a, b, c = 0.3, 0.5, 0.9
    growth = conjugation(G, G)
    image = apply(growth, jnp.diag(jnp.asarray([a, b, c])))
    np.testing.assert_allclose(image, 4 / np.pi**2 * np.diag([b, a + c, b]), atol=1e-12)
    X = leading_eigenmatrix(jnp.stack([growth, growth]))
    # eigenvalue √2 of the 3×3 part
    np.testing.assert_allclose(apply(growth, X), 4 / np.pi**2 * np.sqrt(2) * X, atol=1e-10)
    assert np.linalg.eigvalsh(X).min() > -1e-10


def noisy(noise):
    return smi.MultiIndex(lambda z: jnp.abs(z[0, 0]), indices=1, noise=noise)


def closed_over(c):
    return smi.MultiIndex(lambda z: c * z[0, 0] ** 2 + jnp.abs(z[0, 0]), indices=1, noise=0.5)


@SLOW
@pytest.mark.parametrize(
    ("build", "at", "points", "rtol"),
    [
        (noisy, 0.5, 2**10, 1e-3),  # the tolerance of inner integrals
        (closed_over, 0.5, 2**10, 1e-3),
        (lambda skip: smi.DeepAttention(2, 2, skip=skip), 1.0, 2**15, 0.02),
    ],
    ids=["noise", "a number in the closure", "skip"],
)
def test_derivatives_are_those_of_differences(build, at, points, rtol):
    """Both modes, and under jit, against central differences on the same points."""
    threshold = lambda x: weak(build(x), points).alpha
    slope = float(jax.grad(threshold)(at))
    np.testing.assert_allclose(slope, differences(threshold, [at], 1e-3)[0], rtol=rtol)
    np.testing.assert_allclose(jax.jvp(threshold, (at,), (1.0,))[1], slope, rtol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.grad(threshold))(at), slope, rtol=1e-8)


@SLOW
def test_the_threshold_of_one_layer_does_not_depend_on_the_inverse_temperature():
    threshold = lambda beta: weak(smi.DeepAttention(1, 2, beta=beta), 2**9).alpha
    assert abs(float(jax.grad(threshold)(1.3))) < 1e-10


@pytest.mark.parametrize(
    ("depth", "tokens", "alpha"), [(1, 2, 0.5), (2, 2, 1.0), (3, 2, 1.5), (2, 3, 2 / 3)]
)
def test_perfect_recovery_of_attention(depth, tokens, alpha):
    threshold = smi.recovery_threshold(smi.DeepAttention(depth, tokens))
    np.testing.assert_allclose(threshold.alpha, alpha, rtol=1e-12)


def test_bad_priors_under_jit_are_a_code():
    """A mean that is not zero is traced under jit: NaN and the code INVALID."""

    class Shifted(smi.priors.Gaussian):
        def mean_overlap(self, indices):
            return super().mean_overlap(indices) + 0.5

    model = smi.links.phase_retrieval(prior=Shifted(jnp.eye(1)))
    with pytest.raises(ValueError, match="mean zero"):
        weak(model, 64)
    threshold = eqx.filter_jit(lambda key: weak(model, 64, key))(KEY)
    assert np.isnan(threshold.alpha)
    assert result(threshold) == Result.INVALID


def fixed_points_near_recovery(depth, smallest, samples, iterations):
    """α M/P and its standard error at the fixed points of some V_11, V on its ray: α tr(V response)
    = P - tr V."""
    channel, v, found = smi.DeepAttention(depth, 2).channel, np.array([0.1, 0.001])[:depth], []
    settings = {"points": samples // 8, "nets": 8, "tangents": False}
    for first in smallest:
        v = v * first / v[0]
        for step in range(iterations):
            V = jnp.diag(jnp.asarray(v))
            R = channel.response(jnp.eye(depth) - V, V, key=jax.random.key(step), **settings)
            each = (depth - v.sum()) / np.einsum("p,rpp->r", v, np.asarray(R.replicas))
            rest = 1 / (1 + (1 / v[0] - 1) / R.mean[0, 0] * np.diagonal(R.mean)[1:])
            v = np.concatenate([[first], rest])
        found.append(mean_and_error(each * 2 / depth))
    return np.array(found).T


@SLOW
@pytest.mark.parametrize(
    ("depth", "smallest", "samples", "iterations", "errors"),
    [(1, (0.1, 0.03, 0.01, 0.001), 2**15, 1, -3), (2, (0.1, 0.03, 0.01), 2**12, 8, 2)],
    ids=["one layer", "two layers"],
)
def test_layers_reach_perfect_recovery_without_a_jump(depth, smallest, samples, iterations, errors):
    """Below P/M, which fixed points reach as V falls."""
    alpha, error = fixed_points_near_recovery(depth, smallest, samples, iterations)
    assert np.all(alpha < 1.0 + errors * error)
    assert np.all(np.diff(alpha) > 0)
    assert alpha[-1] > (0.999 if depth == 1 else 0.99)
