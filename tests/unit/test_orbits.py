"""Attention whose last layer has rank two, or a query and a key of its own: the integral over what
a label leaves open, against dense sums and adaptive quadratures, exact thresholds, symmetries."""

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
def channel_of(tokens, ranks=(2,), tied=True):
    return smi.DeepAttention(len(ranks), tokens, ranks=ranks, tied=tied, beta=BETA).channel


def untied(tokens):
    return channel_of(tokens, (1,), False)


def drawn(channel, V, count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    shape = (count, channel.indices, channel.tokens)
    omega = spread * rng.standard_normal(shape)
    fields = omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), rng.standard_normal(shape))
    return omega, fields, jax.vmap(channel.label)(jnp.asarray(fields), jnp.zeros((count, 0)))


def observed(channel, fields):
    return jax.vmap(lambda z: channel.observe(z, jnp.zeros(0)))(jnp.asarray(fields))


def posteriors(channel, labels, omega, V):
    return respond(channel, channel.statistic(labels), jnp.asarray(omega), jnp.asarray(V))


def mixing(z):
    scores = BETA * z[:, :, None] * z[:, None, :]
    A = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.eye(2) + A / A.sum(axis=2, keepdims=True)


# Rank two
# --------------------------------------------------------------------------------------------


def moments_of_rank_two(h, omega, V, count=100_000):
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
        post = posteriors(channel, labels, omega, V)
        for n in range(3):
            log_z, g, dg = moments_of_rank_two(fields[n], omega[n], V)
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
def test_two_layers_with_a_last_one_of_rank_two_against_brute_force():
    """Two tokens, layers of rank one and two: a grid of the first layer's fields times angles."""
    channel = channel_of(2, (1, 2))
    V = np.array([[0.8, 0.1, 0.2], [0.1, 0.5, 0.15], [0.2, 0.15, 0.6]])
    L = np.linalg.cholesky(V)
    omega, fields, _ = drawn(channel, V, 3, seed=1, spread=0.7)
    u = observed(channel, fields)
    post = respond(channel, u, jnp.asarray(omega), jnp.asarray(V))
    x, h = np.linspace(-7, 7, 72, retstep=True)
    t = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    for n in range(3):
        z = omega[n, 0] + L[0, 0] * t
        A = mixing(z)
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


# Untied
# --------------------------------------------------------------------------------------------


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
    channel = untied(2)
    for V in (SHAPE, 0.05 * np.eye(2)):
        omega, fields, labels = drawn(channel, V, 2)
        post = posteriors(channel, labels, omega, V)
        for n in range(2):
            expected = response_of_two_tokens(fields[n], omega[n], V)
            np.testing.assert_allclose(post.g[n].ravel(), expected, rtol=1e-7, atol=1e-7)


def moments_untied(fields, omega, V, count=200_000):
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
    channel = untied(tokens)
    shapes = (SHAPE, 1e-6 * SHAPE, np.diag([1e-6, 1.0]), np.diag([1.0, 1e-6]))
    strong = np.array([[0.05, 0.04], [0.04, 0.05]])
    for V in (*shapes, strong):
        omega, fields, labels = drawn(channel, V, 4, spread=0.7)
        post = posteriors(channel, labels, omega, V)
        for n in range(4):
            g, dg = moments_untied(fields[n], omega[n], V)
            off = np.abs(post.g[n].ravel() - g).max() / (1 + np.abs(g).max())
            assert off < float(post.error[n]) < 1e-3
            off = np.abs(post.dg[n].ravel() - dg.ravel()).max() / (1 + np.abs(dg).max())
            assert off < float(post.dg_error[n]) < 1e-2


@pytest.mark.slow
def test_what_a_label_shows_is_what_theory_takes():
    """q κᵀ of labels and of fields; 1e-9: what the softmax leaves of float64."""
    for tokens in (2, 3, 4):
        channel = untied(tokens)
        _, fields, labels = drawn(channel, SHAPE, 16, seed=1)
        u = np.asarray(channel.statistic(labels))
        seen = np.asarray(observed(channel, fields))
        product = lambda x: np.einsum("ni,nj->nij", x[:, 0], x[:, 1])
        np.testing.assert_allclose(product(u), product(seen), atol=1e-9)
        np.testing.assert_allclose(abs(u), abs(seen), atol=1e-9)


@pytest.mark.slow
def test_two_layers_with_a_last_one_untied_against_brute_force():
    """Two tokens: a grid of the first layer's fields times one of κ, in the fields themselves."""
    channel = channel_of(2, (1, 1), (True, False))
    V = np.array([[0.8, 0.1, 0.2], [0.1, 0.5, 0.15], [0.2, 0.15, 0.6]])
    L = np.linalg.cholesky(V)
    omega, fields, labels = drawn(channel, V, 2, seed=1, spread=0.7)
    post = posteriors(channel, labels, omega, V)
    x = np.linspace(-7, 7, 64)
    t = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)

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
    theory = smi.state_evolution(model, 0.7, key=KEY, averages=smi.Averages(512, 8))
    assert theory.result == smi.Result.SUCCESS
    cosines = []
    for seed in range(4):
        data = model.sample(jax.random.key(seed), dimension=500, alpha=0.7)
        run = smi.gamp(model, data, key=jax.random.key(100 + seed), iteration=smi.Iteration(200))
        cosines.append(np.asarray(run.trajectory["cosine"][-1]) ** 2)
    cosines = np.array(cosines)
    expected = np.diagonal(theory.overlap)
    print(cosines, expected, theory.stderr)
    spread = cosines.std(axis=0, ddof=1) / 2
    np.testing.assert_array_less(abs(cosines.mean(0) - expected), 4.5 * spread + 0.02)


# Both
# --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "tied", "count"), [(2, True, 2), (3, True, 5), (2, False, 2), (3, False, 4)]
)
def test_near_perfect_recovery_labels_count_their_constraints(tokens, tied, count):
    """tr(V E g gᵀ) → kM - k(k-1)/2 of rank k, 2M - 2 untied: a χ² of so many degrees of freedom,
    4.5 standard errors."""
    channel = channel_of(tokens) if tied else untied(tokens)
    assert channel.constraints == count
    V = 1e-8 * SHAPE
    omega, fields, _ = drawn(channel, V, 512, seed=3)
    statistic = observed(channel, fields)
    g = np.asarray(respond(channel, statistic, jnp.asarray(omega), jnp.asarray(V)).g)
    each = np.einsum("npm,pq,nqm->n", g, V, g)
    assert abs(each.mean() - count) < 4.5 * np.sqrt(2 * count / 512)
    model = smi.DeepAttention(1, tokens, ranks=2 if tied else 1, tied=tied)
    np.testing.assert_allclose(float(smi.recovery_threshold(model).alpha), 2 / count)


THRESHOLDS = [(2, True, 2 / 5), (3, True, 1 / 6), (4, True, 1 / 10)]
THRESHOLDS += [(M, False, (np.sqrt(M**2 + 1) - M) / (M - 1)) for M in (2, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "tied", "exact"), THRESHOLDS)
def test_weak_recovery_of_one_layer(tokens, tied, exact):
    """Rank two: 1/α_c = (rM(M+1) - 2(r-k))/r², both directions grow together. Untied: queries and
    keys grow in the ratio of the eigenvector, (F - 1/α_c) v = 0."""
    model = smi.DeepAttention(1, tokens, ranks=2 if tied else 1, tied=tied)
    threshold = smi.weak_recovery(model, key=KEY, averages=smi.Averages(points=2**14))
    assert threshold.result == smi.Result.SUCCESS
    assert abs(threshold.alpha - exact) < 4.5 * threshold.stderr
    assert threshold.stderr < 0.01 * exact
    grows = [1.0, 1.0] if tied else [1.0 / exact - (tokens - 1) ** 2, tokens * (tokens - 1)]
    share = np.array(grows) / sum(grows)
    np.testing.assert_allclose(np.diagonal(threshold.subspace), share, atol=1e-3 if tied else 0.01)
