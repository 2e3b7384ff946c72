r"""Priors with iid columns: the columns of W (P, D) are independent draws of w ∈ R^P.

Equations here ([TCDKZ25], [theory: multi-index, section 2]; b and A come from GAMP and state
evolution):

* partition function   Z_w(b, A) = ∫ dP_w(w) exp(b·w - ½ wᵀA w)
* posterior            f = ∂_b log Z_w, C = ∂_b f
* state evolution      b = Q̂w + Q̂^{1/2}ξ:  Q = E[f fᵀ],  mmse = E[C] = E[w wᵀ] - Q
* free entropy         Φ_w(Q̂) = E log Z_w(b, Q̂),  ∂Φ_w/∂Q̂ = ½ Q
* side information     s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

A prior defines the law of one column (columns.py), which gives log Z_w, f and C, and how to draw a
signal. Averages over the field are quadratures (field_averages.py) unless the prior has closed
forms, as the Gaussian one does.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.columns import Mixture, posterior
from jaxsmi.priors.field_averages import (
    average,
    covariance,
    covariance_twice,
    half_outer,
    log_partition,
    minus_covariance_twice,
    outer,
)

# a diverging iteration passes fields that are not finite: the posterior is NaN then
_ANY = validate.Interval("numbers", infinite=True)


class AbstractIidPrior(AbstractPrior):
    """A prior with iid columns: `Gaussian`, `Rademacher`, `BernoulliGauss`, `GaussianMixture`.

    To add one, subclass this with `traits`, a `column` that returns a `Mixture` of Gaussians, and
    `sample`.
    """

    @abc.abstractmethod
    def column(self, indices: int) -> Mixture:
        """Law of a P-vector, P = `indices`."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw a signal: D independent columns w_i ~ P_w.

        Args:
            key: A random key.
            indices: P, an integer >= 1.
            dimension: D, an integer >= 1.

        Returns:
            W (P, D), in the precision of theory.

        Raises:
            ValueError: For P or D below one, or a P that the prior does not allow.

        Example:
            >>> import jax
            >>> from jaxsmi.priors import Rademacher
            >>> Rademacher().sample(jax.random.key(0), 2, 100).shape
            (2, 100)
        """

    def gram(self, key: PRNGKeyArray, indices: int, dimension: int | Array) -> Float[Array, "P P"]:
        """W Wᵀ/D of a random signal, (P, P)."""
        # of a general law there is no shortcut to the Gram matrix
        W = self.sample(key, indices, int(dimension))
        return W @ W.T / dimension

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Overlap for a field of precision Q̂: the prior's half of state evolution.

            Q = E[f fᵀ],  b = Q̂w + Q̂^{1/2}ξ,  dQ = E[C dQ̂ C]

        Args:
            Qhat: Q̂ (P, P), positive semi-definite, may be zero or singular.

        Returns:
            Q (P, P), positive semi-definite; differentiable in Q̂ (also where singular) and in the
            prior's parameters.

        Raises:
            ValueError: For a `Qhat` that is not square, or a P that the prior does not allow.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().overlap(3.0 * jnp.eye(1))
            Array([[0.75]], dtype=...)

        Cost:
            O(P³) for the Gaussian; else a quadrature with 512 nodes (P = 1) for each peak and gap,
            128² (P = 2) or 48³ (P = 3) nodes for each of 2^P components, above that 2^(22-P) for
            all together: 2 ms, 9 ms, 0.3 s and 0.2 to 0.4 s on two cores. Largest error measured
            for Q̂ from 0 to 10^8 (Rademacher; Bernoulli–Gauss of density 0.1 and 0.5): P = 1: 1e-15;
            P = 2: 2e-10; 5e-7; P = 3: 3e-6; 2e-5; P = 4: 2e-4; 2e-3; P = 6 to 8: 4e-3; 2e-2. A
            derivative is the quadrature of the exact derivative, with errors of that size.

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """
        Qhat = precision_matrix(Qhat)
        return average(self, Qhat, function=outer, drift=covariance_twice)

    def mmse(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Posterior covariance for a field of precision Q̂, accurate also near perfect recovery.

            V = E[C] = E[w wᵀ] - Q,  dV = -E[C dQ̂ C]

        Args:
            Qhat: Q̂ (P, P), positive semi-definite, may be zero or singular.

        Returns:
            V (P, P), positive semi-definite; differentiable as `overlap`. Relative error: P = 1:
            5e-12 (Rademacher down to V = 1e-280, where its exponential decay underflows);
            Bernoulli–Gauss with P = 2: 2e-4, P = 3: 6e-3, P = 4: 3e-3, P = 6 to 8: 3e-2. Rademacher
            with P > 1: only the absolute accuracy of `overlap`.

        Raises:
            ValueError: As `overlap`.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().mmse(3.0 * jnp.eye(1))
            Array([[0.25]], dtype=...)

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """
        Qhat = precision_matrix(Qhat)
        return average(self, Qhat, function=covariance, drift=minus_covariance_twice)

    def free_entropy(self, Qhat: ArrayLike) -> Float[Array, ""]:
        """The prior's term Φ_w of the replica free entropy, in nats per dimension.

            Φ_w(Q̂) = E log Z_w(Q̂w + Q̂^{1/2}ξ, Q̂),  ∂Φ_w/∂Q̂ = ½ Q

        ½ tr(E[w wᵀ] Q̂) - Φ_w is a mutual information.

        Args:
            Qhat: Q̂ (P, P), positive semi-definite, may be zero or singular.

        Returns:
            Φ_w; differentiable as `overlap`.

        Raises:
            ValueError: As `overlap`.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().free_entropy(2.0 * jnp.eye(1))  # (2 - log 3)/2
            Array(0.4507, dtype=...)

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """
        Qhat = precision_matrix(Qhat)
        return average(self, Qhat, function=log_partition, drift=half_outer)

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """The prior's part of the free entropy: -½ tr(Q Q̂) + Φ_w(Q̂)."""
        return -0.5 * jnp.sum(Q * Qhat) + self.free_entropy(Qhat)

    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """Second moment S = E[w wᵀ] of the prior, (P, P); V = S - Q in state evolution.

        Args:
            indices: P, an integer >= 1.

        Raises:
            ValueError: For a P that the prior does not allow.

        Example:
            >>> from jaxsmi.priors import BernoulliGauss
            >>> BernoulliGauss(0.2).second_moment(1)
            Array([[1.]], dtype=...)
        """
        return _moments(self, validate.count("indices", indices))[0]

    def mean_overlap(self, indices: int) -> Float[Array, "P P"]:
        """m mᵀ, m = E w."""
        return _moments(self, indices)[1]

    def posterior(self, b: ArrayLike, A: ArrayLike) -> tuple[Float[Array, "P D"], Array]:
        """Posterior means of all columns, and the average of their covariances: GAMP's input side.

            f_i = ∂_b log Z_w(b_i, A),  C = (1/D) Σ_i ∂_b f(b_i, A)

        Args:
            b: The fields (P, D).
            A: Their precision (P, P), symmetric, may be zero or singular.

        Returns:
            f (P, D) and C (P, P), in the precision of b and A. NaN where the integral diverges.

        Raises:
            ValueError: For shapes that do not fit, or a P that the prior does not allow.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> mean, covariance = Gaussian().posterior(jnp.array([[2.0, 4.0]]), jnp.eye(1))
            >>> print(mean.round(3), covariance.round(3))
            [[1. 2.]] [[0.5]]

        Cost:
            Components × P² D; memory about 2^22 numbers at a time.
        """
        b, A = fields(b, A)
        # float32 message passing stays float32: parameters are in the precision of theory
        column = jax.tree.map(lambda leaf: leaf.astype(b.dtype), self.column(len(b)))
        return posterior(column, b, A)

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """The mean plus noise of this size, (P, D), and the prior's covariance."""
        column = self.column(shape[0])
        mean = column.first_moment
        # not the mean alone: of even labels that is a point without a slope
        noise = size * jax.random.normal(key, shape, theory_dtype())
        return mean[:, None] + noise, column.second_moment - self.mean_overlap(shape[0])

    def side_information(
        self, key: PRNGKeyArray, signal: ArrayLike, strength: ArrayLike
    ) -> tuple[Float[Array, "P P"], Float[Array, "P D"]]:
        """Additions to A and b from a direct, noisy observation of the signal.

            s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

        Args:
            key: A random key.
            signal: W (P, D).
            strength: λ, a number in [0, 1). In state evolution: Q̂ += λ/(1-λ) I.

        Returns:
            The additions to A (P, P) and to b (P, D).

        Raises:
            ValueError: For a `signal` that is not (P, D), or λ outside [0, 1).

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().side_information(jax.random.key(0), jnp.ones((1, 3)), 0.5)[0]
            Array([[1.]], dtype=...)
        """
        allowed = "an array of shape (indices P, dimension D)"
        W = validate.array("signal", signal, allowed)
        validate.check(W.ndim == 2, "signal", W, allowed)
        key = validate.key("key", key)
        strength = validate.number("strength", strength, validate.FRACTION).astype(W.dtype)
        noise = jax.random.normal(key, W.shape, W.dtype)
        observed = jnp.sqrt(strength) * W + jnp.sqrt(1.0 - strength) * noise
        A = strength / (1.0 - strength) * jnp.eye(W.shape[0], dtype=W.dtype)
        return A, jnp.sqrt(strength) / (1.0 - strength) * observed


def precision_matrix(Qhat: ArrayLike) -> Array:
    """Validate a precision (P, P) and return its symmetric part."""
    allowed = "a square array (indices, indices)"
    Qhat = validate.array("Qhat", Qhat, allowed)
    validate.check(Qhat.ndim == 2 and Qhat.shape[0] == Qhat.shape[-1], "Qhat", Qhat, allowed)
    # a precision that was iterated is symmetric to rounding only
    return symmetric(Qhat)


def fields(b: ArrayLike, A: ArrayLike) -> tuple[Array, Array]:
    """Validate fields (P, D) and their precision (P, P), in the finer of their precisions."""
    dtypes = [x.dtype for x in (b, A) if isinstance(x, (jax.Array, np.ndarray))]
    dtypes = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    # not jnp.result_type: strict dtype promotion allows no mixture
    dtype = max(dtypes, key=lambda dtype: dtype.itemsize, default=theory_dtype())
    allowed = "an array of shape (indices P, dimension D)"
    b = validate.array("b", b, allowed, dtype=dtype, interval=_ANY)
    validate.check(b.ndim == 2, "b", b, allowed)
    P = len(b)
    allowed = f"an array of shape ({P}, {P}), as b has P={P}"
    return b, validate.array("A", A, allowed, shape=(P, P), dtype=dtype, interval=_ANY)


def sizes(key: object, indices: object, dimension: object) -> tuple[PRNGKeyArray, int, int]:
    """Validate the arguments of `sample`."""
    key = validate.key("key", key)
    return key, validate.count("indices", indices), validate.count("dimension", dimension)


# one program: outside jit each operation of jax.numpy would be compiled by itself
@eqx.filter_jit
def _moments(prior: AbstractIidPrior, indices: int) -> tuple[Array, Array]:
    """E w wᵀ and E w E wᵀ of a column."""
    column = prior.column(indices)
    mean = column.first_moment
    return column.second_moment, jnp.outer(mean, mean)
