"""Priors with iid columns: the columns of W (P, D) are independent draws of w ∈ R^P.

Equations here ([TCDKZ25], [theory: multi-index, section 2]; b and A are what GAMP and state
evolution hand to the prior):

* partition function   Z_w(b, A) = ∫ dP_w(w) exp(b·w - ½ wᵀA w)
* posterior            f = ∂_b log Z_w, C = ∂_b f
* state evolution      b = Q̂w + Q̂^{1/2}ξ:  Q = E[f fᵀ],  mmse = E[C] = E[w wᵀ] - Q
* free entropy         Φ_w(Q̂) = E log Z_w(b, Q̂),  ∂Φ_w/∂Q̂ = ½ Q
* side information     s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

A prior says the law of one column (mixture.py), which gives log Z_w, f and C. Most are mixtures of
Gaussians with one formula, `Mixture.respond`: one component is the Gaussian prior (gaussian.py),
2^P points are Rademacher, 2^P supports are Bernoulli–Gauss (discrete.py). Weights on the half-line
have forms of their own (positive.py).

A prior with a mean m says something of W before any label: Q = m mᵀ at Q̂ = 0.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import checked, numbers, random_key, scalar, whole
from jaxsmi.core.checks import FRACTION, check
from jaxsmi.core.programs import program
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.mixture import AbstractColumn, posterior

__all__ = [
    "AbstractIidPrior",
    "answered",
    "averaged",
    "counted",
    "drawn",
    "check_sizes",
    "precision_matrix",
    "real",
]

# what the arguments of a prior's methods may be, whichever class defines them
drawn = checked(key=random_key, indices=whole(), dimension=whole())
counted = checked(indices=whole())
averaged = checked(Qhat=numbers("a square array (indices, indices)"))
answered = checked(
    b=numbers("fields (P, D), or (P,) of one column"), A=numbers("a precision (P, P)")
)
observed = checked(key=random_key, W=numbers("a signal (P, D)"), strength=scalar(FRACTION))


class AbstractIidPrior(AbstractPrior):
    """A prior with iid columns: `Gaussian`, `Rademacher`, `BernoulliGauss`, `GaussianMixture`,
    `Positive`.

    A new one that is a mixture of Gaussians is a subclass of `AbstractMixturePrior` with the
    methods `mixture` and `sample`.
    """

    weight: ClassVar[float] = 0.5

    @property
    def continuous(self) -> bool:
        """Whether it has a density."""
        return False

    @property
    def alike(self) -> bool:
        """Whether all columns have the same law."""
        return True

    @property
    def discrete(self) -> bool:
        """Whether it is a law on finitely many points."""
        return False

    @property
    def even(self) -> bool:
        """Whether w and -w have the same law: signs that labels do not tell, nothing tells."""
        return True

    @abc.abstractmethod
    def column(self, indices: int) -> AbstractColumn:
        """The law of a P-vector, P = `indices`."""

    @property
    def wishart(self) -> bool:
        """Whether `gram` draws from a law, instead of a whole signal."""
        return False

    def gram(self, key: PRNGKeyArray, indices: int, dimension: int | Array) -> Float[Array, "P P"]:
        """W Wᵀ/D of a drawn signal: all of it is drawn, unless a prior knows its law."""
        W = self.sample(key, indices, int(dimension))
        return W @ W.T / dimension

    @abc.abstractmethod
    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw a signal: D independent columns w_i ~ P_w.

        Args:
            key: A random key.
            indices: P, an integer >= 1.
            dimension: D, an integer >= 1.

        Returns:
            W (P, D), float64.

        Raises:
            ValueError: For P or D below one, or a P that the prior does not allow.

        Example:
            >>> import jax
            >>> from jaxsmi.priors import Rademacher
            >>> Rademacher().sample(jax.random.key(0), 2, 100).shape
            (2, 100)

        Cost:
            P·D random numbers.

        Source:
            [TCDKZ25].
        """

    @abc.abstractmethod
    @averaged
    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Input side of state evolution: the overlap that a field of precision Q̂ gives.

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
            O(P³) for the Gaussian; else a deterministic quadrature with 512 nodes (P = 1) for each
            peak and gap, 128² (P = 2), 48³ (P = 3) nodes for each of 2^P components, above that
            2^(22-P) for all together, each node 2^P P² operations: 2 ms, 9 ms, 0.3 s and 0.2 to
            0.4 s on two cores. Largest error
            met for Q̂ from 0 to 10^8 (Rademacher; Bernoulli–Gauss of density 0.1 and 0.5): P = 1:
            1e-15; P = 2: 2e-10; 5e-7; P = 3: 3e-6; 2e-5; P = 4: 2e-4; 2e-3; P = 6 to 8: 4e-3; 2e-2.
            A derivative is the quadrature of the exact derivative: errors of that size.

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """

    @abc.abstractmethod
    @averaged
    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """What a field of precision Q̂ leaves unknown, without cancellation near perfect recovery.

            V = E[C] = E[w wᵀ] - Q,  dV = -E[C dQ̂ C]

        Args:
            Qhat: Q̂ (P, P), positive semi-definite, may be zero or singular.

        Returns:
            V (P, P), positive semi-definite; differentiable as `overlap`. Error relative to itself:
            P = 1: 5e-12 (Rademacher down to V = 1e-280, where its exponential decay underflows);
            Bernoulli–Gauss with P = 2: 2e-4, P = 3: 6e-3, P = 4: 3e-3, P = 6 to 8: 3e-2. Rademacher
            with P > 1: only the absolute accuracy of `overlap`.

        Raises:
            ValueError: For a `Qhat` that is not square, or a P that the prior does not allow.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().mmse(3.0 * jnp.eye(1))
            Array([[0.25]], dtype=...)

        Cost:
            That of `overlap`.

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """

    @abc.abstractmethod
    @averaged
    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """The prior's term Φ_w of the replica free entropy.

        ½ tr(E[w wᵀ] Q̂) - Φ_w is a mutual information.

            Φ_w(Q̂) = E log Z_w(Q̂w + Q̂^{1/2}ξ, Q̂),  ∂Φ_w/∂Q̂ = ½ Q

        Args:
            Qhat: Q̂ (P, P), positive semi-definite, may be zero or singular.

        Returns:
            Φ_w, a number in nats a dimension; differentiable as `overlap`.

        Raises:
            ValueError: For a `Qhat` that is not square, or a P that the prior does not allow.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().free_entropy(2.0 * jnp.eye(1))  # (2 - log 3)/2
            Array(0.4507, dtype=...)

        Cost:
            That of `overlap`.

        Source:
            [TCDKZ25], [theory: numerics, section 6].
        """

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """The prior's part of the free entropy: -½ tr(Q Q̂) + Φ_w(Q̂) at overlaps (P, P)."""
        return -0.5 * jnp.sum(Q * Qhat) + self.free_entropy(Qhat)

    @counted
    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """Second moment of the prior; V = second_moment - Q in state evolution.

            S = E[w wᵀ], with the mean; of a mixture Σ_k π_k (S_k + μ_k μ_kᵀ)

        Args:
            indices: P, an integer >= 1.

        Returns:
            S (P, P).

        Raises:
            ValueError: For a P that the prior does not allow.

        Example:
            >>> from jaxsmi.priors import BernoulliGauss
            >>> BernoulliGauss(0.2).second_moment(1)
            Array([[1.]], dtype=...)

        Cost:
            2^P P² at most.

        Source:
            [TCDKZ25].
        """
        return _moments(self, indices)[0]

    @answered
    def log_partition(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> Float[Array, ""]:
        """Log-partition function of one column; its derivatives in b are mean and covariance.

            log Z_w(b, A) = log ∫ dP_w(w) exp(b·w - ½ wᵀA w)

        Args:
            b: The field (P,).
            A: Its precision (P, P), symmetric, may be singular.

        Returns:
            A number, NaN where the integral diverges (A too negative).

        Raises:
            ValueError: For shapes that do not fit.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Rademacher
            >>> Rademacher().log_partition(jnp.ones(1), jnp.zeros((1, 1)))  # log cosh 1
            Array(0.4338, dtype=...)

        Cost:
            Components × P³.

        Source:
            [TCDKZ25].
        """
        b = jnp.asarray(b)
        A = jnp.asarray(A)
        check(b.ndim == 1, "b", b, "an array of shape (indices P,)")
        return self._column_for(b, A).respond(b, A)[0]

    @answered
    def posterior(
        self, b: Float[Array, "P D"], A: Float[Array, "P P"]
    ) -> tuple[Float[Array, "P D"], Float[Array, "P P"]]:
        """Input side of GAMP: posterior means of all columns, and the average of their covariances.

            f_i = ∂_b log Z_w(b_i, A),  C = (1/D) Σ_i ∂_b f(b_i, A)

        Args:
            b: The fields (P, D).
            A: Their precision (P, P), symmetric, may be zero or singular.

        Returns:
            f (P, D) and C (P, P), in the precision of b and A.

        Raises:
            ValueError: For shapes that do not fit, or a P that the prior does not allow.

        Example:
            >>> import jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> mean, covariance = Gaussian().posterior(jnp.array([[2.0, 4.0]]), jnp.eye(1))
            >>> print(mean.round(3), covariance.round(3))
            [[1. 2.]] [[0.5]]

        Cost:
            Components × P² D time; memory about 2^22 numbers at a time.

        Source:
            [TCDKZ25].
        """
        b = jnp.asarray(b)
        A = jnp.asarray(A)
        check(b.ndim == 2, "b", b, "an array of shape (indices P, dimension D)")
        return posterior(self._column_for(b, A), b, A)

    def known(self, indices: int) -> Float[Array, "P P"]:
        """m mᵀ, m = E w."""
        return _moments(self, indices)[1]

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Weights (P, D) of that size around the mean, and what the prior leaves unknown of W."""
        column = self.column(shape[0])
        mean = column.first_moment
        noise = size * jax.random.normal(key, shape, theory_dtype())
        return mean[:, None] + noise, column.second_moment - self.known(shape[0])

    @observed
    def side_information(
        self, key: PRNGKeyArray, W: Float[Array, "P D"], strength: ArrayLike
    ) -> tuple[Float[Array, "P P"], Float[Array, "P D"]]:
        """Side information on a signal: what observing it through noise adds to A and to b.

            s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

        Args:
            key: A random key.
            W: The signal (P, D).
            strength: λ, a number in [0, 1). In state evolution: Q̂ += λ/(1-λ) I.

        Returns:
            The additions to A (P, P) and to b (P, D).

        Raises:
            ValueError: For a `W` that is not (P, D), or λ outside [0, 1).

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from jaxsmi.priors import Gaussian
            >>> Gaussian().side_information(jax.random.key(0), jnp.ones((1, 3)), 0.5)[0]
            Array([[1.]], dtype=...)

        Cost:
            P·D random numbers.

        Source:
            [TCDKZ25].
        """
        W = jnp.asarray(W)
        check(W.ndim == 2, "W", W, "an array of shape (indices P, dimension D)")
        if concrete(strength):
            check(0.0 <= np.asarray(strength) < 1.0, "strength", strength, "a number in [0, 1)")
        strength = jnp.asarray(strength, dtype=W.dtype)
        noise = jax.random.normal(key, W.shape, W.dtype)
        observed = jnp.sqrt(strength) * W + jnp.sqrt(1.0 - strength) * noise
        A = strength / (1.0 - strength) * jnp.eye(W.shape[0], dtype=W.dtype)
        return A, jnp.sqrt(strength) / (1.0 - strength) * observed

    def _column_for(self, b: Array, A: Array) -> AbstractColumn:
        """The law for fields b (P, ...), in the precision of b and A."""
        P = b.shape[0]
        check(A.shape == (P, P), "A", A, f"an array of shape ({P}, {P}), as b has P={P}")
        dtype = jnp.result_type(b, A)
        dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else theory_dtype()
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self.column(P))


def real(value: object, name: str = "Qhat") -> Array:
    """The value as an array of the theory's precision."""
    try:
        return jnp.asarray(value, dtype=theory_dtype())
    except (TypeError, ValueError):
        raise ValueError(f"{name}: got {value!r}; allowed: real numbers.") from None


def precision_matrix(Qhat: ArrayLike) -> Array:
    """A precision (P, P), checked to be square, its symmetric part."""
    Qhat = real(Qhat)
    square = Qhat.ndim == 2 and Qhat.shape[0] == Qhat.shape[-1]
    check(square, "Qhat", Qhat, "a square array (indices, indices)")
    return symmetric(Qhat)


def check_sizes(indices: int, dimension: int) -> None:
    """Raise a ValueError for a P or D below one."""
    check(indices >= 1, "indices", indices, "an integer of at least 1")
    check(dimension >= 1, "dimension", dimension, "an integer of at least 1")


@program
def _moments(prior: AbstractIidPrior, indices: int) -> tuple[Array, Array]:
    """E w wᵀ and E w E wᵀ of a column."""
    column = prior.column(indices)
    mean = column.first_moment
    return column.second_moment, jnp.outer(mean, mean)
