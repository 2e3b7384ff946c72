"""A model: a prior on a signal, a design that turns it into fields, a channel that draws labels.

    signal W ──design──▶ fields Z_μ ──channel──▶ labels y_μ

`AbstractModel` is the interface for message passing, theory, thresholds and training. Its parts are
separate objects: `prior`, `channel`, `design` (shapes, inputs, teachers), `student` (the
weights that are trained) and `metric` (overlaps and errors). A family is a constructor of these:
`IndexModel` of rows W (P, D), `MatrixModel` of one matrix.
"""

from __future__ import annotations

import abc
import warnings
from typing import Literal, NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import (
    array_module,
    concrete,
    missing_array,
    precision_of,
    theory_dtype,
    users_level,
)
from jaxsmi.core.data import Dataset, HasTeacher
from jaxsmi.core.display import constructor_repr
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Estimate, Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.design.designs import AbstractDesign
from jaxsmi.design.products import Inputs, draw_inputs, product_dtype, shifted, streams
from jaxsmi.models.symmetry import AbstractSymmetry, cosine_table
from jaxsmi.priors.base import AbstractPrior

RUN_POINTS = 2048  # inputs that the error of a run is averaged over
_PARITY_FIELDS = 64  # fields at which the parity of a link is tested
CENTRED = "one with a prior of mean zero (else some overlap exists from the start)"
_RUN_INPUTS = (
    "The overlap may be wrong, or the run diverge. print(data.second_moments(quick=True)) shows "
    "these numbers."
)
_NEW_INPUTS = "If the data of the run were standardised or whitened, pass data.whitened(inputs)."
_MODEL = (
    "a model with a prior and a channel, such as smi.DeepAttention(2, 2): the first argument, "
    "before data and α (for a SequenceSingleIndex: the functions of smi.sgd)"
)


def warn_of_inputs(model: AbstractModel, data: Dataset, consequence: str = _RUN_INPUTS) -> bool:
    """Warn of stored inputs that are not as message passing assumes; return True if they are not.

    Where second moments of a part of them are beyond chance (p < 1e-8 for each of six statistics)
    and off by more than 5 %, the warning says which, and the remedy. On iid inputs of a symmetric
    law that is a false alarm with a probability below 1e-7 [theory: inputs, section 3].
    """
    # regenerated inputs are iid by construction, and inside jit there are no numbers to look at
    if data.regenerated or not model.design.iid_inputs:
        return False
    if not concrete(data.inputs) or not data.stored_inputs.is_fully_addressable:
        return False
    message = data.second_moments(quick=True).message
    if message:
        assumed = "message passing assumes inputs of iid entries of mean zero and variance one"
        warnings.warn(
            f"{assumed}; these are not: {message}. {consequence}", stacklevel=users_level()
        )
    return bool(message)


def warn_of_labels(model: AbstractModel, data: Dataset) -> None:
    """Warn of labels with a mean that a link which is odd in its fields cannot give: five standard
    errors from zero, and a tenth of the size of a label."""
    labels = data.labels
    if (
        not concrete((labels, model))
        or not labels.is_fully_addressable
        or data.directions is not None
    ):
        return
    y = np.asarray(labels, float).reshape(len(labels), -1)
    mean, size = y.mean(), float(np.sqrt(np.mean(y**2)))
    if y.shape[1] > 1 or abs(mean) <= max(5.0 * y.std() / np.sqrt(len(y)), 0.1 * size):
        return
    _, fields = model.design.shapes(data.inputs.shape)
    if has_parity(model, fields[1:], -1.0):
        warnings.warn(
            f"the labels have mean {mean:.3g}, and this link has no intercept, so that its labels "
            "have mean 0: pass labels - labels.mean(), and add it to predictions, or write a link "
            "with an intercept",
            stacklevel=users_level(),
        )


def _warn_of_new_inputs(model: AbstractModel, solution: object, inputs: Array) -> None:
    """Warn of inputs to predict from that are not iid, unless those of the run were not, either."""
    # a run that `smi.load` reads has these names, too
    if getattr(solution, "kind", "") not in ("gamp", "spectral"):
        return
    result = getattr(solution, "result", None)
    known = inputs.shape[0] > 0 and concrete(result)
    if known and np.all(np.asarray(result) != Result.INPUTS):
        warn_of_inputs(model, Dataset(inputs, jnp.zeros(inputs.shape[0])), _NEW_INPUTS)


class Prediction(NamedTuple):
    """What the posterior says of the noiseless labels of new inputs.

    Attributes:
        mean: E[link(z)|ω] (N, ...), the prediction of least mean squared error.
        std: √Var[link(z)|ω] (N, ...), entry by entry of a label: the root mean square error that
            the posterior expects of `mean`. Label noise is not included.
    """

    mean: Array
    std: Array


class AbstractModel(eqx.Module):
    """A prior, a design and a channel (module docstring).

    P is the number of indices, rows of the overlap (P, P): rows of W, or the number of matrices.
    """

    prior: AbstractPrior
    channel: AbstractChannel

    @property
    @abc.abstractmethod
    def design(self) -> AbstractDesign:
        """Shapes, inputs and teachers of the data."""

    @property
    @abc.abstractmethod
    def student(self) -> AbstractStudent:
        """The weights that `train` moves."""

    @property
    @abc.abstractmethod
    def metric(self) -> AbstractMetric:
        """Overlaps and errors of an estimate."""

    @property
    @abc.abstractmethod
    def recovery_alpha(self) -> Array:
        """The α above which perfect recovery is stable (inf: never).

        Raises:
            ValueError: For a model of which it is unknown.
        """

    @property
    def indices(self) -> int:
        """P, the number of indices."""
        return self.channel.indices

    @property
    def index_names(self) -> tuple[str, ...]:
        """Names of the indices for tables: "index 1" and so on."""
        return tuple(f"index {p}" for p in range(1, self.indices + 1))

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Return one sentence, with the remedy, on why the model does not serve a purpose; None if
        it does.

        Purposes: "inference" (a posterior of the fields), "spectral" (rows W that a matrix of the
        inputs estimates), "directions" (that grow one by one: weak recovery, staircase),
        "averages" (estimates of several runs can be averaged).
        """
        return self.channel.unsupported_reason

    def link(self, fields: Array) -> Array:
        """Return the noiseless label of one sample from its fields."""
        return self.channel.link(fields)

    def sample(
        self,
        key: PRNGKeyArray,
        *,
        dimension: int,
        alpha: float,
        dtype: DTypeLike | None = None,
        teacher: ArrayLike | None = None,
        directions: ArrayLike | None = None,
        store: bool = True,
        inputs: str = "gaussian",
    ) -> Dataset:
        r"""Draw a teacher, inputs of iid entries, and their labels.

        The number of samples is N = round(α D) of an index model, round(α d²) of attention with
        one matrix, round(α d L) of bilinear regression.

        Args:
            key: A random key. The teacher depends on it and on D alone: independent data sets of
                several α take `jax.random.fold_in(key, k)`.
            dimension: D (matrices: d >= 2), the dimension of a token.
            alpha: Sample complexity, a number > 0: N/D for index models, n/d² or n/(dL) for
                matrices.
            dtype: Precision of the inputs: float64, float32 or bfloat16 (labels stay float64).
                Default: the precision of theory; float32 if inputs are not stored.
            teacher: A teacher to reuse: rows (P, D), factors (L r, d), or a matrix S (L, d).
                Default: drawn from the prior.
            directions: Directions U (K, D) to reuse, of a model with `inputs=smi.Tokens(..)`.
            store: False for inputs that are drawn again whenever they are read: memory for one
                block of them. N is then rounded to whole blocks: by less than 0.5 % from N = 10⁴
                on, of few samples by up to four.
            inputs: Law of the entries of the inputs, of mean zero and variance one: "gaussian",
                "rademacher" (±1), "uniform", or "sparse" (one in ten is not zero). Default
                "gaussian".

        Returns:
            A `Dataset`.

        Raises:
            ValueError: For arguments out of range, or a teacher of the wrong shape.

        Example:
            >>> import jax, jaxsmi as smi
            >>> smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0).inputs.shape
            (100, 1, 50)

        Cost:
            N·M·D random numbers, and one pass over them.
        """
        design, student = self.design, self.student
        key = validate.key("key", key)
        dimension = validate.count("dimension", dimension, design.least_dimension)
        # α by itself first: N = α n of a huge α is no integer, and could not be named in a message
        size = validate.number("alpha", alpha, POSITIVE)
        check(size < 2.0**31, "alpha", alpha, "a number < 2^31")
        law = validate.choice("inputs", inputs, tuple(design.laws))
        dtype = validate.optional(validate.dtype, "dtype", dtype)
        store = validate.flag("store", store)
        teacher = validate.optional(validate.array, "teacher", teacher, "an array of real numbers")
        samples = max(round(float(alpha) * design.entries(dimension)), 1)
        # JAX indexes with 32 bits
        check(samples < 2**31, "alpha", alpha, "one of fewer than 2^31 samples")
        shape = design.input_shape(dimension)
        if store:
            # beyond the memory of any machine: XLA ends the process where bytes overflow
            allowed = f"one with inputs of at most 2^40 numbers, {samples} x {shape} are more; or "
            allowed += "store=False"
            check(samples * shape[0] * shape[1] <= 2**40, "dimension", dimension, allowed)
        design.warn_of_rounding(dimension, samples, float(alpha))
        teacher_key, input_key, noise_key, direction_key = streams(key)
        drawn = student.draw_teacher(teacher_key, dimension) if teacher is None else teacher
        truth = validate.array("teacher", drawn, "an array of real numbers")
        student.check_teacher(truth, dimension)
        around = design.directions(direction_key, truth, directions)
        # regenerated inputs are drawn at each pass: float32 needs half of the random bits, and
        # sums over blocks are float64
        usual = theory_dtype() if store else jnp.float32
        x = draw_inputs(input_key, samples, shape, dtype or usual, store, design.laws[law])
        # the mean is added last: inputs and their fluctuations are those of the same key without it
        if around is not None:
            x = shifted(x, around.mean)
        labels = draw_labels(self, noise_key, truth, x)
        return Dataset(x, labels, truth, self, *(around or (None, None)))

    @overload
    def predict(
        self, solution: Solution | ArrayLike, inputs: ArrayLike, bayes: Literal[False] = False
    ) -> Array: ...

    @overload
    def predict(
        self, solution: Solution, inputs: ArrayLike, bayes: Literal[True]
    ) -> Prediction: ...

    def predict(
        self, solution: Solution | ArrayLike, inputs: ArrayLike, bayes: bool = False
    ) -> Array | Prediction:
        r"""Predict noiseless labels of new inputs: the link at the fields ω of the estimate, or its
        mean and spread over the posterior (`bayes`).

        With ω = Ŵ x/√D and the posterior covariance V (P, P) of the run,

            plug-in:  link(ω);        bayes:  E[link(z)|ω] and √Var[link(z)|ω],
            z_m ~ N(ω_m, V) for each token m;     of matrices: scores h = ω + √V GOE(T).

        Args:
            solution: The solution of `gamp` or `train`, one that `smi.load` reads, or an estimate
                itself: rows (P, D), or a matrix (d, d) or (L, d). `bayes` needs the posterior of
                `gamp` or `spectral`, read from a file or not.
            inputs: New inputs (N, M, D), or (N, D) of one token.
            bayes: Average over the posterior, by 1024 samples of a Gaussian net, the same for all
                inputs: exact for a linear link, to 3e-3 for a sign, to 1 or 2 % of the spread for
                several fields. Default False.

        Returns:
            Labels (N, ...); with `bayes` a `Prediction` (mean, std) of such arrays. Probabilities
            of labels, noise included: `predict_proba`.

        Raises:
            ValueError: For a solution of theory, which has no weights, shapes that do not fit, or
                `bayes` without a posterior: weights alone, and learners other than smi.Bayes().

        Example:
            >>> import jax, jaxsmi as smi
            >>> model, key = smi.links.sign(), jax.random.key(0)
            >>> data = model.sample(key, dimension=200, alpha=3.0)
            >>> labels = model.predict(smi.gamp(model, data, key=key), data.inputs, bayes=True)
            >>> labels.mean.shape, labels.std.shape
            ((600,), (600,))

        Cost:
            One pass over the inputs; `bayes` 1024 N links, in blocks of at most 2^20 fields.

        Source:
            [TCDKZ25], [theory: multi-index, Eqs. (77), (78)].
        """
        bayes = validate.flag("bayes", bayes)
        fields = self._fields_of(solution, inputs)
        if not bayes:
            return jax.vmap(self.link)(fields)
        return self.metric.posterior_labels(fields, posterior_covariance(solution))

    def _fields_of(self, solution: object, inputs: ArrayLike) -> Array:
        """The fields of new inputs (N, P, M), or scores, of a solution or an estimate."""
        weights = getattr(solution, "weights", solution)  # also of a run that smi.load reads
        remedy = "the solution of gamp or train, or one that smi.load reads"
        check(weights is not None, "solution", "a solution without weights", remedy)
        estimate = validate.array("solution", weights, f"{remedy}, or an estimate")
        signal = self.student.signal(estimate)
        shape = self.design.input_shape(signal.shape[-1])
        allowed = f"an array of shape ({', '.join(map(str, ('N', *shape)))})"
        # inputs keep their precision: float32 ones would take twice the memory in float64
        x = validate.array("inputs", inputs, allowed, dtype=precision_of(inputs), empty=True)
        allowed += "; for one input x[None]" * (shape in (x.shape, (1, *x.shape)))
        x = x[:, None] if x.ndim == 2 else x
        check(x.ndim == 3 and x.shape[1:] == shape, "inputs", inputs, allowed)
        _warn_of_new_inputs(self, solution, x)
        return self.design.operator(x).forward(signal)

    def __repr__(self) -> str:
        return constructor_repr(self)


def posterior_covariance(solution: object) -> Array:
    """V (P, P) of a run of Bayes; raise a ValueError for another solution."""
    # V of a learner is a response, and that of training unknown: neither is a posterior's
    allowed = (
        "for a posterior the solution of gamp with learner=smi.Bayes(), its default (probabilities "
        "of a logistic loss: jax.nn.sigmoid(smi.links.linear().predict(solution, inputs)))"
    )
    # a run that `smi.load` reads has these names, too
    run = getattr(solution, "kind", "") in ("gamp", "spectral")
    check(run and not hasattr(solution, "learner"), "solution", solution, allowed)
    return validate.array("solution", getattr(solution, "covariance", None), allowed)


class AbstractStudent(eqx.Module):
    """Weights of a model, of a student in training or of a teacher, and the network that they
    make."""

    model: AbstractModel

    @abc.abstractmethod
    def shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights."""

    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Draw weights scale × N(0, 1), in the precision of theory."""
        # float32 and float64 students start at the same point, so that they can be compared
        weights = jax.random.normal(key, self.shape(dimension), theory_dtype())
        return jnp.multiply(scale, weights).astype(dtype or weights.dtype)

    @abc.abstractmethod
    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Return the fields of inputs for weights."""

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """Return the fields of inputs for a teacher."""
        return self.fields(teacher, inputs)

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Return the noiseless labels (N, ...) of inputs, in the precision of the inputs."""
        dtype = product_dtype(inputs)
        # parameters of the link too: a float64 one would make all of a float32 network float64
        cast = lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x
        link = jax.tree.map(cast, self.model).link
        return jax.vmap(link)(self.fields(weights, inputs).astype(dtype))

    def estimate(self, weights: Array) -> Array:
        """Return the estimate that a user sees, from weights or from the signal of message
        passing."""
        return weights

    @abc.abstractmethod
    def signal(self, estimate: Array) -> Array:
        """Return the signal of message passing from an estimate; raise a ValueError for another
        shape."""

    def to_signal(self, weights: Array, teacher: Array | None = None) -> Array:
        """Return the signal of message passing from weights, or from a signal, itself; `teacher`
        has the sides of the signal, if weights do not determine them."""
        return weights

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Draw a teacher from the prior."""
        return self.start(key, dimension)

    @abc.abstractmethod
    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Raise a ValueError for a teacher that cannot label inputs of this dimension."""

    def teacher_signal(self, teacher: Array) -> Array:
        """Return the signal of message passing from a teacher."""
        return self.to_signal(teacher)


class AbstractMetric(eqx.Module):
    """Distances of an estimate from a teacher: overlaps, cosines and errors, up to symmetries."""

    model: AbstractModel
    symmetry: tuple[AbstractSymmetry, ...]

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """Compute the overlaps of an estimate with itself and with a teacher: mean products of the
        n entries of rows, or of matrices.

        Returns:
            "overlap" Q = Ŵ Ŵᵀ/n (P, P), "teacher_overlap" M = Ŵ W*ᵀ/n (P, P*) and "cosine" (P,);
            NaN without a teacher.
        """
        student = self.model.student
        flat = lambda signal: signal.reshape(len(signal), -1).astype(theory_dtype())
        # overlaps have the precision of theory: float32 would hide an approach to recovery
        W = flat(student.to_signal(weights, teacher))
        n = W.shape[1]
        Q = W @ W.T / n
        nan = missing_array(Q.shape, Q.dtype)
        if teacher is None:
            return {"overlap": Q, "teacher_overlap": nan, "cosine": nan[0]}
        truth = flat(student.teacher_signal(teacher))
        M = W @ truth.T / n
        cosine = self.cosines(M, Q, truth @ truth.T / n)
        return {"overlap": Q, "teacher_overlap": M, "cosine": cosine}

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosine similarity (P,) of each index from M (P, P*), Q (P, P) and ρ (P*, P*),
        up to the symmetries; 0 for a zero estimate. Of another number of rows, which cannot be
        matched one to one, it is that with the closest row of the teacher."""
        table = cosine_table(cross, Q, rho)
        if table.shape[0] != table.shape[1]:
            return jnp.max(jnp.abs(table), axis=1)
        values = jnp.diagonal(table)
        for part in self.symmetry:
            rows = np.asarray(part.indices)
            block = np.ix_(rows, rows)
            values = values.at[rows].set(part.cosines(cross[block], Q[block], rho[block]))
        return values

    @abc.abstractmethod
    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = RUN_POINTS
    ) -> Array:
        """Compute the error of an estimate against the teacher of the data; NaN without one."""

    def comparable(self, teacher: Array) -> bool:
        """Return True if the model can have made the labels of this teacher (it has as many
        rows)."""
        return True

    def teacher_of(self, data: HasTeacher) -> Array | None:
        """Return the teacher of data, or None if weights have no overlaps with it."""
        return data.teacher

    @abc.abstractmethod
    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, points: int
    ) -> Estimate:
        """Compute the prediction error on a new input at the overlap Q (P, P), of the Bayes or of
        the plug-in predictor."""

    @abc.abstractmethod
    def posterior_labels(self, omega: Array, V: Array) -> Prediction:
        """Average noiseless labels over the posterior of the fields, of mean ω (N, P, M) and
        covariance V (P, P)."""

    @abc.abstractmethod
    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Estimate:
        """Compute the limit D → ∞ of `error`, at the posterior covariance V (P, P)."""


def title(model: object) -> str:
    """Name of a model in messages."""
    return getattr(model, "name", type(model).__name__)


def check_data(model: AbstractModel, data: Dataset, teacher: bool = True) -> Dataset:
    """Return the data, their labels in the shape of the link's; raise a ValueError for inputs,
    labels or, if `teacher`, a teacher of other shapes than the model's."""
    design = model.design
    design.check_inputs(data.inputs)
    if teacher and data.teacher is not None:
        metric = model.metric
        fits = metric.teacher_of(data) is not None and metric.comparable(data.teacher)
        allowed = f"one of {model.indices}, or Dataset(inputs, labels) without a teacher"
        check(fits, "data.teacher", data.teacher, allowed)
    shape = label_shape(model)
    N, *row = data.labels.shape
    if tuple(row) == shape:
        return data
    allowed = f"rows of shape {shape}" if np.prod(shape) > 1 else "one number a sample, shape (N,)"
    squeezed = [n for n in row if n != 1] == [n for n in shape if n != 1]
    sizes = ", ".join(map(str, (N, *shape)))
    # a number a sample may come as (N,) or (N, 1)
    single = np.prod(row) == np.prod(shape) == 1
    hint = f": take labels.reshape({sizes})" if squeezed else ""
    check(single, "data.labels", data.labels, allowed + hint)
    return eqx.tree_at(lambda data: data.labels, data, data.labels.reshape(N, *shape))


def label_shape(model: AbstractModel) -> tuple[int, ...]:
    """Return the shape of one label."""
    design = model.design
    # the dimension of inputs plays no role in the shape of fields
    fields = jax.ShapeDtypeStruct(design.shapes((1, 1, 1)).fields[1:], theory_dtype())
    return jax.eval_shape(model.link, fields).shape


# compiled: links of integrated channels are long loops, and one program serves all data of a shape
@eqx.filter_jit
def draw_labels(model: AbstractModel, key: PRNGKeyArray, teacher: Array, inputs: Inputs) -> Array:
    """Draw the labels (N, ...) of a teacher on inputs, with their noise."""
    channel = model.channel
    fields = model.student.teacher_fields(teacher, inputs)
    # the noise of all samples at once: labels are then the same for any blocks of the inputs
    noise = jax.random.normal(key, (inputs.shape[0], channel.noise_size), theory_dtype())
    labels = jax.vmap(channel.label)(fields, noise)
    return labels.reshape(inputs.shape[0], *label_shape(model))


def is_centred(model: AbstractModel) -> Array:
    """Return True (a boolean array) if the prior of the model has mean zero."""
    mean = model.prior.mean_overlap(model.indices)
    xp = array_module(mean)
    # means add up to zero by rounding only, of order 1e-16
    return xp.max(xp.abs(xp.asarray(mean))) <= 1e-12


def has_parity(model: AbstractModel, fields_of_one: tuple[int, ...], sign: float) -> bool:
    """True if labels are even (sign 1) or odd (-1) in the fields, tested at random ones, and the
    prior has mean zero; False where labels cannot be drawn, or the model is traced."""
    if not model.channel.drawable:
        return False
    with jax.ensure_compile_time_eval():  # inside jit, too, where the model itself is not traced
        shape = (_PARITY_FIELDS, *fields_of_one)
        fields = jnp.asarray(np.random.default_rng(0).standard_normal(shape), theory_dtype())
        conditions = (_mirrored(model.channel, fields, sign), is_centred(model))
    return concrete(conditions) and all(map(bool, conditions))


# compiled, the fields an argument: constants would be worked on one operation after the other
@eqx.filter_jit
def _mirrored(channel: AbstractChannel, fields: Array, sign: float) -> Array:
    """True if labels are multiplied by `sign` when all fields (n, P, M) change their sign."""
    labels, mirrored = (jax.vmap(channel.link)(z) for z in (fields, -fields))
    rounding = 64.0 * jnp.finfo(labels.dtype).eps * jnp.max(jnp.abs(labels))
    return jnp.max(jnp.abs(labels - sign * mirrored)) <= rounding


@eqx.filter_jit  # a search for jumps: outside jit its loop would be compiled at each call
def regular_numbers(model: AbstractModel) -> list[bool | Array]:
    """Whether averages of posteriors have derivatives, for each floating point array of a model."""
    everywhere, own = model.channel.regular
    flags = jax.tree.map(lambda _: everywhere, eqx.filter(model, eqx.is_inexact_array))
    # the channel of a matrix model is none of its fields
    if "channel" in vars(model):
        places = jax.tree.structure(flags.channel)
        flags = eqx.tree_at(lambda m: m.channel, flags, jax.tree.unflatten(places, own))
    return jax.tree.leaves(flags)


def regular_along(model: AbstractModel, directions: list[Array]) -> Array:
    """True if averages of posteriors have the derivative along directions of the arrays of a model,
    the first ones of a list."""
    known = jnp.ones((), bool)
    for flag, direction in zip(regular_numbers(model), directions, strict=False):
        known = known & jnp.where(jnp.any(direction != 0.0), flag, True)
    return known


def model_argument(model: object, purpose: str | None = None) -> AbstractModel:
    """Validate the argument `model` of a public function: raise a ValueError for another object, or
    for a model that does not serve the purpose (`AbstractModel.unsupported_reason`)."""
    link = callable(model) and not validate.uncalled(model)
    allowed = f"{_MODEL}; of a link smi.MultiIndex(link, indices=1)" if link else _MODEL
    argument = validate.instance("model", model, AbstractModel, allowed)
    reason = None if purpose is None else argument.unsupported_reason(purpose)
    if reason is not None:
        raise ValueError(reason)
    return argument
