"""Programs: told to the compiler at the top, a part of others inside them."""

import jax
import jax.numpy as jnp
import pytest

from jaxsmi.core import programs


@pytest.fixture
def doubled():
    """A program that counts how often it is traced."""
    traces = []

    @programs.program
    def double(x, times=2):
        """Twice."""
        traces.append(1)
        return times * x

    return double, traces


def test_one_trace_for_each_shape(doubled):
    double, traces = doubled
    for size in (3, 3, 4):
        assert double(jnp.ones(size)).tolist() == [2.0] * size
    assert len(traces) == 2
    assert double.__name__ == "double"


@pytest.mark.parametrize(
    "inside", [jax.jit, jax.vmap, jax.grad, lambda f: lambda x: jax.lax.map(f, x[None])[0]]
)
def test_inside_of_transformations(doubled, inside):
    """JAX refuses options of the compiler there; traced arguments or not."""
    double, _ = doubled
    known = jnp.ones(())
    function = inside(lambda x: double(x, times=2.0) + double(known))
    at = jnp.ones(2) if inside is jax.vmap else jnp.ones(())
    assert jnp.all(function(at) == (2.0 if inside is jax.grad else 4.0))


def test_a_compiler_without_such_an_option_is_left_alone(monkeypatch):
    monkeypatch.setattr(programs, "OPTIONS", {jax.default_backend(): {"xla_no_such_option": 1}})
    programs.options.cache_clear()
    assert programs.options() is None
    assert programs.program(lambda x: x + 1)(1) == 2
    programs.options.cache_clear()


def test_the_options_are_known_here():
    programs.options.cache_clear()
    known = programs.options()
    assert (known is None) == (jax.default_backend() not in programs.OPTIONS)
