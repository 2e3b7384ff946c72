"""The largest margin of signs: where the hinge ends as its ridge vanishes.

Closed formulas by scipy beside the public face. A hinge with a small ridge λ has the largest margin
exactly, up to the mass of samples within the hinge: a Gaussian tail of (V - 1) κ standard
deviations, V = v/λ. Every ridge here leaves seven of them or more, 1e-11.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import ndtr

import jaxsmi as smi

KEY = jax.random.key(0)


def normal(t):
    return np.exp(-0.5 * t * t) / np.sqrt(2.0 * np.pi)


def integral(function, kappa):
    return integrate.quad(function, -12.0, kappa, epsabs=1e-15, epsrel=1e-13, limit=200)[0]


def margin_of_random_labels(alpha):
    """κ of 1/α = (1 + κ²) Φ(κ) + κ φ(κ), the cosine with a teacher, and lim λV = 1 - α Φ(κ)."""
    gap = lambda k: (1.0 + k * k) * ndtr(k) + k * normal(k) - 1.0 / alpha
    kappa = optimize.brentq(gap, -1e-9, 20.0, xtol=1e-15)
    return kappa, 0.0, 1.0 - alpha * ndtr(kappa)


def margin_of_a_teacher(alpha):
    """The largest κ with min_m [α E (κ - t)₊² - (1 - m²)] = 0, t of density 2 Φ(m t/√(1-m²)) φ(t):
    κ, the cosine m, and lim λV = 1 - α P(t < κ)."""

    def gap_and_slope(unknowns):
        kappa, m = unknowns
        rest = np.sqrt(1.0 - m * m)
        square = lambda t: (kappa - t) ** 2 * 2.0 * ndtr(m * t / rest) * normal(t)
        moved = lambda t: (kappa - t) ** 2 * 2.0 * t * normal(m * t / rest) * normal(t)
        gap = alpha * integral(square, kappa) - rest**2
        return gap, alpha * integral(moved, kappa) / rest**3 + 2.0 * m

    # many samples: κ ~ 1/α, 1 - m ~ 1.2/α²
    start = (1.0 / (0.5 + alpha), 1.0 - 1.2 / (1.0 + alpha) ** 2)
    kappa, m = optimize.root(gap_and_slope, start, tol=1e-14).x
    inside = integral(lambda t: 2.0 * ndtr(m * t / np.sqrt(1.0 - m * m)) * normal(t), kappa)
    return kappa, m, 1.0 - alpha * inside


TABLE = [
    # noise, α, λ; κ, cosine
    (0.0, 0.5, 5e-2, 1.256380339, 0.5121485),
    (0.0, 1.0, 3e-2, 0.7865498417, 0.6713576),
    (0.0, 2.0, 1e-2, 0.454577561, 0.8297576),
    (0.0, 5.0, 1e-3, 0.196709612, 0.9568701),
    (0.0, 10.0, 1e-4, 0.09988867079, 0.9880864),
    (jnp.inf, 0.5, 5e-2, 1.034314061, 0.0),
    (jnp.inf, 1.0, 1e-2, 0.4706553526, 0.0),
    (jnp.inf, 1.5, 3e-3, 0.1861081507, 0.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "alpha", "ridge", "kappa", "cosine"), TABLE)
def test_the_hinge_ends_at_the_largest_margin(noise, alpha, ridge, kappa, cosine):
    """1/√q = κ, the cosine, λV and no training loss at a small ridge.

    The kink of the hinge costs the sum over a grid its fast convergence: its error is that of the
    trapezoidal rule, h² = 1e-9, which the standard error of four shifted grids states. κ itself is
    better, 1e-11. From α = 5 on the iteration comes down from larger ridges by itself.
    """
    known = (margin_of_random_labels if noise else margin_of_a_teacher)(alpha)
    np.testing.assert_allclose(known[0], kappa, atol=6e-10)  # nine or ten digits printed
    np.testing.assert_allclose(known[1], cosine, atol=6e-8)
    hinge = smi.Erm(smi.links.linear(), loss=smi.losses.hinge, ridge=ridge)
    fine = {"iteration": smi.Iteration(tolerance=1e-11), "averages": smi.Averages(2**19)}
    settings = {"learner": hinge, "key": KEY} | fine
    solution = smi.state_evolution(smi.links.sign(noise=noise), alpha, **settings)
    assert solution.result == smi.Result.SUCCESS
    first = lambda array: float(jnp.ravel(array)[0])
    q, m, V = map(first, (solution.overlap, solution.teacher_overlap, solution.covariance))
    assert (V - 1.0) * kappa > 6.8  # standard deviations: the limit is reached
    values = np.array([q**-0.5, m * q**-0.5, ridge * V])
    names = ("teacher_overlap", "covariance")
    bars = [first(solution.stderr), *(first(solution.stderrs[name]) for name in names)]
    bars = np.array([0.5 * bars[0] * q**-1.5, bars[1] * q**-0.5, ridge * bars[2]])
    assert np.all(np.abs(values - known) < 5.0 * bars + 1e-11)
    assert np.all(bars < (1e-9, 2e-8, 2e-8))
    assert abs(first(solution.train_loss)) < 1e-12
    np.testing.assert_allclose(solution.energy, 0.5 * ridge * q, rtol=1e-10)


@pytest.mark.slow
def test_a_tiny_ridge_comes_down_from_larger_ones():
    """From the usual start (q = 1, V = ½) the iteration does not reach 1/κ² = 25.8, V = 4392."""
    kappa, _, limit = margin_of_a_teacher(5.0)
    hinge = smi.Erm(smi.links.linear(), loss=smi.losses.hinge, ridge=1e-5)
    solution = smi.state_evolution(smi.links.sign(), 5.0, key=KEY, learner=hinge)
    assert solution.result == smi.Result.SUCCESS
    q, bar = float(solution.overlap[0, 0]), float(solution.stderr[0, 0])
    assert abs(q - kappa**-2) < 5.0 * bar + 1e-6
    np.testing.assert_allclose(solution.covariance, limit / 1e-5, rtol=1e-5)  # h² of the grid


def least_absolute_deviations(alpha, noise, ridge):
    """Q, M, V of the absolute loss on labels z + √Δ ξ: g = (y - ω)/V cut at ±1, of a residual
    N(0, σ²), σ² = Q - 2M + 1 + Δ."""

    def gap(unknowns):
        q, m, V = unknowns
        t = V / np.sqrt(q - 2.0 * m + 1.0 + noise)
        inside = 2.0 * ndtr(t) - 1.0
        square = (inside - 2.0 * t * normal(t)) / t**2 + 2.0 * ndtr(-t)
        response = alpha * inside / V
        return (
            (alpha * square + response**2) / (ridge + response) ** 2 - q,
            response / (ridge + response) - m,
            1.0 / (ridge + response) - V,
        )

    return optimize.root(gap, (0.7, 0.75, 0.25), tol=1e-12).x


@pytest.mark.slow
def test_a_loss_with_kinks_ends_where_points_allow():
    """The map on a grid of points jumps where a point enters the kink: the residual cannot fall
    below the error of the grid, and there the iteration ends."""
    alpha = 2.0
    loss = lambda prediction, label: jnp.sum(jnp.abs(prediction - label))
    cut = lambda y, omega, V: omega + V[0, 0] * jnp.clip((y - omega) / V[0, 0], -1.0, 1.0)
    learner = smi.Erm(smi.links.linear(), loss=loss, prox=cut, ridge=1.0)
    solution = smi.state_evolution(smi.links.linear(0.1), alpha, key=KEY, learner=learner)
    assert solution.result == smi.Result.SUCCESS
    q, m, V = least_absolute_deviations(alpha, 0.1, 1.0)
    bar = float(solution.stderr[0, 0])
    assert abs(float(solution.overlap[0, 0]) - q) < 2.0 * bar < 0.05
    np.testing.assert_allclose(solution.teacher_overlap, m, rtol=5e-3)
    np.testing.assert_allclose(solution.covariance, V, rtol=2e-2)
