"""Labels that jump: derivatives along sampled labels miss the jumps, and are NaN or known by another
rule; never a part of the truth [theory: numerics, section 9]."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import differences, slow_but
from jaxsmi.channels.jumps import continuous, steady

KEY, SIGN, SLOW = jax.random.key(0), smi.links.sign(), pytest.mark.slow
FEW = {"key": KEY, "averages": smi.Averages(2**9)}

CONTINUOUS = {
    "relu": (lambda z: jax.nn.relu(z[0, 0]), 1),
    "a steep rise": (lambda z: jnp.tanh(1e5 * z[0, 0]), 1),
    "a root": (lambda z: jnp.sqrt(jnp.abs(z[0, 0])), 1),
    "a cubic": (lambda z: z[0, 0] ** 3, 1),
    "a maximum": (lambda z: jnp.maximum(z[0, 0], z[1, 0]), 2),
}
JUMPING = {
    "a sign": (lambda z: jnp.sign(z[0, 0]), 1),
    "a floor": (lambda z: jnp.floor(z[0, 0]), 1),
    "a small jump on a large slope": (lambda z: 10 * z[0, 0] ** 2 + 0.1 * jnp.sign(z[1, 0]), 2),
    "one entry of a vector": (lambda z: jnp.stack([z[0, 0], jnp.sign(z[0, 0] * z[1, 0])]), 2),
    "an index": (lambda z: jnp.argmax(z[:, 0]).astype(float), 3),
}


@pytest.mark.parametrize("name", [*CONTINUOUS, *JUMPING])
def test_a_jump_is_seen(name):
    link, indices = (CONTINUOUS | JUMPING)[name]
    assert bool(continuous(link, indices, tokens=1)) == (name in CONTINUOUS)


class Scaled(eqx.Module):
    """b⌊z/w - a⌋ of a small piece of a large slope: a and w move its jumps, b does not."""

    a: jax.Array
    b: jax.Array
    w: jax.Array

    def __call__(self, z):
        return 100.0 * z[0, 0] + self.b * jnp.floor(z[0, 0] / self.w - self.a)


def test_numbers_that_move_a_jump_are_told_from_others():
    law = Scaled(*map(jnp.asarray, (0.3, 0.1, 1.5)))
    assert list(map(bool, steady(law, indices=1, tokens=1))) == [False, True, False]
    flat = Scaled(*map(jnp.asarray, (0.3, 0.0, 1.5)))  # no jump that could move
    assert all(map(bool, steady(flat, indices=1, tokens=1)))


class Step(eqx.Module):
    """sign(z - a), a user's link with a number in it."""

    a: jax.Array

    def __call__(self, z):
        return jnp.where(z[0, 0] >= self.a, 1.0, -1.0)


def step_evolution(alpha, a=0.0, noise=0.25):
    model = smi.MultiIndex(Step(jnp.asarray(a)), indices=1, noise=noise)
    return smi.state_evolution(model, alpha, key=KEY, averages=smi.Averages(2**12))


@SLOW
def test_a_users_step_has_none_in_the_place_of_its_jump():
    """That in the noise is the one of signs, whose averages are sums over labels. Tolerance: the
    statistical error of the Jacobian."""

    at = {"argnums": (0, 1)}
    overlap = lambda a, noise: step_evolution(1.0, a, noise).overlap[0, 0]
    in_place, in_noise = jax.grad(overlap, **at)(0.0, 0.25)
    of_error = jax.grad(lambda a, noise: step_evolution(1.0, a, noise).error, **at)(0.0, 0.25)
    assert np.all(np.isnan([in_place, *of_error]))
    exact = lambda noise: smi.state_evolution(smi.links.sign(noise=noise), 1.0, key=KEY)
    slope = jax.grad(lambda noise: exact(noise).overlap[0, 0])(0.25)
    np.testing.assert_allclose(in_noise, slope, rtol=0.06)


def flipped(p, a):
    """Labels 1 beyond |z| = a and -1 below, the other one with probability p."""
    odds = lambda y, z: jnp.log(jnp.where(y * jnp.where(jnp.abs(z[0, 0]) > a, 1, -1) > 0, 1 - p, p))
    return smi.MultiIndex(log_likelihood=odds, outcomes=[-1.0, 1.0], indices=1)


@SLOW
def test_a_threshold_has_a_derivative_in_the_flips_of_labels_that_jump():
    """1/α_c = k² Σ_y 1/P(y), k = (1 - 2p) 2a φ(a), with P(1) = p + (1 - 2p) P(|z| > a). Tolerance:
    that of the integrals."""

    def exact(p, a):
        one = p + (1 - 2 * p) * 2 * jax.scipy.stats.norm.sf(a)
        k = (1 - 2 * p) * 2 * a * jax.scipy.stats.norm.pdf(a)
        return one * (1 - one) / k**2

    threshold = lambda p, a: smi.weak_recovery(flipped(p, a), **FEW).alpha
    value, (in_p, in_a) = jax.value_and_grad(threshold, argnums=(0, 1))(0.1, 0.7)
    np.testing.assert_allclose(value, exact(0.1, 0.7), rtol=3e-3)
    np.testing.assert_allclose(in_p, jax.grad(exact)(0.1, 0.7), rtol=3e-3)
    assert np.isnan(in_a)


@SLOW
def test_an_overlap_has_a_derivative_in_the_flips_of_signs():
    """Against the sums over orthants of `sign_committee(1, flip=)`. Tolerance: the statistical
    error of the Jacobian."""

    def signs(p):
        odds = lambda y, z: jnp.log(jnp.where(y * z[0, 0] > 0, 1 - p, p))
        return smi.MultiIndex(log_likelihood=odds, outcomes=[-1.0, 1.0], indices=1)

    overlap = lambda model: smi.state_evolution(model, 3.0, **FEW).overlap[0, 0]
    exact = jax.grad(lambda p: overlap(smi.links.sign_committee(1, flip=p)))(0.1)
    np.testing.assert_allclose(jax.grad(lambda p: overlap(signs(p)))(0.1), exact, rtol=0.01)


@pytest.mark.slow
def test_the_free_entropy_of_signs_has_the_slope_of_its_equation():
    """dΦ/dq = ½ (F(q) - q) dq̂/dq [theory: multi-index, Eq. (57)]: by the values themselves, whose
    differences at one key carry noise of about .02. Along the sampled labels it was -.48."""

    def potential(q):
        return smi.free_entropy(SIGN, 1.0, q, key=KEY, averages=smi.Averages(2**13)).value

    far, difference = jax.grad(potential)(0.2), differences(potential, [0.2], 0.05)[0]
    assert float(far) > 0.05
    np.testing.assert_allclose(far, difference, atol=0.04)
    stationary = smi.state_evolution(SIGN, 1.0, key=KEY).overlap[0, 0]
    assert abs(float(jax.grad(potential)(stationary))) < 0.01


def generalization(model, overlap):
    return smi.generalization_error(model, overlap, key=KEY).value


def zigzag(slope):
    """Up, down with a slope, up, without noise: the number of fields of a label jumps from 1 to 3."""
    offset = 0.5 * (1 + slope)
    slopes, offsets = jnp.stack([1.0, -slope, 1.0]), jnp.stack([offset, 0.0, -offset])
    return smi.links.piecewise_linear(slopes, offsets, [-0.5, 0.5])


HARDMAX = smi.AttentionIndexed(3, 0.5, "hardmax")
SILENT = {
    "error in alpha": lambda alpha: smi.state_evolution(SIGN, alpha, **FEW).error,
    "generalization error": lambda q: generalization(SIGN, 0.5 * q),
    "free entropy, posterior that jumps": lambda slope: (
        smi.free_entropy(zigzag(0.5 * slope), 0.3, 0.3, **FEW).value
    ),
    "generalization error, matrices": lambda q: generalization(HARDMAX, 0.8 * q),
}


@pytest.mark.parametrize("name", slow_but(SILENT, "generalization error"))
def test_a_derivative_that_is_not_there_is_nan(name):
    """These were zero, or a part of the truth."""
    assert np.isnan(jax.jit(jax.grad(SILENT[name]))(1.0))


def potential_of_signs(variance):
    model = smi.links.sign(prior=smi.priors.Gaussian(variance * jnp.eye(1)))
    return smi.free_entropy(model, 1.0, jnp.array([[0.3]]), **FEW).value


def threshold_of_a_product(c):
    model = smi.links.sign_product(2, prior=smi.priors.Gaussian(jnp.array([[1.0, c], [c, 1.0]])))
    return smi.weak_recovery(model, **FEW).alpha


def noisy_overlap(noise):
    fine = smi.Iteration(tolerance=1e-9)
    end = smi.state_evolution(smi.links.sign(noise=noise), 1.5, iteration=fine, **FEW)
    return end.overlap[0, 0]


def second_step(noise):
    """And the first, which is α = 0; both were NaN."""
    few = {"key": KEY, "averages": smi.Averages(2**10, 8)}
    model = smi.links.sign_committee(2, noise=noise)
    first, second = smi.staircase(model, max_thresholds=2, **few)
    return second.alpha + first.alpha


SLOPES = {  # function, where, step of the difference, tolerance
    # nothing is drawn that could jump: the square of the step
    "free entropy in the prior": (potential_of_signs, 1.0, 1e-3, 1e-5),
    "weak recovery of a product": (threshold_of_a_product, 0.3, 3e-4, 1e-5),
    "state evolution in the noise": (noisy_overlap, 0.5, 5e-4, 1e-5),
    # sums over the values of the label, with noise too
    "staircase of a noisy committee": (second_step, 0.1, 1e-2, 0.01),
    # by the stated Jacobian, of which the error is 2 %; along sampled labels it was twice the truth
    "a user's step in α": (lambda alpha: step_evolution(alpha).overlap[0, 0], 2.0, 0.1, 0.06),
    # smooth labels: the Bayes error falls with q
    "phase retrieval": (lambda q: generalization(smi.links.phase_retrieval(), q), 0.5, 0.01, 1e-3),
}


@SLOW
@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_that_are_there_are_those_of_differences(name):
    function, at, step, rtol = SLOPES[name]
    np.testing.assert_allclose(jax.grad(function)(at), differences(function, [at], step)[0], rtol)
