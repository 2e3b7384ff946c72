r"""Online SGD with batches as large as the dimension: a deterministic map.

Equations here [theory: online-sgd, Eq. (73)], B = b D samples a step, D → ∞, Γ the covariance of
(h, z), G = [A_T, A_Z], averages of averages.py:

    M' = M - κ b A_T,   Q' = Q - κ b (A_Z + A_Zᵀ) + κ² b² G Γ⁺ Gᵀ + κ² b V
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import anything, checked, optional, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.averages import NetAverages, net_averages
from jaxsmi.sgd.dynamics import Flow, FlowErrors, error_over_nets
from jaxsmi.sgd.problem import (
    check_gradient,
    check_start,
    frame_of,
    is_overlaps,
    is_teacher,
    overlaps_of,
    pair_of,
)

__all__ = ["large_batch_map"]


@checked(
    model=is_teacher,
    start=is_overlaps,
    ratio=scalar(POSITIVE),
    rate=scalar(POSITIVE),
    steps=whole(),
    student=optional(is_teacher),
    teacher=anything,
    key=random_key,
    samples=whole(),
    nets=whole(2),
)
def large_batch_map(
    model: AbstractTeacher,
    start: tuple[ArrayLike, ArrayLike],
    *,
    ratio: ArrayLike,
    rate: ArrayLike,
    steps: int,
    student: AbstractTeacher | None = None,
    teacher: str | ArrayLike | None = None,
    key: PRNGKeyArray,
    samples: int = 2**13,
    nets: int = 8,
) -> Flow:
    r"""Overlaps after each step of online SGD with B = b D fresh samples a step, D → ∞.

        M' = M - κ b A_T,   Q' = Q - κ b (A_Z + A_Zᵀ) + κ² b² G Γ⁺ Gᵀ + κ² b V

    Args:
        model: The teacher, an index model.
        start: Overlaps (M, Q), as for `flow`.
        ratio: b = B/D, a number > 0.
        rate: κ, the learning rate for each sample, a number > 0.
        steps: How many, an integer >= 1.
        student: Another index model of as many tokens. Default: the model.
        teacher: Gram matrix ρ (k, k) of the fixed rows. Default: that of the prior.
        key: A random key, of the nets.
        samples: Points of each net. Default 8192.
        nets: Independent nets, an integer >= 2. Default 8.

    Returns:
        A `Flow` at t = κ b i, i = 0, .., steps.

    Raises:
        ValueError: As `flow`.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.linear(0.0)
        >>> path = smi.sgd.large_batch_map(
        ...     model, ([[0.0]], [[1.0]]), ratio=0.5, rate=1.0, steps=2, key=jax.random.key(0)
        ... )
        >>> [round(float(m), 6) for m in path.m]  # m' = m + 2 κ b (1 - m)
        [0.0, 1.0, 1.0]

    Cost:
        nets × samples gradients of a sample, a step.

    Source:
        [theory: online-sgd, Eq. (73)].
    """
    arguments = Arguments()
    pair = pair_of(arguments, model, student)
    allowed = "an index model (runs of a sequence model with batches: smi.sgd.simulate)"
    check(not pair.spherical, "model", type(model).__name__, allowed)
    b = arguments.number("ratio", ratio, POSITIVE)
    kappa = arguments.number("rate", rate, POSITIVE)
    count = steps
    gram = frame_of(arguments, pair, teacher)
    begin = overlaps_of(arguments, model, pair, start)
    if begin is None:
        raise ValueError(f"start: got {start!r}; allowed: overlaps (M, Q).")
    check_start(arguments, pair, gram, begin)
    made = key
    number = nets
    size = power_of_two(samples)
    check_gradient(pair)
    found = _iterated(pair, gram, begin, b, kappa, made, (size, number, count))
    clean = [jnp.where(arguments.valid, x, jnp.nan) for x in found]
    M, Q, cosine, risk = (jnp.mean(x, axis=0) for x in clean)
    errors = FlowErrors(*(error_over_nets(x, number) for x in clean))
    finite = jnp.all(jnp.isfinite(found.M)) & jnp.all(jnp.isfinite(found.Q))
    result = jnp.where(finite, int(Result.SUCCESS), int(Result.NONFINITE))
    result = jnp.where(arguments.valid, result, int(Result.INVALID))
    time = kappa * b * jnp.arange(count + 1)
    return Flow(time, M, Q, cosine, risk, errors, result, kappa, pair.tied)


class _Record(NamedTuple):
    """M, Q, agreement and risk at a step."""

    M: Array
    Q: Array
    cosine: Array
    risk: Array


@eqx.filter_jit
def _iterated(
    pair: TeacherStudent,
    gram: Array,
    begin: tuple[Array, Array],
    b: Array,
    kappa: Array,
    key: PRNGKeyArray,
    sizes: tuple[int, int, int],
) -> _Record:
    """M, Q, cosines and risk (nets, steps + 1, ..), each net by itself."""
    samples, nets, steps = sizes
    averages = net_averages(pair, triangular_root(gram), key, samples, nets)
    numbers, rest = eqx.partition(averages, eqx.is_array)

    def one(part: NetAverages) -> _Record:
        law = eqx.combine(part, rest)

        def step(x: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], _Record]:
            M, Q = x
            found = law.at(M, Q)
            G = jnp.concatenate([found.fixed, found.own], axis=1)
            Gamma = jnp.block([[gram, M.T], [M, Q]])
            span = G @ jnp.linalg.pinv(Gamma, hermitian=True) @ G.T
            pull = found.own + found.own.T
            new = Q - kappa * b * pull + kappa**2 * b * (b * span + found.square)
            record = _Record(M, Q, pair.agreement(M, Q, gram), found.risk)
            return (M - kappa * b * found.fixed, new), record

        return lax.scan(step, begin, None, length=steps + 1)[1]

    return lax.map(one, numbers)
