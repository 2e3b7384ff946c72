"""Calls of sweeps."""

import jaxsmi as smi
from border.problems import LINEAR, Table

case = Table()

case(
    "sweep",
    smi.sweep,
    {"build": lambda: LINEAR, "alpha": [1.0]},
    build="function",
    alpha="positive array",
    parameters="mapping?",
    seeds="seeds",
    solver="function",
    out="name?",
    scheduler="object?",
    progress="flag?",
)
