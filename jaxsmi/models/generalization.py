"""Prediction error on a new input, of any model, from an overlap or a solution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxsmi.core.border import checked, choice, optional, random_key, whole
from jaxsmi.core.checks import Arguments
from jaxsmi.core.results import Estimate, Solution, is_overlap
from jaxsmi.models.base import AbstractModel, is_model, model_argument

__all__ = ["generalization_error"]


@checked(
    model=is_model,
    overlap=is_overlap,
    key=optional(random_key),
    predictor=choice("plug-in", "bayes"),
    samples=whole(16),
)
def generalization_error(
    model: AbstractModel,
    overlap: ArrayLike | Solution,
    *,
    key: PRNGKeyArray | None = None,
    predictor: str = "plug-in",
    samples: int = 32768,
) -> Estimate:
    r"""Prediction error on a new input at overlap Q, without label noise.

    With ω ~ N(0, Q) and z ~ N(ω, S - Q) for each token,

        plug-in: E ‖link(z) - link(ω)‖²;    bayes: E ‖link(z) - E[link(z)|ω]‖².

    Of labels ±1 a wrong sign costs (1 + 1)² = 4: the plug-in error is four times the share of wrong
    signs. Of matrix models: scores h = ω + √V GOE(T), ω ~ √q GOE(T); exact where there is a closed
    form (two tokens, linear output).

    Args:
        model: Any model.
        overlap: Q (P, P), a number q (Q = q I; the q of a matrix), or a Solution; 0 ⪯ Q ⪯ S, the
            prior's second moment.
        key: A random key. Default None: for closed forms only.
        predictor: "plug-in" or "bayes".
        samples: Links that are evaluated. Default 32768.

    Returns:
        An `Estimate` (value, stderr).

    Raises:
        ValueError: For a wrong shape or predictor, or Q outside its range.

    Example:
        >>> import jax, jaxsmi as smi
        >>> key = jax.random.key(0)
        >>> round(float(smi.generalization_error(smi.links.linear(0.1), 0.75, key=key)), 3)
        0.25
        >>> error = smi.generalization_error(smi.links.sign(), 0.75, key=key)
        >>> round(float(error) / 4, 2)  # wrong signs: arccos(√q)/π
        0.17

    Cost:
        `samples` links.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (62), (63)].
    """
    P = model_argument(model).indices
    arguments = Arguments()
    Q = overlap.overlap if isinstance(overlap, Solution) else overlap
    if isinstance(Q, (int, float, np.ndarray, np.generic, jax.Array)) and np.ndim(Q) == 0:
        Q = Q * jnp.eye(P)  # q, not a share of S
    Q = arguments.overlap("overlap", Q, model.prior.second_moment(P), strict=False)
    if key is not None:
        key = arguments.key("key", key)
    return model.prediction_error(
        jnp.where(arguments.valid & model.valid, Q, jnp.nan),
        bayes=predictor == "bayes",
        key=key,
        samples=samples,
    )
