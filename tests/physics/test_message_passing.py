"""Message passing at finite size against its own theory: state evolution step by step, Nishimori
identities, recovery."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import mean_and_error, result
from jaxsmi import Result

SLOW, PHASE = pytest.mark.slow, smi.links.phase_retrieval()
DIMENSION, SEEDS, STEPS = 2000, 6, 6
# (model, α, side information λ)
PROBLEMS = {
    "linear": (smi.links.linear(0.3), 1.2, 0.1),
    "phase retrieval": (PHASE, 1.0, 0.2),
}
each_run = pytest.mark.parametrize(
    ("name", "calibrate"),
    [
        ("linear", True),
        *(pytest.param(*run, marks=SLOW) for run in (("linear", False), ("phase retrieval", True))),
    ],
)


@functools.cache
def runs(name, calibrate):
    """Q, M and C (seeds, steps + 1) of undamped runs from side information.

    The teacher's norm is set to √D exactly: its fluctuation, √(2/D), would be the largest part of
    the spread of the seeds.
    """
    (model, alpha, strength), found = PROBLEMS[name], []
    for key in jax.random.split(jax.random.key(17), SEEDS):
        teacher_key, data_key, run_key = jax.random.split(key, 3)
        teacher = jax.random.normal(teacher_key, (1, DIMENSION))
        teacher *= np.sqrt(DIMENSION) / jnp.linalg.norm(teacher)
        data = model.sample(
            data_key, dimension=DIMENSION, alpha=alpha, dtype=jnp.float32, teacher=teacher
        )
        settings = {
            "start": smi.Start(side_information=strength),
            "learner": smi.Bayes(calibrate=calibrate),
            "iteration": smi.Iteration(STEPS, tolerance=1e-12),
        }
        history = smi.gamp(model, data, key=run_key, **settings).trajectory
        found.append([history[k][:, 0, 0] for k in ("overlap", "teacher_overlap", "covariance")])
    return np.array(found).transpose(1, 0, 2)


@functools.cache
def theory(name):
    """Q^t: Q <- overlap(α response(Q) + λ/(1-λ)); the standard error of 2^17 points is far below
    that of the seeds."""
    (model, alpha, strength), eye = PROBLEMS[name], jnp.eye(1)

    @jax.jit
    def step(Q, key):
        found = model.channel.response(Q, eye - Q, key=key, points=2**14, nets=8, tangents=False)
        return model.prior.overlap(alpha * found.mean + strength / (1 - strength) * eye)

    overlaps = [model.prior.overlap(strength / (1 - strength) * eye)]
    for _ in range(STEPS):
        overlaps.append(step(overlaps[-1], jax.random.key(1)))
    return np.array(overlaps)[:, 0, 0]


def assert_agrees(values, target, stderr_below):
    """Mean over seeds within 6 standard errors of the target at every step.

    Student's t with 5 degrees of freedom exceeds 6 with probability 2e-3 a comparison; the few
    dozen comparisons here are strongly correlated along a run. The finite-size shift, of order 1/D,
    is below 1e-3. The standard error itself must be small: an error of a percent in the recursion
    grows to several of them.
    """
    mean, stderr = mean_and_error(values)
    assert (np.abs(mean - target) < 6 * stderr + 1e-3).all(), (mean - target) / stderr
    assert stderr.max() < stderr_below


@each_run
def test_undamped_runs_follow_state_evolution_step_by_step(name, calibrate):
    """Overlap with itself, with the teacher, and what is left: Q^t, Q^t, 1 - Q^t of the recursion
    at every step."""
    Q, M, C = runs(name, calibrate)
    expected = theory(name)
    assert Q.shape == (SEEDS, STEPS + 1)
    assert_agrees(Q, expected, 0.02)
    assert_agrees(M, expected, 0.02)
    assert_agrees(C[:, 1:], 1 - expected[1:], 0.02)
    assert np.allclose(C[:, 0], 1 - expected[0], atol=1e-12)


@each_run
def test_nishimori_identities_along_the_run(name, calibrate):
    """Q = M and C = 1 - Q, without theory: differences within one run, whose spread is smaller than
    that of Q itself."""
    Q, M, C = runs(name, calibrate)
    assert_agrees(Q - M, 0.0, 0.01)
    assert_agrees(C + Q - 1, 0.0, 0.02)


@SLOW
def test_noiseless_linear_measurements_above_one_give_the_teacher_back():
    """α = 1.5: V falls to zero; the estimate is the teacher to the accuracy at which the run says
    so."""
    model, key = smi.links.linear(), jax.random.key(0)
    data = model.sample(key, dimension=400, alpha=1.5)
    solution = smi.gamp(model, data, key=key, iteration=smi.Iteration(200))
    stated = float(solution.covariance[0, 0])
    assert result(solution) == Result.RECOVERED or stated < 1e-8
    # stated covariance, true error and 1 - cosine² are the same quantity; sample to sample a factor
    # of a few at this size
    assert float(jnp.mean((solution.weights - data.teacher) ** 2)) < max(10 * stated, 1e-6)
    assert 1 - float(solution.trajectory["cosine"][-1, 0]) ** 2 < max(10 * stated, 1e-6)
    new = model.sample(jax.random.key(1), dimension=400, alpha=0.1, teacher=data.teacher)
    five_sigma = 5 * np.sqrt(10 * stated)
    np.testing.assert_allclose(model.predict(solution, new.inputs), new.labels, atol=five_sigma)


@SLOW
def test_a_start_off_the_nishimori_line_is_not_taken_for_signal():
    """A seed on which noise of the first steps, taken for signal (or for none at all), ended the
    run elsewhere."""
    model, key = smi.DeepAttention(2, 2), jax.random.key(0)
    data = model.sample(key, dimension=1000, alpha=0.5)
    key = jax.random.fold_in(key, 1)
    run = smi.gamp(model, data, key=key, iteration=smi.Iteration(40), start=1e-3).trajectory
    overlap = np.diagonal(run["overlap"], axis1=1, axis2=2)
    assert overlap[3].max() < 1e-3  # still tiny: the start is forgotten before the overlap grows
    assert run["cosine"][-1, 1] > 0.8
    assert np.abs(run["covariance"] + run["overlap"] - np.eye(2)).max() < 0.15


@SLOW
def test_a_damped_step_is_a_mixture_and_does_not_end_a_run_earlier():
    """Ŵ, C and the memory of one step at damping d are (1 - d) new + d old, to rounding; and a run stops on
    the change that an undamped step would have made."""
    model = smi.links.linear(0.3)
    data = model.sample(jax.random.key(1), dimension=60, alpha=2.0)
    bayes = smi.Bayes(calibrate=False)
    run = functools.partial(smi.gamp, model, data, key=jax.random.key(2), learner=bayes)
    old = run(iteration=smi.Iteration(2)).state
    new, damped = (run(start=old, iteration=smi.Iteration(1, damping=d)).state for d in (0.0, 0.3))
    for name in ("weights", "covariance", "onsager"):
        expected = 0.7 * getattr(new, name) + 0.3 * getattr(old, name)
        np.testing.assert_allclose(getattr(damped, name), expected, rtol=1e-12, atol=1e-14)
    ended = run(iteration=smi.Iteration(500, tolerance=1e-3, damping=0.9))
    change = float(ended.history["residual"][int(ended.steps)]) / 0.1
    norm = float(jnp.sqrt(jnp.mean(ended.weights**2)))
    assert result(ended) == Result.SUCCESS
    assert change <= 1e-3 * norm


@SLOW
def test_a_damped_run_ends_where_an_undamped_one_does():
    """The memory is damped with Ŵ: phase retrieval at half damping stays at the fixed point that
    theory promises, its cosine² and S - C - Q within finite size (√(2/D) = 0.06: 0.1)."""
    key = jax.random.key(3)
    data = PHASE.sample(key, dimension=500, alpha=1.5)
    iterations = (smi.Iteration(400, damping=d) for d in (None, 0.5))
    runs = [smi.gamp(PHASE, data, key=key, iteration=iteration) for iteration in iterations]
    theory = float(smi.state_evolution(PHASE, 1.5, key=key).overlap[0, 0])
    for run in runs:
        assert result(run) in (Result.SUCCESS, Result.RECOVERED)
        assert abs(float(run.cosine[0] ** 2) - theory) < 0.1
        rho = float(run.model.prior.covariance[0, 0])
        assert abs(float(run.covariance[0, 0] + run.overlap[0, 0]) - rho) < 0.1
    np.testing.assert_allclose(runs[0].overlap, runs[1].overlap, atol=2e-3)


@SLOW
def test_a_run_is_damped_once_nothing_grows():
    """Undamped until the overlap stands; then it ends, where undamped it wanders on."""
    key = jax.random.key(19)
    data = PHASE.sample(key, dimension=1000, alpha=0.9)
    free, paced = (
        smi.gamp(PHASE, data, key=key, iteration=smi.Iteration(200, damping=d)) for d in (0.0, None)
    )
    damping = paced.trajectory["damping"]
    assert damping[5] == 0.0
    assert np.all(np.diff(damping) >= 0.0)
    assert 0.0 < damping[-1] <= 0.875
    assert result(paced) == Result.SUCCESS
    assert int(paced.steps) < int(free.steps)
