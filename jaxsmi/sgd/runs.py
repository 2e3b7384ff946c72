"""Runs of online SGD: what is simulated, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.border import checked, instance
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result, outcomes
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.sgd.coordinates import Coordinates

__all__ = ["Rule", "Setting", "Simulation", "semantic_fraction", "summary"]


_GROWTH = 100.0  # of the norm of a row, relative to the start: from there on a run has diverged


class Rule(eqx.Module):
    """The update of online SGD, and what is looked for along the way.

    Attributes:
        pair: Teacher and student.
        rate: Learning rate η of each row of a group (P,).
        weight: c, the weight of a sample's loss in that of its batch.
        momentum: β; None: none.
        decay: Weight decay λ; None: none.
        level: The agreement whose first passage is looked for.
        stop: The agreement at which a run stops; inf: never.
        batch: B, samples of a batch.
        repeats: Updates on each batch.
        projected: Whether rows keep their norm.
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
        """Learning rate for each sample, κ = c η (of rows with several rates: the largest)."""
        return self.weight * jnp.max(self.rate)

    def agreement(self, position: Coordinates) -> Array:
        """What the runs have in common with the teacher (.., runs)."""
        pair = self.pair
        M = position.teacher_overlap(pair.rows)
        Q = position.overlap(pair.rows)
        return jax.vmap(pair.agreement, -1, -1)(M, Q, position.gram())


class Setting(NamedTuple):
    """What runs have in common: the `rule`, the `dimension` D, how many `steps` (batches) they take
    at most, and the steps between two records, `every`."""

    rule: Rule
    dimension: int
    steps: int
    every: int

    @property
    def records(self) -> int:
        """Records after the one at the start; the last may come early."""
        return -(-self.steps // self.every)


class Simulation(eqx.Module):
    """Runs of online SGD.

    Attributes:
        step: Steps of the records (records,).
        teacher_overlap: M (runs, records, P, k), with the teacher's rows and then with the
            directions of the inputs; NaN after a run has stopped.
        overlap: Q (runs, records, P, P); NaN between rows that see different tokens.
        gram: ρ (runs, k, k), of the fixed rows.
        agreement: What a run has in common with the teacher, (runs, records, P): cosines up to the
            symmetries of the model; of a `SequenceSingleIndex` ‖(m, e)‖ (runs, records), of an
            untied network ‖m‖/√L.
        distance: ‖w_p ∓ w*_p‖²/D (runs, records, P), without cancellation; NaN where the student
            has other rows than the teacher.
        end: M where each run ended (runs, P, k), of a `SequenceSingleIndex` as `overlaps`
            (runs, n).
        final: The agreement there (runs, P) or (runs,).
        steps: How many steps it took (runs,).
        reached: The first step at which the agreement has the level, (runs, P) or (runs,); inf:
            never, 0: at the start.
        result: A `Result` code (runs,): SUCCESS (stopped as asked, or all steps taken where nothing
            was asked), MAX_STEPS, DIVERGED (a row a hundred times as long as at the start, or as
            one) or NONFINITE.
        rate: Learning rate η, or γ.
        kappa: κ, the learning rate for each sample.
        dimension: D.
        batch_size: B.
        tied: Whether a row sees all tokens.
    """

    step: Array
    teacher_overlap: Array
    overlap: Array
    gram: Array
    agreement: Array
    distance: Array
    end: Array
    final: Array
    steps: Array
    reached: Array
    result: Array
    rate: Array
    kappa: Array
    dimension: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    @property
    def alpha(self) -> Array:
        """α = τ B/D of the records: samples over dimension."""
        return self.step * self.batch_size / self.dimension

    @property
    def time(self) -> Array:
        """t = κ α of the records (of B = 1 and c = 1: γ τ/d)."""
        return self.kappa * self.alpha

    @property
    def cosine(self) -> Array:
        """The agreement: cosines (runs, records, P) up to the symmetries of the model."""
        return self.agreement

    @property
    def reached_alpha(self) -> Array:
        """α of the first passage, as `reached`."""
        return self.reached * self.batch_size / self.dimension

    @property
    def message(self) -> str:
        """What became of the runs, and the remedies (outside jit and vmap)."""
        return outcomes(self.result, "online")

    @property
    def gamma(self) -> Array:
        """Learning rate γ."""
        return self.rate

    @property
    def overlaps(self) -> Array:
        """(m, e_1..e_K), of an untied network m_1..m_L (runs, records, n)."""
        one = self.teacher_overlap.shape[-2] == 1 or not self.tied
        check(one, "simulation", "several rows", "one of a single direction: else teacher_overlap")
        return flattened(self.teacher_overlap, self.tied)

    @property
    def m(self) -> Array:
        """Semantic overlaps (runs, records), of an untied network (runs, records, L)."""
        return self.overlaps[..., 0] if self.tied else self.overlaps

    @property
    def e(self) -> Array:
        """Positional overlaps (runs, records, K)."""
        return self.overlaps[..., 1:] if self.tied else self.overlaps[..., :0]

    @property
    def semantic(self) -> Array:
        """Whether each run ended nearer to its semantic solution, |m| > ‖e‖ (runs,)."""
        encoded = self.tied and self.end.shape[-1] > 1
        allowed = "one of a student with a positional encoding"
        check(encoded, "simulation", "without positional overlaps", allowed)
        return jnp.abs(self.end[..., 0]) > jnp.linalg.norm(self.end[..., 1:], axis=-1)


def flattened(M: Array, tied: bool) -> Array:
    """(m, e_1..e_K) of overlaps M (.., P, k) of one direction, of an untied network m_1..m_L."""
    return M[..., 0, :] if tied else M[..., 0]


def summary(
    setting: Setting,
    positions: Coordinates,
    last: Coordinates,
    steps: Array,
    reached: Array,
    result: Array,
) -> Simulation:
    """The answer of runs, from their records (a leading axis) and where they ended."""
    rule = setting.rule
    pair = rule.pair
    front = lambda x: jnp.moveaxis(x, -1, 0)
    whole = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), positions, last)
    M, Q, agreement, distance = map(front, _measured(rule, whole))
    end = M[:, -1]
    final = agreement[:, -1]
    size = jnp.diagonal(Q, axis1=-2, axis2=-1)
    first = jnp.maximum(size[:, 0], 1.0)
    grown = jnp.any(size[:, -1] > _GROWTH**2 * first, axis=-1) & (result != Result.NONFINITE)
    M, Q, agreement, distance = (x[:, :-1] for x in (M, Q, agreement, distance))
    rate = rule.rate
    return Simulation(
        step=jnp.minimum(jnp.arange(M.shape[1]) * setting.every, setting.steps),
        teacher_overlap=M,
        overlap=Q,
        gram=front(last.gram()),
        agreement=agreement,
        distance=distance,
        end=flattened(end, pair.tied) if pair.spherical else end,
        final=final,
        steps=steps,
        reached=front(reached),
        result=jnp.where(grown, int(Result.DIVERGED), result),
        rate=rate[0] if len(rate) == 1 else rate,
        kappa=rule.kappa,
        dimension=setting.dimension,
        batch_size=rule.batch,
        tied=pair.tied,
    )


class _Measured(NamedTuple):
    """M, Q, agreement and distance of records."""

    teacher_overlap: Array
    overlap: Array
    agreement: Array
    distance: Array


@eqx.filter_jit
def _measured(rule: Rule, positions: Coordinates) -> _Measured:
    """What is seen of records."""

    def one(x: Coordinates) -> _Measured:
        P = rule.pair.rows
        distance = x.distance(P, rule.pair.targets)
        return _Measured(x.teacher_overlap(P), x.overlap(P), rule.agreement(x), distance)

    return jax.vmap(one)(positions)


def joined(parts: Sequence[Simulation]) -> Simulation:
    """Runs of one setting, one after the other."""

    def one(name: str) -> Array:
        return jnp.concatenate([jnp.asarray(vars(part)[name]) for part in parts])

    over_runs = ("teacher_overlap", "overlap", "gram", "agreement", "distance", "end")
    names = (*over_runs, "final", "steps", "reached", "result")
    where = lambda s: tuple(vars(s)[name] for name in names)
    return eqx.tree_at(where, parts[0], tuple(one(name) for name in names))


@checked(simulation=instance(Simulation, "what smi.sgd.simulate returns"))
def semantic_fraction(simulation: Simulation) -> tuple[float, float, int]:
    r"""Share of the runs that ended semantic, among those that stopped as asked.

        P = share of |m| > ‖e‖,   standard error √(P (1 - P)/runs)

    Where all runs agree, the error is that of one more run, which does not. Where many runs have
    not arrived in their steps, those that have are not a fair sample.

    Args:
        simulation: What `simulate` returned for a student with a positional encoding, with `until`.

    Returns:
        (P, its standard error, the number of runs that stopped); NaN where none did.

    Raises:
        ValueError: For a student without a positional encoding.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, keys = smi.sgd.semantic_positional(0.3), jax.random.split(jax.random.key(0), 8)
        >>> run = {"dimension": 100, "gamma": 1.0, "steps": 20_000, "until": 0.9}
        >>> smi.sgd.semantic_fraction(smi.sgd.simulate(model, keys, **run))
        (1.0, 0.1048, 8)

    Cost:
        None.

    Source:
        [theory: online-sgd, section 5].
    """
    done = np.asarray(simulation.result) == Result.SUCCESS
    count = int(done.sum())
    if not count:
        return float("nan"), float("nan"), 0
    P = float(np.mean(np.asarray(simulation.semantic)[done]))
    if P in (0.0, 1.0):
        return P, float(np.sqrt(count) / (count + 1) ** 1.5), count
    return P, float(np.sqrt(P * (1 - P) / count)), count
