r"""What runs of finite dimension need beyond theory: calibration by the data, and damping.

Theory says b = A W* + A^{1/2} ξ. A random start breaks this: its overlap M is √D times off its
norm, and at finite D the mismatch grows with the signal. What holds off the Nishimori line too,
along each eigenvector u of A (eigenvalue a, s = uᵀSu), is

    b = m W* + n^{1/2} ξ,   n = uᵀ(Σ g gᵀ/D)u

The data say T = uᵀb bᵀu/(nD) - 1 for the signal-to-noise ratio m²s/n instead of a s, with standard
error √(2/D)(1 + a s). Where the two differ by δ > 3 of these, b is rescaled to a sufficient
statistic of the assumed form:

    a → a' = a + (1 - 9/δ²)(T/s - a) along u (at least a/10⁴: T may be negative)
    b → (a'/n)^{1/2} b

Once a layer is learned (a s > 1) Σ g gᵀ is heavy-tailed, and theory's n = a is the better noise:

    n → (n + a·as)/(1 + as)

The estimated law of the fields, z ~ N(ω, V), predicts how far labels lie from those of ω:

    misfit = E_μ ‖y - link(ω)‖² / E_μ ‖y' - link(ω)‖²,   y' ~ p(y|z),  z = ω + V^{1/2} η

which is one where V is what it should be (Nishimori). Where it is above one by more than three
standard errors, V is too small, and is multiplied by it (up to S): a wrong estimate of small
dimension then cannot talk itself into perfect recovery.

At D → ∞ from a Bayes-consistent start nothing is rescaled, and undamped
message passing follows state evolution step by step.

The norm of one index, ρ = W* W*ᵀ/D, differs from S by S √(2/D), and message passing with the wrong
norm loses the signal even from the teacher. The labels alone estimate it:

    Ŝ = argmax_ρ  Σ_μ log Z_out(y_μ; 0, ρ) - (D/2) (ρ/S - log ρ/S)

At finite dimension an undamped run may wander around its fixed point for ever: for D = 1000 phase
retrieval at α = 0.9, three runs of four. There damping is what ends the run, and costs nothing; a
direction that grows has to do so at its full rate. A step makes progress where

    C falls:              tr C < 0.99 × its lowest
    the run converges:    ‖ΔŴ‖/‖Ŵ‖ < 0.9 × its smallest, since the damping was last changed
    a direction grows:    cos(ΔŴ_t, ΔŴ_{t-1}) > 1/2

and after eight steps without progress 1 - d is halved, down to 1/8. Where ‖ΔŴ‖/‖Ŵ‖ rises while
steps are aligned, five steps in a row, a direction grows out of the fixed point of the others, and
1 - d is doubled again. ΔŴ is the change that an undamped step would have made.

Source: derived for this library [theory: multi-index, Eqs. (38) to (41); spectral, Eq. (14)].
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.posterior import redraw_labels
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractOperator
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd
from jaxsmi.numerics.quadrature import quotient

_SIGNIFICANT = 3.0  # standard errors: one of 370 steps is calibrated by chance
_LEAST = 1e-4  # of A: T of a heavy-tailed sum may be negative
_WIDEST = 1e6  # of one step: where V is rounding, the ratio of distances is infinite
_WIDE = 0.999  # of S: Q = S - V stays positive
_GRID = 25  # half a standard deviation apart
_WIDTHS = 6.0  # Ŝ is looked for within so many standard deviations √(2/D) of log ρ/S
# Empirical: runs of phase retrieval at D = 1000 end, and a direction that grows is not damped
_FALLS = 0.99
_CONVERGES = 0.9
_ALIGNED = 0.5  # random changes of a large signal have a cosine of order 1/√D
_PATIENCE = 8
_MOST_DAMPED = 1.0 - 0.5**3
_RISES = 5


def calibration(b: Array, A: Array, noise: Array, second_moment: Array) -> tuple[Array, Array]:
    """The calibrated precision and fields (module docstring).

    Args:
        b: Fields of the prior, (P, D).
        A: Their precision as it was estimated, (P, P).
        noise: Σ g gᵀ/D, (P, P).
        second_moment: S of the prior, (P, P).

    Returns:
        The calibrated A (P, P), and the matrix (P, P) that multiplies b and the Onsager term.
    """
    D = b.shape[1]
    a, vectors = jnp.linalg.eigh(A)
    s = jnp.einsum("pk,pq,qk->k", vectors, second_moment, vectors)
    n = jnp.einsum("pk,pq,qk->k", vectors, noise, vectors)
    # an estimate of A need not be positive: such directions get no field at all
    positive = (a > 0.0) & (n > 0.0)
    a = jnp.where(positive, a, 1.0)
    n = jnp.where(positive, n, 1.0)
    n = (n + a * a * s) / (1.0 + a * s)
    T = jnp.sum((vectors.T @ b) ** 2, axis=1) / (n * D) - 1.0
    deviation = (T - a * s) / (jnp.sqrt(2.0 / D) * (1.0 + a * s))
    # continuous in δ: what is within the error stays as it is
    shrunk = 1.0 - (_SIGNIFICANT / deviation) ** 2
    significant = jnp.where(jnp.abs(deviation) > _SIGNIFICANT, shrunk, 0.0)
    new = jnp.maximum(a + significant * (T / s - a), _LEAST * a)
    scale = jnp.where(significant > 0.0, jnp.sqrt(new / n), 1.0)
    new = jnp.where(positive, new, 0.0)
    rescaling = (vectors * jnp.where(positive, scale, 1.0)) @ vectors.T
    return (vectors * new) @ vectors.T, rescaling


class Draws(NamedTuple):
    """Standard normals for one label a sample: of its fields (N, P, M), and of its noise."""

    normal: Array
    noise: Array


def draws(channel: AbstractChannel, samples: int, key: PRNGKeyArray) -> Draws:
    """The numbers that `misfit` needs."""
    field_key, noise_key = jax.random.split(key)
    shape = (samples, channel.indices, channel.tokens)
    normal = jax.random.normal(field_key, shape, theory_dtype())
    noise = jax.random.normal(noise_key, (samples, channel.noise_size), theory_dtype())
    return Draws(normal, noise)


class Misfit(NamedTuple):
    """How far labels lie from those of ω, over what V says: `ratio`, and the `significance` of its
    distance from one, in standard errors."""

    ratio: Array
    significance: Array

    @property
    def excess(self) -> Array:
        """The ratio where it is significantly above one, else one."""
        return jnp.where(self.significance > _SIGNIFICANT, jnp.maximum(self.ratio, 1.0), 1.0)


def misfit(
    channel: AbstractChannel,
    labels: Array,
    omega: Array,
    V: Array,
    draws: Draws,
    operator: AbstractOperator,
) -> Misfit:
    """The misfit of labels (N, ...) at ω (N, P, M), V (P, P) (module docstring)."""
    predicted = jax.vmap(channel.link)(omega)

    def distance(y: Array) -> Array:
        return jnp.sum(((y - predicted) ** 2).reshape(len(omega), -1), axis=1)

    measured = distance(labels)
    believed = distance(redraw_labels(channel, omega, V, draws.normal, draws.noise))
    difference = operator.mean(measured - believed)
    variance = operator.mean((measured - believed) ** 2) - difference**2
    error = jnp.sqrt(jnp.maximum(variance, 0.0) / operator.samples)
    ratio = quotient(operator.mean(measured), operator.mean(believed))
    return Misfit(ratio, quotient(difference, error))


def widened(V: Array, second_moment: Array, excess: Array) -> Array:
    """V times the excess misfit, below S."""
    root = sqrt_psd(second_moment)
    inverse = inverse_root(second_moment)
    values, vectors = jnp.linalg.eigh(jnp.minimum(excess, _WIDEST) * (inverse @ V @ inverse))
    capped = (vectors * jnp.minimum(values, _WIDE)) @ vectors.T
    return jnp.where(excess > 1.0, root @ capped @ root, V)


class Damping(eqx.Module):
    """The damping of a run, and what it is chosen by (module docstring).

    `value` d; `change` ΔŴ of the last step; `relative` ‖ΔŴ‖/‖Ŵ‖ without damping, and the
    `smallest` of it; `lowest` tr C; `waited`: steps without progress; `risen`: steps in a row in
    which a direction grew.
    """

    value: Array
    change: Array
    relative: Array
    smallest: Array
    lowest: Array
    waited: Array
    risen: Array

    @classmethod
    def start(cls, value: Array, weights: Array) -> Damping:
        """Before the first step."""
        infinite = jnp.asarray(jnp.inf, value.dtype)
        zero = jnp.zeros((), int)
        return cls(value, jnp.zeros_like(weights), infinite, infinite, infinite, zero, zero)

    def follow(self, change: Array, weights: Array, trace: Array, adaptive: bool) -> Damping:
        """After a step that changed Ŵ by `change` to `weights`, with this tr C; not `adaptive`: the
        damping stays."""
        norm = jnp.linalg.norm(change)
        relative = norm / (1.0 - self.value) / jnp.linalg.norm(weights)
        aligned = jnp.sum(change * self.change) > _ALIGNED * norm * jnp.linalg.norm(self.change)
        falls = trace < _FALLS * self.lowest
        converges = relative < _CONVERGES * self.smallest
        waited = jnp.where(aligned | falls | converges, 0, self.waited + 1)
        damps = (waited >= _PATIENCE) & (self.value < _MOST_DAMPED)
        value = jnp.where(damps, jnp.minimum(0.5 + 0.5 * self.value, _MOST_DAMPED), self.value)
        risen = jnp.where(aligned & (relative > self.relative), self.risen + 1, 0)
        frees = risen >= _RISES
        value = jnp.where(frees, jnp.maximum(2.0 * value - 1.0, 0.0), value)
        return Damping(
            value=value if adaptive else self.value,
            change=change,
            relative=relative,
            smallest=jnp.where(damps, relative, jnp.minimum(relative, self.smallest)),
            lowest=jnp.minimum(trace, self.lowest),
            waited=jnp.where(damps, 0, waited),
            risen=jnp.where(frees, 0, risen),
        )


def with_norm(model: AbstractModel, data: Dataset, norm: bool | None) -> AbstractModel:
    """The model with the norm of its one index estimated from the labels, if `norm` (None: where
    that is known to help)."""
    # Gaussian rows without a covariance of their own: who gives one, knows the norm
    usual = model.indices == 1 and model.prior.traits.wishart and not jax.tree.leaves(model.prior)
    if norm is None:
        norm = usual
    check(isinstance(norm, bool), "norm", norm, "True, False or None")
    allowed = "False: it is estimated of one index with the default Gaussian prior"
    check(usual or not norm, "norm", norm, allowed)
    if not norm:
        return model
    covariance = _estimated_norm(model, data)
    return eqx.tree_at(lambda m: m.prior.covariance, model, covariance, is_leaf=lambda x: x is None)


@eqx.filter_jit
def _estimated_norm(model: AbstractModel, data: Dataset) -> Array:
    """Ŝ (1, 1), by a grid and a parabola through its best three points."""
    statistic = model.channel.statistic(data.labels)
    zero = jnp.zeros((data.samples, 1, model.channel.tokens), theory_dtype())
    widest = _WIDTHS * np.sqrt(2.0 / data.dimension)
    grid = jnp.exp(jnp.linspace(-widest, widest, _GRID))
    half = 0.5 * data.dimension

    def evidence(rho: Array) -> Array:
        post = model.channel.respond(statistic, zero, rho * jnp.eye(1), jax.random.key(0))
        return jnp.sum(post.log_partition) - half * (rho - jnp.log(rho))

    values = lax.map(evidence, grid)
    best = jnp.clip(jnp.argmax(values), 1, _GRID - 2)
    low, middle, high = (values[best + k] for k in (-1, 0, 1))
    curvature = low - 2.0 * middle + high
    shift = jnp.where(curvature < 0.0, 0.5 * (low - high) / jnp.minimum(curvature, -1e-30), 0.0)
    step = 2.0 * widest / (_GRID - 1)
    return (grid[best] * jnp.exp(jnp.clip(shift, -1.0, 1.0) * step)).reshape(1, 1)
