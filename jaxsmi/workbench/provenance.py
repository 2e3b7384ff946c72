"""Provenance of results: versions, time, device, and any object as plain data for JSON.

`parameters` writes a model with all its numbers as dicts and lists;
`provenance` adds the versions, the time and the device, and of a solution its model, key and
outcome. Files and figures carry the result.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi

if TYPE_CHECKING:
    from jaxsmi.core.results import Solution

_LARGEST = 256  # arrays of a model with more entries than this are described by shape and type


def parameters(value: object, largest: float = _LARGEST) -> Any:
    """A module with all its numbers as plain dicts, lists, numbers and strings, ready for JSON.

    Args:
        value: An equinox Module (a model, a prior, a channel), an array, or any nesting of them.
        largest: Number of entries up to which an array is written out. Default 256.

    Returns:
        Dicts for modules (their class under "type"), lists for arrays of at most `largest` entries,
        shape and type for larger ones, names for functions, None for numbers that are not finite
        (JSON has none).

    Example:
        >>> import jax.numpy as jnp
        >>> parameters({"skip": jnp.array([1.0, 0.5]), "noise": float("nan")})
        {'skip': [1.0, 0.5], 'noise': None}
    """
    if isinstance(value, eqx.Module) and not isinstance(value, type):
        fields = {
            field.name: parameters(getattr(value, field.name, None), largest)
            for field in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    # before int: a result code is one, and its name says more
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): parameters(entry, largest) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [parameters(entry, largest) for entry in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return _array(value, largest)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)


def _array(value: jax.Array | np.ndarray | np.generic, largest: float) -> Any:
    """An array as nested lists, a random key as its words, a large array by its shape and type."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(value)  # pyright: ignore[reportArgumentType]
        return parameters(words, largest)
    if value.size > largest:
        return f"array of shape {value.shape}, {value.dtype}"
    return parameters(np.asarray(value).tolist(), largest)


def provenance(solution: Solution | None = None, /, **attributes: object) -> dict[str, Any]:
    """How something was made: versions, time, device; of a solution also model, key and outcome.

    Args:
        solution: The solution that is described. Default None.
        **attributes: Anything to add, made ready for JSON by `parameters`.

    Returns:
        A dict ready for JSON.

    Example:
        >>> provenance(seed=3)["seed"]
        3
    """
    made: dict[str, Any] = {
        "jaxsmi": jaxsmi.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": _device(solution),
        "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if solution is not None:
        made |= {"kind": solution.kind, "message": solution.message}
        if solution.model is not None:
            made |= {"model": repr(solution.model), "model_parameters": parameters(solution.model)}
        if solution.key is not None:
            made["key"] = parameters(key_data(solution.key))
    return made | {name: parameters(value) for name, value in attributes.items()}


def _device(solution: Solution | None) -> str:
    """Platform and kind of the device that holds the solution, or of the first device."""
    # the first device, where there is no solution or its arrays are those of NumPy
    devices = set(jax.devices())
    if solution is not None and isinstance(solution.overlap, jax.Array):
        devices = solution.overlap.devices() or devices
    device = min(devices, key=lambda device: device.id)
    return f"{device.platform}: {device.device_kind}"


def key_data(key: jax.Array) -> jax.Array:
    """The words of a random key; words that were given already stay as they are."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else key
