r"""Bilinear sequence regression: a label linear in a sequence, through a matrix of extensive rank.

Equations here [ETBMZ25; theory: bilinear, Eqs. (1) to (4), (19) to (25)], a sequence X of L tokens
in d dimensions, S = (U V)ᵀ/√r (L, d) with U (d, r) and V (r, L) iid N(0, 1), β = L/d, ρ = r/d:

    y = ⟨X, S⟩/√(dL) + √Δ z,     α = n/(dL);   error ‖Ŝ - S‖²/(dL) = V, of a new label V (+ Δ)
    perfect recovery (Δ = 0) from α = D = ρ (1 + β - ρ)/β (ρ <= 1, ρ <= β), else 1
    small width, ᾱ = n/(r (d + L)), ρ -> 0: something is learned from ᾱ = (1 + Δ) √β/(1 + β)
    β -> ∞ (Δ = 0): V = (1 - α)(1 - α/ρ);   ρ -> ∞: ridge regression with penalty Δ

Symmetric [MTMKZ24; theory: bilinear, Eqs. (6), (7), (11), (20), (25)], S = W Wᵀ/√r (d, d),
X symmetric and Gaussian, of variance 1 off the diagonal and 2 on it:

    y = ⟨X, S⟩/d + √Δ z,     α = n/d²;    error ‖Ŝ - S‖²/d² = V, of a new label 2V (+ Δ)
    small width, ᾱ = n/(r d), ρ -> 0: something is learned from ᾱ = (1 + Δ/2)/2

which is `AttentionIndexed(1, ρ, "linear", noise=Δ)` with X in place of x xᵀ - I: a quadratic
network, with the same asymptotics. A hidden layer with noise σ, y = (1/√r) Σ_k (w_k·x/√d + σ z_k)²,
has Δ = 4σ² + 2σ⁴.

Other outputs, y = φ(z) + √Δ ξ of the field z [theory: bilinear, Eqs. (14) to (18)], have the
channels of index models with P = M = 1; signs of S are lost if φ is even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.matrix_scores import LinearField, LinearScores
from jaxsmi.channels.pullback import PullbackChannel, frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import is_zero, nan_unless, theory_dtype
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import VARIANCE, check
from jaxsmi.design.designs import MessagePassing, RectangularDesign
from jaxsmi.models import links
from jaxsmi.models.index import MultiIndex, check_no_law, output_model
from jaxsmi.models.matrix import MatrixModel, ProductFactors
from jaxsmi.priors.factors import ProductPrior, WishartPrior, gaussian_error

OUTPUTS = ("linear", "sign", "absolute")


class Bilinear(MatrixModel):
    r"""Bilinear sequence regression: y = φ(⟨X, S⟩/√(dL)) + √Δ z, S (L, d) a product of width r.

    Sample complexity is α = n/(dL), L = round(β d), r = round(ρ d). Inputs are (n, L, d), S and the
    teacher (L, d): one row a token. `sample` warns if rounding moves β, ρ or α by more than 1 %:
    compare with the theory of the actual ratios. Stored inputs are n·L·d = α (dL)² numbers: 0.4 GB
    in float64 at d = L = 100, α = 0.5.

    Args:
        aspect_ratio: β = L/d > 0 (infinite: theory only). Default 1.
        rank_ratio: ρ = r/d > 0. Default 0.2.
        noise: Δ >= 0, the variance of the label noise (of signs inside the sign). Default 0.
        symmetric: S = W Wᵀ/√r of a quadratic network (β = 1). Default False.
        output: φ: "linear", "sign" (one-bit sensing), "absolute" (phaseless: S is known up to its
            sign), a JAX function of one number (inference with noise > 0), or a link of one index,
            such as smi.links.relu(0.1). Default "linear"; with `outcomes` E[y|z].
        log_likelihood: log p(y|z) of (y, z), as in `MultiIndex`, instead of Gaussian noise. Default
            None.
        sampler: Draws a label from (key, z), beside log_likelihood. Default None.
        outcomes: All labels (K, ...), if they are few, in place of a sampler. Default None.

    Raises:
        ValueError: For arguments out of range, or labels without a law.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model = smi.Bilinear(aspect_ratio=1.0, rank_ratio=0.2)
        >>> round(float(smi.state_evolution(model, 0.3).error), 10)
        0.3474043203
    """

    noise: Array
    symmetric: bool = eqx.field(static=True)
    output: str = eqx.field(static=True)
    tokens: ClassVar[int] = 1

    def __init__(
        self,
        aspect_ratio: ArrayLike = 1.0,
        rank_ratio: ArrayLike = 0.2,
        noise: ArrayLike = 0.0,
        symmetric: bool = False,
        *,
        output: str | Callable[[Array], Array] | MultiIndex | None = None,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        sampler: Callable[[PRNGKeyArray, Array], Array] | None = None,
        outcomes: ArrayLike | None = None,
    ):
        self.symmetric = validate.flag("symmetric", symmetric)
        self.noise = validate.number("noise", noise, VARIANCE)
        if output is None and log_likelihood is None:
            output = "linear"
        labels = {"log_likelihood": log_likelihood, "sampler": sampler, "outcomes": outcomes}
        self.output, model = _output(output, noise, labels)
        # a symmetric S is positive: its sign is known
        self.symmetry = () if model is None or self.symmetric else model.symmetry
        if model is not None:
            channel = model.channel
            self.readout = PullbackChannel(channel, frame(1)) if self.symmetric else channel
        elif self.symmetric:
            self.readout = LinearScores(1, noise=self.noise)
        else:
            self.readout = LinearField(noise=self.noise)
        if self.symmetric:
            square = jnp.asarray(aspect_ratio) == 1.0
            check(square, "aspect_ratio", aspect_ratio, "1 for a symmetric matrix")
            # a traced β cannot be refused: all numbers of the model are then NaN
            self.prior = WishartPrior(nan_unless(jnp.asarray(rank_ratio), square))
        else:
            self.prior = ProductPrior(aspect_ratio, rank_ratio)

    @property
    def design(self) -> RectangularDesign:
        """Inputs (n, L, d), teachers S (L, d), α = n/(dL)."""
        # with damping and without noise "outer" lets V collapse, and undamped "state" can explode;
        # undamped runs without noise diverge
        precisions = ("state", "outer") if self.readout.closed_form else ("outer", "state")
        return RectangularDesign(MessagePassing(precisions, (0.5, 0.7, 0.85), False), self.prior)

    @property
    def student(self) -> ProductFactors:
        """Factors (r, L + d), or (r, d) if symmetric."""
        return ProductFactors(self)

    @property
    def aspect_ratio(self) -> Array:
        """β."""
        return self.prior.law.aspect_ratio

    def link(self, fields: Array) -> Array:
        """Return the noiseless label φ(z) of a field."""
        label = self.readout.link(fields.reshape(1, 1))
        return label.reshape(()) if self.readout.closed_form else label

    def exact_error(self, q: Array, *, bayes: bool) -> Estimate | None:
        """Return V, or 2V for a symmetric matrix, the error of both predictors of the linear
        output: E[y|ω] = ω."""
        if not self.readout.closed_form:
            return None
        value = (2.0 if self.symmetric else 1.0) * (self.prior.norm - q)
        return Estimate(value, jnp.zeros((), theory_dtype()))

    @property
    def small_width_threshold(self) -> Array:
        """(1 + Δ) √β/(1 + β), 0 at β = ∞ [theory: bilinear, Eq. (24)]; of a symmetric matrix
        (1 + Δ/2)/2 [theory: bilinear, Eq. (25)]."""
        # the formula is ∞/∞ there
        return jnp.where(jnp.isinf(self.aspect_ratio), 0.0, super().small_width_threshold)

    def small_width_error(self, scaled: ArrayLike) -> Array:
        """Compute V at ᾱ as ρ -> 0, elementwise; at β = ∞ the V of a Gaussian S at α = ᾱ."""
        error = super().small_width_error(scaled)
        wide = gaussian_error(jnp.asarray(scaled, theory_dtype()), self.noise)
        return jnp.where(jnp.isinf(self.aspect_ratio), wide, error)


def _output(
    output: Any, noise: ArrayLike, labels: Mapping[str, Any]
) -> tuple[str, MultiIndex | None]:
    """Return the name of an output, and a model of one index with its channel and symmetry, or None
    if it is linear."""
    # a model of links is no function: a callable is a link of the field
    if output is None or callable(output):
        model = output_model(output, noise, labels)
        return model.name, model
    check_no_law(labels)
    if isinstance(output, MultiIndex):
        one = output.indices == 1 and output.tokens == 1
        check(one, "output", output.name, "a link of one index and one token")
        check(is_zero(noise), "noise", noise, "0 beside a link, whose own law draws the labels")
        return output.name, output
    allowed = f"one of {OUTPUTS}, a JAX function of one number, or a link of smi.links"
    check(isinstance(output, str), "output", output, allowed)
    word = validate.choice("output", output, OUTPUTS)
    if word == "linear":
        return word, None
    if word == "sign":
        return word, links.sign(noise=noise)
    # the modulus without noise has a channel of its own, in closed form
    return word, links.phase_retrieval() if is_zero(noise) else links.absolute(noise)
