"""The command line: one JSON object or a table on stdout, files where asked for, words instead of
tracebacks.
"""

import importlib.util
import json
import math

import numpy as np
import pytest

from helpers import linear_overlap
from jaxsmi.cli import figure, flags, report
from jaxsmi.cli import main as cli
from jaxsmi.workbench import storage

QUICK = {
    "gamp": ["--dimension", "300", "--alpha", "2", "--noise", "0.5"],
    "state-evolution": [
        "--alpha",
        "2",
        "0.5",
        "--noise",
        "0.5",
        "--samples",
        "256",
        "--randomisations",
        "2",
    ],
    "run": [
        "--dimension",
        "300",
        "--alpha",
        "2",
        "--noise",
        "0.5",
        "--samples",
        "256",
        "--randomisations",
        "2",
        "--points",
        "3",
        "--curve-steps",
        "300",
    ],
}


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def call(capsys, *words):
    code = cli.main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err


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


def test_an_unfinished_run_is_no_error_but_says_so(capsys):
    words = ["gamp", "linear", *QUICK["gamp"], "--damping", 0.99]
    code, out, _ = call(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["result"] == "MAX_STEPS"
    assert found["converged"] is False
    assert "raise max_steps" in found["message"]
    assert "raise max_steps" in " ".join(call(capsys, *words)[1].split())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["gamp", "linear", "--alpha", "-1"], "alpha"),
        (["gamp", "linear", "--dimension", "0"], "dimension"),
        (["state-evolution", "deep-attention", "--depth", "0", "--alpha", "1"], "depth"),
        (["state-evolution", "linear", "--alpha", "nan"], "alpha"),
        (["state-evolution", "sign", "--alpha", "1", "--depth", "2"], "--depth"),
        (["run", "linear", "--points", "1"], "--points"),
    ],
)
def test_an_argument_out_of_range_is_named(capsys, words, name):
    code, out, err = call(capsys, *words, "--json")
    assert code == 2
    assert out == ""
    assert name in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_an_error_of_argparse_is_one_sentence_that_names_the_flag(capsys):
    for words in (["gamp", "linear", "--alpha", "x"], ["sgd", "risk", "--loss", "none"]):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
        assert words[-2] in err


def test_a_misspelt_flag_is_answered_by_the_nearest_one(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["gamp", "sign", "--aplha", "2"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "--aplha 2; did you mean --alpha? (see jaxsmi gamp --help)" in said


def test_an_error_of_the_library_names_the_flag(capsys):
    code, _, err = call(capsys, "gamp", "linear", "--max-steps", 0)
    assert code == 2
    assert err.startswith("jaxsmi gamp: --max-steps: got 0")


@pytest.mark.parametrize("words", [["--omega", 0.3], ["--a", 2]])
def test_another_target_is_refused_beside_a_series(capsys, words):
    code, out, err = call(capsys, "sgd", "risk", "--hermite", "2,0:1", "0,2:1", *words)
    assert (code, out) == (2, "")
    assert f"{words[0]}: got" in err
    assert "--hermite" in err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["gamp", "deep-atention"], "deep-attention"), (["threshhold", "sign"], "threshold")],
)
def test_a_misspelt_model_or_command_is_answered_by_the_nearest_one(capsys, words, meant):
    with pytest.raises(SystemExit):
        cli.main(words)
    assert f"; did you mean {meant}? (see jaxsmi" in capsys.readouterr().err


def test_adam_has_a_learning_rate_of_its_own():
    rate = lambda *words: cli.parsed(["train", *words]).learning_rate
    assert rate("deep-attention") == 15.0
    assert rate("deep-attention", "--optimizer", "adam") == 0.01
    assert rate("bilinear", "--optimizer", "adam", "--learning-rate", "0.3") == 0.3


def test_help_of_a_model_lists_its_own_flags_and_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "attention-indexed", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "--rank-ratio R width of the matrix r/d (default: 0.5)" in words
    assert (
        "--learning-rate LEARNING_RATE learning rate; of adam 0.01 by default (default: 0.05)"
        in words
    )
    assert "--depth" not in words
    assert "--factors" not in words


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


@pytest.mark.parametrize("word", ["spektral", "-1", "0", "nan"])
def test_a_wrong_start_is_refused(capsys, word):
    with pytest.raises(SystemExit) as stop:
        cli.main(["gamp", "phase-retrieval", f"--init={word}"])
    assert stop.value.code == 2
    assert "jaxsmi gamp: --init: got " in capsys.readouterr().err.splitlines()[-1]


def test_a_matrix_has_no_spectral_start(capsys):
    code, out, err = call(capsys, "gamp", "bilinear", "--dimension", 10, "--init", "spectral")
    assert (code, out) == (2, "")
    assert "init: got 'spectral'; allowed: a positive number" in err
    assert len(err.strip().splitlines()) == 1


def test_a_path_that_cannot_be_written_is_found_before_the_work(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = call(capsys, "run", "deep-attention", "--out", tmp_path / "file")
    assert code == 2
    assert "file" in err


@pytest.mark.parametrize("command", ["", *QUICK])
def test_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command.split(), "--help"])
    assert stop.value.code == 0
    assert "usage: jaxsmi" in capsys.readouterr().out


def test_flags_reach_the_model():
    arguments = cli.parser_of().parse_args(
        ["gamp", "deep-attention", "--depth", "3", "--skip", "1", "0.5", "--ranks", "1"]
    )
    assert flags.flags_of(arguments) == {
        "depth": 3,
        "tokens": 2,
        "skip": [1.0, 0.5],
        "ranks": 1,
        "beta": 1.0,
    }
    assert flags.model_of(arguments).indices == 3


STAIRS = ["threshold", "sign-product", "--samples", 256]


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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--vary", "skip", "--values", "1"], "--vary"),
        (["--vary", "factors"], "--values"),
        (["--vary", "factors", "--values", "2.5"], "--values"),
        (["--alpha-max", "-1"], "--alpha-max"),
    ],
)
def test_a_wrong_parameter_of_a_threshold_is_named(capsys, words, name):
    code, _, err = call(capsys, *STAIRS, *words)
    assert code == 2
    assert name in err


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


GRID = """
model = "linear"
alpha = [0.5, 1.0]
[parameters]
noise = { from = 0.1, to = 0.8, points = 4, scale = "log" }
[settings]
samples = 512
"""


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


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("linear", "linnear", "model"), ("noise =", "nose =", "nose"),
        ("points = 4", "dots = 4", "noise"), ("[settings]", "[setting]", "setting"),
        ("alpha = [0.5, 1.0]", "alpha = [1.0, 0.5]", "alpha"),
        ("= 512", "=", "grid.toml"),
        ("from = 0.1", "from = 0.0", "noise"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_a_grid_is_named(capsys, tmp_path, old, new, named):
    (tmp_path / "grid.toml").write_text(GRID.replace(old, new))
    code, out, err = call(capsys, "sweep", tmp_path / "grid.toml")
    assert (code, out) == (2, "")
    assert named in err


def test_message_passing_is_foreseen(capsys):
    code, out, _ = call(
        capsys, "gamp", "linear", "--dimension", 500, "--regenerate", "--dry-run", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["samples"] == 600
    assert found["memory"]["inputs"] < 600 * 500 * 4 * 6
    assert all(seconds > 0 for seconds in found["seconds_per_step"].values())


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


def test_every_command_is_listed_with_its_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    for name, command in cli.COMMANDS.items():
        assert name == command.name
        assert command.summary.split(",")[0][:40] in words


@pytest.mark.parametrize("name", ["output", "symmetric", "ranks"])
def test_flags_that_are_not_one_number_are_not_varied(capsys, name):
    model = {"output": "attention-indexed", "symmetric": "bilinear", "ranks": "deep-attention"}
    code, out, err = call(capsys, "threshold", model[name], "--vary", name, "--values", 1)
    assert (code, out) == (2, "")
    assert "a flag of one number" in err


def test_defaults_of_a_task_are_its_own():
    assert cli.parsed(["sgd", "gain"]).gamma == 0.002
    assert cli.parsed(["sgd", "flow"]).gamma == 0.2
    assert cli.parsed(["sgd", "gain", "--gamma", "0.01"]).gamma == 0.01
