"""Functions of a user as pytrees: every way in which a function may hold an array."""

import functools
import gc
import pickle
import weakref

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.core.arrays import ClosedFunction, as_module, check_closure

GLOBAL = jnp.array(2.0)


class Scale:
    def __init__(self, c):
        self.c = c

    def method(self, z):
        return self.c * z

    __call__ = method


class Scaled(eqx.Module):
    c: jax.Array
    function: object

    def __call__(self, z):
        return self.c * self.function(z)


def nested(c):
    def outer(z):
        def inner(y):
            return c * y

        return inner(z)

    return outer


def in_containers(c):
    box = {"values": [c, (1.0, c)]}
    return lambda z: box["values"][1][1] * z


def of_an_object(c):
    scale = Scale(c)
    return lambda z: scale.c * z


def recursive(c):
    def step(z, n=2):
        return c * z if n == 0 else step(z, n - 1)

    return step


FUNCTIONS = {
    "closure": lambda c: lambda z: c * z,
    "default": lambda c: lambda z, c=c: c * z,
    "keyword default": lambda c: lambda z, *, c=c: c * z,
    "nested": nested,
    "recursive": recursive,
    "containers": in_containers,
    "object": of_an_object,
    "bound method": lambda c: Scale(c).method,
    "callable object": Scale,
    "functools.partial": lambda c: functools.partial(lambda a, z: a * z, c),
    "keyword of partial": lambda c: functools.partial(lambda z, a: a * z, a=c),
    "jax Partial": lambda c: jax.tree_util.Partial(lambda a, z: a * z * c / a, c),
    "eqx.Partial": lambda c: eqx.Partial(lambda a, z: a * z * c / a, c),
    "jax.jit": lambda c: jax.jit(lambda z: c * z),
    "eqx.filter_jit": lambda c: eqx.filter_jit(lambda z: c * z),
    "jax.grad": lambda c: jax.grad(lambda z: 0.5 * c * z**2),
    "jax.checkpoint": lambda c: jax.checkpoint(lambda z: c * z),
    "module": lambda c: Scaled(c, lambda z: z),
    "function of a module": lambda c: Scaled(jnp.ones(()), lambda z: c * z),
}


# of each kind of container one; "jax Partial" and "module" are pytrees already
FAST = ("closure", "recursive", "containers", "bound method", "functools.partial", "jax.jit")


@pytest.mark.parametrize("name", slow_but(FUNCTIONS, *FAST))
def test_arrays_of_a_function_are_leaves(name):
    """Derivatives under every transformation, inside a jitted solver with the function as its
    argument."""
    traces, build = [], FUNCTIONS[name]

    @eqx.filter_jit
    def solver(function, z):
        traces.append(1)
        return function(z)

    apply = lambda c: solver(as_module(build(c)), jnp.array(3.0))
    for c in (0.1, 0.2, 0.3):
        apply(jnp.array(c))
    if not hasattr(build(1.0), "__wrapped__"):  # JAX makes new functions of those it wraps
        assert len(traces) == 1
    with jax.checking_leaks():
        slopes = [
            jax.grad(apply)(0.5),
            jax.grad(jax.jit(apply))(0.5),
            jax.jit(jax.grad(apply))(0.5),
        ]
        slopes.append(jax.jvp(apply, (0.5,), (1.0,))[1])
    np.testing.assert_allclose(slopes, 3.0)
    np.testing.assert_allclose(jax.vmap(apply)(jnp.array([1.0, 2.0])), [3.0, 6.0])
    check_closure("link", as_module(build(jnp.ones(()))), jnp.ones(()))


def test_python_numbers_and_numpy_arrays_are_static():
    scaled = lambda c: as_module(lambda z: c * z)
    assert scaled(0.5).template == scaled(0.5).template != scaled(0.25).template
    assert scaled(np.ones(2)).template == scaled(np.ones(2)).template
    assert scaled(np.ones(2)).template != scaled(np.zeros(2)).template
    assert scaled(0.0).template != scaled(-0.0).template
    assert not jax.tree.leaves(scaled(0.5))


def test_globals_of_the_users_modules_are_leaves():
    def link(z):
        return GLOBAL * z

    assert len(jax.tree.leaves(as_module(link))) == 1


def test_functions_without_arrays_are_themselves():
    for function in (jnp.tanh, jax.nn.relu, np.sum, nested):
        assert as_module(function).function is function
        assert as_module(function).template == as_module(function).template
        assert not jax.tree.leaves(as_module(function))
    assert as_module(None) is None


def test_an_object_that_cannot_be_pickled_goes_with_its_function():
    class Cache:
        def __reduce_ex__(self, protocol):
            raise TypeError

    def build():
        cache = Cache()
        function = as_module(lambda z: GLOBAL * z if isinstance(cache, Cache) else None)
        return function, weakref.ref(cache)

    function, cache = build()
    assert float(function(3.0)) == 6.0
    assert cache() is not None
    del function
    gc.collect()
    assert cache() is None


def hidden(c):
    class Local:
        def link(self, z):
            return c * z

    return lambda z: Local().link(z)


def test_a_tracer_that_cannot_be_found_is_an_error():
    def build(c):
        check_closure("link", as_module(hidden(c)), jnp.ones(()))
        return c

    with pytest.raises(ValueError, match=r"^link: got a function that depends on a traced array"):
        jax.grad(build)(1.0)


@pytest.mark.parametrize("name", ["loss", "prox", "starts", "sampler"])
def test_a_hidden_tracer_is_no_derivative_of_zero(name):
    model = smi.links.linear(0.5)

    def with_sampler(function):
        square = lambda y, z: -0.5 * (y - z[0, 0]) ** 2 - 0.5 * jnp.log(2.0 * jnp.pi)
        sampler = lambda key, z: function(z[0, 0])
        smi.MultiIndex(lambda z: z[0, 0], log_likelihood=square, sampler=sampler, indices=1)

    def with_learner(function):
        loss = lambda ŷ, y: 0.5 * jnp.sum((ŷ - y) ** 2)
        given = {
            "loss": {"loss": lambda ŷ, y: function(loss(ŷ, y))},
            "prox": {"loss": loss, "prox": lambda y, omega, V: function(omega)},
            "starts": {"loss": loss, "starts": lambda y, omega: function(omega[None])},
        }
        smi.Erm(ridge=1.0, **given[name]).bind(model)

    def build(c):
        class Local:
            def scaled(self, x):
                return c * x

        use = with_sampler if name == "sampler" else with_learner
        use(lambda x: Local().scaled(x))
        return c

    with pytest.raises(ValueError, match=rf"^{name}: got a function that depends on a traced"):
        jax.grad(build)(1.0)


def test_a_converted_function_survives_pickling():
    function = as_module(lambda z, c=GLOBAL: c * z)
    copy = pickle.loads(cloudpickle.dumps(function))
    assert isinstance(copy, ClosedFunction)
    assert copy.template == function.template
    assert float(copy(3.0)) == 6.0
