"""Arrays: which numbers are known now, which are held constant, and the precision of the theory."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

if TYPE_CHECKING:
    PyTree: TypeAlias = Any  # of jaxtyping's a type checker knows nothing, not even that
else:
    from jaxtyping import PyTree

__all__ = [
    "PyTree",
    "arithmetic",
    "concrete",
    "frozen",
    "is_zero",
    "nan_unless",
    "off_zero",
    "theory_dtype",
]

Tree = TypeVar("Tree")

_SINGLE = (
    "channels and fixed points are meant for float64, which is off. Call "
    "jax.config.update('jax_enable_x64', True) at the start of the program; until then errors "
    "below about 1e-3 are not reached, and reported errors are floored there."
)
_warned = False
_FEW = 2**16  # numbers


def arithmetic(*values: PyTree) -> ModuleType:
    """NumPy where values are known to this process and few, jax.numpy elsewhere: outside jit every
    operation of jax.numpy is a program of its own, whose compilation takes longer than all checks
    together."""
    leaves = jax.tree.leaves(values)
    few = sum(np.size(leaf) for leaf in leaves) <= _FEW
    return np if few and concrete(values) and all(map(_here, leaves)) else jnp


def _here(leaf: object) -> bool:
    """Whether a known value can be read by this process: an array may lie on several hosts."""
    alone = not isinstance(leaf, jax.Array)
    return alone or leaf.is_fully_addressable or leaf.is_fully_replicated


def nan_unless(x: Array, *conditions: ArrayLike) -> Array:
    """x where all conditions hold, else NaN; those that are known to hold are not computed with."""
    for condition in conditions:
        if not (concrete(condition) and bool(condition)):
            x = jnp.where(condition, x, jnp.nan)
    return x


def off_zero(x: Array) -> Array:
    """x, at least the smallest normal number of its type: to divide by, or for a logarithm. (A
    literal such as 1e-300 is zero in float32.)"""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


def concrete(value: PyTree) -> bool:
    """True where a value is known now (not a tracer), so that it can be checked and reported by a
    ValueError."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def frozen(tree: Tree) -> Tree:
    """The tree, its numbers held constant under differentiation."""
    return jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def theory_dtype() -> jnp.dtype:
    """float64 where JAX has it enabled; otherwise float32, with one warning: theory in float32 has
    large errors."""
    global _warned
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.dtype("float64")
    if not _warned:
        _warned = True
        warnings.warn(_SINGLE, stacklevel=3)
    return jnp.dtype("float32")


def is_zero(value: object) -> bool:
    """Whether a number is known to be zero: not where it is traced. (Inside jit an array made of a
    known number is traced: ask before making it.)"""
    return concrete(value) and not np.any(np.asarray(value) != 0)
