"""Heads, untied query and key, hardmax, label noise: network = link, symmetries, the exact channel
where there is one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import attention_network
from jaxsmi.design.index import IndexOperator

KEY = jax.random.key(0)
ZOO = {
    "two heads": smi.DeepAttention(2, 2, 0.7, heads=2),
    "two heads inside": smi.DeepAttention(2, 3, 1.0, heads=(2, 1)),
    "untied": smi.DeepAttention(1, 3, tied=False, beta=2.0),
    "untied inside": smi.DeepAttention(2, 2, 1.5, tied=(False, True)),
    "three untied heads of rank two": smi.DeepAttention(2, 3, 0.5, ranks=2, heads=3, tied=False),
    "heads of rank two": smi.DeepAttention(1, 2, ranks=2, heads=2),
    "hardmax": smi.DeepAttention(3, 3, [1.0, 0.3], activation="hardmax"),
    "hardmax heads": smi.DeepAttention(
        2, 4, heads=(1, 2), tied=(False, True), activation="hardmax"
    ),
}


@pytest.mark.parametrize("name", ZOO)
def test_network_equals_link(name):
    model, rng, D = ZOO[name], np.random.default_rng(1), 13
    W, x = (
        jnp.asarray(rng.standard_normal((model.indices, D))),
        jnp.asarray(rng.standard_normal((5, model.tokens, D))),
    )
    by_link = jax.jit(jax.vmap(model.link))(IndexOperator(x).forward(W))
    by_network = jax.jit(jax.vmap(lambda one: attention_network(model, W, one)))(x)
    outputs = jax.jit(lambda W, x: model.student.outputs(W, x))(W, x)
    np.testing.assert_allclose(by_link, by_network, rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_network.sum(-1), 1.0, atol=1e-13)
    np.testing.assert_allclose(outputs, by_link, rtol=0, atol=1e-12)
    assert len(model.index_names) == len(set(model.index_names)) == model.indices


def test_two_untied_heads_in_numpy():
    """Written out with explicit sums: rows of W are q1, k1, q2, k2."""
    rng, beta, D = np.random.default_rng(2), 1.7, 6
    W, x = rng.standard_normal((4, D)), rng.standard_normal((2, D))
    y = np.zeros((2, 2))
    for q, k in ((W[0], W[1]), (W[2], W[3])):
        for i in range(2):
            raw = np.array([np.exp(beta * (q @ x[i]) * (k @ x[j]) / D) for j in range(2)])
            y[i] += 0.5 * raw / raw.sum()
    model = smi.DeepAttention(1, 2, heads=2, tied=False, beta=beta)
    np.testing.assert_allclose(attention_network(model, W, x), y, atol=1e-14)
    assert model.index_names == tuple(
        f"layer 1, head {h}, {part}" for h in (1, 2) for part in ("query", "key")
    )


def test_hardmax_is_the_limit_of_a_large_beta():
    rng = np.random.default_rng(3)
    z = jnp.asarray(rng.standard_normal((200, 2, 3)))
    hard = smi.DeepAttention(2, 3, activation="hardmax")
    soft = smi.DeepAttention(2, 3, beta=1e5)
    gap = np.abs(np.asarray(jax.vmap(hard.link)(z) - jax.vmap(soft.link)(z))).max((1, 2))
    assert np.mean(gap > 1e-6) < 0.02  # but for near-ties
    assert set(np.unique(np.asarray(jax.vmap(hard.link)(z)))) == {0.0, 1.0}


def turned(model, rng):
    """A transformation of the rows of W that every label is blind to, by the definition of the
    layers."""
    blocks = []
    for layer in model.layers:
        heads = []
        for _ in range(layer.heads):
            if layer.tied:
                heads.append(np.linalg.qr(rng.standard_normal((layer.rank, layer.rank)))[0])
            else:
                A = rng.standard_normal((layer.rank, layer.rank)) + 2 * np.eye(layer.rank)
                A = (
                    np.sign(A) if layer.rank == 1 else A
                )  # a scale of q against k: not for rank one, where cosines see it not
                heads.append(
                    np.block([[A, np.zeros_like(A)], [np.zeros_like(A), np.linalg.inv(A).T]])
                )
        order = rng.permutation(layer.heads)
        size = layer.indices // layer.heads
        whole = np.zeros((layer.indices, layer.indices))
        for i, j in enumerate(order):
            whole[i * size : (i + 1) * size, j * size : (j + 1) * size] = heads[j]
        blocks.append(whole)
    total, start = np.zeros((model.indices, model.indices)), 0
    for block in blocks:
        total[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return total


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("heads of rank two",) else pytest.param(name, marks=pytest.mark.slow)
        for name in ZOO
    ],
)
def test_symmetries_change_no_label_no_cosine_and_are_undone(name):
    model, rng, D = ZOO[name], np.random.default_rng(4), 300
    T = turned(model, rng)
    z = rng.standard_normal((6, model.indices, model.tokens))
    moved = np.einsum("pq,nqm->npm", T, z)
    np.testing.assert_allclose(
        jax.vmap(model.link)(jnp.asarray(moved)), jax.vmap(model.link)(jnp.asarray(z)), atol=1e-10
    )
    teacher = rng.standard_normal((model.indices, D))
    estimate = teacher + 0.3 * rng.standard_normal(teacher.shape)

    def cosines(W):
        return np.sort(
            np.asarray(model.metric.overlaps(jnp.asarray(W), jnp.asarray(teacher))["cosine"])
        )

    np.testing.assert_allclose(cosines(T @ estimate), cosines(estimate), atol=1e-9)
    np.testing.assert_allclose(cosines(T @ teacher), 1.0, atol=1e-9)
    np.testing.assert_allclose(smi.align(T @ teacher, teacher, model), teacher, atol=1e-8)
    aligned = np.asarray(smi.align(T @ estimate, teacher, model))
    x = jnp.asarray(rng.standard_normal((4, model.tokens, D)))
    np.testing.assert_allclose(model.predict(aligned, x), model.predict(estimate, x), atol=1e-9)
    assert np.linalg.norm(aligned - teacher) < 0.6 * np.linalg.norm(teacher)


def by_brute_force(model, u, omega, v):
    """g (P, M) of one sample, V = diag(v), from 2^20 plain draws of the inner fields; the layers
    written out in NumPy."""
    rng, c, beta = np.random.default_rng(8), float(model.skip[0]), float(model.beta)
    z = omega[:-1] + np.sqrt(v[:-1])[:, None] * rng.standard_normal((2**20, *omega[:-1].shape))
    pairs = ((0, 1),) if not model.layers[0].tied else ((0, 0), (1, 1))
    A = c * np.eye(2)
    for q, k in pairs:
        raw = np.exp(beta * z[:, q, :, None] * z[:, k, None, :])
        A = A + raw / raw.sum(2, keepdims=True) / len(pairs)
    mass, first = 0.0, np.zeros(omega.shape)
    for sign in (1.0, -1.0):
        last = np.linalg.solve(A, np.broadcast_to(sign * u, (len(z), 2))[..., None])[..., 0]
        weight = np.exp(-0.5 * np.sum((last - omega[-1]) ** 2, 1) / v[-1]) / np.abs(
            np.linalg.det(A)
        )
        mass += weight.sum()
        first[:-1] += np.einsum("n,npm->pm", weight, z)
        first[-1] += weight @ last
    return (first / mass - omega) / v[:, None]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) for n in ("two heads inside", "untied inside")]
)
def test_the_exact_channel_of_other_inner_layers(name):
    model = (
        smi.DeepAttention(2, 2, 0.3, heads=(2, 1))
        if "heads" in name
        else smi.DeepAttention(2, 2, 0.3, tied=(False, True))
    )
    v, rng = np.array([0.7, 0.5, 0.4]), np.random.default_rng(5)
    for _ in range(4):
        omega = np.sqrt(1 - v)[:, None] * rng.standard_normal((3, 2))
        z = omega + np.sqrt(v)[:, None] * rng.standard_normal((3, 2))
        post = model.channel.posterior(
            model.link(jnp.asarray(z)), jnp.asarray(omega), jnp.diag(jnp.asarray(v)), key=KEY
        )
        u = np.asarray(model.channel.observe(jnp.asarray(z), jnp.zeros(0)))
        # the channel's tolerance of 1e-2 (1 + max|g|), and 3 × 1e-3 of the draws
        expected = by_brute_force(model, u, omega, v)
        np.testing.assert_allclose(post.g, expected, atol=0.013 * (1 + np.abs(expected).max()))


REFUSED = {
    "rank": {"ranks": 3},
    "heads": {"heads": (1, 2)},
    "untied": {"tied": False, "ranks": 2},
    "hardmax": {"activation": "hardmax"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_gamp_refuses_what_has_no_channel_and_says_what_to_do(name):
    model = smi.DeepAttention(2, 2, **REFUSED[name])
    data = model.sample(KEY, dimension=10, alpha=2.0)
    remedy = (
        "trained on data" if name == "hardmax" else "one head in the last layer, .* or noise > 0"
    )
    with pytest.raises(ValueError, match=f"^model: got .*Allowed: .*{remedy}"):
        smi.gamp(model, data, key=KEY)


@pytest.mark.slow
def test_noisy_attention_is_inferred_by_quadrature():
    """With little noise the posterior is that of the exact channel."""
    noisy = smi.DeepAttention(1, 2, noise=1e-4, tolerance=1e-4)
    exact = smi.DeepAttention(1, 2)
    omega, V = jnp.array([[0.4, -0.8]]), jnp.array([[0.6]])
    y = exact.link(jnp.array([[0.9, -1.1]]))
    one, two = noisy.channel.posterior(y, omega, V), exact.channel.posterior(y, omega, V)
    np.testing.assert_allclose(
        one.g, two.g, atol=0.02
    )  # Δ/(dy/dz)² ~ 1e-3 in the fields, ~1e-2 in g
    labels = np.asarray(
        smi.DeepAttention(1, 2, noise=0.04).sample(KEY, dimension=50, alpha=40.0).labels
    )
    off = labels.sum(-1) - 1.0  # rows no longer sum to one: variance 2Δ
    assert abs(off.var() - 0.08) < 5 * 0.08 * np.sqrt(2 / off.size)


BAD = {
    "heads": {"heads": 0},
    "tied": {"tied": (True,)},
    "noise": {"noise": -1.0},
    "activation": {"activation": "relu"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; allowed: "):
        smi.DeepAttention(2, 2, **BAD[name])
    with pytest.raises(ValueError, match=r"^noise: .*0 with hardmax"):
        smi.DeepAttention(2, 2, noise=0.1, activation="hardmax")


@pytest.mark.slow
@pytest.mark.slow
def test_a_softmax_student_learns_a_hardmax_teacher():
    hard, soft = smi.DeepAttention(1, 2, activation="hardmax"), smi.DeepAttention(1, 2, beta=4.0)
    data = hard.sample(KEY, dimension=40, alpha=20.0)
    fit = smi.train(soft, data, optax.adam(0.05), key=KEY, steps=300)
    assert float(fit.history["cosine"][-1, 0]) > 0.9
    # the error is against the labels of the hardmax teacher, not against a softmax with its weights
    fresh = hard.sample(jax.random.key(7), dimension=40, alpha=100.0, teacher=data.teacher)
    squared = np.sum(
        (np.asarray(soft.predict(fit, fresh.inputs)) - np.asarray(fresh.labels)) ** 2, axis=(1, 2)
    )
    assert (
        abs(float(fit.error) - squared.mean())
        < 4 * squared.std() / np.sqrt(len(squared)) + 0.02 * squared.mean()
    )
