r"""Online SGD of whole weight vectors on the sphere: the chain of the overlaps is tested on it.

Equations here [ALSKZ25; theory: online-sgd, Eq. (5)], one fresh sample a step, s_l = ∂ℓ/∂z_l:

    w ← √d (w - γ g)/‖w - γ g‖,   g = Σ_l s_l (x_l + u_l/√d)
    untied: each row w_l by itself, with g_l = s_l x_l
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.descent.loop import Descent, TrainState, descend
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.chain import START_STREAM
from jaxsmi.sgd.population import overlap_norm
from jaxsmi.sgd.runs import Setting, Simulation


def spherical_sgd(gamma: Array) -> optax.GradientTransformation:
    """w ← ‖w‖ (w - γ ∇ℓ)/‖w - γ ∇ℓ‖, row by row."""

    def init(params: optax.Params) -> optax.OptState:
        del params
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        def one(g: Array, w: Array) -> Array:
            moved = w - gamma * g
            norm = lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True)
            return norm(w) * moved / norm(moved) - w

        return jax.tree.map(one, updates, params), state

    return optax.GradientTransformation(init, update)


class _Online(Descent):
    """Weights (rows, d): w* is √d times the first unit vector, the encoding's frame the next K."""

    model: SequenceSingleIndex
    dimension: int = eqx.field(static=True)
    patience: ClassVar[int | None] = None
    target: ClassVar[float | None] = None

    @property
    def directions(self) -> int:
        """Directions in which a row has an overlap."""
        return self.model.overlap_count if self.model.tied else 1

    def fields(self, weights: Array, inputs: Array) -> Array:
        """z (L,) of weights (rows, d) and √d x (L, d)."""
        means = jnp.concatenate([jnp.zeros((self.model.length, 1)), self.model.encoding], axis=1)
        means = means.astype(inputs.dtype)
        encoded = inputs.at[:, : means.shape[1]].add(means)  # √d x + u: both over √d below
        return jnp.sum(encoded * weights, axis=1) / np.sqrt(self.dimension)

    def objective(self, weights: Array, batch: Array) -> Array:
        """ℓ of one sample."""
        return self.model.sample_loss(batch[:, 0], self.fields(weights, batch))

    def start(self, key: PRNGKeyArray, step: Array) -> Array:
        """Nothing is carried from step to step."""
        del key, step
        return jnp.zeros((0,), jnp.int32)

    def batch(self, key: PRNGKeyArray, carried: Array, step: Array) -> tuple[Array, Array]:
        """One fresh input √d x (L, d)."""
        shape = (self.model.length, self.dimension)
        return carried, jax.random.normal(jax.random.fold_in(key, step), shape, theory_dtype())

    def observe(self, weights: Array) -> dict[str, Array]:
        """The overlaps."""
        v = jnp.ravel(weights[:, : self.directions]) / np.sqrt(self.dimension)
        return {"overlaps": v, "watched": jnp.zeros((), v.dtype)}


def _starting_weights(task: _Online, setting: Setting, key: PRNGKeyArray) -> Array:
    """Weights (rows, d) of one run, with the overlaps asked for or uniform on the sphere."""
    n = task.directions
    d = task.dimension
    start = setting.start
    w = jax.random.normal(jax.random.fold_in(key, START_STREAM), (setting.rows, d), theory_dtype())
    if start is None:
        return w * np.sqrt(d) / jnp.linalg.norm(w, axis=1, keepdims=True)
    v = start[None] if setting.model.tied else start[:, None]
    rest = w[:, n:] / jnp.linalg.norm(w[:, n:], axis=1, keepdims=True)
    rest = rest * jnp.sqrt(jnp.maximum(1.0 - jnp.sum(v**2, axis=1, keepdims=True), 0.0))
    return np.sqrt(d) * jnp.concatenate([v, rest], axis=1)


def run(setting: Setting, keys: PRNGKeyArray, progress: bool) -> Simulation:
    """Runs of whole weight vectors, one a key; they stop to the resolution of the records."""
    task = _Online(setting.model, setting.dimension)
    optimizer = spherical_sgd(setting.gamma)
    weights = jax.vmap(lambda key: _starting_weights(task, setting, key))(keys)
    memory = jax.vmap(optimizer.init)(weights)
    state = TrainState(weights, memory, jnp.zeros(len(keys), int), jax.random.key_data(keys))
    label = "SGD" if progress else None
    end = descend(task, optimizer, state, steps=setting.steps, every=setting.every, label=label)
    return _summary(setting, end.history["step"][0], end.history["overlaps"])


def _summary(setting: Setting, step: Array, overlaps: Array) -> Simulation:
    """What the records (runs, records, n) say of each run."""
    size = overlap_norm(setting.model, overlaps)

    def first(over: Array) -> Array:
        return jnp.where(jnp.any(over, axis=1), step[jnp.argmax(over, axis=1)], jnp.inf)

    stopped = first(size >= setting.stop)
    last = jnp.where(jnp.isfinite(stopped), jnp.searchsorted(step, stopped), len(step) - 1)
    after = jnp.arange(len(step)) > last[:, None]
    met = jnp.any(size >= setting.stop, axis=1) | jnp.isinf(setting.stop)
    finite = jnp.all(jnp.isfinite(overlaps[:, -1]), axis=-1)
    result = jnp.where(met, int(Result.SUCCESS), int(Result.MAX_STEPS))
    return Simulation(
        step=step,
        overlaps=jnp.where(after[..., None], jnp.nan, overlaps),
        end=jnp.take_along_axis(overlaps, last[:, None, None], axis=1)[:, 0],
        steps=step[last].astype(int),
        reached=first(size >= setting.eta),
        result=jnp.where(finite, result, int(Result.NONFINITE)),
        gamma=setting.gamma,
        dimension=setting.dimension,
        tied=setting.model.tied,
    )
