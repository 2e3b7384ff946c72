r"""The population risk over the overlaps as a user asks for it, and its Hessian.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (7), (12), (63)]: those of population.py, and of
index models the average R of averages.py.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete
from jaxsmi.core.border import checked, optional, random_key, whole
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import SequenceSingleIndex, is_sequence
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.averages import net_averages
from jaxsmi.sgd.hermite import has_second_moment
from jaxsmi.sgd.population import in_range, overlaps, risk_at, sampling, without_sampling
from jaxsmi.sgd.problem import (
    check_gradient,
    check_start,
    guarded,
    is_point,
    is_teacher,
    overlaps_of,
    pair_of,
)

__all__ = ["hessian", "risk"]

_NETS = 16


@checked(
    model=is_teacher,
    m=is_point,
    e=is_point,
    key=optional(random_key),
    samples=whole(),
    student=optional(is_teacher),
)
def risk(
    model: AbstractTeacher,
    m: ArrayLike | tuple[ArrayLike, ArrayLike],
    e: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
    student: AbstractTeacher | None = None,
) -> Estimate:
    r"""Population risk, differentiable in the overlaps and in the model's numbers.

    Of one direction at |m| = 1 too; of an index model derivatives in (M, Q) are NaN where
    Q - M ρ⁺ Mᵀ is singular.

        R(m, e) = c E‖g(z*) - F(z)‖²,   z = C e + m z* + √(1 - m²) ξ
        index models:  R(M, Q) = E ℓ(link(z), y), with the noise of labels

    Args:
        model: A `SequenceSingleIndex`, or an index model.
        m: Semantic overlap, a number in [-1, 1]; of an untied network (L,), or a number for all
            directions; of an index model overlaps (M, Q).
        e: Positional overlaps (K,), or a number for all of them, with m² + ‖e‖² <= 1. Default 0.
        key: A random key, needed where the risk is sampled: with more than three tokens, for
            networks whose target is no `HermiteSeries`, for the unsquared loss, and index models.
        samples: Points of each of 16 nets, there; rounded up to a power of two. Default 16384.
        student: Another index model of as many tokens. Default: the model.

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
    pair = pair_of(arguments, model, student)
    if not pair.spherical:
        return _index_risk(arguments, model, pair, (m, e), key, samples)
    model = arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
    check(not isinstance(m, tuple), "m", m, "overlaps in [-1, 1]")
    v = overlaps(model, m, e)  # pyright: ignore[reportArgumentType]
    samples = sampling(arguments, model, key, samples)
    if concrete((model, v)) and without_sampling(model):
        finite = has_second_moment(model.target, model.length)
        check(finite, "target", model.target, "a function of finite second moment")
    check_gradient(pair)
    return eqx.filter_jit(risk_at)(model, v, key, samples)


def _index_risk(
    arguments: Arguments,
    model: object,
    pair: TeacherStudent,
    where: tuple[object, ArrayLike],
    key: PRNGKeyArray | None,
    samples: int,
) -> Estimate:
    """That of an index model at (M, Q), on nets."""
    start = overlaps_of(arguments, model, pair, where[0], None, where[1])
    if start is None:
        raise ValueError(f"m: got {where[0]!r}; allowed: (M, Q), of an index model.")
    check_start(arguments, pair, pair.gram, start)
    start = guarded(pair, pair.gram, *start)
    check(key is not None, "key", key, "a key: averages of this model are sampled")
    count = power_of_two(arguments.count("samples", samples))
    check_gradient(pair)
    values = _on_nets(pair, start, arguments.key("key", key), count)
    values = jnp.where(arguments.valid, values, jnp.nan)
    return Estimate(jnp.mean(values), jnp.std(values, ddof=1) / np.sqrt(_NETS))


@eqx.filter_jit
def _on_nets(
    pair: TeacherStudent, start: tuple[Array, Array], key: PRNGKeyArray, samples: int
) -> Array:
    """R of each net."""
    law = net_averages(pair, triangular_root(pair.gram), key, samples, _NETS)
    numbers, rest = eqx.partition(law, eqx.is_array)
    return lax.map(lambda part: eqx.combine(part, rest).at(*start).risk, numbers)


@checked(model=is_sequence, m=is_point, e=is_point, key=optional(random_key), samples=whole())
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
