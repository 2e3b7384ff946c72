r"""Attention-indexed models: attention of extensive rank, the label a function of the scores.

Equations here [BTEZ25; theory: attention-indexed, Eqs. (1) to (7), (33) to (36), (48)],
S = W Wᵀ/√(r d), tokens x_1..x_T iid N(0, I_d), α = n/d², ρ = r/d:

    h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d,   y = softmax(β h) | hardmax(h) | h + noise
    L layers [Eq. (48)]: B_0 = I, A_l = softmax(β B_{l-1} h^l B_{l-1}ᵀ), B_l = (c I + A_l) B_{l-1},
        y = A_L
    perfect recovery from α = D_f(ρ)/M_y: M_y = T(T+1) (linear), T² + T - 2 (softmax);
        hardmax: never, V ~ a(ρ) α^{-2}, a(ρ) = π (1+ρ) D_f(ρ)²/(8 J²), J = ∫ φ²/(Φ(1 - Φ))
    small width, ᾱ = α/ρ, ρ -> 0: something is learned from ᾱ_c = 1/f(0) at Q_0 = 1

The channels are in channels/matrix_scores.py, prediction errors in prediction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.likelihood import NoInference
from jaxsmi.channels.matrix_scores import (
    AbstractScores,
    HardmaxScores,
    LinearScores,
    SoftmaxScores,
    sign_information,
)
from jaxsmi.channels.pullback import PullbackChannel, coordinates, frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import nan_unless, theory_dtype
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import NON_NEGATIVE, POSITIVE, VARIANCE, Interval, check
from jaxsmi.design.designs import MessagePassing, SymmetricDesign
from jaxsmi.models.base import title
from jaxsmi.models.index import check_no_law, output_model
from jaxsmi.models.matrix import MatrixModel, SymmetricFactors
from jaxsmi.models.prediction import hardmax_error, softmax_error
from jaxsmi.models.symmetry import AbstractSymmetry
from jaxsmi.models.teacher_student import (
    AbstractFlowTeacher,
    MatrixPair,
    StudentLoss,
    TeacherStudent,
    known_gram,
    squared_loss,
)
from jaxsmi.priors.factors import WishartPrior
from jaxsmi.priors.spectral import AbstractSymmetricLaw, SpectralPrior

# nodes of the spectrum in a flow: 1e-12 of its overlaps (tests/physics/test_extensive_rank.py)
_NODES = 48
_SCALE = math.sqrt(2.0)  # coordinates of scores have variance 2q
OUTPUTS = ("softmax", "hardmax", "linear")
_BETA = Interval("a finite number > 0 (or output='hardmax')", low=0.0, open_low=True)


class AttentionIndexed(MatrixModel, AbstractFlowTeacher):
    r"""Attention of extensive rank: y = φ(h), h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d, S = W Wᵀ/√(r d).

    Sample complexity is α = n/d². Inputs are (n, T, d), labels (n, T, T), the teacher W (L r, d).

    Args:
        tokens: T.
        rank_ratio: ρ = r/d > 0; or a prior of given eigenvalues, `smi.priors.Spectrum(..)`.
        output: "softmax", "hardmax" (inference of two tokens), "linear", or a JAX function of
            symmetric scores (T, T) (inference with noise > 0). Default "softmax"; with `outcomes`
            E[y|h].
        beta: Inverse temperature > 0 of the softmax. Default 1.
        noise: Δ >= 0 of the linear output: variance Δ on the diagonal of h, Δ/2 off it; of a
            function Δ on every number of its label. Default 0.
        layers: L, all of width ρ. Default 1; several can be sampled and trained, as no closed
            theory of them is known.
        skip: Residual strength c >= 0 of the layers. Default 1.
        log_likelihood: log p(y|h) of (y, h), as in `MultiIndex`, instead of noise. Default None.
        sampler: Draws a label from (key, h), beside log_likelihood. Default None.
        outcomes: All labels (K, ...), if they are few, in place of a sampler. Default None.
        tolerance: Error of Γ that a numerical channel aims at, as in `MultiIndex`. Default None.

    Raises:
        ValueError: For arguments out of range, one token with softmax or hardmax (no
            information), noise on softmax or hardmax.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model = smi.AttentionIndexed(tokens=2, rank_ratio=0.5, output="softmax")
        >>> round(float(smi.state_evolution(model, 0.1).error), 6)
        0.392196
    """

    beta: Array
    noise: Array
    skip: Array
    tokens: int = eqx.field(static=True)
    output: str = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    symmetry: ClassVar[tuple[AbstractSymmetry, ...]] = ()  # S is positive: its sign is known

    def __init__(
        self,
        tokens: int,
        rank_ratio: ArrayLike | SpectralPrior,
        output: str | Callable[[Array], Array] | None = None,
        *,
        beta: ArrayLike = 1.0,
        noise: ArrayLike = 0.0,
        layers: int = 1,
        skip: ArrayLike = 1.0,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        sampler: Callable[[PRNGKeyArray, Array], Array] | None = None,
        outcomes: ArrayLike | None = None,
        tolerance: float | None = None,
    ):
        if output is None and log_likelihood is None:
            output = "softmax"
        normalised = isinstance(output, str) and output in ("softmax", "hardmax")
        # the softmax of one score is 1: labels of one token carry no information
        self.tokens = validate.count("tokens", tokens, at_least=2 if normalised else 1)
        self.layers = validate.count("layers", layers)
        # the next layer averages tokens with these scores, which must add up to one
        check(self.layers == 1 or normalised, "layers", layers, "1 for this output")
        validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
        self.beta = validate.number("beta", beta, _BETA)
        self.noise = validate.number("noise", noise, VARIANCE)
        # the closed forms of softmax and hardmax are those of labels without noise
        if normalised:
            check(self.noise == 0.0, "noise", noise, "0 (noise > 0 needs the linear output)")
            self.noise = nan_unless(self.noise, self.noise == 0.0)
        self.skip = validate.number("skip", skip, NON_NEGATIVE)
        own = isinstance(rank_ratio, SpectralPrior)
        self.prior = rank_ratio if own else WishartPrior(rank_ratio)
        _law(self.prior)
        labels = {"log_likelihood": log_likelihood, "sampler": sampler, "outcomes": outcomes}
        if output is None or callable(output):
            model = output_model(output, noise, labels, self.tokens, tolerance)
            self.output = model.name
            self.readout = PullbackChannel(model.channel, frame(self.tokens))
        else:
            self.output = validate.choice("output", output, OUTPUTS)
            check_no_law(labels)
            self.readout = _scores(self.output, self.tokens, self.beta, self.noise)

    @property
    def design(self) -> SymmetricDesign:
        """Inputs (n, T, d), teachers W (L r, d), α = n/d²."""
        # theory's precision first where labels fix linear combinations of the scores [theory:
        # attention-indexed, Eq. (42)]; dampings are empirical: undamped, noiseless labels diverge
        # at d = 100, and hardmax at d = 40
        passing = MessagePassing(("state", "outer"), (0.4, 0.7, 0.85), False)
        if not self.readout.closed_form or self.output == "hardmax":
            passing = MessagePassing(("outer", "state"), (0.3, 0.6, 0.8), False)
        return SymmetricDesign(passing, self.tokens, self.layers)

    @property
    def student(self) -> SymmetricFactors:
        """Factors (L r, d)."""
        return SymmetricFactors(self, _law(self.prior))

    @property
    def channel(self) -> AbstractChannel:
        """Channel of the scores of one layer (for hardmax, of two tokens); others refuse
        inference."""
        if self.layers == 1 and (self.output != "hardmax" or self.tokens == 2):
            return self.readout
        name = f"AttentionIndexed({self.tokens} tokens, {self.output}, {self.layers} layer(s))"
        remedy = "one layer (hardmax: and two tokens)"
        return NoInference(self.layers, self.tokens**2, self.link, name, remedy)

    @property
    def decay(self) -> Array:
        """a(ρ) of hardmax with two tokens, V ~ a(ρ)/α² for large α."""
        two = self.output == "hardmax" and self.tokens == 2
        check(two, "model", self.output, "hardmax with two tokens")
        # V q̂ → D_f at large α, and q̂ = α f with f ∝ J/√(V (1 + ρ)) of labels that jump
        scale = 8.0 * sign_information() ** 2
        return np.pi * self.prior.norm * self.prior.law.degrees_of_freedom**2 / scale

    def link(self, fields: Array) -> Array:
        """Return the noiseless label (T, T) of one sample from its scores (T, T) or (L, T, T), or
        from field vectors (L, T²)."""
        h = fields.reshape(self.layers, self.tokens, self.tokens)
        B = jnp.eye(self.tokens, dtype=h.dtype)
        for inner in h[:-1]:
            B = self.skip * B + self.readout.link(B @ inner @ B.T) @ B
        return self.readout.link(B @ h[-1] @ B.T)

    def teacher_student(
        self,
        student: AttentionIndexed | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """Pair the model with a student of as many tokens and the same labels: for averages over a
        sample scores are T(T + 1)/2 independent numbers of variance q."""
        allowed = f"an AttentionIndexed of {self.tokens} tokens and one layer"
        learner = self if student is None else student
        learner = validate.instance("student", learner, AttentionIndexed, allowed)
        check(learner.tokens == self.tokens and learner.layers == 1, "student", learner, allowed)
        check(self.layers == 1, "model", title(self), "one layer")
        check(self.readout.drawable, "model", title(self), "one whose labels can be drawn")
        gram = self.prior.second_moment()
        return TeacherStudent(
            label=_Coordinates(coordinates(self.readout)).label,
            loss=StudentLoss(_Coordinates(coordinates(learner.readout)).link, loss or squared_loss),
            agreement=learner.metric.cosines,
            # the expected one: that of one matrix fluctuates by 1/d
            draw_gram=eqx.Partial(known_gram, gram),
            encoding=jnp.zeros((self.tokens * (self.tokens + 1) // 2, 0), gram.dtype),
            gram=gram,
            targets=1,
            rows=1,
            groups=1,
            tokens=self.tokens * (self.tokens + 1) // 2,
            noise_size=self.readout.noise_size,
            matrix=MatrixPair(*_law(self.prior).eigenvalues(_NODES), learner.rank_ratio),
        )

    def exact_error(self, q: Array, *, bayes: bool) -> Estimate | None:
        """Return the error of one layer with linear scores or two tokens; None for others."""
        if self.layers > 1 or not self.readout.closed_form:
            return None
        T = self.tokens
        V = self.prior.norm - q
        if self.output == "linear":
            return Estimate(T * (T + 1) * V, jnp.zeros((), theory_dtype()))
        if T > 2:
            return None
        if self.output == "hardmax":
            return hardmax_error(q, self.prior.norm, bayes)
        return softmax_error(q, V, self.beta, bayes)


def _law(prior: SpectralPrior) -> AbstractSymmetricLaw:
    """The law of symmetric matrices."""
    allowed = "a number > 0, or a prior of symmetric matrices, such as smi.priors.Spectrum(..)"
    return validate.instance("rank_ratio", prior.law, AbstractSymmetricLaw, allowed)


class _Coordinates(eqx.Module):
    """A channel of fields of variance q, half of that of coordinates."""

    channel: AbstractChannel

    def label(self, fields: Array, noise: Array) -> Array:
        return self.channel.label(_SCALE * fields, noise)

    def link(self, fields: Array) -> Array:
        return self.channel.link(_SCALE * fields)


def _scores(output: str, tokens: int, beta: Array, noise: Array) -> AbstractScores:
    """Return the channel of a named output."""
    if output == "linear":
        return LinearScores(tokens, noise=noise)
    return HardmaxScores(tokens) if output == "hardmax" else SoftmaxScores(tokens, beta=beta)
