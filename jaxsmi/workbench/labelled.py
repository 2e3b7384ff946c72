"""Solutions as labelled arrays: an xarray.Dataset with named dimensions and provenance.

xarray is imported only when a function here is called; it comes with `pip
install 'jaxsmi[data]'`.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution, index_names
from jaxsmi.core.validate import check
from jaxsmi.workbench.provenance import key_data, provenance

if TYPE_CHECKING:
    import xarray


__all__ = [
    "MATRICES",
    "SCALARS",
    "annotated",
    "attributes_of",
    "dimensions_of",
    "is_labelled",
    "import_xarray",
    "to_xarray",
]

# fields of a solution that are one number
SCALARS = ("error", "steps", "residual", "spectral_radius", "result")
MATRICES = ("overlap", "stderr", "covariance")  # those of shape (P, P)

_MEANINGS = {
    "overlap": "overlap Q of the estimate with itself",
    "stderr": "standard error of the overlap",
    "covariance": "covariance V of the fields that is left",
    "error": "prediction error of the plug-in predictor (matrix models: estimation error)",
    "alpha": "sample complexity N/D (matrix models: n/d^2)",
    "steps": "steps taken",
    "residual": "last fixed-point residual",
    "spectral_radius": "spectral radius of the map at the fixed point",
    "result": "result code",
    "weights": "estimated weights",
    "key": "random key",
    "teacher": "weights of the teacher",
    "inputs": "inputs, tokens as rows",
    "labels": "labels",
}


def import_xarray() -> ModuleType:
    """xarray, if netCDF can be written too.

    Otherwise an ImportError that says how to install it.
    """
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401  (h5netcdf no longer brings it)
        import xarray
    except ImportError as error:
        raise ImportError(
            "xarray, h5netcdf and h5py are needed to store results. "
            "Install them with: pip install 'jaxsmi[data]'"
        ) from error
    return xarray


def is_labelled(item: object) -> TypeGuard[xarray.Dataset]:
    """Whether something is an xarray.Dataset; where xarray was never imported nothing is."""
    module = sys.modules.get("xarray")
    return module is not None and isinstance(item, module.Dataset)


def to_xarray(solution: Solution, **attributes: object) -> xarray.Dataset:
    """A solution as an xarray.Dataset with provenance.

    Args:
        solution: One solution (not a batch from vmap).
        **attributes: Added to the attributes.

    Returns:
        A Dataset with `overlap`, `stderr`, `covariance` (index, index_); `error`, `steps`,
        `residual`, `spectral_radius`, `result`; `alpha` and the `name` of each index as
        coordinates; `weights` (index, dimension), of a matrix (row, dimension), where there are
        some; `history_...` (step, ...).

    Raises:
        ValueError: For a batch of solutions.
        ImportError: Without xarray, with the remedy.
    """
    xarray = import_xarray()
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
        variables["weights"] = _weights(np.asarray(solution.weights), indices)
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
            dimensions = ("step", *dimensions_of(name, values.shape[1:], indices))
            variables[f"history_{name}"] = (dimensions, values)
    return annotated(xarray.Dataset(variables, coordinates, attributes_of(solution, **attributes)))


def _weights(weights: np.ndarray, indices: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Weights with the names of their dimensions: one row an index, else rows of a matrix, maybe by
    layer.
    """
    rows = "index" if weights.shape == (indices, weights.shape[-1]) else "row"
    return ((*("layer",)[: weights.ndim - 2], rows, "dimension"), weights)


def attributes_of(solution: Solution | None = None, /, **attributes: object) -> dict[str, Any]:
    """The provenance as netCDF allows it: strings and numbers, the rest as JSON."""
    made = provenance(solution, **attributes)
    return {
        name: value
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        else json.dumps(value)
        for name, value in made.items()
    }


def dimensions_of(name: str, shape: tuple[int, ...], indices: int) -> list[str]:
    """Names of the dimensions of a recorded quantity, by its shape at one step."""
    if shape == (indices,):
        return ["index"]
    if shape == (indices, indices):
        return ["index", "index_"]
    return [f"{name}_{axis}" for axis in range(len(shape))]


def annotated(dataset: xarray.Dataset) -> xarray.Dataset:
    """The dataset with a long name for each variable that is known here, and the meaning of its
    result codes.
    """
    for name in dataset.variables:
        meaning = _MEANINGS.get(str(name).removeprefix("history_"))
        if meaning:
            dataset[name].attrs["long_name"] = meaning
    if "result" in dataset:  # the CF convention for codes
        dataset["result"].attrs["flag_values"] = np.array([int(code) for code in Result])
        dataset["result"].attrs["flag_meanings"] = " ".join(code.name for code in Result)
    return dataset
