"""The pages of docs/ and the README name functions, tests, files and articles that exist.

tests/pages checks the links of the built site.
"""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import jaxsmi

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FUNCTION = r"`(jaxsmi(?:\.\w+)+)`"
TEST = r"`(tests/[\w/]+\.py)::(test_\w+)`(?:\]\([^)]*\))?( †)?"
ARTICLE = r"\[([A-Z][A-Za-z]*\d{2})\b"

each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(path):
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def exists(dotted):
    """A dotted name of the package: the longest module, then attributes."""
    parts = dotted.split(".")
    for k in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        missing = object()
        last = functools.reduce(lambda x, name: getattr(x, name, missing), parts[k:], module)
        return last is not missing
    return False


@functools.cache
def tests_of(path):
    """Name of each test of a file, and True where it is slow."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    everywhere = any(ast.unparse(node).startswith("pytestmark") for node in tree.body)
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    marks = {test.name: set(map(ast.unparse, test.decorator_list)) for test in tests}
    return {name: everywhere or bool(m & {"pytest.mark.slow", "SLOW"}) for name, m in marks.items()}


@each_page
def test_functions_exist(path):
    names = set(re.findall(FUNCTION, prose(path)))
    names |= {f"jaxsmi.{rest}" for rest in re.findall(r"`smi\.(\w+(?:\.\w+)*)", prose(path))}
    assert not [name for name in sorted(names) if not exists(name)]


def names_in(tree):
    """Names that code defines: of functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.arg):
            yield node.id if isinstance(node, ast.Name) else node.arg


def test_what_computes_an_equation_exists():
    """The names behind "Computed by", those of files and of a part of a longer name too."""
    files = [*(ROOT / "jaxsmi").rglob("*.py"), *(ROOT / "notebooks").rglob("*.py")]
    known = {path.stem for path in files}
    for path in files:
        known |= set(names_in(ast.parse(path.read_text(encoding="utf-8"))))
    for page in sorted((ROOT / "docs" / "theory").glob("*.md")):
        for paragraph in re.findall(r"^Computed by.*?(?=\n\n|\Z)", prose(page), re.M | re.S):
            names = re.findall(r"`(\w[\w.]*?)(?:\.py)?(?:\(.*?\))?`", paragraph)
            assert not [name for name in names if name.split(".")[-1] not in known], page.name


def test_pages_of_theory_state_assumptions_code_and_tests():
    """Before their first section; the equations of a page are numbered in order."""
    for page in sorted((ROOT / "docs" / "theory").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        numbers = re.findall(r"\\tag\{(\w+)\}", text)
        assert numbers == [str(k + 1) for k in range(len(numbers))], page.name
        head = text.partition("\n## ")[0]
        stated = [f"* **{word}:**" in head for word in ("Assumptions", "Code", "Tests")]
        assert page.stem == "index" or all(stated), page.name


@each_page
def test_tests_exist_and_slow_ones_are_called_slow(path):
    for file, test, dagger in re.findall(TEST, prose(path)):
        assert test in tests_of(file), f"{file}::{test}"
        assert dagger or not tests_of(file)[test], f"{file}::{test} is slow: mark it with †"


@each_page
def test_articles_are_in_the_bibliography(path):
    known = re.findall(r"@\w+\{(\w+),", (ROOT / "references.bib").read_text(encoding="utf-8"))
    assert set(re.findall(ARTICLE, prose(path))) <= set(known)


def test_files_of_the_readme_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", prose(ROOT / "README.md"))
    assert not [target for target in targets if not (ROOT / target).exists()]


def public(module):
    """Public functions and classes of a module and of the modules that it names."""
    for name in module.__all__:
        member = getattr(module, name)
        yield from public(member) if inspect.ismodule(member) else [member]


def test_the_reference_has_every_public_name():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    listed = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    names = re.findall(r"auto(?:class|function):: jaxsmi\.(\S+)", listed)
    documented = [pkgutil.resolve_name(f"jaxsmi.{name}") for name in names]
    assert [member for member in public(jaxsmi) if member not in documented] == []


def test_the_equation_table_has_page_function_and_test_on_each_line_and_every_article():
    table = prose(ROOT / "docs" / "equations.md")
    rows = [row for row in table.splitlines() if row.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| equation |")]
    assert len(rows) > 80
    for row in rows:
        assert len(row.split(" | ")) == 5, row
        for text, page in re.findall(r"\[([^]]*)\]\(theory/([\w-]+)\.md#", row.split(" | ")[1]):
            known = (ROOT / "docs" / "theory" / f"{page}.md").read_text(encoding="utf-8")
            numbers = re.findall(r"\((\d+)\)", text)
            assert all(f"\\tag{{{number}}}" in known for number in numbers), row
        assert re.search(FUNCTION, row), row
        assert re.search(TEST, row), row
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "jaxsmi").rglob("*.py")]
    cited = set(re.findall(ARTICLE, "".join(code)))
    assert cited <= set(re.findall(ARTICLE, table))


# A number of docs/print.md that no other test shows -------------------------------------------


@pytest.mark.slow
def test_a_published_error_is_off_where_two_bands_merge():
    """Noiseless quadratic network of width 0.1, α = 0.0705748: E = MMSE(2α/E), a function that
    tests/unit/test_random_matrix.py compares with independent values."""
    alpha, published = 0.0705748031496063, 0.48356636245916945
    model = jaxsmi.Bilinear(1.0, 0.1, symmetric=True)
    error = lambda E: float(model.prior.mmse(2 * alpha / E))
    ours = float(jaxsmi.state_evolution(model, alpha).error)
    assert abs(error(ours) - ours) < 1e-11
    assert error(published) - published > 1e-3


def test_files_that_docstrings_name_exist():
    files = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    for path in sorted((ROOT / "jaxsmi").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        named = {name.split("/")[-1] for name in re.findall(r"[\w/]+\.py\b", text)}
        assert named <= files, (path, named - files)
        if path.name == "__init__.py" and path.parent.name != "jaxsmi":
            docstring = ast.get_docstring(ast.parse(text)) or ""
            here = {entry.stem for entry in path.parent.iterdir()}
            lists = re.findall(r"(?:^|[.]\s)((?:[a-z_]+, )*[a-z_]+):", docstring)
            modules = {name for group in lists for name in group.split(", ")}
            assert modules <= here, (path, modules - here)
