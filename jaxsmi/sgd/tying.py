r"""What one direction for all tokens saves: steps to weak recovery of untied over tied networks.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (46) to (48)], κ = ⟨C_k(g), 1^{⊗k}⟩/‖C_k(g)‖_op at
the information exponent k:

    gain(L) = τ_untied/τ_tied ~ κ γ_tied/γ_untied  (k >= 2),   √L κ γ_tied/γ_untied  (k = 1)

For g = Σ_l h_2(z_l), κ = L: gain L at equal learning rates, L² where γ_tied = L γ_untied is
imposed. The largest stable rates of both are equal there, γ_max = (2/√π)/(L + 1) for ReLU: the
schedule is an argument, not a law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import (
    EXACT,
    anything,
    asked,
    checked,
    flag,
    function,
    optional,
    random_key,
    scalar,
    sequence,
    whole,
)
from jaxsmi.core.checks import POSITIVE, UNIT_INTERVAL, Arguments, check
from jaxsmi.models.sequence_single_index import HermiteSeries, Network, SequenceSingleIndex
from jaxsmi.sgd.dynamics import recovery_time
from jaxsmi.sgd.hermite import activation_coefficients
from jaxsmi.sgd.simulation import simulate

# The learning rates of tied and untied networks of length L, from γ.
SCHEDULES: dict[str, Callable[[int, float], tuple[float, float]]] = {
    "equal": lambda L, gamma: (gamma, gamma),
    "linear": lambda L, gamma: (gamma * L, gamma),
    "sqrt": lambda L, gamma: (gamma * np.sqrt(L), gamma),
}

# What a gain is a bound of, by whether an untied and whether a tied run did not arrive.
BOUNDS = {
    (False, False): "none",
    (True, False): "lower",
    (False, True): "upper",
    (True, True): "both late",
}


class Gain(NamedTuple):
    """What `gain` returns.

    Attributes:
        lengths: L (n,).
        tied: Steps to weak recovery of tied networks, one array of runs for each length (inf: not
            reached).
        untied: Those of untied networks.
        gain: The gains (n,).
        stderr: Their standard errors (n,).
        bound: By length "none"; "lower" or "upper", where some untied or tied runs did not arrive
            and the gain is that bound; "both late" (the gain is NaN).
        exponent: That of gain ~ L^exponent over the lengths without a bound (NaN for fewer than
            two).
        exponent_stderr: Its standard error.
    """

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
    terms = {tuple(2 * (i == l) for i in range(length)): 1.0 for l in range(length)}
    return HermiteSeries(terms, normalised=True)


@checked(
    key=random_key,
    lengths=sequence("whole numbers >= 1, at least one", whole()),
    dimension=whole(3, EXACT),
    gamma=scalar(POSITIVE),
    schedule=anything,
    target=function("a function of a length that makes a HermiteSeries"),
    activation=function("a JAX function of a number"),
    m=optional(scalar(UNIT_INTERVAL)),
    eta=scalar(UNIT_INTERVAL),
    runs=sequence("two numbers >= 2: their spread is the error bar", whole(2)),
    patience=scalar(POSITIVE),
    progress=optional(flag),
)
def gain(
    key: PRNGKeyArray,
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
    r"""Gain of tied over untied networks against the length, by the chain of the overlaps (c = 1).

        gain(L) = mean τ_untied/mean τ_tied,   τ: first step with ‖m‖/√L >= η

    Args:
        key: A random key.
        lengths: Lengths L, integers >= 1. Default 1, 2, 4, 8.
        dimension: The dimension d, an integer >= 3. Default 1000.
        gamma: Learning rate γ, a number > 0. Default 0.002.
        schedule: "equal", "linear" (γ_tied = L γ), "sqrt" (√L γ), or a function (L, γ) -> (γ_tied,
            γ_untied). Default "equal".
        target: A function of L that makes a `HermiteSeries`. Default Σ_l h_2(z_l).
        activation: The activation of the networks. Default ReLU.
        m: Overlap of every row at the start, a number in (0, 1). Default o/√((1-o)² + o²), o =
            1/√d.
        eta: The level η, a number in (0, 1). Default 0.2.
        runs: Numbers of tied and untied runs, integers >= 2. Default (24, 6).
        patience: A run gets so many times the steps of the flow, a number > 0. Default 4.
        progress: Whether to show bars. Default False.

    Returns:
        A `Gain`. Where the tied network is blind to the target, κ = 0, the gain is 0.

    Raises:
        ValueError: For no lengths, a number out of range, an unknown schedule, fewer than two runs,
            or a flow that does not reach η.

    Example:
        >>> import jax, jaxsmi as smi
        >>> run = {"dimension": 100, "gamma": 0.02, "runs": (8, 8)}
        >>> gains = smi.sgd.gain(jax.random.key(0), (1, 2), **run)  # doctest: +SKIP
        >>> bool(1.5 < gains.gain[1] < 2.7)  # equal learning rates: L  # doctest: +SKIP
        True

    Cost:
        L times more steps for untied networks; 2 minutes for the default.

    Source:
        [ALSKZ25, Fig. 3]; [theory: online-sgd, Eqs. (46) to (49), Table 7].
    """
    arguments = Arguments()
    whole = len(lengths) >= 1 and all(int(L) == L and L >= 1 for L in lengths)
    check(whole, "lengths", lengths, "at least one length, whole numbers >= 1")
    arguments.number("gamma", gamma, POSITIVE)
    if not callable(schedule):
        schedule = SCHEDULES[arguments.choice("schedule", schedule, tuple(SCHEDULES))]
    check(
        len(runs) == 2 and min(runs) >= 2,
        "runs",
        runs,
        "two numbers >= 2: their spread is the error bar",
    )
    arguments.number("patience", patience, POSITIVE)
    arguments.number("eta", eta, UNIT_INTERVAL)
    asked(
        "activation",
        jax.eval_shape,
        "a JAX function of a number",
        activation,
        jax.ShapeDtypeStruct((), float),
    )
    o = 1.0 / np.sqrt(dimension)
    m = float(o / np.sqrt((1 - o) ** 2 + o**2)) if m is None else m
    race = _Race(activation, dimension, m, eta, patience, progress)
    times: list[tuple[np.ndarray, np.ndarray]] = []
    blind = []
    for position, L in enumerate(map(int, lengths)):
        series = asked("target", target, "a function of a length: a HermiteSeries", L)
        blind.append(_blind(series, activation, L))
        rates = asked("schedule", schedule, "a function of (length, gamma): two rates", L, gamma)
        pair = []
        for tied, rate, count in zip((True, False), rates, runs, strict=True):
            stream = jax.random.fold_in(key, 2 * position + tied)
            hopeless = tied and blind[-1]
            pair.append(
                np.full(count, np.inf)
                if hopeless
                else race.times(series, L, tied, rate, jax.random.split(stream, count))
            )
        times.append((pair[0], pair[1]))
    return _summary(np.array([int(L) for L in lengths]), times, blind)


def _blind(series: HermiteSeries, activation: Callable[[Array], Array], length: int) -> bool:
    """Whether a tied network is blind to the target, Σ_{|n|=k} ĝ_n √(k!/n!) c_k = 0 for all k >= 1.

    Raises a ValueError where an untied network is blind to it too.
    """
    terms = [
        (n, float(g))
        for n, g in zip(series.degrees, series.orthonormal, strict=True)
        if any(n) and g != 0.0
    ]
    depends = "a target that depends on its fields"
    check(len(terms) > 0, "target", f"constant at L = {length}", depends)
    c = np.asarray(activation_coefficients(activation, max(sum(n) for n, _ in terms)))
    sees = any(abs(g * c[sum(n)]) > 1e-12 for n, g in terms)
    allowed = "one whose Hermite coefficients do not vanish at its orders"
    check(sees, "activation", f"blind to the target at L = {length}", allowed)
    contracted = np.zeros(len(c))
    for n, g in terms:
        contracted[sum(n)] += g * _multiplicity(n) * c[sum(n)]
    return bool(np.all(np.abs(contracted) < 1e-12))


def _multiplicity(n: tuple[int, ...]) -> float:
    """√(|n|!/n!): the weight of h_n in the contraction with 1^{⊗|n|}."""
    factorial = np.cumprod([1.0, *range(1, sum(n) + 1)])
    return float(np.sqrt(factorial[sum(n)] / np.prod(factorial[list(n)])))


class _Race(NamedTuple):
    """What all runs to weak recovery have in common."""

    activation: Callable[[Array], Array]
    dimension: int
    m: float
    eta: float
    patience: float
    progress: bool

    def times(
        self, series: HermiteSeries, length: int, tied: bool, rate: float, keys: PRNGKeyArray
    ) -> np.ndarray:
        """Steps to weak recovery (runs,); of a run that did not arrive minus the steps it had."""
        network = Network(self.activation, tied)
        model = SequenceSingleIndex(series, length, network, loss_factor=1.0)
        time = float(recovery_time(model, self.m, gamma=rate, eta=self.eta))
        reaches = f"the flow of L = {length} reaches eta = {self.eta} from m = {self.m:.3g}"
        check(np.isfinite(time), "gamma", rate, f"a rate at which {reaches}")
        steps = int(np.ceil(self.patience * time * self.dimension / rate))
        done = simulate(
            model,
            keys,
            dimension=self.dimension,
            gamma=rate,
            steps=steps,
            m=self.m,
            eta=self.eta,
            until=self.eta,
            progress=self.progress,
        )
        return np.where(np.isfinite(done.reached), done.reached, -float(steps))


def _summary(
    lengths: np.ndarray, times: list[tuple[np.ndarray, np.ndarray]], blind: list[bool]
) -> Gain:
    """Gains and their exponent, from times of tied and untied runs; negative: did not arrive."""
    ratio = np.zeros(len(lengths))
    error = np.zeros(len(lengths))
    bound = []
    for i, (tied, untied) in enumerate(times):
        if blind[i]:
            bound.append("none")
            continue
        bound.append(BOUNDS[bool((untied < 0).any()), bool((tied < 0).any())])
        tied = np.abs(tied)
        untied = np.abs(untied)
        ratio[i] = untied.mean() / tied.mean() if bound[-1] != "both late" else np.nan
        relative = (x.std(ddof=1) / np.sqrt(len(x)) / x.mean() for x in (tied, untied))
        error[i] = ratio[i] * np.hypot(*relative)
    good = np.array([b == "none" for b in bound]) & (ratio > 0)
    exponent, exponent_error = _power(lengths[good], ratio[good], error[good])
    arrived = lambda x: np.where(x < 0, np.inf, x)
    return Gain(
        lengths=lengths,
        tied=[arrived(tied) for tied, _ in times],
        untied=[arrived(untied) for _, untied in times],
        gain=ratio,
        stderr=error,
        bound=bound,
        exponent=exponent,
        exponent_stderr=exponent_error,
    )


def _power(lengths: np.ndarray, ratio: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """Exponent of ratio ~ L^exponent by a weighted line, and its error; NaN below two lengths."""
    if len(set(lengths)) < 2:
        return float("nan"), float("nan")
    x = np.log(lengths)
    y = np.log(ratio)
    w = (ratio / error) ** 2
    centred = x - np.sum(w * x) / np.sum(w)
    spread = np.sum(w * centred**2)
    return float(np.sum(w * centred * y) / spread), float(1.0 / np.sqrt(spread))
