"""The public border: a small valid call of every public function, and what each argument may be.

`CASES` is written down beside the signatures, not read from them: what an argument may be is said
here in words of this file, independently of the predicates of the package. `judge` calls a case
with one argument replaced and says what became of it; `fuzz.py` does so for all of them and prints
a table, `unit/test_border.py` holds it.
"""

import dataclasses
import itertools
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.core import programs
from jaxsmi.core.arrays import concrete
from jaxsmi.sgd.runs import Simulation

matplotlib.use("Agg")

# What an argument is replaced by -------------------------------------------------------------

VALUES: dict[str, object] = {
    "None": None,
    "a word": "nonsense",
    "digits": "2",
    "NaN": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "0": 0,
    "0.5": 0.5,
    "2.0": 2.0,
    "1e300": 1e300,
    "10**30": 10**30,
    "True": True,
    "an empty list": [],
    "one number": np.array([2]),
    "two numbers": np.array([0.5, 0.25]),
    "an array (3, 5, 7)": np.zeros((3, 5, 7)),
    "NaNs": np.full(2, np.nan),
    "1j": 1j,
    "complex numbers": np.array([1j, 1j]),
    "an object": object(),
    "a mapping": {},
    "a class": dict,
    "a function of nothing": lambda: None,
    "a list of words": ["a"],
    "an old key": np.array([0, 1], np.uint32),
}
_LARGE = {"1e300", "10**30"}
_ARRAYS = {"one number", "two numbers", "an array (3, 5, 7)"}
_REAL = {"-1", "0", "0.5", "2.0", "1e300", "10**30", "an old key", *_ARRAYS}
_CALLABLE = {"a class", "a function of nothing"}

# what may be accepted, by kind of argument; "kind?" also takes None. Of arrays it depends on the
# other arguments: a refusal by name is as right as an answer.
KINDS: dict[str, set[str]] = {
    "count": set(),
    "count from 0": {"0"},
    "dimension": {"10**30"},
    "positive": {"0.5", "2.0", *_LARGE},
    "non-negative": {"0", "0.5", "2.0", *_LARGE},
    "non-negative or inf": {"0", "0.5", "2.0", "inf", *_LARGE},
    "fraction": {"0", "0.5"},
    "open unit": {"0.5"},
    "cosine": {"0.5"},
    "positive fraction": {"0.5"},
    "real": {"-1", "0", "0.5", "2.0", *_LARGE},
    "array": _REAL,
    "overlap": {"0", "0.5", "two numbers", "an array (3, 5, 7)"},
    "positive array": {"0.5", "2.0", "one number", "two numbers", *_LARGE},
    "non-negative array": {"0", "0.5", "2.0", "an old key", *_LARGE, *_ARRAYS},
    "fractions": {"0", "0.5", "two numbers"},
    "flag": {"True"},
    "key": {"an old key"},
    "cosines": {"-1", "0", "0.5", "two numbers"},
    "positive or inf": {"0.5", "2.0", "inf", *_LARGE},
    "zero": {"0"},
    "zeros": {"0", "an array (3, 5, 7)"},
    "list": {"an empty list"},
    "file": set(),
    "object": set(),
    "choice": set(),
    "name": {"a word", "digits"},
    "function": _CALLABLE,
    "sequence": set(),
    "mapping": {"a mapping"},
    "integer": {"-1", "0", "10**30"},
    "type": {"a class"},
    "seeds": {"one number", "an old key"},
    "tree": {*_REAL, "a mapping", "an empty list"},
    "texts": {"a list of words", "an empty list"},
    "start": {"0.5", "2.0", *_LARGE, "an array (3, 5, 7)", "two numbers"},
}


def allowed(kind: str, label: str) -> bool:
    """Whether an argument of a kind may be replaced by a value."""
    return label in KINDS[kind.removesuffix("?")] or (kind.endswith("?") and label == "None")


# What becomes of a call ----------------------------------------------------------------------


class Started(BaseException):
    """The call has begun to compute: all that is looked at was looked at."""


class Late(BaseException):
    """The call took more time of the processor than it was given."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`word`: clear, accepted, below, silent or slow; and what was said."""

    word: str
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A public call: the function, arguments of a small valid call, the kind of each argument, and
    by which other names a message may call it."""

    call: Callable
    valid: Mapping[str, object]
    kinds: Mapping[str, str]
    others: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def names(self, name: str) -> set[str]:
        return {name, *self.others.get(name, ())}


def _started(arguments: object) -> bool:
    """In place of `concrete`, which every program asks: its start, but for moments of a prior, with
    which arguments are compared."""
    if sys._getframe(2).f_code.co_name in ("second_moment", "known"):
        return concrete(arguments)
    raise Started


def run(call: Callable, seconds: float) -> object:
    """The answer of a call that is stopped where a program of the package is entered (its compiler
    is not asked), and after some time."""

    def late(*_: object) -> None:
        raise Late

    previous = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)  # again, where it fell into a callback
    try:
        with mock.patch.object(programs, "concrete", _started):
            return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, previous)


def judge(case: Case, name: str | None, value: object, fine: bool, seconds: float = 2.0) -> Verdict:
    """What becomes of a call with one argument replaced (None: the valid call), where the value may
    be accepted (`fine`) or not."""
    given = dict(case.valid) if name is None else {**case.valid, name: value}
    try:
        answer = run(lambda: case.call(**given), seconds)
    except (Started, RecursionError):  # JAX calls itself where a trace was left before its end
        return Verdict("accepted" if fine else "silent", "computes")
    except Late:
        return Verdict("accepted" if fine else "slow", f"runs for more than {seconds} s")
    except Exception as error:
        return _of(error, case, name)
    if fine:
        return Verdict("accepted", type(answer).__name__)
    return Verdict("silent", " ".join(repr(answer).split())[:100])


def _of(error: Exception, case: Case, name: str | None) -> Verdict:
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message[:140]} ({last.filename[-40:]}:{last.lineno})"
    if isinstance(error, OSError) and name is not None and case.kinds[name] == "file":
        return Verdict("clear", said)  # it names the file
    ours = type(error) in (ValueError, TypeError) and "/jaxsmi/" in last.filename
    head = set(re.findall(r"\w+", message.split("; allowed")[0].split("got")[0]))
    clear = name is not None and ours and head & case.names(name) and "allowed:" in message
    return Verdict("clear" if clear else "below", said)


def calls(cases: Mapping[str, Case]) -> Iterator[tuple[str, str, str]]:
    """Case, argument and label of every replacement."""
    for title, case in cases.items():
        for name, label in itertools.product(case.kinds, VALUES):
            yield title, name, label


# A small valid call of everything that is public ---------------------------------------------

KEY = jax.random.key(0)
LINEAR, SIGN = smi.links.linear(0.5), smi.links.sign()
ATTENTION = smi.DeepAttention(2, 2)
SCORES, RECTANGLE = smi.AttentionIndexed(2, 0.5), smi.Bilinear(1.0, 0.5)
TWO_WIDE = smi.links.square_plus_sign_parity()
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((12, 1, 6))
TEACHER = RANDOM.standard_normal((1, 6))
DATA = smi.Dataset(INPUTS, INPUTS @ TEACHER[0], TEACHER)
ONE_LABEL = smi.Dataset(INPUTS, INPUTS[:, 0] @ TEACHER[0][:, None], TEACHER)
WIDE = smi.Dataset(RANDOM.standard_normal((9, 6, 6)), np.ones(9), np.eye(6))
SERIES = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
NETWORK = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
SEQUENCE = smi.SequenceSingleIndex(SERIES, 1, NETWORK, loss_factor=1.0)
SEMANTIC = smi.sgd.semantic_positional(0.5)
GAUSSIAN = smi.priors.Gaussian()
ADAM = optax.adam(0.1)


def first(z):
    return z[0, 0]


def squared_loss(prediction, label):
    return jnp.sum((prediction - label) ** 2)


def solution(model, weights, cosine=True):
    """A solution as `train` and `gamp` return it, made by hand."""
    runs = weights.shape[:-2]
    P = weights.shape[-2]
    steps = np.arange(4.0)
    history = {"step": np.broadcast_to(steps, (*runs, 4))}
    if cosine:
        history["cosine"] = np.broadcast_to(np.linspace(0, 1, 4)[:, None], (*runs, 4, P))
    square = np.broadcast_to(0.5 * np.eye(P), (*runs, P, P))
    number = np.full(runs, 0.5)
    return smi.Solution(
        overlap=jnp.asarray(square),
        stderr=jnp.asarray(square),
        error=jnp.asarray(number),
        alpha=jnp.asarray(number),
        steps=jnp.asarray(np.full(runs, 4)),
        residual=jnp.asarray(number),
        result=jnp.asarray(np.zeros(runs, int)),
        history=jax.tree.map(jnp.asarray, history),
        covariance=jnp.asarray(square),
        rho=jnp.asarray(number),
        weights=jnp.asarray(weights),
        model=model,
        kind="train",
    )


SOLVED = solution(LINEAR, TEACHER)
RUNS = solution(SCORES, RANDOM.standard_normal((3, 6, 6)))
FOUND = smi.Threshold(*(jnp.asarray(x) for x in (1.0, 0.1, [1.0], [[1.0]], [[0.0]], 0)))

CASES: dict[str, Case] = {}


def case(title, call, valid, others=None, /, **kinds):
    CASES[title] = Case(call, valid, kinds, others or {})


_SIZES = {"model": LINEAR, "key": KEY}
_PRIOR = {"prior": "object?"}
_DATA = {"data": ("inputs", "labels")}
_FLOW = {
    "student": "object?",
    "decay": "non-negative",
    "projection": "choice?",
    "teacher": "array?",
    "encoding": "array?",
    "key": "key?",
    "samples": "count",
    "nets": "count",
    "rtol": "positive",
    "max_steps": "count",
    "gamma": "non-negative?",
}
_MQ = {"teacher": ("M",), "m": ("M", "Q", "e"), "e": ("m", "M", "Q"), "start": ("M", "Q")}

# models
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
_NOISY = {"noise": "non-negative", **_PRIOR}
case("links.absolute", smi.links.absolute, {}, **_NOISY)
case("links.door", smi.links.door, {}, width="positive", **_PRIOR)
case("links.hard_tanh", smi.links.hard_tanh, {}, **_NOISY)
case("links.linear", smi.links.linear, {}, tokens="count", **_NOISY)
case("links.logistic", smi.links.logistic, {}, beta="positive", **_PRIOR)
case("links.phase_retrieval", smi.links.phase_retrieval, {}, squared="flag", **_PRIOR)
case(
    "links.piecewise_linear",
    smi.links.piecewise_linear,
    {"slopes": [0.0, 1.0], "offsets": [0.0, 0.0], "knots": [0.0]},
    {"slopes": ("offsets",)},
    slopes="array",
    offsets="array",
    knots="array",
    name="name",
    **_NOISY,
)
case("links.poisson", smi.links.poisson, {}, size="positive", tolerance="positive?", **_PRIOR)
case("links.product", smi.links.product, {}, k="count", **_PRIOR)
case("links.relu", smi.links.relu, {}, leak="real", **_NOISY)
case("links.sign", smi.links.sign, {}, **{**_NOISY, "noise": "non-negative or inf"})
case("links.sign_product", smi.links.sign_product, {}, k="count", **_PRIOR)
case("links.softmax", smi.links.softmax, {}, classes="count", tolerance="positive?", **_PRIOR)
case("links.square_plus_sign_parity", smi.links.square_plus_sign_parity, {}, **_PRIOR)
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
    samples="count",
)

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
    case(
        f"{_name}.log_partition",
        _prior.log_partition,
        {"b": np.ones(1), "A": np.ones((1, 1))},
        {"b": ("A",)},
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
        {"key": KEY, "W": np.ones((1, 3)), "strength": 0.5},
        key="key",
        W="array",
        strength="fraction",
    )
for _spectral in (smi.priors.WishartPrior(0.5), smi.priors.ProductPrior(1.0, 0.5)):
    _name = type(_spectral).__name__
    for _method in ("overlap", "mmse"):
        case(
            f"{_name}.{_method}",
            getattr(_spectral, _method),
            {"Qhat": 1.0},
            Qhat="non-negative array",
        )
    case(
        f"{_name}.mutual_information",
        _spectral.mutual_information,
        {"qhat": 1.0},
        qhat="positive",
    )
    case(
        f"{_name}.denoise",
        _spectral.denoise,
        {"R": np.eye(4), "qhat": 1.0},
        R="array",
        qhat="positive",
    )
case(
    "WishartPrior.sample",
    smi.priors.WishartPrior(0.5).sample,
    {"key": KEY, "dimension": 4},
    key="key",
    dimension="count",
)
for _model, _label in ((LINEAR, [1.0]), (SIGN, 1.0), (ATTENTION, np.full((2, 2), 0.5))):
    _P, _M = _model.indices, _model.tokens
    case(
        f"channel.posterior of {_model.title}",
        _model.channel.posterior,
        {"y": _label, "omega": np.zeros((_P, _M)), "V": np.eye(_P)},
        {"y": ("labels",)},
        y="array",
        omega="array",
        V="array",
    )

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
    _DATA,
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
    _DATA,
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
    _DATA,
    model="object",
    data="object",
    key="key",
    learner="object?",
    max_steps="count",
    tolerance="positive",
    damping="fraction?",
    precision="choice?",
    calibrate="flag?",
    init="start?",
    side_information="fraction",
    record="function?",
    state="object?",
    progress="flag?",
)
case(
    "gamp of a matrix",
    smi.gamp,
    {"model": RECTANGLE, "data": WIDE, "key": KEY},
    _DATA,
    data="object",
    key="key",
    learner="object?",
    max_steps="count",
    tolerance="positive",
    damping="fraction?",
    init="start?",
    record="function?",
    state="object?",
)
case(
    "state_evolution",
    smi.state_evolution,
    {"model": LINEAR, "alpha": 1.0, "key": KEY},
    model="object",
    alpha="positive",
    key="key",
    learner="object?",
    q0="overlap?",
    m0="object?",
    v0="object?",
    b0="object?",
    samples="count?",
    randomisations="count?",
    max_steps="count",
    tolerance="positive?",
    newton="flag",
    side_information="fraction",
    noises="positive array?",
    progress="flag?",
)
case(
    "state_evolution of a learner",
    smi.state_evolution,
    {"model": LINEAR, "alpha": 1.0, "key": KEY, "learner": smi.Erm()},
    {"q0": ("m0",)},
    alpha="positive",
    key="key",
    learner="object?",
    q0="positive array?",
    m0="array?",
    v0="positive array?",
    b0="array?",
    samples="count?",
    randomisations="count?",
    max_steps="count",
    tolerance="positive?",
    side_information="fraction",
)
case(
    "state_evolution of a matrix",
    smi.state_evolution,
    {"model": SCORES, "alpha": 0.2},
    {"alpha": ()},
    alpha="positive",
    key="key?",
    learner="object?",
    q0="object?",
    samples="object?",
    randomisations="object?",
    max_steps="count",
    tolerance="object?",
    newton="flag",
    side_information="zero",
    progress="flag?",
)
case(
    "free_entropy",
    smi.free_entropy,
    {"model": LINEAR, "alpha": 1.0, "overlap": 0.5, "key": KEY},
    model="object",
    alpha="positive",
    overlap="overlap",
    key="key",
    samples="count",
    randomisations="count",
)
case(
    "free_entropy of a matrix",
    smi.free_entropy,
    {"model": SCORES, "alpha": 1.0, "overlap": 0.5},
    model="object",
    alpha="positive",
    overlap="overlap",
    key="key?",
    samples="count",
    randomisations="count",
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
    samples="count?",
    randomisations="count?",
    max_steps="count",
    progress="flag?",
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
    samples="count?",
    randomisations="count?",
    optimizer="object?",
    max_steps="count",
    tolerance="positive",
    progress="flag?",
)
case(
    "spectral",
    smi.spectral,
    {
        "model": smi.links.phase_retrieval(),
        "data": smi.Dataset(INPUTS, np.abs(INPUTS[:, 0] @ TEACHER[0])),
        "key": KEY,
    },
    _DATA,
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
    samples="count",
    randomisations="count",
)

# thresholds
case(
    "first_order",
    smi.first_order,
    {"model": LINEAR, "key": KEY},
    {"alpha_min": ("alpha_max",), "alpha_max": ("alpha_min",)},
    model="object",
    key="key",
    alpha_min="positive",
    alpha_max="positive",
    points="count",
    samples="count",
    replicas="count",
    max_steps="count",
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
    samples="count",
    replicas="count",
    optimizer="object?",
    max_steps="count",
    tolerance="positive",
    progress="flag?",
)
case(
    "staircase",
    smi.staircase,
    {"model": smi.links.phase_retrieval(), "key": KEY},
    model="object",
    key="key",
    alpha_max="positive",
    samples="count",
    replicas="count",
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
    samples="count",
    randomisations="count",
    noises="positive array?",
)
case("Threshold.interval", FOUND.interval, {}, confidence="open unit")

# descent
case(
    "train",
    smi.train,
    {"model": LINEAR, "data": ONE_LABEL, "optimizer": ADAM, "key": KEY, "steps": 2},
    _DATA,
    model="object",
    data="object",
    optimizer="object",
    key="key",
    steps="count",
    batch_size="count?",
    reduction="choice",
    loss="function",
    init="array",
    test="object?",
    record="function?",
    stop="object?",
    state="object?",
    progress="flag?",
)
_TRAINED = {"model": LINEAR, "data": ONE_LABEL, "optimizer": ADAM, "key": KEY, "steps": 2}
case(
    "Batches",
    lambda **given: smi.train(**_TRAINED, batch_size=smi.Batches(**given)),
    {"size": 4},
    {"size": ("batch_size",), "repeats": (), "one_pass": ()},
    size="count?",
    one_pass="flag",
    repeats="count",
)
case(
    "Stop",
    lambda **given: smi.train(**_TRAINED, stop=smi.Stop(**given), test=ONE_LABEL),
    {"patience": 2},
    patience="count?",
    target="cosine?",
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
    _DATA,
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
    _DATA,
    model="object",
    data="object",
    tolerance="positive",
    max_steps="count",
)

# sgd
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
        _MQ,
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
    _MQ,
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
    _MQ,
    model="object",
    m="object",
    e="zeros",
    times="non-negative array",
    rate="non-negative?",
    loss="function?",
    **{**_FLOW, "key": "key"},
)
case(
    "sgd.flow of a sequence",
    smi.sgd.flow,
    {"model": SEQUENCE, "m": 0.1, "times": [0.5]},
    _MQ,
    model="object",
    m="cosines",
    e="cosines",
    times="non-negative array",
    rate="non-negative?",
    loss="object?",
    **{**_FLOW, "teacher": "object?", "encoding": "object?"},
)
case(
    "sgd.recovery_time",
    smi.sgd.recovery_time,
    {"model": LINEAR, "m": ([[0.1]], [[1.0]]), "key": KEY},
    _MQ,
    model="object",
    m="object",
    e="zeros",
    rate="non-negative?",
    level="open unit?",
    longest="positive",
    loss="function?",
    eta="open unit?",
    **{**_FLOW, "key": "key"},
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
    _MQ,
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
    {**_MQ, "init": ("M", "Q"), "alpha": ("steps",), "gamma": ("rate",), "eta": ("level",)},
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
    {**_MQ, "init": ("M", "Q"), "alpha": ("steps",), "gamma": ("rate",), "eta": ("level",)},
    gamma="positive array",
    m="cosines?",
    e="cosines",
    eta="open unit?",
    **{**_SIMULATE, "teacher": "object?", "encoding": "object?", "model": "object"},
)

# sweeps and text
case(
    "sweep",
    smi.sweep,
    {"build": lambda: LINEAR, "alpha": [1.0]},
    build="function",
    alpha="positive array",
    parameters="mapping?",
    key="integer",
    seeds="seeds",
    solver="function",
    settings="mapping?",
    out="name?",
    scheduler="object?",
    progress="flag?",
)
QUESTIONS = smi.text.synthetic_questions(60)
case(
    "text.Classifier",
    smi.text.Classifier,
    {"words": 5, "classes": 2, "key": KEY},
    words="count",
    classes="count",
    key="key",
    width="count",
    hidden="count",
    depth="count",
    skip="real",
)
case(
    "text.Vocabulary",
    smi.text.Vocabulary,
    {"texts": ["who is it"]},
    texts="texts",
    size="count?",
)
case(
    "text.Vocabulary.encode",
    smi.text.Vocabulary(["who"]).encode,
    {"texts": ["who"], "length": 3},
    texts="texts",
    length="count",
)
case(
    "text.classify",
    smi.text.classify,
    {"questions": QUESTIONS},
    questions="sequence",
    test="sequence?",
    key="key?",
    epochs="count",
    optimizer="object?",
    batch_size="count",
    width="count",
    hidden="count",
    depth="count",
    skip="real",
    max_length="count",
    records="count",
    progress="flag?",
)
with tempfile.NamedTemporaryFile("w", delete=False) as _file:
    _file.write("A who is it\nB what is it\n")
case("text.load", smi.text.load, {"path": _file.name}, path="file")
_TEXT_RUN = smi.text.TextRun(*([None] * 6), np.array([[0.0], [1.0]]), *([None] * 4))
_TEXT_RUN = _TEXT_RUN._replace(epoch=np.array([0.0, 1.0]), result=smi.Result.SUCCESS)
case("text.settled_at", smi.text.settled_at, {"run": _TEXT_RUN}, run="object")
case(
    "text.synthetic_questions",
    smi.text.synthetic_questions,
    {},
    count="count",
    seed="count from 0",
)
