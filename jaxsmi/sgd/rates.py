r"""Stability of online SGD: how fast it leaves the unlearned state, and rates that are too large.

Equations here [theory: online-sgd, Eqs. (31), (68) to (72)], squared loss. At M = 0, of links that
are even in every row, z ~ N(0, Q), z* ~ N(0, S):

    C_p = E Hess_pp link,   C*_q = E Hess_qq link*                        tokens × tokens, by Stein
    Λ_pq = 2 S_qq Σ_{outputs,m,n} C_p[m, n] C*_q[m, n],   H_p = E[s_p·z_p]/Q_pp,   S diagonal
    dM_pq/dα = κ (Λ_pq - H_p) M_pq
    cosines, and M_pq on the sphere:   κ Λ_pq - (κ²/2) E|s_p|²/Q_pp

At perfect recovery of a noiseless link, J its Jacobian, G = JᵀJ, error E = dW dWᵀ/D:

    dE/dα = -2κ (Ḡ E + E Ḡ) + 4κ² Σ_mn E[G_mn E G_mnᵀ],   Ḡ = Σ_m E G_mm
    κ_max = 1/(2 λ),   λ the largest eigenvalue of (Ḡ · + · Ḡ)^{-1} Σ_mn E[G_mn · G_mnᵀ]

Of one direction on the sphere γ_max = 2 |λ_min(∇²R(0))|/V(0): above, the flow of order two is
trapped at the origin.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Estimate
from jaxsmi.core.validate import POSITIVE, Interval, check
from jaxsmi.models.base import title
from jaxsmi.models.index import IndexModel
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.gaussian_points import gaussian_points
from jaxsmi.numerics.linear_algebra import conjugation, inverse_root, sqrt_psd, symmetric
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd import landscape
from jaxsmi.sgd.averages import net_averages, sizes_of, spread
from jaxsmi.sgd.problem import check_gradient, check_silent, is_even, pair_of

_USUAL = 2**19, 8  # points of all nets, and nets: Λ of two layers to 1 %
_USUAL_RECOVERY = 2**17, 8
_ROUNDING = 1e-9  # of correlations that count as zero
_AXIS = 40  # points an axis of a grid, at least: softmax has poles near the real axis


class RatesErrors(NamedTuple):
    """Standard errors of `Rates`, over independent nets."""

    signal: Array
    pull: Array
    noise: Array


class Rates(eqx.Module):
    """Growth rates of the unlearned state.

    Attributes:
        signal: Λ (P, P*), the pull of the teacher's row q on the student's row p.
        pull: H (P,), how fast the row shrinks or grows.
        noise: E|s_p|² (P,).
        overlap: Q (P, P) of the unlearned state.
        stderr: Standard errors of the first three.
    """

    signal: Array
    pull: Array
    noise: Array
    overlap: Array
    stderr: RatesErrors

    @property
    def plain(self) -> Array:
        """μ (P, P*): dM_pq/dα = κ μ_pq M_pq."""
        return self.signal - self.pull[:, None]

    def cosine(self, rate: ArrayLike) -> Array:
        """Growth rate (P, P*) of the cosines with α at the learning rate κ, and of M on the
        sphere."""
        P = len(self.overlap)
        allowed = f"a finite number > 0, or one for each row ({P},)"
        kappa = validate.array("rate", rate, allowed, interval=POSITIVE)
        check(kappa.shape in ((), (P,)), "rate", rate, allowed)
        each = jnp.broadcast_to(kappa, (P,))[:, None]
        size = jnp.diagonal(self.overlap)[:, None]
        return each * self.signal - 0.5 * each**2 * self.noise[:, None] / size

    def escape(self, rate: ArrayLike, dimension: ArrayLike) -> Array:
        """α (P,) after which a random start has left the unlearned state, to leading order:
        ln D/(2 rate) of the diagonal growth rates; inf where they are not positive.

        It is meant for the rows that leave first: once they are learned the others wait at another
        saddle, with another rate.
        """
        above_one = Interval("a number > 1", low=1.0, open_low=True)
        size = validate.number("dimension", dimension, above_one)
        growth = jnp.diagonal(self.cosine(rate))
        # so that the branch that is dropped has a finite derivative
        safe = jnp.where(growth > 0.0, growth, 1.0)
        return jnp.where(growth > 0.0, jnp.log(size) / (2.0 * safe), jnp.inf)


def rates(
    model: AbstractTeacher,
    overlap: ArrayLike = 1.0,
    *,
    key: PRNGKeyArray,
    student: AbstractTeacher | None = None,
    averages: Averages | None = None,
) -> Rates:
    r"""How fast online SGD leaves the unlearned state M = 0, row by row: the order of learning.

        dM_pq/dα = κ (Λ_pq - H_p) M_pq,   cosines: κ Λ_pq - (κ²/2) E|s_p|²/Q_pp

    Args:
        model: The teacher: an index model whose link is even in every row, with a prior of
            independent rows.
        overlap: Q (P, P) of the student, diagonal, or a number times I. Default 1.
        key: A random key, of the nets.
        student: Another index model of as many tokens, even in every row. Default: the model.
        averages: Points of all nets (default 2^19) and nets (8). A `smi.Averages`.

    Returns:
        A `Rates`: its `signal` Λ, `plain` μ, `cosine(rate)` and `escape(rate, dimension)`.

    Raises:
        ValueError: For a link that is not even in every row (it does not start at a saddle), a
            prior with correlated rows (entries of M then grow together), a Q that is not diagonal
            and positive, or numbers out of range.

    Example:
        >>> import jax, jaxsmi as smi
        >>> few = smi.Averages(points=2**15)
        >>> found = smi.sgd.rates(smi.DeepAttention(2, 2), key=jax.random.key(0), averages=few)
        >>> bool(found.signal[1, 1] > 10 * found.signal[0, 0])  # the last layer is learned first
        True

    Cost:
        A gradient of a sample at each point.

    Source:
        [theory: online-sgd, Eqs. (68) to (70)].
    """
    pair = pair_of(model, student)
    allowed = "an index model without directions of its inputs"
    teacher = validate.instance("model", model, IndexModel, allowed)
    check(not pair.directions, "model", title(teacher), allowed)
    learner = validate.instance("student", student or model, IndexModel, allowed)
    key = validate.key("key", key)
    size, nets = sizes_of(averages, *_USUAL)
    diagonal = lambda x: (
        jnp.max(jnp.abs(x - jnp.diag(jnp.diagonal(x)))) <= _ROUNDING * jnp.max(jnp.abs(x))
    )
    independent = diagonal(pair.gram)
    check(independent, "model", title(teacher), "one whose prior has independent rows")
    P = pair.rows
    allowed = f"a number > 0, or a diagonal Q ({P}, {P})"
    Q = validate.array("overlap", overlap, allowed)
    check(Q.shape in ((), (P, P)), "overlap", overlap, allowed)
    Q = Q * jnp.eye(P, dtype=Q.dtype) if Q.ndim == 0 else Q
    positive = diagonal(Q) & jnp.all(jnp.diagonal(Q) > 0.0)
    check(positive, "overlap", overlap, allowed)
    allowed = "a link that is even in every row (others leave M = 0 at once: smi.sgd.flow)"
    for argument, (name, law) in enumerate((("model", teacher), ("student", learner))):
        check(not concrete(pair) or is_even(pair, argument), name, title(law), allowed)
    check_gradient(pair)
    # out of range inside jit: a Q that has an inverse, and an answer that is NaN
    valid = independent & positive & validate.valid(Q)
    safe = jnp.where(valid, Q, jnp.eye(P, dtype=Q.dtype))
    found = _rates(pair, (learner, teacher), safe, key, size, nets)
    signal, pull, noise = (jnp.where(valid, jnp.mean(x, axis=0), jnp.nan) for x in found)
    return Rates(signal, pull, noise, Q, RatesErrors(*map(spread, found)))


@eqx.filter_jit
def _rates(
    pair: TeacherStudent,
    models: tuple[IndexModel, IndexModel],
    Q: Array,
    key: PRNGKeyArray,
    size: int,
    nets: int,
) -> tuple[Array, Array, Array]:
    """Λ, H and E|s|² of each net."""
    # independent points: products of averages over one set would be biased
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    own, goal = (
        _curvatures(model, square, k, size, nets)
        for model, square, k in zip(models, (Q, pair.gram), keys, strict=False)
    )
    averages = net_averages(pair, triangular_root(pair.gram), keys[2], size, nets)
    M = jnp.zeros((pair.rows, pair.fixed), Q.dtype)
    found = averages.over_nets(lambda net: net.at(M, Q))
    diagonal = lambda x: jnp.diagonal(x, axis1=-2, axis2=-1)
    signal = 2.0 * jnp.einsum("rpomn,rqomn,q->rpq", own, goal, jnp.diagonal(pair.gram))
    return signal, diagonal(found.own) / jnp.diagonal(Q), diagonal(found.square)


def _curvatures(model: IndexModel, Q: Array, key: PRNGKeyArray, size: int, nets: int) -> Array:
    """E Hess_pp link (nets, P, outputs, M, M) at z ~ N(0, Q), by Stein: E[link (u_p u_pᵀ -
    (Q^{-1})_pp I)], u = Q^{-1} z. (Derivatives of the link would miss its kinks.)"""
    P, M = model.indices, model.tokens
    position, weight = gaussian_points(key, size, nets, P * M, _AXIS)
    z = jnp.einsum("pq,rnqm->rnpm", sqrt_psd(Q), position.reshape(nets, -1, P, M))
    inverse = jnp.linalg.inv(Q)

    def one(z: Array, weight: Array) -> Array:
        labels = jax.vmap(lambda z: jnp.ravel(model.link(z)))(z)
        # a constant has no curvature, but would add to the error
        centred = labels - jnp.sum(weight[:, None] * labels, axis=0)
        u = jnp.einsum("pq,nqm->npm", inverse, z)
        square = jnp.einsum("npm,npk->npmk", u, u)
        square = square - jnp.diagonal(inverse)[:, None, None] * jnp.eye(M)
        return jnp.einsum("n,no,npmk->pomk", weight, centred, square)

    return lax.map(lambda part: one(*part), (z, weight))


def maximal_rate(
    model: AbstractTeacher,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Estimate:
    r"""Largest learning rate: of perfect recovery; of one direction on the sphere, of leaving the
    origin.

        index models     κ_max = 1/(2 λ): above, the error of noiseless labels never vanishes
        one direction    γ_max = 2 |λ_min(∇²R(0))|/V(0), of an untied network with V/L

    Args:
        model: A noiseless index model, or a `SequenceSingleIndex`.
        key: A random key, of the nets of an index model, and where the risk is sampled.
        averages: Points of all nets and nets. A `smi.Averages`. Default 2^17 and 8, of a
            `SequenceSingleIndex` those of `risk`.

    Returns:
        κ_max as an Estimate(value, stderr); γ_max of a `SequenceSingleIndex` (without its error),
        0 where the Hessian at the origin has no negative eigenvalue (for other orders see the
        source).

    Raises:
        ValueError: As `risk`; for labels with noise, or a missing key.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> round(float(smi.sgd.maximal_rate(model).value), 6)  # (2/√π)/(L + 1)
        0.376126
        >>> phase = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1)
        >>> rate = smi.sgd.maximal_rate(phase, key=jax.random.key(0)).value
        >>> bool(abs(rate - 1 / 12) < 1e-6)
        True

    Cost:
        Of an index model a Hessian of the loss at each point; else that of `hessian` and
        `averages`.

    Source:
        [theory: online-sgd, section 4, Eq. (31), and Eqs. (71), (72)].
    """
    pair = pair_of(model)
    # on the sphere recovery is no fixed point of the noise: what counts is to leave the origin
    if pair.spherical:
        lowest = jnp.linalg.eigvalsh(landscape.hessian(model, key=key, averages=averages))[0]
        V = landscape.averages(model, 0.0, key=key, averages=averages)[0].square[0, 0]
        return Estimate(jnp.maximum(-2.0 * lowest, 0.0) / V, jnp.zeros(()))
    key = validate.key("key", key)
    size, nets = sizes_of(averages, *_USUAL_RECOVERY)
    check_silent(pair)
    check_gradient(pair)
    values = _recovery_rates(pair, key, size, nets)
    return Estimate(jnp.mean(values), spread(values))


@eqx.filter_jit
def _recovery_rates(pair: TeacherStudent, key: PRNGKeyArray, size: int, nets: int) -> Array:
    """κ_max of each net."""
    P, M = pair.rows, pair.tokens
    S = pair.gram[: pair.targets, : pair.targets]
    position, weight = gaussian_points(key, size, nets, P * M, _AXIS)
    z = jnp.einsum("pq,rnqm->rnpm", sqrt_psd(S), position.reshape(nets, -1, P, M))
    silent = jnp.zeros(pair.noise_size)

    def curvature(z: Array) -> Array:  # G of the squared loss, whose residual is zero here
        return 0.5 * jax.hessian(lambda x: pair.sample_loss(z, x, silent))(z)

    def one(part: tuple[Array, Array]) -> Array:
        z, weight = part
        G = jax.vmap(curvature)(z)
        mean = jnp.einsum("n,npmqm->pq", weight, G)
        # `conjugation` averages over points of equal weight
        scaled = G * (len(weight) * weight)[:, None, None, None, None]
        noise = conjugation(scaled, G).reshape(P * P, P * P)
        identity = jnp.eye(P, dtype=theory_dtype())
        # both are symmetric: no eigenvalues of a matrix that is not, which a TPU does not have
        root = inverse_root(jnp.kron(mean, identity) + jnp.kron(identity, mean))
        return 0.5 / jnp.linalg.eigvalsh(symmetric(root @ noise @ root))[-1]

    return lax.map(one, (z, weight))
