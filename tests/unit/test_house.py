"""The laws of the house, held against their budgets; and what only a running interpreter can tell.

Imports go downward, engines know no model, functions fit on a screen, citations lead somewhere,
public names are documented, importing does nothing. `python tests/house.py` prints all counts.
"""

import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from laws.rooms import FLOOR

import house
import jaxsmi as smi

ROOT = Path(__file__).resolve().parents[2]
HOUSE = house.House(ROOT)
HELD = [name for name, law in house.LAWS.items() if law.budget is not None]


@pytest.mark.parametrize("name", HELD)
def test_law(name):
    law = house.LAWS[name]
    offenders = law.count(HOUSE)
    assert law.budget is not None
    assert len(offenders) <= law.budget, (
        f"{name}: {len(offenders)}, allowed {law.budget}. {law.remedy}.\n  "
        + "\n  ".join(offenders[:60])
    )


# One offender of each law, so that a counter which sees nothing is seen --------------------------

LONG = "\n".join(f"    x = {i}" for i in range(61))
OFFENDERS = {
    "any_parameters": ("models/a.py", "from typing import Any\ndef f(x: Any | None): ..."),
    "any_parameters_of_engines": ("inference/a.py", "def f(x: 'Any'): ..."),
    "any_fields": ("models/a.py", "class A:\n    x: Any"),
    "untyped_parameters": ("models/a.py", "class A:\n    def f(self, x): ..."),
    "attribute_lookups": ("models/a.py", "hasattr(1, 'x')"),
    "isinstance_of_models": (
        "models/a.py",
        "class A(AbstractModel): ...\nclass B(A): ...\nisinstance(1, (int, B))",
    ),
    "word_ladders": (
        "inference/a.py",
        "def f(x):\n    if x == 'a':\n        return 1\n    return 2 if x == 'b' else 3",
    ),
    "string_ladders": ("models/a.py", "'signed'.endswith('d')"),
    "models_named_in_engines": ("inference/a.py", "'''Bilinear may stand here.'''\nbilinear = 1"),
    "private_imports": ("models/a.py", "from jaxsmi.models.b import _y"),
    "private_imports_of_tests": ("../tests/test_a.py", "from jaxsmi import models\nmodels.b._y"),
    "import_circles": ("models/a.py", "from jaxsmi.models import b"),
    "room_circles": ("core/a.py", "from jaxsmi.sgd import a"),
    "upward_imports": ("core/a.py", "from jaxsmi.sgd import a"),
    "imports_inside_functions": ("models/a.py", "def f():\n    from jaxsmi.core import a"),
    "files_on_the_top_level": ("a.py", ""),
    "long_functions": ("models/a.py", f"def f():\n{LONG}"),
    "long_files": ("models/a.py", 451 * "\n"),
    "long_lines": ("models/a.py", 101 * "#"),
    "long_signatures": ("models/a.py", "def _f(a, b, c, d, e, f, g, h, i): ..."),
    "unnamed_tuples": ("models/a.py", "def f() -> tuple[int, int, int, int]: ..."),
    "parallel_assignments": ("models/a.py", "a, b = 1, 2\na, b = b, a\na, b = f()"),
    "missing_docstrings": ("models/a.py", '"""Two words."""\ndef f():\n    """Word."""'),
    "shorthand_names": ("models/a.py", "found = 1"),
    "citations": ("models/a.py", "'''[ABC21; theory: page, Eq. (1)], [theory: page, Eq. (3)]'''"),
    "missing_sections": ("__init__.py", "from jaxsmi.models.b import f\n__all__ = ['f']"),
}  # fmt: skip


@pytest.mark.parametrize("name", house.LAWS)
def test_a_counter_sees_one_offender(name, tmp_path):
    other = '"""The other module."""\nfrom jaxsmi.models import a\ndef f():\n    """Public f."""\n'
    files = {
        "jaxsmi/__init__.py": '"""The package."""',
        "jaxsmi/sgd/a.py": '"""The room above."""\nfrom jaxsmi.core import a\n',
        "jaxsmi/core/a.py": '"""The room below."""',
        "references.bib": "@article{ABC21,\n}",
        "docs/theory/page.md": r"\tag{1} \tag{2}",
    }
    files["jaxsmi/models/b.py"] = (
        other if name == "import_circles" else other.replace("from jaxsmi.models import a\n", "")
    )
    path, text = OFFENDERS[name]
    files[f"jaxsmi/{path}"] = text
    if name not in ("room_circles", "upward_imports"):
        files["jaxsmi/models/a.py"] = files.get("jaxsmi/models/a.py", '"""A module."""')
    for path, text in files.items():
        target = (tmp_path / path).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    offenders = house.LAWS[name].count(house.House(tmp_path))
    assert len(offenders) == 1, offenders


# What only the running package tells ---------------------------------------------------------


def public():
    """Public names, those of public modules, and the public methods and properties of public
    classes."""
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
CLASSES = ("DeepAttention", "MultiIndex", "AttentionIndexed", "Bilinear", "Dataset")


def test_every_public_name_has_a_docstring():
    without = [name for name, thing in PUBLIC.items() if not (inspect.getdoc(thing) or "").strip()]
    assert not without


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_say_what_raises_and_show_themselves(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert "Raises" in text
    assert "Example:" in text


def test_about_twenty_five_public_names():
    assert len(smi.__all__) <= 43
    assert set(smi.__all__) <= set(dir(smi))


def test_no_room_bears_the_name_of_a_public_function():
    rooms = {path.parent.name for path in (ROOT / "jaxsmi").glob("*/__init__.py")}
    assert rooms == set(FLOOR)
    assert not {name for name in smi.__all__ if not inspect.ismodule(getattr(smi, name))} & rooms


def test_importing_starts_nothing():
    """Not even JAX; with it no backend, no flag, none of the slow optional packages."""
    code = (
        "import sys, jaxsmi\n"
        "assert not {'jax', 'numpy'} & set(sys.modules), 'slow to load'\n"
        "import jax\n"
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


def test_version_is_written_once():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", written)
    copies = [file.path for file in HOUSE.package if f'"{written}"' in file.text]
    assert not copies
    try:
        installed = importlib.metadata.version("jaxsmi")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed: nothing to compare the version with")
    assert installed == written
