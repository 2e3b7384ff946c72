r"""What others do with the data of bilinear sequence regression: ridge regression and the minimum
of the nuclear norm.

Equations here, α = n/(dL), β = L/d, ρ = r/d, S of unit variance:

    ridge [theory: bilinear, Eq. (25)], penalty λ, in units where λ = Δ is the posterior mean of a
    Gaussian S, label noise Δ:
        V (1 + α/(λ + V)) = 1,   c = V/(λ + V),   error = (V² + α Δ c²)/(1 - α c²)
    nuclear norm [DGM13; theory: bilinear, Eqs. (26) to (30)], Δ = 0:
        Ŝ = argmin ‖S‖_*  with  ⟨X_μ, S⟩/√(dL) = y_μ, by Douglas–Rachford:
        x = z - Q (Qᵀ z - c),   p = shrink_τ(2x - z),   z ← z + p - x,
        Q an orthonormal basis of the inputs
    exact from α_NN = min_λ M(λ), β >= 1, b = 1/β, g = b (1 - ρ)/(1 - b ρ), g_± = (1 ± √g)²:
        P_k = (1/(2πg)) ∫_{max(λ², g_-)}^{g_+} t^{k-1} √((g_+ - t)(t - g_-)) dt
        M = ρ + bρ - bρ² + (1 - bρ) [ρ λ² + (1 - ρ)(P_1 - 2λ P_{1/2} + λ² P_0)],
        P_{1/2} - λ P_0 = λ ρ/(1 - ρ)
        (b = 0: 2ρ - ρ²;  ρ >= 1: 1)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, numbers, scalar, whole
from jaxsmi.core.checks import NON_NEGATIVE, POSITIVE, Arguments, check
from jaxsmi.core.codes import Result, choose
from jaxsmi.core.data import Dataset, is_dataset
from jaxsmi.core.driver import AbstractSolver, advance, begin
from jaxsmi.core.programs import program
from jaxsmi.core.results import Solution
from jaxsmi.models.base import is_model
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.product import ASPECT, ProductPrior, gaussian_error

__all__ = ["minimum_nuclear_norm", "nuclear_norm_threshold", "ridge_error"]


_NUMBERS = numbers("finite numbers >= 0", NON_NEGATIVE)


@checked(alpha=_NUMBERS, penalty=_NUMBERS, noise=_NUMBERS)
def ridge_error(alpha: ArrayLike, penalty: ArrayLike, noise: ArrayLike = 0.0) -> Array:
    r"""Estimation error per entry of ridge regression, whatever the width, elementwise.

        V (1 + α/(λ + V)) = 1,   c = V/(λ + V),   error = (V² + α Δ c²)/(1 - α c²)

    Args:
        alpha: n/(dL), numbers >= 0.
        penalty: λ >= 0; λ = Δ is the best one.
        noise: Δ >= 0. Default 0.

    Returns:
        The error; noisy, at λ = 0 and α = 1, inf.

    Raises:
        ValueError: For negative or non-finite arguments.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(ridge_error(0.5, 0.3, 0.1)), 10)
        0.5951316645

    Cost:
        None.

    Source:
        [theory: bilinear, Eq. (25)].
    """
    arguments = Arguments()
    alpha, penalty, noise = (
        _non_negative(arguments, name, value)
        for name, value in (("alpha", alpha), ("penalty", penalty), ("noise", noise))
    )
    V = gaussian_error(alpha, penalty)
    positive = penalty > 0.0
    shrinkage = jnp.where(
        positive, V / jnp.where(positive, penalty + V, 1.0), jnp.minimum(1.0, 1.0 / alpha)
    )
    gap = 1.0 - alpha * shrinkage**2
    value = (V**2 + alpha * noise * shrinkage**2) / jnp.where(gap > 0.0, gap, 1.0)
    value = jnp.where(gap > 0.0, value, jnp.where(noise > 0.0, jnp.inf, 0.0))
    return jnp.where((alpha >= 0.0) & (penalty >= 0.0) & (noise >= 0.0), value, jnp.nan)


def _non_negative(arguments: Arguments, name: str, value: ArrayLike) -> Array:
    """Finite numbers >= 0."""
    numbers = arguments.array(name, value, "finite numbers >= 0")
    arguments.condition(jnp.all(numbers >= 0.0), name, value, "finite numbers >= 0")
    return numbers


@checked(aspect_ratio=scalar(ASPECT), rank_ratio=scalar(POSITIVE))
def nuclear_norm_threshold(aspect_ratio: ArrayLike, rank_ratio: ArrayLike) -> Array:
    r"""α_NN, from which on the minimum of the nuclear norm is S (Δ = 0); never below that of the
    Bayes-optimal error.

        α_NN = min_λ M(λ)   (module docstring)

    Args:
        aspect_ratio: β > 0, infinite too; one number (jax.vmap for more).
        rank_ratio: ρ > 0.

    Returns:
        α_NN, differentiable.

    Raises:
        ValueError: For ratios out of range.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(nuclear_norm_threshold(1.0, 0.2)), 10)
        0.5716899213

    Cost:
        A bisection of integrals on 96 nodes.

    Source:
        [DGM13], [theory: bilinear, Eqs. (28) to (30)].
    """
    prior = ProductPrior(aspect_ratio, rank_ratio)
    long, rho = prior.sides
    b = jnp.where(jnp.isinf(prior.aspect_ratio), 0.5, 1.0 / long)
    inside = rho < 1.0
    rho = jnp.where(inside, rho, 0.5)
    g = b * (1.0 - rho) / (1.0 - b * rho)
    low = (1.0 - jnp.sqrt(g)) ** 2
    high = (1.0 + jnp.sqrt(g)) ** 2
    nodes, weights = legendre(96)

    def moments(cut: Array) -> tuple[Array, Array, Array]:
        """P_0, P_1/2, P_1; t = low + (high - low) sin²θ takes the square roots away."""
        share = jnp.clip((cut**2 - low) / (high - low), 0.0, 1.0)
        above = share > 0.0
        start = jnp.where(above, jnp.arcsin(jnp.sqrt(jnp.where(above, share, 0.5))), 0.0)
        theta = 0.5 * (start + 0.5 * np.pi) + 0.5 * (0.5 * np.pi - start) * nodes
        t = low + (high - low) * jnp.sin(theta) ** 2
        square = ((high - low) * jnp.sin(theta) * jnp.cos(theta)) ** 2
        measure = 0.5 * (0.5 * np.pi - start) * weights * 2.0 * square / (2.0 * np.pi * g)
        return jnp.sum(measure / t), jnp.sum(measure / jnp.sqrt(t)), jnp.sum(measure)

    def past(cut: Array) -> Array:
        P_0, P_half, _ = moments(cut)
        return P_half - cut * P_0 < cut * rho / (1.0 - rho)

    # M is least there: its derivatives need not follow
    cut = lax.stop_gradient(bisect(past, jnp.zeros_like(g), jnp.sqrt(high)))
    P_0, P_half, P_1 = moments(cut)
    bulk = rho * cut**2 + (1.0 - rho) * (P_1 - 2.0 * cut * P_half + cut**2 * P_0)
    value = rho + b * rho - b * rho**2 + (1.0 - b * rho) * bulk
    value = jnp.where(jnp.isinf(prior.aspect_ratio), 2.0 * rho - rho**2, value)
    return jnp.where(prior.valid, jnp.where(inside, value, 1.0), jnp.nan)


@checked(model=is_model, data=is_dataset, tolerance=scalar(POSITIVE), max_steps=whole())
def minimum_nuclear_norm(
    model: Bilinear, data: Dataset, *, tolerance: ArrayLike = 1e-8, max_steps: int = 5000
) -> Solution:
    r"""The matrix of smallest nuclear norm that reproduces all labels, by Douglas–Rachford
    splitting.

        Ŝ = argmin ‖S‖_*  with  ⟨X_μ, S⟩/√(dL) = y_μ   (module docstring)

    Args:
        model: `Bilinear`, rectangular, without noise.
        data: n <= dL samples.
        tolerance: On ‖p - x‖/‖x‖. Default 1e-8.
        max_steps: Steps at most. Default 5000.

    Returns:
        A `Solution` with `weights` Ŝ (L, d), `overlap`, `error` (NaN without a teacher), `steps`,
        `residual`. Codes: SUCCESS, MAX_STEPS (close to α_NN convergence is slow), NONFINITE.

    Raises:
        ValueError: For another model, noise, n > dL, or inputs that are linearly dependent.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model = smi.Bilinear(rank_ratio=0.1)
        >>> data = model.sample(jax.random.key(0), dimension=10, alpha=0.8)
        >>> bool(minimum_nuclear_norm(model, data).error < 1e-10)
        True

    Cost:
        One QR, O(n² d L), then O(n d L) and one SVD a step; memory that of the inputs.

    Source:
        [DGM13], [theory: bilinear, Eqs. (26), (27)].
    """
    arguments = Arguments()
    arguments.instance("model", model, Bilinear, "a rectangular Bilinear")
    check(not model.symmetric, "model", "a symmetric Bilinear", "a rectangular Bilinear")
    allowed = "a model without noise: all labels are reproduced"
    check(model.noise == 0.0, "model", "label noise", allowed)
    model.check_data(data)
    inputs = data.stored().stored_inputs
    entries = inputs.shape[1] * inputs.shape[2]
    allowed = f"at most {entries}: no more equations than entries"
    check(data.samples <= entries, "data", f"{data.samples} samples", allowed)
    tolerance = arguments.number("tolerance", tolerance, POSITIVE)
    rows = inputs.reshape(data.samples, -1).astype(theory_dtype())
    basis, triangle = jnp.linalg.qr(rows.T)
    pivots = jnp.abs(jnp.diagonal(triangle))
    independent = jnp.min(pivots) > 1e-6 * jnp.max(pivots)
    allowed = "independent ones: drop the others"
    check(independent, "data.inputs", "linearly dependent samples", allowed)
    return _smallest(model, data, basis, triangle, tolerance, max_steps)


class _Splitting(eqx.Module):
    """State of the splitting: z, x on the constraints, and the residual ‖p - x‖/‖x‖."""

    z: Array
    x: Array
    residual: Array


class DouglasRachford(AbstractSolver[_Splitting]):
    """x = z - Q (Qᵀz - c),   p = shrink_τ(2x - z),   z ← z + p - x (module docstring)."""

    basis: Array
    fixed: Array
    tolerance: Array
    shape: tuple[int, int] = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def init(self) -> _Splitting:
        """Zero."""
        zero = jnp.zeros((self.shape[0] * self.shape[1],), self.basis.dtype)
        return _Splitting(zero, zero, jnp.asarray(jnp.inf, zero.dtype))

    def step(self, state: _Splitting, count: Array) -> _Splitting:
        """One reflection at the constraints, one shrinkage of the singular values."""
        del count
        z = state.z
        x = z - self.basis @ (self.basis.T @ z - self.fixed)
        p = self._shrunk(2.0 * x - z)
        size = jnp.maximum(jnp.linalg.norm(x), 1e-30)  # labels may all be zero
        return _Splitting(z + p - x, x, jnp.linalg.norm(p - x) / size)

    def _shrunk(self, matrix: Array) -> Array:
        """Singular values of a matrix less τ, at least zero."""
        threshold = 0.5 * np.sqrt(max(self.shape))
        left, values, right = jnp.linalg.svd(matrix.reshape(self.shape), full_matrices=False)
        return ((left * jnp.maximum(values - threshold, 0.0)) @ right).reshape(-1)

    def observe(self, state: _Splitting, count: Array) -> dict[str, Array]:
        """Nothing on the way."""
        del state, count
        return {}

    def terminate(self, state: _Splitting, count: Array) -> Array:
        """SUCCESS within the tolerance, MAX_STEPS, NONFINITE."""
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (state.residual <= self.tolerance, Result.SUCCESS),
            (~jnp.isfinite(state.residual), Result.NONFINITE),
        )


@program
def _smallest(
    model: Bilinear, data: Dataset, basis: Array, triangle: Array, tolerance: Array, max_steps: int
) -> Solution:
    """The end of the splitting as a solution."""
    dtype = theory_dtype()
    _, L, d = data.inputs.shape
    labels = data.labels.astype(dtype) * np.sqrt(L * d)
    fixed = jax.scipy.linalg.solve_triangular(triangle.T, labels, lower=True)
    solver = DouglasRachford(basis, fixed, tolerance, (L, d), max_steps)
    end = advance(solver, begin(solver, 0), jnp.asarray(max_steps))
    S = end.state.x.reshape(L, d)
    overlaps = model.overlaps(S[None], data.teacher)
    unknown = jnp.full((1, 1), jnp.nan, dtype)
    history = {"step": end.step[None].astype(dtype)}
    history |= {name: value[None] for name, value in overlaps.items()}
    return Solution(
        overlap=overlaps["overlap"],
        stderr=jnp.zeros((1, 1), dtype),
        error=model.error_of(S[None], data, key=jax.random.key(0)),
        alpha=jnp.asarray(model.sensing(data).alpha, dtype),
        steps=end.step,
        residual=end.state.residual,
        result=end.result,
        history=history,
        covariance=unknown,
        rho=unknown[0, 0],
        weights=S,
        model=model,
        kind="nuclear_norm",
    )
