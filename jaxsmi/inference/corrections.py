r"""Corrections of message passing at finite dimension: calibration, widening of V, and damping.

At D → ∞ from a Bayes-consistent start none of them acts [theory: multi-index, Eqs. (42) to (46)].
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, redraw_labels
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.design.designs import AbstractOperator
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd
from jaxsmi.numerics.quadrature import quotient

# Calibration and widening
SIGNIFICANT = 3.0  # standard errors; usual: one of 370 steps is calibrated by chance
_MAX_WIDENING = 1e6  # cap of one step: where V is rounding, the ratio of distances is infinite
_MAX_SHARE = 0.999  # largest share of S that V may reach; derived: Q = S - V stays positive
# Damping, empirical: runs of phase retrieval at D = 1000 end, and a direction that grows is free
_TRACE_FALLS = 0.99  # tr C over its lowest value: smaller is progress
_CHANGE_FALLS = 0.9  # ‖ΔŴ‖/‖Ŵ‖ over its smallest value: smaller is progress
_ALIGNED = 0.5  # random changes of a large signal have a cosine of order 1/√D
_STEPS_TO_DAMP = 8  # steps without progress
_MAX_DAMPING = 1.0 - 0.5**3
_SLOWEST = 0.99  # cap of the decay of ΔŴ in a step: where steps do not shrink there is no series
_STEPS_TO_FREE = 5  # consecutive steps in which a direction grew


def calibration(
    b: Array, A: Array, noise: Array, second_moment: Array, significance: Array
) -> tuple[Array, Array]:
    """Calibrate the precision A and the fields b by the data.

    Theory says b = A W* + A^{1/2} ξ. A random start breaks this: its overlap M is √D times off its
    norm, and at finite D the mismatch grows with the signal. What holds off the Nishimori line too,
    along each eigenvector u of A (eigenvalue a, s = uᵀSu), is

        b = m W* + n^{1/2} ξ,   n = uᵀ(Σ g gᵀ/D)u

    The data say T = uᵀb bᵀu/(nD) - 1 for the signal-to-noise ratio m²s/n instead of a s, with
    standard error √(2/D)(1 + a s). Where the two differ by δ > 3 of these, b is rescaled to a
    sufficient statistic of the assumed form:

        a → a' = a + (1 - 9/δ²)(T/s - a) along u
        b → (a'/n)^{1/2} b

    T may be negative, but does not exclude a s below its own error at zero, 3 √(2/D): a' is at
    least that or a, or a direction in which something tiny grows would be switched off.

    Once a layer is learned (a s > 1) Σ g gᵀ is heavy-tailed, and theory's n = a is the better
    noise: n → (n + a·as)/(1 + as).

    Args:
        b: Fields of the prior, (P, D).
        A: Their precision as it was estimated, (P, P).
        noise: Σ g gᵀ/D, (P, P).
        second_moment: S of the prior, (P, P).
        significance: Standard errors beyond which δ counts, here 3; infinite: nothing is rescaled.

    Returns:
        The calibrated A (P, P), and the matrix (P, P) that multiplies b and the Onsager term.

    Source: derived for this library [theory: multi-index, Eqs. (42) to (46)].
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
    # continuous in δ: deviations within the error stay as they are
    shrunk = 1.0 - (significance / deviation) ** 2
    significant = jnp.where(jnp.abs(deviation) > significance, shrunk, 0.0)
    least = jnp.minimum(a, significance * jnp.sqrt(2.0 / D) / s)
    new = jnp.maximum(a + significant * (T / s - a), least)
    scale = jnp.where(significant > 0.0, jnp.sqrt(new / n), 1.0)
    new = jnp.where(positive, new, 0.0)
    rescaling = (vectors * jnp.where(positive, scale, 1.0)) @ vectors.T
    return (vectors * new) @ vectors.T, rescaling


class Draws(NamedTuple):
    """Standard normals for one label a sample: of its fields (N, P, M), and of its noise."""

    normal: Array
    noise: Array

    @classmethod
    def of(cls, channel: AbstractChannel, samples: int, key: PRNGKeyArray) -> Draws:
        """The numbers that `misfit` needs."""
        field_key, noise_key = jax.random.split(key)
        shape = (samples, channel.indices, channel.tokens)
        normal = jax.random.normal(field_key, shape, theory_dtype())
        noise = jax.random.normal(noise_key, (samples, channel.noise_size), theory_dtype())
        return cls(normal, noise)


class Misfit(NamedTuple):
    """The `ratio` of the distance of labels from those of ω to the one that V predicts, and the
    `significance` of its distance from one, in standard errors."""

    ratio: Array
    significance: Array

    @property
    def excess(self) -> Array:
        """The ratio where it is significantly above one, else one; continuous, as `calibration`:
        a run may settle where the two balance."""
        significant = self.significance > SIGNIFICANT
        shrunk = 1.0 - (SIGNIFICANT / jnp.where(significant, self.significance, 1.0)) ** 2
        return jnp.where(significant, 1.0 + shrunk * jnp.maximum(self.ratio - 1.0, 0.0), 1.0)


def misfit(
    channel: AbstractChannel,
    labels: Array,
    omega: Array,
    V: Array,
    draws: Draws,
    operator: AbstractOperator,
) -> Misfit:
    """Compare labels (N, ...) with the law of the fields, z ~ N(ω, V), ω (N, P, M), V (P, P):

        misfit = E_μ ‖y - link(ω)‖² / E_μ ‖y' - link(ω)‖²,   y' ~ p(y|z),  z = ω + V^{1/2} η

    which is one where V is right (Nishimori). Above one by more than three standard errors V is too
    small, and is multiplied by it (`widened`): a wrong estimate of small dimension then cannot talk
    itself into perfect recovery.
    """
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
    values, vectors = jnp.linalg.eigh(jnp.minimum(excess, _MAX_WIDENING) * (inverse @ V @ inverse))
    capped = (vectors * jnp.minimum(values, _MAX_SHARE)) @ vectors.T
    return jnp.where(excess > 1.0, root @ capped @ root, V)


class Damping(eqx.Module):
    """The damping d of a run, (W, C g) ← (1 - d) new + d old, and what it is chosen by. The memory
    C g is damped, not C alone: a damped W is a mixture of past g, and its Onsager term must be the
    same mixture [theory: multi-index, Eq. (46)].

    At finite dimension an undamped run may wander around its fixed point for ever: for D = 1000
    phase retrieval at α = 0.9, three runs of four. There damping ends the run and costs nothing; a
    direction that grows has to do so at its full rate. A step makes progress where

        C falls:              tr C < 0.99 × its lowest
        the run converges:    ‖ΔŴ‖/‖Ŵ‖ < 0.9 × its smallest, since the damping was last changed
        a direction grows:    cos(ΔŴ_t, ΔŴ_{t-1}) > 1/2

    and after eight steps without progress 1 - d is halved, down to 1/8. Where ‖ΔŴ‖/‖Ŵ‖ rises while
    steps are aligned, five steps in a row, a direction grows out of the fixed point of the others,
    and 1 - d is doubled again. ΔŴ is the change that an undamped step would have made.

    `value` d; `change` ΔŴ of the last step; `relative` ‖ΔŴ‖/‖Ŵ‖ without damping, and the
    `smallest` of it; `distance` to the end of a geometric series of changes, relative to ‖Ŵ‖;
    `lowest` tr C; `waited`: steps without progress; `risen`: steps in a row in which a direction
    grew.
    """

    value: Array
    change: Array
    relative: Array
    distance: Array
    smallest: Array
    lowest: Array
    waited: Array
    risen: Array

    @classmethod
    def start(cls, value: Array, weights: Array) -> Damping:
        """Return the state before the first step."""
        infinite = jnp.asarray(jnp.inf, value.dtype)
        zero = jnp.zeros((), int)
        none = jnp.zeros_like(weights)
        return cls(value, none, infinite, infinite, infinite, infinite, zero, zero)

    def follow(self, change: Array, weights: Array, trace: Array, adaptive: bool) -> Damping:
        """Choose the damping of the next step, after one that changed Ŵ by `change` to `weights`,
        with this tr C; not `adaptive`: the damping stays."""
        norm, last, size = (jnp.linalg.norm(x) for x in (change, self.change, weights))
        relative = norm / (1.0 - self.value) / size
        common = jnp.sum(change * self.change)
        aligned = common > _ALIGNED * norm * last
        decay = jnp.clip(quotient(common, last**2), 0.0, _SLOWEST)
        falls = trace < _TRACE_FALLS * self.lowest
        converges = relative < _CHANGE_FALLS * self.smallest
        waited = jnp.where(aligned | falls | converges, 0, self.waited + 1)
        damps = (waited >= _STEPS_TO_DAMP) & (self.value < _MAX_DAMPING)
        value = jnp.where(damps, jnp.minimum(0.5 + 0.5 * self.value, _MAX_DAMPING), self.value)
        risen = jnp.where(aligned & (relative > self.relative), self.risen + 1, 0)
        frees = risen >= _STEPS_TO_FREE
        value = jnp.where(frees, jnp.maximum(2.0 * value - 1.0, 0.0), value)
        return Damping(
            value=value if adaptive else self.value,
            change=change,
            relative=relative,
            distance=norm / (1.0 - decay) / size,
            smallest=jnp.where(damps, relative, jnp.minimum(relative, self.smallest)),
            lowest=jnp.minimum(trace, self.lowest),
            waited=jnp.where(damps, 0, waited),
            risen=jnp.where(frees, 0, risen),
        )
