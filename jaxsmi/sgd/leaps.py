r"""Exponents of any link: information and generative ones, and the leaps of the rows that follow.

Equations here [theory: online-sgd, Eq. (75)], z all P·M fields, h_n orthonormal Hermite products:

    information   the least |n| >= 1 with E[y h_n(z)] != 0
    generative    the least |n| >= 1 with E[h_n(z)|y] != 0, that is E[e^{i t·y} h_n(z)] != 0 for
                  some t: what reuse of samples, or a well chosen loss, can see
    leap          of rows K that are known: the least order in the other rows among all such n;
                  its rows join K. The largest leap decides, [theory: online-sgd, section 14]

The coefficients are those of hermite.py, on two grids that tell how far to trust them; functions of
the label are cosines and sines along fixed directions t. More than four fields are averaged over
nets (sampled.py): what is seen is then seen with an error bar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, optional, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.models.index import IndexModel
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import AbstractTeacher
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.sgd.grid import MAX_TOKENS
from jaxsmi.sgd.hermite import coefficients
from jaxsmi.sgd.problem import is_teacher
from jaxsmi.sgd.sampled import NETS, affordable, sampled_coefficients

__all__ = ["Ladder", "Leaps", "leaps"]

_DEGREES = {1: 12, 2: 10, 3: 6, 4: 4}
_DIRECTIONS = 6  # t along which labels are looked at
_CONSTANT = 1e-12  # of the second moment: a function without variance, but for rounding
_SURE = 9.0  # squared coefficients over what two grids differ by, squared


class Ladder(NamedTuple):
    """In which order rows are seen.

    Attributes:
        steps: (order, rows) of each leap, from nothing on.
        complete: Whether all rows are reached; the others have no coefficient up to the degree
            looked at.
        hidden: How large a coefficient may be, over the deviation of what is expanded, that was not
            told from zero: an order below the first step could hide one of that size.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]
    complete: bool
    hidden: float

    @property
    def exponent(self) -> int | None:
        """The order of the first step; None where there is none."""
        return self.steps[0][0] if self.steps else None

    @property
    def leap(self) -> int | None:
        """The largest order of all steps; None where rows are left."""
        return max(order for order, _ in self.steps) if self.complete else None


class Leaps(NamedTuple):
    """What `leaps` returns: the ladder of the labels themselves, and that of functions of them."""

    information: Ladder
    generative: Ladder


@checked(
    model=is_teacher,
    degree=optional(whole()),
    tolerance=scalar(POSITIVE),
    key=optional(random_key),
    samples=whole(),
)
def leaps(
    model: AbstractTeacher,
    *,
    degree: int | None = None,
    tolerance: float = 1e-10,
    key: PRNGKeyArray | None = None,
    samples: int = 2**16,
) -> Leaps:
    r"""Information and generative exponents of a link, and the leaps of its rows one by one.

        information: least |n| with E[y h_n(z)] != 0;   generative: with E[h_n(z)|y] != 0

    Args:
        model: An index model, or a `SequenceSingleIndex`. Gaussian label noise changes nothing and
            is left out; of labels with few outcomes their probabilities are looked at.
        degree: The highest degree of each field, of more than four fields P·M their total order.
            Default 12, 10, 6, 4 for one to four fields, 7, 6, 5, 4 for five to eight, above that
            what 1000 multi-indices allow; 10 000 at most.
        tolerance: A coefficient counts if its square is above this part of the variance, and above
            what a second grid changes of it; a number > 0. Default 1e-10. More than four fields:
            and above its error bar, which one zero among all passes with a risk of 1e-3.
        key: A random key, for more than four fields. Default `jax.random.key(0)`.
        samples: Points for more than four fields, an integer >= 2^10. Default 2^16.

    Returns:
        A `Leaps` of two `Ladder`s with `exponent`, `leap`, `steps`, and what may be `hidden`.

    Raises:
        ValueError: For a matrix model, more than 999 fields, or numbers out of range.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> he3 = smi.MultiIndex(lambda z: z[0, 0] ** 3 - 3 * z[0, 0], indices=1)
        >>> found = smi.sgd.leaps(he3)
        >>> found.information.exponent, found.generative.exponent
        (3, 1)

    Cost:
        Four evaluations of the link at each of 401, 201², 81³ or 61⁴ nodes; of more fields two at
        `samples` points, times the multi-indices.

    Source:
        [theory: online-sgd, Eq. (75)].
    """
    arguments = Arguments()
    allowed = "an index model or a SequenceSingleIndex"
    teacher = arguments.instance("model", model, AbstractTeacher, allowed)
    link, rows, tokens = _link_of(teacher)
    length = rows * tokens
    part = float(arguments.number("tolerance", tolerance, POSITIVE))
    key = jax.random.key(0) if key is None else arguments.key("key", key)
    samples = arguments.count("samples", samples, at_least=2**10)
    usual = _DEGREES[length] if length <= MAX_TOKENS else affordable(length)
    check(usual > 0, "model", f"{length} fields", f"{allowed} of fewer fields")
    highest = arguments.count("degree", usual if degree is None else degree)
    if length > MAX_TOKENS:
        check(
            highest <= usual, "degree", highest, f"1 to {usual}, a total order, of {length} fields"
        )

    def ladder(function: Callable[[Array], Array], stream: PRNGKeyArray) -> Ladder:
        if length <= MAX_TOKENS:
            seen = _significant(function, length, highest, part)
            return _climbed(seen, rows, tokens, part**0.5)
        found = sampled_coefficients(
            function, length, highest, stream, power_of_two(samples // NETS)
        )
        if found.variance <= _CONSTANT * float(np.sum(found.value**2)):
            return _climbed(np.zeros((0, length), int), rows, tokens, 0.0)
        sure = found.sure(part)
        made = _climbed(found.orders[sure], rows, tokens, 0.0)
        below = found.orders.sum(axis=1) < (made.exponent or highest + 1)
        below[0] = False
        hidden = float(np.max(found.hidden, where=below, initial=0.0))
        return made._replace(hidden=hidden)

    return Leaps(ladder(link, key), ladder(_seen(link, length), jax.random.fold_in(key, 1)))


def _link_of(model: AbstractTeacher) -> tuple[Callable[[Array], Array], int, int]:
    """Labels (or probabilities of their outcomes) as a function of the fields (P·M,), P and M."""
    if isinstance(model, SequenceSingleIndex):
        return model.target, 1, model.length
    law = Arguments().instance("model", model, IndexModel, "an index model")
    shape = (law.indices, law.tokens)
    channel = law.channel
    outcomes = channel.outcomes
    if outcomes is None or not channel.noise_size:
        return lambda z: jnp.ravel(channel.link(z.reshape(shape))), *shape
    V = 1e-8 * jnp.eye(shape[0])

    def odds(z: Array) -> Array:
        omega = jnp.broadcast_to(z.reshape(shape), (len(outcomes), *shape))
        return jnp.exp(channel.respond(channel.statistic(outcomes), omega, V).log_partition)

    return odds, *shape


def _seen(link: Callable[[Array], Array], length: int) -> Callable[[Array], Array]:
    """cos and sin of t·y, y over its size at some random fields."""
    points = jnp.asarray(np.random.default_rng(0).standard_normal((256, length)))
    labels = jax.vmap(lambda z: jnp.ravel(link(z)))(points)
    scale = jnp.maximum(jnp.std(labels, axis=0), 1e-12)
    t = np.random.default_rng(1).standard_normal((_DIRECTIONS, labels.shape[1]))
    t = jnp.asarray(t / np.linalg.norm(t, axis=1, keepdims=True))
    sizes = jnp.asarray(np.geomspace(0.3, 3.0, _DIRECTIONS))

    def function(z: Array) -> Array:
        phase = sizes * (t @ (jnp.ravel(link(z)) / scale))
        return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])

    return function


def _significant(
    function: Callable[[Array], Array], length: int, degree: int, tolerance: float
) -> np.ndarray:
    """The multi-indices (n, L) whose coefficients are certainly not zero, without the mean."""
    first, second = (np.asarray(coefficients(function, length, degree, s)) for s in (0.0, 0.5))
    squares = np.sum(first**2, axis=-1)
    changes = np.sum((first - second) ** 2, axis=-1)
    moment = squares.sum()
    variance = moment - squares[(0,) * length]
    if variance <= _CONSTANT * moment:
        return np.zeros((0, length), int)
    sure = squares > np.maximum(tolerance * variance, _SURE * changes)
    sure[(0,) * length] = False
    return np.argwhere(sure)


def _climbed(orders: np.ndarray, rows: int, tokens: int, hidden: float) -> Ladder:
    """Leaps from nothing, over multi-indices (n, P·M)."""
    by_row = orders.reshape(-1, rows, tokens).sum(axis=-1)
    known = np.zeros(rows, bool)
    steps = []
    while not known.all():
        unknown = by_row[:, ~known].sum(axis=1)
        if not (unknown > 0).any():
            break
        least = int(unknown[unknown > 0].min())
        new = (by_row[unknown == least] > 0).any(axis=0) & ~known
        steps.append((least, tuple(int(p) for p in np.flatnonzero(new))))
        known |= new
    return Ladder(tuple(steps), bool(known.all()), hidden)
