"""One function on every device of a mesh, each with its own part of the samples.

Arrays with a leading axis of samples are spread over the devices, everything else is the same on
all of them; sums over samples go over the devices inside the function
(`AbstractOperator.sum_devices`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
from jax.sharding import Mesh, PartitionSpec

__all__ = ["EVERYWHERE", "SPREAD", "on_devices"]

# How an array lies on the devices: one part of the samples each, or the same on all
SPREAD = "spread"
EVERYWHERE = "everywhere"

Answer = TypeVar("Answer")


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
