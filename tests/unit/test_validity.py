"""A wrong number inside jit, where no constructor can raise: NaN and a code, never a plausible
answer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import slow_but
from jaxsmi import Result
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.models.base import check_data
from jaxsmi.thresholds import branch

KEY = jax.random.key(5)
priors = smi.priors
FEW = {"key": KEY, "averages": smi.Averages(64, nets=2), "iteration": smi.Iteration(25)}
LINEAR = smi.links.linear(0.1)
DATA = LINEAR.sample(KEY, dimension=20, alpha=2.0)


def learns(prior, indices=1):
    """A model whose rows have a prior."""
    return smi.MultiIndex(lambda z: jnp.sum(z), indices=indices, noise=0.1, prior=prior)


def weighted(x):
    return priors.GaussianMixture(jnp.stack([0.5, 0.5 * x]), [1, 0], [0, 0.5])


MODELS = {
    "noise": lambda x: smi.links.linear(x),
    "skip": lambda x: smi.DeepAttention(2, 2, skip=x),
    "beta": lambda x: smi.DeepAttention(1, 2, beta=x),
    "beta of scores": lambda x: smi.AttentionIndexed(2, 0.5, beta=x),
    "rank ratio": lambda x: smi.AttentionIndexed(2, x),
    "aspect ratio": lambda x: smi.Bilinear(x, 0.5, 0.1),
    "density": lambda x: learns(priors.BernoulliGauss(0.5 * x)),
    "weights": lambda x: learns(weighted(x)),
    "scales": lambda x: learns(priors.GaussianMixture([1.0], [1.0], jnp.stack([x]))),
    "covariance": lambda x: learns(priors.Gaussian(jnp.array([[1.0, 0.9], [0.9 * x, 1.0]])), 2),
    "indefinite": lambda x: learns(priors.Gaussian(jnp.diag(jnp.array([1.0, x]))), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_number_makes_a_model_invalid_inside_jit_and_raises_outside(name):
    valid = jax.jit(lambda x: validate.valid(MODELS[name](x)))
    assert not bool(valid(-1.0))
    assert bool(valid(1.0))
    assert bool(validate.valid(MODELS[name](1.0)))
    with pytest.raises(ValueError, match="allowed"):
        MODELS[name](-1.0)


def evolve(model=LINEAR, alpha=1.0, **options):
    return smi.state_evolution(model, alpha, **FEW | options)


def run(**options):
    return smi.gamp(LINEAR, DATA, key=KEY, iteration=smi.Iteration(2, **options))


def flow(m):
    series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
    model = smi.SequenceSingleIndex(
        series, 1, smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5), loss_factor=1.0
    )
    return smi.sgd.flow(model, m, jnp.asarray([0.5]))


CALLS = {  # a call, a number that it cannot take, one that it can
    "α": (lambda x: evolve(alpha=x), -1.0, 1.0),
    "noise": (lambda x: evolve(smi.links.linear(x)), -1.0, 1.0),
    "weights": (lambda x: evolve(smi.links.linear(0.1, prior=weighted(x))), 4.0, 1.0),
    "start": (lambda x: evolve(start=x), 1.5, 0.5),
    "beta": (lambda x: smi.state_evolution(MODELS["beta of scores"](x), 0.5), -1.0, 1.0),
    "damping": (lambda x: run(damping=x), 1.5, 0.5),
    "cosine": (flow, 1.2, 0.3),
}


@pytest.mark.parametrize("name", slow_but(CALLS, "α"))
def test_an_answer_to_a_wrong_number_is_nan_as_a_whole_and_says_so(name):
    """History and error bars, too; the right ones beside it are not touched."""
    call, wrong, right = CALLS[name]
    solve = jax.jit(jax.vmap(lambda x: eqx.filter(call(x), eqx.is_array)))
    found = solve(jnp.asarray([wrong, right]))
    assert int(found.result[0]) == Result.INVALID
    assert int(found.result[1]) != Result.INVALID
    values = [getattr(found, name, None) for name in ("overlap", "error", "covariance")]
    values += [getattr(found, name, None) for name in ("teacher_overlap", "weights")]
    for value in (*values, (getattr(found, "history", None) or {}).get("overlap")):
        assert value is None or np.isnan(value[0]).all()
        assert value is None or np.isfinite(np.ravel(value[1])[0])


@pytest.mark.slow
def test_a_start_out_of_range_is_invalid_inside_jit():
    run = jax.jit(
        lambda init: smi.gamp(LINEAR, DATA, key=KEY, start=init, iteration=smi.Iteration(2))
    )
    assert int(run(-1.0).result) == Result.INVALID
    assert int(run(1.0).result) != Result.INVALID


def test_a_posterior_is_nan_where_V_is_bad():
    V = jnp.asarray([1.0, 0.0, -1.0, jnp.nan]).reshape(4, 1, 1)
    post = jax.vmap(lambda v: LINEAR.channel.posterior([1.0], jnp.full((1, 1), 0.3), v))(V)
    np.testing.assert_array_equal(np.isnan(post.g[:, 0, 0]), [False, True, True, True])


@pytest.mark.slow
def test_a_signal_given_as_a_start_stays_the_start_beside_side_information():
    """It was the scale of a random start, entry by entry."""
    signal = jnp.arange(20.0)[None] / 10.0
    for strength in (0.0, 0.3):
        start = smi.Start(weights=signal, side_information=strength)
        first = {"iteration": smi.Iteration(1), "record": lambda state: state.weights}
        end = smi.gamp(LINEAR, DATA, key=KEY, start=start, **first)
        np.testing.assert_array_equal(end.history["record"][0], signal)


@pytest.mark.slow
def test_a_failed_scan_is_no_end_of_the_staircase(monkeypatch):
    """It was a staircase that ends early, with codes that say SUCCESS."""
    growth = branch.growth  # of a scan alone: weak recovery has its own import

    def failing(*arguments):
        grown = growth(*arguments)
        return eqx.tree_at(
            lambda g: g.rate_per_net, grown, jnp.full_like(grown.rate_per_net, jnp.nan)
        )

    monkeypatch.setattr(branch, "growth", failing)
    jax.clear_caches()
    found = smi.staircase(smi.DeepAttention(2, 2), key=KEY, averages=smi.Averages(64, nets=2))
    jax.clear_caches()
    assert [int(one.result) == Result.NONFINITE for one in found] == [False, True]
    assert np.isnan(found[-1].alpha)


def test_a_student_of_one_layer_learns_from_a_teacher_of_two():
    """check_data refused the teacher where it was not asked to look at it."""
    data = smi.AttentionIndexed(2, 0.5, layers=2).sample(KEY, dimension=8, alpha=0.2)
    student = smi.AttentionIndexed(2, 0.5)
    check_data(student, data, teacher=False)
    with pytest.raises(ValueError, match="allowed: one of 1"):
        check_data(student, data)


@pytest.mark.filterwarnings("ignore:.*float64")
def test_a_floor_is_not_zero_in_float32():
    """1e-300 is: an estimate of labels that tell nothing was 0/0."""
    for dtype in (jnp.float32, jnp.float64):
        floor = clamp_to_tiny(jnp.zeros(2, dtype))
        assert bool(jnp.all((floor > 0.0) & jnp.isfinite(1.0 / floor)))
    with jax.enable_x64(False):
        few = {"key": jax.random.key(5), "averages": smi.Averages(64, nets=2)}
        found = smi.weak_recovery(smi.links.sign(noise=np.inf), **few)
        assert np.isinf(found.alpha)
        assert int(found.result) == Result.SUCCESS
