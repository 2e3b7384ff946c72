r"""The channel of any JAX link with a likelihood, integrated numerically.

Equation here [theory: multi-index, section 3]: Z_out(y; ω, V) = ∫ Π_m N(z_m; ω_m, V) p(y|z) dz over
the P·M fields, z = ω + V^{1/2} t, with p(y|z) = N(y; link(z), Δ I) for Gaussian label noise, or any
log p(y|z) the user gives. Labels of such a law are drawn by the user's sampler, or, if they are
few, the k-th if u = Φ(ξ) is between Σ_{j<k} p(y_j|z) and Σ_{j<=k} p(y_j|z). Up to three fields:
refined trapezoidal sums; more, and averages over labels of two and more: randomised nets; both
through `numerics.refining.self_refining_moments`, which reports its error. One field with few
labels whose probabilities jump or have kinks: Gauss-Legendre rules between these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import (
    AbstractChannel,
    AbstractLabels,
    Key,
    Posterior,
    batch_size,
    check_label_shape,
    check_outcomes,
    exact_posterior,
)
from jaxsmi.channels.fibres import Fibre, FibreChannel, whitened_response
from jaxsmi.channels.jumps import continuous, gradient_of, jumps_of, kinked, steady
from jaxsmi.core.arrays import concrete, positive_root
from jaxsmi.core.validate import check
from jaxsmi.numerics.quadrature import WIDEST, legendre
from jaxsmi.numerics.refining import Budget, Integral, level_for_width
from jaxsmi.numerics.refining_sums import Branch

# slope of a link: random t, the step of differences in t, and samples at once (empirical: the
# level that it leads to is then the level of the exact slope, or one above)
_SLOPE_POINTS = 8
_SLOPE_STEP = 1e-2
_BLOCK_SIZE = 4096
# averages of two fields and more take random nodes, with so many times the tolerance, at most 0.3
# (empirical, docstring of `averaging`)
_RANDOM_FROM = 2
_LOOSER, _LOOSEST = 300.0, 0.3
# widths in one variable that call for 256 and for 8192 nodes, which resolve a kink and a jump
_KINK_WIDTH = 0.017
_JUMP_WIDTH = 5.2e-4
# draws of a sampler that are compared with its likelihood, at fields of so many distances (the
# noise is about one of them); a contradiction are six standard errors, and 1 % of the variance of
# the fields (empirical: a scale wrong by a fifth is found, of Gaussian and of Laplace noise)
_CHECK_DRAWS = 14400
_CHECK_LENGTHS = 2.0 ** -np.arange(-1, 10, 2)
_CHECK_BARS, _CHECK_GAP = 6.0, 0.01
# a piece of up to 17 standard deviations; the largest difference from the first rule is the error.
# Where there may be more jumps than ends, one difference is small by chance (7 bars were seen)
_PIECE_NODES = (64, 48)
_MORE_NODES = (40, 32)
# jumps, and kinks, that end pieces: cos 2z changes its sign ten times in eight standard deviations;
# most laws have few (five pieces take a fifth of the time)
_PIECES, _FEW_PIECES = 12, 4
_ROUNDING = 64.0  # rounding of moments of t that are 0, in units of ε
_EDGES = 8  # jumps of p(y|z) about which points are dense, a power of two
# log p of impossible labels: the posterior stays finite at fields that allow none of them
_LEAST_LOG = -1e10
_SEED_AXES = 8  # a grid of eight points an axis would have 8^8 points


class Likelihood(eqx.Module):
    """A law of labels other than Gaussian noise.

    Attributes:
        log_likelihood: log p(y|z) of (y, z).
        sampler: Draws a label from (key, z).
        outcomes: All labels (K, ...), if they are finitely many.
        counts: Labels are integers >= 0.
    """

    log_likelihood: Callable[[Array, Array], Array] | None = None
    sampler: Callable[[PRNGKeyArray, Array], Array] | None = None
    outcomes: Array | None = None
    counts: bool = eqx.field(static=True, default=False)

    def check(self, labels: Array) -> None:
        """Raise a ValueError for labels (N, ...) that the law never gives."""
        if self.outcomes is not None:
            axes = tuple(range(2, labels.ndim + 1))
            known = jnp.any(jnp.all(labels[:, None] == self.outcomes, axis=axes), axis=1)
            check_outcomes(labels, self.outcomes, known, "; or list more of them, outcomes=")
        if self.counts:
            whole = (labels >= 0) & (labels == jnp.floor(labels))
            check(jnp.all(whole), "labels", labels, "counts: integers >= 0")

    def check_sampler(self, indices: int, tokens: int) -> None:
        """Raise a ValueError for a sampler that does not draw from the likelihood.

        Fields are z + ℓ x w with x on a grid, for lengths ℓ one of which is about the noise. A
        label is drawn at one of them. Given it, x has a mean m and a variance v, with
        E[x - m] = 0, E[(x - m) m] = 0 and E[(x - m)² - v] = 0 (Nishimori).
        """
        law, sampler = self.log_likelihood, self.sampler
        assert law is not None
        assert sampler is not None
        start, way = np.random.default_rng(0).standard_normal((2, indices, tokens))
        z = jnp.asarray(start)
        if not concrete(law(jnp.asarray(sampler(jax.random.key(0), z), z.dtype), z)):  # traced
            return
        x = np.linspace(-1.5, 1.5, 9)
        true = np.tile(np.arange(len(x)), _CHECK_DRAWS // len(x))
        for number, length in enumerate(_CHECK_LENGTHS):
            fields = jnp.asarray(start + np.multiply.outer(length * x, way))
            keys = jax.random.split(jax.random.key(number), len(true))
            y = jnp.asarray(jax.vmap(sampler)(keys, fields[true]), z.dtype)
            odds = jax.nn.softmax(jax.vmap(jax.vmap(law, (None, 0)), (0, None))(y, fields))
            odds = np.nan_to_num(np.asarray(odds))  # impossible labels give NaN
            mean, square = odds @ x, odds @ x**2
            miss = x[true] - mean
            gaps = np.array([miss, miss * mean, miss**2 - square + mean**2])
            bars = np.std(gaps, axis=1) / np.sqrt(len(true))
            found = np.abs(np.mean(gaps, axis=1))
            ratio = np.max(found / np.maximum(bars, _CHECK_GAP / _CHECK_BARS))
            allowed = "draws from p(y|z) = exp(log_likelihood(y, z))"
            got = f"labels that do not follow log_likelihood= (by {ratio:.0f} standard errors)"
            check(ratio <= _CHECK_BARS, "sampler", got, allowed)

    def shape(self, link: Callable[[Array], Array], fields: tuple[int, int]) -> tuple[int, ...]:
        """Shape of a label of fields (P, M)."""
        z = jax.ShapeDtypeStruct(fields, float)
        if self.outcomes is not None:
            return self.outcomes.shape[1:]
        if self.sampler is not None:
            return jax.eval_shape(lambda z: self.draw(z, z[0, 0]), z).shape
        return jax.eval_shape(link, z).shape

    @property
    def drawn(self) -> bool:
        """True if labels can be drawn: not from a likelihood alone."""
        alone = self.sampler is None and self.outcomes is None
        return self.log_likelihood is None or not alone

    def odds(self, fields: Array) -> Array:
        """Return p(y_k|z) of all labels (K,), which must be few."""
        assert self.log_likelihood is not None
        assert self.outcomes is not None
        return jnp.exp(jax.vmap(self.log_likelihood, in_axes=(0, None))(self.outcomes, fields))

    def mean(self, fields: Array) -> Array:
        """Return E[y|z] of labels that are few."""
        odds = self.odds(fields)
        assert self.outcomes is not None
        return jnp.tensordot(odds, self.outcomes, axes=1) / jnp.sum(odds)

    def draw(self, fields: Array, normal: Array) -> Array:
        """Draw a label of fields, from one standard normal."""
        if self.outcomes is not None:
            odds = jnp.cumsum(self.odds(fields))
            # times the sum: odds that a user rounded may end below one
            return self.outcomes[jnp.sum(ndtr(normal) * odds[-1] >= odds[:-1])]
        assert self.sampler is not None
        # a sampler takes a key: the bits of the quasi-random normal seed it, so that labels are a
        # function of the common points
        bits = jax.lax.bitcast_convert_type(normal, jnp.uint32)
        seed = jax.lax.reduce(bits, np.uint32(0), jax.lax.bitwise_xor, range(bits.ndim))
        return jnp.asarray(self.sampler(jax.random.key(seed), fields), fields.dtype)


class IntegratedChannel(FibreChannel):
    """p(y|z) = N(y; link(z), Δ) or exp(log_likelihood(y, z)) for any JAX link. Its labels fix no
    field: all P·M fields are open variables of the integral (words: channels/fibres.py)."""

    link_function: Callable[[Array], Array]
    noise: Array
    labels: Likelihood = Likelihood()

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of a label."""
        return self.labels.shape(self.link_function, (self.indices, self.tokens))

    @property
    def open_variables(self) -> int:
        """Number of all fields."""
        return self.indices * self.tokens

    @property
    def averaging(self) -> IntegratedChannel:
        """The same channel on random nodes, for two fields and more.

        Products of independent halves have no noise of nodes on average, so that 300 times the
        tolerance is enough. With 1000 times the error bars of weak recovery for |z_1| + |z_2| +
        |z_3| with noise were twice as large; with 100 times those of tanh(z_1) tanh(z_2) half as
        large, and the time for a product of two fields three times as long.
        """
        if self.open_variables < _RANDOM_FROM:
            return self
        tolerance = jnp.minimum(_LOOSER * self.budget.tolerance, _LOOSEST)
        budget = dataclasses.replace(self.budget, tolerance=tolerance, grids=False)
        return eqx.tree_at(lambda c: c.budget, self, budget)

    @property
    def outcomes(self) -> Array | None:
        """All labels of a user's law, if it has finitely many."""
        return self.labels.outcomes

    @property
    def jumps(self) -> Array:
        """True if p(y|z) jumps with z, by a numerical search; also for a user's law without
        outcomes, which may jump."""
        law = self._as_smooth
        return jnp.asarray(True) if law is None else ~continuous(law, self.indices, self.tokens)

    @property
    def sharp(self) -> Array:
        """True if p(y|z) is known to jump with z."""
        return jnp.asarray(self._as_smooth is not None) & self.jumps

    @property
    def kinked(self) -> Array:
        """True if the gradient of p(y|z) jumps with z, likewise."""
        law = self._as_smooth
        return jnp.asarray(True) if law is None else kinked(law, self.indices, self.tokens)

    @property
    def _edges(self) -> Array:
        """Return the jumps of p(y|z) next to 0 for finitely many labels, by the same search."""
        if self.outcomes is None or self.indices * self.tokens > 1:
            return super()._edges
        return jumps_of(self.labels.odds, _EDGES)[0]

    @property
    def pathwise(self) -> Array:
        """True if the link, or p(y|z) of labels that are summed over, is continuous."""
        return ~self.jumps

    @property
    def regular(self) -> tuple[Array, list[bool | Array]]:
        """In the numbers of the law that move no jump, and in the noise, also where labels jump."""
        numbers = jax.tree.map(lambda _: True, eqx.filter(self, eqx.is_inexact_array))
        shape = (self.indices, self.tokens)
        if self.labels.log_likelihood is None:
            law, where = self.link_function, lambda channel: channel.link_function
        elif self.outcomes is not None:
            law, where = eqx.Partial(Likelihood.odds, self.labels), lambda channel: channel.labels
        else:  # drawn by a sampler, which may jump in any number
            return self.pathwise, [self.pathwise] * len(jax.tree.leaves(numbers))
        places = jax.tree.structure(where(numbers))
        numbers = eqx.tree_at(where, numbers, jax.tree.unflatten(places, steady(law, *shape)))
        return self.pathwise, jax.tree.leaves(numbers)

    @property
    def _as_smooth(self) -> Callable[[Array], Array] | None:
        """Return a function that is as smooth as p(y|z), or None."""
        if self.labels.log_likelihood is None:
            return self.link_function
        return None if self.outcomes is None else self.labels.odds

    @property
    def noise_size(self) -> int:
        """One normal for each entry of the label; one that matters for a user's law."""
        if self.labels.log_likelihood is None:
            return int(np.prod(self.label_shape))
        # a normal that seeds a sampler must not repeat: too many axes for a grid, so that averages
        # over labels take a net, all of whose points differ
        return 1 if self.labels.sampler is None else _SEED_AXES

    @property
    def drawable(self) -> bool:
        """True if there is a link, a sampler, or all outcomes."""
        return self.labels.drawn

    def link(self, fields: Array) -> Array:
        """Return link(z)."""
        return self.link_function(fields)

    def label(self, fields: Array, noise: Array) -> Array:
        """Return link(z) + √Δ ξ, or a draw of the sampler of a user's law."""
        if self.labels.log_likelihood is None:
            return self.link(fields) + positive_root(self.noise) * noise.reshape(self.label_shape)
        if self.labels.drawn:
            return self.labels.draw(fields, noise[0])
        raise ValueError(
            "model: got a log_likelihood=, which says how likely a label is but not how to "
            "draw one; sampling and state evolution are not possible. Allowed: sampler= or "
            "outcomes= beside it; noise= for Gaussian label noise; gamp on your own data."
        )

    def check_labels(self, labels: Array) -> None:
        """Check that labels have the shape of a label, are finite, and possible in a user's law."""
        check_label_shape(labels, self.label_shape)
        self.labels.check(labels)

    def log_probability(self, y: Array, fields: Array) -> Array:
        """Return log p(y|z) of one sample."""
        if self.labels.log_likelihood is not None:
            return jnp.maximum(self.labels.log_likelihood(y, fields), _LEAST_LOG)
        # no division at the nodes: with one a tanh or a cubic took 1.6 times as long, a sine 0.6
        residuals = (y - self.link(fields)) * lax.rsqrt(self.noise)
        log_norm = 0.5 * int(np.prod(self.label_shape)) * jnp.log(2 * jnp.pi * self.noise)
        return -0.5 * jnp.sum(residuals**2) - log_norm

    def _widths(self, omega: Array, L: Array) -> Array:
        """Estimate the width of the narrowest feature in t of each sample (N,), of means ω (N, P,
        M) [theory: numerics, Eq. (6)]: √Δ over the slope of the label in t.

        The slope is a root mean square over a few t, and at least the slope of y = z: on nodes that
        do not resolve an oscillation all halves may err alike.
        """
        size = self.indices * self.tokens
        points = np.random.default_rng(0).standard_normal((_SLOPE_POINTS, 1, 1, size))
        steps = _SLOPE_STEP * np.stack([np.eye(size), -np.eye(size)])
        t = jnp.asarray(points + steps, omega.dtype).reshape(-1, self.indices, self.tokens)
        deviations = jnp.einsum("pq,nqm->npm", L, t)

        def square(w: Array) -> Array:
            labels = jax.vmap(self.link)(w + deviations).reshape(_SLOPE_POINTS, 2, -1)
            return jnp.sum((labels[:, 0] - labels[:, 1]) ** 2) / (
                _SLOPE_POINTS * (2 * _SLOPE_STEP) ** 2
            )

        slope = lax.map(square, omega, batch_size=min(len(omega), _BLOCK_SIZE))
        # the slope of y = z is the least: nodes that miss an oscillation see no slope
        slope = jnp.maximum(slope, jnp.max(jnp.sum(L * L, axis=1)))
        widths = jnp.sqrt(self.noise / (self.noise + slope))
        if size > 1:
            return widths
        # two jumps may cancel in both parities of one axis, where nodes are cheap
        widths = jnp.where(self.kinked, jnp.minimum(widths, _KINK_WIDTH), widths)
        return jnp.where(self.jumps, jnp.minimum(widths, _JUMP_WIDTH), widths)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Compute the posterior of a batch. Where p(y|z) of few labels of one field jumps or has
        kinks, Z_out is a sum over the pieces between them, each by a Gauss-Legendre rule:
        trapezoidal sums err there by the spacing of their nodes, alike in all nets."""
        smooth = super().respond
        if self.outcomes is None or self.open_variables > 1:
            return smooth(statistic, omega, V, key)
        edges, jumps = jumps_of(self.labels.odds, _PIECES)
        gradient = gradient_of(self.labels.odds, 1, 1)
        more, kinks = (edges, 0) if gradient is None else jumps_of(gradient, _PIECES)
        edges = jnp.concatenate(
            [jnp.where(jumps > 0, edges, more), jnp.where(kinks > 0, more, edges)]
        )
        pieces = lambda size: partial(self._by_pieces, jnp.sort(jnp.unique(edges, size=size)))
        different = 1 + jnp.sum(jnp.diff(jnp.sort(edges)) > 0.0)
        return lax.switch(
            jnp.where(jumps + kinks == 0, 0, jnp.where(different > _FEW_PIECES, 2, 1)),
            [
                lambda y, w, V: smooth(y, w, V, key),
                pieces(_FEW_PIECES),
                pieces(len(edges)),
            ],
            statistic,
            omega,
            V,
        )

    def _by_pieces(self, edges: Array, statistic: Array, omega: Array, V: Array) -> Posterior:
        ends = jnp.concatenate([jnp.full(1, -jnp.inf), edges, jnp.full(1, jnp.inf)])
        deviation = jnp.sqrt(V[0, 0])
        fixed = lax.stop_gradient
        rules = _PIECE_NODES + _MORE_NODES * (len(edges) > _FEW_PIECES)

        def integrals(count: int, y: Array, mean: Array) -> tuple[Array, Array, Array]:
            nodes, weights = legendre(count)
            # t = (z - ω)/√V: from the point of a piece next to 0, at a distance d, the density
            # falls by e^-(r² - d²)/2 up to a distance r
            low, high = (fixed(x - mean) / fixed(deviation) for x in (ends[:-1], ends[1:]))
            reach = jnp.hypot(jnp.clip(0.0, low, high), WIDEST)
            low = jnp.maximum(low, -reach)
            half = 0.5 * (jnp.minimum(high, reach) - low)
            t = low[:, None] + half[:, None] * (1.0 + nodes)
            z = fixed(mean + deviation * t).ravel()
            likelihood = jax.vmap(lambda z: self.log_probability(y, z[None, None]))(z)
            # derivatives are those at fixed z, as the ends of pieces do not move
            share = fixed(deviation) / deviation
            t = share * t + (fixed(mean) - mean) / deviation
            # pieces without a length have no weight
            size = half[:, None] * weights
            mass = jnp.where(size > 0.0, jnp.log(jnp.where(size > 0.0, size, 1.0)), -jnp.inf)
            each = norm.logpdf(t) + likelihood.reshape(t.shape) + mass + jnp.log(share)
            p = jax.nn.softmax(each, axis=(0, 1))
            centre = jnp.sum(p * t)
            moments = jnp.stack([centre, jnp.sum(p * (t - centre) ** 2) - 1.0])
            # rounding would grow over √V, next to perfect recovery beyond all bounds
            rounding = _ROUNDING * jnp.finfo(t.dtype).eps
            return logsumexp(each), *jnp.where(jnp.abs(moments) < rounding, 0.0, moments)

        def one(sample: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], ...]:
            return tuple(integrals(count, sample[0], sample[1][0, 0]) for count in rules)

        fine, *coarse = lax.map(one, (statistic, omega), batch_size=batch_size(omega))
        value, g, dg = fine[0], fine[1] / deviation, fine[2] / deviation**2
        post = exact_posterior(value, g[:, None, None], dg[:, None, None, None, None])
        error, dg_error = (
            jnp.max(jnp.stack([jnp.abs(fine[k] - other[k]) for other in coarse]), axis=0)
            / (deviation**k * (1.0 + jnp.abs(x)))
            for k, x in ((1, g), (2, dg))
        )
        return dataclasses.replace(post, error=error, dg_error=dg_error)

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """Return the integrals over all fields for labels (N, ...)."""
        P, M = self.indices, self.tokens

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            # no residuals: all fields are nodes, and the moments are those of t
            deviation = jnp.einsum("pq,qmn->pmn", root, t.T.reshape(P, M, -1))
            # nodes on the last axis: sums over a few fields would not be vectorised there
            at_nodes = jax.vmap(self.log_probability, in_axes=(None, -1))
            value = jax.vmap(lambda y, o: at_nodes(y, o[..., None] + deviation))(*block)
            return jnp.ones_like(value), [Branch(value, [])]

        start = None
        # the width of a user's law is not known; nets have no spacing
        if self.labels.log_likelihood is None and not self.random_nodes:
            start = level_for_width(P * M, self.budget, self._widths(omega, root))
        integral = Integral(
            integrand,
            (statistic, omega),
            whitened_response(root, M),
            inner=P * M,
            outer=0,
            start=start,
            analytic=~(self.kinked | self.jumps),  # the gradient of a step is zero
            jumps=self.jumps,
        )
        return Fibre(integral, 0.0)


_CONTINUED = (
    "; smi.weak_recovery(.., noises=[..]) and smi.noiseless_limit extrapolate a continuous link to "
    "zero noise"
)


class NoInference(AbstractChannel):
    """Noiseless labels of a link without a posterior: they can be sampled and trained on, and
    inference raises the `unsupported_reason`.

    `budget`: budget of the integrals of the same link with noise; None: it has no limit of
    vanishing noise.
    """

    link_function: Callable[[Array], Array]
    name: str = eqx.field(static=True)
    remedy: str = eqx.field(
        static=True,
        default="the same link with noise > 0, a log_likelihood=, smi.links.piecewise_linear for "
        "kinks and, with slopes 0, steps of one field, or a model with its own channel (smi.links, "
        "smi.DeepAttention)",
    )
    budget: Budget | None = None

    @property
    def unsupported_reason(self) -> str:
        """Sentence that says that there is no posterior, with the remedy."""
        continued = "" if self.budget is None else _CONTINUED
        return (
            f"model: got {self.name}, a noiseless link without a closed-form channel, which can be "
            f"sampled and trained, not inferred. Allowed: {self.remedy}{continued}."
        )

    def link(self, fields: Array) -> Array:
        """Return the noiseless label."""
        return self.link_function(fields)

    def check_labels(self, labels: Array) -> None:
        """Accept any labels: the range is not known."""

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Always raises: there is no posterior."""
        raise ValueError(self.unsupported_reason)

    @property
    def tolerance(self) -> Array:
        """Always raises: there is no posterior."""
        raise ValueError(self.unsupported_reason)


def noisy(labels: AbstractLabels, noises: Array) -> list[IntegratedChannel]:
    """Return the same link with Gaussian label noise of these variances (K,), integrated
    numerically, for the limit of vanishing noise; raise a ValueError if there is no such limit."""
    if not isinstance(labels, NoInference):
        raise ValueError(
            "noises: got noises for a model that already has a posterior; allowed: "
            "smi.state_evolution, smi.weak_recovery without noises."
        )
    if labels.budget is None:
        raise ValueError(f"noises: got noises for {labels.name}; allowed: None. {labels.remedy}.")
    allowed = f"None for {labels.name}: its labels jump, and have no limit to extrapolate"
    # the posterior of a jump has no expansion in small noise
    check(labels.pathwise, "noises", noises, allowed)
    sizes = (labels.indices, labels.tokens, labels.budget, labels.link_function)
    return [IntegratedChannel(*sizes, noise) for noise in noises]
