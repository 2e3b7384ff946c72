r"""Population risk of sequence single-index models over the overlaps, and its derivatives.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (7) to (9)], tokens independent, (z*_l, z_l)
Gaussian:

    z = C e + m z* + √(1 - m²) ξ,   ξ ~ N(0, I_L)
    R(m, e) = c E‖g(z*) - F(z)‖² = c (E‖g‖² + S(e) - 2 C[g, F](m, e)),   S = E‖F(ξ + C e)‖²

Up to three tokens these are integrals on a grid (`jaxsmi.sgd.correlation`), of networks whose
target is a Hermite series finite sums (`jaxsmi.sgd.networks`); more tokens, and the unsquared loss,
are averages over nets with an error bar.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import Network, SequenceSingleIndex
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians
from jaxsmi.sgd.correlation import correlation
from jaxsmi.sgd.functions import Flat, SquaredNorm
from jaxsmi.sgd.grid import expectation
from jaxsmi.sgd.hermite import has_second_moment
from jaxsmi.sgd.networks import is_finite_sum, network_risk

# Tokens on grids: two take milliseconds, three seconds, four would take minutes.
_TOKENS = 3

_NETS = 16


def overlaps(model: SequenceSingleIndex, m: ArrayLike, e: ArrayLike = 0.0) -> Array:
    """(m, e) as one vector (1 + K,), of an untied network m_1..m_L; checked where they are known.

    `m` is a number, of an untied network one for each direction or one for all; `e` (K,), or a
    number for all of it.
    """
    arguments = Arguments()
    arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
    m = arguments.array("m", m, "overlaps in [-1, 1]")
    e = arguments.array("e", e, "overlaps in [-1, 1]")
    if not model.tied:
        each = f"a number, or one for each of the {model.length} directions"
        check(m.shape in ((), (model.length,)), "m", m, each)
        none = "nothing: networks have no positional overlap"
        check(e.shape == () and jnp.all(e == 0), "e", e, none)
        v = jnp.broadcast_to(m, (model.length,))
        check(jnp.all(jnp.abs(v) <= 1.0 + 1e-12), "m", m, "overlaps in [-1, 1]")
        return v
    K = model.encoding.shape[1]
    check(m.shape == (), "m", m, "a number in [-1, 1]")
    check(e.shape in ((), (K,)), "e", e, f"a number, or an array of shape ({K},)")
    check(K > 0 or jnp.all(e == 0), "e", e, "nothing: the model has no positional encoding")
    v = jnp.concatenate([m[None], jnp.broadcast_to(e, (K,))])
    rounding = max(1e-12, 4 * float(jnp.finfo(v.dtype).eps))
    check(jnp.sum(v**2) <= 1.0 + rounding, "(m, e)", v, "m² + ‖e‖² <= 1")
    return v


def overlap_norm(model: SequenceSingleIndex, v: Array) -> Array:
    """‖(m, e)‖, of an untied network ‖m‖/√L, along the last axis: the measure of weak recovery."""
    size = jnp.linalg.norm(v, axis=-1)
    return size if model.tied else size / np.sqrt(model.length)


def without_sampling(model: SequenceSingleIndex) -> bool:
    """Whether the risk is an integral on a grid or a finite sum, without sampling error."""
    few = model.length <= _TOKENS and not isinstance(model.student, Network)
    return model.loss == "squared" and (is_finite_sum(model) or few)


def sampling(
    arguments: Arguments, model: SequenceSingleIndex, key: PRNGKeyArray | None, samples: int
) -> int:
    """Check key and samples of a call; the samples of each net, a power of two."""
    if key is not None:
        arguments.key("key", key)
    needless = without_sampling(model)
    check(needless or key is not None, "key", key, "a key: the risk of this model is sampled")
    return power_of_two(arguments.count("samples", samples))


def risk(
    model: SequenceSingleIndex,
    m: ArrayLike,
    e: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
) -> Estimate:
    r"""Population risk, differentiable in (m, e), at |m| = 1 too, and in the model's numbers.

        R(m, e) = c E‖g(z*) - F(z)‖²,   z = C e + m z* + √(1 - m²) ξ

    Args:
        model: A `SequenceSingleIndex`.
        m: Semantic overlap, a number in [-1, 1]; of an untied network (L,), or a number for all
            directions.
        e: Positional overlaps (K,), or a number for all of them, with m² + ‖e‖² <= 1. Default 0.
        key: A random key, needed where the risk is sampled: with more than three tokens, for
            networks whose target is no `HermiteSeries`, and for the unsquared loss.
        samples: Points of each of 16 nets, there; rounded up to a power of two. Default 16384.

    Returns:
        Estimate(value, stderr). On grids `stderr` is what half of the nodes would change: for
        smooth functions of size one about 1e-13 for one and two tokens and 1e-10 for three. NaN
        under jit where m² + ‖e‖² > 1, as is the derivative of a sampled risk at |m| = 1.

    Raises:
        ValueError: For a point outside m² + ‖e‖² <= 1, other shapes, a target without a second
            moment, or a missing key.

    Example:
        >>> import jaxsmi as smi
        >>> round(float(smi.sgd.risk(smi.sgd.semantic_positional(0.67), 0.5, 0.4).value), 10)
        0.1175037044

    Cost:
        2 L n^{L+1} operations, n = 201 nodes for two tokens (2 ms), 81 for three (0.5 s); for |m|
        so close to one that √(1 - m²) < 1.3 steps, 10^L n^L evaluations of F. Many points at once
        by `jax.lax.map`: vmap takes all rules for each.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (8) to (11)].
    """
    arguments = Arguments()
    v = overlaps(model, m, e)
    samples = sampling(arguments, model, key, samples)
    if concrete((model, v)) and without_sampling(model):
        finite = has_second_moment(model.target, model.length)
        check(finite, "target", model.target, "a function of finite second moment")
    return eqx.filter_jit(risk_at)(model, v, key, samples)


def risk_at(
    model: SequenceSingleIndex,
    v: Array,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Estimate:
    """The risk at the overlaps v, inside jit; NaN where they are out of range. See `risk`."""
    if not without_sampling(model):
        estimate = net_average(model, v, key, samples, model.sample_loss)
    elif is_finite_sum(model):
        estimate = Estimate(network_risk(model, v), jnp.zeros(()))
    else:
        estimate = _risk_on_grid(model, v, coarse)
    return Estimate(jnp.where(in_range(model, v), estimate.value, jnp.nan), estimate.stderr)


def in_range(model: SequenceSingleIndex, v: Array) -> Array:
    """Whether m² + ‖e‖² <= 1, of an untied network all m_l² <= 1, up to rounding."""
    rounding = max(1e-9, 10 * float(jnp.finfo(v.dtype).eps))
    return (jnp.sum(v**2) if model.tied else jnp.max(v**2)) <= 1.0 + rounding


def _risk_on_grid(model: SequenceSingleIndex, v: Array, coarse: bool) -> Estimate:
    m = clipped(v[0])
    e = model.split(v)[1]
    g = Flat(model.target)
    F = Flat(model.student)
    reach = model.reach

    def value(stride: int, e: Array, m: Array) -> Array:
        target = expectation(SquaredNorm(g), jnp.zeros_like(e), stride=stride, coarse=coarse)
        student = expectation(SquaredNorm(F), e, reach=reach, stride=stride, coarse=coarse)
        both = correlation(g, F, m, e, reach=reach, stride=stride, coarse=coarse)
        return model.loss_factor * (target + student - 2.0 * both)

    fine = value(1, e, m)
    halved = lax.stop_gradient(value(2, *lax.stop_gradient((e, m))))
    return Estimate(fine, jnp.abs(lax.stop_gradient(fine) - halved))


def clipped(m: Array) -> Array:
    """m without what rounding adds beyond ±1, its derivative there not halved."""
    return m + lax.stop_gradient(jnp.clip(m, -1.0, 1.0) - m)


def net_average(
    model: SequenceSingleIndex,
    v: Array,
    key: PRNGKeyArray | None,
    samples: int,
    function: Callable[[Array, Array], Array],
) -> Estimate:
    """Mean of a function of one sample's (z*, z) over nets that are common to all overlaps v."""
    check(key is not None, "key", key, "a key: the risk of this model is sampled")
    assert key is not None
    points = randomised_gaussians(key, power_of_two(samples), _NETS, 2 * model.length)
    hidden = points[..., : model.length]
    xi = points[..., model.length :]
    m, e = model.split(v)
    inside = jnp.abs(m) < 1.0
    s = jnp.where(inside, jnp.sqrt(jnp.where(inside, 1.0 - m**2, 1.0)), 0.0)
    means = jnp.mean(jax.vmap(jax.vmap(function))(hidden, e + m * hidden + s * xi), axis=1)
    # at |m| = 1 the noise is gone, and with it half of the derivative
    mean = not_differentiable(jnp.mean(means), v, unless=jnp.all(inside))
    return Estimate(mean, jnp.std(means, ddof=1) / np.sqrt(_NETS))


def gradient(
    model: SequenceSingleIndex,
    v: Array,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Array:
    """∂R/∂v at the overlaps v, inside jit."""
    return jax.jacfwd(lambda v: risk_at(model, v, key, samples, coarse).value)(v)


def hessian(
    model: SequenceSingleIndex,
    m: ArrayLike = 0.0,
    e: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
) -> Array:
    r"""Hessian of the population risk in the overlaps, by differentiation.

        ∂²R/∂v_i ∂v_j,   v = (m, e_1..e_K), of an untied network (m_1..m_L)

    At the origin it equals `hessian_at_origin`, which has it from Hermite coefficients.

    Args:
        model: A `SequenceSingleIndex`.
        m: Semantic overlap, as for `risk`. Default 0.
        e: Positional overlaps, as for `risk`. Default 0.
        key: A random key, needed where the risk is sampled.
        samples: Points of each of 16 nets, there. Default 16384.

    Returns:
        An array (1 + K, 1 + K), of an untied network (L, L); NaN where `risk` is NaN.

    Raises:
        ValueError: As `risk`.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> hessian = smi.sgd.hessian(smi.sgd.semantic_positional(0.64))  # doctest: +SKIP
        >>> jnp.diag(hessian).round(6).tolist()  # R_mm, R_ee  # doctest: +SKIP
        [-0.079381, -0.07885]

    Cost:
        20 times that of `risk`, and seconds to compile.

    Source:
        [theory: online-sgd, Eqs. (12), (24)].
    """
    v = overlaps(model, m, e)
    return _hessian(model, v, key, sampling(Arguments(), model, key, samples))


@eqx.filter_jit
def _hessian(model: SequenceSingleIndex, v: Array, key: PRNGKeyArray | None, samples: int) -> Array:
    second = jax.jacfwd(jax.jacfwd(lambda v: risk_at(model, v, key, samples).value))(v)
    return jnp.where(in_range(model, v), second, jnp.nan)
