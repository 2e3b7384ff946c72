r"""Empirical risk minimisation: a student, a loss and a penalty.

Equations here [Cui24; theory: empirical-risk, Eqs. (1), (3) to (5), (8)]:

    R(W) = Σ_μ ℓ(link(W x_μ/√D), y_μ) + (λ/2) ‖W‖²
    g, ∂g: the proximal channel (channels/proximal.py);   W, C: the penalty (learners/penalties.py)

A ridge on weights of features with a covariance is one of each column, λ_i, in the coordinates of
`data.whiten` [theory: empirical-risk, Eq. (32)].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels import proximal
from jaxsmi.channels.base import AbstractLabels, Posterior, check_outcomes
from jaxsmi.channels.piecewise import ModulusChannel, PiecewiseLinearChannel
from jaxsmi.channels.proximal import Prox, ProximalOutput
from jaxsmi.core import validate
from jaxsmi.core.arrays import (
    as_module,
    check_closure,
    concrete,
    missing_array,
    nan_unless,
    theory_dtype,
)
from jaxsmi.core.data import Dataset
from jaxsmi.core.validate import NON_NEGATIVE, check
from jaxsmi.learners import losses
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    AbstractPenalty,
    Conjugates,
    Law,
    Regularity,
    TeacherLaw,
    WeightAverages,
    check_columns,
)
from jaxsmi.learners.penalties import BoundedPenalty, Ridge
from jaxsmi.models.index import IndexModel
from jaxsmi.priors.iid import squares

Starts = Callable[[Array, Array], Array]

_BLOCK_SIZE = 4096  # samples whose proximal points are sought at a time
_LEAST_RESPONSE = 1e-9  # least response over 1/A: differences of proximal points keep seven digits
_TOLERANCE = 1e-6  # gradient that may remain at a proximal point, relative to g
_PROBES = 64  # random fields and labels at which a loss is examined
_RANDOM_STARTS = 4
_ENDS = validate.Interval("numbers", infinite=True)


def _as_loss(loss: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Turn a loss into a tree of the arrays that it closes over."""
    return as_module(validate.loss("loss", loss))


def _optional(name: str) -> Callable[[Any], Any]:
    return lambda f: as_module(validate.optional(validate.function, name, f, "a function"))


def _as_ridge(ridge: ArrayLike) -> Array:
    """Validate λ >= 0, or one of each column."""
    allowed = "a finite number >= 0, or an array (D,) of them"
    array = validate.array("ridge", ridge, allowed, interval=NON_NEGATIVE)
    check(array.ndim <= 1, "ridge", ridge, allowed)
    return array


_as_l1 = partial(validate.optional, validate.number, "l1", interval=NON_NEGATIVE)


def _as_bounds(bounds: tuple[ArrayLike, ArrayLike] | None) -> Array | None:
    """Validate bounds (2,), or None."""
    if bounds is None:
        return None
    allowed = "two numbers, low < high, of which one may be infinite"
    words = jnp.issubdtype(getattr(bounds, "dtype", float), jnp.unsignedinteger)  # an old key
    check(not words, "bounds", bounds, allowed)
    ends = validate.array("bounds", bounds, allowed, shape=(2,), interval=_ENDS)
    fits = (ends[0] < ends[1]) & (ends[0] < jnp.inf) & (ends[1] > -jnp.inf)
    check(fits, "bounds", bounds, allowed)
    return nan_unless(ends, fits)


class Erm(AbstractIndexLearner):
    r"""Empirical risk minimisation: with a ridge alone the limit of gradient descent with weight
    decay.

        R(W) = Σ_μ ℓ(link(W x_μ/√D), y_μ) + (λ/2) ‖W‖² + κ ‖W‖_1,   low <= W <= high

    The sum over samples is not divided by their number: a ridge λ_mean on the mean loss is λ = N
    λ_mean. `smi.train(student, data, optax.chain(optax.add_decayed_weights(λ), optax.sgd(rate)),
    gradient=smi.Gradient(loss=learner.loss, reduction="sum"), ..)` descends exactly R.

    Features of covariance Σ: whitened weights W' of `white = data.whiten(Σ)` have the penalty
    (λ/2) ‖W‖² = ½ Σ_i λ_i ‖W'_i‖² with λ_i = λ/s_i, so that `smi.Erm(ridge=λ /
    white.whitening.variances)` on these data is the ridge λ on the data as they came. Its theory is
    that of a model with the prior `smi.priors.GaussianProfile(s * t)`, t_i the second moment of the
    teacher's weights along eigenvector i.

    Args:
        student: A `MultiIndex`, `DeepAttention` or other model of indices, of which only the link
            is used, not the channel or the prior. Default: the model that makes the labels.
        loss: ℓ(prediction, label), any JAX function to one number. Default ½ ‖ŷ - y‖².
        ridge: λ >= 0, or (D,), λ_i of each column of W, in the order of the coordinates. Default
            0.1.
        prox: prox(y, ω, V) -> z (P, M), the proximal point in closed form, for losses with kinks.
            The hinge and Huber's loss of a linear student, and the default loss of a student of
            straight pieces (`smi.links.relu`), have their own.
        starts: starts(y, ω) -> fields (K, P, M) at which the search for the proximal point begins.
            Default: ω, -ω and four random ones; for a convex loss ω alone.
        convex: Whether ℓ(link(z), y) is convex in the fields z. Default None: examined at random
            fields.
        l1: κ >= 0, weight of the l1 norm, of students of one index. Default: none. With a ridge
            this is the elastic net. `smi.train` descends the ridge alone.
        bounds: (low, high) of all weights, of students of one index: 0 and inf for weights that are
            not negative. Default: none.

    Raises:
        ValueError: For a ridge or l1 that is negative or no number, bounds that are not low < high,
            or a loss, prox or starts that is no function. Once the labels are known, for l1 or
            bounds with a student of several indices or a ridge of each column (in theory with fixed
            directions of inputs, too), or a loss that does not fit the labels; once the weights
            are, for a ridge of another size.

    Example:
        >>> import jaxsmi as smi
        >>> smi.Erm(smi.links.linear(), loss=smi.losses.logistic, ridge=0.1).ridge
        Array(0.1, dtype=...)

    Source:
        [Cui24], [theory: empirical-risk, section 1].
    """

    student: IndexModel | None = None
    loss: Callable[[Array, Array], Array] = eqx.field(converter=_as_loss, default=losses.squared)
    ridge: Array = eqx.field(converter=_as_ridge, default=0.1)
    prox: Prox | None = eqx.field(converter=_optional("prox"), default=None)
    starts: Starts | None = eqx.field(converter=_optional("starts"), default=None)
    convex: bool | None = eqx.field(static=True, default=None)
    l1: Array | None = eqx.field(converter=_as_l1, default=None)
    bounds: Array | None = eqx.field(converter=_as_bounds, default=None)

    def __check_init__(self) -> None:
        if self.student is not None:
            allowed = "a model of indices, such as smi.MultiIndex(link, indices=1)"
            validate.instance("student", self.student, IndexModel, allowed)
        validate.optional(validate.flag, "convex", self.convex)

    @property
    def tolerance(self) -> Array:
        """Gradient, relative to g, that may remain at a proximal point."""
        return jnp.asarray(_TOLERANCE)

    @property
    def regularity(self) -> Regularity:
        """Kinks where the proximal point is a formula; jumps where the loss is not convex."""
        kinks, convex = self.prox is not None, bool(self.convex)
        return Regularity(kinks, jumps=not convex, convex=convex)

    def risk(self, weights: ArrayLike, data: Dataset) -> Array:
        r"""Return R(W)/D on a data set: the number that descent, message passing and theory share.

        Args:
            weights: (P, D).
            data: N samples.

        Returns:
            (1/D) [Σ_μ ℓ(ŷ_μ, y_μ) + (λ/2) ‖W‖² + κ ‖W‖_1]; infinite out of bounds.

        Raises:
            ValueError: Without a student and without the model that made the data, or for a ridge
                of another size than W.
        """
        validate.instance("data", data, Dataset, "a smi.Dataset")
        network = self.student if self.student is not None else data.model
        allowed = "a student, or data with their model (of model.sample)"
        known = validate.instance("student", network, IndexModel, allowed)
        W = validate.array("weights", weights, "weights (P, D)")
        check(W.ndim == 2, "weights", W, "weights (P, D)")
        self._check_columns(W.shape[1])
        outputs = known.student.outputs(W, data.stored_inputs)
        total = jnp.sum(jax.vmap(self.loss)(outputs, data.labels))
        return (total + self.penalty(W)) / data.dimension

    # Binding to a model

    def bind(self, model: IndexModel) -> Erm:
        """Return the learner for labels of `model`, with its loss examined; see
        `AbstractIndexLearner`."""
        student = model if self.student is None else self.student
        allowed = f"a student of {model.channel.tokens} tokens, as many as the model has"
        check(student.tokens == model.channel.tokens, "student", student.tokens, allowed)
        if self._kinked:
            name = "bounds" if self.l1 is None else "l1"
            allowed = "None, as the student has several indices or a ridge of each column"
            one = student.indices == 1 and self.ridge.ndim == 0
            check(one, name, getattr(self, name), allowed)
        learner = dataclasses.replace(self, student=student)
        if self.ridge.ndim:
            check_columns("ridge", self.ridge, self.ridge.size, model)
        if self.prox is None:
            prox, convex = _formula(self.loss, student)
            convex = convex if self.convex is None else self.convex
            learner = dataclasses.replace(learner, prox=prox, convex=convex)
        # a traced loss cannot be examined: it counts as not convex unless the user says so
        if concrete((self.loss, student.channel, model.channel)):  # ridge and priors may be traced
            with jax.ensure_compile_time_eval():
                convex = _examine_loss(learner, model)
            convex = convex if learner.convex is None else learner.convex
            learner = dataclasses.replace(learner, convex=convex)
        return learner

    # The proximal channel

    def sample_loss(self, label: Array, fields: Array) -> Array:
        """Return ℓ_y(z) of the student's fields (P, M)."""
        return self.loss(self.network.link(fields), label)

    def _starts(self, label: Array, omega: Array, V: Array) -> Array:
        """Initial fields (K, P, M) of the search for the proximal point."""
        if self.starts is not None:
            return jnp.concatenate([omega[None], self.starts(label, omega)])
        if self.convex:
            return omega[None]
        normal = np.random.default_rng(0).standard_normal((_RANDOM_STARTS, *omega.shape))
        spread = jnp.einsum("pq,kqm->kpm", jnp.linalg.cholesky(V), jnp.asarray(normal, V.dtype))
        return jnp.concatenate([omega[None], -omega[None], omega + spread])

    def respond_to_teacher(
        self, law: Law, teacher_fields: Array, noise: Array, omega: Array, V: Array
    ) -> ProximalOutput:
        """Find the proximal points of a batch, in blocks of 4096 samples to bound the memory."""
        loss = self.sample_loss
        if self.prox is not None:
            formula = self.prox
            block = lambda z, y, w: proximal.points_by_formula(formula, loss, law, z, y, w, V)
        else:
            begin = jax.vmap(lambda z, y, w: self._starts(law(z, y), w, V))
            block = lambda z, y, w: proximal.points_by_descent(
                loss, law, z, y, w, V, begin(z, y, w)
            )
        return _in_blocks(block, (teacher_fields, noise, omega))

    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels other than ±1 of a loss of margins."""
        if self.of_margins:
            check_outcomes(labels, (1.0, -1.0), jnp.abs(labels) == 1.0)

    @property
    def of_margins(self) -> bool:
        """The loss is one of labels ±1."""
        margins = (as_module(losses.logistic), as_module(losses.hinge))
        return any(bool(eqx.tree_equal(self.loss, loss)) for loss in margins)

    def test_loss(self, outputs: Array, labels: Array) -> Array:
        """Return ℓ(ŷ, y) of each sample."""
        return jax.vmap(self.loss)(outputs, labels)

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Return g and ∂g, with -𝓜 in place of the log-partition."""
        nothing = jnp.zeros((len(omega), 1, 1), omega.dtype)  # no teacher: labels are given
        p = self.respond_to_teacher(lambda _, y: y, nothing, statistic, omega, V)
        # relative to g: absolute errors of large losses would never count as accurate
        error = p.error / (1.0 + jnp.max(jnp.abs(p.g), axis=(1, 2)))
        return Posterior(-p.envelope, p.g, p.dg, jnp.full_like(error, jnp.inf), error, error)

    # The penalty

    @property
    def penalty(self) -> AbstractPenalty:
        """The penalty of weights (P, D): `penalty(W)`, infinite out of bounds."""
        if not self._kinked:
            return Ridge(self.ridge)
        l1 = jnp.zeros_like(self.ridge) if self.l1 is None else self.l1
        bounds = (-jnp.inf, jnp.inf) if self.bounds is None else self.bounds
        low, high = (jnp.asarray(end, self.ridge.dtype) for end in bounds)
        return BoundedPenalty(self.ridge, l1, low, high)

    @property
    def _kinked(self) -> bool:
        """True if the penalty is more than a ridge."""
        return not (self.l1 is None and self.bounds is None)

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Return W and C, the average over columns; of a ridge (λ + A)^{-1} b and (λ + A)^{-1}, NaN
        where λ + A is not positive definite. Where no weight responds C is 1e-9/A, not 0, as
        proximal points divide by V."""
        self._check_columns(b.shape[1])
        W, C = self.penalty.responses(b, A)
        C = jnp.mean(C, 0)
        least = _LEAST_RESPONSE * jnp.eye(len(A), dtype=C.dtype) / jnp.trace(A)
        return W, jnp.where(jnp.trace(C) == 0.0, least, C) if self._kinked else C

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """See `AbstractResponder.bethe_terms`."""
        C = self.penalty.responses(b, A)[1]
        return missing_array((), C.dtype), squares(C)

    def _check_columns(self, dimension: int) -> None:
        """Raise a ValueError for ridges of another number of columns."""
        fits = self.ridge.ndim == 0 or self.ridge.size == dimension
        check(fits, "ridge", self.ridge, f"a number, or an array ({dimension},)")

    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        """Average in closed form."""
        return self.penalty.weight_averages(conjugates, teacher)


Erm.__init__ = validate.explained(Erm.__init__)  # C= of scikit-learn: a ridge of 1/(C D)


def _in_blocks(block: Callable[..., ProximalOutput], samples: tuple[Array, ...]) -> ProximalOutput:
    """Apply `block` to all samples, in blocks of equal size: the last sample is repeated to fill
    the last block, which would otherwise be compiled as another program."""
    count = len(samples[0])
    blocks = -(-count // _BLOCK_SIZE)
    if blocks == 1:
        return block(*samples)
    size = -(-count // blocks)
    # repeats of the last sample, which take no more iterations than it does
    every = jnp.minimum(jnp.arange(blocks * size), count - 1)
    parts = [a[every].reshape(blocks, size, *a.shape[1:]) for a in samples]
    answers = lax.map(lambda part: block(*part), tuple(parts))
    return jax.tree.map(lambda a: a.reshape(blocks * size, *a.shape[2:])[:count], answers)


def _probes(shape: tuple[int, ...], seed: int) -> Array:
    """Draw random fields (n, *shape)."""
    # a fixed seed: the same loss is found convex in every process
    normal = np.random.default_rng(seed).standard_normal((_PROBES, *shape))
    return jnp.asarray(normal, theory_dtype())


def _is_identity(student: IndexModel) -> bool:
    """Return True if ŷ = z, of one index and one token."""
    # its proximal point is a formula for one field only
    if (student.indices, student.tokens) != (1, 1):
        return False
    with jax.ensure_compile_time_eval():
        fields = _probes((1, 1), 0)
        same = jnp.all(jax.vmap(student.link)(fields).ravel() == fields.ravel())
    return concrete(same) and bool(same)


def _formula(
    loss: Callable[[Array, Array], Array], student: IndexModel
) -> tuple[Prox | None, bool | None]:
    """The proximal point of a loss or link with kinks, and whether the loss is convex; None:
    unknown."""
    is_loss = lambda other: bool(eqx.tree_equal(loss, as_module(other)))
    if is_loss(losses.hinge) and _is_identity(student):
        return proximal.hinge_point, True
    if isinstance(loss, losses.Residual) and _is_identity(student):
        return loss.point, True
    link = student.channel
    if isinstance(link, ModulusChannel) and link.squared:
        return None, None
    # a line has no kink, and a loss as smooth as the search wants
    if isinstance(link, PiecewiseLinearChannel) and len(link.flat) > 1 and is_loss(losses.squared):
        return link.proximal_point, None
    return None, None


def _examine_loss(learner: Erm, model: IndexModel) -> bool:
    """Check that the loss is a finite, twice differentiable scalar; return whether it is convex at
    random fields.

    Raises:
        ValueError: For a loss that is no finite number, does not depend on the fields, or has no
            second derivative.
    """
    student = learner.network
    noise = _probes((model.channel.noise_size,), 2)
    labels = _labels_of(model.channel, _probes((model.indices, model.channel.tokens), 1), noise)
    allowed = (
        "smi.losses.squared or another of real labels; or a model of labels ±1, such as "
        "smi.links.sign(), and labels 2 * y - 1 of data of 0 and 1"
    )
    signs = not learner.of_margins or bool(jnp.all(jnp.abs(labels) == 1.0))
    check(signs, "loss", "one for labels +1 and -1, which this model does not make", allowed)
    # twice as wide: kinks beyond one standard deviation are seen, too
    fields = 2.0 * _probes((student.indices, student.tokens), 0)
    loss = learner.sample_loss
    allowed = (
        f"a function of the prediction and a label of shape {labels.shape[1:]} to one number, such "
        "as smi.losses.huber(1.0)"
    )
    pair = labels[0], fields[0]
    shape = validate.call_user_function("loss", jax.eval_shape, allowed, loss, *pair).shape
    check(shape == (), "loss", f"one of shape {shape}", allowed)
    check_closure("loss", loss, *pair)
    if learner.prox is not None:
        check_closure("prox", learner.prox, *pair, jnp.eye(student.indices))
    if learner.starts is not None:
        check_closure("starts", learner.starts, *pair)
    channel, by_formula = student.channel, learner.prox is not None
    looked = _loss_at_probes(learner.loss, channel, labels, fields, by_formula)
    check(looked.finite, "loss", "one that is not finite", allowed)
    allowed = (
        "a loss whose gradient is not zero: for labels ±1 the student smi.links.linear() with "
        "smi.losses.logistic (smi.losses.misclassification is for generalization_error)"
    )
    check(looked.changes, "loss", "one whose gradient is zero everywhere", allowed)
    allowed = "a loss that is twice differentiable, or one with its proximal point, prox="
    check(looked.smooth, "loss", "one without a second derivative", allowed)
    return bool(looked.convex)


@eqx.filter_jit  # alone, each operation would be a program
def _labels_of(channel: AbstractLabels, fields: Array, noise: Array) -> Array:
    return jax.vmap(channel.label)(fields, noise)


class _LossProperties(NamedTuple):
    """Properties of a loss at random fields."""

    finite: Array
    changes: Array
    smooth: Array
    convex: Array


@eqx.filter_jit
def _loss_at_probes(
    function: Callable[[Array, Array], Array],
    channel: AbstractLabels,
    labels: Array,
    fields: Array,
    by_formula: bool,
) -> _LossProperties:
    """Look at the loss at fields (n, P, M), each with its label."""
    loss = lambda label, z: function(channel.link(z), label)
    finite = jnp.all(jnp.isfinite(jax.vmap(loss)(labels, fields)))
    slope = jax.vmap(jax.grad(loss, argnums=1))
    gradients = slope(labels, fields)
    changes = jnp.any(gradients != 0.0)
    # between two fields the slope of a convex loss does not fall, with kinks or without
    others = [(other, slope(labels, other)) for other in (fields[::-1], -fields)]
    along = [jnp.sum((gradients - g) * (fields - z), axis=(1, 2)) for z, g in others]
    lowest = jnp.min(jnp.stack(along))
    # kinks have no second derivative to examine: the user vouches for the proximal point
    if by_formula:
        convex = lowest >= -1e-9 * jnp.max(jnp.abs(gradients))
        return _LossProperties(finite, changes, smooth=jnp.ones((), bool), convex=convex)
    curvature = jax.vmap(jax.hessian(loss, argnums=1))(labels, fields)
    curvature = curvature.reshape(len(fields), fields[0].size, fields[0].size)
    # one gradient at all fields is a straight loss, a kinked one has several
    straight = jnp.allclose(gradients, others[0][1])
    smooth = jnp.all(jnp.isfinite(curvature)) & (jnp.any(curvature != 0.0) | straight)
    size = jnp.max(jnp.abs(curvature))
    # the eigensolver of a NaN may not end
    known = jnp.where(jnp.isfinite(curvature), curvature, 0.0)
    # no Hessian sees a kink, as of |z|
    convex = jnp.minimum(jnp.min(jnp.linalg.eigvalsh(known)), lowest) >= -1e-9 * size
    return _LossProperties(finite, changes, smooth, convex)
