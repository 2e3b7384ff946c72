"""Who imports whom: rooms, floors, circles, private names."""

from __future__ import annotations

import ast
import re

from laws.source import File, House

FLOORS = (  # a room may import from rooms before it and from those beside it, never in a circle
    {"core"},
    {"numerics"},
    {"sensing", "priors", "channels"},
    {"models"},
    {"learners"},
    {"inference"},
    {"descent"},
    {"thresholds", "sgd"},
    {"text", "workbench"},
    {"papers"},
    {"cli"},
)


FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


TOP_LEVEL = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}


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
        if file.module in ("jaxsmi", "jaxsmi.__main__"):
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
        if file.module in ("jaxsmi", "jaxsmi.__main__"):
            continue  # the list of public names, and the door to the command line
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
