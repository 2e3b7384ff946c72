"""Solutions and data sets in netCDF files, with provenance.

A file holds named dimensions (`index`, `index_`, `step`, `dimension`,
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

from jaxsmi.core import validate
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench.files import whole
from jaxsmi.workbench.labelled import (
    MATRICES,
    SCALARS,
    annotated,
    attributes_of,
    import_xarray,
    is_labelled,
    to_xarray,
)

if TYPE_CHECKING:
    import xarray

    Part = Solution | Iterable[Solution] | Dataset | xarray.Dataset
    Storable = Part | Mapping[str, Part]

__all__ = [
    "arrays",
    "from_xarray",
    "load",
    "save",
    "stack",
    "thresholds",
    "to_xarray",
]


def from_xarray(dataset: xarray.Dataset, model: AbstractModel | None = None) -> Solution:
    """Make a solution of its Dataset, to plot it or to predict with it: the inverse of
    `to_xarray`.

    Args:
        dataset: Of one solution (`curve.isel(alpha=0)` takes one out of a curve).
        model: The model; a file describes it, but cannot rebuild it. Default None.

    Returns:
        A Solution without the state that continues a run.

    Raises:
        ValueError: For a Dataset with more than one alpha.
    """
    curve = f"a curve of {dataset.sizes.get('alpha')} alphas"
    single = "alpha" not in dataset.dims
    validate.check(single, "dataset", curve, "one solution, such as dataset.isel(alpha=0)")
    history = {}
    if "step" in dataset.coords:
        recorded = [name for name in dataset.data_vars if str(name).startswith("history_")]
        # a curve pads its shorter histories with NaN
        past = dataset[recorded].dropna("step", how="all")
        history = {str(name).removeprefix("history_"): past[name].values for name in recorded}
        history["step"] = past["step"].values.astype(float)
    names = ["alpha", *SCALARS, *MATRICES]
    names += [name for name in ("weights", "key") if name in dataset]
    stored: dict[str, Any] = {name: jnp.asarray(dataset[name].values) for name in names}
    kind = str(dataset.attrs.get("kind", "state_evolution"))
    return Solution(**stored, history=history, model=model, kind=kind)


def stack(solutions: Iterable[Solution], **attributes: object) -> xarray.Dataset:
    """Stack solutions of one model and one kind along `alpha`, in ascending order.

    Weights are left out, shorter histories padded with NaN, attributes that differ dropped.

    Args:
        solutions: At least one.
        **attributes: Added to the attributes.

    Returns:
        A Dataset whose variables have `alpha` as their first dimension.

    Raises:
        ValueError: For no solutions, or for unequal numbers of indices.
        ImportError: Without xarray.
    """
    xarray = import_xarray()
    solutions = list(solutions)
    sizes = {np.shape(solution.overlap) for solution in solutions}
    found = f"overlaps of shapes {sorted(sizes)}" if sizes else "none"
    validate.check(len(sizes) == 1, "solutions", found, "at least one, all of one model")
    datasets = [to_xarray(dataclasses.replace(solution, weights=None)) for solution in solutions]
    curve = xarray.concat(
        datasets, dim="alpha", data_vars="all", join="outer", combine_attrs="drop_conflicts"
    )
    return annotated(curve.sortby("alpha").assign_attrs(attributes_of(**attributes)))


def thresholds(steps: Sequence[Threshold], **attributes: object) -> xarray.Dataset:
    """A staircase as one dataset: alpha, stderr and result over `step`, replicas over (step,
    replica), subspace and overlap over (step, index, index_)."""
    names = {"alpha": (), "stderr": (), "result": (), "replicas": ("replica",)}
    names |= dict.fromkeys(("subspace", "overlap"), ("index", "index_"))
    data = {
        name: (("step", *axes), np.stack([np.asarray(getattr(step, name)) for step in steps]))
        for name, axes in names.items()
    }
    coordinates = {"step": np.arange(len(steps)) + 1}
    return annotated(import_xarray().Dataset(data, coordinates, attributes_of(**attributes)))


def arrays(values: Mapping[str, ArrayLike], **attributes: object) -> xarray.Dataset:
    """Arrays by name as one dataset."""
    xarray = import_xarray()
    data = {
        name: ([f"{name}_{k}" for k in range(np.ndim(value))], np.asarray(value))
        for name, value in values.items()
    }
    return xarray.Dataset(data, attrs=attributes_of(None, **attributes))


def save(item: Storable, path: str | os.PathLike[str], **attributes: object) -> None:
    """Write a netCDF file, complete or not at all.

    Args:
        item: A Solution, several (stacked along alpha), a jaxsmi Dataset, an xarray.Dataset, or a
            dict of these, whose names become the groups of the file.
        path: Of the file.
        **attributes: Added to the attributes.

    Raises:
        ImportError: Without xarray, h5netcdf and h5py.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> save(smi.Dataset(jnp.ones((6, 1, 3)), jnp.ones((6,))), "out/data.nc")  # doctest: +SKIP
    """
    xarray = import_xarray()
    groups: dict[str | None, xarray.Dataset] = {}
    if isinstance(item, Mapping) and not is_labelled(item):
        parts = {str(name): part for name, part in item.items()}
        described = attributes_of(None, groups=", ".join(parts), **attributes)
        groups[None] = xarray.Dataset(attrs=described)
        groups |= {name: _dataset(part, **attributes) for name, part in parts.items()}
    else:
        groups[None] = _dataset(item, **attributes)
    with whole(path) as aside:
        for group, dataset in groups.items():
            mode = "w" if group is None else "a"
            dataset.to_netcdf(aside, group=group, mode=mode, engine="h5netcdf")


def load(path: str | os.PathLike[str], group: str | None = None) -> xarray.Dataset:
    """Read a file of `save` into memory.

    Args:
        path: Of the file.
        group: Name of a part where a dict was saved (the attribute "groups" of the file lists
            them). Default None.

    Returns:
        An xarray.Dataset; `from_xarray` makes a Solution of it, `jaxsmi.Dataset` takes its inputs
        and labels.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no such group.
        ImportError: Without xarray, h5netcdf and h5py.
    """
    xarray = import_xarray()
    if group is not None:
        with xarray.open_dataset(path, engine="h5netcdf") as root:
            names = str(root.attrs.get("groups", ""))
        allowed = f"one of {names}" if names else "None: one item was saved, not a dict of them"
        validate.check(group in names.split(", "), "group", group, allowed)
    return xarray.load_dataset(path, group=group, engine="h5netcdf")


def _dataset(item: Any, **attributes: object) -> xarray.Dataset:
    if isinstance(item, Solution):
        return to_xarray(item, **attributes)
    if isinstance(item, Dataset):
        return _data_to_xarray(item, **attributes)
    if is_labelled(item):
        return item.assign_attrs(attributes_of(**attributes)) if attributes else item
    return stack(item, **attributes)


def _data_to_xarray(data: Dataset, **attributes: object) -> xarray.Dataset:
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
    described = attributes_of(None, kind="dataset", **attributes)
    return annotated(import_xarray().Dataset(variables, {"alpha": ((), data.alpha)}, described))
