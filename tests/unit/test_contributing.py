"""The examples of CONTRIBUTING.md run in order, and the page stays short."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


@pytest.mark.slow
def test_examples_run(monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"### (A .*?)\n.*?```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == text.count("```python") == 5
    module = ModuleType("contributing")  # pickle finds functions by their module
    monkeypatch.setitem(sys.modules, "contributing", module)
    names = vars(module)
    for title, block in blocks:
        exec(compile(block, title, "exec"), names)
    # its labels jump, which the example does not state
    assert not names["perceptron"].channel.pathwise
    assert names["perceptron"].predict(names["solution"], names["data"].inputs).shape == (180,)


def test_the_page_is_short():
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 200
