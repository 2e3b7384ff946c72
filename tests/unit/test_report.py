"""The page of benchmarks: what its guard calls a regression."""

import json
import subprocess
import sys
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "benchmarks" / "report.py"


def run_with(folder, ratio, baseline):
    """The report on a run of one comparison, whose baseline is this."""
    row = {
        "task": "a task", "method": "quad", "setting": "1e-4", "ours_s": 1e-6, "plain_s": 1e-5,
        "ratio": ratio, "ours_error": 1e-8, "plain_error": 1e-7, "compile_s": 1.0,
    }  # fmt: skip
    entry = {
        "fullname": "bench.py::one",
        "stats": {"min": 0.5},
        "extra_info": {"a task: quad": row},
    }
    run = {"benchmarks": [entry], "machine_info": {}, "datetime": "2026-01-01T00:00:00"}
    (folder / "benchmarks.json").write_text(json.dumps(run))
    (folder / "cold.json").write_text(json.dumps({"import": {"cold": 1.5, "warm": 0.1}}))
    (folder / "baseline.json").write_text(json.dumps(baseline))
    (folder / "report.py").write_text(REPORT.read_text())
    command = [sys.executable, str(folder / "report.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_guard_compares_ratios(tmp_path):
    """Below two thirds of the baseline, and not a number, fails; what was not measured, or is new,
    does not."""
    for ratio, baseline, status in (
        (7.0, {"a task: quad": 10.0}, 0),
        (6.0, {"a task: quad": 10.0}, 1),
        (float("nan"), {"a task: quad": 10.0}, 1),
        (6.0, {"another": 10.0}, 0),
    ):
        done = run_with(tmp_path, ratio, baseline)
        assert done.returncode == status, done.stderr
        assert ("Slower than the baseline" in done.stdout) == bool(status)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["ratios"] == {"a task: quad": 6.0}
    assert len(written["not judged"]) == 2
    assert "From the start of a process" in (tmp_path / "report.html").read_text()
