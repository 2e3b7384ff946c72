"""Models: network and link agree, data, predictions, alignment up to symmetries, known errors."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import jaxsmi as smi
from helpers import attention_network
from jaxsmi.design.index import IndexOperator
from jaxsmi.models.prediction import Truth, prediction_error
from jaxsmi.models.symmetry import SYMMETRIES, Exchange, best_order

KEY = jax.random.key(0)
ATTENTION = smi.DeepAttention(depth=2, tokens=2)

ZOO = [  # depth, tokens, skip, ranks, beta
    (1, 2, 1.0, 1, 1.0),
    (1, 4, 1.0, 3, 2.0),
    (2, 2, 1.0, 1, 1.0),
    (2, 2, 0.0, 1, 1.0),
    (2, 3, 0.4, 2, 0.7),
    (2, 5, 2.5, (1, 3), 3.0),
    (3, 2, [1.0, 0.3], 1, 1.0),
    (3, 4, [0.0, 2.0], (2, 1, 3), 1.5),
    (4, 3, [0.5, 1.0, 1.5], (1, 2, 1, 1), 0.5),
]


@pytest.mark.parametrize("case", ZOO, ids=str)
def test_network_on_inputs_equals_link_on_fields(case):
    depth, tokens, skip, ranks, beta = case
    model = smi.DeepAttention(depth, tokens, skip, ranks, beta)
    D = 17
    rng = np.random.default_rng(depth * tokens)
    W, x = (
        jnp.asarray(rng.standard_normal((model.indices, D))),
        jnp.asarray(rng.standard_normal((3, tokens, D))),
    )
    fields = IndexOperator(x).forward(W)
    assert fields.shape == (3, model.indices, tokens)
    by_link = jax.jit(jax.vmap(model.link))(fields)
    by_network = jax.jit(jax.vmap(lambda one: attention_network(model, W, one)))(x)
    np.testing.assert_allclose(
        by_link, by_network, rtol=0, atol=1e-12
    )  # the promise; rounding of some 1e3 operations
    np.testing.assert_allclose(by_network.sum(-1), 1.0, atol=1e-13)
    np.testing.assert_allclose(model.predict(W, x), by_network, rtol=0, atol=1e-12)


def test_network_against_the_equations_in_numpy():
    """Written out once with explicit sums, so that network and link cannot share a mistake."""
    c, beta, D = 0.4, 0.7, 5
    rng = np.random.default_rng(3)
    W, x = rng.standard_normal((3, D)), rng.standard_normal((2, D))  # ranks 2 and 1, two tokens

    def attention(X, w):
        weights = np.empty((2, 2))
        for i in range(2):
            scores = [
                beta * sum((w[p] @ X[i]) * (w[p] @ X[j]) for p in range(len(w))) / D
                for j in range(2)
            ]
            weights[i] = np.exp(scores) / np.sum(np.exp(scores))
        return weights

    first = attention(x, W[:2])
    X = np.stack([c * x[i] + first[i, 0] * x[0] + first[i, 1] * x[1] for i in range(2)])
    model = smi.DeepAttention(2, 2, c, (2, 1), beta)
    np.testing.assert_allclose(
        attention_network(model, W, x), attention(X, W[2:]), rtol=0, atol=1e-14
    )


def test_sample_shapes_alpha_and_precisions():
    data = ATTENTION.sample(KEY, dimension=40, alpha=1.3, dtype=jnp.float32)
    assert data.inputs.shape == (52, 2, 40)
    assert data.inputs.dtype == jnp.float32
    assert data.labels.shape == (52, 2, 2)
    assert data.labels.dtype == jnp.float64
    assert data.teacher.shape == (2, 40)
    assert data.teacher.dtype == jnp.float64
    assert data.alpha == pytest.approx(1.3)
    # the labels are those of the network on the float32 inputs, to the float32 products of 40 terms
    labels = jax.vmap(lambda x: attention_network(ATTENTION, data.teacher, x))(
        data.inputs.astype(jnp.float64)
    )
    np.testing.assert_allclose(data.labels, labels, atol=3e-5)


def test_sample_is_made_of_standard_normals():
    data = smi.links.linear(0.25, tokens=2).sample(KEY, dimension=200, alpha=2.0)
    flat = np.asarray(
        data.inputs
    ).ravel()  # 160,000 entries: standard errors 2.5e-3 of the mean, 3.5e-3 of the variance
    assert abs(flat.mean()) < 4 * 2.5e-3
    assert abs(flat.var() - 1) < 4 * 3.5e-3
    noise = data.labels - IndexOperator(data.inputs).forward(data.teacher)[:, 0]
    assert noise.shape == (400, 2)
    # 800 draws of variance 1/4: its relative standard error is √(2/800) = 0.05
    assert abs(np.var(noise) / 0.25 - 1) < 4 * 0.05
    fields = np.asarray(IndexOperator(data.inputs).forward(data.teacher))
    assert abs(fields.var() - 1) < 4 * np.hypot(
        np.sqrt(2 / 800), np.sqrt(2 / 200)
    )  # Z has the norm of W*/√D


def test_sample_reuses_a_teacher_and_depends_on_the_key():
    model = smi.links.sign(smi.priors.Rademacher())
    one = model.sample(KEY, dimension=30, alpha=1.0)
    np.testing.assert_array_equal(np.abs(one.teacher), 1.0)
    again = model.sample(KEY, dimension=30, alpha=1.0)
    np.testing.assert_array_equal(one.inputs, again.inputs)
    other = model.sample(jax.random.key(1), dimension=30, alpha=2.0, teacher=one.teacher)
    np.testing.assert_array_equal(other.teacher, one.teacher)
    assert not np.array_equal(other.inputs[:30], one.inputs)
    np.testing.assert_array_equal(
        other.labels, np.where(other.inputs[:, 0] @ one.teacher[0] >= 0, 1.0, -1.0)
    )


def test_sparse_teachers():
    model = smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(0.3))
    teacher = np.asarray(model.sample(KEY, dimension=2000, alpha=0.01).teacher)
    # 2000 coin tosses of 0.3: standard error 0.0102
    assert abs(np.mean(teacher != 0) - 0.3) < 4 * 0.0102


LINKS = {  # the ready-made links against the formulas of their names
    "linear": (smi.links.linear(0.0, tokens=3), lambda z: z[0]),
    "sign": (smi.links.sign(), lambda z: np.sign(z[0, 0])),
    "modulus": (smi.links.phase_retrieval(), lambda z: abs(z[0, 0])),
    "square": (smi.links.phase_retrieval(squared=True), lambda z: z[0, 0] ** 2),
    "sign product": (smi.links.sign_product(3), lambda z: np.sign(z[0, 0] * z[1, 0] * z[2, 0])),
    "product": (smi.links.product(3), lambda z: z[0, 0] * z[1, 0] * z[2, 0]),
    "staircase": (
        smi.links.square_plus_sign_parity(),
        lambda z: z[0, 0] ** 2 + np.sign(z[0, 0] * z[1, 0] * z[2, 0]),
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_ready_made_links(name):
    model, formula = LINKS[name]
    for z in np.random.default_rng(0).standard_normal((5, model.indices, model.tokens)):
        np.testing.assert_allclose(model.link(jnp.asarray(z)), formula(z), rtol=1e-14)
        noiseless = model.channel.label(jnp.asarray(z), jnp.zeros(model.channel.noise_size))
        np.testing.assert_allclose(noiseless, formula(z), rtol=1e-14)


PLAIN = ("linear", "sign")  # nothing but the teacher itself has these labels
SYMMETRIC = {name: model for name, (model, _) in LINKS.items() if name not in PLAIN} | {
    "attention": ATTENTION,
    "attention of rank above one": smi.DeepAttention(2, 3, ranks=(2, 3)),
    "heads": smi.DeepAttention(2, 2, heads=2),
    "untied": smi.DeepAttention(1, 3, tied=False),
    "sign product of two": smi.links.sign_product(2),
}


def elements(symmetry, rng):
    """Some elements of the group, as matrices: all signed permutations that `align` may choose."""
    n = len(symmetry.indices)
    teacher = rng.standard_normal((n, 4 * n))
    for order in itertools.permutations(range(n)):
        for signs in itertools.product((1.0, -1.0), repeat=n):
            turn = np.eye(n)[list(order)] * np.array(signs)
            turned = np.asarray(symmetry.align(jnp.asarray(turn @ teacher), jnp.asarray(teacher)))
            yield np.linalg.lstsq(teacher.T, turned.T)[0].T @ np.linalg.inv(turn)
    rotation = np.linalg.qr(rng.standard_normal((n, n)))[0]
    turned = np.asarray(symmetry.align(jnp.asarray(rotation @ teacher), jnp.asarray(teacher)))
    yield np.linalg.lstsq(teacher.T, turned.T)[0].T @ np.linalg.inv(rotation)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_align_changes_no_label(name):
    """What `align` may do to an estimate must not change what it predicts."""
    model, rng = SYMMETRIC[name], np.random.default_rng(1)
    z = rng.standard_normal((4, model.indices, model.tokens))
    label = jax.jit(jax.vmap(model.link))
    labels = label(jnp.asarray(z))
    assert model.symmetry
    for symmetry in model.symmetry:
        rows = np.array(symmetry.indices)
        for turn in elements(symmetry, rng):
            other = z.copy()
            other[:, rows] = np.einsum("pq,nqm->npm", turn, z[:, rows])
            np.testing.assert_allclose(label(jnp.asarray(other)), labels, atol=1e-10)


@pytest.mark.parametrize("name", PLAIN)
def test_align_leaves_an_estimate_of_a_link_without_symmetry(name):
    """With the sign of the teacher turned it predicts other labels, and must be seen to."""
    model, teacher = LINKS[name][0], np.random.default_rng(1).standard_normal((1, 5))
    assert model.symmetry == ()
    np.testing.assert_array_equal(smi.align(-teacher, teacher, model), -teacher)


def test_the_staircase_has_its_whole_group():
    """z_1² + sign(z_1 z_2 z_3): eight elements, even flips with or without z_2 <-> z_3."""
    model, rng = smi.links.square_plus_sign_parity(), np.random.default_rng(2)
    (symmetry,) = model.symmetry
    z, teacher = rng.standard_normal((50, 3, 1)), rng.standard_normal((3, 40))
    labels = np.asarray(jax.vmap(model.link)(jnp.asarray(z)))
    allowed = 0
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            turn = np.eye(3)[list(order)] * np.array(signs)
            moved = jax.vmap(model.link)(jnp.asarray(np.einsum("pq,nqm->npm", turn, z)))
            cosines = model.metric.overlaps(jnp.asarray(turn @ teacher), jnp.asarray(teacher))[
                "cosine"
            ]
            undone = np.allclose(smi.align(turn @ teacher, teacher, model), teacher)
            same = np.allclose(moved, labels)
            assert undone == same
            assert np.allclose(cosines, 1.0) == same
            allowed += same
    assert allowed == 8
    assert symmetry.indices == (0, 1, 2)


def test_symmetries_are_named_by_words():
    """Every word makes its class, blocks can be exchanged, and other words are refused."""
    for word in SYMMETRIES:
        (symmetry,) = free(4, [((0, 1, 2, 3), word)]).symmetry
        assert symmetry.kind == word
        assert symmetry.indices == (0, 1, 2, 3)
    (heads,) = free(4, [(((0, 2), (1, 3)), "rotation")]).symmetry
    assert isinstance(heads, Exchange)
    assert heads.indices == (0, 2, 1, 3)
    assert free(4, [heads]).symmetry == (heads,)
    with pytest.raises(ValueError, match=r"symmetry: got 'signs'.*'signed permutation'"):
        free(2, [((0, 1), "signs")])
    with pytest.raises(ValueError, match=r"symmetry: .*indices from 0 to 1"):
        free(2, [((0, 2), "sign")])


def test_the_best_order_is_exact_for_any_number_of_rows():
    rng = np.random.default_rng(3)
    for count in (1, 3, 6, 7, 12):
        table = rng.standard_normal((count, count))
        rows, columns = linear_sum_assignment(-table)
        order = jax.jit(best_order)(jnp.asarray(table))
        np.testing.assert_array_equal(order, columns[np.argsort(rows)])


def test_alignment_can_be_compiled():
    model, rng = smi.DeepAttention(2, 2, heads=2), np.random.default_rng(4)
    estimate, teacher = (jnp.asarray(rng.standard_normal((4, 20))) for _ in range(2))
    compiled = jax.jit(lambda W, W0: smi.align(W, W0, model))(estimate, teacher)
    np.testing.assert_allclose(compiled, smi.align(estimate, teacher, model), atol=1e-14)


def test_a_model_takes_its_link_from_its_channel():
    model = smi.MultiIndex(channel=smi.links.sign().channel)
    assert (model.indices, model.tokens, model.name) == (1, 1, "SignChannel")
    assert float(model.link(jnp.full((1, 1), -0.3))) == -1.0
    for wrong in ({"indices": 2}, {"tokens": 3}, {"link": jnp.sum}):
        with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: "):
            smi.MultiIndex(channel=smi.links.sign().channel, **wrong)
    with pytest.raises(ValueError, match=r"^link: "):
        smi.MultiIndex(indices=2)


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


def free(indices, symmetry):
    return smi.MultiIndex(lambda z: jnp.sum(z**2), indices=indices, symmetry=symmetry)


ROTATION = np.linalg.qr(np.random.default_rng(5).standard_normal((3, 3)))[0]
TURNED = {
    "none": (free(3, []), np.eye(3)),
    "sign": (free(3, [((0,), "sign"), ((2,), "sign")]), np.diag([-1.0, 1.0, -1.0])),
    "signed permutation": (
        free(3, [((0, 1, 2), "signed permutation")]),
        np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]),
    ),
    "even signed permutation": (
        free(3, [((0, 1, 2), "even signed permutation")]),
        np.array([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]),
    ),
    "rotation": (free(3, [((0, 1, 2), "rotation")]), ROTATION),
    "layers": (
        smi.DeepAttention(2, 2, ranks=(2, 1)),
        np.block(
            [[np.linalg.qr(ROTATION[:2, :2])[0], np.zeros((2, 1))], [np.zeros((1, 2)), -np.eye(1)]]
        ),
    ),
}


@pytest.mark.parametrize("name", TURNED)
def test_align_undoes_every_symmetry(name):
    model, turn = TURNED[name]
    rng = np.random.default_rng(6)
    teacher = rng.standard_normal((3, 50))
    noisy = teacher + 0.2 * rng.standard_normal((3, 50))
    aligned = smi.align(turn @ noisy, teacher, model)
    if name in (
        "rotation",
        "layers",
    ):  # Procrustes turns the noise as well: no worse than undoing the turn
        assert np.linalg.norm(aligned - teacher) <= np.linalg.norm(noisy - teacher) + 1e-12
        np.testing.assert_allclose(smi.align(turn @ teacher, teacher, model), teacher, atol=1e-12)
    else:
        np.testing.assert_allclose(aligned, noisy, atol=1e-12)
    # the singular values of the estimate are kept
    np.testing.assert_allclose(np.linalg.svd(aligned)[1], np.linalg.svd(noisy)[1], rtol=1e-10)


@pytest.mark.parametrize("name", TURNED)
def test_cosines_do_not_see_the_symmetry(name):
    model, turn = TURNED[name]
    rng = np.random.default_rng(7)
    teacher = rng.standard_normal((3, 400))
    estimate = 0.3 * (teacher + 0.5 * rng.standard_normal((3, 400)))
    rho = teacher @ teacher.T / 400

    def cosines(W):
        return np.asarray(
            model.metric.cosines(
                jnp.asarray(W @ teacher.T / 400), jnp.asarray(W @ W.T / 400), jnp.asarray(rho)
            )
        )

    # permuted rows: in the order of the estimate's rows
    np.testing.assert_allclose(
        np.sort(cosines(turn @ estimate)), np.sort(cosines(estimate)), atol=1e-10
    )
    np.testing.assert_allclose(cosines(turn @ teacher), 1.0, atol=1e-10)
    # w·(w + n/2)/(|w||w + n/2|) = 1/√1.25 up to O(1/√400); principal angles are somewhat larger
    np.testing.assert_allclose(cosines(estimate), 1 / np.sqrt(1.25), atol=0.1)
    assert np.all(cosines(np.zeros((3, 400))) == 0.0)


def test_a_number_as_overlap_is_the_overlap_itself():
    """Not a share of the second moment S = 1 + ρ: the error of one score is 2 (S - q)."""
    model = smi.AttentionIndexed(1, 0.5, "linear", noise=0.1)
    found = smi.generalization_error(model, 0.6)
    np.testing.assert_allclose(found.value, 2 * (1.5 - 0.6), rtol=1e-12)
    np.testing.assert_allclose(smi.generalization_error(model, [[0.6]]).value, found.value)


@pytest.mark.parametrize("predictor", ["plug-in", "bayes"])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_error_of_the_linear_link_is_exact(predictor, q):
    """Both predictors of z are ω: E (z - ω)² = 1 - q for each token."""
    model = smi.links.linear(0.4, tokens=2)
    found = smi.generalization_error(model, q, key=KEY, predictor=predictor, points=8192)
    # nets integrate a quadratic to about 1e-3; the reported error must cover it
    assert abs(float(found) - 2 * (1 - q)) <= 4 * float(found.stderr) + 1e-9
    assert float(found.stderr) < 1e-2


def test_error_of_phase_retrieval_with_the_square_is_exact():
    """y = z²: plug-in E(z² - ω²)² = 3 + 3q² - 2(q + 2q²), Bayes 2 v² + 4 q v, v = 1 - q."""
    model, q = smi.links.phase_retrieval(squared=True), 0.6
    v = 1 - q
    plug_in = smi.generalization_error(model, q, key=KEY)
    bayes = smi.generalization_error(model, q, key=KEY, predictor="bayes")
    assert abs(float(plug_in) - (3 + 3 * q**2 - 2 * (q + 2 * q**2))) < 5 * float(plug_in.stderr)
    assert abs(float(bayes) - (2 * v**2 + 4 * q * v)) < 5 * float(bayes.stderr)
    assert float(plug_in.stderr) < 0.02  # so that a factor of two is seen
    assert float(bayes.stderr) < 0.02


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
@pytest.mark.slow
def test_error_of_a_run_is_that_against_its_own_teacher(noise):
    """Of a linear link (Ŵ - W*)²/D, whatever the norm of the teacher: theory at Q alone refuses
    norms above one, and answers 1 - Q for a teacher that is known but shorter."""
    model = smi.links.linear(noise)
    lengths = []
    for seed in range(3):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=100, alpha=2.0)
        run = smi.gamp(model, data, key=key)
        exact = float(jnp.mean((run.weights - data.teacher) ** 2))
        lengths.append(float(jnp.mean(data.teacher**2)))
        found = smi.generalization_error(model, run, data=data, key=key)
        assert abs(float(found) - exact) <= 4 * float(found.stderr) + 1e-3 * exact + 1e-9
        # one score that is Gaussian given ω: (M/Q) ω is its mean, what is left the Bayes error
        cross = float(jnp.mean(run.weights * data.teacher))
        left = lengths[-1] - cross**2 / float(run.overlap[0, 0])
        bayes = smi.generalization_error(model, run, data=data, key=key, predictor="bayes")
        assert abs(float(bayes) - left) <= 4 * float(bayes.stderr) + 1e-3 * left + 1e-9
    assert max(lengths) > 1.0  # where Q is above S
    with pytest.raises(ValueError, match="data: got"):
        smi.generalization_error(model, 0.5, data=data, key=KEY)


@pytest.mark.slow
def test_bayes_is_at_most_plug_in_and_vanishes_at_full_overlap():
    Q = np.array([[0.5, 0.1], [0.1, 0.8]])
    plug_in = smi.generalization_error(ATTENTION, Q, key=KEY, points=8192)
    bayes = smi.generalization_error(ATTENTION, Q, key=KEY, predictor="bayes", points=8192)
    assert float(bayes) < float(plug_in)
    for predictor in ("plug-in", "bayes"):
        full = smi.generalization_error(ATTENTION, 1.0, key=KEY, predictor=predictor, points=8192)
        np.testing.assert_allclose(float(full), 0.0, atol=1e-12)


def test_stderr_of_the_error_is_honest():
    """z-scores against E(y - ŷ)² = 4 P(signs differ) = 4 arccos(√q)/π."""
    model, q = smi.links.sign(), 0.5
    # plug-in: corr(z, ω) = √q
    exact = 4 * np.arccos(np.sqrt(q)) / np.pi
    run = jax.jit(lambda key: prediction_error(model, jnp.full((1, 1), q), key=key, points=256))
    values, errors = jax.vmap(run)(jax.random.split(KEY, 40))
    scores = (values - exact) / errors
    # Student's t of 7 degrees of freedom: standard deviation 1.18; of 40 draws between 0.75 and
    # 1.7 (4 standard errors)
    assert 0.75 < np.sqrt(np.mean(scores**2)) < 1.7
    assert abs(np.mean(scores)) < 4 * 1.18 / np.sqrt(40)


def test_an_odd_flip_is_not_undone():
    """y = sign(z_1 z_2): one row turned turns the labels; `align` must leave a wrong row."""
    model, teacher = smi.links.sign_product(2), np.random.default_rng(8).standard_normal((2, 50))
    turned = np.diag([-1.0, 1.0]) @ teacher
    aligned = np.asarray(smi.align(turned, teacher, model))
    assert np.sum(np.sign(np.sum(aligned * teacher, axis=1))) == 0
    x = np.random.default_rng(9).standard_normal((20, 1, 50))
    np.testing.assert_array_equal(model.predict(aligned, x), model.predict(turned, x))
    Q = jnp.asarray(teacher @ teacher.T / 50)
    cosines = model.metric.cosines(
        jnp.asarray(turned @ teacher.T / 50), jnp.asarray(turned @ turned.T / 50), Q
    )
    np.testing.assert_allclose(jnp.sort(cosines), [-1.0, 1.0], atol=1e-12)


@pytest.mark.slow
def test_error_with_a_teacher_uses_its_norm_and_cross_overlap():
    """Linear link: E(z - ω̂)² = ρ - 2M + Q for the plug-in predictor."""
    Q, M, rho = 0.5, 0.4, 1.2
    found = prediction_error(
        smi.links.linear(0.1),
        jnp.full((1, 1), Q),
        key=KEY,
        truth=Truth(jnp.full((1, 1), M), jnp.full((1, 1), rho)),
    )
    assert abs(float(found) - (rho - 2 * M + Q)) < 5 * float(found.stderr) + 1e-9
    assert float(found.stderr) < 0.01


def test_forward_and_adjoint_are_transposes():
    x = jax.random.normal(KEY, (7, 2, 5))
    W, g = jax.random.normal(KEY, (3, 5)), jax.random.normal(jax.random.key(1), (7, 3, 2))
    sensing = IndexOperator(x)
    np.testing.assert_allclose(
        jnp.vdot(sensing.forward(W), g), jnp.vdot(W, sensing.adjoint(g)), rtol=1e-13
    )
    by_hand = np.einsum("pd,nmd->npm", W, x) / np.sqrt(5)
    np.testing.assert_allclose(sensing.forward(W), by_hand, atol=1e-13)
    assert sensing.alpha == 7 / 5


def test_models_are_pytrees_whose_numbers_are_arrays():
    leaves = [x for x in jax.tree.leaves(ATTENTION) if eqx.is_array(x)]
    assert any(leaf is ATTENTION.beta for leaf in leaves)
    assert any(leaf is ATTENTION.skip for leaf in leaves)
    assert ATTENTION.indices == 2
    assert ATTENTION.depth == 2
