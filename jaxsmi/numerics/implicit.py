"""TODO numerics.implicit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array


@jax.custom_jvp
def with_slope(x: Array, factor: Any) -> Array:
    """x, its derivative times `factor`: NaN says that there is none."""
    del factor
    return x


@with_slope.defjvp
def _with_slope_jvp(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    return primals[0], primals[1] * tangents[0]


def numbers_of(tree: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """The floating point arrays of a tree, and the function that puts others in their place."""
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(floats)
    return leaves, lambda new: eqx.combine(jax.tree.unflatten(structure, new), rest)


def differentiable(
    solve: Callable[[Any, Any], Any],
    push: Callable[[Any, Any, Any, Any], Any],
    parameters: Any,
    context: Any,
    prepare: Callable[[Any, Any, Any], Any] = lambda parameters, context, answer: answer,
) -> Any:
    """`solve(parameters, context)` with the derivative `push(parameters, context, prepared, directions)`: its tangents.

    `prepare(parameters, context, answer)` is called once, and `push` once for every number of `parameters` that is
    differentiated: reverse mode works where these functions run loops whose length depends on the data (which JAX
    differentiates forwards only). First derivatives only: a second one is NaN. Everything traced that the functions need
    is in `context`, which is held fixed.
    """
    leaves, _ = numbers_of(parameters)
    kept, static = eqx.partition((parameters, context), eqx.is_array)
    context_leaves, structure = jax.tree.flatten(kept)

    def both(leaves: list[Array], context_leaves: list[Array]) -> tuple[Any, Any]:
        parameters, context = eqx.combine(jax.tree.unflatten(structure, context_leaves), static)
        return numbers_of(parameters)[1](leaves), context

    def primal(leaves: list[Array], context_leaves: list[Array]) -> Any:
        return solve(*both(leaves, context_leaves))

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (leaves, context_leaves), (directions, _) = primals, tangents
        out = wrapped(leaves, context_leaves)
        moving, fixed = eqx.partition(out, eqx.is_inexact_array)
        total = jax.tree.map(jnp.zeros_like, moving)
        held = lax.stop_gradient(leaves)
        parameters, context = both(held, context_leaves)
        moves = any(not isinstance(direction, SymbolicZero) for direction in directions)
        prepared = prepare(parameters, context, lax.stop_gradient(out)) if moves else None
        for position, (leaf, direction) in enumerate(zip(leaves, directions, strict=True)):
            if isinstance(direction, SymbolicZero):
                continue  # nobody asks how the answer depends on this array

            def along(unit: Array, position: int = position) -> Any:
                units = [unit if k == position else jnp.zeros_like(x) for k, x in enumerate(held)]
                return push(parameters, context, prepared, units)

            basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
            # one number: no loop, which outside jit would be compiled anew at each call
            columns = (
                lax.map(along, basis)
                if leaf.size > 1
                else jax.tree.map(lambda x: x[None], along(basis[0]))
            )
            columns = _first_order_only(columns, leaves)
            total = jax.tree.map(
                lambda t, c, d=direction: t + jnp.tensordot(jnp.ravel(d), c, axes=1), total, columns
            )
        tangent_of_fixed = jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), fixed)
        return out, eqx.combine(total, tangent_of_fixed)

    wrapped = jax.custom_jvp(primal)
    wrapped.defjvp(rule, symbolic_zeros=True)
    frozen = [lax.stop_gradient(x) if eqx.is_inexact_array(x) else x for x in context_leaves]
    return wrapped(leaves, frozen)


def derivative(function: Callable[[Any], Any], parameters: Any, directions: list[Array]) -> Any:
    """Tangents of the floating point part of `function(parameters)` along `directions`, one for each of its arrays."""
    leaves, put = numbers_of(parameters)
    return jax.jvp(
        lambda x: eqx.filter(function(put(x)), eqx.is_inexact_array), (leaves,), (directions,)
    )[1]


@jax.custom_jvp
def _first_order_only(tree: Any, leaves: list[Array]) -> Any:
    return tree


@_first_order_only.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    tree, _ = primals
    moved = sum(jnp.sum(x) for x in tangents[1])
    return tree, jax.tree.map(lambda x: jnp.nan * moved + jnp.zeros_like(x), tree)
