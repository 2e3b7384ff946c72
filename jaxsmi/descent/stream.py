"""TODO descent.stream."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.checks import check


class Stream(eqx.Module):
    """Endless fresh samples of a teacher: data of one-pass (online) learning that are never stored.

    Arguments: `model` that makes the labels; `teacher` (P, D); `dtype` of the inputs.
    Raises: ValueError for a teacher that is not (P, D).
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.links.phase_retrieval(), jax.random.key(0)
    >>> stream = smi.Stream(model, model.start(key, 50))
    >>> smi.train(model, stream, optax.sgd(1.0), key=key, steps=20, batch_size=10).weights.shape
    (1, 50)
    """

    model: Any
    teacher: Array
    dtype: Any = eqx.field(static=True)

    def __init__(self, model: Any, teacher: Any, dtype: Any = None):
        teacher = jnp.asarray(teacher)
        shape = model.student_shape(teacher.shape[-1])
        check(teacher.shape == shape, "teacher", teacher, f"{shape}")
        self.model, self.teacher, self.dtype = model, teacher, dtype

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, without end."""
        return float("inf")

    def draw(self, key: Array, samples: int) -> tuple[Array, Array]:
        """Inputs (samples, M, D) and their labels."""
        alpha = self.model.complexity(samples, self.dimension)
        data = self.model.sample(
            key, dimension=self.dimension, alpha=alpha, teacher=self.teacher, dtype=self.dtype
        )
        return data.inputs, data.labels
