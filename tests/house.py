"""What the laws of the house count, read from the source text alone: nothing of the package is
imported.

    python tests/house.py [ROOT]      a table of all counts, with the worst offender of each

Each function of laws/ takes a `House` and returns its offenders, one line of text each: `path:line
what`. test_house.py holds them against their budgets. The package may lie anywhere (ROOT is the
folder that holds jaxsmi/, tests/, docs/ and references.bib), so that two versions can be counted
side by side.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from laws.faces import (
    any_fields,
    any_parameters,
    any_parameters_of_engines,
    attribute_lookups,
    isinstance_of_models,
    models_named_in_engines,
    string_ladders,
    untyped_parameters,
    word_ladders,
)
from laws.rooms import (
    files_on_the_top_level,
    import_circles,
    imports_inside_functions,
    private_imports,
    private_imports_of_tests,
    room_circles,
    upward_imports,
)
from laws.sizes import (
    ARGUMENTS,
    COLUMNS,
    LINES_OF_A_FILE,
    LINES_OF_A_FUNCTION,
    long_files,
    long_functions,
    long_lines,
    long_signatures,
    parallel_assignments,
    unnamed_tuples,
)
from laws.source import House, lines_of_code
from laws.words import SECTIONS, citations, missing_docstrings, missing_sections, shorthand_names


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
        Law(word_ladders, 0, "a table of the words, or a method of what differs"),
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
        Law(shorthand_names, 127, "estimate, residual, spread, lower, previous"),
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
