"""Priors with iid columns: a signal W (P, D) whose D columns are independent draws of w ∈ R^P from P_w, of mean zero.

Equations that live here ([TCDKZ25]; b and A are what GAMP and state evolution hand to the prior):

* partition function   Z_w(b, A) = ∫ dP_w(w) exp(b·w - ½ wᵀA w)
* posterior            f = ∂_b log Z_w, C = ∂_b f
* state evolution      b = Q̂w + Q̂^{1/2}ξ:  Q = E[f fᵀ],  mmse = E[C] = E[w wᵀ] - Q
* free entropy         Φ_w(Q̂) = E log Z_w(b, Q̂),  ∂Φ_w/∂Q̂ = ½ Q
* side information     s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

Every prior here is a mixture of Gaussians (Gaussian: one component; Rademacher: 2^P points; Bernoulli–Gauss: 2^P
supports), so that one formula, `Mixture.respond` in mixture.py, gives log Z_w, f and C of all three.
"""

from __future__ import annotations

import abc
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.priors.mixture import (
    Mixture,
    free_entropy,
    mmse,
    overlap,
    posterior,
    square_root,
    symmetric,
)

_MAX_INDICES = 8  # 2^8 components


def _real(value: Any) -> Array:
    return jnp.asarray(value, dtype=theory_dtype())


class AbstractIidPrior(AbstractPrior):
    """A prior with iid columns; `Gaussian`, `Rademacher` and `BernoulliGauss` are the ones there are.

    A new one that is a mixture of Gaussians, the same for w and -w, is a `_Discrete` with `_mixture` and `sample`.
    """

    @property
    def continuous(self) -> bool:
        """Whether it has a density."""
        return False

    @property
    def discrete(self) -> bool:
        """Whether it is a law on finitely many points."""
        return False

    @abc.abstractmethod
    def _mixture(self, indices: int) -> Mixture:
        """The prior of a P-vector as a mixture of Gaussians."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw a signal.

        w_i ~ P_w, i = 1..D

        Arguments: `key`; `indices` P; `dimension` D.
        Returns: W (P, D), float64.
        Raises: ValueError where P or D is below one, or P is not what the prior allows.
        Example:
        >>> import jax
        >>> from jaxsmi.priors import Rademacher
        >>> Rademacher().sample(jax.random.key(0), 2, 100).shape
        (2, 100)

        Cost: P·D random numbers. Source: [TCDKZ25].
        """

    @abc.abstractmethod
    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Input side of state evolution: the overlap that a field of precision Q̂ gives.

        Q = E[f fᵀ],  b = Q̂w + Q̂^{1/2}ξ,  dQ = E[C dQ̂ C]

        Arguments: `Qhat` (P, P), PSD, may be zero or singular.
        Returns: Q (P, P), PSD; differentiable in Q̂ (also where singular) and in the parameters of the prior.
        Raises: ValueError where `Qhat` is not square, or P is not what the prior allows.
        Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().overlap(3.0 * jnp.eye(1))
        Array([[0.75]], dtype=...)

        Cost: O(P³) for the Gaussian; else a deterministic quadrature with 1024 (P = 1), 128² (P = 2), 48³ (P = 3) nodes
        for each of 2^P components, above that 2^(22-P) for all together, each node 2^P P² operations: 0.5 ms, 9 ms,
        0.3 s and 0.2 to 0.4 s on two cores. Largest error seen for Q̂ from 0 to 10^8 (Rademacher; Bernoulli–Gauss of
        density 0.1 and 0.5): P = 1: 1e-15; P = 2: 2e-10; 5e-7; P = 3: 3e-6; 2e-5; P = 4: 2e-4; 2e-3; P = 6 to 8: 4e-3;
        2e-2. A derivative is the quadrature of the exact derivative: errors of that size. Source: [TCDKZ25].
        """

    @abc.abstractmethod
    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """What is left unknown by a field of precision Q̂: E[w wᵀ] - Q without the cancellation near perfect recovery.

        V = E[C] = E[w wᵀ] - Q,  dV = -E[C dQ̂ C]

        Arguments: `Qhat` (P, P), PSD, may be zero or singular.
        Returns: V (P, P), PSD; differentiable as `overlap`. Error relative to itself: P = 1: 5e-12 (Rademacher down to
            V = 1e-280, where its exponential decay underflows); Bernoulli–Gauss with P = 2: 2e-4, P = 3: 6e-3,
            P = 4: 3e-3, P = 6 to 8: 3e-2. Rademacher with P > 1: only the absolute accuracy of `overlap`.
        Raises: ValueError where `Qhat` is not square, or P is not what the prior allows.
        Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().mmse(3.0 * jnp.eye(1))
        Array([[0.25]], dtype=...)

        Cost: that of `overlap`. Source: [TCDKZ25].
        """

    @abc.abstractmethod
    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """The prior's term of the replica free entropy.

        Φ_w(Q̂) = E log Z_w(Q̂w + Q̂^{1/2}ξ, Q̂),  ∂Φ_w/∂Q̂ = ½ Q;  ½ tr(E[w wᵀ] Q̂) - Φ_w is a mutual information

        Arguments: `Qhat` (P, P), PSD, may be zero or singular.
        Returns: Φ_w, a scalar in nats per dimension; differentiable as `overlap`.
        Raises: ValueError where `Qhat` is not square, or P is not what the prior allows.
        Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().free_entropy(2.0 * jnp.eye(1))  # (2 - log 3)/2
        Array(0.4507, dtype=...)

        Cost: that of `overlap`. Source: [TCDKZ25].
        """

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """The prior's part of the free entropy at a pair of overlaps: -½ tr(Q Q̂) + Φ_w(Q̂)."""
        return -0.5 * jnp.sum(Q * Qhat) + self.free_entropy(Qhat)

    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """Second moment of the prior; V = second_moment - Q in state evolution.

        E[w wᵀ] = Σ_k π_k (S_k + μ_k μ_kᵀ)

        Arguments: `indices` P.
        Returns: (P, P).
        Raises: ValueError where P is not what the prior allows.
        Example:
        >>> from jaxsmi.priors import BernoulliGauss
        >>> BernoulliGauss(0.2).second_moment(1)
        Array([[1.]], dtype=...)

        Cost: 2^P P² at most. Source: [TCDKZ25].
        """
        mixture = self._mixture(indices)
        points = jnp.einsum("kp,kq->kpq", mixture.mean, mixture.mean)
        return jnp.einsum("k,kpq->pq", jnp.exp(mixture.log_weight), mixture.covariance + points)

    def log_partition(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> Float[Array, ""]:
        """Log-partition function of one column; its derivatives in b are the posterior mean and covariance.

        log Z_w(b, A) = log ∫ dP_w(w) exp(b·w - ½ wᵀA w)

        Arguments: `b` (P,); `A` (P, P), symmetric, may be singular.
        Returns: a scalar, NaN where the integral diverges (A too negative).
        Raises: ValueError where the shapes do not fit.
        Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Rademacher
        >>> Rademacher().log_partition(jnp.ones(1), jnp.zeros((1, 1)))  # log cosh 1
        Array(0.4338, dtype=...)

        Cost: components × P³. Source: [TCDKZ25].
        """
        b, A = jnp.asarray(b), jnp.asarray(A)
        check(b.ndim == 1, "b", b, "an array of shape (indices P,)")
        return self._cast(b, A).respond(b, A)[0]

    def posterior(
        self, b: Float[Array, "P D"], A: Float[Array, "P P"]
    ) -> tuple[Float[Array, "P D"], Float[Array, "P P"]]:
        """Input side of GAMP: posterior means of all columns, and their covariance averaged over the columns.

        f_i = ∂_b log Z_w(b_i, A),  C = (1/D) Σ_i ∂_b f(b_i, A)

        Arguments: `b` (P, D), the fields; `A` (P, P), symmetric, their precision, may be zero or singular.
        Returns: f (P, D) and C (P, P), in the precision of b and A.
        Raises: ValueError where the shapes do not fit, or P is not what the prior allows.
        Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> mean, covariance = Gaussian().posterior(jnp.array([[2.0, 4.0]]), jnp.eye(1))
        >>> print(mean.round(3), covariance.round(3))
        [[1. 2.]] [[0.5]]

        Cost: components × P² D time; memory about 2^22 numbers at a time. Source: [TCDKZ25].
        """
        b, A = jnp.asarray(b), jnp.asarray(A)
        check(b.ndim == 2, "b", b, "an array of shape (indices P, dimension D)")
        return posterior(self._cast(b, A), b, A)

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: weights (P, D) of the given size around the mean, zero, and their covariance S."""
        return size * jax.random.normal(key, shape, theory_dtype()), self.second_moment(shape[0])

    def side_information(
        self, key: PRNGKeyArray, W: Float[Array, "P D"], strength: Any
    ) -> tuple[Float[Array, "P P"], Float[Array, "P D"]]:
        """Side information on a signal: what observing it through noise adds to A and to b.

        s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

        Arguments: `key`; `W` (P, D), the signal; `strength` λ in [0, 1). In state evolution: Q̂ += λ/(1-λ) I.
        Returns: the additions to A, (P, P), and to b, (P, D).
        Raises: ValueError where `W` is not (P, D) or λ not in [0, 1).
        Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().side_information(jax.random.key(0), jnp.ones((1, 3)), 0.5)[0]
        Array([[1.]], dtype=...)

        Cost: P·D random numbers. Source: [TCDKZ25].
        """
        W = jnp.asarray(W)
        check(W.ndim == 2, "W", W, "an array of shape (indices P, dimension D)")
        if concrete(strength):
            check(0.0 <= np.asarray(strength) < 1.0, "strength", strength, "a number in [0, 1)")
        strength = jnp.asarray(strength, dtype=W.dtype)
        seen = jnp.sqrt(strength) * W + jnp.sqrt(1.0 - strength) * jax.random.normal(
            key, W.shape, W.dtype
        )
        precision = strength / (1.0 - strength)
        return precision * jnp.eye(W.shape[0], dtype=W.dtype), jnp.sqrt(strength) / (
            1.0 - strength
        ) * seen

    def _cast(self, b: Array, A: Array) -> Mixture:
        indices = b.shape[0]
        check(
            A.shape == (indices, indices),
            "A",
            A,
            f"an array of shape ({indices}, {indices}), as b has P={indices}",
        )
        dtype = jnp.result_type(b, A)
        dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else theory_dtype()
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self._mixture(indices))


def _precision(Qhat: Any) -> Array:
    Qhat = _real(Qhat)
    check(
        Qhat.ndim == 2 and Qhat.shape[0] == Qhat.shape[-1],
        "Qhat",
        Qhat,
        "a square array (indices, indices)",
    )
    return symmetric(Qhat)


def _check_sizes(indices: int, dimension: int) -> None:
    check(indices >= 1, "indices", indices, "an integer of at least 1")
    check(dimension >= 1, "dimension", dimension, "an integer of at least 1")


class Gaussian(AbstractIidPrior):
    """Gaussian prior; the default of every index model.

    w ~ N(0, C_0):  f = (C_0^{-1} + A)^{-1} b,  Q = C_0 - (C_0^{-1} + Q̂)^{-1},  Φ_w = ½ tr C_0Q̂ - ½ log det(I + C_0Q̂)

    Arguments: `covariance` C_0 (P, P), symmetric PSD, may be singular; None is the identity, for any P.
    Returns: a prior; all its averages are closed forms.
    Raises: ValueError where `covariance` is not square, symmetric and PSD.
    Example:
    >>> import jax.numpy as jnp
    >>> from jaxsmi.priors import Gaussian
    >>> Gaussian().overlap(jnp.eye(2))
    Array([[0.5, 0. ],
           [0. , 0.5]], dtype=...)

    Cost: O(P³). Source: [TCDKZ25].
    """

    covariance: Float[Array, "P P"] | None = eqx.field(
        converter=lambda C: C if C is None else _real(C), default=None
    )

    @property
    def continuous(self) -> bool:
        """It has a density."""
        return True

    def __check_init__(self):
        if self.covariance is None:
            return
        shape = self.covariance.shape
        check(
            len(shape) == 2 and shape[0] == shape[-1],
            "covariance",
            self.covariance,
            "a square array (P, P)",
        )
        if concrete(self.covariance):
            value = np.asarray(self.covariance)
            sound = np.isfinite(value).all() and np.allclose(value, value.T)
            floor = -64 * np.finfo(value.dtype).eps * np.max(np.abs(value), initial=0.0)
            sound = sound and np.min(np.linalg.eigvalsh(value), initial=0.0) >= floor
            check(sound, "covariance", value, "finite, symmetric and positive semi-definite")

    def _mixture(self, indices: int) -> Mixture:
        check(indices >= 1, "indices", indices, "an integer of at least 1")
        covariance = (
            jnp.eye(indices, dtype=theory_dtype()) if self.covariance is None else self.covariance
        )
        check(
            covariance.shape[0] == indices,
            "indices",
            indices,
            f"{covariance.shape[0]}, the size of the covariance",
        )
        factor = covariance if self.covariance is None else square_root(covariance)
        return Mixture(
            jnp.zeros(1, factor.dtype), jnp.zeros((1, indices), factor.dtype), factor[None]
        )

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W = C_0^{1/2} ξ, (P, D); see `AbstractIidPrior.sample`."""
        _check_sizes(indices, dimension)
        factor = self._mixture(indices).factor[0]
        return factor @ jax.random.normal(key, (indices, dimension), factor.dtype)

    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Q = C_0 (I + Q̂C_0)^{-1} Q̂C_0; see `AbstractIidPrior.overlap`."""
        Qhat = _precision(Qhat)
        seen = Qhat @ (covariance := self._mixture(Qhat.shape[0]).covariance[0])
        return symmetric(
            covariance @ jnp.linalg.solve(jnp.eye(Qhat.shape[0], dtype=Qhat.dtype) + seen, seen)
        )

    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """V = (I + C_0Q̂)^{-1} C_0; see `AbstractIidPrior.mmse`."""
        Qhat = _precision(Qhat)
        return self._mixture(Qhat.shape[0]).respond(jnp.zeros_like(Qhat[0]), Qhat)[2]

    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """Φ_w = ½ tr(C_0Q̂) - ½ log det(I + C_0Q̂); see `AbstractIidPrior.free_entropy`."""
        Qhat = _precision(Qhat)
        mixture = self._mixture(Qhat.shape[0])
        return (
            0.5 * jnp.sum(mixture.covariance[0] * Qhat)
            + mixture.respond(jnp.zeros_like(Qhat[0]), Qhat)[0]
        )


class _Discrete(AbstractIidPrior):
    """Mixtures of several components: averages over b by quadrature."""

    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Q = E[f fᵀ] by quadrature; see `AbstractIidPrior.overlap`."""
        return overlap(self, _precision(Qhat))

    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """V = E[C] by quadrature; see `AbstractIidPrior.mmse`."""
        return mmse(self, _precision(Qhat))

    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """Φ_w = E log Z_w by quadrature; see `AbstractIidPrior.free_entropy`."""
        return free_entropy(self, _precision(Qhat))


def _supports(indices: int) -> Array:
    """All 2^P vectors of zeros and ones, (2^P, P)."""
    check(
        1 <= indices <= _MAX_INDICES,
        "indices",
        indices,
        f"1 to {_MAX_INDICES}: the 2^P components are enumerated",
    )
    return jnp.asarray(
        np.array(list(itertools.product((0.0, 1.0), repeat=indices))), theory_dtype()
    )


class Rademacher(_Discrete):
    """Binary prior with independent signs.

    w_p = ±1;  P = 1: f = tanh b, Q = E tanh²(q̂ + √q̂ ξ)

    Arguments: none.
    Returns: a prior for P <= 8.
    Raises: ValueError (from its methods) for P > 8.
    Example:
    >>> import jax.numpy as jnp
    >>> from jaxsmi.priors import Rademacher
    >>> Rademacher().overlap(jnp.eye(1))
    Array([[0.5504]], dtype=...)

    Cost: see `AbstractIidPrior.overlap`. Source: [TCDKZ25].
    """

    @property
    def discrete(self) -> bool:
        """2^P points."""
        return True

    def _mixture(self, indices: int) -> Mixture:
        signs = 2.0 * _supports(indices) - 1.0
        log_weight = jnp.full(len(signs), -indices * math.log(2.0), signs.dtype)
        return Mixture(log_weight, signs, jnp.zeros((*signs.shape, indices), signs.dtype))

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw P·D independent signs; see `AbstractIidPrior.sample`."""
        _check_sizes(indices, dimension)
        return jax.random.rademacher(key, (indices, dimension), theory_dtype())


class BernoulliGauss(_Discrete):
    """Sparse prior with independent entries of unit variance.

    w_p = 0 with probability 1-ρ, else N(0, 1/ρ), so that E[w_p²] = 1

    Arguments: `density` ρ in (0, 1]; ρ = 1 is the Gaussian prior.
    Returns: a prior for P <= 8.
    Raises: ValueError where ρ is outside (0, 1], and (from its methods) for P > 8.
    Example:
    >>> import jax.numpy as jnp
    >>> from jaxsmi.priors import BernoulliGauss
    >>> BernoulliGauss(1.0).overlap(jnp.eye(1))
    Array([[0.5]], dtype=...)

    Cost: see `AbstractIidPrior.overlap`. Source: [TCDKZ25].
    """

    density: Float[Array, ""] = eqx.field(converter=_real)

    def __check_init__(self):
        check(self.density.ndim == 0, "density", self.density, "one number in (0, 1]")
        check(
            (self.density > 0) & (self.density <= 1), "density", self.density, "a number in (0, 1]"
        )

    def _mixture(self, indices: int) -> Mixture:
        support = _supports(indices)
        # one rounding error away from density 1 the logarithm and its derivative are finite, and the weights right
        zero = 1.0 - self.density * (1.0 - jnp.finfo(support.dtype).eps)
        log_weight = support @ jnp.full(indices, jnp.log(self.density))
        log_weight += (1.0 - support) @ jnp.full(indices, jnp.log(zero))
        return Mixture(
            log_weight,
            jnp.zeros_like(support),
            jax.vmap(jnp.diag)(support / jnp.sqrt(self.density)),
        )

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw supports and values; see `AbstractIidPrior.sample`."""
        _check_sizes(indices, dimension)
        where, what = jax.random.split(key)
        support = jax.random.bernoulli(where, self.density, (indices, dimension))
        return (
            support
            * jax.random.normal(what, support.shape, theory_dtype())
            / jnp.sqrt(self.density)
        )
