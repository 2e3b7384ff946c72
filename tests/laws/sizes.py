"""How large: functions, files, lines, signatures, tuples."""

from __future__ import annotations

import ast

from laws.faces import parameters
from laws.source import House, lines_of_code

LINES_OF_A_FUNCTION, LINES_OF_A_FILE, COLUMNS, ARGUMENTS, VALUES = 60, 450, 100, 8, 3


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
        if (count := sum(arg.arg not in ("self", "cls") for arg in parameters(node))) > ARGUMENTS
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
