"""The figure scripts of notebooks/figures run, and what they assert holds."""

import re
import runpy
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "figures"
SCRIPTS = sorted(FOLDER.glob("[a-z]*.py"))
QUICK = ("bilinear_potential",)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script as a program; its picture is written below `tmp_path`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("sys.argv", ["figure"])

    def run(script, quick):
        monkeypatch.setenv("JAXSMI_SMALL", "1" if quick else "")
        monkeypatch.setenv("JAXSMI_FIGURES", str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, "_common", raising=False)
        with matplotlib.rc_context():
            runpy.run_path(str(script), run_name="__main__")
        picture = tmp_path / f"{script.stem}.png"
        assert picture.stat().st_size > 5000

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_some_figures_at_small_size(run, name):
    run(FOLDER / f"{name}.py", quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_figure_is_what_it_claims(run, script, reference):
    """At full size, with its assertions, beside published numbers."""
    run(script, quick=False)


@pytest.mark.parametrize("order", [("compare", "save"), ("save", "compare")], ids=" first, ".join)
def test_a_failed_comparison_leaves_its_picture(run, monkeypatch, tmp_path, order):
    monkeypatch.setattr("jaxsmi.setup", lambda **_: None)  # this process has its settings
    calls = {"compare": "compare('one', 1.0, 2.0, 0.1)", "save": "save(ax, 'failed')"}
    lines = ["from _common import axes, compare, save", "ax = axes()", *map(calls.get, order)]
    script = tmp_path / "failed.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(AssertionError, match="one"):
        run(script, quick=True)
    assert (tmp_path / "failed.png").stat().st_size > 5000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_a_page_and_an_assertion(script):
    text = script.read_text(encoding="utf-8")
    assert re.match(r'r?"""\n[^\n]+\n={5,}\n', text), "a title for the gallery"
    assert f"/assets/figures/{script.stem}.png" in text
    assert "compare(" in text
    assert not re.search(r"jaxsmi\.(?!workbench)|import _|from jaxsmi import (?!sgd)", text)
