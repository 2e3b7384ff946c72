"""The page of figures: what `make bench` found as one table, and what has become slower.

    python benchmarks/report.py out               # reads out/benchmarks.json, and out/cold.json
    python benchmarks/report.py out --update      # lowers the baseline to this run; to raise it,
                                                  # delete baseline.json first

It reads the JSON of pytest-benchmark and, where it is there, that of `cold.py --json`, and writes
`report.json` and `report.html` beside them: time at matched error beside plain NumPy and SciPy
(compiled, and with compilation), cold starts, data passes against a copy, exponents, memory.

The guard compares ratios of this run, not seconds, with `baseline.json`: plain over ours, and a
data pass over a copy. A ratio below two thirds of its baseline is a regression, and the exit status
1. Where a ratio has no baseline, or was not measured in this run, it is listed and not judged.
"""

import argparse
import html
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

BASELINE = Path(__file__).with_name("baseline.json")
LOWEST = 2.0 / 3.0  # of the baseline


class Section(NamedTuple):
    """A part of the page: a title, names of columns, rows."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


def sections_of(benchmarks: list[dict], cold: dict[str, dict]) -> list[Section]:
    """Everything that was measured, in the order of the page; empty parts are left out."""
    entries = [
        (b["fullname"].split("::")[-1], b["stats"]["min"], b["extra_info"]) for b in benchmarks
    ]
    infos = [info for _, _, info in entries]
    plain = [
        row for info in infos for row in info.values() if isinstance(row, dict) and "ours_s" in row
    ]
    passes = [(name, info) for name, _, info in entries if "of_copy" in info]
    found = [
        Section(
            "Time at matched error, seconds a unit on one core",
            (
                "task",
                "plain method",
                "ours",
                "plain",
                "plain/ours",
                "error ours",
                "error plain",
                "compiling",
            ),
            [
                [row["task"], f"{row['method']} ({row['setting']})"]
                + [
                    row[key]
                    for key in (
                        "ours_s",
                        "plain_s",
                        "ratio",
                        "ours_error",
                        "plain_error",
                        "compile_s",
                    )
                ]
                for row in plain
            ],
        ),
        Section(
            "From the start of a process, seconds of processor time",
            ("case", "cold", "warm", "compiling"),
            [
                [case, *(row.get(key, math.nan) for key in ("cold", "warm", "compiled"))]
                for case, row in cold.items()
            ],
        ),
        Section(
            "Data passes",
            ("pass", "bytes a second", "of a copy", "of an update in place"),
            [
                [name, info["bytes_per_second"], info["of_copy"], info.get("of_update", math.nan)]
                for name, info in passes
            ],
        ),
        Section(
            "Cost against size",
            ("what", "sizes", "exponent", "error"),
            [
                [i["axis"], " ".join(map(str, i["sizes"])), i["exponent"], i["error"]]
                for i in infos
                if "axis" in i
            ],
        ),
        Section(
            "Memory of both data passes, bytes",
            ("inputs in", "inputs", "temporary"),
            [[i["memory"], i["inputs"], i["temporary"]] for i in infos if "memory" in i],
        ),
        Section(
            "All timings, seconds",
            ("benchmark", "shortest"),
            [[name, seconds] for name, seconds, _ in entries],
        ),
    ]
    return [section for section in found if section.rows]


def ratios_of(benchmarks: list[dict]) -> dict[str, float]:
    """What the guard looks at: larger is better."""
    ratios = {}
    for benchmark in benchmarks:
        name, info = benchmark["fullname"].split("::")[-1], benchmark["extra_info"]
        if "of_copy" in info:
            ratios[name] = info["of_copy"]
        for key, row in info.items():
            if isinstance(row, dict) and "ratio" in row:
                ratios[key] = row["ratio"]
    return ratios


def judged(ratios: dict[str, float], baseline: dict[str, float]) -> tuple[list[str], list[str]]:
    """Regressions, and what is not judged, a line each."""
    slower = [
        f"{name}: {ratios[name]:.3g}, baseline {before:.3g}"
        for name, before in baseline.items()
        if name in ratios and not ratios[name] >= LOWEST * before
    ]
    unknown = [
        f"{name}: {value:.3g}, no baseline"
        for name, value in ratios.items()
        if name not in baseline
    ]
    unseen = [
        f"{name}: not measured, baseline {value:.3g}"
        for name, value in baseline.items()
        if name not in ratios
    ]
    return slower, unknown + unseen


def cell(value: Any) -> str:
    """Numbers with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def as_text(section: Section) -> str:
    """A table for a terminal."""
    rows = [list(section.columns), *([cell(v) for v in row] for row in section.rows)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(section.columns))]
    lines = [
        "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([section.title, *("  " + line for line in lines)])


def as_html(section: Section) -> str:
    """The same for a browser."""
    row = lambda cells, tag: (
        "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
    )
    body = "\n".join(row([cell(v) for v in cells], "td") for cells in section.rows)
    head = row(section.columns, "th")
    return f"<h2>{html.escape(section.title)}</h2>\n<table>\n{head}\n{body}\n</table>"


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>jaxsmi: benchmarks</title>
<style>body{{font-family:sans-serif;margin:2em}}td,th{{padding:.2em 1em .2em 0;text-align:left}}
td:not(:first-child){{font-variant-numeric:tabular-nums}}</style>
<h1>jaxsmi: benchmarks</h1><p>{machine}</p>
{sections}
</html>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where benchmarks.json lies")
    parser.add_argument("--update", action="store_true", help="make this run the baseline")
    arguments = parser.parse_args()
    run = json.loads((arguments.folder / "benchmarks.json").read_text())
    cold_file = arguments.folder / "cold.json"
    cold = json.loads(cold_file.read_text()) if cold_file.exists() else {}
    sections, ratios = sections_of(run["benchmarks"], cold), ratios_of(run["benchmarks"])
    cpu = run["machine_info"].get("cpu", {})
    parts = (cpu.get("brand_raw", "unknown processor"), f"{cpu.get('count', '?')} cores")
    machine = ", ".join([*parts, run["datetime"][:16]])
    print("\n\n".join([machine, *map(as_text, sections)]))
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    slower, unjudged = judged(ratios, baseline)
    if arguments.update:
        # runs of one tree differ, the plain side by up to 1.9: the lower of them is what must hold
        lower = {name: min(value, baseline.get(name, value)) for name, value in ratios.items()}
        BASELINE.write_text(json.dumps(baseline | lower, indent=1, sort_keys=True) + "\n")
    written = {"machine": machine, "sections": [s._asdict() for s in sections]}
    written |= {"ratios": ratios, "regressions": slower, "not judged": unjudged}
    (arguments.folder / "report.json").write_text(json.dumps(written, indent=1))
    page = PAGE.format(machine=html.escape(machine), sections="\n".join(map(as_html, sections)))
    (arguments.folder / "report.html").write_text(page)
    for title, lines in (("Not judged", unjudged), ("Slower than the baseline", slower)):
        if lines:
            print("\n".join([f"\n{title}", *("  " + line for line in lines)]))
    return int(bool(slower) and not arguments.update)


if __name__ == "__main__":
    sys.exit(main())
