r"""The exact channel of three layers and more of attention between two tokens.

Equations here [theory: deep-attention, Eqs. (32) to (36)], c = c_{L-1}, z_ℓ = Z_ℓ in R²,
w = B_{L-2} z_L:

    A_{L-1} w = s u   fixes A_{L-1}:   p/(1 - p) = (s u_1 - c w_1 - w_2)/((1 + c) w_1 - s u_1),
                                       q likewise with 1 and 2 exchanged
    h_{L-1} = ±(log p/(1-p), -log q/(1-q))/(β δ),   β δ² = log p/(1-p) + log q/(1-q)

so that nodes of the last layers may be drawn in two ways: z_{L-1} from its Gaussian, which fixes
z_L, or z_L from its own, which fixes z_{L-1}. The first misses where layer L is known (a thin
surface carries the mass), the second where its Jacobian vanishes; with both and the weights

    N(z; ω, V)/|det B| / (density of the first + density of the second)

few nodes weigh much more than the others, however well the last layer is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.channels.attention import DeepAttentionChannel, shifted_rows
from jaxsmi.channels.attention_link import (
    Layer,
    Matrix,
    mixing_matrices,
    transfer,
    unmix,
    with_skip,
)
from jaxsmi.channels.fibres import Fibre, single_suffices, whitened_response
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.numerics.refining import Integral
from jaxsmi.numerics.refining_rules import no_weight
from jaxsmi.numerics.refining_sums import Branch

_MAX_EXPONENT = 40.0  # e^±40 is finite in single precision, products of two such numbers too
_LOOSEST = 0.8  # tolerance in averages: products of halves have no noise on average


class PairedAttentionChannel(DeepAttentionChannel):
    """Two tokens, three layers and more, the last two one tied head of rank one each (module
    docstring). The open variables are the fields of all layers but the last, the branches the signs
    and both ways to draw nodes (words: channels/fibres.py).

    `wanted` is the default tolerance. Averages take sixteen times that: their products of
    independent halves have no noise of nodes (`Posterior.factors`), and halves no bias of first
    order. At V = diag(.99, .84, .013), 2048 labels, response and slope of layer 3 were 68.1, 3703
    for a tolerance of .05, 68.2, 3703 for .2, and 68.1, 3700 for .8 (standard error .56), at 18,
    2.0 and .29 ms a sample.
    """

    wanted: ClassVar[float] = 0.05

    @staticmethod
    def fits(tokens: int, layers: tuple[Layer, ...]) -> bool:
        """Return True if the tokens and the last two layers have this channel."""
        return tokens == 2 and len(layers) > 2 and layers[-2:] == (Layer(), Layer())

    @property
    def averaging(self) -> PairedAttentionChannel:
        """The same channel with sixteen times the tolerance, 0.8 at most."""
        loose = jnp.minimum(16.0 * self.budget.tolerance, _LOOSEST)
        return eqx.tree_at(lambda c: c.budget.tolerance, self, loose)

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """Return the integrals for u (N, 2)."""
        P = self.indices

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            narrow = jax.tree.map(lambda x: x.astype(t.dtype), (root, self.skip, self.beta))
            return jnp.ones((), t.dtype), self._branches(*block, t, *narrow)

        integral = Integral(
            integrand,
            (statistic, omega),
            whitened_response(root, 2),
            inner=2 * (P - 1),
            outer=4,
            shared=2 * (P - 2),
            single=single_suffices(self.budget, root[-1, -1]),
        )
        return Fibre(integral, 2.0 * (jnp.log(root[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi)))

    def _branches(
        self, u: Array, omega: Array, t: Array, chol: Array, skip: Array, beta: Array
    ) -> list[Branch]:
        """Return the branches of both ways to draw nodes (module docstring) at t (n, 2(P-1)), for u
        (S, 2) and ω (S, P, 2)."""
        z, means = shifted_rows(omega, chol, t[:, :-2], self.indices - 2)
        mixing = functools.partial(with_skip, beta=beta)
        matrices = mixing_matrices(z, self.layers[:-2], skip, mixing)
        label, pair = u.T[:, :, None], (means[0], means[1])
        last = LastLayers(label, pair, chol[-2:, -2:], matrices, skip[-1], beta)
        return last.branches(t.T[-2:, None])


class _Inner(NamedTuple):
    """Numbers of layer L-1: `last` = B_{L-1}^{-1} u, `det` of B_{L-1}, and the `jacobian`
    |∂z_L/∂z_{L-1}| at a given label."""

    last: Array
    det: Array
    jacobian: Array


class LastLayers(NamedTuple):
    """Integrand of the last two layers at given fields of the layers up to L-2; arrays of both
    tokens are (2, S, n).

    `label`: u. `means`: means of z_{L-1} and of z_L, given the layers before. `root`: lower
    triangular root of their covariance. `matrices`: A_1 .. A_{L-2}. `skip`: c_{L-1}.
    """

    label: Array
    means: tuple[Array, Array]
    root: Array
    matrices: Sequence[Matrix]
    skip: Array
    beta: Array

    @property
    def spread(self) -> Array:
        """Standard deviation of z_L, given the layers up to L-2."""
        return jnp.hypot(self.root[1, 0], self.root[1, 1])

    def mixed(self, z: Array) -> Array:
        """Return B_{L-2} z."""
        for A in self.matrices:
            z = transfer(A, z[None])[0]
        return z

    def unmixed(self, w: Array) -> tuple[Array, Array]:
        """Return B_{L-2}^{-1} w, and 1/|det B_{L-2}|."""
        tokens, inverse_det = unmix(self.matrices, w)
        return jnp.stack(tokens), inverse_det

    def branches(self, free: Array) -> list[Branch]:
        """Return the branches of both ways at nodes `free` (2, 1, n), for both signs of u and of
        h_{L-1}."""
        h = self.mixed(self.means[0] + self.root[0, 0] * free)
        gap = h[0] - h[1]
        odds = jnp.exp(jnp.clip(self.beta * gap * _opposed(h), -_MAX_EXPONENT, _MAX_EXPONENT))
        first = self.before(gap, odds)
        w = self.mixed(self.means[1] + self.spread * free)

        # a loop over the signs, not two copies: it leaves arrays, which the sums read without
        # computing them again. (Stacked, all would be computed for each of its elements,
        # four times as slow.)
        def signed(sign: Array) -> list[tuple[Array, list[Array]]]:
            ways = [self.from_before(sign, free, first), *self.from_last(sign, free, w)]
            return [(log, [jnp.broadcast_to(x, log.shape) for x in r]) for log, r, _ in ways]

        both = jax.lax.map(signed, jnp.asarray([1.0, -1.0], gap.dtype))
        return [Branch(log[i], [x[i] for x in r]) for i in range(2) for log, r in both]

    def before(self, gap: Array, odds: Array) -> _Inner:
        """Solve for w = A_{L-1}^{-1} u, A_{L-1} of odds p/(1 - p), q/(1 - q), `gap` = h_1 - h_2."""
        c, u = self.skip, self.label
        p, rest = odds / (1.0 + odds), 1.0 / (1.0 + odds)
        det = (1.0 + c) * clamp_to_tiny(c - 1.0 + p[0] + p[1])
        w = ((c + p[::-1]) * u - rest * u[::-1]) / det
        # J of the module docstring, as a product that does not overflow
        size = (self.beta * gap * (w[0] - w[1])) ** 2
        last, inverse_det = self.unmixed(w)
        jacobian = 2.0 * size * jnp.prod(p * rest, axis=0) / det
        return _Inner(last, det / inverse_det, jacobian)

    def from_before(self, sign: Array, free: Array, inner: _Inner) -> Branch:
        """Return the branch with z_{L-1} drawn and z_L = ±B_{L-1}^{-1} u."""
        _, (b, scale) = self.root
        return self.branch(free, (sign * inner.last - self.means[1] - b * free) / scale, inner)

    def from_last(self, sign: Array, free: Array, w: Array) -> list[Branch]:
        """Return the branches with z_L drawn and z_{L-1} from ±u = A_{L-1} w, w = B_{L-2} z_L; they
        have no weight if no A_{L-1} solves it."""
        c, u = self.skip, sign * self.label
        (a, _), (b, scale) = self.root
        odds = _quotient(u - c * w - w[::-1], (1.0 + c) * w - u)
        limits = math.exp(-_MAX_EXPONENT), math.exp(_MAX_EXPONENT)
        logits = jnp.log(jnp.clip(odds, *limits))
        total = logits[0] + logits[1]  # β δ²: where it is rounding alone the Jacobian vanishes
        inside = total > 8.0 * jnp.finfo(total.dtype).eps
        inside = inside & jnp.all((odds > limits[0]) & (odds < limits[1]), axis=0)
        # valid numbers stand for missing ones: masked values need finite derivatives
        odds = jnp.where(inside, odds, 2.0)
        logits = jnp.where(inside, logits, math.log(2.0))
        gap = jnp.sqrt((logits[0] + logits[1]) / self.beta)
        z, _ = self.unmixed(_opposed(logits) / (self.beta * gap))
        inner = self.before(gap, odds)
        branches = []
        for side in (1.0, -1.0):
            before = (side * z - self.means[0]) / a
            rest = (self.spread * free - b * before) / scale
            log_weight, residuals, _ = self.branch(before, rest, inner)
            log_weight = jnp.where(inside, log_weight, no_weight(gap.dtype))
            branches.append(Branch(log_weight, [jnp.where(inside, x, 0.0) for x in residuals]))
        return branches

    def branch(self, before: Array, rest: Array, inner: _Inner) -> Branch:
        """Return the weight of a point, over the density of both ways, and its whitened last
        layers: z_{L-1} and the residual of z_L."""
        (a, _), (b, scale) = self.root
        drawn = (b * before + scale * rest) / self.spread
        exponent = 0.5 * jnp.sum(before * before - drawn * drawn, axis=0)
        ratio = jnp.exp(jnp.clip(exponent, -_MAX_EXPONENT, _MAX_EXPONENT)) * (a / self.spread) ** 2
        both = inner.det * (1.0 + ratio * inner.jacobian)
        weight = -0.5 * jnp.sum(rest * rest, axis=0) - jnp.log(both)
        return Branch(weight, [*before, *rest])


def _opposed(x: Array) -> Array:
    """Return (x_1, -x_2)."""
    return jnp.stack([x[0], -x[1]])


def _quotient(x: Array, y: Array) -> Array:
    """Return x/y, and -1 where y = 0."""
    return jnp.where(y == 0.0, -1.0, x / jnp.where(y == 0.0, 1.0, y))
