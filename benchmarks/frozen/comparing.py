"""Two files of recorded numbers, side by side."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np


def read_number(x):
    return float(x) if isinstance(x, str) else x


def as_array(value):
    flat = lambda x: [flat(y) for y in x] if isinstance(x, list) else float(read_number(x))
    return np.asarray(flat(value), np.float64)


def difference(before, after, scale):
    """(largest relative difference, part, note): inf where shapes, NaN, texts or parts differ."""
    if "raises" in before or "raises" in after:
        one, two = before.get("raises", "a value"), after.get("raises", "a value")
        return (
            (0.0, "", "raises in both")
            if one == two
            else (math.inf, "raises", f"{one[:200]} -> {two[:200]}")
        )
    worst, part, notes = 0.0, "", []
    ours, theirs = before["values"], after["values"]
    for name in [n for n in ours if n not in theirs]:
        worst, part = math.inf, name
        notes.append(f"{name} is missing")
    new = [n for n in theirs if n not in ours]
    if new:
        notes.append(f"new parts {', '.join(new[:4])}")
    arrays = {
        n: (as_array(ours[n]), as_array(theirs[n])) for n in ours
        if n in theirs and before["dtypes"][n] != "str" and after["dtypes"][n] != "str"
    }  # fmt: skip
    largest = lambda a: float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
    whole = max((largest(a) for a, _ in arrays.values()), default=0.0)
    for n in ours:
        if n not in theirs:
            continue
        if n not in arrays:
            if ours[n] != theirs[n]:
                worst, part = math.inf, n
                notes.append(f"{n}: {str(ours[n])[:60]} -> {str(theirs[n])[:60]}")
            continue
        a, b = arrays[n]
        if a.shape != b.shape:
            worst, part = math.inf, n
            notes.append(f"{n}: shape {a.shape} -> {b.shape}")
            continue
        if before["dtypes"][n] != after["dtypes"][n]:
            notes.append(f"{n}: {before['dtypes'][n]} -> {after['dtypes'][n]}")
        finite = np.isfinite(a) & np.isfinite(b)
        same = np.all((a == b) | (np.isnan(a) & np.isnan(b)) | finite)
        if not same:
            worst, part = math.inf, n
            notes.append(f"{n}: other NaN or infinite entries")
            continue
        gap = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
        size = whole if scale == "entry" else max(largest(a), largest(b))
        relative = 0.0 if gap == 0.0 else (gap / size if size > 0 else math.inf)
        if relative > worst:
            worst, part = relative, n
    return worst, part, "; ".join(notes)


def _recorded(path):
    """A recording, compressed or not."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt") as file:
        return json.load(file)


def compare(before_path, after_path, rtol, scale, quiet):
    before, after = (_recorded(path) for path in (before_path, after_path))
    for name in sorted({*before["meta"], *after["meta"]}):
        one, two = before["meta"].get(name), after["meta"].get(name)
        print(f"{name:>10}: {one}" if one == two else f"{name:>10}: {one} -> {two}")
    table = lambda file: {
        f"{g}: {n}": e for g, body in file["groups"].items() for n, e in body["entries"].items()
    }
    ours, theirs = table(before), table(after)
    rows, missing = [], [name for name in ours if name not in theirs]
    for name, entry in ours.items():
        if name in theirs:
            rows.append(
                (
                    name,
                    *difference(entry, theirs[name], scale),
                    entry["seconds"],
                    theirs[name]["seconds"],
                )
            )
    if not quiet:
        for name, worst, part, note, one, two in rows:
            what = "same" if worst == 0 else f"{worst:.2e}"
            print(
                f"{what:>9}  {one:6.2f} -> {two:6.2f} s  {name}{f'  [{part}]' if worst else ''}{f'  ({note})' if note else ''}"
            )
    beyond = sorted((row for row in rows if row[1] > rtol), key=lambda row: -row[1])
    equal = sum(row[1] == 0 for row in rows)
    if beyond:
        print(f"\nbeyond {rtol:g}, worst first:")
        for name, worst, part, note, *_ in beyond:
            print(f"{worst:9.2e}  {name}  [{part}]{f'  {note}' if note else ''}")
    if missing:
        print("\nmissing:\n  " + "\n  ".join(missing))
    noted = [row for row in rows if row[3] and row[1] <= rtol and row[3] != "raises in both"]
    if noted:
        print("\nremarks on entries that agree:")
        for name, _, _, note, *_ in noted:
            print(f"  {name}: {note}")
    new = [name for name in theirs if name not in ours]
    both = sum(row[3] == "raises in both" for row in rows)
    slow = [sum(e["seconds"] for e in t.values()) for t in (ours, theirs)]
    print(
        f"\n{len(ours)} entries: {equal} equal bit for bit ({both} of them raise in both), {len(rows) - equal - len(beyond)} within "
        f"{rtol:g}, {len(beyond)} beyond, {len(missing)} missing; {len(new)} only in the second; {slow[0]:.0f} s -> {slow[1]:.0f} s"
    )
    return 1 if beyond or missing else 0
