"""The notebooks run at small size, and their two forms, .py and .ipynb, hold the same cells."""

import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

import jax
import jupytext
import nbformat
import numpy as np
import pytest

from helpers import slow_but

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
QUICK = (SOURCES[6],)  # it runs in seconds; the others run in make validate
LARGEST = 400 * 1024  # bytes of a notebook with its pictures


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Small sizes, an empty folder to run in, no window."""
    monkeypatch.setenv("JAXSMI_SMALL", "1")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(str(FOLDER))  # of modules beside the notebooks
    monkeypatch.chdir(tmp_path)
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.parametrize("source", slow_but(SOURCES, *QUICK), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_it_runs(source, small):
    """All cells in order, with the assertions they hold."""
    runpy.run_path(str(source), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_runs_in_a_kernel(source, small, monkeypatch):
    """The .ipynb itself, as a reader starts it."""
    monkeypatch.delenv("MPLBACKEND")
    monkeypatch.syspath_prepend(str(FOLDER))
    import execute

    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    done = execute.execute(nbformat.read(source.with_suffix(".ipynb"), as_version=4))
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_they_are_numbered_and_paired():
    assert [path.stem[:2] for path in SOURCES] == [f"{number:02d}" for number in range(1, 8)]
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_two_forms_hold_the_same_cells(source):
    """Mend it by `make notebooks`."""
    ours, theirs = jupytext.read(source), nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(theirs)
    cells = lambda notebook: [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert cells(ours) == cells(theirs)
    for notebook in (ours, theirs):
        assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_outputs_are_whole_and_say_nothing_of_the_machine(source):
    """Executed from top to bottom, without warnings, with a
    picture, in a file that is quick to load."""
    path = source.with_suffix(".ipynb")
    assert path.stat().st_size < LARGEST
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    streams = [output for output in outputs if output.output_type == "stream"]
    assert {output.name for output in streams} == {"stdout"}
    written = "".join(output.text for output in streams)
    for place in {tempfile.gettempdir(), str(Path.home()), str(FOLDER.parent), sys.prefix}:
        assert place not in written
    assert not re.search(r"/(home|tmp|Users|root)/", written)


def test_padding_changes_nothing_and_the_text_network_is_its_equations(small):
    import text_network

    network = text_network.Classifier(20, 3, key=jax.random.key(0), width=8, hidden=4)
    ids = np.array([3, 7, 7, 11])
    logits = network(ids)
    np.testing.assert_allclose(network(np.append(ids, [0, 0, 0])), logits, atol=1e-5)
    X = np.asarray(network.embedding)[ids]
    for W in np.asarray(network.layers):
        scores = np.exp(X @ W.T @ W @ X.T / np.sqrt(4.0))
        X = X + scores / scores.sum(1, keepdims=True) @ X
    known = network.head @ X.mean(0) + network.bias
    np.testing.assert_allclose(logits, known, rtol=1e-4, atol=1e-4)
