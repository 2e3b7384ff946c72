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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
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


def _as_array(x: Any) -> Any:
    # a number that is differentiated may come to a rule as one of Python or NumPy
    return jnp.asarray(x) if isinstance(x, float | np.ndarray | np.generic) else x


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

    @eqx.filter_custom_jvp
    def wrapped(parameters: PyTree, context: PyTree) -> PyTree:
        return solve(parameters, context)

    @wrapped.def_jvp
    def rule(primals: tuple[PyTree, PyTree], tangents: tuple[PyTree, PyTree]) -> tuple:
        parameters, context = jax.tree.map(_as_array, primals)
        answer = wrapped(parameters, context)
        leaves, structure = jax.tree.flatten(eqx.filter(parameters, eqx.is_inexact_array))
        directions = structure.flatten_up_to(tangents[0])
        total = jax.tree.map(jnp.zeros_like, eqx.filter(answer, eqx.is_inexact_array))
        if all(direction is None for direction in directions):
            return answer, total  # `prepare` is costly, and a constant answer needs none
        still = (lambda tree: tree) if twice else frozen
        parameters = still(parameters)
        prepared = prepare(parameters, context, still(answer))
        for position, (leaf, direction) in enumerate(zip(leaves, directions, strict=True)):
            if direction is None:
                continue  # the answer is not differentiated in this array

            def along(unit: Array, position: int = position) -> PyTree:
                units = [unit if k == position else jnp.zeros_like(x) for k, x in enumerate(leaves)]
                return push(parameters, context, prepared, units)

            columns = _columns(along, leaf)
            columns = columns if twice else not_differentiable(columns, leaves)
            flat = jnp.ravel(direction)
            total = jax.tree.map(
                lambda t, c, flat=flat: t + jnp.tensordot(flat, c, axes=1).astype(t.dtype),
                total,
                columns,
            )
        return answer, total

    return wrapped(parameters, frozen(context))


def _columns(along: Callable[[Array], PyTree], leaf: Array) -> PyTree:
    """Tangents along each number of an array, stacked: their product with a direction is linear,
    and so has both modes."""
    basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
    if leaf.size == 1:  # no loop, which outside jit would be compiled anew at each call
        return jax.tree.map(lambda x: x[None], along(basis[0]))
    return lax.map(along, basis)


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
