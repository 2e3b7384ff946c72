"""What the figure scripts share: sizes, published data, comparisons, error bars and saving."""

import csv
import os
import sys
from pathlib import Path

import jax
import matplotlib.style
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting
from jaxsmi.workbench.plotting import canvas

smi.setup(quick_compile=False)
matplotlib.style.use(plotting.STYLE)
QUICK = "--quick" in sys.argv or bool(os.environ.get("JAXSMI_SMALL"))
ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT.parent / "shared" / "reference"  # published data, beside the project
GREY, INK = "0.7", "0.15"  # published data; theory without a colour of its own
_failed, _saved = [], []  # comparisons that failed, and figures
# the first comparison may be minutes away
print("comparisons are printed as they are made", flush=True)
DOTS = {"marker": "o", "mfc": "none", "ls": "none"}  # finite-size runs


def published(*parts):
    """Columns of a published table by name, or None (and a printed reason) where it is absent."""
    path = REFERENCE.joinpath(*parts)
    if not path.is_file():
        print(f"not compared: {'/'.join(parts)} is absent from ../shared/reference")
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0] if name}


def compare(what, ours, other, tolerance):
    """Print the largest |ours - other| / tolerance, which has to be at most one. `save` raises where
    it is not, with the figure written; once there is a figure, this function does."""
    ours, other, tolerance = np.broadcast_arrays(*(np.ravel(x) for x in (ours, other, tolerance)))
    ratio = np.abs(ours - other) / tolerance
    k = np.argmax(np.where(np.isnan(ratio), np.inf, ratio))
    worst = f"{ours[k]:.6g} against {other[k]:.6g} at point {k} of {ratio.size}"
    print(f"{what}: {worst}, {ratio[k]:.2f} of the tolerance {tolerance[k]:.2g}")
    if not ratio[k] <= 1.0:
        _failed.append(what)
        assert not _saved, _failed


def gamp_runs(model, alphas, dimension, runs, measure, **settings):
    """`measure` of message passing on fresh data for each α, shape (len(alphas), runs)."""
    values = np.zeros((len(alphas), runs))
    for i, run in np.ndindex(values.shape):
        data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(run), i))
        data = model.sample(data_key, dimension=dimension, alpha=float(alphas[i]))
        values[i, run] = measure(smi.gamp(model, data, key=key, **settings))
    return values


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
    _saved.append(name)
    assert not _failed, _failed
