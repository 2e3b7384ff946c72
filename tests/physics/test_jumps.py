"""Labels that jump: derivatives along sampled labels miss the jumps, and are NaN or known by another
rule; never a part of the truth [theory: numerics, section 9]."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import differences
from jaxsmi.channels.jumps import continuous

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


class Step(eqx.Module):
    """sign(z - a), a user's link with a number in it."""

    a: jax.Array

    def __call__(self, z):
        return jnp.where(z[0, 0] >= self.a, 1.0, -1.0)


def step_evolution(alpha, a=0.0, noise=0.25):
    model = smi.MultiIndex(Step(jnp.asarray(a)), indices=1, noise=noise)
    return smi.state_evolution(model, alpha, key=KEY, averages=smi.Averages(2**12))


@SLOW
def test_a_users_step_has_a_derivative_in_alpha_by_the_stated_jacobian():
    """Along the sampled labels it was .349, twice the truth. Tolerance: the statistical error of the
    Jacobian, 2 % at 4096 points."""
    overlap = lambda alpha: step_evolution(alpha).overlap[0, 0]
    difference = differences(overlap, [2.0], 0.1)[0]
    np.testing.assert_allclose(jax.grad(overlap)(2.0), difference, rtol=0.06)


@SLOW
def test_a_users_step_has_none_in_its_own_numbers():
    def parts(a, noise):
        solution = step_evolution(1.0, a, noise)
        return solution.overlap[0, 0], solution.error

    slopes = jax.jacrev(parts, argnums=(0, 1))(0.5, 0.25)
    assert np.all(np.isnan(jax.tree.leaves(slopes)))


@SLOW
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


def correlated(c):
    return smi.links.sign_product(2, prior=smi.priors.Gaussian(jnp.array([[1.0, c], [c, 1.0]])))


def signs_of_variance(v):
    return smi.links.sign(prior=smi.priors.Gaussian(v * jnp.eye(1)))


def generalization(model, overlap):
    return smi.generalization_error(model, overlap, key=KEY).value


def noisy_overlap(noise):
    fine = smi.Iteration(tolerance=1e-9)
    end = smi.state_evolution(smi.links.sign(noise=noise), 1.5, iteration=fine, **FEW)
    return end.overlap[0, 0]


HARDMAX = smi.AttentionIndexed(3, 0.5, "hardmax")
SILENT = {
    "error in alpha": lambda alpha: smi.state_evolution(SIGN, alpha, **FEW).error,
    "generalization error": lambda q: generalization(SIGN, 0.5 * q),
    "generalization error, matrices": lambda q: generalization(HARDMAX, 0.8 * q),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_derivative_that_is_not_there_is_nan(name):
    """These were zero, or a part of the truth."""
    assert np.isnan(jax.jit(jax.grad(SILENT[name]))(1.0))


SUMMED = {
    "free entropy in the prior": lambda v: (
        smi.free_entropy(signs_of_variance(v), 1.0, jnp.array([[0.3]]), **FEW).value
    ),
    "weak recovery of a product": lambda c: smi.weak_recovery(correlated(0.3 * c), **FEW).alpha,
    "state evolution in the noise": lambda c: noisy_overlap(0.5 * c),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[SLOW] * (n != "free entropy in the prior")) for n in SUMMED]
)
def test_signs_that_are_summed_over_have_a_derivative_in_numbers_of_the_model(name):
    """Nothing is drawn that could jump. Tolerance: the square of the step."""
    function = SUMMED[name]
    difference = differences(function, [1.0], 1e-3)[0]
    np.testing.assert_allclose(jax.grad(function)(1.0), difference, rtol=1e-5)


def test_smooth_labels_keep_theirs():
    """The Bayes error of phase retrieval falls with q: the derivative is that of the differences."""

    error = lambda q: generalization(smi.links.phase_retrieval(), q)
    np.testing.assert_allclose(jax.grad(error)(0.5), differences(error, [0.5], 0.01)[0], rtol=1e-3)
