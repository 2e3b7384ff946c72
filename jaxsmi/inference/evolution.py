r"""State evolution: what GAMP does when D → ∞, and where it ends.

Equations here [TCDKZ25; theory: multi-index, Eqs. (43) to (48)], S the second moment of the prior, V = S - Q:

    Q̂ = α · channel.response(Q),   Q ← prior.overlap(Q̂)          (Gaussian prior: Q̂ (I + Q̂)^{-1})

Undamped GAMP at iteration t has overlap Q^t. The iteration is carried on V, which stays accurate when it goes to zero.

Where the overlap is one number and both functions are explicit (matrix families), nothing is iterated
[theory: attention-indexed, Eq. (27)]:

    α(q̂) = q̂/response(q(q̂)) is inverted in log q̂ between brackets: exact also where an iteration would crawl.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import frozen, theory_dtype
from jaxsmi.core.checks import Ability, check, require
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution
from jaxsmi.inference.inversion import inverted
from jaxsmi.models.prediction import prediction_error
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.nets import power_of_two

_MARGIN = 1e-3  # a spectral radius within this of one is a threshold: no derivative there


class _Problem(eqx.Module):
    model: Any
    alpha: Array
    side: Array
    key: Array
    samples: int = eqx.field(static=True)
    randomisations: int = eqx.field(static=True)

    @property
    def second_moment(self) -> Array:
        return self.model.prior.second_moment(self.model.indices)

    def map_of(self, V: Array) -> fixed_point.Evaluation:
        """V ↦ prior.mmse(α response), with Jacobian and one replica per randomisation of the outer points."""
        S, prior = self.second_moment, self.model.prior
        V = 0.5 * (V + V.T)
        response = self.model.channel.response(
            S - V, V, key=self.key, samples=self.samples, randomisations=self.randomisations
        )
        side = self.side * jnp.eye(V.shape[0], dtype=V.dtype)
        Qhat = self.alpha * 0.5 * (response.mean + response.mean.T) + side
        value, pull = jax.linearize(prior.mmse, Qhat)
        # dV_out = pull(α d response[dQ]), dQ = -dV
        J = -jax.vmap(jax.vmap(pull, 2, 2), 3, 3)(self.alpha * response.jacobian)
        replicas = value + jax.vmap(lambda R: pull(self.alpha * 0.5 * (R + R.T) + side - Qhat))(
            response.replicas
        )
        return fixed_point.Evaluation(value, J, replicas, (response.inaccurate, response.error))


def state_evolution(
    model: Any,
    alpha: Any,
    *,
    key: Array | None = None,
    q0: Any = 1e-3,
    samples: int = 8192,
    randomisations: int = 8,
    max_steps: int = 300,
    tolerance: Any = 1e-4,
    newton: bool = True,
    side_information: Any = 0.0,
    progress: bool = False,
) -> Solution:
    r"""Bayes-optimal state evolution: the overlap GAMP reaches at α = N/D, with its error bar and its trajectory.

    Q̂ = α E Σ_m g gᵀ,  Q ← prior.overlap(Q̂), started at Q = `q0`.

    Arguments: `model`: any model with a channel; `alpha` > 0 (N/D; n/d² for matrix models), traced or not; `key`: common
    random numbers, so that two calls with one key differ smoothly (matrix models, whose functions are explicit, need no key and
    none of what follows: they return `overlap` q, `covariance` and `error` V at the root, with `newton=False` and `max_steps`
    the plain iteration from q̂ = 0 as `history`, which is empty otherwise; twice differentiable; no `side_information`);
    `q0`: starting overlap, a number (times the second moment S) or (P, P), inside
    0 ⪯ Q ⪯ S; small is uninformed, near S informed; `samples`: outer points in all, split over `randomisations`
    independent nets, whose spread gives the standard error; `tolerance` on the distance to the fixed point (fixed_point.py);
    `newton=False`: the plain undamped trajectory to the end; `side_information` λ in [0, 1): as in `gamp`, adds λ/(1-λ) to
    Q̂ (λ = 1/D: what chance tells a run of dimension D about a direction not learned yet);
    `progress`: a bar on stderr (not under jit).

    Returns: a `Solution` with `overlap`, `stderr` (statistical, carried through the map; NaN where not converged),
    `covariance` V, `error` (plug-in),
    `rho` (spectral radius of the map), `result` (SUCCESS, RECOVERED, MARGINAL, MAX_STEPS, INACCURATE, NONFINITE, INVALID), and
    `history` with one entry a step ("step", "overlap", "covariance", "residual"); Newton steps, which end it, included.
    `overlap`, `covariance` and `error` are differentiable once, forwards and backwards, in α and in every array of the
    model (implicitly: dV = (I - J)^{-1} ∂F): NaN where the fixed point is marginal or was not reached, and
    for the `error` of links with jumps (signs); second derivatives NaN.
    Raises: ValueError outside jit for α <= 0, a q0 out of range, a model without inference; inside: NaN and INVALID.
    Cost: `samples` posteriors a step: 8192 of two-layer attention take about 0.3 s on one core.
    Source: [TCDKZ25], [theory: multi-index, Eqs. (42) to (48)].
    Example:
    >>> import jax, jaxsmi as smi
    >>> sol = smi.state_evolution(smi.links.linear(0.5), 1.0, key=jax.random.key(0))
    >>> round(float(sol.overlap[0, 0]), 4)  # q = q̂/(1 + q̂), q̂ = α/(1 - q + Δ)
    0.5
    """
    dtype = theory_dtype()
    alpha = jnp.asarray(alpha, dtype)
    check(alpha.ndim == 0, "alpha", alpha, "a number N/D (use vmap for many)")
    check(jnp.isfinite(alpha) & (alpha > 0), "alpha", alpha, "a finite number > 0")
    require(model, Ability.INFERENCE)
    if model.channel.explicit:
        check(max_steps >= 1, "max_steps", max_steps, "at least 1")
        check(
            side_information == 0,
            "side_information",
            side_information,
            "0: not there for matrix models",
        )
        return inverted(model, alpha, key, 0 if newton else int(max_steps))
    check(key is not None, "key", None, "a key: jax.random.key(0)")
    assert key is not None
    P = model.indices
    check(
        randomisations >= 2,
        "randomisations",
        randomisations,
        "at least 2: their spread is the error bar",
    )
    check(samples >= 2 * randomisations, "samples", samples, "at least two points a randomisation")
    check(max_steps >= 1, "max_steps", max_steps, "at least 1")
    tolerance = jnp.asarray(tolerance, dtype)
    check(tolerance > 0, "tolerance", tolerance, "a positive number")
    S = model.prior.second_moment(P)
    q0 = jnp.asarray(q0, dtype)
    check(q0.shape in ((), (P, P)), "q0", q0, f"a number or an array of shape {(P, P)}")
    Q0 = q0 * S if q0.ndim == 0 else q0
    check(jnp.all(jnp.isfinite(Q0)), "q0", q0, "finite numbers")
    check(jnp.max(jnp.abs(Q0 - Q0.T)) <= 1e-10, "q0", q0, "a symmetric matrix")
    check(jnp.all(jnp.linalg.eigvalsh(Q0) > -1e-12), "q0", q0, "a positive semi-definite overlap")
    check(
        jnp.all(jnp.linalg.eigvalsh(S - Q0) > 0),
        "q0",
        q0,
        "an overlap below the second moment: V = S - q0 > 0",
    )
    strength = jnp.asarray(side_information, dtype)
    check(
        (strength >= 0) & (strength < 1), "side_information", side_information, "a number in [0, 1)"
    )
    each = power_of_two(max(samples // randomisations, 2))
    # outside jit these hold; inside, a bad value becomes a bad alpha: NaN and the code INVALID
    allowed = (
        jnp.all(jnp.linalg.eigvalsh(Q0) > -1e-12)
        & jnp.all(jnp.linalg.eigvalsh(S - Q0) > 0)
        & (tolerance > 0)
    )
    allowed = allowed & jnp.all(jnp.isfinite(Q0)) & (strength >= 0) & (strength < 1)
    alpha = jnp.where(allowed, alpha, jnp.nan)
    problem = _Problem(model, alpha, strength / (1.0 - strength), key, each, randomisations)
    static = (max_steps, bool(newton))
    start, held = (
        lax.stop_gradient(Q0),
        frozen(problem),
    )  # derivatives come from the fixed point, not from the way there
    if not progress:
        return _finish(problem, _run(held, start, tolerance, static, None, None))
    state: Any = None
    stretch = 4
    with tqdm(total=max_steps, desc=f"state evolution, α={float(alpha):g}", leave=False) as bar:
        for until in range(stretch, max_steps + stretch, stretch):
            state = _run(held, start, tolerance, static, jnp.asarray(min(until, max_steps)), state)
            bar.update(int(state.step) - bar.n)
            bar.set_postfix(Q=" ".join(f"{q:.4f}" for q in jnp.diagonal(S - state.V)))
            if int(state.result) >= 0:
                break
    return _finish(problem, state)


@eqx.filter_jit
def _run(
    problem: _Problem, Q0: Array, tolerance: Array, static: tuple[int, bool], until: Any, state: Any
) -> Any:
    max_steps, newton = static
    S = problem.second_moment
    return fixed_point.solve(
        problem.map_of, S - Q0, S, max_steps=max_steps, tolerance=tolerance, newton=newton,
        geometric=problem.model.channel.noiseless, until=until, state=state,
    )  # fmt: skip


def _moved(problem: _Problem, end: fixed_point.FixedPoint, code: Array) -> Array:
    """V of the fixed point, with its implicit derivative (I - J)^{-1} ∂F: NaN where it is marginal or not reached."""
    regular = (code == Result.SUCCESS) | (code == Result.INACCURATE)
    weight = jnp.where(code == Result.RECOVERED, 0.0, jnp.where(regular, 1.0, jnp.nan))

    def known(_: _Problem, context: tuple[Array, Array]) -> Array:
        return context[0]

    def prepare(problem: _Problem, context: tuple[Array, Array], V: Array) -> tuple[Array, Array]:
        if not problem.model.channel.smooth:
            return V, problem.map_of(V).jacobian
        return V, fixed_point.pathwise_jacobian(problem.map_of, V, problem.second_moment - V)

    def push(
        problem: _Problem,
        context: tuple[Array, Array],
        prepared: tuple[Array, Array],
        directions: list[Array],
    ) -> Array:
        V, J = prepared
        slope = implicit.derivative(lambda p: p.map_of(V).value, problem, directions)
        return context[1] * fixed_point.resolvent(J, slope)

    return implicit.differentiable(known, push, problem, (end.V, weight), prepare)


@eqx.filter_jit
def _finish(problem: _Problem, end: fixed_point.FixedPoint) -> Solution:
    S, model = problem.second_moment, problem.model
    recovered = end.result == Result.RECOVERED
    inaccurate, _ = end.evaluation.extra
    code = jnp.where(
        (end.result == Result.SUCCESS) & (inaccurate > 0.01), Result.INACCURATE, end.result
    )
    code = jnp.where(
        (end.result == Result.SUCCESS) & (end.rho > 1.0 - _MARGIN), Result.MARGINAL, code
    )
    moved = _moved(problem, end, code)
    V = jnp.where(recovered, 0.0, moved)
    error_key = jax.random.fold_in(problem.key, 2)
    error = prediction_error(model, S - moved, key=error_key, samples=problem.samples)
    # labels that jump: the derivative along the sampled ones misses the jumps
    slope = 1.0 if model.channel.smooth else jnp.nan
    error_value = implicit.with_slope(error.value, slope)
    stderr = fixed_point.propagated_error(end.evaluation.jacobian, end.evaluation.replicas)
    invalid = ~(jnp.isfinite(problem.alpha) & (problem.alpha > 0))
    code = jnp.where(invalid, Result.INVALID, code)
    lost = invalid | (code == Result.NONFINITE)

    def masked(x: Array) -> Array:
        return jnp.where(lost, jnp.nan, x)

    return Solution(
        overlap=masked(S - V),
        stderr=masked(
            jnp.where(recovered, 0.0, jnp.where(code == Result.MAX_STEPS, jnp.nan, stderr))
        ),
        error=masked(jnp.where(recovered, 0.0, error_value)),
        alpha=problem.alpha,
        steps=end.step,
        residual=end.residual,
        result=code,
        history=end.history,
        covariance=masked(V),
        rho=end.rho,
        model=model,
        key=problem.key,
        kind="state_evolution",
    )
