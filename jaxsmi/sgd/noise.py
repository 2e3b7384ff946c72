r"""The strength of the gradient's noise: for the flow of order two and the largest learning rate.

Equations here [theory: online-sgd, Eqs. (13), (14)]:

    V = E Σ_l s_l²,   s_l = ∂ℓ/∂z_l = 2c ⟨F - g, ∂_l F⟩
    V = 4c² {E Σ_l ⟨F, ∂_l F⟩² - 2 E⟨g, Σ_l ⟨F, ∂_l F⟩ ∂_l F⟩ + E⟨g gᵀ, Σ_l ∂_l F ∂_l Fᵀ⟩}

The last two terms are one correlation, of (g, g gᵀ) and what stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, optional, random_key, whole
from jaxsmi.core.checks import Arguments
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import SequenceSingleIndex, is_sequence
from jaxsmi.sgd.correlation import correlation
from jaxsmi.sgd.functions import Flat
from jaxsmi.sgd.grid import expectation
from jaxsmi.sgd.networks import is_finite_sum, network_noise
from jaxsmi.sgd.population import clipped, net_average, overlaps, sampling, without_sampling
from jaxsmi.sgd.problem import is_point


class _StudentSquares(eqx.Module):
    """z -> Σ_l ⟨F, ∂_l F⟩²: ()."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        F, slopes = _value_and_slopes(self.inner, z)
        return jnp.sum((slopes @ F) ** 2)


class _StudentProducts(eqx.Module):
    """z -> -2 Σ_l ⟨F, ∂_l F⟩ ∂_l F, and Σ_l ∂_l F ⊗ ∂_l F: (k + k²,)."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        F, slopes = _value_and_slopes(self.inner, z)
        return jnp.concatenate([-2.0 * (slopes @ F) @ slopes, jnp.ravel(slopes.T @ slopes)])


class _TargetProducts(eqx.Module):
    """z -> g and g ⊗ g: (k + k²,)."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        g = self.inner(z)
        return jnp.concatenate([g, jnp.ravel(g[:, None] * g)])


def _value_and_slopes(f: Callable[[Array], Array], z: Array) -> tuple[Array, Array]:
    """F (k,) and its derivatives (L, k)."""
    return f(z), jax.jacfwd(f)(z).T


@checked(model=is_sequence, m=is_point, e=is_point, key=optional(random_key), samples=whole())
def gradient_noise(
    model: SequenceSingleIndex,
    m: ArrayLike = 0.0,
    e: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
) -> Estimate:
    r"""Mean square of the gradient in the fields: a step of SGD has squared length about γ² V.

        V = E Σ_l s_l²,   s_l = ∂ℓ/∂z_l

    Args:
        model: A `SequenceSingleIndex`.
        m: Semantic overlap, as for `risk`. Default 0.
        e: Positional overlaps, as for `risk`. Default 0.
        key: A random key, needed where the risk is sampled.
        samples: Points of each of 16 nets, there. Default 16384.

    Returns:
        Estimate(value, stderr), as `risk`.

    Raises:
        ValueError: As `risk`.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> round(float(smi.sgd.gradient_noise(model).value), 6)  # 2 (L + 1)
        6.0

    Cost:
        About three times that of `risk`.

    Source:
        [theory: online-sgd, Eqs. (13), (14), (17)].
    """
    v = overlaps(model, m, e)
    samples = sampling(Arguments(), model, key, samples)
    return eqx.filter_jit(noise_at)(model, v, key, samples)


def noise_at(
    model: SequenceSingleIndex,
    v: Array,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Estimate:
    """V at the overlaps v, inside jit. See `gradient_noise`."""
    if not without_sampling(model):
        slopes = jax.grad(model.sample_loss, argnums=1)
        square = lambda hidden, fields: jnp.sum(slopes(hidden, fields) ** 2)
        return net_average(model, v, key, samples, square)
    if is_finite_sum(model):
        return Estimate(network_noise(model, v), jnp.zeros(()))
    m = clipped(v[0])
    e = model.split(v)[1]
    F = Flat(model.student)
    reach = model.reach
    target = _TargetProducts(Flat(model.target))
    student = _StudentProducts(F)

    def value(stride: int) -> Array:
        squares = expectation(_StudentSquares(F), e, reach=reach, stride=stride, coarse=coarse)
        cross = correlation(target, student, m, e, reach=reach, stride=stride, coarse=coarse)
        return 4.0 * model.loss_factor**2 * (squares + cross)

    fine = value(1)
    return Estimate(fine, jnp.abs(fine - value(2)))
