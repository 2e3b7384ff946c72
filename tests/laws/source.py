"""The package as text: files, their syntax trees and imports. Nothing of it is imported."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

MODEL_ROOTS = {"AbstractModel"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name: the module it is found in, the name (None for a whole module), and
    where."""

    module: str
    name: str | None
    line: int
    typing: bool  # for the type checker only
    lazy: bool  # inside a function


@dataclasses.dataclass(frozen=True)
class File:
    """One source file: its path below ROOT, its dotted name, its text and its syntax tree."""

    path: str
    module: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder of the package it lies in, or its own name on the top level."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @functools.cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node

    def calls(self, *names: str) -> Iterator[ast.Call]:
        for node in self.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                yield node

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line} {what}"


class House:
    """The source files of one version of the project."""

    def __init__(self, root: Path):
        self.root = root
        self.package = [self._read(path) for path in sorted(root.glob("jaxsmi/**/*.py"))]
        users = [*root.glob("tests/**/*.py"), *root.glob("benchmarks/*.py")]
        self.users = [self._read(path) for path in sorted(users)]
        self.modules = {file.module: file for file in self.package}
        self._imports: dict[str, list[Import]] = {}

    def _read(self, path: Path) -> File:
        relative = path.relative_to(self.root)
        parts = relative.with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        return File(str(relative), module, text, ast.parse(text))

    def imports(self, file: File) -> list[Import]:
        """What a file imports from the package."""
        if file.path not in self._imports:
            self._imports[file.path] = list(self._imported(file))
        return self._imports[file.path]

    def _imported(self, file: File) -> Iterator[Import]:
        typing = _lines_inside(file, _is_type_checking)
        lazy = _lines_inside(
            file, lambda node: isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        )
        for node in file.nodes:
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            where = (node.lineno, node.lineno in typing, node.lineno in lazy)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "jaxsmi":
                        yield Import(alias.name, None, *where)
                continue
            source = self._absolute(file, node)
            if source.split(".")[0] != "jaxsmi":
                continue
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                if whole in self.modules:
                    yield Import(whole, None, *where)
                else:
                    yield Import(source, alias.name, *where)

    def _absolute(self, file: File, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parts = file.module.split(".")
        drop = node.level - (1 if file.path.endswith("__init__.py") else 0)
        base = parts[: len(parts) - drop] if drop else parts
        return ".".join([*base, *([node.module] if node.module else [])])

    @functools.cached_property
    def models(self) -> set[str]:
        """Names of all classes that are models."""
        bases = {
            node.name: {ast.unparse(base).split(".")[-1].split("[")[0] for base in node.bases}
            for file in self.package
            for node in file.nodes
            if isinstance(node, ast.ClassDef)
        }
        models = set(MODEL_ROOTS)
        models |= {name for name in bases if re.fullmatch(r"Abstract\w*Model|MultiIndex", name)}
        while True:
            more = {name for name, above in bases.items() if above & models} - models
            if not more:
                return models
            models |= more


def _lines_inside(file: File, chosen: Callable[[ast.AST], bool]) -> set[int]:
    inside: set[int] = set()
    for node in file.nodes:
        if chosen(node) and isinstance(node, (ast.stmt, ast.expr)):
            inside |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return inside


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def docstring_lines(tree: ast.AST) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def lines_of_code(file: File, node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without docstrings, blank lines and comments."""
    last = node.end_lineno or node.lineno
    docstrings = docstring_lines(node)
    return sum(
        1
        for number in range(node.lineno, last + 1)
        if number not in docstrings
        and (line := file.lines[number - 1].strip())
        and not line.startswith("#")
    )
