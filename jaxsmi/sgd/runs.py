"""Runs of online SGD: what is simulated, and what comes out."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex


class Setting(eqx.Module):
    """What runs have in common.

    Attributes:
        model: Target and student.
        gamma: Learning rate γ.
        eta: The level of the first passage.
        stop: The level ‖(m, e)‖ at which a run stops; inf: never.
        start: The overlaps at the start; None: weights uniform on the sphere.
        dimension: d.
        steps: Steps, at most.
        every: Steps between two records.
    """

    model: SequenceSingleIndex
    gamma: Array
    eta: Array
    stop: Array
    start: Array | None
    dimension: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    every: int = eqx.field(static=True)

    @property
    def records(self) -> int:
        """Records after the one at the start; the last may come early."""
        return -(-self.steps // self.every)

    @property
    def rows(self) -> int:
        """Rows of the weights, each normalised by itself: one, of an untied network L."""
        return 1 if self.model.tied else self.model.length


class Simulation(eqx.Module):
    """Runs of online SGD.

    Attributes:
        step: Steps of the records (records,).
        overlaps: (m, e_1..e_K), of an untied network m_1..m_L (runs, records, n); NaN after a run
            has stopped.
        end: Where each run ended (runs, n).
        steps: How many steps it took (runs,).
        reached: The first step with ‖(m, e)‖ >= η, of an untied network ‖m‖/√L (runs,); inf: never,
            0: at the start.
        result: A `Result` code (runs,): SUCCESS (stopped as asked, or all steps taken where nothing
            was asked), MAX_STEPS or NONFINITE.
        gamma: Learning rate γ.
        dimension: d.
        tied: Whether one direction serves all tokens.
    """

    step: Array
    overlaps: Array
    end: Array
    steps: Array
    reached: Array
    result: Array
    gamma: Array
    dimension: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    @property
    def time(self) -> Array:
        """t = γ τ/d of the records."""
        return self.step * self.gamma / self.dimension

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
    Arguments().instance("simulation", simulation, Simulation, "what smi.sgd.simulate returns")
    done = np.asarray(simulation.result) == Result.SUCCESS
    count = int(done.sum())
    if not count:
        return float("nan"), float("nan"), 0
    P = float(np.mean(np.asarray(simulation.semantic)[done]))
    if P in (0.0, 1.0):
        return P, float(np.sqrt(count) / (count + 1) ** 1.5), count
    return P, float(np.sqrt(P * (1 - P) / count)), count
