"""The command line: one JSON object or a table on stdout, files where asked for, words instead of
tracebacks.
"""

import importlib.util
import json

import numpy as np
import pytest

from commands import QUICK, call, finite
from helpers import linear_overlap
from jaxsmi.cli import report
from jaxsmi.workbench import storage


def test_state_evolution_prints_one_json_object(capsys):
    code, out, err = call(capsys, "state-evolution", "linear", *QUICK["state-evolution"], "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)  # fails if anything else is there
    assert finite(found)
    assert found["settings"]["noise"] == 0.5
    assert [point["alpha"] for point in found["curve"]] == [0.5, 2.0]
    for point in found["curve"]:
        assert point["result"] == "SUCCESS"
        assert point["converged"] is True
        # the channel is a closed form without statistical error; the fixed point is good to 1e-4
        assert point["overlap"][0][0] == pytest.approx(
            linear_overlap(point["alpha"], 0.5), abs=2e-4
        )


def test_gamp_agrees_with_theory_and_is_the_same_again(capsys):
    code, out, _ = call(capsys, "gamp", "linear", *QUICK["gamp"], "--json")
    found = json.loads(out)
    assert code == 0
    assert found["converged"] is True
    # cos² fluctuates by about 2 √((1-q)/D) = 0.09 (q = 0.72); three of those
    assert found["cosine"][0] ** 2 == pytest.approx(linear_overlap(2, 0.5), abs=0.2)
    again = json.loads(call(capsys, "gamp", "linear", *QUICK["gamp"], "--json")[1])
    assert again["overlap"] == found["overlap"]
    other = json.loads(call(capsys, "gamp", "linear", *QUICK["gamp"], "--json", "--seed", 1)[1])
    assert other["overlap"] != found["overlap"]


@pytest.mark.parametrize("command", list(QUICK))
def test_files_hold_what_was_printed(capsys, tmp_path, command):
    pytest.importorskip("matplotlib")
    pytest.importorskip("h5py")
    folder = tmp_path / "new" / "out"
    code, out, err = call(capsys, command, "linear", *QUICK[command], "--out", folder)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{command}.{ending}" for ending in ("nc", "png", "txt")
    ]
    table = (folder / f"{command}.txt").read_text(encoding="utf-8")
    assert out.startswith(table.rstrip("\n"))
    group = {"run": "gamp"}.get(command)
    stored = storage.load(folder / f"{command}.nc", group)
    settings = json.loads(stored.attrs["settings"])
    assert settings["model"] == "linear"
    assert settings["noise"] == 0.5
    for overlap in np.ravel(stored["overlap"]):
        assert f"{overlap:.4f}" in table
    if command == "run":
        assert storage.load(folder / "run.nc", "curve").sizes["alpha"] == 3


def test_an_unfinished_run_is_no_error_but_says_so(capsys):
    words = ["gamp", "linear", *QUICK["gamp"], "--damping", 0.99]
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["result"] == "MAX_STEPS"
    assert found["converged"] is False
    assert "raise max_steps" in found["message"]
    assert "raise max_steps" in " ".join(call(capsys, *words)[1].split())


def test_files_from_before_are_not_written_over_silently(capsys, tmp_path):
    pytest.importorskip("h5py")
    words = ["threshold", "attention-indexed", "--out", tmp_path]
    assert call(capsys, *words)[0] == 0
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert "threshold.txt" in err
    assert "--overwrite" in err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    assert call(capsys, *words, "--overwrite")[0] == 0


def test_without_matplotlib_all_but_the_picture_is_written(capsys, tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    find = importlib.util.find_spec
    absent = lambda name, *more: None if name == "matplotlib" else find(name, *more)
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    code, _, err = call(capsys, "threshold", "attention-indexed", "--out", tmp_path)
    assert code == 0
    assert "pip install 'jaxsmi[plot]'" in err
    assert {path.suffix for path in tmp_path.iterdir()} == {".nc", ".txt"}


def test_what_is_left_of_a_zero_is_zero():
    assert report.rounded(1e-60) == "0"
    assert report.rounded(0.40567) == "0.406"


START = ["gamp", "phase-retrieval", "--dimension", 100, "--alpha", 3, "--max-steps", 1, "--json"]


@pytest.mark.slow
def test_where_message_passing_starts(capsys):
    """After one step: from the spectral estimate (squared cosine 0.85 in theory) more than half is
    known, from a random start, of 1/D on average and some 6/D after a step, little."""
    squares = {}
    for word in ("spectral", "0.001"):
        code, out, _ = call(capsys, *START, "--init", word)
        found = json.loads(out)
        assert code == 0
        assert str(found["settings"]["init"]) == word
        squares[word] = found["cosine"][0] ** 2
    assert squares["spectral"] > 0.5
    assert squares["0.001"] < 0.3


def test_a_path_that_cannot_be_written_is_found_before_the_work(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, "run", "deep-attention", "--out", tmp_path / "file")
    assert code == 2
    assert "file" in err


def test_message_passing_is_foreseen(capsys):
    code, out, _ = call(
        capsys, "gamp", "linear", "--dimension", 500, "--regenerate", "--dry-run", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["samples"] == 600
    assert found["memory"]["inputs"] < 600 * 500 * 4 * 6
    assert all(seconds > 0 for seconds in found["seconds_per_step"].values())
