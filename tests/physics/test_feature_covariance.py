"""Learners on features of one covariance: a ridge of each whitened column, a teacher of a profile.

Ridge regression has a theory of its own [DW18; HMRT22; CLKZ21]: with S = Σ/D, n samples and labels
y = θ·x/√D + √Δ ξ, κ > 0 of λ = κ (n - Tr S(S + κ)^{-1}),

    E (y - ŷ)² = [κ² Σ t S/(S + κ)² + Δ]/(1 - Tr S²(S + κ)^{-2}/n)
    train = ½ (λ/nκ)² E (y - ŷ)²,   energy = ½ λ [Σ t S/(S + κ) + Δ/κ]/D

evaluated here in NumPy, where neither Q nor V appears.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jaxsmi as smi
from helpers import mean_and_error
from jaxsmi.learners.base import Conjugates, TeacherLaw
from jaxsmi.priors import GaussianProfile, power_law

KEY = jax.random.key(0)
D = 200
LINEAR = smi.links.linear()
# twenty points for each of the three variables of the average leave out e^{-20π/2} = 2e-14
GRID = {"averages": smi.Averages(2**16, 2), "iteration": smi.Iteration(tolerance=1e-13)}
SPECTRA = {
    "equal": (np.ones(D), np.ones(D)),
    "two values": (np.repeat([2.0, 0.25], D // 2), np.ones(D)),
    "power law": (np.asarray(power_law(D, 1.5)), np.arange(1, D + 1.0) ** -1.0),
}


def published(alpha, ridge, s, t, noise):
    """E (y - ŷ)², training loss and energy (module docstring)."""
    n, S = alpha * len(s), s / len(s)
    residual = lambda log: np.exp(log) * (n - np.sum(S / (S + np.exp(log)))) - ridge
    # λ/n <= κ <= (λ + Tr S)/n
    ends = np.log(ridge / n) - 1e-9, np.log((ridge + np.sum(S)) / n) + 1e-9
    kappa = np.exp(optimize.brentq(residual, *ends, xtol=1e-14, rtol=1e-14))
    for _ in range(3):  # to the last digit
        slope = n - np.sum((S / (S + kappa)) ** 2)
        kappa -= (kappa * (n - np.sum(S / (S + kappa))) - ridge) / slope
    bias = kappa**2 * np.sum(t * S / (S + kappa) ** 2)
    error = (bias + noise) / (1.0 - np.sum((S / (S + kappa)) ** 2) / n)
    energy = 0.5 * ridge * (np.sum(t * S / (S + kappa)) + noise / kappa) / len(s)
    return error, 0.5 * error * (ridge / (n * kappa)) ** 2, energy, kappa


def theory(alpha, ridge, s, t, noise):
    model = smi.links.linear(noise, prior=GaussianProfile(s * t))
    learner = smi.Erm(ridge=ridge / s)
    return smi.state_evolution(model, alpha, learner=learner, key=KEY, **GRID)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("ridge", "rtol"), [(0.1, 1e-11), (1e-6, 1e-8)])
def test_double_descent_is_the_published_one(spectrum, ridge, rtol):
    """Across interpolation, where the error is 20 to 50 at λ = 1e-6. What the average leaves out
    is multiplied by (1 - stability)^{-2}, 2.5e5 at α = 1 (measured: 1.2e-9, and 1e-11 with twice
    the points); it is 5 at λ = 0.1."""
    s, t = SPECTRA[spectrum]
    for alpha in (0.3, 0.9, 1.0, 1.1, 3.0) if ridge < 0.1 else (0.3, 1.0, 3.0):
        solution = theory(alpha, ridge, s, t, 0.1)
        assert solution.result == smi.Result.SUCCESS
        error, train, energy, _ = published(alpha, ridge, s, t, 0.1)
        assert 2.0 * float(solution.test_loss) == pytest.approx(error, rel=rtol)
        assert float(solution.error) == pytest.approx(error - 0.1, rel=rtol)
        assert float(solution.train_loss) == pytest.approx(train, rel=rtol)
        assert float(solution.energy) == pytest.approx(energy, rel=rtol)
        assert float(solution.potential) == pytest.approx(energy, rel=rtol)


def test_ridgeless_errors_and_the_best_ridge_have_closed_forms():
    """[HMRT22, Theorem 1], γ = 1/α: Δγ/(1 - γ) and r²(1 - 1/γ) + Δ/(γ - 1), reached up to O(λ) as
    λ → 0. [DW18, Theorem 2.1]: at the best ridge, Δ/t of a teacher of equal variances t,
    E (y - ŷ)² = Δ κ n/λ in units of theirs, whatever the spectrum."""
    ones, noise, t = SPECTRA["equal"][0], 0.25, 2.0
    for alpha in (0.4, 2.5):
        gamma = 1.0 / alpha
        under, over = noise * gamma / (1 - gamma), t * (1 - alpha) + noise / (gamma - 1)
        reached = float(theory(alpha, 1e-7, ones, t * ones, noise).error)
        assert reached == pytest.approx(under if alpha > 1 else over, rel=1e-5)
    s = SPECTRA["power law"][0]
    best = noise / t
    error = 2.0 * float(theory(0.7, best, s, t * ones, noise).test_loss)
    kappa = published(0.7, best, s, t * ones, noise)[3]
    assert error == pytest.approx(noise * 0.7 * D * kappa / best, rel=1e-11)


@pytest.mark.slow
def test_derivatives_are_those_of_the_published_formula():
    """Of test loss and energy, in α, the ridge, the exponents of spectrum and teacher, and the
    noise: central differences of step 1e-5, good to 1e-9 of numbers of order one."""

    def numbers(p):
        s, t = power_law(D, p[2]), power_law(D, p[3])
        model = smi.links.linear(p[4], prior=GaussianProfile(s * t))
        learner = smi.Erm(ridge=p[1] / s, convex=True)
        solution = smi.state_evolution(model, p[0], learner=learner, key=KEY, **GRID)
        return jnp.stack([solution.test_loss, solution.energy])

    def formula(p):
        s, t = (np.asarray(power_law(D, a)) for a in p[2:4])
        error, _, energy, _ = published(p[0], p[1], s, t, p[4])
        return np.array([0.5 * error, energy])

    at = np.array([0.8, 0.02, 1.3, 0.7, 0.3])
    np.testing.assert_allclose(numbers(at), formula(at), rtol=1e-9)
    steps = 1e-5 * np.eye(5)
    expected = np.stack([(formula(at + e) - formula(at - e)) / 2e-5 for e in steps], axis=1)
    slopes = jax.jacrev(numbers)(at)
    np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-8)
    # at the best ridge, Δ/t for equal t, the test loss has no slope [DW18]
    best = jnp.array([0.8, 0.3, 1.3, 0.0, 0.3])
    assert abs(jax.jacrev(numbers)(best)[0, 1]) < 1e-9


@pytest.mark.slow
def test_weight_averages_are_means_over_columns():
    """Two indices, at any conjugates: a ridge of each column by a loop in NumPy; the posterior of a
    profile is that of its prior, on the Nishimori line (Q̂ = M̂ = V̂) its overlap and mmse."""
    s, C0 = np.array([3.0, 1.0, 0.2]), np.array([[1.0, 0.4], [0.4, 0.7]])
    A = np.array([[1.5, 0.3], [0.3, 0.8]])
    prior = GaussianProfile(s, C0)
    law = TeacherLaw(prior, prior.second_moment(2), jnp.zeros((2, 0)), jnp.zeros((0, 0)))
    matched = smi.Mismatched(smi.MultiIndex(lambda z: z[:, 0], indices=2, noise=0.3, prior=prior))
    line = Conjugates(*(jnp.asarray(A),) * 3, jnp.zeros((2, 0)))
    averages = matched.weight_averages(line, law)
    for name in ("overlap", "teacher_overlap"):
        np.testing.assert_allclose(getattr(averages.overlaps, name), prior.overlap(A), rtol=1e-12)
    np.testing.assert_allclose(averages.overlaps.covariance, prior.mmse(A), rtol=1e-12)
    assert averages.penalty == 0.0

    ridges, M, N = np.array([0.1, 0.5, 2.0]), A - 0.4, A @ A
    off = Conjugates(jnp.asarray(N), jnp.asarray(M), jnp.asarray(A), jnp.zeros((2, 0)))
    averages = smi.Erm(ridge=ridges).weight_averages(off, law)
    C = [np.linalg.inv(r * np.eye(2) + A) for r in ridges]
    Q = [c @ (M @ (v * C0) @ M.T + N) @ c for c, v in zip(C, s, strict=True)]
    np.testing.assert_allclose(averages.overlaps.covariance, np.mean(C, 0), rtol=1e-12)
    np.testing.assert_allclose(averages.overlaps.overlap, np.mean(Q, 0), rtol=1e-12)
    cross = [c @ M @ (v * C0) for c, v in zip(C, s, strict=True)]
    np.testing.assert_allclose(averages.overlaps.teacher_overlap, np.mean(cross, 0), rtol=1e-12)
    penalty = 0.5 * np.mean(ridges * np.trace(Q, axis1=1, axis2=2))
    np.testing.assert_allclose(averages.penalty, penalty, rtol=1e-12)
    X = np.array([[1.0, -0.2], [-0.2, 0.6]])
    moved = np.einsum("abcd,cd->ab", averages.squared, X)
    np.testing.assert_allclose(moved, np.mean([c @ X @ c for c in C], 0), rtol=1e-12)
    # one ridge is that of each
    single = smi.Erm(ridge=0.5).weight_averages(off, law)
    equal = smi.Erm(ridge=0.5 * np.ones(3)).weight_averages(off, law)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13)
    jax.tree.map(close, equal, single)
    # message passing: one column after the other
    b = np.random.default_rng(0).standard_normal((2, 3))
    W, mean = smi.Erm(ridge=ridges).posterior(jnp.asarray(b), jnp.asarray(A))
    np.testing.assert_allclose(W, np.stack([C[i] @ b[:, i] for i in range(3)], 1), rtol=1e-12)
    np.testing.assert_allclose(mean, np.mean(C, 0), rtol=1e-12)


@pytest.mark.slow
def test_the_posterior_of_a_profile_is_a_learner():
    """Of Bayes and of the matched student: Q = M = ⟨s⟩ - V with V = ⟨s/(1 + s q̂)⟩, q̂ = α/(V + Δ), by a root
    finder; so is the ridge Δ/s, of V/Δ, as its loss is a log-likelihood times Δ."""
    s, alpha, noise = np.array([3.0, 1.0, 0.2]), 1.2, 0.3
    V = optimize.brentq(lambda V: V - np.mean(s / (1 + s * alpha / (V + noise))), 1e-6, 9.0)
    model = smi.links.linear(noise, prior=GaussianProfile(s))
    learners = ((None, 1.0), (smi.Mismatched(model), 1.0), (smi.Erm(ridge=noise / s), noise))
    for learner, unit in learners:
        limit = smi.state_evolution(model, alpha, learner=learner, key=KEY, **GRID)
        for overlap in (limit.overlap, limit.overlap if learner is None else limit.teacher_overlap):
            assert float(overlap[0, 0]) == pytest.approx(np.mean(s) - V, rel=1e-9)
        assert float(limit.covariance[0, 0]) == pytest.approx(V / unit, rel=1e-9)


# Data -----------------------------------------------------------------------------------------


def raw_minimum(x, y, ridge):
    """The minimum of Σ log(1 + e^{-yz}) + λ/2 ‖w‖² of raw features x (N, D), by L-BFGS."""
    F = x / np.sqrt(x.shape[1])

    def both(w):
        margin = y * (F @ w)
        slope = -y * 0.5 * (1.0 - np.tanh(0.5 * margin))
        value = np.sum(np.logaddexp(0.0, -margin)) + 0.5 * ridge * w @ w
        return value, F.T @ slope + ridge * w

    options = {"maxiter": 10000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 30}
    start = np.zeros(F.shape[1])
    end = optimize.minimize(both, start, jac=True, method="L-BFGS-B", options=options)
    assert np.linalg.norm(end.jac) < 1e-6 * np.sqrt(len(start))
    return end.x


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["Σ", "the data's own"])
def test_message_passing_on_whitened_data_reaches_the_minimum_on_raw_ones(own):
    """Logistic regression on features of a rotated power law, whitened by Σ or by the samples
    themselves: weights mapped back are those of L-BFGS on the raw features, and the energy is the
    raw risk. Steps end at 1e-10 of Ŵ."""
    rng, size, ridge = np.random.default_rng(1), 120, 0.1
    s = np.asarray(power_law(size, 1.0))
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    x = (rng.standard_normal((240, size)) * np.sqrt(s)) @ basis.T
    teacher = rng.standard_normal((1, size))
    y = np.sign(x @ teacher[0])
    raw = smi.Dataset(x[:, None], y, teacher)
    white = raw.whiten(None if own else (basis * s) @ basis.T)
    learner = smi.Erm(LINEAR, loss=smi.losses.logistic, ridge=ridge / white.whitening.variances)
    iteration = smi.Iteration(200, tolerance=1e-10)
    with warnings.catch_warnings():
        # samples whitened by themselves have smaller correlations than iid ones
        warnings.simplefilter("ignore" if own else "error", UserWarning)
        run = smi.gamp(smi.links.sign(), white, learner=learner, key=KEY, iteration=iteration)
    assert run.result == smi.Result.SUCCESS
    w = raw_minimum(x, y, ridge)
    np.testing.assert_allclose(white.unwhiten(run.weights)[0], w, atol=1e-6)
    margin = y * (x @ w) / np.sqrt(size)
    risk = (np.sum(np.logaddexp(0.0, -margin)) + 0.5 * ridge * w @ w) / size
    assert float(run.energy) == pytest.approx(risk, rel=1e-9)
    assert float(learner.risk(run.weights, white)) == pytest.approx(risk, rel=1e-9)
    assert float(run.gradient_norm) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", ["two values", "power law"])
def test_logistic_regression_is_its_theory(spectrum):
    """Sixteen data sets of D = 600, minimised by L-BFGS on raw features: Q, M, losses and energy
    within four standard errors. The teacher's weights are ±√t: no fluctuation of their norm."""
    size, alpha, ridge, rng = 600, 1.5, 0.05, np.random.default_rng(2)
    s, t = {
        "two values": (np.repeat([2.0, 0.25], size // 2), np.ones(size)),
        "power law": (np.asarray(power_law(size, 1.0)), np.asarray(power_law(size, 0.5))),
    }[spectrum]
    model = smi.links.sign(noise=0.2, prior=GaussianProfile(s * t))
    learner = smi.Erm(LINEAR, loss=smi.losses.logistic, ridge=ridge / s)
    limit = smi.state_evolution(model, alpha, learner=learner, key=KEY)
    measured = []
    for _ in range(16):
        teacher = np.sqrt(t) * rng.choice([-1.0, 1.0], size)
        x = rng.standard_normal((round(alpha * size), size)) * np.sqrt(s)
        z = x @ teacher / np.sqrt(size)
        y = np.sign(z + np.sqrt(0.2) * rng.standard_normal(len(z)))
        w = raw_minimum(x, y, ridge)
        Q, M, S = (np.sum(s * a * b) / size for a, b in ((w, w), (w, teacher), (teacher, teacher)))
        train = np.mean(np.logaddexp(0.0, -y * (x @ w) / np.sqrt(size)))
        a, b, noise = rng.standard_normal((3, 2**16))
        label = np.sign(M / np.sqrt(Q) * a + np.sqrt(S - M**2 / Q) * b + np.sqrt(0.2) * noise)
        test = np.mean(np.logaddexp(0.0, -label * np.sqrt(Q) * a))
        measured.append([Q, M, train, test, alpha * train + 0.5 * ridge * np.mean(w**2)])
    mean, error = mean_and_error(measured)
    numbers = (limit.overlap[0, 0], limit.teacher_overlap[0, 0], limit.train_loss, limit.test_loss)
    expected = np.array([*numbers, limit.energy], float)
    scores = (mean - expected) / error
    assert np.all(np.abs(scores) < 4.0), (scores, mean, error, expected)


# Power laws -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decay", "exponent"),
    # 2a r = 2 without noise or ridge; 2ar/(1 + 2ar) = 2/3 with the ridge of the crossover
    [("noiseless", 2.0), ("noisy", 2.0 / 3.0)],
)
def test_errors_of_power_laws_decay_at_the_published_rates(decay, exponent):
    """[CLKZ21, Fig. 1], s_k ~ k^{-a}, t_k ~ k^{-1-a(2r-1)}, a = 2, r = ½; from n = 300 to 1000 the
    local exponents are 2.0098 and 0.6576. Sums over eigenvalues are integrals up to half of their
    largest term: one in n^{1/(1 + 2ar)} = n^{1/3} learned directions with noise, which moves the
    error by ½ n^{-1/3} and the exponent by ½ (300^{-1/3} - 1000^{-1/3})/log(10/3) = 0.02; without
    noise one in n, and the D of the tail that there is, one in D/n."""
    dimension, a, r = 20_000, 2.0, 0.5
    k = np.arange(1.0, dimension + 1.0)
    s, t = dimension * k**-a, k ** -(1 + a * (2 * r - 1))
    noise = 0.0 if decay == "noiseless" else 1.0
    # λ of a mean over samples decays faster than n^{-a}, or as n^{-a/(1 + 2ar)}
    ridge = lambda n: 1e-3 * n**-1.0 if decay == "noiseless" else n ** (1 - a / (1 + 2 * a * r))
    counts = np.array([300.0, 1000.0])
    errors = [float(theory(n / dimension, ridge(n), s, t, noise).error) for n in counts]
    measured = -np.diff(np.log(errors)) / np.diff(np.log(counts))
    assert measured[0] == pytest.approx(exponent, abs=0.02)
    for n, error in zip(counts, errors, strict=True):
        formula = published(n / dimension, ridge(n), s, t, noise)[0] - noise
        # with noise a difference of numbers of order one
        assert error == pytest.approx(formula, rel=1e-8)
