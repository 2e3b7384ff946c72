r"""Output channels of attention indices: what a label says about the symmetric matrix h (T, T) of one sample.

Equations here [theory: attention-indexed, Eqs. (3) to (5), (8) to (24)].
ω ~ √q GOE(T), h = ω + √V GOE(T) (variance one off the diagonal, two
on it), Q_0 = q + V:

    Γ(y, ω, V) = (E[h|y, ω] - ω)/V,      f(q) = E ‖Γ‖² = 4 Ψ'(q),      q̂ = α f(q)
    linear      y = h + noise (variance Δ on the diagonal, Δ/2 off it):  Γ = (y - ω)/(V + Δ/2),  f = T(T+1)/(V + Δ/2)
    softmax     log(y_ab)/β gives h up to h + k 1 1ᵀ: P h, P m = m - mean(m) 1 1ᵀ:  Γ = P(h - ω)/V,  f = (T² + T - 2)/V
    hardmax     T = 2: two signs s of u = (h_11 - h_12, h_22 - h_12), covariance C = [[3, 1], [1, 3]] per unit of variance:
                P_s(w) = Φ₂(s_1 w_1/σ, s_2 w_2/σ; s_1 s_2/3),  σ² = 3V,  g = ∂ log P_s/∂w
                Γ_11 = 2 g_1, Γ_22 = 2 g_2, Γ_12 = -(g_1 + g_2),   f = 2 E Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2)

and of one number ω ~ N(0, q), h = ω + √V N(0, 1) [theory: bilinear, Eq. (8)]:
    linear      y = h + noise (variance Δ):  g = (y - ω)/(V + Δ),  f = 2 Ψ' = 1/(V + Δ)

For the common engine a sample has one field vector of T² components, g = Γ: q̂ = α ⟨‖Γ‖²⟩ is its precision, V Γ its Onsager term.
"""

from __future__ import annotations

import abc
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import ExplicitChannel, Posterior
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check


class AbstractIndices(ExplicitChannel):
    """What a label says about the T(T+1)/2 scores of its sample: Γ(y, ω, V), and its mean square over labels.

    One index, whose field vector has T² components: ω, g = Γ are (1, T²).
    """

    tokens: eqx.AbstractVar[int]
    indices: int = eqx.field(static=True, default=1, kw_only=True)

    @abc.abstractmethod
    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., T, T) from the statistic of the labels and ω (.., T, T)."""

    @property
    def noise_size(self) -> int:
        """Noiseless, but for the linear output."""
        return 0

    @property
    def noiseless(self) -> Array:
        """Whether the label is a function of the scores alone, and V can fall to zero."""
        return jnp.asarray(True)

    @property
    def measurements(self) -> int:
        """M with f = M/V, without noise: how many numbers a label fixes, an off-diagonal one counting twice."""
        raise ValueError(
            f"model: got {type(self).__name__}, whose labels fix no numbers; allowed: linear or softmax output."
        )

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """g = Γ as the engine's fields: ω (N, 1, T²), V (1, 1)."""
        del key
        N, T = omega.shape[0], self.tokens
        g = self.gamma(statistic, omega.reshape(N, T, T), V[0, 0]).reshape(N, 1, T * T)
        nan, zero = jnp.full((N,), jnp.nan, g.dtype), jnp.zeros((N,), g.dtype)
        return Posterior(nan, g, jnp.full((N,), jnp.nan, g.dtype), nan, zero, zero)


def check_symmetric(labels: Array, name: str) -> None:
    """Raise a ValueError for matrices that are not symmetric."""
    gap = jnp.max(jnp.abs(labels - jnp.swapaxes(labels, -1, -2)))
    check(
        gap <= 1e-6 * (1.0 + jnp.max(jnp.abs(labels))), name, labels, "symmetric matrices (N, T, T)"
    )


class LinearIndices(AbstractIndices):
    """All T(T+1)/2 indices, with noise of variance Δ on the diagonal and Δ/2 off it (Δ = 0: none)."""

    tokens: int = eqx.field(static=True)
    noise: Array

    @property
    def noise_size(self) -> int:
        """One normal for each entry of a matrix, of which the symmetric part is used."""
        return self.tokens**2

    def link(self, fields: Array) -> Array:
        """h (T, T)."""
        return fields.reshape(self.tokens, self.tokens)

    def label(self, fields: Array, noise: Array) -> Array:
        """h + noise of variance Δ on the diagonal, Δ/2 off it."""
        normal = noise.reshape(self.tokens, self.tokens)
        return self.link(fields) + jnp.sqrt(self.noise) * 0.5 * (normal + normal.T)

    @property
    def noiseless(self) -> Array:
        """Whether Δ = 0."""
        return self.noise == 0.0

    @property
    def spread(self) -> Array:
        """Δ/2: what noise adds to V."""
        return 0.5 * self.noise

    @property
    def measurements(self) -> int:
        """M with f = M/V, without noise."""
        return self.tokens * (self.tokens + 1)

    def log_partition(self, q: Array, V: Array) -> Array:
        """-(T(T+1)/4) log(V + Δ/2)."""
        del q
        return -0.25 * self.measurements * jnp.log(V + self.spread)

    def check_labels(self, labels: Array) -> None:
        """Symmetric matrices."""
        check_symmetric(self.statistic(labels), "labels")

    def statistic(self, labels: Array) -> Array:
        """The labels (N, T, T); of one token, (N,) too."""
        return labels.reshape(-1, self.tokens, self.tokens)

    def information(self, q: Array, V: Array) -> Array:
        """f(q) = T(T+1)/(V + Δ/2)."""
        del q
        return self.measurements / (V + self.spread)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (y - ω)/(V + Δ/2)."""
        return (statistic - omega) / (V + self.spread)


class LinearField(LinearIndices):
    """One number a sample, with noise of variance Δ."""

    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def spread(self) -> Array:
        """Δ."""
        return self.noise

    @property
    def measurements(self) -> int:
        """One."""
        return 1

    def log_partition(self, q: Array, V: Array) -> Array:
        """-½ log(V + Δ)."""
        del q
        return -0.5 * jnp.log(V + self.spread)


class SoftmaxIndices(AbstractIndices):
    """Rows of the softmax of β h, noiseless."""

    tokens: int = eqx.field(static=True)
    beta: Array

    def link(self, fields: Array) -> Array:
        """softmax(β h), row by row."""
        return jax.nn.softmax(self.beta * fields.reshape(self.tokens, self.tokens), axis=-1)

    def information(self, q: Array, V: Array) -> Array:
        """f(q) = (T² + T - 2)/V."""
        del q
        return self.measurements / V

    def log_partition(self, q: Array, V: Array) -> Array:
        """-(M/4) log V."""
        del q
        return -0.25 * self.measurements * jnp.log(V)

    def check_labels(self, labels: Array) -> None:
        """Rows of positive numbers of sum one; a warning where they are float32."""
        check(
            jnp.all(labels > 0.0),
            "labels",
            labels,
            "positive numbers (no softmax that has underflowed to zero)",
        )
        rows = jnp.abs(jnp.sum(labels, axis=-1) - 1.0)
        check(jnp.max(rows) <= 1e-4, "labels", labels, "rows of sum one")
        if labels.dtype != jnp.float64:
            warnings.warn(
                "jaxsmi: softmax labels in float32 give indices with errors of about 1e-7/beta.",
                stacklevel=3,
            )

    def statistic(self, labels: Array) -> Array:
        """P h (.., T, T) from y (.., T, T): log y/β = h - (a constant a row)."""
        L = jnp.log(labels.astype(theory_dtype())) / self.beta
        rows = jnp.mean(jnp.swapaxes(L, -1, -2) - L, axis=-1)  # u_a = mean_b (L_ba - L_ab)
        h = L + rows[..., :, None]
        return centred(0.5 * (h + jnp.swapaxes(h, -1, -2)))

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (P h - P ω)/V."""
        return (statistic - centred(omega)) / V

    @property
    def measurements(self) -> int:
        """M = T² + T - 2: all of h but its mean, an off-diagonal entry counting twice."""
        return self.tokens**2 + self.tokens - 2


def centred(m: Array) -> Array:
    """P m = m - mean(m) 1 1ᵀ."""
    return m - jnp.mean(m, axis=(-2, -1), keepdims=True)
