r"""The exact Markov chain of the overlaps of online SGD, at a cost independent of the dimension.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (33) to (35)]. With a, b, c ~ N(0, 1) (components
of √d x_l along w*, the K directions of the encoding, and the rest of w), r² = 1 - m² - ‖e‖², q =
γ/d, s_l = ∂ℓ/∂z_l:

    z*_l = a_l,   z_l = m a_l + b_l·e + r c_l + (C e)_l
    v_m = m - q Σ s_l a_l,   v_e = e - q Σ s_l (b_l + C_l),   v_r = r - q Σ s_l c_l,
    v_4² = q² (Σ s_l²) χ²_{d-K-2}
    (m, e, r) ← (v_m, v_e, √(v_r² + v_4²))/‖(v_m, v_e, v_r, v_4)‖

Untied networks: row by row, with K = 0. χ² comes from Marsaglia and Tsang's rejection with a fixed
number of tries, more of them for small d; to stop there moves its law by less than 1e-6 in total
variation.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.driver import AbstractSolver, Run, advance, begin, drive
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.population import overlap_norm
from jaxsmi.sgd.runs import Setting, Simulation

# Steps whose random numbers are drawn at once, and how many such blocks lie between two looks at
# the progress bar.
BLOCK = 64
_BLOCKS_A_LOOK = 512

# The stream of the random start; blocks of steps have the streams from zero on.
START_STREAM = 2**31 - 1


class Noise(NamedTuple):
    """What the steps of the runs draw: standard normals (.., normals) and χ² (.., rows)."""

    normals: Array
    chi_square: Array


class ChainState(eqx.Module):
    """Runs on their way.

    Attributes:
        point: The overlaps and the rest r of each row of the weights (runs, n + rows).
        steps: Steps taken (runs,).
        reached: The step of the first passage of η, inf before it (runs,).
        result: A `Result` code, `RUNNING` where a run goes on (runs,).
    """

    point: Array
    steps: Array
    reached: Array
    result: Array


class OverlapChain(eqx.Module):
    """The chain of the overlaps, of many runs at once.

    All numbers are arrays, so that another learning rate or dimension compiles nothing; `tries` of
    the rejection follow from the dimension.
    """

    model: SequenceSingleIndex
    dimension: Array
    gamma: Array
    eta: Array
    stop: Array
    limit: Array
    tries: int = eqx.field(static=True)

    @classmethod
    def of(cls, setting: Setting) -> OverlapChain:
        """The chain of a setting."""
        model = setting.model
        d = setting.dimension
        return cls(
            model=model,
            dimension=jnp.asarray(d, theory_dtype()),
            gamma=setting.gamma,
            eta=setting.eta,
            stop=setting.stop,
            limit=jnp.asarray(setting.steps),
            tries=acceptance_tries(d - model.encoding.shape[1] - 2),
        )

    @property
    def rows(self) -> int:
        """Rows of the weights: how many rests r there are."""
        return 1 if self.model.tied else self.model.length

    def overlaps(self, state: ChainState) -> Array:
        """(m, e_1..e_K), of an untied network m_1..m_L (runs, n)."""
        return state.point[:, : self.model.overlap_count]

    def observe(self, state: ChainState, count: Array) -> Array:
        """The overlaps of the runs that took step number `count`; NaN of those that had stopped."""
        return jnp.where((state.steps == count)[:, None], self.overlaps(state), jnp.nan)

    def start(self, points: Array) -> ChainState:
        """Runs at the start, at points (runs, n + rows)."""
        size = overlap_norm(self.model, points[:, : self.model.overlap_count])
        return ChainState(
            points,
            steps=jnp.zeros(len(points), int),
            reached=jnp.where(size >= self.eta, 0.0, jnp.inf),
            result=jnp.where(size >= self.stop, int(Result.SUCCESS), RUNNING),
        )

    def draw(self, key: PRNGKeyArray, block: Array) -> Noise:
        """What the steps of one block of one run draw, (BLOCK, ..)."""
        L = self.model.length
        K = self.model.encoding.shape[1]
        width = 2 * L + (L * K if self.model.tied else 0)
        dtype = self.dimension.dtype
        shape = (BLOCK, self.rows, self.tries)
        normal_key, uniform_key = jax.random.split(jax.random.fold_in(key, block))
        normals = jax.random.normal(normal_key, (BLOCK, width + self.rows * self.tries), dtype)
        uniforms = jax.random.uniform(uniform_key, (BLOCK, self.rows * self.tries), dtype)
        proposals = normals[:, width:].reshape(shape)
        chi = chi_square(self.dimension - K - 2.0, proposals, uniforms.reshape(shape))
        return Noise(normals[:, :width], chi)

    def move(self, point: Array, noise: Noise) -> Array:
        """One step of one run (module docstring): its overlaps and rests."""
        model = self.model
        q = self.gamma / self.dimension
        L = model.length
        n = model.overlap_count
        v = point[:n]
        r = point[n:]
        a = noise.normals[:L]
        c = noise.normals[L : 2 * L]
        b = noise.normals[2 * L :].reshape(L, -1)
        m, means = model.split(v)
        fields = m * a + b @ v[1:] + r * c + means if model.tied else m * a + r * c
        s = jax.grad(model.sample_loss, argnums=1)(a, fields)
        if model.tied:
            along = q * s @ (b + model.encoding)
            new = jnp.concatenate([v[:1] - q * jnp.sum(s * a), v[1:] - along])
            rest = (r - q * jnp.sum(s * c)) ** 2 + q**2 * jnp.sum(s**2) * noise.chi_square
            size = jnp.sqrt(jnp.sum(new**2) + rest)
        else:
            new = v - q * s * a
            rest = (r - q * s * c) ** 2 + (q * s) ** 2 * noise.chi_square
            size = jnp.sqrt(new**2 + rest)
        return jnp.concatenate([new / size, jnp.sqrt(rest) / size])

    def step(self, state: ChainState, noise: Noise) -> ChainState:
        """One step of all runs that have not stopped, and the result of those that stop now."""
        running = state.result == RUNNING
        moved = jax.vmap(self.move)(state.point, noise)
        point = jnp.where(running[:, None], moved, state.point)
        steps = state.steps + running
        size = overlap_norm(self.model, point[:, : self.model.overlap_count])
        first = (size >= self.eta) & jnp.isinf(state.reached)
        reached = jnp.where(first, steps.astype(point.dtype), state.reached)
        result = jnp.where(running & (size >= self.stop), int(Result.SUCCESS), state.result)
        result = jnp.where(running & ~jnp.isfinite(size), int(Result.NONFINITE), result)
        return ChainState(point, steps, reached, result)


class Block(AbstractSolver[ChainState]):
    """The steps of one block, whose random numbers (BLOCK, runs, ..) are there."""

    chain: OverlapChain
    noise: Noise
    points: Array

    def init(self) -> ChainState:
        return self.chain.start(self.points)

    def step(self, state: ChainState, count: Array) -> ChainState:
        return self.chain.step(state, jax.tree.map(lambda x: x[count % BLOCK], self.noise))

    def observe(self, state: ChainState, count: Array) -> dict[str, Array]:
        return {"overlaps": self.chain.observe(state, count)}

    def terminate(self, state: ChainState, count: Array) -> Array:
        return state.result


class Blocks(AbstractSolver[Run[ChainState]]):
    """Block after block, each with random numbers of its own: a step of this solver is a block,
    and its state the run so far."""

    chain: OverlapChain
    keys: PRNGKeyArray
    points: Array
    every: Array
    records: int = eqx.field(static=True)

    def block(self, index: Array) -> Block:
        """The block of a number."""
        noise = jax.vmap(self.chain.draw, in_axes=(0, None), out_axes=1)(self.keys, index)
        return Block(self.chain, noise, self.points)

    def init(self) -> Run[ChainState]:
        return begin(self.block(jnp.zeros((), int)), self.records)

    def step(self, state: Run[ChainState], count: Array) -> Run[ChainState]:
        until = jnp.minimum((count + 1) * BLOCK, self.chain.limit)
        return advance(self.block(count), state, until, self.every)

    def observe(self, state: Run[ChainState], count: Array) -> dict[str, Array]:
        return {}

    def terminate(self, state: Run[ChainState], count: Array) -> Array:
        return state.state.result


def acceptance_tries(freedom: int) -> int:
    """Proposals of a χ² with so many degrees of freedom: all fail with probability below 1e-6."""
    return 2 if freedom >= 57 else 8


def chi_square(count: Array, normals: Array, uniforms: Array) -> Array:
    """χ² with `count` degrees of freedom: the first of its proposals (.., tries) to be accepted."""
    d = 0.5 * count - 1.0 / 3.0
    v = (1.0 + normals / jnp.sqrt(9.0 * d)) ** 3
    safe = jnp.where(v > 0.0, v, 1.0)
    accepted = (v > 0.0) & (jnp.log(uniforms) < 0.5 * normals**2 + d * (1.0 - safe + jnp.log(safe)))
    value = safe[..., -1]
    for k in range(normals.shape[-1] - 2, -1, -1):
        value = jnp.where(accepted[..., k], safe[..., k], value)
    return 2.0 * d * value


def starting_point(setting: Setting, key: PRNGKeyArray) -> Array:
    """Overlaps and rests r (n + rows,) of one run, as asked or of weights uniform on the sphere."""
    model = setting.model
    rows = setting.rows
    start = setting.start
    if start is not None:
        square = jnp.sum(start**2)[None] if model.tied else start**2
        return jnp.concatenate([start, jnp.sqrt(jnp.maximum(1.0 - square, 0.0))])
    n = model.overlap_count
    dtype = theory_dtype()
    along_key, rest_key = jax.random.split(jax.random.fold_in(key, START_STREAM))
    along = jax.random.normal(along_key, (n,), dtype)
    freedom = setting.dimension - (n if model.tied else 1)
    rest = 2.0 * jax.random.gamma(rest_key, 0.5 * freedom, (rows,), dtype)
    size = jnp.sqrt(jnp.sum(along**2) + rest) if model.tied else jnp.sqrt(along**2 + rest)
    return jnp.concatenate([along / size, jnp.sqrt(rest) / size])


@eqx.filter_jit
def _begun(blocks: Blocks) -> Run[Run[ChainState]]:
    """The runs before their first block (compiled: what nobody reads is not drawn)."""
    return begin(blocks, 0)


def run(setting: Setting, keys: PRNGKeyArray, progress: bool) -> Simulation:
    """Runs of the chain, one a key."""
    chain = OverlapChain.of(setting)
    points = jax.vmap(lambda key: starting_point(setting, key))(keys)
    blocks = Blocks(chain, keys, points, jnp.asarray(setting.every), setting.records)
    made = drive(
        blocks,
        _begun(blocks),
        -(-setting.steps // BLOCK),
        label="SGD" if progress else None,
        stretch=_BLOCKS_A_LOOK,
        unit=BLOCK * len(keys),
    ).state
    state = made.state
    history = made.history["overlaps"]
    if setting.steps % setting.every:  # the last record comes early
        history = history.at[-1].set(chain.observe(state, chain.limit))
    unmet = jnp.where(jnp.isinf(setting.stop), int(Result.SUCCESS), int(Result.MAX_STEPS))
    return Simulation(
        step=jnp.minimum(jnp.arange(history.shape[0]) * setting.every, setting.steps),
        overlaps=jnp.moveaxis(history, 0, 1),
        end=chain.overlaps(state),
        steps=state.steps,
        reached=state.reached,
        result=jnp.where(state.result == RUNNING, unmet, state.result),
        gamma=setting.gamma,
        dimension=setting.dimension,
        tied=setting.model.tied,
    )
