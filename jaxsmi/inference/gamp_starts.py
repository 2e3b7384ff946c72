r"""Starts of message passing: random, spectral, informed by the teacher, given, or continued.

A random start of size ε has Q = ε². With side information of precision λ/(1 - λ) the start is the
posterior mean given that observation alone. The spectral start is Ŵ of `smi.spectral` with its
memory [theory: spectral, section 5].
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import array_module, nan_unless, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.options import Start
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import check
from jaxsmi.inference.gamp_step import GampState, Observations, SideInformation, Task
from jaxsmi.inference.spectral import (
    REGULARISATION,
    spectral_start,
    with_estimated_norm,
)
from jaxsmi.models.base import AbstractModel, has_parity, is_centred

_UNINFORMED = 1e-3  # size of a random start: Q = 1e-6 is below what labels resolve at any finite D
# size of a learner's random start: a tiny one fails where the loss is not convex
_LEARNER_SIZE = 0.5
# Sizes of random matrix starts, about the chance overlap. Smaller starts grew without the teacher:
# 0 of 8 runs at d = 60 learned, with these 3 of 8.
_MATRIX_SIZES = (0.1, 0.3)
FURTHER_SIZES = (0.3, 1.0)  # sizes of two more random starts if the first ends disagree
_INFORMED = 0.99  # side information λ of an informed start


def default_starts(task: Task, start: Start, data: Dataset) -> tuple[Any, ...]:
    """The sizes or names of the starts if the user gives none: one if E[z|y] is not zero, else a
    spectral and a random one, or for a matrix two random ones."""
    if not task.bayes:
        return (_LEARNER_SIZE,)
    _, fields = task.model.design.shapes(data.inputs.shape)
    # even labels carry no first-order signal of W
    if start.aided or not has_parity(task.model, fields[1:], 1.0):
        return (_UNINFORMED,)
    spectral = task.model.unsupported_reason("spectral") is None
    return ("spectral", _UNINFORMED) if spectral else _MATRIX_SIZES


@jax.jit
def streams(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """The keys of the start, of its side information, and of the run."""
    keys = jax.random.split(jax.random.fold_in(key, 1), 3)
    return keys[0], keys[1], keys[2]


class GampStart(NamedTuple):
    """The start of a run: the `observations` (their prior with the norm estimated from the
    labels), the `state`, `side` information, and the `spectral` estimate (P, D) if there is one."""

    observations: Observations
    state: GampState
    side: SideInformation
    spectral: Array | None = None


def make_start(
    task: Task, data: Dataset, keys: list[PRNGKeyArray], init: Any, start: Start
) -> GampStart:
    """Make the start of a run from `init`, one of what `smi.gamp(start=)` takes.

    `keys`: of its random part, and of the spectral estimate or of side information.
    """
    model, bayes = task.model, task.bayes
    word = init if isinstance(init, str) else None
    if word == "spectral" and bayes:
        strength = start.side_information
        check(not start.aided, "side_information", strength, "0 with start='spectral'")
        return _spectral_start(model, data, keys)
    signal, fields = model.design.shapes(data.inputs.shape)
    observed = lambda strength: SideInformation(
        *model.prior.side_information(keys[1], _teacher_signal(model, data), strength)
    )
    side = observed(start.side_information) if start.aided else None
    if isinstance(init, Solution | GampState):
        state = _continued(init, signal, fields)
    else:
        if word == "informed" and bayes:
            A, b = observed(jnp.asarray(_INFORMED, theory_dtype()))
            estimate = model.prior.posterior(b, A)
        else:
            # a minimiser has no posterior mean: it starts at the teacher itself
            init = _teacher_signal(model, data) if word == "informed" else init
            estimate = _random_or_given(model, signal, init, side, keys[0])
        state = GampState.start(*estimate, fields)
    observations = Observations.of(model, data, task.responder(model))
    return GampStart(observations, state, _no_side(state) if side is None else side)


def _continued(
    start: Solution | GampState, signal: tuple[int, ...], fields: tuple[int, ...]
) -> GampState:
    """The state to continue from."""
    allowed = "a solution of gamp or spectral, which has a state to continue from"
    state = start.state if isinstance(start, Solution) else start
    state = validate.instance("start", state, GampState, allowed)
    allowed = f"the state of a run with weights of shape {signal} on {fields[0]} samples"
    fits = (state.weights.shape, state.g.shape) == (signal, fields)
    check(fits, "start", f"weights {state.weights.shape} on {len(state.g)} samples", allowed)
    return state


def _random_or_given(
    model: AbstractModel,
    signal: tuple[int, ...],
    init: ArrayLike | str,
    side: SideInformation | None,
    key: PRNGKeyArray,
) -> tuple[Array, Array]:
    """Ŵ and C of a random start of the size `init`, or at the signal `init`."""
    allowed = f"a positive number, 'spectral', 'informed', or an array {signal}"
    value = validate.array("start", init, allowed, shape=signal, scalar=True)
    whole = value.ndim > 0
    xp = array_module(value)
    # zero is a fixed point of even labels, unless side information adds to it
    valid = xp.any(xp.asarray(value) != 0.0) | (side is not None)
    valid = valid & (whole | xp.all(xp.asarray(value) >= 0.0))
    check(valid, "start", value, "a number > 0, or weights that are not all zero")
    value = nan_unless(value, valid)
    size = jnp.zeros((), value.dtype) if whole else value
    if side is None:
        weights, covariance = _random_start(model.prior, key, signal, size)
    else:
        weights, covariance = model.prior.posterior(side.b, side.precision)
        weights = weights + size * jax.random.normal(key, signal, theory_dtype())
    return value if whole else weights, covariance


# compiled: from outside jit one program, not one an operation
_random_start = eqx.filter_jit(lambda prior, key, shape, size: prior.start(key, shape, size))


def _no_side(state: GampState) -> SideInformation:
    return SideInformation(jnp.zeros_like(state.covariance), jnp.zeros_like(state.weights))


def _teacher_signal(model: AbstractModel, data: Dataset) -> Array:
    """The teacher of the data, as a signal of message passing."""
    allowed = "a teacher, for side information or an informed start"
    check(data.teacher is not None, "data.teacher", None, allowed)
    assert data.teacher is not None
    return model.student.teacher_signal(data.teacher).astype(theory_dtype())


def _spectral_start(model: AbstractModel, data: Dataset, keys: list[PRNGKeyArray]) -> GampStart:
    """Return the spectral start, or a random one if nothing is learned. A prior with a mean, and
    labels that depend on W at first order, raise a ValueError (traced: weights are NaN)."""
    allowed = "a positive number, 'informed' or an array, for this model"
    check(model.unsupported_reason("spectral") is None, "start", "spectral", allowed)
    centred = is_centred(model)
    check(centred, "start", "spectral", allowed)
    observations = Observations.of(with_estimated_norm(model, data, None), data)
    start = spectral_start(observations, keys[1], jnp.asarray(REGULARISATION, theory_dtype()))
    allowed = "a positive number, as a spectral start needs labels with E[z|y] = 0"
    check(~start.has_linear_signal, "start", "spectral", allowed)
    size = jnp.where(start.has_linear_signal | ~centred, jnp.nan, _UNINFORMED)
    state = _add_noise(start.state, keys[0], size)
    return GampStart(observations, state, _no_side(state), start.state.weights)


@eqx.filter_jit
def _add_noise(state: GampState, key: PRNGKeyArray, size: Array) -> GampState:
    """The state with Gaussian noise of this size added to its weights."""
    noise = size * jax.random.normal(key, state.weights.shape, state.weights.dtype)
    return dataclasses.replace(state, weights=state.weights + noise)
