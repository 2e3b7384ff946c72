"""Prediction error on a new input, of any model, from an overlap or a solution."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, choice, optional, random_key, whole
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.data import Dataset, is_dataset
from jaxsmi.core.results import Estimate, Solution, is_overlap
from jaxsmi.models.base import AbstractModel, is_model, model_argument
from jaxsmi.models.prediction import error_of_rows
from jaxsmi.numerics.nets import power_of_two

__all__ = ["generalization_error"]


@checked(
    model=is_model,
    overlap=is_overlap,
    data=optional(is_dataset),
    key=optional(random_key),
    predictor=choice("plug-in", "bayes"),
    samples=whole(16),
)
def generalization_error(
    model: AbstractModel,
    overlap: ArrayLike | Solution,
    *,
    data: Dataset | None = None,
    key: PRNGKeyArray | None = None,
    predictor: str = "plug-in",
    samples: int = 32768,
) -> Estimate:
    r"""Prediction error on a new input at overlap Q, without label noise.

    With ω ~ N(0, Q) and z ~ N(ω, S - Q) for each token,

        plug-in: E ‖link(z) - link(ω)‖²;    bayes: E ‖link(z) - E[link(z)|ω]‖².

    Of labels ±1 a wrong sign costs (1 + 1)² = 4: the plug-in error is four times the share of wrong
    signs. Of a run on data, with `data=`: z = Mᵀ Q⁻¹ ω + (ρ - Mᵀ Q⁻¹ M)^{1/2} η, at Q and
    M = Ŵ W*ᵀ/D of its weights and ρ = W* W*ᵀ/D of its teacher, which at finite D is S only up to
    √(2/D).

    Of matrix models: scores h = ω + √V GOE(T), ω ~ √q GOE(T); exact where there is a closed form
    (two tokens, linear output).

    Args:
        model: Any model.
        overlap: Q (P, P), a number q (Q = q I; the q of a matrix), or a Solution; 0 ⪯ Q ⪯ S, the
            prior's second moment, which a run at finite D may miss by chance: hand on its `data`.
        data: Of a run, with its teacher. Default None: theory at Q.
        key: A random key. Default None: for closed forms only.
        predictor: "plug-in" or "bayes".
        samples: Links that are evaluated. Default 32768.

    Returns:
        An `Estimate` (value, stderr).

    Raises:
        ValueError: For a wrong shape or predictor, Q outside its range, or data without a teacher
            or of another run.

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
        [TCDKZ25], [theory: multi-index, Eqs. (62) to (64)].
    """
    P = model_argument(model).indices
    arguments = Arguments()
    bayes = predictor == "bayes"
    weights = overlap.weights if isinstance(overlap, Solution) and model.of_rows else None
    if weights is not None and data is not None:
        taught = _taught(model, weights, data)
        key = arguments.key("key", key)
        weights = jnp.where(model.valid, weights, jnp.nan)
        size = power_of_two(samples // 8)
        return _error_of_run(model, weights, taught, key=key, bayes=bayes, samples=size)
    allowed = f"None: {model.title} and this overlap are compared at Q alone"
    check(data is None, "data", data, allowed)
    Q = overlap.overlap if isinstance(overlap, Solution) else overlap
    if isinstance(Q, (int, float, np.ndarray, np.generic, jax.Array)) and np.ndim(Q) == 0:
        Q = Q * jnp.eye(P)  # q, not a share of S
    Q = arguments.overlap("overlap", Q, model.prior.second_moment(P), strict=False)
    if key is not None:
        key = arguments.key("key", key)
    return model.prediction_error(
        jnp.where(arguments.valid & model.valid, Q, jnp.nan),
        bayes=bayes,
        key=key,
        samples=samples,
    )


_error_of_run = eqx.filter_jit(error_of_rows)


def _taught(model: AbstractModel, weights: Array, data: Dataset) -> Dataset:
    """The data of a run; a ValueError for data without a teacher, or of another run."""
    check(data.teacher is not None, "data", "data without a teacher", "data with their teacher")
    model.check_data(data, teacher=False)
    shape = model.student_shape(data.dimension)
    check(weights.shape == shape, "overlap", weights, f"a run whose weights are {shape}")
    return data
