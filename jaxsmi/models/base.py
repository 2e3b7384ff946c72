"""A model: a prior on a signal, a design that turns it into fields, a channel that draws labels.

    signal W ──design──▶ fields Z_μ ──channel──▶ labels y_μ

`AbstractModel` is the interface for message passing, theory, thresholds and training. Its parts are
separate objects: `prior`, `channel`, `design` (shapes, inputs, teachers), `student` (the
weights that are trained) and `metric` (overlaps and errors). A family is a constructor of these:
`IndexModel` of rows W (P, D), `MatrixModel` of one matrix.

Symmetries are groups that act on rows of W and change no label, so that labels cannot determine
them. A symmetry acts on a block of rows. It measures an estimate up to its group, and brings one
onto a teacher [theory: multi-index, section 9, Eqs. (65), (66)], with M = Ŵ W*ᵀ/D, Q = Ŵ Ŵᵀ/D and
ρ = W* W*ᵀ/D of the block:

    none, sign, joint sign       M_pp/√(Q_pp ρ_pp), with its sign, |..|, or one common sign
    permutation                  any order: the best one of M_pq/√(Q_pp ρ_qq)
    signed permutation           any order, any signs: the best order of |M_pq|/√(Q_pp ρ_qq)
    even signed permutation      the signs multiply to one: the best order, less the cost of flips
    rotation                     O(P): the singular values of Q^{-1/2} M ρ^{-1/2}
    query and key                q -> A q, k -> A^{-ᵀ} k: a joint sign for rank one, else a rotation
                                 of each

Blocks with the same symmetry (the heads of a layer) can also be exchanged: `Exchange`.
`symmetries_of` searches those of a link at random fields.
"""

from __future__ import annotations

import abc
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import array_module, clamp_to_tiny, concrete, missing_array, theory_dtype
from jaxsmi.core.data import Dataset, HasTeacher
from jaxsmi.core.display import constructor_repr
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Estimate, LearnerSolution, Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.design.designs import AbstractDesign, Inputs, product_dtype, shifted, streams
from jaxsmi.numerics.linear_algebra import inverse_root
from jaxsmi.priors.base import AbstractPrior

CENTRED = "one with a prior of mean zero (else some overlap exists from the start)"
_RUN_INPUTS = (
    "The overlap may be wrong, or the run diverge. print(data.second_moments(quick=True)) shows "
    "these numbers."
)
_NEW_INPUTS = (
    "If the data of the run were standardised or whitened, pass data.whitening.whitened(inputs)."
)
_MODEL = (
    "a model with a prior and a channel, such as smi.DeepAttention(2, 2) (for a "
    "SequenceSingleIndex: the functions of smi.sgd)"
)


def warn_of_inputs(model: AbstractModel, data: Dataset, consequence: str = _RUN_INPUTS) -> bool:
    """Warn of stored inputs that are not as message passing assumes; return True if they are not.

    Where second moments of a part of them are beyond chance (p < 1e-8 for each of six statistics)
    and off by more than 5 %, the warning says which, and the remedy. On iid inputs of a symmetric
    law that is a false alarm with a probability below 1e-7 [theory: inputs, section 3].
    """
    # regenerated inputs are iid by construction, and inside jit there are no numbers to look at
    if data.regenerated or len(model.design.laws) < 2:
        return False
    if not concrete(data.inputs) or not data.stored_inputs.is_fully_addressable:
        return False
    message = data.second_moments(quick=True).message
    if message:
        warnings.warn(
            "message passing assumes inputs of iid entries of mean zero and variance one; these "
            f"are not: {message}. {consequence}",
            stacklevel=3,
        )
    return bool(message)


def _warn_of_new_inputs(model: AbstractModel, solution: object, inputs: Array) -> None:
    """Warn of inputs to predict from that are not iid, unless those of the run were not, either."""
    if not isinstance(solution, Solution) or solution.kind not in ("gamp", "spectral"):
        return
    known = inputs.shape[0] > 0 and concrete(solution.result)
    if known and np.all(np.asarray(solution.result) != Result.INPUTS):
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
        del purpose
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
            key: A random key.
            dimension: D (matrices: d >= 2), the dimension of a token.
            alpha: Sample complexity of the family, a number > 0.
            dtype: Precision of the inputs: float64, float32 or bfloat16 (labels stay float64).
                Default: the precision of theory; float32 if inputs are not stored.
            teacher: A teacher to reuse: rows (P, D), factors (L r, d), or a matrix S (L, d).
                Default: drawn from the prior.
            directions: Directions U (K, D) to reuse, of a model with `inputs=smi.Tokens(..)`.
            store: False for inputs that are drawn again whenever they are read: memory for one
                block of them. N is then rounded to whole blocks: by less than 0.5 % from N = 10⁴
                on, of few samples by up to four.
            inputs: Law of their entries, of mean zero and variance one: "gaussian" (default),
                "rademacher" (±1), "uniform", or "sparse" (one in ten is not zero).

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
        design.check_directions(directions)
        design.warn_of_rounding(dimension, samples, float(alpha))
        teacher_key, input_key, noise_key, direction_key = streams(key)
        drawn = student.draw_teacher(teacher_key, dimension) if teacher is None else teacher
        truth = validate.array("teacher", drawn, "an array of real numbers")
        student.check_teacher(truth, dimension)
        around = design.directions(direction_key, truth, directions)
        # regenerated inputs are drawn at each pass: float32 needs half of the random bits, and
        # sums over blocks are float64
        usual = theory_dtype() if store else jnp.float32
        shape = design.input_shape(dimension)
        x = design.draw_inputs(input_key, samples, shape, dtype or usual, store=store, law=law)
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
            solution: The solution of `gamp` or `train`, or an estimate itself: rows (P, D), or a
                matrix (d, d) or (L, d). `bayes` needs the posterior of `gamp` or `spectral`.
            inputs: New inputs (N, M, D), or (N, D) of one token.
            bayes: Average over the posterior, by 1024 samples of a Gaussian net, the same for all
                inputs: exact for a linear link, to 3e-3 for a sign, to 1 or 2 % of the spread for
                several fields. Default False.

        Returns:
            Labels (N, ...); of `bayes` a `Prediction` (mean, std) of such arrays.

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
            [TCDKZ25], [theory: multi-index, Eqs. (62), (63)].
        """
        weights = solution.weights if isinstance(solution, Solution) else solution
        remedy = "the solution of gamp or train"
        check(weights is not None, "solution", "a solution without weights", remedy)
        bayes = validate.flag("bayes", bayes)
        estimate = validate.array("solution", weights, f"{remedy}, or an estimate")
        signal = self.student.signal(estimate)
        shape = self.design.input_shape(signal.shape[-1])
        allowed = f"an array of shape (N, *{shape})"
        # in their own precision: float32 inputs would take twice the memory in that of theory
        dtype = getattr(inputs, "dtype", None)
        real = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        x = validate.array("inputs", inputs, allowed, dtype=dtype if real else None, empty=True)
        x = x[:, None] if x.ndim == 2 else x
        check(x.ndim == 3 and x.shape[1:] == shape, "inputs", inputs, allowed)
        _warn_of_new_inputs(self, solution, x)
        fields = self.design.operator(x).forward(signal)
        if not bayes:
            return jax.vmap(self.link)(fields)
        # V of a learner is a response, and that of training unknown: neither is a posterior's
        allowed = "for bayes=True the Solution of gamp with learner=smi.Bayes(), its default"
        run = validate.instance("solution", solution, Solution, allowed)
        other = isinstance(run, LearnerSolution) or run.kind not in ("gamp", "spectral")
        check(not other, "solution", run, allowed)
        return self.metric.posterior_labels(fields, run.covariance)

    def __repr__(self) -> str:
        return constructor_repr(self)


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
        del teacher
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
            NaN without a teacher, the cosine also for one that is not `comparable`.
        """
        student = self.model.student
        flat = lambda signal: signal.reshape(len(signal), -1).astype(theory_dtype())
        # in the precision of theory: float32 overlaps would hide an approach to recovery
        W = flat(student.to_signal(weights, teacher))
        n = W.shape[1]
        Q = W @ W.T / n
        nan = missing_array(Q.shape, Q.dtype)
        if teacher is None:
            return {"overlap": Q, "teacher_overlap": nan, "cosine": nan[0]}
        truth = flat(student.teacher_signal(teacher))
        M = W @ truth.T / n
        cosine = nan[0]
        if self.comparable(teacher):
            cosine = self.cosines(M, Q, truth @ truth.T / n)
        return {"overlap": Q, "teacher_overlap": M, "cosine": cosine}

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosine similarity (P,) of each index from M, Q and ρ (P, P), up to the
        symmetries; 0 for a zero estimate."""
        values = jnp.diagonal(cosine_table(cross, Q, rho))
        for part in self.symmetry:
            rows = np.asarray(part.indices)
            block = np.ix_(rows, rows)
            values = values.at[rows].set(part.cosines(cross[block], Q[block], rho[block]))
        return values

    @abc.abstractmethod
    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = 2048
    ) -> Array:
        """Compute the error of an estimate against the teacher of the data; NaN without one."""

    def comparable(self, teacher: Array) -> bool:
        """Return True if cosines with this teacher exist (rows: it has as many)."""
        del teacher
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
    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Array:
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
    # one number a sample is one number, whether (N,) or (N, 1)
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


def model_argument(model: object, purpose: str | None = None) -> AbstractModel:
    """Validate the argument `model` of a public function: raise a ValueError for another object, or
    for a model that does not serve the purpose (`AbstractModel.unsupported_reason`)."""
    argument = validate.instance("model", model, AbstractModel, _MODEL)
    reason = None if purpose is None else argument.unsupported_reason(purpose)
    if reason is not None:
        raise ValueError(reason)
    return argument


# Symmetries of labels: groups up to which overlaps and errors are measured


# rows of W, or blocks of rows that can be exchanged
Block = Sequence[int] | Sequence[Sequence[int]]
_MAX_ENUMERATED = 6  # rows up to which all orders are tried: 720 orders are one vectorised sum
# random fields: a link that changes on 10 % of them is missed with a probability of 0.08
_PROBES = 24
_MAX_ROWS = 8  # rows up to which symmetries under orders are searched (cost)
# relative difference of labels that counts as rounding, of links with some hundred operations
_ROUNDING = {jnp.dtype("float64"): 1e-9, jnp.dtype("float32"): 1e-4}


def _candidates(table: Array, anchored: int = 0) -> Array:
    """Return orders (K, n) of the columns of a square table, one of which has the largest sum; the
    first `anchored` columns keep their places. All orders of up to six other columns, above that
    the one of the Hungarian algorithm."""
    count = len(table) - anchored
    if count <= _MAX_ENUMERATED:
        moving = jnp.asarray(list(itertools.permutations(range(count))))
    else:
        from optax.assignment import hungarian_algorithm  # here: importing it takes long

        rows, columns = hungarian_algorithm(-table[anchored:, anchored:])
        moving = columns[jnp.argsort(rows)][None]
    fixed = jnp.tile(jnp.arange(anchored), (len(moving), 1))
    return jnp.concatenate([fixed, anchored + moving], axis=1)


def best_order(table: Array) -> Array:
    """Return the column of each row of a square table for which the sum is largest: an exact
    assignment."""
    orders = _candidates(table)
    return orders[jnp.argmax(jnp.sum(table[jnp.arange(len(table)), orders], axis=1))]


def _signs(values: Array) -> Array:
    """Return the sign of each number, with sign 0 = 1."""
    # an overlap of zero must not make the product of all signs zero
    return jnp.where(values < 0.0, -1.0, 1.0)


def cosine_table(cross: Array, Q: Array, rho: Array) -> Array:
    """Return M_pq/√(Q_pp ρ_qq) (P, P); zero for a zero estimate."""
    squares = jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho))
    # 0/0 of an estimate that is zero
    return cross / jnp.sqrt(clamp_to_tiny(squares))


class AbstractSymmetry(eqx.Module):
    """A group that acts on a block of rows of W and changes no label (module docstring).

    `indices`: the rows of W in the block. `kind`: its name in `MultiIndex(symmetry=[(indices,
    kind)])`.
    """

    indices: tuple[int, ...]
    kind: str

    @abc.abstractmethod
    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines (n,) of the rows of an estimate with those of a teacher, up to the
        group, from the overlaps M, Q and ρ (n, n) of the n rows of the block."""

    @abc.abstractmethod
    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring the rows (n, D) of an estimate onto those of a teacher by the group."""


class _Moves(NamedTuple):
    """Elements of a group of orders and signs.

    Attributes:
        ordered: Rows may change places.
        signs: "fixed", "each" free, "joint" (one for all rows), or "even" (an even number of -1).
        anchored: Number of first rows that keep their places.
    """

    ordered: bool
    signs: str
    anchored: int = 0


_MOVES = {
    "none": _Moves(False, "fixed"),
    "sign": _Moves(False, "each"),
    "joint sign": _Moves(False, "joint"),
    "permutation": _Moves(True, "fixed"),  # units of a committee
    "signed permutation": _Moves(True, "each"),
    "even signed permutation": _Moves(True, "even"),  # factors of a product
    # fields of z_1² + sign(z_1 z_2 z_3)
    "even signed permutation, the first in place": _Moves(True, "even", 1),
}


class SignedOrder(AbstractSymmetry):
    """Group of orders and signs of the rows of a block, named by `kind`."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines in the best order, with the best signs. If only an even number of
        flips is allowed, the smallest cosine may stay negative."""
        table = cosine_table(cross, Q, rho)
        order, signs = self._best(table)
        return table[jnp.arange(len(table)), order] * signs

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring the rows into the order, with the signs, of the largest sum of overlaps."""
        order, signs = self._best(estimate @ teacher.T)
        return jnp.zeros_like(estimate).at[order].set(estimate * signs[:, None])

    def _best(self, table: Array) -> tuple[Array, Array]:
        """Find the column and the sign (n,) of each row of a table (n, n) for which the sum is
        largest; for an even group of more than six rows, the order that is best for any signs."""
        moves = _MOVES[self.kind]
        orders = jnp.arange(len(table))[None]
        if moves.ordered:
            sizes = table if moves.signs == "fixed" else jnp.abs(table)
            orders = _candidates(sizes, moves.anchored)
        values = table[jnp.arange(len(table)), orders]
        signs = _best_signs(values, moves.signs)
        best = jnp.argmax(jnp.sum(values * signs, axis=1))
        return orders[best], signs[best]


def _best_signs(values: Array, kind: str) -> Array:
    """Find the signs, among those that are allowed, for which the sum of each row is largest."""
    if kind == "fixed":
        return jnp.ones_like(values)
    if kind == "joint":
        return _signs(jnp.sum(values, axis=1, keepdims=True)) * jnp.ones_like(values)
    signs = _signs(values)
    if kind == "each":
        return signs
    # an odd product is corrected at the smallest entry, at the least cost
    smallest = jnp.arange(values.shape[1]) == jnp.argmin(jnp.abs(values), axis=1, keepdims=True)
    return jnp.where(smallest, signs * jnp.prod(signs, axis=1, keepdims=True), signs)


class Rotation(AbstractSymmetry):
    """O(n) on the n rows of the block: labels determine only their span."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "rotation"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines of the principal angles between the two row spaces."""
        return jnp.linalg.svd(inverse_root(Q) @ cross @ inverse_root(rho), compute_uv=False)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Return R Ŵ with the orthogonal R that comes closest (Procrustes)."""
        u, _, vt = jnp.linalg.svd(teacher @ estimate.T, full_matrices=False)
        return (u @ vt) @ estimate


class QueryAndKey(AbstractSymmetry):
    """q -> A q, k -> A^{-ᵀ} k: the first half of the rows is a query, the second half its key."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "query and key"

    def __check_init__(self) -> None:
        even = len(self.indices) % 2 == 0
        check(even, "symmetry", self.indices, "as many rows of the key as of the query")

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute cosines up to a joint sign for rank one; above, principal angles of query and of
        key."""
        half = len(self.indices) // 2
        # numbers A and 1/A leave the direction of each row, up to a joint sign
        if half == 1:
            return SignedOrder(self.indices, "joint sign").cosines(cross, Q, rho)
        parts = [
            Rotation(self.indices[part]).cosines(cross[part, part], Q[part, part], rho[part, part])
            for part in (slice(None, half), slice(half, None))
        ]
        return jnp.concatenate(parts)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Move the query by least squares, and the key by the inverse transpose."""
        query, key = jnp.split(estimate, 2)
        # any A is allowed, not only rotations: the key compensates for it
        A = jnp.linalg.lstsq(query.T, jnp.split(teacher, 2)[0].T)[0].T
        return jnp.concatenate([A @ query, jnp.linalg.solve(A.T, key)])


class Exchange(AbstractSymmetry):
    """Blocks of one size and symmetry (heads), each with that symmetry, in any order."""

    blocks: tuple[AbstractSymmetry, ...]
    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "exchange"

    def __init__(self, blocks: Sequence[AbstractSymmetry]):
        self.blocks = tuple(blocks)
        self.indices = tuple(index for block in blocks for index in block.indices)
        sizes = {len(block.indices) for block in blocks}
        check(len(sizes) == 1, "symmetry", self.indices, "blocks of one size")

    def _pairs(self, of_pair: Callable[[AbstractSymmetry, slice, slice], Array]) -> Array:
        """Stack a function of each block of the estimate and each of the teacher."""
        size = len(self.blocks[0].indices)
        parts = [slice(k * size, (k + 1) * size) for k in range(len(self.blocks))]
        rows = [
            jnp.stack([of_pair(block, a, b) for b in parts])
            for block, a in zip(self.blocks, parts, strict=True)
        ]
        return jnp.stack(rows)

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines of each block with its block of the teacher, in the best order."""
        pairs = self._pairs(lambda block, a, b: block.cosines(cross[a, b], Q[a, a], rho[b, b]))
        order = best_order(jnp.sum(pairs, axis=-1))
        return pairs[jnp.arange(len(pairs)), order].ravel()

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring each block onto its block of the teacher, in the closest order."""
        moved = self._pairs(lambda block, a, b: block.align(estimate[a], teacher[b]))
        targets = teacher.reshape(len(moved), -1, teacher.shape[1])
        # by distance, not overlap: blocks that were moved differ in norm
        order = best_order(-jnp.sum((moved - targets) ** 2, axis=(2, 3)))
        chosen = moved[jnp.arange(len(moved)), order]
        return jnp.zeros_like(targets).at[order].set(chosen).reshape(estimate.shape)


SYMMETRIES = (*_MOVES, Rotation.kind, QueryAndKey.kind)


def symmetry_of(block: Block, kind: str, indices: int) -> AbstractSymmetry:
    """Build the symmetry named `kind`, one of `SYMMETRIES`, of a block of rows or of exchangeable
    blocks of one size; raise a ValueError for another word, or a row >= `indices`."""
    kind = validate.choice("symmetry", kind, SYMMETRIES)
    rows = [np.atleast_1d(np.asarray(part)) for part in block]
    check(len(rows) > 0, "symmetry", block, "at least one index")
    inside = all(0 <= index < indices for part in rows for index in part)
    check(inside, "symmetry", tuple(block), f"indices from 0 to {indices - 1}")

    def make(part: Iterable[int]) -> AbstractSymmetry:
        rows = tuple(int(index) for index in part)
        if kind in _MOVES:
            return SignedOrder(rows, kind)
        return Rotation(rows) if kind == Rotation.kind else QueryAndKey(rows)

    if np.ndim(block[0]) == 0:
        return make([part[0] for part in rows])
    return make(rows[0]) if len(rows) == 1 else Exchange([make(part) for part in rows])


def symmetries_of(
    law: Callable[[Array], Array], indices: int, tokens: int, even: bool = True
) -> tuple[AbstractSymmetry, ...]:
    """Find the symmetries of labels law(z) of fields z (P, M) at random fields: the largest of
    rotation, (even) signed permutations and permutations of all rows; else the sign of single rows,
    and a joint sign of the others. No symmetry is found for a law that is traced, or not finite
    there. A prior that is not `even` determines signs, which leaves only orders of rows.

    Cost: some hundred labels.
    """
    if not concrete(law):
        return ()
    P = indices
    rows = tuple(range(P))
    flips = [(p,) for p in rows] + [(0, p) for p in rows[1:]]
    # exchanges of neighbours generate all orders
    first = rows[:-1] if P <= _MAX_ROWS else ()
    swaps = [np.eye(P)[[*rows[:p], p + 1, p, *rows[p + 2 :]]] for p in first]
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((P, P)))[0]
    same = _unchanged(law, [*(_flip(P, move) for move in flips), *swaps, turn], tokens)
    if same is None:
        return ()
    single = [even and x for x in same[:P]]
    pairs = all(even and x for x in same[P : len(flips)])
    if P > 1 and same[-1] and even:
        return (symmetry_of(rows, "rotation", P),)
    if swaps and all(same[len(flips) : -1]):
        kind = "even signed permutation" if pairs else "permutation"
        return (symmetry_of(rows, "signed permutation" if all(single) else kind, P),)
    free = tuple(p for p in rows if single[p])
    rest = tuple(p for p in rows if not single[p])
    found = [symmetry_of(free, "sign", P)] if free else []
    if even and len(rest) > 1:
        joint = _unchanged(law, [_flip(P, rest)], tokens)
        found += [symmetry_of(rest, "joint sign", P)] if joint and joint[0] else []
    return tuple(found)


def _flip(indices: int, rows: tuple[int, ...]) -> np.ndarray:
    """Return the matrix (P, P) that flips the signs of some rows."""
    signs = np.ones(indices)
    signs[list(rows)] = -1.0
    return np.diag(signs)


def _unchanged(
    law: Callable[[Array], Array], moves: list[np.ndarray], tokens: int
) -> list[bool] | None:
    """Return for each of some matrices (P, P) whether labels are the same after it acts on the
    fields; None if labels are not finite."""
    dtype = theory_dtype()
    # 1.5: links that saturate beyond one standard deviation are seen there, too
    points = np.random.default_rng(0).standard_normal((_PROBES, len(moves[0]), tokens)) * 1.5
    every = np.stack([np.eye(len(moves[0])), *moves])
    moved = np.einsum("rpq,nqm->rnpm", every, points)
    with jax.ensure_compile_time_eval():
        labels = jax.vmap(jax.vmap(law))(jnp.asarray(moved, dtype))
        if not concrete(labels):  # the law closes over traced arrays
            return None
    values = np.asarray(labels, float).reshape(len(moved), -1)
    if not np.isfinite(values).all():
        return None
    scale = np.abs(values[0]).max() + np.ptp(values[0])
    close = np.abs(values[1:] - values[0]).max(axis=1) <= _ROUNDING[jnp.dtype(dtype)] * scale
    return [bool(x) for x in close]
