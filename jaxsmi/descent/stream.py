"""Endless fresh samples of a teacher, for one-pass (online) learning."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.checks import Arguments, check
from jaxsmi.models.base import AbstractModel

__all__ = ["Stream"]


class Stream(eqx.Module):
    """Endless fresh samples of a teacher: data of one-pass learning that are never stored.

    Args:
        model: The model that makes the labels.
        teacher: Its weights, of a student's shape: (P, D) for indices.
        dtype: Precision of the inputs. None: that of the theory.

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

    def __init__(self, model: AbstractModel, teacher: ArrayLike, dtype: DTypeLike | None = None):
        arguments = Arguments()
        arguments.instance(
            "model", model, AbstractModel, "a model, such as smi.DeepAttention(2, 2)"
        )
        given = jnp.asarray(teacher)
        shape = model.student_shape(given.shape[-1] if given.ndim else 1)
        check(given.shape == shape, "teacher", given, f"{shape}")
        check(jnp.all(jnp.isfinite(given)), "teacher", given, "finite numbers")
        self.model = model
        self.teacher = given
        self.dtype = dtype

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, without end."""
        return float("inf")

    def draw(self, key: PRNGKeyArray, samples: int) -> tuple[Array, Array]:
        """So many inputs (samples, M, D) and their labels."""
        alpha = self.model.complexity(samples, self.dimension)
        data = self.model.sample(
            key, dimension=self.dimension, alpha=alpha, teacher=self.teacher, dtype=self.dtype
        )
        return data.stored_inputs, data.labels
