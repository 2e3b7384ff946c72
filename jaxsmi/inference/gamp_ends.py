"""Ends of message passing from several starts: which one is the best, and whether they agree.

The end with the largest Bethe free entropy is the best. Two ends are the same if the squared
cosines of their rows, up to the symmetries of the model, are above 0.9
[theory: multi-index, "the end of a run"].
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, missing
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Ends, Solution
from jaxsmi.models.base import AbstractModel

_KNOWN = 0.02  # a row with a smaller share of S is not compared: its direction is noise
_AGREE = 0.9  # squared cosine above which two ends are the same (sound runs: above 0.998)
SAME_END = 1.0  # nats: free entropies that differ by less may belong to one end
_LOOPS = 3.0  # free entropies tell ends apart beyond so many loop corrections (docs/print.md, 4)
_FAILED = (
    Result.DIVERGED,
    Result.NONFINITE,
    Result.OVERCONFIDENT,
    Result.INVALID,
    Result.REGRESSED,
)


def disagree(ends: list[Solution]) -> bool:
    """Outside jit, return True if ends differ by more than rounding and slow steps."""
    weights = jnp.stack([end.state.weights for end in ends])
    if not concrete(weights):
        return False
    return bool(jnp.any(_agreements(ends[0].model, weights) < _AGREE))


def best_end(
    solutions: list[Solution], misfits: list[Array], nothing: Array | None = None
) -> Solution:
    """The end with the largest free entropy, with all ends beside it; `nothing`: the free entropy
    of an estimate that knows nothing, of which the end has to differ, too.

    Perfect recovery has an infinite one; ends that broke, or that the labels contradict, come last.
    Where V was widened in the last step, by the `misfits`, the free entropy serves to compare ends
    alone, and NaN is returned: with V in place of C it makes the labels too likely.
    """
    first = solutions[0]
    stack = lambda pick: jnp.stack([pick(solution) for solution in solutions])
    free_entropy = stack(lambda s: s.free_entropy)
    known = jnp.where(jnp.stack(misfits) > 1.0, missing(), free_entropy)
    if len(solutions) == 1:
        return dataclasses.replace(first, free_entropy=known[0])
    code, weights = stack(lambda s: s.result), stack(lambda s: s.state.weights)
    ends = Ends(
        result=code,
        free_entropy=known,
        stability=stack(lambda s: s.stability),
        agreement=_agreements(first.model, weights),
        weights=stack(lambda s: s.weights),
    )
    n = first.state.weights[0].size
    nats = n * jnp.where(jnp.isfinite(free_entropy), free_entropy, -jnp.inf)
    nats = jnp.where(code == Result.RECOVERED, jnp.inf, nats)
    nats = jnp.where(jnp.isin(code, jnp.asarray(_FAILED)), -jnp.inf, nats)
    # among runs at the same end, a converged one is preferred
    best = jnp.argmax(nats + jnp.where(code == Result.SUCCESS, SAME_END, 0.0))
    end = solutions[int(best)] if concrete(best) else _pick(solutions, best)
    # the first correction to the free entropy, of the loops, is of the order ½ log 1/(1 - r)
    slack = jnp.maximum(1.0 - ends.stability, jnp.finfo(ends.stability.dtype).tiny)
    loops = -0.5 * jnp.log(jnp.minimum(slack, 1.0))
    rival = (ends.agreement[best] < _AGREE) & jnp.isfinite(nats)
    # infinite ones have no difference
    gap = nats[best] - jnp.where(jnp.isfinite(nats), nats, 0.0)
    close = gap < _LOOPS * (loops[best] + loops)
    alone = jnp.sum((ends.agreement[best] >= _AGREE) & jnp.isfinite(nats)) < 2
    doubtful = jnp.any(rival & (close | alone))
    if nothing is not None:
        S = first.model.prior.second_moment(first.model.indices)
        knows = jnp.trace(end.overlap) > _KNOWN * jnp.trace(S)
        doubtful = doubtful | knows & (nats[best] - n * nothing < _LOOPS * loops[best])
    ambiguous = (end.result == Result.SUCCESS) & doubtful
    code = jnp.where(ambiguous, Result.AMBIGUOUS, end.result)
    return dataclasses.replace(end, result=code, free_entropy=known[best], ends=ends)


def _pick(solutions: list[Solution], index: Array) -> Solution:
    """Select one of several solutions by a traced index."""
    arrays, rest = zip(*(eqx.partition(s, eqx.is_array) for s in solutions), strict=True)
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *arrays), rest[0])


@eqx.filter_jit
def _agreements(model: AbstractModel, weights: Array) -> Array:
    """Smallest squared cosine (K, K) of the rows of each two of K estimates, up to the symmetries
    of the model; one for rows that neither estimate has learned."""
    S = jnp.diagonal(model.prior.second_moment(model.indices))
    flat = weights.reshape(*weights.shape[:2], -1)
    gram = jnp.einsum("apd,bqd->abpq", flat, flat) / flat.shape[-1]

    def agreement(cross: Array, Q: Array, other: Array) -> Array:
        known = jnp.maximum(jnp.diagonal(Q), jnp.diagonal(other)) > _KNOWN * S
        return jnp.min(jnp.where(known, model.metric.cosines(cross, Q, other) ** 2, 1.0))

    own = jnp.einsum("aapq->apq", gram)
    along = jax.vmap(agreement, in_axes=(0, None, 0))
    return jax.vmap(along, in_axes=(0, 0, None))(gram, own, own)
