"""Calls of learners, message passing, theory and thresholds."""

import numpy as np

import jaxsmi as smi
from border.problems import (
    ATTENTION,
    FOUND,
    INPUTS,
    KEY,
    LINEAR,
    OF_DATA,
    ONE_LABEL,
    RECTANGLE,
    SCORES,
    TEACHER,
    WIDE,
    Table,
)

case = Table()

# learners
case(
    "Erm",
    smi.Erm,
    {},
    student="object?",
    loss="function",
    ridge="non-negative",
    prox="function?",
    starts="function?",
    convex="flag?",
)
case(
    "Erm.risk",
    smi.Erm(LINEAR).risk,
    {"weights": TEACHER, "data": ONE_LABEL},
    OF_DATA,
    weights="array",
    data="object",
)
case(
    "MatrixErm",
    smi.MatrixErm,
    {"ridge": 0.1},
    {"nuclear": ("ridge",)},
    ridge="non-negative",
    nuclear="non-negative",
    positive="flag",
)
case(
    "MatrixErm.of_weight_decay",
    smi.MatrixErm.of_weight_decay,
    {"student": smi.Bilinear(1.0, 0.5, symmetric=True), "decay": 0.1},
    student="object",
    decay="positive",
)
case(
    "MatrixErm.risk",
    smi.MatrixErm(0.1).risk,
    {"weights": np.eye(6), "data": smi.Dataset(WIDE.inputs, WIDE.labels, np.eye(6), RECTANGLE)},
    OF_DATA,
    weights="array",
    data="object",
)
case("Mismatched", smi.Mismatched, {"student": LINEAR}, student="object")
for _loss in ("hinge", "logistic", "squared"):
    case(
        f"losses.{_loss}",
        getattr(smi.losses, _loss),
        {"prediction": 0.5, "label": 1.0},
        prediction="array",
        label="array",
    )

# message passing and theory
case(
    "gamp",
    smi.gamp,
    {"model": LINEAR, "data": ONE_LABEL, "key": KEY},
    OF_DATA,
    model="object",
    data="object",
    key="key",
    learner="object?",
    start="start?",
    record="function?",
    progress="flag?",
    iteration="object",
)
case(
    "gamp of a matrix",
    smi.gamp,
    {"model": RECTANGLE, "data": WIDE, "key": KEY},
    OF_DATA,
    data="object",
    key="key",
    learner="object?",
    start="start?",
    record="function?",
    iteration="object",
)
case(
    "state_evolution",
    smi.state_evolution,
    {"model": LINEAR, "alpha": 1.0, "key": KEY},
    model="object",
    alpha="positive",
    key="key",
    learner="object?",
    start="overlap?",
    progress="flag?",
    averages="object",
    iteration="object",
)
case(
    "noiseless_limit",
    smi.noiseless_limit,
    {
        "model": smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1),
        "alpha": 1.0,
        "noises": (0.1, 0.05, 0.025, 0.0125),
        "key": KEY,
    },
    model="object",
    alpha="positive",
    noises="positive array",
    key="key",
    start="overlap?",
    averages="object",
    iteration="object",
    progress="flag?",
)
case(
    "state_evolution of a learner",
    smi.state_evolution,
    {"model": LINEAR, "alpha": 1.0, "key": KEY, "learner": smi.Erm()},
    {"start": ("teacher_overlap", "overlap")},
    alpha="positive",
    key="key",
    learner="object?",
    start="positive array?",
    averages="object",
    iteration="object",
)
case(
    "state_evolution of a matrix",
    smi.state_evolution,
    {"model": SCORES, "alpha": 0.2},
    {"alpha": ()},
    alpha="positive",
    key="key?",
    learner="object?",
    start="object?",
    progress="flag?",
    averages="object",
    iteration="object",
)
case(
    "free_entropy",
    smi.free_entropy,
    {"model": LINEAR, "alpha": 1.0, "overlap": 0.5, "key": KEY},
    model="object",
    alpha="positive",
    overlap="overlap",
    key="key",
    averages="object",
)
case(
    "free_entropy of a matrix",
    smi.free_entropy,
    {"model": SCORES, "alpha": 1.0, "overlap": 0.5},
    model="object",
    alpha="positive",
    overlap="overlap",
    key="key?",
    averages="object",
)
case(
    "global_minimum",
    smi.global_minimum,
    {"model": LINEAR, "alpha": 1.0, "learner": smi.Erm(), "key": KEY},
    model="object",
    alpha="positive",
    learner="object",
    key="key",
    starts="sequence",
    progress="flag?",
    averages="object",
    iteration="object",
)
case(
    "search_learner",
    smi.search_learner,
    {
        "model": LINEAR,
        "alpha": 1.0,
        "build": lambda ridge: smi.Erm(ridge=ridge),
        "start": 0.1,
        "key": KEY,
    },
    {"start": ("ridge", "build")},
    model="object",
    alpha="positive",
    build="function",
    start="tree",
    key="key",
    objective="choice",
    averages="object",
    iteration="object",
)
case(
    "spectral",
    smi.spectral,
    {
        "model": smi.links.phase_retrieval(),
        "data": smi.Dataset(INPUTS, np.abs(INPUTS[:, 0] @ TEACHER[0])),
        "key": KEY,
    },
    OF_DATA,
    model="object",
    data="object",
    key="key",
    regularisation="open unit",
    norm="flag?",
)
case(
    "spectral_overlap",
    smi.spectral_overlap,
    {"model": smi.links.phase_retrieval(), "alpha": 1.0, "key": KEY},
    model="object",
    alpha="positive",
    key="key",
    averages="object",
)

# thresholds
case(
    "first_order",
    smi.first_order,
    {"model": LINEAR, "key": KEY},
    model="object",
    key="key",
    alpha="positive array?",
    averages="object?",
    iteration="object?",
    progress="flag?",
)
case("recovery_threshold", smi.recovery_threshold, {"model": ATTENTION}, model="object")
case(
    "search_threshold",
    smi.search_threshold,
    {"build": smi.links.linear, "start": 0.1, "key": KEY},
    {"start": ("noise", "build")},
    build="function",
    start="tree",
    key="key",
    step="count from 0",
    target="positive?",
    alpha_max="positive",
    averages="object?",
    iteration="object?",
)
case(
    "staircase",
    smi.staircase,
    {"model": smi.links.phase_retrieval(), "key": KEY},
    model="object",
    key="key",
    alpha_max="positive",
    averages="object?",
    guess="list?",
    steps="count?",
    progress="flag?",
)
case(
    "weak_recovery",
    smi.weak_recovery,
    {"model": smi.links.phase_retrieval(), "key": KEY},
    model="object",
    key="key",
    averages="object?",
    noises="positive array?",
)
case("Bayes", smi.Bayes, {}, precision="choice?", calibrate="flag?")
case(
    "noiseless_limit",
    smi.noiseless_limit,
    {
        "model": smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1),
        "alpha": 1.0,
        "noises": (0.08, 0.04, 0.02, 0.01),
        "key": KEY,
    },
    model="object",
    alpha="positive",
    noises="positive array",
    key="key",
    start="overlap?",
    averages="object",
    iteration="object",
    progress="flag?",
)
case("Threshold.interval", FOUND.interval, {}, confidence="open unit")
