"""Commands one by one: what each prints and writes is what it computed."""

import json
import math

import numpy as np
import pytest

from commands import GRID, STAIRS, call, finite
from jaxsmi.workbench import storage


@pytest.mark.slow
def test_risk_is_that_of_ridge_regression(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("h5py")
    words = ["--alpha", "2", "1", "--noise", "0.25", "--ridge", "0.01", "0.5"]
    code, out, err = call(capsys, "risk", "linear", *words, "--json", "--out", tmp_path)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert finite(found)
    assert [curve["ridge"] for curve in found["curves"]] == [0.01, 0.5]
    point = found["curves"][0]["curve"][0]
    assert point["result"] == "SUCCESS"
    # closed form, docs/theory/empirical-risk.md, Eq. (21); errors of 4096 points a rule
    assert point["overlap"][0][0] == pytest.approx(1.98937039871, rel=2e-3)
    assert point["energy"] == pytest.approx(0.0164149906367, rel=2e-3)
    assert storage.load(tmp_path / "risk.nc", "ridge_1").sizes["alpha"] == 2
    code, _, err = call(capsys, "risk", "linear", "--alpha", "1", "--ridge", "-1")
    assert code == 2
    assert "ridge: got -1" in err


@pytest.mark.slow
def test_thresholds_hold_together_in_print_and_files(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("h5py")
    code, out, err = call(capsys, *STAIRS, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "2.4674" in out  # π²/4, exact for this link
    stored = storage.load(tmp_path / "threshold.nc")
    np.testing.assert_allclose(stored["alpha"], [[math.pi**2 / 4]], rtol=1e-6)
    assert stored["replicas"].shape == (1, 1, 16)
    assert (tmp_path / "threshold.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_threshold_that_is_never_reached_says_so(capsys):
    code, out, _ = call(capsys, *STAIRS, "--first", "--vary", "factors", "--values", 3, 2, "--json")
    found = json.loads(out)
    assert code == 0
    assert finite(found)
    two, three = (entry["steps"][0] for entry in found["thresholds"])
    assert two["alpha"] == pytest.approx(math.pi**2 / 4)
    assert three["never"] is True
    assert two["never"] is False
    assert "Nothing is learned" in call(capsys, *STAIRS, "--factors", 3)[1]


TRAIN = [
    "--dimension",
    "40",
    "--alpha",
    "4",
    "--noise",
    "0.1",
    "--learning-rate",
    "1",
    "--batch-size",
    "20",
    "--steps",
    "60",
]


@pytest.mark.slow
def test_train_prints_when_each_index_was_learned_and_writes_its_curves(capsys, tmp_path):
    words = [
        *TRAIN,
        "--runs",
        "2",
        "--gamp",
        "2",
        "--weight-decay",
        "0",
        "--reduction",
        "mean",
        "--json",
        "--out",
        tmp_path,
    ]
    code, out, _ = call(capsys, "train", "linear", *words)
    assert code == 0
    found = json.loads(out)
    assert finite(found)
    assert found["methods"]["GAMP"]["alpha"] == 2.0
    assert len(found["methods"]["SGD"]["learned_at"]) == 2
    assert found["methods"]["SGD"]["order"] == ["index 1"]
    curves = storage.load(tmp_path / "train.nc", group="SGD")
    assert curves["history_cosine"].dims == ("run", "record", "index")
    assert {name: curves.sizes[name] for name in ("run", "record")} == {"run": 2, "record": 61}
    assert (tmp_path / "train.png").stat().st_size > 5000
    code, out, _ = call(capsys, "train", "linear", *TRAIN, "--optimizer", "adam", "--online")
    assert code == 0
    assert "Order of Adam" in out
    code, _, err = call(capsys, "train", "linear", *TRAIN, "--online", "--gamp", "1")
    assert code == 2
    assert "--gamp" in err


def test_matrix_models_on_the_command_line(capsys):
    code, out, err = call(
        capsys,
        "threshold",
        "attention-indexed",
        "--vary",
        "rank-ratio",
        "--values",
        0.5,
        1,
        "--json",
    )
    assert (code, err) == (0, "")
    assert [t["steps"][0]["alpha"] for t in json.loads(out)["thresholds"]] == [0.1875, 0.25]
    code, out, _ = call(capsys, "state-evolution", "attention-indexed", "--alpha", 0.1, "--json")
    point = json.loads(out)["curve"][0]
    assert code == 0
    assert abs(point["error"] - 0.39219602) < 1e-8
    code, _, err = call(capsys, "gamp", "attention-indexed", "--layers", 3, "--dimension", 8)
    assert code == 2
    assert "one layer" in err


@pytest.mark.slow
def test_bilinear_on_the_command_line(capsys):
    code, out, err = call(
        capsys, "threshold", "bilinear", "--vary", "aspect-ratio", "--values", 1, 2, "--json"
    )
    assert (code, err) == (0, "")
    np.testing.assert_allclose(
        [t["steps"][0]["alpha"] for t in json.loads(out)["thresholds"]], [0.36, 0.28], rtol=1e-12
    )
    code, out, err = call(
        capsys,
        "gamp",
        "bilinear",
        "--symmetric",
        "--noise",
        0.25,
        "--rank-ratio",
        0.5,
        "--dimension",
        12,
        "--json",
    )
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["settings"]["symmetric"] is True
    assert found["settings"]["alpha"] == 0.3  # its own default
    assert 0 < found["error"] < 1.5


@pytest.mark.slow
def test_matrix_models_have_their_own_defaults(capsys, tmp_path):
    words = ["--dimension", 12, "--steps", 30, "--runs", 2, "--gamp", 0.1, "--out", tmp_path]
    code, out, _ = call(capsys, "train", "attention-indexed", *words)
    assert code == 0
    assert "of the average of 2" in " ".join(out.split())
    assert "learning_rate 0.05" in " ".join(out.split())  # its own, not that of deep attention
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".nc", ".txt"}


@pytest.mark.slow
def test_sgd_on_the_command_line(capsys, tmp_path):
    code, out, _ = call(
        capsys, "sgd", "exponent", "--hermite", "2,0:1", "0,2:1", "--out", tmp_path, "--json"
    )
    found = json.loads(out)
    assert (code, found["order"], found["student_order"]) == (0, 2, 2)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"sgd-exponent.{end}" for end in ("png", "nc", "txt")
    }
    code, _, err = call(capsys, "sgd", "risk", "--hermite", "2,0")
    assert code == 2
    assert "--hermite" in err
    words = [
        "--hermite",
        "2,0:1",
        "0,2:1",
        "--normalised",
        "--student",
        "tied",
        "--loss-factor",
        1,
        "--gamma",
        0.08,
        "--m",
        0.1,
    ]
    code, out, _ = call(capsys, "sgd", "flow", *words, "--time", 4)
    assert code == 0
    assert "Weak recovery (eta = 0.5): t = 1.99" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "words", "key"),
    [
        ("risk", ("--omega", 0.64), "hessian"),
        (
            "simulate",
            ("--omega", 0.3, "--dimension", 50, "--gamma", 2, "--runs", 4, "--until", 0.8),
            "semantic_fraction",
        ),
        (
            "simulate",
            ("--hermite", "2,0:1", "0,2:1", "--student", "untied", "--gamma", 0.01, "--time", 1),
            "reached",
        ),
        ("phase-diagram", ("--cells", 5), "boundaries"),
        ("gain", ("--lengths", 1, 2, "--dimension", 100, "--gamma", 0.02), "exponent"),
    ],
)
def test_tasks_of_sgd(capsys, tmp_path, task, words, key):
    code, out, _ = call(capsys, "sgd", task, *words, "--out", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    assert key in found
    assert len(found["files"]) == 3


def test_a_sweep_from_a_file(capsys, tmp_path):
    """It is solved once, found again, and foreseen before and after."""
    (tmp_path / "grid.toml").write_text(GRID)
    words = ("sweep", tmp_path / "grid.toml", "--out", tmp_path / "out", "--json")
    code, out, _ = call(capsys, *words, "--dry-run")
    assert (code, json.loads(out)["points"], json.loads(out)["finished"]) == (0, 8, 0)
    assert not (tmp_path / "out").exists()
    code, out, _ = call(capsys, *words)
    assert (code, json.loads(out)["results"]) == (0, {"SUCCESS": 8})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rows",
        "sweep.png",
        "sweep.nc",
        "sweep.txt",
    }
    _, out, _ = call(capsys, *words, "--dry-run")
    assert json.loads(out)["finished"] == 4
    (tmp_path / "grid.toml").write_text(GRID.replace("512", "1024"))
    code, _, err = call(capsys, *words)
    assert code == 2
    assert "settings" in err
