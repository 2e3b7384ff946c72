"""Bilinear sequence regression learned from data: message passing, the nuclear norm, gradient
descent.

Values: [theory: bilinear, sections 4, 6 and 9]; published runs in reference/.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.core.codes import Result
from jaxsmi.descent.baselines import minimum_nuclear_norm
from jaxsmi.design.rectangular import RectangularOperator

KEY = jax.random.key(1)


def quarter(prediction, label):
    """The loss of the articles is a quarter of the sum of squares."""
    return 0.25 * (prediction - label) ** 2


def test_the_adjoint_is_the_transpose_of_forward():
    keys = jax.random.split(KEY, 3)
    inputs, S = jax.random.normal(keys[0], (17, 6, 4)), jax.random.normal(keys[1], (1, 6, 4))
    g, sensing = jax.random.normal(keys[2], (17, 1, 1)), RectangularOperator(inputs)
    np.testing.assert_allclose(
        jnp.sum(sensing.forward(S) * g), jnp.sum(S * sensing.adjoint(g)), rtol=1e-12
    )
    np.testing.assert_allclose(
        sensing.forward(S)[:, 0, 0], jnp.einsum("nld,ld->n", inputs, S[0]) / np.sqrt(24), rtol=1e-12
    )
    np.testing.assert_allclose(sensing.outer_precision(g)[0, 0], jnp.sum(g**2) / 24, rtol=1e-12)


@pytest.mark.slow
def test_undamped_message_passing_follows_state_evolution():
    """d = 60, four data sets: ‖S‖² fluctuates by 2/√(r d) = 7 % at rank 12, and errors with it: 3.7
    % of the mean."""
    model = smi.Bilinear(1.0, 0.2, 0.5)
    theory = smi.state_evolution(model, 0.65, iteration=smi.Iteration(8, newton=False)).history[
        "covariance"
    ][:, 0, 0]
    errors = []
    for seed in range(4):
        data = model.sample(jax.random.key(seed), dimension=60, alpha=0.65, dtype="float32")
        run = smi.gamp(
            model,
            data,
            key=KEY,
            iteration=smi.Iteration(8, tolerance=1e-12, damping=0.0),
            start=1e-6,
        )
        past = run.trajectory
        moment = float(jnp.mean(data.teacher**2))
        errors.append((past["overlap"] - 2 * past["teacher_overlap"])[:, 0, 0] + moment)
        np.testing.assert_allclose(errors[-1][-1], run.error, rtol=1e-9)
        np.testing.assert_allclose(
            past["covariance"][:, 0, 0], theory, rtol=1e-9
        )  # precision "state", ratios exact at d = 60
    np.testing.assert_allclose(np.mean(errors, axis=0), theory, rtol=0.1)


@pytest.mark.slow
def test_it_learns_predicts_and_continues():
    model = smi.Bilinear(0.5, 0.2)  # short sequences: the other side is the long one
    data = model.sample(KEY, dimension=40, alpha=0.75, dtype="float32")
    run = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(200))
    assert Result(int(run.result)) == Result.RECOVERED
    assert run.error < 2e-3
    assert run.weights.shape == data.teacher.shape == (20, 40)
    assert run.history["damping"][0] == 0.5
    fresh = model.sample(jax.random.key(9), dimension=40, alpha=0.1, teacher=data.teacher)
    assert jnp.mean((model.predict(run, fresh.inputs) - fresh.labels) ** 2) < 2e-3
    again = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(3), start=run.state)
    assert int(again.steps) == int(run.steps) + 3 or int(again.result) == Result.RECOVERED
    told = smi.gamp(
        model, data, key=KEY, start=smi.Start(side_information=0.9), iteration=smi.Iteration(5)
    )
    assert told.error < smi.gamp(model, data, key=KEY, iteration=smi.Iteration(5)).error
    own = smi.gamp(
        model, smi.Dataset(data.inputs, data.labels), key=KEY, iteration=smi.Iteration(3)
    )
    assert np.isnan(own.error)


@pytest.mark.slow
def test_symmetric_message_passing():
    model = smi.Bilinear(1.0, 0.5, 0.25, symmetric=True)
    data = model.sample(KEY, dimension=60, alpha=0.3, dtype="float32")
    run = smi.gamp(model, data, key=KEY)
    theory = smi.state_evolution(model, 0.3).error
    assert abs(run.error - theory) < 0.05  # a run at d = 80 has 0.02 [theory: bilinear, section 4]
    np.testing.assert_allclose(run.weights, run.weights.T, atol=1e-9)


SIXTY = [(0.2, 1, 0, 0.2), (0.2, 1, 0, 0.3), (0.2, 2, 0, 0.2), (0.2, 1, 0.1, 0.3), (1, 1, 0.1, 0.4)]
HUNDRED = [*SIXTY, (0.2, 1, 0, 0.35), (0.2, 1, 0, 0.4), (0.2, 1, 0.5, 0.65), (0.2, 1, 0.5, 1.05), (0.2, 2, 0.1, 0.3),
           (1, 1, 0, 0.604167)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dimension", "seeds", "point"), [*((60, 6, p) for p in SIXTY), *((100, 2, p) for p in HUNDRED)]
)
def test_message_passing_against_theory(dimension, seeds, point):
    """[theory: bilinear, section 4]: single runs scatter by .02 (noisy) to .05 at d = 60, noiseless
    ones at d = 100 by .04."""
    rho, beta, noise, alpha = point
    model = smi.Bilinear(beta, rho, noise)
    theory = float(smi.state_evolution(model, alpha).error)
    runs = []
    for seed in range(seeds):
        data = model.sample(jax.random.key(seed), dimension=dimension, alpha=alpha, dtype="float32")
        runs.append(smi.gamp(model, data, key=jax.random.key(seed), iteration=smi.Iteration(200)))
    errors = np.array([float(run.error) for run in runs])
    assert all(Result(int(run.result)) not in (Result.DIVERGED, Result.NONFINITE) for run in runs)
    if seeds > 2:
        assert abs(errors.mean() - theory) < 3 * errors.std(ddof=1) / np.sqrt(seeds)
    assert abs(errors.mean() - theory) < 0.06
    for run in runs:  # what the run believes is the error that it makes, and the theory's
        assert abs(float(run.covariance[0, 0]) - theory) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("point", [(0.5, 0.2, 0), (0.5, 0.3, 0.25), (0.5, 0.1, 0.25), (1, 0.3, 0)])
def test_symmetric_message_passing_against_theory(point):
    """[theory: bilinear, section 4]: tolerance .04 at d = 80 with Gaussian inputs."""
    kappa, alpha, noise = point
    model = smi.Bilinear(1.0, kappa, noise, symmetric=True)
    errors = []
    for seed in range(4):
        data = model.sample(jax.random.key(seed), dimension=80, alpha=alpha, dtype="float32")
        errors.append(
            float(
                smi.gamp(model, data, key=jax.random.key(seed), iteration=smi.Iteration(150)).error
            )
        )
    assert abs(np.mean(errors) - float(smi.state_evolution(model, alpha).error)) < 0.04


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "beta", "alpha"),
    [
        (0.2, 1, 0.0887), (0.2, 1, 0.2853), (0.2, 1, 0.482), (0.5, 1, 0.472), (0.5, 1, 0.802),
        (0.2, 2, 0.2853), (0.2, 2, 0.482), (0.5, 2, 0.67),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:jaxsmi. rounded")
def test_nuclear_norm_against_published_runs(reference, rho, beta, alpha):
    """Longer side 20, 16 instances on either side: three combined standard errors."""
    folder = reference / "bsr/min_norm"
    grid, published = (
        np.load(folder / f"alpha_D20R{rho}B{beta:.1f}.npy"),
        np.load(folder / f"MSE_D20R{rho}B{beta:.1f}.npy"),
    )
    k = int(np.argmin(np.abs(grid - alpha)))
    model, errors = smi.Bilinear(beta, rho), []
    for seed in range(16):
        data = model.sample(jax.random.key(seed), dimension=20 // beta, alpha=float(grid[k]))
        found = minimum_nuclear_norm(model, data)
        assert Result(int(found.result)) == Result.SUCCESS
        np.testing.assert_allclose(model.predict(found, data.inputs), data.labels, atol=1e-6)
        errors.append(float(found.error))
    combined = np.hypot(np.std(errors, ddof=1), np.std(published[k], ddof=1)) / 4
    assert abs(np.mean(errors) - published[k].mean()) < 3 * combined


@pytest.mark.slow
def test_the_nuclear_norm_is_smallest_at_its_minimum():
    """Any other matrix with the same labels has a larger one; with many labels the minimum is S."""
    model = smi.Bilinear(1.5, 0.3)
    data = model.sample(KEY, dimension=10, alpha=0.5)
    found = minimum_nuclear_norm(model, data)
    rows = np.asarray(data.inputs).reshape(data.samples, -1)
    free = np.linalg.svd(rows)[2][data.samples :]
    norm = lambda S: np.linalg.norm(S, "nuc")
    for seed in range(20):
        other = np.random.default_rng(seed).standard_normal(len(free)) @ free
        assert norm(np.asarray(found.weights) + 0.1 * other.reshape(15, 10)) > norm(found.weights)
    assert norm(found.weights) <= norm(data.teacher)
    with_all = model.sample(KEY, dimension=10, alpha=0.98)
    assert minimum_nuclear_norm(model, with_all).error < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "value", "tolerance"), [(0.2, 1.34, 0.12), (0.3, 0.63, 0.15)])
def test_descent_with_a_large_rate_and_its_average(alpha, value, tolerance):
    """Learning rate 0.7 at the edge of stability, d = 40, 8 teachers × 8 starts [theory: bilinear,
    section 6]."""
    model, optimizer, singles, means = smi.Bilinear(1.0, 0.2), optax.sgd(0.7), [], []
    for seed in range(8):
        data = model.sample(jax.random.key(seed), dimension=40, alpha=alpha, dtype="float32")
        keys = jax.random.split(jax.random.key(100 + seed), 8)
        fit = smi.train(
            model,
            data,
            optimizer,
            key=keys,
            steps=2000,
            gradient=smi.Gradient(reduction="sum", loss=quarter),
        )
        found = smi.averaged(fit, data.teacher)
        singles.append(float(found.single))
        means.append(float(found.error))
    assert abs(np.mean(singles) - value) < tolerance
    assert np.mean(means) < 0.8 * np.mean(singles)


@pytest.mark.slow
def test_descent_from_a_small_start():
    """At α = 0.4 > α_PR it finds S: error below .01 for the median start, of three teachers (one of
    them is harder)."""
    model, optimizer, errors = smi.Bilinear(1.0, 0.2), optax.sgd(0.3), []
    for seed in range(3):
        data = model.sample(jax.random.key(seed), dimension=40, alpha=0.4)
        keys = jax.random.split(jax.random.key(7 + seed), 8)
        fit = smi.train(
            model,
            data,
            optimizer,
            key=keys,
            steps=6000,
            gradient=smi.Gradient(reduction="sum", loss=quarter),
            start=1e-4,
        )
        errors.extend(np.asarray(fit.error))
        moment = float(jnp.mean(data.teacher**2))
        np.testing.assert_allclose(fit.history["error"][:, 0], moment, rtol=1e-3)  # from nothing
    assert np.median(errors) < 0.01


@pytest.mark.slow
def test_descent_follows_its_equations():
    """dU = (dM) Vᵀ/√r, dM = ½ Σ e X/√(dL) [theory: bilinear, Eqs. (31), (32)], for both kinds of
    factors."""
    for model in (smi.Bilinear(1.5, 0.3), smi.Bilinear(1.0, 0.3, symmetric=True)):
        data = model.sample(KEY, dimension=10, alpha=0.5)
        fit = smi.train(
            model,
            data,
            optax.sgd(0.1),
            key=KEY,
            steps=1,
            gradient=smi.Gradient(reduction="sum", loss=quarter),
        )
        start = smi.train(
            model,
            data,
            optax.sgd(0.0),
            key=KEY,
            steps=1,
            gradient=smi.Gradient(reduction="sum", loss=quarter),
        ).state.weights
        r, L = 3, data.inputs.shape[1]
        V, U = (start, start) if model.symmetric else (start[:, :L], start[:, L:])
        S = V.T @ U / np.sqrt(r)
        np.testing.assert_allclose(model.student.estimate(start), S, rtol=1e-12)
        e = jnp.einsum("nld,ld->n", data.inputs, S) / np.sqrt(10 * L) - data.labels
        dM = 0.5 * jnp.einsum("n,nld->ld", e, data.inputs) / np.sqrt(10 * L)
        step = [V @ dM / np.sqrt(r), U @ dM.T / np.sqrt(r)]  # of U, of V
        change = (
            step[0] + step[1] if model.symmetric else jnp.concatenate([step[1], step[0]], axis=1)
        )
        np.testing.assert_allclose(fit.state.weights, start - 0.1 * change, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            fit.error, jnp.mean((fit.weights - data.teacher) ** 2), rtol=1e-10
        )
