r"""What every index model can do: draw data, predict, and measure an estimate up to the model's symmetries.

Equations here [TCDKZ25, spec sections 1, 4, 5]:

    Z = W* x/√D (P, M),   y = link(Z) (+ noise),   α = N/D
    cosine_p = |M_pp| / √(Q_pp ρ_p),   M = Ŵ W*ᵀ/D,   Q = Ŵ Ŵᵀ/D,   ρ = W* W*ᵀ/D
        (up to the symmetries; of rows that can be rotated into each other: cosines of the principal angles of their spans)
    plug-in error:  E ‖link(z) - link(ω)‖²,        (z, ω) Gaussian with covariance [[ρ, Mᵀ], [M, Q]]
    Bayes error:    E ‖link(z) - E[link(z)|ω]‖² = ½ E ‖link(z) - link(z')‖²,   z, z' independent given ω
"""

from __future__ import annotations

import abc
import itertools
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsmi.channels.base import AbstractChannel, sqrt_psd
from jaxsmi.fixed_point import bisect
from jaxsmi.integrate import power_of_two, randomised_gaussians
from jaxsmi.priors import AbstractPrior
from jaxsmi.sensing import IndexSensing, draw_inputs, product_dtype
from jaxsmi.types import Array, Dataset, check, theory_dtype

# "joint sign": all rows of the block together; "query and key": the block is q over k, and A q, A^{-ᵀ} k are as good
SYMMETRIES = ("none", "sign", "joint sign", "signed permutation", "even signed permutation", "rotation", "query and key")


class Estimate(NamedTuple):
    """A number and its standard error; `float(estimate)` is the number."""

    value: Array
    stderr: Array

    def __float__(self) -> float:
        return float(self.value)


class Symmetry(NamedTuple):
    """A block of indices, and what can be done to its rows of W without changing any label.

    A tuple of blocks of one size (heads): each has that symmetry, and they can be exchanged.
    """

    indices: tuple[int, ...] | tuple[tuple[int, ...], ...]
    kind: str


class AbstractIndexModel(eqx.Module):
    """A sequence multi-index model: prior on W (P, D), fields Z = W x/√D (P, M), channel p(y|Z)."""

    prior: eqx.AbstractVar[AbstractPrior]
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

    @abc.abstractmethod
    def link(self, fields: Array) -> Array:
        """The noiseless label of one sample from its fields (P, M)."""

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, labels of another shape, or (asked to) a teacher of other rows."""
        check(data.inputs.shape[1] == self.tokens, "data.inputs", data.inputs, f"(N, {self.tokens}, D): M tokens a sample")
        if teacher and data.teacher is not None:
            check(data.teacher.shape[0] == self.indices, "data.teacher", data.teacher, f"({self.indices}, D): P rows")
        shape = jax.eval_shape(self.link, jax.ShapeDtypeStruct((self.indices, self.tokens), float)).shape
        check(data.labels.shape[1:] == shape, "data.labels", data.labels, f"rows of shape {shape}, as the link's")

    precisions: ClassVar[tuple[str, ...]] = ("controlled", "outer", "divergence", "state")  # of `gamp`, the default first
    dampings: ClassVar[tuple[float, ...]] = (0.0,)  # that it tries one after the other
    calibrated: ClassVar[bool] = True

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (M, D)."""
        return (self.tokens, dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student, (P, D)."""
        return (self.indices, dimension)

    @staticmethod
    def complexity(samples: int, dimension: int) -> float:
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
        self, key: Array, *, dimension: int, alpha: Any, dtype: Any = None, teacher: Any = None, store: bool = True
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
        check(isinstance(dimension, (int, np.integer)) and dimension >= 1, "dimension", dimension, "an integer D >= 1")
        check(np.isfinite(alpha) and alpha > 0, "alpha", alpha, "a positive number N/D")
        samples = max(round(float(alpha) * dimension), 1)
        teacher_key, input_key, noise_key = jax.random.split(key, 3)
        theory = theory_dtype()
        if teacher is None:
            teacher = self.prior.sample(teacher_key, self.indices, dimension)
        teacher = jnp.asarray(teacher, theory)
        check(teacher.shape == (self.indices, dimension), "teacher", teacher, f"shape {(self.indices, dimension)}")
        check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
        inputs = draw_inputs(
            input_key, samples, (self.tokens, dimension), dtype or (theory if store else jnp.float32), store
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
        check(weights is not None, "solution", "a solution without weights", "the solution of gamp or train")
        shape = (self.tokens, weights.shape[-1])
        check(weights.shape[:-1] == (self.indices,), "solution", weights, f"weights of shape ({self.indices}, D)")
        check(inputs.ndim == 3 and inputs.shape[1:] == shape, "inputs", inputs, f"an array of shape (N, *{shape})")
        check(jnp.isfinite(jnp.sum(jnp.abs(inputs))), "inputs", inputs, "finite numbers")
        inputs = inputs if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs.astype(theory_dtype())
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
        W, teacher, D = weights.astype(theory_dtype()), data.teacher.astype(theory_dtype()), data.dimension
        return prediction_error(
            self, W @ W.T / D, key=key, cross=W @ teacher.T / D, second_moment=teacher @ teacher.T / D, truth=truth,
            samples=samples,
        ).value  # fmt: skip

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosine similarity (P,) of each index from M, Q and ρ (P, P), up to the symmetries; 0 for a zero estimate."""
        scale = jnp.sqrt(jnp.maximum(jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho)), jnp.finfo(Q.dtype).tiny))
        table = jnp.abs(cross) / scale
        values = jnp.diagonal(cross) / jnp.diagonal(scale)
        for block, kind in self.symmetry:
            if kind.endswith("signed permutation"):
                rows = jnp.asarray(block)
                orders = jnp.asarray(list(itertools.permutations(block)))
                best = orders[jnp.argmax(jnp.sum(table[rows, orders], axis=1))]
                chosen = table[rows, best]
                if kind.startswith("even"):  # an odd number of flips changes the label: the least certain row pays
                    odd = jnp.prod(jnp.where(cross[rows, best] < 0.0, -1.0, 1.0)) < 0.0
                    worst = jnp.argmin(chosen)
                    chosen = chosen.at[worst].multiply(jnp.where(odd, -1.0, 1.0))
                values = values.at[rows].set(chosen)
                continue
            heads = np.atleast_2d(block)
            each = jnp.stack([jnp.stack([_block_cosines(kind, cross, Q, rho, a, b) for b in heads]) for a in heads])
            best = _best_order(jnp.sum(each, axis=-1))
            values = values.at[heads].set(each[jnp.arange(len(heads)), best])
        return values


class AbstractMatrixModel(eqx.Module):
    """A model whose signal is one matrix S, of extensive rank: scalar overlap q and precision, spectral prior.

    `recovery`: the α of perfect recovery (inf: none). Small width, ρ → 0 at fixed ᾱ, n over the numbers in the factors: V(t) of
    the prior at t = c ᾱ f(Q_0 - V), Q_0 = 1, c = 1 or 1 + β [spec/2, section 3.6; spec/3, section 2.8].
    """

    prior: eqx.AbstractVar[Any]
    channel: eqx.AbstractVar[Any]
    noise: eqx.AbstractVar[Array]
    scalar: ClassVar[bool] = True
    calibrated: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def indices(self) -> int:
        """How many matrices."""

    @abc.abstractmethod
    def estimate(self, signal: Array) -> Array:
        """The matrix, from the signal of message passing or from trained factors."""

    @abc.abstractmethod
    def matrix_error(self, S: Array, teacher: Array) -> Array:
        """Estimation error of a matrix."""

    @property
    @abc.abstractmethod
    def recovery(self) -> Array:
        """The α from which on S is known exactly."""

    @property
    def index_names(self) -> tuple[str, ...]:
        """What to call the matrix."""
        return ("S",)

    @property
    def valid(self) -> Array:
        """Whether all parameters are in their ranges: under jit nothing else says so."""
        return self.prior.valid & jnp.isfinite(self.noise) & (self.noise >= 0.0)

    @abc.abstractmethod
    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student: its factors."""

    def start(self, key: Array, dimension: int, scale: Any = 1.0, dtype: Any = None) -> Array:
        """Random factors of a student: scale × N(0, 1)."""
        factors = jax.random.normal(key, self.student_shape(dimension), theory_dtype())
        return (scale * factors).astype(dtype or theory_dtype())

    @abc.abstractmethod
    def fits(self, teacher: Array, matrix: tuple[int, ...]) -> bool:
        """Whether a teacher has the shape of one of this model, for an estimate of that shape."""

    def error_of(self, weights: Array, data: Dataset, *, key: Array, samples: int = 0) -> Array:
        """Estimation error per entry, of several layers their mean; NaN without a teacher."""
        del key, samples
        if data.teacher is None:
            return jnp.asarray(jnp.nan, theory_dtype())
        return self.matrix_error(self.estimate(weights), data.teacher)

    @property
    def small_width_threshold(self) -> Array:
        """The ᾱ from which on something is learned, as ρ → 0."""
        _ = self.channel.tolerated
        one, (start, scale) = jnp.ones((), theory_dtype()), self.prior.small_width_start
        return start / (scale * self.channel.response(0.0 * one, one))

    def small_width_error(self, scaled: Any) -> Array:
        """V at ᾱ as ρ → 0 (class docstring), elementwise."""
        _ = self.channel.tolerated
        scaled = jnp.asarray(scaled, theory_dtype())
        check(jnp.all(scaled >= 0.0), "scaled", scaled, "numbers >= 0")
        start, scale = self.prior.small_width_start

        def height(log_t: Array) -> Array:
            V = self.prior.small_width(jnp.exp(log_t))
            return log_t - jnp.log(scale * self.channel.response(1.0 - V, V))

        low = lax.stop_gradient(jnp.log(start) + jnp.zeros_like(scaled))
        above = lambda log_t: height(log_t) > jnp.log(scaled)
        held = lax.stop_gradient(bisect(above, low, jnp.full_like(scaled, np.log(1e10))))
        learned = (held - low > 1e-12) & (held < np.log(0.9e10))
        inside = jnp.where(learned, held, low + 1.0)
        slope = lax.stop_gradient(jax.jvp(height, (inside,), (jnp.ones_like(inside),))[1])
        move = (height(inside) - jnp.log(jnp.where(learned, scaled, 1.0))) / slope  # a Newton step makes the derivative
        log_t = jnp.where(learned, inside - move, held)
        V = jnp.where(held - low > 1e-12, self.prior.small_width(jnp.exp(log_t)), 1.0)
        return jnp.where(held > np.log(0.9e10), 0.0, jnp.where(scaled >= 0.0, V, jnp.nan))

    @abc.abstractmethod
    def prediction_error(self, q: Array, bayes: bool, key: Array | None, samples: int) -> Estimate:
        """Mean squared error of the label of a new input at overlap q, of the Bayes or of the plug-in predictor."""


def _best_order(table: Array) -> Array:
    """Column of each row of a square table, so that the sum is largest: all orders up to six rows, greedily above."""
    count = len(table)
    if count <= 6:
        orders = jnp.asarray(list(itertools.permutations(range(count))))
        return orders[jnp.argmax(jnp.sum(table[jnp.arange(count), orders], axis=1))]
    order = jnp.zeros((count,), int)
    for _ in range(count):
        row, column = jnp.divmod(jnp.argmax(table), count)
        order = order.at[row].set(column)
        table = table.at[row].set(-jnp.inf).at[:, column].set(-jnp.inf)
    return order


def _block_cosines(kind: str, cross: Array, Q: Array, rho: Array, rows: np.ndarray, goal: np.ndarray) -> Array:
    """Cosines of the rows of an estimate with those of a teacher, up to what can be done inside the block."""
    if kind == "query and key":
        half = len(rows) // 2
        if half == 1:
            return _block_cosines("joint sign", cross, Q, rho, rows, goal)
        parts = ((rows[:half], goal[:half]), (rows[half:], goal[half:]))
        return jnp.concatenate([_block_cosines("rotation", cross, Q, rho, a, b) for a, b in parts])
    cross, Q, rho = cross[np.ix_(rows, goal)], Q[np.ix_(rows, rows)], rho[np.ix_(goal, goal)]
    if kind == "rotation":  # cosines of the principal angles between the two row spaces
        return jnp.linalg.svd(_inverse_root(Q) @ cross @ _inverse_root(rho), compute_uv=False)
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(Q) * jnp.diagonal(rho), jnp.finfo(Q.dtype).tiny))
    values = jnp.diagonal(cross) / scale
    if kind == "sign":
        return jnp.abs(values)
    return values * jnp.where(jnp.sum(values) < 0.0, -1.0, 1.0) if kind == "joint sign" else values


@eqx.filter_jit
def _labels(channel: AbstractChannel, inputs: Array, teacher: Array, noise: Array) -> Array:
    return jax.vmap(channel.label)(IndexSensing(inputs).forward(teacher), noise)


def _inverse_root(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    small = jnp.finfo(matrix.dtype).tiny
    scale = jnp.where(values > 1e-14 * values[-1], 1.0 / jnp.sqrt(jnp.maximum(values, small)), 0.0)
    return (vectors * scale) @ vectors.T


def align(estimate: Any, teacher: Any, model: AbstractIndexModel) -> Array:
    r"""Bring an estimate onto a teacher by the model's symmetries: sign, permutation, rotation within a layer.

    Minimises ‖R Ŵ - W*‖_F over the group: signs of M_pp; the best signed permutation; Procrustes R = U Vᵀ of M_bᵀ.
    Arguments: `estimate`, `teacher` (P, D); `model`. Returns: the aligned estimate (P, D).
    Raises: ValueError where the shapes differ from each other or from P. Cost: O(P² D). Source: spec section 4.
    Example:
    >>> import jax, jax.numpy as jnp, jaxsmi as smi
    >>> W = jax.random.normal(jax.random.key(0), (2, 5))
    >>> bool(jnp.allclose(smi.align(-W, W, smi.DeepAttention(2, 2)), W))
    True
    """
    estimate, teacher = jnp.asarray(estimate), jnp.asarray(teacher)
    check(teacher.ndim == 2 and teacher.shape[0] == model.indices, "teacher", teacher, f"({model.indices}, D)")
    check(estimate.shape == teacher.shape, "estimate", estimate, f"the teacher's shape {teacher.shape}")
    check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
    check(jnp.all(jnp.isfinite(estimate)), "estimate", estimate, "finite numbers")
    for block, kind in model.symmetry:
        if kind.endswith("signed permutation"):
            rows, cross = np.asarray(block), np.asarray(estimate @ teacher.T)
            part = cross[np.ix_(rows, rows)]
            taken, goal = _matched(np.abs(part))
            signs = np.where(part[taken, goal] < 0, -1.0, 1.0)
            if kind.startswith("even"):  # an odd number of flips changes the label: the least certain row pays
                signs[np.argmin(np.abs(part[taken, goal]))] *= np.prod(signs)
            estimate = estimate.at[rows[goal]].set(estimate[rows[taken]] * signs[:, None])
            continue
        heads = np.atleast_2d(block)
        cross, Q, rho = estimate @ teacher.T, estimate @ estimate.T, teacher @ teacher.T
        each = [[jnp.sum(_block_cosines(kind, cross, Q, rho, a, b)) for b in heads] for a in heads]
        taken, goal = _matched(np.asarray(each))
        moved = [_block_aligned(kind, estimate[heads[i]], teacher[heads[j]]) for i, j in zip(taken, goal, strict=True)]
        estimate = estimate.at[heads[goal]].set(jnp.stack(moved))
    return estimate


def _matched(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the assignment of largest sum."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(-table)


def _block_aligned(kind: str, rows: Array, goal: Array) -> Array:
    """Rows of an estimate brought onto those of a teacher by what leaves the labels of the block unchanged."""
    if kind == "sign":
        return rows * jnp.where(jnp.sum(rows * goal, axis=1) < 0, -1.0, 1.0)[:, None]
    if kind == "joint sign":
        return rows * jnp.where(jnp.sum(rows * goal) < 0, -1.0, 1.0)
    if kind == "rotation":
        u, _, vt = jnp.linalg.svd(goal @ rows.T, full_matrices=False)
        return (u @ vt) @ rows
    if kind == "query and key":  # least squares for the query; the key moves against it
        query, key = jnp.split(rows, 2)
        A = jnp.linalg.lstsq(query.T, jnp.split(goal, 2)[0].T)[0].T
        return jnp.concatenate([A @ query, jnp.linalg.solve(A.T, key)])
    return rows


def prediction_error(
    model: AbstractIndexModel,
    Q: Array,
    *,
    key: Array,
    cross: Array | None = None,
    second_moment: Array | None = None,
    bayes: bool = False,
    samples: int = 4096,
    randomisations: int = 8,
    truth: AbstractIndexModel | None = None,
) -> Estimate:
    """Prediction error at given overlaps, by randomised nets. `cross` M defaults to Q, `second_moment` ρ to the prior's,
    `truth`, the model that makes the labels, to the model itself (else M is (P, P*) and ρ (P*, P*))."""
    P, M = model.indices, model.tokens
    truth = model if truth is None else truth
    rho = model.prior.second_moment(P) if second_moment is None else second_moment
    goal = rho.shape[0]
    points = randomised_gaussians(key, samples, randomisations, (P + (2 if bayes else 1) * goal) * M)
    parts = points.reshape(randomisations, samples, -1, M)
    xi, eta = parts[:, :, :P], parts[:, :, P : P + goal]
    root = sqrt_psd(Q)
    if cross is None and second_moment is None:  # z = Q^{1/2} ξ + (S - Q)^{1/2} η, whose derivative in Q is regular
        into, rest = root, sqrt_psd(rho - Q)
    else:  # with ω = Q^{1/2} ξ, z = Mᵀ Q^{-1/2} ξ + (ρ - Mᵀ Q^{-1} M)^{1/2} η
        cross, inverse = Q if cross is None else cross, _inverse_root(Q)
        into, rest = cross.T @ inverse, sqrt_psd(rho - cross.T @ inverse @ inverse @ cross)
    omega = jnp.einsum("pq,rsqm->rspm", root, xi)
    mean = jnp.einsum("pq,rsqm->rspm", into, xi)
    link, true_link = jax.vmap(jax.vmap(model.link)), jax.vmap(jax.vmap(truth.link))
    labels = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, eta))
    other = link(omega)
    if bayes:
        other = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, parts[:, :, P + goal :]))
    squared = jnp.sum((labels - other).reshape(randomisations, samples, -1) ** 2, axis=-1) * (0.5 if bayes else 1.0)
    each = jnp.mean(squared, axis=1)
    return Estimate(jnp.mean(each), jnp.std(each, ddof=1) / np.sqrt(randomisations))


_prediction_error = eqx.filter_jit(prediction_error)


def generalization_error(
    model: AbstractIndexModel | AbstractMatrixModel,
    overlap: Any,
    *,
    key: Array | None = None,
    predictor: str = "plug-in",
    samples: int = 32768,
) -> Estimate:
    r"""Prediction error on a new input at overlap Q, without label noise.

    Matrix models: h = ω + √V GOE(T), ω ~ √q GOE(T); exact where there is a closed form (T = 2, linear).
    plug-in: E ‖link(z) - link(ω)‖²;  bayes: E ‖link(z) - E[link(z)|ω]‖²;  ω ~ N(0, Q), z ~ N(ω, S - Q) for each token.
    Arguments: `overlap` (P, P) (or a Solution), 0 ⪯ Q ⪯ S, S the prior's second moment; `predictor` "plug-in" or "bayes".
    Returns: an `Estimate` (value, stderr). Raises: ValueError for a wrong shape or predictor, or Q outside that range.
    Cost: `samples` links. Source: [TCDKZ25], spec section 5.
    Example:
    >>> import jax, jaxsmi as smi
    >>> round(float(smi.generalization_error(smi.links.linear(0.1), 0.75, key=jax.random.key(0))), 3)
    0.25
    """
    P = model.indices
    if isinstance(model, AbstractMatrixModel):
        check(P == 1, "model", f"{P} layers", "one layer")
    Q = jnp.asarray(getattr(overlap, "overlap", overlap), theory_dtype())
    Q = Q * jnp.eye(P) if Q.ndim == 0 else Q
    check(Q.shape == (P, P), "overlap", Q, f"an array of shape {(P, P)}")
    check(predictor in ("plug-in", "bayes"), "predictor", predictor, "'plug-in' or 'bayes'")
    check(jnp.all(jnp.isfinite(Q)), "overlap", Q, "finite numbers")
    spare = jnp.linalg.eigvalsh(model.prior.second_moment(P) - Q)
    check(jnp.all(spare > -1e-9) & jnp.all(jnp.linalg.eigvalsh(Q) > -1e-9), "overlap", Q, "0 ⪯ Q ⪯ second moment")
    valid = jnp.all(spare > -1e-9) & jnp.all(jnp.linalg.eigvalsh(Q) > -1e-9)
    if isinstance(model, AbstractMatrixModel):
        return model.prediction_error(jnp.where(valid, Q[0, 0], jnp.nan), predictor == "bayes", key, samples)
    check(key is not None, "key", None, "a key: jax.random.key(0)")
    assert key is not None
    return _prediction_error(
        model,
        jnp.where(valid, Q, jnp.nan),
        key=key,
        bayes=predictor == "bayes",
        samples=power_of_two(samples // 8),
        randomisations=8,
    )
