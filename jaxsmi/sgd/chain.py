r"""The exact Markov chain of online SGD, at a cost independent of the dimension.

Equations here [theory: online-sgd, Eqs. (56) to (59)], in the coordinates of coordinates.py, a
batch of B samples of M tokens, N_T (k, BM), N_Z (n, BM) iid N(0, 1), U the means of the tokens, c
the weight of a sample's loss, the slopes S = ∂ℓ/∂z (P, BM) of fields.py:

    g_T = (c/D) S (N_T + U)ᵀ,   g_Z = (c/D) S N_Zᵀ,   F = (c/D) Λ A,   Λ Λᵀ = S Sᵀ
    V' = β V + λ W + g,   W' = W - η V'                    rows of [Y, Z, their part along F]
    sphere: rows of W' over their norm, times the norm that they had at the start
    Z ← the triangular factor of [Z', F']

A (p, p), p = min(P, BM), is Bartlett's factor of p rows of D - k - n normals (triangular.py in
numerics): F is the part of the gradient outside of the span, whose Gram matrix is Wishart's, and
exact at every D >= k + n + p. Of batches that are used several times A is the factor of all BM
tokens, in whose coordinates the updates are taken one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.driver import AbstractSolver, Run, advance, begin
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.triangular import acceptance_tries, chi_square, total
from jaxsmi.sgd import fields
from jaxsmi.sgd.coordinates import Coordinates, Row, entries, factor, plus, product, times

__all__ = ["Blocks", "OverlapChain", "Update"]

# Random numbers of a run are drawn in blocks of so many numbers, and of so many steps at most:
# large enough to be vectorised, small enough for the cache with many runs. Empirical.
_NUMBERS = 2**13
_STEPS = 64


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

    @property
    def kappa(self) -> Array:
        """Learning rate for each sample, κ = c η/(1 - β) (of rows with several: the largest)."""
        kappa = self.weight * jnp.max(self.rate)
        return kappa if self.momentum is None else kappa / (1.0 - self.momentum)

    def agreement(self, position: Coordinates) -> Array:
        """Cosines of the runs, up to the symmetries of the model (.., runs)."""
        pair = self.pair
        M = position.teacher_overlap(pair.rows)
        Q = position.overlap(pair.rows)
        return jax.vmap(pair.agreement, -1, -1)(M, Q, position.gram())


class Noise(NamedTuple):
    """What steps draw, with groups and runs on the last axes: `fixed` N_T (.., k, BM, g, runs),
    `moving` N_Z (.., n, BM, g, runs), `label` (.., noise, B, runs), and of Bartlett's A the
    `normals` below its diagonal, row by row, and the `chi_square` on it (.., g, runs)."""

    fixed: Array
    moving: Array
    label: Array
    normals: Array
    chi_square: Array


class ChainState(eqx.Module):
    """Runs on their way: where they are, the steps taken (runs,), the step of the first passage of
    the level (.., runs), inf before it, and a `Result` code (runs,), `RUNNING` where a run goes
    on."""

    along: Array
    across: Array
    steps: Array
    reached: Array
    result: Array


class OverlapChain(eqx.Module):
    """The chain of many runs at once, from a start. All numbers are arrays, so that another
    learning rate or dimension compiles nothing; `tries` of the rejection, and the shape of A where
    a batch is as large as D, follow from the dimension."""

    rule: Update
    start: Coordinates
    radius: Array | None
    dimension: Array
    limit: Array
    tries: int = eqx.field(static=True)
    side: tuple[int, int] = eqx.field(static=True)

    @classmethod
    def of(cls, rule: Update, dimension: int, steps: int, start: Coordinates) -> OverlapChain:
        """The chain of so many steps."""
        pair = rule.pair
        tokens = rule.batch * pair.tokens
        # what lies outside of the span of all rows has D - k - n dimensions
        freedom = dimension - pair.fixed - rule.moving
        rows = tokens if rule.repeats > 1 else min(pair.rows, tokens)
        # a batch with more tokens than dimensions fills them
        columns = min(rows, freedom)
        return cls(
            rule=rule,
            start=start,
            radius=start.norms(pair.rows) if rule.projected else None,
            dimension=jnp.asarray(dimension, theory_dtype()),
            limit=jnp.asarray(steps),
            tries=acceptance_tries(freedom - columns + 1),
            side=(rows, columns),
        )

    @property
    def below(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the normals of A stand: rows and columns below its diagonal."""
        rows, columns = self.side
        return np.tril_indices(rows, -1, columns)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many normals a step of a run needs, in the order of `Noise`, the last for χ²."""
        pair = self.rule.pair
        tokens = self.rule.batch * pair.tokens * pair.groups
        counts = (pair.fixed * tokens, self.rule.moving * tokens, pair.noise_size * self.rule.batch)
        diagonal = self.side[1] * pair.groups
        return (*counts, len(self.below[0]) * pair.groups, diagonal * 3 * self.tries)

    @property
    def block(self) -> int:
        """Steps whose numbers are drawn at once."""
        return int(np.clip(2 ** int(np.log2(_NUMBERS / sum(self.widths) + 1e-9)), 1, _STEPS))

    def draw(self, key: PRNGKeyArray, index: Array) -> Array:
        """The standard normals (block, ..) of the steps of one block of one run."""
        # one stream a block: a run's numbers depend on its own key, not on other runs
        shape = (self.block, sum(self.widths))
        return jax.random.normal(jax.random.fold_in(key, index), shape, self.dimension.dtype)

    def noise(self, normals: Array) -> Noise:
        """The numbers of a block (block, .., runs), in their places."""
        pair = self.rule.pair
        B = self.rule.batch
        lead, runs = len(normals), normals.shape[-1]
        ends = np.cumsum(self.widths)[:-1]
        fixed, moving, label, below, proposals = jnp.split(normals, ends, axis=1)
        tokens = (B * pair.tokens, pair.groups, runs)
        columns = self.side[1]
        tried = (lead, columns, pair.groups, 3, self.tries, runs)
        freedom = self.dimension - pair.fixed - self.rule.moving - jnp.arange(columns)
        return Noise(
            fixed.reshape(lead, pair.fixed, *tokens),
            moving.reshape(lead, self.rule.moving, *tokens),
            label.reshape(lead, pair.noise_size, B, runs),
            below.reshape(lead, -1, pair.groups, runs),
            chi_square(
                freedom[:, None, None], jnp.moveaxis(proposals.reshape(tried), (3, 4), (-2, -1))
            ),
        )

    # One step

    def move(self, along: Array, across: Array, noise: Noise) -> tuple[Array, Array]:
        """One step of all runs (module docstring): Y and Z."""
        inputs = fields.shifted(self.rule.pair, self.start.frame, noise.fixed)
        step = self.once if self.rule.repeats == 1 else self.repeated
        rows = step(along, across, inputs, noise)
        k = len(inputs)
        Lambda = factor([entries(row[k:]) for row in rows])
        Y = jnp.stack([jnp.stack(list(row[:k])) for row in rows])
        return Y, jnp.stack([jnp.stack(row) for row in Lambda])

    def hidden(self, inputs: Array) -> Array:
        """z* (P*, BM, g, runs)."""
        return fields.fixed_fields(self.start.frame, inputs, self.rule.pair.targets)

    def once(self, along: Array, across: Array, inputs: Array, noise: Noise) -> list[Row]:
        """The moving rows after one update, with what lies outside of their span behind."""
        pair = self.rule.pair
        P = pair.rows
        position = Coordinates(self.start.frame, along, across)
        z = fields.fields(P, position, inputs, noise.moving)
        S = fields.slopes(pair, self.hidden(inputs), z, noise.label)
        answers = [entries(s) for s in S]
        tokens = [entries(x) for x in (*inputs, *noise.moving)]
        side = self.side[0]
        # Bartlett's A is as wide as S where S has few columns: then S serves without a factor
        Lambda = answers if len(S[0]) <= P else factor(answers)
        below = zip(*(map(int, axis) for axis in self.below), strict=True)
        places = dict(zip(below, noise.normals, strict=True))
        places |= {(i, i): jnp.sqrt(noise.chi_square[i]) for i in range(side)}
        gradient = [
            [product(s, x) for x in tokens]
            + [total([L[i] * places[i, j] for i in range(j, side)]) for j in range(side)]
            for s, L in zip(answers, Lambda, strict=True)
        ]
        zero = [jnp.zeros_like(along[0, 0])] * side
        rows = [[*along[i], *across[i], *zero] for i in range(self.rule.moving)]
        return self.updated(rows, gradient)

    def repeated(self, along: Array, across: Array, inputs: Array, noise: Noise) -> list[Row]:
        """The moving rows after several updates on one batch, in the coordinates of its tokens."""
        rows, columns = self.side
        A = jnp.zeros((rows, columns, *inputs.shape[2:]), inputs.dtype)
        A = A.at[self.below].set(noise.normals)
        A = A.at[np.arange(columns), np.arange(columns)].set(jnp.sqrt(noise.chi_square))
        tokens = jnp.concatenate([inputs, noise.moving, jnp.swapaxes(A, 0, 1)])
        moving = jnp.concatenate([along, across], axis=1)
        moving = jnp.concatenate(
            [moving, jnp.zeros((len(moving), columns, *moving.shape[2:]), inputs.dtype)], axis=1
        )
        hidden = self.hidden(inputs)
        P = self.rule.pair.rows
        for _ in range(self.rule.repeats):
            z = jnp.sum(moving[:P, :, None] * tokens, axis=1)
            S = fields.slopes(self.rule.pair, hidden, z, noise.label)
            gradient = jnp.sum(S[:, None] * tokens, axis=2)
            moving = jnp.stack([jnp.asarray(row) for row in self.updated([*moving], [*gradient])])
        return [*moving]

    def updated(self, rows: Sequence[Row], gradient: Sequence[Row]) -> list[Row]:
        """W' and, with momentum, V' behind, from the moving rows and S Xᵀ."""
        rule = self.rule
        P = rule.pair.rows
        scale = rule.weight / self.dimension
        moved = []
        velocities = []
        for p in range(P):
            velocity = times(scale, gradient[p])
            if rule.decay is not None:
                velocity = plus(velocity, rule.decay[p], rows[p])
            if rule.momentum is not None:
                velocity = plus(velocity, rule.momentum, rows[P + p])
                velocities.append(velocity)
            new = plus(rows[p], -rule.rate[p], velocity)
            # the norm of the start, not of the last step: rounding does not add up
            if self.radius is not None:
                new = times(self.radius[p] / jnp.sqrt(product(new, new)), new)
            moved.append(new)
        return moved + velocities

    def step(self, state: ChainState, noise: Noise) -> ChainState:
        """One step of all runs that have not stopped, and the result of those that stop now."""
        # all runs step together: those that have stopped keep their state
        running = state.result == RUNNING
        along, across = self.move(state.along, state.across, noise)
        along = jnp.where(running, along, state.along)
        across = jnp.where(running, across, state.across)
        steps = state.steps + running
        values = self.rule.agreement(Coordinates(self.start.frame, along, across))
        first = (values >= self.rule.level) & jnp.isinf(state.reached)
        reached = jnp.where(first & running, steps.astype(along.dtype), state.reached)
        met = self.met(values)
        result = jnp.where(running & met, int(Result.SUCCESS), state.result)
        finite = jnp.isfinite(total([*values.reshape(-1, values.shape[-1])]))
        result = jnp.where(running & ~finite, int(Result.NONFINITE), result)
        return ChainState(along, across, steps, reached, result)

    def met(self, values: Array) -> Array:
        """Whether runs have all the agreement that stops them (runs,)."""
        return jnp.all(values.reshape(-1, values.shape[-1]) >= self.rule.stop, axis=0)

    def begun(self) -> ChainState:
        """Runs at the start."""
        start = self.start
        values = self.rule.agreement(start)
        runs = values.shape[-1]
        return ChainState(
            start.along,
            start.across,
            steps=jnp.zeros(runs, int),
            reached=jnp.where(values >= self.rule.level, 0.0, jnp.inf),
            result=jnp.where(self.met(values), int(Result.SUCCESS), RUNNING),
        )

    def observe(self, state: ChainState, count: Array) -> dict[str, Array]:
        """Y and Z of the runs that took step number `count`; NaN of those that had stopped."""
        here = state.steps == count
        P = self.rule.pair.rows
        return {
            "along": jnp.where(here, state.along[:P], jnp.nan),
            "across": jnp.where(here, state.across[:P], jnp.nan),
        }


class Block(AbstractSolver[ChainState]):
    """The steps of one block, whose random numbers (block, .., runs) are there."""

    chain: OverlapChain
    noise: Noise

    def init(self) -> ChainState:
        return self.chain.begun()

    def step(self, state: ChainState, count: Array) -> ChainState:
        place = count % self.chain.block
        return self.chain.step(state, jax.tree.map(lambda x: x[place], self.noise))

    def observe(self, state: ChainState, count: Array) -> dict[str, Array]:
        return self.chain.observe(state, count)

    def terminate(self, state: ChainState, count: Array) -> Array:
        return state.result


class Blocks(AbstractSolver[Run[ChainState]]):
    """Block after block, each with random numbers of its own: a step of this solver is a block,
    and its state the run so far."""

    chain: OverlapChain
    keys: PRNGKeyArray
    every: Array
    records: int = eqx.field(static=True)

    def block(self, index: Array) -> Block:
        """The block of a number."""
        draw = jax.vmap(self.chain.draw, in_axes=(0, None), out_axes=-1)
        return Block(self.chain, self.chain.noise(draw(self.keys, index)))

    def init(self) -> Run[ChainState]:
        return begin(self.block(jnp.zeros((), int)), self.records)

    def step(self, state: Run[ChainState], count: Array) -> Run[ChainState]:
        until = jnp.minimum((count + 1) * self.chain.block, self.chain.limit)
        return advance(self.block(count), state, until, self.every)

    def observe(self, state: Run[ChainState], count: Array) -> dict[str, Array]:
        return {}

    def terminate(self, state: Run[ChainState], count: Array) -> Array:
        return state.state.result
