"""All channels: posteriors against quadratures written here in NumPy, finite differences, Nishimori
identities and stored brute-force values."""

import itertools
from functools import cache

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

import jaxsmi as smi
from helpers import gauss_legendre, respond, slow_but, z_scores
from jaxsmi.channels import (
    LogisticChannel,
    ModulusChannel,
    PiecewiseLinearChannel,
    ProductChannel,
    SignChannel,
    SignProductChannel,
    SingleAttentionChannel,
    SquarePlusSignParityChannel,
)
from jaxsmi.channels.attention_link import Layer
from jaxsmi.channels.piecewise import linear_channel
from jaxsmi.numerics.refining import Budget

DELTA, BETA, STEEP = 0.3, 1.3, 10.0
NUMBER = jnp.asarray
RELU = (NUMBER([0.0, 1.0]), NUMBER([0.0, 0.0]), NUMBER([0.0]), (True, False))
ZOO = {
    "linear": linear_channel(NUMBER(DELTA)),
    "linear, 2 tokens": linear_channel(NUMBER(DELTA), 2),
    "relu": PiecewiseLinearChannel(*RELU, NUMBER(DELTA)),
    "modulus": ModulusChannel(),
    "square": ModulusChannel(squared=True),
    "sign": SignChannel(),
    "logistic": LogisticChannel(NUMBER(STEEP)),
    "sign product": SignProductChannel(),
    "triple sign": SignProductChannel(indices=3),
    "triple committee": smi.links.sign_committee(3).channel,
    "product": ProductChannel(Budget(1e-6)),
    "square plus parity": SquarePlusSignParityChannel(),
    "attention, 2 tokens": SingleAttentionChannel(1, 2, (Layer(),), jnp.zeros(0), NUMBER(BETA)),
    "attention, 3 tokens": SingleAttentionChannel(1, 3, (Layer(),), jnp.zeros(0), NUMBER(BETA)),
}
# labels are +1 and -1
FINITE = ("sign", "logistic", "sign product", "triple sign", "triple committee")
# of each of these kinds another is fast
SLOW = ("linear", *FINITE[2:], "square plus parity", "attention, 3 tokens")
NAMES = slow_but(ZOO, *(set(ZOO) - set(SLOW)))
V_THREE = np.array([[0.7, 0.35, -0.2], [0.35, 0.4, 0.1], [-0.2, 0.1, 0.9]])


@cache
def deep(tolerance=1e-3, skip=1.0):
    return smi.DeepAttention(depth=2, tokens=2, skip=skip, tolerance=tolerance).channel


@eqx.filter_jit
def labels_of(channel, fields, noise):
    return jax.vmap(channel.label)(fields, noise)


@eqx.filter_jit
def statistic_of(channel, labels):
    return channel.statistic(labels)


def draw(channel, V, count, seed=0, spread=1.0):
    """Random ω (count, P, M), fields z ~ N(ω, V) and their labels."""
    rng = np.random.default_rng(seed)
    P, M = channel.indices, channel.tokens
    spread = np.broadcast_to(np.sqrt(spread), (P,))[:, None]
    omega = spread * rng.standard_normal((count, P, M))
    noise = rng.standard_normal((count, P, M))
    fields = omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), noise)
    noise = jnp.asarray(rng.standard_normal((count, channel.noise_size)))
    return omega, fields, labels_of(channel, jnp.asarray(fields), noise)


def covariance_of(channel):
    P = channel.indices
    return np.array([[0.6]]) if P == 1 else V_THREE[:P, :P]


def log_gaussian(z, omega, V):
    """Σ_m log N(z_m; ω_m, V) for z (n, P, M)."""
    d = z - omega
    P, M = omega.shape
    quadratic = np.einsum("npm,pq,nqm->n", d, np.linalg.inv(V), d)
    return -0.5 * quadratic - 0.5 * M * (P * np.log(2 * np.pi) + np.linalg.slogdet(V)[1])


def product_nodes(*axes):
    """Tensor grid of (nodes, weights) axes: points (n, axes), log-weights (n,)."""
    nodes = np.meshgrid(*[a[0] for a in axes], indexing="ij")
    points = np.stack([x.ravel() for x in nodes], axis=1)
    weights = np.meshgrid(*[np.log(a[1]) for a in axes], indexing="ij")
    return points, sum(w.ravel() for w in weights)


def signed_nodes(y, factor, far, count, law=np.prod):
    """Nodes of three or fewer fields (n, P) whose signs multiply to y, or give it by another law,
    with their log-weights."""
    size, log_w = product_nodes(*[gauss_legendre(0.0, f, count) for f in far])
    signs = [s for s in itertools.product((1, -1), repeat=len(far)) if law(s) == y * factor]
    return np.concatenate([size * s for s in signs]), np.tile(log_w, len(signs))


def nodes_of(name, y, fields, omega, V):
    """Fields (n, P, M) compatible with a label, and log-weights of the measure on them: points
    where the label fixes z, Gauss-Legendre otherwise."""
    P, M = omega.shape
    far = np.abs(omega[:, 0]) + 9 * np.sqrt(np.diag(V))
    if name in ("relu", "logistic") or name.startswith("linear"):
        cuts = [-9.0, 0.0, 9.0]  # of a kink
        panels = [gauss_legendre(a, b, 200 // M) for a, b in itertools.pairwise(cuts)]
        axis = [np.concatenate(x) for x in zip(*panels, strict=True)]
        z, log_w = product_nodes(*[axis] * M)
        if name == "logistic":
            return z[:, None], log_w - np.log1p(np.exp(-STEEP * y * z[:, 0]))
        link = np.maximum(z, 0.0) if name == "relu" else z
        rest = np.sum((y - link) ** 2, axis=1)
        return z[:, None], log_w - 0.5 * rest / DELTA - 0.5 * M * np.log(2 * np.pi * DELTA)
    if name == "product":
        x, step = np.linspace(-30, 30, 60001, retstep=True)
        root = np.sqrt(abs(y))
        plus = np.stack([root * np.exp(x), np.sign(y) * root * np.exp(-x)], axis=1)
        return np.concatenate([plus, -plus])[:, :, None], np.full(2 * len(x), np.log(step))
    if name in FINITE:
        law = (lambda s: np.sign(sum(s))) if "committee" in name else np.prod
        z, log_w = signed_nodes(y, 1, far, {1: 200, 2: 160, 3: 70}[P], law)
        return z[:, :, None], log_w
    if name == "square plus parity":
        points, logs = [], []
        for parity, sign in itertools.product((1, -1), repeat=2):
            if y > parity:
                root = np.sqrt(y - parity)
                rest, log_w = signed_nodes(parity, sign, far[1:], 70)
                points.append(np.column_stack([np.full(len(rest), sign * root), rest]))
                logs.append(log_w - np.log(2 * root))
        return np.concatenate(points)[:, :, None], np.concatenate(logs)
    return np.stack([fields, -fields]), np.zeros(2)  # a label gives the fields up to one sign


def moments_of(z, log_w, omega, V):
    """log Z_out, g and ∂g from nodes z (n, P, M) and the logarithms of their measure."""
    P, M = omega.shape
    log_w = log_w + log_gaussian(z, omega, V)
    log_partition = logsumexp(log_w)
    p = np.exp(log_w - log_partition)
    d = (z - omega).reshape(len(z), -1)
    mean = p @ d
    covariance = d.T @ (p[:, None] * d) - np.outer(mean, mean)
    whiten = np.kron(np.linalg.inv(V), np.eye(M))
    dg = (whiten @ covariance @ whiten - whiten).reshape(P, M, P, M)
    return log_partition, (whiten @ mean).reshape(P, M), dg


@pytest.mark.parametrize("name", NAMES)
def test_against_brute_force(name):
    channel, count = ZOO[name], 6
    V = covariance_of(channel)
    omega, fields, labels = draw(channel, V, count)
    post = respond(channel, statistic_of(channel, labels), jnp.asarray(omega), jnp.asarray(V))
    # Gauss-Legendre leaves 1e-10; inverting attention labels 1e-12, squared by the moments
    atol = 1e-8
    for n in range(count):
        nodes = nodes_of(name, np.asarray(labels[n]), fields[n], omega[n], V)
        log_partition, g, dg = moments_of(*nodes, omega[n], V)
        np.testing.assert_allclose(post.log_partition[n], log_partition, atol=atol, rtol=0)
        np.testing.assert_allclose(post.g[n], g, atol=atol * (1 + np.abs(g).max()), rtol=0)
        np.testing.assert_allclose(post.dg[n], dg, atol=atol * (1 + np.abs(dg).max()), rtol=0)


def check_nishimori(channel, V, count, seed, Q):
    """E Σ g gᵀ = -E Σ ∂g, and E Σ g (z - ω)ᵀ = E Σ g gᵀ V with the true fields z (Stein), in 4.5
    standard errors: exceeded once in 1e5."""
    omega, fields, labels = draw(channel, V, count, seed=seed, spread=Q)
    post = respond(channel, statistic_of(channel, labels), jnp.asarray(omega), jnp.asarray(V))
    g = np.asarray(post.g)
    outer = np.einsum("npm,nqm->npq", g, g)
    divergence = np.einsum("npmqm->npq", np.asarray(post.dg))
    cross = np.einsum("npm,nqm->npq", g, fields - omega)
    assert np.all(z_scores(np.einsum("npp->np", outer)) > 8)  # a factor of two would be visible
    assert np.abs(z_scores(outer + divergence)).max() < 4.5
    assert np.abs(z_scores(cross - outer @ V)).max() < 4.5
    return post


@pytest.mark.parametrize("name", NAMES)
def test_nishimori_identities(name):
    P = ZOO[name].indices
    check_nishimori(ZOO[name], 0.6 * np.eye(P), 4096, 3, 0.4)


@pytest.mark.slow
def test_deep_attention_nishimori_identities():
    Q = np.array([0.5, 0.8])
    post = check_nishimori(deep(), np.diag(1 - Q), 8192, 0, Q)
    assert np.mean(post.error > 1e-3) < 0.01


CLOSED = [n for n in ZOO if n not in ("product", "square plus parity")]


@pytest.mark.parametrize(
    "name", slow_but([n for n in CLOSED if n != "triple sign"], *(set(CLOSED) - set(SLOW)))
)
@pytest.mark.parametrize("variance", [1.0, 1e-6])
def test_closed_forms_stay_finite_far_out(name, variance):
    channel = ZOO[name]
    P, M = channel.indices, channel.tokens
    V = variance * covariance_of(channel) / covariance_of(channel)[0, 0]
    root = np.sqrt(np.diag(V))[:, None]
    rng = np.random.default_rng(2)
    omega = 30.0 * root * np.sign(rng.standard_normal((8, P, M)))
    omega[6:] = 0.0
    if name in FINITE:
        labels = jnp.asarray(np.tile([1.0, -1.0], 4))
    else:  # a label made by fields 60 standard deviations away
        far = jnp.asarray(-omega - 0.5 * root)
        labels = labels_of(channel, far, jnp.zeros((8, channel.noise_size)))
    post = respond(channel, statistic_of(channel, labels), jnp.asarray(omega), jnp.asarray(V))
    chex.assert_tree_all_finite((post.log_partition, post.g, post.dg))
    # Cov[z|y] = V + V ∂g V has no negative eigenvalue, relative to V, beyond rounding of V × ∂g ×
    # (60 sigmas)²
    whiten = np.kron(np.linalg.cholesky(V), np.eye(M))
    change = whiten.T @ np.asarray(post.dg).reshape(8, P * M, P * M) @ whiten
    assert np.linalg.eigvalsh(np.eye(P * M) + change).min() > -1e-8


def test_sign_far_out_is_the_inverse_mills_ratio():
    omega = np.array([-30.0, -10.0, -1.0, 0.0, 5.0])
    post = respond(ZOO["sign"], jnp.ones(5), jnp.asarray(omega.reshape(5, 1, 1)), jnp.ones((1, 1)))
    mills = np.exp(-0.5 * omega**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(omega))
    # JAX's log_ndtr is a series of three terms below -20: 105/x^8 = 2e-10 at -30, times g² = 900 in
    # ∂g
    np.testing.assert_allclose(post.g[:, 0, 0], mills, rtol=1e-9)
    np.testing.assert_allclose(post.dg[:, 0, 0, 0, 0], -mills * (mills + omega), atol=1e-6)


@pytest.mark.parametrize("correlation", [-0.9, 0.99, 0.9999])
def test_sign_product_with_nearly_equal_indices(correlation):
    """Against a rule over z_1 with the conditional law of z_2 (scipy's normal distribution), split
    where that turns."""
    V = np.array([[1.0, correlation], [correlation, 1.0]])
    root = np.sqrt(1 - correlation**2)
    omega = np.random.default_rng(3).standard_normal((6, 2)) * 0.7
    omega[0] = 0.0
    labels = jnp.asarray([1.0, -1.0] * 3)
    post = respond(ZOO["sign product"], labels, jnp.asarray(omega[:, :, None]), jnp.asarray(V))
    for n, (a, b) in enumerate(omega):
        y = 1.0 if n % 2 == 0 else -1.0
        total = 0.0
        for side in (1.0, -1.0):
            turn = a - b / correlation  # where the mean of z_2 given z_1 changes sign
            cuts = [0.0, *(turn + root * np.linspace(-12, 12, 25)), side * 12.0]
            cuts = np.unique(np.clip(cuts, *sorted((0.0, side * 12.0))))
            for low, high in itertools.pairwise(cuts):
                z, w = gauss_legendre(low, high, 40)
                density = np.exp(-0.5 * (z - a) ** 2) / np.sqrt(2 * np.pi)
                odds = np.exp(log_ndtr(side * y * (b + correlation * (z - a)) / root))
                total += np.sum(w * density * odds)
        # the rule here is good to 1e-13; the channel promises rounding
        np.testing.assert_allclose(post.log_partition[n], np.log(total), atol=1e-9)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_are_normalised(name):
    """Σ or ∫ over the label (over |z| for z², over u up to its sign for attention) of Z_out is
    one; the tail beyond 8 standard deviations is 1e-15, the rule 1e-10."""
    channel = ZOO[name]
    V = covariance_of(channel)
    omega = draw(channel, V, 1, seed=4)[0][0]
    reach = 8.0 * (V[0, 0] + DELTA) ** 0.5
    if name in FINITE:
        statistic, log_w = jnp.asarray([1.0, -1.0]), np.zeros(2)
    elif name.startswith("linear") or name == "relu":
        axes = [gauss_legendre(-9.0, 9.0, 160) for _ in omega[0]]
        statistic, log_w = product_nodes(*axes)
        statistic = statistic[:, 0] if name == "relu" else statistic
    else:
        far = [abs(w) + reach for w in omega[0]]
        axes = [gauss_legendre(0.0, far[0], 60), *[gauss_legendre(-f, f, 60) for f in far[1:]]]
        statistic, log_w = product_nodes(*axes)
        statistic = statistic[:, 0] if "attention" not in name else statistic
    each = jax.jit(jax.vmap(channel.log_partition, (0, None, None)))
    log_z = each(jnp.asarray(statistic), jnp.asarray(omega), jnp.asarray(V))
    np.testing.assert_allclose(np.exp(logsumexp(np.asarray(log_z) + log_w)), 1.0, atol=1e-9)


def test_product_meets_its_tolerance_whatever_V():
    """Where one or both fields are nearly known the hyperbola is seen through a narrow window:
    followed, at any scale."""
    for variances in ([1.0, 1.0], [0.5, 0.01], [1e-8, 1e-8], [1.0, 1e-6]):
        V = np.diag(variances)
        omega, _, labels = draw(ZOO["product"], V, 256, seed=5, spread=1 - np.asarray(variances))
        post = respond(ZOO["product"], labels, jnp.asarray(omega), jnp.asarray(V))
        assert float(post.error.max()) <= 1e-6


def linear(tokens, tolerance):
    """Trapezoidal rules in one and two fields, nets in four, beside the closed form."""
    link = lambda z: z[0]
    model = smi.MultiIndex(link, indices=1, tokens=tokens, noise=DELTA, tolerance=tolerance)
    return model, linear_channel(NUMBER(DELTA), tokens), 0.0


def of_likelihood(log_likelihood, exact, added=0.0):
    """Labels ±1 of a law that a user writes, beside the closed form with so much added to V."""
    law = {"log_likelihood": log_likelihood, "outcomes": [-1.0, 1.0], "tolerance": 1e-7}
    return smi.MultiIndex(indices=1, **law), exact, added


def probit(y, z):
    return jax.scipy.special.log_ndtr(y * z[0, 0] / DELTA**0.5)


NUMERICAL = {
    "linear": linear(1, 1e-6),
    "two tokens": linear(2, 1e-6),
    "four tokens": linear(4, 1e-2),
    # Φ(y ω/√(V + Δ)): that of signs
    "probit": of_likelihood(probit, ZOO["sign"], DELTA),
    "logit": of_likelihood(lambda y, z: jax.nn.log_sigmoid(STEEP * y * z[0, 0]), ZOO["logistic"]),
}


@pytest.mark.parametrize("name", slow_but(NUMERICAL, "two tokens", "logit"))
def test_numerical_channels_are_the_closed_forms(name):
    """Within three times the errors that are claimed, and these within the tolerance."""
    model, exact, added = NUMERICAL[name]
    tolerance, V = float(model.channel.tolerance), np.array([[0.6]])
    omega, _, labels = draw(exact, V, 16, seed=5)
    post = respond(model.channel, labels, jnp.asarray(omega), jnp.asarray(V))
    truth = respond(exact, labels, jnp.asarray(omega), jnp.asarray(V + added))
    assert bool(jnp.all(post.error <= tolerance))
    for part, told in (("g", post.error), ("dg", post.dg_error)):
        found, true = (np.asarray(getattr(x, part)).reshape(16, -1) for x in (post, truth))
        error = np.abs(found - true).max(axis=1) / (1 + np.abs(true).max(axis=1))
        assert np.all(error <= 3 * np.maximum(told, 1e-9))
    np.testing.assert_allclose(post.log_partition, truth.log_partition, atol=3 * tolerance)
