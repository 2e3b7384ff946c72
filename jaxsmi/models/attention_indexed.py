r"""Attention-indexed models: attention of extensive rank, the label a function of the scores.

Equations here [BTEZ25; theory: attention-indexed, Eqs. (1) to (7), (30) to (33), (45)],
S = W Wᵀ/√(r d), tokens x_1..x_T iid N(0, I_d), α = n/d², ρ = r/d:

    h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d,   y = softmax(β h) | hardmax(h) | h + noise
    L layers [Eq. (45)]: B_0 = I, A_l = softmax(β B_{l-1} h^l B_{l-1}ᵀ), B_l = (c I + A_l) B_{l-1},
        y = A_L
    perfect recovery from α = D(ρ)/M: M = T(T+1) (linear), T² + T - 2 (softmax);
        hardmax: never, V ~ c(ρ) α^{-2}, c(ρ) = π (1+ρ) D(ρ)²/(8 K²), K = ∫ φ²/(Φ(1 - Φ))
    small width, ᾱ = α/ρ, ρ -> 0: something is learned from ᾱ_c = 1/f(0) at Q_0 = 1

The channels are in channels/matrix_scores.py and channels/hardmax.py, prediction errors in
score_error.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.hardmax import HardmaxScores, sign_information
from jaxsmi.channels.layered_scores import LayeredScores, layered_scores
from jaxsmi.channels.likelihood import NoInference
from jaxsmi.channels.matrix_scores import AbstractScores, LinearScores, SoftmaxScores
from jaxsmi.channels.symmetric_fields import SymmetricFields
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import (
    checked,
    choice,
    either,
    function,
    numbers,
    optional,
    scalar,
    whole,
)
from jaxsmi.core.checks import (
    NON_NEGATIVE,
    POSITIVE,
    VARIANCE,
    Ability,
    Arguments,
    Interval,
    check,
    check_rows,
    require,
)
from jaxsmi.core.data import Dataset, Regenerated, Taught
from jaxsmi.core.results import Estimate
from jaxsmi.models.base import overlaps_of
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.models.matrix_outputs import Labels, scores_output
from jaxsmi.models.score_error import hardmax_error, sampled_error, softmax_error
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.spectral import SpectralPrior
from jaxsmi.priors.wishart import WishartLaw, WishartPrior
from jaxsmi.sensing.blocks import mapped, product_dtype
from jaxsmi.sensing.symmetric import SymmetricSensing

__all__ = ["AttentionIndexed"]

OUTPUTS = ("softmax", "hardmax", "linear")
_OUTPUT = f"one of {OUTPUTS}, or a JAX function of scores (T, T)"
_TOLERANCE = 1e-3  # of the inner integral of two layers
_BETA = Interval("a finite number > 0 (or output='hardmax')", low=0.0, open_low=True)


class AttentionIndexed(AbstractMatrixModel):
    r"""Attention of extensive rank: y = φ(h), h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d, S = W Wᵀ/√(r d).

    Sample complexity is α = n/d². Inputs are (n, T, d), labels (n, T, T), the teacher W (L r, d).

    Args:
        tokens: T.
        rank_ratio: ρ = r/d > 0.
        output: "softmax", "hardmax" (two to five tokens), "linear", or a JAX function of symmetric
            scores (T, T) (inference with noise > 0). Default "softmax"; with `outcomes` E[y|h].
        beta: Inverse temperature > 0 of the softmax. Default 1.
        noise: Δ >= 0 of the linear output: variance Δ on the diagonal of h, Δ/2 off it; of a
            function Δ on every number of its label. Default 0.
        layers: L, all of width ρ. Default 1. Two softmax layers of two tokens have message passing
            and a state evolution under the diagonal ansatz; others data and training only.
        skip: Residual strength c >= 0 of the layers. Default 1.
        log_likelihood: log p(y|h) of (y, h), normalised, instead of noise. Default None.
        sampler: Draws a label from (key, h), beside log_likelihood. Default None.
        outcomes: All labels (K, ...), where they are few, in place of a sampler. Default None.
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

    prior: SpectralPrior
    beta: Array
    noise: Array
    skip: Array
    tokens: int = eqx.field(static=True)
    given: AbstractChannel | None
    output: str = eqx.field(static=True)
    layers: int = eqx.field(static=True)

    @checked(
        tokens=whole(),
        rank_ratio=scalar(POSITIVE),
        output=optional(either(_OUTPUT, choice(*OUTPUTS), function(""))),
        beta=scalar(_BETA),
        noise=scalar(VARIANCE),
        layers=whole(),
        skip=scalar(NON_NEGATIVE),
        log_likelihood=optional(function("a function of (label, fields)")),
        sampler=optional(function("a function of (key, fields)")),
        outcomes=optional(numbers("all labels (K, ...), two or more")),
        tolerance=optional(scalar(POSITIVE)),
    )
    def __init__(
        self,
        tokens: int,
        rank_ratio: ArrayLike,
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
        arguments = Arguments()
        labels = Labels(noise, log_likelihood, sampler, outcomes)
        if output is None and not labels.scattered:
            output = "softmax"
        if isinstance(output, str):
            arguments.choice("output", output, OUTPUTS)
        linear = output not in ("softmax", "hardmax")
        self.tokens = arguments.count("tokens", tokens, at_least=1 if linear else 2)
        check(output != "hardmax" or self.tokens <= 5, "tokens", tokens, "2 to 5 for hardmax")
        self.layers = layers
        check(self.layers == 1 or not linear, "layers", layers, "1 for this output")
        known = scores_output(output, labels, self.tokens, tolerance)
        self.output = known.name
        self.given = known.channel
        self.beta = arguments.number("beta", beta, _BETA)
        self.noise = arguments.number("noise", noise, VARIANCE)
        silent = linear or self.noise == 0
        self.noise = arguments.masked(
            self.noise, silent, "noise", noise, "0 but for the linear output"
        )
        self.skip = arguments.number("skip", skip, NON_NEGATIVE)
        self.prior = WishartPrior(rank_ratio)

    @property
    def channel(self) -> AbstractChannel:
        """What a label says about the scores: of one layer, or of two softmax layers of two
        tokens."""
        last = self.readout
        if self.layers == 1:
            return last
        if isinstance(last, SoftmaxScores) and self.layers == 2 and self.tokens == 2:
            return LayeredScores(2, 2, self.skip, last, Budget(_TOLERANCE))
        name = f"AttentionIndexed({self.tokens} tokens, {self.output}, {self.layers} layer(s))"
        remedy = (
            "one layer, or two softmax layers of two tokens (more have an inner integral in four "
            "variables at least); all can be sampled and trained"
        )
        return NoInference(
            law=self.link, indices=self.layers, tokens=self.tokens, name=name, remedy=remedy
        )

    @property
    def ansatz(self) -> str | None:
        """Of several layers, the diagonal one."""
        if self.layers == 1:
            return None
        return (
            "state evolution of several layers is under the diagonal ansatz: overlaps between "
            "different layers are those of their means [theory: attention-indexed, section 7]."
        )

    @property
    def readout(self) -> AbstractScores | SymmetricFields:
        """The last layer: what a label says about the scores it was made of."""
        if self.given is not None:
            return SymmetricFields(self.given, self.tokens)
        if self.output == "linear":
            return LinearScores(tokens=self.tokens, noise=self.noise)
        if self.output == "softmax":
            return SoftmaxScores(tokens=self.tokens, beta=self.beta)
        return HardmaxScores(tokens=self.tokens)

    @property
    def indices(self) -> int:
        """How many matrices there are: the number of layers."""
        return self.layers

    @property
    def index_names(self) -> tuple[str, ...]:
        """What to call them: "S", or "layer 1" and so on."""
        if self.layers == 1:
            return ("S",)
        return tuple(f"layer {number}" for number in range(1, self.layers + 1))

    @property
    def decay(self) -> Array:
        """c(ρ) of hardmax with two tokens, V ~ c(ρ)/α² for large α."""
        two = self.output == "hardmax" and self.tokens == 2
        check(two, "model", self.output, "hardmax with two tokens")
        scale = 8.0 * sign_information() ** 2
        return np.pi * self.prior.norm * self.prior.law.degrees_of_freedom**2 / scale

    # Message passing

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those of the readout; of a function of the scores what was measured first."""
        readout = self.readout
        return readout.precisions if isinstance(readout, AbstractScores) else ("outer", "state")

    @property
    def dampings(self) -> tuple[float, ...]:
        """Those of the readout."""
        readout = self.readout
        return readout.dampings if isinstance(readout, AbstractScores) else (0.3, 0.6, 0.8)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, labels of another shape or, if asked to, a
        teacher of other layers."""
        T = self.tokens
        L = self.layers
        fits = data.inputs.shape[1] == T
        check(fits, "data.inputs", data.inputs, f"(n, {T}, d): T tokens a sample")
        check(data.inputs.shape[2] >= 2, "data.inputs", data.inputs, "a dimension d >= 2")
        fields = jax.ShapeDtypeStruct((L, T, T), float)
        shape = jax.eval_shape(self.link, fields).shape
        check_rows(data.labels, shape)
        if teacher and data.teacher is not None:
            known = L if data.model is None else data.model.indices
            same = known == L and data.teacher.shape[0] % L == 0
            allowed = f"one of {L}, or Dataset(inputs, labels) without a teacher"
            check(same, "data", f"a teacher of {known} layer(s)", allowed)

    def teacher_of(self, data: Taught) -> Array | None:
        """None of other layers: its factors would be taken for those of one matrix."""
        same = data.model is None or data.model.indices == self.layers
        return data.teacher if same else None

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal √d S (L, d, d) and of its fields (n, L, T²) in message passing."""
        self.check_data(data)
        require(self, Ability.INFERENCE)
        L = self.layers
        return (L, data.dimension, data.dimension), (data.samples, L, self.tokens**2)

    def sensing(self, data: Dataset) -> SymmetricSensing:
        """How the signal is seen through the inputs of `data`."""
        return SymmetricSensing(data.inputs)

    def signal(self, teacher: Array) -> Array:
        """√d S (L, d, d) of a teacher (L r, d)."""
        return self.signal_of(self.estimate(teacher))

    def signal_of(self, estimate: Array) -> Array:
        """√d S (L, d, d) of S (d, d) or (L, d, d)."""
        d = estimate.shape[-1]
        return jnp.sqrt(float(d)) * estimate.reshape(-1, d, d)

    def estimate(self, signal: Array) -> Array:
        """S (d, d), of several layers (L, d, d), from the signal √d S (L, d, d) of message passing
        or from factors (L r, d)."""
        S = self._matrices(signal)
        return S[0] if self.layers == 1 else S

    def _matrices(self, signal: Array) -> Array:
        """S (L, d, d) of each layer."""
        signal = signal.astype(theory_dtype())
        if signal.ndim == 3:
            return signal / jnp.sqrt(float(signal.shape[-1]))
        return jax.vmap(lambda rows: WishartLaw.matrix(rows.T))(self._factors(signal))

    def _factors(self, weights: Array) -> Array:
        """Factors (L, r, d) of each layer."""
        return weights.reshape(self.layers, -1, weights.shape[-1])

    # What was learned

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """Tr Ŝ_l Ŝ_k/d as "overlap" (L, L), Tr Ŝ_l S*_k/d as "teacher_overlap", "cosine" (L,) of
        both; NaN without S*."""
        S = self._matrices(weights)
        d = weights.shape[-1]
        Q = jnp.einsum("lij,kij->lk", S, S) / d
        if teacher is None:
            return overlaps_of(Q)
        truth = self._matrices(teacher)
        cross = jnp.einsum("lij,kij->lk", S, truth) / d
        norms = jnp.diagonal(Q) * jnp.einsum("lij,lij->l", truth, truth) / d
        return overlaps_of(Q, cross, jnp.diagonal(cross) / jnp.sqrt(norms))

    def check_teacher(self, teacher: Array, estimate: tuple[int, ...]) -> None:
        """W (L r, d), of any r."""
        allowed = f"data.teacher: factors ({self.layers} r, {estimate[-1]})"
        check(self._has_layers(teacher, estimate[-1]), "teacher", teacher, allowed)

    def _has_layers(self, factors: Array, dimension: int) -> bool:
        """Whether factors are (L r, d)."""
        matrix = factors.ndim == 2 and factors.shape[1] == dimension
        return matrix and factors.shape[0] % self.layers == 0

    def estimation_error(self, estimate: Array, teacher: Array) -> Array:
        """‖Ŝ - S*‖²/d of an estimate (d, d) or (L, d, d), for a teacher (L r, d)."""
        squares = jnp.sum((estimate - self.estimate(teacher)) ** 2)
        return squares / (teacher.shape[1] * self.layers)

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """E ‖y(h) - ŷ(ω)‖² at overlap q, without label noise: ŷ = E[y|ω] (`bayes`) or y(ω)."""
        q = Q[0, 0]
        T = self.tokens
        V = self.prior.norm - q
        if self.given is None and self.output == "linear":
            return Estimate(T * (T + 1) * V, jnp.zeros((), theory_dtype()))
        if self.given is None and T == 2 and self.layers == 1 and self.output == "hardmax":
            return hardmax_error(q, self.prior.norm, bayes)
        if self.given is None and T == 2 and self.layers == 1:
            return softmax_error(q, V, self.beta, bayes)
        key = Arguments().key("key", key)
        rest = self.prior.second_moment(self.layers) - Q
        estimate = sampled_error(self.link, T, Q, rest, bayes=bayes, key=key, samples=samples)
        return not_differentiable(estimate, (self, Q), unless=self.readout.smooth)

    # The network

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (T, d)."""
        return (self.tokens, dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student, (L r, d)."""
        return (self.layers * self.prior.width(dimension), dimension)

    def scores_of(self, W: Array, inputs: Array | Regenerated) -> Array:
        """Scores h (n, T, T) of inputs (n, T, d) for weights (d, r), in the wider
        precision of the two."""
        d, r = W.shape
        narrow = W.astype(product_dtype(inputs))
        wide = jnp.promote_types(W.dtype, narrow.dtype)
        trace = jnp.sum(W.astype(wide) ** 2)

        def products(x: Array) -> Array:
            z = jnp.einsum("ntd,dr->ntr", x, narrow, precision="highest").astype(wide)
            return jnp.einsum("nar,nbr->nab", z, z, precision="highest")

        scores = mapped(products, inputs) - trace * jnp.eye(inputs.shape[1], dtype=wide)
        return scores / math.sqrt(r * d) / math.sqrt(d)

    def fields_of(self, weights: Array, inputs: Array | Regenerated) -> Array:
        """Scores h (n, L, T, T) of inputs (n, T, d) for factors (L r, d)."""
        each = [self.scores_of(rows.T, inputs) for rows in self._factors(weights)]
        return jnp.stack(each, axis=1)

    def link(self, fields: Array) -> Array:
        """The noiseless label (T, T) of one sample from its scores (T, T) or (L, T, T), or as field
        vectors (L, T²)."""
        h = fields.reshape(self.layers, self.tokens, self.tokens)
        return self.readout.link(layered_scores(h, self.skip, self.readout.link))

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Labels of inputs (n, T, d) for factors (L r, d), in the precision of the inputs."""
        dtype = inputs.dtype
        cast = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, self)
        return jax.vmap(cast.link)(self.fields_of(weights, inputs).astype(dtype))

    def predicted_shape(self, estimate: Array) -> tuple[int, int]:
        """(T, d) for S (d, d), or (L, d, d) of several layers."""
        d = estimate.shape[-1] if estimate.ndim else 0
        one = self.layers == 1
        fits = estimate.shape == ((d, d) if one else (self.layers, d, d))
        check(fits, "solution", estimate, "a matrix (d, d)" if one else f"({self.layers}, d, d)")
        return (self.tokens, d)

    def predicted_labels(self, estimate: Array, inputs: Array) -> Array:
        """Labels (n, T, T) at the scores of Ŝ."""
        return jax.vmap(self.link)(SymmetricSensing(inputs).forward(self.signal_of(estimate)))

    # Data

    def complexity(self, samples: int, dimension: int) -> float:
        """α = n/d²."""
        return samples / dimension**2

    def samples_at(self, alpha: float, dimension: int) -> int:
        """n = round(α d²)."""
        return round(alpha * dimension**2)

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Factors W (L r, d) of iid N(0, 1) entries."""
        return self.start(key, dimension)

    def admit_teacher(self, teacher: Array, dimension: int) -> None:
        """Factors (L r, d), of any r >= 1."""
        fits = self._has_layers(teacher, dimension) and teacher.shape[0] > 0
        layers = "" if self.layers == 1 else f"{self.layers} "
        check(fits, "teacher", teacher, f"({layers}r, {dimension})")

    def draw_labels(self, key: PRNGKeyArray, teacher: Array, inputs: Array | Regenerated) -> Array:
        """Labels (n, ...), with their noise."""
        fields = self.fields_of(teacher, inputs)
        if not self.readout.noise_size:
            return jax.vmap(self.link)(fields)
        noise = jax.random.normal(key, (len(fields), self.readout.noise_size), fields.dtype)
        return jax.vmap(self.readout.label)(fields[:, 0], noise)
