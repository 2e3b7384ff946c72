"""What is said: docstrings, their sections, citations, names."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from laws.faces import parameters
from laws.source import File, House

SHORTHAND = {"found", "seen", "held", "told", "own", "left", "far", "near", "kept", "came"}


SECTIONS = ("Args:", "Return", "Raises", "Example:", "Cost:", "Source:")


KEY = re.compile(r"[A-Z][A-Za-z]*\d{2}[a-z]?\b")


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
        needed = [word for word in SECTIONS if word != "Args:" or parameters(node)]
        missing = [word.rstrip(":") for word in needed if word not in text]
        if missing:
            found.append(file.at(node.lineno, f"{node.name}: no {', '.join(missing)}"))
    return found
