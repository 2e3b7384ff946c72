"""Self-refining integration against Gaussian posteriors known exactly, honest errors, and unbiased
nets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.numerics.quadrature import (
    covariance_and_variance,
    direction_numbers,
    fine_points,
    generated_directions,
    nets,
    power_of_two,
    quotient,
    randomised_gaussians,
)
from jaxsmi.numerics.refining import Budget, Integral, self_refining_moments
from jaxsmi.numerics.refining_rules import grid_fits
from jaxsmi.numerics.refining_sums import Branch

KEY = jax.random.key(0)


def plain(mean, covariance):
    """The response is the moments themselves."""
    return mean, covariance


@eqx.filter_jit
def gaussian_posterior(centre, width, budget, start=None, slope=None, key=None):
    """Prior N(0, 1) in each t, likelihood exp(-(t - centre)²/(2 width²)); one residual r = slope·t
    where a slope is given."""
    inner = centre.shape[1]

    def integrand(block, t):
        c, w = block
        value = sum(-0.5 * ((t[:, i] - c[:, i, None]) / w[:, i, None]) ** 2 for i in range(inner))
        residuals = [] if slope is None else [t @ slope + 0.0 * value]
        return jnp.ones_like(value), [Branch(value, residuals)]

    outer = 0 if slope is None else 1
    integral = Integral(integrand, (centre, width), plain, inner, outer, start=start)
    return self_refining_moments(integral, budget, key)


def exact(centre, width):
    """log mass (N,), mean (N, d) and variances (N, d) of that posterior."""
    variance = width**2 / (1 + width**2)
    log_mass = np.sum(-0.5 * centre**2 / (1 + width**2) + 0.5 * np.log(variance), axis=1)
    return log_mass, centre / (1 + width**2), variance


def draw(inner, count, narrow, wide, seed=0, isotropic=True):
    """Centres drawn with the prior and the likelihood's width, which is log-uniform between
    `narrow` and `wide`."""
    rng = np.random.default_rng(seed)
    width = np.exp(rng.uniform(np.log(narrow), np.log(wide), (count, 1 if isotropic else inner)))
    width = np.broadcast_to(width, (count, inner))
    return rng.standard_normal((count, inner)) * np.sqrt(1 + width**2), width


def relative_errors(found, centre, width):
    _, mean, variance = exact(centre, width)
    covariance = variance[:, :, None] * np.eye(variance.shape[1])
    return (
        np.abs(found.g - mean).max(axis=1) / (1 + np.abs(mean).max(axis=1)),
        np.abs(found.dg - covariance).max(axis=(1, 2)) / (1 + variance.max(axis=1)),
    )


# inner variables, narrowest and widest likelihood, tolerance. The step of the finest rule: 1.3e-3
# in one variable, 1e-2 in
# two, 0.1 in three; nets reach their tolerance by importance sampling
CASES = [
    (1, 2e-3, 3.0, 1e-6, True),
    pytest.param(2, 1e-2, 3.0, 1e-5, True, marks=pytest.mark.slow),
    pytest.param(3, 0.1, 3.0, 1e-3, True, marks=pytest.mark.slow),
    pytest.param(4, 0.3, 3.0, 2e-2, True, marks=pytest.mark.slow),
    (2, 1e-2, 3.0, 1e-5, False),
    (3, 0.1, 3.0, 1e-3, False),
]


@pytest.mark.parametrize(("inner", "narrow", "wide", "tolerance", "isotropic"), CASES)
def test_gaussian_posteriors_and_honest_errors(inner, narrow, wide, tolerance, isotropic):
    centre, width = draw(inner, 64 if inner < 3 else 16, narrow, wide, isotropic=isotropic)
    found = gaussian_posterior(jnp.asarray(centre), jnp.asarray(width), Budget(tolerance))
    error, dg_error = relative_errors(found, centre, width)
    assert np.mean(found.error <= tolerance) >= 0.95  # what was asked for was reached
    # below 3e-8 it is the mass outside the box that counts
    assert np.mean(error <= 3 * np.maximum(found.error, 3e-8)) >= 0.95
    assert np.mean(dg_error <= 3 * np.maximum(found.dg_error, 3e-7)) >= 0.95
    accepted = np.asarray(found.error) <= tolerance
    assert np.all(error[accepted] <= 3 * tolerance)
    assert np.all(dg_error[accepted] <= 30 * tolerance)
    # the mass is not what the error is about: its own converges a little more slowly
    np.testing.assert_allclose(
        found.log_mass[accepted], exact(centre, width)[0][accepted], atol=30 * tolerance
    )


@pytest.mark.parametrize("inner", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_narrow_posteriors_are_refined(inner):
    """Nodes grow as the likelihood narrows, down to 2e-3 in one variable (step 1.3e-3 at the
    finest)."""
    width = np.repeat(np.array([1.0, 0.1, 0.03, 0.01])[:, None], inner, axis=1)
    if inner == 1:
        width = np.concatenate([width, [[2e-3]]])
    centre = 0.37 + 0.0 * width
    found = gaussian_posterior(jnp.asarray(centre), jnp.asarray(width), Budget(1e-6, 2**22))
    assert np.all(np.diff(found.nodes) >= 0)
    assert (
        found.nodes[-1]
        >= (0.03 if inner == 2 else 1) * found.nodes[0] / width[-1, 0] ** inner / 100
    )
    assert found.nodes[-1] > 8 * found.nodes[0]
    assert bool(jnp.all(found.error <= 1e-6))
    error, _ = relative_errors(found, centre, width)
    assert np.all(error <= 3e-6)
    # number of nodes that carry the posterior: √(4π) widths over the step, for each variable
    assert np.all(np.asarray(found.ess)[:3] >= 32)


def test_an_exhausted_budget_is_reported():
    """Width 1e-3 in two variables needs 5e7 nodes: 2^11 are allowed. The error says so, whatever
    the answer is."""
    centre = np.array([[0.4, -0.3], [0.4, -0.3], [0.01, 0.02]])
    width = np.array([[1e-3, 1e-3], [1.0, 1.0], [1e-4, 1e-4]])
    found = gaussian_posterior(jnp.asarray(centre), jnp.asarray(width), Budget(1e-4, 2**11))
    error, dg_error = relative_errors(found, centre, width)
    missed = (
        (np.asarray(found.error) > 1e-4)
        | (np.asarray(found.dg_error) > 1e-3)
        | (np.asarray(found.ess) < 32)
    )
    np.testing.assert_array_equal(missed, [True, False, True])
    assert error[1] <= 3e-4
    assert dg_error[1] <= 3e-3
    assert np.all(np.asarray(found.nodes) <= 2**11)


def test_posteriors_outside_the_narrow_box_go_to_the_wide_one():
    """Narrow box: 5.5 standard deviations; wide: 9. Beyond that the tail is reported."""
    centre = np.array([[0.0], [6.0], [7.5], [-7.0], [14.0]])
    width = np.full_like(centre, 0.3)
    found = gaussian_posterior(jnp.asarray(centre), jnp.asarray(width), Budget(1e-6))
    error, _ = relative_errors(found, centre, width)
    assert np.all(error[:4] <= 3e-6)
    assert np.all(np.asarray(found.error)[:4] <= 1e-6)
    assert found.error[4] > 1e-6  # its mean is at 12.8
    np.testing.assert_allclose(found.log_mass[:4], exact(centre, width)[0][:4], atol=1e-5)


def test_not_a_number_ends_at_once():
    centre = np.array([[np.nan, 0.0], [0.3, 0.2]])
    found = gaussian_posterior(jnp.asarray(centre), jnp.full((2, 2), 0.5), Budget(1e-6))
    assert bool(jnp.isnan(found.g[0]).all())
    assert not found.error[0] <= 1e-6
    assert found.nodes[0] <= 32**2  # the first rule, no other
    error, _ = relative_errors(found, centre, np.full((2, 2), 0.5))
    assert error[1] <= 3e-6


def test_residuals_enter_the_moments():
    """τ = (t, r), r = a·t: its covariance is (I, a)ᵀ Cov (I, a)."""
    slope = np.array([0.5, -2.0])
    centre, width = draw(2, 8, 0.3, 2.0, seed=3)
    found = gaussian_posterior(
        jnp.asarray(centre), jnp.asarray(width), Budget(1e-7), None, jnp.asarray(slope)
    )
    _, mean, variance = exact(centre, width)
    carry = np.concatenate([np.eye(2), slope[None]])
    np.testing.assert_allclose(found.g, mean @ carry.T, atol=1e-6)
    covariance = np.einsum("ai,ni,bi->nab", carry, variance, carry)
    np.testing.assert_allclose(found.dg, covariance, atol=1e-5)


def test_the_answer_does_not_depend_on_the_batch():
    centre, width = draw(2, 37, 0.03, 2.0, seed=4)
    budget = Budget(1e-4)
    together = gaussian_posterior(jnp.asarray(centre), jnp.asarray(width), budget)
    order = np.random.default_rng(0).permutation(37)
    shuffled = gaussian_posterior(jnp.asarray(centre[order]), jnp.asarray(width[order]), budget)
    # the order of sums
    np.testing.assert_allclose(shuffled.g, np.asarray(together.g)[order], atol=1e-13)
    np.testing.assert_array_equal(shuffled.nodes, np.asarray(together.nodes)[order])


# Nets
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [pytest.param(1, marks=pytest.mark.slow), 3, 6])
def test_nets_are_unbiased_and_their_errors_honest(dimension):
    """E sin(a·x + 1/2) = sin(1/2) exp(-|a|²/2) in z-scores over 40 keys of 8 randomisations
    each."""
    a = 1.2 / np.sqrt(dimension) * np.ones(dimension)
    exact_value = np.sin(0.5) * np.exp(-0.5 * a @ a)
    sampled = jax.jit(
        lambda key: jnp.mean(jnp.sin(randomised_gaussians(key, 64, 8, dimension) @ a + 0.5), axis=1)
    )
    means = jax.vmap(sampled)(jax.random.split(KEY, 40))  # (40, 8)
    error = np.std(means, axis=1, ddof=1) / np.sqrt(8)
    scores = (np.mean(means, axis=1) - exact_value) / error
    # Student's t of seven degrees of freedom has standard deviation √(7/5) = 1.18
    assert abs(np.mean(scores)) < 4 * 1.18 / np.sqrt(40)
    assert 0.7 < np.sqrt(np.mean(scores**2)) < 1.9
    pooled = np.asarray(means).ravel() - exact_value
    assert abs(pooled.mean()) < 4 * pooled.std() / np.sqrt(320)
    # plain Monte-Carlo would have √(Var/512), the variance of sin here being about 0.45; a net must
    # beat it
    assert np.mean(error) < 0.7 * np.sqrt(0.45 / 512)


def test_direction_numbers_are_those_of_scipy():
    """Kept ones, and beyond them; up to 128 dimensions a file has them."""
    expected = generated_directions(130)
    for dimension in (1, 128, 130):
        assert np.array_equal(direction_numbers(dimension), expected[:dimension])


@pytest.mark.parametrize("centres", [(0.0,), (0.7, -0.7), (0.3, 0.5, 40.0, 0.3)])
@pytest.mark.parametrize(("width", "samples"), [(1.0, 512), (1e-2, 1024), (1e-5, 2048)])
def test_fine_points_resolve_what_is_narrow_around_a_centre(width, samples, centres):
    """E exp(-(t - c)²/2w²) = w/√(1 + w²) exp(-c²/2(1 + w²)) at each centre; half of the points are
    a rule, too, and centres out of reach of the Gaussian do no harm."""
    points, weight = fine_points(KEY, samples, 8, jnp.asarray(centres))
    weight, variance = np.asarray(weight), 1.0 + width**2
    value = sum(
        np.exp(0.5 * c**2 / variance - 0.5 * ((np.asarray(points)[..., 0] - c) / width) ** 2)
        for c in centres[:2]
    )
    exact = min(len(centres), 2) * width / np.sqrt(variance)
    # of steps 30 K/n of s; K = 4 has 128 points a centre
    np.testing.assert_allclose(np.sum(weight * value, 1), exact, rtol=1e-4)
    first, half = value[:, : samples // 2], weight[:, : samples // 2]
    np.testing.assert_allclose(2.0 * np.sum(half * first, 1), exact, rtol=1e-2)


@pytest.mark.slow
def test_each_coordinate_of_a_net_is_evenly_spread():
    """A (0, m, 1)-net: each of 256 cells of each axis holds one of 256 points, after any
    scrambling."""
    uniforms = jax.vmap(lambda net: net.uniforms(0, 256))(nets(KEY, 3, 5))
    cells = np.sort(np.floor(256 * np.asarray(uniforms)).astype(int), axis=1)
    np.testing.assert_array_equal(
        cells, np.broadcast_to(np.arange(256)[None, :, None], cells.shape)
    )


@pytest.mark.slow
def test_same_key_same_points():
    one, two = (randomised_gaussians(KEY, 32, 2, 3) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one[:, :16], randomised_gaussians(KEY, 16, 2, 3))  # nested
    assert not np.allclose(one, randomised_gaussians(jax.random.key(1), 32, 2, 3))
    assert not np.allclose(one[0], one[1])


def test_control_variates():
    rng = np.random.default_rng(0)
    control = rng.standard_normal((4000, 2))
    values = np.array([3.0, -2.0]) * control + 0.1 * rng.standard_normal((4000, 2))
    covariance, variance = covariance_and_variance(
        jnp.asarray(values), jnp.asarray(control), axis=0
    )
    np.testing.assert_allclose(
        quotient(covariance, variance), [3.0, -2.0], atol=4 * 0.1 / np.sqrt(4000)
    )
    np.testing.assert_allclose(variance, control.var(0), rtol=1e-12)
    np.testing.assert_array_equal(
        quotient(jnp.asarray([1.0, 2.0]), jnp.asarray([0.0, 4.0])), [0.0, 0.5]
    )
    assert [power_of_two(n) for n in (1, 2, 3, 1000, 1024, 10**9)] == [1, 2, 4, 1024, 1024, 2**20]


@pytest.mark.slow
def test_spread_over_nets_holds_the_error_of_the_inner_nodes():
    """Four fields go to random nodes, here too few of them. An overlap that vanishes by symmetry
    does so within its error bar, and means of different keys spread as their error bars say: with
    nodes shared by all randomisations they spread three times as far off the diagonal."""
    link = lambda z: z[0, 0] * z[1, 1] + z[0, 1]
    model = smi.MultiIndex(link, indices=2, tokens=2, noise=0.5, tolerance=0.1)
    Q = jnp.diag(jnp.array([0.5, 0.4]))
    sizes = {"points": 256, "nets": 8, "tangents": False}
    response = jax.jit(lambda k: model.channel.response(Q, jnp.eye(2) - Q, key=k, **sizes).replicas)
    each = np.stack([response(jax.random.key(k)) for k in range(12)])
    errors = np.var(each, axis=1, ddof=1) / 8
    ratio = np.var(np.mean(each, axis=1), axis=0, ddof=1) / np.mean(errors, axis=0)
    # a quotient of variances with 11 and 84 degrees of freedom: 3.4 is exceeded in one of 1600
    assert np.all(ratio < 3.4)
    assert abs(each[..., 0, 1].mean()) < 4.0 * np.sqrt(errors[:, 0, 1].mean() / 12)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "tolerance"), [(0.4, 10.0), (0.15, 0.3)])
def test_mass_of_nets_has_no_bias(width, tolerance):
    """log ∫ φ(t) e^{-(t - c)²/2w²} dt = Σ log(w/√(1 + w²)) - c²/2(1 + w²) in three variables on
    1024 points, and on fine levels with
    the points of a wider Gaussian, of c = 2.5 deviations in all."""
    c = 2.5 / np.sqrt(3.0)
    sample = jnp.full((1, 3), c), jnp.full((1, 3), width), Budget(tolerance, grids=False)
    log_mass = lambda key: gaussian_posterior(*sample, key=key)
    found = jax.lax.map(log_mass, jax.random.split(KEY, 100))
    one = 1.0 + width**2
    exact = 3.0 * (np.log(width / np.sqrt(one)) - 0.5 * c**2 / one)
    values = np.asarray(found.log_mass)[:, 0]
    assert abs(values.mean() - exact) < 4.0 * values.std() / 10.0
    assert (np.asarray(found.nodes) >= 8192).mean() > (0.9 if width < 0.2 else -1.0)
    g = np.asarray(found.g)[:, 0]
    assert np.all(np.abs(g.mean(0) - c / one) < 4.0 * g.std(0) / 10.0)


@pytest.mark.slow
def test_halves_of_nets_are_jackknifed():
    """n x - (n - 1) mean of x without one net, by sums over the points of eight nets in NumPy: a
    narrow likelihood in four variables, one level of 2048 points."""
    centre, width = draw(4, 3, 0.3, 1.0, seed=3)
    sample = jnp.asarray(centre), jnp.asarray(width), Budget(10.0, 2**11), jnp.asarray(1)
    means, covariances = gaussian_posterior(*sample, key=KEY).halves
    points = np.asarray(jax.vmap(lambda net: net.gaussians(0, 256))(nets(KEY, 8, 4)))

    def moments(k, members):
        t = points[members].reshape(-1, 4)
        weight = np.exp(-0.5 * np.sum(((t - centre[k]) / width[k]) ** 2, axis=-1))
        mean = weight @ t / weight.sum()
        return mean, np.einsum("n,ni,nj->ij", weight, t, t) / weight.sum() - np.outer(mean, mean)

    for k in range(3):
        for half in range(2):
            members = list(range(half, 8, 2))
            mean, covariance = moments(k, members)
            less = [moments(k, [g for g in members if g != one]) for one in members]
            expected = 4 * mean - 3 * np.mean([x for x, _ in less], 0)
            np.testing.assert_allclose(means[k, half], expected, atol=1e-9)
            expected = 4 * covariance - 3 * np.mean([x for _, x in less], 0)
            np.testing.assert_allclose(covariances[k, half], expected, atol=1e-9)


def test_an_integral_of_no_variables_fits():
    """Channels in closed form but for a scale have none: their nodes are not random."""
    assert grid_fits(0, 1)
