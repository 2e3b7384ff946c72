"""TODO thresholds.recovery."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxsmi.core.checks import Arguments
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel

# Perfect recovery ----------------------------------------------------------------------------------------------------------


def recovery_threshold(model: AbstractModel, *, key: PRNGKeyArray | None = None) -> Threshold:
    r"""Perfect recovery: the α above which Q = S is a stable fixed point of state evolution, for noiseless attention P/M.

    For V → 0 a label of M numbers fixes M combinations of the P·M fields: tr(V Q̂) = αM, so that V falls by P/(αM) a step.

    Arguments: `model`: a noiseless attention model with a Gaussian prior, the last layer of rank one; or a matrix model (by
    counting: D(ρ)/M, inf where nothing is recovered). Returns: a
    `Threshold` (exact, no error bar), its subspace everything. Raises: ValueError for models whose labels fix no combination.
    (Phase retrieval and z1 z2 fix one: the law holds for them too.)
    Stability does not prove that the branch from small overlap reaches Q = S. Measured for two tokens: it does, and without a
    jump. Fixed points with a small V lie at α < P/M, which they reach as V → 0: α M/P = 0.955, 0.986, 0.996 at V_11 = 0.1, 0.03,
    0.01 for one layer, 0.968(4), 0.989(2), 0.997(1) for two, and 0.98(1) at V_11 = 0.1 for three. Cost: none. Source:
    [theory: multi-index, Eqs. (57), (58)].
    Example:
    >>> import jaxsmi as smi
    >>> float(smi.recovery_threshold(smi.DeepAttention(3, 2)).alpha)
    1.5
    """
    if key is not None:
        Arguments().key("key", key)
    alpha = jnp.where(model.valid, model.recovery, jnp.nan)
    S = model.prior.second_moment(model.indices)
    code = jnp.where(model.valid, Result.SUCCESS, Result.INVALID)
    return Threshold(alpha, jnp.zeros_like(alpha), alpha[None], S / jnp.trace(S), S, code)
