"""How much is worked on at once: blocks as large as a device's memory allows.

An integral over fields goes over blocks of samples and nodes. A device that reports its memory, an
accelerator, is filled by large blocks, and a small share of its memory bounds them. A device that
reports none, such as a CPU, works from its cache: there the smallest blocks are the fastest. What
a device is called does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax

__all__ = ["Block", "block_within", "working_memory"]

CACHE = 2**19  # bytes of a block where a device does not report its memory: half a megabyte

_SHARE = 64  # a block takes no more than this part of a device's memory


class Block(NamedTuple):
    """Samples and nodes worked on at once; powers of two, unless they are the least of a rule."""

    samples: int
    nodes: int


class Device(Protocol):
    """What is asked of a `jax.Device`."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Its memory in bytes, among others the "bytes_limit"; None where it does not say."""


def working_memory(device: Device | None = None) -> int:
    """Bytes that a block of an integral may take on a device.

    Args:
        device: The device. Default: the first of this process.

    Returns:
        A 64th of the memory that the device lets JAX have, or half a megabyte where it does not
        say.

    Example:
        >>> import jax
        >>> working_memory(jax.devices("cpu")[0])
        524288
    """
    first: Device = jax.local_devices()[0] if device is None else device
    try:
        limit = (first.memory_stats() or {}).get("bytes_limit", 0)
    except jax.errors.JaxRuntimeError:  # a plug-in that cannot say
        limit = 0
    return limit // _SHARE if limit else CACHE


def block_within(available: int, width: int, least: Block, most: Block) -> Block:
    """The largest block, from `least` to `most`, whose numbers fit into so many bytes.

    Samples are doubled first: they share the nodes.

    Args:
        available: Bytes.
        width: Numbers of eight bytes for each pair of a sample and a node.
        least: The block where nothing larger fits.
        most: The block where memory does not matter.

    Returns:
        A `Block`.

    Example:
        >>> tuple(block_within(2**24, 8, Block(16, 512), Block(512, 2048)))
        (512, 512)
    """
    pairs = available // (8 * width)
    samples = _grown(least.samples, most.samples, pairs // least.nodes)
    return Block(samples, _grown(least.nodes, most.nodes, pairs // samples))


def _grown(least: int, most: int, allowed: int) -> int:
    """The largest power of two, from `least` to `most`, that is allowed."""
    return max(least, min(most, 1 << max(allowed.bit_length() - 1, 0)))
