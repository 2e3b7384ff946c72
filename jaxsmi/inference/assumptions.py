"""A look at the inputs of a run, before it starts: message passing assumes iid entries.

Where second moments of a part of them are beyond chance (p < 1e-8 for each of six statistics) and
off by more than 5 %, a warning says which, and the remedy. On iid inputs of a symmetric law that is
a false alarm with a probability below 1e-7 [theory: inputs, section 3]. Regenerated inputs are iid
by construction, and inside jit nothing can be looked at.
"""

from __future__ import annotations

import warnings

from jaxsmi.core.arrays import concrete
from jaxsmi.core.data import Dataset
from jaxsmi.models.base import AbstractModel

__all__ = ["warn_of_inputs"]


def warn_of_inputs(model: AbstractModel, data: object) -> None:
    """Warn of stored inputs that are not as message passing assumes (module docstring); once for
    the same inputs, as Python does with the same words."""
    if not isinstance(data, Dataset) or data.regenerated or len(model.design.laws) < 2:
        return
    if not concrete(data.inputs) or not data.stored_inputs.is_fully_addressable:
        return
    message = data.second_moments(quick=True).message
    if message:
        warnings.warn(
            "message passing assumes inputs of iid entries, mean zero, variance one; "
            f"these fail: {message}. Overlaps may be wrong and the run may diverge. All "
            "statistics: print(data.second_moments()).",
            stacklevel=3,
        )
