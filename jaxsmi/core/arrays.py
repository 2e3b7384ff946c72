"""Precision of the theory, and values that may be traced."""

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

Tree = TypeVar("Tree")

_SINGLE = (
    "channels and fixed points are meant for float64, which is off. Call smi.setup() at the start "
    "of the program; until then errors below about 1e-3 are not reached, and reported errors are "
    "floored there."
)
_warned = False
# up to so many numbers NumPy on the host is faster than compiling an operation of jax.numpy
_FEW = 2**16


def arithmetic(*values: PyTree) -> ModuleType:
    """NumPy where values are known to this process and few, jax.numpy elsewhere: outside jit every
    operation of jax.numpy is a program of its own, which takes longer to compile than all checks
    together."""
    leaves = jax.tree.leaves(values)
    few = sum(np.size(leaf) for leaf in leaves) <= _FEW
    return np if few and concrete(values) and all(map(_addressable, leaves)) else jnp


def _addressable(leaf: object) -> bool:  # an array may lie on several hosts
    alone = not isinstance(leaf, jax.Array)
    return alone or leaf.is_fully_addressable or leaf.is_fully_replicated


def nan_unless(x: Array, *conditions: ArrayLike) -> Array:
    """x where all conditions hold, else NaN."""
    for condition in conditions:
        if not (concrete(condition) and bool(condition)):
            x = jnp.where(condition, x, nan())
    return x


def clamp_to_tiny(x: Array) -> Array:
    """x, at least the smallest normal number of its type, so that logs and quotients stay finite.
    (A literal such as 1e-300 is zero in float32.)"""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


def nan() -> float:
    """The mark of unknown numbers: NaN, or infinity with jax_debug_nans, which stops at NaN."""
    debugging = jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]
    return jnp.inf if debugging else jnp.nan


def not_recorded(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """An array of `nan()`, in the default precision where the dtype has none."""
    return jnp.full(shape, nan(), dtype if jnp.issubdtype(dtype, jnp.inexact) else float)


def not_recorded_where(condition: ArrayLike, x: Array) -> Array:
    """x, marked as `not_recorded` where the condition holds."""
    return jnp.where(condition, nan(), x)


def concrete(value: PyTree) -> bool:
    """True where no leaf is a tracer, so that values can be validated."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def frozen(tree: Tree) -> Tree:
    """The tree, constant under differentiation."""
    return jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def theory_dtype() -> jnp.dtype:
    """float64 where JAX has it enabled; else float32, with one warning."""
    global _warned
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.dtype("float64")
    if not _warned:
        _warned = True
        warnings.warn(_SINGLE, stacklevel=3)
    return jnp.dtype("float32")


def is_zero(value: object) -> bool:
    """True where the number is known to be zero. Inside jit call it before jnp.asarray, which
    traces known numbers."""
    return concrete(value) and not np.any(np.asarray(value) != 0)
