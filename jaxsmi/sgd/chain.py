r"""The exact Markov chain of online SGD, at a cost independent of the dimension.

Equations here [theory: online-sgd, Eqs. (56) to (59)], in the coordinates of coordinates.py, a
batch of B samples of M tokens, N_T (k, BM), N_Z (n, BM) iid N(0, 1), U the means of the tokens, c
the weight of a sample's loss:

    g_T = (c/D) s (N_T + U)ᵀ,   g_Z = (c/D) s N_Zᵀ,   F = (c/D) Λ A,   Λ Λᵀ = s sᵀ
    V' = β V + λ W + g,   W' = W - η V'                    rows of [Y, Z, their part along F]
    sphere: rows of W' over their norm, times the norm that they had at the start
    Z ← the triangular factor of [Z', F']

Letters here: s (P, BM) slopes ∂ℓ/∂z, V velocities of momentum (not a covariance), T fixed rows.

A (p, p), p = min(P, BM), is Bartlett's factor of p rows of D - k - n normals
(numerics/linear_algebra.py): F is the part of the gradient outside of the span, whose Gram matrix
is Wishart's, and exact at every D >= k + n + p. For batches that are used several times A is the
factor of all BM tokens, in whose coordinates the updates are taken one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.driver import AbstractSolver, Run, advance, new_run
from jaxsmi.core.results import RUNNING, Result
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.linear_algebra import acceptance_tries, chi_square
from jaxsmi.sgd.coordinates import Coordinates, add_means, factor, fields_of, slopes

# Random numbers of a run are drawn in blocks of so many numbers, and of so many steps at most:
# large enough to be vectorised, small enough for the cache with many runs. Empirical.
_NUMBERS = 2**13
_BLOCK_STEPS = 64


class Update(eqx.Module):
    """The update of online SGD in one dimension, and the cosines at which runs stop.

    Attributes:
        pair: Teacher and student.
        rate: Learning rate η of each row of a group (P,).
        weight: c, the weight of a sample's loss in that of its batch.
        momentum: β; None: none.
        decay: Weight decay λ of each row (P,); None: none.
        level: The agreement whose first passage is recorded.
        stop: The agreement at which a run stops; inf: never.
        batch: B, samples of a batch.
        repeats: Updates on each batch.
        projected: Rows keep their norm.
        moving: n, rows that move: the student's P and, with momentum, their velocities.
    """

    pair: TeacherStudent
    rate: Array
    weight: Array
    momentum: Array | None
    decay: Array | None
    level: Array
    stop: Array
    batch: int = eqx.field(static=True)
    repeats: int = eqx.field(static=True)
    projected: bool = eqx.field(static=True)
    moving: int = eqx.field(static=True)

    def agreement(self, position: Coordinates) -> Array:
        """Cosines of the runs, up to the symmetries of the model (.., runs)."""
        pair = self.pair
        M = position.teacher_overlap(pair.rows)
        return jax.vmap(pair.agreement, -1, -1)(M, position.overlap(pair.rows), position.gram())


class StepNoise(NamedTuple):
    """Random numbers of steps, groups and runs on the last axes: `fixed` N_T (.., k, BM, g, runs),
    `moving` N_Z (.., n, BM, g, runs), `label` (.., noise, B, runs), and of Bartlett's A the
    `normals` below its diagonal, row by row, and the `chi_square` on it (.., g, runs)."""

    fixed: Array
    moving: Array
    label: Array
    normals: Array
    chi_square: Array


class ChainState(eqx.Module):
    """State of all runs: coordinates, the steps taken (runs,), the step of the first passage of
    the level (.., runs), inf before it, and a `Result` code (runs,), `RUNNING` where a run goes
    on."""

    along: Array
    across: Array
    steps: Array
    reached: Array
    result: Array


class OverlapChain(AbstractSolver[ChainState]):
    """The chain of many runs at once, from a start. All numbers are arrays, so that another
    learning rate or dimension compiles nothing; `tries` of the rejection, and the shape of A where
    a batch is as large as D, follow from the dimension. `noise` (block, ..) is that of the steps of
    one block; None before the first one."""

    update: Update
    start: Coordinates
    radius: Array | None
    dimension: Array
    max_steps: Array
    tries: int = eqx.field(static=True)
    A_shape: tuple[int, int] = eqx.field(static=True)
    noise: StepNoise | None = None

    @classmethod
    def of(cls, update: Update, dimension: int, steps: int, start: Coordinates) -> OverlapChain:
        """Build the chain of so many steps."""
        pair = update.pair
        tokens = update.batch * pair.tokens
        # the space outside the span of all rows has D - k - n dimensions
        freedom = dimension - pair.fixed - update.moving
        rows = tokens if update.repeats > 1 else min(pair.rows, tokens)
        # a batch with more tokens than dimensions fills them
        columns = min(rows, freedom)
        return cls(
            update=update,
            start=start,
            radius=start.norms(pair.rows) if update.projected else None,
            dimension=jnp.asarray(dimension, theory_dtype()),
            max_steps=jnp.asarray(steps),
            tries=acceptance_tries(freedom - columns + 1),
            A_shape=(rows, columns),
        )

    @property
    def below_diagonal(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of A below its diagonal (rows, columns), in the order of `StepNoise.normals`."""
        rows, columns = self.A_shape
        return np.tril_indices(rows, -1, columns)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Normals that a step of a run needs, in the order of `StepNoise`, the last for χ²."""
        pair, B = self.update.pair, self.update.batch
        tokens = (B * pair.tokens, pair.groups)
        below = (len(self.below_diagonal[0]), pair.groups)
        diagonal = (self.A_shape[1], pair.groups, 3, self.tries)
        fixed, moving = (pair.fixed, *tokens), (self.update.moving, *tokens)
        return fixed, moving, (pair.noise_size, B), below, diagonal

    @property
    def size(self) -> int:
        """Number of normals that a step of a run needs."""
        return sum(map(math.prod, self.shapes))

    @property
    def block(self) -> int:
        """Number of steps whose normals are drawn at once."""
        return int(np.clip(2 ** int(np.log2(_NUMBERS / self.size + 1e-9)), 1, _BLOCK_STEPS))

    def draw(self, key: PRNGKeyArray, index: Array) -> Array:
        """The standard normals (block, ..) of the steps of one block of one run."""
        # one stream a block: a run's numbers depend on its own key, not on other runs
        shape = (self.block, self.size)
        return jax.random.normal(jax.random.fold_in(key, index), shape, self.dimension.dtype)

    def split_noise(self, normals: Array) -> StepNoise:
        """Split the normals of a block (block, .., runs) by purpose."""
        parts = jnp.split(normals, np.cumsum([math.prod(s) for s in self.shapes])[:-1], axis=1)
        lead, runs = len(normals), normals.shape[-1]
        fixed, moving, label, below, proposals = (
            x.reshape(lead, *shape, runs) for x, shape in zip(parts, self.shapes, strict=True)
        )
        freedom = self.dimension - self.update.pair.fixed - self.update.moving
        freedom = (freedom - jnp.arange(self.A_shape[1]))[:, None, None]
        squares = chi_square(freedom, jnp.moveaxis(proposals, (3, 4), (-2, -1)))
        return StepNoise(fixed, moving, label, below, squares)

    # One step

    def move_rows(self, along: Array, across: Array, noise: StepNoise) -> tuple[Array, Array]:
        """Move all rows by one step (module docstring); return Y and Z."""
        update = self.update
        pair = update.pair
        P = pair.rows
        inputs = add_means(pair, self.start.frame, noise.fixed)
        teacher_fields = fields_of(self.start.frame[: pair.targets, :, None], inputs)
        tokens = jnp.concatenate([inputs, noise.moving])
        rows = jnp.concatenate([along, across], axis=1)
        A = self.bartlett_factor(noise)
        # coordinates outside of the span of all rows: no row has any before the step
        beyond = jnp.zeros((len(rows), *A.shape[1:]), A.dtype)
        if update.repeats == 1:
            s = slopes(pair, teacher_fields, fields_of(rows[:P], tokens), noise.label)
            # A is as wide as s where s has few columns: then s serves without a factor
            Lambda = s if s.shape[1] <= P else factor(s)
            gradient = [jnp.sum(s[:, None] * tokens, axis=2), jnp.sum(Lambda[:, :, None] * A, 1)]
            rows = jnp.concatenate([rows, beyond], axis=1)
            rows = self.apply_update(rows, jnp.concatenate(gradient, axis=1))
        else:
            # several updates on one batch, in the coordinates of all of its tokens
            tokens = jnp.concatenate([tokens, jnp.swapaxes(A, 0, 1)])
            rows = jnp.concatenate([rows, beyond], axis=1)
            for _ in range(update.repeats):
                s = slopes(pair, teacher_fields, fields_of(rows[:P], tokens), noise.label)
                rows = self.apply_update(rows, jnp.sum(s[:, None] * tokens, axis=2))
        k = pair.fixed
        return rows[:, :k], factor(rows[:, k:])

    def bartlett_factor(self, noise: StepNoise) -> Array:
        """Bartlett's A (p, columns, g, runs)."""
        A = jnp.zeros((*self.A_shape, *noise.normals.shape[1:]), noise.normals.dtype)
        diagonal = np.arange(self.A_shape[1])
        A = A.at[self.below_diagonal].set(noise.normals)
        return A.at[diagonal, diagonal].set(jnp.sqrt(noise.chi_square))

    def apply_update(self, rows: Array, gradient: Array) -> Array:
        """W' and, with momentum, V' behind, from the moving rows and s Xᵀ."""
        update = self.update
        P = update.pair.rows
        each = lambda x: x.reshape(-1, 1, 1, 1)
        W, V = rows[:P], rows[P:]
        velocity = update.weight / self.dimension * gradient
        if update.decay is not None:
            velocity = velocity + each(update.decay) * W
        if update.momentum is not None:
            velocity = velocity + update.momentum * V
        W = W - each(update.rate) * velocity
        if self.radius is not None:
            # the norm of the start, not of the last step: rounding does not add up
            W = (self.radius / jnp.sqrt(jnp.sum(W**2, axis=1)))[:, None] * W
        return W if update.momentum is None else jnp.concatenate([W, velocity])

    def step(self, state: ChainState, count: Array) -> ChainState:
        """One step of all runs that have not stopped, and the result of those that stop now."""
        # counted over the whole run: records and stops do not depend on the blocks
        noise = jax.tree.map(lambda x: x[count % self.block], self.noise)
        # all runs step together: those that have stopped keep their state
        running = state.result == RUNNING
        along, across = self.move_rows(state.along, state.across, noise)
        along = jnp.where(running, along, state.along)
        across = jnp.where(running, across, state.across)
        steps = state.steps + running
        # a first passage is a matter of every step, not of records
        values = self.update.agreement(Coordinates(self.start.frame, along, across))
        first = (values >= self.update.level) & jnp.isinf(state.reached)
        reached = jnp.where(first & running, steps.astype(along.dtype), state.reached)
        met = self.has_met_target(values)
        result = jnp.where(running & met, int(Result.SUCCESS), state.result)
        finite = jnp.all(jnp.isfinite(values.reshape(-1, values.shape[-1])), axis=0)
        result = jnp.where(running & ~finite, int(Result.NONFINITE), result)
        return ChainState(along, across, steps, reached, result)

    def has_met_target(self, values: Array) -> Array:
        """True for runs whose every agreement is at least `stop` (runs,)."""
        return jnp.all(values.reshape(-1, values.shape[-1]) >= self.update.stop, axis=0)

    def init(self) -> ChainState:
        """Return the state of runs at the start."""
        start = self.start
        values = self.update.agreement(start)
        runs = values.shape[-1]
        return ChainState(
            start.along,
            start.across,
            steps=jnp.zeros(runs, int),
            reached=jnp.where(values >= self.update.level, 0.0, jnp.inf),
            result=jnp.where(self.has_met_target(values), int(Result.SUCCESS), RUNNING),
        )

    def observe(self, state: ChainState, count: Array) -> dict[str, Array]:
        """Y and Z of the runs that took step number `count`; NaN of those that had stopped."""
        P = self.update.pair.rows
        here = lambda rows: jnp.where(state.steps == count, rows[:P], jnp.nan)
        return {"along": here(state.along), "across": here(state.across)}

    def terminate(self, state: ChainState, count: Array) -> Array:
        return state.result


class BlockSolver(AbstractSolver[Run[ChainState]]):
    """Solver whose step is a block of steps of the chain, with random numbers of its own; its state
    is the run so far."""

    chain: OverlapChain
    keys: PRNGKeyArray
    every: Array
    records: int = eqx.field(static=True)

    def init(self) -> Run[ChainState]:
        return new_run(self.chain, self.records)

    def step(self, state: Run[ChainState], count: Array) -> Run[ChainState]:
        draw = jax.vmap(self.chain.draw, in_axes=(0, None), out_axes=-1)
        noise = self.chain.split_noise(draw(self.keys, count))
        block = dataclasses.replace(self.chain, noise=noise)
        # the last block is drawn whole, and used up to the last step
        until = jnp.minimum((count + 1) * block.block, block.max_steps)
        return advance(block, state, until, self.every)

    def observe(self, state: Run[ChainState], count: Array) -> dict[str, Array]:
        return {}

    def terminate(self, state: Run[ChainState], count: Array) -> Array:
        return state.state.result
