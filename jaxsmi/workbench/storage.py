"""Solutions and data sets as netCDF files that say how they were made.

No equation lives here. A file holds named dimensions (`index`, `index_`, `step`, `dimension`,
`sample`, `token`), one variable for each field of a `Solution` (the history under the prefix
`history_`), and the provenance as attributes: versions, time, device, the model with all its
numbers, and whatever the caller adds.

xarray is imported only when a function here is called; it comes with `pip install 'jaxsmi[data]'`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset
from jaxsmi.core.files import whole
from jaxsmi.core.labelled import (
    MATRICES,
    SCALARS,
    annotated,
    attributes_of,
    dimensions_of,
    import_xarray,
    index_names,
    is_labelled,
    to_xarray,
)
from jaxsmi.core.provenance import fields_of, parameters
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.models.base import AbstractModel

if TYPE_CHECKING:
    import xarray

    Part = Solution | Iterable[Solution] | Dataset | xarray.Dataset
    Storable = Part | Mapping[str, Part]

__all__ = [
    "arrays",
    "from_xarray",
    "load",
    "runs",
    "save",
    "stack",
    "thresholds",
    "to_xarray",
]


def from_xarray(dataset: xarray.Dataset, model: AbstractModel | None = None) -> Solution:
    """The solution back from its Dataset, to plot it or to predict with it.

    The inverse of `to_xarray`.

    Args:
        dataset: Of one solution (`curve.isel(alpha=0)` takes one out of a curve).
        model: The model, which a file describes but cannot rebuild. Default None.

    Returns:
        A Solution without the state that continues a run.

    Raises:
        ValueError: For a Dataset with more than one alpha.
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
        # a curve pads its shorter histories with NaN
        past = dataset[recorded].dropna("step", how="all")
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


def stack(solutions: Iterable[Solution], **attributes: object) -> xarray.Dataset:
    """Solutions at several alphas as one curve: a Dataset over the dimension `alpha`, in ascending
    order.

    Weights are left out; shorter histories are padded with NaN; attributes that differ are dropped.

    Args:
        solutions: Solutions of one model and one kind.
        **attributes: Added to the attributes.

    Returns:
        A Dataset whose variables have `alpha` as their first dimension.

    Raises:
        ValueError: For no solutions, or for unequal numbers of indices.
        ImportError: Without xarray, with the remedy.
    """
    xarray = import_xarray()
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
    values: ArrayLike | Sequence[float] | None = None,
    **attributes: object,
) -> xarray.Dataset:
    """Staircases along a parameter as one dataset, padded with NaN where a staircase has fewer
    steps.

    Args:
        stairs: For each value of the parameter its list of thresholds.
        parameter: Its name. Default "parameter".
        values: Its values. Default None: their numbers.
        **attributes: Added to the attributes.

    Returns:
        alpha, stderr and result (parameter, step), replicas (parameter, step, replica), subspace
        and overlap (parameter, step, index, other).

    Raises:
        ValueError: There is no threshold at all.
        ImportError: Without xarray, with the remedy.
    """
    xarray = import_xarray()
    check(any(len(steps) for steps in stairs), "stairs", "no threshold", "at least one")
    longest = max(len(steps) for steps in stairs)
    dimensions = {"alpha": (), "stderr": (), "result": (), "replicas": ("replica",)}
    dimensions |= dict.fromkeys(("subspace", "overlap"), ("index", "other"))
    data = {
        name: ((parameter, "step", *axes), _padded(stairs, longest, name))
        for name, axes in dimensions.items()
    }
    coordinates = {
        parameter: np.arange(len(stairs)) if values is None else np.asarray(values),
        "step": np.arange(longest) + 1,
    }
    return xarray.Dataset(data, coordinates, attributes_of(**attributes))


def _padded(stairs: Sequence[Sequence[Threshold]], longest: int, name: str) -> np.ndarray:
    """A field of all thresholds (parameter, step, ...), NaN where there is none."""
    shapes = [
        np.shape(fields_of(threshold, [name])[name]) for steps in stairs for threshold in steps
    ]
    shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    table = np.full((len(stairs), longest, *shape), np.nan)
    for i, steps in enumerate(stairs):
        for j, threshold in enumerate(steps):
            entry = np.asarray(fields_of(threshold, [name])[name])
            table[(i, j, *(slice(n) for n in entry.shape))] = entry
    return table


def arrays(values: Mapping[str, ArrayLike], **attributes: object) -> xarray.Dataset:
    """Plain arrays by name as one dataset; an ImportError, with the remedy, without xarray."""
    xarray = import_xarray()
    data = {
        name: ([f"{name}_{k}" for k in range(np.ndim(value))], np.asarray(value))
        for name, value in values.items()
    }
    return xarray.Dataset(data, attrs=attributes_of(None, **attributes))


def runs(solution: Solution, **attributes: object) -> xarray.Dataset:
    """A batch of runs of gamp or train as one dataset: learning curves, and how each run ended.

    Args:
        solution: Runs along a leading axis. Their weights are left out.
        **attributes: Added to the attributes.

    Returns:
        history_... (run, record, ...), error, result, steps (run); the `name` of each index.

    Raises:
        ValueError: For a single run.
        ImportError: Without xarray, with the remedy.
    """
    xarray = import_xarray()
    check(
        np.ndim(solution.steps) == 1,
        "solution",
        f"steps of shape {np.shape(solution.steps)}",
        "a batch of runs",
    )
    indices = np.shape(solution.overlap)[-1]
    data: dict[str, Any] = {
        name: (("run",), np.asarray(value))
        for name, value in fields_of(solution, ("error", "result", "steps")).items()
    }
    for name, recorded in solution.history.items():
        values = np.asarray(recorded)
        dimensions = ("run", "record", *dimensions_of(name, values.shape[2:], indices))
        data[f"history_{name}"] = (dimensions, values)
    coordinates = {
        "alpha": ((), float(np.ravel(np.asarray(solution.alpha))[0])),
        "name": (("index",), index_names(solution.model, indices)),
    }
    made = {
        "kind": solution.kind,
        "model": repr(solution.model),
        "model_parameters": parameters(solution.model),
    }
    return annotated(xarray.Dataset(data, coordinates, attributes_of(None, **made, **attributes)))


def save(item: Storable, path: str | os.PathLike[str], **attributes: object) -> None:
    """Write a solution, a curve of solutions, or a data set to a netCDF file that says how it was
    made; the file is there whole or not at all.

    Args:
        item: A Solution, several (stacked along alpha), a jaxsmi Dataset, an xarray.Dataset, or a
            dict of these, whose names become the groups of the file.
        path: Of the file.
        **attributes: Added to the attributes.

    Raises:
        ImportError: Without xarray and h5netcdf, with the remedy.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> save(smi.Dataset(jnp.ones((6, 1, 3)), jnp.ones((6,))), "out/data.nc")  # doctest: +SKIP
    """
    xarray = import_xarray()
    if isinstance(item, Mapping) and not is_labelled(item):
        parts: Mapping[str, Part] = item  # pyright: ignore[reportAssignmentType]
        root = xarray.Dataset(attrs=attributes_of(None, groups=", ".join(parts), **attributes))
        made = {group: _dataset(part, **attributes) for group, part in parts.items()}
        with whole(path) as aside:
            root.to_netcdf(aside, engine="h5netcdf")
            for group, part in made.items():
                part.to_netcdf(aside, group=group, mode="a", engine="h5netcdf")
    else:
        single: Part = item  # pyright: ignore[reportAssignmentType]
        dataset = _dataset(single, **attributes)
        with whole(path) as aside:
            dataset.to_netcdf(aside, engine="h5netcdf")


def load(path: str | os.PathLike[str], group: str | None = None) -> xarray.Dataset:
    """Read a file written by `save` into memory.

    Args:
        path: Of the file.
        group: Name of a part where a dict was saved (the attribute "groups" of the file lists
            them). Default None.

    Returns:
        An xarray.Dataset; `from_xarray` makes a Solution of it, `jaxsmi.Dataset` takes its inputs
        and labels.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such group; the message names those it has.
        ImportError: Without xarray and h5netcdf, with the remedy.
    """
    xarray = import_xarray()
    try:
        return xarray.load_dataset(path, group=group, engine="h5netcdf")
    except OSError as failure:
        if group is None or not os.path.exists(path):
            raise
        with xarray.open_dataset(path, engine="h5netcdf") as root:  # raises where it is no netCDF
            names = str(root.attrs.get("groups", ""))
        if group in names.split(", "):
            raise
        allowed = f"one of {names}" if names else "None: one item was saved, not a dict of them"
        raise ValueError(f"group: got {group!r}; allowed: {allowed}.") from failure


def _dataset(item: Part, **attributes: object) -> xarray.Dataset:
    """Anything that can be saved as an xarray.Dataset."""
    if isinstance(item, Solution):
        return to_xarray(item, **attributes)
    if isinstance(item, Dataset):
        return _data_to_xarray(item, **attributes)
    if is_labelled(item):
        return item.assign_attrs(attributes_of(**attributes)) if attributes else item
    return stack(item, **attributes)  # pyright: ignore[reportArgumentType]


def _data_to_xarray(data: Dataset, **attributes: object) -> xarray.Dataset:
    """Inputs, labels and the teacher, where there is one."""
    labels = np.asarray(data.labels)
    variables: dict[str, Any] = {
        "inputs": (("sample", "token", "dimension"), np.asarray(data.stored().inputs)),
        "labels": (("sample", *(f"label_{axis}" for axis in range(1, labels.ndim))), labels),
    }
    if data.teacher is not None:
        variables["teacher"] = (("index", "dimension"), np.asarray(data.teacher))
    if data.directions is not None:
        variables["directions"] = (("direction", "dimension"), np.asarray(data.directions))
        variables["encoding"] = (("token", "direction"), np.asarray(data.encoding))
    coordinates = {"alpha": ((), data.alpha)}
    return annotated(
        import_xarray().Dataset(
            variables, coordinates, attributes_of(None, kind="dataset", **attributes)
        )
    )
