r"""State evolution: what message passing does as D → ∞, where it ends, and its free entropy.

Equations here [TCDKZ25; theory: multi-index, Eqs. (50) to (58), (73) to (75)], S the second moment
of the prior, V = S - Q, F_kr the map by one net at the noise Δ_k:

    Q̂ = α · channel.response(Q),   Q ← prior.overlap(Q̂)        (Gaussian prior: Q̂ (I + Q̂)^{-1})
    V_kr = V_k + (I - J_k)^{-1} (F_kr - F_k),   V = lim V_k        vanishing noise
    Φ(Q) = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out(y; Q^{1/2} ξ, V)
    ∂_Q [α E log Z_out] = ½ Q̂,   ∂Φ_w/∂Q̂ = ½ prior.overlap(Q̂)
    so that   dΦ = ½ tr[(prior.overlap(Q̂) - Q) dQ̂]

Undamped message passing at iteration t has the overlap Q^t. The iteration is carried on V, which
stays accurate when it goes to zero. Each learner is a map of order parameters: Bayes (`order_map`),
minimisers and other posteriors (`learner_map`), and both for a matrix (`matrix_map`).

The largest Φ among the fixed points is the Bayes-optimal one. Noiseless channels have Φ → ∞ at
Q = S beyond perfect recovery: compare differences away from there. log Z_out is that of
`channel.statistic(y)`, which for attention is a density of u. Of matrices, per entry
[theory: attention-indexed, Eq. (32); bilinear, Eq. (12)], q̂ = α f(q), I the mutual information of
the prior, f = Ψ'/w:

    Φ(q) = w q̂ (Q_0 - q) - I(q̂) + α Ψ(q),      w = ¼ (symmetric), ½ (rectangular)
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Response
from jaxsmi.channels.likelihood import noisy
from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, frozen, missing, symmetric, theory_dtype
from jaxsmi.core.options import Averages, Bayes, Iteration, Start
from jaxsmi.core.results import Result, worst
from jaxsmi.core.solution import Estimate, Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.learner_map import LearnerMap
from jaxsmi.inference.matrix_map import MatrixLearnerMap, PrecisionMap
from jaxsmi.inference.order_map import (
    NETS,
    POINTS,
    AbstractOrderMap,
    Arguments,
    OverlapMap,
    Settings,
    finish,
)
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel, model_argument, regular_numbers, title
from jaxsmi.numerics import implicit
from jaxsmi.numerics.continuation import geometric_steps, limit
from jaxsmi.numerics.fixed_point import resolvent
from jaxsmi.numerics.linear_algebra import positive_part
from jaxsmi.numerics.quadrature import INTEGRAL_ERROR, power_of_two, standard_error

# empirical: a hundred plain steps next to a threshold, before Newton steps begin
_MAX_STEPS = 300


@validate.explained
def state_evolution(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    learner: Bayes | AbstractLearner | None = None,
    start: ArrayLike | Start | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
    progress: bool = False,
) -> Solution:
    r"""Solve state evolution: the overlap that message passing reaches at α, with its error bar.

        Q̂ = α E Σ_m g gᵀ,   Q ← prior.overlap(Q̂)

    For models of one matrix with closed forms, the fixed point is the root of an equation, found
    without random points or an iteration; `start`, `averages` and a tolerance must then be left
    out.

    Args:
        model: Any model with a channel.
        alpha: Sample complexity, a number > 0: N/D for index models, n/d² or n/(dL) for matrices.
        key: Random key of the outer average, common random numbers: two calls with one key differ
            smoothly. Matrix models need none.
        learner: The learner, if not Bayes: `smi.Erm` or `smi.Mismatched`; for a matrix
            `smi.MatrixErm`.
        start: Initial overlap, a number (times the second moment S) or (P, P), 0 ⪯ Q ≺ S. A small
            one is uninformed, one near S informed. Default 1e-3, plus the overlap of the prior's
            mean. A `smi.Start` also sets side information λ (λ/(1-λ) is added to Q̂; λ = 1/D
            imitates the chance overlap of a run of dimension D) and, with a learner, the
            teacher overlap M, the response V and the overlap B with fixed directions. Defaults with
            a learner: Q = tr S/P, M of 0.8 of the teacher shared evenly, V = 1/2, B = 0.
        averages: `smi.Averages(points, nets)`. Default 16384 points, with a learner 32768, in 16
            nets.
        iteration: `smi.Iteration(max_steps, tolerance, newton)`. Default 300 steps; tolerance: the
            largest distance to the fixed point, entry by entry, 1e-4 (with a learner the largest
            relative residual, 1e-8); newton: True takes Newton steps, or several linearised steps
            where Newton is unsafe (with a learner: accelerated steps); False iterates the undamped
            map (for matrix models from q̂ = 0, the only way to record their history). Default True.
        progress: Show a bar on stderr (not under jit).

    Returns:
        A `Solution` with `overlap` Q, its error `stderr` (statistical, and the error implied by the
        tolerance; NaN where not converged), `covariance` V, plug-in `error`, `spectral_radius` of
        the map, and `history` with one entry a step ("step", "overlap", "covariance", "residual").
        Codes: SUCCESS, RECOVERED, MARGINAL, MAX_STEPS, INACCURATE, NONFINITE, INVALID. With a
        learner a `LearnerSolution`, with `teacher_overlap` M, `direction_overlap` B, losses,
        `energy`, `stability`, and the codes UNSTABLE and DIVERGED.
        `overlap`, `covariance` and `error` have one derivative, forwards and backwards, in α and in
        every array of the model, dV = (I - J)^{-1} ∂F: NaN where the fixed point is marginal or was
        not reached, for the `error` of links that jump, and in the numbers of those whose average
        is along sampled labels (not in α). Matrix models have two, with a learner one.

    Raises:
        ValueError: For an argument out of its range, or a model without inference. Under jit the
            result is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> solution = smi.state_evolution(smi.links.linear(0.5), 1.0, key=jax.random.key(0))
        >>> round(float(solution.overlap[0, 0]), 4)  # q = q̂/(1 + q̂), q̂ = α/(1 - q + Δ)
        0.5

    Cost:
        One posterior per point and step. The first steps use an eighth of the points, until the
        overlap moves by less than their statistical error. Two-layer attention at α = 0.5 takes 15
        steps and about 1.6 s on one core after compilation; links of three fields with noise take 5
        to 15 s.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (49) to (55), (73) to (75)]; matrix models
        [theory: attention-indexed, Eq. (30)].
    """
    bayes = learner is None or isinstance(learner, Bayes)
    model = model_argument(model, "inference" if bayes else None)
    alpha = validate.number("alpha", alpha, POSITIVE, "for several: smi.curve(model, alphas)")
    key = validate.optional(validate.key, "key", key)
    start = as_start(start)
    averages, iteration = Averages.of(averages), Iteration.of(iteration)
    validate.optional(validate.flag, "progress", progress)
    allowed = "smi.Bayes(), smi.Erm(..), smi.Mismatched(..) or smi.MatrixErm(..)"
    learner = None if bayes else validate.instance("learner", learner, AbstractLearner, allowed)
    if learner is None:
        closed_form = model.channel.closed_form
        kind = PrecisionMap if closed_form else OverlapMap
        unused = iteration.tolerance is None or not closed_form
        allowed = "None: for this model the overlap is the root of one equation, not an iteration"
        check(unused, "tolerance", iteration.tolerance, allowed)
    else:
        closed_form = learner.closed_form(model)
        kind = MatrixLearnerMap if learner.matrix else LearnerMap
    if closed_form or kind is MatrixLearnerMap:
        numbers = (start.overlap, start.teacher_overlap, start.variance, start.direction_overlap)
        allowed = "None for this matrix model, whose theory needs no start"
        check(all(x is None for x in numbers) and not start.aided, "start", start, allowed)
    if closed_form:
        unset = averages.points is None and averages.nets is None
        allowed = "None for this matrix model, whose theory needs no random points"
        check(unset, "averages", averages, allowed)
    order_map, x = kind.of(Arguments(model, alpha, key, start, averages, learner))
    solution = solve(order_map, x, iteration, progress)
    return solution if learner is None else dataclasses.replace(solution, learner=learner)


def solve(
    order_map: AbstractOrderMap, start: PyTree, iteration: Iteration, progress: bool
) -> Solution:
    """Iterate a map of order parameters from its start to its fixed point."""
    steps = iteration.max_steps or _MAX_STEPS
    tolerance = order_map.tolerance if iteration.tolerance is None else iteration.tolerance
    tolerance = jnp.asarray(tolerance, theory_dtype())
    label = f"state evolution, α={float(order_map.alpha):g}" if progress else None
    settings = Settings(steps, tolerance, iteration.newton is not False, label)
    return finish(*order_map.solve(start, settings))


def as_start(start: ArrayLike | Start | None) -> Start:
    """A start as the record: an overlap stands for `Start(overlap)`."""
    if isinstance(start, Start):
        allowed = "None in theory, which starts from an overlap"
        check(start.weights is None, "start.weights", start.weights, allowed)
        return start
    allowed = "an overlap (a number or (P, P)), or smi.Start(..)"
    overlap = validate.optional(validate.array, "start", start, allowed)
    check(overlap is None or overlap.ndim in (0, 2), "start", start, allowed)
    return Start(overlap)


# Vanishing noise
# --------------------------------------------------------------------------------------------


def noiseless_limit(
    model: AbstractModel,
    alpha: ArrayLike,
    noises: ArrayLike,
    *,
    key: PRNGKeyArray,
    start: ArrayLike | Start | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
    progress: bool = False,
) -> Solution:
    r"""Solve state evolution of a noiseless link without a channel, by vanishing label noise.

        V = lim_{Δ → 0} V(Δ)

    Args:
        model: A `MultiIndex` with a link and no label noise.
        alpha: Sample complexity N/D, a number > 0.
        noises: Label noises Δ (K,), four or more, each the same fraction of the one before.
        key, start, averages, iteration, progress: As in `state_evolution`.

    Returns:
        A `Solution`; `stderr` has the error of the extrapolation. `history`, `steps` and
        `spectral_radius` are those of the smallest noise.

    Raises:
        ValueError: For an argument out of its range, or a model whose noise is fixed.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> model = smi.MultiIndex(lambda z: z[0, 0] * jnp.tanh(z[1, 0]), indices=2)
        >>> end = smi.noiseless_limit(
        ...     model, 1.5, [0.08, 0.04, 0.02, 0.01], key=jax.random.key(0)
        ... )  # doctest: +SKIP

    Cost:
        One `state_evolution` for each noise. Slow if the link mixes its fields: z_1 z_2 z_3 at
        α = 2 and four noises, 0.08 to 0.01, took 320 s of processor time.

    Source:
        [theory: multi-index, Eqs. (73) to (75)].
    """
    model = model_argument(model)
    averages, iteration = Averages.of(averages), Iteration.of(iteration)
    validate.optional(validate.flag, "progress", progress)
    alpha = validate.number("alpha", alpha, POSITIVE)
    steps = geometric_steps("noises", noises)
    key = validate.key("key", key)
    start = as_start(start)
    check(model.design.has_rows, "noises", f"noises for {title(model)}", "None for this model")
    solutions: list[Solution] = []
    nets: list[Array] = []
    for channel in noisy(model.channel, steps):
        with_noise = eqx.tree_at(lambda m: m.channel, model, channel)
        order_map, V0 = OverlapMap.of(Arguments(with_noise, alpha, key, start, averages))
        solutions.append(solve(order_map, V0, iteration, progress))
        nets.append(_replicas(order_map, solutions[-1].covariance))
    V = limit(steps, jnp.stack(nets, axis=1))
    statistical = standard_error(V.replicas)
    S = order_map.second_moment
    overlap = positive_part(S - positive_part(V.value))
    codes = jnp.stack([solution.result for solution in solutions])
    code = worst(codes)
    failed = (code == Result.INVALID) | (code == Result.NONFINITE)
    ended = failed | jnp.any((codes == Result.MAX_STEPS) | (codes == Result.DIVERGED))
    numbers = order_map.numbers(S - overlap)
    return dataclasses.replace(
        solutions[-1],
        **{name: jnp.where(failed, missing(), number) for name, number in numbers.items()},
        stderr=jnp.where(ended, missing(), jnp.hypot(statistical, V.error)),
        result=code,
        model=model,
    )


@eqx.filter_jit
def _replicas(order_map: OverlapMap, V: Array) -> Array:
    """The fixed point V by the points of each net (R, P, P), to first order."""
    order_map, V = frozen((order_map, V))
    spread = order_map.evaluate(V)
    apart = spread.replicas - jnp.mean(spread.replicas, axis=0)
    return V + jax.vmap(lambda F: resolvent(spread.jacobian, F))(apart)


# The potential
# --------------------------------------------------------------------------------------------


def free_entropy(
    model: AbstractModel,
    alpha: ArrayLike,
    overlap: ArrayLike | Solution,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Estimate:
    r"""Compute the free entropy Φ(Q) in nats per dimension, with its standard error.

        Φ = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out,   Q̂ = α·response(Q)

    Of matrix models: the module docstring.

    Args:
        model: Any model with a channel.
        alpha: Sample complexity, a number > 0 (as in `state_evolution`).
        overlap: Q (P, P), a number (times the second moment S), or a Solution; 0 ⪯ Q ≺ S.
        key: Random key of the outer average. Differences of Φ at one key are much sharper than Φ
            itself. Matrix models need none.
        averages: `smi.Averages(points, nets)`; the spread of the nets is the standard error.
            Default 16384 points in 16 nets.

    Returns:
        An `Estimate` (value, stderr). At a fixed point the error of Q̂ enters to second order only.
        Matrix models, whose functions have closed forms, have no statistical error.

    Raises:
        ValueError: For an argument out of its range, or a model without inference. Under jit the
            answer is NaN.

    Example:
        >>> import jax, jaxsmi as smi
        >>> value = smi.free_entropy(smi.links.linear(1.0), 1.0, 0.0, key=jax.random.key(0))
        >>> round(float(value.value), 2)  # -½ - ½ log 4π + ½ q̂ - ½ log(1 + q̂), q̂ = 1/2
        -1.72

    Cost:
        `points` posteriors.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (56), (58)].
    """
    model = model_argument(model, "inference")
    alpha = validate.number("alpha", alpha, POSITIVE)
    points, nets = Averages.of(averages).sizes(POINTS, NETS, 2)
    S = model.prior.second_moment(model.indices)
    overlap = overlap.overlap if isinstance(overlap, Solution) else overlap
    Q = validate.overlap("overlap", overlap, S)
    if key is not None or not model.channel.closed_form:
        key = validate.key("key", key)
    valid = validate.valid((alpha, Q)) & validate.valid(model)
    Q = jnp.where(valid, Q, 0.5 * S)
    estimate = potential_at(model, alpha, Q, key, power_of_two(points), nets)
    return Estimate(*(jnp.where(valid, x, missing()) for x in estimate))


@eqx.filter_jit
def potential_at(
    model: AbstractModel, alpha: Array, Q: Array, key: PRNGKeyArray | None, points: int, nets: int
) -> Estimate:
    """`free_entropy` without its checks, `points` in each of the nets."""
    prior = model.prior

    def respond(model: AbstractModel, context: tuple[Array, PRNGKeyArray | None]) -> Response:
        Q, key = context
        V = model.prior.second_moment(model.indices) - Q
        return model.channel.response(Q, V, key=key, points=points, nets=nets)

    closed_form = model.channel.closed_form
    # exact functions have derivatives of any order, by the rules of JAX
    fixed = Q if closed_form else frozen(Q)
    at = (fixed, key)
    response = respond(model, at) if closed_form else implicit.forwards(respond, model, at)
    Qhat = alpha * symmetric(response.mean)
    value = prior.entropy_term(fixed, Qhat) + alpha * jnp.mean(response.log_partition)
    pull = prior.weight * (prior.overlap(Qhat) - fixed)
    # to first order in the fluctuations of Q̂ and of log Z_out
    change = jnp.einsum("rpq,pq->r", response.replicas - response.mean, pull)
    stderr = standard_error(frozen(alpha * (change + response.log_partition)))
    if not closed_form:
        stderr = jnp.hypot(stderr, INTEGRAL_ERROR)
        value = implicit.not_differentiable(value, model, unless=regular_numbers(model))
        # dΦ by its equation, as the points of labels that jump with Q miss the jumps
        slope = frozen(alpha * jnp.einsum("pq,pqrs->rs", pull, response.jacobian))
        value = value + implicit.zero_of_slope(implicit.not_differentiable(slope, Q), Q)
    return Estimate(value, stderr)
