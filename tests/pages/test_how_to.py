"""Every block of Python of README, start page and how-to pages runs on its own, as a script."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(CODE.findall(page.read_text(encoding="utf-8")))
]


def test_each_block_sets_up_double_precision():
    assert len(BLOCKS) > 15
    for block in BLOCKS:
        assert "import jax" in block.values[0], block.id
        assert "smi.setup()" in block.values[0], block.id


@pytest.mark.slow
@pytest.mark.parametrize("code", BLOCKS)
def test_block(code, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, script.name], timeout=1800, **settings)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
