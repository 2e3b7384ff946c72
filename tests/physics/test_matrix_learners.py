"""Learners of one matrix: ridge and nuclear norm, against closed forms, an independent minimiser,
trained factors, and simulations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

import jaxsmi as smi
from helpers import differences, runs_of, z_scores
from jaxsmi.inference.matrix_map import MatrixLearnerMap

KEY, SLOW = jax.random.key(0), pytest.mark.slow
SQUARE = smi.Bilinear(1.0, 0.3, 0.1)
LONG = smi.Bilinear(2.0, 0.3, 0.1)
SYMMETRIC = smi.Bilinear(1.0, 0.3, 0.1, symmetric=True)
NUCLEAR = smi.MatrixErm(nuclear=0.3)
RIDGE = smi.MatrixErm(ridge=0.2, positive=False)

each_model = pytest.mark.parametrize(
    "model", [SQUARE, LONG, SYMMETRIC], ids=["square", "long", "symmetric"]
)


def evolve(model, alpha, learner, **iteration):
    settings = {"learner": learner, "iteration": smi.Iteration(**iteration)}
    solution = smi.state_evolution(model, alpha, **settings)
    assert bool(solution.converged)
    return solution


# Theory
# --------------------------------------------------------------------------------------------


def ridge_in_closed_form(model, alpha, ridge):
    """V, e, train loss of Ŝ = c R, c = A/(A + λ/(2w)), written from ridge regression: n labels of
    variance (noise + κ e), κ = 1, or 2 of a symmetric matrix, whose d²/2 entries count twice."""
    noise, norm = float(model.noise), float(model.prior.norm)
    kappa, weight = (2.0, 0.25) if model.symmetric else (1.0, 0.5)
    strength = 4.0 if model.symmetric else 1.0
    precision = lambda V: strength * alpha / (1.0 + kappa * V)
    level = lambda V: V - 1.0 / (ridge / (2.0 * weight) + precision(V))
    V = optimize.brentq(level, 1e-9, 100.0, xtol=1e-14)
    c = precision(V) / (precision(V) + ridge / (2.0 * weight))
    # e = (1 - c)² Q_0 + c² δ, δ = (noise + κ e)/(strength α)
    unit = c**2 / (strength * alpha)
    e = ((1.0 - c) ** 2 * norm + unit * noise) / (1.0 - kappa * unit)
    return V, e, 0.5 * (noise + kappa * e) / (1.0 + kappa * V) ** 2


@SLOW
@each_model
def test_a_ridge_is_ridge_regression(model):
    """To 1e-10, the quadrature over the law of eigenvalues."""
    for alpha in (0.3, 1.5):
        solution = evolve(model, alpha, RIDGE)
        V, e, train = ridge_in_closed_form(model, alpha, 0.2)
        found = solution.covariance[0, 0], solution.error, solution.train_loss
        np.testing.assert_allclose(found, (V, e, train), rtol=1e-8)
        Q, M = solution.overlap[0, 0], solution.teacher_overlap[0, 0]
        assert float(model.prior.norm - 2 * M + Q) == pytest.approx(e, abs=1e-9)


@pytest.mark.parametrize("nuclear", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_the_mean_slope_of_shrinkage_is_the_divergence(nuclear):
    """On matrices of full rank by automatic differentiation; a ridge alone is linear, so that its
    slope is the same on a matrix with singular values of zero."""
    shrink = smi.MatrixErm(ridge=0.5, nuclear=nuclear).shrinkage(jnp.ones(()), 0.5, False)
    R = jnp.asarray(np.random.default_rng(0).standard_normal((3, 5)))
    slopes = jax.jacfwd(lambda R: shrink.matrix(R)[0])(R)
    assert float(shrink.matrix(R)[1]) == pytest.approx(float(jnp.einsum("ijij->", slopes)) / 15)
    if nuclear == 0.0:
        flat = jnp.outer(R[:, 0], R[0])
        assert float(shrink.matrix(flat)[1]) == pytest.approx(1 / 1.5)


@SLOW
@each_model
@pytest.mark.parametrize("positive", [True, False])
def test_the_response_by_parts_is_the_divergence(model, positive):
    """Stein's form of V needs the posterior mean of the teacher, the divergence only F and the law:
    they agree at any order parameters, to the quadrature."""
    learner = smi.MatrixErm(nuclear=0.3, ridge=0.05, positive=positive)
    theory = MatrixLearnerMap(model, jnp.asarray(0.6), None, learner, None)
    for e, V in ((0.2, 0.4), (0.5, 1.5), (0.05, 0.1)):
        x = jnp.asarray([np.log(e), np.log(V), 0.0])  # Q = M
        field = jax.tree.map(lambda copies: copies[0], theory.answers(x)[0].field)
        at = theory.estimate(field)
        divergence = at.pairs(1) / field.precision
        response = jnp.exp(theory(x)[0][1])
        assert float(response) == pytest.approx(float(divergence), rel=1e-8)
        assert float(jnp.sum(at.weight)) == pytest.approx(1.0, abs=1e-8)


@SLOW
@pytest.mark.parametrize("model", [LONG, SYMMETRIC], ids=["long", "symmetric"])
def test_the_energy_has_the_derivatives_of_a_minimum(model):
    """dE/dλ = Q/2, dE/dτ = the nuclear norm, dE/dα the Moreau envelope √(train · test): the
    envelope theorem; and those of the error are differences."""

    def solve(alpha, ridge, nuclear):
        learner = smi.MatrixErm(ridge=ridge, nuclear=nuclear)
        fine = smi.Iteration(tolerance=1e-10)
        return smi.state_evolution(model, alpha, learner=learner, iteration=fine)

    point = (0.5, 0.1, 0.2)
    end = solve(*point)
    slopes = jax.jacfwd(lambda *x: solve(*x).energy, argnums=(0, 1, 2))(*point)
    envelope = np.sqrt(float(end.train_loss) * float(end.test_loss))
    Q = float(end.overlap[0, 0])
    norm = (float(end.energy) - 0.5 * float(end.train_loss) - 0.05 * Q) / 0.2
    np.testing.assert_allclose(np.asarray(slopes), [envelope, 0.5 * Q, norm], rtol=1e-6)
    error = lambda *x: solve(*x).error
    slopes = jax.jacrev(error, argnums=(0, 1, 2))(*point)
    np.testing.assert_allclose(slopes, differences(error, point), rtol=1e-5)


@SLOW
def test_no_penalty_beats_bayes():
    for model, alpha in ((SQUARE, 0.6), (LONG, 0.8), (SYMMETRIC, 0.3)):
        bayes = float(smi.state_evolution(model, alpha).error)
        for learner in (NUCLEAR, RIDGE, smi.MatrixErm(nuclear=0.1, ridge=0.1)):
            solution = evolve(model, alpha, learner)
            assert float(solution.error) > bayes
            assert 0.0 < float(solution.stability) < 1.0


@SLOW
@pytest.mark.parametrize("rank", [0.1, 0.3])
def test_the_least_nuclear_norm_recovers_from_its_threshold_on(rank):
    """Noiseless labels, τ → 0, against the threshold of the descent cone, where nothing but the
    rank enters."""
    model, learner = smi.Bilinear(1.0, rank), smi.MatrixErm(nuclear=1e-4)
    place = float(smi.baselines.nuclear_norm_threshold(1.0, rank))
    alphas = place * np.array([0.9, 0.98, 1.02, 1.1])
    errors = [float(evolve(model, alpha, learner, max_steps=3000).error) for alpha in alphas]
    assert errors[0] > errors[1] > 5e-4 > 1e-5 > errors[2] > errors[3]


# Minimisers
# --------------------------------------------------------------------------------------------


def proximal_gradient(data, learner, symmetric, steps=5000):
    """The minimum of R by accelerated proximal gradient steps, written from R."""
    X, y = np.asarray(data.inputs), np.asarray(data.labels)
    n, L, d = X.shape
    A = X.reshape(n, -1) / np.sqrt(L * d)
    ridge = float(learner.ridge)
    cut = float(learner.nuclear) * (L * d) ** 0.25
    rate = 1.0 / np.linalg.norm(A, 2) ** 2
    S = ahead = np.zeros((L, d))
    t = 1.0
    for _ in range(steps):
        B = ahead - rate * (A.T @ (A @ ahead.ravel() - y)).reshape(L, d)
        if symmetric:
            values, vectors = np.linalg.eigh(0.5 * (B + B.T))
            low = 0.0 if learner.positive else -np.inf
            size = np.sign(values) * np.maximum(np.abs(values) - rate * cut, 0.0)
            new = (vectors * np.maximum(size, low)) @ vectors.T
        else:
            rows, values, columns = np.linalg.svd(B, full_matrices=False)
            new = (rows * np.maximum(values - rate * cut, 0.0)) @ columns
        new = new / (1.0 + rate * ridge)
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
        ahead = new + (t - 1.0) / following * (new - S)
        moved, S, t = np.abs(new - S).max(), new, following
        if moved < 1e-11:
            break
    return S


def passing(model, data, learner, tolerance=1e-9):
    settled = smi.Iteration(2000, tolerance=tolerance)
    fit = smi.gamp(model, data, learner=learner, key=KEY, iteration=settled)
    assert bool(fit.converged)
    return fit


@SLOW
@pytest.mark.parametrize(
    ("model", "alpha", "learner"),
    [
        (SYMMETRIC, 0.3, NUCLEAR),
        (SYMMETRIC, 0.3, smi.MatrixErm(nuclear=0.3, positive=False)),
        (LONG, 0.8, smi.MatrixErm(nuclear=0.3, ridge=0.1)),
        (SQUARE, 0.8, RIDGE),
    ],
    ids=["symmetric", "signed", "long", "ridge"],
)
def test_message_passing_ends_at_the_minimum(model, alpha, learner):
    data = model.sample(KEY, dimension=24, alpha=alpha)
    fit = passing(model, data, learner)
    exact = proximal_gradient(data, learner, model.symmetric)
    np.testing.assert_allclose(np.asarray(fit.weights), exact, atol=1e-6)
    assert float(fit.gradient_norm) <= 1e-7
    assert float(fit.energy) == pytest.approx(float(learner.risk(exact, data)), rel=1e-9)


@SLOW
@pytest.mark.parametrize("symmetric", [True, False])
def test_weight_decay_of_factors_is_a_nuclear_norm(symmetric):
    """Factors as wide as the matrix, trained by gradient descent with weight decay, end at the
    matrix that message passing finds for the nuclear norm."""
    teacher = smi.Bilinear(1.0, 0.25, 0.1, symmetric=symmetric)
    student = smi.Bilinear(1.0, 1.0, symmetric=symmetric)
    data = teacher.sample(KEY, dimension=16, alpha=0.6 if symmetric else 1.2)
    decay = 0.4
    learner = smi.MatrixErm.of_weight_decay(student, decay)
    rate = optax.exponential_decay(0.03, 2000, 0.2)
    descent = optax.chain(optax.add_decayed_weights(decay), optax.adam(rate))
    gradient = smi.Gradient(loss=smi.losses.squared, reduction="sum")
    trained = smi.train(student, data, descent, key=KEY, steps=16000, gradient=gradient)
    fit = passing(teacher, data, learner)
    np.testing.assert_allclose(np.asarray(trained.weights), np.asarray(fit.weights), atol=1e-4)
    assert float(learner.risk(trained.weights, data)) == pytest.approx(float(fit.energy), rel=1e-6)


def answers(solution):
    overlaps = solution.overlap[0, 0], solution.teacher_overlap[0, 0]
    return np.asarray([*overlaps, solution.error, solution.energy], float)


def simulated(model, alpha, learner, dimension):
    """Q, M, e and E of eight data sets (8, 4)."""
    settings = {"dimension": dimension, "alpha": alpha, "learner": learner}
    runs = list(runs_of(model, 8, iteration=smi.Iteration(1000, tolerance=1e-6), **settings))
    assert all(bool(fit.converged) for _, fit in runs)
    return np.stack([answers(fit) for _, fit in runs])


@SLOW
@pytest.mark.parametrize(
    ("model", "alpha", "learner", "dimension"),
    [
        (SYMMETRIC, 0.3, NUCLEAR, 100),
        (LONG, 0.8, NUCLEAR, 60),
        (SQUARE, 0.8, RIDGE, 80),
        (smi.AttentionIndexed(2, 0.3, "linear", noise=0.1), 0.1, NUCLEAR, 120),
    ],
    ids=["symmetric", "long", "ridge", "attention"],
)
def test_simulations_agree_with_theory(model, alpha, learner, dimension):
    """Within four standard errors. Of attention 1/D makes more, of Bayes too (e .157 at D = 120,
    theory .144): extrapolated from two D."""
    expected = answers(evolve(model, alpha, learner))
    found = simulated(model, alpha, learner, dimension)
    if isinstance(model, smi.AttentionIndexed):
        found = 2.0 * found - simulated(model, alpha, learner, dimension // 2)
    assert (np.abs(z_scores(found, expected)) <= 4.0).all()
