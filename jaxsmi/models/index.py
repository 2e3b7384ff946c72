r"""What every index model can do: draw data, predict, and measure an estimate up to the model's symmetries.

Equations here [TCDKZ25; theory: multi-index, Eqs. (1) to (3), (62) to (66)]:

    Z = W* x/√D (P, M),   y = link(Z) (+ noise),   α = N/D
    cosine_p = |M_pp| / √(Q_pp ρ_p),   M = Ŵ W*ᵀ/D,   Q = Ŵ Ŵᵀ/D,   ρ = W* W*ᵀ/D
        (up to the symmetries; of rows that can be rotated into each other: cosines of the principal angles of their spans)
    plug-in error:  E ‖link(z) - link(ω)‖²,        (z, ω) Gaussian with covariance [[ρ, Mᵀ], [M, Q]]
    Bayes error:    E ‖link(z) - E[link(z)|ω]‖² = ½ E ‖link(z) - link(z')‖²,   z, z' independent given ω
"""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Estimate
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.prediction import compiled_prediction_error, prediction_error
from jaxsmi.models.symmetry import Symmetry, best_order, block_cosines
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.sensing.blocks import Inputs, draw_inputs, product_dtype
from jaxsmi.sensing.index import IndexSensing


class AbstractIndexModel(AbstractModel):
    """A sequence multi-index model: prior on W (P, D), fields Z = W x/√D (P, M), channel p(y|Z)."""

    prior: eqx.AbstractVar[AbstractIidPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    symmetry: eqx.AbstractVar[tuple[Symmetry, ...]]

    @property
    def indices(self) -> int:
        """P, the number of indices."""
        return self.channel.indices

    @property
    def tokens(self) -> int:
        """M, the number of tokens."""
        return self.channel.tokens

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, labels of another shape, or (asked to) a teacher of other rows."""
        check(
            data.inputs.shape[1] == self.tokens,
            "data.inputs",
            data.inputs,
            f"(N, {self.tokens}, D): M tokens a sample",
        )
        if teacher and data.teacher is not None:
            check(
                data.teacher.shape[0] == self.indices,
                "data.teacher",
                data.teacher,
                f"({self.indices}, D): P rows",
            )
        shape = jax.eval_shape(
            self.link, jax.ShapeDtypeStruct((self.indices, self.tokens), float)
        ).shape
        check(
            data.labels.shape[1:] == shape,
            "data.labels",
            data.labels,
            f"rows of shape {shape}, as the link's",
        )

    @property
    def precisions(self) -> tuple[str, ...]:
        """The control variate first."""
        return ("controlled", "outer", "divergence", "state")

    @property
    def dampings(self) -> tuple[float, ...]:
        """None: undamped, a run follows state evolution step by step."""
        return (0.0,)

    @property
    def calibrated(self) -> bool:
        """By default."""
        return True

    @property
    def error_name(self) -> str:
        """The error of the plug-in predictor on new inputs."""
        return "Prediction error"

    @property
    def recovery(self) -> Array:
        """P/M of noiseless labels that fix M combinations of the fields, under a prior with a density."""
        fixed = self.channel.constraints
        allowed = "a noiseless model whose label fixes M combinations of its fields (attention, the last layer of rank one)"
        check(fixed is not None, "model", self.title, allowed)
        check(self.prior.continuous, "model", self.prior, "a continuous (Gaussian) prior")
        return jnp.asarray(self.indices / (fixed or jnp.nan), theory_dtype())

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (M, D)."""
        return (self.tokens, dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student, (P, D)."""
        return (self.indices, dimension)

    def complexity(self, samples: int, dimension: int) -> float:
        """α = N/D."""
        return samples / dimension

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal (P, D) and of its fields (N, P, M) in message passing."""
        self.check_data(data)
        return (self.indices, data.dimension), (data.samples, self.indices, self.tokens)

    def signal(self, teacher: Array) -> Array:
        """The signal of message passing, from a teacher: the same."""
        return teacher

    def estimate(self, signal: Array) -> Array:
        """What a user sees of the signal of message passing: all of it."""
        return signal

    def sensing(self, data: Dataset) -> IndexSensing:
        """How the signal is seen through the inputs of `data`."""
        self.check_data(data)
        return IndexSensing(data.inputs)

    def sample(
        self,
        key: Array,
        *,
        dimension: int,
        alpha: Any,
        dtype: Any = None,
        teacher: Any = None,
        store: bool = True,
    ) -> Dataset:
        r"""Draw a teacher, N = round(α D) inputs with iid N(0, 1) entries, and their labels.

        Arguments: `dimension` D; `alpha` = N/D > 0; `dtype` of the inputs: float64, float32 or bfloat16 (labels stay float64);
        `teacher` (P, D) to reuse; `store`: False for inputs that are drawn again whenever they are read, in float32 if
        nothing else is said: memory for one block of them; N is then rounded to whole blocks, by less than 0.5 %.
        Returns: a `Dataset`. Raises: ValueError for D < 1, α <= 0, or a teacher of the wrong shape.
        Example:
        >>> import jax, jaxsmi as smi
        >>> smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0).inputs.shape
        (100, 1, 50)
        """
        check(
            isinstance(dimension, (int, np.integer)) and dimension >= 1,
            "dimension",
            dimension,
            "an integer D >= 1",
        )
        check(np.isfinite(alpha) and alpha > 0, "alpha", alpha, "a positive number N/D")
        samples = max(round(float(alpha) * dimension), 1)
        teacher_key, input_key, noise_key = jax.random.split(key, 3)
        theory = theory_dtype()
        if teacher is None:
            teacher = self.prior.sample(teacher_key, self.indices, dimension)
        teacher = jnp.asarray(teacher, theory)
        check(
            teacher.shape == (self.indices, dimension),
            "teacher",
            teacher,
            f"shape {(self.indices, dimension)}",
        )
        check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
        inputs = draw_inputs(
            input_key,
            samples,
            (self.tokens, dimension),
            dtype or (theory if store else jnp.float32),
            store,
        )
        noise = jax.random.normal(noise_key, (inputs.shape[0], self.channel.noise_size), theory)
        return Dataset(inputs, _labels(self.channel, inputs, teacher, noise), teacher, self)

    def start(self, key: Array, dimension: int, scale: Any = 1.0, dtype: Any = None) -> Array:
        """Random weights (P, D) of a student: scale × N(0, 1)."""
        return scale * jax.random.normal(key, (self.indices, dimension), dtype or theory_dtype())

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """link(W x/√D) of inputs (N, M, D), in the precision of the inputs: what `train` differentiates."""
        dtype = product_dtype(inputs)
        cast = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, self)
        return jax.vmap(cast.link)(IndexSensing(inputs).forward(weights).astype(dtype))

    def predict(self, solution: Any, inputs: Any) -> Array:
        r"""Labels of new inputs by the plug-in predictor link(Ŵ x/√D).

        Arguments: `solution` with `weights` (P, D), or the weights themselves; `inputs` (N, M, D). Returns (N, ...).
        Raises: ValueError for a solution of theory (it has no weights) or inputs of the wrong shape.
        """
        weights, inputs = getattr(solution, "weights", solution), jnp.asarray(inputs)
        check(
            weights is not None,
            "solution",
            "a solution without weights",
            "the solution of gamp or train",
        )
        shape = (self.tokens, weights.shape[-1])
        check(
            weights.shape[:-1] == (self.indices,),
            "solution",
            weights,
            f"weights of shape ({self.indices}, D)",
        )
        check(
            inputs.ndim == 3 and inputs.shape[1:] == shape,
            "inputs",
            inputs,
            f"an array of shape (N, *{shape})",
        )
        check(jnp.isfinite(jnp.sum(jnp.abs(inputs))), "inputs", inputs, "finite numbers")
        inputs = (
            inputs if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs.astype(theory_dtype())
        )
        return jax.vmap(self.link)(IndexSensing(inputs).forward(weights))

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """What an estimate (P, D) has in common with itself and with a teacher (P*, D): "overlap" Q = Ŵ Ŵᵀ/D (P, P),
        "teacher_overlap" M = Ŵ W*ᵀ/D (P, P*), "cosine" (P,); NaN without a teacher, cosine NaN where P* is not P."""
        weights, D = weights.astype(theory_dtype()), weights.shape[1]
        Q = weights @ weights.T / D
        cross, cosine = jnp.full(Q.shape, jnp.nan), jnp.full(Q.shape[:1], jnp.nan)
        if teacher is not None:
            teacher = teacher.astype(Q.dtype)
            cross = weights @ teacher.T / D
            if cross.shape == Q.shape:
                cosine = self.cosines(cross, Q, teacher @ teacher.T / D)
        return {"overlap": Q, "teacher_overlap": cross, "cosine": cosine}

    def error_of(self, weights: Array, data: Dataset, *, key: Array, samples: int = 2048) -> Array:
        """Plug-in prediction error of an estimate (P, D) on new Gaussian inputs, noiseless labels of the data's teacher;
        NaN without a teacher."""
        if data.teacher is None:
            return jnp.asarray(jnp.nan, theory_dtype())
        truth = self if data.model is None else data.model
        W, teacher, D = (
            weights.astype(theory_dtype()),
            data.teacher.astype(theory_dtype()),
            data.dimension,
        )
        return prediction_error(
            self, W @ W.T / D, key=key, cross=W @ teacher.T / D, second_moment=teacher @ teacher.T / D, truth=truth,
            samples=samples,
        ).value  # fmt: skip

    def comparable(self, teacher: Array) -> bool:
        """Whether the teacher has P rows."""
        return teacher.shape[0] == self.indices

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """By randomised nets of about so many samples in all."""
        if key is None:
            raise ValueError("key: got None; allowed: a key: jax.random.key(0).")
        return compiled_prediction_error(
            self, Q, key=key, bayes=bayes, samples=power_of_two(samples // 8), randomisations=8
        )

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosine similarity (P,) of each index from M, Q and ρ (P, P), up to the symmetries; 0 for a zero estimate."""
        scale = jnp.sqrt(
            jnp.maximum(jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho)), jnp.finfo(Q.dtype).tiny)
        )
        table = jnp.abs(cross) / scale
        values = jnp.diagonal(cross) / jnp.diagonal(scale)
        for block, kind in self.symmetry:
            if kind.endswith("signed permutation"):
                rows = jnp.asarray(block)
                orders = jnp.asarray(list(itertools.permutations(block)))
                best = orders[jnp.argmax(jnp.sum(table[rows, orders], axis=1))]
                chosen = table[rows, best]
                if kind.startswith(
                    "even"
                ):  # an odd number of flips changes the label: the least certain row pays
                    odd = jnp.prod(jnp.where(cross[rows, best] < 0.0, -1.0, 1.0)) < 0.0
                    worst = jnp.argmin(chosen)
                    chosen = chosen.at[worst].multiply(jnp.where(odd, -1.0, 1.0))
                values = values.at[rows].set(chosen)
                continue
            heads = np.atleast_2d(block)
            each = jnp.stack(
                [
                    jnp.stack([block_cosines(kind, cross, Q, rho, a, b) for b in heads])
                    for a in heads
                ]
            )
            best = best_order(jnp.sum(each, axis=-1))
            values = values.at[heads].set(each[jnp.arange(len(heads)), best])
        return values


@eqx.filter_jit
def _labels(channel: AbstractChannel, inputs: Inputs, teacher: Array, noise: Array) -> Array:
    return jax.vmap(channel.label)(IndexSensing(inputs).forward(teacher), noise)
