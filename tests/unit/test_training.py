"""Training: the loop of optax, epochs, resumed runs, many runs at once, early stopping, codes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.core.results import Result
from jaxsmi.descent import loop
from jaxsmi.descent.analysis import crossing

KEY, SLOW = jax.random.key(0), pytest.mark.slow
MODEL = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + z[1, 0] * z[1, 1], indices=2, tokens=2)
DATA = MODEL.sample(jax.random.key(1), dimension=10, alpha=3.0)
START = np.asarray(MODEL.student.start(jax.random.key(2), 10))
LINEAR = smi.links.linear(0.0)


def train(optimizer, steps, model=MODEL, data=DATA, key=KEY, start=1.0, **settings):
    """`smi.train` with the settings of a Gradient and a Monitor side by side."""
    names = ("loss", "reduction", "batch_size", "repeats")
    gradient = {name: settings.pop(name) for name in names if name in settings}
    return smi.train(
        model, data, optimizer, key=key, steps=steps, start=start,
        gradient=smi.Gradient(**gradient), monitor=smi.Monitor(**settings),
    )  # fmt: skip


def plain_loop(loss, optimizer, batches, repeats=1):
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


def close(x, y):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-12)  # rounding of some 1e3 operations


@SLOW
@pytest.mark.parametrize(
    ("reduction", "scale"), [("mean", 1 / 30), ("sum", 1.0), ("sum/D", 1 / 10)]
)
def test_full_batch_descent_is_the_loop_of_optax(reduction, scale):
    optimizer = optax.chain(
        # rates at which no loss diverges: a run that does stops, the plain loop does not
        optax.add_decayed_weights(0.1),
        optax.sgd(0.1 / 30 / scale, momentum=0.9, nesterov=True),
    )
    batches = [(DATA.inputs, DATA.labels)] * 4
    loss = lambda w, x, y: scale * total(w, x, y)
    expected = plain_loop(loss, optimizer, batches, repeats=2)
    fit = train(optimizer, 4, repeats=2, reduction=reduction, start=START)
    close(fit.weights, expected)
    np.testing.assert_allclose(fit.history["train_loss"][1], loss(START, *batches[0]), rtol=1e-12)
    assert fit.kind == "train"
    assert int(fit.steps) == 4


@pytest.mark.parametrize("reduction", slow_but(["mean", "sum", "sum/D"], "sum/D"))
def test_descent_with_weight_decay_ends_at_the_ridge_of_a_learner(reduction):
    """A ridge λ of the sum of ½(ŷ - y)² is a decay cλ, c the factor of that sum."""
    model, ridge = smi.links.linear(0.1), 0.5
    data = model.sample(KEY, dimension=10, alpha=3.0)
    c = {"mean": 1 / 30, "sum": 1.0, "sum/D": 1 / 10}[reduction]
    x, y = np.asarray(data.inputs[:, 0]) / 10**0.5, np.ravel(data.labels)
    exact = np.linalg.solve(x.T @ x + ridge * np.eye(10), x.T @ y)
    decayed = optax.chain(optax.add_decayed_weights(c * ridge), optax.sgd(0.1 / c))
    half = {"loss": smi.losses.squared, "reduction": reduction}
    fit = train(decayed, 400, model, data, **half)
    np.testing.assert_allclose(fit.weights[0], exact, atol=1e-8)  # (1 - 0.05)^400 = 1e-9


def descent(size):
    return loop.Descent(
        model=MODEL, data=DATA, gradient=smi.Gradient(batch_size=size), monitor=smi.Monitor(),
        optimizer=optax.sgd(0.3), start=None, steps=jnp.asarray(1), every=jnp.asarray(1),
    )  # fmt: skip


@pytest.mark.parametrize("size", [pytest.param(7, marks=SLOW), pytest.param(10, marks=SLOW), 29])
def test_an_epoch_is_a_permutation_of_all_samples(size):
    solver, batches = descent(size), -(-30 // size)
    order, passes = solver.order(KEY, jnp.asarray(0)), []
    for epoch in range(3):
        used = []
        for step in range(epoch * batches, (epoch + 1) * batches):
            order, (_, labels, inside) = solver.batch(KEY, order, jnp.asarray(step))
            used.append(np.asarray(labels)[np.asarray(inside)])
        passes.append(np.concatenate(used))
    for one in passes:
        np.testing.assert_array_equal(np.sort(one), np.sort(DATA.labels))
    assert not np.array_equal(passes[0], passes[1])


@SLOW
def test_the_last_batch_of_an_epoch_counts_only_its_own_samples():
    """30 samples in batches of 20: the second batch has ten samples, and its mean is over ten."""
    fit = train(optax.sgd(0.3), 2, batch_size=20, start=START)
    order_key = jax.random.wrap_key_data(fit.state.key, impl="threefry2x32")
    order = np.asarray(descent(20).order(order_key, jnp.asarray(0)))
    batches = [(DATA.inputs[part], DATA.labels[part]) for part in (order[:20], order[20:])]
    expected = plain_loop(lambda w, x, y: total(w, x, y) / len(y), optax.sgd(0.3), batches)
    close(fit.weights, expected)


@SLOW
@pytest.mark.parametrize("settings", [{"batch_size": 7}, {}, {"batch_size": 11, "repeats": 2}])
def test_a_continued_run_is_the_run(settings, tmp_path):
    optimizer = optax.adam(0.05)
    full = train(optimizer, 23, every=1, **settings)
    first = train(optimizer, 9, **settings)
    rest = train(optimizer, 14, start=first, every=4, **settings)
    np.testing.assert_array_equal(rest.weights, full.weights)
    assert int(rest.steps) == 23
    records = [9, 13, 17, 21, 23]
    np.testing.assert_array_equal(rest.history["step"], records)
    np.testing.assert_array_equal(
        rest.history["overlap"], np.asarray(full.history["overlap"])[records]
    )
    # through a file
    eqx.tree_serialise_leaves(tmp_path / "state.eqx", first.state)
    like = train(optimizer, 1, key=jax.random.key(8), **settings).state
    state = eqx.tree_deserialise_leaves(tmp_path / "state.eqx", like)
    np.testing.assert_array_equal(
        train(optimizer, 14, start=state, **settings).weights, full.weights
    )


@SLOW
def test_runs_at_once_are_the_runs_one_by_one():
    keys, optimizer = jax.random.split(KEY, 3), optax.adam(0.05)
    together = train(optimizer, 20, key=keys, batch_size=8)
    assert together.weights.shape == (3, 2, 10)
    for n, key in enumerate(keys):
        alone = train(optimizer, 20, key=key, batch_size=8)
        close(together.weights[n], alone.weights)
        close(together.history["cosine"][n], alone.history["cosine"])
    rates = jnp.array([0.01, 0.3])
    together = jax.vmap(lambda rate: train(optax.sgd(rate), 15, batch_size=8))(rates)
    for n, rate in enumerate(rates):
        close(together.weights[n], train(optax.sgd(rate), 15, batch_size=8).weights)


@SLOW
def test_line_searches_and_rates_that_promote():
    fit = train(optax.lbfgs(), 30)
    assert float(fit.history["train_loss"][-1]) < 0.2 * float(fit.history["train_loss"][1])
    single = smi.Dataset(DATA.inputs.astype(jnp.float32), DATA.labels, DATA.teacher)

    def run(decay):
        momentum = optax.sgd(0.1, momentum=0.9)
        return train(optax.chain(optax.add_decayed_weights(decay), momentum), 6, data=single)

    assert jax.vmap(run)(jnp.array([0.1, 0.2])).weights.dtype == jnp.float32


@SLOW
def test_a_start_is_independent_of_the_teacher_even_with_one_key_for_both():
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=2000, alpha=0.05)
    for solution in (
        train(optax.sgd(1e-9), 1, model, data),
        smi.gamp(model, data, key=KEY, iteration=smi.Iteration(1)),
    ):
        cosine = np.asarray(solution.history["cosine"][0])
        assert np.all(np.abs(cosine) < 5 / np.sqrt(2000))  # five standard deviations


@SLOW
def test_population_error_is_that_of_new_samples():
    fit = train(optax.adam(0.1), 30)
    fresh = MODEL.sample(jax.random.key(9), dimension=10, alpha=2000.0, teacher=DATA.teacher)
    squared = np.asarray(MODEL.predict(fit, fresh.inputs) - fresh.labels) ** 2
    stderr = squared.std() / np.sqrt(len(squared))
    # 8 nets of 512 points: under 1 %
    assert abs(float(fit.error) - squared.mean()) < 4 * stderr + 0.02 * squared.mean()
    tested = train(optax.adam(0.1), 30, test=fresh)
    np.testing.assert_allclose(tested.error, squared.mean(), rtol=1e-10)


@SLOW
def test_error_against_another_teacher_is_measured_with_that_teachers_link():
    """A linear student of a teacher z²: with ω = z/√ρ, z ~ N(0, ρ), E (z² - ω)² = 3ρ² + 1."""
    square = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1)
    line = smi.MultiIndex(lambda z: z[0, 0], indices=1)
    data = square.sample(KEY, dimension=40, alpha=2.0)
    rho = np.mean(np.asarray(data.teacher) ** 2)
    fit = train(optax.sgd(1e-9), 1, line, data, start=np.asarray(data.teacher) / np.sqrt(rho))
    expected = 3 * rho**2 + 1
    # 4096 quasi-random points of a heavy tail: 1 to 2 %
    assert abs(float(fit.error) - expected) < 0.05 * expected


@SLOW
def test_early_stopping_and_codes():
    data = LINEAR.sample(KEY, dimension=20, alpha=4.0)
    until = {"model": LINEAR, "data": data, "every": 10, "target": 0.9}
    fit = train(optax.adam(0.1), 1000, **until)
    assert int(fit.result) == Result.SUCCESS
    assert 10 <= int(fit.steps) < 300
    assert float(fit.trajectory["cosine"][-1, 0]) >= 0.9
    assert np.all(fit.trajectory["cosine"][:-1, 0] < 0.9)
    never = train(optax.sgd(1e-6), 20, LINEAR, data, target=0.99)
    assert int(never.result) == Result.MAX_STEPS
    settled = train(optax.sgd(5.0), 3000, LINEAR, data, every=10, patience=5, test=data)
    assert int(settled.result) == Result.SUCCESS
    assert 10 <= int(settled.steps) < 3000
    # runs that stop at different records: each as if it were alone
    keys = jax.random.split(KEY, 3)
    together = train(optax.adam(0.1), 1000, key=keys, **until)
    for n, key in enumerate(keys):
        alone = train(optax.adam(0.1), 1000, key=key, **until)
        assert int(together.steps[n]) == int(alone.steps)
        close(together.weights[n], alone.weights)


@SLOW
def test_a_run_that_learned_nothing_says_so_and_what_to_do():
    """A rate of 1e-6 keeps its random start, whose cosine is chance; the other run learns."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=200, alpha=3.0)
    runs = jax.vmap(lambda rate: train(optax.adam(rate), 60, model, data))(jnp.array([1e-6, 0.1]))
    assert [int(code) for code in runs.result] == [Result.NOTHING_LEARNED, Result.SUCCESS]
    blind = jax.tree.map(lambda leaf: leaf[0], runs)
    assert "ended without learning" in blind.message
    assert "learning rate" in repr(blind)
    # a start with a cosine is not chance, though no step changes it; without a teacher no chance
    near = 0.5 * data.teacher + model.student.start(KEY, 200)
    alone = smi.Dataset(data.inputs, data.labels)
    for fit in (
        train(optax.sgd(1e-6), 5, model, data, start=near),
        train(optax.sgd(1e-6), 5, model, alone),
    ):
        assert int(fit.result) == Result.SUCCESS
    # Student's law beyond three: 0.3 % of random directions, of few dimensions more
    few = model.sample(KEY, dimension=30, alpha=1.0)
    runs = train(optax.sgd(1e-9), 1, model, few, key=jax.random.split(KEY, 400))
    taken = np.sum(np.asarray(runs.result) == Result.SUCCESS)
    assert taken <= 9  # 2.2 expected (0.55 %): more than nine once in 10 000


@SLOW
def test_a_diverging_run_ends_with_its_code_and_leaves_the_others_alone():
    runs = jax.vmap(lambda rate: train(optax.sgd(rate), 30))(jnp.array([0.05, 1e6]))
    assert int(runs.result[0]) in (Result.SUCCESS, Result.NOTHING_LEARNED)  # 30 steps are few
    assert int(runs.result[1]) == Result.NONFINITE
    assert np.all(np.isfinite(runs.weights[0]))
    assert np.isnan(float(runs.error[1]))
    assert np.isfinite(float(runs.history["error"][1, 0]))  # the history is kept
    square = smi.links.phase_retrieval(squared=True)
    data = square.sample(KEY, dimension=10, alpha=3.0)
    fit = train(optax.sgd(3.0), 3, square, data)  # it explodes
    assert np.isfinite(np.asarray(fit.weights)).all()
    assert int(fit.result) == Result.DIVERGED
    assert "learning rate" in fit.message


@SLOW
def test_a_stream_is_fresh_at_each_step_and_its_limit_is_the_population():
    stream = smi.Stream(LINEAR, LINEAR.student.start(jax.random.key(4), 30))
    fit = train(optax.sgd(3.0), 300, LINEAR, stream, batch_size=10)
    assert float(fit.history["cosine"][-1, 0]) > 0.999  # noiseless least mean squares
    one, two = (stream.draw(key, 5) for key in jax.random.split(KEY, 2))
    assert not np.array_equal(one[0], two[0])
    close(one[1].reshape(-1), one[0][:, 0] @ stream.teacher[0] / np.sqrt(30))
    assert np.isinf(float(fit.alpha))


@SLOW
def test_recorded_function_and_float32():
    data = MODEL.sample(KEY, dimension=10, alpha=3.0, dtype=jnp.float32)
    fit = train(optax.sgd(0.1), 8, data=data, record=jnp.max, every=4)
    assert fit.weights.dtype == jnp.float32
    assert fit.history["record"].shape == (3,)
    np.testing.assert_allclose(fit.history["record"][-1], np.max(np.asarray(fit.weights)))
    assert fit.history["overlap"].dtype == jnp.float64


@SLOW
def test_states_that_do_not_fit_are_named():
    optimizer = optax.sgd(0.1)
    fit = train(optimizer, 1)
    single = smi.Dataset(DATA.inputs.astype(jnp.float32), DATA.labels)
    pair = jax.tree.map(lambda x: jnp.stack([x, x]), fit.state)
    apart = eqx.tree_at(lambda s: s.step, pair, jnp.array([3, 7]))
    for message, settings in (
        ("start: ", {"data": MODEL.sample(KEY, dimension=11, alpha=2.0)}),
        ("start: .*one run", {"key": jax.random.split(KEY, 3)}),
        ("start: .*another optimiser", {"optimizer": optax.adam(0.1)}),
        ("start: .*float32", {"data": single}),
        ("start: .*one step", {"start": apart}),
        ("start: .*Solution of smi.train", {"start": smi.state_evolution(LINEAR, 0.5, key=KEY)}),
    ):
        with pytest.raises(ValueError, match=rf"^{message}"):
            train(**({"optimizer": optimizer, "steps": 1, "start": fit.state} | settings))


@SLOW
def test_rows_without_a_gradient_are_warned_of():
    parity = smi.links.square_plus_sign_parity()
    data = parity.sample(KEY, dimension=10, alpha=2.0)
    with pytest.warns(UserWarning, match=r"rows \[1, 2\] of the weights have no gradient"):
        train(optax.sgd(0.1), 1, parity, data)


# Order of learning


def test_crossings_are_interpolated_exactly():
    steps = jnp.array([0.0, 10.0, 20.0, 30.0])
    cosines = jnp.array([[0.0, 0.7, 0.1], [0.2, 0.8, 0.1], [0.6, 0.9, 0.1], [jnp.nan] * 3])
    np.testing.assert_allclose(crossing(steps, cosines, 0.5), [17.5, 0.0, np.inf])
    holes = jnp.array([[0.1, jnp.nan], [jnp.nan, jnp.nan], [0.9, jnp.nan], [0.9, jnp.nan]])
    np.testing.assert_allclose(crossing(steps, holes, 0.5), [10.0, np.nan])


@SLOW
def test_order_of_several_methods_in_one_call():
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=60, alpha=4.0)
    adam = {"optimizer": optax.adam(0.05), "steps": 100, "monitor": smi.Monitor(every=1)}
    methods = {"GAMP": {"alpha": 2.0}, "Adam": adam}
    order = smi.learning_order(model, data, methods, key=KEY, seeds=3)
    assert order.alpha == {"GAMP": 2.0, "Adam": 4.0}
    assert order.order("GAMP") == order.order("Adam") == [0]
    assert order.learned["Adam"].shape == (3, 1)
    assert np.all(np.asarray(order.learned["GAMP"]) < np.asarray(order.learned["Adam"]))
    curve = [smi.state_evolution(model, alpha, key=KEY) for alpha in (0.1, 0.2, 0.3, 0.4)]
    at = float(smi.learned_at(curve, 0.5)[0])
    # cos² = q = 1/4 on q² - (1 + α + Δ) q + α = 0: α = q (1 + Δ - q)/(1 - q), on a grid of 0.1
    assert abs(at - 0.25 * 0.85 / 0.75) < 0.005
    with pytest.raises(ValueError, match="alpha"):
        smi.learning_order(model, data, {"GAMP": {"alpha": 9.0}}, key=KEY)
    with pytest.raises(ValueError, match=r"^data.teacher: "):
        smi.learning_order(model, smi.Dataset(data.inputs, data.labels), methods, key=KEY)
