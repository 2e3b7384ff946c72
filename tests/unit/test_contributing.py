"""The examples of CONTRIBUTING.md run, one after the other, as a newcomer would type them."""

import re
from pathlib import Path

import pytest

from jaxsmi.models.base import title

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
