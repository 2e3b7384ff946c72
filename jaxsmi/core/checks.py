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

import dataclasses
import enum
import functools
import math
import operator
from collections.abc import Sequence
from typing import Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, arithmetic, concrete, theory_dtype

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

_Kind = TypeVar("_Kind")

_REAL = (jnp.floating, jnp.integer, jnp.bool_)
_NAMES = {"U": "words", "S": "words", "O": "objects", "M": "dates", "c": "complex numbers"}


def check(condition: object, name: str, value: object, allowed: str) -> None:
    """Raise a ValueError naming the argument, what came and what is allowed; silent where
    `condition` is traced."""
    if concrete(condition) and not bool(np.all(np.asarray(condition))):
        raise ValueError(f"{name}: got {_shown(value)}; allowed: {allowed}.")


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


def without_nan(tree: PyTree) -> Array:
    """Whether no number of a tree is NaN."""
    leaves = [x for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    known = [x for x in leaves if concrete(x)]
    sound = jnp.asarray(not any(np.isnan(np.asarray(x)).any() for x in known))
    for leaf in leaves:
        if not concrete(leaf):
            sound = sound & ~jnp.any(jnp.isnan(leaf))
    return sound


def _range(value: jax.Array | np.ndarray) -> str:
    """Which numbers a known array has, in words; nothing of one that has none, or very many."""
    if arithmetic(value) is not np or not value.size:
        return ""
    if not any(jnp.issubdtype(value.dtype, kind) for kind in _REAL):
        return f", of {_NAMES.get(value.dtype.kind, value.dtype.name)}"
    numbers = np.asarray(value, float)
    finite = np.isfinite(numbers)
    if not finite.all():
        return f", {np.sum(~finite)} of them not finite"
    return f", from {np.min(numbers):.4g} to {np.max(numbers):.4g}"


def _shown(value: object) -> str:
    """A value as a message shows it: short ones whole, arrays by their shape, tracers by their
    type."""
    if isinstance(value, (jax.Array, np.ndarray)):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"keys of shape {value.shape}"
        if not concrete(value) or value.size > 8:
            return f"an array of shape {value.shape}{_range(value)}"
        return repr(value)
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:100]}.. ({type(value).__name__})"


def _complex(value: object) -> bool:
    """Whether a number or an array is of a complex type."""
    kind = np.asarray(value).dtype if not isinstance(value, jax.Array) else value.dtype
    return bool(jnp.issubdtype(kind, jnp.complexfloating))


def _numeric(value: object) -> bool:
    """Whether a value may stand for numbers: no word, truth value, complex number or None."""
    if value is None or isinstance(value, (str, bytes, bool, np.bool_)):
        return False
    return not any(_complex(leaf) for leaf in jax.tree.leaves(value))


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


@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, the ends left out where `open_low`, `open_high`; infinities
    only if they are allowed."""

    allowed: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    infinite: bool = False

    def holds(self, value: Array) -> Array:
        """Whether all numbers of an array lie inside."""
        xp = arithmetic(value)
        value = xp.asarray(value)
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        finite = ~xp.isnan(value) if self.infinite else xp.isfinite(value)
        return xp.all(above & below & finite)


POSITIVE = Interval("a finite number > 0", low=0.0, open_low=True)
NON_NEGATIVE = Interval("a finite number >= 0", low=0.0)
FRACTION = Interval("a number in [0, 1)", low=0.0, high=1.0, open_high=True)
UNIT_INTERVAL = Interval("a number in (0, 1)", low=0.0, high=1.0, open_low=True, open_high=True)
VARIANCE = Interval("a variance >= 0", low=0.0)
FINITE = Interval("a finite number")
COSINE = Interval("a cosine in (0, 1]", low=0.0, high=1.0, open_low=True)


class Arguments:
    """The arguments of one call: each method checks one, raises or keeps the condition, and returns
    it in its type."""

    def __init__(self) -> None:
        self._conditions: list[Array] = []

    @property
    def valid(self) -> Array:
        """Whether every condition that could not be decided when it was checked holds (inside jit,
        a traced boolean)."""
        return functools.reduce(operator.and_, self._conditions, jnp.asarray(np.True_))

    def condition(self, condition: Array | bool, name: str, value: object, allowed: str) -> None:
        """Any condition: raised where it is known to fail, kept where it is traced."""
        check(condition, name, value, allowed)
        if not concrete(condition):
            self._conditions.append(jnp.all(jnp.asarray(condition)))

    def count(self, name: str, value: object, at_least: int = 1) -> int:
        """A whole number, at least so large."""
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
        number = int(value) if isinstance(value, (int, np.integer)) else at_least
        check(whole and number >= at_least, name, value, f"an integer >= {at_least}")
        return number

    def flag(self, name: str, value: object) -> bool:
        """True or False."""
        check(isinstance(value, (bool, np.bool_)), name, value, "True or False")
        return bool(value)

    def shown(self, value: object) -> bool | None:
        """Of a progress bar: True, False, or None: where somebody looks on."""
        return None if value is None else self.flag("progress", value)

    def choice(self, name: str, value: object, options: Sequence[str]) -> str:
        """One of a few words."""
        check(isinstance(value, str) and value in options, name, value, f"one of {tuple(options)}")
        return str(value)

    def instance(
        self, name: str, value: object, kind: type[_Kind] | tuple[type[_Kind], ...], allowed: str
    ) -> _Kind:
        """An object of a class."""
        if not isinstance(value, kind):
            raise ValueError(f"{name}: got {_shown(value)}; allowed: {allowed}.")
        return value

    def array(
        self,
        name: str,
        value: object,
        allowed: str,
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Finite real numbers, of a shape if one is named; of the theory's precision unless `dtype`
        is given."""
        try:
            check(_numeric(value), name, value, allowed)
            precision = theory_dtype() if dtype is None else dtype
            array = jnp.asarray(value, precision)  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError):
            raise ValueError(f"{name}: got {_shown(value)}; allowed: {allowed}.") from None
        check(shape is None or array.shape == shape, name, value, allowed)
        finite = allowed if "finite" in allowed else f"{allowed}, finite numbers"
        xp = arithmetic(array)
        self.condition(xp.all(xp.isfinite(array)), name, value, finite)
        return array

    def number(self, name: str, value: ArrayLike, interval: Interval) -> Array:
        """One number of an interval, as an array of the theory's precision."""
        try:
            check(_numeric(value), name, value, interval.allowed)
            number = jnp.asarray(value, theory_dtype())
        except (TypeError, ValueError):
            raise ValueError(f"{name}: got {_shown(value)}; allowed: {interval.allowed}.") from None
        check(number.ndim == 0, name, value, f"{interval.allowed} (one; jax.vmap for many)")
        return self.masked(number, interval.holds(number), name, value, interval.allowed)

    def masked(
        self, array: Array, condition: Array | bool, name: str, value: object, allowed: str
    ) -> Array:
        """An array under a condition: raised where it is known to fail; where it is traced, the
        array is NaN, so that a model made inside jit with a wrong number gives no plausible one."""
        self.condition(condition, name, value, allowed)
        return array if concrete(condition) else jnp.where(condition, array, jnp.nan)

    def overlap(
        self, name: str, value: ArrayLike, second_moment: Array, strict: bool = True
    ) -> Array:
        """An overlap Q (P, P), 0 ⪯ Q ⪯ S, or a number times S; `strict`: below S, so that V = S - Q
        > 0."""
        S = second_moment
        try:
            given = jnp.asarray(value, theory_dtype())
        except (TypeError, ValueError):
            raise ValueError(
                f"{name}: got {_shown(value)}; allowed: a number or an array {S.shape}."
            ) from None
        check(given.shape in ((), S.shape), name, value, f"a number or an array of shape {S.shape}")
        xp = arithmetic(given, S)
        given = xp.asarray(given)
        S = xp.asarray(S)
        Q = given * S if given.ndim == 0 else given
        self.condition(xp.all(xp.isfinite(Q)), name, value, "finite numbers")
        rounding = max(1e-10, 8.0 * float(jnp.finfo(Q.dtype).eps))
        size = xp.max(xp.abs(S))
        gap = xp.max(xp.abs(Q - Q.T)) <= rounding * size
        self.condition(gap, name, value, "a symmetric matrix")
        low = xp.all(xp.linalg.eigvalsh(Q) > -rounding * size)
        rest = xp.linalg.eigvalsh(S - Q)
        high = xp.all(rest > 0.0) if strict else xp.all(rest > -1e-9)
        allowed = (
            "0 ⪯ Q, and Q below the second moment of the prior"
            if strict
            else "0 ⪯ Q ⪯ second moment"
        )
        self.condition(low & high, name, value, allowed)
        return jnp.asarray(Q)

    def key(self, name: str, value: object, many: bool = False) -> PRNGKeyArray:
        """A random key (jax.random.key, or the two words of an old one); `many`: or an array of
        keys."""
        allowed = "a key: jax.random.key(0)" + (
            ", or an array of them: jax.random.split(key, 8)" if many else ""
        )
        if not isinstance(value, (jax.Array, np.ndarray)):
            raise ValueError(f"{name}: got {_shown(value)}; allowed: {allowed}.")
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        words = value.dtype == jnp.uint32 and value.shape[-1:] in ((2,), (4,))
        check(typed or words, name, value, allowed)
        dimensions = value.ndim - (0 if typed else 1)
        several = many and dimensions == 1 and len(value) > 0
        check(dimensions == 0 or several, name, value, allowed)
        return jnp.asarray(value) if isinstance(value, np.ndarray) else value
