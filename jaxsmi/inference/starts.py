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
from jaxsmi.inference.calibration import with_norm
from jaxsmi.inference.iteration import GampState, SideInformation, contract
from jaxsmi.inference.observations import Observations
from jaxsmi.inference.spectral import (
    SpectralStart,
    new_and_old,
    nothing_known,
    spectral_start,
    unknown_directions,
)
from jaxsmi.models.base import AbstractModel, is_centred

TINY = 1e-3  # size of a random start: Q = 1e-6 is below what labels tell at any finite D
_INFORMED = 0.99  # side information λ of an informed start
_FIELDS = 64  # fields at which the parity of a link is looked at


class Start(NamedTuple):
    """What a run starts with: the `model` (its prior with the norm that the labels tell), the
    `state`, `side` information, and the `spectral` estimate (P, D) where the start was that."""

    model: AbstractModel
    state: GampState
    side: SideInformation
    spectral: Array | None


def is_silent(model: AbstractModel) -> bool:
    """Labels say nothing of W at first order, as far as their parity shows it; and the prior
    neither."""
    if model.unsupported_reason("spectral") is not None or not model.channel.drawable:
        return False
    centred = is_centred(model)  # outside jit one program
    with jax.ensure_compile_time_eval():  # inside jit, too, where the model itself is not traced
        shape = (_FIELDS, model.channel.indices, model.channel.tokens)
        fields = jnp.asarray(np.random.default_rng(0).standard_normal(shape), theory_dtype())
        centred = centred if concrete(centred) else is_centred(model)
        both = (_even(model.channel, fields), centred)
    return concrete(both) and all(map(bool, both))


# compiled, the fields an argument: constants would be worked on one operation after the other
@eqx.filter_jit
def _even(channel: AbstractChannel, fields: Array) -> Array:
    """Labels stay the same where all fields (n, P, M) change their sign."""
    labels, mirrored = (jax.vmap(channel.link)(z) for z in (fields, -fields))
    rounding = 64.0 * jnp.finfo(labels.dtype).eps * jnp.max(jnp.abs(labels))
    return jnp.max(jnp.abs(labels - mirrored)) <= rounding


def spectral(model: AbstractModel, data: Dataset, keys: list[PRNGKeyArray]) -> Start:
    """The spectral start; where nothing is learned, a random one. A ValueError (weights NaN where
    traced) for a model whose prior or labels tell W at first order, where it has no sense.

    `keys`: of the random part, and of the spectral estimate.
    """
    allowed = "a positive number, 'informed' or an array, for this model"
    check(model.unsupported_reason("spectral") is None, "start", "spectral", allowed)
    centred = is_centred(model)
    check(centred, "start", "spectral", allowed)
    model = with_norm(model, data, None)
    observations = Observations(model, data, data.mesh)
    start, first_order = spectral_start(observations, nothing_known(model, data), keys[1])
    allowed = "a positive number where labels say something of W at first order"
    check(~first_order, "start", "spectral", allowed)
    state = _noisy(start, keys[0], jnp.where(first_order | ~centred, jnp.nan, TINY))
    return Start(model, state, _no_side(state), start.estimate)


@eqx.filter_jit
def _noisy(start: SpectralStart, key: PRNGKeyArray, size: Array) -> GampState:
    """The state with something tiny in all directions."""
    weights = start.state.weights
    noise = size * jax.random.normal(key, weights.shape, weights.dtype)
    return eqx.tree_at(lambda s: s.weights, start.state, weights + noise)


def further(
    observations: Observations, state: GampState, spectral: Array, key: PRNGKeyArray
) -> tuple[GampState, Array] | None:
    """Where a run goes on that stands still, if labels tell of directions that it does not know:
    given the others, these have a spectral estimate of their own.

    Args:
        observations: Those of the run.
        state: Where the run stands.
        spectral: The spectral estimate that it started with (P, D).
        key: A random key.

    Returns:
        The state, and the spectral estimate in all directions (P, D); None where all directions are
        known, or none, or where nothing stands out of the bulk. Only outside jit.
    """
    S = observations.model.prior.second_moment(observations.model.indices)
    unknown = unknown_directions(state.weights, S)
    if not 0 < round(float(jnp.trace(unknown))) < len(S):
        return None
    start_key, spectral_key = jax.random.split(key)
    start, _ = spectral_start(observations, state, spectral_key)
    if not bool(start.learned):
        return None
    _, old = new_and_old(unknown, S)
    return _noisy(start, start_key, jnp.asarray(TINY)), start.estimate + contract(old, spectral)


def _no_side(state: GampState) -> SideInformation:
    return SideInformation(jnp.zeros_like(state.covariance), jnp.zeros_like(state.weights))


def ordinary(
    model: AbstractModel,
    data: Dataset,
    keys: list[PRNGKeyArray],
    init: ArrayLike | str,
    strength: Array | None,
) -> Start:
    """The random or informed start, or one that the user gives, and side information.

    Args:
        model: Any model with a posterior.
        data: The data.
        keys: Of the start, and of side information.
        init: The size of random weights, "informed", or the signal itself.
        strength: λ of side information; None: there is none.
    """
    prior = model.prior
    signal, fields = model.design.shapes(data.inputs.shape)
    start_key, side_key = keys
    allowed = f"a positive number, 'spectral', 'informed', or an array {signal}"
    observed = lambda strength: prior.side_information(
        side_key, teacher_signal(model, data), strength
    )
    side = None if strength is None else SideInformation(*observed(strength))
    if isinstance(init, str):
        check(init == "informed", "start", init, allowed)
        A, b = observed(jnp.asarray(_INFORMED, theory_dtype()))
        weights, covariance = prior.posterior(b, A)
    else:
        value = validate.array("start", init, allowed)
        check(value.shape in ((), signal), "start", value, allowed)
        # zero is a fixed point of even labels, unless side information adds to it
        valid = jnp.any(value != 0.0) if value.ndim else value > 0.0
        if side is not None:
            valid = valid | (value.ndim > 0) | (value >= 0.0)
        check(valid, "start", value, "a positive number, or a signal that is not zero")
        value = jnp.where(valid, value, jnp.nan)
        size = jnp.zeros((), value.dtype) if value.ndim else value
        if side is None:
            weights, covariance = prior.start(start_key, signal, size)
        else:
            weights, covariance = prior.posterior(side.fields, side.precision)
            weights = weights + size * jax.random.normal(start_key, signal, theory_dtype())
        weights = value if value.ndim else weights
    state = GampState.start(weights, covariance, fields)
    return Start(model, state, _no_side(state) if side is None else side, None)


def teacher_signal(model: AbstractModel, data: Dataset) -> Array:
    """The teacher of the data, as a signal of message passing."""
    allowed = "a teacher, for side information or an informed start"
    check(data.teacher is not None, "data.teacher", None, allowed)
    assert data.teacher is not None
    return model.student.teacher_signal(data.teacher).astype(theory_dtype())
