"""Solutions and data sets as xarray Datasets and netCDF files that say how they were made.

No equation lives here. A file holds named dimensions (`index`, `index_`, `step`, `dimension`, `sample`, `token`), one
variable for each field of a `Solution` (the history under the prefix `history_`), and the provenance as attributes:
versions, time, device, the model with all its numbers, and whatever the caller adds.

xarray is imported only when a function here is called; it comes with `pip install 'jaxsmi[data]'`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution, Threshold

if TYPE_CHECKING:
    import xarray
from jaxsmi.core.records import (
    MATRICES,
    SCALARS,
    annotated,
    attributes_of,
    dimensions_of,
    index_names,
    parameters,
    require,
    to_xarray,
)


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
        past = dataset[recorded].dropna(
            "step", how="all"
        )  # a curve pads its shorter histories with NaN
        history = {str(name).removeprefix("history_"): past[name].values for name in recorded}
        history["step"] = past["step"].values.astype(float)
    names = (
        *SCALARS,
        *MATRICES,
        "alpha",
        *(name for name in ("weights", "key") if name in dataset),
    )
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
    check(
        len(sizes) == 1,
        "solutions",
        f"overlaps of shapes {sorted(sizes)}",
        "solutions of one model",
    )
    datasets = [to_xarray(dataclasses.replace(solution, weights=None)) for solution in solutions]
    curve = xarray.concat(
        datasets, dim="alpha", data_vars="all", join="outer", combine_attrs="drop_conflicts"
    )
    return annotated(curve.sortby("alpha").assign_attrs(attributes_of(**attributes)))


def thresholds(
    stairs: Sequence[Sequence[Threshold]],
    parameter: str = "parameter",
    values: Any = None,
    **attributes: Any,
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
    coordinates = {
        parameter: np.arange(len(stairs)) if values is None else np.asarray(values),
        "step": np.arange(steps) + 1,
    }
    return xarray.Dataset(data, coordinates, attributes_of(**attributes))


def arrays(values: Mapping[str, Any], **attributes: Any) -> xarray.Dataset:
    """Plain arrays by name as one dataset. Raises ImportError without xarray."""
    xarray = require()
    data = {
        name: ([f"{name}_{k}" for k in range(np.ndim(value))], np.asarray(value))
        for name, value in values.items()
    }
    return xarray.Dataset(data, attrs=attributes_of(None, **attributes))


def runs(solution: Solution, **attributes: Any) -> xarray.Dataset:
    """A batch of runs of gamp or train (leading axis: run) as one dataset: learning curves and how each run ended.

    Arguments: `solution` with a leading axis; keyword arguments are added to the attributes. Weights are left out.
    Returns: history_... (run, record, ...), error, result, steps (run); `name` of each index.
    Raises ValueError for a single run, ImportError without xarray.
    """
    xarray = require()
    check(
        np.ndim(solution.steps) == 1,
        "solution",
        f"steps of shape {np.shape(solution.steps)}",
        "a batch of runs",
    )
    indices = np.shape(solution.overlap)[-1]
    data: dict[str, Any] = {
        name: (("run",), np.asarray(getattr(solution, name)))
        for name in ("error", "result", "steps")
    }
    for name, values in solution.history.items():
        values = np.asarray(values)
        data[f"history_{name}"] = (
            ("run", "record", *dimensions_of(name, values.shape[2:], indices)),
            values,
        )
    names = index_names(solution.model, indices)
    coordinates = {
        "alpha": ((), float(np.ravel(np.asarray(solution.alpha))[0])),
        "name": (("index",), names),
    }
    kept = {
        "kind": solution.kind,
        "model": repr(solution.model),
        "model_parameters": parameters(solution.model),
    }
    return annotated(xarray.Dataset(data, coordinates, attributes_of(None, **kept, **attributes)))


def text_run(run: Any, **attributes: Any) -> xarray.Dataset:
    """The curves of a text classifier (`jaxsmi.text.classify`) as a dataset over its records.

    Arguments: `run`; keyword arguments are added to the attributes. Returns: similarity (record, layer) and the scalars.
    Raises ImportError (with the remedy) without xarray.
    """
    xarray = require()
    names = ("step", "epoch", "train_loss", "accuracy", "test_accuracy")
    data: dict[str, Any] = {name: (("record",), getattr(run, name)) for name in names}
    data["similarity"] = (("record", "layer"), run.similarity)
    kept = {
        "kind": "text",
        "classes": list(run.classes),
        "words": len(run.vocabulary),
        "result": run.result.name,
    }
    return xarray.Dataset(
        data,
        {"layer": np.arange(run.similarity.shape[1]) + 1},
        attributes_of(None, **kept, **attributes),
    )


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
        root = xarray.Dataset(attrs=attributes_of(None, groups=", ".join(item), **attributes))
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
        return item.assign_attrs(attributes_of(**attributes)) if attributes else item
    return stack(item, **attributes)


def _data_to_xarray(data: Dataset, **attributes: Any) -> xarray.Dataset:
    labels = np.asarray(data.labels)
    variables: dict[str, Any] = {
        "inputs": (("sample", "token", "dimension"), np.asarray(data.stored().inputs)),
        "labels": (("sample", *(f"label_{axis}" for axis in range(1, labels.ndim))), labels),
    }
    if data.teacher is not None:
        variables["teacher"] = (("index", "dimension"), np.asarray(data.teacher))
    coordinates = {"alpha": ((), data.alpha)}
    return annotated(
        require().Dataset(variables, coordinates, attributes_of(None, kind="dataset", **attributes))
    )
