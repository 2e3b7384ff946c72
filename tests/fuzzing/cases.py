"""Small valid calls of all public functions, and the kind of each of their arguments."""

import inspect

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

import jaxsmi as smi
from fuzzing.judging import Case

matplotlib.use("Agg")

KEY = jax.random.key(0)
LINEAR, SIGN, PHASE = smi.links.linear(0.5), smi.links.sign(), smi.links.phase_retrieval()
ATTENTION = smi.DeepAttention(2, 2)
SCORES, RECTANGLE = smi.AttentionIndexed(2, 0.5), smi.Bilinear(1.0, 0.5)
SYMMETRIC = smi.Bilinear(1.0, 0.5, symmetric=True)
SQUARE = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1)
NOISY = smi.MultiIndex(lambda z: z[0, 0], indices=1, noise=0.1)
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((12, 1, 6))
TEACHER = RANDOM.standard_normal((1, 6))
DATA = smi.Dataset(INPUTS, INPUTS @ TEACHER[0], TEACHER)
COLUMN = smi.Dataset(INPUTS, INPUTS[:, 0] @ TEACHER[0][:, None], TEACHER)
MODULI = smi.Dataset(INPUTS, np.abs(INPUTS[:, 0] @ TEACHER[0]))
WIDE = smi.Dataset(RANDOM.standard_normal((9, 6, 6)), np.ones(9), np.eye(6))
MADE = smi.Dataset(WIDE.inputs, WIDE.labels, np.eye(6), RECTANGLE)
SERIES = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
NETWORK = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
SEQUENCE = smi.SequenceSingleIndex(SERIES, 1, NETWORK, loss_factor=1.0)
ADAM = optax.adam(0.1)
ONE = np.eye(1)
PAIR = ([[0.1]], [[1.0]])  # M and Q

# What a message may call an argument by, besides its name.
PARTS = {
    "data": ("inputs", "labels"),
    "encoding": ("directions",),
    "solution": ("inputs",),
    "log_likelihood": ("link", "output", "noise"),
    "link": ("log_likelihood", "channel"),
    "output": ("link",),
    "overlaps": ("M", "Q"),
}

# The names of arguments of a kind, unless a case says otherwise. One whose default is None may be
# None, too.
NAMES = {
    "array":
        "A b covariance cross direction_overlap directions encoding gram inputs labels outcomes "
        "Qhat signal teacher teacher_overlap variance weights x y",
    "count":
        "degree depth dimension every heads indices layers length max_nodes max_steps "
        "max_thresholds nets patience points ranks repeats samples seeds steps tokens",
    "object":
        "averages channel data fit gradient iteration learner mesh model monitor prior student "
        "test whitening",
    "flag":
        "bayes calibrate convex generative normalised positive quick squared store symmetric "
        "tied",
    "function": "build function link log_likelihood loss output prox record sampler starts target",
    "positive": "alpha alpha_max beta rank_ratio threshold tolerance",
    "non-negative": "l1 noise nuclear rate ridge",
    "non-negative array": "penalty skip times",
    "choice": "activation objective",
    "flag?": "progress",
    "fraction": "strength",
    "key": "key",
    "name": "name",
    "open unit": "level",
    "overlap": "overlap",
    "interval": "bounds",
    "positive array": "noises",
    "positive or inf": "aspect_ratio",
    "real": "leak",
    "type": "dtype",
}  # fmt: skip
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}

CASES = {}


def case(call, valid, others=(), **kinds):
    """Add a call: valid arguments, names of what messages may blame instead, and kinds of
    arguments that are not those of `KINDS` (None: the argument is not varied)."""
    unknown = object()
    named = {}
    for name, argument in inspect.signature(call).parameters.items():
        if name == "self" or argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        kind = kinds.pop(name, KINDS.get(name, unknown))
        assert kind is not unknown, f"{call}: the kind of {name} is not known"
        if kind is not None:
            optional = argument.default is None and name not in valid
            named[name] = f"{kind.removesuffix('?')}?" if optional or kind[-1] == "?" else kind
    assert not kinds, f"{call} has no {kinds}"
    synonyms = {name: {*PARTS.get(name, ()), *dict(others).get(name, ())} for name in named}
    title = getattr(call, "__qualname__", type(call).__name__)
    CASES[f"{title} #{len(CASES)}"] = Case(call, valid, named, synonyms)


# Data and settings
case(smi.Dataset, {"inputs": INPUTS, "labels": np.ones(12)}, {"inputs": ("labels",)})
case(DATA.first, {"samples": 3})
case(DATA.second_moments, {})
case(DATA.sharded, {})
case(DATA.whiten, {}, tokens="array")
case(DATA.standardise, {})
case(DATA.whiten(np.eye(6)).unwhiten, {"weights": TEACHER})
case(DATA.whiten(np.eye(6)).whitened, {"inputs": INPUTS})
case(smi.Stream, {"model": LINEAR, "teacher": TEACHER})
case(smi.Stream(LINEAR, TEACHER).draw, {"key": KEY, "samples": 3})
case(smi.Averages, {})
case(smi.Bayes, {}, precision="choice")
case(smi.Iteration, {}, damping="fraction", newton="flag")
case(smi.Start, {}, overlap="array", weights=None, side_information="fraction")
case(smi.Record, {})

# Priors and channels
case(smi.priors.Gaussian, {})
case(smi.priors.BernoulliGauss, {"density": 0.5}, density="positive fraction")
MIXTURE = {"weights": [1.0], "means": [0.5], "scales": [0.5]}
case(
    smi.priors.GaussianMixture, MIXTURE, {"weights": ("means",)},
    means="array", scales="array", mirrored="flag",
)  # fmt: skip
case(smi.priors.GaussianProfile, {"variances": [1.0, 2.0]}, variances="positive array")
case(smi.priors.power_law, {"dimension": 6, "exponent": 1.5}, exponent="real")
case(smi.priors.ProductPrior, {"aspect_ratio": 1.0, "rank_ratio": 0.5})
case(smi.priors.WishartPrior, {"rank_ratio": 0.5})
SPECTRUM = {"eigenvalues": np.arange(3.0), "weights": np.ones(3)}
case(smi.priors.Spectrum, SPECTRUM, eigenvalues="non-negative array", weights="array?")
for prior in (
    smi.priors.Gaussian(),
    smi.priors.Rademacher(),
    smi.priors.BernoulliGauss(0.5),
    smi.priors.GaussianMixture(**MIXTURE),
    smi.priors.GaussianProfile([1.0, 2.0, 0.5]),
):
    case(prior.sample, {"key": KEY, "indices": 1, "dimension": 3})
    case(prior.posterior, {"b": np.ones((1, 3)), "A": ONE})
    case(prior.second_moment, {"indices": 1})
    case(prior.side_information, {"key": KEY, "signal": np.ones((1, 3)), "strength": 0.5})
    for method in (prior.overlap, prior.mmse, prior.free_entropy):
        case(method, {"Qhat": ONE})
for prior in (smi.priors.WishartPrior(0.5), smi.priors.ProductPrior(1.0, 0.5)):
    case(prior.overlap, {"Qhat": 1.0}, Qhat="non-negative array")
    case(prior.mmse, {"Qhat": 1.0}, Qhat="non-negative array")
for model, label in ((LINEAR, [1.0]), (SIGN, 1.0), (ATTENTION, np.full((2, 2), 0.5))):
    fields = {"omega": np.zeros((model.indices, model.tokens)), "V": np.eye(model.indices)}
    posterior = model.channel.posterior
    case(posterior, {"y": label} | fields, {"y": ("labels",)}, omega="array", V="array")

# Models
case(smi.AttentionIndexed, {"tokens": 2, "rank_ratio": 0.5}, skip="non-negative")
case(smi.Bilinear, {})
case(smi.DeepAttention, {"depth": 2, "tokens": 2})
case(
    smi.MultiIndex, {"link": lambda z: z[0, 0], "indices": 1, "noise": 0.1},
    inputs="object", symmetry="list",
)  # fmt: skip
case(
    smi.SequenceSingleIndex, {"target": SERIES, "length": 1},
    student="function", loss_factor="positive", loss="choice",
)  # fmt: skip
case(smi.Tokens, {"encoding": [[1.0], [0.5]]})
for link in ("absolute", "hard_tanh", "linear", "phase_retrieval", "relu", "logistic",
             "square_plus_sign_parity"):  # fmt: skip
    case(getattr(smi.links, link), {})
case(smi.links.door, {}, width="positive", flip="fraction")
case(smi.links.poisson, {}, size="positive")
case(smi.links.product, {}, k="count")
case(smi.links.sign, {}, noise="non-negative or inf", flip="fraction")
case(smi.links.sign_product, {}, k="count")
case(smi.links.sign_committee, {"k": 3}, k="count", vote="choice", flip="fraction")
case(smi.links.softmax, {}, classes="count")
PIECES = {"slopes": [0.0, 0.0], "offsets": [-1.0, 1.0], "knots": [0.0]}
case(
    smi.links.piecewise_linear, PIECES, {"slopes": ("offsets",)},
    slopes="array", offsets="array", knots="array", flip="fraction",
)  # fmt: skip
# a teacher: directions are looked at beside it, and it would be drawn first
for model, given in ((LINEAR, {"teacher": TEACHER}), (SCORES, {})):
    sizes = {"key": KEY, "dimension": 6, "alpha": 0.5} | given
    case(model.sample, sizes, directions="object", teacher="array?", inputs="choice")
# bayes: of a solution with a covariance only
case(LINEAR.predict, {"solution": TEACHER, "inputs": INPUTS}, solution="array", bayes=None)
RUN = smi.Solution(*[None] * 8, 0.5 * ONE, None, weights=TEACHER, kind="gamp")
case(SIGN.predict_proba, {"solution": RUN, "inputs": INPUTS}, solution=None)
WIDE_CALL = {"solution": np.eye(6), "inputs": WIDE.inputs}
case(RECTANGLE.predict, WIDE_CALL, solution="array", bayes=None)
for model in (SCORES, SYMMETRIC):
    case(model.small_width_error, {"scaled": 0.5}, scaled="non-negative array")
case(smi.align, {"estimate": TEACHER, "teacher": TEACHER, "model": LINEAR}, estimate="array")
OVERLAP = {"model": LINEAR, "overlap": 0.5, "key": KEY}
case(smi.generalization_error, OVERLAP)

# Learners
case(smi.Erm, {}, ridge="non-negative array")
case(smi.Erm(LINEAR).risk, {"weights": TEACHER, "data": COLUMN})
case(smi.MatrixErm, {"ridge": 0.1}, {"nuclear": ("ridge",)})
case(smi.MatrixErm.of_weight_decay, {"student": SYMMETRIC, "decay": 0.1}, decay="positive")
case(smi.MatrixErm(0.1).risk, {"weights": np.eye(6), "data": MADE})
case(smi.Mismatched, {"student": LINEAR})
LOSSES = (
    smi.losses.hinge, smi.losses.logistic, smi.losses.misclassification, smi.losses.squared
)  # fmt: skip
for loss in LOSSES:
    # engines call them with numbers of their own
    case(loss, {"prediction": 0.5, "label": 1.0}, prediction=None, label=None)
SCORED = {"prediction": np.zeros(3), "label": 1.0}
case(smi.losses.cross_entropy, SCORED, prediction=None, label=None)
case(smi.losses.huber, {})
case(smi.losses.quantile, {})

# Message passing and theory
case(smi.gamp, {"model": LINEAR, "data": COLUMN, "key": KEY}, start="start")
case(smi.gamp, {"model": RECTANGLE, "data": WIDE, "key": KEY}, start="start", model=None)
POINT = {"model": LINEAR, "alpha": 1.0, "key": KEY}
case(smi.state_evolution, POINT, start="overlap")
case(
    smi.state_evolution, POINT | {"learner": smi.Erm()},
    {"start": ("teacher_overlap", "overlap")}, start="positive array?", model=None,
    learner="object?",
)  # fmt: skip
case(smi.state_evolution, {"model": SCORES, "alpha": 0.2}, start="object", model=None)
LINE = {"model": LINEAR, "alphas": [1.0], "key": KEY}
case(smi.curve, LINE, alphas="positive array", start="overlap")
NOISES = {"noises": (0.1, 0.05, 0.025, 0.0125)}
case(smi.noiseless_limit, POINT | {"model": SQUARE} | NOISES, start="overlap")
case(smi.free_entropy, POINT | {"overlap": 0.5})
case(smi.free_entropy, {"model": SCORES, "alpha": 1.0, "overlap": 0.5})
case(smi.global_minimum, POINT | {"learner": smi.Erm()}, starts="sequence")
RIDGE = {"build": lambda ridge: smi.Erm(ridge=ridge), "start": 0.1}
case(smi.search_learner, POINT | RIDGE, {"start": ("ridge", "build")}, start="tree")
case(
    smi.spectral, {"model": PHASE, "data": MODULI, "key": KEY},
    regularisation="open unit", estimate_norm="flag",
)  # fmt: skip
case(smi.spectral_overlap, POINT | {"model": PHASE})

# Thresholds
case(smi.first_order, {"model": LINEAR, "key": KEY}, alpha="positive array")
case(smi.recovery_threshold, {"model": ATTENTION})
case(
    smi.search_threshold, {"build": smi.links.linear, "start": 0.1, "key": KEY},
    {"start": ("noise", "build")}, start="tree", step="count from 0", target="positive",
)  # fmt: skip
case(smi.staircase, {"model": PHASE, "key": KEY}, guess="list")
case(smi.weak_recovery, {"model": PHASE, "key": KEY})
THRESHOLD = smi.Threshold(*(jnp.asarray(x) for x in (1.0, 0.1, [1.0], [[1.0]], [[0.0]], 0)))
case(THRESHOLD.interval, {}, confidence="open unit")


# Training
def _solution(model, weights):
    """A solution of `train`, made by hand."""
    *runs, P, _ = weights.shape
    square = jnp.broadcast_to(0.5 * jnp.eye(P), (*runs, P, P))
    number = jnp.full(runs, 0.5)
    history = {
        "step": jnp.broadcast_to(jnp.arange(4.0), (*runs, 4)),
        "cosine": jnp.broadcast_to(jnp.linspace(0, 1, 4)[:, None], (*runs, 4, P)),
    }
    names = ("error", "alpha", "steps", "residual", "spectral_radius")
    return smi.Solution(
        **dict.fromkeys(names, number), overlap=square, stderr=square, covariance=square,
        history=history, result=jnp.zeros(runs, int), weights=jnp.asarray(weights), model=model,
        kind="train",
    )  # fmt: skip


RUNS = _solution(SCORES, RANDOM.standard_normal((3, 6, 6)))
case(smi.train, {"model": LINEAR, "data": COLUMN, "optimizer": ADAM, "key": KEY, "steps": 2},
     optimizer="object", start="array")  # fmt: skip
case(smi.Gradient, {}, reduction="choice", batch_size="open unit", order="choice")
case(smi.Monitor, {}, target="cosine", progress="flag")
case(smi.averaged, {"fit": RUNS, "teacher": np.eye(6)}, {"fit": ("model",)})
case(smi.learned_at, {"solution": _solution(LINEAR, TEACHER)}, solution="sequence")
METHODS = {"model": LINEAR, "data": COLUMN, "methods": {"gamp": {}}, "key": KEY}
case(smi.learning_order, METHODS, methods="object")
PENALTY = {"alpha": 1.0, "penalty": 0.1}
case(smi.baselines.ridge_error, PENALTY, alpha="non-negative array", noise="non-negative array")
case(smi.baselines.nuclear_norm_threshold, {"aspect_ratio": 1.0, "rank_ratio": 0.5})
case(smi.baselines.minimum_nuclear_norm, {"model": RECTANGLE, "data": WIDE})

# Online SGD
SGD = smi.sgd
case(SGD.Attention, {}, reduction="choice", trace_norm="choice")
case(SGD.HermiteSeries, {"terms": {(2,): 1.0}}, terms="object")
case(SGD.Network, {}, activation="function")
case(
    SGD.semantic_positional, {"omega": 0.5},
    omega="fraction", a="positive fraction", loss_factor="positive", loss="choice",
)  # fmt: skip
case(
    SGD.Rule, {"rate": 0.1}, rate="non-negative array", momentum="fraction",
    weight_decay="non-negative", projection="choice",
)  # fmt: skip
FIRST = {"function": lambda z: z[0], "length": 1, "degree": 2}
case(SGD.coefficients, FIRST, degree="count from 0", shift="real")
EITHER = {"model": ("target", "length"), "length": ("target", "model")}
MODEL = {"model": LINEAR, "key": KEY}
case(SGD.exponents, MODEL, EITHER, length="object", student="function", key="key?")
case(SGD.exponents, {"model": SERIES, "length": 1}, EITHER, model="function", student="function")
case(SGD.flatness, {"model": SEQUENCE}, order="count")
for at in (SGD.risk, SGD.averages, SGD.hessian):
    kind = "cosines" if at is SGD.hessian else "cosines?"
    case(at, {"model": SEQUENCE, "overlaps": 0.1}, overlaps=kind)
for at in (SGD.risk, SGD.averages):
    case(at, MODEL | {"overlaps": PAIR}, overlaps="object")
STARTS = {"start": ("M", "Q", "teacher", "overlaps")}
case(SGD.flow, MODEL | {"start": PAIR, "times": [0.5]}, STARTS, start="object")
case(SGD.flow, {"model": SEQUENCE, "start": 0.1, "times": [0.5]}, STARTS, start="cosines")
MATRIX = {"model": SCORES, "key": KEY, "start": 0.8, "times": [0.1]}
case(SGD.flow, MATRIX, STARTS, start="positive?")
FINITE = MODEL | {"alpha": 1.0, "start": PAIR, "rate": 0.1, "steps": 2}
case(smi.descent_theory, FINITE, STARTS, start="object", rate="non-negative array")
case(SGD.recovery_time, MODEL | {"start": PAIR}, STARTS, start="object")
case(SGD.rates, MODEL | {"model": PHASE}, overlap="positive array")
case(SGD.maximal_rate, MODEL | {"model": smi.links.linear(0.0)})
for model, kind in ((LINEAR, "positive?"), (SEQUENCE, "cosines?")):
    settings = {"model": model, "key": KEY, "dimension": 50, "rate": 0.1, "alpha": 0.1}
    start = {"start": kind, "dimension": "dimension", "rate": "positive array"}
    case(SGD.simulate, settings, STARTS, **start)
# the call that starts there knows the shapes
case(SGD.Initial, {}, student=None, teacher=None)

# Files and sweeps
case(smi.save, {"item": (), "path": "x.nc"}, item=None, path=None)
case(smi.load, {"path": "x.nc"}, path=None, group=None)
case(
    smi.sweep, {"build": lambda: LINEAR, "alpha": [1.0]}, alpha="positive array",
    parameters="mapping", seeds="seeds", solver="function", out="name", scheduler="object",
)  # fmt: skip
