r"""The spectral estimator of an index model, and the start it gives to message passing.

Equations here [theory: spectral, Eqs. (3), (7) to (14)], in units S = I:

    T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,   𝒯_s = G (I + sG)^{-1},   I + G(y) = Cov[z|y]

    W_a      its eigenvectors that stand out, scaled as theory says (spectral_theory.py)
    Ŵ        Σ_a R_a W_a: then Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D, as of a posterior mean
    onsager  Σ_a R_a V_a 𝒯_s X W_a/√D, what message passing has to take off the fields of the same
             inputs

    T_s W = (1/D) Σ_μ x_μ 𝒯_μ x_μᵀ W    by one pass over the inputs, stored, regenerated or sharded

The eigensolver is block Lanczos, restarted from its best vectors until the wanted ones converge:
each vector of its space costs one product, where the LOBPCG of JAX takes four.

The norm of one index is estimated from the labels (`with_estimated_norm`).

Source: [theory: spectral, sections 3 to 5].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import missing, missing_array, symmetric, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import UNIT_INTERVAL, check
from jaxsmi.design.designs import EVERYWHERE, IndexOperator, on_devices
from jaxsmi.inference.gamp_step import GampState, Observations
from jaxsmi.inference.spectral_theory import (
    MAX_OUTLIERS,
    Outlier,
    dressed_covariance,
    label_moments,
    largest_overlap,
    noise_of_shared_nodes,
    outlier,
    tells_nothing,
    token_trace,
    transformed,
)
from jaxsmi.models.base import CENTRED, AbstractModel, check_data, is_centred, model_argument, title
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd

REGULARISATION = 0.95
_LABELS = 4096  # number of labels in the averages of the theory, at most
_RESIDUAL = 1e-3  # residual of an eigenvector: over a gap of 0.05, an angle of 0.02
_DENSE = 64  # P D up to which the matrix is diagonalised
_STAGE = 25  # iterations between two looks at the residual
_MOST_ITERATIONS = 200  # an eigenvalue that has not settled by then is next to the edge
_COMBINATIONS = 4096  # random combinations: 0.2 apart for four vectors; each round halves that
_ROUNDS = 8
# squared distances of Gram matrices, relative, below which vectors are those of an outlier
# (empirical): where its copies are combined, and where there is one
_SAME_GRAM_OF_COPIES = 0.02
_SAME_GRAM = 0.5


class SpectralStart(NamedTuple):
    """The spectral estimate as message passing takes it.

    `state`: a `GampState`; `outlier`: theory's numbers; `eigenpairs`: eigenvectors and their
    values; `has_linear_signal`: labels depend on W at first order.
    """

    state: GampState
    outlier: Outlier
    eigenpairs: Eigenpairs
    has_linear_signal: Array


def spectral(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    regularisation: ArrayLike = REGULARISATION,
    estimate_norm: bool | None = None,
) -> Solution:
    r"""Compute the optimal spectral estimate of W from inputs and labels.

        T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,   𝒯_s = G (I + sG)^{-1},   I + G(y) = Cov[z|y]

    in units in which the prior's second moment S is the identity. Its eigenvectors outside the
    bulk, at most four, have the overlap `spectral_overlap` as D → ∞ and s → 1. `gamp` starts from
    it.

    Args:
        model: A model of indices, whose labels have E[z|y] = 0.
        data: N samples, inputs stored or regenerated, on one device or sharded.
        key: Random key of the eigensolver's start, and of channels that sample. Required.
        regularisation: s in (0, 1); nearer to one the vector is better and harder to find. Default
            0.95, which costs one per cent of the overlap of phase retrieval, five of attention.
        estimate_norm: Estimate the norm of the teacher from the labels. Default None: for one index
            with the default Gaussian prior.

    Returns:
        A `Solution` with `weights` Ŵ (P, D), scaled as a posterior mean (Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D),
        `overlap` Ŵ Ŵᵀ/D, `covariance` (of a Gaussian prior S - Q), `error`, `model`, whose prior
        has the norm that was estimated, and the `state` that message passing starts with; `steps`
        of the eigensolver and `residual` of the eigenvectors (the aim is 1e-3, and 1e-2 is
        accepted); `history`, one record, with "eigenvalue" (1, 4), theory's "outlier" (1, A), NaN
        where no group of eigenvalues begins, "edge" of the bulk (1,) and "expected" overlap Q (1,
        P, P) for these labels, which a prior that is not Gaussian improves on. Codes: SUCCESS;
        MAX_STEPS where the eigensolver did not settle; NOTHING_LEARNED, with weights zero, where
        nothing stands out of the bulk; NONFINITE. It has no derivatives.

    Raises:
        ValueError: For a matrix model, a model without a posterior, a prior with a mean, labels
            that depend on W at first order (linear regression, signs: message passing needs no such
            start), arguments out of range. Under jit: NaN, and the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, key = smi.links.phase_retrieval(), jax.random.key(0)
        >>> data = model.sample(key, dimension=200, alpha=3.0)
        >>> bool(smi.spectral(model, data, key=key).cosine[0] > 0.8)
        True

        What message passing makes of it, as `gamp(model, data, key=key)` does by itself:

        >>> start = smi.spectral(model, data, key=key)
        >>> run = smi.gamp(start.model, data, key=key, start=start)
        >>> bool(run.cosine[0] ** 2 > 0.99)
        True

    Cost:
        25 to 200 iterations of two passes over the inputs each; N posteriors, and a
        fraction of a second of linear algebra for theory's numbers.

    Source:
        [theory: spectral, Eqs. (3), (7) to (14)]; for one token [MM18].
    """
    model = model_argument(model, "spectral")
    validate.instance("data", data, Dataset, "smi.Dataset(inputs, labels), or model.sample(..)")
    s = validate.number("regularisation", regularisation, UNIT_INTERVAL)
    key = validate.key("key", key)
    validate.optional(validate.flag, "estimate_norm", estimate_norm)
    data = check_data(model, data)
    model.channel.check_labels(data.labels)
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    observations = Observations.of(with_estimated_norm(model, data, estimate_norm), data)
    start = spectral_start(observations, key, s)
    allowed = "one with E[z|y] = 0, such as phase retrieval (gamp learns others without it)"
    check(~start.has_linear_signal, "model", title(model), allowed)
    valid = centred & ~start.has_linear_signal & validate.valid(s) & validate.valid(model)
    return _solution(observations, start, key, valid)


@eqx.filter_jit
def spectral_start(observations: Observations, key: PRNGKeyArray, s: Array) -> SpectralStart:
    """The start of message passing (module docstring). Theory's averages ⟨·⟩ are over the labels
    at hand, the first 4096."""
    tokens, S = observations.model.channel.tokens, observations.second_moment
    vector_key, channel_key = jax.random.split(key)
    alpha = jnp.asarray(observations.alpha, S.dtype)
    post = observations.prior_response(channel_key)
    moments = label_moments(post, S)
    some = jax.tree.map(lambda x: x[None, :_LABELS], moments)
    optimal = jnp.eye(len(S), dtype=S.dtype) - largest_overlap(some, alpha).state.V
    theory = outlier(some.excess[0], tokens, alpha, s, optimal)
    T = transformed(moments.excess, s)
    H, _ = dressed_covariance(T, theory.resolvent[0], -1.0)
    trace = lambda H: jnp.mean(token_trace(H, tokens), axis=0)
    shift = alpha * (trace(H) - trace(H[:_LABELS] - some.excess[0]))
    ranks = jnp.arange(len(theory.copies))
    wanted = jnp.max(jnp.where(theory.copies > 0, ranks + theory.copies, 0))
    eigenpairs = eigenvectors(Product(observations, T, shift), wanted, theory.learned, vector_key)
    W = combined(eigenpairs.vectors, theory, jax.random.fold_in(vector_key, 1))
    state = _state(observations, W, T, theory)
    # each label counts as a net: their spread is the error of the mean
    floor = noise_of_shared_nodes(post, S)
    has_linear_signal = ~tells_nothing(moments.signal[:, None], floor)
    return SpectralStart(state, theory, eigenpairs, has_linear_signal)


def _state(observations: Observations, W: Array, T: Array, theory: Outlier) -> GampState:
    """Return the state of message passing with the spectral estimate, zero where unlearned."""
    S = observations.second_moment
    inverse = inverse_root(S)
    Q = theory.overlap
    rest = jnp.linalg.inv(jnp.eye(len(S), dtype=S.dtype) - Q)
    precision = inverse @ rest @ Q @ inverse
    scale = inverse @ rest @ theory.scale
    b = jnp.einsum("apq,aqd->pd", scale, W)
    mean, covariance = observations.model.prior.posterior(b, precision)
    A, P, D = W.shape
    tokens = observations.model.channel.tokens
    fields = observations.forward(W.reshape(A * P, D)).reshape(-1, A, P * tokens)
    weighted = jnp.einsum("nij,naj->nai", T, fields).reshape(-1, A, P, tokens)
    g = jnp.einsum("apq,naqm->npm", scale @ theory.resolvent, weighted)
    onsager = jnp.einsum("pq,nqm->npm", covariance, g)
    omega = observations.forward(mean) - onsager
    return GampState(mean, covariance, onsager, g, omega, precision, jnp.zeros((), int))


@eqx.filter_jit
def _solution(
    observations: Observations, start: SpectralStart, key: PRNGKeyArray, valid: Array
) -> Solution:
    """Return the estimate as a `Solution`."""
    model, data = observations.model, observations.data
    state, eigenpairs, theory = start.state, start.eigenpairs, start.outlier
    masked = lambda x: jnp.where(valid, x, missing())
    # ten times as much, an angle of 0.2, still costs only 4 % of the overlap
    settled = eigenpairs.residual < 10.0 * _RESIDUAL
    code = choose(
        (True, Result.MAX_STEPS),
        (settled, Result.SUCCESS),
        (~theory.learned, Result.NOTHING_LEARNED),
        (~jnp.all(jnp.isfinite(state.weights)), Result.NONFINITE),
        (~valid, Result.INVALID),
    )
    measured = model.metric.overlaps(state.weights, data.teacher)
    root = sqrt_psd(observations.second_moment)
    found = {"eigenvalue": eigenpairs.values, "outlier": theory.eigenvalue, "edge": theory.edge}
    expected = root @ theory.overlap @ root
    history = {"step": jnp.zeros(()), **measured, **found, "expected": expected}
    Q = masked(measured["overlap"])
    return Solution(
        overlap=Q,
        stderr=jnp.zeros_like(Q),
        error=masked(model.metric.error(state.weights, data, key=jax.random.fold_in(key, 1))),
        alpha=jnp.asarray(observations.alpha, Q.dtype),
        steps=eigenpairs.iterations,
        residual=eigenpairs.residual,
        result=code,
        history=jax.tree.map(lambda x: masked(x)[None], history),
        covariance=masked(state.covariance),
        spectral_radius=missing_array((), Q.dtype),
        weights=masked(state.weights),
        state=state,
        model=model,
        key=key,
        kind="spectral",
    )


# Eigenvectors


class Product(eqx.Module):
    """The matrix T_s - shift.

    The shift (P, P) is α⟨Tr_M G⟩, corrected for averaging theory over a subset of the labels. It
    vanishes in expectation; in a sample it moves all eigenvalues together, and those of different
    indices against each other.
    """

    observations: Observations
    T: Array
    shift: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(P, D)."""
        data = self.observations.data
        P, D = self.observations.model.design.shapes(data.inputs.shape).signal
        return P, D

    def __call__(self, vectors: Array) -> Array:
        """Apply the operator to columns (P D, k)."""
        P, D = self.shape
        weights = vectors.T.reshape(-1, P, D)
        # not the design's own operator: only index models have these products
        product = lambda seen, T, W: IndexOperator(seen.data.inputs, seen.axes).weighted(T, W)
        of_samples = lambda arguments: [*arguments[0].of_samples, arguments[1]]
        arguments = (self.observations, self.T, weights)
        result = on_devices(product, self.observations.mesh, arguments, of_samples, EVERYWHERE)
        result = result - jnp.einsum("pq,kqd->kpd", self.shift, weights)
        return result.reshape(-1, P * D).T


class Eigenpairs(NamedTuple):
    """Eigenvectors of norm one, their values (k,), the largest residual of those that are wanted,
    and the iterations taken."""

    vectors: Array
    values: Array
    residual: Array
    iterations: Array


def eigenvectors(product: Product, wanted: Array, learned: Array, key: PRNGKeyArray) -> Eigenpairs:
    """The top eigenvectors (k, P, D) of the matrix, up to four, the first `wanted` of them to the
    residual; it does not begin where nothing is `learned`."""
    P, D = product.shape
    k = min(MAX_OUTLIERS, P * D)
    small = P * D <= _DENSE
    end = _dense(product, k, learned) if small else _lanczos(product, k, wanted, learned, key)
    vectors = end.vectors.T
    # rounding would choose the signs, and a run on several devices begin elsewhere than on one
    largest = jnp.argmax(jnp.abs(vectors), axis=1, keepdims=True)
    signs = jnp.where(jnp.take_along_axis(vectors, largest, 1) < 0.0, -1.0, 1.0)
    return end._replace(vectors=(signs * vectors).reshape(k, P, D))


def _dense(product: Product, k: int, learned: Array) -> Eigenpairs:
    """Find the eigenvectors of the whole matrix."""
    matrix = symmetric(product(jnp.eye(math.prod(product.shape), dtype=product.T.dtype)))
    sound = learned & jnp.all(jnp.isfinite(matrix))  # an eigensolver may not end on NaN
    values, vectors = jnp.linalg.eigh(jnp.where(sound, matrix, 0.0))
    zero = jnp.zeros((), product.T.dtype)
    return Eigenpairs(vectors[:, ::-1][:, :k], values[::-1][:k], zero, jnp.zeros((), int))


def _lanczos(
    product: Product, k: int, wanted: Array, learned: Array, key: PRNGKeyArray
) -> Eigenpairs:
    """Find the eigenvectors by block Lanczos, begun again from its best vectors."""
    P, D = product.shape
    blocks = min(_STAGE, (P * D) // k - 1)  # no more vectors than dimensions

    def stage(now: Eigenpairs) -> Eigenpairs:
        values, vectors = _ritz(product, now.vectors, blocks)
        missed = jnp.linalg.norm(product(vectors) - values * vectors, axis=0)
        worst = jnp.max(jnp.where(jnp.arange(k) < wanted, missed, 0.0))
        return Eigenpairs(vectors, values, worst, now.iterations + blocks)

    def goes_on(now: Eigenpairs) -> Array:
        return learned & (now.residual > _RESIDUAL) & (now.iterations < _MOST_ITERATIONS)

    start = jnp.linalg.qr(jax.random.normal(key, (P * D, k), product.T.dtype))[0]
    unsettled = jnp.asarray(jnp.inf, start.dtype)
    first = Eigenpairs(start, jnp.zeros(k, start.dtype), unsettled, jnp.zeros((), int))
    return lax.while_loop(goes_on, stage, first)


def _ritz(product: Product, start: Array, blocks: int) -> tuple[Array, Array]:
    """Top eigenvalues (k,) and vectors (n, k) of a symmetric matrix on its Krylov space of
    `blocks` blocks, the first of which is the orthonormal `start` (n, k)."""
    n, k = start.shape
    size = blocks * k
    basis = jnp.zeros((n, size + k), start.dtype).at[:, :k].set(start)

    def grown(j: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, matrix = now
        image = product(lax.dynamic_slice_in_dim(basis, j * k, k, axis=1)).astype(basis.dtype)
        coefficients = basis.T @ image  # zero for later blocks: the upper triangle of the matrix
        matrix = lax.dynamic_update_slice_in_dim(matrix, coefficients[:size], j * k, axis=1)
        # orthogonal to all blocks before, and twice: once leaves rounding over a small rest
        new = jnp.linalg.qr(image - basis @ coefficients)[0]
        new = jnp.linalg.qr(new - basis @ (basis.T @ new))[0]
        return lax.dynamic_update_slice_in_dim(basis, new, (j + 1) * k, axis=1), matrix

    nothing = jnp.zeros((size, size), start.dtype)
    basis, matrix = lax.fori_loop(0, blocks, grown, (basis, nothing))
    upper = jnp.triu(matrix)
    values, vectors = jnp.linalg.eigh(upper + jnp.triu(upper, 1).T, symmetrize_input=False)
    top = vectors[:, ::-1][:, :k]
    return values[::-1][:k], basis[:, :size] @ top


def combined(vectors: Array, theory: Outlier, key: PRNGKeyArray) -> Array:
    """W_a (A, P, D): of each group of eigenvectors (k, P, D) the combination whose Gram matrix is
    nearest to that of theory; zero where there is no group. Signs are those of theory's W_a W_bᵀ.
    """
    A, D = len(theory.copies), vectors.shape[-1]
    # one loop over the groups: their search is compiled once
    of_group = lambda a: _nearest(vectors, theory.gram[a, a], a, theory.copies[a], key)
    W = lax.map(of_group, jnp.arange(A))
    W = jnp.where((theory.copies > 0)[:, None, None], W, 0.0)
    for a in range(1, A):
        common = jnp.einsum("bpd,qd->bqp", W[:a], W[a]) / D
        agreement = jnp.sum(common * theory.gram[a, :a])
        W = W.at[a].multiply(jnp.where(agreement < 0.0, -1.0, 1.0))
    return W


def _nearest(weights: Array, gram: Array, rank: Array, copies: Array, key: PRNGKeyArray) -> Array:
    """W (P, D), c · eigenvectors from this rank on, scaled, of a Gram matrix nearest to `gram`.

    With one copy: the first eigenvector close enough. With several: the best random combination,
    refined over eight rounds, of as many vectors as there are copies, or of more if these are not
    close enough. At finite D the eigenvalues of copies differ, and others may lie between them.
    """
    k, _, D = weights.shape
    grams = jnp.einsum("apd,bqd->abpq", weights, weights) / D
    ranks, single = jnp.arange(k), jnp.eye(k)

    def factor(c: Array) -> Array:
        norms = jnp.einsum("...a,...b,abpp->...", c, c, grams)
        return jnp.sqrt(jnp.trace(gram) / norms)

    def distance(c: Array) -> Array:
        c = c * factor(c)[..., None]
        made = jnp.einsum("...a,...b,abpq->...pq", c, c, grams)
        square = jnp.sum((made - gram) ** 2, axis=(-1, -2))
        # the norm of a combination may vanish: argmin would return NaN
        return jnp.where(jnp.isfinite(square), square, jnp.inf)

    def among(count: Array) -> Array:
        taken = (ranks >= rank) & (ranks < rank + count)

        def search(n: int | Array, best: Array) -> Array:
            normal = jax.random.normal(jax.random.fold_in(key, n), (_COMBINATIONS, k))
            trial = jnp.where(taken, best + 0.5**n * normal, 0.0)
            # the best one so far stays among them, so that no round makes it worse
            trial = jnp.concatenate([best[None], trial / jnp.linalg.norm(trial, axis=1)[:, None]])
            return trial[jnp.argmin(distance(trial))]

        return lax.fori_loop(0, _ROUNDS, search, single[rank])

    several = copies > 1
    counts = ranks + 1
    candidates = jnp.where(several, jax.vmap(among)(counts), single)
    allowed = jnp.where(several, counts >= copies, ranks >= rank)
    away = distance(candidates)
    # the first one that is near enough: with more vectors noise fits the Gram matrix, too
    near = away < jnp.where(several, _SAME_GRAM_OF_COPIES, _SAME_GRAM) * jnp.sum(gram**2)
    c = candidates[jnp.argmin(jnp.where(allowed, jnp.where(near, 0.0, away), jnp.inf))]
    return factor(c) * jnp.tensordot(c, weights, axes=1)


# Norm of one index
_NORM_POINTS = 25  # size of the grid: points half a standard deviation apart (usual)
_NORM_RANGE = 6.0  # half width of the grid of log ρ/S, in standard deviations √(2/D); usual


def with_estimated_norm(model: AbstractModel, data: Dataset, wanted: bool | None) -> AbstractModel:
    """Return the model with the norm of its one index estimated from the labels, if that is
    `wanted` (None: where it is known to help).

    The norm ρ = W* W*ᵀ/D differs from S by S √(2/D), and message passing with the wrong norm loses
    the signal even from the teacher. The labels alone estimate it:

        Ŝ = argmax_ρ  Σ_μ log Z_out(y_μ; 0, ρ) - (D/2) (ρ/S - log ρ/S)

    Source: derived for this library [theory: spectral, Eq. (14)].
    """
    # Gaussian rows without a covariance of their own: who gives one, knows the norm
    usual = model.indices == 1 and model.prior.traits.wishart and not jax.tree.leaves(model.prior)
    wanted = usual if wanted is None else wanted
    allowed = "False: the norm is estimated only for one index with the default Gaussian prior"
    check(usual or not wanted, "estimate_norm", wanted, allowed)
    if not wanted:
        return model
    covariance = _estimated_norm(model, data)
    return eqx.tree_at(lambda m: m.prior.covariance, model, covariance, is_leaf=lambda x: x is None)


@eqx.filter_jit
def _estimated_norm(model: AbstractModel, data: Dataset) -> Array:
    """Ŝ (1, 1), by a grid and a parabola through its best three points."""
    statistic = model.channel.statistic(data.labels)
    zero = jnp.zeros((data.samples, 1, model.channel.tokens), theory_dtype())
    widest = _NORM_RANGE * np.sqrt(2.0 / data.dimension)
    grid = jnp.exp(jnp.linspace(-widest, widest, _NORM_POINTS))
    half = 0.5 * data.dimension

    def evidence(rho: Array) -> Array:
        post = model.channel.respond(statistic, zero, rho * jnp.eye(1), jax.random.key(0))
        return jnp.sum(post.log_partition) - half * (rho - jnp.log(rho))

    values = lax.map(evidence, grid)
    best = jnp.clip(jnp.argmax(values), 1, _NORM_POINTS - 2)
    low, middle, high = (values[best + k] for k in (-1, 0, 1))
    curvature = low - 2.0 * middle + high
    shift = jnp.where(curvature < 0.0, 0.5 * (low - high) / jnp.minimum(curvature, -1e-30), 0.0)
    step = 2.0 * widest / (_NORM_POINTS - 1)
    return (grid[best] * jnp.exp(jnp.clip(shift, -1.0, 1.0) * step)).reshape(1, 1)
