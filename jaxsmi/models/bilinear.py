r"""Bilinear sequence regression: a number linear in the tokens of a sequence, through a matrix of extensive rank.

Equations here [ETBMZ25; theory: bilinear, Eqs. (1) to (4), (14) to (19)],
a sequence X of L tokens in d dimensions, S = (U V)ᵀ/√r (L, d) with
U (d, r) and V (r, L) iid N(0, 1), β = L/d, ρ = r/d:

    y = ⟨X, S⟩/√(dL) + √Δ z,     α = n/(dL);   error ‖Ŝ - S‖²/(dL) = V, of a new label V (+ Δ)
    perfect recovery (Δ = 0) from α = D = ρ (1 + β - ρ)/β (ρ <= 1, ρ <= β), else 1
    small width, ᾱ = n/(r (d + L)), ρ → 0: something is learned from ᾱ = (1 + Δ) √β/(1 + β)
    β → ∞ (Δ = 0): V = (1 - α)(1 - α/ρ);   ρ → ∞: ridge regression with penalty Δ

Symmetric [MTMKZ24; theory: bilinear, Eqs. (6), (7), (11), (15)],
S = W Wᵀ/√r (d, d), X symmetric and Gaussian, variance 1 off the diagonal,
2 on it:

    y = ⟨X, S⟩/d + √Δ z,     α = n/d²;    error ‖Ŝ - S‖²/d² = V, of a new label 2V (+ Δ)

which is `AttentionIndexed(1, ρ, "linear", noise=Δ)` with X in place of x xᵀ - I: a quadratic network, with the same
asymptotics. A hidden layer with noise σ, y = (1/√r) Σ_k (w_k·x/√d + σ z_k)², has Δ = 4σ² + 2σ⁴.
"""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.index_matrix import LinearField, LinearIndices
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.results import Estimate
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.priors.product import ProductPrior, gaussian_error
from jaxsmi.priors.spectral import AbstractSpectralPrior
from jaxsmi.priors.wishart import WishartPrior
from jaxsmi.sensing.blocks import draw_inputs, gaussian
from jaxsmi.sensing.rectangular import RectangularSensing


def symmetric_gaussian(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Symmetric matrices (n, d, d): off-diagonal entries of variance 1, diagonal ones of variance 2."""
    X = gaussian(key, shape, dtype)
    return (X + jnp.swapaxes(X, 1, 2)) * np.sqrt(0.5).astype(X.dtype)


class Bilinear(AbstractMatrixModel):
    r"""Bilinear sequence regression: y = ⟨X, S⟩/√(dL) + √Δ z, S (L, d) a product of width r (module docstring).

    Arguments: `aspect_ratio` β = L/d > 0 (infinite: theory only); `rank_ratio` ρ = r/d > 0; `noise` Δ >= 0, the variance of the
    label noise; `symmetric`: S = W Wᵀ/√r of a quadratic network (β = 1). Sample complexity is α = n/(dL).
    Inputs are (n, L, d), S and the teacher (L, d): one row a token.
    Raises: ValueError for arguments out of range.
    Example:
    >>> import jax, jaxsmi as smi
    >>> jax.config.update("jax_enable_x64", True)
    >>> model = smi.Bilinear(aspect_ratio=1.0, rank_ratio=0.2)
    >>> round(float(smi.state_evolution(model, 0.3).error), 10)
    0.3474043203
    """

    prior: AbstractSpectralPrior
    noise: Array
    symmetric: bool = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(
        self,
        aspect_ratio: Any = 1.0,
        rank_ratio: Any = 0.2,
        noise: Any = 0.0,
        symmetric: bool = False,
    ):
        check(isinstance(symmetric, (bool, np.bool_)), "symmetric", symmetric, "True or False")
        if symmetric:
            check(
                jnp.asarray(aspect_ratio) == 1.0,
                "aspect_ratio",
                aspect_ratio,
                "1 for a symmetric matrix",
            )
            rank_ratio = jnp.where(
                jnp.asarray(aspect_ratio) == 1.0, rank_ratio, jnp.nan
            )  # under jit
        noise = jnp.asarray(noise, theory_dtype())
        check(
            noise.ndim == 0 and jnp.isfinite(noise) & (noise >= 0),
            "noise",
            noise,
            "a finite variance >= 0",
        )
        self.prior = (
            WishartPrior(rank_ratio) if symmetric else ProductPrior(aspect_ratio, rank_ratio)
        )
        self.noise, self.symmetric, self.tokens = noise, bool(symmetric), 1  # one field a sample

    @property
    def aspect_ratio(self) -> Array:
        """β."""
        return (
            self.prior.aspect_ratio
            if isinstance(self.prior, ProductPrior)
            else jnp.ones((), theory_dtype())
        )

    @property
    def readout(self) -> LinearIndices:
        """What a label says about its field."""
        return (
            LinearIndices(tokens=1, noise=self.noise)
            if self.symmetric
            else LinearField(noise=self.noise)
        )

    @property
    def channel(self) -> LinearIndices:
        """The same."""
        return self.readout

    @property
    def indices(self) -> int:
        """One matrix."""
        return 1

    @property
    def recovery(self) -> Array:
        """α of perfect recovery; inf with noise."""
        return jnp.where(
            self.noise > 0.0, jnp.inf, self.prior.degrees_of_freedom / self.readout.measurements
        )

    def length(self, dimension: int) -> int:
        """L = round(β d)."""
        return self.prior.length(dimension) if isinstance(self.prior, ProductPrior) else dimension

    @property
    def small_width_threshold(self) -> Array:
        """(1 + Δ) √β/(1 + β); 0 at β = ∞."""
        return jnp.where(jnp.isinf(self.aspect_ratio), 0.0, super().small_width_threshold)

    def small_width_error(self, scaled: Any) -> Array:
        """V at ᾱ as ρ → 0, elementwise; at β = ∞ that of a Gaussian S at α = ᾱ."""
        return jnp.where(
            jnp.isinf(self.aspect_ratio),
            gaussian_error(scaled, self.noise),
            super().small_width_error(scaled),
        )

    # what message passing and training ask of a model ------------------------------------------------------------------

    # of `gamp`, the default first: with damping and without noise "outer" lets V collapse; undamped, "state" can explode
    @property
    def precisions(self) -> tuple[str, ...]:
        """That of theory first."""
        return ("state", "outer")

    @property
    def dampings(self) -> tuple[float, ...]:
        """That `gamp` tries one after the other: without noise, undamped runs diverge."""
        return (0.5, 0.7, 0.85)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs, labels or a teacher of another shape."""
        L, d = data.inputs.shape[1:]
        if self.symmetric:
            check(d == L, "data.inputs", data.inputs, "(n, d, d)")
            own = isinstance(data.inputs, Regenerated)  # by a law of this file
            gap = 0.0 if own else jnp.max(jnp.abs(data.inputs - jnp.swapaxes(data.inputs, 1, 2)))
            allowed = "symmetric matrices (of vectors: AttentionIndexed(1, ρ, 'linear'))"
            check(gap <= 1e-5, "data.inputs", data.inputs, allowed)
        else:
            asked = self.length(d) if concrete(self.aspect_ratio) else L
            check(asked == L, "data.inputs", data.inputs, f"(n, {asked}, {d}): β d tokens a sample")
        check(data.labels.ndim == 1, "data.labels", data.labels, "(n,)")
        if teacher and data.teacher is not None:
            check(data.teacher.shape == (L, d), "data.teacher", data.teacher, f"S ({L}, {d})")

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal (1, L, d) and of its fields (n, 1, 1) in message passing."""
        self.check_data(data)
        return (1, *data.inputs.shape[1:]), (data.samples, 1, 1)

    def sensing(self, data: Dataset) -> RectangularSensing:
        """How the signal is seen through the inputs of `data`."""
        return RectangularSensing(data.inputs)

    def estimate(self, signal: Array) -> Array:
        """S (L, d) from the signal (1, L, d) of message passing, or from the factors of a student."""
        signal = signal.astype(theory_dtype())
        return signal[0] if signal.ndim == 3 else self.product(signal)

    def product(self, factors: Array, length: int | None = None) -> Array:
        """S (L, d) of factors (r, L + d), V beside Uᵀ; of W (r, d) if symmetric. `length` L where β is traced."""
        left = right = factors
        if not self.symmetric:
            if length is None:  # of L + d columns, L = round(β d)
                length = factors.shape[1] - round(
                    factors.shape[1] / (1.0 + float(self.aspect_ratio))
                )
            left, right = factors[:, :length], factors[:, length:]
        return jnp.matmul(left.T, right, precision="highest") / np.sqrt(factors.shape[0])

    def signal(self, teacher: Array) -> Array:
        """The signal (1, L, d) of a teacher (L, d)."""
        return teacher[None].astype(theory_dtype())

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """⟨Ŝ, Ŝ⟩/(dL) as "overlap" (1, 1), ⟨Ŝ, S⟩/(dL) as "teacher_overlap" (1, 1), "cosine" (1,) of both; NaN without S
        (inside a program and without S, of factors all three: how long the sequences are is not known there)."""
        nan = jnp.full((), jnp.nan, theory_dtype())
        if weights.ndim == 2 and teacher is None and not concrete(self.aspect_ratio):
            return {
                "overlap": nan[None, None],
                "teacher_overlap": nan[None, None],
                "cosine": nan[None],
            }
        weights = weights.astype(nan.dtype)
        S = (
            weights[0]
            if weights.ndim == 3
            else self.product(weights, None if teacher is None else teacher.shape[0])
        )
        Q = jnp.mean(S * S)
        cross, cosine = nan, nan
        if teacher is not None:
            truth = teacher.astype(S.dtype)
            cross = jnp.mean(S * truth)
            cosine = cross / jnp.sqrt(Q * jnp.mean(truth * truth))
        one = jnp.ones((1, 1), S.dtype)
        return {"overlap": Q * one, "teacher_overlap": cross * one, "cosine": cosine * one[0]}

    def error_of(self, weights: Array, data: Dataset, *, key: Array, samples: int = 0) -> Array:
        """Estimation error per entry; NaN without a teacher."""
        if data.teacher is None or weights.ndim == 3:
            return super().error_of(weights, data, key=key, samples=samples)
        return self.estimation_error(
            self.product(weights.astype(theory_dtype()), data.teacher.shape[0]), data.teacher
        )

    def estimation_error(self, S: Array, teacher: Array) -> Array:
        """‖Ŝ - S‖² per entry."""
        return jnp.mean((S - teacher) ** 2)

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (L, d)."""
        return (self.length(dimension), dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student: V (r, L) beside Uᵀ (r, d); W (r, d) if symmetric."""
        return (
            self.prior.width(dimension),
            dimension + (0 if self.symmetric else self.length(dimension)),
        )

    def complexity(self, samples: int, dimension: int) -> float:
        """α = n/(dL)."""
        return samples / (dimension * self.length(dimension))

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Labels of inputs (n, L, d) for factors, in the precision of the inputs: what `train` differentiates."""
        return self._labels(self.product(weights.astype(inputs.dtype), inputs.shape[1]), inputs)

    @staticmethod
    def _labels(S: Array, inputs: Array) -> Array:
        fields = jnp.einsum("nld,ld->n", inputs, S.astype(inputs.dtype), precision="highest")
        return fields / np.sqrt(S.size)

    def predict(self, solution: Any, inputs: Any) -> Array:
        """Labels (n,) of new inputs (n, L, d) for Ŝ: `solution` of `gamp` or `train`, or a matrix (L, d).

        Raises: ValueError for a solution of theory, or shapes that do not fit.
        """
        S, inputs = getattr(solution, "weights", solution), jnp.asarray(inputs)
        check(
            S is not None, "solution", "a solution without weights", "the solution of gamp or train"
        )
        S = jnp.asarray(S)
        check(S.ndim == 2, "solution", S, "a matrix (L, d)")
        check(
            inputs.ndim == 3 and inputs.shape[1:] == S.shape,
            "inputs",
            inputs,
            f"an array of shape (n, *{S.shape})",
        )
        check(jnp.isfinite(jnp.sum(jnp.abs(inputs))), "inputs", inputs, "finite numbers")
        return self._labels(
            S,
            inputs if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs.astype(theory_dtype()),
        )

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """V, of a symmetric matrix 2V, for either predictor: E[y|ω] = ω."""
        del bayes, key, samples
        return Estimate(
            (2.0 if self.symmetric else 1.0) * (self.prior.norm - Q[0, 0]),
            jnp.zeros((), theory_dtype()),
        )

    def link(self, fields: Array) -> Array:
        """The noiseless label: the field itself."""
        return fields.reshape(())

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
        """Draw S (L, d), n = round(α d L) inputs (n, L, d) and their labels (n,); L = round(β d), r = round(ρ d).

        Arguments: `dimension` d >= 2; `alpha` = n/(dL) > 0; `dtype` of the inputs; `teacher` S (L, d) to reuse, of any rank;
        `store`: False for inputs that are drawn again whenever they are read (float32, n rounded to whole blocks).
        Returns: a `Dataset`. Warns where rounding moves β, ρ or α by more than 1 %: compare with the theory of the actual ratios.
        Raises: ValueError for arguments out of range.
        Memory: n·L·d = α (dL)² numbers where stored: 0.4 GB in float64 at d = L = 100, α = 0.5.
        """
        check(
            isinstance(dimension, (int, np.integer)) and dimension >= 2,
            "dimension",
            dimension,
            "an integer d >= 2",
        )
        check(np.isfinite(alpha) and alpha > 0, "alpha", alpha, "a positive number n/(dL)")
        d, L = int(dimension), self.length(dimension)
        samples = max(round(float(alpha) * d * L), 1)
        self._warn(d, L, samples, float(alpha))
        teacher_key, input_key, noise_key = jax.random.split(key, 3)
        S = (
            self.product(self.start(teacher_key, d))
            if teacher is None
            else jnp.asarray(teacher, theory_dtype())
        )
        check(S.shape == (L, d), "teacher", S, f"({L}, {d})")
        if self.symmetric:
            check(
                jnp.max(jnp.abs(S - S.T)) <= 1e-6 * jnp.max(jnp.abs(S)),
                "teacher",
                S,
                "a symmetric matrix",
            )
        dtype = dtype or (theory_dtype() if store else jnp.float32)
        inputs = draw_inputs(
            input_key,
            samples,
            (L, d),
            dtype,
            store,
            symmetric_gaussian if self.symmetric else gaussian,
        )
        labels = RectangularSensing(inputs).forward(S)[:, 0, 0]
        labels = labels + jnp.sqrt(self.noise) * jax.random.normal(
            noise_key, labels.shape, labels.dtype
        )
        return Dataset(inputs, labels, S, self)

    def _warn(self, d: int, L: int, samples: int, alpha: float) -> None:
        rho = float(self.prior.rank_ratio)
        pairs = {"rank_ratio": (self.prior.width(d) / d, rho), "alpha": (samples / (d * L), alpha)}
        pairs["aspect_ratio"] = (L / d, float(self.aspect_ratio))
        moved = [
            f"{name} {came:g} -> {made:g}"
            for name, (made, came) in pairs.items()
            if abs(made / came - 1.0) > 0.01
        ]
        if moved:
            warnings.warn(f"jaxsmi: rounded at dimension {d}: {', '.join(moved)}.", stacklevel=3)
