r"""The interface of a learner, as message passing and state evolution use it.

A learner is a model of the data that may differ from the one that generated them: a student network
with a loss (`Erm`), or the posterior of another model (`Mismatched`). It responds to a label at its
fields ω ~ N(·, V), and to a field of its weights, b = M̂ w* + B̂ u + Q̂^{1/2} ξ of precision V̂:

    g, ∂g = respond(y, ω, V)          W, C = posterior(b, A)
    Q = E f fᵀ,  M = E f w*ᵀ,  B = E f uᵀ,  V = E ∂_b f      weight_averages(conjugates, teacher)

Here P and P* are the indices of student and teacher, M the tokens, K the fixed directions of the
inputs. Source: [Cui24], [theory: empirical-risk, sections 2 and 3].
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.channels.proximal import Law, ProximalOutput
from jaxsmi.core import validate
from jaxsmi.core.arrays import missing_array, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.index import IndexModel
from jaxsmi.priors.iid import AbstractIidPrior, squares


class OrderParameters(eqx.Module):
    """Order parameters: `overlap` Q = W Wᵀ/D (P, P), `teacher_overlap` M = W W*ᵀ/D (P, P*),
    `covariance` V (P, P), the response of the fields to one sample, and `direction_overlap`
    B = W Uᵀ/D (P, K)."""

    overlap: Array
    teacher_overlap: Array
    covariance: Array
    direction_overlap: Array


class Regularity(NamedTuple):
    """How smooth a response g is in ω. `kinks`: V̂ comes by partial integration, as the divergence
    of g is noisy; `jumps`: g may jump; `convex`: replicas cannot break their symmetry;
    `label_slope`: ∂g/∂z*, through the label, is known."""

    kinks: bool = False
    jumps: bool = False
    convex: bool = False
    label_slope: bool = True


class Conjugates(eqx.Module):
    """Conjugate order parameters: `noise` Q̂ (P, P), `signal` M̂ (P, P*), `precision` V̂
    (P, P) and `direction` B̂ (P, K)."""

    noise: Array
    signal: Array
    precision: Array
    direction: Array


class TeacherLaw(eqx.Module):
    """The law of the teacher's weights: their `prior`, `second_moment` S = W* W*ᵀ/D (P*, P*),
    `teacher_direction_overlap` R* = W* Uᵀ/D (P*, K) and `direction_gram` G = U Uᵀ/D (K, K)."""

    prior: AbstractIidPrior
    second_moment: Array
    teacher_direction_overlap: Array
    direction_gram: Array


class WeightAverages(eqx.Module):
    """Averages over the field b of the weights: the next `overlaps`; `squared` E[C ⊗ C]
    (P, P, P, P), C = ∂_b f, the map X ↦ E C X C; and the `penalty` of an entry, of a ridge
    ½ E λ‖f‖², zero of a posterior."""

    overlaps: OrderParameters
    squared: Array
    penalty: Array


class AbstractResponder(eqx.Module):
    """The learner's side of message passing: responses to labels, and weights from their field."""

    # True for the posterior of the model of the labels: Σ g gᵀ = -Σ ∂g, Q = M, V = S - Q on average
    bayes: ClassVar[bool] = False

    @property
    def discrete(self) -> bool:
        """True if the weights take finitely many values: their C may then vanish."""
        return False

    @property
    @abc.abstractmethod
    def tolerance(self) -> Array:
        """Error of g up to which it counts as accurate."""

    @abc.abstractmethod
    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Return g and ∂g of a batch."""

    def statistic(self, labels: Array) -> Array:
        """Compute from the labels (N, ...), once per data set, the function of them that `respond`
        takes: by default the labels themselves."""
        return labels

    @abc.abstractmethod
    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Return the weights (P, D) and C = ∂_b f (P, P) from their field b (P, D) of precision A
        (P, P)."""

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Compute log Z_w/D, NaN for a minimiser, and C ⊗ C (`AbstractPrior.bethe_terms`)."""
        C = self.posterior(b, A)[1]
        return missing_array((), C.dtype), squares(C[None])


class AbstractModelResponder(AbstractResponder):
    """The channel and the prior of a model."""

    student: AbstractModel

    @property
    def discrete(self) -> bool:
        return self.student.prior.traits.discrete

    @property
    def tolerance(self) -> Array:
        return self.student.channel.tolerance

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        return self.student.channel.respond(statistic, omega, V, key)

    def statistic(self, labels: Array) -> Array:
        return self.student.channel.statistic(labels)

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        return self.student.prior.posterior(b, A)

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        return self.student.prior.bethe_terms(b, A)


class BayesResponder(AbstractModelResponder):
    """The posterior of a model of indices or matrices."""

    bayes: ClassVar[bool] = True


class AbstractPenalty(eqx.Module):
    """A penalty of weights W (P, D), as a sum over their columns."""

    @abc.abstractmethod
    def __call__(self, weights: Array) -> Array:
        """Sum the penalty of all weights."""

    @abc.abstractmethod
    def responses(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Return the weights (P, D) from their field b (P, D) of precision A (P, P), and C = ∂_b f
        of each column, (D, P, P), or (1, P, P) if it is that of all; NaN where the sum of penalty
        and ½ w A w is not convex."""

    @abc.abstractmethod
    def subgradient(self, weights: Array, slope: Array) -> Array:
        """Return the smallest subgradient of loss and penalty, `slope` the gradient of the loss:
        zero at the minimum."""

    @abc.abstractmethod
    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        """See `AbstractIndexLearner.weight_averages`."""


class AbstractLearner(eqx.Module):
    """A learner other than the Bayes-optimal one: `Erm`, `Mismatched`, or `MatrixErm`."""

    matrix: ClassVar[bool] = False  # True for a learner of one matrix

    def closed_form(self, model: AbstractModel) -> bool:
        """Return True if averages over labels of `model` have a closed form."""
        return False


class AbstractIndexLearner(AbstractResponder, AbstractLearner):
    """A learner of indices: a student network, its response to a label, and the penalty or prior of
    its weights (module docstring)."""

    student: IndexModel | None

    @property
    def network(self) -> IndexModel:
        """The student, once the learner is bound to a model."""
        # `bind` sets the student of a learner without one
        assert self.student is not None
        return self.student

    @abc.abstractmethod
    def bind(self, model: IndexModel) -> AbstractIndexLearner:
        """Return the learner for labels of `model`; its student defaults to that model.

        Raises:
            ValueError: For a student whose tokens, or a loss whose labels, do not fit.
        """

    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels (N, ...) that the learner gives probability zero."""

    def losses(self, fields: Array, labels: Array) -> Array:
        """Return ℓ_y(z) of a batch of fields (n, P, M); zero for a posterior."""
        # the loss of predictions: one definition of ℓ serves training and message passing
        return self.test_loss(jax.vmap(self.network.link)(fields), labels)

    # Defaults of a posterior mean: smooth in ω, without a loss

    @property
    def ridge(self) -> Array:
        """λ, the weight of the ridge, one or (D,) of the columns; zero for a posterior."""
        return jnp.zeros((), theory_dtype())

    @property
    def penalty(self) -> AbstractPenalty | None:
        """The penalty of the risk; None for a posterior, which minimises no risk."""
        return None

    @property
    def regularity(self) -> Regularity:
        """How smooth g is in ω."""
        return Regularity()

    def test_loss(self, outputs: Array, labels: Array) -> Array:
        """Return the loss (n,) of predictions on labels; zero for a posterior."""
        return jnp.zeros(len(outputs), outputs.dtype)

    @abc.abstractmethod
    def respond_to_teacher(
        self, law: Law, teacher_fields: Array, noise: Array, omega: Array, V: Array
    ) -> ProximalOutput:
        """Respond to labels law(z*, noise) of a batch: g, its derivatives in ω and, through the
        label, in the teacher's fields z*.

        Args:
            law: Label of one sample from the teacher's fields and the noise.
            teacher_fields: z* (n, P*, M).
            noise: Second argument of `law`, (n, k).
            omega: ω (n, P, M).
            V: (P, P).
        """

    @abc.abstractmethod
    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        """Average over b = M̂ w* + B̂ u + Q̂^{1/2} ξ (module docstring)."""


def learner_of(learner: object, model: object) -> tuple[AbstractIndexLearner, IndexModel]:
    """Validate the arguments `learner` and `model`; return the learner bound to the model, and the
    model."""
    allowed = "smi.Erm(..) or smi.Mismatched(..)"
    instance = validate.instance("learner", learner, AbstractIndexLearner, allowed)
    allowed = "an index model with this learner (for a matrix: smi.MatrixErm)"
    teacher = validate.instance("model", model, IndexModel, allowed)
    # the student and convexity, which depend on the labels, are determined once
    return instance.bind(teacher), teacher


def check_columns(name: str, value: object, columns: int, model: IndexModel) -> None:
    """Raise a ValueError for a learner whose columns differ, on labels of a teacher whose columns
    differ, too, and are of another number, or who knows fixed directions."""
    if model.prior.traits.identical:
        return
    D = len(model.prior.column(model.indices).log_weight)
    allowed = f"as many columns as the prior of the model has, {D}, and no fixed directions"
    check(columns == D and model.inputs is None, name, value, allowed)


def linear_weight_averages(
    C: Array, ridge: Array, conjugates: Conjugates, teacher: TeacherLaw
) -> WeightAverages:
    """Compute `AbstractIndexLearner.weight_averages` for f_i(b) = C_i b, of a ridge or a Gaussian
    prior: C is (D, P, P), or (1, P, P) for all columns [theory: empirical-risk, Eqs. (8), (32)].
    Only second moments of the teacher enter."""
    S = teacher.second_moment[None]
    # E w*_i w*_iᵀ of each column; of one C only the mean over columns matters
    if len(C) > 1 and not teacher.prior.traits.identical:
        S = teacher.prior.column(S.shape[-1]).covariance
    R, G = teacher.teacher_direction_overlap, teacher.direction_gram
    # M̂ S M̂ᵀ and the like: averages over w* and u need second moments only
    signal = conjugates.signal
    direction = conjugates.direction
    mixed = signal @ R @ direction.T
    # E (M̂ w* + B̂ u)(M̂ w* + B̂ u)ᵀ
    square = signal @ S @ signal.T + mixed + mixed.T + direction @ G @ direction.T
    columns = OrderParameters(
        overlap=C @ (square + conjugates.noise) @ C,
        teacher_overlap=C @ (signal @ S + direction @ R.T),
        covariance=C,
        direction_overlap=C @ (signal @ R + direction @ G),
    )
    overlaps = jax.tree.map(lambda a: jnp.mean(a, 0), columns)
    norms = jnp.trace(columns.overlap, axis1=1, axis2=2)
    return WeightAverages(overlaps, squares(C), 0.5 * jnp.mean(ridge * norms))
