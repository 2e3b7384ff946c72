r"""Message passing on inputs of several laws beside the theory of Gaussian ones.

Equations here [theory: inputs, Eqs. (15), (16)], over runs of a law, P indices:

    cos²_p -> Q_pp/S_pp as D → ∞,   z = (⟨cos²⟩ - Q/S)/√(stderr² + stderr_theory²)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import labelled
from jaxsmi.core.checks import Ability, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.progress import tqdm
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel, model_argument

__all__ = ["Universality", "universality"]


class Universality(eqx.Module):
    """Runs on inputs of several laws beside theory.

    Attributes:
        laws: Names of the laws.
        overlaps: cos² of each index, (laws, runs, P).
        theory: Q/S of state evolution (P,).
        theory_stderr: Its standard error (P,).
        results: `Result` codes (laws, runs).
        model: The model.
    """

    laws: tuple[str, ...] = eqx.field(static=True)
    overlaps: np.ndarray
    theory: np.ndarray
    theory_stderr: np.ndarray
    results: np.ndarray
    model: AbstractModel

    @property
    def mean(self) -> np.ndarray:
        """⟨cos²⟩ over runs, (laws, P)."""
        return np.mean(self.overlaps, axis=1)

    @property
    def stderr(self) -> np.ndarray:
        """Its standard error, from the spread of the runs, (laws, P)."""
        return np.std(self.overlaps, axis=1, ddof=1) / np.sqrt(self.overlaps.shape[1])

    @property
    def z(self) -> np.ndarray:
        """Distance to theory in standard errors, (laws, P): finite D counts, too. Of few runs it
        has the tails of Student's law: beyond ±4 of eight runs is one in 200."""
        return _distance(self.mean - self.theory, self.stderr, self.theory_stderr)

    @property
    def z_law(self) -> np.ndarray:
        """Distance to the first law in standard errors, (laws, P): what finite D does to all laws
        alike drops out."""
        return _distance(self.mean - self.mean[:1], self.stderr, self.stderr[:1])

    @property
    def converged(self) -> np.ndarray:
        """How many runs of each law ended at a fixed point, (laws,)."""
        return np.sum(np.isin(self.results, (Result.SUCCESS, Result.RECOVERED)), axis=1)

    @property
    def rows(self) -> list[list[str]]:
        """Law, index, ⟨cos²⟩, theory, both distances and converged runs, as words."""
        names = labelled.index_names(self.model, self.theory.size)
        return [
            [
                law,
                name,
                f"{self.mean[k, p]:.4f} ± {self.stderr[k, p]:.4f}",
                f"{self.theory[p]:.4f} ± {self.theory_stderr[p]:.4f}",
                f"{self.z[k, p]:+.1f}",
                f"{self.z_law[k, p]:+.1f}" if k else "",
                f"{self.converged[k]}/{self.results.shape[1]}",
            ]
            for k, law in enumerate(self.laws)
            for p, name in enumerate(names)
        ]

    def __str__(self) -> str:
        """The rows as a table."""
        header = ["law", "index", "cosine²", "theory", "z", f"z to {self.laws[0]}", "converged"]
        rows = [header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
            for row in rows
        )


def _distance(difference: np.ndarray, *errors: np.ndarray) -> np.ndarray:
    """A difference in standard errors; zero where there is none."""
    total = np.sqrt(sum(error**2 for error in errors))
    tiny = np.finfo(float).tiny
    return np.where(difference == 0.0, 0.0, difference / np.maximum(total, tiny))


def universality(
    model: AbstractModel,
    alpha: float,
    *,
    dimension: int,
    key: PRNGKeyArray | None = None,
    laws: Sequence[str] = ("gaussian", "rademacher", "uniform", "sparse"),
    runs: int = 8,
    settings: Mapping[str, Any] | None = None,
    theory: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Universality:
    r"""Message passing on inputs of several laws beside state evolution, which assumes Gaussian
    ones: does the law of the entries matter?

    Args:
        model: The model.
        alpha: Sample complexity, a number > 0.
        dimension: D of the runs.
        key: Random key, required.
        laws: Of the entries of inputs, as `model.sample` takes them. Default: all.
        runs: Runs of each law, each with a teacher and data of its own, two or more. Default 8.
        settings: Keyword arguments of `gamp`. Default: none.
        theory: Keyword arguments of `state_evolution`. Default: none.
        progress: Whether to show a bar on stderr. Default False.

    Returns:
        A `Universality`; `print` shows a table.

    Raises:
        ValueError: For arguments out of range, a law that the model does not take, or what
            `model.sample` and `gamp` refuse.

    Example:
        >>> import jax, jaxsmi as smi
        >>> key, laws = jax.random.key(0), ["gaussian", "rademacher"]
        >>> beside = universality(
        ...     smi.links.linear(0.5), 2.0, dimension=100, key=key, laws=laws, runs=4
        ... )
        >>> bool((abs(beside.z_law) < 4).all())
        True

    Cost:
        As many runs of message passing as laws times `runs`, compiled once, and one of theory.

    Source:
        [theory: inputs, section 4].
    """
    model = model_argument(model, Ability.INFERENCE)
    arguments = Arguments()
    key = arguments.key("key", key)
    count = arguments.count("runs", runs, at_least=2)
    words = isinstance(laws, (list, tuple)) and len(laws) > 0 and len(set(laws)) == len(laws)
    check(words, "laws", laws, f"names of laws, each once: {', '.join(model.input_laws)}")
    for law in laws:
        arguments.choice("laws", law, model.input_laws)
    data_key, theory_key = jax.random.split(key)
    overlaps: list[np.ndarray] = []
    codes: list[int] = []
    cells = [(k, law, run) for k, law in enumerate(laws) for run in range(count)]
    for k, law, run in tqdm(cells, desc="runs", disable=not progress):
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(data_key, k), run))
        data = model.sample(keys[0], dimension=dimension, alpha=alpha, inputs=law)
        solution = gamp(model, data, key=keys[1], **(settings or {}))
        overlaps.append(solution.cosine**2)
        codes.append(int(solution.result))
    evolved = state_evolution(model, alpha, key=theory_key, **(theory or {}))
    S = np.diagonal(np.asarray(model.prior.second_moment(model.indices)))
    P = model.indices
    return Universality(
        tuple(laws),
        np.reshape(overlaps, (len(laws), count, P)),
        _diagonal(evolved.overlap) / S,
        _diagonal(evolved.stderr) / S,
        np.reshape(codes, (len(laws), count)),
        model,
    )


def _diagonal(matrix: Array) -> np.ndarray:
    """Its diagonal, in NumPy."""
    return np.asarray(jnp.diagonal(matrix))
