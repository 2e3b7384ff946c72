"""A wrong number inside jit, where no constructor can raise: NaN and a code, never a plausible
answer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi import Result
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.models.base import check_data
from jaxsmi.thresholds import branch

KEY = jax.random.key(5)
priors = smi.priors


def learns(prior, indices=1):
    """A model whose rows have a prior."""
    link = lambda z: jnp.sum(z)
    return smi.MultiIndex(link, indices=indices, noise=0.1, prior=prior)


MODELS = {
    "noise": lambda x: smi.links.linear(x),
    "skip": lambda x: smi.DeepAttention(2, 2, skip=x),
    "beta": lambda x: smi.DeepAttention(1, 2, beta=x),
    "beta of scores": lambda x: smi.AttentionIndexed(2, 0.5, beta=x),
    "rank ratio": lambda x: smi.AttentionIndexed(2, x),
    "aspect ratio": lambda x: smi.Bilinear(x, 0.5, 0.1),
    "density": lambda x: learns(priors.BernoulliGauss(0.5 * x)),
    "weights": lambda x: learns(priors.GaussianMixture(jnp.stack([0.5, 0.5 * x]), [1, 2], [0, 1])),
    "scales": lambda x: learns(priors.GaussianMixture([1.0], [1.0], jnp.stack([x]))),
    "covariance": lambda x: learns(priors.Gaussian(jnp.array([[1.0, 0.9], [0.9 * x, 1.0]])), 2),
    "indefinite": lambda x: learns(priors.Gaussian(jnp.diag(jnp.array([1.0, x]))), 2),
    "precision": lambda x: learns(priors.Positive(1.0, x)),
    "slope": lambda x: learns(priors.Positive(-x, 0.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_number_makes_a_model_invalid_inside_jit_and_raises_outside(name):
    valid = jax.jit(lambda x: validate.valid(MODELS[name](x)))
    assert not bool(valid(-1.0))
    assert bool(valid(1.0))
    assert bool(validate.valid(MODELS[name](1.0)))
    with pytest.raises(ValueError, match="allowed"):
        MODELS[name](-1.0)


def test_weights_that_are_no_probabilities_inside_jit():
    """Their overlap was 1.74, above that of the signal with itself, with the code SUCCESS."""

    @jax.jit
    def solve(x):
        weights = jnp.stack([0.5, x])
        prior = priors.GaussianMixture(weights, [1.0, 0.0], [0.0, 0.5])
        sizes = {"key": KEY, "averages": smi.Averages(64, nets=2)}
        return smi.state_evolution(smi.links.linear(0.1, prior=prior), 1.0, **sizes)

    assert int(solve(2.0).result) == Result.INVALID
    assert np.all(np.isnan(solve(2.0).overlap))
    assert int(solve(0.5).result) == Result.SUCCESS


@pytest.mark.parametrize("name", ["noise", "beta of scores"])
def test_its_state_evolution_says_so(name):
    """It was that of a model with a negative temperature, or a code that names no cause."""

    @jax.jit
    def solve(x):
        sizes = {} if name == "beta of scores" else {"averages": smi.Averages(64, nets=2)}
        end = smi.state_evolution(MODELS[name](x), 0.5, key=KEY, **sizes)
        return end.overlap, end.error, end.result

    overlap, error, code = solve(-1.0)
    assert np.all(np.isnan(overlap))
    assert np.isnan(error)
    assert int(code) == Result.INVALID
    assert int(solve(1.0)[2]) in (Result.SUCCESS, Result.RECOVERED)


def test_message_passing_with_an_invalid_argument_is_nan_as_a_whole():
    """Not only the overlap: weights, covariance and history too."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=20, alpha=2.0)
    run = jax.jit(lambda d: smi.gamp(model, data, key=KEY, iteration=smi.Iteration(2, damping=d)))
    bad = run(1.5)
    assert int(bad.result) == Result.INVALID
    for part in (bad.weights, bad.covariance, bad.history["overlap"], bad.overlap, bad.error):
        assert np.all(np.isnan(part))
    assert np.all(np.isfinite(run(0.5).weights))


@pytest.mark.slow
def test_a_signal_given_as_a_start_stays_the_start_beside_side_information():
    """It was the scale of a random start, entry by entry."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=20, alpha=2.0)
    signal = jnp.arange(20.0)[None] / 10.0
    run = {"iteration": smi.Iteration(1), "record": lambda state: state.weights}
    for strength in (0.0, 0.3):
        start = smi.Start(weights=signal, side_information=strength)
        end = smi.gamp(model, data, key=KEY, start=start, **run)
        np.testing.assert_array_equal(end.history["record"][0], signal)
    with pytest.raises(ValueError, match="start"):
        smi.gamp(model, data, start=smi.Start(weights=-1.0, side_information=0.3), key=KEY)
    with pytest.raises(ValueError, match="start"):
        smi.gamp(model, data, start=smi.Start(weights=jnp.ones(7), side_information=0.3), key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_stream_of_bilinear_regression(symmetric):
    """Its teacher is a matrix S and its student two factors: no teacher was admitted."""
    model = smi.Bilinear(1.0, 0.5, 0.1, symmetric=symmetric)
    stream = smi.Stream(model, model.student.draw_teacher(KEY, 12))
    fit = smi.train(
        model, stream, optax.sgd(0.01), key=KEY, steps=3, gradient=smi.Gradient(batch_size=5)
    )
    assert np.all(np.isfinite(fit.weights))
    with pytest.raises(ValueError, match="teacher"):
        smi.Stream(model, jnp.ones((5, 12)))


@pytest.mark.slow
def test_a_failed_scan_is_no_end_of_the_staircase(monkeypatch):
    """It was a staircase that ends early, with codes that say SUCCESS."""
    model = smi.DeepAttention(2, 2)
    growth_from = branch.growth_from  # of a scan alone: weak recovery has its own import

    def failing(*arguments):
        grown = growth_from(*arguments)
        return eqx.tree_at(lambda g: g.each, grown, jnp.full_like(grown.each, jnp.nan))

    monkeypatch.setattr(branch, "growth_from", failing)
    jax.clear_caches()
    found = smi.staircase(model, key=KEY, averages=smi.Averages(points=64, nets=2))
    jax.clear_caches()
    assert len(found) == 2
    assert int(found[0].result) != Result.NONFINITE
    assert int(found[-1].result) == Result.NONFINITE
    assert np.isnan(found[-1].alpha)


def test_overlaps_outside_the_ball_are_nan_inside_jit():
    """A flow from there went back to the sphere, and said SUCCESS."""
    series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
    network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
    model = smi.SequenceSingleIndex(series, 1, network, loss_factor=1.0)

    @jax.jit
    def flow(m):
        end = smi.sgd.flow(model, m, jnp.asarray([0.5]))
        return end.teacher_overlap, end.result

    overlaps, code = flow(1.2)
    assert np.all(np.isnan(overlaps))
    assert int(code) == Result.INVALID
    overlaps, code = flow(0.3)
    assert np.all(np.isfinite(overlaps))
    assert int(code) == Result.SUCCESS


@pytest.mark.slow
def test_a_record_without_a_rhythm_keeps_that_of_the_run():
    """`train` records 200 times; a Record(f) made it record every step."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=10, alpha=2.0)
    fit = smi.train(
        model,
        data,
        optax.sgd(0.1),
        key=KEY,
        steps=1000,
        monitor=smi.Monitor(record=lambda w: w.sum()),
    )
    assert fit.history["record"].shape == (201,)
    assert smi.Record(lambda w: w.sum()).every is None


def test_a_start_out_of_range_is_invalid_inside_jit():
    """It ran, and said MAX_STEPS."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=20, alpha=2.0)
    run = jax.jit(
        lambda init: smi.gamp(model, data, key=KEY, start=init, iteration=smi.Iteration(2))
    )
    assert int(run(-1.0).result) == Result.INVALID
    assert int(run(1.0).result) != Result.INVALID


def test_an_invalid_state_evolution_has_no_history_either():
    def solve(x):
        return smi.state_evolution(
            smi.links.linear(x), 0.5, key=KEY, averages=smi.Averages(64), iteration=smi.Iteration(3)
        )

    assert np.all(np.isnan(jax.jit(solve)(-1.0).history["overlap"]))


@pytest.mark.slow
def test_theory_has_no_cosine_and_a_root_no_trajectory():
    """Both raised a KeyError."""
    exact = smi.state_evolution(smi.Bilinear(1.0, 0.2, 0.1), 0.3)
    assert exact.trajectory == {}
    assert np.all(np.isnan(exact.cosine))


def test_a_student_of_one_layer_learns_from_a_teacher_of_two():
    """check_data refused the teacher where it was not asked to look at it."""
    teacher = smi.AttentionIndexed(2, 0.5, layers=2)
    data = teacher.sample(KEY, dimension=8, alpha=0.2)
    student = smi.AttentionIndexed(2, 0.5)
    check_data(student, data, teacher=False)
    with pytest.raises(ValueError, match="allowed: one of 1"):
        check_data(student, data)


def test_a_short_sequence_has_one_token():
    """β d below one half: L was 0 in one place and 1 in another."""
    data = smi.Bilinear(0.01, 0.5).sample(KEY, dimension=10, alpha=3.0)
    assert data.teacher.shape == (1, 10)


def test_a_model_made_inside_jit_has_the_channel_of_one_made_outside():
    """Its noise, a traced zero there, was taken for noise: the numerical channel, with Δ = 0."""
    kinds = {}

    def made(skip):
        model = smi.DeepAttention(2, 2, skip=skip)
        kinds["inside"] = type(model.channel)
        kinds["link"] = type(smi.MultiIndex(lambda z: skip * z[0, 0], indices=1).channel)
        return model.skip

    jax.jit(made)(1.0)
    assert kinds["inside"] is type(smi.DeepAttention(2, 2).channel)
    assert kinds["link"] is type(smi.MultiIndex(lambda z: z[0, 0], indices=1).channel)


@pytest.mark.filterwarnings("ignore:.*float64")
def test_a_floor_is_not_zero_in_float32():
    """1e-300 is: an estimate of labels that tell nothing was 0/0."""
    for dtype in (jnp.float32, jnp.float64):
        floor = clamp_to_tiny(jnp.zeros(2, dtype))
        assert floor.dtype == dtype
        assert bool(jnp.all((floor > 0.0) & jnp.isfinite(1.0 / floor)))
    with jax.enable_x64(False):
        model = smi.links.sign(noise=np.inf)
        found = smi.weak_recovery(
            model, key=jax.random.key(5), averages=smi.Averages(points=64, nets=2)
        )
        assert np.isinf(found.alpha)
        assert int(found.result) == Result.SUCCESS
