"""Bad input: a ValueError before tracing that names the argument,
what came and what is allowed; under jit NaN and a code."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi

KEY = jax.random.key(0)
NAN = float("nan")
LINEAR, SIGN, MODULUS = smi.links.linear(0.5), smi.links.sign(), smi.links.phase_retrieval()
ATTENTION = smi.DeepAttention(depth=2, tokens=2)
SINGLE = smi.DeepAttention(depth=1, tokens=2)
INPUTS = np.random.default_rng(0).standard_normal((6, 1, 5))
PAIRS = np.random.default_rng(1).standard_normal((6, 2, 5))
GOOD = np.array([[0.6, 0.4], [0.3, 0.7]])
ATTENTION_LABELS = np.tile(GOOD, (6, 1, 1))
DATA = smi.Dataset(INPUTS, np.ones((6, 1)), np.ones((1, 5)))
DRAWN = LINEAR.sample(jax.random.key(1), dimension=5, alpha=2.0, store=False)
ONE, TWO, EYE = np.zeros((1, 1)), np.zeros((2, 2)), np.eye(2)


def first(z):
    return z[0, 0]


def gamp(model, inputs, labels, teacher=None, **options):
    return smi.gamp(model, smi.Dataset(inputs, labels, teacher), key=KEY, **options)


def evolve(model=LINEAR, alpha=1.0, **options):
    return smi.state_evolution(model, alpha, key=KEY, **options)


# (the argument the message must name, the call)
BAD = [
    # models
    ("depth", lambda: smi.DeepAttention(depth=0, tokens=2)),
    ("depth", lambda: smi.DeepAttention(depth=1.5, tokens=2)),
    ("tokens", lambda: smi.DeepAttention(depth=2, tokens=1)),
    ("skip", lambda: smi.DeepAttention(depth=2, tokens=2, skip=-0.1)),
    ("skip", lambda: smi.DeepAttention(depth=2, tokens=2, skip=NAN)),
    ("skip", lambda: smi.DeepAttention(depth=2, tokens=2, skip=[1.0, 1.0])),
    ("beta", lambda: smi.DeepAttention(depth=2, tokens=2, beta=0.0)),
    ("beta", lambda: smi.DeepAttention(depth=2, tokens=2, beta=[1.0, 2.0])),
    ("ranks", lambda: smi.DeepAttention(depth=2, tokens=2, ranks=0)),
    ("ranks", lambda: smi.DeepAttention(depth=2, tokens=2, ranks=(1, 1, 1))),
    ("max_nodes", lambda: smi.DeepAttention(depth=2, tokens=2, max_nodes=10)),
    ("indices", lambda: smi.MultiIndex(first, indices=0, noise=0.1)),
    ("tokens", lambda: smi.MultiIndex(first, indices=1, tokens=0, noise=0.1)),
    ("noise", lambda: smi.MultiIndex(first, indices=1, noise=-0.1)),
    ("noise", lambda: smi.MultiIndex(first, indices=1, noise=NAN)),
    ("symmetry", lambda: smi.MultiIndex(first, indices=1, symmetry=[((0,), "mirror")])),
    ("symmetry", lambda: smi.MultiIndex(first, indices=1, symmetry=[((1,), "sign")])),
    ("noise", lambda: smi.links.linear(-1.0)),
    ("prior", lambda: smi.links.sign("x")),
    ("prior", lambda: smi.links.sign(smi.priors.Rademacher)),
    ("prior", lambda: smi.DeepAttention(1, 2, prior="gaussian")),
    ("squared", lambda: smi.links.phase_retrieval(smi.priors.Rademacher())),
    ("channel", lambda: smi.MultiIndex(channel="sign")),
    ("noise", lambda: smi.MultiIndex(channel=SIGN.channel, noise=0.5)),
    ("tolerance", lambda: smi.MultiIndex(channel=SIGN.channel, tolerance=1e-3)),
    ("max_nodes", lambda: smi.MultiIndex(channel=SIGN.channel, max_nodes=2**12)),
    ("log_likelihood", lambda: smi.MultiIndex(channel=SIGN.channel, log_likelihood=min)),
    ("log_likelihood", lambda: smi.MultiIndex(first, indices=1, log_likelihood="a")),
    ("noise", lambda: smi.MultiIndex(first, indices=1, log_likelihood=min, noise=0.3)),
    ("link", lambda: smi.MultiIndex(first, channel=MODULUS.channel)),
    ("max_nodes", lambda: smi.MultiIndex(first, indices=1, noise=0.1, max_nodes=1e6)),
    ("tolerance", lambda: smi.MultiIndex(first, indices=1, noise=0.1, tolerance="a")),
    ("skip", lambda: smi.DeepAttention(2, 2, skip="a")),
    ("ranks", lambda: smi.DeepAttention(2, 2, ranks=None)),
    ("aspect_ratio", lambda: smi.Bilinear("a")),
    ("rank_ratio", lambda: smi.AttentionIndexed(2, "a")),
    ("density", lambda: smi.priors.BernoulliGauss("a")),
    ("model", lambda: smi.gamp(DATA, SIGN, key=KEY)),
    ("model", lambda: smi.state_evolution(DATA, 1.0, key=KEY)),
    ("model", lambda: smi.weak_recovery(DATA, key=KEY)),
    ("model", lambda: smi.recovery_threshold(DATA)),
    ("model", lambda: smi.generalization_error(DATA, 0.5)),
    ("model", lambda: smi.free_entropy(smi.sgd.semantic_positional(0.5), 1.0, 0.5, key=KEY)),
    ("store", lambda: LINEAR.sample(KEY, dimension=5, alpha=1.0, store="no")),
    ("alpha", lambda: LINEAR.sample(KEY, dimension=5, alpha=None)),
    ("key", lambda: LINEAR.sample(0, dimension=5, alpha=1.0)),
    ("teacher", lambda: LINEAR.sample(KEY, dimension=1, alpha=1.0, teacher=[[1 + 2j]])),
    ("inputs", lambda: smi.Dataset(INPUTS * (1 + 1j), np.ones((6, 1)))),
    ("labels", lambda: smi.Dataset(INPUTS, np.ones((6, 1)) * 1j)),
    ("progress", lambda: smi.gamp(LINEAR, DATA, key=KEY, progress="yes")),
    ("monitor", lambda: smi.train(LINEAR, DATA, optax.adam(0.1), key=KEY, steps=1, monitor=3)),
    (
        "loss",
        lambda: smi.train(
            LINEAR, DATA, optax.adam(0.1), key=KEY, steps=1, gradient=smi.Gradient(loss="mse")
        ),
    ),
    (
        "test",
        lambda: smi.train(
            LINEAR, DATA, optax.adam(0.1), key=KEY, steps=1, monitor=smi.Monitor(test=DRAWN)
        ),
    ),
    ("build", lambda: smi.search_threshold(3, 0.1, key=KEY)),
    ("averages", lambda: smi.search_threshold(smi.links.linear, 0.1, key=KEY, averages=3)),
    ("tokens", lambda: smi.links.linear(0.1, tokens=0)),
    ("k", lambda: smi.links.sign_product(0)),
    ("k", lambda: smi.links.product(0)),
    # data
    ("dimension", lambda: LINEAR.sample(KEY, dimension=0, alpha=1.0)),
    ("alpha", lambda: LINEAR.sample(KEY, dimension=5, alpha=0.0)),
    ("alpha", lambda: LINEAR.sample(KEY, dimension=5, alpha=NAN)),
    ("teacher", lambda: LINEAR.sample(KEY, dimension=5, alpha=1.0, teacher=np.ones((2, 5)))),
    ("inputs", lambda: smi.Dataset(np.ones((6, 5)), np.ones(6))),
    ("inputs", lambda: smi.Dataset(np.full((6, 1, 5), np.inf), np.ones(6))),
    ("inputs", lambda: smi.Dataset(np.ones((6, 0, 5)), np.ones(6))),
    ("labels", lambda: smi.Dataset(INPUTS, np.ones(5))),
    ("labels", lambda: smi.Dataset(INPUTS, np.full(6, np.nan))),
    ("teacher", lambda: smi.Dataset(INPUTS, np.ones(6), np.ones((1, 4)))),
    # gamp
    ("inputs", lambda: gamp(ATTENTION, INPUTS, ATTENTION_LABELS)),  # one token instead of two
    ("teacher", lambda: gamp(LINEAR, INPUTS, np.ones((6, 1)), np.ones((2, 5)))),
    (
        "labels",
        lambda: gamp(ATTENTION, PAIRS, 1.01 * ATTENTION_LABELS),
    ),  # rows that do not sum to one
    ("labels", lambda: gamp(ATTENTION, PAIRS, np.tile([[1.5, -0.5], [0.3, 0.7]], (6, 1, 1)))),
    ("labels", lambda: gamp(ATTENTION, PAIRS, ATTENTION_LABELS.astype(np.float32))),
    ("labels", lambda: gamp(ATTENTION, PAIRS, np.ones((6, 2)))),
    ("labels", lambda: gamp(SIGN, INPUTS, np.full(6, 0.5))),
    ("labels", lambda: gamp(MODULUS, INPUTS, -np.ones(6))),
    ("max_steps", lambda: smi.gamp(LINEAR, DATA, key=KEY, iteration=smi.Iteration(0))),
    ("every", lambda: smi.gamp(LINEAR, DATA, key=KEY, record=smi.Record(every=0))),
    ("damping", lambda: smi.gamp(LINEAR, DATA, key=KEY, iteration=smi.Iteration(damping=1.0))),
    ("tolerance", lambda: smi.gamp(LINEAR, DATA, key=KEY, iteration=smi.Iteration(tolerance=0.0))),
    ("precision", lambda: smi.gamp(LINEAR, DATA, key=KEY, learner=smi.Bayes(precision="inner"))),
    (
        "side_information",
        lambda: smi.gamp(LINEAR, DATA, key=KEY, start=smi.Start(side_information=1.0)),
    ),
    (
        "side_information",
        lambda: smi.gamp(LINEAR, DATA, key=KEY, start=smi.Start(side_information=NAN)),
    ),
    ("start", lambda: smi.gamp(LINEAR, DATA, key=KEY, start="cold")),
    ("start", lambda: smi.gamp(LINEAR, DATA, key=KEY, start=np.ones((2, 5)))),
    ("start", lambda: smi.gamp(LINEAR, DATA, key=KEY, start=NAN)),
    ("teacher", lambda: gamp(LINEAR, INPUTS, np.ones((6, 1)), start="informed")),
    (
        "teacher",
        lambda: gamp(LINEAR, INPUTS, np.ones((6, 1)), start=smi.Start(side_information=0.1)),
    ),
    # state evolution and errors
    ("alpha", lambda: evolve(alpha=0.0)),
    ("alpha", lambda: evolve(alpha=-1.0)),
    ("alpha", lambda: evolve(alpha=NAN)),
    ("alpha", lambda: evolve(alpha=[0.5, 1.0])),
    ("start", lambda: evolve(start=1.5)),
    ("start", lambda: evolve(start=-0.5)),
    ("start", lambda: evolve(start=NAN)),
    ("start", lambda: evolve(start=np.ones((2, 2)))),
    ("points", lambda: evolve(averages=smi.Averages(4))),
    ("nets", lambda: evolve(averages=smi.Averages(nets=1))),
    ("max_steps", lambda: evolve(iteration=smi.Iteration(0))),
    ("tolerance", lambda: evolve(iteration=smi.Iteration(tolerance=-1e-4))),
    ("overlap", lambda: smi.generalization_error(ATTENTION, np.eye(3), key=KEY)),
    ("overlap", lambda: smi.generalization_error(ATTENTION, 1.2, key=KEY)),
    ("overlap", lambda: smi.generalization_error(ATTENTION, -0.2, key=KEY)),
    ("overlap", lambda: smi.generalization_error(ATTENTION, NAN, key=KEY)),
    ("predictor", lambda: smi.generalization_error(ATTENTION, 0.5, key=KEY, predictor="best")),
    # one posterior
    ("omega", lambda: ATTENTION.channel.posterior(GOOD, ONE, EYE)),
    ("omega", lambda: ATTENTION.channel.posterior(GOOD, np.full((2, 2), np.nan), EYE)),
    ("V", lambda: ATTENTION.channel.posterior(GOOD, TWO, np.eye(3))),
    ("V", lambda: ATTENTION.channel.posterior(GOOD, TWO, np.full((2, 2), np.inf))),
    ("V", lambda: ATTENTION.channel.posterior(GOOD, TWO, np.zeros((2, 2)))),
    ("V", lambda: ATTENTION.channel.posterior(GOOD, TWO, np.array([[1.0, 2.0], [2.0, 1.0]]))),
    ("V", lambda: ATTENTION.channel.posterior(GOOD, TWO, np.array([[1.0, 0.2], [0.1, 1.0]]))),
    ("labels", lambda: ATTENTION.channel.posterior(0.9 * GOOD, TWO, EYE)),
    (
        "labels",
        lambda: SINGLE.channel.posterior(np.full((2, 2), np.nan), np.zeros((1, 2)), np.eye(1)),
    ),
    ("labels", lambda: SIGN.channel.posterior(0.0, ONE, np.eye(1))),
    ("labels", lambda: MODULUS.channel.posterior(-1.0, ONE, np.eye(1))),
    ("labels", lambda: LINEAR.channel.posterior(np.array([np.inf]), ONE, np.eye(1))),
    (
        "labels",
        lambda: smi.MultiIndex(first, indices=1, noise=0.1).channel.posterior(
            np.ones(2), ONE, np.eye(1)
        ),
    ),
    # predictions, alignment, the network
    ("solution", lambda: LINEAR.predict(smi.Solution(*[None] * 10), INPUTS)),
    ("inputs", lambda: ATTENTION.predict(np.ones((2, 5)), INPUTS)),
    ("inputs", lambda: LINEAR.predict(np.ones((1, 5)), INPUTS[:, :, :4])),
    ("estimate", lambda: smi.align(np.ones((2, 4)), np.ones((2, 5)), ATTENTION)),
    ("teacher", lambda: smi.align(np.ones((3, 5)), np.ones((3, 5)), ATTENTION)),
    # arguments that no public function may let through
    ("link", lambda: smi.MultiIndex(lambda z: z @ jnp.ones(3), indices=1, noise=0.1)),
    ("link", lambda: smi.MultiIndex(lambda z: z @ jnp.ones(3), indices=1)),
    ("teacher", lambda: smi.Dataset(INPUTS, np.ones(6), np.full((1, 5), np.nan))),
    (
        "teacher",
        lambda: LINEAR.sample(KEY, dimension=5, alpha=1.0, teacher=np.full((1, 5), np.nan)),
    ),
    ("inputs", lambda: LINEAR.predict(np.ones((1, 5)), np.full((6, 1, 5), np.nan))),
    ("solution", lambda: LINEAR.predict(np.ones((2, 5)), INPUTS)),
    ("estimate", lambda: smi.align(np.full((2, 5), np.nan), np.ones((2, 5)), ATTENTION)),
    ("start", lambda: smi.gamp(LINEAR, DATA, key=KEY, start=-1e-3)),
    (
        "start",
        lambda: evolve(
            ATTENTION,
            start=np.array([[0.5, 0.3], [0.0, 0.5]]),
            averages=smi.Averages(16),
            iteration=smi.Iteration(1),
        ),
    ),
    ("tolerance", lambda: smi.DeepAttention(depth=2, tokens=2, tolerance=-1e-3)),
    ("tolerance", lambda: smi.MultiIndex(first, indices=1, noise=0.1, tolerance=NAN)),
]


@pytest.mark.parametrize(
    ("name", "call"), BAD, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BAD)]
)
def test_bad_input_is_refused_by_name(name, call):
    with pytest.raises(ValueError, match="got") as caught:
        call()
    message = str(caught.value)
    assert "allowed:" in message.lower()
    assert name in message.split(":")[0].replace(".", " ").split(), message


@pytest.mark.parametrize(
    ("model", "given", "wanted"),
    [
        (smi.AttentionIndexed(2, 0.5), (6, 1, 2, 2), (6, 2, 2)),
    ],
    ids=["attention"],
)
def test_labels_with_an_axis_too_many_or_too_few_are_told_how_to_reshape(model, given, wanted):
    data = smi.Dataset(np.zeros((6, *model.design.input_shape(5))), np.ones(given))
    remedy = ", ".join(map(str, wanted))
    with pytest.raises(ValueError, match=rf"labels\.reshape\({remedy}\)\.$"):
        smi.gamp(model, data, key=KEY)


def test_a_link_that_reads_an_index_there_is_not_is_refused():
    """JAX would read the last one."""
    with pytest.raises(ValueError, match=r"link: .*index 2 is out of bounds"):
        smi.MultiIndex(lambda z: jnp.abs(z[0, 0]) + jnp.tanh(z[2, 0]), indices=2, noise=0.1)
    law = {"link": first, "log_likelihood": lambda y, z: -jnp.abs(y - z[1, 0])}
    with pytest.raises(ValueError, match=r"log_likelihood: .*index 1 is out of bounds"):
        smi.MultiIndex(indices=1, **law)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("link", "kind"),
    [
        (lambda z: [z[0, 0], z[1, 0]], "a list"),
        (lambda z: (z[0, 0], z[1, 0]), "a tuple"),
        (lambda z: None, "a NoneType"),
        (lambda z: 1j * z[0, 0], r"complex numbers \(\)"),
    ],
    ids=["list", "tuple", "nothing", "complex"],
)
def test_a_link_that_returns_no_array_is_refused(link, kind, noise):
    wanted = rf"^link: got .* that returns {kind}.* array of real numbers, such as jnp\.stack\("
    with pytest.raises(ValueError, match=wanted):
        smi.MultiIndex(link, indices=2, noise=noise)


@pytest.mark.parametrize(
    ("argument", "law"),
    [
        ("sampler", {"sampler": lambda key, z: [z[0, 0]]}),
        ("log_likelihood", {"log_likelihood": lambda y, z: [y * z[0, 0]]}),
        ("log_likelihood", {"log_likelihood": lambda y, z: y * z[0]}),
        ("log_likelihood", {"log_likelihood": lambda y: y}),
    ],
    ids=["a list drawn", "a list", "a vector", "of nothing but the label"],
)
def test_a_law_of_labels_that_gives_no_number_is_refused(argument, law):
    law = {"link": first, "log_likelihood": lambda y, z: -jnp.abs(y - z[0, 0])} | law
    with pytest.raises(ValueError, match=rf"^{argument}: got .*; allowed: a JAX function of \("):
        smi.MultiIndex(indices=1, **law)


@pytest.mark.parametrize(
    "link",
    [
        lambda z: z[jnp.argmax(z[:, 0]), 0],
        lambda z: jnp.sum(z[jnp.array([0, 1]), 0]),
        lambda z: z.at[0, 0].set(1.0).sum(),
        lambda z: jax.lax.fori_loop(0, 2, lambda i, a: a + z[i, 0], 0.0),
    ],
    ids=["place of the largest", "array of places", "a number set", "loop"],
)
def test_links_that_numpy_cannot_follow_are_allowed(link):
    assert smi.MultiIndex(link, indices=2, noise=0.1).indices == 2


def test_numbers_of_a_refused_array_are_named():
    inputs = np.ones((20, 1, 5))
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"labels: .* from 0 to 1; allowed: only \+1 and -1"):
        smi.gamp(smi.links.sign(), smi.Dataset(inputs, np.arange(20) % 2), key=key)
    for wrong, kind in (
        (np.repeat("cat", 20), "str96"),
        (np.repeat("1", 20).astype(object), "object"),
        (np.zeros(20, "datetime64[D]"), "datetime64"),
        (np.full(20, 1j), "complex128"),
    ):
        with pytest.raises(ValueError, match=rf"labels: got .* \(20,\), of {kind}.*; allowed: "):
            smi.Dataset(inputs, wrong)
    inputs[3] = np.nan
    with pytest.raises(ValueError, match=r"inputs: .* 5 of them not finite"):
        smi.Dataset(inputs, np.ones(20))


@pytest.mark.parametrize(
    "model",
    [
        smi.links.product(3),
        smi.links.sign_product(4),
        smi.MultiIndex(first, indices=1),
        smi.DeepAttention(depth=2, tokens=2, ranks=(1, 3)),
    ],
    ids=["product", "sign product of four", "noiseless link", "rank three"],
)
def test_links_without_inference_sample_but_refuse_it_with_the_remedy(model):
    data = model.sample(KEY, dimension=6, alpha=2.0)
    assert data.labels.shape[0] == 12
    assert model.predict(data.teacher, data.inputs).shape == data.labels.shape
    for call in (
        lambda: smi.gamp(model, data, key=KEY),
        lambda: smi.state_evolution(model, 1.0, key=KEY),
        lambda: model.channel.posterior(
            data.labels[0], np.zeros((model.indices, model.tokens)), np.eye(model.indices)
        ),
    ):
        with pytest.raises(ValueError, match=r"noise > 0"):
            call()


def evolution(alpha):
    return smi.state_evolution(
        LINEAR, alpha, key=KEY, averages=smi.Averages(16, nets=2), iteration=smi.Iteration(20)
    )


@pytest.mark.slow
def test_alpha_out_of_range_under_jit_and_vmap_is_a_code():
    sol = jax.jit(evolution)(-1.0)
    assert int(sol.result) == smi.Result.INVALID
    assert "outside jit" in sol.message
    sol = jax.vmap(evolution)(jnp.asarray([-1.0, 1.0, NAN, 0.0, jnp.inf]))
    bad = np.array([True, False, True, True, True])
    np.testing.assert_array_equal(sol.result == smi.Result.INVALID, bad)
    for value in (sol.overlap, sol.covariance, sol.stderr):
        np.testing.assert_array_equal(np.isnan(value[:, 0, 0]), bad)
    np.testing.assert_array_equal(np.isnan(sol.error), bad)
    # q̂ = α/(1 - q + Δ), q = q̂/(1 + q̂): at α = 1, Δ = 1/2 the
    # fixed point is 1/2; the bad neighbours do not touch it
    np.testing.assert_allclose(sol.overlap[1, 0, 0], 0.5, atol=1e-4)


@pytest.mark.parametrize(
    "q0",
    [pytest.param(-0.5, marks=pytest.mark.slow), 1.5, pytest.param(NAN, marks=pytest.mark.slow)],
)
def test_starting_overlap_out_of_range_under_jit_is_a_code(q0):
    run = jax.jit(
        lambda q: smi.state_evolution(
            LINEAR,
            1.0,
            key=KEY,
            start=q,
            averages=smi.Averages(16, nets=2),
            iteration=smi.Iteration(20),
        )
    )
    sol = run(q0)
    assert np.isnan(sol.overlap).all()
    assert int(sol.result) in (smi.Result.INVALID, smi.Result.NONFINITE)


def test_posterior_under_vmap_is_nan_where_V_is_bad():
    channel = smi.MultiIndex(lambda z: z[0], indices=1, noise=0.1).channel
    labels, V = jnp.asarray([1.0]), jnp.asarray([1.0, 0.0, -1.0, NAN]).reshape(4, 1, 1)
    post = jax.vmap(lambda v: channel.posterior(labels, jnp.full((1, 1), 0.3), v))(V)
    np.testing.assert_array_equal(np.isnan(post.g[:, 0, 0]), [False, True, True, True])


@pytest.mark.slow
def test_a_diverging_run_keeps_its_history_and_says_what_to_do():
    """Textbook GAMP with the divergence and a huge start:
    the size of the estimate leaves its range."""
    model = smi.links.phase_retrieval()
    data = model.sample(KEY, dimension=60, alpha=3.0)
    sol = smi.gamp(
        model,
        data,
        key=KEY,
        start=30.0,
        learner=smi.Bayes(precision="divergence", calibrate=False),
        iteration=smi.Iteration(40),
    )
    assert int(sol.result) in (smi.Result.DIVERGED, smi.Result.NONFINITE)
    assert not bool(sol.converged)
    assert "damping" in sol.message
    assert len(sol.trajectory["step"]) >= 1
    assert np.isfinite(sol.trajectory["overlap"][0]).all()


def test_every_code_has_a_remedy():
    assert all(len(code.remedy) > 5 for code in smi.Result)
    assert len({code.remedy for code in smi.Result}) == len(smi.Result)
