"""Calls of training."""

import numpy as np

import jaxsmi as smi
from border.problems import (
    ADAM,
    KEY,
    LINEAR,
    OF_DATA,
    ONE_LABEL,
    RECTANGLE,
    RUNS,
    SOLVED,
    WIDE,
    Table,
)

case = Table()

case(
    "train",
    smi.train,
    {"model": LINEAR, "data": ONE_LABEL, "optimizer": ADAM, "key": KEY, "steps": 2},
    OF_DATA,
    model="object",
    data="object",
    optimizer="object",
    key="key",
    steps="count",
    gradient="object?",
    start="array",
    monitor="object?",
)
case(
    "Gradient",
    smi.Gradient,
    {},
    loss="function?",
    reduction="choice?",
    batch_size="count?",
    one_pass="flag",
    repeats="count",
)
case(
    "Monitor",
    smi.Monitor,
    {},
    record="function?",
    every="count?",
    test="object?",
    patience="count?",
    target="cosine?",
    progress="flag",
)
case(
    "averaged",
    smi.averaged,
    {"fit": RUNS, "teacher": np.eye(6)},
    {"fit": ("model",)},
    fit="object",
    teacher="array",
)
case("learned_at", smi.learned_at, {"solution": SOLVED}, solution="sequence", level="open unit")
case(
    "learning_order",
    smi.learning_order,
    {"model": LINEAR, "data": ONE_LABEL, "methods": {"gamp": {}}, "key": KEY},
    OF_DATA,
    model="object",
    data="object",
    methods="object",
    key="key",
    seeds="count",
    level="open unit",
    progress="flag?",
)
case(
    "baselines.ridge_error",
    smi.baselines.ridge_error,
    {"alpha": 1.0, "penalty": 0.1},
    alpha="non-negative array",
    penalty="non-negative array",
    noise="non-negative array",
)
case(
    "baselines.nuclear_norm_threshold",
    smi.baselines.nuclear_norm_threshold,
    {"aspect_ratio": 1.0, "rank_ratio": 0.5},
    aspect_ratio="positive or inf",
    rank_ratio="positive",
)
case(
    "baselines.minimum_nuclear_norm",
    smi.baselines.minimum_nuclear_norm,
    {"model": RECTANGLE, "data": WIDE},
    OF_DATA,
    model="object",
    data="object",
    tolerance="positive",
    max_steps="count",
)
