"""The laws of the house: imports go downward, engines know no model, public names are documented, importing does nothing."""

import ast
import graphlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxsmi as smi

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jaxsmi"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = [  # a room may import from its own floor and from lower ones, never in a ring
    {"types"},
    {"integrate", "fixed_point", "random_matrix"},
    {"sensing", "priors", "channels"},
    {"models"},
    {"message_passing", "evolution", "potential", "training", "baselines"},
    {"sgd", "thresholds", "transitions", "search", "learning", "text"},
    {"sweeps", "storage", "plotting", "reports", "costs"},
    {"figures"},
    {"cli_models"},
    {"cli_sgd", "cli_figures", "cli_sweep"},
    {"cli"},
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
MODEL_NAMES = r"deep_?attention|multi_?index|attention|phase_?retrieval|perceptron|bilinear|linear_?channel|links\b"


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(tree):
    """(room, line) of every import from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "jaxsmi":
                    yield ([*alias.name.split("."), "__init__"])[1], node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] == "jaxsmi":
                for alias in node.names:
                    yield (parts[1] if len(parts) > 1 else alias.name), node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downward_only(path):
    room = room_of(path)
    if room == "__init__":
        return  # the list of public names
    assert room in FLOOR, f"{room} has no floor: add it to the laws"
    allowed_up = {("types", "storage")}  # Solution.to_xarray, lazily
    for other, line in imported_rooms(ast.parse(path.read_text())):
        if other != room and (room, other) not in allowed_up and room != "cli":
            assert FLOOR[other] <= FLOOR[room], (
                f"{path.name}:{line} imports {other}, which is above {room}"
            )


def test_rooms_of_one_floor_do_not_import_each_other_in_a_ring():
    below = {room: set() for room in FLOOR}
    for path in FILES:
        if room_of(path) not in ("__init__", "cli"):
            below[room_of(path)] |= {
                other for other, _ in imported_rooms(ast.parse(path.read_text()))
            } - {room_of(path)}
    below["types"].discard("storage")  # lazily
    assert set(graphlib.TopologicalSorter(below).static_order()) >= {
        "types",
        "models",
    }  # raises CycleError for a ring


def test_the_one_lazy_import_is_inside_to_xarray():
    tree = ast.parse((PACKAGE / "types.py").read_text())
    inside = [
        other
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "to_xarray"
        for other, _ in imported_rooms(node)
    ]
    assert inside == ["storage"]
    assert [other for other, _ in imported_rooms(tree)] == ["storage"]


@pytest.mark.parametrize("name", ["message_passing.py", "evolution.py", "fixed_point.py"])
def test_no_model_is_named_in_the_engines(name):
    """In code: docstrings and comments may give examples."""
    tree = ast.parse((PACKAGE / name).read_text())
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    assert not re.findall(MODEL_NAMES, ast.unparse(tree), flags=re.IGNORECASE)


def public():
    """Public names, the public functions of public modules, and the public methods and properties of public classes."""
    for name in smi.__all__:
        thing = getattr(smi, name)
        yield name, thing
        if inspect.ismodule(thing):
            for inner in getattr(thing, "__all__", []):
                yield f"{name}.{inner}", getattr(thing, inner)
        if inspect.isclass(thing):
            for inner, member in inspect.getmembers(thing):
                origin = getattr(member, "fget", member)
                ours = str(getattr(origin, "__module__", "")).startswith("jaxsmi")
                if (
                    not inner.startswith("_")
                    and ours
                    and (callable(member) or isinstance(member, property))
                ):
                    yield f"{name}.{inner}", member


PUBLIC = dict(public())
FUNCTIONS = [
    name for name, thing in PUBLIC.items() if inspect.isfunction(thing) and "." not in name
]


def test_every_public_name_has_a_docstring():
    without = [name for name, thing in PUBLIC.items() if not (inspect.getdoc(thing) or "").strip()]
    assert not without


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_say_what_raises_shows_and_supports_them(name):
    text = inspect.getdoc(PUBLIC[name])
    for heading in ("Arguments:", "Return", "Raises", "Example:", "Cost:", "Source:"):
        assert heading in text, f"{name}: no {heading}"
    for key in re.findall(r"\[([A-Z][A-Za-z]*\d{2})\b", text):
        assert f"{{{key}," in (ROOT / "references.bib").read_text(), (
            f"{name} cites {key}, which references.bib lacks"
        )


@pytest.mark.parametrize("name", ["DeepAttention", "MultiIndex", "Dataset"])
def test_public_models_say_what_raises_and_show_themselves(name):
    text = inspect.getdoc(PUBLIC[name])
    assert "Raises" in text
    assert "Example:" in text


@pytest.mark.parametrize("name", [n for n in PUBLIC if n.startswith("links.")])
def test_links_have_an_example(name):
    assert "Example:" in inspect.getdoc(PUBLIC[name])


def test_every_citation_of_the_code_is_in_the_bibliography():
    known = set(re.findall(r"@\w+\{(\w+),", (ROOT / "references.bib").read_text()))
    for path in FILES:
        for key in re.findall(r"\[([A-Z][A-Za-z]*\d{2})\b", path.read_text()):
            assert key in known, f"{path.name} cites {key}"


def test_importing_starts_nothing():
    """No backend, no flag, none of the slow optional packages."""
    code = (
        "import sys, jaxsmi, jax\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a backend was started'\n"
        "assert not jax.config.jax_enable_x64, 'x64 was switched on'\n"
        "loaded = {'matplotlib', 'xarray', 'dask', 'pandas'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 700
    assert ast.get_docstring(ast.parse(text))


def test_version_is_written_once():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", written)
    copies = [path.name for path in FILES if f'"{written}"' in path.read_text()]
    assert not copies
    try:
        installed = importlib.metadata.version("jaxsmi")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed: nothing to compare the version with")
    assert installed == written


def test_about_twenty_five_public_names():
    assert len(smi.__all__) <= 32
    assert set(smi.__all__) <= set(dir(smi))
