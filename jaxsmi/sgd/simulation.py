"""Runs of online SGD by the exact chain of the overlaps: where they start, what they record."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import results, validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.driver import init_run, run_solver
from jaxsmi.core.results import RUNNING, Result
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.descent.options import Monitor
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.linear_algebra import bartlett, bartlett_size, triangular_root
from jaxsmi.sgd.chain import BlockSolver, OverlapChain, Update
from jaxsmi.sgd.coordinates import Coordinates, coordinates_at, rows_of
from jaxsmi.sgd.problem import Initial, Overlaps, Rule, check_gradient, gram_of, pair_of

_START_STREAM = 2**31 - 1  # stream of the random start; blocks of steps have those from zero on


class RunStart(NamedTuple):
    """Start of runs: overlaps, weights, or what is drawn at random.

    Attributes:
        gram: ρ (k, k) of the fixed rows; None: drawn.
        scale: Size of a random student; None: it is not random.
        overlaps: M (P, k) and Q (P, P) of the student; None: it has weights or is random.
        weights: Weights [W*; W] (P* + P, D); None: overlaps alone.
    """

    gram: Array | None = None
    scale: Array | None = None
    overlaps: Overlaps | None = None
    weights: Array | None = None

    @classmethod
    def of(cls, pair: TeacherStudent, initial: Initial, dimension: int) -> RunStart:
        """Validate the arguments of a call."""
        student, teacher = initial.student, initial.teacher
        words = "'iid', 'orthonormal', ρ (k, k) or weights (P*, D)"
        named = teacher is None or isinstance(teacher, str)
        weights = None if named else validate.array("teacher", teacher, words)
        # an array of another shape is ρ
        if weights is not None and weights.shape != (pair.targets, dimension):
            weights = None
        has_overlaps = pair.spherical or isinstance(student, (tuple, list))
        if not has_overlaps and np.ndim(student) == 2:
            if weights is None or pair.directions:
                rows = f"W* ({pair.targets}, {dimension})"
                allowed = f"{rows} beside weights, of inputs without directions"
                raise ValueError(f"teacher: got {teacher!r}; allowed: {allowed}.")
            allowed = f"a scale, overlaps (M, Q), or weights ({pair.rows}, {dimension})"
            W = validate.array("start", student, allowed, shape=(pair.rows, dimension))
            return cls(weights=jnp.concatenate([weights, W]))
        if weights is None:
            gram = gram_of(pair, teacher)
        else:
            gram = pair.gram.at[: pair.targets, : pair.targets].set(weights @ weights.T / dimension)
            least = jnp.linalg.eigvalsh(gram)[0] >= -1e-9 * jnp.max(jnp.abs(gram))
            allowed = "weights whose Gram matrix fits the overlaps with directions of the inputs"
            check(least & (not pair.spherical), "teacher", teacher, allowed)
        if student is None or not has_overlaps:
            allowed = "a scale > 0, overlaps (M, Q), or weights (P, D)"
            kind = dataclasses.replace(POSITIVE, allowed=allowed)
            scale = validate.number("start", 1.0 if student is None else student, kind)
            # the direction of a model on the sphere has norm one at every D
            drawn = named and teacher != "orthonormal" and not pair.spherical
            return cls(None if drawn else gram, scale)
        # overlaps with a teacher that is still to be drawn would be of another one
        allowed = "'orthonormal', ρ or weights, beside overlaps of a start"
        check(not (named and teacher == "iid"), "teacher", teacher, allowed)
        return cls(gram, overlaps=Overlaps.of(pair, gram, student))


def start_chains(
    pair: TeacherStudent,
    start: RunStart,
    keys: PRNGKeyArray,
    D: int | Array,
    projected: bool,
    moving: int,
) -> Coordinates:
    """Start one chain a key, with zero velocities behind the student's rows."""
    streams = jax.vmap(lambda key: jax.random.fold_in(key, _START_STREAM))(keys)
    one = lambda key: _start(pair, start, key, D, projected)
    runs = jax.vmap(one, out_axes=-1)(streams)
    extra = moving - len(runs.along)  # velocities: optax starts them at zero, too
    padded = lambda x, columns: jnp.pad(x, ((0, extra), (0, columns), (0, 0), (0, 0)))
    return Coordinates(runs.frame, padded(runs.along, 0), padded(runs.across, extra))


def _start(
    pair: TeacherStudent, start: RunStart, key: PRNGKeyArray, D: int | Array, projected: bool
) -> Coordinates:
    """Draw the start of one run, exact at every D [theory: online-sgd, Eqs. (53), (60), (61)].

    iid student:     √D Y = ν N(0, 1) (P, k),  √D Z = ν Bartlett(P, D - k); on the sphere rows over
                     their norm, times ν
    overlaps (M, Q): Y = M L^{-ᵀ},  Z Zᵀ = Q - Y Yᵀ
    weights:         [L 0; Y Z] from a QR decomposition of the rows of W* and W
    """
    P, k = pair.rows, pair.fixed
    if start.weights is not None:
        rows = rows_of(start.weights)
        return Coordinates(rows[:k, :k], rows[k:, :k, None], rows[k:, k:, None])
    frame = _frame(pair, start.gram, jax.random.fold_in(key, 1), D)
    if start.overlaps is not None:
        return coordinates_at(pair, frame, *start.overlaps)
    size = P * k + bartlett_size(P)
    normals = jax.random.normal(key, (size, pair.groups), theory_dtype())
    # projections of iid rows on the fixed rows are normal, and what is left of them is Wishart's
    Y = normals[: P * k].reshape(P, k, -1)
    Z = jax.vmap(lambda x: bartlett(x, P, D - k), -1, -1)(normals[P * k :])
    if projected:
        norm = jnp.sqrt(jnp.sum(Y**2, axis=1) + jnp.sum(Z**2, axis=1))[:, None]
    else:
        norm = jnp.sqrt(jnp.asarray(D, Y.dtype))
    scale = 1.0 if start.scale is None else start.scale
    return Coordinates(frame, scale * Y / norm, scale * Z / norm)


def _frame(pair: TeacherStudent, gram: Array | None, key: PRNGKeyArray, D: int | Array) -> Array:
    """L (k, k) of one run: L Lᵀ is ρ, or W* W*ᵀ/D drawn; directions of the inputs beside it are
    U = R*ᵀ S^{-1} W* + (G - R*ᵀ S^{-1} R*)^{1/2} N(0, 1)."""
    if gram is not None:
        return triangular_root(gram)
    P, K = pair.targets, pair.directions
    teacher = triangular_root(pair.draw_gram(key, dimension=D))
    if not K:
        return teacher
    # the directions of the inputs given the teacher: Gaussian, with the cross moments R*
    S, R, G = pair.gram[:P, :P], pair.gram[:P, P:], pair.gram[P:, P:]
    into = jnp.linalg.solve(S, R).T
    rest = triangular_root(G - into @ R)
    root = jnp.sqrt(jnp.asarray(D, S.dtype))
    size = K * P + bartlett_size(K)
    normals = jax.random.normal(jax.random.fold_in(key, 1), (size,), S.dtype)
    beside = into @ teacher + rest @ normals[: K * P].reshape(K, P) / root
    own = rest @ bartlett(normals[K * P :], K, D - P) / root
    return jnp.block([[teacher, jnp.zeros((P, K))], [beside, own]])


_DEFAULT_RECORDS = 100  # a curve's resolution on paper
_RUNS_TOGETHER = 4096  # runs whose random numbers lie in memory together
_MAX_INTEGER = 2**53  # integers above are no floats: dimensions and steps are both
# growth of the norm of a row beyond which a run has diverged, whatever it does later
_MAX_GROWTH = 100.0


class Simulation(eqx.Module):
    """Runs of online SGD.

    Attributes:
        step: Steps of the records (records,).
        teacher_overlap: M (runs, records, P, k), with the teacher's rows and then with the
            directions of the inputs; NaN after a run has stopped.
        overlap: Q (runs, records, P, P); NaN between rows that see different tokens.
        gram: ρ (runs, k, k), of the fixed rows.
        cosine: Cosines (runs, records, P) up to the symmetries of the model; of a
            `SequenceSingleIndex` ‖(m, e)‖ (runs, records), of an untied network ‖m‖/√L.
        distance: ‖w_p ∓ w*_p‖²/D (runs, records, P), without cancellation; NaN where the student
            has other rows than the teacher.
        end: M where each run ended (runs, P, k).
        final: The cosines there (runs, P) or (runs,).
        steps: Steps taken (runs,).
        reached: The first step at which the cosine is at least `level`, (runs, P) or (runs,); inf:
            never, 0: at the start.
        result: A `Result` code (runs,): SUCCESS (stopped at `target`, or all steps taken where
            there was none), MAX_STEPS, DIVERGED (a row a hundred times as long as at the start, or
            as one) or NONFINITE.
        kappa: κ, the learning rate for each sample.
        dimension: D.
        batch_size: B.
    """

    step: Array
    teacher_overlap: Array
    overlap: Array
    gram: Array
    cosine: Array
    distance: Array
    end: Array
    final: Array
    steps: Array
    reached: Array
    result: Array
    kappa: Array
    dimension: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    @property
    def alpha(self) -> Array:
        """α = τ B/D of the records: samples over dimension."""
        return self.step * self.batch_size / self.dimension

    @property
    def time(self) -> Array:
        """t = κ α of the records (B = 1, c = 1: γ τ/d)."""
        return self.kappa * self.alpha

    @property
    def reached_alpha(self) -> Array:
        """α of the first passage, as `reached`."""
        return self.reached * self.batch_size / self.dimension

    @property
    def message(self) -> str:
        """The outcome of the runs, and the remedies (outside jit and vmap)."""
        return results.message(self.result, "training")


def simulate(
    model: AbstractTeacher,
    key: PRNGKeyArray,
    *,
    dimension: int,
    rate: ArrayLike | Rule,
    alpha: float,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial | None = None,
    student: AbstractTeacher | None = None,
    monitor: Monitor | None = None,
) -> Simulation:
    r"""Run online SGD of a student: fresh samples at every step, exact at any dimension.

        V ← β V + λ W + c Σ_μ ∇ℓ_μ,   W ← W - η V,   α = τ B/D,   t = κ α,   κ = c η

    Args:
        model: The teacher: an index model, or a `SequenceSingleIndex` (rows on the sphere,
            w ← √d (w - γ ∇ℓ)/‖w - γ ∇ℓ‖).
        key: A random key, or keys (runs,) for several runs at once: the answer of each depends on
            its own key alone.
        dimension: The dimension D, an integer >= k + n + min(P, B M): k rows of the teacher and
            directions of the inputs, n rows that move (P of the student, twice that with momentum).
        rate: Learning rate η > 0, or one for each row (P,); or a `Rule` with batches, momentum,
            weight decay, projection and another loss.
        alpha: Samples over dimension of a run, at most: τ = α D/B steps.
        start: Scale of a random student; or overlaps (M, Q); of a `SequenceSingleIndex` m or
            (m, e_1, .., e_K); or an `Initial` that has a teacher, too. Default: random weights of
            norm one.
        student: Another index model of as many tokens. Default: the model.
        monitor: Steps between two records (`every`, default a hundred records); the cosine `target`
            at which a run stops, once every row has it; the `level` of the first passage `reached`;
            `progress`. A `smi.Monitor`.

    Returns:
        A `Simulation`: `cosine` (runs, records, P) at `alpha`, `reached_alpha`, M and Q; the
        cosines where a run stopped are in `final` (its records after that are NaN), its outcome in
        `message`. Cosines are up to the symmetries of the student (`MultiIndex(symmetry=)`).

    Raises:
        ValueError: For a number out of range, an unknown word, a student or a loss that does not
            fit, a matrix model, a start that no weights have, or a link without a gradient.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, keys = smi.links.phase_retrieval(), jax.random.split(jax.random.key(0), 8)
        >>> rule = smi.sgd.Rule(0.04, projection="sphere")
        >>> runs = smi.sgd.simulate(model, keys, dimension=10**6, rate=rule, alpha=0.01)
        >>> runs.cosine.shape
        (8, 101, 1)

    Cost:
        Microseconds a step of a run, many at once, at any D.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (5), (33) to (35), (50) to (61)].
    """
    rule = Rule.of(rate)
    pair = pair_of(model, student, rule.gradient.loss)
    keys = validate.key("key", key, many=True)
    if jnp.issubdtype(keys.dtype, jnp.uint32):  # old-style keys
        keys = jax.random.wrap_key_data(keys)
    keys = keys.reshape(-1)
    dimension = validate.count("dimension", dimension, at_most=_MAX_INTEGER)
    monitor = validate.settings("monitor", monitor, Monitor, "a smi.Monitor")
    unused = (monitor.test, monitor.record, monitor.patience) == (None, None, None)
    check(unused, "monitor", monitor, "every, target, level and progress alone")
    update = _update(pair, rule, dimension, monitor)
    least = pair.fixed + update.moving + min(pair.rows, update.batch * pair.tokens)
    allowed = f"an integer >= {least}: k = {pair.fixed} fixed rows, {update.moving} that move"
    check(dimension >= least, "dimension", dimension, allowed)
    run_start = RunStart.of(pair, Initial.of(start), dimension)
    steps = _steps(alpha, update.batch, dimension)
    every = max(-(-steps // _DEFAULT_RECORDS), 1) if monitor.every is None else monitor.every
    check_gradient(pair)
    # D is an array wherever a drawn teacher allows it: another one compiles nothing
    D = dimension if pair.sized else jnp.asarray(dimension)
    begin = eqx.filter_jit(start_chains)(pair, run_start, keys, D, update.projected, update.moving)
    parts = []
    for first in range(0, len(keys), _RUNS_TOGETHER):
        own = slice(first, first + _RUNS_TOGETHER)
        part = jax.tree.map(lambda x, own=own: x[..., own], begin)
        chain = OverlapChain.of(update, dimension, steps, part)
        label = "SGD" if monitor.progress else None
        parts.append(_run_together(chain, keys[own], steps, every, label))
    runs = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    # parts of the start and the rule that were out of range inside jit are NaN
    valid = validate.valid((rule, monitor, run_start))
    masked = lambda x: jnp.where(valid, x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.inexact) else x
    runs = jax.tree.map(masked, runs)
    runs["result"] = jnp.where(valid, runs["result"], int(Result.INVALID))
    return Simulation(
        **runs,
        step=jnp.minimum(jnp.arange(runs["cosine"].shape[1]) * every, steps),
        # rows with several rates: that of the fastest
        kappa=jnp.max(rule.per_sample(dimension)),
        dimension=dimension,
        batch_size=update.batch,
    )


def _update(pair: TeacherStudent, rule: Rule, dimension: int, monitor: Monitor) -> Update:
    """The update of a rule in dimension D."""
    P, B = pair.rows, rule.batch_size
    allowed = f"a finite number > 0, or one for each row ({P},)"
    check(rule.rate.shape in ((), (P,)), "rate", rule.rate, allowed)
    check(jnp.all(rule.rate > 0), "rate", rule.rate, allowed)
    rate = jnp.broadcast_to(rule.rate, (P,))
    decay = rule.weight_decay
    infinite = jnp.asarray(np.inf, theory_dtype())
    return Update(
        pair=pair,
        rate=rate,
        weight=jnp.asarray(1.0 / rule.gradient.divisor(B, dimension), theory_dtype()),
        momentum=rule.momentum,
        decay=None if decay is None else decay * B / (rate * dimension),
        level=jnp.asarray(monitor.level, theory_dtype()),
        stop=infinite if monitor.target is None else jnp.asarray(monitor.target, theory_dtype()),
        batch=B,
        repeats=rule.gradient.repeats,
        projected=pair.spherical or rule.projection == "sphere",
        moving=P if rule.momentum is None else 2 * P,
    )


def _steps(alpha: float, batch: int, dimension: int) -> int:
    allowed = "a finite number > 0, samples over dimension (known outside of jit)"
    number = float(validate.instance("alpha", alpha, (int, float, np.number), allowed))
    check(np.isfinite(number) and number > 0 and alpha is not True, "alpha", alpha, allowed)
    # α = τ B/D of a whole τ comes with the rounding of its quotient
    steps = max(int(np.ceil(number * dimension / batch * (1.0 - 1e-14) - 1e-9)), 1)
    check(steps <= _MAX_INTEGER, "alpha", alpha, f"at most {_MAX_INTEGER} steps")
    return steps


def _run_together(
    chain: OverlapChain, keys: PRNGKeyArray, steps: int, every: int, label: str | None
) -> dict[str, Array]:
    """Runs whose random numbers lie in memory together: the arrays with an axis of runs."""
    update = chain.update
    records = -(-steps // every)  # after that of the start; the last may be early
    blocks = BlockSolver(chain, keys, jnp.asarray(every), records)
    start = init_run(blocks, 0)
    unit = chain.block * len(keys)
    run = run_solver(blocks, start, -(-steps // chain.block), label=label, unit=unit).state
    state, history = run.state, run.history
    P = update.pair.rows
    if steps % every:
        # the last record is due before its turn
        last = chain.observe(state, chain.max_steps)
        history = {name: past.at[-1].set(last[name]) for name, past in history.items()}
    frames = lambda Y, Z: Coordinates(chain.start.frame, Y, Z)
    positions = jax.vmap(frames)(history["along"], history["across"])
    end = frames(state.along[:P], state.across[:P])
    # the end beside the records: a run may stop between two of them
    everything = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), positions, end)
    front = lambda x: jnp.moveaxis(x, -1, 0)
    M, Q, cosine, distance = map(front, _measured(update, everything))
    size = jnp.diagonal(Q, axis1=-2, axis2=-1)
    # a start near zero grows by any factor to reach the teacher
    first = jnp.maximum(size[:, 0], 1.0)
    # without a target every run ends as it was asked to
    unmet = jnp.where(jnp.isinf(update.stop), int(Result.SUCCESS), int(Result.MAX_STEPS))
    result = jnp.where(state.result == RUNNING, unmet, state.result)
    grown = jnp.any(size[:, -1] > _MAX_GROWTH**2 * first, axis=-1) & (result != Result.NONFINITE)
    return {
        "teacher_overlap": M[:, :-1],
        "overlap": Q[:, :-1],
        "gram": front(end.gram()),
        "cosine": cosine[:, :-1],
        "distance": distance[:, :-1],
        "end": M[:, -1],
        "final": cosine[:, -1],
        "steps": state.steps,
        "reached": front(state.reached),
        "result": jnp.where(grown, int(Result.DIVERGED), result),
    }


@eqx.filter_jit
def _measured(update: Update, positions: Coordinates) -> tuple[Array, Array, Array, Array]:
    """M, Q, cosines and distances of records."""

    def one(x: Coordinates) -> tuple[Array, Array, Array, Array]:
        P = update.pair.rows
        distance = x.distance(P, update.pair.targets)
        return x.teacher_overlap(P), x.overlap(P), update.agreement(x), distance

    return jax.vmap(one)(positions)
