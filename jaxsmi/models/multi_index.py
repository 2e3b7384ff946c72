r"""Any link function as a sequence multi-index model.

Equation here: y = link(Z) + √Δ ξ, Z = W x/√D (P, M), for any JAX function of an array (P, M)
[TCDKZ25; theory: multi-index, Eqs. (1), (2)].
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
from jaxsmi.core.arrays import concrete, is_zero
from jaxsmi.core.border import (
    anything,
    checked,
    function,
    instance,
    numbers,
    optional,
    scalar,
    sequence,
    text,
    whole,
)
from jaxsmi.core.checks import POSITIVE, VARIANCE, Arguments, check
from jaxsmi.core.functions import as_module, check_closure
from jaxsmi.design.tokens import Tokens
from jaxsmi.models.index import IndexModel
from jaxsmi.models.invariance import symmetries_of
from jaxsmi.models.symmetry import AbstractSymmetry, Block, symmetry_of
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors import AbstractIidPrior
from jaxsmi.priors.gaussian import iid_prior, is_prior

__all__ = ["MultiIndex", "default_tolerance"]


_MAX_NODES = 2**20
_SYMMETRIES = "symmetries, such as [((0, 1), 'sign')]"
_ROUNDING = 1e-4  # of probabilities that add up to one
_POINTS = 16  # at which a link is compared with that of a channel


class MultiIndex(IndexModel):
    r"""Sequence multi-index model y = link(Z) + √Δ ξ with Z = W x/√D ∈ R^{P×M}.

    A noiseless link without a channel samples and trains; `gamp` refuses it and says what to do,
    `state_evolution` and `weak_recovery` take the limit of vanishing noise (their `noises`).

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
        channel: An exact channel, if known.
        inputs: Fixed directions around which tokens lie, such as positional encodings:
            `smi.Tokens(encoding=..)`. Default: inputs are centred.
        symmetry: What leaves every label unchanged: pairs (indices, word), with a word of
            `models.symmetry.SYMMETRIES` ("sign", "signed permutation", "rotation", ..), or
            symmetries themselves; () for none. Default: found by looking at the labels of some
            fields, which sees signs, orders and rotations of rows (of a prior that is not even,
            orders only: it tells signs itself).
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
    _inputs: Tokens | None

    @checked(
        link=anything,
        indices=optional(whole()),
        tokens=optional(whole()),
        noise=scalar(VARIANCE),
        prior=is_prior,
        log_likelihood=optional(function("a function of (label, fields)")),
        sampler=optional(function("a function of (key, fields)")),
        outcomes=optional(numbers("all labels (K, ...), two or more")),
        channel=anything,
        inputs=anything,
        symmetry=optional(
            sequence(_SYMMETRIES, instance((AbstractSymmetry, tuple), _SYMMETRIES), True)
        ),
        name=optional(text),
        tolerance=optional(scalar(POSITIVE)),
        max_nodes=whole(),
    )
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
        arguments = Arguments()
        if channel is not None:
            arguments.instance("channel", channel, AbstractChannel, "an AbstractChannel")
        labels = _label_law(arguments, log_likelihood, sampler, outcomes)
        if channel is None:
            P = arguments.count("indices", indices)
            M = arguments.count("tokens", 1 if tokens is None else tokens)
            if link is None and labels.outcomes is not None:
                link = labels.mean
                name = name or _name_of(log_likelihood)
            elif link is None or not callable(link):
                raise ValueError(f"link: got {link!r}; allowed: a JAX function, or a channel=.")
            else:
                check_link(link, P, M, name or _name_of(link))
            variance = arguments.number("noise", noise, VARIANCE)
            self.name = name or _name_of(link)
            law = as_tree(link)
            check_closure("link", law, np.zeros((P, M)))
            allowed = "0 with a log_likelihood=, which says all of how labels scatter"
            check(log_likelihood is None or is_zero(noise), "noise", noise, allowed)
            error = default_tolerance(P * M) if tolerance is None else tolerance
            budget = Budget(error, max_nodes)
            if log_likelihood is None and is_zero(noise):
                shown = f"{self.name} (noise=0)"
                sizes = {"law": law, "indices": P, "tokens": M}
                self.channel = NoInference(**sizes, name=shown, budget=budget)
            else:
                _check_labels(labels, law, P, M)
                self.channel = IntegratedChannel(law, P, M, variance, budget, labels)
        else:
            given = {"indices": indices, "tokens": tokens, "noise": noise}
            given |= {"log_likelihood": log_likelihood, "sampler": sampler, "outcomes": outcomes}
            given |= {"tolerance": tolerance}
            _check_beside(channel, link, given | {"max_nodes": max_nodes})
            self.name = name or _name_of(type(channel) if link is None else link)
            self.channel = channel
        self.prior = iid_prior(prior)
        self._inputs = None if inputs is None else _fitting(inputs, self.channel, self.prior)
        self.symmetry = _symmetry(symmetry, self.channel, labels, self.prior.traits.even)

    @checked(covariance=numbers("a covariance (M, M)"))
    def mixed(self, covariance: ArrayLike) -> MultiIndex:
        r"""The model of the same labels on inputs whose tokens were whitened: those of
        `data.whiten(.., tokens=C)`.

            link'(z') = link(z' C^{1/2})

        Args:
            covariance: C (M, M) of the tokens, symmetric and positive semi-definite.

        Returns:
            A `MultiIndex` with the same prior, noise and symmetries.

        Raises:
            ValueError: For another covariance, a model with `inputs=`, or one with a channel of its
                own, whose link is no function here.

        Example:
            >>> import jax.numpy as jnp, jaxsmi as smi
            >>> link = lambda z: jnp.tanh(z[0, 0] * z[0, 1])
            >>> model = smi.MultiIndex(link, indices=1, tokens=2, noise=0.1)
            >>> model.mixed([[1.0, 0.5], [0.5, 1.0]]).tokens
            2

        Source:
            [theory: inputs, Eq. (5)].
        """
        M = self.tokens
        allowed = f"a symmetric positive semi-definite array ({M}, {M})"
        arguments = Arguments()
        C = arguments.array("covariance", covariance, allowed, (M, M))
        even = jnp.max(jnp.abs(C - C.T)) <= 1e-9 * jnp.max(jnp.abs(C))
        definite = even & (jnp.linalg.eigvalsh(C)[0] >= -1e-9 * jnp.max(jnp.abs(C)))
        C = arguments.masked(C, definite, "covariance", covariance, allowed)
        check(self._inputs is None, "model", self.name, "a model without inputs=")
        channel = self.channel.mixed(sqrt_psd(C))
        name = f"{self.name} of mixed tokens"
        return MultiIndex(channel=channel, prior=self.prior, symmetry=self.symmetry, name=name)

    @property
    def inputs(self) -> Tokens | None:
        """Fixed directions of the inputs."""
        return self._inputs

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Also for a teacher that overlaps with directions of its inputs: its prior does not know
        them."""
        if self._inputs is not None and self._inputs.cross is not None:
            return (
                f"inputs: got {self.name} with cross=, weights that overlap with directions of "
                "their inputs; allowed: none (smi.Tokens(encoding=..)), or a learner: "
                "smi.state_evolution(.., learner=smi.Erm(..))."
            )
        return super().unsupported_reason(purpose)


def _name_of(function: object) -> str:
    """What a function calls itself."""
    return getattr(function, "__name__", type(function).__name__)


def _symmetry(
    given: Sequence[AbstractSymmetry | tuple[Block, str]] | None,
    channel: AbstractChannel,
    labels: Likelihood,
    even: bool,
) -> tuple[AbstractSymmetry, ...]:
    """The symmetries that are given, or found; `even`: whether the prior has them, too."""
    P = channel.indices
    if given is None:
        return symmetries_of(_Seen(channel, labels), P, channel.tokens, even)
    return tuple(
        part if isinstance(part, AbstractSymmetry) else symmetry_of(part[0], part[1], P)
        for part in given
    )


class _Seen(eqx.Module):
    """What shows a symmetry: the label, and its likelihood where a user gives one."""

    channel: AbstractChannel
    labels: Likelihood

    def __call__(self, fields: Array) -> Array:
        label = jnp.asarray(self.channel.link(fields))
        if self.labels.log_likelihood is None:
            return jnp.ravel(label)
        if self.labels.outcomes is not None:
            return self.labels.odds(fields)
        return jnp.append(jnp.ravel(label), self.labels.log_likelihood(label, fields))


def _label_law(
    arguments: Arguments,
    log_likelihood: Callable[[Array, Array], Array] | None,
    sampler: Callable[[PRNGKeyArray, Array], Array] | None,
    outcomes: ArrayLike | None,
) -> Likelihood:
    """The arguments that say how labels scatter."""
    if log_likelihood is None:
        allowed = "None without a log_likelihood=, the law that it draws from"
        check(sampler is None, "sampler", sampler, allowed)
        check(outcomes is None, "outcomes", outcomes, allowed)
        return Likelihood()
    allowed = "a function log p(y|z) of a label and its fields"
    check(callable(log_likelihood), "log_likelihood", log_likelihood, allowed)
    law = as_tree(log_likelihood)
    if outcomes is not None:
        check(sampler is None, "sampler", sampler, "None with outcomes=, whose odds are known")
        values = arguments.array("outcomes", outcomes, "all labels (K, ...), two or more")
        check(values.ndim >= 1 and len(values) > 1, "outcomes", outcomes, "two or more labels")
        return Likelihood(law, None, values)
    if sampler is None:
        return Likelihood(law)
    check(callable(sampler), "sampler", sampler, "a function of (key, fields)")
    return Likelihood(law, as_tree(sampler))


def _check_labels(
    labels: Likelihood, link: Callable[[Array], Array], indices: int, tokens: int
) -> None:
    """Raise a ValueError for a sampler or a likelihood that fails, or odds that do not add up to
    one."""
    if labels.log_likelihood is None:
        return
    z = np.cos(1.0 + 2.4 * np.arange(indices * tokens)).reshape(indices, tokens)
    if labels.sampler is not None:
        _check_function("sampler", labels.sampler, f"(key, fields {z.shape})", jax.random.key(0), z)
    label = np.zeros(labels.shape(link, (indices, tokens)))
    wanted = f"(a label, fields {z.shape})"
    shape = _check_function("log_likelihood", labels.log_likelihood, wanted, label, z)
    check_closure("log_likelihood", labels.log_likelihood, label, z)
    allowed = f"a JAX function of {wanted} that returns one number"
    check(shape == (), "log_likelihood", f"an answer of shape {shape}", allowed)
    if labels.outcomes is None:
        return
    total = jnp.sum(labels.odds(jnp.asarray(z)))
    if not concrete(total):  # inside jit
        return
    allowed = f"probabilities of the outcomes that add up to one, not {total:.6g}"
    check(jnp.abs(total - 1.0) <= _ROUNDING, "log_likelihood", labels.log_likelihood, allowed)


def _fitting(inputs: Tokens, channel: AbstractChannel, prior: AbstractIidPrior) -> Tokens:
    """The argument `inputs`, of the shapes of a channel and with overlaps that a prior allows."""
    law = Arguments().instance("inputs", inputs, Tokens, "smi.Tokens(encoding=..)")
    law.check_fit(channel.indices, channel.tokens, prior.second_moment(channel.indices))
    return law


def _check_beside(
    channel: AbstractChannel,
    link: Callable[[Array], Array] | None,
    given: Mapping[str, object],
) -> None:
    """Raise a ValueError for arguments beside a channel=, which would ignore them."""
    if link is not None:
        _check_same_law(link, channel)
    usual: dict[str, tuple[object, ...]] = {
        "indices": (None, channel.indices),
        "tokens": (None, channel.tokens),
        "noise": (0.0,),
        "log_likelihood": (None,),
        "sampler": (None,),
        "outcomes": (None,),
        "tolerance": (None,),
        "max_nodes": (_MAX_NODES,),
    }
    for word, allowed in usual.items():
        value = given[word]
        known = concrete(value) and any(value is a or value == a for a in allowed)
        check(known, word, value, f"{allowed[-1]} beside this channel=, which has its own")


def _check_same_law(link: Callable[[Array], Array], channel: AbstractChannel) -> None:
    """Raise a ValueError for a link that is not the channel's own, by its labels at some points."""
    shape = (_POINTS, channel.indices, channel.tokens)
    fields = 2.0 * jnp.cos(1.0 + 2.4 * jnp.arange(float(np.prod(shape))).reshape(shape))
    labels = (jax.vmap(lambda z: jnp.asarray(link(z)))(fields), jax.vmap(channel.link)(fields))
    same = labels[0].shape == labels[1].shape and jnp.allclose(*labels)
    allowed = "none, or the channel's own: that is the law of the labels"
    check(same, "link", link, allowed)


def as_tree(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function as a tree of the arrays that it closes over."""
    return as_module(function)


def check_link(link: Callable[[Array], Array], indices: int, tokens: int, name: str) -> None:
    """Raise a ValueError for a link that fails on an array (P, M), or returns none."""
    shape = (indices, tokens)
    _check_function("link", link, f"an array of shape {shape}", np.zeros(shape), called=name)


def _check_function(
    name: str, function: Callable[..., Array], of: str, *values: Any, called: str = "one"
) -> tuple[int, ...]:
    """The shape of what a user's function returns; a ValueError where it fails, or returns another
    thing than one array of real numbers (a list, say)."""
    allowed = f"a JAX function of {of}"
    try:
        made = jax.eval_shape(function, *values)
        _check_places(function, *values)
    except Exception as failure:
        said = f"{called} that fails on it ({failure})"
        raise ValueError(f"{name}: got {said}; allowed: {allowed}.") from failure
    one = isinstance(made, jax.ShapeDtypeStruct)
    kind = f"complex numbers {made.shape}" if one else f"a {type(made).__name__}"
    real = one and not jnp.issubdtype(made.dtype, jnp.complexfloating)
    allowed += " that returns one array of real numbers, such as jnp.stack([...])"
    check(real, name, f"{called} that returns {kind}", allowed)
    return made.shape


def _check_places(function: Callable[..., Array], *values: Any) -> None:
    """Raise an IndexError for a function that reads fields at an index or a token that there is
    not: JAX would read the last one instead, NumPy does not."""
    try:
        jax.eval_shape(lambda: jnp.asarray(function(*values)))
    except IndexError:
        raise
    except Exception:  # what is written for JAX's arrays alone is not looked at
        return


def default_tolerance(inner: int) -> float:
    """Error of g aimed at by default: 1e-3 where grids reach it (up to three inner variables),
    1e-2 above."""
    return 1e-3 if inner <= 3 else 1e-2
