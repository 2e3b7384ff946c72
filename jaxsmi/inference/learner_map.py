r"""State evolution off the Nishimori line: one step of undamped message passing of a learner.

Equations here [Cui24; theory: empirical-risk, Eqs. (6) to (15)], for labels of a teacher
(W*, link*) and a learner (g, f), ξ and η iid N(0, 1):

    ω_m  = B E_mᵀ + Q^{1/2} ξ_m
    z*_m = R* E_mᵀ + Mᵀ Q^{-1/2} ξ_m + ρ^{1/2} η_m,   ρ = S - Mᵀ Q^{-1} M
    y    = link*(z*, noise)
    Q̂ = α E Σ_m g_m g_mᵀ,      M̂ = α E Σ_m ∂g_m/∂z*_m
    V̂ = -α E Σ_m ∂g_{m,m},     B̂ = α E Σ_m g_m E_m
    Q, M, V, B ← learner.moments(Q̂, M̂, V̂, B̂)

M̂ is the slope along the label where learner and teacher have one; finitely many labels are summed
over, and M̂ = α E Σ_m g_m g*_mᵀ with the teacher's Bayes g* at its field; else it is Stein's
α E Σ_m g_m (ρ^{-1/2} η_m)ᵀ. By parts V̂ = (M̂ Mᵀ - α E Σ_m g_m (ω_m - B E_mᵀ)ᵀ) Q^{-1}: this
differs from the divergence by the jumps of g in ω, which that misses (`jumps=True` takes it).
Points come with the signs of ξ and of η flipped, so that symmetries of even links hold exactly.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.proximal import Reply
from jaxsmi.core.arrays import not_recorded
from jaxsmi.learners.base import AbstractIndexLearner, Conjugates, Overlaps, Truth
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics.gaussian_points import gaussian_points
from jaxsmi.numerics.linear_algebra import conjugation, inverse_root, sqrt_psd, symmetric

__all__ = ["Answers", "LearnerMap", "admissible"]


class _Fields(eqx.Module):
    """Points of the average: `omega` (n, P, M), the `goal` z* (n, P*, M), its standard `normal` η
    (n, P*, M), the `noise` of labels (n, k), and weights (R, n/R) of sum one."""

    omega: Array
    goal: Array
    normal: Array
    noise: Array
    weight: Array

    def mean(self, values: Array) -> Array:
        """Averages (R, ...) of values (n, ...) by each rule."""
        split = values.reshape(*self.weight.shape, *values.shape[1:])
        return jnp.einsum("rn,rn...->r...", self.weight, split)


class _Labelled(eqx.Module):
    """Points with their `labels` (n, ...), what the teacher says of its fields (`score`,
    (n, P*, M)), and the learner's `reply`."""

    fields: _Fields
    labels: Array
    score: Array
    reply: Reply


class Answers(eqx.Module):
    """What a learner makes of labels at some order parameters, on average.

    `conjugates`: with a leading axis of the R rules of the average; `divergence` and `by_parts`
    (R, P, P): V̂ both ways; `train_loss`, `test_loss`, `error`, `envelope` (R,); `squared`
    (P, P, P, P): α E Σ ∂g ⊗ ∂g; `second`: fraction of samples whose proximal point has another
    minimum; `residual`: the largest gradient that remained.
    """

    conjugates: Conjugates
    divergence: Array
    by_parts: Array
    train_loss: Array
    test_loss: Array
    error: Array
    envelope: Array
    squared: Array
    second: Array
    residual: Array


class LearnerMap(eqx.Module):
    """State evolution of a learner on labels of a teacher at one α.

    Args:
        teacher: The model that makes the labels.
        learner: Who learns from them, `taught_by` the teacher.
        truth: The teacher's weights.
        encoding: E (M, K), of the fixed directions.
        alpha: Sample complexity N/D.
        key: Of the points: the map is one smooth function for each key.
        points: Points of each net, with their mirror images.
        nets: Independent nets, R.
        jumps: V̂ is taken by parts.
    """

    teacher: IndexModel
    learner: AbstractIndexLearner
    truth: Truth
    encoding: Array
    alpha: Array
    key: PRNGKeyArray
    points: int = eqx.field(static=True)
    nets: int = eqx.field(static=True)
    jumps: Array | bool = False

    # The average over fields and labels

    @property
    def _enumerated(self) -> bool:
        """Whether labels are summed over instead of drawn."""
        return self.teacher.channel.outcomes is not None

    def _fields(self, x: Overlaps) -> _Fields:
        """The points, in the fields of student and teacher."""
        P, goal = x.teacher.shape
        M = self.teacher.tokens
        noise_size = 0 if self._enumerated else self.teacher.channel.noise_size
        drawn = 0 if self._enumerated else goal
        images = 2 if self._enumerated else 4
        points = gaussian_points(
            self.key, self.points // images, self.nets, (P + drawn) * M + noise_size
        )
        position, weight = points
        R = self.nets
        count = position.shape[1]
        xi = position[..., : P * M].reshape(R, count, P, M)
        eta = position[..., P * M : (P + drawn) * M].reshape(R, count, drawn, M)
        noise = position[..., (P + drawn) * M :]
        signs = [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)][:images]
        xi, eta, noise = (
            jnp.concatenate(parts, axis=1).reshape(R * count * images, *parts[0].shape[2:])
            for parts in (
                [s * xi for s, _ in signs],
                [t * eta for _, t in signs],
                [noise] * images,
            )
        )
        omega = jnp.einsum("pq,nqm->npm", sqrt_psd(x.overlap), xi) + x.direction @ self.encoding.T
        mean = jnp.einsum("pq,npm->nqm", inverse_root(x.overlap) @ x.teacher, xi)
        mean = mean + self.truth.cross @ self.encoding.T
        if drawn:
            mean = mean + jnp.einsum("pq,nqm->npm", sqrt_psd(remainder(x, self.truth)), eta)
        weights = jnp.concatenate([weight] * images, axis=1) / images
        return _Fields(omega, mean, eta, noise, weights)

    def _labelled(self, x: Overlaps) -> _Labelled:
        """The points with their labels and teacher gradients (n, P*, M), and the answers; with
        finitely many labels every point comes with each of them, weighted by its probability."""
        fields = self._fields(x)
        channel = self.teacher.channel
        outcomes = channel.outcomes
        if outcomes is None:
            reply = self.learner.reply(
                channel.label, fields.goal, fields.noise, fields.omega, x.covariance
            )
            labels = jax.vmap(channel.label)(fields.goal, fields.noise)
            root = inverse_root(remainder(x, self.truth))
            score = jnp.einsum("pq,nqm->npm", root, fields.normal)
            return _Labelled(fields, labels, score, reply)
        count = len(fields.omega)
        copies = len(outcomes)
        labels = jnp.repeat(outcomes, count, axis=0)
        repeated = lambda a: jnp.concatenate([a] * copies)
        goal = repeated(fields.goal)
        known = channel.respond(channel.statistic(labels), goal, remainder(x, self.truth))
        odds = jnp.exp(known.log_partition).reshape(copies, *fields.weight.shape)
        weight = jnp.concatenate(list(odds * fields.weight), axis=1)
        # the rules come first: (copies, R, n) -> (R, copies, n)
        order = lambda a: jnp.moveaxis(
            a.reshape(copies, self.nets, -1, *a.shape[1:]), 0, 1
        ).reshape(-1, *a.shape[1:])
        labels = order(labels)
        omega = order(repeated(fields.omega))
        reply = self.learner.reply(lambda _, label: label, order(goal), labels, omega, x.covariance)
        fields = _Fields(omega, order(goal), order(known.g), labels, weight)
        return _Labelled(fields, labels, order(known.g), reply)

    def answers(self, x: Overlaps) -> Answers:
        """What the learner makes of the labels at the order parameters x."""
        labelled = self._labelled(x)
        fields = labelled.fields
        reply = labelled.reply
        mean = fields.mean
        alpha = self.alpha
        g = reply.g
        signal = self._signal(labelled)
        fluctuation = fields.omega - x.direction @ self.encoding.T
        pull = alpha * mean(jnp.einsum("npm,nqm->npq", g, fluctuation))
        half = inverse_root(x.overlap)
        by_parts = (signal @ x.teacher.T - pull) @ half @ half
        divergence = -alpha * mean(jnp.einsum("npmqm->npq", reply.dg))
        precision = symmetric(jnp.where(self.jumps, by_parts, divergence))
        network = self.learner.network
        outputs = jax.vmap(network.link)(fields.omega)
        return Answers(
            conjugates=Conjugates(
                noise=alpha * mean(jnp.einsum("npm,nqm->npq", g, g)),
                signal=signal,
                precision=precision,
                direction=alpha * mean(jnp.einsum("npm,mk->npk", g, self.encoding)),
            ),
            divergence=divergence,
            by_parts=by_parts,
            train_loss=mean(reply.loss),
            test_loss=mean(self.learner.test_loss(outputs, labelled.labels)),
            error=self._error(fields, outputs),
            envelope=mean(reply.envelope),
            squared=alpha * _conjugation(fields.weight, reply.dg),
            second=jnp.mean(mean(reply.second.astype(g.dtype))),
            residual=jnp.max(reply.error),
        )

    def _signal(self, labelled: _Labelled) -> Array:
        """M̂ (R, P, P*), by the estimate with the least noise."""
        reply = labelled.reply
        mean = labelled.fields.mean
        by_score = self.alpha * mean(jnp.einsum("npm,nqm->npq", reply.g, labelled.score))
        if self._enumerated or not self.learner.sloped:
            return by_score
        smooth = self.teacher.channel.smooth
        slope = self.alpha * mean(reply.slope)
        return slope if smooth is True else jnp.where(smooth, slope, by_score)

    def _error(self, fields: _Fields, outputs: Array) -> Array:
        """E ‖link(ω) - link*(z*)‖² (R,), of finitely many labels E ‖link(ω) - y‖² with their noise;
        NaN where the two do not compare."""
        if self._enumerated:
            goals = fields.noise
        else:
            goals = jax.vmap(self.teacher.link)(fields.goal)
        if outputs[0].size != goals[0].size:
            return not_recorded((self.nets,), outputs.dtype)
        gap = outputs.reshape(len(outputs), -1) - goals.reshape(len(outputs), -1)
        return fields.mean(jnp.sum(gap**2, axis=1))

    # The map

    def step(self, answers: Answers) -> tuple[Overlaps, Overlaps]:
        """The next order parameters, and those of each rule by itself (R, ...), to first order."""
        conjugates = answers.conjugates
        average = jax.tree.map(lambda c: jnp.mean(c, 0), conjugates)
        follow = lambda c: self.learner.moments(c, self.truth).overlaps
        value, push = jax.linearize(follow, average)
        off = jax.tree.map(lambda c, a: c - a, conjugates, average)
        moved = jax.vmap(push)(off)
        return value, jax.tree.map(lambda v, d: v + d, value, moved)

    def potential(self, x: Overlaps, conjugates: Conjugates, envelope: Array) -> Array:
        """Φ of a minimiser [theory: empirical-risk, Eq. (11)]: stationary at a fixed point, and
        there the energy."""
        c = conjugates
        end = self.learner.moments(c, self.truth).overlaps
        # (λ + V̂)^{-1} (X + Q̂), as Q = V (X + Q̂) V
        square = jnp.linalg.solve(end.covariance, end.overlap)
        linear = jnp.sum(c.signal * x.teacher) + jnp.sum(c.direction * x.direction)
        quadratic = jnp.sum(c.noise * x.covariance) - jnp.sum(c.precision * x.overlap)
        return 0.5 * quadratic + linear - 0.5 * jnp.trace(square) + self.alpha * envelope


def _conjugation(weight: Array, dg: Array) -> Array:
    """X ↦ E Σ_{mn} ∂g_{mn} X ∂g_{mn}ᵀ, of weights (R, n) and ∂g (R n, P, M, P, M)."""
    count = weight.size
    scaled = dg * (weight.ravel() * (count / len(weight)))[:, None, None, None, None]
    return conjugation(scaled, dg)


def remainder(x: Overlaps, truth: Truth) -> Array:
    """ρ = S - Mᵀ Q^{-1} M (P*, P*): what the student's fields leave open of the teacher's."""
    half = inverse_root(x.overlap) @ x.teacher
    return symmetric(truth.second_moment - half.T @ half)


def admissible(x: Overlaps, truth: Truth) -> Array:
    """Whether Q, V and ρ are positive definite and all is finite."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(x)]))
    safe = jax.tree.map(lambda a: jnp.where(finite, a, 1.0), x)
    values = jnp.linalg.eigvalsh(symmetric(safe.overlap))
    definite = jnp.where(values[0] > 0.0, safe.overlap, jnp.eye(len(values)))
    rho = remainder(eqx.tree_at(lambda x: x.overlap, safe, definite), truth)
    size = jnp.trace(truth.second_moment)
    positive = (values[0] > 0.0) & (jnp.linalg.eigvalsh(symmetric(safe.covariance))[0] > 0.0)
    return finite & positive & (jnp.linalg.eigvalsh(rho)[0] > -1e-12 * size)
