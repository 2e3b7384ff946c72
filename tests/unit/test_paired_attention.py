"""Three layers of attention between two tokens: both ways to draw nodes, and the posterior they
make, against autodiff, plain Monte-Carlo in NumPy and the other channel of the same link."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.channels.attention import DeepAttentionChannel
from jaxsmi.channels.averages import weighted_posteriors
from jaxsmi.channels.paired_attention import LastLayers, PairedAttentionChannel

SKIP, BETA = 0.8, 1.3


def mixing(h):
    """A = c I + σ_β(h hᵀ) of one pair of tokens."""
    return SKIP * jnp.eye(2) + jax.nn.softmax(BETA * jnp.outer(h, h), axis=1)


@jax.jit
def expected_of(A1, u, means, root, before, rest):
    """z_3 of z_2 by its definition, and the log-weight of each point (n, 2), up to 1/2π."""

    def z_last(z):
        return jnp.linalg.solve(A1, jnp.linalg.solve(mixing(A1 @ z), u))

    def one(before, rest):
        z = means[0] + root[0, 0] * before
        spread = jnp.hypot(root[1, 0], root[1, 1])
        drawn = (root[1, 0] * before + root[1, 1] * rest) / spread
        jacobian = jnp.abs(jnp.linalg.det(jax.jacfwd(z_last)(z)))
        first = jnp.exp(-0.5 * before @ before) / root[0, 0] ** 2
        second = jnp.exp(-0.5 * drawn @ drawn) / spread**2 * jacobian
        target = jnp.exp(-0.5 * (before @ before + rest @ rest)) / root[0, 0] ** 2
        det = jnp.linalg.det(A1) * jnp.linalg.det(mixing(A1 @ z))
        other = means[1] + spread * drawn
        return other, z_last(z), drawn, jnp.log(target / (first + second) / det)

    return jax.vmap(one)(before, rest)


def test_both_ways_meet_at_the_same_points():
    """A_2 w = ±u, det A_2 and |∂z_3/∂z_2| from their definitions, at 400 nodes each."""
    rng = np.random.default_rng(0)
    A1 = mixing(jnp.asarray(rng.standard_normal(2)))
    fields = jnp.asarray([[0.9, -0.6], [0.8, -0.4]])
    u = mixing(A1 @ fields[0]) @ A1 @ fields[1]
    root = jnp.linalg.cholesky(jnp.asarray([[0.9, 0.2], [0.2, 0.3]]))
    means = jnp.asarray([[0.3, 0.1], [0.6, -0.3]])
    free = jnp.asarray(rng.standard_normal((400, 2)))
    column = lambda x: x[:, None, None]
    pairs = column(means[0]), column(means[1])
    numbers = jnp.asarray(SKIP), jnp.asarray(BETA)
    last = LastLayers(column(u), pairs, root, [A1[:, :, None, None]], *numbers)
    reached = np.zeros(6, int)
    branches = jax.jit(LastLayers.branches)(last, free.T[:, None])
    for k, (log_weight, residuals, _) in enumerate(branches):
        inside = np.asarray(log_weight[0] > -1e30)
        reached[k] = inside.sum()
        before, rest = np.stack([x[0] for x in residuals], 1).reshape(-1, 2, 2).swapaxes(0, 1)
        every = expected_of(A1, u, means, root, before, rest)
        other, solved, drawn, expected = (x[inside] for x in every)
        np.testing.assert_allclose(other, (1.0 if k < 3 else -1.0) * solved, rtol=1e-8, atol=1e-8)
        what = drawn if k % 3 else before[inside]
        np.testing.assert_allclose(what, free[inside], atol=1e-8)
        np.testing.assert_allclose(log_weight[0, inside], expected, rtol=1e-7, atol=1e-7)
    print("nodes that z_2 exists for", reached)
    assert reached[0] == reached[3] == 400
    assert reached[1] == reached[2] > 20


@eqx.filter_jit
def posterior(channel, u, omega, V, key):
    return channel.respond(u, omega, V, key)


def drawn(count, V, seed):
    """Statistics u of fields N(ω, V), and ω."""
    model = smi.DeepAttention(3, 2, SKIP, beta=BETA)
    rng = np.random.default_rng(seed)
    omega = 0.7 * rng.standard_normal((count, 3, 2))
    noise = rng.standard_normal((count, 3, 2))
    fields = jnp.asarray(omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), noise))
    return jax.vmap(lambda z: model.channel.observe(z, jnp.zeros(0)))(fields), jnp.asarray(omega)


CORRELATED = np.array([[0.7, -0.1, 0.1], [-0.1, 0.6, 0.2], [0.1, 0.2, 0.3]])


@pytest.mark.slow
@pytest.mark.parametrize("V", [CORRELATED, np.diag([1.0, 1.0, 0.1])], ids=["correlated", "diag"])
def test_against_the_channel_of_one_way(V):
    """Both at a tolerance of 3e-3 (three standard errors): 24 samples, within the sum of both
    tolerances, ten times that for ∂g."""
    u, omega = drawn(24, V, 1)
    model = smi.DeepAttention(3, 2, SKIP, beta=BETA, tolerance=3e-3, max_nodes=2**20)
    channel = model.channel
    assert isinstance(channel, PairedAttentionChannel)
    plain = DeepAttentionChannel(3, 2, model.layers, model.skip, model.beta, channel.budget)
    two = posterior(channel, u, omega, jnp.asarray(V), jax.random.key(1))
    one = posterior(plain, u, omega, jnp.asarray(V), jax.random.key(2))
    good = np.asarray((two.error <= 3e-3) & (one.error <= 3e-3))
    assert good.mean() >= 0.9
    assert two.ess.min() >= 32
    for name, allowed in (("g", 6e-3), ("dg", 6e-2)):
        a, b = (np.asarray(getattr(x, name)).reshape(24, -1) for x in (one, two))
        error = np.abs(a - b).max(1) / (1 + np.abs(a).max(1))
        print(name, "largest difference", error[good].max(), "median", np.median(error))
        assert (error[good] <= allowed).all()
    difference = np.abs(one.log_partition - two.log_partition)[good]
    print("log Z: largest difference", difference.max())
    assert (difference <= 2e-2).all()


@pytest.mark.slow
def test_against_plain_monte_carlo():
    """g and log Z_out by 2^23 draws of the inner layers from N(ω, V) in NumPy, in 16 batches whose
    spread is the error bar: within five of them and three reported errors."""
    V = CORRELATED
    u, omega = drawn(3, V, 2)
    channel = smi.DeepAttention(3, 2, SKIP, beta=BETA, tolerance=3e-3).channel
    found = posterior(channel, u, omega, jnp.asarray(V), jax.random.key(3))
    rng = np.random.default_rng(5)
    L = np.linalg.cholesky(V)
    slope = np.linalg.solve(V[:2, :2], V[:2, 2])  # of E[z_3 | z_1, z_2]
    left = V[2, 2] - V[2, :2] @ slope

    def mixing(h):
        s = np.exp(BETA * h[:, :, None] * h[:, None, :])
        return SKIP * np.eye(2) + s / s.sum(2, keepdims=True)

    for n in range(3):
        masses, means = [], []
        for _ in range(16):
            t = rng.standard_normal((2**19, 2, 2))
            z = np.asarray(omega[n, :2]) + np.einsum("pq,nqm->npm", L[:2, :2], t)
            A = mixing(z[:, 0])
            B = mixing(np.einsum("nij,nj->ni", A, z[:, 1])) @ A
            det = np.linalg.det(B)
            last = np.linalg.solve(B, np.broadcast_to(u[n], (len(z), 2))[..., None])[..., 0]
            centre = omega[n, 2] + np.einsum("q,nqm->nm", slope, z - np.asarray(omega[n, :2]))
            total, mean = 0.0, np.zeros((3, 2))
            for sign in (1.0, -1.0):
                square = np.sum((sign * last - centre) ** 2, 1)
                w = np.exp(-0.5 * square / left) / (2 * np.pi * left) / np.abs(det)
                total += w.mean()
                full = np.concatenate([z, sign * last[:, None]], 1)
                mean += np.einsum("n,npm->pm", w, full) / len(z)
            masses.append(total)
            means.append(mean / total)
        g = np.linalg.solve(V, np.mean(means, 0) - np.asarray(omega[n]))
        each = np.linalg.solve(V, np.asarray(means) - np.asarray(omega[n]))
        stderr = each.std(0, ddof=1) / 4
        allowed = 5 * stderr + 3 * float(found.error[n]) * (1 + np.abs(g).max())
        print("g", np.abs(found.g[n] - g).max(), "stderr", stderr.max(), "error", found.error[n])
        assert (np.abs(found.g[n] - g) <= allowed).all()
        log_mass, spread = np.log(np.mean(masses)), np.std(masses, ddof=1) / np.mean(masses) / 4
        assert abs(float(found.log_partition[n]) - log_mass) <= 5 * spread + 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "V", "nodes"), [(1.0, 1.0, 512), (1.0, 0.02, 4096), (0.87, 0.0115, 4096)]
)
def test_thresholds_by_both_routes(first, V, nodes, monkeypatch):
    """Growth of the next hidden layer (layer 1 where layer 3 is known, layer 2 where layer 1 is
    learned, too) and the slopes that say at which α, by the library and by a script that shares
    nothing with it, benchmarks/deep_thresholds.py: within three joint standard errors and 1 %, what
    tolerances may leave."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import deep_thresholds  # pyright: ignore[reportMissingImports]

    runs = [deep_thresholds.measured(3, V, 1024, nodes, seed, first) for seed in range(1, 5)]
    new = 0 if first == 1.0 else 1
    independent = {"λ": [run[0][new] for run in runs]}
    if V < 1.0:
        independent["f_3"] = [run[1] for run in runs]
    if first < 1.0:
        independent["f_1"] = [run[3] for run in runs]

    Q = jnp.diag(jnp.asarray([1.0 - first, 0.0, 1.0 - V]))
    model = smi.DeepAttention(3, 2)

    @eqx.filter_jit
    def averages(model, key):
        V = jnp.eye(3) - Q
        post, _ = weighted_posteriors(model.channel, Q, V, key=key, points=1024, nets=8)
        (g, dg), (g_too, dg_too) = post.factors
        rate = jnp.sum((dg * dg_too)[:, new, :, new], axis=(1, 2))
        slopes = jnp.sum(g * g_too, axis=2)
        split = lambda x: jnp.mean(x.reshape(8, -1), 1)
        return {"λ": split(rate), "f_1": split(slopes[:, 0]), "f_3": split(slopes[:, 2])}

    ours = averages(model, jax.random.key(0))
    for name, values in independent.items():
        one, other = np.asarray(ours[name]), np.asarray(values)
        joint = np.hypot(one.std(ddof=1) / np.sqrt(8), other.std(ddof=1) / 2)
        print(name, one.mean(), other.mean(), "joint standard error", joint)
        assert abs(one.mean() - other.mean()) <= 3 * joint + 0.01 * one.mean()
