"""Settings of descent that `smi.train` and `smi.sgd` share, the gradient of a step and the records
of a run, and endless fresh samples of a teacher."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, as_module, theory_dtype
from jaxsmi.core.data import Dataset, HasTeacher, Regenerated
from jaxsmi.core.validate import COSINE, UNIT_INTERVAL, check
from jaxsmi.design.products import draw_inputs, shifted
from jaxsmi.design.tokens import Directions
from jaxsmi.models.base import AbstractModel, draw_labels

REDUCTIONS = ("mean", "sum", "sum/D")
ORDERS = ("shuffled", "cyclic", "bernoulli")
_ROUNDING = 1e-9  # rounding of a share such as 1/3


def check_scalar(loss: Callable[..., Array], *arguments: jax.ShapeDtypeStruct) -> None:
    """Raise a ValueError for a loss that fails, or that does not return one number."""
    # shapes alone: a loss of a large model is not evaluated for its validation
    value = validate.call_user_function("loss", jax.eval_shape, validate.LOSS, loss, *arguments)
    shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
    check(shapes == [()], "loss", f"values of shapes {shapes}", validate.LOSS)


def parts_of(share: float) -> int:
    """Batches of an epoch, of a share of the data each; the last one may be smaller."""
    return math.ceil(1.0 / share - _ROUNDING)


def samples_of(share: float, samples: int) -> int:
    """Samples of a batch of a share of so many."""
    parts = parts_of(share)
    # n equal parts leave no rest for another batch
    equal = abs(parts * share - 1.0) < _ROUNDING
    return math.ceil(samples / parts if equal else samples * share - _ROUNDING)


class Gradient(eqx.Module):
    """The gradient that a step of descent takes, of the loss of a batch B.

        loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     c = 1/|B| ("mean"), 1 ("sum"), 1/D ("sum/D")

    Args:
        loss: ℓ(prediction, label) of one sample. Default ‖ŷ - y‖².
        reduction: Factor c of the sum of the losses of a batch: "mean" (1/|B|), "sum" (1) or
            "sum/D" (1/D). Default "mean"; in `smi.descent_theory`, where |B| is infinite, "sum".
        batch_size: Samples of a step, or their share of a `Dataset` (a float below 1). Default: all
            of a `Dataset`; 1 in `smi.sgd`.
        order: Batches of a `Dataset`: "shuffled", an epoch of N/batch_size steps uses each sample
            once, in a new random order; "cyclic", in the order of the first epoch; "bernoulli",
            each step draws each sample with the probability `batch_size`/N, at the cost of all of
            them. Default "shuffled".
        repeats: Updates on each batch. Default 1.

    Raises:
        ValueError: For a count below one, a share outside (0, 1), an unknown word, or a loss that
            is no function.

    Example:
        >>> Gradient(batch_size=200, repeats=3).repeats
        3
    """

    _: KW_ONLY
    loss: Callable[[Array, Array], Array] | None = None
    reduction: str | None = eqx.field(static=True, default=None)
    batch_size: int | float | None = eqx.field(static=True, default=None)
    repeats: int = eqx.field(static=True, default=1)
    order: str = eqx.field(static=True, default="shuffled")

    def __post_init__(self) -> None:
        # a module, so that the numbers that a loss closes over are traced and differentiable
        loss = validate.optional(validate.loss, "loss", self.loss)
        self.loss = as_module(loss)
        self.reduction = validate.optional(validate.choice, "reduction", self.reduction, REDUCTIONS)
        if isinstance(self.batch_size, (float, np.floating)):
            share = float(self.batch_size)
            allowed = "an integer >= 1, or a share, a float in (0, 1)"
            check(0.0 < share < 1.0, "batch_size", share, allowed)
            self.batch_size = share
        else:
            self.batch_size = validate.optional(validate.count, "batch_size", self.batch_size)
        self.order = validate.choice("order", self.order, ORDERS)
        self.repeats = validate.count("repeats", self.repeats)

    def divisor(self, samples: Array | int, dimension: int) -> Array | int:
        """1/c of the loss of a batch, by default that of the mean."""
        return {"mean": samples, "sum": 1, "sum/D": dimension}[self.reduction or "mean"]


class Monitor(eqx.Module):
    """Records of a run of descent, and its early stop.

    Args:
        record: A function of the weights that returns arrays, for history["record"].
        every: Steps between two records. Default: such that a run has 200 records (100 in
            `smi.sgd`).
        test: Data whose error ‖ŷ - y‖² is recorded and watched. Default: the population error,
            where there is a teacher.
        patience: Stop after this many records without a smaller error.
        target: Stop once every cosine with the teacher has reached this value, in (0, 1].
        level: In `smi.sgd`, the cosine whose first passage a run records, in (0, 1). Default 1/2.
        progress: Show a bar on stderr. Default False.

    Raises:
        ValueError: For a number out of range, a `record` that is no function, or a `test` that is
            no `Dataset`.

    Example:
        >>> Monitor(every=5, patience=3).every
        5
    """

    _: KW_ONLY
    record: Callable[[Array], PyTree] | None = None
    every: int | None = eqx.field(static=True, default=None)
    test: Dataset | None = None
    patience: int | None = eqx.field(static=True, default=None)
    target: ArrayLike | None = None
    level: ArrayLike = 0.5
    progress: bool = eqx.field(static=True, default=False)

    def __post_init__(self) -> None:
        allowed = "a function of the weights"
        record = validate.optional(validate.function, "record", self.record, allowed)
        self.record = as_module(record)
        self.every = validate.optional(validate.count, "every", self.every)
        self.test = validate.optional(validate.instance, "test", self.test, Dataset, "a Dataset")
        self.patience = validate.optional(validate.count, "patience", self.patience)
        # arrays: another target or level does not compile again
        self.target = validate.optional(validate.number, "target", self.target, COSINE)
        self.level = validate.number("level", self.level, UNIT_INTERVAL)
        self.progress = validate.flag("progress", self.progress)


class Stream(HasTeacher):
    """Endless fresh samples of a teacher: data of one-pass learning that are never stored.

    Args:
        model: The model that makes the labels.
        teacher: Rows (P, D), factors (L r, d), or a matrix S (L, d), as for `model.sample`.
        dtype: Precision of the inputs. Default: the precision of the theory.
        directions: U (K, D), of a model with `inputs=smi.Tokens(..)` (`data.directions`).

    Raises:
        ValueError: For a teacher of another shape, or numbers that are not finite.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.phase_retrieval(), jax.random.key(0)
        >>> stream = smi.Stream(model, model.student.start(key, 50))
        >>> fit = smi.train(
        ...     model, stream, optax.sgd(1.0), key=key, gradient=smi.Gradient(batch_size=10)
        ... )
        >>> fit.weights.shape
        (1, 50)
    """

    model: AbstractModel
    teacher: Array
    dtype: DTypeLike | None = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    directions: Array | None
    encoding: Array | None

    def __init__(
        self,
        model: AbstractModel,
        teacher: ArrayLike,
        dtype: DTypeLike | None = None,
        directions: ArrayLike | None = None,
    ):
        self.model = validate.instance("model", model, AbstractModel, "a model")
        allowed = "an array whose last axis is the dimension, of finite numbers"
        self.teacher = validate.array("teacher", teacher, allowed, shape=(None, None))
        model.student.check_teacher(self.teacher, self.teacher.shape[1])
        self.dtype = validate.optional(validate.dtype, "dtype", dtype)
        self.shape = model.design.input_shape(self.teacher.shape[1])
        U = validate.optional(validate.array, "directions", directions, "U (K, D)")
        # errors of a student count the mean of the inputs, so that the stream has to carry it
        around = model.design.directions(None, self.teacher, U)
        self.directions = None if around is None else around.vectors
        self.encoding = None if around is None else around.encoding

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, infinite."""
        return float("inf")

    def draw(self, key: PRNGKeyArray, samples: int) -> tuple[Array, Array]:
        """Draw inputs (samples, M, D) and their labels."""
        key = validate.key("key", key)
        samples = validate.count("samples", samples)
        _, input_key, noise_key = jax.random.split(key, 3)  # the split of `model.sample`
        # resolved at each draw, not once: double precision may be switched on later
        dtype = self.dtype or theory_dtype()
        # the shape of one input was taken outside jit, where the model's ratios are numbers
        law = self.model.design.laws["gaussian"]
        inputs = draw_inputs(input_key, samples, self.shape, dtype, True, law)
        if self.directions is not None and self.encoding is not None:
            inputs = shifted(inputs, Directions(self.directions, self.encoding).mean)
        assert not isinstance(inputs, Regenerated)
        truth = self.teacher.astype(theory_dtype())
        return inputs, draw_labels(self.model, noise_key, truth, inputs)
