"""Learners of indices other than Bayes: empirical risk minimisation and mismatched posteriors, with
their theory.

Tables are those of independent computations: closed forms, quadratures with scipy, and simulations
by L-BFGS.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import (
    assert_measured,
    compilations,
    differences,
    directed_regression,
    mean_and_error,
    slow_but,
)
from jaxsmi.core.arrays import as_module
from jaxsmi.inference.label_averages import LabelAverages
from jaxsmi.inference.learner_search import _Constants
from jaxsmi.learners.base import OrderParameters

KEY, SLOW = jax.random.key(0), pytest.mark.slow
LINEAR, SIGN = smi.links.linear(), smi.links.sign()
ATTENTION = smi.DeepAttention(depth=1, tokens=2)
COMMITTEE = smi.MultiIndex(lambda z: jnp.sum(jnp.tanh(z)), indices=2, noise=0.09)
UNIT = smi.MultiIndex(lambda z: 2.0 * jnp.tanh(z[0, 0]), indices=1)
BENT = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + 0.5 * z[0, 0], indices=1, noise=0.25)
LOSSES = {"logistic": smi.losses.logistic, "hinge": smi.losses.hinge, "square": smi.losses.squared}
ORDER = ("overlap", "teacher_overlap", "covariance")
ALL = (*ORDER, "train_loss", "energy")


def quarter(prediction, label):
    return 0.25 * jnp.sum((prediction - label) ** 2)


def numbers(solution, *names):
    return np.array([float(jnp.ravel(getattr(solution, name))[0]) for name in names])


def line(loss, ridge):
    return smi.Erm(LINEAR, loss=LOSSES[loss], ridge=ridge)


def solve(teacher, alpha, learner, points=None, tolerance=None, **options):
    iteration = smi.Iteration(tolerance=tolerance)
    settings = {"key": KEY, "averages": smi.Averages(points), "iteration": iteration} | options
    return smi.state_evolution(teacher, alpha, learner=learner, **settings)


# Closed forms -----------------------------------------------------------------------------------


def ridge_regression(alpha, ridge, noise):
    """Eq. (21) of docs/theory/empirical-risk.md: q, m, V, train loss, energy, stability, test."""
    b = ridge + alpha - 1.0
    V = (np.sqrt(b * b + 4.0 * ridge) - b) / (2.0 * ridge)
    m = V * alpha / (1.0 + V)
    c = alpha * V**2 / (1.0 + V) ** 2
    q = (m * m + c * (1.0 + noise - 2.0 * m)) / (1.0 - c)
    error = 1.0 + noise - 2.0 * m + q
    train = error / (2.0 * (1.0 + V) ** 2)
    return np.array([q, m, V, train, alpha * train + 0.5 * ridge * q, c, 0.5 * error])


@SLOW
def test_a_linear_loss_is_hebbian_learning():
    """W = Σ y x/(λ√D): m = α E|z|/λ, q = m² + α/λ²; a second derivative of zero is one."""
    alpha, ridge = 2.0, 0.5
    hebbian = smi.Erm(LINEAR, loss=lambda prediction, y: -jnp.sum(prediction * y), ridge=ridge)
    solution = solve(smi.links.sign(), alpha, hebbian)
    m = alpha * np.sqrt(2.0 / np.pi) / ridge
    assert numbers(solution, "teacher_overlap", "overlap") == pytest.approx(
        [m, m * m + alpha / ridge**2], rel=1e-6
    )


RIDGE = [(0.5, 1.0, 0.0), (1.0, 0.01, 0.25), (1.5, 0.3, 0.25), (0.3, 0.001, 0.1), (1.2, 3.0, 0.0)]


@pytest.mark.parametrize(
    ("alpha", "ridge", "noise"),
    [RIDGE[1], *(pytest.param(*row, marks=SLOW) for row in RIDGE[:1] + RIDGE[2:])],
)
def test_ridge_regression_in_closed_form(alpha, ridge, noise):
    solution = solve(smi.links.linear(noise), alpha, smi.Erm(ridge=ridge), 2**16, 1e-11)
    assert solution.result == smi.Result.SUCCESS
    found = numbers(solution, *ALL, "stability", "test_loss")
    exact = ridge_regression(alpha, ridge, noise)
    # the grid of three variables has ten points an axis: its error is stated, and small
    np.testing.assert_allclose(found, exact, rtol=3e-5)
    bar = float(solution.stderr[0, 0])
    assert abs(found[0] - exact[0]) < 5.0 * bar + 1e-9
    assert bar < 1e-4
    np.testing.assert_allclose(solution.potential, solution.energy, rtol=1e-9)


@SLOW
@pytest.mark.parametrize(
    ("prior", "alpha", "accuracy"),
    [(None, 2.0, 1e-10), (smi.priors.Rademacher(), 1.0, 1e-8)],
    ids=["Gaussian", "binary, on a grid over weights and noise"],
)
def test_the_matched_posterior_is_that_of_bayes(prior, alpha, accuracy):
    teacher = smi.links.sign(noise=0.2, prior=prior)
    q, m, V = numbers(solve(teacher, alpha, smi.Mismatched(teacher), tolerance=1e-12), *ORDER)
    assert abs(q - m) < accuracy
    assert abs(V - (1.0 - q)) < accuracy
    bayes = solve(teacher, alpha, None, tolerance=1e-8)
    assert abs(float(bayes.overlap[0, 0]) - q) < 5.0 * float(bayes.stderr[0, 0]) + 1e-8


@SLOW
def test_no_learner_has_a_larger_cosine_than_bayes():
    """M²/(Q S) <= Q_Bayes/S at the same α: signs with any loss, a smooth link with any ridge."""
    for teacher, learners in (
        (smi.links.sign(noise=0.3), [line(loss, r) for loss in LOSSES for r in (0.1, 1.0)]),
        (BENT, [smi.Erm(ridge=ridge) for ridge in (0.05, 0.5)]),
    ):
        bayes = solve(teacher, 2.0, None, start=0.5)
        ceiling = float(bayes.overlap[0, 0]) + 5.0 * float(bayes.stderr[0, 0])
        for learner in learners:
            solution = solve(teacher, 2.0, learner)
            q, m = numbers(solution, "overlap", "teacher_overlap")
            assert solution.result in (smi.Result.SUCCESS, smi.Result.UNSTABLE)
            assert 0.0 < m * m / q <= ceiling


# Tables -----------------------------------------------------------------------------------------

SIGNS = [
    # loss, Δ, α, λ; q, m, V, train loss, energy; stability
    ("logistic", 0.0, 0.5, 0.1, (1.241327371, 0.5888394566, 7.561308477, 0.1827184598, 0.1534255984), 0.12283),
    ("logistic", 0.0, 2.0, 0.1, (4.145803621, 1.720313093, 3.976545789, 0.1821496441, 0.5715894693), 0.21544),
    ("logistic", 0.5, 3.0, 0.5, (1.019414853, 0.8038659017, 1.010835501, 0.4090778987, 1.482087409), 0.085438),
    ("logistic", 0.0, 8.0, 0.01, (63.28811535, 7.831653255, 4.860177449, 0.05596203989, 0.7641368959), 0.32636),
    ("logistic", jnp.inf, 1.0, 0.1, (2.166950148, 0.0, 5.427253382, 0.2902883594, 0.3986358669), 0.22059),
    ("logistic", jnp.inf, 3.0, 0.1, (1.894009838, 0.0, 1.947155102, 0.5050890726, 1.60996771), 0.22902),
    ("hinge", 0.0, 3.0, 0.5, (1.684718338, 1.149162869, 0.5468749462, 0.1657066385, 0.9182995), 0.72656),
    ("hinge", 0.5, 2.0, 0.3, (1.692205108, 0.9007814151, 1.036109652, 0.2145980868, 0.6830269397), 0.68917),
    ("hinge", jnp.inf, 2.0, 0.5, (0.9723874816, 0.0, 0.8549527337, 0.4701675836, 1.183432038), 0.57252),
    ("square", 0.0, 2.0, 0.1, (0.7991387164, 0.7305200633, 0.8442887702, 0.09310830213, 0.2261735401), 0.41914),
    ("square", 0.3, 1.0, 0.5, (0.3333333333, 0.3498955263, 1.0, 0.105453227, 0.1887865603), 0.25),
]  # fmt: skip
MISMATCHED = [  # α, Δ, Δ and S of the student; q, m, V
    (3.0, 0.0, 0.5, 1.0, (0.8383912869, 0.8204476167, 0.3968641416)),
    (2.0, 0.2, 0.2, 1.0, (0.6201798128, 0.6201798128, 0.3798201872)),
    (4.0, 0.3, 1.0, 0.25, (0.1673359827, 0.3483023898, 0.1670256742)),
    (6.0, 1.0, 0.2, 1.0, (0.3587981758, 0.5034555356, 0.09086735715)),
]
NETWORKS = {  # teacher, learner, points, accuracy of the table, largest error bar
    "phase retrieval": (smi.links.phase_retrieval(squared=True), quarter, 2**18, 5e-9, 1e-4),
    "one unit on two": (COMMITTEE, UNIT, 2**16, 4e-4, 3e-3),
    "attention": (ATTENTION, None, 2**16, 3e-4, 2e-2),
}
ROWS = [
    # network, α, λ; q, m, V, train loss, energy, error; stability
    ("phase retrieval", 2.0, 0.1, (0.8858355073, 0.9344379217, 1.056681906, 0.001267717262, 0.04682720989, 0.08974570526), 0.58734),
    ("phase retrieval", 3.0, 0.5, (0.8285718961, 0.9003299841, 0.3703291787, 0.006384122622, 0.2262953419, 0.1600740479), 0.39915),
    ("phase retrieval", 5.0, 0.1, (0.9841264875, 0.9919715479, 0.1787287998, 7.886682835e-05, 0.04960065851, 0.001231647357), 0.37053),
    ("one unit on two", 1.0, 0.2, (0.23150, 0.26886, 1.22381, 0.01468, 0.03783, 0.34587), None),
    ("one unit on two", 3.0, 0.2, (0.27092, 0.35277, 0.17648, 0.04590, 0.16481, 0.10686), None),
    ("attention", 2.0, 0.1, (0.64246, 0.79348, 1.65778, 0.003536, 0.039195, 0.01767), 0.2909),
    ("attention", 4.0, 0.1, (0.80832, 0.89810, 0.73448, 0.001082, 0.044743, 0.00355), 0.1974),
    ("attention", 2.0, 0.3, (0.40662, 0.61406, 1.23512, 0.014361, 0.089716, 0.05815), 0.1910),
]  # fmt: skip


@SLOW
@pytest.mark.parametrize(("loss", "noise", "alpha", "ridge", "row", "stability"), SIGNS)
def test_table_of_signs(loss, noise, alpha, ridge, row, stability):
    # a kink costs the grid its fast convergence: error h²
    points = 2**20 if loss == "hinge" else 16384
    solution = solve(smi.links.sign(noise=noise), alpha, line(loss, ridge), points, 1e-11)
    assert solution.result == smi.Result.SUCCESS
    # ten digits, of which the last is rounded
    assert_measured(solution, dict(zip(ALL, row, strict=True)), 2e-9, 2e-8)
    np.testing.assert_allclose(solution.stability, stability, rtol=1e-4)
    np.testing.assert_allclose(solution.potential, solution.energy, rtol=1e-11)


@SLOW
@pytest.mark.parametrize(("alpha", "noise", "believed", "variance", "row"), MISMATCHED)
def test_table_of_mismatched_signs(alpha, noise, believed, variance, row):
    prior = smi.priors.Gaussian(jnp.array([[variance]]))
    student = smi.Mismatched(smi.links.sign(noise=believed, prior=prior))
    solution = solve(smi.links.sign(noise=noise), alpha, student, tolerance=1e-11)
    np.testing.assert_allclose(numbers(solution, *ORDER), row, rtol=1e-9)


@SLOW
@pytest.mark.parametrize(("name", "alpha", "ridge", "row", "stability"), ROWS)
def test_table_of_networks(name, alpha, ridge, row, stability):
    teacher, other, points, accuracy, largest = NETWORKS[name]
    learner = smi.Erm(other if other is UNIT else None, ridge=ridge)
    if other is quarter:
        learner = smi.Erm(loss=quarter, ridge=ridge)
    solution = solve(teacher, alpha, learner, points, 1e-10 if other is quarter else None)
    assert solution.result == smi.Result.SUCCESS
    assert_measured(solution, dict(zip((*ALL, "error"), row, strict=True)), accuracy, largest)
    if stability is not None:
        np.testing.assert_allclose(solution.stability, stability, rtol=2e-2)
    M = np.asarray(solution.teacher_overlap)[0]
    np.testing.assert_allclose(M, M[0], atol=2e-3)  # teachers that are alike


@SLOW
@pytest.mark.parametrize(
    ("alpha", "ridge", "Q", "M", "V", "rest"),
    [
        (6.0, 0.5, (0.3005, 0.1981), (0.4725, 0.2229), (0.7693, -0.6271), (0.05034, 0.45228, 0.06125)),
        (10.0, 0.2, (0.6608, 0.1111), (0.7800, 0.0925), (0.6450, -0.5272), (0.03963, 0.52852, 0.02476)),
    ],
)  # fmt: skip
def test_table_of_two_units_on_two(alpha, ridge, Q, M, V, rest):
    solution = solve(COMMITTEE, alpha, smi.Erm(ridge=ridge), 2**16)
    assert solution.result == smi.Result.SUCCESS
    bars = {"overlap": solution.stderr, **solution.stderrs}
    for name, known in zip(ORDER, (Q, M, V), strict=True):
        assert np.all(
            np.abs(getattr(solution, name)[0] - np.array(known)) < 5.0 * bars[name][0] + 1e-3
        )
        assert np.all(bars[name][0] < 5e-3)
    np.testing.assert_allclose(numbers(solution, "train_loss", "energy", "error"), rest, rtol=5e-3)


# Identities -------------------------------------------------------------------------------------


def order(Q, M, V, B=None):
    Q, M, V = (jnp.atleast_2d(jnp.asarray(x)) for x in (Q, M, V))
    return OrderParameters(Q, M, V, jnp.zeros((len(Q), 0)) if B is None else jnp.full((1, 1), B))


ENVELOPES = {  # teacher, learner, α, points, order parameters, accuracy
    "logistic": (SIGN, line("logistic", 0.1), 2.0, 2**12, order(1.7, 0.9, 2.1), 1e-9),
    "mixed": (
        COMMITTEE, smi.Erm(), 3.0, 2**16,
        order([[0.6, 0.1], [0.1, 0.5]], [[0.5, 0.1], [0.2, 0.4]], [[0.7, -0.2], [-0.2, 0.6]]), 2e-2,
    ),
    # a grid in four variables, thirteen points an axis
    "attention": (ATTENTION, smi.Erm(), 2.0, 2**17, order(0.7, 0.75, 1.2), 5e-3),
    # the table's own check of this is good to 5e-4
    "directions": (directed_regression(), smi.Erm(ridge=0.3), 3.0, 2**16, order(0.8, 0.75, 0.4, 0.5), 5e-3),
}  # fmt: skip


@SLOW
@pytest.mark.parametrize("case", ENVELOPES)
def test_the_envelope_is_stationary(case):
    """∂_Q αE𝓜 = ½V̂, ∂_M αE𝓜 = -M̂, ∂_V αE𝓜 = -½Q̂, ∂_B αE𝓜 = -B̂: at any order parameters."""
    teacher, learner, alpha, points, x, accuracy = ENVELOPES[case]
    settings = {"alpha": jnp.asarray(alpha), "key": KEY, "points_per_net": points, "nets": 2}
    problem = LabelAverages(model=teacher, learner=learner.bind(teacher), **settings)
    slope = jax.jit(jax.grad(lambda x: alpha * jnp.mean(problem.answers(x).envelope)))(x)
    conjugates = jax.jit(lambda x: problem.answers(x).conjugates)(x)
    hats = jax.tree.map(lambda c: jnp.mean(c, 0), conjugates)
    for found, expected in (
        (slope.overlap, 0.5 * hats.precision),
        (slope.teacher_overlap, -hats.signal),
        (slope.covariance, -0.5 * hats.noise),
        (slope.direction_overlap, -hats.direction),
    ):
        np.testing.assert_allclose(found, expected, rtol=accuracy, atol=accuracy)


@SLOW
def test_derivatives_are_those_of_neighbouring_solutions():
    """And the envelope theorem: dE/dλ = ½ tr Q. Signs at sampled fields jump: the error has the
    derivative of its average, Q + 1 - 2 √(2/π) M, up to sampling."""
    names = (*ALL, "test_loss", "error")

    def answers(alpha, ridge):
        end = solve(smi.links.sign(noise=0.3), alpha, line("logistic", ridge), tolerance=1e-12)
        return jnp.stack([jnp.ravel(getattr(end, name))[0] for name in names])

    point = (2.0, 0.2)
    slopes = np.stack(jax.jacfwd(answers, argnums=(0, 1))(*point))
    steps = np.stack(differences(answers, point, 1e-4))
    np.testing.assert_allclose(slopes[:, :-1], steps[:, :-1], rtol=1e-5, atol=1e-7)
    dQ, dM = (slopes[:, names.index(name)] for name in ("overlap", "teacher_overlap"))
    np.testing.assert_allclose(slopes[:, -1], dQ - 2.0 * np.sqrt(2.0 / np.pi) * dM, rtol=0.03)
    energy = jax.grad(lambda ridge: answers(2.0, ridge)[4])
    np.testing.assert_allclose(energy(0.2), 0.5 * answers(*point)[0], rtol=1e-8)


@SLOW
def test_steps_through_larger_ridges_are_those_of_the_history():
    """At this ridge no run from the start ends within 60 steps; one from the end at the last larger
    ridge does. The start is a record, too."""
    learner = smi.Erm(smi.links.linear(), loss=smi.losses.logistic, ridge=0.001)
    settings = {"averages": smi.Averages(1024, 4), "iteration": smi.Iteration(max_steps=60)}
    end = smi.state_evolution(smi.links.sign(), 50.0, key=KEY, learner=learner, **settings)
    assert end.converged
    assert int(end.steps) + 1 == np.sum(np.isfinite(end.history["overlap"][:, 0, 0]))


def test_a_student_of_fewer_fields_has_cosines_with_the_closest_row():
    """z1 z2 is noise of variance one to a linear student of z1 + z1 z2, at any D: its Q and M are
    those of ridge regression."""
    product = lambda z: z[0, 0] + z[0, 0] * z[1, 0]
    model = smi.MultiIndex(product, indices=2, noise=0.1)
    learner = smi.Erm(LINEAR, ridge=0.3)
    end = smi.state_evolution(model, 2.0, key=KEY, learner=learner, averages=smi.Averages(4096))
    Q, M, *_ = ridge_regression(2.0, 0.3, 1.1)
    np.testing.assert_allclose(end.cosine, M / np.sqrt(Q), atol=4.0 * end.stderrs["cosine"][0])
    assert 0.0 < end.stderrs["cosine"][0] < 0.02
    data = model.sample(KEY, dimension=400, alpha=2.0)
    run = smi.gamp(model, data, key=KEY, learner=learner)
    w, teacher = np.asarray(run.weights[0]), np.asarray(data.teacher)
    exact = abs(teacher @ w) / np.linalg.norm(teacher, axis=1) / np.linalg.norm(w)
    np.testing.assert_allclose(run.cosine, max(exact), rtol=1e-9)


@SLOW
@pytest.mark.parametrize("alpha", [0.9, 1.0])
def test_without_a_ridge_labels_that_can_be_fitted_have_no_minimum_of_their_own(alpha):
    """Above α = 1 least squares have V = 1/(α - 1)."""
    # points and tolerance, and so the program, of the ridges above
    evolve = lambda alpha: solve(smi.links.linear(0.1), alpha, smi.Erm(ridge=0.0), 2**16, 1e-11)
    end = evolve(alpha)
    assert int(end.result) == smi.Result.DIVERGED
    assert "ridge=1e-6" in end.message
    assert np.isnan(end.error)
    end = evolve(1.25)
    assert float(end.covariance[0, 0]) == pytest.approx(4.0, rel=1e-6)


@SLOW
def test_ridge_on_flipped_signs_is_that_on_noisy_linear_labels():
    """γ = E y z* is all that a squared loss sees of the label; at the best ridge the squared cosine
    is a root of q² - (λ + 1 + α) q + α."""
    gamma = 0.7 * np.sqrt(2.0 / np.pi)
    alpha, noise = 2.0, 1.0 / gamma**2 - 1.0
    end = solve(smi.links.sign(flip=0.15), alpha, smi.Erm(LINEAR, ridge=noise), 2**12, 1e-10)
    scale = np.array([gamma**2, gamma])
    exact = scale * ridge_regression(alpha, noise, noise)[:2]
    np.testing.assert_allclose(numbers(end, "overlap", "teacher_overlap"), exact, rtol=1e-6)
    b = noise + 1.0 + alpha
    best = (b - np.sqrt(b * b - 4.0 * alpha)) / 2.0
    np.testing.assert_allclose(end.cosine[0] ** 2, best, rtol=1e-6)


def errors_on_flipped_signs(ridge):
    """The error of a linear student in theory, E (ω - sign z*)² = Q - 2 √(2/π) M + 1, and the
    standard error of the first."""
    end = smi.state_evolution(
        smi.links.sign(flip=0.15),
        2.0,
        learner=smi.Erm(LINEAR, ridge=ridge),
        averages=smi.Averages(8192, 8),
        key=KEY,
    )
    exact = end.overlap - 2.0 * jnp.sqrt(2.0 / jnp.pi) * end.teacher_overlap + 1.0
    return end.error, exact[0, 0], end.stderrs["error"]


@pytest.mark.parametrize("solved", [False, pytest.param(True, marks=SLOW)])
def test_error_of_a_learner_leaves_out_the_noise_of_flipped_signs(solved):
    """At any order parameters, and at those of the fixed point."""
    if solved:
        error, exact, bar = errors_on_flipped_signs(0.5)
    else:
        teacher, learner = smi.links.sign(flip=0.15), smi.Erm(LINEAR, ridge=0.5)
        settings = {"alpha": jnp.asarray(2.0), "key": KEY, "points_per_net": 1024, "nets": 8}
        problem = LabelAverages(model=teacher, learner=learner.bind(teacher), **settings)
        errors = jax.jit(lambda x: problem.answers(x).error)(order(0.6, 0.5, 0.8))
        error, bar = mean_and_error(errors)
        exact = 0.6 - 2.0 * np.sqrt(2.0 / np.pi) * 0.5 + 1.0
    assert abs(error - exact) < 5.0 * bar < 0.02 * exact


@SLOW
def test_its_derivative_sees_the_jump_of_the_label():
    slope, exact, _ = jax.jacfwd(errors_on_flipped_signs)(0.5)
    # the error bar of the error itself is .3 %
    assert float(slope) == pytest.approx(float(exact), rel=0.05)
    assert exact < -0.05


@SLOW
def test_a_ridge_out_of_range_is_invalid_inside_jit():
    @jax.jit
    def end(ridge):
        learner = dataclasses.replace(smi.Erm(LINEAR, convex=True), ridge=ridge)
        few = smi.Iteration(3)
        return solve(smi.links.linear(0.1), 1.0, learner, 64, iteration=few).result

    assert end(-1.0) in (smi.Result.INVALID, smi.Result.DIVERGED)


# Message passing and descent --------------------------------------------------------------------


def minimum(function, start, steps=400):
    """The minimum of a function by L-BFGS."""
    optimizer = optax.lbfgs()
    both = optax.value_and_grad_from_state(function)

    @jax.jit
    def step(weights, state):
        value, gradient = both(weights, state=state)
        told = {"value": value, "grad": gradient, "value_fn": function}
        update, state = optimizer.update(gradient, state, weights, **told)
        return optax.apply_updates(weights, update), state, jnp.linalg.norm(gradient)

    weights, state = start, optimizer.init(start)
    for _ in range(steps):
        weights, state, norm = step(weights, state)
        if norm < 1e-10:
            break
    assert norm < 1e-8
    return weights


@SLOW
@pytest.mark.parametrize(
    ("model", "learner", "dimension", "start"),
    [(SIGN, line("logistic", 0.3), 100, None), (ATTENTION, smi.Erm(ridge=0.1), 400, "informed")],
    ids=["logistic", "attention, which is not convex"],
)
def test_message_passing_ends_at_a_minimum(model, learner, dimension, start):
    data = model.sample(KEY, dimension=dimension, alpha=2.0)
    fine = smi.Iteration(tolerance=1e-9)
    fit = smi.gamp(model, data, learner=learner, key=KEY, start=start, iteration=fine)
    assert fit.result == smi.Result.SUCCESS
    assert fit.gradient_norm < 1e-7
    np.testing.assert_allclose(learner.risk(fit.weights, data), fit.energy, rtol=1e-12)
    begin = jnp.zeros((1, dimension)) if start is None else data.teacher
    weights = minimum(lambda W: dimension * learner.risk(W, data), begin)
    accuracy = 1e-6 * float(jnp.linalg.norm(weights))
    np.testing.assert_allclose(fit.weights, weights, atol=accuracy)
    if start is None:  # descent on the sum of the losses, and on their mean: its decay is λ/N
        for decay, rate, reduction in ((0.3, 0.1, "sum"), (0.3 / 200, 20.0, None)):
            optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate))
            gradient = smi.Gradient(reduction=reduction, loss=learner.loss)
            run = smi.train(LINEAR, data, optimizer, key=KEY, steps=5000, gradient=gradient)
            np.testing.assert_allclose(run.weights, fit.weights, atol=1e-6)


def first_step_of_attention(count=2**20):
    """Q after one step at α = 2, λ = 0.1 from Q = V = 1, M = 0.8, by plain draws."""
    learner = smi.Erm(ridge=0.1, convex=True).bind(ATTENTION)  # from ω alone
    draw = np.random.default_rng(0).standard_normal
    omega = jnp.asarray(draw((count, 1, 2)))
    goal = 0.8 * omega + 0.6 * jnp.asarray(draw((count, 1, 2)))
    law = lambda z, _: ATTENTION.link(z)
    answer = jax.jit(
        lambda z, w: learner.respond_to_teacher(law, z, jnp.zeros((count, 0)), w, jnp.eye(1))
    )
    reply = answer(goal, omega)
    signal = 2.0 * jnp.mean(reply.label_derivative)
    noise = 2.0 * jnp.mean(jnp.sum(reply.g**2, axis=(1, 2)))
    precision = 0.8 * signal - 2.0 * jnp.mean(jnp.sum(reply.g * omega, axis=(1, 2)))
    return float((signal**2 + noise) / (0.1 + precision) ** 2)


@SLOW
def test_undamped_message_passing_follows_the_plain_iteration():
    """Attention on itself from W = 0.8 W* + 0.6 noise, C = 1 (D = 1000, four runs)."""
    learner, plain = smi.Erm(ridge=0.1), smi.Iteration(8, newton=False)
    begin = smi.Start(variance=1.0)
    end = solve(ATTENTION, 2.0, learner, 2**16, iteration=plain, start=begin)
    theory = end.trajectory["overlap"][1:, 0, 0]
    # an independent quadrature; its first two steps (0.8215, 0.6894) are not compared: there ∂g has
    # an infinite variance, next to fields at which the proximal point jumps
    printed = [0.6457, 0.6403, 0.6413, 0.6419, 0.6422, 0.6423]
    np.testing.assert_allclose(theory[2:], printed, atol=2e-3)
    # 2^20 draws of the first step: V̂ by parts, and all else
    np.testing.assert_allclose(theory[0], first_step_of_attention(), atol=5e-3)
    runs = []
    for seed in range(4):
        data_key, noise_key = jax.random.split(jax.random.key(seed))
        data = ATTENTION.sample(data_key, dimension=1000, alpha=2.0)
        start = 0.8 * data.teacher + 0.6 * jax.random.normal(noise_key, data.teacher.shape)
        steps = {"start": start, "iteration": smi.Iteration(8)}
        run = smi.gamp(ATTENTION, data, learner=learner, key=KEY, **steps)
        runs.append(run.trajectory["overlap"][1:, 0, 0])
    mean, bar = mean_and_error(runs)
    assert np.all(np.abs(mean - theory) < 5.0 * bar + 3e-3)


@SLOW
def test_the_best_ridge_of_a_linear_teacher_is_its_noise():
    """λ = Δ is the posterior mean: no other ridge has a smaller error."""
    build = lambda p: smi.Erm(LINEAR, ridge=jnp.exp(p))
    search = smi.search_learner(smi.links.linear(0.25), 2.0, build, 0.0, key=KEY)
    assert search.result == smi.Result.SUCCESS
    # E is flat there: off by the length of the last step
    np.testing.assert_allclose(jnp.exp(search.parameters), 0.25, rtol=2e-3)
    known = ridge_regression(2.0, 0.25, 0.25)
    best = 1.0 - 2.0 * known[1] + known[0]
    bar = 5.0 * float(search.solution.stderrs["error"])
    np.testing.assert_allclose(search.solution.error, best, rtol=1e-6, atol=bar)
    heights = np.array(search.history["error"])
    assert np.all(heights >= best - bar)
    assert heights[0] > 1.3 * best


@SLOW
def test_a_search_at_another_alpha_compiles_nothing():
    """With a `build` of the same code, as in a loop over α; the history of "cosine" has cosines."""

    def search(alpha, key):
        few = {"averages": smi.Averages(256, nets=2), "iteration": smi.Iteration(3)}
        build = lambda p: smi.Erm(smi.links.linear(), ridge=jnp.exp(p))
        model = smi.links.linear(0.1)
        return smi.search_learner(model, alpha, build, 0.0, key=key, objective="cosine", **few)

    best, other = search(2.0, KEY), jax.random.key(1)
    np.testing.assert_allclose(max(best.history["cosine"]), best.solution.cosine[0])
    search(2.5, KEY)  # the comparison of the two models is compiled
    with compilations() as seen:
        found = search(3.0, other)
    assert seen == []
    assert found.solution.cosine > best.solution.cosine


def test_compiled_constants_are_equal_where_their_numbers_are():
    """A search compiles another program where anything that it takes as known has changed."""

    def known(noise=0.1, factor=1.0, loss=smi.losses.squared):
        build = lambda p: smi.Erm(smi.links.linear(), loss=loss, ridge=factor * jnp.exp(p))
        return _Constants((smi.links.linear(noise), as_module(build)))

    first = known()
    assert first == known()
    assert hash(first) == hash(known())
    factors = jnp.array(1.0), jnp.array(2.0)
    assert known(factor=factors[0]) == known(factor=jnp.array(1.0))
    others = known(noise=1.0), known(factor=2.0), known(loss=smi.losses.huber())
    assert all(first != other for other in others)
    assert known(factor=factors[0]) != known(factor=factors[1])


@pytest.mark.parametrize("link", [jnp.abs, jax.nn.relu], ids=["modulus", "relu"])
def test_a_concave_kink_is_not_convex(link):
    """The Hessian of ½ (|z| - y)² is one on both sides of its kink."""
    model = smi.MultiIndex(lambda z: link(z[0, 0]), indices=1)
    assert smi.Erm(ridge=0.1).bind(model).convex is False
    assert smi.Erm(smi.links.linear(), ridge=0.1).bind(model).convex is True


def relu_point(label, omega, V):
    """The proximal point of ½ (relu(z) - y)²: the better of the minima on the two sides."""
    v = V[0, 0]
    cost = lambda z: 0.5 * (jnp.maximum(z, 0.0) - label) ** 2 + (z - omega) ** 2 / (2.0 * v)
    off, on = jnp.minimum(omega, 0.0), jnp.maximum((omega + v * label) / (1.0 + v), 0.0)
    return jnp.where(cost(off) < cost(on), off, on)


def relu_by_quadrature(alpha, noise, ridge, points=192):
    """Q and M of `relu_point`, M̂ and V̂ by Stein's lemma, on a grid."""
    t = (np.arange(points) + 0.5 - points / 2) * 2.0 * np.sqrt(np.pi / points)
    density = np.exp(-(t**2) / 2.0) / np.sum(np.exp(-(t**2) / 2.0))
    omega, eta, xi = np.meshgrid(t, t, t, indexing="ij", sparse=True)
    mean = lambda f: np.einsum("abc,a,b,c->", f, density, density, density)
    q, m, v = 0.7, 0.7, 0.5
    for _ in range(15):
        field, spread = np.sqrt(q) * omega, np.sqrt(1.0 - m * m / q)
        y = np.maximum(m / q * field + spread * eta, 0.0) + np.sqrt(noise) * xi
        cost = lambda z, y=y, field=field, v=v: (np.maximum(z, 0.0) - y) ** 2 + (z - field) ** 2 / v
        off, on = np.minimum(field, 0.0), np.maximum((field + v * y) / (1.0 + v), 0.0)
        g = (np.where(cost(off) < cost(on), off, on) - field) / v
        signal = alpha * mean(g * eta) / spread
        response = (signal * m - alpha * mean(g * field)) / q
        v = 1.0 / (ridge + response)
        q, m = (signal**2 + alpha * mean(g * g)) * v * v, signal * v
    return q, m


@SLOW
@pytest.mark.parametrize("alpha", [2.0, 4.0])
def test_a_proximal_point_that_jumps(alpha):
    """The slope along the label misses the jumps: .737 of the cosine at α = 2, which is .770.
    Tolerance: three standard errors, and the grid's 2e-3, which falls as 1 / points."""
    agree = lambda value, exact, error: np.testing.assert_allclose(
        jnp.ravel(value), exact, atol=3.0 * float(jnp.ravel(error)[0]) + 2e-3
    )
    learner = smi.Erm(ridge=1.0)
    solution = smi.state_evolution(smi.links.relu(0.1), alpha, key=KEY, learner=learner)
    q, m = relu_by_quadrature(alpha, 0.1, 1.0)
    agree(solution.overlap, q, solution.stderr)
    agree(solution.cosine, m / np.sqrt(q), solution.stderrs["cosine"])
    assert float(solution.stderrs["cosine"][0]) < 4e-3


@pytest.mark.parametrize("link", slow_but(["relu", "hard_tanh", "absolute"], "relu"))
def test_links_of_straight_pieces_bring_their_proximal_point(link):
    """Against the lowest value on a fine grid."""
    learner = smi.Erm().bind(getattr(smi.links, link)(0.1))
    y, omega, v = np.random.default_rng(0).normal(size=(3, 200))
    V = 0.1 + v**2
    cost = lambda z, y, w, V: learner.sample_loss(y, z[None, None]) + (z - w) ** 2 / (2.0 * V)
    point = lambda y, w, V: learner.prox(y, w[None, None], V[None, None])[0, 0]
    found = jax.jit(jax.vmap(lambda *a: cost(point(*a), *a)))(y, omega, V)
    grid = jnp.linspace(-8.0, 8.0, 4001)
    of_grid = lambda *a: jnp.min(jax.vmap(lambda z: cost(z, *a))(grid))
    lowest = jax.jit(jax.vmap(of_grid))(y, omega, V)
    assert np.all(found <= lowest + 1e-12)
    assert np.all(found >= lowest - 1e-4)  # of the grid: spacing² (1 + 1/V)


@SLOW
def test_theory_of_a_student_of_straight_pieces_has_a_derivative():
    """In α, to the error that points next to kinks leave: 0.5 % at the default points."""

    def energy(alpha):
        link, learner = smi.links.hard_tanh(0.1), smi.Erm(ridge=1.0)
        return smi.state_evolution(link, alpha, key=KEY, learner=learner).energy

    slope = differences(energy, [2.0], 0.1)[0]
    np.testing.assert_allclose(jax.grad(energy)(2.0), slope, rtol=0.01)


@SLOW
@pytest.mark.parametrize("case", ["index", "matrix"])
def test_a_learner_with_a_formula_is_the_same_inside_jit(case):
    """Huber's loss of a line is convex, also of traced noise; the jumps of a matrix learner's
    proximal points count: without them M = 1.08 at α = 2, as a search for minima has 0.62."""
    if case == "index":
        learner = smi.Erm(LINEAR, loss=smi.losses.huber())
        run = lambda alpha: smi.state_evolution(
            smi.links.linear(alpha / 20.0), alpha, key=KEY, learner=learner
        )
    else:
        model, learner = smi.Bilinear(1.0, 0.5, 0.1, output="absolute"), smi.MatrixErm(ridge=0.5)
        run = lambda alpha: smi.state_evolution(model, alpha, key=KEY, learner=learner)
    solution, jitted = run(2.0), jax.jit(run)(2.0)
    for name in ("overlap", "teacher_overlap", "stderr"):
        np.testing.assert_allclose(getattr(jitted, name), getattr(solution, name), rtol=1e-6)
    assert np.isnan(solution.jump_fraction) == (case == "matrix")
    if case == "matrix":
        assert abs(float(solution.teacher_overlap[0, 0]) - 0.62) < 0.03


def test_lines_are_known_inside_jit():
    """They were not: a hinge, or Huber's loss, was an error of a traced boolean."""

    def kinks(noise):
        student = smi.links.linear(noise)
        return jnp.asarray(smi.Erm(student, loss=smi.losses.hinge).bind(SIGN).regularity.kinks)

    assert bool(jax.jit(kinks)(0.1))


def test_a_formula_for_the_proximal_point_does_not_make_a_loss_convex():
    relu, line = smi.links.relu(0.1), smi.links.linear(0.1)
    assert smi.Erm(ridge=1.0, prox=relu_point).bind(relu).regularity.jumps
    shrink = lambda y, omega, V: (omega + V[0, 0] * y) / (1.0 + V[0, 0])
    assert not smi.Erm(ridge=1.0, prox=shrink).bind(line).regularity.jumps
    assert smi.Erm(ridge=1.0, prox=shrink, convex=False).bind(line).regularity.jumps


@SLOW
def test_a_learner_of_even_labels_leaves_zero_where_it_grows():
    """M = 0 is a fixed point at all α; ascending α end as descending ones from a known teacher."""
    model, learner = smi.links.absolute(noise=0.1), smi.Mismatched(smi.links.absolute(noise=0.4))
    settings = {
        "key": jax.random.key(0),
        "averages": smi.Averages(points=2**11),
        "learner": learner,
    }
    up = smi.curve(model, [0.4, 1.5], **settings)
    down = smi.curve(model, [1.5, 0.4], **settings)
    assert np.all(np.asarray(up.converged) & np.asarray(down.converged))
    np.testing.assert_allclose(up.cosine[1], down.cosine[0], atol=1e-5)
    assert abs(float(up.cosine[0, 0])) < 0.1 < 0.5 < float(up.cosine[1, 0])
    # compiled as one program, it stays at zero, and does not call that its end
    stay = smi.Start(up[0].overlap, 0.0 * up[0].overlap, up[0].covariance)
    solve = jax.jit(lambda alpha: smi.state_evolution(model, alpha, start=stay, **settings).result)
    assert int(solve(1.5)) not in (smi.Result.SUCCESS, smi.Result.INACCURATE)
