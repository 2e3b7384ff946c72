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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import Network, SequenceSingleIndex
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians
from jaxsmi.sgd.correlation import correlation
from jaxsmi.sgd.functions import Flat, SquaredNorm
from jaxsmi.sgd.grid import expectation
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
