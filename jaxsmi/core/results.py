"""Array vocabulary, result codes, and the two containers that everything passes around: `Dataset` and `Solution`.

Letters used in array annotations everywhere: N samples, D dimension, M tokens, P indices, T recorded steps.
No equation lives here except the two definitions α = N/D and cosine = |w·w*| / (‖w‖ ‖w*‖).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

if TYPE_CHECKING:
    import xarray
from typing import NamedTuple

from jaxtyping import Array

from jaxsmi.core import records
from jaxsmi.core.codes import Result, outcome


class Solution(eqx.Module):
    """What a solver returns: the overlap it ended at, how sure it is, and how it got there.

    `overlap` (P, P): state evolution: Q; GAMP: Q = Ŵ Ŵᵀ/D. `stderr` (P, P): statistical standard error of `overlap`
    from the outer average (zero for GAMP, which is one run). `error`: prediction error of the plug-in predictor
    (NaN without a teacher). `alpha`: N/D. `steps`: steps taken. `residual`: the last fixed-point residual. `rho`:
    spectral radius of the map at the fixed point (NaN where not computed). `result`: a `Result` code. `history`: arrays
    with a leading axis of recorded steps (NaN after the last step). `covariance` (P, P): V, the covariance of the
    fields that is left. `weights` (P, D): the estimate (None in theory). `state`: what is needed to continue a run.
    `model`, `key`: the problem and the randomness, kept so that a file or a figure can say how it was made.
    """

    overlap: Array
    stderr: Array
    error: Array
    alpha: Array
    steps: Array
    residual: Array
    result: Array
    history: Mapping[str, Any]
    covariance: Array
    rho: Array
    weights: Array | None = None
    state: Any = None
    model: Any = None
    key: Any = None
    kind: str = eqx.field(static=True, default="state_evolution")

    @property
    def converged(self) -> Array:
        """True where the run ended at a fixed point: codes SUCCESS and RECOVERED."""
        return (self.result == Result.SUCCESS) | (self.result == Result.RECOVERED)

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return outcome(int(self.result), self.kind)

    @property
    def trajectory(self) -> dict[str, np.ndarray]:
        """`history` as NumPy arrays cut after the last recorded step (outside jit and vmap)."""
        recorded = np.isfinite(np.asarray(self.history["step"]))
        return jax.tree.map(lambda value: np.asarray(value)[recorded], dict(self.history))

    @property
    def cosine(self) -> np.ndarray:
        """The last finite cosine of each index (P,), of a batch (runs, P), outside jit and vmap; NaN without a teacher."""
        cosines = np.asarray(self.history["cosine"])
        last = cosines.shape[-2] - 1 - np.argmax(np.isfinite(cosines)[..., ::-1, :], axis=-2)
        return np.take_along_axis(cosines, last[..., None, :], axis=-2)[..., 0, :]

    def to_xarray(self, **attributes: Any) -> xarray.Dataset:
        """As an xarray.Dataset with provenance; keyword arguments are added to its attributes. Needs the extra `data`."""
        return records.to_xarray(self, **attributes)


class Threshold(eqx.Module):
    """A critical sample complexity, with its error bar and what is learned there.

    `alpha`: α_c (0: learned at any α > 0; inf: never at first order); `stderr`: its standard error; `replicas` (R,): α_c of each
    independent randomisation; `subspace` (P, P): the positive semi-definite direction of growth, of unit trace (zero where
    α_c is infinite); `overlap` (P, P): Q just below the threshold; `result`: a `Result` code.
    """

    alpha: Array
    stderr: Array
    replicas: Array
    subspace: Array
    overlap: Array
    result: Array

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return Result(int(self.result)).remedy

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of α_c by Student's law over the replicas (outside jit and vmap)."""
        from scipy.stats import t  # here: importing scipy.stats takes a second

        half = float(t.ppf(0.5 + 0.5 * confidence, max(np.size(self.replicas) - 1, 1))) * float(
            self.stderr
        )
        return float(self.alpha) - half, float(self.alpha) + half


class Estimate(NamedTuple):
    """A number and its standard error; `float(estimate)` is the number."""

    value: Array
    stderr: Array

    def __float__(self) -> float:
        return float(self.value)
