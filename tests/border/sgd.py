"""Calls of online SGD."""

import numpy as np

import jaxsmi as smi
from border.problems import KEY, LINEAR, SEQUENCE, SERIES, Table

case = Table()

PAIR = ([[0.1]], [[1.0]])
# overlaps are named by what is wrong with them
OVERLAPS = {"start": ("M", "Q", "teacher"), "overlaps": ("M", "Q")}
COMMON = {
    "model": "object",
    "student": "object?",
    "averages": "object?",
    "iteration": "object?",
    "monitor": "object?",
}


def call(title, function, valid, others=None, /, **kinds):
    """A case whose common arguments have their kinds."""
    names = function.__code__.co_varnames
    case(title, function, valid, others, **{n: k for n, k in COMMON.items() if n in names} | kinds)


case(
    "sgd.Attention",
    smi.sgd.Attention,
    {},
    reduction="choice",
    trace_norm="choice",
    left="object?",
    right="object?",
)
case(
    "sgd.Attention, bilinear",
    smi.sgd.Attention,
    {"reduction": "bilinear", "left": np.ones(2), "right": np.ones(2)},
    left="array",
    right="array",
)
case(
    "sgd.HermiteSeries",
    smi.sgd.HermiteSeries,
    {"terms": {(2,): 1.0}},
    terms="object",
    normalised="flag",
)
case("sgd.Network", smi.sgd.Network, {}, activation="function", tied="flag")
case(
    "sgd.semantic_positional",
    smi.sgd.semantic_positional,
    {"omega": 0.5},
    omega="fraction",
    a="positive fraction",
    loss_factor="positive",
    loss="choice",
)
case(
    "sgd.Rule",
    smi.sgd.Rule,
    {"rate": 0.1},
    rate="non-negative array",
    gradient="object?",
    momentum="fraction",
    weight_decay="non-negative",
    projection="choice?",
)
case("sgd.Initial", smi.sgd.Initial, {}, {"student": ("start",)})
call(
    "sgd.coefficients",
    smi.sgd.coefficients,
    {"function": lambda z: z[0], "length": 1, "degree": 2},
    function="function",
    length="count",
    degree="count from 0",
    shift="real",
)
call(
    "sgd.exponents",
    smi.sgd.exponents,
    {"model": LINEAR, "key": KEY},
    {"model": ("target", "length"), "length": ("model",)},
    length="object?",
    generative="flag",
    student="function?",
    degree="count?",
    tolerance="positive",
    key="key?",
)
call(
    "sgd.exponents of a function",
    smi.sgd.exponents,
    {"model": SERIES, "length": 1},
    {"model": ("target", "length"), "length": ("target", "model")},
    model="function",
    length="count",
    degree="count?",
)
call("sgd.flatness", smi.sgd.flatness, {"model": SEQUENCE}, order="count", tolerance="positive")
for _at in ("risk", "averages", "hessian"):
    call(
        f"sgd.{_at}",
        getattr(smi.sgd, _at),
        {"model": SEQUENCE, "overlaps": 0.1},
        OVERLAPS,
        overlaps="cosines?" if _at != "hessian" else "cosines",
        key="key?",
    )
for _at in ("risk", "averages"):
    call(
        f"sgd.{_at} of an index model",
        getattr(smi.sgd, _at),
        {"model": LINEAR, "overlaps": PAIR, "key": KEY},
        OVERLAPS,
        overlaps="object",
        loss="function?",
        key="key",
    )
call(
    "sgd.flow",
    smi.sgd.flow,
    {"model": LINEAR, "start": PAIR, "times": [0.5], "key": KEY},
    OVERLAPS,
    start="object",
    times="non-negative array",
    rate="non-negative",
    key="key",
)
call(
    "sgd.flow of a sequence",
    smi.sgd.flow,
    {"model": SEQUENCE, "start": 0.1, "times": [0.5]},
    OVERLAPS,
    start="cosines",
    times="non-negative array",
    rate="non-negative",
    key="key?",
)
call(
    "sgd.recovery_time",
    smi.sgd.recovery_time,
    {"model": LINEAR, "start": PAIR, "key": KEY},
    OVERLAPS,
    start="object",
    rate="non-negative",
    level="open unit",
    key="key",
)
call(
    "sgd.rates",
    smi.sgd.rates,
    {"model": smi.links.phase_retrieval(), "key": KEY},
    overlap="positive array",
    key="key",
)
call(
    "sgd.maximal_rate",
    smi.sgd.maximal_rate,
    {"model": smi.links.linear(0.0), "key": KEY},
    key="key",
)
for _name, _model, _start in (("", LINEAR, "positive?"), (" of a sequence", SEQUENCE, "cosines?")):
    call(
        f"sgd.simulate{_name}",
        smi.sgd.simulate,
        {"model": _model, "key": KEY, "dimension": 50, "rate": 0.1, "alpha": 0.1},
        OVERLAPS,
        key="key",
        dimension="dimension",
        rate="positive array",
        alpha="positive",
        start=_start,
    )
