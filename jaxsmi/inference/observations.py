"""The samples of a run: one function on every device of a mesh, each with its own part of them.

Arrays with a leading axis of samples are spread over the devices, everything else is the same on
all of them; sums over samples go over the devices inside the function
(`AbstractOperator.sum_devices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from jaxsmi.core.data import Dataset
from jaxsmi.design.base import AbstractOperator
from jaxsmi.models.base import AbstractModel

# How an array lies on the devices: one part of the samples each, or the same on all
SPREAD = "spread"
EVERYWHERE = "everywhere"

Answer = TypeVar("Answer")


class Observations(eqx.Module):
    """A model, its data, and the devices that they lie on."""

    model: AbstractModel
    data: Dataset
    # static: inside jit the data do not say where they lie
    mesh: Mesh | None = eqx.field(static=True)

    @property
    def operator(self) -> AbstractOperator:
        """From the signal to its fields; on each device of the mesh, those of its samples."""
        operator = self.model.design.operator(self.data.inputs)
        if self.mesh is None:
            return operator
        return dataclasses.replace(operator, axes=self.mesh.axis_names)

    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of a signal."""
        return on_devices(
            lambda observations, W: observations.operator.forward(W),
            self.mesh,
            (self, W),
            lambda arguments: arguments[0].data.of_samples,
            SPREAD,
        )


def on_devices(
    function: Callable[..., Answer],
    mesh: Mesh | None,
    arguments: tuple[object, ...],
    of_samples: Callable[..., Sequence[object]],
    out: object,
) -> Answer:
    """function(*arguments), by each device of the mesh on its own samples; None: as it is.

    Args:
        function: What to compute; it sees only its device's samples.
        mesh: The devices.
        arguments: Trees of arrays and other things.
        of_samples: The arrays of the arguments that have a leading axis of samples.
        out: The tree of the answer, SPREAD or EVERYWHERE for each of its arrays.

    Returns:
        The answer, its spread arrays put together.
    """
    if mesh is None:
        return function(*arguments)
    arrays, rest = eqx.partition(arguments, eqx.is_array)

    def placed(mark: object) -> PartitionSpec:
        return PartitionSpec(mesh.axis_names) if mark == SPREAD else PartitionSpec()

    everywhere = jax.tree.map(lambda _: EVERYWHERE, arrays)
    count = len(of_samples(everywhere))
    marks = eqx.tree_at(of_samples, everywhere, [SPREAD] * count)
    return jax.shard_map(
        lambda arrays: function(*eqx.combine(arrays, rest)),
        mesh=mesh,
        in_specs=(jax.tree.map(placed, marks),),
        out_specs=jax.tree.map(placed, out),
        check_vma=False,
    )(arrays)
