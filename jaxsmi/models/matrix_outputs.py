r"""The output of a model of one matrix: from what a user names to a channel.

Equations here [theory: bilinear, Eq. (33); attention-indexed, Eq. (49)]: y = φ(z) + √Δ ξ of one
field z, or y = φ(h) + √Δ ξ of symmetric scores h (T, T), or any p(y|z), p(y|h). Channels are those
of models of indices: their field laws are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.pullback import frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module, is_zero
from jaxsmi.core.validate import check
from jaxsmi.models import links
from jaxsmi.models.multi_index import MultiIndex, output_shape


class Labels(NamedTuple):
    """How labels scatter: the arguments `noise`, `log_likelihood`, `sampler`, `outcomes`."""

    noise: ArrayLike = 0.0
    log_likelihood: Callable[[Array, Array], Array] | None = None
    sampler: Callable[[PRNGKeyArray, Array], Array] | None = None
    outcomes: ArrayLike | None = None


class _OfFields(eqx.Module):
    """A user's function of fields as they are seen: a number, or a symmetric matrix (T, T); the
    fields (1, M) are its last argument."""

    function: Callable[..., Array]
    size: int | None = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> Array:
        *before, fields = arguments
        if self.size is None:
            return jnp.asarray(self.function(*before, fields[0, 0]))
        # channels see T(T+1)/2 independent coordinates, users symmetric matrices
        basis = jnp.asarray(frame(self.size), fields.dtype)
        return jnp.asarray(self.function(*before, (basis @ fields[0]).reshape(self.size, -1)))


def output_model(
    output: object,
    labels: Labels,
    named: Sequence[str],
    size: int | None = None,
    tolerance: float | None = None,
) -> MultiIndex | None:
    """The model of one index whose name, channel and symmetry are those of an output.

    Args:
        output: One of the words `named`, a function of the fields, a model of `smi.links` of one
            index and token (for one field), or (None) the mean of the law of few labels.
        labels: The law of labels.
        named: The words that the family takes.
        size: T of symmetric scores (T, T); None: one field.
        tolerance: Of the numerical channel.

    Returns:
        The model; None for a word whose channel is the family's own.

    Raises:
        ValueError: For another output, or arguments beside it that it does not take.
    """
    # a model of links is no function: what is callable is a link of the fields
    if output is None or callable(output):
        return _integrated(output, labels, size, tolerance)
    if size is None and not isinstance(output, str):
        allowed = f"one of {tuple(named)}, a JAX function of one number, or a link of smi.links"
        model = validate.instance("output", output, MultiIndex, allowed)
        one = model.indices == 1 and model.tokens == 1
        check(one, "output", model.name, "a link of one index and one token")
        allowed = "0 beside a link, which has its own law of labels"
        check(is_zero(labels.noise), "noise", labels.noise, allowed)
    else:
        word = validate.choice("output", output, named)
        model = _NAMED[word](labels.noise) if word in _NAMED else None
    for name, value in labels._asdict().items():
        allowed = "None beside a named output, or a link of smi.links"
        check(name == "noise" or value is None, name, value, allowed)
    return model


def _integrated(
    output: Any,
    labels: Labels,
    size: int | None,
    tolerance: float | None,
) -> MultiIndex:
    """The model of one index whose channel integrates over the fields of a function."""
    wrapped = lambda f: None if f is None else _OfFields(as_module(f), size)
    name = None
    if output is not None:
        shape = () if size is None else (size, size)
        arguments = "one number" if size is None else f"symmetric scores {shape}"
        name = getattr(output, "__name__", type(output).__name__)
        output_shape("output", output, arguments, np.zeros(shape), called=name)
    return MultiIndex(
        wrapped(output),
        indices=1,
        tokens=1 if size is None else size * (size + 1) // 2,
        noise=labels.noise,
        log_likelihood=wrapped(labels.log_likelihood),
        sampler=wrapped(labels.sampler),
        outcomes=labels.outcomes,
        name=name,
        tolerance=tolerance,
    )


_NAMED: Mapping[str, Callable[[ArrayLike], MultiIndex]] = {
    "sign": lambda noise: links.sign(noise=noise),
    # the modulus without noise has a channel of its own, in closed form
    "absolute": lambda noise: links.phase_retrieval() if is_zero(noise) else links.absolute(noise),
}
