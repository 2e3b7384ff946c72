"""TODO inference.devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
from jax.sharding import PartitionSpec

from jaxsmi.core.data import Regenerated

if TYPE_CHECKING:
    from jaxsmi.inference.message_passing import GampState, _Problem

SPREAD, EVERYWHERE = (
    "spread",
    "everywhere",
)  # over the devices: one part of the samples each; the same on all


def on_devices(function: Callable[..., Any], problem: _Problem, state: GampState, out: Any) -> Any:
    """function(problem, state), by each device of the problem's mesh on its own samples; `out`: how its results lie."""
    mesh = problem.mesh
    if mesh is None:
        return function(problem, state)
    arrays, rest = eqx.partition((problem, state), eqx.is_array)

    def placed(x: Any) -> PartitionSpec:
        return PartitionSpec(mesh.axis_names) if x == SPREAD else PartitionSpec()

    def of_samples(tree: Any) -> list[Any]:
        problem, state = tree
        inputs = problem.data.inputs
        inputs = inputs.numbers if isinstance(inputs, Regenerated) else inputs
        return [inputs, problem.data.labels, problem.statistic, state.g, state.omega]

    marks = eqx.tree_at(of_samples, jax.tree.map(lambda _: EVERYWHERE, arrays), [SPREAD] * 5)
    own = lambda arrays: function(*eqx.combine(arrays, rest))
    return jax.shard_map(
        own,
        mesh=mesh,
        in_specs=(jax.tree.map(placed, marks),),
        out_specs=jax.tree.map(placed, out),
        check_vma=False,
    )(arrays)
