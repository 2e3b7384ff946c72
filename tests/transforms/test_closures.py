"""Derivatives in a number that a user's function closes over, through solvers, in any order of
transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import differences

KEY = jax.random.key(0)
SLOPES = {
    "grad": jax.grad,
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "jvp": lambda f: lambda c: jax.jvp(f, (c,), (1.0,))[1],
}


def of_a_link(c):
    link = lambda z: c * z[0, 0] ** 2 + jnp.tanh(z[0, 0] ** 2)
    return smi.MultiIndex(link, indices=1, noise=0.3)


def through_a_link(c):
    return smi.state_evolution(of_a_link(c), 1.5, key=KEY).overlap[0, 0]


def through_a_likelihood(c):
    odds = lambda y, z: jax.nn.log_sigmoid(y * (c * z[0, 0] + 0.3 * z[0, 0] ** 2))
    model = smi.MultiIndex(log_likelihood=odds, outcomes=[-1, 1], indices=1)
    exact = {"averages": smi.Averages(points=2**9), "iteration": smi.Iteration(tolerance=1e-9)}
    return smi.state_evolution(model, 1.5, key=KEY, **exact).overlap[0, 0]


def potential_through_a_link(c):
    return smi.free_entropy(of_a_link(c), 1.5, 0.5, key=KEY, averages=smi.Averages(512, 4)).value


# A function, where, the step of a difference, and how far that is off. The average over sampled
# labels has another error at each c: 0.15 % at the default tolerance. Where labels are summed over
# nothing is drawn that could jump, and the square of the step is what is left.
CASES = [
    *((through_a_link, 0.5, name, 0.01, 0.02) for name in SLOPES),
    (through_a_likelihood, 1.0, "grad of jit", 1e-3, 1e-5),
    *((potential_through_a_link, 0.5, name, 0.01, 0.02) for name in ("grad", "jit of grad")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "at", "slope", "step", "accuracy"), CASES)
def test_a_number_in_a_closure_has_its_derivative(function, at, slope, step, accuracy):
    difference = differences(function, [at], step)[0]
    np.testing.assert_allclose(SLOPES[slope](function)(at), difference, rtol=accuracy)


def test_a_link_of_another_value_is_the_same_program():
    structures = {jax.tree.structure(of_a_link(jnp.array(c))) for c in (0.5, 1.0)}
    assert len(structures) == 1


SIGNS = {
    "a link": lambda noise: smi.MultiIndex(_parity, indices=2, noise=noise),
    "a committee": lambda noise: smi.links.sign_committee(2, noise=noise),
}


def _parity(z):
    return jnp.sign(z[0, 0] * z[1, 0])


@pytest.mark.parametrize("name", SIGNS)
def test_links_of_signs_are_made_inside_jit(name):
    """The labels of the orthants are looked up when the model is made, which jit traced."""
    make = lambda noise: SIGNS[name](noise).channel
    inside, outside = jax.jit(make)(0.5), make(0.5)
    assert all(map(jnp.array_equal, jax.tree.leaves(inside), jax.tree.leaves(outside)))
