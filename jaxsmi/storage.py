"""Solutions and data sets as xarray Datasets and netCDF files that say how they were made.

No equation lives here. A file holds named dimensions (`index`, `index_`, `step`, `dimension`, `sample`, `token`), one
variable for each field of a `Solution` (the history under the prefix `history_`), and the provenance as attributes:
versions, time, device, the model with all its numbers, and whatever the caller adds.

xarray is imported only when a function here is called; it comes with `pip install 'jaxsmi[data]'`.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.types import Dataset, Result, Solution, Threshold, check

if TYPE_CHECKING:
    import xarray

__all__ = ["from_xarray", "index_names", "load", "parameters", "provenance", "save", "stack", "thresholds", "to_xarray"]

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
_SCALARS = ("error", "steps", "residual", "rho", "result")
_MATRICES = ("overlap", "stderr", "covariance")
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
        fields = {field.name: parameters(getattr(value, field.name, None), largest) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): parameters(entry, largest) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [parameters(entry, largest) for entry in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return parameters(_key_data(value), largest)
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
            known["key"] = parameters(_key_data(solution.key))
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
    variables: dict[str, Any] = {name: ((), np.asarray(getattr(solution, name))) for name in _SCALARS}
    variables |= {name: (("index", "index_"), np.asarray(getattr(solution, name))) for name in _MATRICES}
    if solution.weights is not None:
        weights = np.asarray(solution.weights)
        rows = "index" if weights.shape == (indices, weights.shape[-1]) else "row"
        variables["weights"] = ((*("layer",)[: weights.ndim - 2], rows, "dimension"), weights)
    if solution.key is not None:
        variables["key"] = (("word",), np.asarray(_key_data(solution.key)).ravel())
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
            variables[f"history_{name}"] = (("step", *_dimensions(name, values.shape[1:], indices)), values)
    dataset = xarray.Dataset(variables, coordinates, _attributes(solution, **attributes))
    return _annotated(dataset)


def from_xarray(dataset: xarray.Dataset, model: Any = None) -> Solution:
    """The solution back from its Dataset, to plot it or to predict with it; the inverse of `to_xarray`.

    Arguments: `dataset`, of one solution (`curve.isel(alpha=0)` takes one out of a curve); `model`, which a file
    describes but cannot rebuild.

    Returns: a Solution without the state that continues a run.

    Raises ValueError for a Dataset with more than one alpha.
    """
    check(
        "alpha" not in dataset.dims,
        "dataset",
        f"a curve of {dataset.sizes.get('alpha')} alphas",
        "one solution, such as dataset.isel(alpha=0)",
    )
    history = {}
    if "step" in dataset.coords:
        recorded = [name for name in dataset.data_vars if str(name).startswith("history_")]
        past = dataset[recorded].dropna("step", how="all")  # a curve pads its shorter histories with NaN
        history = {str(name).removeprefix("history_"): past[name].values for name in recorded}
        history["step"] = past["step"].values.astype(float)
    names = (*_SCALARS, *_MATRICES, "alpha", *(name for name in ("weights", "key") if name in dataset))
    stored: dict[str, Any] = {name: jnp.asarray(dataset[name].values) for name in names}
    return Solution(
        **stored,
        history=history,
        model=model,
        kind=str(dataset.attrs.get("kind", "state_evolution")),
    )


def stack(solutions: Iterable[Solution], **attributes: Any) -> xarray.Dataset:
    """Solutions at several alphas as one curve: a Dataset over the dimension `alpha`, in ascending order.

    Arguments: `solutions` of one model and one kind; keyword arguments are added to the attributes. Weights are left
    out; shorter histories are padded with NaN; attributes that differ between the solutions are dropped.

    Returns: a Dataset whose variables have `alpha` as their first dimension.

    Raises ValueError for no solutions or for unequal numbers of indices, ImportError (with the remedy) without xarray.
    """
    xarray = require()
    solutions = list(solutions)
    check(len(solutions) > 0, "solutions", "none", "at least one")
    sizes = {np.shape(solution.overlap) for solution in solutions}
    check(len(sizes) == 1, "solutions", f"overlaps of shapes {sorted(sizes)}", "solutions of one model")
    datasets = [to_xarray(dataclasses.replace(solution, weights=None)) for solution in solutions]
    curve = xarray.concat(datasets, dim="alpha", data_vars="all", join="outer", combine_attrs="drop_conflicts")
    return _annotated(curve.sortby("alpha").assign_attrs(_attributes(**attributes)))


def thresholds(
    stairs: Sequence[Sequence[Threshold]], parameter: str = "parameter", values: Any = None, **attributes: Any
) -> xarray.Dataset:
    """Staircases along a parameter as one dataset, padded with NaN where a staircase has fewer steps.

    Arguments: `stairs`: for each value of the parameter, its list of Thresholds; `parameter`, its name; `values`, its values.

    Returns: alpha, stderr and result (parameter, step), replicas (parameter, step, replica), subspace and overlap
    (parameter, step, index, other). Raises ValueError where there is no threshold at all, ImportError without xarray.
    """
    xarray = require()
    check(any(len(s) for s in stairs), "stairs", "no threshold", "at least one")
    steps = max(len(s) for s in stairs)
    data = {}
    dimensions = {"alpha": (), "stderr": (), "result": (), "replicas": ("replica",)}
    dimensions |= dict.fromkeys(("subspace", "overlap"), ("index", "other"))
    for name, extra in dimensions.items():
        shapes = [np.shape(getattr(t, name)) for s in stairs for t in s]
        shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        table = np.full((len(stairs), steps, *shape), np.nan)
        for i, s in enumerate(stairs):
            for j, t in enumerate(s):
                entry = np.asarray(getattr(t, name))
                table[(i, j, *(slice(n) for n in entry.shape))] = entry
        data[name] = ((parameter, "step", *extra), table)
    coordinates = {parameter: np.arange(len(stairs)) if values is None else np.asarray(values), "step": np.arange(steps) + 1}
    return xarray.Dataset(data, coordinates, _attributes(**attributes))


def arrays(values: Mapping[str, Any], **attributes: Any) -> xarray.Dataset:
    """Plain arrays by name as one dataset. Raises ImportError without xarray."""
    xarray = require()
    data = {name: ([f"{name}_{k}" for k in range(np.ndim(value))], np.asarray(value)) for name, value in values.items()}
    return xarray.Dataset(data, attrs=_attributes(None, **attributes))


def runs(solution: Solution, **attributes: Any) -> xarray.Dataset:
    """A batch of runs of gamp or train (leading axis: run) as one dataset: learning curves and how each run ended.

    Arguments: `solution` with a leading axis; keyword arguments are added to the attributes. Weights are left out.
    Returns: history_... (run, record, ...), error, result, steps (run); `name` of each index.
    Raises ValueError for a single run, ImportError without xarray.
    """
    xarray = require()
    check(np.ndim(solution.steps) == 1, "solution", f"steps of shape {np.shape(solution.steps)}", "a batch of runs")
    indices = np.shape(solution.overlap)[-1]
    data: dict[str, Any] = {name: (("run",), np.asarray(getattr(solution, name))) for name in ("error", "result", "steps")}
    for name, values in solution.history.items():
        values = np.asarray(values)
        data[f"history_{name}"] = (("run", "record", *_dimensions(name, values.shape[2:], indices)), values)
    names = index_names(solution.model, indices)
    coordinates = {"alpha": ((), float(np.ravel(np.asarray(solution.alpha))[0])), "name": (("index",), names)}
    kept = {"kind": solution.kind, "model": repr(solution.model), "model_parameters": parameters(solution.model)}
    return _annotated(xarray.Dataset(data, coordinates, _attributes(None, **kept, **attributes)))


def text_run(run: Any, **attributes: Any) -> xarray.Dataset:
    """The curves of a text classifier (`jaxsmi.text.classify`) as a dataset over its records.

    Arguments: `run`; keyword arguments are added to the attributes. Returns: similarity (record, layer) and the scalars.
    Raises ImportError (with the remedy) without xarray.
    """
    xarray = require()
    names = ("step", "epoch", "train_loss", "accuracy", "test_accuracy")
    data: dict[str, Any] = {name: (("record",), getattr(run, name)) for name in names}
    data["similarity"] = (("record", "layer"), run.similarity)
    kept = {"kind": "text", "classes": list(run.classes), "words": len(run.vocabulary), "result": run.result.name}
    return xarray.Dataset(data, {"layer": np.arange(run.similarity.shape[1]) + 1}, _attributes(None, **kept, **attributes))


def save(item: Any, path: str | os.PathLike[str], **attributes: Any) -> None:
    """Write a solution, a curve of solutions, or a data set to a netCDF file that says how it was made.

    Arguments: `item`: a Solution, several (stacked along alpha), a jaxsmi Dataset, an xarray.Dataset, or a dict of
    these, whose names become the groups of the file; `path` of the file; keyword arguments are added to the attributes.

    Raises ImportError (with the remedy) without xarray and h5netcdf.

    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> save(smi.Dataset(jnp.ones((6, 1, 3)), jnp.ones((6,))), "out/data.nc")  # doctest: +SKIP
    """
    xarray = require()
    if isinstance(item, Mapping) and not isinstance(item, xarray.Dataset):
        root = xarray.Dataset(attrs=_attributes(None, groups=", ".join(item), **attributes))
        root.to_netcdf(path, engine="h5netcdf")
        for group, part in item.items():
            _dataset(part, **attributes).to_netcdf(path, group=group, mode="a", engine="h5netcdf")
    else:
        _dataset(item, **attributes).to_netcdf(path, engine="h5netcdf")


def load(path: str | os.PathLike[str], group: str | None = None) -> xarray.Dataset:
    """Read a file written by `save` into memory.

    Arguments: `path` of the file; `group`, the name of a part where a dict was saved (the attribute "groups" of the
    file lists them).

    Returns: an xarray.Dataset; `from_xarray` makes a Solution of it, `jaxsmi.Dataset` takes its inputs and labels.

    Raises FileNotFoundError, and ImportError (with the remedy) without xarray and h5netcdf.
    """
    return require().load_dataset(path, group=group, engine="h5netcdf")


def _dataset(item: Any, **attributes: Any) -> xarray.Dataset:
    if isinstance(item, Solution):
        return to_xarray(item, **attributes)
    if isinstance(item, Dataset):
        return _data_to_xarray(item, **attributes)
    if isinstance(item, require().Dataset):
        return item.assign_attrs(_attributes(**attributes)) if attributes else item
    return stack(item, **attributes)


def _attributes(solution: Solution | None = None, **attributes: Any) -> dict[str, Any]:
    """The provenance as netCDF allows it: strings and numbers, the rest as JSON."""
    known = provenance(solution, **attributes)
    return {
        name: value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else json.dumps(value)
        for name, value in known.items()
    }


def _data_to_xarray(data: Dataset, **attributes: Any) -> xarray.Dataset:
    labels = np.asarray(data.labels)
    variables: dict[str, Any] = {
        "inputs": (("sample", "token", "dimension"), np.asarray(data.stored().inputs)),
        "labels": (("sample", *(f"label_{axis}" for axis in range(1, labels.ndim))), labels),
    }
    if data.teacher is not None:
        variables["teacher"] = (("index", "dimension"), np.asarray(data.teacher))
    coordinates = {"alpha": ((), data.alpha)}
    return _annotated(require().Dataset(variables, coordinates, _attributes(None, kind="dataset", **attributes)))


def _dimensions(name: str, shape: tuple[int, ...], indices: int) -> list[str]:
    if shape == (indices,):
        return ["index"]
    if shape == (indices, indices):
        return ["index", "index_"]
    return [f"{name}_{axis}" for axis in range(len(shape))]


def _annotated(dataset: xarray.Dataset) -> xarray.Dataset:
    for name in dataset.variables:
        meaning = _MEANINGS.get(str(name).removeprefix("history_"))
        if meaning:
            dataset[name].attrs["long_name"] = meaning
    if "result" in dataset:  # the CF convention for codes
        dataset["result"].attrs["flag_values"] = np.array([int(code) for code in Result])
        dataset["result"].attrs["flag_meanings"] = " ".join(code.name for code in Result)
    return dataset


def _device(solution: Solution | None) -> str:
    devices = solution.overlap.devices() if solution is not None and isinstance(solution.overlap, jax.Array) else None
    device = min(devices or jax.devices(), key=lambda device: device.id)
    return f"{device.platform}: {device.device_kind}"


def _key_data(key: Any) -> Any:
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if typed else key
