"""The iid priors against exact values, independent quadratures and Monte-Carlo; tolerances say
where they come from."""

import dataclasses
import itertools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import jaxsmi as smi
from helpers import differences, gauss_legendre, mean_and_error, slow_but, z_scores
from jaxsmi.priors import BernoulliGauss, Gaussian, GaussianMixture, Rademacher

KEY = jax.random.key(0)
COVARIANCE = np.array([[1.5, 0.6], [0.6, 0.8]])
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
PRIORS = {
    "covariance": Gaussian(COVARIANCE),
    "singular": Gaussian(SINGULAR),
    "rademacher": Rademacher(),
    "sparse": BernoulliGauss(0.3),
}
BITS = GaussianMixture([0.7, 0.3], [0.0, 1.0], [0.0, 0.0], mirrored=False)
PEAKS = GaussianMixture([0.6, 0.4], [-0.5, 1.5], [0.3, 0.1], mirrored=False)
QHAT = jnp.array([[1.4, 0.5], [0.5, 0.6]])
DIRECTION = np.array([[0.3, 0.2], [0.2, -0.4]])
SLOW = pytest.mark.slow


@pytest.fixture(params=slow_but(PRIORS, "covariance", "singular", "sparse"))
def prior(request):
    return PRIORS[request.param]


@pytest.fixture(params=slow_but(["rademacher", "sparse"], "sparse"))
def discrete(request):
    return PRIORS[request.param]


def log_partition(prior, b, A):
    """log Z_w of one column."""
    return prior.column(len(b)).respond(b, A)[0]


def outer(a, b):
    return np.einsum("pi,qi->pqi", np.asarray(a), np.asarray(b))


def slope(function, x):
    return differences(function, [x])[0]


@eqx.filter_jit
def averages(prior, Qhat):
    """The three averages: one compilation for each kind of prior and P."""
    return {name: getattr(prior, name)(Qhat) for name in ("overlap", "mmse", "free_entropy")}


def scalar(prior, q):
    """The three averages of one index, as numbers."""
    return {name: float(np.sum(x)) for name, x in averages(prior, np.full((1, 1), q)).items()}


@eqx.filter_jit
def derivatives(prior, Qhat):
    """One in reverse mode, one forward."""
    return {
        "free_entropy": jax.grad(prior.free_entropy)(Qhat),
        "overlap": jax.jacfwd(prior.overlap)(Qhat),
    }


@eqx.filter_jit
def posteriors(prior, b, A):
    return jax.vmap(log_partition, (None, 1, None))(prior, b, A), *prior.posterior(b, A)


@eqx.filter_jit
def differentiated(prior, b, A):
    """Posterior mean and covariance of each column by automatic differentiation of log Z."""
    of_column = lambda b: [d(log_partition, 1)(prior, b, A) for d in (jax.grad, jax.hessian)]
    return jax.vmap(of_column, 1)(b)


def test_a_mixture_of_points_is_discrete():
    """By the widths it was made with: those traced, or replaced, are not known to be zero."""
    points = GaussianMixture([0.5, 0.5], [-1.0, 1.0], [0, 0])
    assert points.traits == Rademacher().traits
    assert jax.eval_shape(lambda prior: prior, points).traits.discrete
    replaced = dataclasses.replace(points, scales=jnp.asarray([0.0, 0.1]))
    assert not replaced.traits.discrete
    of_widths = lambda scales: GaussianMixture(points.weights, points.means, scales)
    assert not jax.eval_shape(of_widths, points.scales).traits.discrete


# Samples --------------------------------------------------------------------------------------


def test_sample_moments(prior):
    W = prior.sample(jax.random.key(1), 2, 40_000)
    assert (W.shape, W.dtype) == ((2, 40_000), jnp.float64)
    # |z| < 4.5 for about 20 numbers: one false alarm in 10^4
    assert np.max(np.abs(z_scores(np.asarray(W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(W, W), prior.second_moment(2), axis=-1))) < 4.5


def test_sample_laws():
    assert set(np.unique(Rademacher().sample(KEY, 3, 50))) == {-1.0, 1.0}
    W = np.asarray(BernoulliGauss(0.3).sample(KEY, 2, 40_000))[:1]
    assert abs(z_scores(W != 0.0, 0.3, axis=-1)[0]) < 4.5
    assert abs(z_scores(W[:, W[0] != 0.0] ** 2, 1 / 0.3, axis=-1)[0]) < 4.5


def test_the_second_moment_of_several_matrices():
    """Tr S_a S_b/d of two layers of one teacher, d = 200, ρ = 0.5: 1 + ρ and ρ. The norm of W
    fluctuates by √(2/(r d)) = 0.01, its fourth power by .04, times 1.5; two of these."""
    model = smi.AttentionIndexed(2, 0.5, layers=2)
    teacher = model.sample(KEY, dimension=200, alpha=0.001).teacher
    layers = teacher.reshape(2, -1, 200)
    S = jnp.einsum("lri,lrj->lij", layers, layers) / np.sqrt(layers.shape[1] * 200)
    overlaps = jnp.einsum("lij,mij->lm", S, S) / 200
    np.testing.assert_allclose(overlaps, model.prior.second_moment(2), atol=0.12)


# One field ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_log_partition_exact():
    b, A = jnp.array([0.7, -1.2]), QHAT
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    boltzmann = np.mean([np.exp(w @ b - 0.5 * w @ A @ w) for w in signs])
    np.testing.assert_allclose(log_partition(Rademacher(), b, A), np.log(boltzmann), rtol=1e-13)
    spread = np.linalg.slogdet(np.eye(2) + COVARIANCE @ A)[1]
    gaussian = 0.5 * b @ np.linalg.solve(np.linalg.inv(COVARIANCE) + A, b) - 0.5 * spread
    np.testing.assert_allclose(log_partition(Gaussian(COVARIANCE), b, A), gaussian, rtol=1e-13)
    density, field, a = 0.3, 1.7, 0.9
    slab = lambda w: norm.pdf(w, scale=density**-0.5) * np.exp(field * w - 0.5 * a * w**2)
    sparse = 1 - density + density * quad(slab, -30, 30, epsabs=0, epsrel=1e-12)[0]
    found = log_partition(BernoulliGauss(density), jnp.array([field]), jnp.array([[a]]))
    np.testing.assert_allclose(found, np.log(sparse), rtol=1e-11)


@pytest.mark.parametrize("A", [QHAT, jnp.diag(jnp.array([0.0, 2.0]))], ids=["full", "singular"])
def test_posterior_is_derivative_of_log_partition(prior, A):
    b = jnp.array([[0.3, -2.0, 1.1], [0.8, 0.5, -0.4]])
    _, f, C = posteriors(prior, b, A)
    gradient, hessian = differentiated(prior, b, A)
    np.testing.assert_allclose(f, gradient.T, atol=1e-12)
    np.testing.assert_allclose(C, np.mean(hessian, axis=0), atol=1e-12)


def test_rademacher_posterior_is_tanh():
    b, A = jnp.array([[-30.0, 0.2, 2.0]]), jnp.array([[0.4]])
    f, C = Rademacher().posterior(b, A)
    np.testing.assert_allclose(f, np.tanh(b), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(C[0, 0], np.mean(np.cosh(b) ** -2.0), rtol=1e-13)
    # far from zero C is relative to itself, not to one
    far = Rademacher().posterior(jnp.array([[200.0]]), A)[1]
    np.testing.assert_allclose(far, [[4 * np.exp(-400.0)]], rtol=1e-12)


def test_log_partition_at_extreme_precisions():
    # b²C cancels to 1e-16 · b² = 1e-4 where C is formed first
    scale = 1e6
    value = log_partition(Gaussian(), jnp.full(2, scale), scale * jnp.ones((2, 2)))
    exact = scale**2 / (1 + 2 * scale) - 0.5 * np.log(1 + 2 * scale)
    np.testing.assert_allclose(value, exact, rtol=1e-13)
    # integrals that diverge
    assert np.isnan(log_partition(Gaussian(), jnp.zeros(2), -2.0 * jnp.eye(2)))
    assert np.isnan(log_partition(BernoulliGauss(0.5), jnp.zeros(1), -jnp.eye(1)))
    assert np.isfinite(log_partition(Rademacher(), jnp.zeros(1), -2.0 * jnp.eye(1)))


def test_posterior_keeps_the_precision_of_its_inputs():
    b = jax.random.normal(KEY, (2, 3))
    for name in ("covariance", "sparse"):
        _, *low = posteriors(PRIORS[name], b.astype(jnp.float32), QHAT.astype(jnp.float32))
        assert low[0].dtype == low[1].dtype == jnp.float32
        np.testing.assert_allclose(low[0], posteriors(PRIORS[name], b, QHAT)[1], atol=1e-5)


# Averages -------------------------------------------------------------------------------------


def test_nishimori(prior):
    """Fields b = Q̂w + Q̂^{1/2}ξ, by a Cholesky factor."""
    W = np.asarray(prior.sample(jax.random.key(3), 2, 40_000))
    noise = np.random.default_rng(4).standard_normal(W.shape)
    b = jnp.asarray(QHAT @ W + np.linalg.cholesky(QHAT) @ noise)
    log_partition, f, C = posteriors(prior, b, QHAT)
    expected = averages(prior, QHAT)
    assert np.max(np.abs(z_scores(outer(f, f) - outer(f, W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(f, f), expected["overlap"], axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(f - W, f - W), expected["mmse"], axis=-1))) < 4.5
    np.testing.assert_allclose(C, expected["mmse"], atol=0.02)  # 4.5 standard errors at most
    assert np.abs(z_scores(np.asarray(log_partition), expected["free_entropy"], axis=-1)) < 4.5
    # averages of different functions, each accurate to 1e-13 at this Q̂
    total = expected["overlap"] + expected["mmse"]
    np.testing.assert_allclose(total, prior.second_moment(2), atol=1e-12)


@pytest.mark.parametrize(
    "Q", [QHAT, np.diag([0.0, 2.0]), 1e6 * np.ones((2, 2))], ids=["full", "singular", "large"]
)
@pytest.mark.parametrize("covariance", [np.eye(2), COVARIANCE], ids=["identity", "covariance"])
def test_gaussian_closed_forms(covariance, Q):
    value = averages(Gaussian(covariance), Q)
    left = np.linalg.inv(np.linalg.inv(covariance) + Q)
    np.testing.assert_allclose(value["mmse"], left, atol=1e-9)
    np.testing.assert_allclose(value["overlap"], covariance - left, atol=1e-9)
    free = 0.5 * np.trace(covariance @ Q) - 0.5 * np.linalg.slogdet(np.eye(2) + covariance @ Q)[1]
    np.testing.assert_allclose(value["free_entropy"], free, rtol=1e-13)


def mmse_of_peaks(weights, means, scales, q):
    """E Var[w|u] at u = √q w + ξ of Σ_k p_k N(m_k, s_k²) without a cancellation: Σ_k p_k v_k and
    E Σ_{j<k} r_j r_k (difference of means)², r the odds of the peaks, by Gauss-Legendre panels."""
    p, m, s = (np.asarray(x, float)[:, None] for x in (weights, means, scales))
    root, width = np.sqrt(q), np.sqrt(1 + q * s**2)
    pairs = list(itertools.combinations(range(len(p)), 2))
    middles = [0.5 * root * float(m[j, 0] + m[k, 0]) for j, k in pairs]
    offsets = np.array([0.003, 0.03, 0.1, 0.3, 0.6, 1, 1.5, 2, 3, 4, 6, 8, 12])
    ends = np.concatenate([np.add.outer(middles, sign * offsets).ravel() for sign in (1, 0, -1)])
    ends = np.unique(
        np.concatenate([ends, *(root * m + width * offsets), *(root * m - width * offsets)])
    )
    u, du = (
        np.concatenate(x)
        for x in zip(*[gauss_legendre(a, b, 24) for a, b in itertools.pairwise(ends)], strict=True)
    )
    logs = np.log(p) + norm.logpdf(u, root * m, width)
    odds = np.exp(logs - np.logaddexp.reduce(logs, 0))
    mean = m + root * s**2 / width**2 * (u - root * m)
    gaps = sum(np.exp(logs[j]) * odds[k] * (mean[j] - mean[k]) ** 2 for j, k in pairs)
    return float(np.sum(p * s**2 / width**2) + gaps @ du)


def peaks_of(prior):
    """Weights, means and scales of a prior as a mixture of Gaussian peaks."""
    if isinstance(prior, Rademacher):
        return [0.5, 0.5], [1.0, -1.0], [0.0, 0.0]
    if isinstance(prior, BernoulliGauss):
        density = float(prior.density)
        return [1 - density, density], [0.0, 0.0], [0.0, density**-0.5]
    return prior.weights, prior.means, prior.scales


MIRRORED = GaussianMixture([0.3, 0.7], [1.5, 0.2], [0.4, 0.1])
TWICE = ([0.15, 0.15, 0.35, 0.35], [1.5, -1.5, 0.2, -0.2], [0.4, 0.4, 0.1, 0.1])
QUADRATURES = [(Rademacher(), q) for q in (1e-3, 0.5, 4.0, 60.0, 1000.0)]
QUADRATURES += itertools.product([BernoulliGauss(0.02), BernoulliGauss(0.5)], [1e-3, 1.0, 1e3, 1e6])
QUADRATURES += [*itertools.product([BITS, PEAKS], [0.5, 40.0]), (MIRRORED, 2.3)]


@pytest.mark.parametrize(
    ("prior", "q"),
    [pytest.param(*row, marks=[SLOW] * (row[0] in (BITS, PEAKS, MIRRORED))) for row in QUADRATURES],
    ids=[f"{type(prior).__name__}-{q}" for prior, q in QUADRATURES],  # for -k NAME of a class
)
def test_mmse_of_peaks_by_quadrature(prior, q):
    """Of signs to a relative 1e-10 down to e^{-500}."""
    peaks = TWICE if prior is MIRRORED else peaks_of(prior)
    value, exact = scalar(prior, q), mmse_of_peaks(*peaks, q)
    assert value["mmse"] == pytest.approx(
        exact, rel=1e-10, abs=1e-9 * isinstance(prior, GaussianMixture)
    )
    second = sum(p * (m**2 + s**2) for p, m, s in zip(*map(np.asarray, peaks), strict=True))
    assert float(prior.second_moment(1)[0, 0]) == pytest.approx(float(second), rel=1e-12)
    assert value["overlap"] == pytest.approx(float(second) - exact, abs=1e-9)


def test_rank_one_precision_against_one_dimension():
    """Fields of precision q̂ 11ᵀ see only the mean 1, 0, 0, -1 of two signs, at precision 4 q̂."""
    qhat = 2.3
    exact = 0.5 - mmse_of_peaks([0.25, 0.5, 0.25], [1.0, 0.0, -1.0], [0.0] * 3, 4 * qhat)
    overlap = averages(Rademacher(), qhat * np.ones((2, 2)))["overlap"]
    np.testing.assert_allclose(overlap, np.full((2, 2), exact), atol=1e-9)


def test_two_indices_with_unequal_peaks_on_a_fine_grid():
    """Q at a precision that couples the indices, by a sum over 800² points of b: exact to rounding
    for a Gaussian times something analytic."""
    root = np.linalg.cholesky(QHAT)
    x = np.linspace(-9.0, 11.0, 800)
    u = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    w = np.array(list(itertools.product((0.0, 1.0), repeat=2)))
    weight = np.prod(np.where(w == 1.0, 0.3, 0.7), axis=1)
    density = weight * np.exp(-0.5 * ((u[:, None] - w @ root) ** 2).sum(-1)) / (2 * np.pi)
    f = density @ w / density.sum(1)[:, None]
    exact = np.einsum("n,np,nq->pq", density.sum(1), f, f) * (x[1] - x[0]) ** 2
    np.testing.assert_allclose(BITS.overlap(QHAT), exact, atol=1e-10)
    np.testing.assert_allclose(BITS.mean_overlap(2), np.full((2, 2), 0.09), atol=1e-15)


# the largest error of Q over all Q̂, from the docstring; off the diagonal is E w E w
@pytest.mark.parametrize(
    ("prior", "indices", "tolerance"),
    [
        (Rademacher(), 2, 2e-10),
        (BernoulliGauss(0.3), 2, 4e-9),
        pytest.param(BernoulliGauss(0.3), 3, 2e-5, marks=SLOW),
        pytest.param(Rademacher(), 3, 3e-6, marks=SLOW),
        (Rademacher(), 4, 2e-4),
        pytest.param(BernoulliGauss(0.3), 4, 2e-3, marks=SLOW),
        pytest.param(BITS, 4, 1e-4, marks=SLOW),
    ],
)
def test_diagonal_precision_factorises(prior, indices, tolerance):
    for scale in (1.0, 12.0):
        diagonal = scale * np.array([1.0, 0.5, 2.0, 1.3])[:indices]
        expected = np.array(prior.mean_overlap(indices))
        np.fill_diagonal(expected, [scalar(prior, q)["overlap"] for q in diagonal])
        if indices == 2:  # compiled for other tests
            overlap = averages(prior, np.diag(diagonal))["overlap"]
        else:
            overlap = eqx.filter_jit(type(prior).overlap)(prior, np.diag(diagonal))
        np.testing.assert_allclose(overlap, expected, atol=tolerance)


def test_limits(discrete):
    for indices in (1, 2):
        nothing = averages(discrete, np.zeros((indices, indices)))
        np.testing.assert_allclose(nothing["overlap"], 0.0, atol=1e-30)
        np.testing.assert_allclose(nothing["mmse"], np.eye(indices), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(nothing["free_entropy"], 0.0, atol=1e-13)
        everything = averages(discrete, 1e8 * np.eye(indices))
        np.testing.assert_allclose(everything["overlap"], np.eye(indices), atol=1e-7)
    # ½q̂ - Φ is the information between w and b: log 2 for a sign
    information = 50.0 - scalar(Rademacher(), 100.0)["free_entropy"]
    assert information == pytest.approx(np.log(2.0), rel=1e-12)


# Derivatives: rules against finite differences of the values --------------------------------------


def test_derivatives_against_finite_differences(prior):
    exact = derivatives(prior, QHAT)
    for name, derivative in exact.items():
        along = lambda t, name=name: averages(prior, QHAT + t * DIRECTION)[name]
        change = np.einsum("...pq,pq->...", derivative, DIRECTION)
        np.testing.assert_allclose(change, slope(along, 0.0), atol=1e-6)
    # finite differences of Φ_w are Q/2, too
    half = 0.5 * averages(prior, QHAT)["overlap"]
    np.testing.assert_allclose(exact["free_entropy"], half, atol=1e-13)


def test_derivatives_where_nothing_is_known(prior):
    exact, moment = derivatives(prior, np.zeros((2, 2))), prior.second_moment(2)
    change = np.einsum("ijpq,pq->ij", exact["overlap"], DIRECTION)
    np.testing.assert_allclose(change, moment @ DIRECTION @ moment, atol=1e-12)
    np.testing.assert_allclose(exact["free_entropy"], 0.0, atol=1e-30)


def test_derivatives_at_singular_precision(discrete):
    jacobian = derivatives(discrete, np.diag([0.0, 2.0]))["overlap"]
    chex.assert_tree_all_finite(jacobian)
    np.testing.assert_allclose(jacobian[0, 0, 0, 0], 1.0, atol=1e-10)  # the unlearned index: E[w²]²
    one = derivatives(discrete, 2.0 * np.eye(1))["overlap"][0, 0, 0, 0]
    np.testing.assert_allclose(jacobian[1, 1, 1, 1], one, atol=1e-10)
    V = scalar(discrete, 2.0)["mmse"]  # Q_01 grows as V_00 V_11 Q̂_01
    np.testing.assert_allclose(jacobian[0, 1, 0, 1] + jacobian[0, 1, 1, 0], V, atol=1e-10)


def test_derivative_of_mmse_in_both_modes():
    V = lambda q: Rademacher().mmse(q * jnp.eye(1))[0, 0]
    forward, reverse = jax.jit(lambda q: (jax.jacfwd(V)(q), jax.jacrev(V)(q)))(0.8)
    np.testing.assert_allclose(forward, reverse, rtol=1e-14)
    along = lambda q: scalar(Rademacher(), q)["mmse"]
    np.testing.assert_allclose(forward, slope(along, 0.8), rtol=1e-6)


@SLOW
def test_second_derivatives(discrete):
    second = jax.jit(jax.grad(jax.grad(lambda q: discrete.overlap(q * jnp.eye(1))[0, 0])))
    first = lambda q: derivatives(discrete, q * np.eye(1))["overlap"][0, 0, 0, 0]
    np.testing.assert_allclose(second(0.0), -2.0, rtol=1e-12)  # q = q̂ - q̂² + ..
    np.testing.assert_allclose(second(0.8), slope(first, 0.8), rtol=1e-6)


@SLOW
def test_derivative_in_the_density():
    value = lambda density, name: jnp.sum(getattr(BernoulliGauss(density), name)(3.0 * jnp.eye(1)))
    both = jax.jit(lambda x: [jax.grad(value)(x, name) for name in ("overlap", "free_entropy")])
    inside, end = both(0.2), both(1.0)
    for i, name in enumerate(("overlap", "free_entropy")):
        along = lambda density, name=name: scalar(BernoulliGauss(density), 3.0)[name]
        np.testing.assert_allclose(inside[i], slope(along, 0.2), rtol=1e-6)
        one_sided = (3 * along(1.0) - 4 * along(0.999) + along(0.998)) / 0.002
        np.testing.assert_allclose(end[i], one_sided, atol=1e-5)  # step^2


def test_derivative_in_the_covariance():
    # at the identity all eigenvalues are equal, where the derivative of eigh does not exist
    @jax.jit
    def function(t):
        values = averages(Gaussian(jnp.eye(2) + t * DIRECTION), jnp.asarray(QHAT))
        return jnp.stack([jnp.sum(values["overlap"] * DIRECTION), values["free_entropy"]])

    found = jax.jit(jax.jacfwd(function))(0.0)
    np.testing.assert_allclose(found, slope(function, 0.0), rtol=1e-6)


# Transformations --------------------------------------------------------------------------------


def test_side_information():
    W = jax.random.rademacher(KEY, (2, 40_000), jnp.float64)
    A, b = Rademacher().side_information(jax.random.key(1), W, 0.75)
    np.testing.assert_allclose(A, 3.0 * np.eye(2))
    # b is a field of precision A: mean A w, covariance A
    noise = np.asarray(b - A @ W)
    assert np.max(np.abs(z_scores(noise * np.asarray(W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(noise, noise), A, axis=-1))) < 4.5
    for added in Rademacher().side_information(jax.random.key(1), W, 0.0):
        np.testing.assert_array_equal(added, 0.0)


# Priors that are not even -----------------------------------------------------------------------


def test_a_prior_that_tells_signs_leaves_no_sign_open():
    kinds = lambda model: [part.kind for part in model.symmetry]
    assert kinds(smi.links.phase_retrieval()) == ["sign"]
    assert kinds(smi.links.phase_retrieval(prior=BITS)) == []
    assert kinds(smi.links.sign_product(2, prior=BITS)) == ["permutation"]
    committee = lambda z: jnp.sum(z[:, 0] ** 2)
    free, told = (smi.MultiIndex(committee, indices=2, noise=0.1, prior=p) for p in (None, PEAKS))
    assert (kinds(free), kinds(told)) == (["rotation"], ["permutation"])
    assert smi.DeepAttention(2, 2, prior=BITS).symmetry == ()


RUNS = {
    "bits": (lambda p: smi.links.linear(0.3, prior=p), BITS, 0.6, 10),
    "modulus": (lambda p: smi.links.phase_retrieval(prior=p), PEAKS, 0.6, 40),
    "peaks": (lambda p: smi.links.relu(0.2, prior=p), PEAKS, 1.0, 10),
}


@SLOW
@pytest.mark.parametrize("name", RUNS)
def test_runs_under_priors_with_a_mean_follow_state_evolution(name):
    """Runs at D = 1000: M, Q and the error within four of their standard errors, which finite size
    does not show in. The errors are less than 5 % of the numbers; those of the modulus spread
    widely, 4 % for forty runs."""
    build, prior, alpha, count = RUNS[name]
    model = build(prior)
    theory = smi.state_evolution(model, alpha, key=jax.random.key(1), averages=smi.Averages(2**12))
    Q = float(theory.overlap[0, 0])
    rows = []
    for seed in range(count):
        data = model.sample(jax.random.key(seed), dimension=1000, alpha=alpha)
        run = smi.gamp(model, data, key=jax.random.key(100 + seed))
        W, estimate = np.asarray(data.teacher), np.asarray(run.weights)
        rows.append([(W * estimate).mean(), (estimate**2).mean(), ((W - estimate) ** 2).mean()])
    mean, error = mean_and_error(rows)
    left = float(prior.second_moment(1)[0, 0]) - Q
    print(name, Q, left, mean, error)
    assert (np.abs(mean - [Q, Q, left]) < 4.0 * error).all()
    assert (error < 0.05 * np.abs(mean)).all()


@SLOW
def test_state_evolution_starts_with_what_the_mean_tells():
    """Linear labels of variance Δ with zeros and ones: the fixed point of Q = F(α/(Δ + S - Q)), by
    iteration of sums over the two points and a grid of the noise."""
    noise, alpha, Q = 0.3, 0.6, 0.09
    xi = np.linspace(-9.0, 9.0, 2001)
    for _ in range(200):
        q = alpha / (noise + 0.3 - Q)
        b = q * np.array([[0.0], [1.0]]) + q**0.5 * xi
        f = 1.0 / (1.0 + 7.0 / 3.0 * np.exp(0.5 * q - b))
        Q = np.array([0.7, 0.3]) @ (f**2 @ norm.pdf(xi)) * (xi[1] - xi[0])
    model = smi.links.linear(noise, prior=BITS)
    found = smi.state_evolution(model, alpha, key=KEY, iteration=smi.Iteration(newton=False))
    assert float(found.overlap[0, 0]) == pytest.approx(Q, abs=1e-5)  # its tolerance
    assert float(found.history["overlap"][0][0, 0]) > 0.09  # above what is known at once


def test_probabilities_of_an_own_law_add_up_to_one():
    """Weights of a sum of 1.1 gave overlaps that were wrong by a seventh."""

    class Points(smi.priors.AbstractEntries):
        share: float
        traits = smi.priors.Traits(discrete=True, even=False)

        @property
        def entry(self):
            share = jnp.asarray([0.5, 0.2, self.share])
            return jnp.log(share), jnp.asarray([0.0, 1.0, -1.0]), jnp.zeros(3)

    assert float(Points(0.3).second_moment(1)[0, 0]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"entry: got .*1\.1.*; allowed: probabilities"):
        Points(0.4)
