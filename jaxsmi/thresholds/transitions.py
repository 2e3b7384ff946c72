r"""First-order transitions: two branches of fixed points, which of them is optimal, and where each ends.

Equations here [theory: multi-index, Eqs. (45), (49), (59)], V = S - Q, Φ the free entropy of `potential`:

* uninformed branch: state evolution from a small overlap, followed upwards in α; informed branch: from Q near S, followed
  downwards. Where they differ there is hysteresis;
* spinodal: the α at which the informed branch appears; algorithmic threshold: the α at which the uninformed branch ends,
  so that GAMP reaches the informed one; information-theoretic: Φ(informed) = Φ(uninformed) in between;
* noiseless labels, a continuous prior, Q = S: Φ = ∞, so that perfect recovery is optimal wherever it is stable.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import frozen
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.inference.potential import potential_at
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.numerics.roots import bisect
from jaxsmi.thresholds.branch import Branch
from jaxsmi.thresholds.growth import check_problem

_SMALL, _NEAR = 1e-3, (1e-6, 1e-3)  # starts: Q = _SMALL S, and V = _NEAR S


_APART, _TINY = (
    0.02,
    1e-4,
)  # V that differ by more (of the larger one, and in all) are of two branches


_TIP = 1e-6  # V/S that stands for Q = S


SCRAMBLES, _HALVINGS = 4, 9


class FirstOrder(eqx.Module):
    """A first-order transition, or its absence.

    `kind`: "first order" or "none"; `algorithmic`, `information_theoretic`, `spinodal`: a `Threshold` each, None where
    there is none; `alpha` (K,), `uninformed` and `informed` (K, P, P): the hysteresis curves they were read from.
    """

    kind: str = eqx.field(static=True)
    algorithmic: Threshold | None
    information_theoretic: Threshold | None
    spinodal: Threshold | None
    alpha: Array
    uninformed: Array
    informed: Array


def _problem(model: Any, alpha: Array, key: Array, samples: int, randomisations: int) -> Branch:
    P = model.indices
    eye = jnp.eye(P, dtype=model.prior.second_moment(P).dtype)
    return Branch(model, eye, alpha, key, samples, randomisations)


def _up(problem: Branch, V: Array, steps: int) -> tuple[Array, Array]:
    """The uninformed branch from V, a little of every direction learned and unlearned first: Q = 0 and V = 0 are fixed points
    however unstable."""
    S = problem.model.prior.second_moment(problem.model.indices)
    end = problem.fixed_point(V + 2.0 * _SMALL * (0.5 * S - V), steps, 1e-5)
    return end.V, end.result


def _down(problem: Branch, V: Array, steps: int) -> tuple[Array, Array]:
    """The informed branch from V, or from next to V = 0: as near as the basin of Q = S may ask for, and, where too few
    samples see a V so small, from farther away."""
    S = problem.model.prior.second_moment(problem.model.indices)
    near, far = (problem.fixed_point(V + start * S, steps, 1e-2 * start) for start in _NEAR)
    recovered = near.result == Result.RECOVERED
    return jnp.where(recovered, near.V, far.V), jnp.where(recovered, near.result, far.result)


def _apart(V: Array, W: Array) -> Array:
    return jnp.max(jnp.abs(V - W)) > jnp.maximum(
        _APART * jnp.maximum(jnp.max(jnp.abs(V)), jnp.max(jnp.abs(W))), _TINY
    )


@eqx.filter_jit
def _follow(problem: Branch, V: Array, upwards: bool, steps: int) -> tuple[Array, Array]:
    return (_up if upwards else _down)(problem, V, steps)


@eqx.filter_jit
def _edges(
    model: Any, bracket: tuple[Any, ...], samples: int, steps: int, perfect: bool, appears: bool
) -> tuple[Array, Array, Array]:
    """(algorithmic, information-theoretic, spinodal) of each key, by bisection in α between the given ends.

    `perfect`: the informed branch is Q = S; `appears`: it starts between the ends given for the spinodal.
    """
    (a0, a1), (s0, s1), V_low, V_end, V_over, keys = bracket
    S = model.prior.second_moment(model.indices)
    continuous = model.prior.continuous

    def one(key: Array) -> tuple[Array, Array, Array]:
        def problem(alpha: Array) -> Branch:
            return _problem(model, alpha, key, samples, SCRAMBLES)

        def gone(alpha: Array) -> Array:
            low, _ = _up(problem(alpha), V_end, steps)
            return jnp.sum((low - V_over) ** 2) < jnp.sum((low - V_end) ** 2)

        def informed(alpha: Array) -> tuple[Array, Array]:
            V, code = _down(problem(alpha), jnp.zeros_like(S), steps)
            return V, (code == Result.SUCCESS) | (code == Result.RECOVERED)

        def exists(alpha: Array) -> Array:
            low, (high, fixed) = _up(problem(alpha), V_low, steps)[0], informed(alpha)
            return _apart(low, high) & fixed

        def wins(alpha: Array) -> Array:
            low, _ = _up(problem(alpha), V_low, steps)
            ordinary = potential_at(model, alpha, S - low, key, samples, SCRAMBLES).value
            if not perfect:
                high, fixed = informed(alpha)
                return (
                    fixed
                    & _apart(low, high)
                    & (
                        potential_at(model, alpha, S - high, key, samples, SCRAMBLES).value
                        > ordinary
                    )
                )
            # at Q = S the first two terms of Φ are minus the entropy of the prior, whatever a large Q̂
            large = jnp.eye(len(S), dtype=S.dtype) / _TIP
            entropy = model.prior.free_entropy(large) - 0.5 * jnp.sum(S * large)
            response = model.channel.response(
                (1 - _TIP) * S,
                _TIP * S,
                key=key,
                samples=samples,
                randomisations=SCRAMBLES,
                tangents=False,
            )
            return continuous | (entropy + alpha * jnp.mean(response.log_partition) > ordinary)

        spinodal = bisect(exists, s0, s1, _HALVINGS) if appears else s0
        algorithmic = bisect(gone, a0, a1, _HALVINGS)
        if perfect and continuous and appears:
            return algorithmic, spinodal, spinodal
        # without a change of sign between its ends it lies outside them
        first, last = spinodal if appears else s1, a0
        optimal = bisect(wins, first, algorithmic, _HALVINGS)
        optimal = jnp.where(~wins(last) & (a1 <= a0), jnp.inf, optimal)
        if not appears:
            optimal = jnp.where(wins(first), 0.0, optimal)
        return algorithmic, optimal, spinodal

    return lax.map(one, keys)


def first_order(
    model: Any,
    *,
    key: Array,
    alpha_min: float = 0.1,
    alpha_max: float = 5.0,
    points: int = 40,
    samples: int = 2**16,
    replicas: int = 8,
    max_steps: int = 3000,
    progress: bool = False,
) -> FirstOrder:
    r"""Algorithmic, information-theoretic and spinodal thresholds of a first-order transition, with its hysteresis curves.

    Arguments: `model`: any index model with a channel; `alpha_min`, `alpha_max`, `points`: geometric grid on which the
    branches are followed (a transition narrower than its spacing is not seen); `samples` in all, split over `replicas`
    independent bisections, whose spread is the error bar; `max_steps` of each fixed point: near the algorithmic threshold
    α_a the iteration takes about |α - α_a|^{-1/2} steps.
    Returns: a `FirstOrder`; kind "none" and None for the thresholds where the branches agree everywhere. A spinodal of 0
    says that the informed branch still exists at alpha_min (an information-theoretic 0, that it is optimal there). A
    transition that is not over at alpha_max: its algorithmic threshold is inf. Errors include the cell of the bisection.
    Codes: SUCCESS, MAX_STEPS (a branch did not converge somewhere in the hysteresis: raise `max_steps`, doubt the kind).
    Raises: ValueError for an empty range, a model without inference, a prior with a mean, or perfect recovery under a prior
    that is neither continuous nor discrete.
    Cost: about 2·points fixed points, then about 30 of them a replica. Source:
    [theory: multi-index, section 7.5].
    Example:
    >>> import jax, jaxsmi as smi
    >>> smi.first_order(smi.links.linear(0.1), key=jax.random.key(0), points=6, samples=2**9).kind
    'none'
    """
    check_problem(model, samples, replicas)
    check(
        0 < alpha_min < alpha_max < np.inf,
        "alpha_max",
        (alpha_min, alpha_max),
        "0 < alpha_min < alpha_max, finite",
    )
    check(points >= 3, "points", points, "at least 3")
    model, P = frozen(model), model.indices
    S = model.prior.second_moment(P)
    grid = np.geomspace(alpha_min, alpha_max, points)
    each = power_of_two(max(samples // (replicas * SCRAMBLES), 2))
    steps = int(max_steps)
    curves: dict[bool, list[Array]] = {}
    perfect, settled = np.zeros(points, bool), np.ones(points, bool)
    with tqdm(
        total=2 * points + 1, desc="first-order transition", leave=False, disable=not progress
    ) as bar:
        for upwards in (True, False):
            V, found = (1.0 - _SMALL) * S, []
            for k, alpha in enumerate(grid):
                problem = _problem(
                    model, jnp.asarray(alpha, S.dtype), key, each * replicas, SCRAMBLES
                )
                # the informed start is next to Q = S at every α
                V, code = _follow(problem, V if upwards else jnp.zeros_like(S), upwards, steps)
                found.append(V)
                perfect[k] = int(code) == Result.RECOVERED
                settled[k] &= int(code) in (Result.SUCCESS, Result.RECOVERED)
                bar.update()
            curves[upwards] = found
        apart = np.asarray(
            [bool(_apart(v, w)) for v, w in zip(curves[True], curves[False], strict=True)]
        )
        unfinished = bool((apart & ~settled).any())
        overlaps = [S - jnp.stack(curves[upwards]) for upwards in (True, False)]
        if not apart.any():
            return FirstOrder("none", None, None, None, jnp.asarray(grid), *overlaps)
        low, high = np.flatnonzero(apart)[[0, -1]]
        # the algorithmic end lies in (grid[high], next); the spinodal in (previous, grid[low])
        over, appears = bool(high + 1 < points), bool(low > 0)
        ends = (
            [grid[high], grid[high + 1] if over else grid[high]],
            [grid[low - 1] if appears else 0.0, grid[low]],
        )
        known = model.prior.continuous or model.prior.discrete or not perfect[apart].any()
        check(
            known,
            "model",
            model.prior,
            "a Gaussian or a discrete prior where recovery is perfect (Φ diverges otherwise)",
        )
        keys = jax.vmap(lambda k: jax.random.fold_in(key, 200 + k))(jnp.arange(replicas))
        bracket = (
            *(tuple(jnp.asarray(e, S.dtype) for e in pair) for pair in ends),
            curves[True][max(int(low) - 1, 0)], curves[True][high], curves[False][min(int(high) + 1, points - 1)], keys,
        )  # fmt: skip
        found = _edges(model, bracket, each, steps, bool(perfect[apart].all()), appears)
        bar.update()

    cells = [(ends[0][1] - ends[0][0]), grid[high] - grid[low], (ends[1][1] - ends[1][0]) * appears]

    def threshold(which: int, informed: bool, known: bool = True) -> Threshold:
        values, cell = found[which], max(cells[which], cells[0]) / 2**_HALVINGS / np.sqrt(12.0)
        inside = np.flatnonzero(apart)
        nearest = int(
            inside[
                np.argmin(
                    np.abs(
                        grid[inside]
                        - float(jnp.mean(jnp.where(jnp.isfinite(values), values, grid[high])))
                    )
                )
            ]
        )
        place = int(high) if which == 0 else nearest
        values = values if known else jnp.full_like(values, jnp.inf)
        alpha = jnp.mean(values)
        spread = jnp.std(values, ddof=1) / np.sqrt(replicas)
        stderr = jnp.where(jnp.isfinite(alpha) & (alpha > 0), jnp.hypot(spread, cell), 0.0)
        grows = overlaps[1][place] - overlaps[0][place]
        code = Result.MAX_STEPS if unfinished else Result.SUCCESS
        return Threshold(
            alpha,
            stderr,
            values,
            grows / jnp.trace(grows),
            overlaps[int(informed)][place],
            jnp.asarray(code),
        )

    return FirstOrder(
        "first order", threshold(0, False, over), threshold(1, True), threshold(2, True),
        jnp.asarray(grid), *overlaps,
    )  # fmt: skip
