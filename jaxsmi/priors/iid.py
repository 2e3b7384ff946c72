"""Priors with iid columns: the columns of W (P, D) are independent draws of w ∈ R^P.

Equations here ([TCDKZ25], [theory: multi-index, section 2]; b and A come from GAMP and state
evolution):

* partition function   Z_w(b, A) = ∫ dP_w(w) exp(b·w - ½ wᵀA w)
* posterior            f = ∂_b log Z_w, C = ∂_b f
* state evolution      b = Q̂w + Q̂^{1/2}ξ:  Q = E[f fᵀ],  mmse = E[C] = E[w wᵀ] - Q
* free entropy         Φ_w(Q̂) = E log Z_w(b, Q̂),  ∂Φ_w/∂Q̂ = ½ Q
* side information     s = √λ w + √(1-λ) ξ:  A += λ/(1-λ) I,  b += √λ/(1-λ) s

A prior defines the law of one column, a mixture of Gaussians Σ_k π_k N(μ_k, S_k) in R^P, which
gives log Z_w, f and C, and how to draw a signal. Averages over the field are quadratures
(field_averages.py) unless the prior has closed forms, as the Gaussian one does, w ~ N(0, C_0):

    f = (C_0^{-1} + A)^{-1} b,   Q = C_0 - (C_0^{-1} + Q̂)^{-1}
    Φ_w = ½ tr C_0Q̂ - ½ log det(I + C_0Q̂)

and as columns of unequal variances have, column i of w ~ N(0, s_i C_0), averages over i [theory:
inputs, Eqs. (6) to (8)]:

    f_i = s_i C_0 (I + s_i A C_0)^{-1} b_i,   V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩
    Φ_w = ⟨½ s tr C_0Q̂ - ½ log det(I + s C_0Q̂)⟩
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import precision_of, symmetric, theory_dtype
from jaxsmi.numerics.linear_algebra import bartlett, bartlett_size, inverse_of_many, sqrt_psd
from jaxsmi.priors.base import AbstractPrior, Traits
from jaxsmi.priors.field_averages import (
    average,
    covariance,
    covariance_twice,
    half_outer,
    log_partition,
    minus_covariance_twice,
    outer,
)

_MAX_BATCH_SIZE = 2**22  # numbers in the posterior of one batch of columns: 32 MB in float64


class Mixture(eqx.Module):
    """The law Σ_k π_k N(μ_k, L_k L_kᵀ) of one column w in R^P, and its posterior given a field.

    Args:
        log_weight: log π_k (K,).
        mean: μ_k (K, P).
        factor: L_k (K, P, P).
    """

    log_weight: Float[Array, " K"]
    mean: Float[Array, "K P"]
    factor: Float[Array, "K P P"]

    @property
    def covariance(self) -> Float[Array, "K P P"]:
        """S_k = L_k L_kᵀ."""
        return self.factor @ jnp.swapaxes(self.factor, 1, 2)

    @property
    def first_moment(self) -> Float[Array, " P"]:
        """E w."""
        return jnp.exp(self.log_weight) @ self.mean

    @property
    def second_moment(self) -> Float[Array, "P P"]:
        """E w wᵀ."""
        points = jnp.einsum("kp,kq->kpq", self.mean, self.mean)
        return jnp.einsum("k,kpq->pq", jnp.exp(self.log_weight), self.covariance + points)

    @eqx.filter_jit
    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """Compute log Z_w, posterior mean f and posterior covariance C at one field b.

        They are NaN if the integral diverges. Component k: log π_k - ½ log det(I + S_k A) + ½ (b
        - Aμ_k)ᵀ C_k (b - Aμ_k) + b·μ_k - ½ μ_kᵀAμ_k, with C_k = (I + S_k A)^{-1} S_k and posterior
        mean m_k = μ_k + C_k (b - Aμ_k). With I + LᵀAL = KKᵀ and H = K^{-1}Lᵀ, C_k = HᵀH; C_k itself
        times a large b would cancel where A is nearly singular, H does not.
        """
        transposed = jnp.swapaxes(self.factor, 1, 2)
        identity = jnp.eye(b.shape[0], dtype=b.dtype)
        gain = jnp.linalg.cholesky(identity + transposed @ A @ self.factor)
        half = jax.scipy.linalg.solve_triangular(gain, transposed, lower=True)
        # from the triangular factor: a determinant of exponential size would overflow
        log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(gain, axis1=1, axis2=2)), axis=1)
        pull = jnp.einsum("kpq,kq->kp", half, b - self.mean @ A)
        log_term = self.log_weight - 0.5 * log_det + 0.5 * jnp.sum(pull**2, axis=1)
        # b·μ - ½ μᵀAμ in one product: the two parts cancel at large A
        log_term += jnp.sum(self.mean * (b - 0.5 * self.mean @ A), axis=1)
        log_partition = jax.nn.logsumexp(log_term)
        weight = jnp.exp(log_term - log_partition)
        # differences from the likeliest component keep C accurate relative to itself
        # when it is exponentially small
        center = self.mean + jnp.einsum("kpq,kp->kq", half, pull)
        likeliest = center[jnp.argmax(log_term)]
        offset = center - likeliest
        shift = weight @ offset
        offset = offset - shift
        within = jnp.einsum("k,krp,krq->pq", weight, half, half)
        between = jnp.einsum("k,kp,kq->pq", weight, offset, offset)
        return log_partition, likeliest + shift, within + between


@eqx.filter_jit
def posteriors(column: Mixture, b: Array, A: Array) -> tuple[Array, Array, Array]:
    """Compute log Z_w (D,), the posterior mean (D, P) and covariance (D, P, P) of each column of
    b (P, D)."""
    respond = lambda field: column.respond(field, A)
    batch = max(1, _MAX_BATCH_SIZE // column.factor.size)
    # all columns at once if they fit: a loop over batches is slower
    if b.shape[1] <= batch:
        return jax.vmap(respond, in_axes=1)(b)
    return jax.lax.map(respond, b.T, batch_size=batch)


def squares(covariances: Array) -> Array:
    """Average C_i ⊗ C_i of covariances (D, P, P), as the map X ↦ C_i X C_i (P, P, P, P)."""
    return jnp.einsum("dac,deb->abce", covariances, covariances) / len(covariances)


# a diverging iteration passes fields that are not finite: the posterior is NaN then
_ANY_NUMBERS = validate.Interval("numbers", infinite=True)


class AbstractIidPrior(AbstractPrior):
    """A prior with iid columns: `Gaussian`, `Rademacher`, `BernoulliGauss`, `GaussianMixture`.

    To add one, subclass this with `traits`, a `column` that returns a `Mixture` of Gaussians, and
    `sample`.
    """

    @abc.abstractmethod
    def column(self, indices: int) -> Mixture:
        """Return the law of a column, a P-vector, P = `indices`."""

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
        """Draw W Wᵀ/D (P, P) of a random signal."""
        # a general law has no shortcut to the Gram matrix
        W = self.sample(key, indices, int(dimension))
        return W @ W.T / dimension

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Compute the overlap for a field of precision Q̂: the prior's half of state evolution.

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
        """Compute the posterior covariance for a field of precision Q̂, accurate also near perfect
        recovery.

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
        """Compute the prior's term Φ_w of the replica free entropy, in nats per dimension.

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

    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """Return the second moment S = E[w wᵀ] of the prior, (P, P); V = S - Q in state evolution.

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
        """Return m mᵀ, m = E w."""
        return _moments(self, indices)[1]

    def posterior(self, b: ArrayLike, A: ArrayLike) -> tuple[Float[Array, "P D"], Array]:
        """Compute the posterior means of all columns, and the average of their covariances: GAMP's
        input side.

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
        _, mean, covariance = posteriors(column, b, A)
        return mean.T, jnp.mean(covariance, axis=0)

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """See `AbstractPrior.bethe_terms`."""
        log_partition, _, covariance = posteriors(self.column(len(b)), b, A)
        return jnp.mean(log_partition), squares(covariance)

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Return the mean plus noise of this size, (P, D), and the prior's covariance."""
        column = self.column(shape[0])
        mean = column.first_moment
        # not the mean alone, a point where even labels have no slope
        noise = size * jax.random.normal(key, shape, theory_dtype())
        return mean[:, None] + noise, column.second_moment - self.mean_overlap(shape[0])

    def side_information(
        self, key: PRNGKeyArray, signal: ArrayLike, strength: ArrayLike
    ) -> tuple[Float[Array, "P P"], Float[Array, "P D"]]:
        """Return additions to A and b from a direct, noisy observation of the signal.

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
        W = validate.array("signal", signal, allowed, shape=(None, None))
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
    allowed = "an array of shape (indices P, dimension D)"
    numbers = {"dtype": precision_of(b, A), "interval": _ANY_NUMBERS}
    b = validate.array("b", b, allowed, shape=(None, None), **numbers)
    P = len(b)
    allowed = f"an array of shape ({P}, {P}), as b has P={P}"
    return b, validate.array("A", A, allowed, shape=(P, P), **numbers)


def sizes(key: object, indices: object, dimension: object) -> tuple[PRNGKeyArray, int, int]:
    """Validate the arguments of `sample`."""
    key = validate.key("key", key)
    return key, validate.count("indices", indices), validate.count("dimension", dimension)


# one program: outside jit each operation of jax.numpy would be compiled by itself
@eqx.filter_jit
def _moments(prior: AbstractIidPrior, indices: int) -> tuple[Array, Array]:
    """Compute E w wᵀ and E w E wᵀ of a column."""
    column = prior.column(indices)
    mean = column.first_moment
    return column.second_moment, jnp.outer(mean, mean)


def _covariance(C: object) -> Array | None:
    """Validate a covariance (P, P), or None."""
    return validate.optional(validate.semidefinite, "covariance", C)


class Gaussian(AbstractIidPrior):
    """Gaussian prior; the default of every index model.

        w ~ N(0, C_0):  f = (C_0^{-1} + A)^{-1} b,  Q = C_0 - (C_0^{-1} + Q̂)^{-1}

    Args:
        covariance: C_0 (P, P), symmetric and positive semi-definite, may be singular. Default: the
            identity, for any P.

    Raises:
        ValueError: For a `covariance` that is not square, symmetric and positive semi-definite.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().overlap(jnp.eye(2))
        Array([[0.5, 0. ],
               [0. , 0.5]], dtype=...)

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    traits: ClassVar[Traits] = Traits(continuous=True, wishart=True)
    covariance: Float[Array, "P P"] | None = eqx.field(converter=_covariance, default=None)

    def column(self, indices: int) -> Mixture:
        """Return one component, N(0, C_0)."""
        validate.check(indices >= 1, "indices", indices, "an integer >= 1")
        if self.covariance is None:
            # NumPy: outside jit each array of jax.numpy is compiled as a program
            factor = jnp.asarray(np.eye(indices, dtype=theory_dtype()))
        else:
            size = self.covariance.shape[0]
            allowed = f"{size}, the size of the covariance"
            validate.check(size == indices, "indices", indices, allowed)
            # null = 0: small variances are variances, not rounding
            factor = sqrt_psd(self.covariance, 0.0)
        weight = jnp.asarray(np.zeros(1, factor.dtype))
        return Mixture(weight, jnp.asarray(np.zeros((1, indices), factor.dtype)), factor[None])

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W = C_0^{1/2} ξ; see `AbstractIidPrior.sample`."""
        return _draw(self, *sizes(key, indices, dimension))

    def gram(self, key: PRNGKeyArray, indices: int, dimension: int | Array) -> Float[Array, "P P"]:
        """Draw W Wᵀ/D from Wishart's law, D >= P, at a cost that does not grow with D, which may be
        traced."""
        factor = self.column(indices).factor[0]
        normals = jax.random.normal(key, (bartlett_size(indices),), factor.dtype)
        # Bartlett: the root of a Wishart matrix is triangular, with P(P+1)/2 random numbers
        root = factor @ bartlett(normals, indices, dimension)
        return root @ root.T / dimension

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Q = C_0 (I + Q̂C_0)^{-1} Q̂C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        covariance = self.column(len(Qhat)).covariance[0]
        product = Qhat @ covariance
        identity = jnp.eye(len(Qhat), dtype=Qhat.dtype)
        return symmetric(covariance @ jnp.linalg.solve(identity + product, product))

    def mmse(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """V = (I + C_0Q̂)^{-1} C_0; see `AbstractIidPrior.mmse`."""
        Qhat = precision_matrix(Qhat)
        return self.column(len(Qhat)).respond(jnp.zeros_like(Qhat[0]), Qhat)[2]

    def free_entropy(self, Qhat: ArrayLike) -> Float[Array, ""]:
        """Φ_w = ½ tr(C_0Q̂) - ½ log det(I + C_0Q̂); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        column = self.column(len(Qhat))
        log_partition = column.respond(jnp.zeros_like(Qhat[0]), Qhat)[0]
        return 0.5 * jnp.sum(column.covariance[0] * Qhat) + log_partition


class GaussianProfile(AbstractIidPrior):
    """Gaussian prior whose columns have unequal variances.

        w_i ~ N(0, s_i C_0):  f_i = (C_0^{-1}/s_i + A)^{-1} b_i

    Weights W of iid columns N(0, C_0), observed through inputs of covariance Σ, have this law in
    the coordinates of `data.whiten(Σ)`, with s = `whitening.variances`: message passing with it is
    Bayes-optimal there, and theory is that of D → ∞ with this profile.

    Args:
        variances: s (D,), positive numbers, in the order of the coordinates.
        covariance: C_0 (P, P). Default: the identity, for any P.

    Raises:
        ValueError: For variances that are not positive, or a `covariance` that `Gaussian` rejects.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import GaussianProfile
        >>> GaussianProfile([1.0, 3.0]).mmse(jnp.eye(1))  # (1/2 + 3/4)/2
        Array([[0.625]], dtype=...)

    Cost:
        O(D P³) for each average.

    Source:
        [theory: inputs, section 2].
    """

    traits: ClassVar[Traits] = Traits(continuous=True, identical=False)
    variances: Float[Array, " D"]
    base: Gaussian

    def __init__(self, variances: ArrayLike, covariance: ArrayLike | None = None):
        allowed = "variances (D,), finite numbers > 0"
        self.variances = validate.array(
            "variances", variances, allowed, shape=(None,), interval=validate.POSITIVE
        )
        # one validation of C_0 for both
        self.base = Gaussian(covariance)  # pyright: ignore[reportArgumentType]

    def column(self, indices: int) -> Mixture:
        """Return the law of a random column: one component for each variance."""
        factor = self.base.column(indices).factor[0]
        D = self.variances.size
        # a mixture for marginals only: message passing knows the variance of each column
        weight = jnp.full(D, -jnp.log(float(D)), factor.dtype)
        mean = jnp.zeros((D, indices), factor.dtype)
        return Mixture(weight, mean, jnp.sqrt(self.variances)[:, None, None] * factor)

    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """⟨s⟩ C_0; see `AbstractIidPrior.second_moment`."""
        return jnp.mean(self.variances) * self.base.second_moment(indices)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W, D the number of variances; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        allowed = f"{self.variances.size}, the number of variances of the prior"
        validate.check(self.variances.size == D, "dimension", dimension, allowed)
        return jnp.sqrt(self.variances) * self.base.sample(key, P, D)

    def posterior(self, b: ArrayLike, A: ArrayLike) -> tuple[Float[Array, "P D"], Array]:
        """See `AbstractIidPrior.posterior`."""
        b, A = fields(b, A)
        D = self.variances.size
        validate.check(b.shape[1] == D, "b", b, f"an array of shape (indices P, {D})")
        covariances = self._covariances(A)
        return jnp.einsum("dpq,qd->pd", covariances, b), jnp.mean(covariances, axis=0)

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """See `AbstractPrior.bethe_terms`."""
        covariances = self._covariances(A)
        quadratic = jnp.einsum("pd,dpq,qd->", b, covariances, b) / b.shape[1]
        return 0.5 * quadratic - 0.5 * jnp.mean(self._log_dets(A)), squares(covariances)

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Q = ⟨V(s) Q̂ s⟩ C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        C = self.base.second_moment(len(Qhat))
        weighted = jnp.mean(self.variances[:, None, None] * self._covariances(Qhat), axis=0)
        return symmetric(weighted @ Qhat @ C)

    def mmse(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩; see `AbstractIidPrior.mmse`."""
        return jnp.mean(self._covariances(precision_matrix(Qhat)), axis=0)

    def free_entropy(self, Qhat: ArrayLike) -> Float[Array, ""]:
        """Φ_w (module docstring); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        S = self.second_moment(len(Qhat))
        return 0.5 * jnp.sum(S * Qhat) - 0.5 * jnp.mean(self._log_dets(Qhat))

    def _log_dets(self, A: Array) -> Array:
        """log det(I + s_i C_0 A) of all columns (D,)."""
        product = self.base.second_moment(len(A)) @ A
        identity = jnp.eye(len(A), dtype=A.dtype)
        return jax.vmap(lambda s: jnp.linalg.slogdet(identity + s * product)[1])(self.variances)

    @eqx.filter_jit
    def _covariances(self, A: Array) -> Array:
        """(C_0^{-1}/s_i + A)^{-1} = s_i L (I + s_i LᵀAL)^{-1} Lᵀ of all columns (D, P, P)."""
        L = self.base.column(len(A)).factor[0]
        s = self.variances[:, None, None]
        # through L: C_0 may be singular, and its inverse is never needed
        inverse, _ = inverse_of_many(jnp.eye(len(A), dtype=A.dtype) + s * (L.T @ A @ L))
        return s * (L @ inverse @ L.T)


def power_law(dimension: int, exponent: ArrayLike) -> Array:
    r"""Variances that fall as a power, of mean one.

        s_k ∝ k^{-a},  (1/D) Σ_k s_k = 1

    For eigenvalues s_k of the covariance of features this is the capacity condition of kernel
    regression. The source condition is t_k ∝ k^{-1-a(2r-1)} for the teacher's weights, so that the
    teacher's profile is s_k t_k ∝ k^{-1-2ra}. With mean one, the fields of iid weights of variance
    one have variance one.

    Args:
        dimension: D.
        exponent: a.

    Returns:
        s (D,), decreasing where a > 0; differentiable in a.

    Raises:
        ValueError: For D that is no integer >= 1, or a that is no number.

    Example:
        >>> import jaxsmi as smi
        >>> print(smi.priors.power_law(3, 1.0).round(2))
        [1.64 0.82 0.55]

    Source:
        [CLKZ21], [theory: empirical-risk, section 8].
    """
    a, D = validate.number("exponent", exponent), validate.count("dimension", dimension)
    # a softmax, as powers may overflow before they are normalised
    return D * jax.nn.softmax(-a * jnp.log(jnp.arange(1.0, D + 1.0, dtype=a.dtype)))


@eqx.filter_jit
def _draw(prior: Gaussian, key: PRNGKeyArray, indices: int, dimension: int) -> Array:
    """Draw C_0^{1/2} ξ (P, D)."""
    factor = prior.column(indices).factor[0]
    return factor @ jax.random.normal(key, (indices, dimension), factor.dtype)


def iid_prior(prior: AbstractIidPrior | None) -> AbstractIidPrior:
    """Validate the prior of the rows of a model; the default is iid N(0, 1)."""
    if prior is None:
        return Gaussian()
    return validate.instance("prior", prior, AbstractIidPrior, _PRIOR)


_PRIOR = "a prior of independent columns, such as smi.priors.Rademacher()"
