r"""What a model must say: the face that inference, theory, thresholds and training read.

    signal W ──sensing──▶ fields Z_μ ──channel──▶ labels y_μ

A model is a prior on a signal, a sensing law that turns the signal into fields, and an output
channel that turns fields into labels. `AbstractModel` declares everything an engine may ask of one;
`AbstractIndexModel` (the signal is W (P, D)) and `AbstractMatrixModel` (the signal is one matrix)
fill in what their families share. A new family is a subclass of one of the three, and the abstract
methods say what is missing.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core import border
from jaxsmi.core.arrays import arithmetic, theory_dtype
from jaxsmi.core.checks import POSITIVE, Ability, Arguments, check, require, without_nan
from jaxsmi.core.data import Dataset, Regenerated, Taught
from jaxsmi.core.results import Estimate, Solution, is_estimate
from jaxsmi.core.shown import Shown, brief, constructed
from jaxsmi.models.tokens import Directions
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.sensing.base import AbstractSensing
from jaxsmi.sensing.blocks import LAWS, draw_inputs, shifted, streams

__all__ = ["CENTRED", "AbstractModel", "is_centred", "model_argument", "overlaps_of"]


class AbstractModel(eqx.Module):
    """A prior, a sensing law and an output channel under one name (module docstring).

    Shapes: P indices (rows of the overlap; matrices: how many), N samples. The signal of message
    passing has the shape that `shapes` says; a student's weights, which `train` moves, that of
    `student_shape`. `tokens`: M, how many tokens an input has.
    """

    prior: eqx.AbstractVar[AbstractPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    tokens: eqx.AbstractVar[int]

    def __repr__(self) -> str:
        return constructed(self)

    def _repr_html_(self) -> str:
        refused = self.refusal(Ability.INFERENCE)
        parts = {"indices": ", ".join(self.index_names), "tokens": str(self.tokens)}
        parts |= {"prior": brief(self.prior), "channel": brief(self.channel)}
        rows = [*parts.items(), ("inference", "yes" if refused is None else refused)]
        return Shown(constructed(self), header=("", ""), rows=rows).html()

    # Names and sizes

    @property
    @abc.abstractmethod
    def indices(self) -> int:
        """P, the number of indices: the overlap is (P, P)."""

    @property
    def title(self) -> str:
        """What to call the model in a message."""
        return type(self).__name__

    @property
    def index_names(self) -> tuple[str, ...]:
        """What to call each index: "index 1" and so on."""
        return tuple(f"index {p}" for p in range(1, self.indices + 1))

    @property
    def valid(self) -> Array:
        """Whether all numbers of the model are in their ranges: inside jit constructors cannot
        raise, and make them NaN."""
        return without_nan(self)

    def refusal(self, ability: Ability) -> str | None:
        """Why the model lacks an ability, as one sentence with its remedy; None where it has it."""
        if ability is Ability.AVERAGES:
            return (
                f"fit: got runs of {self.title}; allowed: runs of a matrix model (weights are "
                "known up to symmetries)."
            )
        return self.channel.refusal(ability)

    def noisy(self, noises: Array) -> Sequence[AbstractModel]:
        """The models of the same signal and link with label noise of these variances (K,), for the
        limit of vanishing noise; refused where there is none."""
        del noises
        raise ValueError(f"noises: got some for {self.title}; allowed: None for this model.")

    # Data

    @border.checked(
        key=border.random_key,
        dimension=border.whole(),
        alpha=border.scalar(POSITIVE),
        dtype=border.optional(border.precision),
        teacher=border.optional(border.numbers("an array of real numbers")),
        directions=border.optional(border.numbers("U (K, D)", dimensions=2)),
        store=border.flag,
        inputs=border.text,
    )
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
            dtype: Of the inputs: float64, float32 or bfloat16 (labels stay float64). Default: the
                precision of theory; float32 where inputs are not stored.
            teacher: To reuse: rows (P, D), factors (L r, d), or a matrix S (L, d).
            directions: To reuse: U (K, D), of a model with `inputs=smi.Tokens(..)`.
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
        arguments = Arguments()
        dimension = arguments.count("dimension", dimension, at_least=self.least_dimension)
        alpha = float(alpha)
        law = arguments.choice("inputs", inputs, self.input_laws)
        check(alpha < 2**31, "alpha", alpha, "a number < 2^31")
        samples = max(self.samples_at(alpha, dimension), 1)
        check(samples < 2**31, "alpha", alpha, "one of fewer than 2^31 samples")
        self.warn_of_rounding(dimension, samples, alpha)
        teacher_key, input_key, noise_key, direction_key = streams(key)
        given = self.draw_teacher(teacher_key, dimension) if teacher is None else teacher
        truth = arguments.array("teacher", given, "an array of real numbers")
        self.admit_teacher(truth, dimension)
        shape = self.input_shape(dimension)
        usual = theory_dtype() if store else jnp.float32
        around = self.directions_of(direction_key, truth, directions)
        drawn = self.draw_inputs(input_key, samples, shape, dtype or usual, store, law)
        if around is not None:
            drawn = shifted(drawn, around.mean)
        labels = self.draw_labels(noise_key, truth, drawn)
        return Dataset(drawn, labels, truth, self, *(around or (None, None)))

    def directions_of(
        self, key: PRNGKeyArray | None, teacher: Array, given: ArrayLike | None
    ) -> Directions | None:
        """The fixed directions that inputs lie around, drawn or given; None: they are centred."""
        del key, teacher
        allowed = "none: inputs of this model have no fixed directions (inputs=smi.Tokens(..))"
        check(given is None, "directions", given, allowed)
        return None

    @property
    def least_dimension(self) -> int:
        """The smallest dimension that data can have."""
        return 1

    @abc.abstractmethod
    def samples_at(self, alpha: float, dimension: int) -> int:
        """How many samples a sample complexity α means, rounded: the inverse of `complexity`."""

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding to whole numbers moves a ratio of the model noticeably."""
        del dimension, samples, alpha

    @abc.abstractmethod
    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """A teacher by the prior."""

    @abc.abstractmethod
    def admit_teacher(self, teacher: Array, dimension: int) -> None:
        """Raise a ValueError for a teacher that cannot label inputs of this dimension."""

    def draw_inputs(
        self,
        key: PRNGKeyArray,
        samples: int,
        shape: tuple[int, int],
        dtype: DTypeLike,
        store: bool,
        law: str = "gaussian",
    ) -> Array | Regenerated:
        """Inputs (N, *shape) of iid entries of one of `input_laws`, stored or to be drawn again."""
        return draw_inputs(key, samples, shape, dtype, store, LAWS[law])

    @property
    def input_laws(self) -> Sequence[str]:
        """What entries of inputs can be; with more than one they are iid."""
        return tuple(LAWS)

    @property
    def of_rows(self) -> bool:
        """Whether the teacher is rows W (P, D), seen through W x/√D."""
        return False

    @abc.abstractmethod
    def draw_labels(self, key: PRNGKeyArray, teacher: Array, inputs: Array | Regenerated) -> Array:
        """Labels (N, ...) of a teacher on inputs, with their noise."""

    @abc.abstractmethod
    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs, labels or, if asked to, a teacher of other shapes than the
        model's."""

    @abc.abstractmethod
    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input."""

    @abc.abstractmethod
    def complexity(self, samples: int, dimension: int) -> float:
        """The sample complexity α of so many samples."""

    # The network

    @abc.abstractmethod
    def link(self, fields: Array) -> Array:
        """The noiseless label of one sample from its fields."""

    @abc.abstractmethod
    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Noiseless labels (N, ...) of inputs for a student's weights, in the precision of the
        inputs: what `train` differentiates."""

    @border.checked(
        solution=is_estimate, inputs=border.numbers("new inputs (N, M, D)", dimensions=3)
    )
    def predict(self, solution: Solution | ArrayLike, inputs: ArrayLike) -> Array:
        r"""Labels of new inputs by the plug-in predictor: the link at the fields of the estimate.

        Args:
            solution: The solution of `gamp` or `train`, or an estimate itself: rows (P, D), or a
                matrix (d, d) or (L, d).
            inputs: New inputs (N, M, D).

        Returns:
            Labels (N, ...).

        Raises:
            ValueError: For a solution of theory, which has no weights, or shapes that do not
                fit.

        Cost:
            One pass over the inputs.
        """
        estimate = solution.weights if isinstance(solution, Solution) else solution
        remedy = "the solution of gamp or train"
        check(estimate is not None, "solution", "a solution without weights", remedy)
        estimate = jnp.asarray(estimate)
        inputs = jnp.asarray(inputs)
        shape = self.predicted_shape(estimate)
        fits = inputs.ndim == 3 and inputs.shape[1:] == shape
        check(fits, "inputs", inputs, f"an array of shape (N, *{shape})")
        check(jnp.isfinite(jnp.sum(jnp.abs(inputs))), "inputs", inputs, "finite numbers")
        if not jnp.issubdtype(inputs.dtype, jnp.floating):
            inputs = inputs.astype(theory_dtype())
        return self.predicted_labels(estimate, inputs)

    @abc.abstractmethod
    def predicted_shape(self, estimate: Array) -> tuple[int, int]:
        """Shape of one input that an estimate can predict; raises for an estimate of another shape
        than the model's."""

    @abc.abstractmethod
    def predicted_labels(self, estimate: Array, inputs: Array) -> Array:
        """Noiseless labels (N, ...) of inputs for an estimate, as a user sees it."""

    @abc.abstractmethod
    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student."""

    @abc.abstractmethod
    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Random weights of a student: scale × N(0, 1)."""

    # Message passing

    @property
    @abc.abstractmethod
    def precisions(self) -> Sequence[str]:
        """Estimates of the precision A that `gamp` offers, the default first."""

    @property
    @abc.abstractmethod
    def dampings(self) -> Sequence[float]:
        """Dampings that `gamp` tries one after the other while a run diverges."""

    @property
    @abc.abstractmethod
    def calibrated(self) -> bool:
        """Whether `gamp` calibrates precision and fields by the data."""

    @abc.abstractmethod
    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal and of its fields (N, P, M) in message passing; checks the data."""

    @abc.abstractmethod
    def sensing(self, data: Dataset) -> AbstractSensing:
        """How the signal is seen through the inputs of `data`."""

    @abc.abstractmethod
    def signal(self, teacher: Array) -> Array:
        """The signal of message passing that belongs to a teacher."""

    @abc.abstractmethod
    def estimate(self, signal: Array) -> Array:
        """What a user sees of the signal of message passing, or of a student's weights."""

    # What was learned

    @abc.abstractmethod
    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """What an estimate has in common with itself and with a teacher.

        Returns:
            "overlap" Q (P, P), "teacher_overlap" M (P, P) and "cosine" (P,); the last two NaN
            without a teacher.
        """

    @abc.abstractmethod
    def error_of(
        self, weights: Array, data: Taught, *, key: PRNGKeyArray, samples: int = 2048
    ) -> Array:
        """Error of an estimate against the teacher of the data; NaN without a teacher."""

    def teacher_of(self, data: Taught) -> Array | None:
        """The teacher of data, where weights have overlaps with it; else None."""
        return data.teacher

    @abc.abstractmethod
    def comparable(self, teacher: Array) -> bool:
        """Whether cosines with this teacher exist (indices: it has as many rows)."""

    def check_teacher(self, teacher: Array, estimate: tuple[int, ...]) -> None:
        """Raise a ValueError for a teacher that cannot be compared with an estimate of that
        shape."""
        check(teacher.shape == estimate, "teacher", teacher, f"data.teacher: {estimate}")

    def estimation_error(self, estimate: Array, teacher: Array) -> Array:
        """Distance of an estimate to a teacher, for models whose estimates can be averaged."""
        del estimate, teacher
        raise ValueError(self.refusal(Ability.AVERAGES))

    @property
    @abc.abstractmethod
    def error_name(self) -> str:
        """What `error_of` measures, for a table."""

    # Theory

    @property
    def ansatz(self) -> str | None:
        """What the theory of the model assumes without proof, as one sentence; None: nothing beyond
        what its page says."""
        return None

    @abc.abstractmethod
    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """Prediction error on a new input at the overlap Q (P, P), of the Bayes or of the plug-in
        predictor."""

    @abc.abstractmethod
    def theory_error(self, V: Array, *, key: PRNGKeyArray, samples: int) -> Array:
        """What `error_of` measures, at the covariance V (P, P) that is left, as D → ∞."""

    @property
    @abc.abstractmethod
    def recovery(self) -> Array:
        """The α above which perfect recovery is stable (inf: never).

        Raises:
            ValueError: Where it is not known.
        """


CENTRED = "one with a prior of mean zero (else all is learned from the start)"


def is_centred(model: AbstractModel) -> Array:
    """Whether the prior of a model of indices has mean zero."""
    known = model.prior.mean_overlap(model.indices)
    xp = arithmetic(known)
    return xp.max(xp.abs(xp.asarray(known))) <= 1e-12


_MODEL = (
    "a model with a prior and a channel, such as smi.DeepAttention(2, 2) (for a "
    "SequenceSingleIndex: the functions of smi.sgd)"
)
is_model = border.instance(AbstractModel, _MODEL)


def model_argument(model: object, ability: Ability | None = None) -> AbstractModel:
    """The argument `model` of a public function: a ValueError for what is no model, or for one that
    lacks the ability, with its own sentence."""
    made = Arguments().instance("model", model, AbstractModel, _MODEL)
    if ability is not None:
        require(made, ability)
    return made


def overlaps_of(
    Q: Array, cross: Array | None = None, cosine: Array | None = None
) -> dict[str, Array]:
    """The three answers of `AbstractModel.overlaps`, NaN for those that were not computed."""
    nan = jnp.full(Q.shape, jnp.nan, Q.dtype)
    return {
        "overlap": Q,
        "teacher_overlap": nan if cross is None else cross,
        "cosine": nan[0] if cosine is None else cosine,
    }
