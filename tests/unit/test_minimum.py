"""The search for a minimum by few dear evaluations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsmi.core.driver import Bar
from jaxsmi.core.results import Result
from jaxsmi.numerics.minimum import minimise


def search(function, start, most=30, scatter=lambda p: 0.0, tolerance=1e-3):
    """The end for log E = function(p); its number is p."""

    def objective(p, extra):
        value, gradient = jax.value_and_grad(function)(p)
        return (value + scatter(p), (value, extra)), gradient

    with Bar(most, "search", False) as bar:
        settings = {"tolerance": tolerance, "allowed": "finite values", "bar": bar}
        return minimise(objective, jnp.asarray(start), None, name="value", **settings)[1]


def well(p):
    """A minimum at p = -1.2 in a function that is level far from it, as an error is in a ridge."""
    return -0.1 * jnp.log1p(jnp.exp(-0.5 * ((p + 1.2) / 2.0) ** 2))


@pytest.mark.parametrize(
    ("start", "most"),
    [(-1.2, 3), (-1.21, 4), (-1.1, 4), (-1.5, 5), (0.0, 6), (-3.0, 7), (2.0, 8), (-7.0, 10)],
)
def test_few_evaluations_find_one_parameter(start, most):
    end = search(well, start)
    assert int(end.result) == Result.SUCCESS
    assert end.message.startswith("Converged: the next step is shorter than the tol")
    assert end.steps <= most
    np.testing.assert_allclose(end.parameters, -1.2, atol=1e-3)


@pytest.mark.parametrize("start", [-4.0, -1.3, 0.0, 2.0])
def test_slopes_decide_where_values_scatter(start):
    """As errors of averages over points that pass a jump: the end does not depend on the start."""
    end = search(well, start, scatter=lambda p: 3e-3 * jnp.sin(1e4 * p))
    assert end.steps <= 9
    np.testing.assert_allclose(end.parameters, -1.2, atol=1e-3)


def test_several_parameters_of_unequal_curvature():
    axes = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (3, 3)))[0]
    hessian = axes @ jnp.diag(jnp.array([0.02, 0.1, 0.5])) @ axes.T
    best = jnp.array([1.0, -2.0, 0.5])
    end = search(lambda p: jnp.log1p(0.5 * (p - best) @ hessian @ (p - best)), jnp.zeros(3))
    assert int(end.result) == Result.SUCCESS
    assert end.steps <= 15
    np.testing.assert_allclose(end.parameters, best, atol=5e-3)


def test_a_step_without_a_value_is_halved():
    """x - log x has no value below zero, where a long step from x = 4 ends."""
    end = search(lambda p: p - 2.0 * jnp.log(p), 6.0)
    assert int(end.result) == Result.SUCCESS
    np.testing.assert_allclose(end.parameters, 2.0, atol=2e-3)
    with pytest.raises(ValueError, match="allowed: finite values"):
        search(jnp.log, -1.0)


def test_the_message_says_why_a_search_ended():
    end = search(lambda p: 1e-12 * p**2, 1.0)
    assert (int(end.result), end.steps) == (Result.SUCCESS, 1)
    assert end.message == "Converged: the next step lowers the objective by less than 1e-08 of it."
    end = search(well, 2.0, most=3)
    assert (int(end.result), end.steps) == (Result.MAX_STEPS, 3)
    assert end.message.startswith("Not converged: take more evaluations")
