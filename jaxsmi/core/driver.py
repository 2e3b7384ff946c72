"""The one loop of the library: an iteration is a solver with four methods, run by `run_solver`.

    state = solver.init()
    while running:
        state = solver.step(state, count)
        code = solver.terminate(state, count)         a result code, RUNNING while it goes on
        history[slot] = solver.observe(state, count)  every so many steps

Message passing, fixed points of state evolution, training, online SGD and proximal baselines are
such solvers. A solver of several runs at once returns a code for each, and goes on while one of
them is running. The history is NaN where nothing was recorded.

The loop is one `lax.while_loop`: it can be jitted, vmapped and differentiated forwards. Outside of
these it is cut into chunks of about a fifth of a second, after which the host updates the progress
bar and can be interrupted; the numbers are the same.

Its results say how a run ended, and hold estimates with their error bars, and the history:

    cosine_p = |w_p·w*_p| / (‖w_p‖ ‖w*_p‖), up to the symmetries of the model

Letters of the shapes: P indices, D dimension, T recorded steps, R replicas.
"""

from __future__ import annotations

import abc
import enum
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, frozen, missing_array
from jaxsmi.core.display import describe, format_estimate, number, safe_repr
from jaxsmi.core.validate import UNIT_INTERVAL, check

# Result codes

RUNNING = -1  # the code of an iteration that goes on

# A larger fraction of inner integrals that missed their tolerance makes an answer INACCURATE
# (empirical: below it the error that they add to an average stays under its own error bar).
INACCURATE_SHARE = 0.01


class Result(enum.IntEnum):
    """How a run ended, a code that passes through `jit` and `vmap`. `Result(code).remedy` says what
    happened and what to try, `Result(code).training` the same of descent. From the mildest to the
    gravest.

    `RECOVERED` is a success, too: V falls geometrically to zero.
    """

    remedy: str
    training: str  # the same of descent, which has steps and rates where others have fixed points

    def __new__(cls, code: int, remedy: str, training: str | None = None) -> Result:
        """A member with its messages."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.remedy = remedy
        member.training = remedy if training is None else training
        return member

    # The order is that of severity. Files store the numbers, so that these cannot be the order.
    RECOVERED = 1, "Perfect recovery: V falls geometrically to zero."
    SUCCESS = 0, "Converged.", "All steps were taken, or the target was reached."
    INACCURATE = (
        6,
        "Too many inner integrals missed their tolerance: raise the channel's max_nodes, or its "
        "tolerance.",
    )
    MARGINAL = (
        7,
        "The fixed point is marginal (spectral radius one to 1e-3): α is at a threshold, where "
        "derivatives are infinite. Move α; smi.weak_recovery and smi.staircase compute thresholds.",
    )
    UNSTABLE = (
        11,
        "The fixed point is unstable. Message passing is at a saddle: run it outside jit, where it "
        "leaves saddles, or from another start. A learner breaks replica symmetry, or its proximal "
        "point jumps in too many samples: take a larger ridge, or more samples.",
    )
    AMBIGUOUS = (
        12,
        "Runs from different starts end at different estimates, and their free entropies do not "
        "tell which is right: take more starts (start=('spectral', 1e-3, 1e-3)) or more samples, "
        "or compare the ends on held-out labels.",
    )
    INPUTS = (
        13,
        "The inputs are not of mean zero, variance one and without correlations, as message "
        "passing assumes: print(data.second_moments()) shows what fails, and data.standardise() or "
        "data.whiten(other_inputs) mend it.",
    )
    NOTHING_LEARNED = (
        9,
        "Nothing was learned: the labels say too little about the signal. Take more samples, "
        "above the α of smi.weak_recovery.",
        "Nothing was learned: take more steps, more samples, or another learning rate.",
    )
    REGRESSED = (
        10,
        "Message passing ended with less overlap than its spectral start, which is returned: take "
        "more samples, or a larger dimension.",
    )
    OVERCONFIDENT = (
        8,
        "The estimate misses the labels by more than its variance allows (history['misfit']): take "
        "another key, more steps, damping, or a larger dimension.",
    )
    MAX_STEPS = (
        2,
        "Not converged within max_steps: raise max_steps, or loosen tolerance; close to a "
        "threshold convergence is slow. Theory has no error bar then (NaN).",
        "The run took all its steps before it reached its target: take more steps.",
    )
    DIVERGED = (
        3,
        "The iteration diverged: try iteration=smi.Iteration(damping=0.3) or more damping, "
        "learner=smi.Bayes(precision='outer'), a smaller start, or a larger dimension.",
        "The run diverged: take a lower learning rate.",
    )
    NONFINITE = (
        4,
        "A number became infinite or NaN: check that inputs and labels come from this model and "
        "are float64; try damping.",
        "A number became infinite or NaN: take a lower learning rate.",
    )
    INVALID = (
        5,
        "An argument was out of its range, which inside jit shows as NaN only: call the function "
        "outside jit, where the error names the argument.",
    )


_ORDER = np.array(list(Result))
# the place of each code in that order
_RANKS = np.argsort(_ORDER)


def worst(codes: ArrayLike) -> Array:
    """One code for many runs: the gravest of theirs (traced or not, of any one shape)."""
    return jnp.asarray(_ORDER)[jnp.max(jnp.asarray(_RANKS)[jnp.asarray(codes)])]


def message(results: ArrayLike, training: bool = False) -> str:
    """The message of a result code; of several, their counts and the message of the gravest.
    `training`: of descent."""
    codes = np.ravel(np.asarray(results))
    # on the host, not by `worst`: a message must not start a computation
    gravest = Result(int(_ORDER[np.max(_RANKS[codes])]))
    remedy = gravest.training if training else gravest.remedy
    return remedy if codes.size == 1 else f"{counts(codes)}. {gravest.name}: {remedy}"


def counts(results: ArrayLike) -> str:
    """The names of result codes, with their numbers where there are several: "2 SUCCESS"."""
    names, numbers = np.unique(np.ravel(np.asarray(results)), return_counts=True)
    if np.size(results) == 1:
        return Result(int(names[0])).name
    return ", ".join(f"{n} {Result(int(c)).name}" for c, n in zip(names, numbers, strict=True))


def choose(*cases: tuple[Array | bool, int]) -> Array:
    """The code of the last condition that holds, `RUNNING` where none does.

    Args:
        cases: Pairs of a condition (traced or not, of any one shape) and the code it stands for,
            the weakest first.
    """
    # selects instead of branches: under vmap both sides of a branch run anyway
    code = jnp.asarray(RUNNING)
    for condition, result in cases:
        code = jnp.where(condition, int(result), code)
    return code


if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


# Solutions


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
        return f"Estimate({format_estimate(self.value, self.stderr)})"


class Ends(eqx.Module):
    """The ends of K runs on one data set, from different starts.

    Attributes:
        result: Their codes (K,).
        free_entropy: Their Bethe free entropies (K,).
        stability: Their stabilities (K,).
        agreement: Smallest squared cosine of the rows of each two estimates, (K, K).
        weights: The estimates, (K, P, D).
    """

    result: Array
    free_entropy: Array
    stability: Array
    agreement: Array
    weights: Array

    def __repr__(self) -> str:
        return safe_repr(self, self._text)

    def _text(self) -> str:
        rows = [["start", "code", "free entropy", "stability", "agreement with the others"]]
        for k, code in enumerate(np.asarray(self.result)):
            numbers = number(self.free_entropy[k], 6), number(self.stability[k])
            rows.append([str(k), Result(int(code)).name, *numbers, number(self.agreement[k])])
        return describe(f"Ends of {len(self.result)} starts", rows=rows)


class Solution(eqx.Module):
    """What a solver returns: the overlap it ended at, how sure it is, and how it got there.

    Attributes:
        overlap: (P, P). State evolution: Q; message passing: Q = Ŵ Ŵᵀ/D.
        stderr: Statistical standard error of `overlap` from the outer average, (P, P); zero for a
            run on data.
        error: Mean squared error E ‖ŷ - y‖² of ŷ = link(estimated fields) on noiseless labels of
            new inputs. Of labels ±1 it is four times the share of wrong ones; of matrix models the
            error of the estimate. Runs on data use 2048 random inputs; NaN without a teacher. With
            an error bar: `smi.generalization_error` (of a run: with its `data=`).
        alpha: Sample complexity N/D (matrices: n/d², n/(dL)).
        steps: Steps taken.
        residual: The last residual of the fixed point.
        result: A `Result` code.
        history: Arrays with a leading axis of recorded steps (NaN after the last one).
        covariance: V (P, P), the covariance of the fields given the estimate.
        spectral_radius: Of the map at the fixed point; NaN where it was not computed.
        stability: Of a run, and of a learner in theory: the spectral radius of a small change of
            the estimate from step to step; below one where the fixed point is stable.
        free_entropy: Of a run, in nats per entry of a row: its Bethe free entropy, the largest of
            which is the right end.
        ends: Of several starts: all `Ends`, of which this is the best.
        weights: The estimate (P, D); None in theory.
        state: What is needed to continue a run.
        model: The problem, so that a file or a figure can say how it was made.
        key: The randomness, for the same purpose.
        kind: What ran: "state_evolution", "gamp", "spectral", "train" or "nuclear_norm".
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
    model: Any = None  # an AbstractModel: models are above this package
    key: PRNGKeyArray | None = None
    kind: str = eqx.field(static=True, default="state_evolution")

    @property
    def converged(self) -> Array:
        """True where the run ended at a fixed point: codes SUCCESS and RECOVERED."""
        return (self.result == Result.SUCCESS) | (self.result == Result.RECOVERED)

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return message(self.result, training=self.kind in ("train", "descent_theory"))

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
        finite record; of theory M_pp/√(Q_pp ρ_pp), up to the symmetries of the model, √(Q/ρ) of
        Bayes. NaN without a teacher, or with one of another number of indices."""
        if "cosine" not in self.history:
            return self._theory_cosine()
        cosines = self.history["cosine"]
        # a run that broke ends in NaN: the last finite record is what it had learned
        finite = jnp.isfinite(cosines)[..., ::-1, :]
        last = cosines.shape[-2] - 1 - jnp.argmax(finite, axis=-2)
        return jnp.take_along_axis(cosines, last[..., None, :], axis=-2)[..., 0, :]

    def _theory_cosine(self) -> Array:
        # Bayes: M = Q, and Q + V is the second moment of the signal
        return self._cosines(self.overlap, self.overlap + self.covariance)

    def _cosines(self, M: Array, rho: Array) -> Array:
        if self.model is None or M.shape != self.overlap.shape:
            return missing_array(self.overlap.shape[:-1], self.overlap.dtype)
        of_one = jnp.vectorize(self.model.metric.cosines, signature="(p,q),(p,q),(p,q)->(p)")
        return of_one(M, self.overlap, rho)

    def __repr__(self) -> str:
        return safe_repr(self, self._text)

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
            columns.append(["cosine", *map(number, cosine)])
        return describe(title, facts, list(zip(*columns, strict=True)), remark)

    def _numbers(self) -> dict[str, str]:
        return {"error": number(self.error)}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the overlap or cosine of each index against the iteration.

        Args:
            ax: Axes to draw in; those of another solution's `plot` share its legend.

        Returns:
            The axes.

        Raises:
            ValueError: For a batch of solutions, or one without a history.
            ImportError: Without matplotlib, with the remedy.
        """
        single = np.ndim(self.overlap) == 2
        allowed = "one solution, such as jax.tree.map(lambda leaf: leaf[0], batch)"
        check(single, "solution", f"a batch of shape {np.shape(self.alpha)}", allowed)
        check("step" in self.history, "solution", "one without a history", "one with a history")
        draw = load_workbench("plotting").overlap_against_iteration
        if self.kind == "state_evolution":
            return draw(theory=self, ax=ax)
        # without a teacher there is no cosine, and Q is what a run knows of itself
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


class LearnerSolution(Solution):
    """What a solver says of a learner other than Bayes (`learner=`): a `Solution` with more.

    Attributes:
        teacher_overlap: M = W W*ᵀ/D (P, P*); NaN without a teacher.
        direction_overlap: B = W Uᵀ/D (P, K), with the fixed directions of the inputs.
        train_loss: Loss of a sample at the minimum, on average.
        test_loss: Loss of a new sample, with its label noise.
        energy: R(W)/D = α train_loss + (λ/2) tr Q.
        potential: Φ, the energy at a fixed point.
        jump_fraction: Fraction of samples whose proximal point has another minimum.
        gradient_norm: ‖∇R‖/√D of weights; NaN in theory.
        spectrum: In theory of one matrix, the law of what was learned (`LearnedSpectrum`).
        stderrs: Standard errors, by the names above; that of the overlap is `stderr`.
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
    stderrs: Mapping[str, Array] = eqx.field(default_factory=dict)

    def _theory_cosine(self) -> Array:
        M = self.teacher_overlap
        if M is None or self.model is None:
            return missing_array(self.overlap.shape[:-1], self.overlap.dtype)
        # the covariance of a learner is a response: ρ is that of the teacher's prior
        return self._cosines(M, self.model.prior.second_moment(M.shape[-1]))

    def _numbers(self) -> dict[str, str]:
        names = ("error", "train_loss", "test_loss", "energy", "stability")
        zero = np.float64(0.0)  # of a number without an error bar
        return {
            name.replace("_", " "): format_estimate(value, self.stderrs.get(name, zero))
            for name in names
            if (value := getattr(self, name)) is not None
        }


class Threshold(eqx.Module):
    """A critical sample complexity, with its error bar and what is learned there.

    Attributes:
        alpha: α_c (0: learned at any α > 0; inf: never at first order).
        stderr: Its standard error.
        replicas: α_c of each independent randomisation, (R,).
        subspace: The positive semi-definite direction of growth (P, P), of unit trace; zero where
            α_c is infinite.
        overlap: Q just below the threshold, (P, P).
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
        return Result(int(self.result)).remedy

    def __repr__(self) -> str:
        return safe_repr(self, self._text)

    def _text(self) -> str:
        title = f"Threshold α = {format_estimate(self.alpha, self.stderr)}"
        if np.ndim(self.alpha) or not concrete((self.alpha, self.result)):
            return title
        rows = [
            [f"index {p + 1}", number(self.subspace[p, p], 3), number(self.overlap[p, p], 3)]
            for p in range(len(self.overlap))
        ]
        remark = self.message if int(self.result) else ""
        # zero is no failure, but readers take it for one
        if float(self.alpha) == 0.0:
            remark = f"Something is learned at any α > 0. {remark}".rstrip()
        title += f": {Result(int(self.result)).name}"
        return describe(title, (), [["", "learned there", "overlap below"], *rows], remark)

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Draw a dotted line at α_c, and a band of its 95 % interval, into axes over α.

        Args:
            ax: Axes to draw in, such as those of `smi.curve(..).plot()`. Default None: new ones.
            label: Of the line, in a legend. Default None: none.

        Returns:
            The axes.

        Raises:
            ValueError: For a batch of thresholds.
            ImportError: Without matplotlib, with the remedy.
        """
        return load_workbench("plotting").threshold(self, ax, label)

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


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets bars are plain text
    from tqdm.auto import tqdm


# Progress bars, and the loop

_SOON = 2.0  # seconds: an unrequested bar of a shorter call would only flicker


def _attended() -> bool:
    """True where a reader may see a bar: stderr is a terminal, or this is a notebook, and the
    environment does not set TQDM_DISABLE."""
    if os.environ.get("TQDM_DISABLE"):
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Bar(tqdm):
    """A progress bar; a context.

    Args:
        total: The count at the end.
        label: Its title.
        progress: True: it is shown; None: on a terminal and in a notebook, after two seconds.
    """

    def __init__(self, total: int, label: str, progress: bool | None) -> None:
        delay = _SOON if progress is None else 0.0
        shown = _attended() if progress is None else progress
        self.count: int = 0  # of its own: a hidden bar of tqdm does not count
        super().__init__(total=total, desc=label, leave=False, disable=not shown, delay=delay)
        # the first step includes compilation, and a bar that stands still looks like a fault
        self.set_postfix_str("compiling", refresh=progress is True)

    def update(self, n: int = 1, beside: Mapping[str, str] | None = None) -> None:  # pyright: ignore
        """Count `n` more; `beside`: numbers to the right of the bar."""
        self.count += n
        if beside is not None:
            words = ", ".join(f"{name} {value}" for name, value in beside.items())
            self.set_postfix_str(words, refresh=False)
        super().update(n)


State = TypeVar("State")


class AbstractSolver(eqx.Module, Generic[State]):
    """An iteration. Numbers that change from call to call are arrays in its fields."""

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, state: State, count: Array) -> State:
        """One step, after `count` steps."""

    @abc.abstractmethod
    def observe(self, state: State, count: Array) -> dict[str, Array]:
        """The entry of the history after `count` steps; an empty dict: no history."""

    @abc.abstractmethod
    def terminate(self, state: State, count: Array) -> Array:
        """The result code after `count` steps, `RUNNING` while the iteration goes on."""

    def recorded(self, state: State, count: Array) -> Array:
        """The state belongs into the history when its turn has come."""
        del state, count
        return jnp.asarray(True)

    def progress(self, state: State) -> Mapping[str, str]:
        """Numbers beside the progress bar (on the host)."""
        del state
        return {}


class Run(eqx.Module, Generic[State]):
    """An iteration at some step: its state, result code (one for each of several runs) and history,
    arrays with a leading axis of records."""

    state: State
    step: Array
    result: Array
    history: dict[str, Array]


def new_run(solver: AbstractSolver[State], records: int, start: bool = True) -> Run[State]:
    """A run before its first step, with room for `records` entries of the history after that of the
    start; `start`: the state before the first step is recorded."""
    state = solver.init()
    zero = jnp.zeros((), int)
    shapes = jax.eval_shape(solver.observe, state, zero)
    fill = lambda x: missing_array((records + 1, *x.shape), x.dtype)
    history = {name: jax.tree.map(fill, entry) for name, entry in shapes.items()}
    if start:
        history = _put(history, zero, solver.observe(state, zero))
    code = jax.eval_shape(solver.terminate, state, zero)
    run = Run(state, zero, jnp.full(code.shape, RUNNING), history)
    return jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, run)


def _strong(x: Array) -> Array:
    # the state after a step is not weakly typed: the first chunk and the next are one program
    return lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x


def _put(history: dict[str, Array], slot: Array, entry: dict[str, Array]) -> dict[str, Array]:
    """The history with an entry at a slot; one beyond its end drops the entry, without a branch."""
    return {
        name: jax.tree.map(
            lambda h, x: h.at[slot].set(x.astype(h.dtype), mode="drop"), past, entry[name]
        )
        for name, past in history.items()
    }


def advance(
    solver: AbstractSolver[State], run: Run[State], until: Array, every: Array | int = 1
) -> Run[State]:
    """The run at step `until`, or where it ended before; a record every so many steps."""

    def body(run: Run[State]) -> Run[State]:
        state = solver.step(run.state, run.step)
        count = run.step + 1
        code = solver.terminate(state, count).astype(run.result.dtype)
        history = run.history
        if history:
            due = (count % every == 0) & solver.recorded(state, count)
            beyond = jax.tree.leaves(history)[0].shape[0]
            history = _put(
                history, jnp.where(due, count // every, beyond), solver.observe(state, count)
            )
        return Run(state, count, code, history)

    def running(run: Run[State]) -> Array:
        return jnp.any(run.result == RUNNING) & (run.step < until)

    return lax.while_loop(running, body, run)


# from outside jit one program, not one an array
init_run: Callable[..., Run[Any]] = eqx.filter_jit(new_run)
_advance = eqx.filter_jit(advance)

_CHUNK_SECONDS = 0.2  # Ctrl-C is answered at once, and the host's share stays below a percent
_FIRST_CHUNK = 16  # many solves finish within 16 steps: one chunk, no host round trip


def run_solver(
    solver: AbstractSolver[State],
    run: Run[State],
    max_steps: int,
    *,
    every: int = 1,
    label: str | None = None,
    unit: int = 1,
) -> Run[State]:
    """Run an iteration to its end, with a progress bar if it has a label.

    Args:
        solver: The iteration.
        run: Its start, by `init_run`.
        max_steps: Step budget.
        every: Steps between records. Default 1.
        label: Name of the progress bar. Default None: no bar.
        unit: Counts of the bar for a step. Default 1.

    Returns:
        The `Run` at its end; its code is `RUNNING` where the budget ran out first.
    """
    every_steps = jnp.asarray(every)
    if not concrete((solver, run, every_steps)):
        return _advance(solver, run, jnp.asarray(max_steps), every_steps)
    name = type(solver).__name__ if label is None else label
    until = int(run.step)
    several_hosts = jax.process_count() > 1  # they must all call the same programs
    chunk = max_steps if several_hosts else _FIRST_CHUNK if label is None else 1
    with Bar(max_steps * unit, name, label is not None) as bar:
        while until < max_steps:
            until = min(until + chunk, max_steps)
            start = time.perf_counter()
            run = _advance(solver, run, jnp.asarray(until), every_steps)
            if not concrete(run):  # inside a transformation that the arguments do not show
                return _advance(solver, run, jnp.asarray(max_steps), every_steps)
            done = not np.any(np.asarray(run.result) == RUNNING)  # waits for the device
            beside = {} if label is None else solver.progress(run.state)
            bar.update(int(run.step) * unit - bar.count, beside)
            if done:
                break
            # at most eight times as long: the first step includes compilation, and steps differ
            chunks = _CHUNK_SECONDS / max(time.perf_counter() - start, 1e-9)
            chunk = chunk if several_hosts else max(int(chunk * min(chunks, 8.0)), 1)
    return run


def one_by_one(function: Callable[[], PyTree], inputs: PyTree) -> PyTree:
    """`function()`, a tree of arrays, from the `inputs` that it closes over; where these are traced
    it is constant under differentiation, and vmapped on a CPU one element comes after the other.

    The loops of a batch run until its last element is done, and conditions take both branches: six
    α of one model would take six times as long as the slowest of them.
    """
    if concrete(inputs):
        return function()
    closed = eqx.filter_closure_convert(function)
    arrays, rest = eqx.partition(closed, eqx.is_array)
    call = lambda arrays: eqx.combine(arrays, rest)()
    if jax.default_backend() == "cpu":
        call = jax.custom_batching.sequential_vmap(call)
    return call(frozen(arrays))


class GeometricDecay(eqx.Module):
    """Perfect recovery as an iteration shows it: V falls to zero by the same factor a step.

    It is reached after `steps` steps in a row in which tr V was below 1e-3 of its largest value,
    its ratio from step to step below `slowest`, and that ratio steady to `spread`; or once tr V is
    rounding, 1e-12 of its largest value. Theory has no fluctuations and may ask for a steady ratio;
    a run of finite dimension fluctuates, and must be watched for longer.
    """

    largest: Array
    slowest: float = eqx.field(static=True)
    spread: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def follow(self, count: Array, trace: Array, ratio: Array, previous: Array) -> Array:
        """Steps in a row of such a decay: `trace` of V, and its last two ratios."""
        # above it V may fall geometrically towards a fixed point V > 0
        falling = (trace < 1e-3 * self.largest) & (ratio < self.slowest)
        return jnp.where(falling & (jnp.abs(ratio - previous) < self.spread), count + 1, 0)

    def reached(self, count: Array, trace: Array) -> Array:
        """V is on its way to zero, or there."""
        # V = S - Q cancels down to rounding, about 1e-16 times the length of the sums
        return (count >= self.steps) | (trace < 1e-12 * self.largest)
