"""Runs of online SGD, by the exact chain of the overlaps or of whole weight vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, is_zero, theory_dtype
from jaxsmi.core.border import (
    EXACT,
    anything,
    checked,
    choice,
    either,
    flag,
    function,
    numbers,
    optional,
    random_keys,
    scalar,
    whole,
)
from jaxsmi.core.checks import (
    FRACTION,
    NON_NEGATIVE,
    POSITIVE,
    UNIT_INTERVAL,
    Arguments,
    Interval,
    check,
)
from jaxsmi.core.codes import Result
from jaxsmi.descent.options import REDUCTIONS, divisor
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.sgd import chain, vectors
from jaxsmi.sgd.coordinates import Coordinates
from jaxsmi.sgd.problem import (
    beginning_of,
    check_gradient,
    is_overlaps,
    is_point,
    is_teacher,
    overlaps_of,
    pair_of,
)
from jaxsmi.sgd.runs import Rule, Setting, Simulation
from jaxsmi.sgd.starts import begun

__all__ = ["per_sample_rate", "simulate"]

_RECORDS = 100
_UNTIL = Interval("a number in (0, 1], or None", low=0.0, high=1.0, open_low=True)
_METHODS = {"reduced": chain.run, "full": vectors.run}
_TOGETHER = "one of the two: the older names, of a SequenceSingleIndex, or the others"


@checked(
    model=is_teacher,
    key=random_keys,
    dimension=whole(1, EXACT),
    rate=optional(numbers("finite numbers > 0, one or (P,)", POSITIVE)),
    alpha=optional(scalar(POSITIVE)),
    steps=optional(whole(at_most=EXACT)),
    student=optional(is_teacher),
    loss=optional(function("a function of (prediction, label)")),
    batch_size=whole(),
    reduction=optional(choice(*REDUCTIONS)),
    momentum=scalar(FRACTION),
    weight_decay=scalar(NON_NEGATIVE),
    projection=optional(choice("sphere")),
    init=either("a scale, overlaps (M, Q), or weights (P, D)", numbers(""), is_overlaps),
    teacher=anything,
    encoding=anything,
    repeats=whole(),
    level=optional(scalar(UNIT_INTERVAL)),
    until=optional(scalar(_UNTIL)),
    every=optional(whole(at_most=EXACT)),
    method=choice("reduced", "full"),
    progress=optional(flag),
    gamma=optional(numbers("finite numbers > 0, one or (P,)", POSITIVE)),
    m=optional(is_point),
    e=is_point,
    eta=optional(scalar(UNIT_INTERVAL)),
)
def simulate(
    model: AbstractTeacher,
    key: PRNGKeyArray,
    *,
    dimension: int,
    rate: ArrayLike | None = None,
    alpha: float | None = None,
    steps: int | None = None,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    batch_size: int = 1,
    reduction: str | None = None,
    momentum: ArrayLike = 0.0,
    weight_decay: ArrayLike = 0.0,
    projection: str | None = None,
    init: ArrayLike | tuple[ArrayLike, ArrayLike] = 1.0,
    teacher: str | ArrayLike | None = None,
    encoding: ArrayLike | None = None,
    repeats: int = 1,
    level: ArrayLike | None = None,
    until: ArrayLike | None = None,
    every: int | None = None,
    method: str = "reduced",
    progress: bool = False,
    gamma: ArrayLike | None = None,
    m: ArrayLike | None = None,
    e: ArrayLike = 0.0,
    eta: ArrayLike | None = None,
) -> Simulation:
    r"""Online SGD of a student: fresh samples at every step, exact at any dimension.

        V ← β V + λ W + c Σ_μ ∇ℓ_μ,   W ← W - η V,   α = τ B/D,   t = κ α,   κ = c η

    Args:
        model: The teacher: an index model, or a `SequenceSingleIndex` (rows on the sphere, losses
            added up, w ← √d (w - γ ∇ℓ)/‖w - γ ∇ℓ‖).
        key: A random key, or keys (runs,) for several runs at once: the answer of each depends on
            its own key alone.
        dimension: The dimension D, an integer >= k + n + min(P, B M): k rows of the teacher and
            directions of the inputs, n rows that move (P of the student, twice that with momentum).
        rate: Learning rate η > 0, or one for each row (P,).
        alpha: Samples over dimension, at most; or
        steps: the most steps (batches) of a run, an integer >= 1.
        student: Another index model of as many tokens. Default: the model.
        loss: ℓ(prediction, label) of a sample. Default ‖ŷ - y‖².
        batch_size: B, samples of a step. Default 1.
        reduction: "mean" (c = 1/B), "sum" (1) or "sum/D" (1/D). Default "mean".
        momentum: β of heavy-ball momentum, in [0, 1). Default 0.
        weight_decay: λ >= 0. Default 0.
        projection: "sphere": every row of W keeps the norm it started with. Default None.
        init: Scale of a random student; or overlaps (M, Q) with M (P, k), Q (P, P); or weights
            (P, D), with `teacher` weights. Default 1.
        teacher: "iid" (drawn by the prior, its Gram matrix fluctuates by √(2/D)), "orthonormal"
            (the expected Gram matrix), a Gram matrix ρ (k, k), or weights (P*, D). Default "iid",
            with given overlaps "orthonormal".
        encoding: E (M, K) along K orthonormal directions, orthogonal to the teacher, that all
            tokens have: beside `inputs=` of the model. Default None.
        repeats: Updates on each batch. Default 1.
        level: The agreement (cosine) of the first passage `reached`, a number in (0, 1). Default
            1/2.
        until: A run stops once every agreement is as large, a number in (0, 1]. Default: after all
            steps.
        every: Steps between two records, an integer >= 1. Default: a hundred records.
        method: "reduced", the exact chain of the overlaps, or "full", whole weight vectors
            (`reached` and `until` then to the resolution of the records). Default "reduced".
        progress: Whether to show a bar. Default False.
        gamma: Another name of `rate`, that of the article of `SequenceSingleIndex`.
        m: Semantic overlap at the start of a `SequenceSingleIndex`, as for `risk`. Default: weights
            uniform on the sphere.
        e: Positional overlaps at the start, with `m` only. Default 0.
        eta: Another name of `level` there: a number above the start.

    Returns:
        A `Simulation`: `cosine` (runs, records, P) at `alpha`, `reached_alpha`, M and Q; what a run
        had when it stopped is in `final` (its records after that are NaN), what became of it in
        `message`. Cosines are up to the symmetries of the student (`MultiIndex(symmetry=)`).

    Raises:
        ValueError: For a number out of range, an unknown word, a student or a loss that does not
            fit, a matrix model, a start that no weights have, or a link without a gradient.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, keys = smi.links.phase_retrieval(), jax.random.split(jax.random.key(0), 8)
        >>> rule = {"rate": 0.04, "projection": "sphere"}
        >>> runs = smi.sgd.simulate(model, keys, dimension=10**6, alpha=0.01, every=5000, **rule)
        >>> runs.cosine.shape
        (8, 3, 1)

    Cost:
        Microseconds a step of a reduced run, many at once, at any D; B M D random numbers a step
        of a full one.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (5), (33) to (35), (50) to (61)].
    """
    arguments = Arguments()
    pair = pair_of(arguments, model, student, loss, encoding)
    keys = _keys(key)
    batch = batch_size
    check(rate is None or gamma is None, "gamma", gamma, _TOGETHER)
    check(level is None or eta is None, "eta", eta, _TOGETHER)
    start = overlaps_of(arguments, model, pair, init, m, e)
    asked = _Asked(
        rate if gamma is None else gamma,
        "rate" if gamma is None else "gamma",
        reduction,
        momentum,
        weight_decay,
        projection,
    )
    rule = _rule(arguments, pair, asked, batch, repeats, dimension)
    height = _level(arguments, level if eta is None else eta, eta is not None)
    rule = eqx.tree_at(lambda r: (r.level, r.stop), rule, (height, _stop(arguments, until)))
    _large_enough(arguments, rule, dimension)
    beginning = beginning_of(arguments, pair, start, init, teacher, dimension, encoding is not None)
    count = _steps(arguments, alpha, steps, batch, dimension)
    records = max(-(-count // _RECORDS), 1) if every is None else arguments.count("every", every)
    setting = Setting(rule, dimension, count, records)
    runner = _METHODS[method]
    size = dimension if pair.sized else jnp.asarray(dimension)  # a number compiles nothing anew
    check_gradient(pair)
    begin = eqx.filter_jit(begun)(pair, beginning, keys, size, rule.projected, rule.moving)
    _above(arguments, rule, begin, eta)
    runs = runner(setting, begin, keys, progress)
    return _masked(runs, arguments.valid)


@checked(
    rate=numbers("finite numbers > 0", POSITIVE),
    batch_size=whole(),
    reduction=choice(*REDUCTIONS),
    dimension=optional(whole(1, EXACT)),
)
def per_sample_rate(
    rate: ArrayLike,
    batch_size: int = 1,
    reduction: str = "mean",
    dimension: int | None = None,
) -> Array:
    r"""The learning rate for each sample, which decides the limit of many dimensions.

        κ = c η,   c = 1/B ("mean"), 1 ("sum"), 1/D ("sum/D")

    Args:
        rate: η > 0, a number or one for each row.
        batch_size: B. Default 1.
        reduction: "mean", "sum" or "sum/D", as of `smi.train`. Default "mean".
        dimension: D, for "sum/D".

    Returns:
        κ.

    Raises:
        ValueError: For numbers out of range, an unknown word, or a missing dimension.

    Example:
        >>> import jaxsmi as smi
        >>> float(smi.sgd.per_sample_rate(15.0, batch_size=500))
        0.03

    Cost:
        None.

    Source:
        [theory: online-sgd, Eq. (62)].
    """
    arguments = Arguments()
    eta = arguments.array("rate", rate, "finite numbers > 0")
    arguments.condition(jnp.all(eta > 0), "rate", rate, "finite numbers > 0")
    batch = batch_size
    word = reduction
    if word == "sum/D" or dimension is not None:
        dimension = arguments.count("dimension", dimension)
    return jnp.where(arguments.valid, eta / divisor(word, batch, dimension or 1), jnp.nan)


class _Asked(NamedTuple):
    """The update that a call asks for, as a user writes it; `name`: what the rate was called."""

    rate: ArrayLike | None
    name: str
    reduction: str | None
    momentum: ArrayLike
    decay: ArrayLike
    projection: str | None


def _rule(
    arguments: Arguments,
    pair: TeacherStudent,
    asked: _Asked,
    batch: int,
    repeats: int,
    dimension: int,
) -> Rule:
    """The update that was asked for; of a spherical pair rows are projected and losses added up."""
    rate, name, reduction, momentum, decay, projection = asked
    P = pair.rows
    allowed = f"a finite number > 0, or one for each row ({P},)"
    eta = arguments.array(name, rate, allowed)
    check(eta.shape in ((), (P,)), name, rate, allowed)
    eta = arguments.masked(eta, jnp.all(eta > 0), name, rate, allowed)
    usual = "sum" if pair.spherical else "mean"
    word = arguments.choice("reduction", usual if reduction is None else reduction, REDUCTIONS)
    check(projection in (None, "sphere"), "projection", projection, "'sphere' or None")
    none = is_zero(momentum)
    beta = arguments.number("momentum", momentum, FRACTION)
    shrink = arguments.number("weight_decay", decay, NON_NEGATIVE)
    infinite = jnp.asarray(np.inf, theory_dtype())
    return Rule(
        pair=pair,
        rate=jnp.broadcast_to(eta, (P,)),
        weight=jnp.asarray(1.0 / divisor(word, batch, dimension), theory_dtype()),
        momentum=None if none else beta,
        decay=None if is_zero(decay) else shrink,
        level=infinite,
        stop=infinite,
        batch=batch,
        repeats=repeats,
        projected=pair.spherical or projection == "sphere",
        moving=P if none else 2 * P,
    )


def _keys(key: PRNGKeyArray) -> PRNGKeyArray:
    """Typed keys (runs,), from one key or several, of the old kind or the new."""
    if jnp.issubdtype(key.dtype, jnp.uint32):
        key = jax.random.wrap_key_data(key)
    return jnp.reshape(key, (1,)) if key.ndim == 0 else key


def _steps(
    arguments: Arguments, alpha: float | None, steps: int | None, batch: int, dimension: int
) -> int:
    """The steps of a run, as many as asked or those of α."""
    check((alpha is None) != (steps is None), "steps", steps, "one of steps= and alpha=")
    if alpha is None:
        return arguments.count("steps", steps)
    known = isinstance(alpha, (int, float, np.number)) and np.isfinite(alpha) and alpha > 0
    check(known, "alpha", alpha, "a finite number > 0, samples over dimension")
    return max(int(np.ceil(float(alpha) * dimension / batch - 1e-9)), 1)


def _stop(arguments: Arguments, until: ArrayLike | None) -> Array:
    """The level at which a run stops, inf where nothing was asked."""
    if until is None:
        return jnp.asarray(np.inf, theory_dtype())
    return arguments.number("until", until, _UNTIL)


def _level(arguments: Arguments, level: ArrayLike | None, older: bool) -> Array:
    """The level of the first passage, 1/2 unless another is asked for."""
    name = "eta" if older else "level"
    return arguments.number(name, 0.5 if level is None else level, UNIT_INTERVAL)


def _large_enough(arguments: Arguments, rule: Rule, dimension: int) -> None:
    """Raise a ValueError for a D that has no room for the rows and the gradient outside of them."""
    pair = rule.pair
    least = pair.fixed + rule.moving + min(pair.rows, rule.batch * pair.tokens)
    allowed = f"an integer >= {least}: k = {pair.fixed} fixed rows, {rule.moving} that move"
    arguments.condition(dimension >= least, "dimension", dimension, allowed)


def _above(arguments: Arguments, rule: Rule, start: Coordinates, eta: ArrayLike | None) -> None:
    """Raise a ValueError for an `eta` that a given start is above already."""
    if eta is None:
        return
    size = jnp.max(rule.agreement(start))
    shown = f", {float(size):.3g}" if concrete(size) else ""
    arguments.condition(size < rule.level, "eta", eta, f"a number above the start{shown}")


def _masked(runs: Simulation, valid: Array) -> Simulation:
    """The same runs, NaN and INVALID where an argument was out of range inside jit."""
    numbers = lambda r: (r.teacher_overlap, r.overlap, r.agreement, r.distance, r.end, r.final)
    nothing = tuple(jnp.where(valid, x, jnp.nan) for x in numbers(runs))
    runs = eqx.tree_at(numbers, runs, nothing)
    result = jnp.where(valid, runs.result, int(Result.INVALID))
    return eqx.tree_at(lambda r: r.result, runs, result)
