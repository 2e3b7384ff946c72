"""Signatures and docstrings of functions, read from their source without importing JAX.

Importing JAX takes over a second. `--help` and an answer to a misspelt flag must not wait for it,
so that a target such as "inference.message_passing:gamp" is looked up in the text of its module.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[1]


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
def read(target: str) -> Signature:
    """The signature of a target, "module:function" or "module:class.method" of this package."""
    module, _, name = target.partition(":")
    definition: Any = _tree(module)
    for part in name.split("."):
        definition = _member(definition, part)
    text = ast.get_docstring(definition) or ""
    help = _help(text)
    arguments = [
        Argument(name, annotation, default and ast.unparse(default), help.get(name, ""))
        for name, annotation, default in _entries(definition)
        if name != "self"
    ]
    return Signature(text.partition("\n\n")[0].replace("\n", " "), tuple(arguments))


def load(target: str) -> Any:
    """The object that a target names."""
    module, _, name = target.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(f"jaxsmi.{module}"))


def public_functions(module: str) -> list[str]:
    """Names of the functions of a module that do not begin with an underscore."""
    functions = [node for node in _tree(module).body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if not node.name.startswith("_")]


def names_in(annotation: ast.expr | None) -> set[str]:
    """All names in an annotation; of a function only "Callable"."""
    # what a function takes and returns are no types of the argument itself
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Callable":
        return {"Callable"}
    if isinstance(annotation, ast.Name):
        return {annotation.id}
    if isinstance(annotation, ast.Attribute):
        return {annotation.attr}
    nodes = [] if annotation is None else ast.iter_child_nodes(annotation)
    return {name for node in nodes if isinstance(node, ast.expr) for name in names_in(node)}


@functools.cache  # a command reads the same module for several records
def _tree(module: str) -> ast.Module:
    path = _ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _member(parent: Any, name: str) -> Any:
    found = [node for node in parent.body if getattr(node, "name", None) == name]
    if not found:
        raise AttributeError(f"no {name!r} in {getattr(parent, 'name', 'the module')}")
    return found[0]


def _help(text: str) -> dict[str, str]:
    """The entries of the section Args of a docstring, by name."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    entry = r"^    (\w[\w, ]*): (.*?)(?=^    \S|\Z)"
    listed = re.findall(entry, section[1], re.M | re.S) if section else []
    return {
        name.strip(): " ".join(said.split()) for names, said in listed for name in names.split(",")
    }


def _entries(
    definition: ast.ClassDef | ast.FunctionDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of each argument; of a class those of its constructor, or its
    fields."""
    if isinstance(definition, ast.ClassDef):
        init = [node for node in definition.body if getattr(node, "name", "") == "__init__"]
        if not init:
            yield from _fields(definition)
            return
        definition = init[0]  # pyright: ignore[reportAssignmentType]
    assert isinstance(definition, ast.FunctionDef)
    positional = [*definition.args.posonlyargs, *definition.args.args]
    defaults = definition.args.defaults
    pairs = [
        *zip(positional, [None] * (len(positional) - len(defaults)) + defaults, strict=True),
        *zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        yield argument.arg, argument.annotation, default


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = node.value
            if isinstance(default, ast.Call):  # eqx.field(static=True, default=..)
                named = {keyword.arg: keyword.value for keyword in default.keywords}
                default = named.get("default", named.get("default_factory"))
            yield node.target.id, node.annotation, default
