"""Warnings point at the user's line, and on a command line are sentences."""

import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.core import notices

ROOT = Path(__file__).resolve().parents[2]
KEY = jax.random.key(0)
LINEAR = smi.links.linear(0.5)


def rounded():
    smi.Bilinear(1.0, 0.5, noise=0.1).sample(KEY, dimension=3, alpha=1.0)  # here


def rounded_inside_jit():
    model = smi.Bilinear(1.0, 0.5, noise=0.1)

    def labels(key):
        return model.sample(key, dimension=3, alpha=1.0).labels  # here

    jax.jit(labels)(KEY)


def unlike_iid():
    data = smi.Dataset(np.zeros((6, 1, 5)), np.ones((6, 1)))
    smi.gamp(LINEAR, data, key=KEY, max_steps=1)  # here


@pytest.mark.parametrize("call", [rounded, rounded_inside_jit, unlike_iid])
def test_a_warning_points_at_the_line_of_the_user(call):
    lines, first = inspect.getsourcelines(call)
    here = first + next(k for k, line in enumerate(lines) if "# here" in line)
    with pytest.warns(UserWarning, match="^jaxsmi: ") as seen:
        call()
    assert {(warning.filename, warning.lineno) for warning in seen} == {(__file__, here)}


def test_single_precision_is_warned_of_once_where_the_user_first_meets_it(tmp_path):
    """Constructors of equinox lie between that line and the library."""
    program = tmp_path / "program.py"
    program.write_text("import jaxsmi as smi\n\nfor _ in range(2):\n    smi.DeepAttention(2, 2)\n")
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"JAX_ENABLE_X64": "0", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0
    assert done.stderr.count("UserWarning: jaxsmi: ") == 1
    assert f"{program}:4: UserWarning: jaxsmi: channels and fixed points are meant" in done.stderr


def test_all_warnings_of_the_package_go_this_way():
    package = ROOT / "jaxsmi"
    others = [path for path in package.rglob("*.py") if "warnings.warn(" in path.read_text()]
    assert others == [package / "core" / "notices.py"]


def test_on_a_command_line_a_warning_is_a_sentence(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    notices.plainly()
    format_of = warnings.formatwarning
    assert (
        format_of(UserWarning("jaxsmi: rounded."), UserWarning, "a.py", 3) == "jaxsmi: rounded.\n"
    )
    assert "a.py:3: UserWarning: other" in format_of("other", UserWarning, "a.py", 3)
