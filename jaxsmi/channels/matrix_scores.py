r"""Output channels of attention scores: what a label says about the matrix h (T, T) of a sample.

Equations here [theory: attention-indexed, Eqs. (3) to (5), (8) to (24)]. ω ~ √q GOE(T),
h = ω + √V GOE(T) (variance one off the diagonal, two on it), Q_0 = q + V:

    Γ(y, ω, V) = (E[h|y, ω] - ω)/V,      f(q) = E ‖Γ‖² = 4 Ψ'(q),      q̂ = α f(q)
    linear      y = h + noise (variance Δ on the diagonal, Δ/2 off it):
                Γ = (y - ω)/(V + Δ/2),  f = T(T+1)/(V + Δ/2)
    softmax     log(y_ab)/β gives h up to h + k 1 1ᵀ; with P m = m - mean(m) 1 1ᵀ,
                Γ = P(h - ω)/V,  f = (T² + T - 2)/V
    hardmax     channels/hardmax.py

and of one number ω ~ N(0, q), h = ω + √V N(0, 1) [theory: bilinear, Eq. (8)]:

    linear      y = h + noise (variance Δ):  g = (y - ω)/(V + Δ),  f = 2 Ψ' = 1/(V + Δ)

Responses are functions of two numbers in closed form, the overlap q and the rest V
[theory: attention-indexed, Eqs. (10) to (12)]:

    response(Q) = f,   E log Z_out = Ψ(q),   f = Ψ'/weight of the prior's scalar product

For the common engine a sample has one field vector of T² components, g = Γ: q̂ = α ⟨‖Γ‖²⟩ is its
precision, V Γ its Onsager term.
"""

from __future__ import annotations

import abc
import warnings
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, Posterior, Response
from jaxsmi.channels.posterior import Key
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import check


class AbstractScores(AbstractChannel):
    """A label of the T(T+1)/2 scores of its sample: Γ(y, ω, V), and its mean square over labels, a
    function f(q, V) of two numbers in closed form.

    One index, whose field vector has T² components: ω, g = Γ are (1, T²). `weight` is that of the
    prior's scalar product, 1/4 of a matrix.
    """

    explicit: ClassVar[bool] = True
    weight: ClassVar[float] = 0.25
    indices: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    @abc.abstractmethod
    def measurements(self) -> int:
        """M with f = M/V, without noise: the numbers that a label fixes, an off-diagonal one
        counting twice."""

    @abc.abstractmethod
    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., T, T) from the statistic of the labels and ω (.., T, T)."""

    @property
    def spread(self) -> Array | float:
        """The variance that noise adds to V."""
        return 0.0

    def information(self, q: Array, V: Array) -> Array:
        """f(q) = E ‖g‖² = M/(V + spread) at the overlap q, with V left: the precision that a sample
        adds."""
        del q
        return self.measurements / (V + self.spread)

    def mean_log_partition(self, q: Array, V: Array) -> Array:
        """Ψ(q) = E log Z_out = -w M log(V + spread), up to a constant where labels are noiseless
        numbers."""
        del q
        return -self.weight * self.measurements * jnp.log(V + self.spread)

    def uncertainty(self, q: Array, V: Array) -> Array | None:
        """Relative standard error of f by Monte-Carlo; None: f is exact."""
        del q, V
        return None

    @property
    def tolerance(self) -> Array:
        """Closed forms are exact."""
        return jnp.asarray(jnp.inf)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """g = Γ as the engine's fields: ω (N, 1, T²), V (1, 1)."""
        del key
        N, T = len(omega), self.tokens
        g = self.gamma(statistic, omega.reshape(N, T, T), V[0, 0]).reshape(N, 1, T * T)
        # the engine has one interface for all channels: entries that matrices lack are marked
        # message passing needs neither log Z_out nor ∂g of scores
        nan = jnp.full((N,), jnp.nan, g.dtype)
        zero = jnp.zeros((N,), g.dtype)
        return Posterior(nan, g, nan, nan, zero, zero)

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None = None,
        points: int = 0,
        nets: int = 2,
        tangents: bool = True,
    ) -> Response:
        """f and Ψ at Q, V (1, 1), in the form of sampled channels: replicas all equal, `jacobian`
        exact."""
        del key, points
        q, v = Q[0, 0], V[0, 0]
        mean = self.information(q, v) * jnp.ones((1, 1), v.dtype)
        slope = zero = jnp.zeros((), v.dtype)
        if tangents:  # along a fixed second moment: dV = -dq
            slope = jax.jvp(self.information, (q, v), (jnp.ones_like(q), -jnp.ones_like(v)))[1]
        # equal replicas have no spread: the statistical error of a closed form is zero
        log_partition = jnp.broadcast_to(self.mean_log_partition(q, v), (nets,))
        replicas = jnp.broadcast_to(mean, (nets, 1, 1))
        return Response(mean, replicas, slope.reshape(1, 1, 1, 1), log_partition, zero, zero)


class LinearScores(AbstractScores):
    """The scores themselves, with noise of variance Δ on the diagonal and Δ/2 off it."""

    noise: Array

    @property
    def spread(self) -> Array:
        """Δ/2."""
        return 0.5 * self.noise

    @property
    def measurements(self) -> int:
        """T(T+1)."""
        return self.tokens * (self.tokens + 1)

    @property
    def noise_size(self) -> int:
        """One normal for each entry of a matrix, of which the symmetric part is used."""
        return self.tokens**2

    @property
    def noiseless(self) -> Array:
        """Δ = 0."""
        return self.noise == 0.0

    def link(self, fields: Array) -> Array:
        """h (T, T)."""
        return fields.reshape(self.tokens, self.tokens)

    def label(self, fields: Array, noise: Array) -> Array:
        """h + noise of variance Δ on the diagonal, Δ/2 off it."""
        normal = noise.reshape(self.tokens, self.tokens)
        return self.link(fields) + jnp.sqrt(self.noise) * 0.5 * (normal + normal.T)

    def check_labels(self, labels: Array) -> None:
        """Symmetric matrices."""
        y = self.statistic(labels)
        # to rounding of float32 inputs
        gap = jnp.max(jnp.abs(y - jnp.swapaxes(y, -1, -2)))
        scale = 1.0 + jnp.max(jnp.abs(y))
        check(gap <= 1e-6 * scale, "labels", labels, "symmetric matrices (N, T, T)")

    def statistic(self, labels: Array) -> Array:
        """The labels (N, T, T); of one token, (N,) too."""
        return labels.reshape(-1, self.tokens, self.tokens)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (y - ω)/(V + spread)."""
        return (statistic - omega) / (V + self.spread)


class LinearField(LinearScores):
    """One number a sample, with noise of variance Δ; its field has variance V, not 2V."""

    tokens: int = eqx.field(static=True, default=1, kw_only=True)
    weight: ClassVar[float] = 0.5

    @property
    def spread(self) -> Array:
        """Δ."""
        return self.noise

    @property
    def measurements(self) -> int:
        """One."""
        return 1


class SoftmaxScores(AbstractScores):
    """Rows of the softmax of β h, noiseless."""

    beta: Array

    @property
    def measurements(self) -> int:
        """M = T² + T - 2: all of h but its mean, an off-diagonal entry counting twice."""
        return self.tokens**2 + self.tokens - 2

    def link(self, fields: Array) -> Array:
        """softmax(β h), row by row."""
        return jax.nn.softmax(self.beta * fields.reshape(self.tokens, self.tokens), axis=-1)

    def check_labels(self, labels: Array) -> None:
        """Rows of positive numbers of sum one; a warning where they are float32."""
        allowed = "positive numbers (no softmax that has underflowed to zero)"
        check(jnp.all(labels > 0.0), "labels", labels, allowed)
        gap = jnp.max(jnp.abs(jnp.sum(labels, axis=-1) - 1.0))
        check(gap <= 1e-4, "labels", labels, "rows of sum one")
        # logarithms of small probabilities amplify rounding
        if labels.dtype != jnp.float64:
            message = "softmax labels in float32 give scores with errors of about 1e-7/beta."
            warnings.warn(message, stacklevel=3)

    def statistic(self, labels: Array) -> Array:
        """P h (.., T, T) from y (.., T, T): log y/β = h - (a constant a row)."""
        L = jnp.log(labels.astype(theory_dtype())) / self.beta
        # a softmax forgets a constant of each row, which the symmetry of h gives back
        rows = jnp.mean(jnp.swapaxes(L, -1, -2) - L, axis=-1)  # u_a = mean_b (L_ba - L_ab)
        h = L + rows[..., :, None]
        return centred(0.5 * (h + jnp.swapaxes(h, -1, -2)))

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (P h - P ω)/V."""
        return (statistic - centred(omega)) / V


def centred(m: Array) -> Array:
    """P m = m - mean(m) 1 1ᵀ."""
    return m - jnp.mean(m, axis=(-2, -1), keepdims=True)
