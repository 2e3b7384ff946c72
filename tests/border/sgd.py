"""Calls of online SGD."""

import numpy as np

import jaxsmi as smi
from border.problems import FLOW, KEY, LINEAR, OVERLAPS, SEQUENCE, SERIES, Table
from jaxsmi.sgd.runs import Simulation

case = Table()

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
case("sgd.boundaries", smi.sgd.boundaries, {"a": 0.5}, a="fractions")
case("sgd.transition", smi.sgd.transition, {"a": 0.5}, a="fractions")
case(
    "sgd.phase_diagram",
    smi.sgd.phase_diagram,
    {"a": [0.5], "omega": [0.5]},
    a="fractions",
    omega="fractions",
    angles="count",
    radii="count",
    progress="flag?",
)
case(
    "sgd.coefficients",
    smi.sgd.coefficients,
    {"function": lambda z: z[0], "length": 1, "degree": 2},
    function="function",
    length="count",
    degree="count from 0",
    shift="real",
)
case(
    "sgd.flatness",
    smi.sgd.flatness,
    {"model": SEQUENCE},
    model="object",
    order="count",
    tolerance="positive",
)
case("sgd.taylor", smi.sgd.taylor, {"model": SEQUENCE, "order": 2}, model="object", order="count")
case("sgd.hessian_at_origin", smi.sgd.hessian_at_origin, {"model": SEQUENCE}, model="object")
case(
    "sgd.sample_complexity",
    smi.sgd.sample_complexity,
    {"model": SEQUENCE, "dimension": 100, "gamma": 0.1},
    {"start": ("eta",)},
    model="object",
    dimension="dimension",
    gamma="positive array",
    eta="open unit",
    start="open unit?",
)
for _at in ("risk", "hessian", "gradient_noise"):
    case(
        f"sgd.{_at}",
        getattr(smi.sgd, _at),
        {"model": SEQUENCE, "m": 0.1},
        OVERLAPS,
        model="object",
        m="cosines",
        e="cosines",
        key="key?",
        samples="count",
    )
case(
    "sgd.risk of an index model",
    smi.sgd.risk,
    {"model": LINEAR, "m": ([[0.1]], [[1.0]]), "key": KEY},
    OVERLAPS,
    model="object",
    m="object",
    e="zeros",
    key="key",
    samples="count",
    student="object?",
)
case(
    "sgd.flow",
    smi.sgd.flow,
    {"model": LINEAR, "m": ([[0.1]], [[1.0]]), "times": [0.5], "key": KEY},
    OVERLAPS,
    model="object",
    m="object",
    e="zeros",
    times="non-negative array",
    rate="non-negative?",
    loss="function?",
    **{**FLOW, "key": "key"},
)
case(
    "sgd.flow of a sequence",
    smi.sgd.flow,
    {"model": SEQUENCE, "m": 0.1, "times": [0.5]},
    OVERLAPS,
    model="object",
    m="cosines",
    e="cosines",
    times="non-negative array",
    rate="non-negative?",
    loss="object?",
    **{**FLOW, "teacher": "object?", "encoding": "object?"},
)
case(
    "sgd.recovery_time",
    smi.sgd.recovery_time,
    {"model": LINEAR, "m": ([[0.1]], [[1.0]]), "key": KEY},
    OVERLAPS,
    model="object",
    m="object",
    e="zeros",
    rate="non-negative?",
    level="open unit?",
    longest="positive",
    loss="function?",
    eta="open unit?",
    **{**FLOW, "key": "key"},
)
case(
    "sgd.gain",
    smi.sgd.gain,
    {"key": KEY},
    key="key",
    lengths="seeds",
    dimension="dimension",
    gamma="positive",
    schedule="function",
    target="function",
    activation="function",
    m="open unit?",
    eta="open unit",
    runs="sequence",
    patience="positive",
    progress="flag?",
)
case(
    "sgd.information_exponent",
    smi.sgd.information_exponent,
    {"target": SERIES, "length": 1},
    target="function",
    length="count",
    degree="count?",
    tolerance="positive",
    student="function?",
    key="key?",
    samples="count",
)
case(
    "sgd.leaps",
    smi.sgd.leaps,
    {"model": LINEAR, "key": KEY},
    model="object",
    degree="count?",
    tolerance="positive",
    key="key?",
    samples="count",
)
case(
    "sgd.large_batch_map",
    smi.sgd.large_batch_map,
    {
        "model": LINEAR,
        "start": ([[0.0]], [[1.0]]),
        "ratio": 0.5,
        "rate": 1.0,
        "steps": 2,
        "key": KEY,
    },
    OVERLAPS,
    model="object",
    start="object",
    ratio="positive",
    rate="positive",
    steps="count",
    student="object?",
    teacher="array?",
    key="key",
    samples="count",
    nets="count",
)
case(
    "sgd.maximal_rate",
    smi.sgd.maximal_rate,
    {"model": smi.links.linear(0.0), "key": KEY},
    model="object",
    key="key",
    samples="count",
    nets="count",
)
case(
    "sgd.per_sample_rate",
    smi.sgd.per_sample_rate,
    {"rate": 0.1},
    rate="positive array",
    batch_size="count",
    reduction="choice",
    dimension="dimension?",
)
case(
    "sgd.rates",
    smi.sgd.rates,
    {"model": smi.links.phase_retrieval(), "key": KEY},
    model="object",
    overlap="positive array",
    key="key",
    student="object?",
    samples="count",
    nets="count",
)
_ENDS = np.array([[[0.9, 0.1]], [[0.1, 0.9]]])  # m and e of two runs
case(
    "sgd.semantic_fraction",
    smi.sgd.semantic_fraction,
    {
        "simulation": Simulation(
            step=np.arange(1),
            teacher_overlap=_ENDS[:, None],
            overlap=np.ones((2, 1, 1, 1)),
            gram=np.eye(2),
            agreement=np.full((2, 1, 1), 0.9),
            distance=np.full((2, 1, 1), 0.2),
            end=_ENDS,
            final=np.full((2, 1), 0.9),
            steps=np.ones(2),
            reached=np.ones((2, 1)),
            result=np.zeros(2, int),
            rate=np.ones(()),
            kappa=np.ones(()),
            dimension=50,
            batch_size=1,
            tied=True,
        )
    },
    simulation="object",
)
case(
    "sgd.semantic_positional",
    smi.sgd.semantic_positional,
    {"omega": 0.5},
    omega="fraction",
    a="positive fraction",
    loss_factor="positive",
    loss="choice",
)
_SIMULATE = {
    "model": "object",
    "key": "key",
    "dimension": "dimension",
    "alpha": "positive",
    "student": "object?",
    "batch_size": "count",
    "reduction": "choice?",
    "weight_decay": "non-negative",
    "teacher": "array?",
    "encoding": "array?",
    "repeats": "count",
    "until": "cosine?",
    "every": "count?",
    "method": "choice",
    "progress": "flag?",
}
case(
    "sgd.simulate",
    smi.sgd.simulate,
    {"model": LINEAR, "key": KEY, "dimension": 50, "rate": 0.1, "alpha": 0.1},
    {**OVERLAPS, "init": ("M", "Q"), "alpha": ("steps",), "gamma": ("rate",), "eta": ("level",)},
    rate="positive array",
    loss="function?",
    momentum="fraction",
    projection="choice?",
    init="array",
    level="open unit?",
    gamma="object?",
    m="object?",
    e="zeros",
    eta="open unit?",
    steps="object?",
    **_SIMULATE,
)
case(
    "sgd.simulate of a sequence",
    smi.sgd.simulate,
    {"model": SEQUENCE, "key": KEY, "dimension": 50, "gamma": 0.1, "alpha": 0.1, "m": 0.1},
    {**OVERLAPS, "init": ("M", "Q"), "alpha": ("steps",), "gamma": ("rate",), "eta": ("level",)},
    gamma="positive array",
    m="cosines?",
    e="cosines",
    eta="open unit?",
    **{**_SIMULATE, "teacher": "object?", "encoding": "object?", "model": "object"},
)
