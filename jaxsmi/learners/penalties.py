r"""Penalties of the weights in closed form: a ridge, and of one index an l1 norm and bounds.

Equations here [theory: empirical-risk, section 1]; a ridge, of one λ or one of each column, has

    W_i = (λ_i + A)^{-1} b_i,   C = (1/D) Σ_i (λ_i + A)^{-1}

and for one entry w of a row, a = λ + A, κ = `l1`:

    r(w) = (λ/2) w² + κ |w|,   low <= w <= high
    f(b) = argmin_w ½ A w² - b w + r(w) = clip(soft(b, κ)/a, low, high),   ∂_b f = 1/a or 0

f is piecewise linear. With the teacher's weights a mixture of Gaussians, w* ~ N(μ, S), the field
b = M̂ w* + Q̂^{1/2} ξ is one, too, of means m = M̂ μ and variances M̂ S M̂ᵀ + Q̂, and (Stein)

    E f w*ᵀ = μᵀ E f + M̂ S E ∂_b f

With c the point of [low, high] nearest to zero f = c + ramps of b, whose averages are those of
(x + ξ)_+ and (x + ξ)_+²:  x Φ(x) + φ(x),  (1 + x²) Φ(x) + x φ(x).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array

from jaxsmi.core.arrays import missing, symmetric
from jaxsmi.core.validate import check
from jaxsmi.learners.base import (
    AbstractPenalty,
    Conjugates,
    OrderParameters,
    TeacherLaw,
    WeightAverages,
    linear_weight_averages,
)
from jaxsmi.numerics.linear_algebra import solve_definite

_FAR = -40.0  # standard deviations at which a Gaussian tail is zero in float64


class Ridge(AbstractPenalty):
    """½ Σ_i λ_i ‖W_i‖².

    Args:
        ridge: λ >= 0, or (D,), λ_i of each column.
    """

    ridge: Array

    def __call__(self, weights: Array) -> Array:
        return 0.5 * jnp.sum(self.ridge * weights**2)

    def responses(self, b: Array, A: Array) -> tuple[Array, Array]:
        C = self._inverses(A)
        # one C of all columns is a product with a matrix
        W = C[0] @ b if len(C) == 1 else jnp.einsum("dpq,qd->pd", C, b)
        return W, C

    def _inverses(self, A: Array) -> Array:
        """Return (λ_i I + A)^{-1} (D, P, P), or (1, P, P) for one ridge."""
        identity = jnp.eye(len(A), dtype=A.dtype)
        shifted = jnp.reshape(self.ridge, (-1, 1, 1)) * identity + symmetric(A)
        inverses, definite = jax.vmap(lambda B: solve_definite(B, identity))(shifted)
        # NaN for a matrix that is not positive definite, and the run says so
        return jnp.where(definite[:, None, None], symmetric(inverses), missing())

    def subgradient(self, weights: Array, slope: Array) -> Array:
        return slope + self.ridge * weights

    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        # only second moments of the teacher enter
        C = self._inverses(conjugates.precision)
        return linear_weight_averages(C, self.ridge, conjugates, teacher)


class BoundedPenalty(AbstractPenalty):
    """(λ/2) w² + κ |w| within bounds, of each entry of one row.

    Args:
        ridge: λ >= 0.
        l1: κ >= 0.
        low: Lower bound, may be -inf.
        high: Upper bound, may be inf.
    """

    ridge: Array
    l1: Array
    low: Array
    high: Array

    def __call__(self, weights: Array) -> Array:
        """Sum the penalty of all weights; infinite out of bounds."""
        W = weights
        inside = jnp.all((self.low <= W) & (self.high >= W))
        total = jnp.sum(0.5 * self.ridge * W**2 + self.l1 * jnp.abs(W))
        return jnp.where(inside, total, jnp.inf)

    def responses(self, b: Array, A: Array) -> tuple[Array, Array]:
        a = self.ridge + A[0, 0]
        a = jnp.where(a > 0.0, a, jnp.nan)
        low, high, l1 = (x.astype(b.dtype) for x in (self.low, self.high, self.l1))
        free = jnp.sign(b) * jnp.maximum(jnp.abs(b) - l1, 0.0) / a
        active = (jnp.abs(b) > l1) & (free > low) & (free < high)
        # NaN of a must not be lost in the zeros
        slope = jnp.where(active, 1.0, 0.0) / a
        return jnp.clip(free, low, high), slope.reshape(-1, 1, 1)

    def subgradient(self, weights: Array, slope: Array) -> Array:
        W = weights
        r = slope + self.ridge * W
        kink = jnp.sign(r) * jnp.maximum(jnp.abs(r) - self.l1, 0.0)
        r = jnp.where(W == 0.0, kink, r + self.l1 * jnp.sign(W))
        # at a bound a row may move to one side only
        r = jnp.where(self.low == W, jnp.minimum(r, 0.0), r)
        return jnp.where(self.high == W, jnp.maximum(r, 0.0), r)

    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        # over b = M̂ w* + Q̂^{1/2} ξ (module docstring), for each Gaussian of the teacher's weights
        allowed = "a learner with a ridge only, as the inputs have fixed directions"
        check(teacher.direction_gram.size == 0, "learner", self, allowed)
        law = teacher.prior.column(len(teacher.second_moment))
        signal = conjugates.signal[0]
        a = self.ridge + conjugates.precision[0, 0]
        a = jnp.where(a > 0.0, a, jnp.nan)
        c = jnp.clip(0.0, self.low, self.high)
        pull = law.covariance @ signal
        m = law.mean @ signal
        sigma = jnp.sqrt(pull @ signal + conjugates.noise[0, 0])
        # the sign of the kink that each end of the middle lies on: b = a c ± κ
        above = a * c + jnp.where(c < 0.0, -self.l1, self.l1)
        below = a * c + jnp.where(c > 0.0, self.l1, -self.l1)
        up, up_square, up_share = _ramp((m - above) / sigma, self.high - c, a, sigma)
        down, down_square, down_share = _ramp((below - m) / sigma, c - self.low, a, sigma)
        share = up_share + down_share
        f = c + (up - down) / a
        average = lambda x: jnp.exp(law.log_weight) @ x
        squares = c**2 + 2.0 * c * (up - down) / a + (up_square + down_square) / a**2
        square, slope = average(squares), average(share) / a
        with_teacher = average(f[:, None] * law.mean + (share / a)[:, None] * pull)
        one = lambda x: x[None, None]
        none = jnp.zeros_like(conjugates.direction)
        overlaps = OrderParameters(one(square), with_teacher[None], one(slope), none)
        l1 = self.l1 * (jnp.abs(c) + average(up + down) / a)
        squared = (slope / a).reshape(1, 1, 1, 1)
        return WeightAverages(overlaps, squared, 0.5 * self.ridge * square + l1)


def _ramp(x: Array, span: Array, a: Array, sigma: Array) -> tuple[Array, Array, Array]:
    """E r, E r² and P(0 < r < a span) of r = clip(σ (x + ξ), 0, a span); `span` may be infinite."""
    finite = jnp.isfinite(span)
    # infinities have no derivatives
    width = a * jnp.where(finite, span, 0.0)
    y = jnp.where(finite, x - width / sigma, _FAR)
    first = lambda x: x * norm.cdf(x) + norm.pdf(x)
    second = lambda x: (1.0 + x**2) * norm.cdf(x) + x * norm.pdf(x)
    mean = sigma * (first(x) - first(y))
    square = sigma**2 * (second(x) - second(y)) - 2.0 * width * sigma * first(y)
    return mean, square, norm.cdf(x) - norm.cdf(y)
