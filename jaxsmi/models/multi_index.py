r"""Any link function as a sequence multi-index model.

Equation here: y = link(Z) + √Δ ξ, Z = W x/√D (P, M), for any JAX function of an array (P, M) [TCDKZ25].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.channels.base import AbstractChannel, NoInference
from jaxsmi.channels.likelihood import SampledChannel
from jaxsmi.core.arrays import concrete
from jaxsmi.core.checks import check
from jaxsmi.models.index import AbstractIndexModel
from jaxsmi.models.symmetry import SYMMETRIES, Symmetry
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors import AbstractIidPrior, Gaussian


class MultiIndex(AbstractIndexModel):
    r"""Sequence multi-index model y = link(Z) + √Δ ξ with Z = W x/√D ∈ R^{P×M}.

    Arguments: `link`: array (P, M) -> array, any JAX function (an equinox Module keeps its arrays differentiable);
    `indices` P; `tokens` M; `noise`: label variance Δ >= 0; `prior`: of the rows of W (default: iid N(0, 1));
    `log_likelihood`: log p(y|Z) as a function of (y, Z), instead of Gaussian noise; `channel`: an exact channel, if known;
    `symmetry`: what leaves every label unchanged, as pairs (indices, "sign" | "signed permutation" | "even signed
    permutation" | "rotation");
    `tolerance`, `max_nodes`: of the numerical channel (error of g relative to 1 + max|g|).

    A noiseless link without a channel samples and trains; `gamp` and `state_evolution` refuse it and say what to do.
    Raises: ValueError for P < 1, M < 1, Δ < 0, or a link that fails on an array (P, M).
    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> smi.MultiIndex(lambda z: jnp.sum(jnp.tanh(z)), indices=2, tokens=1, noise=0.1).indices
    2
    """

    prior: AbstractIidPrior
    channel: AbstractChannel
    symmetry: tuple[Symmetry, ...] = eqx.field(static=True)
    _link: Any
    name: str = eqx.field(static=True)

    def __init__(
        self,
        link: Callable[[Array], Array],
        *,
        indices: int,
        tokens: int = 1,
        noise: Any = 0.0,
        prior: AbstractIidPrior | None = None,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        channel: AbstractChannel | None = None,
        symmetry: Sequence[tuple[Sequence[int], str]] = (),
        name: str | None = None,
        tolerance: Any = None,
        max_nodes: int = 2**20,
    ):
        check(
            isinstance(indices, (int, np.integer)) and indices >= 1,
            "indices",
            indices,
            "an integer P >= 1",
        )
        check(
            isinstance(tokens, (int, np.integer)) and tokens >= 1,
            "tokens",
            tokens,
            "an integer M >= 1",
        )
        noise = jnp.asarray(noise, float)
        check(
            noise.shape == () and jnp.isfinite(noise) & (noise >= 0),
            "noise",
            noise,
            "a variance >= 0",
        )
        self.name = name or getattr(link, "__name__", type(link).__name__)
        self._link = link if isinstance(link, eqx.Module) else jax.tree_util.Partial(link)
        try:
            jax.eval_shape(self._link, jax.ShapeDtypeStruct((indices, tokens), float))
        except Exception as failure:
            allowed = f"a JAX function of an array of shape {(indices, tokens)}"
            raise ValueError(
                f"link: got {self.name}, which fails on its fields ({failure}); allowed: {allowed}."
            ) from failure
        self.prior = Gaussian() if prior is None else prior
        for block, kind in symmetry:
            check(kind in SYMMETRIES, "symmetry", kind, f"one of {SYMMETRIES}")
            check(
                all(0 <= i < indices for i in np.ravel(np.asarray(block))),
                "symmetry",
                tuple(block),
                f"indices from 0 to {indices - 1}",
            )
        self.symmetry = tuple(Symmetry(tuple(block), kind) for block, kind in symmetry)
        if channel is None and log_likelihood is None and concrete(noise) and float(noise) == 0.0:
            channel = NoInference(
                law=self._link, indices=indices, tokens=tokens, name=f"{self.name} (noise=0)"
            )
        if channel is None:
            likelihood = None if log_likelihood is None else jax.tree_util.Partial(log_likelihood)
            budget = Budget(
                default_tolerance(indices * tokens) if tolerance is None else tolerance, max_nodes
            )
            channel = SampledChannel(self._link, indices, tokens, noise, budget, likelihood)
        self.channel = channel

    @property
    def title(self) -> str:
        """The name of the link."""
        return self.name

    def link(self, fields: Array) -> Array:
        """link(Z) of one sample."""
        return self._link(fields)


def default_tolerance(inner: int) -> float:
    """Error of g aimed at by default: 1e-3 where grids reach it (up to three inner variables), 1e-2 above."""
    return 1e-3 if inner <= 3 else 1e-2
