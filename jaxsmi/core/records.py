"""TODO core.records."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result

if TYPE_CHECKING:
    import xarray

    from jaxsmi.core.results import Solution


_MEANINGS = {
    "overlap": "overlap Q of the estimate with itself",
    "stderr": "standard error of the overlap",
    "covariance": "covariance V of the fields that is left",
    "error": "prediction error of the plug-in predictor (matrix models: estimation error)",
    "alpha": "sample complexity N/D (matrix models: n/d^2)",
    "steps": "steps taken",
    "residual": "last fixed-point residual",
    "rho": "spectral radius of the map at the fixed point",
    "result": "result code",
    "weights": "estimated weights",
    "key": "random key",
    "teacher": "weights of the teacher",
    "inputs": "inputs, tokens as rows",
    "labels": "labels",
}


SCALARS = ("error", "steps", "residual", "rho", "result")


MATRICES = ("overlap", "stderr", "covariance")


_LISTED = 256  # arrays of a model with more entries than this are described by shape and type


def parameters(value: Any, largest: float = _LISTED) -> Any:
    """A module with all its numbers as plain dicts, lists, numbers and strings, ready for JSON.

    Arguments: `value`, an equinox Module (a model, a prior, a channel), an array, or any nesting of them; `largest` array
    that is written out.

    Returns: dicts for modules (their class under "type"), lists for arrays of at most `largest` entries, shape and type for
    larger ones, names for functions, None for non-finite numbers (JSON has none).

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
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): parameters(entry, largest) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [parameters(entry, largest) for entry in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return parameters(key_data(value), largest)
        if value.size > largest:
            return f"array of shape {value.shape}, {value.dtype}"
        return parameters(np.asarray(value).tolist(), largest)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)


def require() -> ModuleType:
    """xarray, once it is sure that netCDF can be written; otherwise an ImportError that says how to install it."""
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401  (h5netcdf no longer brings it)
        import xarray
    except ImportError as error:
        raise ImportError(
            "xarray, h5netcdf and h5py are needed to store results. Install them with: pip install 'jaxsmi[data]'"
        ) from error
    return xarray


def index_names(model: Any, indices: int) -> list[str]:
    """What to call the indices of a model: "layer 1" and so on where it has layers, "index 1" otherwise.

    Arguments: `model`, or None; `indices`, their number P.

    Returns: P names; in layers of rank above one "layer 1, index 2".

    Example:
    >>> index_names(None, 2)
    ['index 1', 'index 2']
    """
    names = tuple(getattr(model, "index_names", ()))
    return list(names) if len(names) == indices else [f"index {p}" for p in range(1, indices + 1)]


def version() -> str:
    """The version of the installed jaxsmi, or "not installed" where it runs from a bare folder."""
    try:
        return importlib.metadata.version("jaxsmi")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def provenance(solution: Solution | None = None, **attributes: Any) -> dict[str, Any]:
    """How something was made: versions, time, device; for a solution also its model with all numbers, key and outcome.

    Arguments: `solution`, optional; keyword arguments are added.

    Returns: a dict ready for JSON.

    Example:
    >>> provenance(seed=3)["seed"]
    3
    """
    known: dict[str, Any] = {
        "jaxsmi": version(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": _device(solution),
        "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if solution is not None:
        known |= {"kind": solution.kind, "message": solution.message}
        if solution.model is not None:
            known |= {"model": repr(solution.model), "model_parameters": parameters(solution.model)}
        if solution.key is not None:
            known["key"] = parameters(key_data(solution.key))
    return known | {name: parameters(value) for name, value in attributes.items()}


def to_xarray(solution: Solution, **attributes: Any) -> xarray.Dataset:
    """A solution as an xarray.Dataset with provenance.

    Arguments: `solution`, one (not a batch from vmap); keyword arguments are added to the attributes.

    Returns: a Dataset with `overlap`, `stderr`, `covariance` (index, index_); `error`, `steps`, `residual`, `rho`,
    `result`; `alpha` and the `name` of each index as coordinates; `weights` (index, dimension),
        of a matrix (row, dimension), where there are some;
    `history_...` (step, ...).

    Raises ValueError for a batch of solutions, ImportError (with the remedy) without xarray.
    """
    xarray = require()
    check(
        np.ndim(solution.alpha) == 0,
        "solution",
        f"a batch with alpha of shape {np.shape(solution.alpha)}",
        "one solution; take it out of the batch with jax.tree.map(lambda leaf: leaf[0], batch)",
    )
    indices = np.shape(solution.overlap)[0]
    variables: dict[str, Any] = {
        name: ((), np.asarray(getattr(solution, name))) for name in SCALARS
    }
    variables |= {
        name: (("index", "index_"), np.asarray(getattr(solution, name))) for name in MATRICES
    }
    if solution.weights is not None:
        weights = np.asarray(solution.weights)
        rows = "index" if weights.shape == (indices, weights.shape[-1]) else "row"
        variables["weights"] = ((*("layer",)[: weights.ndim - 2], rows, "dimension"), weights)
    if solution.key is not None:
        variables["key"] = (("word",), np.asarray(key_data(solution.key)).ravel())
    coordinates: dict[str, Any] = {
        "alpha": ((), np.asarray(solution.alpha)),
        "index": np.arange(1, indices + 1),
        "index_": np.arange(1, indices + 1),
        "name": (("index",), index_names(solution.model, indices)),
    }
    if "step" in solution.history:
        recorded = solution.trajectory
        coordinates["step"] = recorded.pop("step").astype(np.int64)
        for name, values in recorded.items():
            variables[f"history_{name}"] = (
                ("step", *dimensions_of(name, values.shape[1:], indices)),
                values,
            )
    dataset = xarray.Dataset(variables, coordinates, attributes_of(solution, **attributes))
    return annotated(dataset)


def attributes_of(solution: Solution | None = None, **attributes: Any) -> dict[str, Any]:
    """The provenance as netCDF allows it: strings and numbers, the rest as JSON."""
    known = provenance(solution, **attributes)
    return {
        name: value
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        else json.dumps(value)
        for name, value in known.items()
    }


def dimensions_of(name: str, shape: tuple[int, ...], indices: int) -> list[str]:
    if shape == (indices,):
        return ["index"]
    if shape == (indices, indices):
        return ["index", "index_"]
    return [f"{name}_{axis}" for axis in range(len(shape))]


def annotated(dataset: xarray.Dataset) -> xarray.Dataset:
    for name in dataset.variables:
        meaning = _MEANINGS.get(str(name).removeprefix("history_"))
        if meaning:
            dataset[name].attrs["long_name"] = meaning
    if "result" in dataset:  # the CF convention for codes
        dataset["result"].attrs["flag_values"] = np.array([int(code) for code in Result])
        dataset["result"].attrs["flag_meanings"] = " ".join(code.name for code in Result)
    return dataset


def _device(solution: Solution | None) -> str:
    devices = (
        solution.overlap.devices()
        if solution is not None and isinstance(solution.overlap, jax.Array)
        else None
    )
    device = min(devices or jax.devices(), key=lambda device: device.id)
    return f"{device.platform}: {device.device_kind}"


def key_data(key: Any) -> Any:
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else key
