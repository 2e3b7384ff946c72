"""What solvers return: how a run ended, estimates with their error bars, and the history.

    cosine_p = |w_p·w*_p| / (‖w_p‖ ‖w*_p‖), up to the symmetries of the model

Letters of the shapes: P indices, D dimension, R replicas.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, missing_array
from jaxsmi.core.display import Described, describe, format_estimate, format_estimates, number
from jaxsmi.core.results import Result, counts, message
from jaxsmi.core.validate import UNIT_INTERVAL, check

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


def index_names(model: Any, indices: int) -> list[str]:
    """The model's names of its indices ("layer 1", or in layers of rank above one "layer 1, index
    2"), else "index 1" and so on.

    Example:
        >>> index_names(None, 2)
        ['index 1', 'index 2']
    """
    # a student may have other indices than the model that made the labels
    names = () if model is None else tuple(model.index_names)
    return list(names) if len(names) == indices else [f"index {p}" for p in range(1, indices + 1)]


class Estimate(NamedTuple):
    """A number and its standard error; `float(estimate)` is the number."""

    value: Array
    stderr: Array

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"Estimate({format_estimates(self.value, self.stderr)})"


class Ends(Described):
    """The ends of K runs on one data set, from different starts.

    Attributes:
        result: Their codes (K,).
        free_entropy: Their Bethe free entropies (K,), NaN where V was widened.
        stability: Their stabilities (K,).
        agreement: Smallest squared cosine of the rows of each two estimates, (K, K).
        weights: The estimates, (K, P, D).
    """

    result: Array
    free_entropy: Array
    stability: Array
    agreement: Array
    weights: Array

    def _text(self) -> str:
        rows = [["start", "code", "free entropy", "stability", "agreement with the others"]]
        for k, code in enumerate(np.asarray(self.result)):
            numbers = number(self.free_entropy[k], 6), number(self.stability[k])
            rows.append([str(k), Result(int(code)).name, *numbers, number(self.agreement[k])])
        return describe(f"Ends of {len(self.result)} starts", rows=rows)


class Solution(Described):
    """The result of a solver: overlap, errors, code and history.

    Attributes:
        overlap: (P, P). State evolution: Q; message passing: Q = Ŵ Ŵᵀ/D.
        stderr: Statistical standard error of `overlap` from the outer average, (P, P); zero for a
            run on data.
        error: Mean squared error E ‖ŷ - y‖² of ŷ = link(estimated fields) on noiseless labels of
            new inputs. Of labels ±1 it is four times the share of wrong ones; of matrix models the
            error of the estimate. Theory has its error bar in `stderrs`. Runs on data use 2048
            random inputs, with an error bar in `smi.generalization_error`; NaN without a teacher.
        alpha: Sample complexity N/D (matrices: n/d², n/(dL)).
        steps: Steps taken.
        residual: The last residual of the fixed point.
        result: A `Result` code.
        history: Arrays with a leading axis of recorded steps (NaN after the last one).
        covariance: V (P, P), the covariance of the fields given the estimate.
        spectral_radius: Of the map at the fixed point; NaN where it was not computed.
        stability: For a run, and for the theory of a learner: the spectral radius of the map of a
            small change of the estimate from one step to the next; the fixed point is stable if it
            is below one.
        free_entropy: For a run: its Bethe free entropy, in nats per entry of a row. Of several ends
            the one with the largest value is returned. NaN where the labels are further from the
            estimate than the model allows (`history["misfit"]` above one).
        ends: For a run with several starts: all `Ends`, of which this is the best.
        weights: The estimate (P, D); None in theory.
        state: What is needed to continue a run.
        stderrs: In theory, standard errors of other numbers by their names, such as "error" and
            "cosine".
        model: The problem, so that a file or a figure can say how it was made.
        key: The randomness, for the same purpose.
        kind: What ran: "state_evolution", "gamp", "spectral", "train", "descent_theory" or
            "nuclear_norm".
    """

    overlap: Array
    stderr: Array
    error: Array
    alpha: Array
    steps: Array
    residual: Array
    result: Array
    history: Mapping[str, PyTree]
    covariance: Array
    spectral_radius: Array
    stability: Array | None = None
    free_entropy: Array | None = None
    ends: Ends | None = None
    weights: Array | None = None
    state: PyTree = None
    stderrs: Mapping[str, Array] = eqx.field(default_factory=dict)
    model: Any = None  # an AbstractModel: models are above this package
    key: PRNGKeyArray | None = None
    kind: str = eqx.field(static=True, default="state_evolution")

    @property
    def converged(self) -> Array:
        """True where the code is SUCCESS or RECOVERED: an end at a fixed point, or of descent all
        steps taken."""
        return (self.result == Result.SUCCESS) | (self.result == Result.RECOVERED)

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        learner = isinstance(self, LearnerSolution)
        descent = self.kind in ("train", "descent_theory")
        text = message(self.result, "training" if descent else "learner" if learner else "remedy")
        posterior = self.kind == "gamp" and not learner
        # a posterior without enough noise contradicts itself
        noisy = posterior and np.any(np.isin(self.result, _OF_NOISE))
        if posterior and np.ndim(self.result) == 0 and int(self.result) == Result.MAX_STEPS:
            unknown = np.trace(self.covariance) / np.trace(self.overlap + self.covariance)
            if unknown < _NEARLY:
                return f"Nearly recovered: {unknown:.0e} of the signal is unknown, and fluctuates."
        # V of a recovery is rounding, which labels always exceed
        explained = not posterior or np.any(np.asarray(self.result) == Result.RECOVERED)
        misfit = None if explained else self.history.get("misfit")
        if misfit is not None and misfit.ndim == 1 and self.trajectory["misfit"][-1] > 1.0:
            text, noisy = f"{text} {_WIDENED}", True
        text = f"{text} {_MORE_NOISE}" if noisy else text
        stopped = np.asarray(self.result) == Result.MAX_STEPS
        long = self.kind == "gamp" and np.any(stopped & (np.asarray(self.steps) >= _LONG))
        return f"{text} {_LARGER}" if long else text

    @property
    def trajectory(self) -> dict[str, PyTree]:
        """`history` as NumPy arrays cut after the last recorded step (outside jit and vmap)."""
        if not self.history:
            return {}
        # the history has room for the whole budget; what was not reached is NaN
        recorded = np.isfinite(np.asarray(self.history["step"]))
        return jax.tree.map(lambda value: np.asarray(value)[recorded], dict(self.history))

    @property
    def cosine(self) -> Array:
        """The cosine of each index with the teacher (P,), of a batch (runs, P): of a run the last
        finite record, of theory `cosines` at the end. With a teacher of another number of indices
        each is that with the closest of its rows. NaN without a teacher."""
        if "cosine" not in self.history:
            return self.cosines(vars(self))
        cosines = self.history["cosine"]
        # a run that broke ends in NaN: the last finite record is what it had learned
        finite = jnp.isfinite(cosines)[..., ::-1, :]
        last = cosines.shape[-2] - 1 - jnp.argmax(finite, axis=-2)
        return jnp.take_along_axis(cosines, last[..., None, :], axis=-2)[..., 0, :]

    def cosines(self, overlaps: Mapping[str, Array]) -> Array:
        """The cosines M_pp/√(Q_pp ρ_pp) (.., P) of theory, up to the symmetries of the model, at
        "overlap" Q and "covariance" V (.., P, P), as in its history. Of Bayes M = Q and ρ = Q + V.
        NaN without a model."""
        Q = overlaps["overlap"]
        return self._cosines(Q, Q, Q + overlaps["covariance"])

    def _cosines(self, M: Array | None, Q: Array, rho: Array) -> Array:
        if self.model is None or M is None:
            return missing_array(Q.shape[:-1], Q.dtype)
        return _cosines(self.model.metric, M, Q, rho)

    def _text(self) -> str:
        title = f"Solution of {self.kind.replace('_', ' ')} at α = {number(self.alpha)}"
        remark = ""
        if concrete((self.result, self.steps)):
            title += f": {counts(self.result)} after {number(self.steps)} steps"
            remark = self.message
        numbers = [f"{k} {text}" for k, text in self._numbers().items() if text != "nan"]
        facts = [", ".join(numbers)] * bool(numbers)
        # a table has one row an index, and a batch one table a run
        if np.ndim(self.overlap) != 2:
            facts.append(f"overlap {number(self.overlap)}, a batch")
            return describe(title, facts, remark=remark)
        P = np.shape(self.overlap)[0]
        overlaps = [format_estimate(self.overlap[p, p], self.stderr[p, p]) for p in range(P)]
        columns = [["", *index_names(self.model, P)], ["overlap", *overlaps]]
        if concrete(self.overlap) and bool(np.all(np.isfinite(cosine := self.cosine))):
            errors = self.stderrs.get("cosine")  # only theory has them
            shown = map(number, cosine) if errors is None else map(format_estimate, cosine, errors)
            columns.append(["cosine", *shown])
        return describe(title, facts, list(zip(*columns, strict=True)), remark)

    def _numbers(self) -> dict[str, str]:
        if "error" not in self.stderrs:
            return {"error": number(self.error)}
        return {"error": format_estimate(self.error, self.stderrs["error"])}

    def plot(
        self, ax: Axes | None = None, runs: Solution | Iterable[Solution] | None = None
    ) -> Axes:
        """Draw the overlap or cosine of each index against the iteration.

        Args:
            ax: Axes to draw in; those of another solution's `plot` share its legend.
            runs: Beside theory: of `train` beside `descent_theory`, of `gamp` beside plain
                iterations of `state_evolution`; cos² as markers, of several the mean, with a bar of
                two of its standard errors. Default None: none.

        Returns:
            The axes.

        Raises:
            ValueError: For a batch of solutions, one without a history, or runs beside a run.
            ImportError: Without matplotlib, with the remedy.
        """
        single = np.ndim(self.overlap) == 2
        allowed = "one solution, such as jax.tree.map(lambda leaf: leaf[0], batch)"
        check(single, "solution", f"a batch of shape {np.shape(self.alpha)}", allowed)
        check("step" in self.history, "solution", "one without a history", "one with a history")
        draw = load_workbench("plotting").overlap_against_iteration
        if self.kind in ("state_evolution", "descent_theory"):
            return draw(runs, self, ax)
        check(runs is None, "runs", "runs beside a run", "None, or theory.plot(runs=..)")
        # without a teacher there is no cosine: Q is drawn
        quantity = "cosine" if np.all(np.isfinite(self.cosine)) else "overlap"
        return draw(self, ax=ax, quantity=quantity)

    def to_xarray(self, **attributes: object) -> xarray.Dataset:
        """Convert to an xarray.Dataset with provenance; keyword arguments are added to its
        attributes. Needs the extra `data`."""
        return load_workbench("storage").to_xarray(self, **attributes)


def load_workbench(module: str) -> Any:
    """A module of jaxsmi.workbench, loaded on first use: matplotlib and xarray are optional, and
    the workbench is above this package."""
    return importlib.import_module(f"jaxsmi.workbench.{module}")


@eqx.filter_jit  # outside jit one program, not one an operation
def _cosines(metric: Any, M: Array, Q: Array, rho: Array) -> Array:
    return jnp.vectorize(metric.cosines, signature="(p,q),(p,r),(q,s)->(p)")(M, Q, rho)


class LearnerSolution(Solution):
    """What a solver says of a learner other than Bayes (`learner=`): a `Solution` with more.

    Attributes:
        teacher_overlap: M = W W*ᵀ/D (P, P*); NaN without a teacher.
        direction_overlap: B = W Uᵀ/D (P, K), with the fixed directions of the inputs.
        train_loss: Loss of a sample at the minimum, on average.
        test_loss: Loss of a new sample, with its label noise.
        energy: R(W)/D = α train_loss + (λ/2) tr Q.
        potential: Φ, the energy at a fixed point.
        jump_fraction: Fraction of samples whose proximal point has another minimum; NaN where a
            formula gives the point of a loss that is not convex.
        gradient_norm: ‖∇R‖/√D of weights; NaN in theory.
        spectrum: In theory of one matrix, the law of what was learned (`LearnedSpectrum`).
        learner: The learner, so that a file or a figure can name it.
    """

    teacher_overlap: Array | None = None
    direction_overlap: Array | None = None
    train_loss: Array | None = None
    test_loss: Array | None = None
    energy: Array | None = None
    potential: Array | None = None
    jump_fraction: Array | None = None
    gradient_norm: Array | None = None
    spectrum: PyTree | None = None
    learner: Any = None  # an AbstractLearner: learners are above this package

    def cosines(self, overlaps: Mapping[str, Array]) -> Array:
        """The cosines (.., P) of theory at "overlap" Q and "teacher_overlap" M. ρ is the second
        moment of the teacher's prior: the covariance of a learner is a response."""
        Q, M = overlaps["overlap"], overlaps.get("teacher_overlap")
        if self.model is None or M is None:
            return self._cosines(None, Q, Q)
        return self._cosines(M, Q, self.model.prior.second_moment(M.shape[-1]))

    def _numbers(self) -> dict[str, str]:
        names = ("error", "train_loss", "test_loss", "energy", "stability")
        zero = np.float64(0.0)  # stands for a missing error bar
        return {
            name.replace("_", " "): format_estimate(value, self.stderrs.get(name, zero))
            for name in names
            if (value := getattr(self, name)) is not None
        }


_OF_NOISE = (Result.MAX_STEPS, Result.UNSTABLE, Result.OVERCONFIDENT)
# the default steps of gamp; sparse |z| that had not settled then had not after 1500 either
_LONG = 300
_NEARLY = 1e-3  # chosen: a share of the signal that is unknown after all steps and needs no remedy
_LARGER = "A run as long as this may fluctuate in a small dimension: simulate a larger dimension."
_WIDENED = (
    "The labels are further from the estimate than its covariance allows: that was widened, and "
    "there is no free entropy."
)
_MORE_NOISE = "Labels noisier than the model says can be the cause, too."
_AT_ONCE = "Something is learned at any α > 0."
_NO_ROOT = (
    "A search did not converge: take more points, or fewer nets, averages=smi.Averages(points, "
    "nets); for smi.first_order also more steps, iteration=smi.Iteration(max_steps)."
)


class Threshold(Described):
    """A critical sample complexity, with its error bar and what is learned there.

    Attributes:
        alpha: α_c (0: learned at any α > 0; inf: never at first order).
        stderr: Its standard error.
        replicas: α_c of each independent randomisation, (R,).
        subspace: The positive semi-definite direction of growth (P, P), of unit trace; zero where
            α_c is infinite.
        overlap: Q next to the threshold, (P, P): just below it, or of the solution that becomes
            stable, optimal or unstable there.
        result: A `Result` code.
    """

    alpha: Array
    stderr: Array
    replicas: Array
    subspace: Array
    overlap: Array
    result: Array

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        code = Result(int(self.result))
        return _NO_ROOT if code == Result.MAX_STEPS else code.remedy

    def _text(self) -> str:
        title = f"Threshold α = {format_estimate(self.alpha, self.stderr)}"
        if np.ndim(self.alpha) or not concrete((self.alpha, self.result)):
            return title
        rows = [
            [f"index {p + 1}", number(self.subspace[p, p], 3), number(self.overlap[p, p], 3)]
            for p in range(len(self.overlap))
        ]
        remark = self.message if int(self.result) else ""
        # zero is no failure, but readers take it for one; the end of a branch on which something is
        # learned is zero where a grid of α began above it
        if float(self.alpha) == 0.0:
            known = np.any(self.overlap)
            alone = len(self.overlap) == 1  # all fixed points are known, not those on a grid
            below = "Its branch exists at any α > 0." if alone else "It lies below the grid of α."
            said = below if known else _AT_ONCE
            remark = f"{said} {remark}".rstrip()
        title += f": {Result(int(self.result)).name}"
        return describe(title, (), [["", "learned there", "overlap next to it"], *rows], remark)

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Draw a vertical line at α_c, and a band of its 95 % interval, into axes over α.

        Args:
            ax: Axes to draw in, such as those of `smi.curve(..).plot()`. Default None: new ones.
            label: Of the line, in a legend, which adds α_c. Default None: none.

        Returns:
            The axes.

        Raises:
            ValueError: For a batch of thresholds.
            ImportError: Without matplotlib, with the remedy.
        """
        return load_workbench("plotting.curves").threshold(self, ax, label)

    def to_xarray(self, **attributes: object) -> xarray.Dataset:
        """Convert to an xarray.Dataset, with provenance; keyword arguments are added to its
        attributes. Needs the extra `data`."""
        return load_workbench("storage").arrays(vars(self), **attributes)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of α_c by Student's law over the replicas (outside jit and vmap)."""
        confidence = float(validate.number("confidence", confidence, UNIT_INTERVAL))
        from scipy.special import ndtr, stdtrit  # here: importing it takes longer than the quantile

        # one net has no spread: the interval is that of one degree of freedom, the widest
        freedom = max(np.size(self.replicas) - 1, 1)
        # two standard errors are Student's interval of the confidence of two Gaussian ones
        ratio = stdtrit(freedom, 0.5 + 0.5 * confidence) / stdtrit(freedom, ndtr(2.0))
        half = 2.0 * float(ratio * self.stderr)
        return float(self.alpha) - half, float(self.alpha) + half
