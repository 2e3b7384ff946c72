"""Calls of data, priors and channels."""

import numpy as np

import jaxsmi as smi
from border.problems import ATTENTION, DATA, GAUSSIAN, INPUTS, KEY, LINEAR, SIGN, TEACHER, Table
from jaxsmi.models.base import title

case = Table()

# data
case(
    "Dataset",
    smi.Dataset,
    {"inputs": INPUTS, "labels": np.ones(12)},
    {"inputs": ("labels",)},
    inputs="array",
    labels="array",
    teacher="array?",
    model="object?",
    directions="array?",
    encoding="array?",
    whitening="object?",
)
case("Dataset.first", DATA.first, {"samples": 3}, samples="count")
case("Dataset.second_moments", DATA.second_moments, {}, quick="flag")
case("Dataset.sharded", DATA.sharded, {}, mesh="object?")
case("Dataset.whiten", DATA.whiten, {}, covariance="array?", tokens="array?")
case("Dataset.unwhiten", DATA.whiten(np.eye(6)).unwhiten, {"weights": TEACHER}, weights="array")
case(
    "Stream",
    smi.Stream,
    {"model": LINEAR, "teacher": TEACHER},
    model="object",
    teacher="array",
    dtype="type?",
    directions="array?",
)
case(
    "Stream.draw",
    smi.Stream(LINEAR, TEACHER).draw,
    {"key": KEY, "samples": 3},
    key="key",
    samples="count",
)
case("Averages", smi.Averages, {}, points="count?", nets="count?")
case("Bayes", smi.Bayes, {}, precision="choice?", calibrate="flag?")
case(
    "Iteration",
    smi.Iteration,
    {},
    max_steps="count?",
    tolerance="positive?",
    damping="fraction?",
    newton="flag?",
)
case(
    "Start",
    smi.Start,
    {},
    overlap="array?",
    teacher_overlap="array?",
    variance="array?",
    direction_overlap="array?",
    side_information="fraction",
)
case("Record", smi.Record, {}, function="function?", every="count?")

# priors and channels
case("Gaussian", smi.priors.Gaussian, {}, covariance="array?")
case("BernoulliGauss", smi.priors.BernoulliGauss, {"density": 0.5}, density="positive fraction")
case(
    "GaussianMixture",
    smi.priors.GaussianMixture,
    {"weights": [1.0], "means": [0.5], "scales": [0.5]},
    {"weights": ("means",)},
    weights="array",
    means="array",
    scales="array",
    mirrored="flag",
)
case(
    "GaussianProfile",
    smi.priors.GaussianProfile,
    {"variances": [1.0, 2.0]},
    variances="positive array",
    covariance="array?",
)
case("Positive", smi.priors.Positive, {}, slope="real", precision="non-negative")
case(
    "ProductPrior",
    smi.priors.ProductPrior,
    {"aspect_ratio": 1.0, "rank_ratio": 0.5},
    aspect_ratio="positive or inf",
    rank_ratio="positive",
)
case("WishartPrior", smi.priors.WishartPrior, {"rank_ratio": 0.5}, rank_ratio="positive")
for _prior in (
    GAUSSIAN,
    smi.priors.Rademacher(),
    smi.priors.BernoulliGauss(0.5),
    smi.priors.GaussianMixture([1.0], [0.5], [0.5]),
    smi.priors.GaussianProfile([1.0, 2.0, 0.5]),
    smi.priors.Positive(),
):
    _name = type(_prior).__name__
    case(
        f"{_name}.sample",
        _prior.sample,
        {"key": KEY, "indices": 1, "dimension": 3},
        key="key",
        indices="count",
        dimension="count",
    )
    case(
        f"{_name}.posterior",
        _prior.posterior,
        {"b": np.ones((1, 3)), "A": np.ones((1, 1))},
        b="array",
        A="array",
    )
    for _method in ("overlap", "mmse", "free_entropy"):
        case(
            f"{_name}.{_method}",
            getattr(_prior, _method),
            {"Qhat": np.ones((1, 1))},
            Qhat="array",
        )
    case(
        f"{_name}.second_moment",
        _prior.second_moment,
        {"indices": 1},
        indices="count",
    )
    case(
        f"{_name}.side_information",
        _prior.side_information,
        {"key": KEY, "signal": np.ones((1, 3)), "strength": 0.5},
        key="key",
        signal="array",
        strength="fraction",
    )
for _spectral in (smi.priors.WishartPrior(0.5), smi.priors.ProductPrior(1.0, 0.5)):
    _name = type(_spectral.law).__name__.replace("Law", "Prior")
    for _method in ("overlap", "mmse"):
        case(
            f"{_name}.{_method}",
            getattr(_spectral, _method),
            {"Qhat": 1.0},
            Qhat="non-negative array",
        )
    case(
        f"{_name}.denoise",
        _spectral.denoise,
        {"R": np.eye(4), "qhat": 1.0},
        R="array",
        qhat="positive",
    )
for _model, _label in ((LINEAR, [1.0]), (SIGN, 1.0), (ATTENTION, np.full((2, 2), 0.5))):
    _P, _M = _model.indices, _model.tokens
    case(
        f"channel.posterior of {title(_model)}",
        _model.channel.posterior,
        {"y": _label, "omega": np.zeros((_P, _M)), "V": np.eye(_P)},
        {"y": ("labels",)},
        y="array",
        omega="array",
        V="array",
    )
