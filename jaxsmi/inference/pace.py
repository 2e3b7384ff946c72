r"""How much a run of message passing is damped, where nobody says: only once nothing grows.

Undamped, message passing follows state evolution step by step, and a direction that grows does so
at its full rate. At finite dimension it may then wander around its fixed point for ever: for
D = 1000 phase retrieval at α = 0.9, three runs of four. There damping is what ends the run, and
costs nothing. A step makes progress where

    C falls:              tr C < 0.99 × its lowest
    the run converges:    ‖ΔŴ‖/‖Ŵ‖ < 0.9 × its smallest, since the damping was last changed
    a direction grows:    cos(ΔŴ_t, ΔŴ_{t-1}) > 1/2

and after eight steps without progress 1 - d is halved, down to 1/8. Where ‖ΔŴ‖/‖Ŵ‖ rises while
steps are aligned, five steps in a row, a direction grows out of the fixed point of the others, and
1 - d is doubled again. ΔŴ is the change that an undamped step would have made.

Source: derived for this library [theory: multi-index, Eq. (41)].
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

# Empirical: runs of phase retrieval at D = 1000 end, and a direction that grows is not damped
_FALLS = 0.99
_CONVERGES = 0.9
_ALIGNED = 0.5  # random changes of a large signal have a cosine of order 1/√D
_PATIENCE = 8
_HALVINGS = 3
_RISES = 5


class Pace(eqx.Module):
    """The damping of a run, and what it is chosen by (module docstring).

    `damping` d; `change` ΔŴ of the last step; `relative` ‖ΔŴ‖/‖Ŵ‖ without damping, and the
    `smallest` of it; `lowest` tr C; `waited`: steps without progress; `risen`: steps in a row in
    which a direction grew.
    """

    damping: Array
    change: Array
    relative: Array
    smallest: Array
    lowest: Array
    waited: Array
    risen: Array

    @classmethod
    def start(cls, damping: Array, weights: Array) -> Pace:
        """Before the first step."""
        infinite = jnp.asarray(jnp.inf, damping.dtype)
        zero = jnp.zeros((), int)
        return cls(damping, jnp.zeros_like(weights), infinite, infinite, infinite, zero, zero)

    def follow(self, change: Array, weights: Array, trace: Array, adaptive: bool) -> Pace:
        """After a step that changed Ŵ by `change` to `weights`, with this tr C; not `adaptive`: the
        damping stays."""
        norm = jnp.linalg.norm(change)
        before = jnp.linalg.norm(self.change)
        relative = norm / (1.0 - self.damping) / jnp.linalg.norm(weights)
        aligned = jnp.sum(change * self.change) > _ALIGNED * norm * before
        falls = trace < _FALLS * self.lowest
        converges = relative < _CONVERGES * self.smallest
        progress = aligned | falls | converges
        waited = jnp.where(progress, 0, self.waited + 1)
        most = 1.0 - 0.5**_HALVINGS
        damps = (waited >= _PATIENCE) & (self.damping < most)
        damping = jnp.where(damps, jnp.minimum(0.5 + 0.5 * self.damping, most), self.damping)
        risen = jnp.where(aligned & (relative > self.relative), self.risen + 1, 0)
        frees = risen >= _RISES
        damping = jnp.where(frees, jnp.maximum(2.0 * damping - 1.0, 0.0), damping)
        return Pace(
            damping=damping if adaptive else self.damping,
            change=change,
            relative=relative,
            smallest=jnp.where(damps, relative, jnp.minimum(relative, self.smallest)),
            lowest=jnp.minimum(trace, self.lowest),
            waited=jnp.where(damps, 0, waited),
            risen=jnp.where(frees, 0, risen),
        )
