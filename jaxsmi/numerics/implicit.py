r"""Derivatives of solutions by the equation that they satisfy, not by the steps of a solver.

Equations here [theory: numerics, Eqs. (23), (24)]:

    fixed point V = F(V, θ):   dV = (I - J)^{-1} ∂_θF dθ
    root h(α, θ) = 0:          dα = -(∂_θh/∂_αh) dθ

The two rules themselves are written where the equations are solved: the fixed point's in
inference/order_map.py, the thresholds' in thresholds/weak.py (weak recovery) and thresholds/root.py
(all later steps).

Loops whose length depends on the data can be differentiated forwards only, and waste time there;
`differentiable` gives a solver a derivative from its caller, in both modes. By default it is good
for one derivative: a second one is NaN, not a wrong number.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, frozen, nan


def not_differentiable(answer: PyTree, parameters: PyTree, unless: bool | Array = False) -> PyTree:
    """The answer, with NaN for its derivative along any number of `parameters`, which would be a
    silent zero, or a part of the truth.

    Args:
        answer: A tree.
        parameters: A tree of the numbers that it depends on.
        unless: The answer has its derivative. Default False.

    Returns:
        The answer.
    """
    leaves, build = numbers_of(answer)
    numbers = numbers_of(parameters)[0]
    # NaN times the tangents: jax.grad carries it backwards as well
    weight = jnp.where(unless, 0.0, nan())
    return build(_with_weight(leaves, numbers, weight)) if numbers else answer


def numbers_of(tree: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """The floating point arrays of a tree, and the function that puts others in their place."""
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(floats)
    return leaves, lambda new: eqx.combine(jax.tree.unflatten(structure, new), rest)


def _unchanged(parameters: PyTree, context: PyTree, answer: PyTree) -> PyTree:
    del parameters, context
    return answer


def _as_arrays(leaves: list[Array]) -> list[Array]:
    # a Python number that is differentiated comes as a scalar that is no array
    return [x if eqx.is_array(x) else jnp.asarray(x, float) for x in leaves]


def differentiable(
    solve: Callable[[PyTree, PyTree], PyTree],
    push: Callable[[PyTree, PyTree, PyTree, list[Array]], PyTree],
    parameters: PyTree,
    context: PyTree,
    prepare: Callable[[PyTree, PyTree, PyTree], PyTree] = _unchanged,
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
        directions = tangents[0]
        answer = wrapped(leaves, context_leaves)
        moving, fixed = eqx.partition(answer, eqx.is_inexact_array)
        still = (lambda tree: tree) if twice else frozen
        parameters, context = arguments(still(leaves), context_leaves)
        # `prepare` is costly, and a constant answer needs none
        moves = any(not isinstance(direction, SymbolicZero) for direction in directions)
        prepared = prepare(parameters, context, still(answer)) if moves else None
        along = lambda units: push(parameters, context, prepared, units)
        protect = still if twice else lambda columns: not_differentiable(columns, leaves)
        zero = jax.tree.map(jnp.zeros_like, moving)
        total = _tangents(along, protect, leaves, directions, zero)
        none = jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), fixed)
        return answer, eqx.combine(total, none)

    wrapped = jax.custom_jvp(primal)
    wrapped.defjvp(rule, symbolic_zeros=True)
    # everything traced enters as an argument: a closure would leak tracers out of the rule
    constants = [lax.stop_gradient(x) if eqx.is_inexact_array(x) else x for x in context_leaves]
    return wrapped(leaves, constants)


def _tangents(
    along: Callable[[list[Array]], PyTree],
    protect: Callable[[PyTree], PyTree],
    leaves: list[Array],
    directions: list[Array],
    total: PyTree,
) -> PyTree:
    """`total` plus the tangents along `directions`, by `along` for each number that moves;
    `protect`: what becomes of the derivatives of these tangents."""
    for position, (leaf, direction) in enumerate(zip(leaves, directions, strict=True)):
        if isinstance(direction, SymbolicZero):
            continue  # the answer is not differentiated in this array

        def one(unit: Array, position: int = position) -> PyTree:
            units = [unit if k == position else jnp.zeros_like(x) for k, x in enumerate(leaves)]
            return along(units)

        # columns of the Jacobian: their product with a direction is linear, and so has both modes
        basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
        if leaf.size > 1:
            columns = lax.map(one, basis)
        else:  # no loop, which outside jit would be compiled anew at each call
            columns = jax.tree.map(lambda x: x[None], one(basis[0]))
        flat = jnp.ravel(direction)
        total = jax.tree.map(
            lambda t, c, flat=flat: t + jnp.tensordot(flat, c, axes=1).astype(t.dtype),
            total,
            protect(columns),
        )
    return total


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

    def push(parameters: PyTree, context: PyTree, _: PyTree, directions: list[Array]) -> PyTree:
        return derivative(lambda p: function(p, context), parameters, directions)

    return differentiable(function, push, parameters, context)


def with_slope(value: Array, x: Array, slope: Array) -> Array:
    """A number that does not depend on x, with ⟨slope, dx⟩ for its derivative in x."""
    still = lambda x, slope: jnp.zeros((), slope.dtype)
    push = lambda x, slope, _, directions: jnp.sum(slope * directions[0])
    return value + differentiable(still, push, x, slope)


@jax.custom_jvp
def _with_weight(tree: PyTree, leaves: list[Array], weight: Array) -> PyTree:
    """The tree; wherever `leaves` move, its derivative has the weight, 0 or NaN, added."""
    del leaves, weight
    return tree


@_with_weight.defjvp
def _with_weight_jvp(
    primals: tuple[PyTree, list[Array], Array], tangents: tuple[PyTree, list[Array], Array]
) -> tuple[PyTree, PyTree]:
    tree, _, weight = primals
    moved = weight * sum(jnp.sum(x) for x in tangents[1])
    return tree, jax.tree.map(lambda x: x + moved.astype(x.dtype), tangents[0])
