"""What a reader sees of a data set.

No equation lives here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxsmi.core.shown import Shown

if TYPE_CHECKING:
    from jaxsmi.core.data import Dataset

__all__ = ["described"]

_FEW = 6  # values of labels that are counted one by one


def described(data: Dataset, look: bool = False) -> Shown:
    """Sizes and making of the data; with `look` also what is in them."""
    N, M, D = data.inputs.shape
    kept = "drawn again when they are read" if data.regenerated else "stored"
    facts = [
        f"inputs {data.inputs.dtype} ({N}, {M}, {D}), {kept}",
        f"labels {data.labels.dtype} {data.labels.shape}",
        "no teacher" if data.teacher is None else f"teacher {data.teacher.shape}",
    ]
    if data.model is not None:
        facts.append(f"made by {data.model!r}")
    if look:
        facts.append(_labels(np.asarray(data.labels, float)))
        if not data.regenerated:
            message = data.second_moments(quick=True).message
            facts.append(message or "inputs look iid, of mean zero and variance one")
    title = f"Dataset: N = {N} samples of M = {M} tokens, D = {D}, α = {data.alpha:.4g}"
    return Shown(title, facts)


def _labels(labels: np.ndarray) -> str:
    """A few numbers of the labels, or how often each value comes."""
    values = np.unique(labels)
    if len(values) <= _FEW:
        counted = [f"{value:g} ({np.mean(labels == value):.0%})" for value in values]
        return f"labels {', '.join(counted)}"
    size = f"mean {labels.mean():.4g}, deviation {labels.std():.4g}"
    return f"labels from {values[0]:.4g} to {values[-1]:.4g}, {size}"
