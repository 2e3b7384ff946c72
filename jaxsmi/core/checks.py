"""Checks of arguments: one declared predicate for each kind, one sentence for each refusal.

Outside jit a wrong argument raises a ValueError that names it, says what came and what is allowed,
before anything is compiled. Inside jit, where values are not known yet, the same condition is kept,
and `Arguments.valid` says whether all of them held: the caller turns its answer into NaN with the
code INVALID. Both come from the same line, so that they cannot differ:

    arguments = Arguments()
    alpha = arguments.number("alpha", alpha, POSITIVE)
    steps = arguments.count("max_steps", max_steps)
    ...
    answer = jnp.where(arguments.valid, answer, jnp.nan)

What a part cannot do at all (a link without a posterior, a matrix without directions) is an
`Ability` that it lacks: the part says so in its method `refusal`, and `require` raises it.
"""

from __future__ import annotations

import enum
import functools
import operator
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import arithmetic, concrete
from jaxsmi.core.validate import (
    COSINE,
    FINITE,
    FRACTION,
    NON_NEGATIVE,
    POSITIVE,
    UNIT_INTERVAL,
    VARIANCE,
    Interval,
    check,
    valid,
)

__all__ = [
    "COSINE",
    "FINITE",
    "FRACTION",
    "NON_NEGATIVE",
    "POSITIVE",
    "UNIT_INTERVAL",
    "VARIANCE",
    "Ability",
    "Arguments",
    "Interval",
    "check",
    "check_rows",
    "positive_definite",
    "require",
    "without_nan",
]

without_nan = valid


def check_rows(labels: Array, shape: tuple[int, ...], name: str = "data.labels") -> None:
    """Raise a ValueError for labels whose rows, one a sample, have another shape; where only axes
    of size one differ it says how to reshape them."""
    given = labels.shape
    wanted = (*given[:1], *shape)
    alike = [n for n in given[1:] if n != 1] == [n for n in shape if n != 1]
    size = ", ".join(map(str, wanted))
    remedy = f": take labels.reshape({size})" if alike and given[1:] != shape else ""
    row = f"rows of shape {shape}" if shape else "one number a sample, shape (N,)"
    check(given[1:] == shape, name, labels, f"{row}{remedy}")


def positive_definite(V: Array) -> Array:
    """Whether a symmetric matrix is positive definite (a traced or concrete boolean)."""
    xp = arithmetic(V)
    V = xp.asarray(V)
    return xp.all(xp.linalg.eigvalsh(0.5 * (V + V.T)) > 0.0)


class Ability(enum.Enum):
    """What a model or channel may or may not be able to do."""

    INFERENCE = "a posterior of the fields: message passing, state evolution, free entropy"
    AVERAGES = "runs from different starts whose estimates can be averaged"
    DIRECTIONS = (
        "directions that grow one by one: weak recovery, staircase, first-order transitions"
    )
    SPECTRAL = "rows W (P, D) that a matrix of the inputs estimates"


class Able(Protocol):
    """A part that knows what it cannot do."""

    def refusal(self, ability: Ability) -> str | None:
        """Why the ability is missing, with the remedy; None where it is there."""
        ...


def require(part: Able, ability: Ability) -> None:
    """Raise a ValueError, with the part's own sentence, where it lacks an ability."""
    reason = part.refusal(ability)
    if reason is not None:
        raise ValueError(reason)


class Arguments:
    """The arguments of one call, by the converters of `core.validate`, with the conditions that
    could not be decided. Deprecated: call `core.validate` in the body of a public function."""

    def __init__(self) -> None:
        self._conditions: list[Array] = []

    @property
    def valid(self) -> Array:
        """Every condition that could not be decided when it was checked holds."""
        return functools.reduce(operator.and_, self._conditions, jnp.asarray(np.True_))

    def condition(self, condition: Array | bool, name: str, value: object, allowed: str) -> None:
        """Any condition: raised where it is known to fail, kept where it is traced."""
        check(condition, name, value, allowed)
        if not concrete(condition):
            self._conditions.append(jnp.all(jnp.asarray(condition)))

    def _kept(self, x: Array) -> Array:
        if not concrete(x):
            self._conditions.append(valid(x))
        return x

    count = staticmethod(validate.count)
    flag = staticmethod(validate.flag)
    choice = staticmethod(validate.choice)
    instance = staticmethod(validate.instance)
    key = staticmethod(validate.key)

    def shown(self, value: object) -> bool | None:
        """Of a progress bar: True, False, or None for a terminal only."""
        return None if value is None else self.flag("progress", value)

    def array(
        self,
        name: str,
        value: object,
        allowed: str,
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Finite real numbers, of a shape if one is named."""
        return self._kept(
            validate.array(name, value, allowed, shape=shape, dtype=dtype, empty=True)
        )

    def number(self, name: str, value: ArrayLike, interval: Interval) -> Array:
        """One number of an interval."""
        return self._kept(validate.number(name, value, interval))

    def masked(
        self, array: Array, condition: Array | bool, name: str, value: object, allowed: str
    ) -> Array:
        """An array under a condition; where it is traced and fails, NaN."""
        self.condition(condition, name, value, allowed)
        return array if concrete(condition) else jnp.where(condition, array, jnp.nan)

    def overlap(
        self, name: str, value: ArrayLike, second_moment: Array, strict: bool = True
    ) -> Array:
        """An overlap Q (P, P), 0 ⪯ Q ⪯ S."""
        return self._kept(validate.overlap(name, value, second_moment, strict))
