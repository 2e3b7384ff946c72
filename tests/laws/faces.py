"""What is declared: types of parameters and fields; nothing is asked of a model beyond its face."""

from __future__ import annotations

import ast
import re

from laws.source import House, docstring_lines

NO_ANY = ("core/driver", "inference/", "thresholds/")  # engines: not one parameter of type Any


ENGINES = ("core/", "numerics/", "inference/", "thresholds/")


MODEL_WORDS = re.compile(
    r"deep_?attention|multi_?index|attention_?indexed|phase_?retrieval|perceptron|bilinear"
    r"|single_?index|links\b",
    re.IGNORECASE,
)


def _is_any(annotation: ast.expr | None) -> bool:
    """Any alone, or in a union: `Any`, `typing.Any`, `Any | None`, `Optional[Any]`."""
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value in ("Any", "typing.Any")
    if isinstance(annotation, ast.BinOp):
        return _is_any(annotation.left) or _is_any(annotation.right)
    return ast.unparse(annotation) in ("Any", "typing.Any", "Optional[Any]")


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = node.args
    more = [arg for arg in (given.vararg, given.kwarg) if arg is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *more]


def any_parameters(house: House) -> list[str]:
    """Parameters whose type is Any."""
    return [
        file.at(arg.lineno, f"{node.name}({arg.arg}: {ast.unparse(arg.annotation)})")
        for file in house.package
        for node in file.functions()
        for arg in parameters(node)
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
        for arg in parameters(node)
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


def word_ladders(house: House) -> list[str]:
    """Functions of engines that ask one name more than once which word it is: a table, or a method
    of what differs, says it once."""
    rungs: dict[str, int] = {}
    for file in house.package:
        if not file.path.startswith(tuple(f"jaxsmi/{name}" for name in (*ENGINES, "descent/"))):
            continue
        for function in file.functions():
            for node in ast.walk(function):
                if isinstance(node, ast.Compare) and _is_word(node.comparators[0]):
                    asked = file.at(function.lineno, f"{function.name}: {ast.unparse(node.left)}")
                    rungs[asked] = rungs.get(asked, 0) + 1
    return [asked for asked, count in rungs.items() if count > 1]


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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
        docstrings = docstring_lines(file.tree)
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
