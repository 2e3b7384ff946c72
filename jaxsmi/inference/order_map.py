r"""State evolution as a map of order parameters, and the one end of its iteration.

Equations here [theory: numerics, Eqs. (19), (23)], F the map of the order parameters x = (Q, M, V,
B), J its Jacobian, F_r the map by the points of one net, n(x) the numbers that a solution reports:

    x = F(x),   δx_r = (I - J)^{-1} (F_r - F)        error bars
    dx = (I - J)^{-1} ∂_θF dθ,   dn = ∂_θn dθ + ∂_x n dx        derivatives

Bayes is the learner with M = Q, V = S - Q and B = 0, so that its x is V alone; of matrices x is one
number, or two. A map knows its averages, its iteration and its error bars; `finish` adds
derivatives, result codes and masks, the same for all of them.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, frozen, nan
from jaxsmi.core.codes import Result
from jaxsmi.core.driver import AbstractSolver, Run, init_run, run_solver
from jaxsmi.core.results import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import implicit
from jaxsmi.numerics.fixed_point import resolvent

_State = TypeVar("_State")

Numbers = dict[str, Array]  # fields of a solution by name


class Settings(NamedTuple):
    """Step budget, tolerance, Newton or accelerated steps, and the label of a progress bar (None:
    none)."""

    max_steps: int
    tolerance: Array
    newton: bool
    label: str | None


class End(eqx.Module):
    """The end of an iteration: order parameters `x`, the `numbers` n(x), J (n, n) in the entries of
    x, standard errors of some numbers, a result code, and other `fields` of the solution."""

    x: PyTree
    numbers: Numbers
    jacobian: Array
    stderrs: Numbers
    code: Array
    fields: dict[str, PyTree]


class AbstractOrderMap(eqx.Module):
    """The map of the order parameters of one learner at one α.

    Attributes:
        solution: The class of what `finish` returns.
        stationary: Names of numbers with ∂_x n = 0 at a fixed point, as the energy of a minimum.
        tolerance: The default of the iteration.
        twice: Solutions have derivatives of any order; sampled averages have one.
    """

    solution: ClassVar[type[Solution]] = Solution
    stationary: ClassVar[tuple[str, ...]] = ()
    tolerance: ClassVar[float] = 0.0
    twice: ClassVar[bool] = False
    model: eqx.AbstractVar[AbstractModel]
    alpha: eqx.AbstractVar[Array]
    key: eqx.AbstractVar[PRNGKeyArray | None]

    @abc.abstractmethod
    def __call__(self, x: PyTree) -> tuple[PyTree, Numbers]:
        """F(x) and n(x)."""

    def numbers(self, x: PyTree) -> Numbers:
        """n(x)."""
        return self(x)[1]

    @abc.abstractmethod
    def solve(self, start: PyTree, settings: Settings) -> tuple[AbstractOrderMap, Run[Any]]:
        """The end of the iteration from a start, and the map that it was taken of."""

    @abc.abstractmethod
    def end(self, run: Run[Any]) -> End:
        """The end of an iteration as numbers with error bars."""

    def slope(self, x: PyTree, jacobian: Array) -> Array:
        """J (n, n) for derivatives, from that of the error bars."""
        del x
        return jacobian

    def tangent(self, x: PyTree, directions: list[Array]) -> tuple[PyTree, Numbers]:
        """∂_θF dθ and ∂_θn dθ along directions of the numbers θ of this map."""
        return implicit.derivative(lambda m: m(x), self, directions)


def drive(solver: AbstractSolver[_State], settings: Settings) -> Run[_State]:
    """Run a solver from its start."""
    steps = settings.max_steps
    return run_solver(solver, init_run(solver, steps), steps, label=settings.label)


@eqx.filter_jit
def finish(problem: AbstractOrderMap, run: Run[Any]) -> Solution:
    """The solution at the end of an iteration, with derivatives, error bars and a result code."""
    end = frozen(problem).end(run)
    invalid = ~(jnp.isfinite(problem.alpha) & (problem.alpha > 0.0))
    code = jnp.where(invalid, Result.INVALID, end.code)
    recovered = code == Result.RECOVERED
    lost = invalid | (code == Result.NONFINITE) | (code == Result.DIVERGED)
    numbers = _differentiable(problem, end, code)
    masked = lambda a: jnp.where(lost, nan(), a)
    stderrs = jax.tree.map(lambda a: masked(jnp.where(recovered, 0.0, a)), end.stderrs)
    stderr = stderrs.pop("overlap")
    return problem.solution(
        **jax.tree.map(masked, numbers),
        **({"stderrs": stderrs} if stderrs else {}),
        **end.fields,
        stderr=stderr,
        alpha=problem.alpha,
        steps=run.step,
        residual=run.state.residual,
        result=code,
        history=jax.tree.map(lambda a: jnp.where(invalid, nan(), a), run.history),
        model=problem.model,
        key=problem.key,
        kind="state_evolution",
    )


def _at_recovery(numbers: Numbers, recovered: Array) -> Numbers:
    """Numbers, or their derivatives, at V = 0 where the signal is recovered."""
    # the iteration ends before V is zero, but Q + V is the second moment all the way
    limits = {"overlap": numbers["overlap"] + numbers["covariance"], "covariance": 0.0}
    limits["error"] = 0.0
    return numbers | {k: jnp.where(recovered, x, numbers[k]) for k, x in limits.items()}


def _differentiable(problem: AbstractOrderMap, end: End, code: Array) -> Numbers:
    """The numbers of a fixed point with their implicit derivatives (module docstring): those at
    fixed x where the signal is recovered, NaN where x is marginal or was not reached."""
    recovered = code == Result.RECOVERED
    fixed = (code == Result.SUCCESS) | (code == Result.INACCURATE) | (code == Result.UNSTABLE)
    weight = jnp.where(fixed | recovered, 1.0, nan())
    context = (end.x, _at_recovery(end.numbers, recovered), end.jacobian, weight, recovered)

    def solve(_: AbstractOrderMap, context: Any) -> tuple[PyTree, Numbers]:
        return context[:2]

    def prepare(problem: AbstractOrderMap, context: Any, answer: Any) -> tuple[PyTree, Array]:
        # costly for sampled averages, so only where a derivative is taken
        return answer[0], problem.slope(answer[0], context[2])

    def push(
        problem: AbstractOrderMap, context: Any, prepared: Any, directions: list[Array]
    ) -> tuple[PyTree, Numbers]:
        (x, J), (*_, weight, recovered) = prepared, context
        slope, explicit = problem.tangent(x, directions)
        moved = resolvent(J, slope)
        moved = jax.tree.map(lambda a: jnp.where(recovered, 0.0, weight * a), moved)
        through = jax.jvp(problem.numbers, (x,), (moved,))[1]
        through |= {k: jnp.zeros_like(through[k]) for k in problem.stationary}
        total = jax.tree.map(lambda a, b: weight * (a + b), explicit, through)
        return moved, _at_recovery(total, recovered)

    return implicit.differentiable(solve, push, problem, context, prepare, twice=problem.twice)[1]
