"""Ctrl-C and closed pipes: what is there is kept, no traceback, an exit status that says it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxsmi.cli import main as cli
from jaxsmi.cli import run
from jaxsmi.workbench import storage

RUN = ["run", "linear", "--dimension", "60", "--alpha", "2", "--noise", "0.5"]


def heard():
    """In the process to be: a shell that starts tests in the background has them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "jaxsmi", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, JAX_PLATFORMS="cpu"),
        text=True,
        start_new_session=True,
        preexec_fn=heard,
    )


def interrupted(process, delay):
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()  # nothing, where it has ended
    return process.returncode, err, time.monotonic() - begin


@pytest.mark.parametrize("delay", [1.5, pytest.param(6.0, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_without_a_traceback(delay, tmp_path):
    """While modules are imported, and while programs are compiled or run."""
    words = ("train", "deep-attention", "--steps", 10**6, "--out", tmp_path)
    code, err, _ = interrupted(started(*words), delay)
    assert code == 130
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.mark.slow
def test_ctrl_c_keeps_the_history_of_a_run(tmp_path):
    folder = tmp_path / "out"
    words = ("train", "linear", "--dimension", 200, "--steps", 10**5, "--out", folder)
    process = started(*words)
    while process.poll() is None and not folder.exists():  # made when everything is imported
        time.sleep(0.1)
    code, err, seconds = interrupted(process, 20.0)
    assert code == 130
    assert seconds < 3.0  # a second, and room for a machine that does other things
    assert "steps of its last run; written: " in err
    assert sorted(path.name for path in folder.iterdir()) == ["train.nc", "train.txt"]
    cosine = storage.load(folder / "train.nc")["cosine"]
    assert np.isfinite(cosine[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.5, 1.5, 4.0])
def test_ctrl_c_of_a_terminal_reaches_all_processes_and_none_complains(delay, tmp_path):
    """Also those that still import: a terminal sends the signal to all of a group."""
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'model = "linear"\nsolver = "gamp"\nalpha = [1.0]\nseeds = 40\n[settings]\ndimension = 50\n'
    )
    folder = tmp_path / "out"
    process = started("sweep", grid, "--workers", 2, "--out", folder)
    while process.poll() is None and not (folder / "rows" / "sweep.json").exists():
        time.sleep(0.02)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "leaked" not in err
    assert "interrupted" in err


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_gamp_found(capsys, monkeypatch, tmp_path):
    pytest.importorskip("h5py")

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run.smi, "state_evolution", stopped)
    code = cli.main([*RUN, "--json", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["gamp"]["result"] == "SUCCESS"
    assert "interrupted" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.nc", "run.txt"]


@pytest.mark.parametrize("where", ["as_drawn", "as_written"])
def test_ctrl_c_does_not_wait_for_the_picture_of_a_finished_run(
    where, capsys, monkeypatch, tmp_path
):
    pytest.importorskip("h5py")
    figure = pytest.importorskip("matplotlib.figure").Figure

    def stopped(self, path=None, *_, **__):
        if where == "as_written":
            Path(path).write_bytes(b"half of a picture")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "savefig" if where == "as_written" else "subplots", stopped)
    words = ["gamp", "linear", "--noise", "0.5", "--dimension", "60", "--alpha", "2", "--json"]
    code = cli.main([*words, "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["result"] == "SUCCESS"
    assert sorted(Path(file).name for file in found["files"]) == ["gamp.nc", "gamp.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gamp.nc", "gamp.txt"]
    assert "interrupted; its picture is not drawn" in err


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_traceback():
    process = started("threshold", "attention-indexed")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
