"""Result codes of runs, and the message of each."""

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
    happened and what to try. From the mildest to the gravest.

    `RECOVERED` is a success, too: V falls geometrically to zero.
    """

    remedy: str

    def __new__(cls, code: int, remedy: str) -> Result:
        """A member with its message."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.remedy = remedy
        return member

    # The order is that of severity. Files store the numbers, so that these cannot be the order.
    # One sentence for message passing, theory and training: where remedies differ it names both.
    RECOVERED = 1, "Perfect recovery: V falls geometrically to zero."
    SUCCESS = 0, "Converged; in training: all steps were taken, or the run reached its target."
    INACCURATE = (
        6,
        "The inner integral could not meet its tolerance within its node budget: raise the "
        "channel's max_nodes, or loosen its tolerance.",
    )
    MARGINAL = (
        7,
        "The fixed point is marginal (spectral radius one to 1e-3): α is at a threshold, where "
        "derivatives are infinite; move α, or ask weak_recovery or staircase for the threshold.",
    )
    UNSTABLE = (
        11,
        "The replica-symmetric fixed point is unstable, or the proximal point jumps for a "
        "noticeable share of samples: take a larger ridge, or more samples.",
    )
    NOTHING_LEARNED = (
        9,
        "The run ended without learning: these labels say too little of the signal. Take more "
        "samples, above smi.weak_recovery; in training also more steps, or another learning rate.",
    )
    REGRESSED = (
        10,
        "GAMP ended with less overlap than its spectral start, and the start is returned: take "
        "more samples, or a larger dimension.",
    )
    OVERCONFIDENT = (
        8,
        "The labels are missed by more than the estimated variance allows (history['misfit']). "
        "Take another key, more steps, damping, or a larger dimension.",
    )
    MAX_STEPS = (
        2,
        "The step budget ran out before the tolerance or target was met: raise max_steps, or "
        "loosen tolerance; close to a threshold convergence is slow.",
    )
    DIVERGED = (
        3,
        "The iteration diverged: try iteration=smi.Iteration(damping=0.3) or more damping, "
        "learner=smi.Bayes(precision='outer'), a smaller start, or a larger dimension; in training "
        "a lower learning rate.",
    )
    NONFINITE = (
        4,
        "A non-finite number appeared: check that inputs and labels are finite, that labels are "
        "float64 and come from this model; try damping, or a lower learning rate.",
    )
    INVALID = (
        5,
        "An argument was outside its range (found inside a compiled function, so reported as NaN): "
        "call the function outside jit to learn which.",
    )


_ORDER = np.array(list(Result))
# the place of each code in that order
_RANKS = np.argsort(_ORDER)


def worst(codes: ArrayLike) -> Array:
    """One code for many runs: the gravest of theirs (traced or not, of any one shape)."""
    return jnp.asarray(_ORDER)[jnp.max(jnp.asarray(_RANKS)[jnp.asarray(codes)])]


def message(results: ArrayLike) -> str:
    """The message of a result code; of several, their counts and the message of the gravest."""
    codes = np.ravel(np.asarray(results))
    # on the host, not by `worst`: a message must not start a computation
    gravest = Result(int(_ORDER[np.max(_RANKS[codes])]))
    if codes.size == 1:
        return gravest.remedy
    return f"{counts(codes)}. {gravest.name}: {gravest.remedy}"


def counts(results: ArrayLike) -> str:
    """The names of result codes, with their numbers where there are several: "2 SUCCESS"."""
    names, numbers = np.unique(np.ravel(np.asarray(results)), return_counts=True)
    if np.size(results) == 1:
        return Result(int(names[0])).name
    return ", ".join(f"{n} {Result(int(c)).name}" for c, n in zip(names, numbers, strict=True))


def choose(*cases: tuple[Array | bool, int]) -> Array:
    """The code of the last condition that holds, `RUNNING` where none does.

    Args:
        cases: Pairs of a condition (traced or not, of any one shape) and the code it stands for,
            the weakest first.
    """
    # selects instead of branches: under vmap both sides of a branch run anyway
    code = jnp.asarray(RUNNING)
    for condition, result in cases:
        code = jnp.where(condition, int(result), code)
    return code
