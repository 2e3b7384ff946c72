"""The examples of CONTRIBUTING.md run, one after the other, as a newcomer would type them."""

import json
import re
from pathlib import Path

import pytest

from jaxsmi.cli import main as cli
from jaxsmi.core.parts import declared

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
SECTIONS = ("link", "channel", "family of models", "figure", "command", "argument")


@pytest.fixture(scope="module")
def names():
    """What the blocks define; each sees those before it."""
    text, defined = PAGE.read_text(encoding="utf-8"), {"__name__": "contributing"}
    for section in SECTIONS:
        title = f"A new {section}"
        body = re.split(r"\n##+ ", text.split(f"### {title}\n")[1])[0]
        blocks = re.findall(r"```python\n(.*?)```", body, flags=re.DOTALL)
        assert len(blocks) == 1, title
        exec(compile(blocks[0], title, "exec"), defined)
    return defined


def test_the_new_link_and_the_new_channel_hold(names):
    """What the blocks assert has held; the channel is the derivative of its log-partition by
    construction."""
    assert names["data"].samples == 180


def test_the_new_family_is_refused_nothing_that_it_can_do(names):
    model = names["perceptron"]
    assert title(model) == "NoisyPerceptron"
    assert model.predict(names["solution"], names["data"].inputs).shape == (180,)


def test_the_new_command_prints_one_json_object(names, monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "moments", names["COMMAND"])
    assert cli.main(["moments", "--count", "50", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["command"] == "moments"
    assert 0.3 < printed["moment"] < 2.0  # mean 1, standard deviation 0.2


def test_a_file_in_a_room_is_listed_nowhere(tmp_path, monkeypatch):
    """A new command is one file: the folder is searched."""
    room = tmp_path / "a_room"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "b.py").write_text("COUNT = 2")
    (room / "a.py").write_text("COUNT = 1")
    (room / "without.py").write_text("OTHER = 3")
    monkeypatch.syspath_prepend(tmp_path)
    assert declared("a_room", "COUNT", int) == [1, 2]
    (room / "wrong.py").write_text("COUNT = 'three'")
    with pytest.raises(TypeError, match=r"a_room\.wrong\.COUNT: got 'three'"):
        declared("a_room", "COUNT", int)
    assert declared("jaxsmi.cli", "COMMAND", type(cli.COMMANDS["run"])) == [*cli.COMMANDS.values()]
