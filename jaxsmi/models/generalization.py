"""TODO models.generalization."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxsmi.core.checks import Arguments
from jaxsmi.core.results import Estimate, Solution
from jaxsmi.models.base import AbstractModel


def generalization_error(
    model: AbstractModel,
    overlap: ArrayLike | Solution,
    *,
    key: PRNGKeyArray | None = None,
    predictor: str = "plug-in",
    samples: int = 32768,
) -> Estimate:
    r"""Prediction error on a new input at overlap Q, without label noise.

    Matrix models: h = ω + √V GOE(T), ω ~ √q GOE(T); exact where there is a closed form (T = 2, linear).
    plug-in: E ‖link(z) - link(ω)‖²;  bayes: E ‖link(z) - E[link(z)|ω]‖²;  ω ~ N(0, Q), z ~ N(ω, S - Q) for each token.
    Arguments: `overlap` (P, P) (or a Solution), 0 ⪯ Q ⪯ S, S the prior's second moment; `predictor` "plug-in" or "bayes".
    Returns: an `Estimate` (value, stderr). Raises: ValueError for a wrong shape or predictor, or Q outside that range.
    Cost: `samples` links. Source: [TCDKZ25], [theory: multi-index, Eqs. (62), (63)].
    Example:
    >>> import jax, jaxsmi as smi
    >>> round(
    ...     float(smi.generalization_error(smi.links.linear(0.1), 0.75, key=jax.random.key(0))), 3
    ... )
    0.25
    """
    P = model.indices
    arguments = Arguments()
    predictor = arguments.choice("predictor", predictor, ("plug-in", "bayes"))
    samples = arguments.count("samples", samples, at_least=16)
    Q = overlap.overlap if isinstance(overlap, Solution) else overlap
    Q = arguments.overlap("overlap", Q, model.prior.second_moment(P), strict=False)
    if key is not None:
        key = arguments.key("key", key)
    return model.prediction_error(
        jnp.where(arguments.valid, Q, jnp.nan), bayes=predictor == "bayes", key=key, samples=samples
    )
