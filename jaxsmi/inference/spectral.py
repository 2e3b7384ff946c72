r"""The spectral estimator of an index model, and the start it gives to message passing.

Equations here [theory: spectral, Eqs. (3), (7) to (15)], in units S = I:

    T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,   𝒯_s = G (I + sG)^{-1},   I + G(y) = Cov[z|y]

    W_a      its eigenvectors that stand out, scaled as theory says (spectral_outlier.py)
    Ŵ        Σ_a R_a W_a: then Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D, as of a posterior mean
    memory   Σ_a R_a V_a 𝒯_s X W_a/√D, what message passing has to take off the fields of the same
             inputs

The norm of one index is that which the labels tell (calibration.py). In directions of which a run
knows nothing yet, once it knows others, the same holds with G of these at its cavity fields, on
vectors orthogonal to what is known.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import nan, not_recorded
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import UNIT_INTERVAL, check
from jaxsmi.inference.calibration import with_norm
from jaxsmi.inference.iteration import GampState, contract, statistic_of
from jaxsmi.inference.observations import Observations
from jaxsmi.inference.spectral_outlier import Outlier, outlier, transformed
from jaxsmi.inference.spectral_theory import (
    LabelMoments,
    label_moments,
    largest_overlap,
    response,
    tells_nothing,
    token_trace,
)
from jaxsmi.inference.spectral_vectors import (
    RESIDUAL,
    Product,
    Search,
    combined,
    eigenvectors,
    orthonormal,
)
from jaxsmi.learners.base import BayesResponder
from jaxsmi.models.base import CENTRED, AbstractModel, check_data, is_centred, model_argument, title
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd, symmetric

REGULARISATION = 0.95
_LABELS = 4096  # at most, that theory's averages are made of
_KNOWN = 0.02  # of S: a direction of which less is known is looked for
_LEARNED = 1e-4  # an overlap of theory, over S, that is none


class SpectralStart(NamedTuple):
    """The spectral estimate as message passing takes it.

    `state`: a `GampState`; `estimate` Ŵ (P, D): its weights, but for what was known before;
    `outlier`: theory's numbers; `search`: eigenvectors and their values; `learned`: theory says
    that something stands out of the bulk.
    """

    state: GampState
    estimate: Array
    outlier: Outlier
    search: Search
    learned: Array


def spectral(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    regularisation: ArrayLike = REGULARISATION,
    norm: bool | None = None,
) -> Solution:
    r"""The optimal spectral estimator on a data set: what the covariances of fields given their
    labels tell of W.

        T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,   𝒯_s = G (I + sG)^{-1},   I + G(y) = Cov[z|y]

    in units in which the prior's second moment S is the identity. Its eigenvectors that stand out
    of the bulk, up to four, have as D → ∞ the overlap of `spectral_overlap`, up to the
    regularisation s < 1. `gamp` starts from it.

    Args:
        model: A model of indices, whose labels say nothing of W at first order (E[z|y] = 0).
        data: N samples, inputs stored or regenerated, on one device or sharded.
        key: Random key of the eigensolver's start, and of channels that sample. Required.
        regularisation: s in (0, 1); nearer to one the vector is better and harder to find. Default
            0.95, which costs one per cent of the overlap of phase retrieval, five of attention.
        norm: Whether the norm of the teacher is estimated from the labels. None: of one index with
            the default Gaussian prior.

    Returns:
        A `Solution` with `weights` Ŵ (P, D), scaled as a posterior mean (Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D),
        `overlap` Ŵ Ŵᵀ/D, `covariance` (of a Gaussian prior S - Q), `error`, `model`, whose prior
        has the norm that was estimated, and the `state` that message passing starts with; `steps`
        of the eigensolver and `residual` of the wanted eigenvectors (1e-3 is asked, 1e-2 taken);
        `history`, one record, with "eigenvalue" (1, 4), theory's "outlier" (1, A), NaN where no
        group of eigenvalues begins, "edge" of the bulk (1,) and "expected" overlap Q (1, P, P) for
        these labels, before a prior that is not Gaussian makes more of it. Codes: SUCCESS;
        MAX_STEPS where the eigensolver did not settle; NOTHING_LEARNED, with weights zero, where
        nothing stands out of the bulk; NONFINITE. It has no derivatives.

    Raises:
        ValueError: For a matrix model, a model without a posterior, a prior with a mean, labels
            that tell W at first order (linear regression, signs: message passing needs no such
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
    validate.instance("data", data, Dataset, "a smi.Dataset, such as model.sample(..)")
    s = validate.number("regularisation", regularisation, UNIT_INTERVAL)
    key = validate.key("key", key)
    validate.optional(validate.flag, "norm", norm)
    data = check_data(model, data)
    model.channel.check_labels(data.labels)
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    model = with_norm(model, data, norm)
    observations = Observations(model, data, data.mesh)
    start, first_order = spectral_start(observations, nothing_known(model, data), key, s)
    allowed = "one whose labels say nothing of W at first order: gamp needs no spectral start"
    check(~first_order, "model", title(model), allowed)
    valid = centred & ~first_order & validate.valid(s) & validate.valid(model)
    return _solution(model, data, start, key, valid)


def spectral_start(
    observations: Observations,
    known: GampState,
    key: PRNGKeyArray,
    s: ArrayLike = REGULARISATION,
) -> tuple[SpectralStart, Array]:
    """The start of message passing in the directions that are not `known`, those of the others as
    they are; and whether labels tell W at first order (module docstring).

    Theory's averages ⟨·⟩ are over the labels at hand, the first 4096.
    """
    # the program of message passing itself: what it computes is not compiled twice
    statistic = statistic_of(BayesResponder(observations.model), observations.data.labels)
    return _started(observations, statistic, known, key, jnp.asarray(s, known.weights.dtype))


@eqx.filter_jit
def _started(
    observations: Observations, statistic: Array, known: GampState, key: PRNGKeyArray, s: Array
) -> tuple[SpectralStart, Array]:
    """`spectral_start`, from what the channel needs of the labels."""
    model, data = observations.model, observations.data
    vector_key, channel_key = jax.random.split(key)
    S = model.prior.second_moment(model.indices)
    unknown = unknown_directions(known.weights, S)
    known = _without(known, unknown, S)
    alpha = jnp.asarray(data.samples / model.design.entries(data.dimension), S.dtype)
    moments = _moments(observations, statistic, known, unknown, channel_key)
    some = jax.tree.map(lambda x: x[None, :_LABELS], moments)
    optimal = jnp.eye(len(S), dtype=S.dtype) - largest_overlap(some, alpha).state.V
    theory = outlier(some.excess[0], model.channel.tokens, alpha, s, optimal)
    learned = jnp.max(jnp.diagonal(optimal)) > _LEARNED
    learned = learned & jnp.all(jnp.isfinite(theory.overlap))
    masked = lambda x: jnp.where(learned, x, 0.0)
    theory = theory._replace(
        overlap=masked(theory.overlap),
        scale=masked(theory.scale),
        resolvent=masked(theory.resolvent),
    )
    T = transformed(moments.excess, s)
    H, _ = response(T, theory.resolvent[0], -1.0)
    trace = lambda H: jnp.mean(token_trace(H, model.channel.tokens), axis=0)
    shift = alpha * (trace(H) - trace(H[:_LABELS] - some.excess[0]))
    others = orthonormal(contract(jnp.eye(len(S)) - unknown, inverse_root(S) @ known.weights))
    product = Product(observations, T, shift, unknown, others)
    ranks = jnp.arange(len(theory.copies))
    wanted = jnp.max(jnp.where(theory.copies > 0, ranks + theory.copies, 0))
    search = eigenvectors(product, wanted, learned, vector_key)
    W = masked(combined(search.vectors, theory, jax.random.fold_in(vector_key, 1)))
    state, estimate = _state(observations, known, unknown, W, T, theory)
    start = SpectralStart(state, estimate, theory, search, learned)
    return start, ~tells_nothing(moments.mean[:, None])


@eqx.filter_jit
def nothing_known(model: AbstractModel, data: Dataset) -> GampState:
    """The state of message passing before anything is learned, Ŵ = 0."""
    signal, fields = model.design.shapes(data.inputs.shape)
    S = model.prior.second_moment(model.indices)
    return GampState.start(jnp.zeros(signal, S.dtype), S, fields)


def unknown_directions(weights: Array, S: Array) -> Array:
    """The projector (P, P), in units S = I, onto directions in which next to nothing is known."""
    inverse = inverse_root(S)
    known = inverse @ (weights @ weights.T / weights.shape[1]) @ inverse
    values, vectors = jnp.linalg.eigh(symmetric(known))
    return jnp.where(values < _KNOWN, vectors, 0.0) @ vectors.T


def new_and_old(unknown: Array, S: Array) -> tuple[Array, Array]:
    """The projectors (P, P) onto unknown directions and the others, in units of S."""
    new = sqrt_psd(S) @ unknown @ inverse_root(S)
    return new, jnp.eye(len(S), dtype=S.dtype) - new


def _without(known: GampState, unknown: Array, S: Array) -> GampState:
    """The state with nothing known in the unknown directions, Ŵ = 0 and C = S there: G ⪰ -I holds
    in units of S, and 𝒯_s is bounded."""
    new, old = new_and_old(unknown, S)
    return GampState(
        weights=contract(old, known.weights),
        covariance=old @ known.covariance @ old.T + new @ S @ new.T,
        memory=jnp.einsum("pq,nqm->npm", old, known.memory),
        g=jnp.einsum("qp,nqm->npm", old, known.g),
        omega=known.omega,
        precision=old.T @ known.precision @ old,
        step=known.step,
    )


def _moments(
    observations: Observations,
    statistic: Array,
    known: GampState,
    unknown: Array,
    key: PRNGKeyArray,
) -> LabelMoments:
    """What each label says of its fields in the unknown directions, given the others, (N, ..)."""
    model = observations.model
    S = model.prior.second_moment(model.indices)
    omega = observations.forward(known.weights) - known.memory
    post = model.channel.respond(statistic, omega, known.covariance, key)
    moments = label_moments(post.g, post.dg, S)
    both = jnp.kron(unknown, jnp.eye(model.channel.tokens, dtype=S.dtype))
    mean = jnp.einsum("pq,nqm->npm", unknown, moments.mean)
    return LabelMoments(mean, both @ moments.excess @ both)


def _state(
    observations: Observations,
    known: GampState,
    unknown: Array,
    W: Array,
    T: Array,
    theory: Outlier,
) -> tuple[GampState, Array]:
    """The state of message passing with the spectral estimate in the unknown directions, of which
    nothing is `known`, and that estimate alone; of what is not learned, zero."""
    prior = observations.model.prior
    S = prior.second_moment(observations.model.indices)
    inverse = inverse_root(S)
    Q = theory.overlap
    rest = jnp.linalg.inv(jnp.eye(len(S), dtype=S.dtype) - Q)
    precision = inverse @ rest @ Q @ inverse
    scale = inverse @ rest @ theory.scale
    mean, covariance = prior.posterior(jnp.einsum("apq,aqd->pd", scale, W), precision)
    A, P, D = W.shape
    tokens = observations.model.channel.tokens
    fields = observations.forward(W.reshape(A * P, D)).reshape(-1, A, P * tokens)
    weighted = jnp.einsum("nij,naj->nai", T, fields).reshape(-1, A, P, tokens)
    g = jnp.einsum("apq,naqm->npm", scale @ theory.resolvent, weighted)

    new, _ = new_and_old(unknown, S)
    estimate = contract(new, mean)
    weights = known.weights + estimate
    memory = known.memory + jnp.einsum("pq,nqm->npm", new @ covariance, g)
    state = GampState(
        weights=weights,
        covariance=known.covariance + new @ (covariance - S) @ new.T,
        memory=memory,
        g=known.g + jnp.einsum("qp,nqm->npm", new, g),
        omega=observations.forward(weights) - memory,
        precision=known.precision + new.T @ precision @ new,
        step=known.step,
    )
    return state, estimate


@eqx.filter_jit
def _solution(
    model: AbstractModel, data: Dataset, start: SpectralStart, key: PRNGKeyArray, valid: Array
) -> Solution:
    """The estimate as a user takes it."""
    state, search = start.state, start.search
    masked = lambda x: jnp.where(valid, x, nan())
    settled = search.residual < 10.0 * RESIDUAL
    code = jnp.where(settled, int(Result.SUCCESS), int(Result.MAX_STEPS))
    code = jnp.where(start.learned, code, int(Result.NOTHING_LEARNED))
    finite = jnp.all(jnp.isfinite(state.weights))
    code = jnp.where(finite, code, int(Result.NONFINITE))
    measured = model.metric.overlaps(state.weights, data.teacher)
    root = sqrt_psd(model.prior.second_moment(model.indices))
    history = {
        "step": jnp.zeros(()),
        **measured,
        "eigenvalue": search.values,
        "outlier": start.outlier.eigenvalue,
        "edge": start.outlier.edge,
        "expected": root @ start.outlier.overlap @ root,
    }
    Q = masked(measured["overlap"])
    return Solution(
        overlap=Q,
        stderr=jnp.zeros_like(Q),
        error=masked(model.metric.error(state.weights, data, key=jax.random.fold_in(key, 1))),
        alpha=jnp.asarray(data.samples / model.design.entries(data.dimension), Q.dtype),
        steps=search.iterations,
        residual=search.residual,
        result=jnp.where(valid, code, int(Result.INVALID)),
        history=jax.tree.map(lambda x: masked(x)[None], history),
        covariance=masked(state.covariance),
        spectral_radius=not_recorded((), Q.dtype),
        weights=masked(state.weights),
        state=state,
        model=model,
        key=key,
        kind="spectral",
    )
