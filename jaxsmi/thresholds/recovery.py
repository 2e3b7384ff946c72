r"""Perfect recovery: the α above which Q = S is a stable fixed point of state evolution.

Equations here [theory: multi-index, Eqs. (57), (58)]: for V → 0 a noiseless label that fixes k
combinations of the fields gives tr(V Q̂) = α k, so that V falls by P/(α k) a step.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxsmi.core import validate
from jaxsmi.core.arrays import nan
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel, model_argument


def recovery_threshold(model: AbstractModel) -> Threshold:
    r"""Compute the α above which perfect recovery is stable: P/M for noiseless rank-one attention.

    tr(V Q̂) → αk for V → 0, so that V falls by P/(αk) a step, for labels that fix k combinations of
    their fields: k = M where the last layer has rank one, 2M - 1 of rank two, 2 with two tokens,
    and 2M - 2 where query and key are untied, of rank one.

    Stability does not prove that the branch from small overlap reaches Q = S. Measured for two
    tokens: it does, and without a jump. Fixed points with a small V lie at α < P/M, which they
    reach as V → 0: α M/P = 0.955, 0.986, 0.996 at V_11 = 0.1, 0.03, 0.01 for one layer, 0.968(4),
    0.989(2), 0.997(1) for two, and 0.98(1) at V_11 = 0.1 for three.

    Args:
        model: A noiseless attention model with a Gaussian prior and a last layer of one head, tied
            of rank one or two, or untied of rank one, or another link whose labels fix a known
            number of combinations (phase retrieval, z1 z2), or a matrix model (by counting:
            D(ρ)/M, inf where nothing is recovered).

    Returns:
        A `Threshold`, exact, without an error bar; its subspace is everything. Of index models it
        is a count, whose derivative is zero; of matrix models it is differentiable in the numbers
        of the model (rank ratio, aspect ratio).

    Raises:
        ValueError: For models whose labels fix no combination.

    Example:
        >>> import jaxsmi as smi
        >>> float(smi.recovery_threshold(smi.DeepAttention(3, 2)).alpha)
        1.5

    Source:
        [theory: multi-index, Eqs. (57), (58)].
    """
    model = model_argument(model)
    valid = validate.valid(model)
    # a traced model cannot raise: it gets NaN and a code
    alpha = jnp.where(valid, model.recovery, nan())
    S = model.prior.second_moment(model.indices)
    code = jnp.where(valid, int(Result.SUCCESS), int(Result.INVALID))
    return Threshold(alpha, jnp.zeros_like(alpha), alpha[None], S / jnp.trace(S), S, code)
