"""Prediction error on a new input, of any model, from an overlap or a solution."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import nan
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Estimate, Solution
from jaxsmi.core.validate import check
from jaxsmi.models.base import AbstractModel, check_data, model_argument, title
from jaxsmi.models.prediction import error_of_rows
from jaxsmi.numerics.quadrature import power_of_two


def generalization_error(
    model: AbstractModel,
    overlap: ArrayLike | Solution,
    *,
    data: Dataset | None = None,
    key: PRNGKeyArray | None = None,
    predictor: str = "plug-in",
    points: int = 32768,
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
        points: Links that are evaluated. Default 32768.

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
        `points` links.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (62) to (64)].
    """
    model = model_argument(model)
    P = model.indices
    bayes = validate.choice("predictor", predictor, ("plug-in", "bayes")) == "bayes"
    points = validate.count("points", points, at_least=16)
    key = validate.optional(validate.key, "key", key)
    data = validate.optional(validate.instance, "data", data, Dataset, "a Dataset with its teacher")
    solution = overlap if isinstance(overlap, Solution) else None
    allowed = "a number, Q (P, P), or a Solution"
    Q = solution.overlap if solution is not None else validate.array("overlap", overlap, allowed)
    weights = solution.weights if solution is not None and model.design.rows else None
    # at finite D an estimate misses M = Q by O(1/√D), and an error at Q alone would be biased
    if weights is not None and data is not None:
        check(data.teacher is not None, "data", "data without a teacher", "data with their teacher")
        data = check_data(model, data, teacher=False)
        shape = model.student.shape(data.dimension)
        check(weights.shape == shape, "overlap", weights, f"a run whose weights are {shape}")
        weights = jnp.where(validate.valid(model), weights, nan())
        key = validate.key("key", key)
        size = power_of_two(points // 8)
        return _error_of_run(model, weights, data, key=key, bayes=bayes, points=size)
    allowed = f"None: {title(model)} and this overlap are compared at Q alone"
    check(data is None, "data", data, allowed)
    if Q.ndim == 0:
        Q = Q * jnp.eye(P)  # q, not a share of S
    # not strict: at Q = S the error is zero, a limit that plots include
    Q = validate.overlap("overlap", Q, model.prior.second_moment(P), strict=False)
    # a model whose traced parameters are out of range has no error
    Q = jnp.where(validate.valid(model), Q, nan())
    return model.metric.prediction_error(Q, bayes=bayes, key=key, points=points)


_error_of_run = eqx.filter_jit(error_of_rows)
