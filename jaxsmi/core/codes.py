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
    RECOVERED = (
        1,
        "Perfect recovery: V falls geometrically to zero, the overlap is that of the signal with "
        "itself.",
    )
    SUCCESS = 0, "Converged."
    INACCURATE = (
        6,
        "The inner integral could not meet its tolerance within its node budget: raise the "
        "channel's max_nodes, or loosen its tolerance.",
    )
    MARGINAL = (
        7,
        "The fixed point is marginal (spectral radius one to 1e-3): α is at a threshold, where "
        "derivatives are infinite and error bars large; move α, or ask weak_recovery or staircase "
        "for the threshold itself.",
    )
    UNSTABLE = (
        11,
        "The replica-symmetric fixed point is unstable, or the proximal point jumps for a "
        "noticeable share of samples: these numbers are approximations, and message passing need "
        "not converge. Take a larger ridge, or more samples.",
    )
    NOTHING_LEARNED = (
        9,
        "Nothing stands out of the bulk: these labels say too little of the signal. Take more "
        "samples, above the threshold of weak recovery (smi.weak_recovery).",
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
        "The step budget ran out before the tolerance was met: raise max_steps, or loosen "
        "tolerance; close to a threshold convergence is slow.",
    )
    DIVERGED = (
        3,
        "The iteration diverged: try iteration=smi.Iteration(damping=0.3) or more damping, "
        "learner=smi.Bayes(precision='outer'), a smaller start, or a larger dimension.",
    )
    NONFINITE = (
        4,
        "A non-finite number appeared: check that inputs and labels are finite, that labels are "
        "float64 and come from this model, and try damping.",
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


# Where a kind of run needs another message than the one above: the settings to change differ.
# Training has no fixed point, so that SUCCESS and MAX_STEPS mean its budget and its target.
_TRAINING = {
    Result.SUCCESS: "All steps were taken, or the run reached its target.",
    Result.NOTHING_LEARNED: (
        "The run ended without learning: no cosine with the teacher exceeds chance, three times "
        "1/√D. Take more steps, another learning rate (plain SGD on the mean loss needs one of "
        "order D), or more samples."
    ),
    Result.MAX_STEPS: (
        "All steps were taken before the target was reached: take more steps, or loosen the target."
    ),
    Result.DIVERGED: (
        "The weights have grown a hundredfold: lower the learning rate, warm it up, or clip the "
        "gradient."
    ),
    Result.NONFINITE: (
        "A non-finite number appeared: lower the learning rate, and check that inputs, labels and "
        "loss are finite."
    ),
}
_BY_KIND = {
    "train": _TRAINING,
    "online": _TRAINING,
    "gamp": {
        Result.MAX_STEPS: (
            f"{Result.MAX_STEPS.remedy} Where history['misfit'] stays well above one the run "
            "is far from the answer: use another start or another key."
        ),
    },
    "spectral": {
        Result.MAX_STEPS: (
            "The eigensolver did not converge: the outlier is close to the bulk. Take more "
            "samples, or a smaller regularisation."
        ),
        Result.NONFINITE: (
            "A non-finite number appeared: check that inputs and labels are finite, and that "
            "labels come from this model."
        ),
    },
}


def message(results: ArrayLike, kind: str) -> str:
    """The message of a result code; of several, their counts and the message of the `worst`.

    Args:
        results: Codes, of any shape.
        kind: What ran: "gamp", "state_evolution", "spectral", "train" or "online".
    """
    codes = np.ravel(np.asarray(results))
    # on the host, not by `worst`: a message must not start a computation
    gravest = Result(int(_ORDER[np.max(_RANKS[codes])]))
    text = _BY_KIND.get(kind, {}).get(gravest, gravest.remedy)
    return text if codes.size == 1 else f"{counts(codes)}. {gravest.name}: {text}"


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
