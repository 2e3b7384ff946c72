r"""Averages over a fresh sample at given overlaps: what drives the flow of online SGD.

Equations here [theory: online-sgd, Eqs. (63) to (65)], h = T x/√D of the k fixed rows, z with their
means, tokens summed over:

    A_T = E[s hᵀ] (P, k),   A_Z = E[s zᵀ] (P, P),   V = E[s sᵀ] (P, P),   R = E ℓ

at h = L N_T, z = Y N_T + Z N_Z with M = Y Lᵀ, Q = Y Yᵀ + Z Zᵀ. Points come with the signs of rows
of (N_T, N_Z) flipped, so that what the symmetries of a model forbid is zero exactly, and the error
of a growth rate is relative. Of one direction on the sphere the averages are those of the
population risk and of the gradient's noise, which for few tokens are known to rounding:

    A_T = ∇R(v),   A_Z = v·∇R(v),   V = E Σ_l s_l²,   v = (m, e)

up to a multiple of v that the projection takes out.
"""

from __future__ import annotations

import abc
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.gaussian_points import gaussian_points
from jaxsmi.sgd import fields
from jaxsmi.sgd.coordinates import Coordinates
from jaxsmi.sgd.noise import noise_at
from jaxsmi.sgd.population import gradient
from jaxsmi.sgd.starts import in_frame

__all__ = ["AbstractAverages", "Averages", "NetAverages", "SphereAverages", "net_averages"]

_COPIES = 8  # of a point, at most
_AXIS = 40  # points an axis of a grid, at least: softmax has poles near the real axis
_TOGETHER = 2**15  # points whose fields lie in memory together


class Averages(eqx.Module):
    """A_T (P, k), A_Z (P, P), V (P, P) and the risk R (NaN where it is not asked for)."""

    fixed: Array
    own: Array
    square: Array
    risk: Array


class AbstractAverages(eqx.Module):
    """Averages at overlaps M (P, k), Q (P, P)."""

    @abc.abstractmethod
    def at(self, M: Array, Q: Array, noise: bool = True) -> Averages:
        """The averages; without `noise` V may be zero."""


class SphereAverages(AbstractAverages):
    """Those of one direction on the sphere (an untied network: one a token), Q = 1."""

    model: SequenceSingleIndex
    key: PRNGKeyArray | None
    samples: int = eqx.field(static=True)

    def at(self, M: Array, Q: Array, noise: bool = True) -> Averages:
        """∇R and V on coarse grids."""
        del Q
        tied = self.model.tied
        v = M[0] if tied else M[:, 0]
        size = jnp.linalg.norm(v) if tied else jnp.abs(v)
        v = v / jnp.maximum(size, 1.0)  # a stage may step outside
        slope = gradient(self.model, v, self.key, self.samples, coarse=True)
        V = jnp.zeros((), v.dtype)
        if noise:
            V = noise_at(self.model, v, self.key, self.samples, coarse=True).value
        V = V / len(M)  # of an untied network each row has its share
        own = jnp.sum(v * slope)[None] if tied else v * slope
        fixed = slope[None] if tied else slope[:, None]
        diagonal = jnp.diag(jnp.broadcast_to(V, (len(M),)))
        return Averages(fixed, jnp.diag(own), diagonal, jnp.full((), jnp.nan, v.dtype))


class NetAverages(AbstractAverages):
    """Those of one rule of points: `position` (rows, n) in the frame `gram` = L Lᵀ, `weight` (n,),
    label `noise` (noise, n)."""

    pair: TeacherStudent
    frame: Array
    fixed: Array
    moving: Array
    noise: Array
    weight: Array

    def at(self, M: Array, Q: Array, noise: bool = True) -> Averages:
        """Sums over the points, block by block."""
        del noise
        pair = self.pair
        split = M.reshape(pair.groups, pair.rows, pair.fixed)
        blocks = Q.reshape(pair.groups, pair.rows, pair.groups, pair.rows)
        own = jnp.stack([blocks[g, :, g] for g in range(pair.groups)])
        Y, Z = jax.vmap(lambda m, q: in_frame(self.frame, m, q))(split, own)
        last = lambda x: jnp.moveaxis(x, 0, -1)[..., None]
        position = Coordinates(self.frame[..., None], last(Y), last(Z))
        parts = (self.fixed, self.moving, self.noise, self.weight)
        count = self.weight.shape[0]
        if count <= _TOGETHER:
            return self._sums(position, *parts)
        blocks = -(-count // _TOGETHER)
        beyond = blocks * _TOGETHER - count
        parts = [jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, beyond),)) for x in parts]

        def block(i: Array) -> Averages:
            cut = lambda x: lax.dynamic_slice_in_dim(x, i * _TOGETHER, _TOGETHER, axis=-1)
            return self._sums(position, *map(cut, parts))

        return jax.tree.map(lambda x: jnp.sum(x, axis=0), lax.map(block, jnp.arange(blocks)))

    def _sums(
        self, position: Coordinates, fixed: Array, moving: Array, noise: Array, weight: Array
    ) -> Averages:
        """The weighted sums over some points."""
        pair = self.pair
        P = pair.rows
        seen = fields.seen(pair, position.frame, fixed)
        h = fields.fixed_fields(position.frame, seen, pair.fixed)
        z = fields.fields(P, position, seen, moving)
        label = noise[:, None]
        hidden = h[: pair.targets]
        S = fields.slopes(pair, hidden, z, label)
        pairs = lambda a, b: jnp.stack(
            [jnp.stack([jnp.sum(x * y, axis=(0, -1)) for y in b]) for x in a]
        )
        flat = lambda x: x.reshape(len(x), -1, x.shape[-1])
        values = jax.vmap(pair.sample_loss, -1)(flat(hidden), flat(z), noise)
        weighted = S * weight
        return Averages(
            fixed=jnp.moveaxis(pairs(weighted, h), -1, 0).reshape(-1, pair.fixed),
            own=self._blocks(pairs(weighted, z)),
            square=self._blocks(pairs(weighted, S)),
            risk=jnp.sum(weight * values),
        )

    def _blocks(self, own: Array) -> Array:
        """(P, P, g) as one matrix (g P, g P), zero between groups."""
        groups = own.shape[-1]
        blocks = jnp.einsum("pqg,gh->gphq", own, jnp.eye(groups, dtype=own.dtype))
        return blocks.reshape(groups * len(own), -1)


def _flips(fixed: int, rows: int) -> np.ndarray:
    """Signs (copies, fixed + rows) of the rows of N_T and N_Z, one of each pair of opposite ones:
    of all rows by themselves, or of a teacher's and a student's row together, or none, whatever
    takes few copies."""
    alone = fixed + rows
    together = max(fixed, rows)
    choice = next((n for n in (alone, together) if 2 ** (n - 1) <= _COPIES), 1)
    signs = np.array([(1.0, *s) for s in itertools.product((1.0, -1.0), repeat=choice - 1)])
    if choice == alone:
        return signs
    pick = np.minimum([*range(fixed), *range(rows)], choice - 1)
    return signs[:, pick]


def net_averages(
    pair: TeacherStudent, frame: Array, key: PRNGKeyArray, samples: int, nets: int
) -> NetAverages:
    """Independent rules with a leading axis, each with its points (common random numbers)."""
    tokens = pair.tokens * pair.groups
    k, P = pair.fixed, pair.rows
    size = (k + P) * tokens + pair.noise_size
    signs = jnp.asarray(_flips(k, P))
    copies = len(signs)
    position, weight = gaussian_points(key, max(samples // copies, 1), nets, size, _AXIS)
    count = position.shape[1]
    drawn = jnp.moveaxis(position, -1, 1)  # (nets, size, n)
    body = drawn[:, : (k + P) * tokens].reshape(nets, k + P, 1, tokens, count)
    body = body * signs.T[:, :, None, None]
    body = jnp.moveaxis(body, 2, 3).reshape(nets, k + P, pair.tokens, pair.groups, -1)
    noise = jnp.tile(drawn[:, (k + P) * tokens :], (1, 1, copies))
    weights = jnp.tile(weight, (1, copies)) / copies
    frames = jnp.broadcast_to(frame, (nets, *frame.shape))
    pairs = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (nets, *jnp.shape(x))) if eqx.is_array(x) else x, pair
    )
    return NetAverages(pairs, frames, body[:, :k], body[:, k:], noise, weights)
