r"""The output of a model of one matrix: from what a user names to a channel.

Equations here [theory: bilinear, Eq. (33); attention-indexed, Eq. (49)]: y = φ(z) + √Δ ξ of one
field z, or y = φ(h) + √Δ ξ of symmetric scores h (T, T), or any p(y|z), p(y|h). Channels are those
of models of indices: their field laws are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.pullback import frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import is_zero
from jaxsmi.core.functions import as_module
from jaxsmi.core.validate import check
from jaxsmi.models import links
from jaxsmi.models.multi_index import MultiIndex

__all__ = ["Labels", "MatrixOutput", "field_output", "scores_output"]


class Labels(NamedTuple):
    """How labels scatter: the arguments `noise`, `log_likelihood`, `sampler`, `outcomes`."""

    noise: ArrayLike = 0.0
    log_likelihood: Callable[[Array, Array], Array] | None = None
    sampler: Callable[[PRNGKeyArray, Array], Array] | None = None
    outcomes: ArrayLike | None = None


class MatrixOutput(NamedTuple):
    """The name of an output, its channel (None: the model has its own), and whether labels do not
    change with the sign of the fields."""

    name: str
    channel: AbstractChannel | None
    even: bool


class _Seen(eqx.Module):
    """A user's function of fields as they are seen: a number, or a symmetric matrix (T, T); the
    fields (1, M) are its last argument."""

    function: Callable[..., Array]
    size: int | None = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> Array:
        *before, fields = arguments
        if self.size is None:
            return jnp.asarray(self.function(*before, fields[0, 0]))
        basis = jnp.asarray(frame(self.size), fields.dtype)
        return jnp.asarray(self.function(*before, (basis @ fields[0]).reshape(self.size, -1)))


def _model_of(
    output: object, labels: Labels, size: int | None, tolerance: float | None
) -> MultiIndex:
    """The model of one index whose channel it is."""
    tokens = 1 if size is None else size * (size + 1) // 2
    seen = lambda f: None if f is None else _Seen(as_module(f), size)
    link = None
    name = None
    if output is not None:
        shape = () if size is None else (size, size)
        what = "one number" if size is None else f"symmetric scores {shape}"
        name = getattr(output, "__name__", type(output).__name__)
        check(callable(output), "output", output, f"a JAX function of {what}")
        try:
            jax.eval_shape(output, jax.ShapeDtypeStruct(shape, float))  # pyright: ignore
        except Exception as failure:
            raise ValueError(
                f"output: got {name}, which fails on {what} ({failure}); allowed: a JAX function "
                f"of {what}."
            ) from failure
        link = seen(output)  # pyright: ignore[reportArgumentType]
    return MultiIndex(
        link,
        indices=1,
        tokens=tokens,
        noise=labels.noise,
        log_likelihood=seen(labels.log_likelihood),
        sampler=seen(labels.sampler),
        outcomes=labels.outcomes,
        name=name,
        tolerance=tolerance,
    )


def _check_named(labels: Labels) -> None:
    """Raise a ValueError for a law of labels beside an output that has its own."""
    for name in ("log_likelihood", "sampler", "outcomes"):
        value = getattr(labels, name)
        check(value is None, name, value, "None beside a named output, or a link of smi.links")


def field_output(output: object, labels: Labels) -> MatrixOutput:
    """The output of one field: "sign", "absolute", a function of one number, a model of `smi.links`
    of one index and token, or (None) the mean of the law of few labels.

    Raises:
        ValueError: For another output, or arguments beside it that it does not take.
    """
    if isinstance(output, str):
        _check_named(labels)
        if output == "linear":
            return MatrixOutput(output, None, False)
        if output == "sign":
            return MatrixOutput(output, links.sign(noise=labels.noise).channel, False)
        silent = is_zero(labels.noise)
        model = links.phase_retrieval() if silent else links.absolute(labels.noise)
        return MatrixOutput(output, model.channel, True)
    if output is not None and not callable(output):
        allowed = "linear, sign, absolute, a JAX function of one number, or a link of smi.links"
        output = validate.instance("output", output, MultiIndex, allowed)
        one = output.indices == 1 and output.tokens == 1
        check(one, "output", output.name, "a link of one index and one token")
        _check_named(labels)
        allowed = "0 beside a link, which has its own law of labels"
        check(is_zero(labels.noise), "noise", labels.noise, allowed)
        return MatrixOutput(output.name, output.channel, bool(output.symmetry))
    model = _model_of(output, labels, None, None)
    return MatrixOutput(model.name, model.channel, bool(model.symmetry))


def scores_output(
    output: object, labels: Labels, tokens: int, tolerance: float | None
) -> MatrixOutput:
    """The output of symmetric scores (T, T): a function of them, or (None) the mean of the law of
    few labels.

    Raises:
        ValueError: For another output.
    """
    if isinstance(output, str):  # those have channels of their own
        _check_named(labels)
        return MatrixOutput(output, None, False)
    model = _model_of(output, labels, tokens, tolerance)
    return MatrixOutput(model.name, model.channel, False)
