r"""What a model must say: the face that message passing, state evolution, thresholds and training read.

    signal W ──sensing──▶ fields Z_μ ──channel──▶ labels y_μ

A model is a prior on a signal, a sensing law that turns the signal into fields, and an output channel that turns fields into
labels. `AbstractModel` declares everything an engine may ask of one; `AbstractIndexModel` (the signal is W (P, D)) and
`AbstractMatrixModel` (the signal is one matrix) fill in what their families share. A new family is a subclass of one of the
three, and the abstract methods say what is missing.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.checks import Ability, check
from jaxsmi.core.data import Dataset, Taught
from jaxsmi.core.results import Estimate, Solution
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.sensing.base import AbstractSensing

__all__ = ["AbstractModel"]


class AbstractModel(eqx.Module):
    """A prior, a sensing law and an output channel under one name (module docstring).

    Shapes: P indices (rows of the overlap; matrices: how many), N samples. The signal of message passing has the shape that
    `shapes` says; a student's weights, which `train` moves, that of `student_shape`. `tokens`: M, how many tokens an input has.
    """

    prior: eqx.AbstractVar[AbstractPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    tokens: eqx.AbstractVar[int]

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
        """Whether all parameters are in their ranges: under jit nothing else says so."""
        return jnp.asarray(True)

    def refusal(self, ability: Ability) -> str | None:
        """Why the model lacks an ability, as one sentence with its remedy; None where it has it."""
        if ability is Ability.AVERAGES:
            return f"fit: got runs of {self.title}; allowed: runs of a matrix model (weights are known up to symmetries)."
        return self.channel.refusal(ability)

    # Data

    @abc.abstractmethod
    def sample(
        self,
        key: PRNGKeyArray,
        *,
        dimension: int,
        alpha: ArrayLike,
        dtype: DTypeLike | None = None,
        teacher: ArrayLike | None = None,
        store: bool = True,
    ) -> Dataset:
        """Draw a teacher, inputs and their labels."""

    @abc.abstractmethod
    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs, labels or (asked to) a teacher of another shape than the model's."""

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
        """Noiseless labels (N, ...) of inputs for a student's weights, in the precision of the inputs."""

    @abc.abstractmethod
    def predict(self, solution: Solution | Array, inputs: ArrayLike) -> Array:
        """Labels of new inputs by the plug-in predictor."""

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
        """ "overlap" Q (P, P), "teacher_overlap" M and "cosine" (P,) of an estimate; NaN without a teacher."""

    @abc.abstractmethod
    def error_of(
        self, weights: Array, data: Taught, *, key: PRNGKeyArray, samples: int = 2048
    ) -> Array:
        """Error of an estimate against the teacher of the data; NaN without a teacher."""

    @abc.abstractmethod
    def comparable(self, teacher: Array) -> bool:
        """Whether cosines with this teacher exist (indices: it has as many rows)."""

    def check_teacher(self, teacher: Array, estimate: tuple[int, ...]) -> None:
        """Raise a ValueError for a teacher that cannot be compared with an estimate of that shape."""
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

    @abc.abstractmethod
    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """Prediction error on a new input at the overlap Q (P, P), of the Bayes or of the plug-in predictor."""

    @property
    @abc.abstractmethod
    def recovery(self) -> Array:
        """The α above which perfect recovery is stable (inf: never). Raises a ValueError where it is not known."""
