"""Priors on matrices of given eigenvalues: against the Wishart law, an integral equation, and runs."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import differences, mean_and_error, runs_of
from jaxsmi.numerics.atomic_spectrum import atomic_spectrum
from jaxsmi.priors.factors import WishartPrior

KEY, SLOW = jax.random.key(0), pytest.mark.slow
ATOMS, MASSES = np.array([0.0, 1.0, 3.0]), np.array([0.5, 0.3, 0.2])


@pytest.mark.parametrize("delta", [pytest.param(0.01, marks=pytest.mark.slow), 0.3, 20.0])
def test_moments_of_matrix_plus_noise(delta):
    """Free cumulants add: moments 0 to 3 of S + √Δ Z, three bands, two, and one."""
    law = atomic_spectrum(jnp.asarray(ATOMS), jnp.asarray(MASSES), jnp.asarray(delta))
    first, second, third = (MASSES @ ATOMS**k for k in (1, 2, 3))
    moments = 1.0, first, second + delta, third + 3.0 * delta * first
    x, mass, hilbert = law.rule(jnp.array([0.5, 1.0]))
    for k, expected in enumerate(moments):
        assert float(law.mean(law.x**k)) == pytest.approx(expected, rel=1e-10)
        assert float(jnp.sum(mass * x**k)) == pytest.approx(expected, rel=1e-7)
    # H at the nodes is that of `green`, which finds their u
    np.testing.assert_allclose(law.green(x)[0][mass > 0], hilbert[mass > 0], atol=1e-7)


def test_the_resolvent_of_the_density_is_its_hilbert_transform():
    """On the left of the support: G(x) = ∫ μ(dy)/(x - y), and the logarithmic potential."""
    law = atomic_spectrum(jnp.asarray(ATOMS), jnp.asarray(MASSES), jnp.asarray(0.3))
    far = law.edges[0] - 1.0
    assert float(law.green(far[None])[0][0]) == pytest.approx(
        float(law.mean(1.0 / (far - law.x))), rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("qhat", [0.3, 2.0])
def test_gauss_nodes_of_a_wishart_matrix_have_its_error_and_information(qhat):
    """Fifty atoms carry 99 moments of the law of width d/2; noise smears what is left."""
    exact = WishartPrior(0.5).law
    prior = smi.priors.Spectrum(*(np.maximum(a, 0.0) for a in exact.eigenvalues(50)))
    assert float(prior.norm) == pytest.approx(1.5, abs=1e-10)
    q = jnp.asarray(qhat)
    assert float(prior.mmse(q)) == pytest.approx(float(exact.error(q)), rel=1e-6)
    ours, others = prior.law.mutual_information(q), exact.mutual_information(q)
    assert float(ours) == pytest.approx(float(others), rel=1e-6)


def test_limits_and_the_derivative_of_the_information():
    """V(0) = 1 and its series, V q̂ → 1 - Σ p², dI/dq̂ = V/4."""
    prior = smi.priors.Spectrum(ATOMS, MASSES)
    law = prior.law
    error = lambda q: float(law.error(jnp.asarray(q)))
    assert error(0.0) == 1.0
    assert error(0.9e-4) == pytest.approx(error(1.1e-4), abs=3e-5)
    assert 1e6 * error(1e6) == pytest.approx(1.0 - np.sum(MASSES**2), rel=1e-4)
    slope = differences(lambda q: float(law.mutual_information(q)), [3.0], 1e-3)[0]
    assert slope == pytest.approx(0.25 * error(3.0), rel=1e-6)


@pytest.mark.slow
def test_draws_have_the_eigenvalues():
    model = smi.AttentionIndexed(2, smi.priors.Spectrum([0.0, 1.0], weights=[0.75, 0.25]))
    data = model.sample(KEY, dimension=40, alpha=0.1)
    S = data.teacher.T @ data.teacher / 40.0
    values = np.linalg.eigvalsh(np.asarray(S))
    np.testing.assert_allclose(values[:30], 0.0, atol=1e-12)
    np.testing.assert_allclose(values[30:], 1.0 / np.sqrt(0.1875), rtol=1e-10)


@SLOW
def test_runs_of_bayes_and_of_a_minimiser_agree_with_theory():
    """Six data sets at d = 100, extrapolated with six at 50: within four standard errors and 2 %."""
    model = smi.AttentionIndexed(2, smi.priors.Spectrum(smi.priors.power_law(20, 0.8)))
    for learner in (None, smi.MatrixErm(nuclear=0.05)):
        theory = smi.state_evolution(model, 0.1, learner=learner, key=KEY)
        found = []
        for d in (50, 100):
            runs = runs_of(model, 6, dimension=d, alpha=0.1, learner=learner)
            found.append(np.array([float(fit.error) for _, fit in runs]))
        mean, stderr = mean_and_error(2.0 * found[1] - found[0])
        exact = float(theory.error)
        assert abs(mean - exact) <= 4.0 * stderr + 0.02 * exact


def binned(values, count):
    """A prior of these eigenvalues, the first thirty and so many groups."""
    cuts = np.r_[np.arange(30), np.geomspace(30, len(values), count).round().astype(int)]
    atoms = [np.sqrt(np.mean(values[a:b] ** 2)) for a, b in itertools.pairwise(cuts)]
    return smi.priors.Spectrum(atoms, np.diff(cuts))


@SLOW
def test_quadratic_networks_with_power_laws(reference):
    """Full-width quadratic networks with weight decay, e = Σ (ŝ - s)² of a printed state evolution:
    λ_k ∝ k^{-1.25} of mean square one, variance of noise 0.1, decay λ̃ = 2τ. It is of matrices of
    d = 400, which have corrections of 1/d = 0.0025: measured 0.0011 to 0.0021."""
    values = np.arange(1.0, 401.0) ** -1.25
    values /= np.sqrt(np.mean(values**2))
    size = 1.0 / np.var(values)  # `Spectrum` has variance one
    model = smi.AttentionIndexed(1, binned(values, 31), "linear", noise=0.1 * size)
    files = sorted((reference / "peers" / "quadratic_width").glob("SE_rank_*.csv"))
    assert len(files) == 8
    for file in files:
        samples, decay = re.search(r"_n([0-9.]+)_.*lregtilde([0-9.]+)\.csv", file.name).groups()
        rank, error = np.loadtxt(file, delimiter=",", skiprows=1).T
        learner = smi.MatrixErm(nuclear=0.5 * float(decay) * np.sqrt(size))
        end = smi.state_evolution(model, float(samples) / 400**2, learner=learner)
        assert end.converged
        assert float(end.error) / size == pytest.approx(error[np.argmax(rank)], rel=1.0 / 400)


@SLOW
@pytest.mark.parametrize(("gamma", "noise"), [(1.0, 0.0), (1.5, 0.0), (1.0, 0.1), (2.0, 0.1)])
def test_scaling_with_power_laws(gamma, noise):
    """e ∝ α^{-(2γ-1)} without noise, α^{-(2γ-1)/2γ} with it, of 20000 eigenvalues where neither the
    first nor the last of them matter: slopes within 0.1. For γ = 1 the slopes between neighbouring α
    are off by that much at 3e-3 without noise, and at 1e-2 with it."""
    values = np.arange(1.0, 20001.0) ** -gamma
    model = smi.AttentionIndexed(2, binned(values, 61), "linear", noise=noise)
    alphas = np.geomspace(1e-2, 1e-1, 3) if noise else np.geomspace(3e-4, 3e-3, 3)
    error = [float(smi.state_evolution(model, alpha, key=KEY).error) for alpha in alphas]
    slope = np.polyfit(np.log(alphas), np.log(error), 1)[0]
    assert slope == pytest.approx(-(2 * gamma - 1) / (2 * gamma if noise else 1), abs=0.1)
