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
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import checked, numbers, optional, random_key, whole
from jaxsmi.core.checks import Arguments, Interval, check
from jaxsmi.core.results import Estimate
from jaxsmi.models.base import title
from jaxsmi.models.index import IndexModel
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.gaussian_points import gaussian_points
from jaxsmi.numerics.linear_algebra import conjugation, inverse_root, sqrt_psd, symmetric
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.averages import net_averages
from jaxsmi.sgd.dynamics import error_over_nets
from jaxsmi.sgd.landscape import hessian
from jaxsmi.sgd.noise import noise_at
from jaxsmi.sgd.population import overlaps, sampling
from jaxsmi.sgd.problem import check_gradient, is_teacher, pair_of

__all__ = ["Rates", "RatesErrors", "maximal_rate", "rates"]

_ROUNDING = 1e-9
_DIMENSIONS = Interval("a number > 1", low=1.0, open_low=True)
_AXIS = 40  # points an axis of a grid, at least


class RatesErrors(NamedTuple):
    """Standard errors of `Rates`, over independent nets."""

    signal: Array
    pull: Array
    noise: Array


class Rates(eqx.Module):
    """What `rates` returns.

    Attributes:
        signal: Λ (P, P*), what the teacher's row q gives the student's row p.
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
        kappa = Arguments().array("rate", rate, allowed)
        check(kappa.shape in ((), (P,)), "rate", rate, allowed)
        check(jnp.all(kappa > 0.0), "rate", rate, allowed)
        each = jnp.broadcast_to(kappa, (P,))[:, None]
        size = jnp.diagonal(self.overlap)[:, None]
        return each * self.signal - 0.5 * each**2 * self.noise[:, None] / size

    def escape(self, rate: ArrayLike, dimension: ArrayLike) -> Array:
        """α (P,) after which a random start has left the unlearned state, to leading order:
        ln D/(2 rate) of the diagonal growth rates; inf where they are not positive.

        It is meant for the rows that leave first: once they are learned the others wait at another
        saddle, with another rate.
        """
        size = Arguments().number("dimension", dimension, _DIMENSIONS)
        growth = jnp.diagonal(self.cosine(rate))
        safe = jnp.where(growth > 0.0, growth, 1.0)
        return jnp.where(growth > 0.0, jnp.log(size) / (2.0 * safe), jnp.inf)


@checked(
    model=is_teacher,
    overlap=numbers("finite numbers > 0, one or (P, P)"),
    key=random_key,
    student=optional(is_teacher),
    samples=whole(),
    nets=whole(2),
)
def rates(
    model: AbstractTeacher,
    overlap: ArrayLike = 1.0,
    *,
    key: PRNGKeyArray,
    student: AbstractTeacher | None = None,
    samples: int = 2**16,
    nets: int = 8,
) -> Rates:
    r"""How fast online SGD leaves the unlearned state M = 0, row by row: what is learned first.

        dM_pq/dα = κ (Λ_pq - H_p) M_pq,   cosines: κ Λ_pq - (κ²/2) E|s_p|²/Q_pp

    Args:
        model: The teacher: an index model whose link is even in every row, with a prior of
            independent rows.
        overlap: Q (P, P) of the student, diagonal, or a number times I. Default 1.
        key: A random key, of the nets.
        student: Another index model of as many tokens, even in every row. Default: the model.
        samples: Points of each net. Default 65536.
        nets: Independent nets, an integer >= 2. Default 8.

    Returns:
        A `Rates`: its `signal` Λ, `plain` μ, `cosine(rate)` and `escape(rate, dimension)`.

    Raises:
        ValueError: For a link that is not even in every row (it does not start at a saddle), a
            prior with correlated rows (entries of M then grow together), a Q that is not diagonal
            and positive, or numbers out of range.

    Example:
        >>> import jax, jaxsmi as smi
        >>> found = smi.sgd.rates(smi.DeepAttention(2, 2), key=jax.random.key(0), samples=2**12)
        >>> bool(found.signal[1, 1] > 10 * found.signal[0, 0])  # the last layer is learned first
        True

    Cost:
        nets × samples gradients of a sample.

    Source:
        [theory: online-sgd, Eqs. (68) to (70)].
    """
    arguments = Arguments()
    pair = pair_of(arguments, model, student)
    allowed = "an index model without directions of its inputs"
    teacher = arguments.instance("model", model, IndexModel, allowed)
    check(not pair.directions, "model", title(teacher), allowed)
    learner = arguments.instance("student", student or model, IndexModel, allowed)
    S = pair.gram
    apart = jnp.max(jnp.abs(S - jnp.diag(jnp.diagonal(S)))) <= _ROUNDING * jnp.max(jnp.abs(S))
    arguments.condition(apart, "model", title(teacher), "one whose prior has independent rows")
    number = nets
    count = power_of_two(samples)
    P = pair.rows
    allowed = f"a number > 0, or a diagonal Q ({P}, {P})"
    Q = arguments.array("overlap", overlap, allowed)
    check(Q.shape in ((), (P, P)), "overlap", overlap, allowed)
    Q = Q * jnp.eye(P, dtype=Q.dtype) if Q.ndim == 0 else Q
    off = jnp.max(jnp.abs(Q - jnp.diag(jnp.diagonal(Q)))) <= _ROUNDING
    positive = off & jnp.all(jnp.diagonal(Q) > 0.0)
    Q = arguments.masked(Q, positive, "overlap", overlap, allowed)
    for name, law in (("model", teacher), ("student", learner)):
        _check_even(law, name)
    check_gradient(pair)
    found = _rates(pair, teacher, learner, Q, key, count, number)
    signal, pull, noise = (jnp.where(arguments.valid, jnp.mean(x, axis=0), jnp.nan) for x in found)
    return Rates(signal, pull, noise, Q, RatesErrors(*(error_over_nets(x, number) for x in found)))


def _check_even(model: IndexModel, name: str) -> None:
    """Raise a ValueError for a link that changes with the sign of a row."""
    if not concrete(model):
        return
    shape = (model.indices, model.tokens)
    with jax.ensure_compile_time_eval():
        point = jnp.cos(1.0 + 2.4 * jnp.arange(float(np.prod(shape))).reshape(shape))
        label = model.link(point)
        flips = 1.0 - 2.0 * jnp.eye(model.indices)[:, :, None]
        even = all(bool(jnp.allclose(model.link(point * flip), label)) for flip in flips)
    allowed = "a link that is even in every row (others leave M = 0 at once: smi.sgd.flow)"
    check(even, name, title(model), allowed)


@eqx.filter_jit
def _rates(
    pair: TeacherStudent,
    teacher: IndexModel,
    learner: IndexModel,
    Q: Array,
    key: PRNGKeyArray,
    samples: int,
    nets: int,
) -> tuple[Array, Array, Array]:
    """Λ, H and E|s|² of each net."""
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    own = _curvatures(learner, Q, keys[0], samples, nets)
    goal = _curvatures(teacher, pair.gram, keys[1], samples, nets)
    averages = net_averages(pair, triangular_root(pair.gram), keys[2], samples, nets)
    M = jnp.zeros((pair.rows, pair.fixed), Q.dtype)
    numbers, rest = eqx.partition(averages, eqx.is_array)
    found = lax.map(lambda part: eqx.combine(part, rest).at(M, Q), numbers)
    diagonal = lambda x: jnp.diagonal(x, axis1=-2, axis2=-1)
    size = jnp.diagonal(pair.gram)
    signal = 2.0 * jnp.einsum("rpomn,rqomn,q->rpq", own, goal, size)
    return signal, diagonal(found.own) / jnp.diagonal(Q), diagonal(found.square)


def _curvatures(model: IndexModel, Q: Array, key: PRNGKeyArray, samples: int, nets: int) -> Array:
    """E Hess_pp link (nets, P, outputs, M, M) at z ~ N(0, Q), by Stein: E[link (u_p u_pᵀ -
    (Q^{-1})_pp I)], u = Q^{-1} z."""
    P, M = model.indices, model.tokens
    position, weight = gaussian_points(key, samples, nets, P * M, _AXIS)
    xi = position.reshape(nets, -1, P, M)
    z = jnp.einsum("pq,rnqm->rnpm", sqrt_psd(Q), xi)
    inverse = jnp.linalg.inv(Q)

    def one(z: Array, weight: Array) -> Array:
        labels = jax.vmap(lambda z: jnp.ravel(model.link(z)))(z)
        centred = labels - jnp.sum(weight[:, None] * labels, axis=0)
        u = jnp.einsum("pq,nqm->npm", inverse, z)
        square = jnp.einsum("npm,npk->npmk", u, u)
        square = square - jnp.diagonal(inverse)[:, None, None] * jnp.eye(M)
        return jnp.einsum("n,no,npmk->pomk", weight, centred, square)

    return lax.map(lambda part: one(*part), (z, weight))


@checked(model=is_teacher, key=optional(random_key), samples=whole(), nets=whole(2))
def maximal_rate(
    model: AbstractTeacher,
    *,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
    nets: int = 8,
) -> Array | Estimate:
    r"""Largest learning rate: of perfect recovery; of one direction on the sphere, of leaving the
    origin.

        index models     κ_max = 1/(2 λ): above, the error of noiseless labels never vanishes
        one direction    γ_max = 2 |λ_min(∇²R(0))|/V(0), of an untied network with V/L

    Args:
        model: A noiseless index model, or a `SequenceSingleIndex`.
        key: A random key, of the nets of an index model, and where the risk is sampled.
        samples: Points of each net (16 of a `SequenceSingleIndex`). Default 16384.
        nets: Independent nets of an index model, an integer >= 2. Default 8.

    Returns:
        κ_max as an Estimate(value, stderr); γ_max of a `SequenceSingleIndex`, 0 where the Hessian
        at the origin has no negative eigenvalue (for other orders see the source).

    Raises:
        ValueError: As `risk`; for labels with noise, or a missing key.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> round(float(smi.sgd.maximal_rate(model)), 6)  # (2/√π)/(L + 1)
        0.376126
        >>> phase = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1)
        >>> rate = smi.sgd.maximal_rate(phase, key=jax.random.key(0)).value
        >>> bool(abs(rate - 1 / 12) < 1e-6)
        True

    Cost:
        Of an index model nets × samples Jacobians of its link; else that of `hessian` and
        `gradient_noise`.

    Source:
        [theory: online-sgd, section 4, Eq. (31), and Eqs. (71), (72)].
    """
    arguments = Arguments()
    pair = pair_of(arguments, model)
    if pair.spherical:
        one = arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
        check_gradient(pair)
        lowest = jnp.linalg.eigvalsh(hessian(one, key=key, samples=samples))[0]
        count = sampling(Arguments(), one, key, samples)
        V = noise_at(one, overlaps(one, 0.0), key, count).value
        return jnp.maximum(-2.0 * lowest, 0.0) / (V / pair.groups)
    law = arguments.instance("model", model, IndexModel, "an index model")
    silent = pair.noise_size == 0 or law.channel.noiseless
    arguments.condition(silent, "model", title(law), "one with noiseless labels")
    check(key is not None, "key", key, "a key: averages of this model are sampled")
    made = arguments.key("key", key)
    number = nets
    count = power_of_two(samples)
    check_gradient(pair)
    S = pair.gram[: pair.targets, : pair.targets]
    values = eqx.filter_jit(_recovery_rates)(law, S, made, count, number)
    return Estimate(jnp.mean(values), jnp.std(values, ddof=1) / np.sqrt(number))


def _recovery_rates(
    model: IndexModel, S: Array, key: PRNGKeyArray, samples: int, nets: int
) -> Array:
    """κ_max of each net."""
    P, M = model.indices, model.tokens
    position, weight = gaussian_points(key, samples, nets, P * M, _AXIS)
    z = jnp.einsum("pq,rnqm->rnpm", sqrt_psd(S), position.reshape(nets, -1, P, M))

    def one(part: tuple[Array, Array]) -> Array:
        z, weight = part
        J = jax.vmap(lambda z: jax.jacfwd(lambda z: jnp.ravel(model.link(z)))(z))(z)
        G = jnp.einsum("nopm,noqk->npmqk", J, J)
        mean = jnp.einsum("n,npmqm->pq", weight, G)
        scaled = G * (len(weight) * weight)[:, None, None, None, None]
        noise = conjugation(scaled, G).reshape(P * P, P * P)
        identity = jnp.eye(P, dtype=theory_dtype())
        # both are symmetric: no eigenvalues of a matrix that is not, which a TPU does not have
        root = inverse_root(jnp.kron(mean, identity) + jnp.kron(identity, mean))
        return 0.5 / jnp.linalg.eigvalsh(symmetric(root @ noise @ root))[-1]

    return lax.map(one, (z, weight))
