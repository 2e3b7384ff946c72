"""Derivatives in a number that a user's function closes over, through solvers, in any order of
transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

KEY = jax.random.key(0)


def through_a_link(c):
    link = lambda z: c * z[0, 0] ** 2 + jnp.tanh(z[0, 0] ** 2)
    model = smi.MultiIndex(link, indices=1, noise=0.3)
    return smi.state_evolution(model, 1.5, key=KEY).overlap[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "slope",
    [
        jax.grad,
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.jit(jax.grad(f)),
        lambda f: lambda c: jax.jvp(f, (c,), (1.0,))[1],
    ],
    ids=["grad", "grad of jit", "jit of grad", "jvp"],
)
def test_an_overlap_has_its_derivative_in_what_a_link_closes_over(slope):
    step = 0.01
    difference = (through_a_link(0.5 + step) - through_a_link(0.5 - step)) / (2 * step)
    # the average over sampled labels has another error at each c: 0.15 % at the default tolerance
    np.testing.assert_allclose(slope(through_a_link)(0.5), difference, rtol=0.02)


def through_a_likelihood(c):
    odds = lambda y, z: jax.nn.log_sigmoid(y * (c * z[0, 0] + 0.3 * z[0, 0] ** 2))
    model = smi.MultiIndex(log_likelihood=odds, outcomes=[-1, 1], indices=1)
    averages, exact = smi.Averages(points=2**9), smi.Iteration(tolerance=1e-9)
    return smi.state_evolution(model, 1.5, key=KEY, averages=averages, iteration=exact).overlap[
        0, 0
    ]


@pytest.mark.slow
def test_an_overlap_has_its_derivative_in_what_a_likelihood_closes_over():
    """Labels are summed over: nothing is drawn that could jump. Tolerance: the step's square."""
    step = 1e-3
    difference = (through_a_likelihood(1 + step) - through_a_likelihood(1 - step)) / (2 * step)
    slope = jax.grad(jax.jit(through_a_likelihood))(1.0)
    np.testing.assert_allclose(slope, difference, rtol=1e-5)


def test_a_link_of_another_value_is_the_same_program():
    model = lambda c: smi.MultiIndex(lambda z: jnp.tanh(c * z[0, 0]), indices=1, noise=0.1)
    structures = {jax.tree.structure(model(jnp.array(c))) for c in (0.5, 1.0)}
    assert len(structures) == 1


def potential_through_a_link(c):
    link = lambda z: c * z[0, 0] ** 2 + jnp.tanh(z[0, 0] ** 2)
    model = smi.MultiIndex(link, indices=1, noise=0.3)
    averages = smi.Averages(512, 4)
    return smi.free_entropy(model, 1.5, 0.5, key=KEY, averages=averages).value


@pytest.mark.slow
def test_the_potential_has_its_derivative_in_what_a_link_closes_over():
    step = 0.01
    at = potential_through_a_link
    difference = (at(0.5 + step) - at(0.5 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(at)(0.5), difference, rtol=0.02)
    np.testing.assert_allclose(jax.jit(jax.grad(at))(0.5), jax.grad(at)(0.5), rtol=1e-8)
