"""Inputs that are not iid Gaussian: whitening against NumPy, statistics of second moments by
simulation, laws of entries, links of mixed tokens."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import jaxsmi as smi
from jaxsmi.core.second_moments import block_of, second_moments
from jaxsmi.models.base import warn_of_inputs
from jaxsmi.priors import Gaussian, GaussianProfile

KEY = jax.random.key(0)
LAWS = ["gaussian", "rademacher", "uniform", "sparse"]
KURTOSIS = {"gaussian": 3.0, "rademacher": 1.0, "uniform": 1.8, "sparse": 30.0}
NAMES = {
    "scale": "variance of the entries",
    "means": "means",
    "features": "variances of the features",
    "norms": "norms of the tokens",
    "correlations": "correlations of the features",
    "tokens": "correlations of the tokens",
}
SIZES = [NAMES[name] for name in ("scale", "features", "norms")]  # the same of all signs


def covariance(dimension, spread=1.0, seed=0):
    """Σ with log-normal eigenvalues of mean one, in a random basis."""
    rng = np.random.default_rng(seed)
    s = np.exp(spread * rng.standard_normal(dimension))
    basis = linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    return (basis * (s / s.mean())) @ basis.T


def correlated(rng, shape, Sigma, C):
    """C^{1/2} g Σ^{1/2}, in NumPy."""
    g = rng.standard_normal(shape)
    return np.einsum("mk,nkd,de->nme", linalg.sqrtm(C), g, linalg.sqrtm(Sigma))


# Laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_entries_have_their_moments(law):
    data = smi.links.sign().sample(KEY, dimension=400, alpha=1.0, inputs=law)
    x = np.asarray(data.inputs).ravel()
    for power, mean in ((1, 0.0), (2, 1.0), (4, KURTOSIS[law])):
        error = np.std(x**power) / np.sqrt(x.size)
        assert abs(np.mean(x**power) - mean) <= 5 * error + 1e-12


def test_laws_are_regenerated_and_labels_are_those_of_the_inputs():
    model = smi.links.sign()
    data = model.sample(KEY, dimension=30, alpha=2.0, inputs="rademacher", store=False).stored()
    assert set(np.unique(data.inputs)) == {-1.0, 1.0}
    z = np.asarray(data.inputs[:, 0], float) @ np.asarray(data.teacher)[0]
    np.testing.assert_array_equal(np.asarray(data.labels), np.sign(z))


# Whitening -----------------------------------------------------------------------------------


def test_fields_are_those_of_the_raw_inputs():
    rng = np.random.default_rng(1)
    Sigma, C = covariance(12), np.array([[1.0, 0.5, 0.1], [0.5, 2.0, 0.3], [0.1, 0.3, 0.7]])
    x, W = correlated(rng, (7, 3, 12), Sigma, C), rng.standard_normal((2, 12))
    data = smi.Dataset(x, np.zeros(7), W)
    white = data.whiten(Sigma, tokens=C)
    raw = np.einsum("pd,nmd->npm", W, x)
    new = np.einsum("pd,nmd->npm", white.teacher, white.inputs) @ linalg.sqrtm(C)
    np.testing.assert_allclose(new, raw, atol=1e-10)
    np.testing.assert_allclose(white.unwhiten(white.teacher), W, atol=1e-10)
    s = np.asarray(white.whitening.variances)
    np.testing.assert_allclose(s, linalg.eigvalsh(Sigma), rtol=1e-10)
    assert white.first(3).whitening is not None


def test_estimates_leave_what_theory_says():
    """Of other tokens an inverse Wishart matrix of relative variance c/(1 - c), of the same ones
    nothing at all."""
    rng, D, n = np.random.default_rng(2), 60, 600
    Sigma = covariance(D)
    x = correlated(rng, (200, 1, D), Sigma, np.eye(1))
    data = smi.Dataset(x, np.zeros(200))
    own = np.asarray(data.whiten().inputs)[:, 0]
    np.testing.assert_allclose(own.T @ own / 200, np.eye(D), atol=1e-9)
    other = data.whiten(correlated(rng, (n, 1, D), Sigma, np.eye(1)))
    w = other.whitening
    left = np.diag(w.variances**-0.5) @ w.basis.T @ Sigma @ w.basis @ np.diag(w.variances**-0.5)
    values, c = linalg.eigvalsh(left), D / n
    # a mean and a variance over D = 60 eigenvalues, which repel each other: of relative error 1/D
    assert abs(values.mean() - 1.0) < 0.05
    assert abs(values.var() / values.mean() ** 2 / (c / (1 - c)) - 1.0) < 0.25


# Priors and links in the new coordinates -----------------------------------------------------


def test_a_profile_is_gaussian_column_by_column():
    s, C, A = np.array([0.3, 1.0, 4.0]), np.array([[1.0, 0.4], [0.4, 2.0]]), np.diag([0.7, 2.0])
    prior, b = GaussianProfile(s, C), np.random.default_rng(0).standard_normal((2, 3))
    exact = [linalg.inv(linalg.inv(v * C) + A) for v in s]
    mean, covariance = prior.posterior(b, jnp.asarray(A))
    np.testing.assert_allclose(mean, np.stack([exact[i] @ b[:, i] for i in range(3)], 1))
    np.testing.assert_allclose(covariance, np.mean(exact, 0))
    np.testing.assert_allclose(prior.mmse(A), np.mean(exact, 0))
    np.testing.assert_allclose(prior.overlap(A) + prior.mmse(A), s.mean() * C)
    np.testing.assert_allclose(prior.second_moment(2), s.mean() * C)
    gradient = jax.grad(lambda a: prior.free_entropy(a))(jnp.asarray(A))
    np.testing.assert_allclose(gradient + gradient.T, prior.overlap(A), rtol=1e-9)
    np.testing.assert_allclose(GaussianProfile(np.ones(3), C).overlap(A), Gaussian(C).overlap(A))


@pytest.mark.slow
def test_message_passing_on_whitened_data_is_ridge_regression_on_raw_ones():
    """It warns of the raw ones, and of those whitened by their own samples, and names the remedy.
    Linear labels of iid weights: the fixed point with the profile is the minimum of
    ‖y - X w/√D‖²/Δ + ‖w‖², by NumPy; message passing stops at a change of 1e-8."""
    rng, D, noise = np.random.default_rng(5), 60, 0.5
    Sigma = covariance(D)
    x, W = correlated(rng, (120, 1, D), Sigma, np.eye(1)), rng.standard_normal((1, D))
    F = x[:, 0] / np.sqrt(D)
    y = F @ W[0] + np.sqrt(noise) * rng.standard_normal(120)
    white = smi.Dataset(x, y[:, None], W).whiten(Sigma)
    model = smi.links.linear(noise, prior=GaussianProfile(white.whitening.variances))
    raw = smi.Dataset(x, y[:, None], W)
    with pytest.warns(UserWarning, match=r"correlations of the features .*data\.whiten"):
        smi.gamp(model, raw, key=KEY, iteration=smi.Iteration(60, tolerance=1e-8))
    with pytest.warns(UserWarning, match="smaller than chance"):
        warn_of_inputs(model, raw.whiten())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = smi.gamp(model, white, key=KEY, iteration=smi.Iteration(60, tolerance=1e-8))
    assert bool(sol.converged)
    ridge = linalg.solve(F.T @ F / noise + np.eye(D), F.T @ y / noise)
    np.testing.assert_allclose(white.unwhiten(sol.weights)[0], ridge, atol=1e-6)


# Statistics of second moments ----------------------------------------------------------------


def drawn(rng, law, shape):
    return {
        "gaussian": lambda: rng.standard_normal(shape),
        "rademacher": lambda: rng.choice([-1.0, 1.0], shape),
        "uniform": lambda: rng.uniform(-np.sqrt(3), np.sqrt(3), shape),
        "sparse": lambda: rng.standard_normal(shape) * (rng.random(shape) < 0.1) / np.sqrt(0.1),
    }[law]()


def of_inputs(x):
    return second_moments(x, np.zeros(x.shape[1:]))


@pytest.mark.parametrize("law", LAWS)
def test_statistics_have_their_law_on_iid_inputs(law):
    """z has mean 0 and variance 1; a wrong factor of two in the variance would show. (10) takes
    the kurtosis of x² from the data, too large for sparse inputs: a variance below one there."""
    rng, runs = np.random.default_rng(7), 300
    found = [of_inputs(drawn(rng, law, (90, 2, 40))) for _ in range(runs)]
    for k, moment in enumerate(found[0].moments):
        z = np.array([one.moments[k].z for one in found])
        p = np.array([one.moments[k].p_value for one in found])
        if law == "rademacher" and moment.name in SIZES:
            assert np.all(z == 0.0)
            continue
        assert abs(z.mean()) < 4 / np.sqrt(runs), moment.name
        high = 1.0 + 4 * np.sqrt(4.0 / runs)  # of z², at most so skewed as a χ² of few degrees
        assert (0.3 if law == "sparse" else 0.6) < z.var() < high, moment.name
        assert p.min() > 1e-5  # 300 draws of six statistics: by chance once in 50
        assert np.mean(p < 0.05) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_tails_are_no_heavier_than_said(law):
    """p-values below t have a frequency of t, or less, far out: 2·10⁴ inputs, t = 1e-3 and 1e-4,
    up to a factor of three (χ² of matched moments)."""
    rng, runs = np.random.default_rng(8), 20_000
    p = np.array([
        [m.p_value for m in of_inputs(drawn(rng, law, (40, 2, 24))).moments]
        for _ in range(runs)
    ])  # fmt: skip
    for t in (1e-3, 1e-4):
        frequency = np.mean(p < t, axis=0)
        assert np.all(frequency < 3 * t + 4 * np.sqrt(3 * t / runs)), (t, frequency)


def ar(dimension, rho):
    return rho ** np.abs(np.subtract.outer(np.arange(dimension), np.arange(dimension)))


FAILING = {
    "scale": lambda rng, x: 1.2 * x,
    "means": lambda rng, x: x + 0.5 * rng.standard_normal(x.shape[1:]),
    "features": lambda rng, x: x * np.sqrt(np.linspace(0.2, 1.8, x.shape[2])),
    "norms": lambda rng, x: x * np.sqrt(rng.uniform(0.2, 1.8, (*x.shape[:2], 1))),
    "correlations": lambda rng, x: x @ linalg.sqrtm(ar(x.shape[2], 0.5)),
    "tokens": lambda rng, x: np.einsum("mk,nkd->nmd", linalg.sqrtm([[1, 0.3], [0.3, 1]]), x),
}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("broken", FAILING)
def test_each_assumption_has_its_statistic(broken, quick):
    rng = np.random.default_rng(11)
    x = FAILING[broken](rng, rng.standard_normal((300, 2, 200)))
    found = smi.Dataset(x, np.zeros(300)).second_moments(quick=quick)
    names = [moment.name for moment in found.failing]
    assert names == [NAMES[broken]]
    assert NAMES[broken] in found.message
    assert "fails" in str(found)


def test_sizes_are_those_of_the_population():
    """δ² of a rotated covariance, by its eigenvalues: z of it is T's deviation, n δ²/2."""
    rng, D, n = np.random.default_rng(12), 150, 900
    Sigma = covariance(D, 0.6)
    values = linalg.eigvalsh(Sigma)
    x = rng.standard_normal((n, 1, D)) @ linalg.sqrtm(Sigma)
    found = {m.name: m for m in smi.Dataset(x, np.zeros(n)).second_moments().moments}
    moment = found[NAMES["correlations"]]
    assert moment.size == pytest.approx(values.var(), rel=0.15)  # without features' variances
    assert moment.z == pytest.approx(n * moment.size / 2 / (1 - 1 / D) ** 0.5, rel=0.02)


def test_inputs_that_are_zero_or_few_are_looked_at():
    nothing = smi.Dataset(np.zeros((5, 1, 4)), np.zeros(5)).second_moments()
    assert [moment.name for moment in nothing.failing] == [NAMES["scale"]]
    assert smi.Dataset(np.ones((1, 1, 1)), np.zeros(1)).second_moments().failing == ()
    samples, tokens, features = block_of((10**6, 30, 10**5))
    assert len(samples) * len(tokens) * len(features) <= 2**17
    assert np.max(features) == 10**5 - 1


@pytest.mark.parametrize("law", LAWS)
def test_iid_inputs_raise_no_alarm(law):
    model = smi.links.sign()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for D, alpha in ((20, 2.0), (300, 1.0)):
            warn_of_inputs(model, model.sample(KEY, dimension=D, alpha=alpha, inputs=law))
        regenerated = model.sample(KEY, dimension=50, alpha=2.0, store=False)
        warn_of_inputs(model, regenerated)


@pytest.mark.slow
def test_known_directions_and_symmetric_inputs_are_no_failure():
    inputs = smi.Tokens(encoding=[[9.0], [-9.0]])
    model = smi.MultiIndex(lambda z: z[0, 0] * z[0, 1], indices=1, tokens=2, inputs=inputs)
    data = model.sample(KEY, dimension=100, alpha=3.0)
    assert data.second_moments().failing == ()
    assert smi.Dataset(data.inputs, data.labels).second_moments().failing != ()
    symmetric = smi.Bilinear(1.0, 0.5, symmetric=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_inputs(symmetric, symmetric.sample(KEY, dimension=20, alpha=0.5))


def test_a_mean_that_the_link_cannot_give_is_warned_of():
    """An intercept was fitted by nothing, and the run said "Converged."."""
    model = smi.links.linear(0.1)
    data = model.sample(jax.random.key(0), dimension=50, alpha=4.0)
    settings = {"key": jax.random.key(1), "learner": smi.Erm(ridge=0.1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smi.gamp(model, data, **settings)
    with pytest.warns(UserWarning, match=r"labels have mean 5.*labels - labels.mean\(\)"):
        smi.gamp(model, smi.Dataset(data.inputs, data.labels + 5.0), **settings)
