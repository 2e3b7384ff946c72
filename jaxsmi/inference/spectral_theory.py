r"""The optimal spectral estimator in high dimension: the limit of linear message passing.

Equations here [theory: spectral, Eqs. (1) to (6)], in units where the second moment S of the prior
is the identity. Each label says of its fields, before anything is learned (ω = 0, V = S),

    μ(y) = E[z|y],    I + G(y) = Cov[z|y]                                    (PM), (PM, PM)

and the Gaussian channel of the same mean and covariance has

    H = (I + G Q)^{-1} G,    Q̂ = α ⟨Tr_M[μ μᵀ + G - H]⟩,    Q = Q̂ (I + Q̂)^{-1}

Tr_M sums the diagonal blocks of the M tokens. The largest Q that solves this is the overlap of the
optimal spectral estimator, and of linear message passing; it leaves zero at the threshold of weak
recovery, α_c = 1/λ_max, as Q ← α ⟨Tr_M[G Q G]⟩ is the growth map. Directions that grow only once
others are learned are not found.

Outliers, Eqs. (7) to (12). The spectral estimator takes
the top eigenvectors of

    T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,    𝒯_s = G (I + sG)^{-1},   0 < s < 1

which is bounded where that of s = 1, optimal, is not; less α⟨Tr_M G⟩, which is zero up to the
labels at hand. At a spectral parameter m outside the bulk

    V = (m I - α ⟨Tr_M (H - G)⟩)^{-1},   H = 𝒯_s (I - V 𝒯_s)^{-1}       the resolvent
    bulk edge   N ↦ V α⟨Tr_M[H N H]⟩ V              has the eigenvalue one
    outliers    M ↦ V α⟨Tr_M[H M G]⟩                has the eigenvalue one, at m_a, V_a, H_a
    noise       N_ab = V_a α⟨Tr_M[H_a (M_a (I+G) M_bᵀ + N_ab) H_b]⟩ V_b
    vectors     W_a W*ᵀ/D = M_a,   W_a W_bᵀ/D = M_a M_bᵀ + N_ab
    estimate    Ŵ = Σ_a R_a W_a,   R = Mᵀ (M Mᵀ + N)^+,   Q = Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D = Σ_a R_a M_a

(M, R and N without an index are those of all vectors, stacked; V, M, N act on fields as V ⊗ I_M.)
At s = m = 1 the resolvent is the fixed point above, V = I - Q: outliers are then at
m = 1, and at 1 + (1 - s)/(1 - q_a) beside it, and are looked for above one. Where the labels do not
change under a group of transformations of the indices, several M share an eigenvalue; the one
nearest to Q of the optimal estimator is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior, draw_posteriors
from jaxsmi.core import validate
from jaxsmi.core.arrays import missing, symmetric
from jaxsmi.core.driver import Run
from jaxsmi.core.options import Averages
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.base import CENTRED, AbstractModel, is_centred, model_argument, title
from jaxsmi.numerics import fixed_point
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import conjugation, inverse_of_many, sqrt_psd
from jaxsmi.numerics.quadrature import power_of_two

_POINTS = 2**14
_NETS = 16  # G has heavy tails: with fewer the spread is inaccurate
_START_COVARIANCE = 1e-3  # V/S of the start: everything is learned
_TOLERANCE = 1e-7
_MAX_STEPS = 400  # next to the threshold neither plain nor Newton steps are fast
_SIGMAS = 5.0  # 16 nets measure the noise roughly: fewer would refuse by chance
_MAX_MEAN_SHARE = 0.1  # cap on a squared mean over S: error bars of a handful of labels are large
_MEAN_FLOOR = 1e-4  # a squared mean that quadrature may leave
MAX_OUTLIERS = 4  # outliers that are looked for, of P² that there may be
_MAX_NEWTON_STEPS = 50  # steps to the resolvent at one m
_MAX_ENTRY = 1e6  # an eigensolver may not end on larger numbers
_RESOLVENT_TOLERANCE = 1e-9  # relative error of V: well below what the halvings of m leave
_HALVINGS = 24  # an interval of m some 10 wide shrinks to 1e-6 (200 wide at the edge: 1e-5)
_MIN_DISTANCE = 1e-4  # relative distance in m: a nearer outlier is the edge, up to the halvings
_COPY_RATIO = 0.95  # eigenvalues above this share of the largest are copies of one
_GRAM_RTOL = 1e-9  # copies may be dependent: their Gram matrix is then singular up to rounding
_MIN_OVERLAP = 1e-4  # overlap over S that counts as none


class LabelMoments(NamedTuple):
    """Moments of the fields given a label at zero overlap, in units S = I.

    `signal` Σ_m μ_m μ_mᵀ (.., P, P) of the means μ; `excess` G (.., PM, PM), the covariance beyond
    the identity.
    """

    signal: Array
    excess: Array


def label_moments(post: Posterior, second_moment: Array) -> LabelMoments:
    """The moments from posteriors at ω = 0, V = S."""
    root = sqrt_psd(second_moment)
    P, M = post.g.shape[-2:]
    # the noise of random nodes alone is no signal: its square is, a product of halves is not
    signal = jnp.einsum("npm,nqm->npq", post.factors[0][0], post.factors[1][0])
    excess = jnp.einsum("pa,namcl,cq->npmql", root, post.dg, root).reshape(-1, P * M, P * M)
    return LabelMoments(symmetric(root @ signal @ root), symmetric(excess))


def dressed_covariance(G: Array, Q: Array, sign: float = 1.0) -> tuple[Array, Array]:
    """H = G (I ± QG)^{-1} of symmetric G (n, PM, PM) for Q (P, P), 0 ⪯ Q.

    By I ± Q^{1/2} G Q^{1/2}, which has to be positive definite: no other inverse is needed.

    Returns:
        H (n, PM, PM), and whether all are.
    """
    M = G.shape[-1] // len(Q)
    root = jnp.kron(sqrt_psd(Q), jnp.eye(M, dtype=Q.dtype))
    weighted = G @ root
    inverse, sound = inverse_of_many(jnp.eye(len(root), dtype=Q.dtype) + sign * (root @ weighted))
    return symmetric(G - sign * weighted @ inverse @ jnp.swapaxes(weighted, -1, -2)), sound


def token_trace(H: Array, tokens: int) -> Array:
    """Tr_M (.., P, P), the sum of the diagonal blocks of the tokens, of matrices (.., PM, PM)."""
    P = H.shape[-1] // tokens
    return jnp.einsum("...pmqm->...pq", H.reshape(*H.shape[:-2], P, tokens, P, tokens))


def _next_covariance(moments: LabelMoments, alpha: Array, V: Array) -> fixed_point.Evaluation:
    """V = I - Q to the next V, on labels (R, n, ..) of R nets (module docstring), with its Jacobian
    dV ↦ V' α⟨Tr_M[H dV H]⟩ V' and one replica a net."""
    signal, G = moments
    P, M = len(V), G.shape[-1] // len(V)
    identity = jnp.eye(P, dtype=V.dtype)
    H, _ = dressed_covariance(G.reshape(-1, P * M, P * M), identity - symmetric(V))
    squares = signal + token_trace(G - H.reshape(G.shape), M)
    precision = alpha * symmetric(jnp.mean(squares, axis=1))
    new = jnp.linalg.inv(identity + jnp.mean(precision, axis=0))
    blocks = H.reshape(-1, P, M, P, M)
    pull = alpha * conjugation(blocks, blocks)
    return fixed_point.Evaluation(
        value=new,
        jacobian=jnp.einsum("pa,abcd,bq->pqcd", new, pull, new),
        replicas=jax.vmap(lambda A: new - new @ (A - jnp.mean(precision, 0)) @ new)(precision),
        inaccurate=jnp.zeros((), V.dtype),
        integral_error=jnp.zeros_like(new),
    )


def spectral_overlap(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Estimate:
    r"""Compute the overlap of the optimal spectral estimator as D → ∞.

        Q = Q̂ (I + Q̂)^{-1},   Q̂ = α ⟨Tr_M[G Q (I + G Q)^{-1} G]⟩,   I + G(y) = Cov[z|y]

    It is zero up to the threshold of weak recovery and lies below state evolution: a
    message-passing run improves on it. Directions that are learned only after others stay at zero.

    Args:
        model: A model of indices, whose labels have E[z|y] = 0.
        alpha: Sample complexity N/D, a number > 0.
        key: Random key of the labels. Required.
        averages: `smi.Averages(points, nets)`: labels in all nets, and independent nets, whose
            spread is the standard error; with fewer than 16 it is inaccurate, as G has heavy tails.
            Default 2^14 in 16 nets.

    Returns:
        An `Estimate`: `value` Q (P, P), for one index its squared cosine times S; `stderr`, which
        includes the remaining distance of the iteration from its fixed point (it is slow near the
        threshold). It has no derivative (NaN).

    Raises:
        ValueError: For an argument out of its range, a model without directions, a prior with a
            mean, or labels that depend on W at first order (linear regression, signs): message
            passing needs no spectral start there. Under jit the answer is NaN.

    Example:
        >>> import jax, jaxsmi as smi
        >>> overlap = smi.spectral_overlap(smi.links.phase_retrieval(), 1.5, key=jax.random.key(0))
        >>> bool(abs(overlap.value[0, 0] - 0.4570764891) < 5 * overlap.stderr[0, 0])
        True

    Cost:
        `points` posteriors, and some ten to a hundred solutions of a linear system (PM, PM) for
        each.

    Source:
        [theory: spectral, Eqs. (1) to (6)].
    """
    model = model_argument(model, "spectral")
    alpha = validate.number("alpha", alpha, POSITIVE)
    points, nets = Averages.of(averages).sizes(_POINTS, _NETS, 2)
    key = validate.key("key", key)
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    estimate, not_linear = _overlap(model, alpha, key, power_of_two(points), nets)
    allowed = "one with E[z|y] = 0, such as phase retrieval (gamp learns others without it)"
    check(not_linear, "model", title(model), allowed)
    valid = centred & not_linear & validate.valid(alpha) & validate.valid(model)
    return jax.tree.map(lambda x: jnp.where(valid, x, missing()), estimate)


def noise_of_shared_nodes(post: Posterior, second_moment: Array) -> Array:
    """Bound on E[μμᵀ] left by random nodes shared by all labels: five times the variance of μ from
    one half (three layers, twelve keys: 6e-4 and more, where up to 1.1e-4 was left)."""
    if post.halves is None:
        return jnp.zeros(())
    (one, _), (other, _) = post.factors
    gap = jnp.einsum("pq,nqm->npm", sqrt_psd(second_moment), one - other)
    return 0.5 * _SIGMAS * jnp.max(jnp.mean(jnp.sum(gap**2, axis=2), axis=0))


def tells_nothing(signal: Array, floor: Array | float = 0.0) -> Array:
    """Labels of R nets, of signals μμᵀ (R, n, P, P), say nothing of W at first order: E μμᵀ is zero
    within its error, and within the `floor`."""
    outer = jnp.mean(signal, axis=1)
    noise = jnp.std(outer, axis=0, ddof=min(len(signal) - 1, 1)) / jnp.sqrt(float(len(signal)))
    most = jnp.minimum(_SIGMAS * noise, _MAX_MEAN_SHARE)
    return jnp.all(jnp.mean(outer, axis=0) <= most + _MEAN_FLOOR + floor)


@eqx.filter_jit
def _overlap(
    model: AbstractModel, alpha: Array, key: PRNGKeyArray, samples: int, nets: int
) -> tuple[Estimate, Array]:
    """Return the largest Q, by iteration from above, and `tells_nothing` of the labels drawn."""
    S = model.prior.second_moment(model.indices)
    post = draw_posteriors(model.channel, None, S, key=key, points=samples, nets=nets)
    moments = label_moments(post, S)
    moments = jax.tree.map(lambda x: x.reshape(nets, samples, *x.shape[1:]), moments)
    end = largest_overlap(*lax.stop_gradient((moments, alpha))).state
    error = fixed_point.propagated_error(end.evaluation.jacobian, end.evaluation.replicas)
    error = jnp.sqrt(error**2 + end.distance**2)  # near the threshold the iteration is slow
    root = sqrt_psd(S)
    value = root @ (jnp.eye(len(S), dtype=S.dtype) - end.V) @ root
    stderr = jnp.sqrt((root**2) @ error**2 @ (root**2))
    estimate = not_differentiable(Estimate(value, stderr), (model, alpha))
    return estimate, tells_nothing(moments.signal)


def largest_overlap(moments: LabelMoments, alpha: Array) -> Run[fixed_point.FixedPointState]:
    """The end of the iteration from above, in units S = I: V = I - Q."""
    one = jnp.eye(moments.signal.shape[-1], dtype=moments.signal.dtype)
    solver = fixed_point.FixedPointSolver(
        map_of=eqx.Partial(_next_covariance, moments, alpha),
        V0=_START_COVARIANCE * one,
        scale=one,
        tolerance=jnp.asarray(_TOLERANCE, one.dtype),
        geometric=False,
        newton=True,
        max_steps=_MAX_STEPS,
    )
    return fixed_point.solve(solver)


# Outliers


def transformed(G: Array, s: Array | float) -> Array:
    """𝒯_s = G (I + sG)^{-1} of excess covariances G (..., PM, PM)."""
    return dressed_covariance(G, s * jnp.ones((1, 1), G.dtype))[0]


class Outlier(NamedTuple):
    """Predict the top eigenvectors (module docstring), of up to four groups of them.

    Attributes:
        learned: Something stands out of the bulk, and the optimal estimator learns.
        eigenvalue: m_a (A,), the group that begins with the eigenvalue of rank a; NaN: none does.
        edge: m of the bulk's edge.
        resolvent: V_a (A, P, P).
        scale: R_a (A, P, P).
        gram: W_a W_bᵀ/D (A, A, P, P).
        overlap: Q (P, P) of the estimate.
        copies: How many eigenvalues of the group come together (A,); 0: no group.
    """

    learned: Array
    eigenvalue: Array
    edge: Array
    resolvent: Array
    scale: Array
    gram: Array
    overlap: Array
    copies: Array


def outlier(G: Array, tokens: int, alpha: Array, s: Array, optimal: Array) -> Outlier:
    """The outliers of T_s (module docstring).

    Args:
        G: Excess covariances of labels, (n, PM, PM).
        tokens: M.
        alpha: Sample complexity, above that of weak recovery.
        s: In (0, 1).
        optimal: Q (P, P) of the optimal estimator.

    Returns:
        An `Outlier`; zeros where nothing is learned.
    """
    n, size = G.shape[:2]
    P = size // tokens
    shape = (n, P, tokens, P, tokens)
    bulk = _Bulk(G.reshape(shape), transformed(G, s).reshape(shape), alpha)
    spread = (1.0 + jnp.sqrt(alpha * tokens)) ** 2
    high = spread / s + jnp.max(jnp.abs(bulk.trace(bulk.G)))
    # one loop over the ranks and, last, the edge: the program of a search is large
    ranks = jnp.arange(min(P * P, MAX_OUTLIERS) + 1)
    ranks = jnp.where(ranks == len(ranks) - 1, -1, ranks)
    positions, resolvents = lax.map(
        lambda rank: bulk.search(rank, jnp.where(rank < 0, -spread / (1.0 - s), 1.0), high), ranks
    )
    m, V, edge = positions[:-1], resolvents[:-1], positions[-1]
    M, together = lax.map(lambda at: bulk.signal(at[0], at[1], optimal), (ranks[:-1], V))
    stands_out = (m - edge > _MIN_DISTANCE * m) & (m - 1.0 > _MIN_DISTANCE * (1.0 - s))
    copies = _groups(stands_out, together)
    norm = jnp.linalg.norm(M, axis=(1, 2))
    selected = (copies > 0) & (norm > _GRAM_RTOL) & (jnp.max(jnp.diagonal(optimal)) > _MIN_OVERLAP)
    M = jnp.where(selected, 1.0 / jnp.where(selected, norm, 1.0), 0.0)[:, None, None] * M
    gram = _grams(bulk, V, M, selected)
    A = len(m)
    whole = jnp.transpose(gram, (0, 2, 1, 3)).reshape(A * P, A * P)
    stacked = M.reshape(A * P, P)
    R = stacked.T @ jnp.linalg.pinv(symmetric(whole), rtol=_GRAM_RTOL, hermitian=True)
    return Outlier(
        learned=jnp.any(selected),
        eigenvalue=jnp.where(selected, m, jnp.nan),
        edge=edge,
        resolvent=V,
        scale=jnp.transpose(R.reshape(P, A, P), (1, 0, 2)),
        gram=gram,
        overlap=symmetric(R @ stacked),
        copies=jnp.where(selected, copies, 0),
    )


class _Newton(NamedTuple):
    """State of the search for a resolvent: V, the image of the last admitted V under the map, the
    last change and the number of steps."""

    V: Array
    mapped: Array
    change: Array
    count: Array


class _Bulk(eqx.Module):
    """The averages over labels at one V, for excess covariances G and 𝒯_s (n, P, M, P, M)."""

    G: Array
    T: Array
    alpha: Array

    def response(self, V: Array) -> tuple[Array, Array]:
        """H = 𝒯_s (I - V 𝒯_s)^{-1}, and whether 1/V is above all eigenvalues of 𝒯_s."""
        n, P, M = self.G.shape[:3]
        H, above = dressed_covariance(self.T.reshape(n, P * M, P * M), V, -1.0)
        return H.reshape(self.G.shape), above

    def trace(self, H: Array) -> Array:
        """α⟨Tr_M H⟩ (P, P)."""
        return self.alpha * jnp.einsum("npmqm->pq", H) / len(H)

    def between(self, H: Array, inner: Array) -> Array:
        """N ↦ α⟨Tr_M[H N inner]⟩ as a tensor (P, P, P, P); both are symmetric."""
        return self.alpha * conjugation(H, inner)

    def resolvent(self, m: Array, V: Array) -> tuple[Array, Array, Array]:
        """Return V at m, H there, and whether m is outside the bulk. Newton steps start from V at a
        larger m; a step that leads too far is replaced by one of the map, which grows."""
        one = jnp.eye(len(V), dtype=V.dtype)

        def step(now: _Newton) -> _Newton:
            V = now.V
            H, admitted = self.response(V)
            admitted = admitted & _definite(V)
            new = jnp.linalg.inv(m * one - self.trace(H - self.G))
            J = jnp.einsum("pa,abcd,bq->pqcd", new, self.between(H, H), new)
            ahead = V + symmetric(fixed_point.resolvent(J, new - V))
            return _Newton(
                V=jnp.where(admitted, ahead, now.mapped),
                mapped=jnp.where(admitted, new, jnp.nan),
                change=jnp.where(admitted, jnp.max(jnp.abs(ahead - V)), jnp.inf),
                count=now.count + 1,
            )

        def goes_on(now: _Newton) -> Array:
            moving = (now.change > _RESOLVENT_TOLERANCE) & (now.count < _MAX_NEWTON_STEPS)
            return moving & jnp.all(jnp.isfinite(now.V))

        infinite = jnp.asarray(jnp.inf, V.dtype)
        start = _Newton(V, jnp.full_like(V, jnp.nan), infinite, jnp.zeros((), int))
        end = lax.while_loop(goes_on, step, start)
        sound = (end.change <= _RESOLVENT_TOLERANCE) & _definite(end.V)
        new = jnp.where(sound, end.V, V)
        H, _ = self.response(new)
        return new, H, sound & (self.top(new, H, H)[0][-1] < 1.0)

    def top(self, V: Array, H: Array, inner: Array) -> tuple[Array, Array]:
        """Eigenvalues, and eigenmatrices (P², K), of N ↦ V^{1/2} α⟨Tr_M[H N' inner]⟩, N = V^{1/2}N'
        (its like on both sides where `inner` is H): symmetric."""
        root = sqrt_psd(V)
        other = root if inner is H else jnp.eye(len(V), dtype=V.dtype)
        K = jnp.einsum("pc,qd,cdef,ea,fb->pqab", root, other, self.between(H, inner), root, other)
        return jnp.linalg.eigh(symmetric(K.reshape(V.size, V.size)))

    def search(self, rank: Array, low: Array, high: Array) -> tuple[Array, Array]:
        """Find the smallest m, and its V, outside the bulk and, for a rank >= 0, above the outlier
        of that rank; NaN if there is none below `high`."""
        P = self.G.shape[1]

        def halve(_: int | Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            low, high, V = carry
            middle = 0.5 * (low + high)
            new, H, above = self.resolvent(middle, V)
            value = self.top(new, H, self.G)[0][P * P - 1 - jnp.maximum(rank, 0)]
            above = above & ((rank < 0) | (value < 1.0))
            low = jnp.where(above, low, middle)
            high = jnp.where(above, middle, high)
            return low, high, jnp.where(above, new, V)

        # V = I/m far above the bulk; from there each m starts at the V of a larger one
        start = jnp.eye(P, dtype=self.G.dtype) / high
        _, m, V = lax.fori_loop(0, _HALVINGS, halve, (low, high, start))
        return jnp.where(m < high, m, jnp.nan), V

    def signal(self, rank: Array, V: Array, optimal: Array) -> tuple[Array, Array]:
        """Return M (not scaled) of the eigenvalue of this rank at its V, and the number of
        eigenvalues that coincide there."""
        P = len(V)
        H, _ = self.response(V)
        values, modes = self.top(V, H, self.G)
        behind = P * P - 1 - jnp.arange(P * P) >= rank
        together = behind & (values > _COPY_RATIO * values[P * P - 1 - rank])
        root = sqrt_psd(V)
        wanted = jnp.linalg.solve(root, optimal).ravel()
        M = root @ (modes @ jnp.where(together, modes.T @ wanted, 0.0)).reshape(P, P)
        return M, jnp.sum(together)


def _definite(V: Array) -> Array:
    """True if V is positive definite; eigensolvers may not end on NaN, which is replaced."""
    finite = jnp.all(jnp.abs(V) < _MAX_ENTRY)
    return finite & (jnp.linalg.eigvalsh(jnp.where(finite, V, 0.0))[0] > 0.0)


def _groups(stands_out: Array, together: Array) -> Array:
    """Count the eigenvalues (A,) of the group that begins at each rank; 0 where none does."""
    covered = jnp.zeros((), int)
    sizes = []
    for rank in range(len(stands_out)):
        begins = stands_out[rank] & (rank >= covered)
        covered = jnp.where(begins, rank + together[rank], covered)
        sizes.append(jnp.where(begins, together[rank], 0))
    return jnp.stack(sizes)


def _grams(bulk: _Bulk, V: Array, M: Array, wanted: Array) -> Array:
    """W_a W_bᵀ/D (A, A, P, P) of eigenvectors that have M_a in common with the signal."""
    P, tokens = bulk.G.shape[1:3]
    covariance = bulk.G + jnp.einsum("pq,mn->pmqn", jnp.eye(P), jnp.eye(tokens))
    H = jax.vmap(lambda V: bulk.response(V)[0])(V)

    def pair(a: Array, b: Array) -> Array:
        signal = jnp.einsum("pa,namct,qc->npmqt", M[a], covariance, M[b])
        source = bulk.trace(jnp.einsum("npmas,nasct,nctqr->npmqr", H[a], signal, H[b]))
        J = jnp.einsum("pa,abcd,bq->pqcd", V[a], bulk.between(H[a], H[b]), V[b])
        noise = fixed_point.resolvent(J, V[a] @ source @ V[b])
        return jnp.where(wanted[a] & wanted[b], M[a] @ M[b].T + noise, 0.0)

    # pair by pair: all at once would hold A² times the matrices of the labels
    ranks = jnp.arange(len(V))
    return lax.map(lambda a: lax.map(lambda b: pair(a, b), ranks), ranks)
