r"""A student of a model as a problem of descent: its loss, its batches, and what is recorded of it.

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),   ŷ = link(Ŵ x/√D),   ℓ = ‖ŷ - y‖² if no other is given,
    c = 1/|B| ("mean", the default), 1 ("sum"), 1/D ("sum/D")

Source: [theory: descent, Eqs. (1) to (3)].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.border import asked, whole
from jaxsmi.core.checks import COSINE, Arguments
from jaxsmi.core.data import Dataset
from jaxsmi.descent.loop import Descent, Epochs
from jaxsmi.descent.stream import Stream
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.teacher_student import squared_loss

__all__ = ["REDUCTIONS", "Batches", "Stop", "Task", "divisor"]

REDUCTIONS = ("mean", "sum", "sum/D")


def divisor(reduction: str, count: Array | int, dimension: int) -> Array | int:
    """1/c of the loss c Σ ℓ of a batch of `count` samples in dimension D."""
    return {"mean": count, "sum": 1, "sum/D": dimension}[reduction]


class Batches(NamedTuple):
    """Which samples a step of training sees, and how often.

    Attributes:
        size: Samples in a batch; None: all at once.
        one_pass: Whether each sample of a Dataset is used once, in order. Default False.
        repeats: Updates on each batch. Default 1.
    """

    size: int | None = None
    one_pass: bool = False
    repeats: int = 1

    def checked(self) -> Batches:
        """The same, or a ValueError that names what is wrong."""
        arguments = Arguments()
        if self.size is not None:
            whole()("batch_size", self.size)
        whole()("repeats", self.repeats)
        size = self.size if self.size is None else int(self.size)
        one_pass = arguments.flag("one_pass", self.one_pass)
        return Batches(size, one_pass, int(self.repeats))


class Stop(NamedTuple):
    """When training stops before its steps are taken.

    Attributes:
        patience: After so many records without a smaller error; None: never.
        target: When every layer's cosine is as large, in (0, 1] (of ranks above one: of the spans
            of their rows); None: never.
    """

    patience: int | None = None
    target: float | None = None

    def checked(self) -> Stop:
        """The same, or a ValueError that names what is wrong."""
        arguments = Arguments()
        if self.patience is not None:
            whole()("patience", self.patience)
        if self.target is not None:
            arguments.number("target", self.target, COSINE)
        return self


class Task(Descent):
    """A student of a model on a data set or a stream (module docstring)."""

    model: AbstractModel
    data: Dataset | Stream
    test: Dataset | None
    target: Array | None
    loss: Callable[[Array, Array], Array] = eqx.field(static=True)
    record: Callable[[Array], PyTree] | None = eqx.field(static=True)
    reduction: str = eqx.field(static=True)
    size: int = eqx.field(static=True)
    one_pass: bool = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)

    def start(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples, where there is one."""
        if isinstance(self.data, Stream) or self.size >= self.data.samples:
            return jnp.zeros((0,), jnp.int32)
        return self._epochs(self.data).start(key, step)

    def _epochs(self, data: Dataset) -> Epochs:
        """The order in which a data set is used."""
        return Epochs(data.samples, self.size, not self.one_pass)

    def batch(self, key: PRNGKeyArray, carried: Array, step: Array) -> tuple[Array, PyTree]:
        """Inputs, labels and which of them count, of a step."""
        data = self.data
        if isinstance(data, Stream):
            return carried, (*data.draw(jax.random.fold_in(key, step), self.size), None)
        inputs = data.stored_inputs
        if self.size >= data.samples:
            return carried, (inputs, data.labels, None)
        carried, chosen, inside = self._epochs(data).next(key, carried, step)
        whole = data.samples % self.size == 0
        return carried, (inputs[chosen], data.labels[chosen], None if whole else inside)

    def objective(self, weights: Array, batch: PyTree) -> Array:
        """The loss of a batch."""
        inputs, labels, inside = batch
        outputs = self.model.outputs(weights, inputs)
        values = jax.vmap(self.loss)(outputs, labels.astype(inputs.dtype))
        count = len(values)
        if inside is not None:
            values = jnp.where(inside, values, 0.0)
            count = jnp.sum(inside)
        return jnp.sum(values) / divisor(self.reduction, count, self.data.dimension)

    def observe(self, weights: Array) -> dict[str, PyTree]:
        """Overlaps and cosines, the error, and what the user asked to record."""
        entry: dict[str, PyTree] = dict(
            self.model.overlaps(weights, self.model.teacher_of(self.data))
        )
        error = self._error(weights).astype(theory_dtype())
        entry |= {"error": error, "watched": error}
        if self.record is not None:
            made = asked("record", self.record, "a function of the weights", weights)
            entry["record"] = jax.tree.map(jnp.asarray, made)
        return entry

    def _error(self, weights: Array) -> Array:
        """The error on the test set; without one that of the population, from the overlaps."""
        if self.test is None:
            key = jax.random.key(0)
            return self.model.error_of(weights, self.data, key=key, samples=512)
        inputs = self.test.stored_inputs
        labels = self.test.labels.astype(inputs.dtype)
        return jnp.mean(jax.vmap(squared_loss)(self.model.outputs(weights, inputs), labels))
