"""The command line: what its words reach, what it prints and writes, how it ends."""

import dataclasses
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jaxsmi as smi
import synthetic
from helpers import linear_overlap, slow_but
from jaxsmi.cli import flags, process, report, run
from jaxsmi.cli.main import main
from jaxsmi.models import prediction
from jaxsmi.workbench import plotting, storage

GAMP = ["gamp", "linear", "--dimension", "200", "--alpha", "2", "--noise", "0.5"]
LINEAR = ["state-evolution", "linear", "--alpha", "1"]
GRID = """
model = "linear"
alpha = [0.5, 1.0]
[parameters]
noise = { from = 0.1, to = 0.8, points = 4, scale = "log" }
"""
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu"}


def call(capsys, *words):
    code = main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err


def started(*words):
    def heard():  # a shell that starts tests in the background has them ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return subprocess.Popen(
        [sys.executable, "-m", "jaxsmi", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
        start_new_session=True,
        preexec_fn=heard,
    )


# Words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "A command is needed"),
        (["--versoin"], "Did you mean --version? A command is needed: run, "),
        (["gamp", "--hlep"], "Did you mean --help? A model is needed: deep"),
        (["gamp"], "A model is needed"),
        (["gamp", "--alpha", "1"], "A model is needed: deep-attention, "),
        (["sgd", "--alpha", "1"], "A command is needed: flow, "),
        (["gamp", "sgn"], 'Unknown model "sgn". Did you mean sign? Models: deep-attention, '),
        (["gamp", "sgn", "--help"], "Did you mean sign? Models: deep-attention, "),
        (
            ["swep"],
            "first-order, recovery-threshold, train, descent-theory, sgd. (see jaxsmi --help)",
        ),
        (["gamp", "sign", "--learner", "x"], "gamp sign: --learner takes an object: use Python."),
        (["gamp", "deep-attention", "--link", "x"], "There is no flag --link here. (see"),
        (["gmp", "sign"], "Did you mean gamp?"),
        (["gamp", "deep-atention"], "Did you mean deep-attention?"),
        (["gamp", "sign", "--aplha", "2"], "Did you mean --alpha?"),
        (["gamp", "sign", "--alpha", "x"], "--alpha"),
        (["gamp", "sign", "--alpha", "0.5,1"], "for several values write --vary alpha=0.5,1."),
        (["state-evolution", "sign", "--alpha", "0.5,1"], "several values write --alpha 0.5 1."),
        (["state-evolution", "sign", "--alfa", "1"], "no flag --alfa here. Did you mean --alpha?"),
        (["gamp", "sign", "--depth", "2"], "no flag --depth here. It belongs to deep-attention."),
        (["state-evolution", "sign", "--teacher-overlap", "1"], "no flag --teacher-overlap here."),
        (["gamp", "sign", "3"], '"3" belongs to no flag'),
        (
            ["gamp", "sign", "--alpha", "1", "2", "3"],
            "for several write --vary alpha=1,2,3, or a sw",
        ),
        (
            ["train", "sign", "--student", "linear"],
            "It is one of jaxsmi gamp (a learner on data) and",
        ),
        (["run", "sign", "--loss", "logistic"], "jaxsmi risk (its theory)."),
        (
            ["gamp", "sign", "--loss", "logistic"],
            "--student: sign has no gradient; write --student l",
        ),
        (
            ["risk", "sign", "--alpha", "1"],
            "--student: sign has no gradient; write --student linear",
        ),
        (
            ["gamp", "linear", "--l1", "1", "--precision", "outer"],
            "--l1 and --precision; allowed: one",
        ),
        (["risk", "sign", "--C", "1"], "no flag --C here. Write --ridge, 1/(C D), beside"),
        (["risk", "sign", "--penalty", "l1"], "Write --ridge or --l1."),
        (["gamp", "sign", "--n_samples", "300"], "Write --alpha, N = alpha D."),
        (["gamp", "logistic-regression"], "Did you mean logistic?"),
        (["gamp", "sign", "alpha=2"], '"alpha=2" belongs to no flag. Write --alpha=2.'),
        (["gamp", "sign", "-alpha", "2"], "A flag has two dashes: --alpha."),
        (["gamp", "sign", "--dim", "9"], "There is no flag --dim here. Did you mean --dimension?"),
        (["sign", "gamp"], "Write the command first, then the model sign. Commands: run, "),
        (["gamp", "product", "--k", "3"], "gamp product: model: got product(3), a noiseless link"),
        (["sweep", "grid.toml", "--overwrite"], "There is no flag --overwrite here."),
        (["weak-recovery", "linear", "--out", "/dev/null/x"], "--out: got '/dev/null/x' (Not a"),
        (["sweep"], "--file"),
        (["state-evolution", "sign"], "--alpha"),
        (["gamp", "linear", "--alpha", "-1"], "--alpha: got -1"),
        (["gamp", "linear", "--dimension", "0"], "--dimension: got 0"),
        (["gamp", "linear", "--dimension", "20.5"], "--dimension: 20.5 is no integer"),
        (["gamp", "linear", "--seed", "inf"], "--seed: inf is no integer"),
        (["state-evolution", "linear", "--alpha", "nan"], "--alpha: got"),
        ([*LINEAR, "--vary", "nose=1,2"], "--vary: nose is unknown: did you mean noise?"),
        ([*LINEAR, "--vary", "noise"], "--vary: got 'noise'; allowed: NAME=VALUE,VALUE,.."),
        ([*LINEAR, "--noise", "1", "2"], "(for several: --vary noise=VALUE,VALUE,..)"),
        ([*LINEAR, "--noise"], "A value of --noise is needed."),
        (["run", "linear", "--curve-points", "1"], "--curve-points: got 1"),
    ],
)
def test_wrong_words_are_one_sentence_and_status_2(capsys, words, said):
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize("name", list(flags.COMMANDS))
def test_flags_follow_the_signature(name):
    """The source says what the function does, and each argument without a default has a flag."""
    command = flags.COMMANDS[name]
    function = flags.load(command.target)
    listed = [argument.name for argument in flags.read(command.target).arguments]
    assert listed == list(inspect.signature(function).parameters)
    for model in flags.MODELS if command.models else [""]:
        reached = {flag.path[0] for flag in flags.flags_of(flags.CommandLine(name, model)).values()}
        for argument in flags.read(command.target).arguments:
            made = argument.name in ("model", "key")  # a model may have no arguments
            assert argument.default is not None or made or argument.name in reached


@pytest.mark.parametrize("name", list(flags.MODELS))
def test_models_are_made_of_their_arguments(name):
    target = flags.MODELS[name]
    listed = [argument.name for argument in flags.read(target).arguments]
    assert listed == list(inspect.signature(flags.load(target)).parameters)
    # a link of one's own has no defaults
    pieces = {"slopes": [0, 1], "offsets": [0, 0], "knots": [0]}
    own = pieces if name == "piecewise-linear" else {}
    assert type(flags.make_model(name, **own)).__module__.startswith("jaxsmi.models")


def test_the_list_of_commands_says_what_their_functions_do(capsys):
    for words, name in ((["--help"], "gamp"), (["sgd", "--help"], "flow")):
        out = call(capsys, *words)[1]
        shown = " ".join(out.replace("│", " ").split())
        function = getattr(smi.sgd, name) if words[0] == "sgd" else getattr(smi, name)
        assert f"{name} {inspect.getdoc(function).partition(chr(10))[0]}" in shown


def test_help_lists_flags_with_their_meaning(capsys):
    code, out, _ = call(capsys, "train", "attention-indexed", "--help")
    words = " ".join(out.split())
    assert code == 0
    assert "--rank-ratio" in words
    assert "[default: 0.5]" in words
    assert "--batch-size" in words  # of a record
    assert "--depth" not in words  # of another model


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        # of the function that the docstring refers to
        (["free-entropy", "sign"], "--alpha FLOAT... Sample complexity, a number > 0: N/D."),
        (["run", "bilinear"], "Sample complexity n/(dL)."),
        (["gamp", "sign"], '--start FLOAT|STR... "spectral", "informed", or a number'),
        (["gamp", "sign"], "--ridge FLOAT λ >= 0 of the penalty (λ/2) ‖W‖². Default 0.1."),
        (["sgd", "recovery-time", "sign"], "--start FLOAT... Overlaps (M, Q), M (P, k) with"),
        # nothing of learners
        (["state-evolution", "sign"], "chance overlap of a run of dimension D). ╰"),
        # one number
        (["sgd", "recovery-time", "sign"], "--rate FLOAT κ, the learning rate"),
        (["gamp", "sign"], "--tolerance FLOAT The iteration ends"),
        # no Python
        (["gamp", "sign"], "End by Newton steps; --no-newton: the plain trajectory."),
        (["global-minimum", "sign"], "net. jaxsmi train descends the ridge alone."),
        (["gamp", "deep-attention"], "--skip FLOAT... Residual strength"),
    ],
)
def test_help_shows_what_a_flag_takes(capsys, words, shown):
    out = call(capsys, *words, "--help")[1].replace("│", " ").replace("*", " ")
    assert shown in " ".join(out.split())


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("raise it, iteration=smi.Iteration(max_steps).", "raise it, --max-steps."),
        ("smi.Iteration(max_steps,\n  tolerance=..)", "--max-steps and\n  --tolerance"),
        ("learner=smi.Bayes(precision='outer'), or", "--precision outer, or"),
        ("start=('spectral', 1e-3, 1e-3)", "--start spectral 1e-3 1e-3"),
        ("such as smi.links.phase_retrieval()", "such as phase-retrieval"),
        ("such as smi.DeepAttention(2, 2)", "such as deep-attention --depth 2 --tokens 2"),
        ("the student smi.links.linear() with", "the --student linear with"),
        ("smi.weak_recovery and smi.sgd.flow", "jaxsmi weak-recovery and jaxsmi sgd flow"),
        ("smi.spectral(model, data)", "jaxsmi spectral"),
        ("smi.priors.Rademacher(), smi.losses.squared", "--prior rademacher, --loss squared"),
        ("smi.priors.BernoulliGauss(0.1)", "--density 0.1"),
        *((same, same) for same in ("smi.losses.huber(1.0)", "smi.Erm(..)", "smi.noiseless_limit")),
    ],
)
def test_remedies_are_those_of_the_shell(python, shell):
    assert flags.in_shell(python, flags.CommandLine("gamp", "sign")) == shell
    # the file of a sweep is of Python's names
    assert flags.in_shell(python, flags.CommandLine("sweep")) == python


def test_data_that_a_function_does_not_require_are_made_if_a_flag_asks_for_them(
    capsys, monkeypatch
):
    calls = []
    monkeypatch.setattr(prediction, "generalization_error", lambda **given: calls.append(given))
    command = flags.Command("models.prediction:generalization_error")
    monkeypatch.setitem(flags.COMMANDS, "generalization-error", command)
    words = ["generalization-error", "linear", "--overlap", 0.5]
    call(capsys, *words)
    call(capsys, *words, "--dimension", 50)
    without, drawn = calls
    assert "data" not in without
    assert drawn["data"].inputs.shape == (60, 1, 50)


@pytest.mark.parametrize("loss", ["huber", "quantile", "hinge"])
def test_a_loss_with_a_parameter_has_its_default(loss):
    value = flags._value(flags.Flag("loss", ("learner", "loss"), object, ""), loss)
    assert float(value(np.array(1.0), np.array(1.0))) == 0.0


def test_what_is_printed_names_flags(capsys):
    few = ["--max-steps", "2", "--points", "64", "--nets", "2"]
    out = call(capsys, "state-evolution", "sign", "--alpha", "1", "--noise", "1", *few)[1]
    assert "--max-steps and --tolerance" in " ".join(out.split())
    assert "smi." not in out
    scores = ["risk", "sign", "--alpha", "1", "--student", "linear"]
    err = call(capsys, *scores, "--loss", "misclassification", *few)[2]
    assert "the --student linear with --loss logistic" in err


def test_help_does_not_import_jax():
    script = "import sys; from jaxsmi.cli.main import main; main(['gamp', 'sign', '--help']); "
    script += "assert not {'jax', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"--dimension" in done.stdout


# Results


def test_state_evolution_prints_one_json_object(capsys):
    words = ["state-evolution", "linear", "--alpha", 2, 0.5, "--noise", 0.5, "--json"]
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "")
    found = json.loads(out)  # fails if anything else is there
    assert found["settings"]["noise"] == 0.5
    assert [point["alpha"] for point in found["curve"]] == [0.5, 2.0]
    for point in found["curve"]:
        assert "wrong_signs" not in point
        assert (point["result"], point["converged"]) == ("SUCCESS", True)
        # the channel is exact; the fixed point is good to 1e-4
        exact = linear_overlap(point["alpha"], 0.5)
        assert point["overlap"][0][0] == pytest.approx(exact, abs=2e-4)


LOGISTIC = ["--student", "linear", "--loss", "logistic"]
FEW = ["--points", 1024, "--nets", 2]


SIGNS = {
    "theory": ["state-evolution", "sign", *FEW],
    "theory of a learner": ["risk", "sign", *LOGISTIC, *FEW],
    "run": ["gamp", "sign", "--dimension", 60],
    "run of a learner": ["gamp", "sign", "--dimension", 60, *LOGISTIC],
}


@pytest.mark.parametrize("name", slow_but(SIGNS, "theory", "run of a learner"))
def test_labels_of_two_signs_show_the_share_of_wrong_ones(name, capsys):
    """Label and prediction are signs of one field each: the share is arccos(cosine)/π."""
    found = json.loads(call(capsys, *SIGNS[name], "--alpha", 2, "--json")[1])
    exact = np.arccos(found["cosine"][0]) / np.pi
    assert found["wrong_signs"] == pytest.approx(exact, rel=1e-9)
    bar = found["stderrs"]["wrong_signs"]
    assert bar == 0.0 if name.startswith("run") else 0 < bar < 0.01


def test_several_alpha_at_several_values_are_curves(capsys, tmp_path):
    words = ["state-evolution", "linear", "--vary", "noise=0.1,1", "--alpha", 1, 0.5]
    found = json.loads(call(capsys, *words, "--json", "--out", tmp_path)[1])
    for part, noise in zip(found["results"], (0.1, 1.0), strict=True):
        assert part["value"] == noise
        for point, alpha in zip(part["curve"], (0.5, 1.0), strict=True):
            exact = linear_overlap(alpha, noise)
            assert point["overlap"][0][0] == pytest.approx(exact, rel=1e-6)
    assert (tmp_path / "state-evolution.png").exists()


@pytest.mark.slow
def test_a_table_of_a_learner_shows_the_share_of_wrong_signs(capsys):
    table = call(capsys, "risk", "sign", *LOGISTIC, *FEW, "--alpha", 1, 2)[1].splitlines()
    assert "wrong signs" in table[0]
    assert "error" not in table[0]


def test_a_sampled_share_of_a_run_has_an_error():
    run = synthetic.solution("gamp")
    run = dataclasses.replace(run, model=smi.links.sign(), error=0.8 * np.ones(()))
    np.testing.assert_allclose(report.wrong_signs(run), (0.2, (0.2 * 0.8 / 2048) ** 0.5))


@pytest.mark.parametrize("name", [x for x in flags._LINKS if x != "piecewise-linear"])
def test_links_without_a_gradient_are_known(name):
    model = flags.make_model(name)
    z = np.cos(np.arange(40.0 * model.indices * model.tokens))
    slope = jax.vmap(jax.jacobian(model.link))(z.reshape(40, model.indices, model.tokens))
    assert (name in flags._FLAT) == (not np.any(slope))


@pytest.mark.slow
def test_a_prior_is_named(capsys):
    assert main(["state-evolution", "sign", "--prior", "rademacher", "--alpha", "1.6"]) == 0
    assert "RECOVERED" in capsys.readouterr().out
    assert flags.make_model("sign", prior="rademacher").prior.traits.discrete
    with pytest.raises(ValueError, match="prior: got 'rade'; allowed: one of gaussian, rademacher"):
        flags.make_model("sign", prior="rade")


def test_a_density_makes_a_sparse_prior(capsys):
    assert main(["recovery-threshold", "phase-retrieval", "--density", "0.3"]) == 0
    assert "0.3" in capsys.readouterr().out
    assert flags.make_model("sign", density=0.2).prior.density == 0.2
    with pytest.raises(ValueError, match="got prior and density; allowed: one of them"):
        flags.make_model("sign", prior="rademacher", density=0.2)


@pytest.mark.slow
def test_a_run_agrees_with_theory_and_is_the_same_again(capsys):
    found = json.loads(call(capsys, *GAMP, "--json")[1])
    # cos² fluctuates by about 2 √((1-q)/D) = 0.07 (q = 0.72); three of those
    assert found["cosine"][0] ** 2 == pytest.approx(linear_overlap(2, 0.5), abs=0.22)
    again = json.loads(call(capsys, *GAMP, "--json")[1])
    assert again["overlap"] == found["overlap"]
    other = json.loads(call(capsys, *GAMP, "--json", "--seed", 1)[1])
    assert other["overlap"] != found["overlap"]


def test_one_result_for_each_value_of_a_flag(capsys):
    words = ["recovery-threshold", "deep-attention", "--vary", "tokens=2,3", "--json"]
    found = json.loads(call(capsys, *words)[1])
    alphas = [one["thresholds"][0]["alpha"] for one in found["results"]]
    assert found["varied"] == "tokens"
    assert alphas == [
        float(smi.recovery_threshold(smi.DeepAttention(2, tokens)).alpha) for tokens in (2, 3)
    ]


def test_values_of_a_flag_are_rows_of_a_table_and_a_figure(capsys, tmp_path):
    words = ["recovery-threshold", "deep-attention", "--vary", "tokens=2,4"]
    _, text, _ = call(capsys, *words, "--out", tmp_path / "thresholds")
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["tokens", "threshold", "result"],
        ["2", "1", "SUCCESS"],
        ["4", "0.5", "SUCCESS"],
    ]
    assert (tmp_path / "thresholds" / "recovery-threshold.png").exists()


def test_a_learner_has_flags_of_its_own(capsys, monkeypatch):
    from jaxsmi.inference import evolution

    calls = []
    monkeypatch.setattr(evolution, "state_evolution", lambda **given: calls.append(given) or 0.0)
    words = ["risk", "linear", "--noise", 0.1, "--alpha", 2, "--ridge", 0.5, "--loss", "squared"]
    assert call(capsys, *words)[0] == 0
    (given,) = calls
    assert float(given["learner"].ridge) == 0.5
    assert given["learner"].loss.function is smi.losses.squared
    assert (given["alpha"], float(given["model"].channel.noise)) == (2.0, 0.1)


def test_files_hold_what_was_printed(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("h5py")
    folder = tmp_path / "new" / "out"
    words = ["state-evolution", "linear", "--noise", 0.5, "--alpha", 2, "--out"]
    code, out, err = call(capsys, *words, folder)
    assert (code, err) == (0, "")
    files = [f"state-evolution.{ending}" for ending in ("nc", "png", "txt")]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert out.startswith((folder / files[2]).read_text(encoding="utf-8").rstrip("\n"))
    stored = storage.load(folder / files[0])
    assert json.loads(stored.attrs["settings"])["model"] == "linear"
    assert f"{float(stored.overlap.squeeze()):.4g}"[:4] in out
    code, out, err = call(capsys, *words, folder)
    assert (code, out) == (2, "")
    assert files[2] in err
    assert "--overwrite" in err
    (tmp_path / "file").write_text("")
    assert call(capsys, *words, tmp_path / "file")[0] == 2


@pytest.mark.slow
def test_a_run_lies_over_its_theory(capsys, tmp_path):
    pytest.importorskip("h5py")
    words = ["run", "linear", "--noise", 0.5, "--alpha", 2, "--dimension", 200, "--points", 256]
    words += ["--nets", 2, "--curve-points", 3, "--out", tmp_path]
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "Solution of state evolution" in out
    with pytest.raises(ValueError, match="allowed: one of gamp, trajectory, curve"):
        storage.load(tmp_path / "run.nc")
    assert storage.load(tmp_path / "run.nc", "curve").sizes["alpha"] == 3


# Sweeps


def test_a_figure_names_values_that_are_not_in_range():
    pytest.importorskip("matplotlib")
    rows = [{"spinodal": (x, 0.1), "algorithmic": (10.0, 0.1)} for x in (9.8, np.nan)]
    figure = plotting.canvas()
    report._draw_against(figure, "noise", [0.1, 0.2], rows)
    (axes,) = figure.axes
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["spinodal (not in range at 1 of 2)", "algorithmic"]
    assert axes.get_ylim()[0] > 9.0
    rows = [{"spinodal": (x, 0.1)} for x in (9.8, np.nan)]
    report._draw_against(figure, "noise", [0.1, 0.2], rows)
    assert figure.axes[-1].get_legend() is not None
    assert figure.axes[-1].get_xlim()[1] > 0.2


def test_a_sweep_of_a_file(capsys, tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    monkeypatch.setattr(run, "_MOST_ROWS", 5)
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    assert json.loads(call(capsys, "sweep", grid, "--dry-run", "--json")[1])["rows"] == 4
    code, said, err = call(capsys, "sweep", grid, "--out", out)
    assert (code, err) == (0, "")
    assert said.startswith("4 rows, noise 4, seed 1, alpha 2, index 1.\n")
    assert "noise  alpha  overlap" in said
    assert "0.8    1      0.42" not in said
    assert ".. and 3 points more: sweep.txt in the folder of --out has all\n" in said
    assert "0.8    1      0.42" in (out / "sweep.txt").read_text(encoding="utf-8")
    rows = sorted((out / "rows").glob("row-*.npz"))
    assert len(rows) == 4
    rows[1].unlink()
    said = call(capsys, "sweep", grid, "--dry-run", "--out", tmp_path / "out")[1]
    assert "4 rows of 2 alpha; 3 are solved. About" in said
    assert "s a row, compilation included." in said
    assert "\nThis check took " in said
    grid.write_text(GRID.replace("\n", "\nseeds = 2\n", 1))  # another sweep
    refused = [call(capsys, "sweep", grid, "--out", out, *more) for more in ((), ("--dry-run",))]
    assert refused[0] == refused[1]
    assert refused[0][:2] == (2, "")
    assert "that differs in seeds." in refused[0][2]
    grid.write_text(GRID.replace("\n", '\nsolver = "gamp"\n', 1) + "[settings]\ndimension = 300\n")
    found = json.loads(call(capsys, "sweep", grid, "--dry-run", "--json")[1])
    # inputs (300, 1, 300), labels and a teacher of 300 numbers, in float64, and a few more
    assert "it compiles for 2 sizes of data" in call(capsys, "sweep", grid, "--dry-run")[1]
    assert found["data_bytes"] == pytest.approx(8 * (300**2 + 2 * 300), rel=1e-3)
    found = storage.load(out / "sweep.nc")
    np.testing.assert_allclose(found.noise, np.geomspace(0.1, 0.8, 4))
    exact = [[linear_overlap(a, noise) for a in (0.5, 1.0)] for noise in found.noise.values]
    np.testing.assert_allclose(found.overlap.squeeze(), exact, atol=2e-4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"linear"', "linear", "grid.toml: Invalid value (at line 2, column 9); a word needs quo"),
        ('"linear"', '"linnear"', "grid.toml: model: got 'linnear'; allowed: one of deep-att"),
        ("noise =", "nose =", "grid.toml: [parameters] nose is unknown: did you mean noise?"),
        ("noise =", "width =", "[parameters] width is unknown; allowed: noise, tokens, prior, d"),
        ("alpha =", "solvr = 'gamp'\nalpha =", "grid.toml: solvr is unknown: did you mean solver?"),
        ("alpha =", "solver = 'x'\nalpha =", "solver: got 'x'; allowed: one of state-evolution, g"),
        ("alpha =", "seeds =", "grid.toml: missing: alpha."), ("0.1", "'a'", "toml: noise: got"),
        ("alpha =", "settings = 3\nalpha =", "settings: got 3; allowed: a table [settings]."),
        ("points = 4", "dots = 4", "noise"), ("[parameters]", "[parameter]", "parameter is unk"),
        ("from = 0.1", "from = -0.1", "noise"), ("alpha =", "alpha", "grid.toml"),
        ("[0.5, 1.0]", "[1.0, 0.5]", "grid.toml: alpha: got"),
        ("[parameters]", "settings = {sample = 2}\n[parameters]",
         "[settings] sample is unknown; allowed: stderr, most, start, progress, precision, cal"),
        ("[parameters]", "settings = {averages = 2}\n[parameters]", "points, nets, max_steps, to"),
    ],
)  # fmt: skip
def test_a_wrong_entry_of_a_file_is_named(capsys, tmp_path, old, new, said):
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.replace(old, new))
    code, out, err = call(capsys, "sweep", grid, "--out", tmp_path / "results")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_missing_file_is_named(capsys, tmp_path):
    said = "jaxsmi sweep: nofile.toml: no such file.\n"
    assert call(capsys, "sweep", "nofile.toml") == (2, "", said)
    said = f"jaxsmi sweep: {tmp_path}: a folder; allowed: a TOML file.\n"
    assert call(capsys, "sweep", tmp_path) == (2, "", said)


def test_a_sweep_of_signs_shows_the_share_of_wrong_ones(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('model = "sign"\nalpha = [0.5, 1.0]\n[settings]\npoints = 512\nnets = 2\n')
    points = json.loads(call(capsys, "sweep", grid, "--json")[1])["estimates"]
    assert [point["alpha"] for point in points] == [0.5, 1.0]
    for point in points:
        exact = np.arccos(point["overlap"][0] ** 0.5) / np.pi
        assert point["wrong_signs"] == pytest.approx(exact, rel=1e-9)
        assert point["stderrs"]["overlap"][0] < 0.01
    assert "wrong signs" in call(capsys, "sweep", grid)[1]


def test_settings_of_a_file_are_those_of_records(tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'model = "linear"\nalpha = 1.0\nsolver = "train"\n[settings]\nbatch_size = 20\n'
    )
    assert run.read_grid(grid).settings["gradient"].batch_size == 20


def test_a_point_that_fails_is_status_1(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('model = "linear"\nalpha = [1.0]\n[parameters]\nnoise = [0.5, -1.0]\n')
    code, out, err = call(capsys, "sweep", grid)
    assert code == 1
    assert "INVALID" in out
    assert "1 points failed: ValueError: noise" in err


def test_points_that_did_not_converge_are_a_line(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    text = 'model = "phase-retrieval"\nalpha = [0.7, 0.8]\n[settings]\nmax_steps = 1\n'
    grid.write_text(text)
    code, out, err = call(capsys, "sweep", grid)
    assert (code, err) == (0, "")
    line = next(line for line in out.splitlines() if line.startswith("2 of 2 points did not conv"))
    assert "select them by result > 1" in line
    assert smi.Result.MAX_STEPS.remedy in line


# Interruptions


def test_an_interrupted_run_keeps_the_finished_part(capsys, monkeypatch, tmp_path):
    pytest.importorskip("h5py")

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run.smi, "gamp", lambda *_, **__: synthetic.solution("gamp"))
    monkeypatch.setattr(run.smi, "state_evolution", stopped)
    words = ["run", "linear", "--noise", 0.5, "--dimension", 60, "--alpha", 2]
    code, out, err = call(capsys, *words, "--json", "--out", tmp_path)
    assert code == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["result"] == "SUCCESS"
    assert "the finished part is printed and saved; the same command with --overwrite" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.nc", "run.txt"]


@pytest.mark.parametrize("delay", [0.3, pytest.param(6.0, marks=pytest.mark.slow)])
def test_ctrl_c_is_status_130_without_a_traceback(delay):
    """While modules are imported, and while programs run; it waits for the end of a compilation."""
    process = started("train", "deep-attention", "--steps", 10**6)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1.5, 6.0])
def test_ctrl_c_of_a_terminal_says_which_rows_are_kept(delay, tmp_path):
    """A terminal sends the signal to all processes of a command, also to those that import."""
    pytest.importorskip("dask")
    grid = tmp_path / "grid.toml"
    grid.write_text('model = "linear"\nsolver = "gamp"\nalpha = [1.0]\nseeds = 400\n'
                    "[settings]\ndimension = 50\n")  # fmt: skip
    folder = tmp_path / "out"
    process = started("sweep", grid, "--workers", 2, "--out", folder)
    while process.poll() is None and not (folder / "rows" / "sweep.json").exists():
        time.sleep(0.02)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "of 400 rows are kept in" in err


@pytest.mark.slow
def test_several_alpha_are_the_grid_of_a_transition(capsys):
    words = ("first-order", "linear", "--noise", 0.1, "--alpha", 0.1, 0.5, 2.0, "--points", 512)
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "on a grid of 3 points" in out


@pytest.mark.slow
def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_raised_after_it():
    """Python drops what such a callback raises; JAX has one."""
    rung = []

    def callback(*_):
        if not rung:
            rung.append(signal.raise_signal(signal.SIGINT))

    def wait():
        gc.collect()
        time.sleep(10.0)

    before = signal.signal(signal.SIGINT, process._leave)
    try:
        process.raise_at_interrupt()
        gc.callbacks.append(callback)
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, before)
        gc.callbacks.remove(callback)
    assert rung


def test_a_closed_pipe_is_status_141():
    process = started("recovery-threshold", "attention-indexed")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert "Traceback" not in err
