"""What is released: wheel and sdist, in an empty environment; the types that a user sees."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxsmi as smi

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMPLETE = 99.0  # percent of the public symbols whose types are known


def run(*command, **settings):
    settings = {"capture_output": True, "text": True, "timeout": 900} | settings
    return subprocess.run([str(word) for word in command], **settings)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_version_stands_in_one_place(dist):
    assert smi.__version__ == PROJECT["version"]
    assert {path.name for path in dist.iterdir()} == {
        f"jaxsmi-{PROJECT['version']}-py3-none-any.whl",
        f"jaxsmi-{PROJECT['version']}.tar.gz",
    }
    number = re.escape(f'"{PROJECT["version"]}"')
    modules = (ROOT / "jaxsmi").rglob("*.py")
    assert not [path for path in modules if re.search(number, path.read_text("utf-8"))]


def test_wheel_and_sdist_hold_what_they_should(dist):
    wheel = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "jaxsmi").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel if not name.startswith("jaxsmi-")} == package
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "references.bib", "docs/index.md"} <= names
    assert not {name for name in names if name.startswith((".venv", "out/", ".cache"))}


def test_who_cites_finds_what_zenodo_wants():
    """Zenodo reads title, authors, licence and version out of CITATION.cff."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    keys = ("cff-version", "message", "title", "abstract", "authors", "license", "version")
    for key in (*keys, "date-released"):
        assert re.search(rf"^{key}:", text, re.MULTILINE), key
    assert f"version: {PROJECT['version']}\n" in text
    assert f"license: {PROJECT['license']}\n" in text
    released = re.search(r"^date-released: (\S+)", text, re.MULTILINE)[1]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{PROJECT['version']}] - {released}\n" in changes


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def empty(request, dist, tmp_path_factory):
    """The interpreter of an environment that holds the wheel or what the sdist builds, and no
    extra."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    assert run(sys.executable, "-m", "venv", folder).returncode == 0
    python = folder / "bin" / "python"
    built = next(dist.glob(request.param))
    done = run(python, "-m", "pip", "install", "--quiet", "--no-compile", built)
    if done.returncode:
        pytest.skip(f"pip cannot install here: {done.stderr[-300:]}")
    return python


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Settings of a process that sees the empty environment and nothing of this folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "XLA"))}
    return {"cwd": tmp_path_factory.mktemp("outside"), "env": kept | {"JAX_PLATFORMS": "cpu"}}


@pytest.mark.slow
def test_an_empty_environment_without_extras(empty, outside):
    for package in ("matplotlib", "xarray", "dask", "datasets", "pandas"):
        code = f"import importlib.util; assert importlib.util.find_spec({package!r}) is None"
        assert run(empty, "-c", code, **outside).returncode == 0, package
    code = (
        "import jaxsmi as smi; print(smi.__version__, smi.__file__); "
        "[getattr(smi, name) for name in smi.__all__]"
    )
    done = run(empty, "-c", code, **outside)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROJECT["version"])
    assert "site-packages" in done.stdout
    command = empty.parent / "jaxsmi"
    done = run(command, "--help", **outside)
    assert done.returncode == 0
    assert "state-evolution" in done.stdout
    words = ("state-evolution", "linear", "--noise", "0.5", "--alpha", "1", "--json")
    done = run(command, *words, **outside)
    assert done.returncode == 0, done.stderr
    overlap = json.loads(done.stdout)["overlap"][0][0]
    # V² + (α - 1 + Δ) V - Δ = 0 at α = 1, Δ = 1/2: V = 1/2; the run stops at 1e-4 or below
    assert abs(overlap - 0.5) < 1e-4


@pytest.mark.slow
def test_public_types_are_complete():
    """pyright --verifytypes: the share of public symbols whose types are known."""
    words = ("--verifytypes", "jaxsmi", "--ignoreexternal", "--outputjson")
    # it looks for packages beside the first Python on PATH, whatever --pythonpath says
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(sys.executable, "-m", "pyright", *words, cwd=ROOT, env=os.environ | {"PATH": path})
    report = json.loads(done.stdout)["typeCompleteness"]
    assert report["packageName"] == "jaxsmi"
    assert 100 * report["completenessScore"] >= COMPLETE, report["exportedSymbolCounts"]


@pytest.mark.slow
def test_a_wrong_call_of_a_user_is_seen(tmp_path):
    """The script of user.py passes (`make lint`); one with mistakes does not."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "import jax, jaxsmi as smi\n"
        "smi.DeepAttention(layers=2)\n"
        "smi.gamp(smi.links.sign(), 3, key=jax.random.key(0))\n"
        "smi.state_evolution(smi.links.sign(), 1.0).no_such_field\n"
    )
    done = run(sys.executable, "-m", "pyright", "--outputjson", "-p", ROOT, script, cwd=ROOT)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {one["range"]["start"]["line"] for one in found if one["severity"] == "error"}
    assert lines == {1, 2, 3}, found
