r"""Any link function as a sequence multi-index model, or as the output of a model of one matrix.

Equation here: y = link(Z) + √Δ ξ, Z = W x/√D (P, M), for any JAX function of an array (P, M)
[TCDKZ25; theory: multi-index, Eqs. (1), (2)]. Outputs of matrices have the same field laws, and so
the same channels: y = φ(z) + √Δ ξ of one field z, or of symmetric scores h (T, T)
[theory: bilinear, Eq. (33); attention-indexed, Eq. (49)].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.likelihood import IntegratedChannel, Likelihood, NoInference
from jaxsmi.channels.pullback import frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module, check_closure, concrete, is_zero
from jaxsmi.core.validate import POSITIVE, VARIANCE, check
from jaxsmi.design.tokens import Tokens
from jaxsmi.models.index import IndexModel
from jaxsmi.models.symmetry import AbstractSymmetry, Block, symmetries_of, symmetry_of
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors import AbstractIidPrior
from jaxsmi.priors.gaussian import iid_prior

_MAX_NODES = 2**20  # empirical: bounds time and memory of one label
_ROUNDING = 1e-4  # of probabilities that add up to one: float32 likelihoods, many outcomes


class MultiIndex(IndexModel):
    r"""Sequence multi-index model y = link(Z) + √Δ ξ with Z = W x/√D ∈ R^{P×M}.

    A noiseless link without a channel can be sampled and trained; `noiseless_limit` and
    `weak_recovery(noises=..)` extrapolate to zero noise, and `gamp` raises a ValueError.

    Args:
        link: array (P, M) -> array, any JAX function (an equinox Module keeps its arrays
            differentiable); None where `channel` is given, whose link it then is.
        indices: P. Default: that of `channel`.
        tokens: M. Default: that of `channel`, else 1.
        noise: Variance Δ >= 0 of the label noise. Default 0.
        prior: Of the rows of W. Default: iid N(0, 1).
        log_likelihood: log p(y|Z) as a function of (y, Z), normalised, instead of Gaussian noise.
            Alone it serves `gamp` on data of your own; `sample` and `state_evolution` must draw
            labels, by one of the next two.
        sampler: Draws a label from (key, Z).
        outcomes: All labels (K, ...), where they are few: drawn with the probabilities of
            log_likelihood. The link is then E[y|Z] unless it is given.
        channel: An exact channel, with its own link, in place of a link and its noise.
        inputs: Fixed directions around which tokens lie, such as positional encodings:
            `smi.Tokens(encoding=..)`. Default: inputs are centred.
        symmetry: What leaves every label unchanged: pairs (indices, word), with a word of
            `models.symmetry.SYMMETRIES` ("sign", "signed permutation", "rotation", ..), or
            symmetries themselves; () for none. Default: found by looking at the labels of some
            fields, which sees signs, orders and rotations of rows (of a prior that is not even,
            orders only: the prior determines signs).
        name: What to call the model. Default: the name of the link.
        tolerance: Error of g, relative to 1 + max|g|, that the numerical channel aims at. Default
            1e-3, 1e-2 for more than three fields.
        max_nodes: Nodes that the numerical channel may spend on one sample. Default 2^20.

    Raises:
        ValueError: For P < 1, M < 1, Δ < 0, a link that fails on an array (P, M) or returns none (a
            list: jnp.stack makes an array of it), a log_likelihood whose outcomes' probabilities do
            not add up to one, or an unknown symmetry.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.MultiIndex(lambda z: jnp.sum(jnp.tanh(z)), indices=2, tokens=1, noise=0.1).indices
        2
    """

    prior: AbstractIidPrior
    channel: AbstractChannel
    symmetry: tuple[AbstractSymmetry, ...]
    name: str = eqx.field(static=True)

    def __init__(
        self,
        link: Callable[[Array], Array] | None = None,
        *,
        indices: int | None = None,
        tokens: int | None = None,
        noise: ArrayLike = 0.0,
        prior: AbstractIidPrior | None = None,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        sampler: Callable[[PRNGKeyArray, Array], Array] | None = None,
        outcomes: ArrayLike | None = None,
        channel: AbstractChannel | None = None,
        inputs: Tokens | None = None,
        symmetry: Sequence[AbstractSymmetry | tuple[Block, str]] | None = None,
        name: str | None = None,
        tolerance: float | None = None,
        max_nodes: int = _MAX_NODES,
    ):
        labels = _likelihood(log_likelihood, sampler, outcomes)
        validate.optional(validate.instance, "name", name, str, "a word")
        max_nodes = validate.count("max_nodes", max_nodes)
        if channel is None:
            P = validate.count("indices", indices)
            M = validate.count("tokens", 1 if tokens is None else tokens)
            # few labels have a mean for given fields: a link like any other
            if link is None and labels.outcomes is not None:
                link = labels.mean
                name = name or _name_of(log_likelihood)
            link = validate.function("link", link, "a JAX function, or a channel=")
            self.name = name or _name_of(link)
            law = as_module(link)
            # NumPy: inside jit an array of JAX would be traced, and an index out of range no error
            fields = np.zeros((P, M))
            arguments = f"an array of shape {fields.shape}"
            output_shape("link", law, arguments, fields, called=self.name)
            check_closure("link", law, fields)
            variance = validate.number("noise", noise, VARIANCE)
            allowed = "0 with a log_likelihood=, which says all of how labels scatter"
            check(log_likelihood is None or is_zero(noise), "noise", noise, allowed)
            validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
            error = default_tolerance(P * M) if tolerance is None else tolerance
            budget = Budget(error, max_nodes)
            # the law of noiseless labels is a delta function of the fields, which no numerical
            # integral resolves
            if log_likelihood is None and is_zero(noise):
                title = f"{self.name} (noise=0)"
                self.channel = NoInference(law=law, indices=P, tokens=M, name=title, budget=budget)
            else:
                _check_likelihood(labels, law, P, M)
                self.channel = IntegratedChannel(P, M, budget, law, variance, labels)
        else:
            allowed = "an AbstractChannel"
            self.channel = validate.instance("channel", channel, AbstractChannel, allowed)
            self.name = name or _name_of(type(channel))
            # a setting that the channel does not use is refused: nobody would notice that it was
            # ignored
            beside = {
                "link": (link, None),
                "indices": (indices, channel.indices),
                "tokens": (tokens, channel.tokens),
                "noise": (noise, 0.0),
                "log_likelihood": (log_likelihood, None),
                "tolerance": (tolerance, None),
                "max_nodes": (max_nodes, _MAX_NODES),
            }
            for word, (value, own) in beside.items():
                same = value is None or (concrete(value) and value == own)
                check(same, word, value, f"{own} beside this channel=, which has its own")
        self.prior = iid_prior(prior)
        allowed = "smi.Tokens(encoding=..)"
        self.inputs = validate.optional(validate.instance, "inputs", inputs, Tokens, allowed)
        if self.inputs is not None:
            second_moment = self.prior.second_moment(self.indices)
            self.inputs.check_fit(self.indices, self.tokens, second_moment)
        self.symmetry = _symmetry(symmetry, self.channel, labels, self.prior.traits.even)

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Also for a teacher that overlaps with directions of its inputs: its prior does not know
        them."""
        if self.inputs is not None and self.inputs.cross is not None:
            return (
                f"inputs: got {self.name} with cross=, weights that overlap with directions of "
                "their inputs; allowed: none (smi.Tokens(encoding=..)), or a learner: "
                "smi.state_evolution(.., learner=smi.Erm(..))."
            )
        return super().unsupported_reason(purpose)


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
    output: Callable[..., Any] | None,
    noise: ArrayLike,
    labels: Mapping[str, Any],
    size: int | None = None,
    tolerance: float | None = None,
) -> MultiIndex:
    """The model of one index with the channel of an output of a matrix.

    Args:
        output: A function of one field, or of scores; None: the mean of the law of few labels.
        noise: Δ >= 0.
        labels: The arguments `log_likelihood`, `sampler` and `outcomes`, of the same fields.
        size: T of symmetric scores (T, T); None: one field.
        tolerance: Of the numerical channel.
    """
    wrapped = lambda f: None if f is None else _OfFields(as_module(f), size)
    name = None
    if output is not None:
        shape = () if size is None else (size, size)
        arguments = "one number" if size is None else f"symmetric scores {shape}"
        name = _name_of(output)
        output_shape("output", output, arguments, np.zeros(shape), called=name)
    return MultiIndex(
        wrapped(output),
        indices=1,
        tokens=1 if size is None else size * (size + 1) // 2,
        noise=noise,
        log_likelihood=wrapped(labels["log_likelihood"]),
        sampler=wrapped(labels["sampler"]),
        outcomes=labels["outcomes"],
        name=name,
        tolerance=tolerance,
    )


def check_no_law(labels: Mapping[str, Any]) -> None:
    """Raise a ValueError for a law of labels beside an output that has its own."""
    for name, value in labels.items():
        check(value is None, name, value, "None beside a named output, or a link of smi.links")


def _name_of(function: object) -> str:
    """The name of a function, or of its type."""
    return getattr(function, "__name__", type(function).__name__)


def _symmetry(
    symmetry: Sequence[AbstractSymmetry | tuple[Block, str]] | None,
    channel: AbstractChannel,
    labels: Likelihood,
    even: bool,
) -> tuple[AbstractSymmetry, ...]:
    """The argument `symmetry`; None: found by looking at labels; `even`: of the prior, too."""
    P = channel.indices
    if symmetry is None:
        return symmetries_of(_Observed(channel, labels), P, channel.tokens, even)
    allowed = "symmetries, such as [((0, 1), 'sign')]"
    kinds = (AbstractSymmetry, tuple)
    parts = validate.sequence("symmetry", symmetry, allowed, empty=True)
    parts = [validate.instance("symmetry", part, kinds, allowed) for part in parts]
    return tuple(
        part if isinstance(part, AbstractSymmetry) else symmetry_of(part[0], part[1], P)
        for part in parts
    )


class _Observed(eqx.Module):
    """A function that a symmetry leaves unchanged: the label, with the user's likelihood."""

    channel: AbstractChannel
    labels: Likelihood

    def __call__(self, fields: Array) -> Array:
        # not the link alone: a likelihood can determine signs that its mean does not
        label = jnp.asarray(self.channel.link(fields))
        if self.labels.log_likelihood is None:
            return jnp.ravel(label)
        # few labels: their probabilities are the law itself, without a link
        if self.labels.outcomes is not None:
            return self.labels.odds(fields)
        return jnp.append(jnp.ravel(label), self.labels.log_likelihood(label, fields))


def _likelihood(
    log_likelihood: Callable[[Array, Array], Array] | None,
    sampler: Callable[[PRNGKeyArray, Array], Array] | None,
    outcomes: ArrayLike | None,
) -> Likelihood:
    """The law of labels that the arguments describe."""
    if log_likelihood is None:
        allowed = "None without a log_likelihood=, the law that it draws from"
        check(sampler is None, "sampler", sampler, allowed)
        check(outcomes is None, "outcomes", outcomes, allowed)
        return Likelihood()
    allowed = "a function log p(y|z) of (label, fields)"
    law = as_module(validate.function("log_likelihood", log_likelihood, allowed))
    if outcomes is not None:
        check(sampler is None, "sampler", sampler, "None with outcomes=, whose odds are known")
        allowed = "all labels (K, ...), two or more"
        values = validate.array("outcomes", outcomes, allowed)
        check(values.ndim >= 1 and len(values) > 1, "outcomes", outcomes, allowed)
        return Likelihood(law, None, values)
    if sampler is None:
        return Likelihood(law)
    return Likelihood(law, as_module(validate.function("sampler", sampler, "one of (key, fields)")))


def _check_likelihood(
    labels: Likelihood, link: Callable[[Array], Array], indices: int, tokens: int
) -> None:
    """Raise a ValueError for a sampler or a likelihood that fails, or probabilities of the outcomes
    that do not add up to one."""
    if labels.log_likelihood is None:
        return
    z = np.cos(1.0 + 2.4 * np.arange(indices * tokens)).reshape(indices, tokens)  # generic fields
    if labels.sampler is not None:
        output_shape("sampler", labels.sampler, f"(key, fields {z.shape})", jax.random.key(0), z)
    label = np.zeros(labels.shape(link, (indices, tokens)))
    arguments = f"(a label, fields {z.shape})"
    shape = output_shape("log_likelihood", labels.log_likelihood, arguments, label, z)
    check_closure("log_likelihood", labels.log_likelihood, label, z)
    allowed = f"a JAX function of {arguments} that returns one number"
    check(shape == (), "log_likelihood", f"an answer of shape {shape}", allowed)
    if labels.outcomes is None:
        return
    total = jnp.sum(labels.odds(jnp.asarray(z)))
    allowed = "probabilities of the outcomes that add up to one"
    check(jnp.abs(total - 1.0) <= _ROUNDING, "log_likelihood", total, allowed)


def output_shape(
    name: str, function: Callable[..., Array], arguments: str, *values: Any, called: str = "one"
) -> tuple[int, ...]:
    """The shape of the result of a user's function; a ValueError where it fails, or returns another
    object than one array of real numbers (a list, say)."""
    allowed = f"a JAX function of {arguments}"
    result = validate.call_user_function(name, _abstract_result, allowed, function, *values)
    one = isinstance(result, jax.ShapeDtypeStruct)
    kind = f"complex numbers {result.shape}" if one else f"a {type(result).__name__}"
    real = one and not jnp.issubdtype(result.dtype, jnp.complexfloating)
    allowed += " that returns one array of real numbers, such as jnp.stack([...])"
    check(real, name, f"{called} that returns {kind}", allowed)
    return result.shape


def _abstract_result(function: Callable[..., Array], *values: Any) -> Any:
    """The result of a function by shape; an IndexError where it reads fields beyond theirs: JAX
    would read the last one instead, NumPy does not."""
    result = jax.eval_shape(function, *values)
    try:
        jax.eval_shape(lambda: jnp.asarray(function(*values)))
    except IndexError:
        raise
    except Exception:  # functions written for JAX's arrays alone cannot be tested so
        pass
    return result


def default_tolerance(inner: int) -> float:
    """Error of g aimed at by default: 1e-3 where grids reach it (up to three inner variables),
    1e-2 above."""
    return 1e-3 if inner <= 3 else 1e-2
