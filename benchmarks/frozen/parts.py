"""A result as a flat dictionary of arrays and strings."""

from __future__ import annotations

import math

import jax
import numpy as np
from adapters import Digest, solution_parts, threshold_parts, xarray_parts

LONG, FIRST = 600, 5


def parts_of(value, path=""):
    """A flat dictionary of arrays and strings."""
    join = lambda name: f"{path}/{name}" if path else str(name)
    if value is None:
        return {path or "value": "none"}
    if isinstance(value, str):
        return {path or "value": value}
    if isinstance(value, Digest):
        return digest(np.asarray(plain(value.array)), path)
    if isinstance(value, dict):
        found = {}
        for name, entry in value.items():
            found |= parts_of(entry, join(name if isinstance(name, str) else str(name)))
        return found
    if hasattr(value, "history") and hasattr(value, "covariance"):
        return parts_of(solution_parts(value), path)
    if hasattr(value, "replicas") and hasattr(value, "subspace"):
        return parts_of(threshold_parts(value), path)
    if hasattr(value, "data_vars"):
        return parts_of(xarray_parts(value), path)
    if hasattr(value, "_fields"):
        return parts_of({name: getattr(value, name) for name in value._fields}, path)
    if isinstance(value, (list, tuple)) and any(
        x is None
        or isinstance(x, (str, dict, list, tuple))
        or hasattr(x, "shape")
        or hasattr(x, "history")
        or hasattr(x, "replicas")
        for x in value
    ):
        found = {}
        for n, entry in enumerate(value):
            found |= parts_of(entry, join(n))
        return found
    array = np.asarray(plain(value))
    if array.dtype.kind in "US" or array.dtype == object:
        return {path or "value": "|".join(map(str, array.ravel().tolist()))}
    if array.size > LONG:
        return digest(array, path)
    return {path or "value": array}


def plain(value):
    """Something that NumPy reads."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and "key" in str(dtype):
        return np.asarray(jax.random.key_data(value))
    if dtype is not None and str(dtype) == "bfloat16":
        return np.asarray(value.astype("float32"))
    return value


def digest(array, path):
    flat = np.asarray(array, np.float64).ravel()
    finite = np.where(np.isfinite(flat), flat, 0.0)
    mix = np.cos(1.0 + 12.9898 * np.arange(flat.size) % 78.233)
    at = f"{path}/" if path else ""
    return {
        f"{at}shape": np.asarray(np.shape(array)), f"{at}dtype": str(array.dtype),
        f"{at}norm": np.asarray(math.sqrt(math.fsum(finite * finite))), f"{at}sum": np.asarray(math.fsum(finite)),
        f"{at}mix": np.asarray(math.fsum(finite * mix)), f"{at}nans": np.asarray(int(np.sum(~np.isfinite(flat)))),
        f"{at}first": flat[:FIRST],
    }  # fmt: skip


def written(value):
    """For JSON: floats by repr, NaN and infinities as strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [written(x) for x in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, complex):
        return [written(value.real), written(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
