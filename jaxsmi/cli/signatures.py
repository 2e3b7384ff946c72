"""Signatures and docstrings of public functions, read from their source without importing JAX.

Importing JAX takes over a second. `--help` and an answer to a misspelt flag must not wait for it,
so a name is followed through the stub `jaxsmi/__init__.pyi` and the imports of the packages to the
`def` or `class` that it stands for.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Argument", "Signature", "names_in", "public_functions", "read"]

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = "jaxsmi"

Definition = ast.ClassDef | ast.FunctionDef
Place = str | tuple[str, Definition]


class Argument(NamedTuple):
    """An argument of a function or of a constructor."""

    name: str
    annotation: ast.expr | None
    default: str | None  # as it is written; None: required
    help: str


class Signature(NamedTuple):
    """What a function says of itself."""

    summary: str
    arguments: tuple[Argument, ...]


@functools.cache
def read(name: str) -> Signature:
    """The signature of a public name, such as "gamp", "links.sign" or "DeepAttention.sample"."""
    place = _find(name)
    assert not isinstance(place, str)
    module, definition = place
    text = ast.get_docstring(definition) or ""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    listed = (
        re.findall(r"^    (\w[\w, ]*): (.*?)(?=^    \S|\Z)", section[1], re.M | re.S)
        if section
        else []
    )
    help = {
        name.strip(): " ".join(said.split()) for names, said in listed for name in names.split(",")
    }
    entries = _fields(definition)
    if isinstance(definition, ast.FunctionDef):
        entries = _parameters(definition)
    elif init := _member(module, definition, "__init__"):
        entries = _parameters(init[1])
    arguments = [
        Argument(name, annotation, default and ast.unparse(default), help.get(name, ""))
        for name, annotation, default in entries
        if name not in ("self", "cls")
    ]
    return Signature(text.partition("\n\n")[0].replace("\n", " "), tuple(arguments))


def public_functions(module: str) -> list[str]:
    """Names of the functions in `__all__` of a module."""
    place = _find(module)
    assert isinstance(place, str)
    lists = [
        ast.literal_eval(node.value)
        for node in _tree(place).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    found = {name: _lookup(place, name) for name in lists[0]}
    functions = (ast.FunctionDef,)
    return [x for x, place in found.items() if place and isinstance(place[1], functions)]


def names_in(annotation: ast.expr | None) -> set[str]:
    """All names in an annotation; of a function only "Callable"."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Callable":
        return {"Callable"}
    if isinstance(annotation, ast.Name):
        return {annotation.id}
    if isinstance(annotation, ast.Attribute):
        return {annotation.attr}
    nodes = [] if annotation is None else ast.iter_child_nodes(annotation)
    return {name for node in nodes if isinstance(node, ast.expr) for name in names_in(node)}


Entry = tuple[str, ast.expr | None, ast.expr | None]  # name, annotation, default


def _parameters(function: Definition) -> Iterator[Entry]:
    assert isinstance(function, ast.FunctionDef)
    places = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(places) - len(function.args.defaults)) + function.args.defaults
    for argument, default in zip(places, defaults, strict=True):
        yield argument.arg, argument.annotation, default
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        yield argument.arg, argument.annotation, default


def _fields(definition: Definition) -> Iterator[Entry]:
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = node.value
            if isinstance(default, ast.Call):  # eqx.field(static=True, default=..)
                named = {keyword.arg: keyword.value for keyword in default.keywords}
                default = named.get("default", named.get("default_factory"))
            yield node.target.id, node.annotation, default


# Where a name is defined


def _find(name: str) -> Place:
    """A dotted name: a module, or a definition with the module that it is in."""
    place: Place | None = _PACKAGE
    for part in name.split("."):
        if isinstance(place, str):
            place = _lookup(place, part)
        elif place is not None:
            place = _member(*place, part)
    if place is None:
        raise AttributeError(f"{_PACKAGE} has no public {name!r}")
    return place


@functools.cache
def _tree(module: str) -> ast.Module:
    for file in _files(module):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    raise ModuleNotFoundError(module)


def _files(module: str) -> list[pathlib.Path]:
    path = _ROOT.joinpath(*module.split(".")[1:])
    return [path / "__init__.pyi", path / "__init__.py", path.with_suffix(".py")]


def _lookup(module: str, name: str) -> Place | None:
    """A name in a module: another module, or a definition with the module that it is in."""
    found = _contents(module).get(name)
    if isinstance(found, Definition):
        return module, found
    if found is not None and found != (module, name):  # else a submodule that its package imports
        return _lookup(*found)
    inner = f"{module}.{name}"
    return inner if any(file.is_file() for file in _files(inner)) else None


@functools.cache
def _contents(module: str) -> dict[str, Definition | tuple[str, str]]:
    """Definitions and imports at the top of a module; imports as module and name there."""
    contents: dict[str, Definition | tuple[str, str]] = {}
    statements = list(_tree(module).body)
    for node in statements:
        if isinstance(node, ast.If):  # if TYPE_CHECKING:
            statements += node.body
        elif isinstance(node, Definition):
            contents[node.name] = node
        elif isinstance(node, ast.ImportFrom) and (source := _source(module, node)):
            contents |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return contents


def _source(module: str, node: ast.ImportFrom) -> str:
    """The module that an import names; "" where it is of another package."""
    if node.level:  # in the stub of a package, as `from .core.codes import Result`
        return f"{module}.{node.module}" if node.module else module
    own = node.module is not None and node.module.split(".")[0] == _PACKAGE
    return str(node.module) if own else ""


def _member(module: str, owner: Definition, name: str) -> tuple[str, Definition] | None:
    """A method of a class, or of the first of its bases that has it; of a function, that of the
    class that it returns."""
    bases = owner.bases if isinstance(owner, ast.ClassDef) else [owner.returns]
    if isinstance(owner, ast.ClassDef):
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return module, node
    for base in bases:
        place = _lookup(module, ast.unparse(base).partition("[")[0]) if base else None
        found = None if place is None or isinstance(place, str) else _member(*place, name)
        if found is not None:
            return found
    return None
