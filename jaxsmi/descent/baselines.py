r"""Baselines of bilinear sequence regression: ridge regression and the minimum of the nuclear norm.

Equations here, α = n/(dL), β = L/d, ρ = r/d, S of unit variance:

    ridge [theory: bilinear, Eq. (30)], penalty λ, in units where λ = Δ is the posterior mean of a
    Gaussian S, label noise Δ:
        V (1 + α/(λ + V)) = 1,   c = V/(λ + V),   error = (V² + α Δ c²)/(1 - α c²)
    nuclear norm [DGM13; theory: bilinear, Eqs. (31) to (35)], Δ = 0:
        Ŝ = argmin ‖S‖_*  with  ⟨X_μ, S⟩/√(dL) = y_μ, by Douglas–Rachford:
        x = s - Q (Qᵀ s - v),   p = shrink_τ(2x - s),   s ← s + p - x,
        Q an orthonormal basis of the inputs
    exact from α_NN = min_ν a(ν), β >= 1, b = 1/β, γ = b (1 - ρ)/(1 - b ρ), γ_± = (1 ± √γ)²:
        P_k = (1/(2πγ)) ∫_{max(ν², γ_-)}^{γ_+} x^{k-1} √((γ_+ - x)(x - γ_-)) dx
        a = ρ + bρ - bρ² + (1 - bρ) [ρ ν² + (1 - ρ)(P_1 - 2ν P_{1/2} + ν² P_0)],
        P_{1/2} - ν P_0 = ν ρ/(1 - ρ)
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

from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, missing_array, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import NON_NEGATIVE, POSITIVE, check
from jaxsmi.models.base import check_data
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.factors import ASPECT, ProductLaw, gaussian_error

__all__ = ["minimum_nuclear_norm", "nuclear_norm_threshold", "ridge_error"]

_LEGENDRE_NODES = 96  # Gauss-Legendre: the integrands are smooth in θ, to rounding (tests: 1e-12)
_SHRINKAGE = 0.5  # τ/√(larger side): speed only; empirical, between 0.2 and 1 much the same
# relative pivots of the QR of the inputs: samples of continuous laws stay far above, copies do not
_MIN_PIVOT = 1e-6


def ridge_error(alpha: ArrayLike, penalty: ArrayLike, noise: ArrayLike = 0.0) -> Array:
    r"""Compute the estimation error per entry of ridge regression at any width, elementwise.

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

    Source:
        [theory: bilinear, Eq. (30)].
    """
    allowed = "finite numbers >= 0"
    alpha = validate.array("alpha", alpha, allowed, interval=NON_NEGATIVE)
    penalty = validate.array("penalty", penalty, allowed, interval=NON_NEGATIVE)
    noise = validate.array("noise", noise, allowed, interval=NON_NEGATIVE)
    V = gaussian_error(alpha, penalty)
    positive = penalty > 0.0
    safe = jnp.where(positive, penalty + V, 1.0)
    # λ = 0: V = max(1 - α, 0) makes V/(λ + V) 0/0 from α = 1 on, its limit is 1/α
    shrinkage = jnp.where(positive, V / safe, jnp.minimum(1.0, 1.0 / alpha))
    gap = 1.0 - alpha * shrinkage**2
    value = (V**2 + alpha * noise * shrinkage**2) / jnp.where(gap > 0.0, gap, 1.0)
    # no gap: the interpolation peak, λ = 0 at α = 1, where only noise diverges
    value = jnp.where(gap > 0.0, value, jnp.where(noise > 0.0, jnp.inf, 0.0))
    return jnp.where(jnp.isnan(alpha + penalty + noise), jnp.nan, value)


def nuclear_norm_threshold(aspect_ratio: ArrayLike, rank_ratio: ArrayLike) -> Array:
    r"""Compute α_NN, above which the minimum of the nuclear norm is S (Δ = 0).

        α_NN = min_ν a(ν)   (module docstring)

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
        [DGM13], [theory: bilinear, Eqs. (33) to (35)].
    """
    law = ProductLaw(
        aspect_ratio=validate.number("aspect_ratio", aspect_ratio, ASPECT),
        rank_ratio=validate.number("rank_ratio", rank_ratio, POSITIVE),
    )
    long, rho = law.sides
    # values out of the formulas' range (b = 0, ρ >= 1) take the closed forms at the end; 0.5 stands
    # in for them here, so that no branch that is dropped has a NaN derivative
    b = jnp.where(jnp.isinf(law.aspect_ratio), 0.5, 1.0 / long)
    inside = rho < 1.0
    rho = jnp.where(inside, rho, 0.5)
    g = b * (1.0 - rho) / (1.0 - b * rho)
    low = (1.0 - jnp.sqrt(g)) ** 2
    high = (1.0 + jnp.sqrt(g)) ** 2
    nodes, weights = legendre(_LEGENDRE_NODES)

    def moments(cut: Array) -> tuple[Array, Array, Array]:
        """P_0, P_1/2, P_1; with t = low + (high - low) sin²θ the integrands are smooth."""
        share = jnp.clip((cut**2 - low) / (high - low), 0.0, 1.0)
        above = share > 0.0  # arcsin √x has an infinite derivative at 0
        start = jnp.where(above, jnp.arcsin(jnp.sqrt(jnp.where(above, share, 0.5))), 0.0)
        theta = 0.5 * (start + 0.5 * np.pi) + 0.5 * (0.5 * np.pi - start) * nodes
        t = low + (high - low) * jnp.sin(theta) ** 2
        square = ((high - low) * jnp.sin(theta) * jnp.cos(theta)) ** 2
        measure = 0.5 * (0.5 * np.pi - start) * weights * 2.0 * square / (2.0 * np.pi * g)
        return jnp.sum(measure / t), jnp.sum(measure / jnp.sqrt(t)), jnp.sum(measure)

    def beyond(cut: Array) -> Array:
        P_0, P_half, _ = moments(cut)
        return P_half - cut * P_0 < cut * rho / (1.0 - rho)

    # M is stationary in the cut, so that its derivative does not need that of the cut
    cut = lax.stop_gradient(bisect(beyond, jnp.zeros_like(g), jnp.sqrt(high)))
    P_0, P_half, P_1 = moments(cut)
    bulk = rho * cut**2 + (1.0 - rho) * (P_1 - 2.0 * cut * P_half + cut**2 * P_0)
    value = rho + b * rho - b * rho**2 + (1.0 - b * rho) * bulk
    value = jnp.where(jnp.isinf(law.aspect_ratio), 2.0 * rho - rho**2, value)
    return jnp.where(validate.valid(law), jnp.where(inside, value, 1.0), jnp.nan)


def minimum_nuclear_norm(
    model: Bilinear, data: Dataset, *, tolerance: ArrayLike = 1e-8, max_steps: int = 5000
) -> Solution:
    r"""Find the matrix of smallest nuclear norm that reproduces all labels, by Douglas–Rachford
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
        [DGM13], [theory: bilinear, Eqs. (31), (32)].
    """
    validate.instance("model", model, Bilinear, "a rectangular Bilinear")
    validate.instance("data", data, Dataset, "a Dataset")
    tolerance = validate.number("tolerance", tolerance, POSITIVE)
    max_steps = validate.count("max_steps", max_steps)
    check(not model.symmetric, "model", "a symmetric Bilinear", "a rectangular Bilinear")
    allowed = "a model without label noise: the estimate reproduces all labels"
    check(model.noise == 0.0, "model", "label noise", allowed)
    data = check_data(model, data)
    rows = data.stored().stored_inputs.reshape(data.samples, -1).astype(theory_dtype())
    entries = rows.shape[1]
    allowed = f"at most {entries}, the number of entries of S"
    check(data.samples <= entries, "data", f"{data.samples} samples", allowed)
    basis, triangle = jnp.linalg.qr(rows.T)
    pivots = jnp.abs(jnp.diagonal(triangle))
    independent = jnp.min(pivots) > _MIN_PIVOT * jnp.max(pivots)
    allowed = "linearly independent samples: drop the others"
    check(independent, "data.inputs", "linearly dependent samples", allowed)
    labels = data.labels.astype(theory_dtype()) * np.sqrt(entries)
    fixed = jax.scipy.linalg.solve_triangular(triangle.T, labels, lower=True)
    return _douglas_rachford(model, data, basis, fixed, tolerance, jnp.asarray(max_steps))


@eqx.filter_jit
def _douglas_rachford(
    model: Bilinear, data: Dataset, basis: Array, fixed: Array, tolerance: Array, max_steps: Array
) -> Solution:
    """x = z - Q (Qᵀz - c),   p = shrink_τ(2x - z),   z ← z + p - x (module docstring)."""
    shape, dtype = data.inputs.shape[1:], theory_dtype()
    shrinkage = _SHRINKAGE * np.sqrt(max(shape))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        steps, z, x, _ = state
        x = z - basis @ (basis.T @ z - fixed)
        left, values, right = jnp.linalg.svd((2.0 * x - z).reshape(shape), full_matrices=False)
        p = ((left * jnp.maximum(values - shrinkage, 0.0)) @ right).reshape(-1)
        size = clamp_to_tiny(jnp.linalg.norm(x))  # labels may all be zero
        return steps + 1, z + p - x, x, jnp.linalg.norm(p - x) / size

    def running(state: tuple[Array, ...]) -> Array:
        return (state[0] < max_steps) & (state[3] > tolerance)  # false for NaN

    zero = jnp.zeros((len(basis),), dtype)
    start = (jnp.zeros((), int), zero, zero, jnp.asarray(jnp.inf, dtype))
    steps, _, x, residual = lax.while_loop(running, step, start)
    S = x.reshape(shape)
    overlaps = model.metric.overlaps(S[None], data.teacher)
    unknown = missing_array((1, 1), dtype)
    finite = jnp.isfinite(residual)
    return Solution(
        overlap=overlaps["overlap"],
        stderr=jnp.zeros((1, 1), dtype),
        error=model.metric.error(S[None], data, key=jax.random.key(0)),
        alpha=jnp.asarray(model.design.operator(data.inputs).alpha, dtype),
        steps=steps,
        residual=residual,
        result=choose(
            (finite, Result.MAX_STEPS),
            (residual <= tolerance, Result.SUCCESS),
            (~finite, Result.NONFINITE),
        ),
        history={k: v[None] for k, v in {"step": steps.astype(dtype), **overlaps}.items()},
        covariance=unknown,
        spectral_radius=unknown[0, 0],
        weights=S,
        model=model,
        kind="nuclear_norm",
    )
