"""Noiseless channels of products of fields, against quadratures written here in NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from helpers import gauss_legendre, respond
from jaxsmi.channels.products import ProductChannel, SquarePlusSignParityChannel, TripleSignChannel
from jaxsmi.numerics.refining import Budget

CHANNELS = {
    "product": ProductChannel(Budget(1e-6)),
    "square plus parity": SquarePlusSignParityChannel(),
    "triple sign": TripleSignChannel(),
}
HEAVY = [pytest.param(n, marks=[pytest.mark.slow] * (n != "product")) for n in CHANNELS]
V_THREE = np.array([[0.7, 0.35, -0.2], [0.35, 0.4, 0.1], [-0.2, 0.1, 0.9]])


def covariance_of(channel):
    return V_THREE[: channel.indices, : channel.indices]


def draw(channel, V, count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    omega = np.sqrt(spread) * rng.standard_normal((count, channel.indices))
    fields = omega + rng.standard_normal(omega.shape) @ np.linalg.cholesky(V).T
    labels = jax.vmap(lambda z: channel.label(z[:, None], jnp.zeros(0)))(jnp.asarray(fields))
    return omega, np.asarray(labels)


def nodes_of(name, y, omega, V):
    """Fields (n, P) compatible with the label, and log-weights of the measure on them."""
    far = np.abs(omega) + 9 * np.sqrt(np.diag(V))
    if name == "product":
        x, step = np.linspace(-30, 30, 60001, retstep=True)
        root = np.sqrt(abs(y))
        plus = np.stack([root * np.exp(x), np.sign(y) * root * np.exp(-x)], axis=1)
        return np.concatenate([plus, -plus]), np.full(2 * len(x), np.log(step))
    if name == "triple sign":
        grids = np.meshgrid(*[gauss_legendre(0.0, f, 70)[0] for f in far], indexing="ij")
        weights = np.meshgrid(*[gauss_legendre(0.0, f, 70)[1] for f in far], indexing="ij")
        size = np.stack([g.ravel() for g in grids], axis=1)
        log_w = sum(np.log(w).ravel() for w in weights)
        signs = [(a, b, y * a * b) for a in (1, -1) for b in (1, -1)]
        return np.concatenate([size * s for s in signs]), np.tile(log_w, 4)
    grids = np.meshgrid(*[gauss_legendre(0.0, f, 70)[0] for f in far[1:]], indexing="ij")
    weights = np.meshgrid(*[gauss_legendre(0.0, f, 70)[1] for f in far[1:]], indexing="ij")
    size = np.stack([g.ravel() for g in grids], axis=1)
    log_w = sum(np.log(w).ravel() for w in weights)
    points, logs = [], []
    for parity in (1, -1):
        if y > parity:
            root = np.sqrt(y - parity)
            for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                points.append(
                    np.column_stack(
                        [np.full(len(size), parity * a * b * root), a * size[:, 0], b * size[:, 1]]
                    )
                )
                logs.append(log_w - np.log(2 * root))
    return np.concatenate(points), np.concatenate(logs)


@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("shrink", [1.0, 0.01])
def test_against_brute_force(name, shrink):
    channel = CHANNELS[name]
    V = shrink * covariance_of(channel)
    omega, labels = draw(channel, V, 6)
    post = respond(channel, jnp.asarray(labels), jnp.asarray(omega[:, :, None]), jnp.asarray(V))
    inverse = np.linalg.inv(V)
    for n in range(6):
        z, log_w = nodes_of(name, labels[n], omega[n], V)
        log_w = log_w + multivariate_normal(omega[n], V).logpdf(z)
        log_partition = logsumexp(log_w)
        p = np.exp(log_w - log_partition)
        mean = p @ (z - omega[n])
        second = np.einsum("n,ni,nj->ij", p, z - omega[n], z - omega[n]) - np.outer(mean, mean)
        g, dg = inverse @ mean, inverse @ second @ inverse - inverse
        # 70 Gauss-Legendre nodes on a half-line: 1e-10 at V of order one, 1e-6 for a Gaussian ten
        # times narrower
        atol = 1e-8 if shrink == 1.0 or name == "product" else 1e-5
        np.testing.assert_allclose(post.log_partition[n], log_partition, atol=atol, rtol=0)
        np.testing.assert_allclose(post.g[n, :, 0], g, atol=atol * (1 + np.abs(g).max()), rtol=0)
        np.testing.assert_allclose(
            post.dg[n, :, 0, :, 0], dg, atol=atol * (1 + np.abs(dg).max()), rtol=0
        )


@pytest.mark.parametrize("name", HEAVY)
def test_g_and_dg_are_derivatives(name):
    channel, h = CHANNELS[name], 1e-5
    V = jnp.asarray(covariance_of(channel))
    omega, labels = draw(channel, V, 8, seed=1)
    omega = omega[:, :, None]
    post = respond(channel, jnp.asarray(labels), jnp.asarray(omega), V)
    for p in range(channel.indices):
        step = h * np.eye(channel.indices)[p][:, None]
        up, down = (
            respond(channel, jnp.asarray(labels), jnp.asarray(omega + s * step), V) for s in (1, -1)
        )
        slope = (up.log_partition - down.log_partition) / (2 * h)
        np.testing.assert_allclose(
            post.g[:, p, 0], slope, atol=1e-7 * (1 + np.abs(slope).max()), rtol=0
        )
        slope = (up.g - down.g)[:, :, 0] / (2 * h)
        np.testing.assert_allclose(
            post.dg[:, :, 0, p, 0], slope, atol=1e-6 * (1 + np.abs(slope).max()), rtol=0
        )


def test_product_meets_its_tolerance_whatever_V():
    """Where one or both fields are nearly known the hyperbola is seen through a narrow window:
    followed, at any scale."""
    for variances in ([1.0, 1.0], [0.5, 0.01], [1e-8, 1e-8], [1.0, 1e-6]):
        V = np.diag(variances)
        rng = np.random.default_rng(5)
        omega = np.sqrt(1 - np.asarray(variances)) * rng.standard_normal((256, 2))
        fields = omega + np.sqrt(variances) * rng.standard_normal((256, 2))
        post = respond(
            CHANNELS["product"],
            jnp.asarray(fields.prod(1)),
            jnp.asarray(omega[:, :, None]),
            jnp.asarray(V),
        )
        assert float(post.error.max()) <= 1e-6


@pytest.mark.parametrize("name", HEAVY)
def test_response_is_on_the_nishimori_line(name):
    """E g gᵀ = -E ∂g, both averaged over the labels of the channel itself (z-scores over
    randomisations)."""
    channel = CHANNELS[name]
    V = 0.6 * np.eye(channel.indices)
    omega, labels = draw(channel, V, 4096, seed=3, spread=0.4)
    post = respond(channel, jnp.asarray(labels), jnp.asarray(omega[:, :, None]), jnp.asarray(V))
    difference = np.einsum("npm,nqm->npq", post.g, post.g) + np.einsum("npmqm->npq", post.dg)
    score = difference.mean(0) / (difference.std(0) / np.sqrt(len(labels)) + 1e-12)
    assert np.abs(score).max() < 4.5


def test_labels_out_of_range():
    V, zero = jnp.eye(3), jnp.zeros((3, 1))
    with pytest.raises(ValueError, match="labels"):
        CHANNELS["square plus parity"].posterior(-2.0, zero, V)
    with pytest.raises(ValueError, match="labels"):
        CHANNELS["triple sign"].posterior(0.5, zero, V)
    with pytest.raises(ValueError, match="labels"):
        CHANNELS["product"].posterior(jnp.nan, zero[:2], V[:2, :2])
