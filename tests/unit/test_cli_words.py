"""Words of the command line: flags and their defaults, help, and what is said of wrong ones."""

import pytest

from commands import GRID, QUICK, STAIRS, call
from jaxsmi.cli import flags
from jaxsmi.cli import main as cli


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
    assert rate("bilinear", "--optimizer", "adam") == 0.01
    assert rate("bilinear", "--optimizer", "adam", "--learning-rate", "0.3") == 0.3
    assert rate("attention-indexed") == 0.05  # whose usual optimiser is Adam


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
