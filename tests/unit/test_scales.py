"""Attention whose last layer has a query and a key of its own: the integral over what a label
leaves open, against integrals in other variables, exact thresholds, and counted constraints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import jaxsmi as smi
from helpers import respond

BETA = 1.3
SHAPE = np.array([[0.7, 0.35], [0.35, 0.4]])
KEY = jax.random.key(0)


@functools.cache
def channel_of(tokens, tied=(False,)):
    return smi.DeepAttention(len(tied), tokens, tied=tied, beta=BETA).channel


def drawn(channel, V, count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    shape = (count, channel.indices, channel.tokens)
    omega = spread * rng.standard_normal(shape)
    fields = omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), rng.standard_normal(shape))
    return omega, fields, jax.vmap(channel.label)(jnp.asarray(fields), jnp.zeros((count, 0)))


def observed(channel, fields):
    return jax.vmap(lambda z: channel.observe(z, jnp.zeros(0)))(jnp.asarray(fields))


def response_of_two_tokens(fields, omega, V):
    """g by adaptive quadrature over κ = k_1 - k_2 in the fields themselves: the label is q κ, so
    that q = label/κ with the Jacobian κ^{-2}; k_1 + k_2 follows linearly, its variance is free."""
    label = fields[0] * (fields[1, 0] - fields[1, 1])
    turn = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, -1], [0, 0, 1, 1.0]])
    C, mean = turn @ np.kron(V, np.eye(2)) @ turn.T, turn @ omega.ravel()
    inverse = np.linalg.inv(C[:3, :3])

    def point(kappa):
        d = np.array([*(label / kappa), kappa]) - mean[:3]
        return np.exp(-0.5 * d @ inverse @ d) / kappa**2, d

    def integral(i):
        value = lambda x: point(x)[0] * (1.0 if i is None else point(x)[1][i])
        total = 0.0
        for sign in (-1.0, 1.0):
            breaks = np.sort(sign * np.array([0.05, 0.2, 0.5, 1, 2, 4, 8]))
            ends = np.sort(sign * np.array([1e-6, 40.0]))
            total += quad(value, *ends, points=breaks, limit=800, epsabs=1e-13, epsrel=1e-11)[0]
        return total

    mass = integral(None)
    d = np.array([integral(i) / mass for i in range(3)])
    d = np.append(d, C[3, :3] @ inverse @ d)
    return np.linalg.solve(C, d) @ turn


def test_one_layer_against_adaptive_quadrature():
    """From labels. quad's own 1e-11, divided by the smallest variance."""
    channel = channel_of(2)
    for V in (SHAPE, 0.05 * np.eye(2)):
        omega, fields, labels = drawn(channel, V, 2)
        post = respond(channel, channel.statistic(labels), jnp.asarray(omega), jnp.asarray(V))
        for n in range(2):
            expected = response_of_two_tokens(fields[n], omega[n], V)
            np.testing.assert_allclose(post.g[n].ravel(), expected, rtol=1e-7, atol=1e-7)


def moments_of(fields, omega, V, count=200_000):
    """g and ∂g from a dense sum over log|c|, of fields (2, M)."""
    M = fields.shape[1]
    q, k = fields[0], fields[1] - fields[1].mean()
    L = np.linalg.cholesky(V)
    x, logs, rows = np.linspace(-12, 12, count), [], []
    for sign in (1.0, -1.0):
        c = sign * np.exp(x)[:, None]
        first = (c * q - omega[0]) / L[0, 0]
        second = (k / c - omega[1] - L[1, 0] * first) / L[1, 1]
        r = np.concatenate([first, second - second.mean(1, keepdims=True)], axis=1)
        logs.append(x - 0.5 * (r * r).sum(1))
        rows.append(r)
    logs, rows = np.concatenate(logs), np.concatenate(rows)
    w = np.exp(logs - logs.max())
    w /= w.sum()
    mean = w @ rows
    covariance = (rows * w[:, None]).T @ rows - np.outer(mean, mean)
    covariance[M:, M:] += 1.0 / M
    inverse = np.kron(np.linalg.inv(L), np.eye(M))
    return inverse.T @ mean, inverse.T @ (covariance - np.eye(2 * M)) @ inverse


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 3])
def test_one_layer_in_all_covariances(tokens):
    """Down to variances of 1e-6, in one direction or both; errors are within those reported."""
    channel = channel_of(tokens)
    shapes = (SHAPE, 1e-6 * SHAPE, np.diag([1e-6, 1.0]), np.diag([1.0, 1e-6]))
    strong = np.array([[0.05, 0.04], [0.04, 0.05]])
    for V in (*shapes, strong):
        omega, fields, labels = drawn(channel, V, 4, spread=0.7)
        post = respond(channel, channel.statistic(labels), jnp.asarray(omega), jnp.asarray(V))
        for n in range(4):
            g, dg = moments_of(fields[n], omega[n], V)
            off = np.abs(post.g[n].ravel() - g).max() / (1 + np.abs(g).max())
            assert off < float(post.error[n]) < 1e-3
            off = np.abs(post.dg[n].ravel() - dg.ravel()).max() / (1 + np.abs(dg).max())
            assert off < float(post.dg_error[n]) < 1e-2


@pytest.mark.slow
def test_what_a_label_shows_is_what_theory_takes():
    """q κᵀ of labels and of fields; 1e-9: what the softmax leaves of float64."""
    for tokens in (2, 3, 4):
        channel = channel_of(tokens)
        _, fields, labels = drawn(channel, SHAPE, 16, seed=1)
        u = np.asarray(channel.statistic(labels))
        seen = np.asarray(observed(channel, fields))
        product = lambda x: np.einsum("ni,nj->nij", x[:, 0], x[:, 1])
        np.testing.assert_allclose(product(u), product(seen), atol=1e-9)
        np.testing.assert_allclose(abs(u), abs(seen), atol=1e-9)


@pytest.mark.slow
def test_near_perfect_recovery_labels_count_their_constraints():
    """tr(V E g gᵀ) → 2M - 2, a χ² of so many degrees of freedom: 4.5 standard errors."""
    for tokens in (2, 3):
        channel = channel_of(tokens)
        count = 2 * tokens - 2
        assert channel.constraints == count
        V = 1e-8 * SHAPE
        omega, fields, _ = drawn(channel, V, 512, seed=3)
        seen = observed(channel, fields)
        g = np.asarray(respond(channel, seen, jnp.asarray(omega), jnp.asarray(V)).g)
        each = np.einsum("npm,pq,nqm->n", g, V, g)
        assert abs(each.mean() - count) < 4.5 * np.sqrt(2 * count / 512)
    threshold = smi.recovery_threshold(smi.DeepAttention(1, 3, tied=False))
    np.testing.assert_allclose(float(threshold.alpha), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_weak_recovery_of_untied_query_and_key(tokens):
    """α_c = (√(M² + 1) - M)/(M - 1); queries and keys grow in the ratio of its eigenvector."""
    exact = (np.sqrt(tokens**2 + 1) - tokens) / (tokens - 1)
    model = smi.DeepAttention(1, tokens, tied=False)
    threshold = smi.weak_recovery(model, key=KEY, samples=2**14)
    assert threshold.result == smi.Result.SUCCESS
    assert abs(threshold.alpha - exact) < 4.5 * threshold.stderr
    assert threshold.stderr < 0.01 * exact
    grows = [1.0 / exact - (tokens - 1) ** 2, tokens * (tokens - 1)]  # (F - 1/α_c) v = 0
    share = grows[0] / sum(grows)
    np.testing.assert_allclose(np.diagonal(threshold.subspace), [share, 1 - share], atol=0.01)


@pytest.mark.slow
def test_two_layers_with_a_last_one_untied_against_brute_force():
    """Two tokens: a grid of the first layer's fields times one of κ, in the fields themselves."""
    channel = channel_of(2, (True, False))
    V = np.array([[0.8, 0.1, 0.2], [0.1, 0.5, 0.15], [0.2, 0.15, 0.6]])
    L = np.linalg.cholesky(V)
    omega, fields, labels = drawn(channel, V, 2, seed=1, spread=0.7)
    post = respond(channel, channel.statistic(labels), jnp.asarray(omega), jnp.asarray(V))
    x = np.linspace(-7, 7, 64)
    t = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)

    def mixing(z):
        scores = BETA * z[:, :, None] * z[:, None, :]
        A = np.exp(scores - scores.max(axis=2, keepdims=True))
        return np.eye(2) + A / A.sum(axis=2, keepdims=True)

    for n in range(2):
        query, key = fields[n, 1:] @ mixing(fields[n, :1])[0].T
        label = query * (key[0] - key[1])
        inverse = np.linalg.inv(mixing(omega[n, 0] + L[0, 0] * t))
        log_t = -0.5 * (t**2).sum(1) + 2.0 * np.log(np.linalg.det(inverse))
        mean = (omega[n, 1:] + np.einsum("p,nm->npm", L[1:, 0], t)).reshape(-1, 4)
        precision = np.kron(np.linalg.inv(L[1:, 1:] @ L[1:, 1:].T), np.eye(2))
        free = np.concatenate([np.zeros_like(t), inverse @ np.ones(2)], axis=1)
        a = np.einsum("ni,ij,nj->n", free, precision, free)
        total, first = 0.0, np.zeros(6)
        for log in np.linspace(-6, 4, 300):
            for kappa in (np.exp(log), -np.exp(log)):
                blocks = (inverse @ (label / kappa), inverse @ np.array([kappa, -kappa]) / 2)
                d = np.concatenate(blocks, axis=1) - mean
                d = d - (np.einsum("ni,ij,nj->n", free, precision, d) / a)[:, None] * free
                w = np.exp(log_t - 0.5 * np.einsum("ni,ij,nj->n", d, precision, d))
                w = w / np.sqrt(a) * np.exp(log) / kappa**2
                total += w.sum()
                first[:2] += w @ (L[0, 0] * t)
                first[2:] += w @ (d + mean - omega[n, 1:].reshape(4))
        g = np.linalg.solve(V, (first / total).reshape(3, 2))
        # the tolerance of the inner integral
        np.testing.assert_allclose(post.g[n], g, atol=1e-3 * (1 + np.abs(g).max()))


@pytest.mark.slow
def test_message_passing_is_where_state_evolution_is():
    """D = 500, α = 0.7: runs beside theory, overlaps within their spread."""
    model = smi.DeepAttention(1, 2, tied=False)
    theory = smi.state_evolution(model, 0.7, key=KEY, samples=512, randomisations=8)
    assert theory.result == smi.Result.SUCCESS
    cosines = []
    for seed in range(4):
        data = model.sample(jax.random.key(seed), dimension=500, alpha=0.7)
        run = smi.gamp(model, data, key=jax.random.key(100 + seed), max_steps=200)
        cosines.append(np.asarray(run.trajectory["cosine"][-1]) ** 2)
    cosines = np.array(cosines)
    expected = np.diagonal(theory.overlap)
    print(cosines, expected, theory.stderr)
    spread = cosines.std(axis=0, ddof=1) / 2
    np.testing.assert_array_less(abs(cosines.mean(0) - expected), 4.5 * spread + 0.02)
