r"""State evolution: what message passing does as D → ∞, and where it ends.

Equations here [TCDKZ25; theory: multi-index, Eqs. (43) to (48)], S the second moment of the prior:

    Q̂ = α · channel.response(Q),   Q ← prior.overlap(Q̂)        (Gaussian prior: Q̂ (I + Q̂)^{-1})

Undamped message passing at iteration t has the overlap Q^t. The iteration is carried on
V = S - Q, which stays accurate when it goes to zero (`overlap_map`). Where the overlap is one
number and both functions are explicit, as for matrix models, a root takes its place (`inversion`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import arithmetic, frozen, is_zero, nan_unless
from jaxsmi.core.border import anything, checked, flag, numbers, optional, random_key, scalar, whole
from jaxsmi.core.checks import FRACTION, POSITIVE, Arguments, check
from jaxsmi.core.codes import INACCURATE_SHARE, Result
from jaxsmi.core.driver import Run, drive, ready
from jaxsmi.core.results import LearnerSolution, Solution
from jaxsmi.inference.continuation import continued, noisy_models
from jaxsmi.inference.inversion import inverted
from jaxsmi.inference.learner_evolution import Settings, Start, evolved, truth_of
from jaxsmi.inference.matrix_learner import matrix_evolved
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.learners.base import AbstractLearner, learner_of
from jaxsmi.learners.matrix_erm import MatrixErm
from jaxsmi.models.base import AbstractModel, is_model, model_argument
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.fixed_point import Iterate
from jaxsmi.numerics.nets import power_of_two

__all__ = ["state_evolution"]

_MARGIN = 1e-3  # a spectral radius within this of one is a threshold: no derivative there

_START = 1e-3
_SAMPLES = 8192
_RANDOMISATIONS = 8
_TOLERANCE = 1e-4
_FINE = 1e-8  # of a learner, relative: accelerated steps get there at no cost


@checked(
    model=is_model,
    alpha=scalar(POSITIVE),
    key=optional(random_key),
    learner=anything,
    q0=optional(numbers("a number, or Q (P, P)")),
    m0=optional(numbers("a number, or M (P, P*)")),
    v0=optional(numbers("a number, or V (P, P)")),
    b0=optional(numbers("a number, or B (P, K)", empty=True)),
    samples=optional(whole()),
    randomisations=optional(whole(2)),
    max_steps=whole(),
    tolerance=optional(scalar(POSITIVE)),
    newton=flag,
    side_information=scalar(FRACTION),
    noises=anything,
    progress=optional(flag),
)
def state_evolution(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    learner: AbstractLearner | None = None,
    q0: ArrayLike | None = None,
    m0: ArrayLike | None = None,
    v0: ArrayLike | None = None,
    b0: ArrayLike | None = None,
    samples: int | None = None,
    randomisations: int | None = None,
    max_steps: int = 300,
    tolerance: ArrayLike | None = None,
    newton: bool = True,
    side_information: ArrayLike = 0.0,
    noises: ArrayLike | None = None,
    progress: bool = False,
) -> Solution:
    r"""Bayes-optimal state evolution: the overlap that GAMP reaches at α, with its error bar.

    Q̂ = α E Σ_m g gᵀ,  Q ← prior.overlap(Q̂), started at Q = `q0`.

    The functions of models of one matrix are explicit: the fixed point is then a root, without
    random points or an iteration. `q0`, `samples`, `randomisations` and `tolerance` must be left
    out. Two layers of `AttentionIndexed` are solved under an ansatz (`model.metric.ansatz`, also a
    warning): overlaps between the layers are those of their means.

    Args:
        model: Any model with a channel.
        alpha: Sample complexity, a number > 0: N/D for index models, n/d² or n/(dL) for matrices.
        learner: Who learns, if not Bayes: `smi.Erm` or `smi.Mismatched`; of a matrix
            `smi.MatrixErm`. Default None.
        key: Random key of the outer average, common random numbers: two calls with one key differ
            smoothly. Matrix models need none.
        q0: Starting overlap, a number (times the second moment S) or (P, P), 0 ⪯ Q ≺ S. A small
            one is uninformed, one near S informed. Default 1e-3, beside what the prior's mean
            tells; of a learner the identity.
        m0, v0, b0: With a learner, M (P, P*), V (P, P) and B (P, K) of the start, or numbers: M
            times the teacher's directions, shared evenly (0: uninformed), V times the identity.
            Default 0.8, 0.5, 0.
        samples: Points of the outer average, over all nets. Default 8192; of a learner 16384.
        randomisations: Independent nets, whose spread is the statistical error. Default 8.
        max_steps: Step budget; for matrix models the steps of the history. Default 300.
        tolerance: Largest distance to the fixed point, entry by entry. Default 1e-4; of a learner
            the largest relative residual, default 1e-8.
        newton: Whether Newton steps (of a learner: accelerated ones) end the iteration. False gives
            the plain undamped trajectory; for matrix models that from q̂ = 0, and their history is
            empty otherwise. Default True.
        side_information: Strength λ in [0, 1) of a direct observation of the signal, which adds
            λ/(1-λ) to Q̂, as in `gamp`; λ = 1/D is what chance tells a run of dimension D about a
            direction that is not learned. Must be 0 for matrix models. Default 0.
        noises: Of a noiseless link without a channel: label noises Δ from which V is extrapolated
            to Δ = 0, as in `weak_recovery`; the error of that is in `stderr`. `history`, `steps`
            and `rho` are those of the last. Default None.
        progress: Whether to show a bar on stderr (not under jit). Default False.

    Returns:
        A `Solution` with `overlap` Q, its error `stderr` (statistical, and what `tolerance` leaves
        open; NaN where not converged),
        `covariance` V, plug-in `error`, `rho` (spectral radius of the map), and `history` with
        one entry a step ("step", "overlap", "covariance", "residual"). Its `result` is one of
        SUCCESS, RECOVERED, MARGINAL, MAX_STEPS, INACCURATE, NONFINITE, INVALID.
        With a learner a `LearnerSolution`, with `teacher_overlap` M, `direction_overlap` B, losses,
        `energy`, `stability`, and the codes UNSTABLE and DIVERGED.
        `overlap`, `covariance` and `error` have one derivative, forwards and backwards, in α and
        in every array of the model, dV = (I - J)^{-1} ∂F: NaN where the fixed point is marginal
        or was not reached, for the `error` of links that jump, and in the numbers of those whose
        average is along sampled labels (not in α). Matrix models have two, with a learner one.

    Raises:
        ValueError: For an argument out of its range, or a model without inference. Under jit the
            answer is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> solution = smi.state_evolution(smi.links.linear(0.5), 1.0, key=jax.random.key(0))
        >>> round(float(solution.overlap[0, 0]), 4)  # q = q̂/(1 + q̂), q̂ = α/(1 - q + Δ)
        0.5

    Cost:
        `samples` posteriors a step: 8192 of two-layer attention take about 0.3 s on one core.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (42) to (48), (70) to (72)]; matrix models
        [theory: attention-indexed, Eq. (27)].
    """
    bayes = learner is None and noises is None
    model = model_argument(model, "inference" if bayes else None)
    arguments = Arguments()
    alpha = arguments.number("alpha", alpha, POSITIVE)
    given = _Given(
        start=Start(q0, m0, v0, b0),
        samples=samples,
        randomisations=randomisations,
        max_steps=max_steps,
        tolerance=tolerance,
        newton=newton,
        side_information=side_information,
        progress=progress,
    )
    check(learner is None or noises is None, "noises", noises, "None with a learner")
    if isinstance(learner, MatrixErm):
        return _of_matrix_learner(model, alpha, learner, key, given, arguments)
    if learner is not None:
        return _of_learner(model, alpha, learner, key, given, arguments)
    for name, value in {"m0": m0, "v0": v0, "b0": b0}.items():
        check(value is None, name, value, "None without a learner=: Bayes has M = Q and V = S - Q")
    if noises is not None:
        steps, models = noisy_models(arguments, model, noises)
        key = arguments.key("key", key)
        return continued(model, steps, [_run(m, alpha, key, given, arguments) for m in models])
    if model.channel.explicit:
        matrix_model = cast(MatrixModel, model)  # no other channel is explicit
        return _of_matrix(matrix_model, alpha, key, given, arguments)
    return _run(model, alpha, arguments.key("key", key), given, arguments)[1]


class _Given(NamedTuple):
    """The arguments of `state_evolution` that say where and how the iteration goes."""

    start: Start
    samples: int | None
    randomisations: int | None
    max_steps: int
    tolerance: ArrayLike | None
    newton: bool
    side_information: ArrayLike
    progress: bool

    def sizes(self, arguments: Arguments, default: int, images: int) -> tuple[int, int]:
        """Points of each rule of the average, with their `images`, and how many rules."""
        rules = arguments.count(
            "randomisations", _default(self.randomisations, _RANDOMISATIONS), at_least=2
        )
        total = arguments.count("samples", _default(self.samples, default), at_least=images * rules)
        return total // rules, rules

    def limit(self, arguments: Arguments, default: float) -> Array:
        """The tolerance."""
        return arguments.number("tolerance", _default(self.tolerance, default), POSITIVE)


def _run(
    model: AbstractModel, alpha: Array, key: PRNGKeyArray, given: _Given, arguments: Arguments
) -> tuple[OverlapMap, Solution]:
    """`state_evolution` of a model whose response is an average over random points, and its map."""
    if model.metric.ansatz is not None:
        warnings.warn(model.metric.ansatz, stacklevel=4)
    points, rules = given.sizes(arguments, _SAMPLES, 2)
    limit = given.limit(arguments, _TOLERANCE)
    strength = arguments.number("side_information", given.side_information, FRACTION)
    strength = arithmetic(strength).asarray(strength)
    S = model.prior.second_moment(model.indices)
    xp = arithmetic(S)
    S = xp.asarray(S)
    known = xp.asarray(model.prior.mean_overlap(model.indices))
    Q0 = arguments.overlap("q0", _default(given.start.overlap, known + _START * (S - known)), S)
    # outside jit all of this holds; inside, a bad value becomes a bad α: NaN and the code INVALID
    overlap_map = OverlapMap(
        model,
        nan_unless(alpha, arguments.valid, validate.valid(model)),
        key,
        power_of_two(max(points, 2)),
        rules,
        jnp.asarray(strength / (1.0 - strength)),
    )
    # derivatives come from the fixed point, not from the way to it
    V0 = lax.stop_gradient(jnp.asarray(S - arithmetic(S, Q0).asarray(Q0)))
    steps = given.max_steps
    iteration = frozen(overlap_map).iteration(
        V0, max_steps=steps, tolerance=limit, newton=given.newton
    )
    label = f"state evolution, α={float(overlap_map.alpha):g}" if given.progress else None
    end = drive(iteration, ready(iteration, steps), steps, label=label)
    return overlap_map, _solution(overlap_map, end)


def _of_matrix(
    model: MatrixModel,
    alpha: Array,
    key: PRNGKeyArray | None,
    given: _Given,
    arguments: Arguments,
) -> Solution:
    """`state_evolution` of a matrix model."""
    sampling = {
        "q0": given.start.overlap,
        "samples": given.samples,
        "randomisations": given.randomisations,
        "tolerance": given.tolerance,
    }
    _refuse_for_matrices(arguments, sampling, given.side_information)
    key = None if key is None else arguments.key("key", key)
    alpha = nan_unless(alpha, arguments.valid, validate.valid(model))
    return inverted(model, alpha, key, history_steps=0 if given.newton else given.max_steps)


def _of_learner(
    model: AbstractModel,
    alpha: Array,
    learner: AbstractLearner,
    key: PRNGKeyArray | None,
    given: _Given,
    arguments: Arguments,
) -> LearnerSolution:
    """`state_evolution` with a learner."""
    student, teacher = learner_of(learner, model, arguments)
    none = is_zero(given.side_information)
    check(none, "side_information", given.side_information, "0 with a learner")
    key = arguments.key("key", key)
    settings = Settings(
        *given.sizes(arguments, 2 * _SAMPLES, 4), given.max_steps, given.newton, given.progress
    )
    tolerance = given.limit(arguments, _FINE)
    x = given.start.at(student, truth_of(teacher), arguments)
    return evolved(teacher, alpha, student, key, x, tolerance, settings, arguments.valid)


def _of_matrix_learner(
    model: AbstractModel,
    alpha: Array,
    learner: MatrixErm,
    key: PRNGKeyArray | None,
    given: _Given,
    arguments: Arguments,
) -> LearnerSolution:
    """`state_evolution` with a learner of a matrix: a convex risk, averages without random points,
    so that where it starts says nothing."""
    start = given.start
    nothing = {"q0": start.overlap, "m0": start.teacher, "v0": start.covariance}
    nothing |= {"b0": start.direction, "samples": given.samples}
    nothing["randomisations"] = given.randomisations
    _refuse_for_matrices(arguments, nothing, given.side_information)
    key = None if key is None else arguments.key("key", key)
    tolerance = given.limit(arguments, _FINE)
    steps = given.max_steps
    return matrix_evolved(
        model, alpha, learner, key, tolerance, steps, given.newton, arguments.valid
    )


def _default(value: ArrayLike | None, default: ArrayLike) -> ArrayLike:
    """The value that was given, or the default of index models."""
    return default if value is None else value


def _refuse_for_matrices(
    arguments: Arguments, sampling: Mapping[str, ArrayLike | None], side_information: ArrayLike
) -> None:
    """Raise a ValueError for settings of an iteration on random points, which would be ignored."""
    reason = "for a matrix model, whose averages need no random points and no start"
    for name, value in sampling.items():
        check(value is None, name, value, f"None {reason}")
    none = jnp.asarray(side_information) == 0.0
    arguments.condition(none, "side_information", side_information, f"0 {reason}")


def _differentiable(overlap_map: OverlapMap, V: Array, code: Array) -> Array:
    """V of the fixed point with its implicit derivative (I - J)^{-1} ∂F.

    It is zero at perfect recovery, and NaN where the fixed point is marginal or not reached.
    """
    regular = (code == Result.SUCCESS) | (code == Result.INACCURATE)
    weight = jnp.where(code == Result.RECOVERED, 0.0, jnp.where(regular, 1.0, jnp.nan))

    def solve(_: OverlapMap, context: tuple[Array, Array]) -> Array:
        return context[0]

    def prepare(
        overlap_map: OverlapMap, context: tuple[Array, Array], V: Array
    ) -> tuple[Array, Array]:
        smooth = overlap_map.model.channel.smooth
        stated = overlap_map.evaluate(V).jacobian
        if smooth is False:
            return V, stated
        Q = overlap_map.second_moment - V
        pathwise = fixed_point.pathwise_jacobian(overlap_map.evaluate, V, Q)
        return V, jnp.where(smooth, pathwise, stated)

    def push(
        overlap_map: OverlapMap,
        context: tuple[Array, Array],
        prepared: tuple[Array, Array],
        directions: list[Array],
    ) -> Array:
        V, J = prepared
        slope = implicit.derivative(lambda m: m.evaluate(V).value, overlap_map, directions)
        # where labels jump, those of the model's numbers miss the jumps; that in α is exact
        numbers = len(implicit.numbers_of(overlap_map.model)[0])
        moves = sum(jnp.sum(jnp.abs(x)) for x in directions[:numbers]) > 0.0
        known = jnp.where(moves, overlap_map.model.channel.smooth, True)
        return context[1] * fixed_point.resolvent(J, jnp.where(known, slope, jnp.nan))

    return implicit.differentiable(solve, push, overlap_map, (V, weight), prepare)


@eqx.filter_jit
def _solution(overlap_map: OverlapMap, end: Run[Iterate]) -> Solution:
    """What the end of the iteration says, with derivatives, errors and a result code."""
    S = overlap_map.second_moment
    model = overlap_map.model
    last = end.state
    success = end.result == Result.SUCCESS
    inaccurate = last.evaluation.inaccurate
    code = jnp.where(success & (inaccurate > INACCURATE_SHARE), Result.INACCURATE, end.result)
    code = jnp.where(success & (last.rho > 1.0 - _MARGIN), Result.MARGINAL, code)
    recovered = end.result == Result.RECOVERED
    moved = _differentiable(overlap_map, last.V, code)
    V = jnp.where(recovered, 0.0, moved)
    error = model.metric.theory_error(
        moved, key=jax.random.fold_in(overlap_map.key, 2), points=overlap_map.samples
    )
    spread = fixed_point.propagated_error(last.evaluation.jacobian, last.evaluation.replicas)
    stderr = jnp.hypot(spread, last.open)
    stderr = jnp.where(code == Result.MAX_STEPS, jnp.nan, stderr)
    invalid = ~(jnp.isfinite(overlap_map.alpha) & (overlap_map.alpha > 0))
    code = jnp.where(invalid, Result.INVALID, code)
    lost = invalid | (code == Result.NONFINITE)

    def masked(x: Array) -> Array:
        return jnp.where(lost, jnp.nan, x)

    def unless_invalid(x: Array) -> Array:
        return jnp.where(invalid, jnp.nan, x)

    return Solution(
        overlap=masked(S - V),
        stderr=masked(jnp.where(recovered, 0.0, stderr)),
        error=masked(jnp.where(recovered, 0.0, error)),
        alpha=overlap_map.alpha,
        steps=end.step,
        residual=last.residual,
        result=code,
        history=jax.tree.map(unless_invalid, end.history),
        covariance=masked(V),
        rho=last.rho,
        model=model,
        key=overlap_map.key,
        kind="state_evolution",
    )
