r"""Online SGD of whole weight vectors: the chain of the overlaps is tested on it.

Equations here [theory: online-sgd, Eqs. (51), (52)], a batch X (BM, D) of fresh tokens with their
means, the fixed rows T = √D [L 0] and the start W = √D [Y Z 0] in the first coordinates:

    V ← β V + λ W + c S X/√D,   W ← W - η V,   sphere: rows back to the norm of the start
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.descent.loop import AbstractObjective, TrainState, descend
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.coordinates import Coordinates
from jaxsmi.sgd.runs import Rule, Setting, Simulation, summary

__all__ = ["run"]


class _Weights(NamedTuple):
    """The rows W (P, g, D) of a student, and the frame L (k, k) of its teacher, which stays."""

    rows: Array
    frame: Array


class _Update(eqx.Module):
    """The update of a rule as an optimiser; its numbers are arrays, and compile nothing anew."""

    rule: Rule

    def init(self, params: _Weights) -> Array:
        """Velocities of zero."""
        return jnp.zeros_like(params.rows)

    def update(
        self, updates: _Weights, state: Array, params: _Weights | None = None
    ) -> tuple[_Weights, Array]:
        """The change of the weights, and the velocities."""
        assert params is not None
        rule = self.rule
        W = params.rows
        V = updates.rows if rule.momentum is None else updates.rows + rule.momentum * state
        V = V if rule.decay is None else V + rule.decay * W
        new = W - rule.rate[:, None, None] * V
        norm = lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True)
        new = norm(W) / norm(new) * new if rule.projected else new
        return _Weights(new - W, jnp.zeros_like(params.frame)), V


def online_sgd(rule: Rule) -> optax.GradientTransformation:
    """The update of a rule."""
    made = _Update(rule)
    init, update = made.init, made.update
    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


class _Batch(NamedTuple):
    """Standard normal inputs (B, M, g, D), and the noise of their labels (B, noise)."""

    inputs: Array
    noise: Array


class _Online(AbstractObjective):
    """Weights that learn from fresh batches."""

    rule: Rule
    dimension: int = eqx.field(static=True)

    def objective(self, weights: _Weights, batch: _Batch) -> Array:
        """The loss of a batch."""
        pair = self.rule.pair
        k = pair.fixed
        L = weights.frame
        means = pair.encoding @ L[pair.targets :]  # in the first k coordinates
        inputs = batch.inputs.at[..., :k].add(means.reshape(pair.tokens, pair.groups, k))
        hidden = jnp.einsum("qj,bmgj->bqmg", L[: pair.targets], inputs[..., :k])
        fields = jnp.einsum("pgd,bmgd->bpmg", weights.rows, inputs) / np.sqrt(self.dimension)
        flat = lambda x: x.reshape(*x.shape[:2], -1)
        values = jax.vmap(pair.sample_loss)(flat(hidden), flat(fields), batch.noise)
        return self.rule.weight * jnp.sum(values)

    def batch(self, key: PRNGKeyArray, order: Array, step: Array) -> tuple[Array, _Batch]:
        """Fresh inputs."""
        pair = self.rule.pair
        input_key, noise_key = jax.random.split(jax.random.fold_in(key, step))
        shape = (self.rule.batch, pair.tokens, pair.groups, self.dimension)
        noise = jax.random.normal(noise_key, (shape[0], pair.noise_size), theory_dtype())
        return order, _Batch(jax.random.normal(input_key, shape, theory_dtype()), noise)

    def observe(self, weights: _Weights) -> dict[str, Array]:
        """Y (P, k, g), and a triangular factor Z (P, P, g) of what lies outside of the frame."""
        k = len(weights.frame)
        rows = jnp.moveaxis(weights.rows, 1, -1) / np.sqrt(self.dimension)
        rest = jnp.einsum("pdg,qdg->pqg", rows[:, k:], rows[:, k:])
        across = jax.vmap(triangular_root, -1, -1)(rest)
        return {"along": rows[:, :k], "across": across}


def _weights(start: Coordinates, rows: int, dimension: int) -> _Weights:
    """√D [Y Z 0] of one run, with its frame."""
    made = jnp.concatenate([start.along[:rows], start.across[:rows]], axis=1)
    zeros = jnp.zeros((rows, dimension - made.shape[1], made.shape[2]), made.dtype)
    W = np.sqrt(dimension) * jnp.concatenate([made, zeros], axis=1)
    return _Weights(jnp.moveaxis(W, -1, 1), start.frame)


def run(setting: Setting, start: Coordinates, keys: PRNGKeyArray, progress: bool) -> Simulation:
    """Runs of whole weight vectors, one a key; they stop to the resolution of the records."""
    rule = setting.rule
    task = _Online(rule, setting.dimension)
    optimizer = online_sgd(rule)
    made = lambda one: _weights(one, rule.pair.rows, setting.dimension)
    weights = jax.vmap(made, in_axes=-1)(start)
    memory = jax.vmap(optimizer.init)(weights)
    state = TrainState(weights, memory, jnp.zeros(len(keys), int), jax.random.key_data(keys))
    label = "SGD" if progress else None
    end = descend(
        task,
        optimizer,
        state,
        steps=setting.steps,
        every=setting.every,
        repeats=rule.repeats,
        label=label,
    )
    # (runs, records, ..) -> (records, .., runs)
    order = lambda x: jnp.moveaxis(x, (1, 0), (0, -1))
    step = end.history["step"][0]
    Y = order(end.history["along"])
    Z = order(end.history["across"])
    return _summary(setting, step, jax.vmap(lambda y, z: Coordinates(start.frame, y, z))(Y, Z))


def _summary(setting: Setting, step: Array, positions: Coordinates) -> Simulation:
    """What the records say of each run: they stop to the resolution of the records."""
    rule = setting.rule
    values = jax.vmap(rule.agreement)(positions)  # (records, .., runs)

    def first(over: Array) -> Array:
        return jnp.where(jnp.any(over, axis=0), step[jnp.argmax(over, axis=0)], jnp.inf)

    met = jnp.all(values.reshape(len(step), -1, values.shape[-1]) >= rule.stop, axis=1)
    stopped = first(met)
    last = jnp.where(jnp.isfinite(stopped), jnp.searchsorted(step, stopped), len(step) - 1)
    after = jnp.arange(len(step))[:, None] > last
    pick = lambda x: jnp.take_along_axis(x, last.reshape((1,) * (x.ndim - 1) + (-1,)), axis=0)[0]
    finite = jnp.all(jnp.isfinite(positions.along[-1]), axis=(0, 1, 2))
    done = jnp.any(met, axis=0) | jnp.isinf(rule.stop)
    result = jnp.where(done, int(Result.SUCCESS), int(Result.MAX_STEPS))
    hidden = lambda x: jnp.where(
        after.reshape(len(step), *(1,) * (x.ndim - 2), after.shape[-1]), jnp.nan, x
    )
    return summary(
        setting,
        Coordinates(positions.frame, hidden(positions.along), hidden(positions.across)),
        jax.tree.map(pick, positions),
        steps=step[last].astype(int),
        reached=first(values >= rule.level),
        result=jnp.where(finite, result, int(Result.NONFINITE)),
    )
