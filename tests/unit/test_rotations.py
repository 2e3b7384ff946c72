"""Attention whose last layer has rank two: the integral over what a label leaves open, against
dense sums over angles written here in NumPy, exact thresholds, and symmetries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import respond

BETA = 1.3
SHAPE = np.array([[0.7, 0.35], [0.35, 0.4]])


@functools.cache
def channel_of(tokens, ranks=(2,)):
    return smi.DeepAttention(len(ranks), tokens, ranks=ranks, beta=BETA).channel


def drawn(channel, V, count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    shape = (count, channel.indices, channel.tokens)
    omega = spread * rng.standard_normal(shape)
    fields = omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), rng.standard_normal(shape))
    return omega, fields, jax.vmap(channel.label)(jnp.asarray(fields), jnp.zeros((count, 0)))


def moments_of(h, omega, V, count=100_000):
    """log Z_out, g and ∂g from a dense sum over the angle, of fields h (2, M); of two tokens the
    component across the line is a Gaussian, completed to a square in the fields themselves."""
    M = h.shape[1]
    inverse = np.linalg.inv(V)
    angle = 2 * np.pi * np.arange(count) / count
    c, s = np.cos(angle), np.sin(angle)
    if M == 2:
        e, across = np.stack([c, s]), np.stack([-s, c])
        direction = (h[:, 1] - h[:, 0]) / np.linalg.norm(h[:, 1] - h[:, 0])
        d = np.einsum("pk,m->kpm", e, direction @ h) - omega
        A = M * np.einsum("pk,pq,qk->k", across, inverse, across)
        shift = -np.einsum("pk,pq,kqm->k", across, inverse, d) / A
        d = d + (across * shift).T[:, :, None]
        log_w = -0.5 * np.log(A / (2 * np.pi))
        extra = np.einsum("pk,qk,k->pqk", across, across, 1 / A)
    else:
        R = np.array([[c, -s], [s, c]])
        R = np.concatenate([R, R * np.array([1.0, -1.0])[None, :, None]], axis=2)
        d = np.einsum("pqk,qm->kpm", R, h) - omega
        log_w, extra = 0.0, np.zeros((2, 2, 2 * count))
    log_w = log_w - 0.5 * np.einsum("kpm,kpm->k", d, np.einsum("pq,kqm->kpm", inverse, d))
    w = np.exp(log_w - log_w.max())
    log_z = log_w.max() + np.log(w.sum() * 2 * np.pi / count)
    log_z -= M * np.log(2 * np.pi) + 0.5 * M * np.linalg.slogdet(V)[1]
    w /= w.sum()
    flat = d.reshape(len(d), -1)
    mean = w @ flat
    covariance = (flat * w[:, None]).T @ flat - np.outer(mean, mean)
    covariance += np.kron(extra @ w, np.ones((M, M)))
    whiten = np.kron(inverse, np.eye(M))
    dg = whiten @ covariance @ whiten - whiten
    return log_z, (whiten @ mean).reshape(2, M), dg.reshape(2, M, 2, M)


@pytest.mark.parametrize("tokens", [2, *(pytest.param(M, marks=pytest.mark.slow) for M in (3, 4))])
def test_one_layer_of_rank_two_against_brute_force(tokens):
    """From labels, in covariances from 1 to 1e-6: the sum of 1e5 angles resolves √V = 1e-3; tokens
    that nearly agree cost the inversion some digits, and 1e-6 what cancels in it."""
    channel = channel_of(tokens)
    for V, atol in ((SHAPE, 1e-6), (1e-6 * SHAPE, 1e-5), (np.diag([1e-6, 1.0]), 1e-5)):
        omega, fields, labels = drawn(channel, V, 3)
        post = respond(channel, channel.statistic(labels), jnp.asarray(omega), jnp.asarray(V))
        for n in range(3):
            log_z, g, dg = moments_of(fields[n], omega[n], V)
            np.testing.assert_allclose(post.log_partition[n], log_z, atol=atol)
            np.testing.assert_allclose(post.g[n], g, atol=atol * (1 + np.abs(g).max()))
            np.testing.assert_allclose(post.dg[n], dg, atol=10 * atol * (1 + np.abs(dg).max()))
        assert np.all(post.error < 1e-3)


@pytest.mark.slow
def test_labels_give_the_fields_back_up_to_a_rotation():
    """Gram matrices agree; the condition of the inversion grows as tokens near each other, which
    leaves 1e-9 of float64 in the worst of 16."""
    for tokens in (3, 4):
        channel = channel_of(tokens)
        _, fields, labels = drawn(channel, SHAPE, 16, seed=1)
        u = np.asarray(channel.statistic(labels))
        gram = lambda h: np.einsum("npi,npj->nij", h, h)
        np.testing.assert_allclose(gram(u), gram(fields), atol=1e-9)


def test_rotations_of_everything_change_nothing():
    """g(Rω, RVRᵀ) = R g(ω, V) for R in O(2), at any label."""
    channel = channel_of(3)
    omega, _, labels = drawn(channel, SHAPE, 8, seed=2)
    R = np.array([[0.6, 0.8], [0.8, -0.6]])
    statistic = channel.statistic(labels)
    post = respond(channel, statistic, jnp.asarray(omega), jnp.asarray(SHAPE))
    turned = R @ omega
    moved = respond(channel, statistic, jnp.asarray(turned), jnp.asarray(R @ SHAPE @ R.T))
    # the rule's own error, 1e-7 here
    np.testing.assert_allclose(moved.log_partition, post.log_partition, atol=1e-6)
    np.testing.assert_allclose(moved.g, R @ post.g, atol=1e-6 * (1 + np.abs(post.g).max()))


@pytest.mark.slow
def test_near_perfect_recovery_labels_count_their_constraints():
    """tr(V E g gᵀ) → kM - k(k-1)/2: 2 for two tokens, 5 for three."""
    for tokens, count in ((2, 2), (3, 5)):
        channel = channel_of(tokens)
        assert channel.constraints == count
        V = 1e-8 * SHAPE
        omega, _, labels = drawn(channel, V, 512, seed=3)
        statistic = channel.statistic(labels)
        g = np.asarray(respond(channel, statistic, jnp.asarray(omega), jnp.asarray(V)).g)
        each = np.einsum("npm,pq,nqm->n", g, V, g)
        # a χ² of `count` degrees of freedom: 4.5 standard errors
        assert abs(each.mean() - count) < 4.5 * np.sqrt(2 * count / 512)
    alphas = [float(smi.recovery_threshold(smi.DeepAttention(1, M, ranks=2)).alpha) for M in (2, 3)]
    np.testing.assert_allclose(alphas, [1.0, 0.4])


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "exact"), [(2, 2 / 5), (3, 1 / 6), (4, 1 / 10)])
def test_weak_recovery_of_one_layer_of_rank_two(tokens, exact):
    """1/α_c = (rM(M+1) - 2(r-k))/r²; both directions grow together."""
    model = smi.DeepAttention(1, tokens, ranks=2)
    threshold = smi.weak_recovery(model, key=jax.random.key(0), samples=2**14)
    assert abs(threshold.alpha - exact) < 4.5 * threshold.stderr
    assert threshold.stderr < 0.01 * exact
    np.testing.assert_allclose(threshold.subspace, 0.5 * np.eye(2), atol=1e-3)


@pytest.mark.slow
def test_two_layers_with_a_last_one_of_rank_two_against_brute_force():
    """Two tokens, layers of rank one and two: a grid of the first layer's fields times angles."""
    channel = channel_of(2, (1, 2))
    V = np.array([[0.8, 0.1, 0.2], [0.1, 0.5, 0.15], [0.2, 0.15, 0.6]])
    L = np.linalg.cholesky(V)
    omega, fields, _ = drawn(channel, V, 3, seed=1, spread=0.7)
    u = jax.vmap(lambda z: channel.observe(z, jnp.zeros(0)))(jnp.asarray(fields))
    post = respond(channel, u, jnp.asarray(omega), jnp.asarray(V))
    x, h = np.linspace(-7, 7, 72, retstep=True)
    t = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    for n in range(3):
        z = omega[n, 0] + L[0, 0] * t
        scores = BETA * z[:, :, None] * z[:, None, :]
        A = np.exp(scores - scores.max(axis=2, keepdims=True))
        A = np.eye(2) + A / A.sum(axis=2, keepdims=True)
        v = np.linalg.solve(A, np.asarray(u[n, 0])[:, None])[:, :, 0]
        log_t = -0.5 * (t**2).sum(1) + 2 * np.log(h) - np.log(2 * np.pi)
        log_t -= 2 * np.log(np.abs(np.linalg.det(A)))
        # the conditional of the last block is N(mean, V') for each token, V' = L' L'ᵀ
        mean = omega[n, 1:] + np.einsum("p,nm->npm", L[1:, 0], t)
        inverse = np.linalg.inv(L[1:, 1:] @ L[1:, 1:].T)
        total, first = 0.0, np.zeros((3, 2))
        for angle in 2 * np.pi * np.arange(240) / 240:
            e = np.array([np.cos(angle), np.sin(angle)])
            across = np.array([-e[1], e[0]])
            d = e[:, None] * v[:, None, :] - mean
            a = 2 * across @ inverse @ across
            d = d - np.einsum("p,n->np", across, (across @ inverse @ d.sum(2).T) / a)[:, :, None]
            square = np.einsum("npm,pq,nqm->n", d, inverse, d)
            w = np.exp(log_t - 0.5 * square) * np.sqrt(2 * np.pi / a) * 2 * np.pi / 240
            total += w.sum()
            # h = e vᵀ + c 1ᵀ B-free: dc of h is 1 + skip = 2 times that of the fields
            z_last = d + mean - omega[n, 1:]
            first[0] += w @ (L[0, 0] * t)
            first[1:] += np.einsum("n,npm->pm", w, z_last)
        norm = 2 * np.log(2 * np.pi) + 2 * np.log(np.diag(L)[1:]).sum()
        g = np.linalg.inv(V) @ (first / total)
        # nodes: 1e-4 of the angle, the tolerance 1e-3 of the inner integral
        assert abs(post.log_partition[n] - (np.log(2 * total) - norm)) < 1e-3
        np.testing.assert_allclose(post.g[n], g, atol=1e-3 * (1 + np.abs(g).max()))
