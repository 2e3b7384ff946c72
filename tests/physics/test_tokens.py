"""Inputs with fixed directions, several minima of one risk, and which of them is the global one.

Tables: an independent computation by quadrature, with its error, and simulations by L-BFGS.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import assert_measured, directed_regression, mean_and_error, runs_of

KEY = jax.random.key(0)


def attention(z):
    return jax.nn.softmax(z.T @ z, axis=-1)


def eighth(prediction, label):
    return 0.125 * jnp.sum((prediction - label) ** 2)


def positional_semantic():
    """[CBKZ24] in the units of docs/theory/empirical-risk.md, section 6."""
    position = jnp.array([[0.6, 0.4], [0.4, 0.6]])
    link = lambda z: 0.7 * attention(z) + 0.3 * position
    laws = {"prior": smi.priors.Gaussian([[0.25]]), "inputs": smi.Tokens(encoding=[2.0, -2.0])}
    teacher = smi.MultiIndex(link, indices=1, tokens=2, **laws)
    student = smi.MultiIndex(attention, indices=1, tokens=2)
    return teacher, smi.Erm(student, loss=eighth, ridge=0.04)


def first(*arrays):
    return [float(jnp.ravel(a)[0]) for a in arrays]


# Data


@pytest.mark.slow
def test_inputs_lie_around_their_directions():
    """The means of the fields are R* Eᵀ; stored, regenerated and streamed inputs agree on it."""
    D = 400
    gram = [[1.0, 0.3], [0.3, 0.5]]
    law = smi.Tokens(encoding=[[1.0, 0.0], [-0.5, 1.0]], gram=gram, cross=[[0.6, 0.1], [0.0, -0.4]])
    model = smi.MultiIndex(lambda z: z[0] * z[1], indices=2, tokens=2, inputs=law)
    data = model.sample(KEY, dimension=D, alpha=20.0)
    U, W = data.directions, data.teacher
    # overlaps of iid rows scatter by O(1/√D)
    np.testing.assert_allclose(U @ U.T / D, gram, atol=5.0 / np.sqrt(D))
    np.testing.assert_allclose(W @ U.T / D, law.cross, atol=5.0 / np.sqrt(D))
    expected = W @ U.T @ data.encoding.T / D
    spread = 5.0 / np.sqrt(data.samples)
    field = lambda inputs: jnp.mean(inputs @ W.T / np.sqrt(D), axis=0).T
    np.testing.assert_allclose(field(data.inputs), expected, atol=spread)
    again = model.sample(KEY, dimension=D, alpha=20.0, store=False)
    np.testing.assert_allclose(again.directions, U)
    np.testing.assert_allclose(field(again.stored().inputs), expected, atol=spread)
    stream = smi.Stream(model, W, directions=U)
    np.testing.assert_allclose(field(stream.draw(KEY, data.samples)[0]), expected, atol=spread)
    given = model.sample(KEY, dimension=D, alpha=1.0, teacher=W, directions=U)
    np.testing.assert_array_equal(given.first(7).directions, U)
    np.testing.assert_array_equal(given.sharded().encoding, law.encoding)


@pytest.mark.slow
def test_the_error_of_an_estimate_counts_the_means():
    """E(z1 - z1* + ½ z2² - ½ z2*²)² in closed form, from Q, M, B, ρ and R* of some weights."""
    model = directed_regression()
    data = model.sample(KEY, dimension=200, alpha=1.0)
    W = 0.8 * data.teacher + 0.3 * jax.random.normal(KEY, data.teacher.shape)
    T, U = data.teacher, data.directions
    products = (W @ W.T, W @ T.T, T @ T.T, W @ U.T, T @ U.T)
    Q, M, S, B, R = np.array(first(*products)) / data.dimension
    mu, nu = -0.5 * B, -0.5 * R
    linear = (B - R) ** 2 + Q - 2.0 * M + S
    square = 0.5 * (Q + mu**2 - S - nu**2)
    fourth = lambda v, mean: 3.0 * v**2 + 6.0 * v * mean**2 + mean**4
    both = Q * S + 2.0 * M**2 + Q * nu**2 + S * mu**2 + 4.0 * M * mu * nu + (mu * nu) ** 2
    known = linear + 2.0 * (B - R) * square + 0.25 * (fourth(Q, mu) + fourth(S, nu) - 2.0 * both)
    error = model.metric.error(W, data, key=KEY, points=2**14)
    np.testing.assert_allclose(error, known, rtol=5e-3)


# A direction that the teacher knows

KNOWN = [
    (2.0, (0.89550, 0.92266, 0.57790, 0.46628, 0.02734, 0.18900, 0.11071), 0.4426),
    (3.0, (0.94541, 0.96049, 0.58964, 0.25286, 0.03175, 0.23706, 0.05264), 0.3433),
    (6.0, (0.97989, 0.98532, 0.59647, 0.10109, 0.03783, 0.37398, 0.01955), 0.2034),
]


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "row", "stability"), KNOWN)
def test_table_of_a_known_direction(alpha, row, stability):
    settings = {"start": smi.Start(direction_overlap=0.5), "averages": smi.Averages(2**16)}
    learner = smi.Erm(ridge=0.3)
    solution = smi.state_evolution(
        directed_regression(), alpha, learner=learner, key=KEY, **settings
    )
    assert solution.result == smi.Result.SUCCESS
    names = ("overlap", "teacher_overlap", "direction_overlap", "covariance", "train_loss")
    assert_measured(solution, dict(zip((*names, "energy", "error"), row, strict=True)), 2e-4, 5e-3)
    np.testing.assert_allclose(solution.stability, stability, rtol=5e-3)


@pytest.mark.slow
def test_message_passing_and_descent_with_directions():
    """Both end at one minimum of R, message passing though it overshoots undamped."""
    model, learner = directed_regression(), smi.Erm(ridge=0.3)
    data = model.sample(KEY, dimension=200, alpha=6.0)
    fine = smi.Iteration(tolerance=1e-9)
    run = smi.gamp(model, data, learner=learner, key=KEY, start="informed", iteration=fine)
    assert run.result == smi.Result.SUCCESS
    assert float(run.gradient_norm) < 1e-5
    descent = optax.chain(optax.add_decayed_weights(learner.ridge), optax.sgd(1e-2))
    settings = {"gradient": smi.Gradient(loss=smi.losses.squared, reduction="sum"), "steps": 4000}
    end = smi.train(model, data, descent, key=KEY, start=data.teacher, **settings)
    np.testing.assert_allclose(end.weights, run.weights, atol=1e-6)
    np.testing.assert_allclose(learner.risk(run.weights, data), run.energy, rtol=1e-10)
    overlap = run.weights @ data.directions.T / data.dimension
    np.testing.assert_allclose(run.direction_overlap, overlap)


# Positional and semantic attention

BRANCHES = [  # α; overlap with the other direction is zero; Q, |M| or |B|, V, energy, error
    (2.0, "teacher_overlap", 0.11480, 0.15814, 12.67, 0.0035904, 0.01124),
    (2.0, "direction_overlap", 0.05122, 0.1290, 11.40, 0.0045133, 0.02780),
    (1.3, "teacher_overlap", 0.08415, 0.12149, 17.84, 0.0027917, 0.01813),
    (1.3, "direction_overlap", 0.04780, 0.1263, 14.67, 0.0028333, 0.02726),
]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [2.0, 1.3])
def test_table_of_positional_and_semantic_minima(alpha):
    """Both minima, and an unstable fixed point above them, at which nothing is learned."""
    teacher, learner = positional_semantic()
    found = smi.global_minimum(teacher, alpha, learner=learner, key=KEY)
    assert len(found) == 3
    assert found[-1].result == smi.Result.UNSTABLE
    assert float(found[-1].energy) > float(found[1].energy) > float(found[0].energy)
    rows = [row[1:] for row in BRANCHES if row[0] == alpha]  # lowest energy first
    for solution, (name, Q, overlap, V, energy, error) in zip(found[:2], rows, strict=True):
        both = {
            n: float(getattr(solution, n)[0, 0]) for n in ("teacher_overlap", "direction_overlap")
        }
        sign = np.sign(both[name])
        assert sum(map(abs, both.values())) == pytest.approx(abs(both[name]), abs=1e-6)
        known = {"overlap": Q, name: sign * overlap, "covariance": V, "energy": energy}
        # four rules, and the table's own error (2e-3 of Q and V)
        assert_measured(solution, known, 3e-3, 3e-2)
        np.testing.assert_allclose(solution.error, error, rtol=2e-2)


@pytest.mark.slow
def test_the_transition_between_the_minima():
    """Equal energies at α = 1.251(1); the published table has them at 1.262, with the local
    proximal point (docs/print.md)."""
    teacher, learner = positional_semantic()
    starts = ("informed", "directions")
    transitions = []
    for seed in range(4):
        settings = {"key": jax.random.key(seed), "averages": smi.Averages(2**15)}
        found = smi.global_minimum(teacher, 1.25, learner=learner, starts=starts, **settings)
        semantic, positional = sorted(found, key=lambda s: -abs(float(s.teacher_overlap[0, 0])))
        starts = (semantic, positional)
        slopes = [float(jnp.mean(s.state.envelope)) for s in starts]
        gap = float(semantic.energy - positional.energy)
        transitions.append(1.25 - gap / (slopes[0] - slopes[1]))
        # the error that the energies state is that of a transition
        bars = [float(s.stderrs["energy"]) for s in starts]
        error = np.hypot(*bars) / abs(slopes[0] - slopes[1])
        assert abs(transitions[-1] - 1.251) < 4.0 * error
        assert error < 1.6e-2  # twice the spread of eight keys
    mean, error = mean_and_error(transitions)
    assert abs(mean - 1.251) < 4.0 * error + 1e-3


@pytest.mark.slow
def test_simulations_end_in_the_minima():
    """Message passing at D = 500 from both sides, eight data sets: theory within four standard
    errors, and 1/D of bias."""
    teacher, learner = positional_semantic()
    D, U = 500, jnp.ones((1, 500))
    rows = {"semantic": [], "positional": []}
    for seed in range(8):
        W = jax.random.normal(jax.random.key(100 + seed), (1, D))
        W = W - jnp.mean(W)
        W = 0.5 * np.sqrt(D) * W / jnp.linalg.norm(W)
        key = jax.random.key(seed)
        data = teacher.sample(key, dimension=D, alpha=2.0, teacher=W, directions=U)
        positional = 0.13 * U + 0.2 * jax.random.normal(key, (1, D))
        for name, start in {"semantic": "informed", "positional": positional}.items():
            settings = {"start": start, "iteration": smi.Iteration(300)}
            run = smi.gamp(teacher, data, learner=learner, key=KEY, **settings)
            Q, M, B = first(run.overlap, run.teacher_overlap, run.direction_overlap)
            if run.result == smi.Result.SUCCESS and (abs(M) > abs(B)) == (name == "semantic"):
                rows[name].append([Q, max(abs(M), abs(B)), float(run.energy)])
    for (_, _, Q, overlap, _, energy, _), runs in zip(BRANCHES[:2], rows.values(), strict=True):
        assert len(runs) >= 4
        mean, spread = mean_and_error(runs)
        known = np.array([Q, overlap, energy])
        assert np.all(np.abs(mean - known) < 4.0 * spread + 2.0 / D * known)


@pytest.mark.slow
def test_bayes_does_not_care_for_directions_that_the_teacher_does_not_know():
    """Where R* = 0 theory is that of centred inputs, and message passing follows it."""
    inputs = smi.Tokens(encoding=[1.0, -1.0])
    link = lambda z: z[0, 0] * z[0, 1] + z[0, 0]
    model = smi.MultiIndex(link, indices=1, tokens=2, noise=0.1, inputs=inputs)
    theory = smi.state_evolution(model, 2.0, key=KEY)
    runs = runs_of(model, 4, dimension=400, alpha=2.0)
    mean, error = mean_and_error([float(run.overlap[0, 0]) for _, run in runs])
    assert abs(mean - float(theory.overlap[0, 0])) < 4.0 * error + 2e-2
