"""Result codes of runs: their order, messages, and the choice of one among many."""

from __future__ import annotations

import enum

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

RUNNING = -1  # the code of an iteration that goes on

# A larger fraction of inner integrals that missed their tolerance makes an answer INACCURATE
# (empirical: below it the error that they add to an average stays under its own error bar).
INACCURATE_SHARE = 0.01


class Result(enum.IntEnum):
    """How a run ended, a code that passes through `jit` and `vmap`. `Result(code).remedy` says what
    happened and what to try, `Result(code).training` the same for descent. Members are in order of
    severity.

    `RECOVERED` is a success, too: V falls to zero.
    """

    remedy: str
    training: str  # the same of descent, which has steps and rates where others have fixed points
    learner: str  # the same of the theory of a learner, whose fixed points need not be stable

    def __new__(
        cls, code: int, remedy: str, training: str | None = None, learner: str | None = None
    ) -> Result:
        """A member with its messages."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.remedy = remedy
        member.training = remedy if training is None else training
        member.learner = remedy if learner is None else learner
        return member

    # The order is that of severity. Files store the numbers, so that these cannot be the order.
    RECOVERED = 1, "Perfect recovery: V falls to zero."
    SUCCESS = 0, "Converged.", "All steps were taken, or the target was reached."
    INACCURATE = (
        6,
        "Too many inner integrals missed their tolerance: raise the model's max_nodes, or its "
        "tolerance.",
        None,
        "Too many proximal points missed their tolerance: give the loss its proximal point, prox=, "
        "or places where the search begins, starts=.",
    )
    MARGINAL = (
        7,
        "The fixed point is marginal (spectral radius one within 1e-3, or its error): α is at a "
        "threshold, where derivatives are infinite. Move α, or take more points; smi.weak_recovery "
        "and smi.staircase compute thresholds.",
    )
    UNSTABLE = (
        11,
        "The fixed point is unstable, a saddle: run message passing outside jit, where it leaves "
        "saddles, or from another start.",
        None,
        "Replica symmetry breaks: the fixed point is unstable (`stability` above one), or the "
        "minimum over the fields jumps in too many samples, as for losses that are not convex. "
        "These numbers need not be those of the learner: take a larger ridge, or more samples. If "
        "the cosine is zero, it would grow from there: leave out start=, or jit.",
    )
    AMBIGUOUS = (
        12,
        "Free entropies do not tell which estimate is right: runs from different starts end at "
        "different ones, or the labels hardly prefer this one to none. Take more starts "
        "(start=('spectral', 1e-3, 1e-3)), more samples or a larger dimension, or compare the ends "
        "on held-out labels.",
    )
    INPUTS = (
        13,
        "The inputs are not of mean zero, variance one and without correlations, as message "
        "passing assumes: print(data.second_moments()) shows what fails, and data.standardise() or "
        "data.whiten(other_inputs) mend it.",
    )
    NOTHING_LEARNED = (
        9,
        "Nothing was learned: the labels say too little about the signal. Take more samples, "
        "above the α of smi.weak_recovery.",
        "Nothing was learned: take more steps, more samples, or another learning rate.",
    )
    REGRESSED = (
        10,
        "Message passing ended with less overlap than its spectral start, which is returned: take "
        "more samples, or a larger dimension.",
    )
    OVERCONFIDENT = (
        8,
        "The estimate misses the labels by more than its variance allows (history['misfit']): take "
        "another key, more steps, damping, or a larger dimension.",
    )
    MAX_STEPS = (
        2,
        "Not converged: take more steps or a larger tolerance, iteration=smi.Iteration(max_steps, "
        "tolerance=..); close to a threshold convergence is slow.",
        "The run took all its steps before it reached its target: take more steps.",
        "Not converged: take more steps or a larger tolerance, of gamp also damping, "
        "iteration=smi.Iteration(max_steps=3000, damping=0.5). Where labels can be fitted exactly "
        "or separated the minimum lies at infinity or is not unique: take a ridge, or a larger "
        "one.",
    )
    DIVERGED = (
        3,
        "The iteration diverged: try iteration=smi.Iteration(damping=0.3) or more damping, "
        "learner=smi.Bayes(precision='outer'), a smaller start, or a larger dimension.",
        "The run diverged: take a lower learning rate.",
        "Norms grow without bound. Without a ridge the minimum is not unique, or lies at infinity: "
        "labels can be fitted exactly, or separated. Take a ridge, learner=smi.Erm(ridge=1e-6), or "
        "a larger one.",
    )
    NONFINITE = (
        4,
        "A number became infinite or NaN: check that inputs and labels come from this model and "
        "are float64, and that no log_likelihood= returns NaN; or try damping.",
        "A number became infinite or NaN: take a lower learning rate.",
    )
    INVALID = (
        5,
        "An argument was out of its range, which inside jit shows as NaN only: call the function "
        "outside jit, where the error names the argument.",
    )


_ORDER = np.array(list(Result))
# the place of each code in that order
_RANKS = np.argsort(_ORDER)


def worst(codes: ArrayLike) -> Array:
    """One code for many runs: the gravest of theirs (traced or not, of any one shape)."""
    return jnp.asarray(_ORDER)[jnp.max(jnp.asarray(_RANKS)[jnp.asarray(codes)])]


def message(results: ArrayLike, of: str = "remedy") -> str:
    """The message of a result code; of several, their counts and the message of the gravest.
    `of`: "training" of descent, "learner" of the theory of a learner."""
    codes = np.ravel(np.asarray(results))
    # NumPy, not `worst`: a message must not start a computation
    gravest = Result(int(_ORDER[np.max(_RANKS[codes])]))
    remedy = getattr(gravest, of)
    return remedy if codes.size == 1 else f"{counts(codes)}. {gravest.name}: {remedy}"


def counts(results: ArrayLike) -> str:
    """The names of result codes, with their numbers where there are several: "2 SUCCESS"."""
    names, numbers = np.unique(np.ravel(np.asarray(results)), return_counts=True)
    if np.size(results) == 1:
        return Result(int(names[0])).name
    return ", ".join(f"{n} {Result(int(c)).name}" for c, n in zip(names, numbers, strict=True))


def choose(*cases: tuple[Array | bool, int], start: ArrayLike = RUNNING) -> Array:
    """The code of the last condition that holds, `start` where none does.

    Args:
        cases: Pairs of a condition (traced or not, of any one shape) and the code it stands for,
            the weakest first.
        start: The code, or codes, without any of the cases. Default `RUNNING`.
    """
    # selects instead of branches: under vmap both sides of a branch run anyway
    code = jnp.asarray(start)
    for condition, result in cases:
        code = jnp.where(condition, int(result), code)
    return code
