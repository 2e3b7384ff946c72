"""Calls of models, their links and inputs."""

import numpy as np

import jaxsmi as smi
from border.problems import (
    ATTENTION,
    INPUTS,
    KEY,
    LINEAR,
    PRIOR,
    RECTANGLE,
    SCORES,
    SEQUENCE,
    SERIES,
    TEACHER,
    WIDE,
    Table,
    first,
)

case = Table()

case(
    "AttentionIndexed",
    smi.AttentionIndexed,
    {"tokens": 2, "rank_ratio": 0.5},
    {"output": ("link",), "log_likelihood": ("link", "output", "noise")},
    tokens="count",
    rank_ratio="positive",
    output="function?",
    beta="positive",
    noise="non-negative",
    layers="count",
    skip="non-negative",
    log_likelihood="function?",
    sampler="function?",
    outcomes="array?",
    tolerance="positive?",
)
case(
    "Bilinear",
    smi.Bilinear,
    {},
    {"output": ("link",), "log_likelihood": ("link", "output", "noise")},
    aspect_ratio="positive or inf",
    rank_ratio="positive",
    noise="non-negative",
    symmetric="flag",
    output="function?",
    log_likelihood="function?",
    sampler="function?",
    outcomes="array?",
)
case(
    "DeepAttention",
    smi.DeepAttention,
    {"depth": 2, "tokens": 2},
    depth="count",
    tokens="count",
    skip="non-negative array",
    ranks="count",
    beta="positive",
    heads="count",
    tied="flag",
    noise="non-negative",
    activation="choice",
    prior="object?",
    tolerance="positive?",
    max_nodes="count",
)
case(
    "MultiIndex",
    smi.MultiIndex,
    {"link": first, "indices": 1, "noise": 0.1},
    {"log_likelihood": ("link", "noise"), "link": ("log_likelihood", "channel")},
    link="function",
    indices="count",
    tokens="count?",
    noise="non-negative",
    prior="object?",
    log_likelihood="function?",
    sampler="function?",
    outcomes="array?",
    channel="object?",
    inputs="object?",
    symmetry="list?",
    name="name?",
    tolerance="positive?",
    max_nodes="count",
)
case(
    "SequenceSingleIndex",
    smi.SequenceSingleIndex,
    {"target": SERIES, "length": 1},
    target="function",
    length="count",
    student="function?",
    encoding="array?",
    loss_factor="positive",
    loss="choice",
)
case(
    "Tokens",
    smi.Tokens,
    {"encoding": [[1.0], [0.5]]},
    encoding="array",
    gram="array?",
    cross="array?",
)
NOISY = {"noise": "non-negative", **PRIOR}
case("links.absolute", smi.links.absolute, {}, **NOISY)
case("links.door", smi.links.door, {}, width="positive", **PRIOR)
case("links.hard_tanh", smi.links.hard_tanh, {}, **NOISY)
case("links.linear", smi.links.linear, {}, tokens="count", **NOISY)
case("links.logistic", smi.links.logistic, {}, beta="positive", **PRIOR)
case("links.phase_retrieval", smi.links.phase_retrieval, {}, squared="flag", **PRIOR)
case(
    "links.piecewise_linear",
    smi.links.piecewise_linear,
    {"slopes": [0.0, 1.0], "offsets": [0.0, 0.0], "knots": [0.0]},
    {"slopes": ("offsets",)},
    slopes="array",
    offsets="array",
    knots="array",
    name="name",
    **NOISY,
)
case("links.poisson", smi.links.poisson, {}, size="positive", tolerance="positive?", **PRIOR)
case("links.product", smi.links.product, {}, k="count", **PRIOR)
case("links.relu", smi.links.relu, {}, leak="real", **NOISY)
case("links.sign", smi.links.sign, {}, **{**NOISY, "noise": "non-negative or inf"})
case("links.sign_product", smi.links.sign_product, {}, k="count", **PRIOR)
case("links.softmax", smi.links.softmax, {}, classes="count", tolerance="positive?", **PRIOR)
case("links.square_plus_sign_parity", smi.links.square_plus_sign_parity, {}, **PRIOR)
case(
    "sample",
    LINEAR.sample,
    {"key": KEY, "dimension": 6, "alpha": 2.0},
    key="key",
    dimension="count",
    alpha="positive",
    dtype="type?",
    teacher="array?",
    directions="object?",
    store="flag",
    inputs="choice",
)
case(
    "sample of a matrix",
    SCORES.sample,
    {"key": KEY, "dimension": 6, "alpha": 0.5},
    key="key",
    dimension="count",
    alpha="positive",
    dtype="type?",
    teacher="array?",
    directions="object?",
    store="flag",
    inputs="choice",
)
case(
    "SequenceSingleIndex.sample",
    SEQUENCE.sample,
    {"key": KEY, "dimension": 6, "samples": 4},
    key="key",
    dimension="count",
    samples="count",
    teacher="array?",
    dtype="type?",
)
case(
    "predict",
    LINEAR.predict,
    {"solution": TEACHER, "inputs": INPUTS},
    solution="array",
    inputs="array",
)
case(
    "predict of a matrix",
    RECTANGLE.predict,
    {"solution": np.eye(6), "inputs": WIDE.inputs},
    solution="array",
    inputs="array",
)
case(
    "network",
    ATTENTION.network,
    {"weights": np.ones((2, 6)), "x": np.ones((2, 6))},
    weights="array",
    x="array",
)
case(
    "mixed",
    smi.MultiIndex(first, indices=1, noise=0.1).mixed,
    {"covariance": [[2.0]]},
    covariance="array",
)
case("small_width_error", SCORES.small_width_error, {"scaled": 0.5}, scaled="non-negative array")
case(
    "small_width_error of a bilinear model",
    smi.Bilinear(1.0, 0.5, symmetric=True).small_width_error,
    {"scaled": 0.5},
    scaled="non-negative array",
)
case(
    "align",
    smi.align,
    {"estimate": TEACHER, "teacher": TEACHER, "model": LINEAR},
    estimate="array",
    teacher="array",
    model="object",
)
case(
    "generalization_error",
    smi.generalization_error,
    {"model": LINEAR, "overlap": 0.5, "key": KEY},
    model="object",
    overlap="overlap",
    data="object?",
    key="key?",
    predictor="choice",
    points="count",
)
