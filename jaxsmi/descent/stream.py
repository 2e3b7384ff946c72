"""Endless fresh samples of a teacher, for one-pass (online) learning."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, numbers, optional, precision, random_key, whole
from jaxsmi.core.checks import check
from jaxsmi.core.data import Regenerated
from jaxsmi.models.base import AbstractModel, is_model
from jaxsmi.models.tokens import Directions
from jaxsmi.sensing.blocks import shifted

__all__ = ["Stream"]


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
        >>> stream = smi.Stream(model, model.start(key, 50))
        >>> smi.train(model, stream, optax.sgd(1.0), key=key, steps=20, batch_size=10).weights.shape
        (1, 50)
    """

    model: AbstractModel
    teacher: Array
    dtype: DTypeLike | None = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)

    directions: Array | None
    encoding: Array | None

    @checked(
        model=is_model,
        teacher=numbers("an array whose last axis is the dimension", dimensions=2),
        dtype=optional(precision),
        directions=optional(numbers("U (K, D)", dimensions=2)),
    )
    def __init__(
        self,
        model: AbstractModel,
        teacher: ArrayLike,
        dtype: DTypeLike | None = None,
        directions: ArrayLike | None = None,
    ):
        given = jnp.asarray(teacher)
        model.admit_teacher(given, given.shape[1])
        check(jnp.all(jnp.isfinite(given)), "teacher", given, "finite numbers")
        self.model = model
        self.teacher = given
        self.dtype = dtype
        self.shape = model.input_shape(given.shape[1])
        around = model.directions_of(None, given, directions)
        self.directions = None if around is None else around.vectors
        self.encoding = None if around is None else around.encoding

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, without end."""
        return float("inf")

    @checked(key=random_key, samples=whole())
    def draw(self, key: PRNGKeyArray, samples: int) -> tuple[Array, Array]:
        """So many inputs (samples, M, D) and their labels."""
        _, input_key, noise_key = jax.random.split(key, 3)  # as `model.sample` splits it
        dtype = self.dtype or theory_dtype()
        inputs = self.model.draw_inputs(input_key, samples, self.shape, dtype, store=True)
        if self.directions is not None and self.encoding is not None:
            inputs = shifted(inputs, Directions(self.directions, self.encoding).mean)
        assert not isinstance(inputs, Regenerated)
        truth = self.teacher.astype(theory_dtype())
        return inputs, self.model.draw_labels(noise_key, truth, inputs)
