"""State evolution along α: each fixed point is the start of the next one."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete
from jaxsmi.core.display import Described, describe, format_estimate, number
from jaxsmi.core.driver import Bar
from jaxsmi.core.options import Averages, Bayes, Iteration, Start
from jaxsmi.core.results import Result, message
from jaxsmi.core.solution import LearnerSolution, Solution, index_names, load_workbench
from jaxsmi.core.validate import POSITIVE
from jaxsmi.inference.evolution import as_start, state_evolution
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel, model_argument

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes

# Share of V in a start next to the last fixed point: that of the default start, so that unlearned
# indices grow from what an uninformed run would know of them, and not from more
_UNINFORMED = 1e-3
# Fixed points that the next α may start from, though not all are successes
_REACHED = (Result.SUCCESS, Result.RECOVERED, Result.INACCURATE, Result.MARGINAL, Result.UNSTABLE)


def _along(name: str, text: str) -> property:
    """A field of all solutions of a curve, with its docstring."""
    return property(lambda curve: curve.values(name), doc=text)


class Curve(Described):
    """Solutions of one model along α, in the order in which they were solved: a sequence of them,
    and their numbers as arrays with a leading axis of α.

    Attributes:
        solutions: One `Solution` for each α.
    """

    solutions: tuple[Solution, ...]

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def __getitem__(self, number: int) -> Solution:
        return self.solutions[number]

    def values(self, name: str) -> Array:
        """A field of all solutions by name, such as "covariance" or "test_loss"."""
        allowed = "the name of a field that is an array in all solutions"
        fields: list[Any] = [getattr(solution, str(name), None) for solution in self.solutions]
        validate.check(all(eqx.is_array(x) for x in fields), "name", name, allowed)
        return jnp.stack(fields)

    alpha = _along("alpha", "α (A,).")
    overlap = _along("overlap", "Q (A, P, P).")
    stderr = _along("stderr", "Standard errors of Q (A, P, P).")
    covariance = _along("covariance", "V (A, P, P).")
    cosine = _along("cosine", "Cosines with the teacher (A, P).")
    error = _along("error", "Errors of the plug-in predictor (A,), as `Solution.error`.")
    result = _along("result", "Codes (A,).")
    teacher_overlap = _along("teacher_overlap", "Of a learner, M = W W*ᵀ/D (A, P, P*).")
    converged = _along("converged", "True where the code is SUCCESS or RECOVERED (A,).")

    @property
    def stderrs(self) -> dict[str, Array]:
        """Standard errors of other numbers by name, along α."""
        names = self.solutions[0].stderrs
        return {k: jnp.stack([one.stderrs[k] for one in self.solutions]) for k in names}

    @property
    def message(self) -> str:
        """Counts of the codes, and the message of the worst one (outside jit and vmap)."""
        learner = isinstance(self.solutions[0], LearnerSolution)
        return message(self.result, "learner" if learner else "remedy")

    def _text(self) -> str:
        P = self[0].overlap.shape[0]
        # the overlap of a learner is the size of its weights, not what was learned
        learned = isinstance(self[0], LearnerSolution)
        exact = jnp.zeros(P)  # closed forms have no error bars
        rows = [["α", *index_names(self[0].model, P), "error", "code"]]
        for one in self.solutions:
            Q, errors = jnp.diagonal(one.overlap), jnp.diagonal(one.stderr)
            columns = [format_estimate(q, e) for q, e in zip(Q, errors, strict=True)]
            if isinstance(one, LearnerSolution):
                errors = one.stderrs.get("cosine", exact)
                columns = list(map(format_estimate, one.cosine, errors))
            code = Result(int(one.result)).name
            error = format_estimate(one.error, one.stderrs.get("error", jnp.zeros(())))
            rows.append([number(one.alpha), *columns, error, code])
        name = "cosines" if learned else "overlaps"
        return describe(f"Curve of {len(self)} solutions: {name}", rows=rows)

    def plot(
        self,
        ax: Axes | None = None,
        label: str | None = None,
        runs: Solution | Iterable[Solution] | xarray.Dataset | None = None,
    ) -> Axes:
        """Draw Q/S of each index, S the second moment of the signal, against α (of learners the
        squared cosine), with error bands; in large dimension cos² of Bayes is Q/S.

        Args:
            ax: Axes to draw in; those of another curve share its legend. Default None: new ones.
            label: Of the curve, in the legend. Default None: "state evolution", or the learner,
                with what differs from the models of other curves there, as "noise 0.2".
            runs: Of `gamp` and of the same learner, or the table of
                `smi.sweep(.., solver="gamp")`; their cos² are drawn as markers; of several runs at
                one α the mean of those that converged (others are crosses), with a bar of two of
                its standard errors within [0, 1], if they are half of the runs; else they are small
                markers. Dots are single runs where their standard deviation exceeds 0.05. Default
                None: none.

        Returns:
            The axes.

        Raises:
            ValueError: For runs of another learner or model, or a table of anything else.
            ImportError: Without matplotlib, with the remedy.
        """
        return load_workbench("plotting").overlap_against_alpha(self, runs, ax, label=label)

    def to_xarray(self, **attributes: object) -> xarray.Dataset:
        """Convert to an xarray.Dataset along `alpha`, with provenance; keyword arguments are added
        to its attributes. Needs the extra `data`."""
        return load_workbench("storage").stack(self, **attributes)

    def to_dataframe(self) -> pandas.DataFrame:
        """Convert to a table with one row for each α: "overlap_1", "stderr_1" and "cosine_1" of the
        first index and so on, "error" and "code". Needs the extra `data`."""
        load_workbench("storage").import_xarray()
        import pandas  # which xarray brings

        table: dict[str, Any] = {}
        for p in range(self.overlap.shape[1]):
            table[f"overlap_{p + 1}"] = self.overlap[:, p, p]
            table[f"stderr_{p + 1}"] = self.stderr[:, p, p]
            table[f"cosine_{p + 1}"] = self.cosine[:, p]
        table |= {"error": self.error, "code": [Result(int(x)).name for x in self.result]}
        return pandas.DataFrame(table, index=pandas.Index(self.alpha, name="alpha"))


def curve(
    model: AbstractModel,
    alphas: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    learner: Bayes | AbstractLearner | None = None,
    start: ArrayLike | Start | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
    progress: bool | None = None,
) -> Curve:
    r"""Solve state evolution at several α, each from the fixed point of the one before.

        Q_0(α_k) = (1 - ε) Q(α_{k-1}) + ε V(α_{k-1}),   ε = 1e-3

    Ascending α from the default start give the overlap of message passing; descending α from an
    informed one (`start=0.99`) the branch that only knowledge of the teacher reaches. Where the two
    differ is a first-order transition.

    Args:
        model: Any model with a channel.
        alphas: Sample complexities (A,), numbers > 0, in the order in which they are solved.
        key, learner, averages, iteration: As in `state_evolution`, common to all α: neighbours
            differ smoothly.
        start: Of the first α, as in `state_evolution`.
        progress: Show a bar with the time left. Default None: on a terminal and in a notebook,
            after two seconds.

    Returns:
        A `Curve`: `.plot()` draws it, `.to_dataframe()` and `.to_xarray()` convert it, `smi.save`
        stores it. An α that fails keeps its code, and the next one starts from the last one that
        converged.

    Raises:
        ValueError: For an argument out of its range, or a model without inference.

    Example:
        >>> import jax, jaxsmi as smi
        >>> line = smi.curve(smi.links.linear(0.5), [0.5, 1.0, 2.0], key=jax.random.key(0))
        >>> [round(float(q), 3) for q in line.overlap[:, 0, 0]]
        [0.293, 0.5, 0.719]

    Cost:
        One `state_evolution` for each α, of a fifth to all of the steps.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (49) to (55)].
    """
    model = model_argument(model)
    allowed = "finite numbers > 0, a list or an array (A,)"
    numbers = validate.array("alphas", alphas, allowed, shape=(None,), interval=POSITIVE)
    validate.check(numbers.size > 0, "alphas", alphas, allowed)
    validate.optional(validate.flag, "progress", progress)
    start = as_start(start)
    solutions: list[Solution] = []
    solve = functools.partial(
        state_evolution, model, key=key, learner=learner, averages=averages, iteration=iteration
    )
    with Bar(len(numbers), "curve", progress) as bar:
        for alpha in numbers:
            solution = solve(alpha, start=start)
            solutions.append(solution)
            if not model.channel.closed_form:  # a root has no start
                start = next_start(solution, start)
            bar.update(1, {"α": number(alpha)})
    return Curve(tuple(solutions))


def next_start(solution: Solution, last: Start) -> Start:
    """Next to a fixed point; where none was reached, the last start again."""
    if concrete(solution.result) and int(solution.result) not in _REACHED:
        return last
    Q, V = lax.stop_gradient((solution.overlap, solution.covariance))
    if not isinstance(solution, LearnerSolution):
        Q = (1.0 - _UNINFORMED) * Q + _UNINFORMED * V
        return Start(Q, side_information=last.side_information)
    M, B = lax.stop_gradient((solution.teacher_overlap, solution.direction_overlap))
    if M is None or B is None:  # a learned matrix has a start of its own
        return last
    # M a little smaller: at its bound rounding would make it inadmissible
    return Start(Q, (1.0 - _UNINFORMED) * M, V, B)
