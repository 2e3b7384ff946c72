r"""What one direction for all tokens saves: steps to weak recovery of untied over tied networks.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (46) to (48)], κ = ⟨C_k(g), 1^{⊗k}⟩/‖C_k(g)‖_op at the information exponent k:

    gain(L) = τ_untied/τ_tied ~ κ γ_tied/γ_untied  (k >= 2),   √L κ γ_tied/γ_untied  (k = 1)

For g = Σ_l h_2(z_l), κ = L: gain L at equal learning rates, L² where γ_tied = L γ_untied is imposed. The largest stable
rates of both are equal there, γ_max = (2/√π)/(L + 1) for ReLU: the schedule is an argument, not a law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxsmi.core.checks import check
from jaxsmi.models.sequence_single_index import HermiteSeries, Network, SequenceSingleIndex
from jaxsmi.sgd.dynamics import recovery_time
from jaxsmi.sgd.hermite import activation_coefficients
from jaxsmi.sgd.simulation import simulate

# γ_tied and γ_untied at length L, from γ.
SCHEDULES: dict[str, Callable[[int, float], tuple[float, float]]] = {
    "equal": lambda L, gamma: (gamma, gamma),
    "linear": lambda L, gamma: (gamma * L, gamma),
    "sqrt": lambda L, gamma: (gamma * np.sqrt(L), gamma),
}


# By whether an untied, a tied run did not arrive.
BOUNDS = {
    (False, False): "none",
    (True, False): "lower",
    (False, True): "upper",
    (True, True): "both late",
}


class Gain(NamedTuple):
    """`lengths` (n,); `tied`, `untied`: steps to weak recovery, one array of runs for each length (inf: not reached);
    `gain` (n,) and its `stderr`; `bound` (n,): "none", or "lower", "upper" where untied, tied runs did not all arrive (`gain` is
    then that bound), "both late" (NaN); `exponent` of gain ~ L^exponent over the lengths without a bound, and its
    `exponent_stderr` (NaN for fewer than two)."""

    lengths: np.ndarray
    tied: list[np.ndarray]
    untied: list[np.ndarray]
    gain: np.ndarray
    stderr: np.ndarray
    bound: list[str]
    exponent: float
    exponent_stderr: float


def sum_of_squares(length: int) -> HermiteSeries:
    """g = Σ_l h_2(z_l), h_2 = (z² - 1)/√2."""
    return HermiteSeries(
        {tuple(2 * (i == l) for i in range(length)): 1.0 for l in range(length)}, normalised=True
    )


def gain(
    key: Array,
    lengths: Sequence[int] = (1, 2, 4, 8),
    *,
    dimension: int = 1000,
    gamma: float = 0.002,
    schedule: str | Callable[[int, float], tuple[float, float]] = "equal",
    target: Callable[[int], HermiteSeries] = sum_of_squares,
    activation: Callable[[Array], Array] = jax.nn.relu,
    m: float | None = None,
    eta: float = 0.2,
    runs: tuple[int, int] = (24, 6),
    patience: float = 4.0,
    progress: bool = False,
) -> Gain:
    r"""Gain of tied over untied networks against the length, by the exact chain of the overlaps (c = 1).

        gain(L) = mean τ_untied/mean τ_tied,   τ: first step with ‖m‖/√L >= η

    Arguments: `key`; `lengths`; `dimension` d; `gamma` γ and `schedule`: "equal", "linear" (γ_tied = L γ), "sqrt", or a
    function (L, γ) -> (γ_tied, γ_untied); `target`: a function of L that makes a HermiteSeries; `activation`; `m`: overlap
    of every row at the start (default o/√((1-o)² + o²), o = 1/√d); `eta`; `runs` of (tied, untied); `patience`: a run gets
    so many times the steps of the flow; `progress`: bars.

    Returns: Gain. Where the tied network is blind to the target, κ = 0, the gain is 0. Raises: ValueError for no lengths,
    lengths < 1, γ <= 0, an unknown schedule, fewer than two runs, or an untied flow that does not reach η.

    Example:
    >>> import jax, jaxsmi as smi
    >>> found = smi.sgd.gain(
    ...     jax.random.key(0), (1, 2), dimension=100, gamma=0.02, runs=(8, 8)
    ... )  # doctest: +SKIP
    >>> bool(1.5 < found.gain[1] < 2.7)  # equal learning rates: L  # doctest: +SKIP
    True

    Cost: L times more steps for untied networks; 2 minutes for the default. Source: [ALSKZ25, Fig. 3];
    [theory: online-sgd, Eqs. (46) to (49), Table 7].
    """
    lengths = [int(L) for L in lengths]
    check(len(lengths) >= 1 and min(lengths) >= 1, "lengths", lengths, "whole numbers >= 1")
    check(np.isfinite(gamma) and gamma > 0, "gamma", gamma, "a number > 0")
    check(
        callable(schedule) or schedule in SCHEDULES,
        "schedule",
        schedule,
        f"one of {tuple(SCHEDULES)}, or a function",
    )
    check(min(runs) >= 2, "runs", runs, "two numbers >= 2: their spread is the error bar")
    rates = schedule if callable(schedule) else SCHEDULES[schedule]
    o = 1.0 / np.sqrt(dimension)
    m = o / np.sqrt((1 - o) ** 2 + o**2) if m is None else m
    tied, untied, blind = [], [], []
    for position, L in enumerate(lengths):
        series = target(L)
        terms = [
            (n, float(g))
            for n, g in zip(series.degrees, series.orthonormal, strict=True)
            if any(n) and g != 0.0
        ]
        check(
            len(terms) > 0, "target", f"constant at L = {L}", "a target that depends on its fields"
        )
        c = np.asarray(activation_coefficients(activation, max(sum(n) for n, _ in terms)))
        seen = any(abs(g * c[sum(n)]) > 1e-12 for n, g in terms)
        check(
            seen,
            "activation",
            f"blind to the target at L = {L}",
            "one whose Hermite coefficients do not vanish at its orders",
        )
        contracted = np.zeros(len(c))
        for n, g in terms:
            contracted[sum(n)] += g * _count(n) * c[sum(n)]
        blind.append(bool(np.all(np.abs(contracted) < 1e-12)))
        for is_tied, rate, count, found in zip(
            (True, False), rates(L, gamma), runs, (tied, untied), strict=True
        ):
            if is_tied and blind[-1]:
                found.append(np.full(count, np.inf))
                continue
            model = SequenceSingleIndex(series, L, Network(activation, is_tied), loss_factor=1.0)
            time = float(recovery_time(model, m, gamma=rate, eta=eta))
            check(
                np.isfinite(time),
                "gamma",
                rate,
                f"a rate at which the flow of L = {L} reaches eta = {eta} from m = {m:.3g}",
            )
            steps = int(np.ceil(patience * time * dimension / rate))
            keys = jax.random.split(jax.random.fold_in(key, 2 * position + is_tied), count)
            done = simulate(
                model,
                keys,
                dimension=dimension,
                gamma=rate,
                steps=steps,
                m=m,
                eta=eta,
                until=eta,
                progress=progress,
            )
            # a run that did not arrive counts with the steps it had, and makes the gain a bound
            found.append(np.where(np.isfinite(done.reached), done.reached, -float(steps)))
    return _summary(np.array(lengths), tied, untied, blind)


def _count(n: tuple[int, ...]) -> float:
    """√(|n|!/n!): the weight of h_n in the contraction with 1^{⊗|n|}."""
    factorial = np.cumprod([1.0, *range(1, sum(n) + 1)])
    return float(np.sqrt(factorial[sum(n)] / np.prod(factorial[list(n)])))


def _summary(
    lengths: np.ndarray, tied: list[np.ndarray], untied: list[np.ndarray], blind: list[bool]
) -> Gain:
    """Gains and the exponent of a weighted straight line; steps < 0 are budgets of runs that did not arrive."""
    ratio, error, bound = np.zeros(len(lengths)), np.zeros(len(lengths)), []
    for i, (t, u) in enumerate(zip(tied, untied, strict=True)):
        if blind[i]:
            bound.append("none")
            continue
        bound.append(BOUNDS[bool((u < 0).any()), bool((t < 0).any())])
        t, u = np.abs(t), np.abs(u)
        ratio[i] = u.mean() / t.mean() if bound[-1] != "both late" else np.nan
        error[i] = ratio[i] * np.hypot(
            *(x.std(ddof=1) / np.sqrt(len(x)) / x.mean() for x in (t, u))
        )
    good = np.array([b == "none" for b in bound]) & (ratio > 0)
    exponent = exponent_error = np.nan
    if good.sum() >= 2 and len(set(lengths[good])) >= 2:
        x, y, w = np.log(lengths[good]), np.log(ratio[good]), (ratio[good] / error[good]) ** 2
        centred = x - np.sum(w * x) / np.sum(w)
        exponent, exponent_error = (
            np.sum(w * centred * y) / np.sum(w * centred**2),
            1.0 / np.sqrt(np.sum(w * centred**2)),
        )
    arrived = lambda side: [np.where(x < 0, np.inf, x) for x in side]
    return Gain(
        lengths,
        arrived(tied),
        arrived(untied),
        ratio,
        error,
        bound,
        float(exponent),
        float(exponent_error),
    )
