r"""Averages over fields and labels of a teacher, as a learner sees them as D → ∞.

Equations here [Cui24; theory: empirical-risk, Eqs. (6) to (15)], for labels of a teacher
(W*, link*) and a learner (g, f), ξ and η iid N(0, 1):

    ω_m  = B E_mᵀ + Q^{1/2} ξ_m
    z*_m = R* E_mᵀ + Mᵀ Q^{-1/2} ξ_m + V*^{1/2} η_m,   V* = S - Mᵀ Q^{-1} M
    y    = link*(z*, noise)
    Q̂ = α E Σ_m g_m g_mᵀ,      M̂ = α E Σ_m ∂g_m/∂z*_m
    V̂ = -α E Σ_m ∂g_{m,m},     B̂ = α E Σ_m g_m E_m

M̂ is the slope along the label where learner and teacher have one and g does not jump; finitely
many labels are summed over, and M̂ = α E Σ_m g_m g*_mᵀ with the teacher's Bayes g* at its field;
else it is Stein's α E Σ_m g_m (V*^{-1/2} η_m)ᵀ. By parts
V̂ = (M̂ Mᵀ - α E Σ_m g_m (ω_m - B E_mᵀ)ᵀ) Q^{-1}: this differs from the divergence by the jumps of g
in ω, which that misses (`jumps=True` takes it).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.proximal import ProximalOutput
from jaxsmi.core.arrays import frozen, missing_array, symmetric, theory_dtype
from jaxsmi.learners.base import AbstractIndexLearner, Conjugates, OrderParameters, TeacherLaw
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics.linear_algebra import conjugation, inverse_root, sqrt_psd
from jaxsmi.numerics.quadrature import gaussian_points, power_of_two, randomised_gaussians

# Points come with the signs of ξ and of η flipped, so that symmetries of even links hold exactly.
_SIGNS = ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0))


class _Labelled(eqx.Module):
    """Points of the average, with a leading axis n: fields `omega` (n, P, M) of the learner, fields
    `teacher_fields` (n, P*, M) of the teacher, `labels` (n, ...), the teacher's g at them (`score`,
    (n, P*, M)), the learner's `reply`, and weights (R, n/R) of sum one."""

    omega: Array
    teacher_fields: Array
    labels: Array
    score: Array
    reply: ProximalOutput
    weight: Array

    def mean(self, values: Array) -> Array:
        """Averages (R, ...) of values (n, ...) by each rule."""
        return _means(self.weight, values)


def _means(weight: Array, values: Array) -> Array:
    """Averages (R, ...) of values (n, ...) with weights (R, n/R)."""
    split = values.reshape(*weight.shape, *values.shape[1:])
    return jnp.einsum("rn,rn...->r...", weight, split)


class LearnerAverages(eqx.Module):
    """Averages over labels of the responses of a learner at some order parameters.

    `conjugates`: with a leading axis of the R rules of the average; `divergence` and `by_parts`
    (R, P, P): V̂ both ways; `train_loss`, `test_loss`, `error`, `envelope` (R,); `squared`
    (P, P, P, P): α E Σ ∂g ⊗ ∂g; `other_minimum`: fraction of samples whose proximal point has
    another minimum (NaN: unknown); `residual`: the largest gradient that remained.
    """

    conjugates: Conjugates
    divergence: Array
    by_parts: Array
    train_loss: Array
    test_loss: Array
    error: Array
    envelope: Array
    squared: Array
    other_minimum: Array
    residual: Array


class LabelAverages(eqx.Module):
    """Labels of a teacher at one α, and a learner.

    Args:
        model: The teacher, who makes the labels.
        learner: Learner of these labels, bound to the teacher (`AbstractIndexLearner.bind`).
        alpha: Sample complexity N/D.
        key: Of the points: averages are one smooth function for each key.
        points_per_net: Points of each net, with their mirror images.
        nets: Independent nets, R.
        use_parts: Take V̂ by parts: a divergence misses the jumps of g.
    """

    model: IndexModel
    learner: AbstractIndexLearner
    alpha: Array
    key: PRNGKeyArray
    points_per_net: int = eqx.field(static=True)
    nets: int = eqx.field(static=True)
    use_parts: Array | bool = False

    @property
    def teacher_law(self) -> TeacherLaw:
        """The law of the teacher's weights."""
        P = self.model.indices
        S = self.model.prior.second_moment(P)
        inputs = self.model.inputs
        if inputs is None:
            R, G = jnp.zeros((P, 0), S.dtype), jnp.zeros((0, 0), S.dtype)
            return TeacherLaw(self.model.prior, S, R, G)
        return TeacherLaw(self.model.prior, S, inputs.teacher_direction_overlap(P), inputs.gram)

    @property
    def encoding(self) -> Array:
        """E (M, K) of the inputs; K = 0 where they are centred."""
        inputs = self.model.inputs
        nothing = jnp.zeros((self.model.tokens, 0), theory_dtype())
        return nothing if inputs is None else inputs.encoding

    def _labelled(self, x: OrderParameters) -> _Labelled:
        """Return the points with drawn labels, or with each of finitely many labels."""
        channel = self.model.channel
        P, P_star = x.teacher_overlap.shape
        M = self.model.tokens
        finite = channel.outcomes is not None
        # a sum over finitely many labels needs no draws of η: the teacher's posterior averages it
        signs = _SIGNS[:2] if finite else _SIGNS
        drawn = 0 if finite else P_star
        sizes = (P * M, drawn * M, 0 if finite else channel.noise_size)
        points = gaussian_points(self.key, self.points_per_net // len(signs), self.nets, sum(sizes))
        xi, eta, noise = jnp.split(points.position, (sizes[0], sizes[0] + sizes[1]), axis=-1)
        images = lambda a, signs: jnp.concatenate([s * a for s in signs], axis=1)
        weight = images(points.weight, [1.0 / len(signs)] * len(signs))
        # the count is stated, as parts may have no numbers
        xi = images(xi, [s for s, _ in signs]).reshape(weight.size, P, M)
        eta = images(eta, [t for _, t in signs]).reshape(weight.size, drawn, M)
        noise = images(noise, [1.0] * len(signs)).reshape(weight.size, sizes[2])

        omega, z = self._fields(x, xi)
        rho = self._remainder(x)
        if finite:
            return self._each_label(x, omega, z, rho, weight)
        z = z + jnp.einsum("pq,nqm->npm", sqrt_psd(rho), eta)
        reply = self.learner.respond_to_teacher(channel.label, z, noise, omega, x.covariance)
        labels = jax.vmap(channel.label)(z, noise)
        score = jnp.einsum("pq,nqm->npm", inverse_root(rho), eta)
        return _Labelled(omega, z, labels, score, reply, weight)

    def _fields(self, x: OrderParameters, xi: Array) -> tuple[Array, Array]:
        """ω (n, P, M), and the mean of z* given ω (n, P*, M), from normals ξ (n, P, M)."""
        omega = jnp.einsum("pq,nqm->npm", sqrt_psd(x.overlap), xi)
        omega = omega + x.direction_overlap @ self.encoding.T
        z = jnp.einsum("pq,npm->nqm", inverse_root(x.overlap) @ x.teacher_overlap, xi)
        return omega, z + self.teacher_law.teacher_direction_overlap @ self.encoding.T

    def _each_label(
        self, x: OrderParameters, omega: Array, z: Array, rho: Array, weight: Array
    ) -> _Labelled:
        """Combine each point with each of finitely many labels, weighted by its probability given
        the mean `z` and the covariance V* of the teacher's fields."""
        channel = self.model.channel
        outcomes = channel.outcomes
        assert outcomes is not None
        copies = len(outcomes)
        labels = jnp.tile(outcomes, (len(omega), *[1] * (outcomes.ndim - 1)))
        omega, z = (jnp.repeat(a, copies, axis=0) for a in (omega, z))
        # log Z of a label is its log probability, and g the teacher's score
        teacher = channel.respond(channel.statistic(labels), z, rho)
        odds = jnp.exp(teacher.log_partition).reshape(self.nets, -1)
        given = lambda _, label: label
        reply = self.learner.respond_to_teacher(given, z, labels, omega, x.covariance)
        weight = odds * jnp.repeat(weight, copies, axis=1)
        return _Labelled(omega, z, labels, teacher.g, reply, weight)

    def _drawn(self, x: OrderParameters) -> tuple[Array, Array, Array]:
        """Draw fields ω and z*, and weights (R, n/R) of sum one. z* does not move with overlaps:
        the weights have the derivative of its law, so that jumps of a link count."""
        P, P_star = x.teacher_overlap.shape
        M, points = self.model.tokens, power_of_two(self.points_per_net)
        key = jax.random.fold_in(self.key, 1)
        normal = randomised_gaussians(key, points, self.nets, (P + P_star) * M)
        normal = normal.reshape(-1, P + P_star, M)
        omega, mean = self._fields(x, normal[:, :P])
        rho = self._remainder(x)
        eta = jnp.einsum("pq,nqm->npm", sqrt_psd(rho), normal[:, P:])
        z, unit = frozen(mean + eta), inverse_root(rho)
        distance = jnp.einsum("pq,nqm->npm", unit, z - mean)
        density = M * jnp.linalg.slogdet(unit)[1] - 0.5 * jnp.sum(distance**2, axis=(1, 2))
        weight = (1.0 + density - frozen(density)) / points
        return omega, z, weight.reshape(self.nets, points)

    def answers(self, x: OrderParameters) -> LearnerAverages:
        """Average the response of the learner over labels at the order parameters x."""
        labelled = self._labelled(x)
        mean, reply, omega = labelled.mean, labelled.reply, labelled.omega
        alpha, g = self.alpha, reply.g
        signal, smooth = self._signals(labelled)
        # Stein's lemma takes the slope of g from its correlation with the fluctuation of ω
        fluctuation = omega - x.direction_overlap @ self.encoding.T
        pull = alpha * mean(jnp.einsum("npm,nqm->npq", g, fluctuation))
        half = inverse_root(x.overlap)
        parts = lambda signal: (signal @ x.teacher_overlap.T - pull) @ half @ half
        divergence = -alpha * mean(jnp.einsum("npmqm->npq", reply.dg))
        outputs = jax.vmap(self.learner.network.link)(omega)
        count = labelled.weight.size
        other_minima = mean(reply.has_other_minimum.astype(g.dtype))
        # a formula does not say whether a point has another minimum
        hidden = self.learner.regularity.kinks and self.learner.regularity.jumps
        # `conjugation` is a mean over all samples: weights of mean one
        odds = labelled.weight.ravel() * (count / self.nets)
        return LearnerAverages(
            conjugates=Conjugates(
                noise=alpha * mean(jnp.einsum("npm,nqm->npq", g, g)),
                signal=signal,
                precision=symmetric(jnp.where(self.use_parts, parts(signal), divergence)),
                direction=alpha * mean(jnp.einsum("npm,mk->npk", g, self.encoding)),
            ),
            divergence=divergence,
            # any form of M̂ shows jumps, the one with the least noise best
            by_parts=parts(smooth),
            train_loss=mean(reply.loss),
            test_loss=mean(self.learner.test_loss(outputs, labelled.labels)),
            error=self._error(x, labelled, outputs),
            envelope=mean(reply.envelope),
            # the replicon needs second moments of ∂g, not of its mean
            squared=alpha * conjugation(reply.dg * odds[:, None, None, None, None], reply.dg),
            other_minimum=missing_array((), g.dtype) if hidden else jnp.mean(other_minima),
            residual=jnp.max(reply.error),
        )

    def _signals(self, labelled: _Labelled) -> tuple[Array, Array]:
        """M̂ (R, P, P*), and M̂ without the jumps of g, which has the least noise."""
        reply = labelled.reply
        by_score = jnp.einsum("npm,nqm->npq", reply.g, labelled.score)
        by_score = self.alpha * labelled.mean(by_score)
        channel = self.model.channel
        if channel.outcomes is not None or not self.learner.regularity.label_slope:
            return by_score, by_score
        # the score divides by V*^{1/2}: its average is all noise where V* vanishes
        slope = self.alpha * labelled.mean(reply.label_derivative)
        # labels that jump with the fields have no slope, though their average has
        moves = channel.pathwise
        smooth = slope if moves is True else jnp.where(moves, slope, by_score)
        # a g that jumps has more than its slope, along the label as in ω
        jumps = self.learner.regularity.jumps
        return jnp.where(self.use_parts, by_score, smooth) if jumps else smooth, smooth

    def _error(self, x: OrderParameters, labelled: _Labelled, outputs: Array) -> Array:
        """E ‖link(ω) - link*(z*)‖² (R,); NaN where the two do not compare."""
        channel, weight = self.model.channel, labelled.weight
        if channel.outcomes is not None and channel.noise_size == 0:
            targets = labelled.labels
        else:
            fields = labelled.teacher_fields
            if channel.outcomes is not None:  # the labels that are summed over have noise
                omega, fields, weight = self._drawn(x)
                outputs = jax.vmap(self.learner.network.link)(omega)
            targets = jax.vmap(self.model.link)(fields)
        # a student may have other outputs than the teacher, as a margin has for a class
        if outputs[0].size != targets[0].size:
            return missing_array((self.nets,), outputs.dtype)
        gap = outputs.reshape(len(outputs), -1) - targets.reshape(len(outputs), -1)
        return _means(weight, jnp.sum(gap**2, axis=1))

    def _remainder(self, x: OrderParameters) -> Array:
        """V* = S - Mᵀ Q^{-1} M (P*, P*): the covariance of teacher fields given the student's."""
        half = inverse_root(x.overlap) @ x.teacher_overlap
        return symmetric(self.teacher_law.second_moment - half.T @ half)

    def admissible(self, x: OrderParameters) -> Array:
        """Q, V and V* are positive definite, and all is finite."""
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(x)]))
        # eigenvalues of matrices with NaN stop the program with jax_debug_nans
        safe = jax.tree.map(lambda a: jnp.where(finite, a, 1.0), x)
        values = jnp.linalg.eigvalsh(symmetric(safe.overlap))
        definite = jnp.where(values[0] > 0.0, safe.overlap, jnp.eye(len(values)))
        rho = self._remainder(eqx.tree_at(lambda x: x.overlap, safe, definite))
        positive = (values[0] > 0.0) & (jnp.linalg.eigvalsh(symmetric(safe.covariance))[0] > 0.0)
        # M may reach the teacher exactly: rounding of V* = 0
        size = jnp.trace(self.teacher_law.second_moment)
        return finite & positive & (jnp.linalg.eigvalsh(rho)[0] > -1e-12 * size)
