"""The pages of docs/ and the README name what exists:
functions, tests, files, headings, articles."""

import ast
import functools
import importlib
import inspect
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import jaxsmi

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
THEORY = sorted((ROOT / "docs" / "theory").glob("*.md"))
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
EVERY = [*PAGES, *THEORY, *HOW_TO, *REFERENCE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FUNCTION = r"`(jaxsmi(?:\.\w+)+)`"
TEST = r"`(tests/[\w/]+\.py)::(test_\w+)`(\]\([^)]*\))?( †)?"


def name(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def found(dotted):
    """What a dotted name of the package stands for: the longest module, then attributes."""
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[k:], thing)
    raise ModuleNotFoundError(dotted)


@functools.cache
def tests_of(path):
    """Name of each test of a file, and whether all of it is slow."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marked = any(
        isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])
        for node in tree.body
    )

    def slow(node):
        return marked or any(
            ast.unparse(mark) in ("pytest.mark.slow", "SLOW") for mark in node.decorator_list
        )

    return {node.name: slow(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def slug(heading):
    """The anchor that a heading gets: lower case, punctuation gone, spaces to hyphens."""
    kept = (c for c in heading.strip().lower() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).replace(" ", "-")


def anchors(path):
    return {slug(line.lstrip("#")) for line in prose(path).splitlines() if line.startswith("#")}


def broken(path):
    """The relative links of a page that lead nowhere."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        inside = there.exists() and ROOT in there.parents
        if not inside or (anchor and anchor not in anchors(there)):
            yield target


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_functions_exist(path):
    named = set(re.findall(FUNCTION, prose(path)))
    named |= {f"jaxsmi.{rest}" for rest in re.findall(r"`smi\.(\w+(?:\.\w+)*)", prose(path))}
    missing = []
    for dotted in sorted(named):
        try:
            found(dotted)
        except (AttributeError, ModuleNotFoundError):
            missing.append(dotted)
    assert not missing


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_tests_exist_and_slow_ones_are_called_slow(path):
    for file, test, _, dagger in re.findall(TEST, prose(path)):
        assert test in tests_of(file), f"{file}::{test}"
        assert dagger or not tests_of(file)[test], f"{file}::{test} is slow: mark it with †"


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_links_lead_somewhere(path):
    assert list(broken(path)) == []


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_articles_are_in_the_bibliography(path):
    known = set(re.findall(r"@\w+\{(\w+),", (ROOT / "references.bib").read_text(encoding="utf-8")))
    assert set(re.findall(r"\[([A-Z][A-Za-z]*\d{2})\b", prose(path))) <= known


def public(module):
    """Public functions and classes of a module and of the modules that it names."""
    for name in module.__all__:
        member = getattr(module, name)
        yield from public(member) if inspect.ismodule(member) else [member]


def test_the_reference_has_every_public_name():
    listed = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE)
    names = re.findall(r"auto(?:class|function):: jaxsmi\.(\S+)", listed)
    documented = [functools.reduce(getattr, name.split("."), jaxsmi) for name in names]
    assert [member for member in public(jaxsmi) if member not in documented] == []


def test_every_line_of_the_equation_table_has_a_function_and_a_test():
    rows = [
        row for row in prose(ROOT / "docs" / "equations.md").splitlines() if row.startswith("| ")
    ]
    rows = [row for row in rows if not row.startswith("| equation |")]
    assert len(rows) > 80
    for row in rows:
        assert len(row.split(" | ")) == 4, row
        assert re.search(FUNCTION, row), row
        assert re.search(TEST, row), row


def test_every_article_is_in_the_equation_table():
    """Those that the code cites."""
    cited = set()
    for path in (ROOT / "jaxsmi").rglob("*.py"):
        cited |= set(re.findall(r"\[([A-Z][A-Za-z]*\d{2})\b", path.read_text(encoding="utf-8")))
    table = set(re.findall(r"\[([A-Z][A-Za-z]*\d{2})\b", prose(ROOT / "docs" / "equations.md")))
    assert cited <= table, cited - table


# A number of docs/print.md that no other test shows -------------------------------------------


def denoising_error(kappa, R):
    """R - (4π²/3) R² ∫ μ³ and ∫ μ of W Wᵀ/√(r d) + √R GOE, one
    band: its cubic by companion matrices, in NumPy alone."""
    a = np.sqrt(kappa)
    critical = np.roots(
        np.polysub(R * np.polymul([1, 0, 0], [1, -2 * a, a**2]), [1 - kappa, -2 * a, a**2])
    )
    g = critical[np.abs(critical.imag) < 1e-9].real
    low, high = np.sort(1 / g + R * g + kappa / (a - g))
    angle = (
        (np.arange(1000) + 0.5) * np.pi / 1000
    )  # midpoints: integrands are periodic and smooth in the angle
    x = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
    weight = 0.5 * (high - low) * np.pi / 1000 * np.sin(angle)
    companion = np.zeros((len(x), 3, 3))
    companion[:, 1, 0] = companion[:, 2, 1] = 1.0
    companion[:, 0] = np.stack([x + a * R, kappa - 1 - a * x, np.full_like(x, a)], axis=1) / R
    density = np.abs(np.linalg.eigvals(companion).imag).max(axis=1) / np.pi
    return R - 4 * np.pi**2 / 3 * R**2 * weight @ density**3, weight @ density


@pytest.mark.slow
def test_a_published_error_is_off_where_two_bands_merge():
    """Noiseless quadratic network of width 0.1, α = 0.0705748:
    E = MMSE(E/(2α)); 1e-11 is what the root of E is good to."""
    import jaxsmi as smi

    alpha, published = 0.0705748031496063, 0.48356636245916945
    ours = float(smi.state_evolution(smi.Bilinear(1.0, 0.1, symmetric=True), alpha).error)
    error, mass = denoising_error(0.1, ours / (2 * alpha))
    assert abs(mass - 1) < 1e-11
    assert abs(error - ours) < 1e-11
    assert denoising_error(0.1, published / (2 * alpha))[0] - published > 1e-3
