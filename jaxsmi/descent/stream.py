"""Endless fresh samples of a teacher, for one-pass (online) learning."""

from __future__ import annotations

import equinox as eqx
import jax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Regenerated
from jaxsmi.core.validate import check
from jaxsmi.design.blocks import shifted
from jaxsmi.design.tokens import Directions
from jaxsmi.models.base import AbstractModel, draw_labels


class Stream(eqx.Module):
    """Endless fresh samples of a teacher: data of one-pass learning that are never stored.

    Args:
        model: The model that makes the labels.
        teacher: As `model.sample` takes it: rows (P, D), factors (L r, d), or a matrix S (L, d).
        dtype: Precision of the inputs. None: that of the theory.
        directions: U (K, D), of a model with `inputs=smi.Tokens(..)` (`data.directions`).

    Raises:
        ValueError: For a teacher of another shape, or numbers that are not finite.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.phase_retrieval(), jax.random.key(0)
        >>> stream = smi.Stream(model, model.student.start(key, 50))
        >>> fit = smi.train(
        ...     model, stream, optax.sgd(1.0), key=key, gradient=smi.Gradient(batch_size=10)
        ... )
        >>> fit.weights.shape
        (1, 50)
    """

    model: AbstractModel
    teacher: Array
    dtype: DTypeLike | None = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    directions: Array | None
    encoding: Array | None

    def __init__(
        self,
        model: AbstractModel,
        teacher: ArrayLike,
        dtype: DTypeLike | None = None,
        directions: ArrayLike | None = None,
    ):
        self.model = validate.instance("model", model, AbstractModel, "a model")
        allowed = "an array whose last axis is the dimension, of finite numbers"
        self.teacher = validate.array("teacher", teacher, allowed)
        check(self.teacher.ndim == 2, "teacher", teacher, allowed)
        model.student.check_teacher(self.teacher, self.teacher.shape[1])
        self.dtype = validate.optional(validate.dtype, "dtype", dtype)
        self.shape = model.design.input_shape(self.teacher.shape[1])
        U = validate.optional(validate.array, "directions", directions, "U (K, D)")
        # errors of a student count the mean of the inputs, so that the stream has to carry it
        around = model.design.directions(None, self.teacher, U)
        self.directions = None if around is None else around.vectors
        self.encoding = None if around is None else around.encoding

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, infinite."""
        return float("inf")

    def draw(self, key: PRNGKeyArray, samples: int) -> tuple[Array, Array]:
        """Draw inputs (samples, M, D) and their labels."""
        key = validate.key("key", key)
        samples = validate.count("samples", samples)
        _, input_key, noise_key = jax.random.split(key, 3)  # as `model.sample` splits it
        # resolved at each draw, not once: double precision may be switched on later
        dtype = self.dtype or theory_dtype()
        # the shape of one input was taken outside jit, where the model's ratios are numbers
        inputs = self.model.design.draw_inputs(input_key, samples, self.shape, dtype)
        if self.directions is not None and self.encoding is not None:
            inputs = shifted(inputs, Directions(self.directions, self.encoding).mean)
        assert not isinstance(inputs, Regenerated)
        truth = self.teacher.astype(theory_dtype())
        return inputs, draw_labels(self.model, noise_key, truth, inputs)
