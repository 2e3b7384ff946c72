r"""What others do with the data of bilinear sequence regression: ridge regression and the minimum of the nuclear norm.

Equations here, α = n/(dL), β = L/d, ρ = r/d, S of unit variance:

    ridge [theory: bilinear, Eq. (25)], penalty λ, in units where λ = Δ is the posterior mean of a Gaussian S, label noise Δ:
        V (1 + α/(λ + V)) = 1,   c = V/(λ + V),   error = (V² + α Δ c²)/(1 - α c²)
    nuclear norm [DGM13; theory: bilinear, Eqs. (26) to (30)], Δ = 0:
        Ŝ = argmin ‖S‖_*  with  ⟨X_μ, S⟩/√(dL) = y_μ, by Douglas–Rachford:
        x = z - Q (Qᵀ z - c),   p = shrink_τ(2x - z),   z ← z + p - x,      Q an orthonormal basis of the inputs
    exact from α_NN = min_λ M(λ), β >= 1, b = 1/β, g = b (1 - ρ)/(1 - b ρ), g_± = (1 ± √g)²:
        P_k = (1/(2πg)) ∫_{max(λ², g_-)}^{g_+} t^{k-1} √((g_+ - t)(t - g_-)) dt
        M = ρ + bρ - bρ² + (1 - bρ) [ρ λ² + (1 - ρ)(P_1 - 2λ P_{1/2} + λ² P_0)],   P_{1/2} - λ P_0 = λ ρ/(1 - ρ)
        (b = 0: 2ρ - ρ²;  ρ >= 1: 1)
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.product import ProductPrior, gaussian_error


def ridge_error(alpha: Any, penalty: Any, noise: Any = 0.0) -> Array:
    r"""Estimation error per entry of ridge regression, whatever the width (module docstring), elementwise.

    Arguments: `alpha` = n/(dL) >= 0; `penalty` λ >= 0 (λ = Δ is the best one); `noise` Δ >= 0. Noisy, at λ = 0 and α = 1: inf.
    Returns: the error. Raises: ValueError for negative arguments.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(ridge_error(0.5, 0.3, 0.1)), 10)
    0.5951316645
    """
    alpha, penalty, noise = (jnp.asarray(x, theory_dtype()) for x in (alpha, penalty, noise))
    for name, value in (("alpha", alpha), ("penalty", penalty), ("noise", noise)):
        check(jnp.all(jnp.isfinite(value) & (value >= 0.0)), name, value, "finite numbers >= 0")
    V = gaussian_error(alpha, penalty)
    shrunk = jnp.where(
        penalty > 0.0, V / jnp.where(penalty > 0.0, penalty + V, 1.0), jnp.minimum(1.0, 1.0 / alpha)
    )
    left = 1.0 - alpha * shrunk**2
    value = (V**2 + alpha * noise * shrunk**2) / jnp.where(left > 0.0, left, 1.0)
    value = jnp.where(left > 0.0, value, jnp.where(noise > 0.0, jnp.inf, 0.0))
    return jnp.where((alpha >= 0.0) & (penalty >= 0.0) & (noise >= 0.0), value, jnp.nan)


def nuclear_norm_threshold(aspect_ratio: Any, rank_ratio: Any) -> Array:
    r"""α_NN, from which on the minimum of the nuclear norm is S (Δ = 0); never below that of the Bayes-optimal error.

    Arguments: `aspect_ratio` β > 0, infinite too; `rank_ratio` ρ > 0. Scalars (vmap for more). Returns: α_NN, differentiable.
    Raises: ValueError for ratios out of range. Source: [DGM13].
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(nuclear_norm_threshold(1.0, 0.2)), 10)
    0.5716899213
    """
    prior = ProductPrior(aspect_ratio, rank_ratio)
    long, rho = prior.sides
    b = jnp.where(jnp.isinf(prior.aspect_ratio), 0.5, 1.0 / long)
    inside = rho < 1.0
    rho = jnp.where(inside, rho, 0.5)
    g = b * (1.0 - rho) / (1.0 - b * rho)
    low, high = (1.0 - jnp.sqrt(g)) ** 2, (1.0 + jnp.sqrt(g)) ** 2
    nodes, weights = legendre(96)

    def moments(cut: Array) -> tuple[Array, Array, Array]:
        """P_0, P_1/2, P_1; t = low + (high - low) sin²θ takes the square roots away."""
        share = jnp.clip((cut**2 - low) / (high - low), 0.0, 1.0)
        above = share > 0.0
        start = jnp.where(above, jnp.arcsin(jnp.sqrt(jnp.where(above, share, 0.5))), 0.0)
        theta = 0.5 * (start + 0.5 * np.pi) + 0.5 * (0.5 * np.pi - start) * nodes
        t = low + (high - low) * jnp.sin(theta) ** 2
        measure = (
            0.5
            * (0.5 * np.pi - start)
            * weights
            * 2.0
            * ((high - low) * jnp.sin(theta) * jnp.cos(theta)) ** 2
        )
        measure = measure / (2.0 * np.pi * g)
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


def minimum_nuclear_norm(
    model: Bilinear, data: Dataset, *, tolerance: Any = 1e-8, max_steps: int = 5000
) -> Solution:
    r"""The matrix of smallest nuclear norm that reproduces all labels, by Douglas–Rachford splitting (module docstring).

    Arguments: `model`: `Bilinear`, rectangular, without noise; `data`: n <= dL samples; `tolerance` on ‖p - x‖/‖x‖; `max_steps`.
    Returns: a `Solution` with `weights` Ŝ (L, d), `overlap`, `error` (NaN without a teacher), `steps`, `residual`. Codes:
    SUCCESS, MAX_STEPS (close to α_NN convergence is slow), NONFINITE.
    Raises: ValueError for another model, noise, n > dL, or inputs that are linearly dependent. Source: [DGM13;
    theory: bilinear, Eqs. (26), (27)]. Cost: one QR, O(n² d L), then O(n d L) and one SVD a step; memory that of the inputs.
    Example:
    >>> import jax, jaxsmi as smi
    >>> jax.config.update("jax_enable_x64", True)
    >>> model = smi.Bilinear(rank_ratio=0.1)
    >>> found = minimum_nuclear_norm(
    ...     model, model.sample(jax.random.key(0), dimension=10, alpha=0.8)
    ... )
    >>> bool(found.error < 1e-10)
    True
    """
    check(
        isinstance(model, Bilinear) and not model.symmetric,
        "model",
        type(model).__name__,
        "a rectangular Bilinear",
    )
    check(
        model.noise == 0.0,
        "model",
        "label noise",
        "a model without noise: all labels are reproduced",
    )
    model.check_data(data)
    data = data.stored()
    entries = data.inputs.shape[1] * data.inputs.shape[2]
    check(
        data.samples <= entries,
        "data",
        f"{data.samples} samples",
        f"at most {entries}: no more equations than entries",
    )
    check(
        isinstance(max_steps, (int, np.integer)) and max_steps >= 1,
        "max_steps",
        max_steps,
        "an integer >= 1",
    )
    tolerance = jnp.asarray(tolerance, theory_dtype())
    check(tolerance > 0, "tolerance", tolerance, "a positive number")
    basis, triangle = jnp.linalg.qr(data.inputs.reshape(data.samples, -1).T.astype(theory_dtype()))
    pivots = jnp.abs(jnp.diagonal(triangle))
    independent = jnp.min(pivots) > 1e-6 * jnp.max(pivots)
    check(
        independent,
        "data.inputs",
        "linearly dependent samples",
        "independent ones: drop the others",
    )
    return _reproduced(model, data, basis, triangle, tolerance, int(max_steps))


@eqx.filter_jit
def _reproduced(
    model: Bilinear, data: Dataset, basis: Array, triangle: Array, tolerance: Array, max_steps: int
) -> Solution:
    dtype, shape = theory_dtype(), data.inputs.shape[1:]
    labels = data.labels.astype(dtype) * np.sqrt(shape[0] * shape[1])
    fixed = jax.scipy.linalg.solve_triangular(triangle.T, labels, lower=True)
    threshold = 0.5 * np.sqrt(max(shape))

    def shrink(matrix: Array) -> Array:
        left, values, right = jnp.linalg.svd(matrix.reshape(shape), full_matrices=False)
        return ((left * jnp.maximum(values - threshold, 0.0)) @ right).reshape(-1)

    def step(c: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        z, _, _, count = c
        x = z - basis @ (basis.T @ z - fixed)
        p = shrink(2.0 * x - z)
        residual = jnp.linalg.norm(p - x) / jnp.maximum(
            jnp.linalg.norm(x), 1e-30
        )  # labels may all be zero
        return z + p - x, x, residual, count + 1

    def proceed(c: tuple[Array, Array, Array, Array]) -> Array:
        return (c[2] > tolerance) & (c[3] < max_steps)

    zero = jnp.zeros((shape[0] * shape[1],), dtype)
    _, x, residual, steps = lax.while_loop(
        proceed, step, (zero, zero, jnp.asarray(jnp.inf, dtype), jnp.zeros((), int))
    )
    S = x.reshape(shape)
    code = jnp.where(residual <= tolerance, Result.SUCCESS, Result.MAX_STEPS)
    code = jnp.where(jnp.isfinite(residual), code, Result.NONFINITE)
    seen = model.overlaps(S[None], data.teacher)
    nan = jnp.full((1, 1), jnp.nan, dtype)
    return Solution(
        overlap=seen["overlap"], stderr=jnp.zeros((1, 1), dtype), error=model.error_of(S[None], data, key=jax.random.key(0)),
        alpha=jnp.asarray(model.sensing(data).alpha, dtype), steps=steps, residual=residual, result=code,
        history={"step": steps[None].astype(dtype), **jax.tree.map(lambda x: x[None], seen)}, covariance=nan, rho=nan[0, 0],
        weights=S, model=model, kind="nuclear_norm",
    )  # fmt: skip
