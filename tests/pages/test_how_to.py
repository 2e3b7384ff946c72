"""Every block of Python of README, start page and how-to pages runs on its own, as a script, and
prints what the page shows below it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
BLOCKS = [
    pytest.param(code, shown, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (code, shown) in enumerate(CODE.findall(page.read_text(encoding="utf-8")))
]


def unit(number):
    """One in the last digit that is shown."""
    digits, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def check_output(printed, shown):
    """The same words; numbers within 2 % or two units of the last digit, which covers another
    processor's rounding and its effect on a run that ends by a tolerance."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        allowed = max(0.02 * abs(float(theirs)), 2.01 * unit(theirs))
        assert abs(float(ours) - float(theirs)) <= allowed, (ours, theirs)


def test_an_output_is_compared_number_by_number():
    check_output("[0.999  1.] at 3e-05", "[0.998 1.] at 4e-05")
    for wrong in ("α = 0.190 on", "α = 0.186 from"):
        with pytest.raises(AssertionError):
            check_output(wrong, "α = 0.186 on")


def test_each_block_sets_up_double_precision_and_shows_what_it_prints():
    assert len(BLOCKS) > 15
    for block in BLOCKS:
        code, shown = block.values
        assert "import jax" in code, block.id
        assert "smi.setup()" in code, block.id
        assert bool(shown) == ("print(" in code), block.id


@pytest.mark.slow
@pytest.mark.parametrize(("code", "shown"), BLOCKS)
def test_block(code, shown, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, script.name], timeout=1800, **settings)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    check_output(done.stdout, shown)
