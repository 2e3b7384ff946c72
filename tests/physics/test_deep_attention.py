"""What the library promises of deep attention, at full size: slow, run by `make validate`; pytest
-rP shows the numbers."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import published_columns, result, two_layers
from jaxsmi import Result

pytestmark = pytest.mark.slow


def evolve(alpha, q0=0.05, points=2**14, **iteration):
    settings = {"averages": smi.Averages(points), "iteration": smi.Iteration(**iteration)}
    key = jax.random.key(0)
    solution = smi.state_evolution(two_layers(), alpha, key=key, start=q0, **settings)
    Q, E = np.asarray(solution.overlap), np.asarray(solution.stderr)
    print(
        f"α={alpha} q0={q0}: Q11={Q[0, 0]:.4f}({E[0, 0]:.4f}) Q22={Q[1, 1]:.4f}({E[1, 1]:.4f}) "
        f"steps={int(solution.steps)} ρ={float(solution.spectral_radius):.3f} {result(solution).name}"
    )
    return solution, Q, E


# State evolution
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.4, 0.5, 0.6, 0.7])
@pytest.mark.parametrize("q0", [0.05, 1e-6])
def test_state_evolution_below_the_second_threshold(alpha, q0, reference):
    """Q22 within 0.03 of the published curve (good to 0.015), layer 1 unlearned, standard errors
    below 0.005."""
    published = np.interp(alpha, *published_columns(reference / "smi/BO_2w.csv", "alpha", "Q22"))
    solution, Q, E = evolve(alpha, q0)
    assert result(solution) == Result.SUCCESS
    assert abs(Q[1, 1] - published) < 0.03
    assert E.max() < 0.005
    # 1e-3: ten times the solver's tolerance, for the slow direction near the threshold at 0.72
    assert abs(Q[0, 0]) < 1e-3 + 3 * E[0, 0]


@pytest.mark.parametrize(("alpha", "expected"), [(0.9, 0.57), (0.95, 0.755)])
def test_state_evolution_between_the_second_threshold_and_recovery(alpha, expected):
    """Q11 within 0.1 of plain Monte-Carlo values that are good to 0.04; standard error at most
    0.01."""
    solution, Q, E = evolve(alpha, points=2**15)
    assert result(solution) == Result.SUCCESS
    assert abs(Q[0, 0] - expected) < 0.1
    assert E[0, 0] <= 0.01
    assert Q[1, 1] > 0.98


@pytest.mark.parametrize("q0", [0.05, 1e-6])
def test_state_evolution_recovers_at_1_2(q0):
    """Perfect recovery, V falling by P/(αM) = 0.833 a step on its ray: 0.02 covers the approach to
    the ray."""
    solution, Q, _ = evolve(1.2, q0, newton=False)
    assert result(solution) == Result.RECOVERED
    np.testing.assert_array_equal(Q, np.eye(2))
    trace = np.trace(solution.trajectory["covariance"], axis1=1, axis2=2)
    ratios = (trace[1:] / trace[:-1])[10:]
    tail = ratios[trace[10:-1] < 2e-3]
    print(f"V falls by {tail.round(4)}")
    assert len(tail) >= 5
    assert (np.abs(tail - 0.833) < 0.02).all()


# Message passing
# --------------------------------------------------------------------------------------------


def learn(dimension, alpha, seed, dtype=None, **options):
    """A run, its last cosines and Q, |Q - M| up to signs, and max |C - (I - Q)| along the run."""
    model, key = two_layers(), jax.random.key(seed)
    data = model.sample(key, dimension=dimension, alpha=alpha, dtype=dtype)
    solution = smi.gamp(model, data, key=jax.random.fold_in(key, 1), **options)
    history = solution.trajectory
    Q, M, C = history["overlap"], history["teacher_overlap"], history["covariance"]
    sign = np.sign(np.diagonal(M[-1]))
    mismatch = np.abs(sign[:, None] * M[-1] - sign[:, None] * Q[-1] * sign).max()
    nishimori = np.abs(C - (np.eye(2) - Q)).max()
    print(
        f"D={dimension} α={alpha} seed={seed}: {result(solution).name} after {int(solution.steps)} steps; cosines "
        f"{history['cosine'][-1].round(4)}, |Q - M| {mismatch:.4f}, max |C - (I - Q)| {nishimori:.4f}"
    )
    return solution, history["cosine"][-1], np.asarray(Q[-1]), mismatch, nishimori


@pytest.mark.parametrize("seed", range(11))
def test_gamp_learns_both_layers(seed):
    """D = 1000, α = 1.2, default settings, uninformative start; of the first four seeds in at most
    60 iterations: norms of the other teachers may be less typical, and the last digits take a few
    iterations more."""
    solution, cosine, _, mismatch, nishimori = learn(1000, 1.2, seed)
    assert bool(solution.converged)
    assert (cosine >= 0.98).all()
    if seed < 4:
        assert int(solution.steps) <= 60
        # the squared norm of a teacher's row fluctuates by √(2/D) = 0.045, and so do Q and C + Q
        assert mismatch <= 0.1
        assert nishimori <= 0.15


@pytest.mark.parametrize("seed", range(6))
def test_gamp_learns_the_last_layer_first(seed):
    """D = 1000, α = 0.5: Q22 on state evolution within three spreads over data sets (0.056, of 24),
    and where a run from the teacher ends; layer 1 unlearned (a random cosine is 1/√D = 0.03).

    Seed 5 went astray, overconfident, before labels were compared. It does not settle, from either
    start, and says so (MAX_STEPS): Q22 goes to and fro by 0.0045 in some 30 steps, so the mean of
    the last 100 is compared where a run did not end.
    """
    _, theory, _ = evolve(0.5)
    run, cosine, Q, *_ = learn(1000, 0.5, seed)
    informed, *_ = learn(1000, 0.5, seed, start="informed")
    last = []
    for solution in (run, informed):
        layer = np.asarray(solution.trajectory["overlap"])[:, 1, 1]
        last.append(layer[-1] if bool(solution.converged) else np.mean(layer[-100:]))
    assert abs(Q[1, 1] - theory[1, 1]) <= 0.17
    assert abs(last[0] - last[1]) <= 5e-3
    assert abs(cosine[0]) <= 0.2


def test_gamp_at_ten_thousand_dimensions():
    """D = 10,000, float32 inputs, float64 labels and posteriors: within 24 GiB and 30 minutes."""
    begin = time.perf_counter()
    settings = {"dtype": jnp.float32, "iteration": smi.Iteration(80)}
    solution, cosine, _, mismatch, _ = learn(10_000, 1.2, 0, **settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.1f} GiB")
    assert (cosine >= 0.98).all()
    assert mismatch <= 0.1
    assert bool(solution.converged)
    assert time.perf_counter() - begin <= 1800
    assert peak <= 24
