"""Solutions as labelled arrays, in netCDF files that say how they were made.

A Dataset of xarray has one variable for each field of a `Solution` (the history under the prefix
`history_`) and the provenance as attributes: versions, time, device, the model with all its
numbers. xarray comes with `pip install 'jaxsmi[data]'`; `provenance` does without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import math
import os
import pathlib
import platform
import secrets
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import jaxsmi
from jaxsmi.core import validate
from jaxsmi.core.arrays import ClosedFunction
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Solution, Threshold, index_names
from jaxsmi.thresholds.transitions import FirstOrder

if TYPE_CHECKING:
    import xarray

    One = Solution | Threshold | FirstOrder | xarray.Dataset
    Part = One | Iterable[Solution] | Iterable[Threshold]
    Storable = Part | Mapping[str, Part]

SCALARS = ("error", "steps", "residual", "spectral_radius", "result")  # fields of one number
MATRICES = ("overlap", "stderr", "covariance")  # those of shape (P, P)
# numbers that only some solutions have
_OF_LEARNERS = ("train_loss", "test_loss", "energy", "potential", "jump_fraction", "gradient_norm")
MODEL_HASH = "model_hash"
OPTIONAL = ("stability", "free_entropy", *_OF_LEARNERS)
_SUFFIXES = (".nc", ".nc4", ".h5", ".hdf5")  # suffixes of netCDF, which is HDF5
# attributes of result codes: their meaning, by the CF convention
CODES: dict[str, Any] = {
    "flag_values": np.array([int(code) for code in Result]),
    "flag_meanings": " ".join(code.name for code in Result),
}
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
    if isinstance(value, ClosedFunction) and not value.arrays:
        return parameters(value.function, largest)
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
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)  # pyright: ignore[reportArgumentType]
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


def learner_name(learner: Any) -> str:
    """A learner in a few words, with its numbers: "logistic loss, ridge 0.1"."""
    if hasattr(learner, "loss"):
        loss, numbers = getattr(learner.loss, "function", learner.loss), parameters(learner)
        name = f"{getattr(loss, '__name__', 'own').strip('<>')} loss"
    else:
        if (student := getattr(learner, "student", None)) is None:  # a user's class
            return type(learner).__name__
        numbers = parameters(student.prior) | parameters(student.channel)
        name = f"posterior of {getattr(student, 'name', type(student).__name__)}".replace("_", " ")
    known = [f"{k} {x:.3g}" for k, x in numbers.items() if isinstance(x, float) and x]
    return ", ".join([name, *known])


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
    # the device that holds the solution; the first one, where its arrays are those of NumPy
    overlap = getattr(solution, "overlap", None)
    devices = overlap.devices() if isinstance(overlap, jax.Array) else jax.devices()
    device = min(devices, key=lambda device: device.id)
    made: dict[str, Any] = {
        "jaxsmi": jaxsmi.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
        "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if solution is not None:
        made |= {"kind": solution.kind, "message": solution.message}
        if solution.model is not None:
            made |= {"model": repr(solution.model), "model_parameters": parameters(solution.model)}
        if (learner := getattr(solution, "learner", None)) is not None:
            made |= {"learner": parameters(learner), "learner_name": learner_name(learner)}
        if solution.key is not None:
            made["key"] = parameters(solution.key)
    return made | {name: parameters(value) for name, value in attributes.items()}


def import_xarray() -> ModuleType:
    """xarray, if netCDF can be written too; else an ImportError that says how to install it."""
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


def to_xarray(solution: Solution, **attributes: object) -> xarray.Dataset:
    """A solution as an xarray.Dataset with provenance.

    Args:
        solution: One solution (not a batch from vmap).
        **attributes: Added to the attributes.

    Returns:
        A Dataset with `overlap`, `stderr`, `covariance` (index, index_); `cosine` (index); `error`,
        `steps`, `residual`, `spectral_radius`, `result`; of a run its `stability` and
        `free_entropy`; of a learner its losses, energy and overlaps, with errors `.._stderr`;
        `alpha` and the `name` of each index as coordinates; `weights` (index, dimension), of a
        matrix (row, dimension), where there are some; `history_...` (step, ...).

    Raises:
        ValueError: For a batch of solutions.
        ImportError: Without xarray, with the remedy.
    """
    xarray = import_xarray()
    found = f"a batch with alpha of shape {np.shape(solution.alpha)}"
    allowed = "one solution, such as jax.tree.map(lambda leaf: leaf[0], batch)"
    validate.check(np.ndim(solution.alpha) == 0, "solution", found, allowed)
    P = np.shape(solution.overlap)[0]
    square = ("index", "index_")
    axes = {
        **dict.fromkeys((*SCALARS, *OPTIONAL), ()),
        **dict.fromkeys(MATRICES, square),
        "cosine": ("index",),
        "teacher_overlap": ("index", "teacher_index"),
        "direction_overlap": ("index", "direction"),
    }
    named = {name: (own, getattr(solution, name, None)) for name, own in axes.items()}
    named |= {f"{name}_stderr": (axes[name], error) for name, error in solution.stderrs.items()}
    variables: dict[str, Any] = {
        name: (own, np.asarray(value))
        for name, (own, value) in named.items()
        if value is not None and np.size(value)
    }
    if solution.weights is not None:
        weights = np.asarray(solution.weights)
        # one row an index, else the rows of a matrix, of several layers with one more axis
        rows = "index" if weights.shape == (P, weights.shape[-1]) else "row"
        variables["weights"] = (("layer", rows, "dimension")[-weights.ndim :], weights)
    if solution.key is not None:
        variables["key"] = (("word",), np.ravel(np.asarray(parameters(solution.key), np.uint32)))
    coordinates: dict[str, Any] = {
        "alpha": ((), np.asarray(solution.alpha)),
        "index": np.arange(1, P + 1),
        "index_": np.arange(1, P + 1),
        "name": (("index",), index_names(solution.model, P)),
    }
    if "step" in solution.history:
        recorded = solution.trajectory
        coordinates["step"] = recorded.pop("step").astype(np.int64)
        # a user's records may be trees: each leaf is a variable
        for path, values in jax.tree.leaves_with_path(recorded):
            name = jax.tree_util.keystr(path, simple=True, separator="_")
            known = {(P,): ("index",), (P, P): square}
            own = tuple(f"{name}_{axis}" for axis in range(values.ndim - 1))
            dimensions = known.get(values.shape[1:], own)
            variables[f"history_{name}"] = (("step", *dimensions), values)
    dataset = xarray.Dataset(variables, coordinates, _described(solution, **attributes))
    dataset["result"].attrs |= CODES
    return dataset


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
    # weights of different α have different teachers and sizes
    datasets = [to_xarray(dataclasses.replace(solution, weights=None)) for solution in solutions]
    curve = xarray.concat(
        datasets, dim="alpha", data_vars="all", join="outer", combine_attrs="drop_conflicts"
    )
    return curve.sortby("alpha").assign_attrs(_described(**attributes))


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """All numbers and words of a tree, by their places in it: "algorithmic_alpha"."""
    leaves = jax.tree.leaves_with_path(tree)
    named = lambda path: jax.tree_util.keystr(path, simple=True, separator="_") or "value"
    return {named(path): np.asarray(leaf) for path, leaf in leaves}


def arrays(values: Mapping[str, ArrayLike], **attributes: object) -> xarray.Dataset:
    """Arrays by name as one dataset."""
    data = {
        name: ([f"{name}_{k}" for k in range(np.ndim(value))], np.asarray(value))
        for name, value in values.items()
    }
    return import_xarray().Dataset(data, attrs=_described(**attributes))


def save(item: Storable, path: str | os.PathLike[str], **attributes: object) -> None:
    """Write a netCDF file, complete or not at all.

    Args:
        item: A Solution, a Curve or other sequence of them (stacked along alpha), a Threshold, the
            list of them of `smi.staircase`, a FirstOrder, an xarray.Dataset, or a dict of these,
            whose names become the groups of the file. (Any object can be pickled.)
        path: Of the file, which ends with .nc, .nc4, .h5 or .hdf5.
        **attributes: Added to the attributes.

    Raises:
        ValueError: For another item, or a path that cannot be written.
        ImportError: Without xarray, h5netcdf and h5py.

    Example:
        >>> save({"run": run, "theory": theory}, "out/learned.nc")  # doctest: +SKIP
    """
    xarray = import_xarray()
    allowed = "a path (str or os.PathLike), which comes second: smi.save(item, path)"
    named = pathlib.Path(validate.instance("path", path, (str, os.PathLike), allowed))
    allowed = f"a netCDF file: a path that ends with {', '.join(_SUFFIXES)}"
    validate.check(named.suffix in _SUFFIXES, "path", str(path), allowed)
    _try_folder("path", named.parent, "a file in a folder that exists and can be written")
    parts: dict[str, xarray.Dataset] = {}
    if isinstance(item, dict):
        described = _described(groups=", ".join(map(str, item)), **attributes)
        parts["/"] = xarray.Dataset(attrs=described)
        parts |= {str(name): _dataset(part, **attributes) for name, part in item.items()}
    else:
        parts["/"] = _dataset(item, **attributes)
    with atomic_write(path) as temporary:
        xarray.DataTree.from_dict(parts).to_netcdf(temporary, engine="h5netcdf")


def load(path: str | os.PathLike[str], group: str | None = None) -> xarray.Dataset:
    """Read a file of `save` into memory.

    Args:
        path: Of the file.
        group: Name of a part where a dict was saved. Default None: one item was saved.

    Returns:
        An xarray.Dataset; of a curve `plotting.overlap_against_alpha(loaded)` draws it again.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no netCDF file, has no such group, or has groups, and none is named.
        ImportError: Without xarray, h5netcdf and h5py.
    """
    xarray = import_xarray()
    allowed = "a path (str or os.PathLike) of a file that smi.save(item, path) wrote"
    if not pathlib.Path(validate.instance("path", path, (str, os.PathLike), allowed)).exists():
        raise FileNotFoundError(f"path: got {str(path)!r}; there is no such file.")
    try:
        root = xarray.load_dataset(path, engine="h5netcdf")
    except OSError:
        said = f"path: got {str(path)!r}; allowed: a netCDF file, as smi.save writes it."
        raise ValueError(said) from None
    # the root of a file with groups is empty, and the error of h5netcdf for a missing group does
    # not say which there are
    names = str(root.attrs.get("groups", ""))
    allowed = f"one of {names}" if names else "None: one item was saved, not a dict of them"
    known = group in names.split(", ") if names else group is None
    validate.check(known, "group", group, allowed)
    return root if group is None else xarray.load_dataset(path, group=group, engine="h5netcdf")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary path to write to, of the same ending, that is renamed to `path` at the end: the
    file is written completely or not at all, whenever the program is killed.

    Each thread and process gets a path of its own.
    """
    named = pathlib.Path(path)
    # the same folder: renaming is atomic only within one file system
    temporary = named.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.{named.name}")
    try:
        yield temporary
        os.replace(temporary, named)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: pathlib.Path) -> None:
    """Make a folder that files can be written into, the argument `out` of a public function.

    Raises:
        ValueError: Where the system does not let it.
    """
    _try_folder("out", folder, "a folder that can be written", make=True)


def _try_folder(name: str, folder: pathlib.Path, allowed: str, make: bool = False) -> None:
    """Raise a ValueError that names the argument where no file can be written to its folder."""
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        said = f"{str(folder)!r} ({failure.strerror})"
        raise ValueError(f"{name}: got {said}; allowed: {allowed}.") from None


def _dataset(item: Any, **attributes: object) -> xarray.Dataset:
    if isinstance(item, Solution):
        return to_xarray(item, **attributes)
    if isinstance(item, import_xarray().Dataset):
        return item.assign_attrs(_described(**attributes)) if attributes else item
    if isinstance(item, Threshold):
        return arrays(vars(item), **attributes)
    if isinstance(item, FirstOrder):
        return arrays(named_leaves(item), transition=item.kind, **attributes)
    items = list(item) if isinstance(item, Iterable) else [item]
    if items and all(isinstance(x, Threshold) for x in items):
        # each field of all thresholds, with the threshold as the leading axis
        return arrays(vars(jax.tree.map(lambda *x: np.stack(x), *items)), **attributes)
    allowed = (
        "a Solution, a Curve or other sequence of them, a Threshold or a list of them, a "
        "FirstOrder, an xarray.Dataset, or a dict of these (pickle stores any other)"
    )
    validate.check(all(isinstance(x, Solution) for x in items), "item", item, allowed)
    return stack(items, **attributes)


def _described(solution: Solution | None = None, /, **attributes: object) -> dict[str, Any]:
    """The provenance as netCDF allows it: strings and numbers, the rest as JSON."""
    made = provenance(solution, **attributes)
    # JSON marks a boolean as one, and netCDF has none
    plain = lambda x: isinstance(x, (str, int, float)) and not isinstance(x, bool)
    return {name: x if plain(x) else json.dumps(x) for name, x in made.items()}


def model_hash(model: Any) -> int:
    """A number that models with the same numbers (to single precision) share."""
    numbers = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return zlib.crc32(b"".join(np.asarray(x, np.float32).tobytes() for x in numbers))
