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
from jax import lax
from jaxtyping import Array, PRNGKeyArray
from tqdm import tqdm

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.population import overlap_norm
from jaxsmi.sgd.runs import Setting, Simulation

# Steps whose random numbers are drawn at once, and how many such blocks lie between two looks at
# the progress bar.
BLOCK = 64
_BLOCKS_A_LOOK = 512

# The stream of the random start; blocks of steps have the streams from zero on.
START_STREAM = 2**31 - 1

_GOING = -1  # the result of a run that has not stopped


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
        result: A `Result` code, negative where a run goes on (runs,).
    """

    point: Array
    steps: Array
    reached: Array
    result: Array


class OverlapChain(eqx.Module):
    """The chain of the overlaps as a solver of many runs: `init`, `step`, `observe`, `terminate`.

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
        return state.point[:, : self.model.overlaps]

    def init(self, points: Array) -> ChainState:
        """Runs at the start, at points (runs, n + rows)."""
        size = overlap_norm(self.model, points[:, : self.model.overlaps])
        return ChainState(
            points,
            steps=jnp.zeros(len(points), int),
            reached=jnp.where(size >= self.eta, 0.0, jnp.inf),
            result=jnp.where(size >= self.stop, int(Result.SUCCESS), _GOING),
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
        n = model.overlaps
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

    def step(self, state: ChainState, noise: Noise, index: Array) -> ChainState:
        """Step number `index` of all runs that have not stopped, up to the limit of steps."""
        going = (state.result < 0) & (index < self.limit)
        moved = jax.vmap(self.move)(state.point, noise)
        point = jnp.where(going[:, None], moved, state.point)
        steps = state.steps + going
        size = overlap_norm(self.model, point[:, : self.model.overlaps])
        first = (size >= self.eta) & jnp.isinf(state.reached)
        reached = jnp.where(first, steps.astype(point.dtype), state.reached)
        return self.terminate(ChainState(point, steps, reached, state.result), going)

    def observe(self, state: ChainState, taken: Array) -> Array:
        """The overlaps of the runs that took step number `taken`; NaN of those that had stopped."""
        return jnp.where((state.steps == taken)[:, None], self.overlaps(state), jnp.nan)

    def terminate(self, state: ChainState, moved: Array) -> ChainState:
        """The runs, with the result of those among the `moved` ones that have arrived or failed."""
        size = overlap_norm(self.model, self.overlaps(state))
        result = jnp.where(moved & (size >= self.stop), int(Result.SUCCESS), state.result)
        result = jnp.where(moved & ~jnp.isfinite(size), int(Result.NONFINITE), result)
        return ChainState(state.point, state.steps, state.reached, result)


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
    n = model.overlaps
    dtype = theory_dtype()
    along_key, rest_key = jax.random.split(jax.random.fold_in(key, START_STREAM))
    along = jax.random.normal(along_key, (n,), dtype)
    freedom = setting.dimension - (n if model.tied else 1)
    rest = 2.0 * jax.random.gamma(rest_key, 0.5 * freedom, (rows,), dtype)
    size = jnp.sqrt(jnp.sum(along**2) + rest) if model.tied else jnp.sqrt(along**2 + rest)
    return jnp.concatenate([along / size, jnp.sqrt(rest) / size])


class Recorded(NamedTuple):
    """The runs, and their history (records, runs, n); NaN after a run has stopped."""

    state: ChainState
    history: Array


@eqx.filter_jit
def advance(
    chain: OverlapChain, keys: PRNGKeyArray, recorded: Recorded, every: Array, blocks: Array
) -> Recorded:
    """The runs after the blocks blocks[0] to blocks[1] - 1, or after all runs have stopped."""

    def body(carry: tuple[Array, Recorded]) -> tuple[Array, Recorded]:
        block, (state, history) = carry
        noise = jax.vmap(chain.draw, in_axes=(0, None), out_axes=1)(keys, block)

        def one(state: ChainState, step: tuple[Noise, Array]) -> tuple[ChainState, Array]:
            noise, index = step
            state = chain.step(state, noise, index)
            return state, chain.observe(state, index + 1)

        indices = block * BLOCK + jnp.arange(BLOCK)
        state, observed = lax.scan(one, state, (noise, indices))
        after = indices + 1
        # the last record may come early
        due = ((after % every == 0) | (after == chain.limit)) & (after <= chain.limit)
        slots = jnp.where(due, -(-after // every), history.shape[0])
        return block + 1, Recorded(state, history.at[slots].set(observed, mode="drop"))

    def going(carry: tuple[Array, Recorded]) -> Array:
        return (carry[0] < blocks[1]) & jnp.any(carry[1].state.result < 0)

    return lax.while_loop(going, body, (blocks[0], recorded))[1]


def run(setting: Setting, keys: PRNGKeyArray, progress: bool) -> Simulation:
    """Runs of the chain, one a key."""
    chain = OverlapChain.of(setting)
    state = chain.init(jax.vmap(lambda key: starting_point(setting, key))(keys))
    shape = (setting.records + 1, len(keys), setting.model.overlaps)
    history = jnp.full(shape, jnp.nan, state.point.dtype).at[0].set(chain.overlaps(state))
    recorded = Recorded(state, history)
    every = jnp.asarray(setting.every)
    blocks = -(-setting.steps // BLOCK)
    look = _BLOCKS_A_LOOK if progress else blocks
    total = setting.steps * len(keys)
    with tqdm(total=total, desc="SGD", disable=not progress, leave=False) as bar:
        for block in range(0, blocks, look):
            part = jnp.asarray([block, min(block + look, blocks)])
            recorded = advance(chain, keys, recorded, every, part)
            if progress:
                bar.update(int(jnp.sum(recorded.state.steps)) - bar.n)
                if bool(jnp.all(recorded.state.result >= 0)):
                    break
    state, history = recorded
    unmet = jnp.where(jnp.isinf(setting.stop), int(Result.SUCCESS), int(Result.MAX_STEPS))
    return Simulation(
        step=jnp.minimum(jnp.arange(history.shape[0]) * setting.every, setting.steps),
        overlaps=jnp.moveaxis(history, 0, 1),
        end=chain.overlaps(state),
        steps=state.steps,
        reached=state.reached,
        result=jnp.where(state.result < 0, unmet, state.result),
        gamma=setting.gamma,
        dimension=setting.dimension,
        tied=setting.model.tied,
    )
