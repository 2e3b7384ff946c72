r"""Attention-indexed models: attention of extensive rank, the label a function of the matrix of indices of a sequence.

Equations here [spec/2, sections 1, 3.2 to 3.6, 6], S = W Wᵀ/√(r d), tokens x_1..x_T iid N(0, I_d):

    h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d,   y = softmax(β h) | hardmax(h) | h + noise,     α = n/d², ρ = r/d
    perfect recovery from α = D(ρ)/M: M = T(T+1) (linear), T² + T - 2 (softmax); hardmax: never, V ~ c(ρ) α^{-2},
        c(ρ) = π (1+ρ) D(ρ)²/(8 K²),  K = ∫ φ²/(Φ(1 - Φ))
    small width, ᾱ = α/ρ, ρ → 0: something is learned from ᾱ_c = 1/f(0) at Q_0 = 1
    free entropy Φ = (q̂/4)(1 + ρ - q) - I(q̂) + α Ψ(q),   f = 4 Ψ'
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.channels.indexed import HardmaxIndices, LinearIndices, SoftmaxIndices
from jaxsmi.priors.spectral import WishartPrior
from jaxsmi.sensing import MatrixSensing
from jaxsmi.types import Array, Dataset, check, theory_dtype

OUTPUTS = ("softmax", "hardmax", "linear")


class AttentionIndexed(eqx.Module):
    r"""One attention layer of extensive rank: y = g(h), h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d, S = W Wᵀ/√(r d).

    Arguments: `tokens` T; `rank_ratio` ρ = r/d > 0; `output` "softmax", "hardmax" or "linear"; `beta` > 0 of the softmax; `noise`
    Δ >= 0 of the linear output (variance Δ on the diagonal of h, Δ/2 off it). Sample complexity is α = n/d².
    Raises: ValueError for arguments out of range, one token with softmax or hardmax (no information), noise elsewhere.
    Example:
    >>> import jax, jaxsmi as smi
    >>> jax.config.update("jax_enable_x64", True)
    >>> model = smi.AttentionIndexed(tokens=2, rank_ratio=0.5, output="softmax")
    >>> round(float(smi.state_evolution(model, 0.1).error), 6)
    0.392196
    """

    prior: WishartPrior
    channel: Any
    output: str = eqx.field(static=True)
    scalar: ClassVar[bool] = True

    def __init__(self, tokens: int, rank_ratio: Any, output: str = "softmax", *, beta: Any = 1.0, noise: Any = 0.0):
        least = 1 if output == "linear" else 2
        check(output in OUTPUTS, "output", output, f"one of {OUTPUTS}")
        check(isinstance(tokens, (int, np.integer)) and tokens >= least, "tokens", tokens, f"an integer >= {least}")
        check(output != "hardmax" or tokens == 2, "tokens", tokens, "2 for hardmax (its closed form)")
        beta, noise = jnp.asarray(beta, theory_dtype()), jnp.asarray(noise, theory_dtype())
        check(beta.ndim == 0 and jnp.isfinite(beta) & (beta > 0), "beta", beta, "a finite number > 0 (or output='hardmax')")
        check(noise.ndim == 0 and jnp.isfinite(noise) & (noise >= 0), "noise", noise, "a variance >= 0")
        check((output == "linear") | (noise == 0), "noise", noise, "0 but for the linear output")
        self.prior, self.output = WishartPrior(rank_ratio), output
        if output == "linear":
            self.channel = LinearIndices(int(tokens), noise)
        else:
            self.channel = SoftmaxIndices(int(tokens), beta) if output == "softmax" else HardmaxIndices()

    @property
    def tokens(self) -> int:
        """T."""
        return self.channel.tokens

    @property
    def recovery(self) -> Array:
        """α = D(ρ)/M of perfect recovery; inf where there is none."""
        if self.output == "hardmax":
            return jnp.asarray(jnp.inf, theory_dtype())
        noise = self.channel.noise if self.output == "linear" else 0.0
        return jnp.where(noise > 0.0, jnp.inf, self.prior.degrees_of_freedom / self.channel.measurements)

    @property
    def small_width_threshold(self) -> Array:
        """ᾱ_c = 1/f(0) at Q_0 = V = 1: where learning starts in α/ρ as ρ → 0."""
        one = jnp.ones((), theory_dtype())
        return 1.0 / self.channel.response(0.0 * one, one)

    # what message passing and training ask of a model ------------------------------------------------------------------

    indices: ClassVar[int] = 1
    calibrated: ClassVar[bool] = False

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of `gamp`, the default first: theory's where the labels fix linear combinations of the indices [spec/2, section 4]."""
        return ("outer", "state") if self.output == "hardmax" else ("state", "outer")

    @property
    def dampings(self) -> tuple[float, ...]:
        """That `gamp` tries one after the other: undamped, noiseless softmax and linear labels diverge at d = 100."""
        return (0.0, 0.4, 0.7) if self.output == "hardmax" else (0.4, 0.7, 0.85)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, or labels of another shape."""
        T = self.tokens
        check(data.inputs.shape[1] == T, "data.inputs", data.inputs, f"(n, {T}, d): T tokens a sample")
        check(data.inputs.shape[2] >= 2, "data.inputs", data.inputs, "a dimension d >= 2")
        check(data.labels.shape[1:] == (T, T), "data.labels", data.labels, f"(n, {T}, {T})")

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal √d S (1, d, d) and of its fields (n, 1, T²) in message passing."""
        self.check_data(data)
        return (1, data.dimension, data.dimension), (data.samples, 1, self.tokens**2)

    def sensing(self, data: Dataset) -> MatrixSensing:
        """How the signal is seen through the inputs of `data`."""
        return MatrixSensing(data.inputs)

    def estimate(self, signal: Array) -> Array:
        """S (.., d, d) of the signal √d S (1, d, d) of message passing, or of factors W (.., r, d)."""
        if signal.ndim == 3:
            return signal[0] / jnp.sqrt(float(signal.shape[-1]))
        return self.prior.matrix(signal.astype(theory_dtype()).T)

    def signal(self, teacher: Array) -> Array:
        """√d S (1, d, d) of a teacher (r, d)."""
        return jnp.sqrt(float(teacher.shape[1])) * self.estimate(teacher)[None]

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """q = Tr Ŝ²/d as "overlap" (1, 1), Tr Ŝ S*/d as "teacher_overlap" (1, 1), "cosine" (1,) of Ŝ with S*; NaN without S*."""
        S = self.estimate(weights)
        Q, cross, cosine = jnp.sum(S**2) / len(S), jnp.asarray(jnp.nan, S.dtype), jnp.asarray(jnp.nan, S.dtype)
        if teacher is not None:
            truth = self.estimate(teacher)
            cross = jnp.sum(S * truth) / len(S)
            cosine = cross / jnp.sqrt(Q * jnp.sum(truth**2) / len(S))
        return {"overlap": Q[None, None], "teacher_overlap": cross[None, None], "cosine": cosine[None]}

    def error_of(self, weights: Array, data: Dataset, *, key: Array, samples: int = 0) -> Array:
        """Estimation error ‖Ŝ - S*‖²/d; NaN without a teacher."""
        del key, samples
        if data.teacher is None:
            return jnp.asarray(jnp.nan, theory_dtype())
        return jnp.sum((self.estimate(weights) - self.estimate(data.teacher)) ** 2) / data.dimension

    def start(self, key: Array, dimension: int, scale: Any = 1.0, dtype: Any = None) -> Array:
        """Random factors (r, d) of a student: scale × N(0, 1)."""
        return (scale * self.prior.sample(key, dimension).T).astype(dtype or theory_dtype())

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Labels of inputs (n, T, d) for factors (r, d), in the precision of the inputs: what `train` differentiates."""
        cast = jax.tree.map(lambda x: x.astype(inputs.dtype) if eqx.is_inexact_array(x) else x, self)
        return jax.vmap(cast.link)(self.indices_of(weights.T, inputs).astype(inputs.dtype))

    def predict(self, solution: Any, inputs: Any) -> Array:
        """Labels (n, T, T) of new inputs (n, T, d) for Ŝ: `solution` of `gamp` or `train`, or a symmetric matrix (d, d).

        Raises: ValueError for a solution of theory, or shapes that do not fit.
        """
        S, inputs = getattr(solution, "weights", solution), jnp.asarray(inputs)
        check(S is not None, "solution", "a solution without weights", "the solution of gamp or train")
        check(S.ndim == 2 and S.shape[0] == S.shape[1], "solution", S, "a matrix (d, d)")
        shape = (self.tokens, S.shape[0])
        check(inputs.ndim == 3 and inputs.shape[1:] == shape, "inputs", inputs, f"an array of shape (n, *{shape})")
        return jax.vmap(self.link)(MatrixSensing(inputs).forward(jnp.sqrt(float(S.shape[0])) * S[None]))

    def indices_of(self, W: Array, inputs: Array) -> Array:
        """h (n, T, T) of inputs (n, T, d) for weights (d, r)."""
        d, r = W.shape
        z = jnp.einsum("ntd,dr->ntr", inputs, W.astype(inputs.dtype), precision="highest").astype(theory_dtype())
        trace = jnp.sum(W.astype(theory_dtype()) ** 2)
        scores = jnp.einsum("nar,nbr->nab", z, z) - trace * jnp.eye(inputs.shape[1])
        return scores / jnp.sqrt(float(r * d)) / jnp.sqrt(float(d))

    def link(self, h: Array) -> Array:
        """The noiseless label (T, T) of one sample from its indices (T, T), or from these as one field vector (1, T²)."""
        h = h.reshape(self.tokens, self.tokens)
        if self.output == "linear":
            return h
        if self.output == "softmax":
            return jax.nn.softmax(self.channel.beta * h, axis=-1)
        return jax.nn.one_hot(jnp.argmax(h, axis=-1), h.shape[-1], dtype=h.dtype)

    def sample(self, key: Array, *, dimension: int, alpha: Any, dtype: Any = None, teacher: Any = None) -> Dataset:
        """Draw a teacher W (d, r), n = round(α d²) inputs (n, T, d) and their labels (n, T, T).

        Arguments: `dimension` d >= 2; `alpha` = n/d² > 0; `dtype` of the inputs; `teacher` (d, r) to reuse.
        Returns: a `Dataset` whose teacher is Wᵀ (r, d). Raises: ValueError for arguments out of range.
        """
        check(isinstance(dimension, (int, np.integer)) and dimension >= 2, "dimension", dimension, "an integer d >= 2")
        check(np.isfinite(alpha) and alpha > 0, "alpha", alpha, "a positive number n/d²")
        samples = max(round(float(alpha) * dimension**2), 1)
        teacher_key, input_key, noise_key = jax.random.split(key, 3)
        W = self.prior.sample(teacher_key, dimension) if teacher is None else jnp.asarray(teacher, theory_dtype())
        check(W.ndim == 2 and W.shape[0] == dimension, "teacher", W, f"({dimension}, r)")
        inputs = jax.random.normal(input_key, (samples, self.tokens, dimension), dtype or theory_dtype())
        labels = jax.vmap(self.link)(self.indices_of(W, inputs))
        if self.output == "linear":
            noise = jax.random.normal(noise_key, labels.shape, labels.dtype)
            labels = labels + jnp.sqrt(self.channel.noise) * 0.5 * (noise + jnp.swapaxes(noise, 1, 2))
        return Dataset(inputs, labels, W.T, self)
