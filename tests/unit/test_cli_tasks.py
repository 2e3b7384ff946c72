"""Commands one by one: what each prints and writes is what it computed."""

import json
import math

import numpy as np
import pytest

from commands import GRID, STAIRS, call, finite
from helpers import linear_overlap
from jaxsmi.cli import figure
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


@pytest.mark.slow
def test_text_says_that_its_questions_are_synthetic(capsys, tmp_path):
    quick = ["--questions", "60", "--epochs", "2"]
    code, out, _ = call(capsys, "text", *quick, "--out", tmp_path)
    assert code == 0
    assert "synthetic questions (templates, not TREC)" in out
    curves = storage.load(tmp_path / "text.nc")
    assert curves["similarity"].dims == ("record", "layer")
    questions = tmp_path / "questions.txt"
    questions.write_text("\n".join(f"A:x what is {n} ?\nB:y who was {n} ?" for n in range(20)))
    code, out, _ = call(capsys, "text", "--file", questions, "--epochs", "1", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["classes"] == ["A", "B"]
    assert found["synthetic"] is False
    code, _, err = call(capsys, "text", "--file", tmp_path / "absent.txt")
    assert code == 2
    assert "absent.txt" in err


# The form of train_5500.label and TREC_10.label: a coarse class, a colon, a subclass, words and
# punctuation apart; one byte that is no UTF-8; doubled blanks, a blank at the end, a text with a
# colon, a question twice, no newline after the last line. The questions are ours.
PUBLISHED = (
    b"DESC:manner How did barter end in Iceland ?\n"
    b"ENTY:cremat What ballads did Rosa Lind compose ?\n"
    b"ABBR:exp What does the letter string  F.A.Q. stand for ? \n"
    b"HUM:ind Who 's the author of `` Rain : a history '' ?\n"
    b"LOC:other What is the sister\xf0city of Porto ?\n"
    b"NUM:date When did Ada 's ferry sink ?\n"
    b"NUM:date When did Ada 's ferry sink ?\n"
    b"\n"
    b"HUM:gr Which team plays at home in Oslo ?\n"
    b"LOC:city What town lies on the Aare ?"
)


@pytest.mark.slow
def test_text_runs_from_the_files_as_published(capsys, tmp_path):
    learned, tested = tmp_path / "train_5500.label", tmp_path / "TREC_10.label"
    learned.write_bytes(PUBLISHED)
    tested.write_bytes(b"NUM:dist How far is it from Oslo to Porto ?\nLOC:city Where is Bern ?\n")
    words = ["text", "--file", learned, "--test-file", tested, "--json"]
    code, out, _ = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0
    found = json.loads(out)
    assert finite(found)
    assert found["classes"] == ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    # what the article says: AdamW, 5e-5, 40 epochs
    assert (found["learning_rate"], found["settings"]["epochs"]) == (5e-5, 40)
    assert found["synthetic"] is False
    # by hand, the longest question: "what does the letter string f . a . q . stand for ?"
    assert found["length"] == 14
    # words and signs apart as in the file, but for two: then padding and the unknown word
    text = PUBLISHED.decode("latin-1")
    separate = [line.split()[1:] for line in text.lower().split("\n") if line]
    kept = {piece for line in separate for piece in line} - {"f.a.q.", "``"}
    assert found["words"] == len(kept | {"f", "a", "q", ".", "`"}) + 2
    assert len(found["settled_at"]) == len(found["similarity"][-1]) == 2
    assert found["epoch"][-1] == 40.0
    # nine questions are one batch, and a step of AdamW changes a weight by about its rate at most:
    # 40 of them by 40 * 5e-5 where weights are of size 1/sqrt(128), 2.6e-4 in half a square
    start = found["similarity"][0]
    assert all(1.0 - (40 * 5e-5) ** 2 * 128 < value < 1.0 - 1e-8 for value in start)
    assert (tmp_path / "out" / "text.png").stat().st_size > 5000
    curves = storage.load(tmp_path / "out" / "text.nc")
    np.testing.assert_allclose(curves["similarity"][-1], 1.0, atol=1e-6)
    # without the test file a fifth of each class's texts is set apart, which here is none
    code, _, err = call(capsys, "text", "--file", learned)
    assert code == 2
    assert "questions to test on" in err


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
def test_laws_of_inputs_beside_theory(capsys, tmp_path):
    pytest.importorskip("h5py")
    words = ["--dimension", 100, "--alpha", 2, "--noise", 0.5, "--runs", 3]
    laws = ["--laws", "gaussian", "sparse"]
    code, out, _ = call(
        capsys, "universality", "linear", *words, *laws, "--json", "--out", tmp_path
    )
    found = json.loads(out)
    assert code == 0
    assert found["laws"] == ["gaussian", "sparse"]
    assert found["theory"] == [pytest.approx(linear_overlap(2, 0.5), abs=2e-4)]
    distance = (np.array(found["overlap"]) - found["theory"]) / found["stderr"]
    np.testing.assert_allclose(distance, found["z"], rtol=1e-6)
    assert storage.load(tmp_path / "universality.nc").overlap.shape == (2, 1)
    words = ["--dimension", 60, "--alpha", 2, "--noise", 0.5, "--inputs", "uniform", "--json"]
    assert json.loads(call(capsys, "gamp", "linear", *words)[1])["settings"]["inputs"] == "uniform"


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


def test_a_figure_comes_with_its_arrays(capsys, tmp_path):
    code, out, err = call(capsys, "figure", "attention-indexed-5", "--out", tmp_path, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    kinds = ("json", "nc", "pdf", "png", "svg", "txt")
    kept = [f"attention-indexed-5.{kind}" for kind in kinds]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*kept, "index.html"]
    assert all(one["agrees"] for one in found["compared"])
    theory, limit = np.array(found["arrays"]["theory"]), np.array(found["arrays"]["limit"])
    assert np.abs(theory[0] - limit).max() < 0.05  # width 0.001 is almost the limit
    code, _, err = call(capsys, "figure", "attention-indexed-5")
    assert code == 2
    assert "--out" in err


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


@pytest.mark.slow
def test_a_command_that_fails_in_part_returns_its_status_and_prints_one_object(
    capsys, tmp_path, monkeypatch
):
    """All figures: one that fails is named in the report, and `main` alone prints and ends."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("h5py")

    def broken(full=False, progress=False, reference=None):
        """Figure 1: none."""
        raise ValueError("no luck")

    monkeypatch.setattr(figure, "RECIPES", {"bilinear-a": broken})
    monkeypatch.delenv("JAXSMI_REFERENCE", raising=False)
    words = ("figure", "all", "--workers", 1, "--out", tmp_path, "--json")
    code, out, err = call(capsys, *words)  # a SystemExit would pass through
    assert code == 1
    assert len(out.splitlines()) == 1
    found = json.loads(out)
    assert found["failed"] == {"bilinear-a": "ValueError: no luck"}
    assert found["settings"]["workers"] == 1
    assert {path.rsplit("/", 1)[1] for path in found["files"]} == {
        "index.png",
        "index.nc",
        "index.txt",
    }
    assert err.splitlines()[-1] == "jaxsmi figure: 1 failed: bilinear-a"
    code, out, _ = call(capsys, *words[:-1])
    assert code == 1
    assert "bilinear-a failed: ValueError: no luck" in out
