"""Calls of compiled programs kept on disk: a later process neither traces nor lowers them again.

JAX's own cache keeps what was compiled, and finds it by the lowered program: every process has to
trace and to lower first, which takes as long as a second in compiling. Here a program is found by
what it is called with:

    the function, by its name; the arguments, arrays by their shapes and types, the rest by value
    the sources of this library; the versions of what it builds on; JAX's configuration; the
    processor

Where an argument holds a function or a class from elsewhere (a link that a user wrote), whose
sources are not known here, nothing is kept, and JAX's cache does what it can. So for arrays that do
not lie on the one device of a CPU, and where others may write into the folder: a file is code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import operator
import os
import pickle
import platform
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import SingleDeviceSharding

from jaxsmi.core.arrays import PyTree
from jaxsmi.core.files import whole

__all__ = ["Kept", "keep", "kept", "kept_in", "shrink"]

SIZE = 2**28  # bytes of the folder, a quarter of that of JAX's cache
_KNOWN = ("jaxsmi", "jax", "jaxlib", "equinox", "numpy", "builtins", "functools", "collections")
_PACKAGES = ("jax", "jaxlib", "equinox", "numpy")
_VARIABLES = re.compile("(JAX|XLA|EQX|JAXTYPING)_(?!.*CACHE)")
_OF_CACHES = re.compile("jax_(compilation_cache|persistent_cache|enable_compilation_cache)")
_OF_PROCESSORS = re.compile("flags|Features|model name")
_OF_LAPACK = re.compile("lapack_")

_TARGETS = re.compile(r"custom_call @([\w.$]+)")
_HARMLESS = ("Sharding", "annotate_device_placement")

Options = Mapping[str, bool | int] | None

_folder: list[Path] = []


def keep(folder: Path | None) -> None:
    """Keep calls in a folder from now on; None: no longer."""
    _folder[:] = [] if folder is None else [folder]


def kept_in() -> Path | None:
    """The folder that calls are kept in; None where they are not."""
    return _folder[0] if _folder else None


class _Array:
    """Stands where an array was."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Array)

    def __hash__(self) -> int:
        return 0


class _Pickler(pickle.Pickler):
    """Refuses functions and classes whose sources are not known by the library's and versions."""

    def reducer_override(self, obj: Any) -> Any:
        """What `pickle` does by itself, or an error."""
        named = isinstance(obj, type) or callable(obj)
        if named and (obj.__module__ or "").partition(".")[0] not in _KNOWN:
            raise pickle.PicklingError(f"{obj} is from elsewhere")
        return NotImplemented


def _pickled(tree: PyTree, by_value: bool = False) -> bytes:
    """The tree in bytes; `by_value`: equal ones the same, whatever their parts share."""
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=5)
    pickler.fast = by_value
    pickler.dump(tree)
    return out.getvalue()


class Kept(NamedTuple):
    """A compiled program of flat arrays, what it returns, with `_Array` in their places, and which
    functions outside of it it calls."""

    compiled: jax.stages.Compiled
    answer: PyTree
    targets: frozenset[str]

    def __call__(self, arrays: list[Any]) -> PyTree:
        """What the function returns."""
        numbers = iter(self.compiled(arrays))
        return jax.tree.map(lambda x: next(numbers) if isinstance(x, _Array) else x, self.answer)


def kept(function: Callable[..., Any], options: Callable[[], Options]) -> Callable[..., Any]:
    """The function as a finder of its kept calls: given `args` and `kwargs` it returns a call of
    no arguments; None where this call cannot be kept, or nothing is."""
    found: dict[object, Kept | None] = {}

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        if not _folder or not _plain():
            return None
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if eqx.is_array(x)]
        if not all(map(_at_home, arrays)):
            return None
        rest = tuple(_Array() if eqx.is_array(x) else x for x in leaves)
        types = tuple(map(jax.typeof, arrays))
        key = (tree, rest, types, _configuration())
        try:
            if key not in found:
                found[key] = _found(function, options, (leaves, tree), types)
        except TypeError:  # a part that has no hash
            return None
        program = found[key]
        return None if program is None else functools.partial(program, arrays)

    return find


def _plain() -> bool:
    """Whether this process has one host and runs on a CPU, and compiles."""
    switched = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    return jax.process_count() == 1 and jax.default_backend() == "cpu" and not switched


def _at_home(x: Any) -> bool:
    """Whether an array lies on the first device, or on none yet."""
    if not isinstance(x, jax.Array):
        return True
    return isinstance(x.sharding, SingleDeviceSharding) and x.devices() == {jax.devices()[0]}


def _found(
    function: Callable[..., Any],
    options: Callable[[], Options],
    arguments: tuple[list[Any], Any],
    types: tuple[Any, ...],
) -> Kept | None:
    """The program of a call: from the disk, or compiled and put there; None where it cannot be."""
    leaves, tree = arguments
    if not _private(_folder[0]):
        return None
    rest = [_Array() if eqx.is_array(x) else x for x in leaves]
    try:
        where = (function.__module__, function.__qualname__)
        if where[0].partition(".")[0] != "jaxsmi" or "<" in where[1]:
            return None
        called = _pickled((where, jax.tree.unflatten(tree, rest)), by_value=True)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None
    shapes = [(x.shape, str(x.dtype), bool(x.weak_type)) for x in types]
    told = repr((shapes, _configuration())).encode()
    name = hashlib.blake2b(called + told + _surroundings(), digest_size=20).hexdigest()
    path = _folder[0] / name
    read = _read(path, len(types))
    if read is not None:
        return read
    made = _compiled(function, options(), arguments)
    _write(path, made)
    return made


def _private(folder: Path) -> bool:
    """Whether this user alone may write into a folder, or makes it: what lies there is run."""
    if sys.platform == "win32" or not folder.exists():
        return True
    about = folder.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o022


def _compiled(
    function: Callable[..., Any], options: Options, arguments: tuple[list[Any], Any]
) -> Kept:
    """The function compiled for these arguments."""
    leaves, tree = arguments
    places = [k for k, x in enumerate(leaves) if eqx.is_array(x)]
    rest = [_Array() if eqx.is_array(x) else x for x in leaves]
    answers: list[PyTree] = []

    def flat(arrays: list[Any]) -> list[Any]:
        filled: list[Any] = list(rest)  # the program must not hold the arrays of its first call
        for place, array in zip(places, arrays, strict=True):
            filled[place] = array
        args, kwargs = jax.tree.unflatten(tree, filled)
        answer = function(*args, **kwargs)
        answers.append(jax.tree.map(lambda x: _Array() if eqx.is_array(x) else x, answer))
        return [x for x in jax.tree.leaves(answer) if eqx.is_array(x)]

    flat.__name__ = function.__name__
    jitted = jax.jit(flat, compiler_options=None if options is None else dict(options))
    lowered = jitted.lower([leaves[k] for k in places])
    with _without_cache():
        compiled = lowered.compile()
    return Kept(compiled, answers[0], frozenset(_TARGETS.findall(lowered.as_text())))


@contextlib.contextmanager
def _without_cache():
    """Inside, JAX's cache is not asked: a program that was read from it cannot be written again."""
    name = "jax_enable_compilation_cache"
    before = jax.config.values[name]
    jax.config.update(name, False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update(name, before)
        compilation_cache.reset_cache()


def _read(path: Path, count: int) -> Kept | None:
    """A program of so many arrays from its file; None where there is none that can be read."""
    try:
        payload, answer, targets = pickle.loads(zlib.decompress(path.read_bytes()))
        os.utime(path)
        answer = pickle.loads(answer)
        if any(map(_OF_LAPACK.match, targets)):
            _load_lapack()
        numbers = sum(isinstance(x, _Array) for x in jax.tree.leaves(answer))
        structure = jax.tree.structure
        compiled = serialize_executable.deserialize_and_load(
            payload,
            structure((([0] * count,), {})),
            structure([0] * numbers),
            execution_devices=jax.devices()[:1],
        )
    except FileNotFoundError:
        return None
    except Exception:  # whatever is wrong with a file: the program is compiled again
        return None
    return Kept(compiled, answer, targets)


@functools.cache
def _load_lapack() -> None:
    """JAX finds the functions of LAPACK when it first lowers one of them, and a program that is
    read calls them without."""
    jax.jit(jnp.linalg.cholesky).lower(jnp.eye(1))


def _write(path: Path, made: Kept) -> None:
    """A program to its file, where it can be written: not where it calls functions of this process
    (a callback, or what is not known here)."""
    if not all(_OF_LAPACK.match(target) or target in _HARMLESS for target in made.targets):
        return
    try:
        answer = _pickled(made.answer)
        payload, _, _ = serialize_executable.serialize(made.compiled)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, NotImplementedError):
        return  # it holds what only this process knows
    content = zlib.compress(pickle.dumps((payload, answer, made.targets)), 1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with whole(path) as aside:
            aside.touch(mode=0o600)  # a file is code: no other user writes into it
            aside.write_bytes(content)
        shrink(path.parent)
    except OSError:
        return  # a full disk, or one that is only read


def shrink(folder: Path) -> None:
    """The folder within its size: what was not used for longest goes first."""
    files = sorted(((x.stat(), x) for x in folder.iterdir()), key=lambda x: x[0].st_mtime)
    excess = sum(size.st_size for size, _ in files) - SIZE
    for size, file in files:
        if excess <= 0:
            break
        file.unlink(missing_ok=True)
        excess -= size.st_size


def _configuration() -> tuple[object, ...]:
    """What JAX is told at this moment, in this thread."""
    return _settings()(jax.config)


@functools.cache
def _settings() -> Callable[[object], tuple[object, ...]]:
    """Reads JAX's settings, but for those of caches."""
    known = set(jax.config.values) & set(dir(jax.config))
    return operator.attrgetter(*(name for name in sorted(known) if not _OF_CACHES.match(name)))


@functools.cache
def _surroundings() -> bytes:
    """What a program depends on beside its call and JAX's configuration."""
    seen = hashlib.blake2b()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        seen.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    variables = {k: v for k, v in os.environ.items() if _VARIABLES.match(k)}
    client = jax.devices()[0].client
    facts = (
        [(name, version(name)) for name in _PACKAGES],
        sys.version,
        platform.platform(),
        _processor(),
        (client.platform, client.platform_version, jax.device_count()),
        sorted(variables.items()),
    )
    seen.update(repr(facts).encode())
    return seen.digest()


def _processor() -> str:
    """What the processor can do: programs are compiled for that."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if _OF_PROCESSORS.match(line)}))
