"""Models: network and link agree, data, ready-made links, known errors of prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import attention_network, slow_but
from jaxsmi.design.designs import IndexOperator
from jaxsmi.models.prediction import error_of_rows, prediction_error

KEY = jax.random.key(0)
deep = smi.DeepAttention
ATTENTION = deep(depth=2, tokens=2)
ZOO = {
    "one layer": deep(1, 2),
    "rank three": deep(1, 4, 1.0, 3, 2.0),
    "no skip": deep(2, 2, 0.0),
    "ranks": deep(2, 5, 2.5, (1, 3), 3.0),
    "three layers": deep(3, 4, [0.0, 2.0], (2, 1, 3), 1.5),
    "four layers": deep(4, 3, [0.5, 1.0, 1.5], (1, 2, 1, 1), 0.5),
    "two heads": deep(2, 2, 0.7, heads=2),
    "two heads inside": deep(2, 3, 1.0, heads=(2, 1)),
    "untied": deep(1, 3, tied=False, beta=2.0),
    "untied inside": deep(2, 2, 1.5, tied=(False, True)),
    "three untied heads of rank two": deep(2, 3, 0.5, ranks=2, heads=3, tied=False),
    "hardmax": deep(3, 3, [1.0, 0.3], activation="hardmax"),
    "hardmax heads": deep(2, 4, heads=(1, 2), tied=(False, True), activation="hardmax"),
}


@pytest.mark.parametrize("name", slow_but(ZOO, "ranks", "untied inside", "hardmax heads"))
def test_network_on_inputs_equals_link_on_fields(name):
    model, rng = ZOO[name], np.random.default_rng(1)
    W = jnp.asarray(rng.standard_normal((model.indices, 17)))
    x = jnp.asarray(rng.standard_normal((3, model.tokens, 17)))
    by_network = jax.jit(jax.vmap(lambda one: attention_network(model, W, one)))(x)
    np.testing.assert_allclose(by_network.sum(-1), 1.0, atol=1e-13)
    by_link = jax.jit(jax.vmap(model.link))(IndexOperator(x).forward(W))
    # rounding of some 1e3 operations
    for other in (by_link, model.predict(W, x), model.student.outputs(W, x)):
        np.testing.assert_allclose(other, by_network, rtol=0, atol=1e-12)
    assert len(model.index_names) == len(set(model.index_names)) == model.indices


def attention(X, heads, beta):
    """Σ_h softmax(β (Q X)ᵀ(K X)/D)/H, written out with explicit sums."""
    total = np.zeros((len(X), len(X)))
    for Q, K in heads:
        for i, row in enumerate(total):
            scores = [sum((q @ X[i]) * (k @ x) for q, k in zip(Q, K, strict=True)) for x in X]
            weights = np.exp(beta * np.array(scores) / X.shape[1])
            row += weights / weights.sum() / len(heads)
    return total


def test_network_against_the_equations_in_numpy():
    """Written out once, so that network and link cannot share a mistake: two layers of rank two
    and one; two untied heads, whose rows are q1, k1, q2, k2."""
    rng = np.random.default_rng(3)
    x, W, H = (rng.standard_normal((rows, 5)) for rows in (2, 3, 4))
    X = 0.4 * x + attention(x, [(W[:2], W[:2])], 0.7) @ x
    expected = attention(X, [(W[2:], W[2:])], 0.7)
    model = deep(2, 2, 0.4, (2, 1), 0.7)
    np.testing.assert_allclose(attention_network(model, W, x), expected, rtol=0, atol=1e-14)
    model = deep(1, 2, heads=2, tied=False, beta=1.7)
    expected = attention(x, [(H[:1], H[1:2]), (H[2:3], H[3:])], 1.7)
    np.testing.assert_allclose(attention_network(model, H, x), expected, rtol=0, atol=1e-14)
    parts = [f"layer 1, head {h}, {part}" for h in (1, 2) for part in ("query", "key")]
    assert model.index_names == tuple(parts)


@pytest.mark.slow
def test_hardmax_is_the_limit_of_a_large_beta():
    z = jnp.asarray(np.random.default_rng(3).standard_normal((200, 2, 3)))
    hard, soft = deep(2, 3, activation="hardmax"), deep(2, 3, beta=1e5)
    labels = np.asarray(jax.vmap(hard.link)(z))
    gap = np.abs(labels - jax.vmap(soft.link)(z)).max((1, 2))
    assert np.mean(gap > 1e-6) < 0.02  # but for near-ties
    assert set(np.unique(labels)) == {0.0, 1.0}


def test_sample_shapes_alpha_and_precisions():
    data = ATTENTION.sample(KEY, dimension=40, alpha=1.3, dtype=jnp.float32)
    shapes = [x.shape for x in (data.inputs, data.labels, data.teacher)]
    assert shapes == [(52, 2, 40), (52, 2, 2), (2, 40)]
    assert [x.dtype for x in (data.inputs, data.labels, data.teacher)] == ["f4", "f8", "f8"]
    assert data.alpha == pytest.approx(1.3)
    # the labels are those of the network on the float32 inputs, to the float32 products of 40 terms
    labels = jax.vmap(lambda x: attention_network(ATTENTION, data.teacher, x))(
        data.inputs.astype(float)
    )
    np.testing.assert_allclose(data.labels, labels, atol=3e-5)


def test_sample_is_made_of_standard_normals():
    data = smi.links.linear(0.25, tokens=2).sample(KEY, dimension=200, alpha=2.0)
    fields = np.asarray(IndexOperator(data.inputs).forward(data.teacher))
    noise = np.asarray(data.labels) - fields[:, 0]
    # standard errors of 160,000 entries, of 800 draws, and of a norm of 200 numbers beside these
    assert abs(np.mean(data.inputs)) < 4 * 2.5e-3
    assert abs(np.var(data.inputs) - 1) < 4 * 3.5e-3
    assert abs(np.var(noise) / 0.25 - 1) < 4 * np.sqrt(2 / 800)
    assert abs(fields.var() - 1) < 4 * np.hypot(np.sqrt(2 / 800), np.sqrt(2 / 200))


def test_sample_reuses_a_teacher_and_depends_on_the_key():
    model = smi.links.sign(prior=smi.priors.Rademacher())
    one, again = (model.sample(KEY, dimension=30, alpha=1.0) for _ in range(2))
    np.testing.assert_array_equal(np.abs(one.teacher), 1.0)
    np.testing.assert_array_equal(one.inputs, again.inputs)
    other = model.sample(jax.random.key(1), dimension=30, alpha=2.0, teacher=one.teacher)
    assert not np.array_equal(other.inputs[:30], one.inputs)
    labels = np.where(other.inputs[:, 0] @ one.teacher[0] >= 0, 1.0, -1.0)
    np.testing.assert_array_equal(other.labels, labels)


LINKS = {  # the ready-made links against the formulas of their names
    "linear": (smi.links.linear(0.0, tokens=3), lambda z: z[0]),
    "sign": (smi.links.sign(), lambda z: np.sign(z[0, 0])),
    "modulus": (smi.links.phase_retrieval(), lambda z: abs(z[0, 0])),
    "square": (smi.links.phase_retrieval(squared=True), lambda z: z[0, 0] ** 2),
    "sign product": (smi.links.sign_product(3), lambda z: np.sign(np.prod(z))),
    "product": (smi.links.product(3), np.prod),
    "parity": (smi.links.square_plus_sign_parity(), lambda z: z[0, 0] ** 2 + np.sign(np.prod(z))),
    "of a channel": (smi.MultiIndex(channel=smi.links.sign().channel), lambda z: np.sign(z[0, 0])),
}


@pytest.mark.parametrize("name", LINKS)
def test_ready_made_links(name):
    model, formula = LINKS[name]
    for z in np.random.default_rng(0).standard_normal((5, model.indices, model.tokens)):
        np.testing.assert_allclose(model.link(jnp.asarray(z)), formula(z), rtol=1e-14)
        noiseless = model.channel.label(jnp.asarray(z), jnp.zeros(model.channel.noise_size))
        np.testing.assert_allclose(noiseless, formula(z), rtol=1e-14)


ALPHAS = {
    "index": (smi.links.sign(), 20 / 10),
    "attention": (smi.AttentionIndexed(2, 0.5), 200 / 10**2),
    "layers": (smi.AttentionIndexed(2, 0.5, layers=2), 200 / 10**2),
    "bilinear": (smi.Bilinear(2.0, 0.5), 400 / (10 * 20)),
    "symmetric": (smi.Bilinear(1.0, 0.5, symmetric=True), 200 / 10**2),
}


@pytest.mark.parametrize("name", ALPHAS)
def test_a_data_set_knows_the_sample_complexity_of_its_model(name):
    model, alpha = ALPHAS[name]
    data = model.sample(KEY, dimension=10, alpha=2.0)
    assert data.alpha == alpha == 2.0
    assert data.first(data.samples // 2).alpha == 1.0
    assert smi.Dataset(data.inputs, data.labels, data.teacher).alpha == data.samples / 10


# Errors of prediction -------------------------------------------------------------------------

BILINEAR = smi.Bilinear(1.0, 0.2, output="sign")
SQUARE, LINE = smi.links.phase_retrieval(squared=True), smi.links.linear(0.4, tokens=2)
ERRORS = [  # model, q, of the plug-in and of the Bayes predictor
    # both predictors of z are ω: E (z - ω)² = 1 - q for each token
    *((LINE, q, 2 * (1 - q), 2 * (1 - q)) for q in (0.0, 0.3, 1.0)),
    # y = z²: E (z² - ω²)² = 3 + 3q² - 2(q + 2q²), and 2 v² + 4 q v, v = 1 - q
    (SQUARE, 0.6, 3 + 3 * 0.6**2 - 2 * (0.6 + 2 * 0.6**2), 2 * 0.4**2 + 4 * 0.6 * 0.4),
    # the angle between field and estimate: 4 P(signs differ) = (4/π) arccos √q; (2/π) arccos q
    pytest.param(
        *(BILINEAR, 0.6, 4 * np.arccos(0.6**0.5) / np.pi, 2 * np.arccos(0.6) / np.pi),
        marks=pytest.mark.slow,
    ),
    pytest.param(ATTENTION, 1.0, 0.0, 0.0, marks=pytest.mark.slow),
    # an overlap, no share of the second moment S = 1 + ρ: the error of one score is 2 (S - q)
    (smi.AttentionIndexed(1, 0.5, "linear", noise=0.1), 0.6, 2 * (1.5 - 0.6), None),
]


@pytest.mark.parametrize(("model", "q", "plug_in", "bayes"), ERRORS)
def test_errors_of_prediction_are_exact(model, q, plug_in, bayes):
    """Within five of the reported errors, which are small enough that a factor of two is seen."""
    for optimal, exact in ((False, plug_in), (True, bayes)):
        if exact is not None:
            sizes = {"key": KEY, "points": 8192, "bayes": optimal}
            found = smi.generalization_error(model, q, **sizes)
            assert abs(float(found) - exact) < 5 * float(found.stderr) + 1e-9
            assert float(found.stderr) < 0.02 * max(exact, 1.0)


def test_stderr_of_the_error_is_honest():
    """z-scores against E(y - ŷ)² = 4 P(products of signs differ) = 8 p (1 - p), p = arccos(√q)/π
    that of one sign; one field is not sampled."""
    wrong = np.arccos(np.sqrt(0.5)) / np.pi
    exact, Q = 8 * wrong * (1 - wrong), 0.5 * jnp.eye(2)
    model = smi.links.sign_product(2)
    run = jax.jit(lambda key: prediction_error(model, Q, key=key, points=256))
    values, errors = jax.vmap(run)(jax.random.split(KEY, 40))
    scores = (values - exact) / errors
    # Student's t of 7 degrees of freedom: 1.18, of 40 draws between 0.75 and 1.7 (4 errors)
    assert 0.75 < np.sqrt(np.mean(scores**2)) < 1.7
    assert abs(np.mean(scores)) < 4 * 1.18 / np.sqrt(40)


SIGNS = [
    smi.links.sign(0.3, flip=0.1),
    smi.links.linear(0.1),
    smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]), indices=1, noise=0.1),
]


@pytest.mark.parametrize("model", SIGNS, ids=lambda model: model.name)
def test_the_share_of_wrong_signs_of_one_field_is_an_angle(model):
    """arccos(cosine)/π to rounding, also at both ends; a link of two fields is sampled."""
    share = {"key": KEY, "points": 256, "loss": smi.losses.misclassification}
    for q in (0.0, 0.75, 1.0):
        found = smi.generalization_error(model, q, **share)
        np.testing.assert_allclose(found, (np.arccos(q**0.5) / np.pi, 0.0), atol=1e-12)
    data = model.sample(KEY, dimension=40, alpha=2.0)
    weights = data.teacher + jax.random.normal(KEY, (1, 40))
    cosine = model.metric.overlaps(weights, data.teacher)["cosine"][0]
    found = error_of_rows(model, weights, data, key=KEY, points=32, loss=share["loss"])
    np.testing.assert_allclose(found, (np.arccos(cosine) / np.pi, 0.0), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_error_of_a_run_is_that_against_its_own_teacher(noise):
    """Of a linear link (Ŵ - W*)²/D, whatever the norm of the teacher: theory at Q alone refuses
    norms above one, and answers 1 - Q for a teacher that is known but shorter."""
    model = smi.links.linear(noise)
    lengths = []
    for seed in range(3):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=100, alpha=2.0)
        run = smi.gamp(model, data, key=key)
        lengths.append(float(jnp.mean(data.teacher**2)))
        # one score that is Gaussian given ω: (M/Q) ω is its mean, what is left the Bayes error
        cross = float(jnp.mean(run.weights * data.teacher))
        exact = {
            False: float(jnp.mean((run.weights - data.teacher) ** 2)),
            True: lengths[-1] - cross**2 / float(run.overlap[0, 0]),
        }
        for bayes, value in exact.items():
            found = smi.generalization_error(model, run, data=data, key=key, bayes=bayes)
            assert abs(float(found) - value) <= 4 * float(found.stderr) + 1e-3 * value + 1e-9
    assert max(lengths) > 1.0  # where Q is above S


@pytest.mark.slow
def test_noisy_attention_is_inferred_by_quadrature():
    """With little noise the posterior is that of the exact channel: Δ/(dy/dz)² is 1e-3 in the
    fields, 1e-2 in g. With more, rows of labels no longer sum to one, by a variance 2Δ."""
    noisy, exact = deep(1, 2, noise=1e-4, tolerance=1e-4), deep(1, 2)
    y = exact.link(jnp.array([[0.9, -1.1]]))
    point = (y, jnp.array([[0.4, -0.8]]), jnp.array([[0.6]]))
    one, two = (model.channel.posterior(*point) for model in (noisy, exact))
    np.testing.assert_allclose(one.g, two.g, atol=0.02)
    labels = deep(1, 2, noise=0.04).sample(KEY, dimension=50, alpha=40.0).labels
    off = np.asarray(labels).sum(-1) - 1.0
    assert abs(off.var() - 0.08) < 5 * 0.08 * np.sqrt(2 / off.size)


@pytest.mark.slow
def test_a_softmax_student_learns_a_hardmax_teacher():
    """The error is against the labels of the teacher, not against a softmax with its weights."""
    hard, soft = deep(1, 2, activation="hardmax"), deep(1, 2, beta=4.0)
    data = hard.sample(KEY, dimension=40, alpha=20.0)
    fit = smi.train(soft, data, optax.adam(0.05), key=KEY, steps=300)
    assert float(fit.history["cosine"][-1, 0]) > 0.9
    fresh = hard.sample(jax.random.key(7), dimension=40, alpha=100.0, teacher=data.teacher)
    squared = np.sum((np.asarray(soft.predict(fit, fresh.inputs)) - fresh.labels) ** 2, axis=(1, 2))
    allowed = 4 * squared.std() / np.sqrt(len(squared)) + 0.02 * squared.mean()
    assert abs(float(fit.error) - squared.mean()) < allowed
