"""Result codes: what became of a run, and the sentence to read."""

from __future__ import annotations

import enum

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

__all__ = ["INACCURATE_SHARE", "RUNNING", "Result", "choose", "outcome", "outcomes", "worst"]

RUNNING = -1  # the code of an iteration that goes on

# A larger fraction of inner integrals that missed their tolerance makes an answer INACCURATE.
INACCURATE_SHARE = 0.01


class Result(enum.IntEnum):
    """What became of a run. A code travels through `jit` and `vmap`; `Result(code).remedy` is the
    sentence to read.

    `RECOVERED` is success of a special kind: the iteration reached the branch on which V falls
    geometrically to zero.
    """

    SUCCESS = 0
    RECOVERED = 1
    MAX_STEPS = 2
    DIVERGED = 3
    NONFINITE = 4
    INVALID = 5
    INACCURATE = 6
    MARGINAL = 7
    OVERCONFIDENT = 8
    NOTHING_LEARNED = 9
    REGRESSED = 10
    LOST = 10
    UNSTABLE = 11

    @property
    def remedy(self) -> str:
        """One sentence: what happened and what to do about it."""
        return _REMEDIES[self]


# From the mildest to the gravest: what says less against the numbers comes first. Numbers of the
# codes are names, not an order.
_ORDER = (
    Result.RECOVERED,
    Result.SUCCESS,
    Result.INACCURATE,
    Result.MARGINAL,
    Result.UNSTABLE,
    Result.NOTHING_LEARNED,
    Result.REGRESSED,
    Result.OVERCONFIDENT,
    Result.MAX_STEPS,
    Result.DIVERGED,
    Result.NONFINITE,
    Result.INVALID,
)
_RANKS = np.argsort(np.array(_ORDER))  # where each code stands in the order


def worst(codes: ArrayLike) -> Array:
    """One code for many runs: the gravest of theirs (traced or not, of any one shape).

    From the mildest: RECOVERED, SUCCESS, INACCURATE, MARGINAL, UNSTABLE, NOTHING_LEARNED,
    REGRESSED, OVERCONFIDENT, MAX_STEPS, DIVERGED, NONFINITE, INVALID.
    """
    ranks = jnp.asarray(_RANKS)[jnp.asarray(codes)]
    return jnp.asarray(np.array(_ORDER))[jnp.max(ranks)]


_REMEDIES = {
    Result.SUCCESS: "Converged.",
    Result.RECOVERED: (
        "Perfect recovery: V falls geometrically to zero, the overlap is that of the signal with "
        "itself."
    ),
    Result.MAX_STEPS: (
        "The step budget ran out before the tolerance was met: raise max_steps, or loosen "
        "tolerance; close to a threshold convergence is slow."
    ),
    Result.DIVERGED: (
        "The iteration diverged: try damping=0.3 or more, precision='outer', a smaller start "
        "(init=1e-3), or a larger dimension."
    ),
    Result.NONFINITE: (
        "A non-finite number appeared: check that inputs and labels are finite, that labels are "
        "float64 and come from this model, and try damping."
    ),
    Result.INVALID: (
        "An argument was outside its range (found inside a compiled function, so reported as NaN): "
        "call the function outside jit to learn which."
    ),
    Result.INACCURATE: (
        "The inner integral could not meet its tolerance within its node budget: raise the "
        "channel's max_nodes, or loosen its tolerance."
    ),
    Result.MARGINAL: (
        "The fixed point is marginal (spectral radius one to 1e-3): α is at a threshold, where "
        "derivatives are infinite and error bars large; move α, or ask weak_recovery or staircase "
        "for the threshold itself."
    ),
    Result.OVERCONFIDENT: (
        "The labels are missed by more than the estimated variance allows (history['misfit']). "
        "Take another key, more steps, damping, or a larger dimension."
    ),
    Result.NOTHING_LEARNED: (
        "Nothing stands out of the bulk: these labels say too little of the signal. Take more "
        "samples, above the threshold of weak recovery (smi.weak_recovery)."
    ),
    Result.REGRESSED: (
        "GAMP ended with less overlap than its spectral start, and the start is returned: take "
        "more samples, or a larger dimension."
    ),
    Result.UNSTABLE: (
        "The replica-symmetric fixed point is unstable, or the proximal point jumps for a "
        "noticeable share of samples: these numbers are approximations, and message passing need "
        "not converge. Take a larger ridge, or more samples."
    ),
}

_PASSING = {
    Result.MAX_STEPS: (
        "The step budget ran out before the tolerance was met: raise max_steps, or loosen "
        "tolerance; close to a threshold convergence is slow. Where history['misfit'] stays well "
        "above one the run is caught away from the answer: begin elsewhere (init=1e-3, another "
        "key)."
    ),
}

_SPECTRAL = {
    Result.MAX_STEPS: (
        "The eigensolver did not settle: the outlier is close to the bulk. Take more samples, or a "
        "smaller regularisation."
    ),
    Result.NONFINITE: (
        "A non-finite number appeared: check that inputs and labels are finite, and that labels "
        "come from this model."
    ),
}

_TRAINING = {
    Result.SUCCESS: "All steps were taken, or the run was stopped as asked.",
    Result.NOTHING_LEARNED: (
        "The run ended as asked, but learned nothing: no cosine with the teacher is beyond chance, "
        "three times 1/√D. Take more steps, another learning rate (plain SGD on the mean loss "
        "wants one of order D), or more samples."
    ),
    Result.MAX_STEPS: (
        "All steps were taken, and what was to stop the run was not met: take more steps, or ask "
        "for less."
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


_SPECIAL = {
    "gamp": _PASSING,
    "spectral": _SPECTRAL,
    "train": _TRAINING,
    "online": _TRAINING,
}


def outcome(code: int, kind: str) -> str:
    """The sentence that goes with a result code.

    Args:
        code: A `Result`.
        kind: What ran: "gamp", "state_evolution", "spectral", "train" or "online".
    """
    result = Result(code)
    return _SPECIAL.get(kind, {}).get(result, result.remedy)


def outcomes(results: ArrayLike, kind: str) -> str:
    """The sentence that goes with a result code; with several codes how often each came, and the
    sentence of the `worst`."""
    codes = np.ravel(np.asarray(results))
    if codes.size == 1:
        return outcome(int(codes[0]), kind)
    counted = {int(code): int(np.sum(codes == code)) for code in np.unique(codes)}
    said = [f"{n} {Result(code).name}" for code, n in counted.items()]
    gravest = max(counted, key=lambda code: _RANKS[code])
    return f"{', '.join(said)}. {Result(gravest).name}: {outcome(gravest, kind)}"


def choose(*cases: tuple[Array | bool, int]) -> Array:
    """The code of the last condition that holds, `RUNNING` where none does.

    Args:
        cases: Pairs of a condition (traced or not, of any one shape) and the code it stands for,
            the weakest first.
    """
    code = jnp.asarray(RUNNING)
    for condition, result in cases:
        code = jnp.where(condition, int(result), code)
    return code
