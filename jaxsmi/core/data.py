"""TODO core.data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

if TYPE_CHECKING:
    pass
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check


@jax.jit
def _all_finite(x: Array) -> Array:
    return jnp.all(
        jnp.isfinite(x)
    )  # in one pass: no copy of a large array, on the device or to the host


class Regenerated(eqx.Module):
    """Inputs (N, M, D) that are not stored: block k is drawn again, from the key and its number, whenever it is read.

    `numbers` (K,) of the blocks; `key`; `law(key, shape, dtype)` draws one; `each`: samples in a block, N = K·each; `form`: the
    shape (M, D) of one input. `model.sample(.., store=False)` makes it. Memory: that of one block while it is read.
    """

    numbers: Array
    key: Array
    law: Callable[..., Array] = eqx.field(static=True)
    each: int = eqx.field(static=True)
    form: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, M, D)."""
        return (len(self.numbers) * self.each, *self.form)

    @property
    def ndim(self) -> int:
        """3."""
        return len(self.shape)

    def block(self, k: Any) -> Array:
        """The k-th block (each, M, D)."""
        return self.law(
            jax.random.fold_in(self.key, self.numbers[k]), (self.each, *self.form), self.dtype
        )

    def stored(self) -> Array:
        """All inputs, as an array."""
        return lax.map(self.block, jnp.arange(len(self.numbers))).reshape(self.shape)


class LabelLaw(Protocol):
    """What a data set knows of the model that drew its labels."""

    @property
    def indices(self) -> int:
        """P, the number of indices."""
        ...

    def link(self, fields: Array) -> Array:
        """The noiseless label of one sample from its fields."""
        ...

    def complexity(self, samples: int, dimension: int) -> float:
        """The sample complexity α of so many samples."""
        ...


class Dataset(eqx.Module):
    """Inputs, labels and, for synthetic data, the teacher that made them.

    Arguments: `inputs` (N, M, D), float64, float32 or bfloat16 (products are then float32), or `Regenerated`; `labels`
    (N, ...), float64 for noiseless attention; `teacher` (P, D) or None for a user's own data (errors are then NaN); `model`
    that drew the labels (set by `sample`; None: taken to be the model that learns).

    Raises ValueError for an `inputs` that is not (N, M, D), a number of labels other than N, or non-finite entries.

    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> smi.Dataset(jnp.ones((6, 1, 3)), jnp.ones((6,))).alpha
    2.0
    """

    inputs: Any  # Float[Array, "N M D"] or Regenerated
    labels: Float[Array, "N ..."]
    teacher: Float[Array, "P D"] | None = None
    model: LabelLaw | None = None

    def __init__(
        self, inputs: Any, labels: Any, teacher: Any = None, model: LabelLaw | None = None
    ):
        stored, labels = not isinstance(inputs, Regenerated), jnp.asarray(labels)
        inputs = jnp.asarray(inputs) if stored else inputs
        if stored and (jnp.issubdtype(inputs.dtype, jnp.integer) or inputs.dtype == bool):
            inputs = inputs.astype(theory_dtype())  # estimates are rounded to the inputs' precision
        teacher = None if teacher is None else jnp.asarray(teacher)
        check(
            inputs.ndim == 3,
            "inputs",
            inputs,
            "an array of shape (samples N, tokens M, dimension D)",
        )
        check(
            labels.ndim >= 1 and labels.shape[0] == inputs.shape[0],
            "labels",
            labels,
            f"an array with one row per sample: ({inputs.shape[0]}, ...)",
        )
        check(
            min(inputs.shape) >= 1,
            "inputs",
            inputs,
            "at least one sample, one token and one dimension",
        )
        if concrete((inputs, labels)):
            check(_all_finite(labels), "labels", labels, "finite numbers")
            check(not stored or _all_finite(inputs), "inputs", inputs, "finite numbers")
        if teacher is not None:
            check(
                teacher.ndim == 2 and teacher.shape[1] == inputs.shape[2],
                "teacher",
                teacher,
                f"an array of shape (indices P, {inputs.shape[2]})",
            )
            check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
        self.inputs, self.labels, self.teacher, self.model = inputs, labels, teacher, model

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.inputs.shape[0]

    @property
    def dimension(self) -> int:
        """D, the dimension of a token."""
        return self.inputs.shape[2]

    @property
    def alpha(self) -> float:
        """Sample complexity α as realised: of the model that drew the data (n/d² of attention with
        one matrix, n/(dL) of bilinear regression); N/D where that model is not known."""
        if self.model is None:
            return self.samples / self.dimension
        return self.model.complexity(self.samples, self.dimension)

    def stored(self) -> Dataset:
        """The same data with all inputs in memory (itself, where they are)."""
        if not isinstance(self.inputs, Regenerated):
            return self
        return Dataset(self.inputs.stored(), self.labels, self.teacher, self.model)

    @property
    def mesh(self) -> Mesh | None:
        """The devices that the samples are spread over; None: one device (or not known, inside jit)."""
        sharding: Any = self.labels.sharding if concrete(self.labels) else None
        if (
            not isinstance(sharding, NamedSharding)
            or sharding.mesh.size == 1
            or not sharding.spec
            or not sharding.spec[0]
        ):
            return None
        return sharding.mesh if isinstance(sharding.mesh, Mesh) else None

    def sharded(self, mesh: Mesh | None = None) -> Dataset:
        """The same samples, spread evenly over the devices of a mesh (all there are, if left out): `gamp` and `train` then work
        on all of them at once, with the same numbers up to rounding.

        Raises: ValueError where N (regenerated: the number of blocks) is no multiple of the number of devices.
        Example:
        >>> import jax, jaxsmi as smi
        >>> data = smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0)
        >>> data.sharded().samples
        100
        """
        if mesh is None:
            mesh = Mesh(np.asarray(jax.devices()), ("samples",))
        spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        regenerated = isinstance(self.inputs, Regenerated)
        parts = len(self.inputs.numbers) if regenerated else self.samples
        check(parts % mesh.size == 0, "mesh", f"{mesh.size} devices for {parts} {'blocks' if regenerated else 'samples'}",
              f"a number of devices that divides it (data.first({parts - parts % mesh.size}) drops the rest)")  # fmt: skip
        place = lambda x: jax.device_put(x, spread)
        inputs: Any = self.inputs
        inputs = (
            eqx.tree_at(lambda i: i.numbers, inputs, replace_fn=place)
            if regenerated
            else place(inputs)
        )
        return Dataset(inputs, place(self.labels), self.teacher, self.model)

    def first(self, samples: int) -> Dataset:
        """The first N samples (all, where there are no more)."""
        check(samples >= 1, "samples", samples, "an integer >= 1")
        check(
            not isinstance(self.inputs, Regenerated),
            "data",
            "regenerated inputs",
            "stored ones: data.stored()",
        )
        return Dataset(self.inputs[:samples], self.labels[:samples], self.teacher, self.model)
