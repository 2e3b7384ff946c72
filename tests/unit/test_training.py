"""Training: the loop is that of optax, an epoch is an epoch, a resumed run is the run, and runs do
not disturb each other."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.core.codes import Result
from jaxsmi.descent import loop

KEY, SLOW = jax.random.key(0), pytest.mark.slow
MODEL = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + z[1, 0] * z[1, 1], indices=2, tokens=2)
DATA = MODEL.sample(jax.random.key(1), dimension=10, alpha=3.0)
START = np.asarray(MODEL.start(jax.random.key(2), 10))


def by_hand(loss, optimizer, batches, repeats=1):
    """The optax loop of its tutorial, in Python."""
    weights = jnp.asarray(START)
    memory = optimizer.init(weights)
    for batch in batches:
        for _ in range(repeats):
            change, memory = optimizer.update(jax.grad(loss)(weights, *batch), memory, weights)
            weights = optax.apply_updates(weights, change)
    return weights


def total(weights, inputs, labels):
    """Σ_μ (ŷ - y)², the fields written out."""
    z = jnp.einsum("pd,nmd->npm", weights, inputs) / jnp.sqrt(10.0)
    return jnp.sum((jnp.tanh(z[:, 0, 0]) + z[:, 1, 0] * z[:, 1, 1] - labels) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "scale"),
    [
        pytest.param("mean", 1 / 30, marks=SLOW),
        pytest.param("sum", 1.0, marks=SLOW),
        ("sum/D", 1 / 10),
    ],
)
def test_full_batch_descent_is_the_loop_of_optax(reduction, scale):
    optimizer = optax.chain(
        # rates at which no loss diverges: a run that does stops, the loop by hand does not
        optax.add_decayed_weights(0.1),
        optax.sgd(0.1 / 30 / scale, momentum=0.9, nesterov=True),
    )
    expected = by_hand(
        lambda w, x, y: scale * total(w, x, y),
        optimizer,
        [(DATA.inputs, DATA.labels)] * 4,
        repeats=2,
    )
    fit = smi.train(
        MODEL,
        DATA,
        optimizer,
        key=KEY,
        steps=4,
        batch_size=smi.Batches(repeats=2),
        reduction=reduction,
        init=START,
    )
    np.testing.assert_allclose(
        fit.weights, expected, rtol=0, atol=1e-12
    )  # rounding of some 1e3 operations
    np.testing.assert_allclose(
        fit.history["train_loss"][1], scale * total(START, DATA.inputs, DATA.labels), rtol=1e-12
    )
    assert fit.kind == "train"
    assert int(fit.steps) == 4


@pytest.mark.slow
def test_one_pass_takes_each_sample_once_in_order():
    batches = [(DATA.inputs[i : i + 7], DATA.labels[i : i + 7]) for i in (0, 7, 14, 21)]
    expected = by_hand(lambda w, x, y: total(w, x, y) / 7, optax.sgd(0.3), batches)
    fit = smi.train(
        MODEL,
        DATA,
        optax.sgd(0.3),
        key=KEY,
        steps=4,
        batch_size=smi.Batches(7, one_pass=True),
        init=START,
    )
    np.testing.assert_allclose(fit.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [pytest.param(7, marks=SLOW), 10, 29])
def test_an_epoch_is_a_permutation_of_all_samples(size):
    epochs = loop.Epochs(30, size, True)
    seen = []
    order = epochs.start(KEY, jnp.asarray(0))
    for step in range(3 * epochs.batches):
        order, chosen, inside = epochs.next(KEY, order, jnp.asarray(step))
        seen.append(np.asarray(chosen)[np.asarray(inside)])
    passes = [np.concatenate(seen[n * epochs.batches : (n + 1) * epochs.batches]) for n in range(3)]
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), np.arange(30))
    assert not np.array_equal(passes[0], passes[1])


@pytest.mark.slow
def test_the_last_batch_of_an_epoch_counts_only_what_is_in_it():
    """30 samples in batches of 20: the second batch has ten samples, and its mean is over ten."""
    weights = smi.train(
        MODEL, DATA, optax.sgd(0.3), key=KEY, steps=2, batch_size=20, init=START
    ).weights
    words = jax.random.bits(jax.random.split(jax.random.fold_in(KEY, 1))[1], (2,), jnp.uint32)
    order_key = jax.random.wrap_key_data(words, impl="threefry2x32")
    order = np.asarray(loop.Epochs(30, 20, True).order(order_key, jnp.asarray(0)))
    batches = [(DATA.inputs[part], DATA.labels[part]) for part in (order[:20], order[20:])]
    expected = by_hand(lambda w, x, y: total(w, x, y) / len(y), optax.sgd(0.3), batches)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"batch_size": 7}, marks=SLOW),
        pytest.param({}, marks=SLOW),
        pytest.param({"batch_size": smi.Batches(11, repeats=2)}, marks=SLOW),
    ],
)
def test_a_continued_run_is_the_run(settings):
    optimizer = optax.adam(0.05)
    whole = smi.train(
        MODEL, DATA, optimizer, key=KEY, steps=23, record=smi.Record(every=1), **settings
    )
    first = smi.train(MODEL, DATA, optimizer, key=KEY, steps=9, **settings)
    rest = smi.train(
        MODEL,
        DATA,
        optimizer,
        key=KEY,
        steps=14,
        state=first.state,
        record=smi.Record(every=4),
        **settings,
    )
    np.testing.assert_array_equal(rest.weights, whole.weights)
    assert int(rest.steps) == 23
    np.testing.assert_array_equal(rest.history["step"], [9, 13, 17, 21, 23])
    np.testing.assert_array_equal(
        rest.history["overlap"], np.asarray(whole.history["overlap"])[[9, 13, 17, 21, 23]]
    )


@pytest.mark.slow
def test_runs_at_once_are_the_runs_one_by_one():
    keys, optimizer = jax.random.split(KEY, 3), optax.adam(0.05)
    together = smi.train(MODEL, DATA, optimizer, key=keys, steps=20, batch_size=8)
    assert together.weights.shape == (3, 2, 10)
    for n, key in enumerate(keys):
        alone = smi.train(MODEL, DATA, optimizer, key=key, steps=20, batch_size=8)
        np.testing.assert_allclose(together.weights[n], alone.weights, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            together.history["cosine"][n], alone.history["cosine"], rtol=0, atol=1e-12
        )


@pytest.mark.slow
def test_a_state_goes_through_a_file(tmp_path):
    optimizer = optax.adam(0.05)
    fit = smi.train(MODEL, DATA, optimizer, key=KEY, steps=9, batch_size=7)
    eqx.tree_serialise_leaves(tmp_path / "state.eqx", fit.state)
    like = smi.train(MODEL, DATA, optimizer, key=jax.random.key(8), steps=1, batch_size=7).state
    back = eqx.tree_deserialise_leaves(tmp_path / "state.eqx", like)
    one, two = (
        smi.train(MODEL, DATA, optimizer, steps=5, batch_size=7, state=state, key=KEY)
        for state in (fit.state, back)
    )
    np.testing.assert_array_equal(one.weights, two.weights)


@pytest.mark.slow
def test_optimisers_that_ask_for_more_and_rates_that_promote():
    fit = smi.train(MODEL, DATA, optax.lbfgs(), key=KEY, steps=30)
    assert float(fit.history["train_loss"][-1]) < 0.2 * float(fit.history["train_loss"][1])
    single = smi.Dataset(DATA.inputs.astype(jnp.float32), DATA.labels, DATA.teacher)

    def run(decay):
        return smi.train(
            MODEL,
            single,
            optax.chain(optax.add_decayed_weights(decay), optax.sgd(0.1, momentum=0.9)),
            key=KEY,
            steps=6,
        )

    assert jax.vmap(run)(jnp.array([0.1, 0.2])).weights.dtype == jnp.float32


@pytest.mark.slow
def test_learning_rates_under_vmap():
    rates = jnp.array([0.01, 0.3])
    together = jax.vmap(
        lambda rate: smi.train(MODEL, DATA, optax.sgd(rate), key=KEY, steps=15, batch_size=8)
    )(rates)
    for n, rate in enumerate(rates):
        alone = smi.train(MODEL, DATA, optax.sgd(rate), key=KEY, steps=15, batch_size=8)
        np.testing.assert_allclose(together.weights[n], alone.weights, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_start_knows_nothing_of_the_teacher_even_with_one_key_for_both():
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=2000, alpha=0.05)
    for solution in (
        smi.train(model, data, optax.sgd(1e-9), key=KEY, steps=1),
        smi.gamp(model, data, key=KEY, max_steps=1),
    ):
        assert np.all(
            np.abs(np.asarray(solution.history["cosine"][0])) < 5 / np.sqrt(2000)
        )  # five standard deviations


@pytest.mark.slow
def test_a_linear_student_ends_at_the_least_squares_solution():
    model = smi.links.linear(0.5)
    data = model.sample(KEY, dimension=12, alpha=4.0)
    fit = smi.train(model, data, optax.sgd(2.0), key=KEY, steps=2000)
    x = np.asarray(data.inputs)[:, 0] / np.sqrt(12)
    exact = np.linalg.lstsq(x, np.asarray(data.labels).reshape(48), rcond=None)[0]
    np.testing.assert_allclose(np.asarray(fit.weights)[0], exact, atol=1e-8)
    assert float(fit.residual) < 1e-10


@pytest.mark.slow
def test_population_error_is_that_of_new_samples():
    fit = smi.train(MODEL, DATA, optax.adam(0.1), key=KEY, steps=30)
    fresh = MODEL.sample(jax.random.key(9), dimension=10, alpha=2000.0, teacher=DATA.teacher)
    squared = np.asarray(MODEL.predict(fit, fresh.inputs) - fresh.labels) ** 2
    stderr = squared.std() / np.sqrt(len(squared))
    assert (
        abs(float(fit.error) - squared.mean()) < 4 * stderr + 0.02 * squared.mean()
    )  # 8 nets of 512 points: under 1 %
    tested = smi.train(MODEL, DATA, optax.adam(0.1), key=KEY, steps=30, test=fresh)
    np.testing.assert_allclose(tested.error, squared.mean(), rtol=1e-10)


@pytest.mark.slow
def test_error_against_another_teacher_is_measured_with_that_teachers_link():
    """A linear student of a teacher z²: with ω = z/√ρ, z ~ N(0, ρ), E (z² - ω)² = 3ρ² + 1."""
    square, line = (
        smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1),
        smi.MultiIndex(lambda z: z[0, 0], indices=1),
    )
    data = square.sample(KEY, dimension=40, alpha=2.0)
    rho = np.mean(np.asarray(data.teacher) ** 2)
    fit = smi.train(
        line, data, optax.sgd(1e-9), key=KEY, steps=1, init=np.asarray(data.teacher) / np.sqrt(rho)
    )
    expected = 3 * rho**2 + 1
    assert (
        abs(float(fit.error) - expected) < 0.05 * expected
    )  # 4096 quasi-random points of a heavy tail: 1 to 2 %


@pytest.mark.slow
def test_early_stopping_and_codes():
    model = smi.links.linear(0.0)
    data = model.sample(KEY, dimension=20, alpha=4.0)
    fit = smi.train(
        model,
        data,
        optax.adam(0.1),
        key=KEY,
        steps=1000,
        record=smi.Record(every=10),
        stop=smi.Stop(target=0.9),
    )
    assert int(fit.result) == Result.SUCCESS
    assert 10 <= int(fit.steps) < 300
    assert float(fit.trajectory["cosine"][-1, 0]) >= 0.9
    assert np.all(fit.trajectory["cosine"][:-1, 0] < 0.9)
    never = smi.train(model, data, optax.sgd(1e-6), key=KEY, steps=20, stop=smi.Stop(target=0.99))
    assert int(never.result) == Result.MAX_STEPS
    settled = smi.train(
        model,
        data,
        optax.sgd(5.0),
        key=KEY,
        steps=3000,
        record=smi.Record(every=10),
        stop=smi.Stop(patience=5),
        test=data,
    )
    assert int(settled.result) == Result.SUCCESS
    assert 10 <= int(settled.steps) < 3000
    # runs that stop at different records: each as if it were alone
    keys = jax.random.split(KEY, 3)
    together = smi.train(
        model,
        data,
        optax.adam(0.1),
        key=keys,
        steps=1000,
        record=smi.Record(every=10),
        stop=smi.Stop(target=0.9),
    )
    for n, key in enumerate(keys):
        alone = smi.train(
            model,
            data,
            optax.adam(0.1),
            key=key,
            steps=1000,
            record=smi.Record(every=10),
            stop=smi.Stop(target=0.9),
        )
        assert int(together.steps[n]) == int(alone.steps)
        np.testing.assert_allclose(together.weights[n], alone.weights, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_that_learned_nothing_says_so_and_what_to_do():
    """A rate of 1e-6 keeps its random start, whose cosine is chance; the other run learns."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=200, alpha=3.0)
    rates = jnp.array([1e-6, 0.1])
    runs = jax.vmap(lambda rate: smi.train(model, data, optax.adam(rate), key=KEY, steps=60))(rates)
    assert [int(code) for code in runs.result] == [Result.NOTHING_LEARNED, Result.SUCCESS]
    blind = jax.tree.map(lambda leaf: leaf[0], runs)
    assert "learned nothing" in blind.message
    assert "learning rate" in repr(blind)
    # a start that knows something: not chance, though no step changes it
    near = 0.5 * data.teacher + model.start(KEY, 200)
    fit = smi.train(model, data, optax.sgd(1e-6), key=KEY, steps=5, init=near)
    assert int(fit.result) == Result.SUCCESS
    # nothing is known of a teacher
    alone = smi.Dataset(data.inputs, data.labels)
    fit = smi.train(model, alone, optax.sgd(1e-6), key=KEY, steps=5)
    assert int(fit.result) == Result.SUCCESS


@pytest.mark.slow
def test_chance_is_rarely_taken_for_learning():
    """Student's law beyond three: 0.3 % of random directions, of few dimensions more."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=30, alpha=1.0)
    starts = jax.random.split(KEY, 400)
    runs = smi.train(model, data, optax.sgd(1e-9), key=starts, steps=1)
    taken = np.sum(np.asarray(runs.result) == Result.SUCCESS)
    assert taken <= 9  # 2.2 expected (0.55 %): more than nine once in 10 000


@pytest.mark.slow
def test_a_diverging_run_ends_with_its_code_and_leaves_the_others_alone():
    rates = jnp.array([0.05, 1e6])
    runs = jax.vmap(lambda rate: smi.train(MODEL, DATA, optax.sgd(rate), key=KEY, steps=30))(rates)
    assert int(runs.result[0]) in (Result.SUCCESS, Result.NOTHING_LEARNED)  # 30 steps are few
    assert int(runs.result[1]) == Result.NONFINITE
    assert np.all(np.isfinite(runs.weights[0]))
    assert np.isnan(float(runs.error[1]))
    assert np.isfinite(float(runs.history["error"][1, 0]))  # the history is kept


@pytest.mark.slow
def test_a_stream_is_fresh_at_each_step_and_its_limit_is_the_population():
    model = smi.links.linear(0.0)
    stream = smi.Stream(model, model.start(jax.random.key(4), 30))
    fit = smi.train(model, stream, optax.sgd(3.0), key=KEY, steps=300, batch_size=10)
    assert (
        float(fit.history["cosine"][-1, 0]) > 0.999
    )  # noiseless least mean squares converges to the teacher
    keys = jax.random.split(KEY, 2)
    one, two = stream.draw(keys[0], 5), stream.draw(keys[1], 5)
    assert not np.array_equal(one[0], two[0])
    np.testing.assert_allclose(
        one[1].reshape(-1), one[0][:, 0] @ stream.teacher[0] / np.sqrt(30), atol=1e-12
    )
    assert np.isinf(float(fit.alpha))


@pytest.mark.slow
def test_recorded_function_and_float32():
    data = MODEL.sample(KEY, dimension=10, alpha=3.0, dtype=jnp.float32)
    fit = smi.train(
        MODEL, data, optax.sgd(0.1), key=KEY, steps=8, record=smi.Record(jnp.max, every=4)
    )
    assert fit.weights.dtype == jnp.float32
    assert fit.history["record"].shape == (3,)
    np.testing.assert_allclose(fit.history["record"][-1], np.max(np.asarray(fit.weights)))
    assert fit.history["overlap"].dtype == jnp.float64


BAD = {
    "steps": {"steps": 0},
    "repeats": {"batch_size": smi.Batches(repeats=0)},
    "batch_size": {"batch_size": 0},
    "reduction": {"reduction": "median"},
    "patience": {"stop": smi.Stop(patience=0)},
    "target": {"stop": smi.Stop(target=1.5)},
    "init": {"init": np.ones((3, 10))},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; allowed: "):
        smi.train(MODEL, DATA, optax.sgd(0.1), key=KEY, **({"steps": 2} | BAD[name]))


@pytest.mark.slow
def test_bad_combinations_are_named():
    optimizer = optax.sgd(0.1)
    for many in (31, smi.Batches(31), smi.Batches(31, one_pass=True)):
        with pytest.raises(ValueError, match=r"^batch_size: got 31; allowed: at most 30, the samp"):
            smi.train(MODEL, DATA, optimizer, steps=1, batch_size=many, key=KEY)
    with pytest.raises(ValueError, match=r"^steps: .*one_pass"):
        smi.train(
            MODEL, DATA, optimizer, steps=5, batch_size=smi.Batches(7, one_pass=True), key=KEY
        )
    with pytest.raises(ValueError, match=r"^optimizer: "):
        smi.train(MODEL, DATA, 0.1, key=KEY)  # pyright: ignore
    with pytest.raises(ValueError, match=r"^data: "):
        smi.train(MODEL, (DATA.inputs, DATA.labels), optimizer, key=KEY)
    with pytest.raises(ValueError, match=r"^data.inputs: "):
        smi.train(smi.links.linear(0.0), DATA, optimizer, key=KEY)
    with pytest.raises(ValueError, match=r"^data.labels: "):
        smi.train(MODEL, smi.Dataset(DATA.inputs, jnp.ones((30, 2))), optimizer, key=KEY)
    with pytest.raises(ValueError, match=r"^patience: .*nothing to watch"):
        smi.train(
            MODEL,
            smi.Dataset(DATA.inputs, DATA.labels),
            optimizer,
            stop=smi.Stop(patience=3),
            key=KEY,
        )
    with pytest.raises(ValueError, match=r"^target: "):
        smi.train(
            MODEL,
            smi.Dataset(DATA.inputs, DATA.labels),
            optimizer,
            stop=smi.Stop(target=0.5),
            key=KEY,
        )
    fit = smi.train(MODEL, DATA, optimizer, key=KEY, steps=1)
    with pytest.raises(ValueError, match=r"^state: "):
        smi.train(
            MODEL, MODEL.sample(KEY, dimension=11, alpha=2.0), optimizer, state=fit.state, key=KEY
        )
    with pytest.raises(ValueError, match=r"^state: .*'one' run|^state: .*one run"):
        smi.train(MODEL, DATA, optimizer, key=jax.random.split(KEY, 3), state=fit.state)
    with pytest.raises(ValueError, match=r"^state: .*another optimiser"):
        smi.train(MODEL, DATA, optax.adam(0.1), state=fit.state, key=KEY)
    with pytest.raises(ValueError, match=r"^state: .*float32"):
        smi.train(
            MODEL,
            smi.Dataset(DATA.inputs.astype(jnp.float32), DATA.labels),
            optimizer,
            state=fit.state,
            key=KEY,
        )
    with pytest.raises(ValueError, match=r"^steps: .*at most 3"):
        smi.train(
            MODEL,
            DATA,
            optimizer,
            steps=4,
            batch_size=smi.Batches(7, one_pass=True),
            state=fit.state,
            key=KEY,
        )
    apart = eqx.tree_at(
        lambda s: s.step, jax.tree.map(lambda x: jnp.stack([x, x]), fit.state), jnp.array([3, 7])
    )
    with pytest.raises(ValueError, match=r"^state: .*one step"):
        smi.train(MODEL, DATA, optimizer, state=apart, key=KEY)
    with pytest.raises(ValueError, match=r"^data.labels: "):
        smi.train(MODEL, DATA, optimizer, test=smi.Dataset(DATA.inputs, jnp.ones((30, 2))), key=KEY)
    other = smi.MultiIndex(lambda z: z[0, 0] * z[0, 1], indices=1, tokens=2)
    with pytest.raises(ValueError, match=r"^target: .*2 rows"):
        smi.train(other, DATA, optimizer, stop=smi.Stop(target=0.5), key=KEY)


@pytest.mark.slow
def test_links_without_a_gradient_are_refused():
    optimizer = optax.sgd(0.1)
    hard = smi.DeepAttention(2, 2, activation="hardmax")
    with pytest.raises(ValueError, match=r"^model: .*softmax student"):
        smi.train(hard, hard.sample(KEY, dimension=10, alpha=2.0), optimizer, key=KEY)
    sign = smi.links.sign()
    with pytest.raises(ValueError, match=r"^model: .*gradient"):
        smi.train(sign, sign.sample(KEY, dimension=10, alpha=2.0), optimizer, key=KEY)
    parity = smi.links.square_plus_sign_parity()
    with pytest.warns(UserWarning, match=r"rows \[1, 2\] of the weights have no gradient"):
        smi.train(parity, parity.sample(KEY, dimension=10, alpha=2.0), optimizer, steps=1, key=KEY)


# Order of learning
# --------------------------------------------------------------------------------------------


def test_crossings_are_interpolated_exactly():
    from jaxsmi.descent.order import crossing

    steps = jnp.array([0.0, 10.0, 20.0, 30.0])
    cosines = jnp.array([[0.0, 0.7, 0.1], [0.2, 0.8, 0.1], [0.6, 0.9, 0.1], [jnp.nan] * 3])
    np.testing.assert_allclose(crossing(steps, cosines, 0.5), [17.5, 0.0, np.inf])
    holes = jnp.array([[0.1, jnp.nan], [jnp.nan, jnp.nan], [0.9, jnp.nan], [0.9, jnp.nan]])
    np.testing.assert_allclose(crossing(steps, holes, 0.5), [10.0, np.nan])


@pytest.mark.slow
def test_order_of_several_methods_in_one_call():
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=60, alpha=4.0)
    methods = {
        "GAMP": {"alpha": 2.0},
        "Adam": {"optimizer": optax.adam(0.05), "steps": 100, "record": smi.Record(every=1)},
    }
    found = smi.learning_order(model, data, methods, key=KEY, seeds=3)
    assert found.alpha == {"GAMP": 2.0, "Adam": 4.0}
    assert found.order("GAMP") == found.order("Adam") == [0]
    assert found.learned["Adam"].shape == (3, 1)
    assert np.all(np.asarray(found.learned["GAMP"]) < np.asarray(found.learned["Adam"]))
    curve = [smi.state_evolution(model, alpha, key=KEY) for alpha in (0.1, 0.2, 0.3, 0.4)]
    at = float(
        smi.learned_at(curve, 0.5)[0]
    )  # cos² = q = 1/4 on q² - (1 + α + Δ) q + α = 0: α = q (1 + Δ - q)/(1 - q)
    assert (
        abs(at - 0.25 * 0.85 / 0.75) < 0.005
    )  # linear interpolation on a grid of 0.1: cos is concave there
    with pytest.raises(ValueError, match="alpha"):
        smi.learning_order(model, data, {"GAMP": {"alpha": 9.0}}, key=KEY)
    with pytest.raises(ValueError, match=r"^data.teacher: "):
        smi.learning_order(model, smi.Dataset(data.inputs, data.labels), methods, key=KEY)
    with pytest.raises(ValueError, match=r"^level: "):
        smi.learned_at(curve, 1.0)
    with pytest.raises(ValueError, match=r"^solution: "):
        smi.learned_at(curve[0])
