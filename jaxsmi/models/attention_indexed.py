r"""Attention-indexed models: attention of extensive rank, the label a function of the matrix of indices of a sequence.

Equations here [BTEZ25; theory: attention-indexed, Eqs. (1) to (7), (30) to (39), (45)],
S = W Wᵀ/√(r d), tokens x_1..x_T iid N(0, I_d):

    h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d,   y = softmax(β h) | hardmax(h) | h + noise,     α = n/d², ρ = r/d
    L layers [Eq. (45)]: B_0 = I, A_l = softmax(β B_{l-1} h^l B_{l-1}ᵀ), B_l = (c I + A_l) B_{l-1}, y = A_L
    perfect recovery from α = D(ρ)/M: M = T(T+1) (linear), T² + T - 2 (softmax); hardmax: never, V ~ c(ρ) α^{-2},
        c(ρ) = π (1+ρ) D(ρ)²/(8 K²),  K = ∫ φ²/(Φ(1 - Φ))
    small width, ᾱ = α/ρ, ρ → 0: something is learned from ᾱ_c = 1/f(0) at Q_0 = 1
    prediction error of E[y|ω], ω ~ √q GOE(T), h = ω + √V GOE(T):  linear T(T+1) V;  hardmax, T = 2: (2/π) arccos(q/Q_0);
        softmax, T = 2: 4 E_w Var_u[sigmoid(β u)], w ~ N(0, 3q), u ~ N(w, 3V)
        of y(ω): the same;  (4/π) arccos √(q/Q_0);  4 E (sigmoid(β u) - sigmoid(β w))²
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, NoInference
from jaxsmi.channels.hardmax import HardmaxIndices, sign_information
from jaxsmi.channels.index_matrix import AbstractIndices, LinearIndices, SoftmaxIndices
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import Ability, check, require
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Estimate
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.priors.wishart import WishartPrior
from jaxsmi.sensing.blocks import Inputs, draw_inputs, mapped, product_dtype
from jaxsmi.sensing.symmetric import SymmetricSensing

OUTPUTS = ("softmax", "hardmax", "linear")


class AttentionIndexed(AbstractMatrixModel):
    r"""One attention layer of extensive rank: y = g(h), h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d, S = W Wᵀ/√(r d).

    Arguments: `tokens` T; `rank_ratio` ρ = r/d > 0; `output` "softmax", "hardmax" or "linear"; `beta` > 0 of the softmax; `noise`
    Δ >= 0 of the linear output (variance Δ on the diagonal of h, Δ/2 off it); `layers` L, all of width ρ, with residual
    strength `skip` c (L > 1: data and training only; hardmax with T > 2: no message passing). Sample complexity is α = n/d².
    Raises: ValueError for arguments out of range, one token with softmax or hardmax (no information), noise elsewhere.
    Example:
    >>> import jax, jaxsmi as smi
    >>> jax.config.update("jax_enable_x64", True)
    >>> model = smi.AttentionIndexed(tokens=2, rank_ratio=0.5, output="softmax")
    >>> round(float(smi.state_evolution(model, 0.1).error), 6)
    0.392196
    """

    prior: WishartPrior
    beta: Array
    noise: Array
    skip: Array
    tokens: int = eqx.field(static=True)
    output: str = eqx.field(static=True)
    layers: int = eqx.field(static=True)

    def __init__(
        self, tokens: int, rank_ratio: Any, output: str = "softmax", *,
        beta: Any = 1.0, noise: Any = 0.0, layers: int = 1, skip: Any = 1.0,
    ):  # fmt: skip
        least = 1 if output == "linear" else 2
        check(output in OUTPUTS, "output", output, f"one of {OUTPUTS}")
        check(
            isinstance(tokens, (int, np.integer)) and tokens >= least,
            "tokens",
            tokens,
            f"an integer >= {least}",
        )
        check(output != "hardmax" or tokens <= 5, "tokens", tokens, "2 to 5 for hardmax")
        check(
            isinstance(layers, (int, np.integer)) and layers >= 1,
            "layers",
            layers,
            "an integer >= 1",
        )
        check(layers == 1 or output != "linear", "layers", layers, "1 for the linear output")
        beta, noise, skip = (jnp.asarray(x, theory_dtype()) for x in (beta, noise, skip))
        check(
            beta.ndim == 0 and jnp.isfinite(beta) & (beta > 0),
            "beta",
            beta,
            "a finite number > 0 (or output='hardmax')",
        )
        check(
            noise.ndim == 0 and jnp.isfinite(noise) & (noise >= 0),
            "noise",
            noise,
            "a variance >= 0",
        )
        check((output == "linear") | (noise == 0), "noise", noise, "0 but for the linear output")
        check(
            skip.ndim == 0 and jnp.isfinite(skip) & (skip >= 0),
            "skip",
            skip,
            "a finite number >= 0",
        )
        self.prior, self.output, self.beta, self.noise, self.skip = (
            WishartPrior(rank_ratio),
            output,
            beta,
            noise,
            skip,
        )
        self.tokens, self.layers = int(tokens), int(layers)

    @property
    def channel(self) -> AbstractChannel:
        """What a label says about the scores; of one layer only."""
        T, L = self.tokens, self.layers
        if L > 1:
            name = f"AttentionIndexed({T} tokens, {self.output}, {L} layer(s))"
            remedy = "one layer; more can be sampled and trained"
            return NoInference(law=self.link, indices=L, tokens=T, name=name, remedy=remedy)
        return self.readout

    @property
    def readout(self) -> AbstractIndices:
        """The last layer: what a label says about the scores it was made of."""
        if self.output == "linear":
            return LinearIndices(tokens=self.tokens, noise=self.noise)
        return (
            SoftmaxIndices(tokens=self.tokens, beta=self.beta)
            if self.output == "softmax"
            else HardmaxIndices(tokens=self.tokens)
        )

    @property
    def indices(self) -> int:
        """How many matrices there are: the number of layers."""
        return self.layers

    @property
    def index_names(self) -> tuple[str, ...]:
        """What to call them: "S", or "layer 1" and so on."""
        return (
            ("S",) if self.layers == 1 else tuple(f"layer {l}" for l in range(1, self.layers + 1))
        )

    @property
    def recovery(self) -> Array:
        """α = D(ρ)/M of perfect recovery; inf where there is none."""
        require(self, Ability.INFERENCE)
        if self.output == "hardmax":
            return jnp.asarray(jnp.inf, theory_dtype())
        return jnp.where(
            self.noise > 0.0, jnp.inf, self.prior.degrees_of_freedom / self.readout.measurements
        )

    @property
    def decay(self) -> Array:
        """c(ρ) of hardmax with two tokens, V ~ c(ρ)/α² for large α."""
        check(
            self.output == "hardmax" and self.tokens == 2,
            "model",
            self.output,
            "hardmax with two tokens",
        )
        return (
            np.pi
            * self.prior.norm
            * self.prior.degrees_of_freedom**2
            / (8.0 * sign_information() ** 2)
        )

    # what message passing and training ask of a model ------------------------------------------------------------------

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of `gamp`, the default first: theory's where the labels fix linear combinations of the indices
        [theory: attention-indexed, Eq. (42)]."""
        return ("outer", "state") if self.output == "hardmax" else ("state", "outer")

    @property
    def dampings(self) -> tuple[float, ...]:
        """That `gamp` tries one after the other: undamped, noiseless softmax and linear labels diverge at d = 100, and hardmax
        bursts at d = 40."""
        return (0.3, 0.6, 0.8) if self.output == "hardmax" else (0.4, 0.7, 0.85)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, or labels of another shape."""
        T = self.tokens
        check(
            data.inputs.shape[1] == T, "data.inputs", data.inputs, f"(n, {T}, d): T tokens a sample"
        )
        check(data.inputs.shape[2] >= 2, "data.inputs", data.inputs, "a dimension d >= 2")
        check(data.labels.shape[1:] == (T, T), "data.labels", data.labels, f"(n, {T}, {T})")
        del teacher
        known = getattr(data.model, "layers", self.layers)
        same = known == self.layers and (
            data.teacher is None or data.teacher.shape[0] % self.layers == 0
        )
        allowed = f"one of {self.layers}, or Dataset(inputs, labels) without a teacher"
        check(same or data.teacher is None, "data", f"a teacher of {known} layer(s)", allowed)
        real = not (jnp.iscomplexobj(data.inputs) or jnp.iscomplexobj(data.labels))
        check(real, "data.inputs", data.inputs.dtype.name, "real inputs and labels")

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal √d S (1, d, d) and of its fields (n, 1, T²) in message passing."""
        self.check_data(data)
        require(self, Ability.INFERENCE)
        return (1, data.dimension, data.dimension), (data.samples, 1, self.tokens**2)

    def sensing(self, data: Dataset) -> SymmetricSensing:
        """How the signal is seen through the inputs of `data`."""
        return SymmetricSensing(data.inputs)

    def estimate(self, signal: Array) -> Array:
        """S (d, d), of several layers (L, d, d), from the signal √d S (1, d, d) of message passing or from factors (L r, d)."""
        S = self._matrices(signal)
        return S[0] if self.layers == 1 else S

    def _matrices(self, signal: Array) -> Array:
        signal = signal.astype(theory_dtype())
        if signal.ndim == 3:
            return signal / jnp.sqrt(float(signal.shape[-1]))
        return jax.vmap(lambda rows: self.prior.matrix(rows.T))(self._factors(signal))

    def _factors(self, weights: Array) -> Array:
        return weights.reshape(self.layers, -1, weights.shape[-1])

    def signal(self, teacher: Array) -> Array:
        """√d S (1, d, d) of a teacher (r, d)."""
        return jnp.sqrt(float(teacher.shape[1])) * self.estimate(teacher)[None]

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """Tr Ŝ_l Ŝ_k/d as "overlap" (L, L), Tr Ŝ_l S*_k/d as "teacher_overlap", "cosine" (L,) of both; NaN without S*."""
        S, d = self._matrices(weights), weights.shape[-1]
        Q = jnp.einsum("lij,kij->lk", S, S) / d
        cross, cosine = jnp.full(Q.shape, jnp.nan, S.dtype), jnp.full(Q.shape[:1], jnp.nan, S.dtype)
        if teacher is not None:
            truth = self._matrices(teacher)
            cross = jnp.einsum("lij,kij->lk", S, truth) / d
            cosine = jnp.diagonal(cross) / jnp.sqrt(
                jnp.diagonal(Q) * jnp.einsum("lij,lij->l", truth, truth) / d
            )
        return {"overlap": Q, "teacher_overlap": cross, "cosine": cosine}

    def check_teacher(self, teacher: Array, estimate: tuple[int, ...]) -> None:
        """W (L r, d), of any r."""
        fits = (
            teacher.ndim == 2
            and teacher.shape[1] == estimate[-1]
            and teacher.shape[0] % self.layers == 0
        )
        check(fits, "teacher", teacher, f"data.teacher: factors ({self.layers} r, {estimate[-1]})")

    def estimation_error(self, S: Array, teacher: Array) -> Array:
        """‖Ŝ - S*‖²/d of an estimate (d, d) or (L, d, d), for a teacher (L r, d)."""
        return jnp.sum((S - self.estimate(teacher)) ** 2) / (teacher.shape[1] * self.layers)

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (T, d)."""
        return (self.tokens, dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student, (L r, d)."""
        return (self.layers * self.prior.width(dimension), dimension)

    def complexity(self, samples: int, dimension: int) -> float:
        """α = n/d²."""
        return samples / dimension**2

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Labels of inputs (n, T, d) for factors (L r, d), in the precision of the inputs: what `train` differentiates."""
        cast = jax.tree.map(
            lambda x: x.astype(inputs.dtype) if eqx.is_inexact_array(x) else x, self
        )
        return jax.vmap(cast.link)(self.fields_of(weights, inputs).astype(inputs.dtype))

    def predict(self, solution: Any, inputs: Any) -> Array:
        """Labels (n, T, T) of new inputs (n, T, d) for Ŝ: `solution` of `gamp` or `train`, or a symmetric matrix (d, d).

        Raises: ValueError for a solution of theory, or shapes that do not fit.
        """
        S, inputs = getattr(solution, "weights", solution), jnp.asarray(inputs)
        check(
            S is not None, "solution", "a solution without weights", "the solution of gamp or train"
        )
        check(
            self.layers == 1,
            "model",
            f"{self.layers} layers",
            "one layer (of more: model.outputs(fit.state.weights, inputs))",
        )
        check(S.ndim == 2 and S.shape[0] == S.shape[1], "solution", S, "a matrix (d, d)")
        shape = (self.tokens, S.shape[0])
        check(
            inputs.ndim == 3 and inputs.shape[1:] == shape,
            "inputs",
            inputs,
            f"an array of shape (n, *{shape})",
        )
        check(jnp.isfinite(jnp.sum(jnp.abs(inputs))), "inputs", inputs, "finite numbers")
        inputs = (
            inputs if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs.astype(theory_dtype())
        )
        return jax.vmap(self.link)(
            SymmetricSensing(inputs).forward(jnp.sqrt(float(S.shape[0])) * S[None])
        )

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """E ‖y(h) - ŷ(ω)‖² at overlap q, without label noise (module docstring): ŷ = E[y|ω] (`bayes`) or y(ω)."""
        check(self.layers == 1, "model", f"{self.layers} layers", "one layer")
        q = Q[0, 0]
        T, V, zero = self.tokens, self.prior.norm - q, jnp.zeros((), theory_dtype())
        if self.output == "linear":
            return Estimate(T * (T + 1) * V, zero)
        if self.output == "hardmax" and T == 2:
            x = jnp.clip(q / self.prior.norm, 0.0, 1.0)
            return Estimate(
                2.0 / np.pi * jnp.arccos(x) if bayes else 4.0 / np.pi * jnp.arccos(jnp.sqrt(x)),
                zero,
            )
        if T == 2:
            fine, coarse = (
                _two_token_error(q, V, self.beta, bayes, nodes)
                for nodes in (_ERROR_NODES, _ERROR_NODES // 2)
            )
            error = jnp.abs(fine - coarse)  # steps of a large β
            return Estimate(fine, jnp.where(error > 1e-8, error, 0.0))
        check(key is not None, "key", None, "a key: jax.random.key(0)")
        assert key is not None
        each, replicas = power_of_two(max(samples // 8, 2)), 8
        points = randomised_gaussians(key, each, replicas, 3 * T * T).reshape(
            replicas, each, 3, T, T
        )
        points = jnp.sqrt(0.5) * (points + jnp.swapaxes(points, -1, -2))  # GOE(T)
        omega = jnp.sqrt(q) * points[:, :, 0]
        one, two = (
            jax.vmap(jax.vmap(self.link))(omega + jnp.sqrt(V) * points[:, :, k]) for k in (1, 2)
        )
        other = two if bayes else jax.vmap(jax.vmap(self.link))(omega)
        squared = jnp.mean(jnp.sum((one - other) ** 2, axis=(-2, -1)), axis=1) * (
            0.5 if bayes else 1.0
        )
        return Estimate(jnp.mean(squared), jnp.std(squared, ddof=1) / np.sqrt(replicas))

    def indices_of(self, W: Array, inputs: Inputs) -> Array:
        """h (n, T, T) of inputs (n, T, d) for weights (d, r)."""
        d, r = W.shape
        narrow, trace = W.astype(product_dtype(inputs)), jnp.sum(W.astype(theory_dtype()) ** 2)

        def products(x: Array) -> Array:
            z = jnp.einsum("ntd,dr->ntr", x, narrow, precision="highest").astype(theory_dtype())
            return jnp.einsum("nar,nbr->nab", z, z)

        scores = mapped(products, inputs) - trace * jnp.eye(inputs.shape[1])
        return scores / jnp.sqrt(float(r * d)) / jnp.sqrt(float(d))

    def fields_of(self, weights: Array, inputs: Inputs) -> Array:
        """h (n, L, T, T) of inputs (n, T, d) for factors (L r, d)."""
        return jnp.stack(
            [self.indices_of(rows.T, inputs) for rows in self._factors(weights)], axis=1
        )

    def link(self, fields: Array) -> Array:
        """The noiseless label (T, T) of one sample from its indices (T, T) or (L, T, T), or as one field vector (1, T²)."""
        h = fields.reshape(self.layers, self.tokens, self.tokens)
        B = jnp.eye(self.tokens, dtype=h.dtype)
        for inner in h[:-1]:
            B = (
                self.skip * jnp.eye(self.tokens, dtype=h.dtype) + self.readout.link(B @ inner @ B.T)
            ) @ B
        return self.readout.link(B @ h[-1] @ B.T)

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
        """Draw a teacher W (L r, d), n = round(α d²) inputs (n, T, d) and their labels (n, T, T).

        Arguments: `dimension` d >= 2; `alpha` = n/d² > 0; `dtype` of the inputs; `teacher` (L r, d) to reuse, of any r; `store`:
        False for inputs that are drawn again whenever they are read (float32, n rounded to whole blocks).
        Returns: a `Dataset`. Raises: ValueError for arguments out of range.
        """
        check(
            isinstance(dimension, (int, np.integer)) and dimension >= 2,
            "dimension",
            dimension,
            "an integer d >= 2",
        )
        check(np.isfinite(alpha) and alpha > 0, "alpha", alpha, "a positive number n/d²")
        samples = max(round(float(alpha) * dimension**2), 1)
        teacher_key, input_key, noise_key = jax.random.split(key, 3)
        W = (
            self.start(teacher_key, dimension)
            if teacher is None
            else jnp.asarray(teacher, theory_dtype())
        )
        fits = (
            W.ndim == 2
            and W.shape[1] == dimension
            and W.shape[0] % self.layers == 0
            and W.shape[0] > 0
        )
        check(
            fits, "teacher", W, f"({'' if self.layers == 1 else f'{self.layers} '}r, {dimension})"
        )
        dtype = dtype or (theory_dtype() if store else jnp.float32)
        inputs = draw_inputs(input_key, samples, (self.tokens, dimension), dtype, store)
        labels = jax.vmap(self.link)(self.fields_of(W, inputs))
        if self.output == "linear":
            noise = jax.random.normal(noise_key, labels.shape, labels.dtype)
            labels = jax.vmap(self.readout.label)(labels, noise)
        return Dataset(inputs, labels, W, self)


_ERROR_NODES = 600  # of Gauss-Legendre, ten standard deviations to either side: 1e-8 [theory: attention-indexed, section 5]


@functools.partial(jax.jit, static_argnums=4)
def _two_token_error(q: Array, V: Array, beta: Array, bayes: bool, nodes: int) -> Array:
    """4 E_w Var_u[sigmoid(β u)], or 4 E (sigmoid(β u) - sigmoid(β w))²."""
    x, weights = legendre(nodes)
    x, weights = 10.0 * x, 10.0 * weights * np.exp(-50.0 * x**2) / np.sqrt(2.0 * np.pi)
    w = jnp.sqrt(3.0 * q) * x
    answers = jax.nn.sigmoid(beta * (w[:, None] + jnp.sqrt(3.0 * V) * x))
    mean = jnp.where(bayes, answers @ weights, jax.nn.sigmoid(beta * w))
    return 4.0 * jnp.sum(weights * (((answers - mean[:, None]) ** 2) @ weights))
