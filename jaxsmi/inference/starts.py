r"""Where a run of message passing starts.

    spectral    the spectral estimate with its memory (spectral.py), and size × N(0, 1) beside it
    random      Ŵ ~ size × N(0, 1), C = S: a tiny start says nothing, and grows as theory says
    informed    the posterior mean given √λ W* + √(1-λ) ξ, λ = 0.99

The spectral start is the default where labels do not change with the sign of the fields: they then
say nothing of W at first order, and a random start has to find at finite dimension what it lost
itself. Where they do change, the first step of any start finds what they tell at first order; links
that tell nothing at first order for another reason take init="spectral".

Source: [theory: multi-index, section 4; spectral, section 5].
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.validate import check
from jaxsmi.inference.iteration import GampState, SideInformation, contract
from jaxsmi.inference.spectral import (
    REGULARISATION,
    SpectralStart,
    new_and_old,
    nothing_known,
    spectral_start,
    unknown_directions,
)
from jaxsmi.inference.spectral_vectors import Observations
from jaxsmi.inference.teacher_norm import with_norm
from jaxsmi.models.base import AbstractModel, is_centred

__all__ = ["Start", "begin", "further"]

_INFORMED = 0.99  # side information λ of an informed start
_TINY = 1e-3
_FIELDS = 64  # fields at which the parity of a link is looked at


class Start(NamedTuple):
    """What a run starts with: the `model` (its prior with the norm that the labels tell), the
    `state`, `side` information, and the `spectral` estimate (P, D) where the start was that."""

    model: AbstractModel
    state: GampState
    side: SideInformation
    spectral: Array | None


def begin(
    model: AbstractModel,
    data: Dataset,
    keys: list[PRNGKeyArray],
    init: ArrayLike | str | None,
    strength: Array | None,
    state: GampState | None,
) -> Start:
    """The start of a run.

    Args:
        model: Any model with a posterior.
        data: The data.
        keys: Of the start, and of side information.
        init, strength, state: As `gamp` takes them; a `strength` of None: no side information.

    Returns:
        A `Start`.
    """
    aided = strength is not None
    if init is None:
        free = not aided and state is None
        if free and _silent(model):
            return _spectral(model, data, keys)[0]
        init = _TINY
    if isinstance(init, str) and init == "spectral":
        allowed = "a positive number, 'informed' or an array, for this model"
        check(model.unsupported_reason("spectral") is None, "start", init, allowed)
        centred = is_centred(model)
        check(centred, "start", init, allowed)
        check(not aided, "side_information", strength, "0 with start='spectral'")
        start, first_order = _spectral(model, data, keys)
        allowed = "a positive number where labels say something of W at first order"
        check(~first_order, "start", init, allowed)
        return _unless(first_order | ~centred, start)
    made, side = _ordinary(model, data, keys, init, strength)
    return Start(model, made if state is None else state, side, None)


def _unless(bad: Array, start: Start) -> Start:
    """The start, its weights NaN where a traced condition fails."""
    if concrete(bad):
        return start
    weights = jnp.where(bad, jnp.nan, start.state.weights)
    return start._replace(state=eqx.tree_at(lambda s: s.weights, start.state, weights))


def _silent(model: AbstractModel) -> bool:
    """Whether labels say nothing of W at first order, as far as their parity shows it; and the
    prior neither."""
    drawable = model.unsupported_reason("spectral") is None and model.channel.drawable
    if not drawable:
        return False
    centred = is_centred(model)  # outside jit one program
    with jax.ensure_compile_time_eval():  # inside jit, too, where the model itself is not traced
        shape = (_FIELDS, model.channel.indices, model.channel.tokens)
        fields = jnp.asarray(np.random.default_rng(0).standard_normal(shape), theory_dtype())
        centred = centred if concrete(centred) else is_centred(model)
        both = (_even(model.channel, fields), centred)
    return concrete(both) and all(map(bool, both))


@eqx.filter_jit
def _even(channel: AbstractChannel, fields: Array) -> Array:
    """Whether labels stay the same where all fields (n, P, M) change their sign. (Fields that the
    compiler knew would be worked on one operation after the other, each compiled by itself.)"""
    labels, mirrored = (jax.vmap(channel.link)(z) for z in (fields, -fields))
    rounding = 64.0 * jnp.finfo(labels.dtype).eps * jnp.max(jnp.abs(labels))
    return jnp.max(jnp.abs(labels - mirrored)) <= rounding


def _spectral(model: AbstractModel, data: Dataset, keys: list[PRNGKeyArray]) -> tuple[Start, Array]:
    """The spectral start; where nothing is learned, a random one. And whether labels tell W at
    first order, where it has no sense."""
    start_key, spectral_key = keys
    model = with_norm(model, data, None)
    s = jnp.asarray(REGULARISATION, theory_dtype())
    observations = Observations(model, data, data.mesh)
    nothing = nothing_known(model, data)
    start, first_order = spectral_start(observations, nothing, spectral_key, s)
    state, estimate = _noisy(start, start_key)
    return Start(model, state, _no_side(model, estimate.shape), estimate), first_order


@eqx.filter_jit
def _noisy(start: SpectralStart, key: PRNGKeyArray) -> tuple[GampState, Array]:
    """The state with something tiny in all directions, and the spectral estimate alone."""
    weights = start.state.weights
    noise = _TINY * jax.random.normal(key, weights.shape, weights.dtype)
    return eqx.tree_at(lambda s: s.weights, start.state, weights + noise), start.estimate


def further(
    model: AbstractModel, data: Dataset, state: GampState, spectral: Array, key: PRNGKeyArray
) -> tuple[GampState, Array] | None:
    """Where a run goes on that stands still, if labels tell of directions that it does not know:
    given the others, these have a spectral estimate of their own.

    Args:
        model: The model of the run.
        data: The data.
        state: Where the run stands.
        spectral: The spectral estimate that it started with (P, D).
        key: A random key.

    Returns:
        The state, and the spectral estimate in all directions (P, D); None where all directions are
        known, or none, or where nothing stands out of the bulk. Only outside jit.
    """
    S = model.prior.second_moment(model.indices)
    unknown = unknown_directions(state.weights, S)
    directions = round(float(jnp.trace(unknown)))
    if not 0 < directions < model.indices:
        return None
    s = jnp.asarray(REGULARISATION, theory_dtype())
    start_key, spectral_key = jax.random.split(key)
    start, _ = spectral_start(Observations(model, data, data.mesh), state, spectral_key, s)
    if not bool(start.learned):
        return None
    more, estimate = _noisy(start, start_key)
    _, old = new_and_old(unknown, S)
    return more, estimate + contract(old, spectral)


def _no_side(model: AbstractModel, signal: tuple[int, ...]) -> SideInformation:
    dtype = theory_dtype()
    P = model.indices
    nothing = (np.zeros((P, P), dtype), np.zeros(signal, dtype))
    return SideInformation(*map(jnp.asarray, nothing))


def _ordinary(
    model: AbstractModel,
    data: Dataset,
    keys: list[PRNGKeyArray],
    init: ArrayLike | str,
    strength: Array | None,
) -> tuple[GampState, SideInformation]:
    """The random or informed start, or one that is given, and side information of that strength
    (None: none)."""
    dtype = theory_dtype()
    signal, fields = model.design.shapes(data.inputs.shape)
    start_key, side_key = keys
    prior = model.prior
    side = _no_side(model, signal)
    scale, given = _scale_or_signal(init, signal, strength is not None)
    if given is None or strength is not None:
        check(
            data.teacher is not None,
            "data.teacher",
            None,
            "a teacher, for side information or an informed start",
        )
        assert data.teacher is not None
        teacher = model.student.teacher_signal(data.teacher)
        if strength is not None:
            side = SideInformation(*prior.side_information(side_key, teacher, strength))
        if given is None:
            A, b = prior.side_information(side_key, teacher, jnp.asarray(_INFORMED, dtype))
            weights, covariance = prior.posterior(b, A)
        else:  # a start of exactly zero (λ = 0, traced) would be a fixed point of even labels
            weights, covariance = prior.posterior(side.fields, side.precision)
            weights = weights + scale * jax.random.normal(start_key, signal, dtype)
    else:
        weights, covariance = prior.start(start_key, signal, scale)
    if given is not None and given.ndim:
        weights = given
    return GampState.start(weights, covariance, fields), side


def _scale_or_signal(
    init: ArrayLike | str, signal: tuple[int, ...], aided: bool
) -> tuple[Array, Array | None]:
    """The scale of a random start (0 where it is not random), and what was given: a number, the
    signal itself, or None for "informed". `aided`: side information makes the start not zero."""
    nothing = jnp.zeros((), theory_dtype())
    allowed = f"a positive number, 'spectral', 'informed', or an array {signal}"
    if isinstance(init, str):
        check(init == "informed", "start", init, allowed)
        return nothing, None
    value = validate.array("start", init, allowed)
    check(value.shape in ((), signal), "start", value, allowed)
    if value.ndim:
        somewhere = jnp.asarray(aided) | jnp.any(value != 0)
        check(somewhere, "start", "zero", "a signal that is not zero")
        return nothing, jnp.where(somewhere, value, jnp.nan)
    enough = (value >= 0) if aided else (value > 0)
    check(enough, "start", value, "a positive number (0 is a fixed point of an even label)")
    value = jnp.where(enough, value, jnp.nan)
    return value, value
