r"""Empirical risk of one matrix: a loss, a ridge and a nuclear norm.

Equations here [theory: empirical-risk, Eqs. (24) to (26); trained-attention, section 1], S (L, d)
with entries O(1) (of attention-indexed models √d S), u = (d L)^{1/4}, so that singular values over
u are O(1), h_μ the fields of S and σ the output of the model:

    R(S) = Σ_μ ℓ(σ(h_μ), y_μ) + (λ/2) ‖S‖² + τ u ‖S‖_*
    field    argmin_S  w A ‖R - S‖² + (λ/2) ‖S‖² + τ u ‖S‖_*:  of every singular value s u of R
             f(s) = (2 w A s - τ)_+/(2 w A + λ),   w = 1/4 of a symmetric matrix, 1/2 of another
    factors  S = Bᵀ C/√r with weight decay η of B (r, L) and C (r, d):  τ = η √ρ/β^{1/4}
             S = Wᵀ W/√r with weight decay η of W (r, d):  τ = η √ρ/2, and S ⪰ 0

as the least ½ (‖B‖² + ‖C‖²) of factors of one matrix is its nuclear norm, if r reaches its rank.
Labels linear in S and the square loss have closed forms. Other losses see the fields through their
independent coordinates (channels/pullback.py), of variance κ V, κ = 1/(2w), and those are the
fields of a learner of one index (learners/erm.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.channels.pullback import coordinates
from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module, symmetric
from jaxsmi.core.data import Dataset
from jaxsmi.core.validate import NON_NEGATIVE, POSITIVE, check
from jaxsmi.learners import losses
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.learners.erm import Erm
from jaxsmi.models.base import AbstractModel, title
from jaxsmi.models.index import IndexModel
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.priors.iid import Gaussian

_MATRIX = "a model of one matrix, such as smi.Bilinear()"
_TIE = 1e-7  # relative difference up to which singular values count as equal


class Shrinkage(eqx.Module):
    """Shrinkage s ↦ f(s) of singular values, or eigenvalues, over u (module docstring).

    `scale` 2wA, `ridge` λ, `nuclear` τ; `positive`: whether negative eigenvalues are cut.
    """

    scale: Array
    ridge: Array
    nuclear: Array
    positive: bool = eqx.field(static=True)

    @property
    def threshold(self) -> Array:
        """Largest s with f(s) = 0."""
        return self.nuclear / self.scale

    @property
    def slope(self) -> Array:
        """Slope f' above the threshold."""
        return self.scale / (self.scale + self.ridge)

    def __call__(self, s: Array) -> Array:
        """Return f(s)."""
        above = self.slope * jnp.maximum(s - self.threshold, 0.0)
        if self.positive:
            return above
        return above - self.slope * jnp.maximum(-s - self.threshold, 0.0)

    def derivative(self, s: Array) -> Array:
        """Return f'(s)."""
        size = s if self.positive else jnp.abs(s)
        # slope at s = 0 with a threshold of zero, too: a ridge alone scales zeros as all values
        return jnp.where(size >= self.threshold, self.slope, 0.0)

    def quotient(self, x: Array, y: Array) -> Array:
        """Return (f(x) - f(y))/(x - y), and f' at equal arguments."""
        gap = x - y
        # a difference quotient of close values would be rounding over rounding
        tie = jnp.abs(gap) <= _TIE * (jnp.abs(x) + jnp.abs(y))
        return jnp.where(tie, self.derivative(x), (self(x) - self(y)) / jnp.where(tie, 1.0, gap))

    def matrix(self, R: Array) -> tuple[Array, Array]:
        """Return f of the singular values of a matrix R (L, d), and the mean of ∂f/∂R."""
        L, d = R.shape
        rows, values, columns = jnp.linalg.svd(R, full_matrices=False)
        x, y = values[:, None], values[None, :]
        # (x f(x) - y f(y))/(x² - y²), as f is odd; the diagonal is f'
        pairs = 0.5 * (self.quotient(x, y) + self.quotient(x, -y))
        pairs = pairs.at[jnp.diag_indices(len(values))].set(self.derivative(values))
        # a rectangular matrix has |L - d| singular values of zero more
        zeros = abs(L - d) * jnp.sum(self.quotient(values, jnp.zeros_like(values)))
        return (rows * self(values)) @ columns, (jnp.sum(pairs) + zeros) / (L * d)

    def symmetric_matrix(self, R: Array) -> tuple[Array, Array]:
        """Return f of the eigenvalues of a symmetric matrix R (d, d), and the mean of ∂f/∂R."""
        values, vectors = jnp.linalg.eigh(symmetric(R))
        mean = jnp.mean(self.quotient(values[:, None], values[None, :]))
        return (vectors * self(values)) @ vectors.T, mean


class MatrixErm(AbstractLearner):
    r"""Empirical risk minimisation over one matrix S: a loss, a ridge and a nuclear norm.

        R(S) = Σ_μ ℓ(σ(h_μ), y_μ) + (λ/2) ‖S‖² + τ (dL)^{1/4} ‖S‖_*

    σ(h_μ) is the noiseless label of the model, ‖S‖ the Frobenius norm and ‖S‖_* the sum of the
    singular values, of S (L, d) with entries of order one (of `smi.AttentionIndexed` √d S); then λ
    and τ are of order one, too. Weight decay of factors is a nuclear norm of their product:
    `of_weight_decay` returns its τ. A tiny τ gives the interpolating matrix of least nuclear norm
    if there are several.

    Args:
        ridge: λ >= 0, one of the two > 0. Default 0.
        nuclear: τ >= 0. Default 0.
        positive: Restrict a symmetric S to positive semi-definite matrices, as factors W Wᵀ do,
            even with a ridge alone; False gives ridge regression. Ignored for rectangular matrices.
            Default True.
        loss: ℓ(prediction, label), any twice differentiable JAX function to one number. Default
            ½ ‖ŷ - y‖².
        student: A matrix model, of which only the output σ is used. Default: the model that makes
            the labels.

    Raises:
        ValueError: For numbers out of range, or with neither penalty. A loss that does not fit the
            labels is refused once the labels are known.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model = smi.Bilinear(rank_ratio=0.2, noise=0.1)
        >>> sol = smi.state_evolution(model, 0.6, learner=smi.MatrixErm(nuclear=0.1))
        >>> bool(smi.state_evolution(model, 0.6).error < sol.error)
        True

    Cost:
        Theory: 0.2 s for labels linear in S, after 10 s of compilation; 2 s for softmax attention
        of two tokens (e to 0.5 %), after 50 s. Message passing: one eigendecomposition or singular
        value decomposition per step.

    Source:
        [theory: empirical-risk, section 7; trained-attention, section 2].
    """

    matrix: ClassVar[bool] = True

    ridge: Array
    nuclear: Array
    positive: bool = eqx.field(static=True)
    loss: Callable[[Array, Array], Array]
    student: MatrixModel | None

    def __init__(
        self,
        ridge: ArrayLike = 0.0,
        nuclear: ArrayLike = 0.0,
        *,
        positive: bool = True,
        loss: Callable[[Array, Array], Array] = losses.squared,
        student: MatrixModel | None = None,
    ):
        self.ridge = validate.number("ridge", ridge, NON_NEGATIVE)
        self.nuclear = validate.number("nuclear", nuclear, NON_NEGATIVE)
        self.positive = validate.flag("positive", positive)
        self.loss = as_module(validate.loss("loss", loss))
        self.student = None if student is None else one_matrix(student, "student")
        # without a penalty the minimum is not unique below the interpolation threshold
        some = (self.ridge > 0.0) | (self.nuclear > 0.0)
        check(some, "ridge", ridge, "a number > 0, as nuclear is 0")
        self.ridge = jnp.where(some, self.ridge, jnp.nan)  # traced penalties that are both zero

    def _network(self, model: MatrixModel) -> MatrixModel:
        """Return the student: by default the model of the labels."""
        return model if self.student is None else self.student

    def closed_form(self, model: AbstractModel) -> bool:
        """Return True if labels are linear in S and the loss is the square."""
        teacher = one_matrix(model)
        square = bool(eqx.tree_equal(self.loss, as_module(losses.squared)))
        return square and teacher.linear and self._network(teacher).linear

    def of_fields(self, model: MatrixModel) -> tuple[Erm, IndexModel]:
        """Return the learner of the coordinates of the fields, bound to the model of their labels,
        and that model."""
        teacher = _field_model(model)
        student = _field_model(self._network(model))
        return Erm(student, loss=self.loss, ridge=0.0).bind(teacher), teacher

    @classmethod
    def of_weight_decay(
        cls,
        student: MatrixModel,
        decay: ArrayLike,
        *,
        loss: Callable[[Array, Array], Array] = losses.squared,
    ) -> MatrixErm:
        """Return the risk that a student with factors minimises under weight decay
        (η/2) ‖factors‖², if its width reaches the rank of the minimum.

        `smi.train(student, data, optax.chain(optax.add_decayed_weights(η), optax.sgd(rate)),
        gradient=smi.Gradient(loss=loss, reduction="sum"), ..)` descends it.

        Args:
            student: `smi.Bilinear(..)`, or `smi.AttentionIndexed(..)`, of which only the output,
                the ratios of its sides and its width are used.
            decay: η > 0.
            loss: As in `MatrixErm`.

        Returns:
            A `MatrixErm`, τ = η √ρ/β^{1/4}, or η √ρ/2 of a symmetric matrix.

        Raises:
            ValueError: For another student, or a decay that is not positive.
        """
        student = one_matrix(student, "student")
        decay = validate.number("decay", decay, POSITIVE)
        finite = jnp.isfinite(student.prior.law.aspect_ratio)
        check(finite, "student", title(student), "one of finite aspect_ratio")
        return cls(nuclear=decay * student.prior.law.decay_scale, loss=loss, student=student)

    def shrinkage(self, precision: Array, prior_weight: float, signed: bool) -> Shrinkage:
        """Return f at a precision A: of eigenvalues (`signed`), or of singular values."""
        # 2w = 1/2 of a symmetric matrix: each entry off the diagonal is counted twice
        scale = 2.0 * prior_weight * precision
        return Shrinkage(scale, self.ridge, self.nuclear, self.positive and signed)

    def penalty(self, signal: Array) -> Array:
        """Return (λ/2) ‖S‖² + τ u ‖S‖_* of a signal S (1, L, d), over the number of entries."""
        _, L, d = signal.shape
        # singular values of entries O(1) grow with the sides: over u they are O(1)
        unit = float(L * d) ** 0.25
        norm = jnp.sum(jnp.linalg.svd(signal[0], compute_uv=False))
        return (0.5 * self.ridge * jnp.sum(signal**2) + self.nuclear * unit * norm) / (L * d)

    def risk(self, weights: ArrayLike, data: Dataset) -> Array:
        r"""Return R(S) over the number of entries of S, on a data set that knows its model.

        Args:
            weights: S (L, d), the `weights` of a solution of `gamp` or `train`.
            data: N samples.

        Returns:
            A number.

        Raises:
            ValueError: For data of another model, or of none, or an S of another shape. Whether S
                is positive semi-definite is not checked.
        """
        validate.instance("data", data, Dataset, "a smi.Dataset")
        model = one_matrix(data.model, "data.model")
        shape, _ = model.design.shapes(data.inputs.shape)
        array = validate.array("weights", weights, "S (L, d)")
        check(array.shape == shape[1:], "weights", weights, f"S {shape[1:]}")
        signal = model.student.signal(array)
        operator = model.design.operator(data.inputs)
        total = jnp.sum(self.losses(model, operator.forward(signal), data.labels))
        return total / operator.entries + self.penalty(signal)

    def losses(self, model: MatrixModel, fields: Array, labels: Array) -> Array:
        """Return ℓ (n,) of fields (n, 1, T²) and labels of a model."""
        predict = self._network(model).link
        return jax.vmap(lambda h, y: self.loss(predict(h).reshape(y.shape), y))(fields, labels)


def with_unit_noise(model: MatrixModel) -> MatrixModel:
    """Return the model with label noise of variance one: of a linear output, -log p(y|ŷ) is then
    the loss ½ ‖ŷ - y‖², up to a constant."""
    return eqx.tree_at(lambda m: m.readout.noise, model, replace_fn=jnp.ones_like)


def one_matrix(model: object, name: str = "model") -> MatrixModel:
    """Validate the argument `model` of a learner of matrices.

    Raises:
        ValueError: For a model of indices, or of several matrices.
    """
    known = validate.instance(name, model, MatrixModel, _MATRIX)
    check(known.indices == 1, name, title(known), _MATRIX)
    return known


def _field_model(model: MatrixModel) -> IndexModel:
    """Return the model of one index whose fields are the coordinates of those of a matrix."""
    scale = 0.5 / model.prior.weight
    prior = Gaussian(scale * model.prior.norm * jnp.ones((1, 1)))
    channel = coordinates(model.readout) if model.prior.symmetric else model.readout
    return IndexModel(prior=prior, channel=channel, symmetry=())
