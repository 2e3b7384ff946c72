"""What the figure scripts share: sizes, published data, comparisons, error bars and saving."""

import csv
import os
import sys
from pathlib import Path

import jax
import numpy as np

from jaxsmi.workbench import plotting
from jaxsmi.workbench.plotting import canvas

jax.config.update("jax_enable_x64", True)
STYLE = plotting.style()
STYLE.__enter__()  # for all that the script draws
QUICK = "--quick" in sys.argv or bool(os.environ.get("JAXSMI_SMALL"))
ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"  # published data, beside the project
GREY, INK = "0.7", "0.15"  # published data; theory without a colour of its own
DOTS = {"marker": "o", "mfc": "none", "ls": "none"}  # finite-size runs


def published(*parts):
    """Columns of a published table by name, or None (and a printed reason) where it is absent."""
    path = REFERENCE.joinpath(*parts)
    if not path.is_file():
        print(f"not compared: {'/'.join(parts)} is absent from ../shared/reference")
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name}


def compare(what, ours, other, tolerance):
    """Print the largest |ours - other| / tolerance, and assert that it is at most one."""
    ratio = np.abs(np.asarray(ours) - np.asarray(other)) / tolerance
    print(f"{what}: {np.size(ratio)} points, largest deviation {np.max(ratio):.2f} tolerances")
    assert np.all(ratio <= 1.0), f"{what}: got {ours}, expected {other} within {tolerance}"


def mean_and_stderr(values):
    """Mean and standard error over the last axis."""
    return np.mean(values, axis=-1), np.std(values, axis=-1, ddof=1) / np.shape(values)[-1] ** 0.5


def error_bars(ax, x, values, **style):
    """Draw means over the last axis (runs) with their standard errors."""
    ax.errorbar(x, *mean_and_stderr(values), **(DOTS | style))


def axes(columns=1, rows=1, height=2.6):
    """Axes of a figure in the style of the library, one column wide for one panel, else a page."""
    return np.ravel(canvas(columns, rows, height).subplots(rows, columns, squeeze=False))


def save(ax, name):
    """Write the figure of these axes to NAME.png in JAXSMI_FIGURES (default: out/figures)."""
    folder = Path(os.environ.get("JAXSMI_FIGURES") or ROOT / "out" / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    plotting.savefig(np.ravel(ax)[0].figure, folder / f"{name}.png")
    print(f"written: {folder / name}.png")
