"""Weak recovery against exact values, the honesty of its error bars, and its derivatives."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi import Result
from jaxsmi.thresholds.growth import applied, leading

KEY = jax.random.key(0)
EXACT = {
    "phase retrieval": (smi.links.phase_retrieval(), 0.5, [[1.0]]),
    "phase retrieval, squared": (smi.links.phase_retrieval(squared=True), 0.5, [[1.0]]),
    "sign of a product": (smi.links.sign_product(2), np.pi**2 / 4, np.eye(2) / 2),
    "product": (smi.links.product(2), 0.59375, np.eye(2) / 2),
    "one layer, 2 tokens": (smi.DeepAttention(1, 2), 1 / 6, [[1.0]]),
    "one layer, 3 tokens": (smi.DeepAttention(1, 3), 1 / 12, [[1.0]]),
    "one layer, 4 tokens": (smi.DeepAttention(1, 4), 1 / 20, [[1.0]]),
}


QUICK = ("phase retrieval", "one layer, 2 tokens")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in EXACT]
)
def test_weak_recovery_at_its_exact_values(name):
    model, alpha, subspace = EXACT[name]
    samples = 2**10 if name == "sign of a product" else 2**13  # exact there, whatever the samples
    found = smi.weak_recovery(model, key=KEY, samples=samples)
    assert Result(int(found.result)) == Result.SUCCESS
    # 0.59375 is known to half a unit of its last digit
    assert abs(float(found.alpha) - alpha) < 4 * float(found.stderr) + 5e-6, (
        found.alpha,
        found.stderr,
    )
    assert abs(float(found.alpha) - alpha) < 0.02 * alpha
    np.testing.assert_allclose(found.subspace, subspace, atol=1e-6)


@pytest.mark.slow
def test_an_even_link_that_jumps_tells_nothing_at_first_order():
    """y = 1 where |z| > 0.6, and label noise: nodes that are not even in t made E[z|y] of 1e-3,
    told as 1e-6, and a threshold of zero. The odds of y = 1 are p, and with them
    λ = (2Kφ(K))² ∫ (N_1 - N_0)²/(p N_1 + (1 - p) N_0) dy."""
    K, noise = 0.6, 0.1
    law = lambda z: jnp.where(jnp.abs(z[0, 0]) > K, 1.0, 0.0)
    model = smi.MultiIndex(law, indices=1, noise=noise)
    found = smi.weak_recovery(model, key=KEY, samples=2**11)
    y = np.linspace(-3.0, 4.0, 7001)
    one, zero = (np.exp(-((y - x) ** 2) / (2 * noise)) for x in (1.0, 0.0))
    p = math.erfc(K / math.sqrt(2.0))
    ratio = (one - zero) ** 2 / (p * one + (1.0 - p) * zero)
    density = np.sum(ratio) * (y[1] - y[0]) / math.sqrt(2 * np.pi * noise)
    rate = (2.0 * K * math.exp(-(K**2) / 2)) ** 2 / (2 * np.pi) * density
    assert abs(float(found.alpha) * rate - 1.0) < 4 * float(found.stderr) * rate + 1e-3


@pytest.mark.slow
def test_staircase_link_learns_its_first_index_first():
    found = smi.weak_recovery(smi.links.square_plus_sign_parity(), key=KEY, samples=2**12)
    assert abs(float(found.alpha) - 0.57517) < 4 * float(found.stderr) + 5e-6
    np.testing.assert_allclose(found.subspace, np.diag([1.0, 0.0, 0.0]), atol=1e-6)


@pytest.mark.slow
def test_parity_of_three_signs_is_never_learned():
    found = smi.weak_recovery(smi.links.sign_product(3), key=KEY, samples=2**8)
    assert np.isposinf(float(found.alpha))
    assert not np.any(np.asarray(found.subspace))


@pytest.mark.parametrize("model", [smi.links.sign(), smi.links.linear(0.1)], ids=["sign", "linear"])
def test_a_trivial_subspace_is_learned_at_once(model):
    found = smi.weak_recovery(model, key=KEY, samples=2**10)
    assert float(found.alpha) == 0.0
    np.testing.assert_allclose(found.subspace, [[1.0]], atol=1e-12)


def test_two_layers_learn_the_last_one_first():
    """0.186 ± 0.002 by an independent quadrature [theory: deep-attention, Table 1]."""
    found = smi.weak_recovery(smi.DeepAttention(2, 2), key=KEY, samples=2**14)
    assert abs(float(found.alpha) - 0.186) < 0.002 + 3 * float(found.stderr)
    assert float(found.stderr) < 0.01 * 0.186
    np.testing.assert_allclose(found.subspace, np.diag([0.0, 1.0]), atol=1e-6)


@pytest.mark.slow
def test_the_threshold_scales_with_the_prior():
    """A signal of variance v sees fields of variance v: the label of phase retrieval scales, the
    threshold does not."""
    model = smi.links.phase_retrieval(prior=smi.priors.Gaussian(jnp.asarray([[4.0]])))
    one = smi.weak_recovery(smi.links.phase_retrieval(), key=KEY, samples=2**10)
    four = smi.weak_recovery(model, key=KEY, samples=2**10)
    np.testing.assert_allclose(four.alpha, one.alpha, rtol=1e-10)


def test_the_error_bar_covers_the_truth():
    """95 % intervals over 60 keys: at least 50 hold the truth (binomial: fewer than 50 has
    probability 3e-4)."""
    model = smi.links.phase_retrieval()
    threshold = eqx.filter_jit(lambda key: smi.weak_recovery(model, key=key, samples=2**9))
    held = 0
    for k in range(60):
        low, high = threshold(jax.random.key(k)).interval()
        held += low <= 0.5 <= high
    assert held >= 50


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
    np.testing.assert_allclose(
        applied(G, jnp.diag(jnp.asarray([a, b, c]))),
        4 / np.pi**2 * np.diag([b, a + c, b]),
        atol=1e-12,
    )
    X = leading(jnp.stack([G, G]))
    np.testing.assert_allclose(
        applied(G, X), 4 / np.pi**2 * np.sqrt(2) * X, atol=1e-10
    )  # eigenvalue √2 of the 3×3 part
    assert np.linalg.eigvalsh(X).min() > -1e-10


def test_many_indices_are_an_operator():
    """Nine indices, of which z1 z2 alone matters: the same threshold as that of two."""
    G = np.zeros((2, 9, 1, 9, 1))
    for n, s in enumerate((1, -1)):
        G[n, 0, 0, 1, 0] = G[n, 1, 0, 0, 0] = 2 * s / np.pi
    X = leading(jnp.asarray(G)[None])
    np.testing.assert_allclose(X, np.diag([1.0, 1.0] + [0.0] * 7) / np.sqrt(2), atol=1e-10)
    np.testing.assert_allclose(applied(jnp.asarray(G), X), 4 / np.pi**2 * X, atol=1e-10)


@pytest.mark.slow
def test_derivative_with_respect_to_the_inverse_temperature():
    """One attention layer is seen through u alone: its threshold does not depend on β, its
    derivative is zero."""

    def threshold(beta):
        return smi.weak_recovery(smi.DeepAttention(1, 2, beta=beta), key=KEY, samples=2**9).alpha

    slope = jax.grad(threshold)(1.3)
    assert abs(float(slope)) < 1e-10


@pytest.mark.slow
def test_derivative_with_respect_to_noise():
    """A noisy link, by autodiff in both modes, against central differences with the same key (which
    share all points)."""

    def threshold(noise):
        model = smi.MultiIndex(_even, indices=1, noise=noise)
        return smi.weak_recovery(model, key=KEY, samples=2**10).alpha

    at, h = 0.5, 1e-3
    backwards = float(jax.grad(threshold)(at))
    forwards = float(jax.jvp(threshold, (at,), (1.0,))[1])
    difference = float(threshold(at + h) - threshold(at - h)) / (2 * h)
    np.testing.assert_allclose(forwards, backwards, rtol=1e-10)
    np.testing.assert_allclose(backwards, difference, rtol=1e-3)  # the inner integrals' tolerance
    assert backwards > 0  # noise delays learning


def _even(z):
    return jnp.abs(z[0, 0])


@pytest.mark.parametrize(
    ("depth", "tokens", "alpha"), [(1, 2, 0.5), (2, 2, 1.0), (3, 2, 1.5), (2, 3, 2 / 3)]
)
def test_perfect_recovery_of_attention(depth, tokens, alpha):
    found = smi.recovery_threshold(smi.DeepAttention(depth, tokens))
    np.testing.assert_allclose(found.alpha, alpha, rtol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="noiseless link"):
        smi.weak_recovery(smi.links.product(3), key=KEY)
    with pytest.raises(ValueError, match="randomisations"):
        smi.weak_recovery(smi.links.sign(), key=KEY, randomisations=1)
    with pytest.raises(ValueError, match="model"):
        smi.recovery_threshold(smi.links.sign())
    with pytest.raises(ValueError, match="prior"):
        smi.recovery_threshold(smi.links.phase_retrieval(prior=smi.priors.Rademacher()))


def test_arguments_are_checked_before_anything_is_computed():
    model = smi.links.phase_retrieval()
    for name, call in {
        "key": lambda: smi.weak_recovery(model, key=None),
        "samples": lambda: smi.weak_recovery(model, key=KEY, samples=2.0**10),
        "replicas": lambda: smi.staircase(model, key=KEY, replicas=1),
        "alpha_max": lambda: smi.staircase(model, key=KEY, alpha_max=[1.0, 2.0]),
        "steps": lambda: smi.staircase(model, key=KEY, steps=0),
        "guess": lambda: smi.staircase(model, key=KEY, guess=[0.5]),
        "alpha_min": lambda: smi.first_order(model, key=KEY, alpha_min=0.0),
        "points": lambda: smi.first_order(model, key=KEY, points=2),
        "max_steps": lambda: smi.first_order(model, key=KEY, max_steps=0),
        "step": lambda: smi.search_threshold(smi.links.linear, 0.1, key=KEY, step=-1),
        "tolerance": lambda: smi.search_threshold(smi.links.linear, 0.1, key=KEY, tolerance=0.0),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name}: got .*allowed: "):
            call()


def test_bad_priors_under_jit_are_a_code():
    """A mean that is not zero is not known under jit: NaN and the code INVALID."""

    class Shifted(smi.priors.Gaussian):
        def known(self, indices):
            return super().known(indices) + 0.5

    model = smi.links.phase_retrieval(prior=Shifted(jnp.eye(1)))
    with pytest.raises(ValueError, match="mean zero"):
        smi.weak_recovery(model, key=KEY, samples=64)
    found = eqx.filter_jit(lambda key: smi.weak_recovery(model, key=key, samples=64))(KEY)
    assert np.isnan(found.alpha)
    assert int(found.result) == Result.INVALID


@pytest.mark.slow
def test_derivative_with_respect_to_the_skip_strength():
    """Two layers: d(threshold)/d(skip) by autodiff against central differences with common random
    numbers."""

    def threshold(skip):
        return smi.weak_recovery(smi.DeepAttention(2, 2, skip=skip), key=KEY, samples=2**15).alpha

    h = 1e-3
    slope, difference = (
        float(jax.grad(threshold)(1.0)),
        float(threshold(1 + h) - threshold(1 - h)) / (2 * h),
    )
    print(f"autodiff {slope:.6f}, central difference {difference:.6f}")
    np.testing.assert_allclose(slope, difference, rtol=0.02)


def fixed_points_near_recovery(depth, smallest, samples, iterations):
    """α M/P and its standard error at the fixed points with V_11 as given, V on its ray: α tr(V
    response) = P - tr V."""
    model, v, found = smi.DeepAttention(depth, 2), np.array([0.1, 0.001])[:depth], []
    for first in smallest:
        v = v * first / v[0]
        for step in range(iterations):
            V = jnp.diag(jnp.asarray(v))
            R = model.channel.response(
                jnp.eye(depth) - V,
                V,
                key=jax.random.key(step),
                points=samples // 8,
                nets=8,
                tangents=False,
            )
            each = (depth - v.sum()) / np.einsum("p,rpp->r", v, np.asarray(R.replicas))
            v = np.concatenate(
                [[first], 1 / (1 + (1 / v[0] - 1) / R.mean[0, 0] * np.diagonal(R.mean)[1:])]
            )
        found.append((each.mean() * 2 / depth, each.std(ddof=1) / np.sqrt(8) * 2 / depth))
    return np.array(found)


@pytest.mark.slow
def test_one_layer_reaches_perfect_recovery_without_a_jump():
    found = fixed_points_near_recovery(1, (0.1, 0.03, 0.01, 0.001), 2**15, 1)
    print(found)
    assert np.all(found[:, 0] + 3 * found[:, 1] < 1.0)  # below P/M ..
    assert np.all(np.diff(found[:, 0]) > 0)  # .. which they reach as V falls
    assert found[-1, 0] > 0.999


@pytest.mark.slow
def test_two_layers_reach_perfect_recovery_without_a_jump():
    found = fixed_points_near_recovery(2, (0.1, 0.03, 0.01), 2**12, 8)
    print(found)
    assert np.all(found[:, 0] < 1.0 + 2 * found[:, 1])
    assert np.all(np.diff(found[:, 0]) > 0)
    assert found[-1, 0] > 0.99
