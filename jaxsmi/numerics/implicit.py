"""Derivatives of solutions by the equation that they satisfy.

A solution has its derivatives by its equation, not by the steps of its solver
[theory: numerics, Eqs. (28), (29)]:

    fixed point V = F(V, θ):   dV = (I - J)^{-1} ∂_θF dθ
    root h(α, θ) = 0:          dα = -(∂_θh/∂_αh) dθ

At a marginal fixed point I - J is singular, and the derivative is NaN. The two rules are written
where the equations are solved: that of fixed points in inference/order_map.py, those of thresholds
in thresholds/weak.py (weak recovery) and thresholds/root.py (all later steps).

Loops whose length depends on the data can be differentiated forwards only, and waste time there;
`differentiable` gives a solver a derivative from its caller, in both modes. By default it is good
for one derivative: a second one is NaN, not a wrong number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, frozen, missing
from jaxsmi.core.driver import one_by_one


def not_differentiable(
    answer: PyTree, parameters: PyTree, unless: bool | Array | list[bool | Array] = False
) -> PyTree:
    """The answer, with NaN for its derivative along any number of `parameters`, which would be a
    silent zero, or a part of the truth.

    Args:
        answer: A tree.
        parameters: A tree of the numbers that it depends on.
        unless: The answer has its derivative, in all numbers or (a list) in each of the arrays.
            Default False.

    Returns:
        The answer.
    """
    leaves, build = numbers_of(answer)
    numbers = numbers_of(parameters)[0]
    known = unless if isinstance(unless, list) else [unless] * len(numbers)
    # NaN times the tangents: jax.grad carries it backwards as well
    weights = [jnp.where(flag, 0.0, missing()) for flag in known]
    zero = sum(map(zero_of_slope, weights, numbers), jnp.zeros(()))
    return build([x + zero.astype(x.dtype) for x in leaves])


@jax.custom_jvp
def zero_of_slope(slope: Array, x: Array) -> Array:
    """Zero, with this slope in x, one number or one for each entry; where x does not move JAX
    leaves the rule out."""
    del x
    return jnp.zeros((), slope.dtype)


# a tangent has the type of its number, which may be float32
zero_of_slope.defjvps(
    None, lambda moved, _, slope, x: jnp.sum(slope * jnp.asarray(moved, slope.dtype))
)


def numbers_of(tree: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """The floating point arrays of a tree, and the function that puts others in their place."""
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(floats)
    return leaves, lambda new: eqx.combine(jax.tree.unflatten(structure, new), rest)


def _as_arrays(leaves: list[Array]) -> list[Array]:
    # a Python number that is differentiated comes as a scalar that is no array
    return [x if eqx.is_array(x) else jnp.asarray(x, float) for x in leaves]


def differentiable(
    solve: Callable[[PyTree, PyTree], PyTree],
    push: Callable[[PyTree, PyTree, PyTree, list[Array]], PyTree],
    parameters: PyTree,
    context: PyTree,
    prepare: Callable[[PyTree, PyTree, PyTree], PyTree] = lambda *given: given[-1],
    *,
    twice: bool = False,
) -> PyTree:
    """`solve(parameters, context)` with a derivative from the caller, in both modes.

    Args:
        solve: The solver; it may run loops whose length depends on the data.
        push: `push(parameters, context, prepared, directions)`, the tangents of the floating point
            arrays of the answer along `directions`, one for each floating point array of
            `parameters`. It is called once for every number of `parameters` that is differentiated.
        parameters: A tree, in whose numbers the answer is differentiated.
        context: A tree of everything else that is traced; its derivative is zero.
        prepare: `prepare(parameters, context, answer)`, called once before all calls of `push`.
            Default: the answer.
        twice: `push` is exact and depends on the answer alone, so that its own derivative is the
            second one. Default False: the second one is NaN.

    Returns:
        The answer of `solve`.
    """
    leaves, _ = numbers_of(parameters)
    dynamic, static = eqx.partition((parameters, context), eqx.is_array)
    context_leaves, structure = jax.tree.flatten(dynamic)

    def arguments(leaves: list[Array], context_leaves: list[Array]) -> tuple[PyTree, PyTree]:
        context_leaves = _as_arrays(context_leaves)
        parameters, context = eqx.combine(jax.tree.unflatten(structure, context_leaves), static)
        return numbers_of(parameters)[1](_as_arrays(leaves)), context

    def primal(leaves: list[Array], context_leaves: list[Array]) -> PyTree:
        return solve(*arguments(leaves, context_leaves))

    def rule(
        primals: tuple[list[Array], list[Array]], tangents: tuple[list[Array], list[Array]]
    ) -> tuple[PyTree, PyTree]:
        leaves, context_leaves = map(_as_arrays, primals)
        answer = wrapped(leaves, context_leaves)
        moving, fixed = eqx.partition(answer, eqx.is_inexact_array)
        freeze = (lambda tree: tree) if twice else frozen
        parameters, context = arguments(freeze(leaves), context_leaves)
        moves = {k: t for k, t in enumerate(tangents[0]) if not isinstance(t, SymbolicZero)}
        # `prepare` is costly, and a constant answer needs none
        prepared = prepare(parameters, context, freeze(answer)) if moves else None
        total = jax.tree.map(jnp.zeros_like, moving)
        for number, direction in moves.items():

            def along(unit: Array, number: int = number) -> PyTree:
                units = [unit if k == number else jnp.zeros_like(x) for k, x in enumerate(leaves)]
                return push(parameters, context, prepared, units)

            # columns of the Jacobian: their product with a direction is linear, and so has both
            # modes
            columns = _columns(along, leaves[number])
            columns = columns if twice else not_differentiable(columns, leaves)
            products = jax.tree.map(partial(jnp.tensordot, jnp.ravel(direction), axes=1), columns)
            total = jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, products)
        none = jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), fixed)
        return answer, eqx.combine(total, none)

    wrapped = jax.custom_jvp(primal)
    wrapped.defjvp(rule, symbolic_zeros=True)
    # everything traced enters as an argument: a closure would leak tracers out of the rule
    constants = [lax.stop_gradient(x) if eqx.is_inexact_array(x) else x for x in context_leaves]
    return wrapped(leaves, constants)


def _columns(push: Callable[[Array], PyTree], leaf: Array) -> PyTree:
    """`push` of the unit vectors of an array, stacked."""
    basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
    if leaf.size > 1:
        return lax.map(push, basis)
    # no loop, which outside jit would be compiled anew at each call
    return jax.tree.map(lambda x: x[None], push(basis[0]))


def derivative(
    function: Callable[[PyTree], PyTree], parameters: PyTree, directions: list[Array]
) -> PyTree:
    """Tangents of the floating point part of `function(parameters)`.

    `directions` are those of the floating point arrays of `parameters`, one for each.
    """
    leaves, put = numbers_of(parameters)
    floats = lambda x: eqx.filter(function(put(x)), eqx.is_inexact_array)
    return jax.jvp(floats, (leaves,), (directions,))[1]


def forwards(
    function: Callable[[PyTree, PyTree], PyTree], parameters: PyTree, context: PyTree
) -> PyTree:
    """`function(parameters, context)`, which JAX can differentiate forwards only (integrals refine
    their rules in loops), with its derivative in `parameters` in both modes."""

    def solve(parameters: PyTree, context: PyTree) -> PyTree:
        return one_by_one(lambda: function(parameters, context), (parameters, context))

    def push(parameters: PyTree, context: PyTree, _: PyTree, directions: list[Array]) -> PyTree:
        along = lambda: derivative(lambda p: function(p, context), parameters, directions)
        return one_by_one(along, (parameters, context))

    return differentiable(solve, push, parameters, context)
