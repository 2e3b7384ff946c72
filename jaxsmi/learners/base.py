r"""The interface of a learner, as message passing and state evolution use it.

A learner is a model of the data that may differ from the one that generated them: a student network
with a loss (`Erm`), or the posterior of another model (`Mismatched`). It responds to a label at its
fields ω ~ N(·, V), and a field of its weights, b = M̂ w* + B̂ u + Q̂^{1/2} ξ of precision V̂:

    g, ∂g = respond(y, ω, V)          W, C = posterior(b, A)
    Q = E f fᵀ,  M = E f w*ᵀ,  B = E f uᵀ,  V = E ∂_b f                moments(conjugates, truth)

Here P and P* are the indices of student and teacher, M the tokens, K the fixed directions of the
inputs. Source: [Cui24], [theory: empirical-risk, sections 2 and 3].
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.channels.proximal import LabelOf, Reply
from jaxsmi.core import validate
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.index import IndexModel
from jaxsmi.priors.iid import AbstractIidPrior


class Overlaps(eqx.Module):
    """Order parameters: `overlap` Q = W Wᵀ/D (P, P), `teacher_overlap` M = W W*ᵀ/D (P, P*),
    `covariance` V (P, P), the response of the fields to one sample, and `direction_overlap`
    B = W Uᵀ/D (P, K)."""

    overlap: Array
    teacher_overlap: Array
    covariance: Array
    direction_overlap: Array


class Conjugates(eqx.Module):
    """Conjugate order parameters: `noise` Q̂ (P, P), `signal` M̂ (P, P*), `precision` V̂
    (P, P) and `direction` B̂ (P, K)."""

    noise: Array
    signal: Array
    precision: Array
    direction: Array


class Truth(eqx.Module):
    """The law of the teacher's weights: their `prior`, `second_moment` S = W* W*ᵀ/D (P*, P*),
    `cross` R* = W* Uᵀ/D (P*, K) and `gram` G = U Uᵀ/D (K, K)."""

    prior: AbstractIidPrior
    second_moment: Array
    cross: Array
    gram: Array


class Moments(eqx.Module):
    """Averages over the field of the weights: the next `overlaps`, and `squared` E[C ⊗ C]
    (P, P, P, P), C = ∂_b f, as X ↦ E C X C."""

    overlaps: Overlaps
    squared: Array


class AbstractResponder(eqx.Module):
    """The learner's side of message passing: responses to labels, and weights from their field."""

    # the posterior of the model of the labels: Σ g gᵀ = -Σ ∂g, Q = M and V = S - Q on average
    bayes: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def tolerance(self) -> Array:
        """The error of g that counts as accurate."""

    @abc.abstractmethod
    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """g and ∂g of a batch."""

    def statistic(self, labels: Array) -> Array:
        """Statistic of the labels (N, ...) for `respond`, computed once per data set; the labels
        themselves unless a learner says otherwise."""
        return labels

    @abc.abstractmethod
    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Weights (P, D) and C = ∂_b f (P, P) from their field b (P, D) of precision A (P, P)."""


class AbstractModelResponder(AbstractResponder):
    """The channel and the prior of a model."""

    student: AbstractModel

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


class BayesResponder(AbstractModelResponder):
    """The posterior of a model of indices or matrices."""

    bayes: ClassVar[bool] = True
    student: AbstractModel


class AbstractLearner(eqx.Module):
    """A learner other than Bayes: `Erm`, `Mismatched`, or `MatrixErm`."""

    @property
    def explicit(self) -> bool:
        """State evolution has explicit averages, as for one matrix."""
        return False


class AbstractIndexLearner(AbstractResponder, AbstractLearner):
    """A learner of indices: a student network, its response to a label, and the penalty or prior of
    its weights (module docstring)."""

    student: IndexModel | None

    @property
    def network(self) -> IndexModel:
        """The student, after `taught_by`."""
        # a learner without a student takes the model of the labels for one (`taught_by`)
        assert self.student is not None
        return self.student

    @abc.abstractmethod
    def taught_by(self, model: IndexModel) -> AbstractIndexLearner:
        """The same learner for labels of this model, which is also the student if none is set.

        Raises:
            ValueError: For a student whose tokens, or a loss whose labels, do not fit.
        """

    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels (N, ...) outside of its support."""
        del labels

    def losses(self, fields: Array, labels: Array) -> Array:
        """ℓ_y(z) of a batch of fields (n, P, M); NaN for a posterior."""
        # by the loss of predictions: one spelling of ℓ for training and for message passing
        return self.test_loss(jax.vmap(self.network.link)(fields), labels)

    @property
    @abc.abstractmethod
    def sloped(self) -> bool:
        """Replies have the slope ∂g/∂z*."""

    # The next four are those of a posterior mean: smooth in ω, without a loss

    @property
    def decay(self) -> Array:
        """λ of the ridge; NaN for a posterior."""
        return jnp.asarray(jnp.nan)

    @property
    def kinked(self) -> bool:
        """g has kinks in ω: its divergence is noisy, and taken by parts."""
        return False

    @property
    def jumps(self) -> bool:
        """g may jump in ω."""
        return False

    def test_loss(self, outputs: Array, labels: Array) -> Array:
        """The loss (n,) of predictions on labels; NaN for a posterior."""
        del labels
        return jnp.full(len(outputs), jnp.nan)

    @abc.abstractmethod
    def reply(self, law: LabelOf, goal: Array, noise: Array, omega: Array, V: Array) -> Reply:
        """Responses to labels law(goal, noise) of a batch.

        Args:
            law: The label of the teacher's fields and its noise, one sample.
            goal: z* (n, P*, M).
            noise: Second argument of `law`, (n, k).
            omega: ω (n, P, M).
            V: (P, P).
        """

    @abc.abstractmethod
    def moments(self, conjugates: Conjugates, truth: Truth) -> Moments:
        """The averages over b = M̂ w* + B̂ u + Q̂^{1/2} ξ (module docstring)."""


def learner_of(learner: object, model: object) -> tuple[AbstractIndexLearner, IndexModel]:
    """Validate the arguments `learner` and `model`: the learner of that model's labels, and the
    model."""
    allowed = "smi.Erm(..) or smi.Mismatched(..)"
    instance = validate.instance("learner", learner, AbstractIndexLearner, allowed)
    allowed = "an index model with this learner (for a matrix: smi.MatrixErm)"
    teacher = validate.instance("model", model, IndexModel, allowed)
    # what depends on the labels, convexity and the student, is settled once
    return instance.taught_by(teacher), teacher


def linear_moments(C: Array, conjugates: Conjugates, truth: Truth) -> Moments:
    """`AbstractLearner.moments` where f(b) = C b [theory: empirical-risk, Eq. (8)]: a ridge, or a
    Gaussian prior. Only S of the teacher enters."""
    S = truth.second_moment
    R = truth.cross
    # M̂ S M̂ᵀ and the like: averages over w* and u need second moments only
    signal = conjugates.signal
    direction = conjugates.direction
    mixed = signal @ R @ direction.T
    # E (M̂ w* + B̂ u)(M̂ w* + B̂ u)ᵀ
    square = signal @ S @ signal.T + mixed + mixed.T + direction @ truth.gram @ direction.T
    overlaps = Overlaps(
        overlap=C @ (square + conjugates.noise) @ C,
        teacher_overlap=C @ (signal @ S + direction @ R.T),
        covariance=C,
        direction_overlap=C @ (signal @ R + direction @ truth.gram),
    )
    return Moments(overlaps, jnp.einsum("ac,bd->abcd", C, C))
