"""Block sizes of integrals, by the memory of a device.

An integral over fields goes over blocks of samples and nodes. A device that reports its memory, an
accelerator, needs large blocks, and a small share of its memory bounds them. A device that reports
none, such as a CPU, works from its cache: there the smallest blocks are the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax

CACHE = 2**19  # bytes of a block without reported memory: half of a core's usual second-level cache
_SHARE = 64  # of a device's memory: several blocks live at once, beside the data


class Block(NamedTuple):
    """Samples and nodes of a block; powers of two, unless they are the least of a rule."""

    samples: int
    nodes: int


class Device(Protocol):
    """The part of a `jax.Device` that is used."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Memory in bytes, with "bytes_limit"; None where it is not reported."""


def working_memory(device: Device | None = None) -> int:
    """Bytes that a block of an integral may take on a device.

    Args:
        device: The device. Default: the first of this process.

    Returns:
        A 64th of the memory that JAX may use on the device, or half a megabyte where it is not
        reported.

    Example:
        >>> import jax
        >>> working_memory(jax.devices("cpu")[0])
        524288
    """
    first: Device = jax.local_devices()[0] if device is None else device
    try:
        limit = (first.memory_stats() or {}).get("bytes_limit", 0)
    except jax.errors.JaxRuntimeError:  # a plug-in without memory statistics
        limit = 0
    return limit // _SHARE if limit else CACHE


def block_within(available: int, width: int, least: Block, most: Block) -> Block:
    """The largest block, from `least` to `most`, whose numbers fit into so many bytes.

    Samples are doubled first: they share the nodes.

    Args:
        available: Bytes.
        width: Numbers of eight bytes for each pair of a sample and a node.
        least: The block where nothing larger fits.
        most: The largest block that is useful.

    Returns:
        A `Block`.

    Example:
        >>> tuple(block_within(2**24, 8, Block(16, 512), Block(512, 2048)))
        (512, 512)
    """
    pairs = available // (8 * width)
    # powers of two: blocks divide nets without a remainder
    samples = _grown(least.samples, most.samples, pairs // least.nodes)
    return Block(samples, _grown(least.nodes, most.nodes, pairs // samples))


def _grown(least: int, most: int, allowed: int) -> int:
    """The largest power of two, from `least` to `most`, that is allowed."""
    return max(least, min(most, 1 << max(allowed.bit_length() - 1, 0)))
