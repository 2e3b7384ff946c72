"""What the laws of the house count, read from the source text alone: nothing of the package is
imported.

    python tests/house.py [ROOT]      a table of all counts, with the worst offender of each

Each function of `LAWS` takes a `House` and returns its offenders, one line of text each: `path:line
what`. test_house.py holds them against their budgets. The package may lie anywhere (ROOT is the
folder that holds jaxsmi/, tests/, docs/ and references.bib), so that two versions can be counted
side by side.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

FLOORS = (  # a room may import from rooms before it and from those beside it, never in a circle
    {"core"},
    {"numerics"},
    {"sensing", "priors", "channels"},
    {"models"},
    {"inference"},
    {"descent"},
    {"thresholds", "sgd"},
    {"text", "workbench"},
    {"papers"},
    {"cli"},
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
TOP_LEVEL = {"__init__.py", "py.typed"}
NO_ANY = ("core/driver", "inference/", "thresholds/")  # engines: not one parameter of type Any
ENGINES = ("core/", "numerics/", "inference/", "thresholds/")
MODEL_ROOTS = {"AbstractModel"}
MODEL_WORDS = re.compile(
    r"deep_?attention|multi_?index|attention_?indexed|phase_?retrieval|perceptron|bilinear"
    r"|single_?index|links\b",
    re.IGNORECASE,
)
SHORTHAND = {"found", "seen", "held", "told", "own", "left", "far", "near", "kept", "came"}
LINES_OF_A_FUNCTION, LINES_OF_A_FILE, COLUMNS, ARGUMENTS, VALUES = 60, 450, 100, 8, 3
SECTIONS = ("Args:", "Return", "Raises", "Example:", "Cost:", "Source:")
KEY = re.compile(r"[A-Z][A-Za-z]*\d{2}[a-z]?\b")


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


# Types ---------------------------------------------------------------------------------------


def _is_any(annotation: ast.expr | None) -> bool:
    """Any alone, or in a union: `Any`, `typing.Any`, `Any | None`, `Optional[Any]`."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value in ("Any", "typing.Any")
    if isinstance(annotation, ast.BinOp):
        return _is_any(annotation.left) or _is_any(annotation.right)
    return ast.unparse(annotation) in ("Any", "typing.Any", "Optional[Any]")


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = node.args
    more = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *more]


def any_parameters(house: House) -> list[str]:
    """Parameters whose type is Any."""
    return [
        file.at(arg.lineno, f"{node.name}({arg.arg}: {ast.unparse(arg.annotation)})")
        for file in house.package
        for node in file.functions()
        for arg in _parameters(node)
        if arg.annotation is not None and _is_any(arg.annotation)
    ]


def any_parameters_of_engines(house: House) -> list[str]:
    """Parameters of type Any in inference/, thresholds/ and the driver."""
    prefixes = tuple(f"jaxsmi/{name}" for name in NO_ANY)
    return [line for line in any_parameters(house) if line.startswith(prefixes)]


def untyped_parameters(house: House) -> list[str]:
    """Parameters without a type (self and cls aside)."""
    return [
        file.at(arg.lineno, f"{node.name}({arg.arg})")
        for file in house.package
        for node in file.functions()
        for arg in _parameters(node)
        if arg.annotation is None and arg.arg not in ("self", "cls")
    ]


def any_fields(house: House) -> list[str]:
    """Fields of classes whose type is Any."""
    return [
        file.at(field.lineno, f"{node.name}.{ast.unparse(field.target)}: Any")
        for file in house.package
        for node in file.nodes
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and _is_any(field.annotation)
    ]


# What engines know ---------------------------------------------------------------------------


def attribute_lookups(house: House) -> list[str]:
    """Calls of getattr and hasattr."""
    return [
        file.at(node.lineno, ast.unparse(node))
        for file in house.package
        for node in file.calls("getattr", "hasattr")
    ]


def isinstance_of_models(house: House) -> list[str]:
    """isinstance(x, M) where M is a model."""
    return [
        file.at(node.lineno, ast.unparse(node))
        for file in house.package
        for node in file.calls("isinstance", "issubclass")
        if len(node.args) == 2 and house.models & _names(node.args[1])
    ]


def string_ladders(house: House) -> list[str]:
    """Cases told apart by how a word begins or ends, in the rooms below the workbench."""
    above = {"workbench", "papers", "cli", "text"}
    return [
        file.at(node.lineno, ast.unparse(node))
        for file in house.package
        if file.room not in above
        for node in file.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("startswith", "endswith")
    ]


def _names(node: ast.AST) -> set[str]:
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def models_named_in_engines(house: House) -> list[str]:
    """Words of an engine's code that name a model (docstrings and comments may)."""
    found = []
    for file in house.package:
        if not file.path.startswith(tuple(f"jaxsmi/{name}" for name in ENGINES)):
            continue
        docstrings = _docstring_lines(file.tree)
        for node in file.nodes:
            if isinstance(node, ast.stmt) and node.lineno in docstrings:
                continue
            for word in _words(node):
                if MODEL_WORDS.search(word):
                    found.append(file.at(getattr(node, "lineno", 0), word))
    return sorted(set(found))


def _words(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, (ast.Attribute,)):
        return [node.attr]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(alias.name for alias in node.names)]
    return []


# Imports -------------------------------------------------------------------------------------


def private_imports(house: House, files: list[File] | None = None) -> list[str]:
    """Names beginning with an underscore that one module takes from another."""
    found = []
    for file in house.package if files is None else files:
        bound = {}
        for one in house.imports(file):
            if one.name is not None and re.match(r"_(?!_)", one.name):
                found.append(file.at(one.line, f"{one.module}.{one.name}"))
        for node in file.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jaxsmi"):
                bound |= {alias.asname or alias.name: alias.name for alias in node.names}
            if isinstance(node, ast.Import):
                bound |= {
                    alias.asname or alias.name.split(".")[0]: alias.name
                    for alias in node.names
                    if alias.name.split(".")[0] == "jaxsmi"
                }
        for node in file.nodes:
            if not isinstance(node, ast.Attribute) or not re.match(r"_(?!_)", node.attr):
                continue
            root = node.value
            while isinstance(root, ast.Attribute) and not re.match(r"_(?!_)", root.attr):
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                found.append(file.at(node.lineno, ast.unparse(node)))
    return found


def private_imports_of_tests(house: House) -> list[str]:
    """Private names of the package that a test or a benchmark reaches for."""
    return private_imports(house, house.users)


def import_circles(house: House) -> list[str]:
    """Modules that import each other, directly or around; imports for the type checker aside."""
    graph = {
        file.module: {
            one.module
            for one in house.imports(file)
            if not one.typing and one.module in house.modules and one.module != file.module
        }
        for file in house.package
    }
    return [" <-> ".join(sorted(ring)) for ring in _components(graph) if len(ring) > 1]


def room_circles(house: House) -> list[str]:
    """Rooms that import each other, directly or around."""
    graph: dict[str, set[str]] = {}
    for file in house.package:
        if file.module == "jaxsmi":
            continue
        rooms = {one.module.split(".")[1] for one in house.imports(file) if "." in one.module}
        graph.setdefault(file.room, set()).update(rooms - {file.room})
    return [" <-> ".join(sorted(ring)) for ring in _components(graph) if len(ring) > 1]


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components: nodes that reach each other."""

    def reached(start: str) -> set[str]:
        visited: set[str] = set()
        pending = [start]
        while pending:
            for other in graph.get(pending.pop(), set()) - visited:
                visited.add(other)
                pending.append(other)
        return visited

    reach = {node: reached(node) for node in graph}
    components, done = [], set()
    for node in sorted(graph):
        if node not in done:
            ring = {node} | {other for other in reach[node] if node in reach.get(other, set())}
            done |= ring
            components.append(ring)
    return components


def upward_imports(house: House) -> list[str]:
    """Imports from a room above."""
    found = []
    for file in house.package:
        if file.module == "jaxsmi":
            continue  # the list of public names
        if file.room not in FLOOR:
            found.append(file.at(1, f"{file.room} is no room"))
            continue
        for one in house.imports(file):
            other = one.module.split(".")[1] if "." in one.module else "__init__"
            if other == "__init__" and file.room == "cli":
                continue  # the command line is a user of the public names
            if FLOOR.get(other, len(FLOORS)) > FLOOR[file.room]:
                found.append(file.at(one.line, f"{file.room} imports {one.module}"))
    return found


def imports_inside_functions(house: House) -> list[str]:
    """Imports of the package that wait until a function is called."""
    return [
        file.at(one.line, one.module)
        for file in house.package
        for one in house.imports(file)
        if one.lazy
    ]


def files_on_the_top_level(house: House) -> list[str]:
    """Files that lie beside the rooms."""
    return [
        f"jaxsmi/{path.name}"
        for path in sorted((house.root / "jaxsmi").iterdir())
        if path.is_file() and path.name not in TOP_LEVEL
    ]


# Sizes ---------------------------------------------------------------------------------------


def _docstring_lines(tree: ast.AST) -> set[int]:
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
    docstrings = _docstring_lines(node)
    return sum(
        1
        for number in range(node.lineno, last + 1)
        if number not in docstrings
        and (line := file.lines[number - 1].strip())
        and not line.startswith("#")
    )


def long_functions(house: House) -> list[str]:
    """Functions that do not fit on a screen, the longest first."""
    sizes = [
        (lines_of_code(file, node), file.at(node.lineno, node.name))
        for file in house.package
        for node in file.functions()
    ]
    return [
        f"{where}: {size} lines"
        for size, where in sorted(sizes, reverse=True)
        if size > LINES_OF_A_FUNCTION
    ]


def long_files(house: House) -> list[str]:
    """Files that are more than one idea, the longest first."""
    sizes = sorted(((len(file.lines), file.path) for file in house.package), reverse=True)
    return [f"{path}: {size} lines" for size, path in sizes if size > LINES_OF_A_FILE]


def long_lines(house: House) -> list[str]:
    """Lines wider than a screen."""
    return [
        file.at(number, f"{len(line)} columns")
        for file in house.package
        for number, line in enumerate(file.lines, 1)
        if len(line) > COLUMNS
    ]


def long_signatures(house: House) -> list[str]:
    """Private functions with too many arguments (`self` aside)."""
    return [
        file.at(node.lineno, f"{node.name}: {count} arguments")
        for file in house.package
        for node in file.functions()
        if node.name.startswith("_") and not node.name.startswith("__")
        if (count := sum(arg.arg not in ("self", "cls") for arg in _parameters(node))) > ARGUMENTS
    ]


def unnamed_tuples(house: House) -> list[str]:
    """Functions that return a tuple of more than three values without names."""
    found = []
    for file in house.package:
        for node in file.functions():
            hint = node.returns
            if isinstance(hint, ast.Subscript) and ast.unparse(hint.value) in ("tuple", "Tuple"):
                parts = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
                if len(parts) > VALUES:
                    found.append(file.at(node.lineno, f"{node.name}: {len(parts)} values"))
    return found


def parallel_assignments(house: House) -> list[str]:
    """`a, b = 1, 2`: several statements in one. A swap, where a later value reads an earlier name,
    is none."""
    found = []
    for file in house.package:
        for node in file.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            target = node.targets[0]
            if len(node.targets) > 1 or not isinstance(target, ast.Tuple):
                continue
            if any(isinstance(part, ast.Starred) for part in [*target.elts, *node.value.elts]):
                continue
            if len(target.elts) == len(node.value.elts) > 1 and not _swaps(target, node.value):
                found.append(file.at(node.lineno, ast.unparse(node)[:80]))
    return found


def _swaps(targets: ast.Tuple, values: ast.Tuple) -> bool:
    return any(
        ast.unparse(target) in {ast.unparse(inner) for inner in ast.walk(value)}
        for i, target in enumerate(targets.elts)
        for value in values.elts[i + 1 :]
    )


# Words ---------------------------------------------------------------------------------------


def missing_docstrings(house: House) -> list[str]:
    """Modules, and public classes and functions on a module's level, without a docstring, or with a
    single word."""
    found = []
    for file in house.package:
        for node in [file.tree, *file.tree.body]:
            if not isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                continue
            name = getattr(node, "name", "the module")
            text = ast.get_docstring(node)
            if text is None and not name.startswith("_"):
                found.append(file.at(getattr(node, "lineno", 1), f"{name}: no docstring"))
            if text is not None and len(text.split()) < 2:
                found.append(file.at(getattr(node, "lineno", 1), f"{name}: {text!r}"))
    return found


def shorthand_names(house: House) -> list[str]:
    """Variables and parameters with a name that says nothing: found, seen, held .."""
    found = []
    for file in house.package:
        for node in file.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            if name in SHORTHAND:
                found.append(file.at(node.lineno, name))
    return found


def _cited(file: File) -> Iterator[tuple[int, str]]:
    """(line, content) of every bracket of a file that cites something, and of every mention of a
    specification."""
    text = re.sub(r"\n\s*(#\s)?\s*", lambda gap: " " + "\0" * (len(gap.group()) - 1), file.text)
    for match in re.finditer(r"\[([^\[\]]*)\]", text):
        content = re.sub(r"\s+", " ", match.group(1).replace("\0", "")).strip()
        if content.startswith("theory:") or "; theory:" in content or KEY.match(content):
            yield file.text.count("\n", 0, match.start()) + 1, content
    for match in re.finditer(r"\bspec(s|ification)? ?(/\d|section|\d)", file.text):
        yield file.text.count("\n", 0, match.start()) + 1, match.group()


def citations(house: House) -> list[str]:
    """Citations of an article that references.bib lacks, or of a page, an equation, a table or a
    section that docs/theory lacks."""
    bibliography = house.root / "references.bib"
    keys = set(re.findall(r"@\w+\{(\w+),", bibliography.read_text(encoding="utf-8")))
    found = []
    for file in [*house.package, *(f for f in house.users if not f.path.endswith("house.py"))]:
        for line, content in _cited(file):
            theory = (
                False  # "[theory: multi-index, Eq. (1); bilinear, Eq. (2)]": pages until the end
            )
            for part in content.split("; "):
                theory = theory or part.startswith("theory:")
                page = theory and not KEY.match(part)
                whole = "theory: " + part.removeprefix("theory:").strip() if page else part
                reason = _wrong(whole.strip(), keys, house.root)
                if reason:
                    found.append(file.at(line, f"[{part}]: {reason}"))
    return found


def _wrong(part: str, keys: set[str], root: Path) -> str:
    """Why a citation leads nowhere, or nothing."""
    if KEY.match(part):
        key = part.split(",")[0].split(" ")[0]
        return "" if key in keys else "no such key in references.bib"
    if not part.startswith("theory:"):
        return "neither a key of references.bib nor a page of docs/theory"
    page, _, places = part.removeprefix("theory:").strip().partition(",")
    path = root / "docs" / "theory" / f"{page.strip()}.md"
    if not path.is_file():
        return "no such page in docs/theory"
    return _missing_places(places, path)


@functools.cache
def _places(path: Path) -> dict[str, set[str]]:
    text = path.read_text(encoding="utf-8")
    return {
        "Eq": set(re.findall(r"\\tag\{(\w+)\}", text)),
        "Table": set(re.findall(r"Table (\d+)", text)),
        "section": set(re.findall(r"^#+ (\d+(?:\.\d+)*)", text, flags=re.MULTILINE)),
    }


def _missing_places(places: str, path: Path) -> str:
    kinds = {"Eq": r"Eqs?\. ", "Table": r"Tables? ", "section": r"sections? "}
    starts = [
        (match.start(), kind, match.end())
        for kind, word in kinds.items()
        for match in re.finditer(word, places)
    ]
    if not starts:
        return "no equation, table or section"
    starts.sort()
    for (_, kind, start), following in zip(
        starts, [*(one[0] for one in starts[1:]), len(places)], strict=True
    ):
        numbers = re.findall(r"\d+(?:\.\d+)*", places[start:following])
        missing = [number for number in numbers if number not in _places(path)[kind]]
        if missing or not numbers:
            return f"{path.name} has no {kind} {', '.join(missing)}".rstrip()
    return ""


def exported_functions(house: House) -> list[tuple[File, ast.FunctionDef]]:
    """Functions that `import jaxsmi` shows: those of its `__all__`, and those of the rooms and
    modules named there."""
    exported: dict[tuple[str, str], None] = {}

    def add(module: str, name: str, inside: bool) -> None:
        file = house.modules.get(module)
        if file is None:
            return
        for node in file.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                exported[module, name] = None
        for one in house.imports(file):
            if one.name == name:
                add(one.module, name, inside)
            elif one.name is None and one.module.split(".")[-1] == name and inside:
                for more in _all(house.modules[one.module]):
                    add(one.module, more, False)

    for name in _all(house.modules["jaxsmi"]):
        add("jaxsmi", name, True)
    return [
        (house.modules[module], node)
        for module, name in exported
        for node in house.modules[module].tree.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]


def _all(file: File) -> list[str]:
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def missing_sections(house: House) -> list[str]:
    """Public functions whose docstring lacks arguments, return, errors, example, cost or source."""
    found = []
    for file, node in exported_functions(house):
        text = ast.get_docstring(node) or ""
        needed = [word for word in SECTIONS if word != "Args:" or _parameters(node)]
        missing = [word.rstrip(":") for word in needed if word not in text]
        if missing:
            found.append(file.at(node.lineno, f"{node.name}: no {', '.join(missing)}"))
    return found


# The laws ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Law:
    """A count that must not pass its budget, and what to do about an offender; no budget: shown,
    not held."""

    count: Callable[[House], list[str]]
    budget: int | None
    remedy: str


LAWS = {
    law.count.__name__: law
    for law in (
        Law(any_parameters, 40, "declare an abstract class, a Protocol, a TypeVar or object"),
        Law(any_parameters_of_engines, 0, "engines read declared faces: AbstractModel and others"),
        Law(any_fields, 1, "declare what the field holds"),
        Law(untyped_parameters, 0, "say its type"),
        Law(attribute_lookups, 8, "declare the attribute on the abstract class"),
        Law(isinstance_of_models, 0, "what differs between families is a method of the family"),
        Law(string_ladders, 0, "a class for each case"),
        Law(models_named_in_engines, 0, "an engine knows no model: ask the model's face"),
        Law(private_imports, 0, "what two modules share is public: no leading underscore"),
        Law(private_imports_of_tests, 0, "test what a user can call, or make the name public"),
        Law(import_circles, 0, "move what both need into a lower module"),
        Law(room_circles, 0, "move what both need into a lower room"),
        Law(upward_imports, 0, "imports go downward: move the code up, or the need down"),
        Law(imports_inside_functions, 0, "import at the head of the file"),
        Law(files_on_the_top_level, 0, "put the file into a room"),
        Law(long_functions, 0, f"a function fits on a screen: {LINES_OF_A_FUNCTION} lines of code"),
        Law(long_files, 0, f"a file is one idea: {LINES_OF_A_FILE} lines"),
        Law(long_lines, 0, f"{COLUMNS} columns"),
        Law(long_signatures, 0, f"at most {ARGUMENTS} arguments: group them in a class"),
        Law(unnamed_tuples, 0, "return a NamedTuple or a Module with named fields"),
        Law(parallel_assignments, 20, "one statement a line"),
        Law(missing_docstrings, 0, "say in one sentence what it is"),
        Law(shorthand_names, None, "estimate, residual, spread, lower, previous"),
        Law(citations, 0, "cite [KEY] of references.bib or [theory: page, Eq. (n)] of docs/theory"),
        Law(missing_sections, 0, f"its docstring needs {' '.join(SECTIONS)}"),
    )
}


def table(house: House) -> str:
    """All counts beside their budgets, with the first offender of each (of sizes: the largest)."""
    rows = [f"{'count':26} {'now':>5} {'budget':>6}  first", "-" * 100]
    for name, law in LAWS.items():
        offenders = law.count(house)
        budget = "" if law.budget is None else str(law.budget)
        first = offenders[0][:COLUMNS] if offenders else ""
        rows.append(f"{name:26} {len(offenders):5} {budget:>6}  {first}")
    sizes = [
        (lines_of_code(file, node), file.at(node.lineno, node.name))
        for file in house.package
        for node in file.functions()
    ]
    files = [(len(file.lines), file.path) for file in house.package]
    rows += [
        "-" * 100,
        f"{'files, lines':26} {len(files):5} {sum(size for size, _ in files):6}",
        f"{'functions, longest':26} {len(sizes):5} {max(sizes)[0]:6}  {max(sizes)[1]}",
        f"{'longest file':26} {'':5} {max(files)[0]:6}  {max(files)[1]}",
        f"{'longest line':26} {'':5} {max(len(l) for f in house.package for l in f.lines):6}",
    ]
    return "\n".join(rows)


def main(argv: list[str]) -> None:
    """Print the table, or with names of laws all their offenders."""
    names = [word for word in argv if word in LAWS]
    roots = [word for word in argv if word not in LAWS]
    house = House(Path(roots[0]) if roots else Path(__file__).resolve().parents[1])
    if not names:
        print(table(house))
    for name in names:
        print("\n".join(LAWS[name].count(house)))


if __name__ == "__main__":
    main(sys.argv[1:])
