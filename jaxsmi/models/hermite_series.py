r"""Targets written in Hermite polynomials.

Equations here [theory: online-sgd, section 1, Eq. (18)], over L tokens:

    g(z) = Σ_n a_n Π_l H_{n_l}(z_l),   H = He (norm √n!) or, normalised, h = He/√n!
    He_a He_b = Σ_r r! C(a, r) C(b, r) He_{a+b-2r}
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import comb, factorial, prod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.validate import check
from jaxsmi.numerics.quadrature import hermite_polynomials


class HermiteSeries(eqx.Module):
    """g(z) = Σ_n a_n Π_l H_{n_l}(z_l), with H = He (probabilists', of norm √n!) or h = He/√n!.

    Args:
        terms: From the degrees of the L tokens to a coefficient: {(2, 0): 1.0, (0, 2): 1.0}.
        normalised: h instead of He. Default False.

    Raises:
        ValueError: For no terms, degrees that are no whole numbers >= 0, unequal lengths, or
            non-finite coefficients.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 4): 1.0})
        >>> float(series(jnp.array([2.0, 1.0])))  # He2(2) + He4(1)
        1.0
    """

    coefficients: Array
    degrees: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)

    def __init__(self, terms: Mapping[tuple[int, ...], ArrayLike], normalised: bool = False):
        allowed = "coefficients by degrees, one whole number >= 0 a token: {(2, 0): 1.0}"
        terms = validate.instance("terms", terms, Mapping, allowed)
        check(len(terms) > 0, "terms", dict(terms), "at least one term")
        # another key than a tuple fails the next check, with its message
        degrees = [n if isinstance(n, tuple) else (None,) for n in terms]
        whole = all(isinstance(k, (int, np.integer)) and k >= 0 for n in degrees for k in n)
        equal = len({len(n) for n in degrees}) == 1 and len(degrees[0]) >= 1
        check(whole and equal, "terms", list(terms), allowed)
        self.degrees = tuple(tuple(int(k) for k in n) for n in terms)
        self.normalised = validate.flag("normalised", normalised)
        self.coefficients = jnp.stack(
            [validate.array("terms", a, "finite coefficients") for a in terms.values()]
        )

    @property
    def length(self) -> int:
        """L."""
        return len(self.degrees[0])

    @property
    def _factorials(self) -> np.ndarray:
        """Π_l n_l! of each term."""
        return np.array([float(prod(factorial(k) for k in n)) for n in self.degrees])

    @property
    def orthonormal(self) -> Array:
        """The coefficients of Π_l h_{n_l}, one for each of `degrees`."""
        factorials = self._factorials
        scale = jnp.asarray(np.ones_like(factorials) if self.normalised else np.sqrt(factorials))
        return self.coefficients * scale.reshape(-1, *(1,) * (self.coefficients.ndim - 1))

    def squared(self) -> HermiteSeries:
        """The series of g², for a g that is a number."""
        single = self.coefficients.ndim == 1
        check(single, "series", "an array of answers", "a series whose answer is a number")
        # the product formula has integer coefficients for He, not for h
        plain = self.orthonormal / jnp.sqrt(jnp.asarray(self._factorials))  # coefficients of He
        terms: dict[tuple[int, ...], ArrayLike] = {}
        for (a, x), (b, y) in itertools.product(zip(self.degrees, plain, strict=True), repeat=2):
            for r in itertools.product(*(range(min(i, j) + 1) for i, j in zip(a, b, strict=True))):
                triples = list(zip(a, b, r, strict=True))
                size = prod(factorial(t) * comb(i, t) * comb(j, t) for i, j, t in triples)
                n = tuple(i + j - 2 * t for i, j, t in triples)
                terms[n] = terms.get(n, 0.0) + x * y * float(size)
        return HermiteSeries(terms)

    def __call__(self, fields: Array) -> Array:
        """g(z)."""
        allowed = f"an array of shape {(self.length,)}, one for each token"
        check(fields.shape == (self.length,), "fields", fields, allowed)
        table = hermite_polynomials(fields, max(max(n) for n in self.degrees))
        each = jnp.take_along_axis(table, jnp.asarray(self.degrees), axis=0)  # (terms, L)
        return jnp.tensordot(jnp.prod(each, axis=1), self.orthonormal, axes=1)
