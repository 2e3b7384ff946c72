"""Array vocabulary, result codes, and the two containers that everything passes around: `Dataset` and `Solution`.

Letters used in array annotations everywhere: N samples, D dimension, M tokens, P indices, T recorded steps.
No equation lives here except the two definitions α = N/D and cosine = |w·w*| / (‖w‖ ‖w*‖).
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Array",
    "Bool",
    "Dataset",
    "Float",
    "Int",
    "PRNGKeyArray",
    "Regenerated",
    "Result",
    "Solution",
    "Threshold",
    "check",
    "concrete",
    "frozen",
    "outcome",
    "positive_definite",
    "theory_dtype",
]


class Result(enum.IntEnum):
    """What became of a run. A code travels through `jit` and `vmap`; `Result(code).remedy` is the sentence to read.

    `RECOVERED` is success of a special kind: the iteration reached the branch on which V falls geometrically to zero.
    """

    SUCCESS = 0
    RECOVERED = 1
    MAX_STEPS = 2
    DIVERGED = 3
    NONFINITE = 4
    INVALID = 5
    INACCURATE = 6
    MARGINAL = 7

    @property
    def remedy(self) -> str:
        """One sentence: what happened and what to do about it."""
        return _REMEDIES[self]


_REMEDIES = {
    Result.SUCCESS: "Converged.",
    Result.RECOVERED: "Perfect recovery: V falls geometrically to zero, the overlap is that of the signal with itself.",
    Result.MAX_STEPS: "The step budget ran out before the tolerance was met: raise max_steps, or loosen tolerance; "
    "close to a threshold convergence is slow.",
    Result.DIVERGED: "The iteration diverged: try damping=0.3 or more, precision='outer', a smaller start (init=1e-3), "
    "or a larger dimension.",
    Result.NONFINITE: "A non-finite number appeared: check that inputs and labels are finite, that labels are float64 "
    "and come from this model, and try damping.",
    Result.INVALID: "An argument was outside its range (found inside a compiled function, so reported as NaN): "
    "call the function outside jit to learn which.",
    Result.INACCURATE: "The inner integral could not meet its tolerance within its node budget: raise the channel's "
    "max_nodes, or loosen its tolerance.",
    Result.MARGINAL: "The fixed point is marginal (spectral radius one to 1e-3): α is at a threshold, where derivatives are "
    "infinite and error bars large; move α, or ask weak_recovery or staircase for the threshold itself.",
}


def outcome(code: int, kind: str) -> str:
    """The sentence that goes with a result code of gamp, state evolution ("gamp", "state_evolution") or training ("train")."""
    if kind == "train" and code == Result.SUCCESS:
        return "All steps were taken, or the run was stopped as asked."
    return Result(code).remedy


def concrete(value: Any) -> bool:
    """True where `value` is known now (not a tracer), so that it can be checked and reported by a ValueError."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def check(condition: Any, name: str, came: Any, allowed: str) -> None:
    """Raise a ValueError naming the argument, what came and what is allowed; silent where `condition` is traced."""
    if concrete(condition) and not bool(np.all(np.asarray(condition))):
        shown = repr(came) if not hasattr(came, "shape") or np.size(came) <= 8 else f"an array of shape {came.shape}"
        raise ValueError(f"{name}: got {shown}; allowed: {allowed}.")


def frozen(tree: Any) -> Any:
    """The tree, its numbers held constant under differentiation."""
    return jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def positive_definite(V: Array) -> Array:
    """Whether a symmetric matrix is positive definite (a traced or concrete boolean)."""
    return jnp.all(jnp.linalg.eigvalsh(0.5 * (V + V.T)) > 0.0)


_warned = False


def theory_dtype() -> Any:
    """float64 where JAX has it enabled; otherwise float32, with one warning: theory in float32 has large errors."""
    global _warned
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.float64
    if not _warned:
        _warned = True
        warnings.warn(
            "jaxsmi: channels and fixed points are meant for float64, which is off. Call "
            "jax.config.update('jax_enable_x64', True) at the start of the program; until then errors below about 1e-3 "
            "are not reached, and reported errors are floored there.",
            stacklevel=3,
        )
    return jnp.float32


@jax.jit
def _all_finite(x: Array) -> Array:
    return jnp.all(jnp.isfinite(x))  # in one pass: no copy of a large array, on the device or to the host


class Regenerated(eqx.Module):
    """Inputs (N, M, D) that are not stored: block k is drawn again, from the key and its number, whenever it is read.

    `numbers` (K,) of the blocks; `key`; `law(key, shape, dtype)` draws one; `each`: samples in a block, N = K·each; `form`: the
    shape (M, D) of one input. `model.sample(.., store=False)` makes it. Memory: that of one block while it is read.
    """

    numbers: Array
    key: Array
    law: Callable[..., Array] = eqx.field(static=True)
    each: int = eqx.field(static=True)
    form: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, M, D)."""
        return (len(self.numbers) * self.each, *self.form)

    @property
    def ndim(self) -> int:
        """3."""
        return len(self.shape)

    def block(self, k: Any) -> Array:
        """The k-th block (each, M, D)."""
        return self.law(jax.random.fold_in(self.key, self.numbers[k]), (self.each, *self.form), self.dtype)

    def stored(self) -> Array:
        """All inputs, as an array."""
        return lax.map(self.block, jnp.arange(len(self.numbers))).reshape(self.shape)


class Dataset(eqx.Module):
    """Inputs, labels and, for synthetic data, the teacher that made them.

    Arguments: `inputs` (N, M, D), float64, float32 or bfloat16 (products are then float32), or `Regenerated`; `labels`
    (N, ...), float64 for noiseless attention; `teacher` (P, D) or None for a user's own data (errors are then NaN); `model`
    that drew the labels (set by `sample`; None: taken to be the model that learns).

    Raises ValueError for an `inputs` that is not (N, M, D), a number of labels other than N, or non-finite entries.

    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> smi.Dataset(jnp.ones((6, 1, 3)), jnp.ones((6,))).alpha
    2.0
    """

    inputs: Any  # Float[Array, "N M D"] or Regenerated
    labels: Float[Array, "N ..."]
    teacher: Float[Array, "P D"] | None = None
    model: Any = None

    def __init__(self, inputs: Any, labels: Any, teacher: Any = None, model: Any = None):
        stored, labels = not isinstance(inputs, Regenerated), jnp.asarray(labels)
        inputs = jnp.asarray(inputs) if stored else inputs
        if stored and (jnp.issubdtype(inputs.dtype, jnp.integer) or inputs.dtype == bool):
            inputs = inputs.astype(theory_dtype())  # estimates are rounded to the inputs' precision
        teacher = None if teacher is None else jnp.asarray(teacher)
        check(inputs.ndim == 3, "inputs", inputs, "an array of shape (samples N, tokens M, dimension D)")
        check(
            labels.ndim >= 1 and labels.shape[0] == inputs.shape[0],
            "labels",
            labels,
            f"an array with one row per sample: ({inputs.shape[0]}, ...)",
        )
        check(min(inputs.shape) >= 1, "inputs", inputs, "at least one sample, one token and one dimension")
        if concrete((inputs, labels)):
            check(_all_finite(labels), "labels", labels, "finite numbers")
            check(not stored or _all_finite(inputs), "inputs", inputs, "finite numbers")
        if teacher is not None:
            check(
                teacher.ndim == 2 and teacher.shape[1] == inputs.shape[2],
                "teacher",
                teacher,
                f"an array of shape (indices P, {inputs.shape[2]})",
            )
            check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
        self.inputs, self.labels, self.teacher, self.model = inputs, labels, teacher, model

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.inputs.shape[0]

    @property
    def dimension(self) -> int:
        """D, the dimension of a token."""
        return self.inputs.shape[2]

    @property
    def alpha(self) -> float:
        """Sample complexity α = N/D as realised."""
        return self.samples / self.dimension

    def stored(self) -> Dataset:
        """The same data with all inputs in memory (itself, where they are)."""
        if not isinstance(self.inputs, Regenerated):
            return self
        return Dataset(self.inputs.stored(), self.labels, self.teacher, self.model)

    @property
    def mesh(self) -> Mesh | None:
        """The devices that the samples are spread over; None: one device (or not known, inside jit)."""
        sharding: Any = self.labels.sharding if concrete(self.labels) else None
        if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1 or not sharding.spec or not sharding.spec[0]:
            return None
        return sharding.mesh if isinstance(sharding.mesh, Mesh) else None

    def sharded(self, mesh: Mesh | None = None) -> Dataset:
        """The same samples, spread evenly over the devices of a mesh (all there are, if left out): `gamp` and `train` then work
        on all of them at once, with the same numbers up to rounding.

        Raises: ValueError where N (regenerated: the number of blocks) is no multiple of the number of devices.
        Example:
        >>> import jax, jaxsmi as smi
        >>> data = smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0)
        >>> data.sharded().samples
        100
        """
        if mesh is None:
            mesh = Mesh(np.asarray(jax.devices()), ("samples",))
        spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        regenerated = isinstance(self.inputs, Regenerated)
        parts = len(self.inputs.numbers) if regenerated else self.samples
        check(parts % mesh.size == 0, "mesh", f"{mesh.size} devices for {parts} {'blocks' if regenerated else 'samples'}",
              f"a number of devices that divides it (data.first({parts - parts % mesh.size}) drops the rest)")  # fmt: skip
        place = lambda x: jax.device_put(x, spread)
        inputs: Any = self.inputs
        inputs = eqx.tree_at(lambda i: i.numbers, inputs, replace_fn=place) if regenerated else place(inputs)
        return Dataset(inputs, place(self.labels), self.teacher, self.model)

    def first(self, samples: int) -> Dataset:
        """The first N samples (all, where there are no more)."""
        check(samples >= 1, "samples", samples, "an integer >= 1")
        check(not isinstance(self.inputs, Regenerated), "data", "regenerated inputs", "stored ones: data.stored()")
        return Dataset(self.inputs[:samples], self.labels[:samples], self.teacher, self.model)


class Solution(eqx.Module):
    """What a solver returns: the overlap it ended at, how sure it is, and how it got there.

    `overlap` (P, P): state evolution: Q; GAMP: Q = Ŵ Ŵᵀ/D. `stderr` (P, P): statistical standard error of `overlap`
    from the outer average (zero for GAMP, which is one run). `error`: prediction error of the plug-in predictor
    (NaN without a teacher). `alpha`: N/D. `steps`: steps taken. `residual`: the last fixed-point residual. `rho`:
    spectral radius of the map at the fixed point (NaN where not computed). `result`: a `Result` code. `history`: arrays
    with a leading axis of recorded steps (NaN after the last step). `covariance` (P, P): V, the covariance of the
    fields that is left. `weights` (P, D): the estimate (None in theory). `state`: what is needed to continue a run.
    `model`, `key`: the problem and the randomness, kept so that a file or a figure can say how it was made.
    """

    overlap: Array
    stderr: Array
    error: Array
    alpha: Array
    steps: Array
    residual: Array
    result: Array
    history: Mapping[str, Any]
    covariance: Array
    rho: Array
    weights: Array | None = None
    state: Any = None
    model: Any = None
    key: Any = None
    kind: str = eqx.field(static=True, default="state_evolution")

    @property
    def converged(self) -> Array:
        """True where the run ended at a fixed point: codes SUCCESS and RECOVERED."""
        return (self.result == Result.SUCCESS) | (self.result == Result.RECOVERED)

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return outcome(int(self.result), self.kind)

    @property
    def trajectory(self) -> dict[str, np.ndarray]:
        """`history` as NumPy arrays cut after the last recorded step (outside jit and vmap)."""
        recorded = np.isfinite(np.asarray(self.history["step"]))
        return jax.tree.map(lambda value: np.asarray(value)[recorded], dict(self.history))

    @property
    def cosine(self) -> np.ndarray:
        """The last finite cosine of each index (P,), of a batch (runs, P), outside jit and vmap; NaN without a teacher."""
        cosines = np.asarray(self.history["cosine"])
        last = cosines.shape[-2] - 1 - np.argmax(np.isfinite(cosines)[..., ::-1, :], axis=-2)
        return np.take_along_axis(cosines, last[..., None, :], axis=-2)[..., 0, :]

    def to_xarray(self, **attributes: Any) -> xarray.Dataset:
        """As an xarray.Dataset with provenance; keyword arguments are added to its attributes. Needs the extra `data`."""
        from jaxsmi.storage import to_xarray  # lazily: the one import that reaches up

        return to_xarray(self, **attributes)


class Threshold(eqx.Module):
    """A critical sample complexity, with its error bar and what is learned there.

    `alpha`: α_c (0: learned at any α > 0; inf: never at first order); `stderr`: its standard error; `replicas` (R,): α_c of each
    independent randomisation; `subspace` (P, P): the positive semi-definite direction of growth, of unit trace (zero where
    α_c is infinite); `overlap` (P, P): Q just below the threshold; `result`: a `Result` code.
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

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval of α_c by Student's law over the replicas (outside jit and vmap)."""
        from scipy.stats import t  # here: importing scipy.stats takes a second

        half = float(t.ppf(0.5 + 0.5 * confidence, max(np.size(self.replicas) - 1, 1))) * float(self.stderr)
        return float(self.alpha) - half, float(self.alpha) + half
