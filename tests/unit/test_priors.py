"""The iid priors against exact values, independent quadratures and Monte-Carlo; tolerances say
where they come from."""

import itertools
import re

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from scipy.integrate import quad
from scipy.stats import norm

import jaxsmi as smi
from helpers import z_scores
from jaxsmi.priors import (
    AbstractIidPrior,
    BernoulliGauss,
    Gaussian,
    GaussianMixture,
    Positive,
    Rademacher,
    columns,
    field_averages,
)

jax.config.update("jax_enable_x64", True)

COVARIANCE = np.array([[1.5, 0.6], [0.6, 0.8]])
SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
PRIORS = {
    "covariance": Gaussian(COVARIANCE),
    "singular": Gaussian(SINGULAR),
    "rademacher": Rademacher(),
    "sparse": BernoulliGauss(0.3),
}
MIXTURES = ["rademacher", "sparse"]
QHAT = jnp.array([[1.4, 0.5], [0.5, 0.6]])
DIRECTION = np.array([[0.3, 0.2], [0.2, -0.4]])
QUANTITIES = ["overlap", "mmse", "free_entropy"]


@pytest.fixture(params=PRIORS)
def prior(request) -> AbstractIidPrior:
    return PRIORS[request.param]


@pytest.fixture(params=MIXTURES)
def discrete(request) -> AbstractIidPrior:
    return PRIORS[request.param]


def log_partition(prior, b, A):
    """log Z_w of one column."""
    return prior.column(len(b)).respond(b, A)[0]


def outer(a, b):
    return np.einsum("pi,qi->pqi", np.asarray(a), np.asarray(b))


def slope(function, x, step):
    """Central difference of order four."""
    near, far = (function(x + s) - function(x - s) for s in (step, 2 * step))
    return (8 * near - far) / (12 * step)


@eqx.filter_jit
def averages(prior, Qhat):
    """The three averages: one compilation for each kind of prior and P."""
    return {name: getattr(prior, name)(Qhat) for name in QUANTITIES}


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
    return jax.vmap(
        lambda b: tuple(d(log_partition, 1)(prior, b, A) for d in (jax.grad, jax.hessian)), 1
    )(b)


# --- samples
# --------------------------------------------------------------------------------------------


def test_sample_moments(prior):
    W = prior.sample(jax.random.key(1), 2, 40_000)
    assert W.shape == (2, 40_000)
    assert W.dtype == jnp.float64
    # |z| < 4.5 for about 20 numbers: one false alarm in 10^4
    assert np.max(np.abs(z_scores(np.asarray(W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(W, W), prior.second_moment(2), axis=-1))) < 4.5


def test_sample_laws():
    assert set(np.unique(Rademacher().sample(jax.random.key(0), 3, 50))) == {-1.0, 1.0}
    W = np.asarray(BernoulliGauss(0.3).sample(jax.random.key(0), 1, 40_000))
    assert abs(z_scores(W != 0.0, 0.3, axis=-1)[0]) < 4.5
    assert abs(z_scores(W[:, W[0] != 0.0] ** 2, 1 / 0.3, axis=-1)[0]) < 4.5
    np.testing.assert_allclose(
        W[:, :9], BernoulliGauss(0.3).sample(jax.random.key(0), 1, 40_000)[:, :9]
    )
    np.testing.assert_allclose(
        Gaussian(SINGULAR).sample(jax.random.key(0), 2, 9) @ np.ones(9),
        [1, 2] * np.ones(2),
        atol=99,
    )


@pytest.mark.parametrize(("name", "expected"), [("covariance", COVARIANCE), ("singular", SINGULAR)])
def test_second_moment_of_gaussian(name, expected):
    np.testing.assert_allclose(PRIORS[name].second_moment(2), expected, atol=1e-14)


@pytest.mark.parametrize("prior", [Gaussian(), Rademacher(), BernoulliGauss(0.2)])
@pytest.mark.parametrize("indices", [1, 3])
def test_unit_second_moment(prior, indices):
    np.testing.assert_allclose(prior.second_moment(indices), np.eye(indices), atol=1e-14)


# --- one field
# --------------------------------------------------------------------------------------------


def test_log_partition_exact():
    b, A = jnp.array([0.7, -1.2]), QHAT
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    boltzmann = np.mean([np.exp(w @ b - 0.5 * w @ A @ w) for w in signs])
    np.testing.assert_allclose(log_partition(Rademacher(), b, A), np.log(boltzmann), rtol=1e-13)
    precision = np.linalg.inv(COVARIANCE) + A
    gaussian = (
        0.5 * b @ np.linalg.solve(precision, b)
        - 0.5 * np.linalg.slogdet(np.eye(2) + COVARIANCE @ A)[1]
    )
    np.testing.assert_allclose(log_partition(Gaussian(COVARIANCE), b, A), gaussian, rtol=1e-13)
    density, field, a = 0.3, 1.7, 0.9
    weight = lambda w: (
        np.exp(field * w - 0.5 * a * w**2 - 0.5 * density * w**2) * np.sqrt(density / (2 * np.pi))
    )
    sparse = 1 - density + density * quad(weight, -30, 30, epsabs=0, epsrel=1e-12)[0]
    np.testing.assert_allclose(
        log_partition(BernoulliGauss(density), jnp.array([field]), jnp.array([[a]])),
        np.log(sparse),
        rtol=1e-11,
    )


@pytest.mark.parametrize(
    "A",
    [QHAT, jnp.zeros((2, 2)), jnp.diag(jnp.array([0.0, 2.0]))],
    ids=["full", "zero", "singular"],
)
def test_posterior_is_derivative_of_log_partition(prior, A):
    b = jnp.array([[0.3, -2.0, 1.1], [0.8, 0.5, -0.4]])
    f, C = prior.posterior(b, A)
    gradient, hessian = differentiated(prior, b, A)
    np.testing.assert_allclose(f, gradient.T, atol=1e-12)
    np.testing.assert_allclose(C, np.mean(hessian, axis=0), atol=1e-12)
    np.testing.assert_allclose(C, C.T, atol=1e-14)


def test_rademacher_posterior_is_tanh():
    b, A = jnp.array([[-30.0, 0.2, 2.0]]), jnp.array([[0.4]])
    f, C = Rademacher().posterior(b, A)
    np.testing.assert_allclose(f, np.tanh(b), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(C[0, 0], np.mean(np.cosh(b) ** -2.0), rtol=1e-13)
    # far from zero C is relative to itself, not to one
    np.testing.assert_allclose(
        Rademacher().posterior(jnp.array([[200.0]]), A)[1], [[4 * np.exp(-400.0)]], rtol=1e-12
    )


def test_posterior_with_large_nearly_singular_precision():
    # b²C cancels to 1e-16 · b² = 1e-4 where C is formed first
    scale = 1e6
    value = log_partition(Gaussian(), jnp.full(2, scale), scale * jnp.ones((2, 2)))
    exact = scale**2 / (1 + 2 * scale) - 0.5 * np.log(1 + 2 * scale)
    np.testing.assert_allclose(value, exact, rtol=1e-13)


def test_log_partition_diverges_to_nan():
    assert np.isnan(log_partition(Gaussian(), jnp.zeros(2), -2.0 * jnp.eye(2)))
    assert np.isnan(log_partition(BernoulliGauss(0.5), jnp.zeros(1), -jnp.eye(1)))
    assert np.isfinite(log_partition(Rademacher(), jnp.zeros(1), -2.0 * jnp.eye(1)))


def test_posterior_in_batches(monkeypatch):
    discrete = PRIORS["sparse"]
    b = jax.random.normal(jax.random.key(0), (2, 12))
    parts = [discrete.posterior(b[:, i : i + 3], QHAT) for i in range(0, 12, 3)]
    monkeypatch.setattr(columns, "_MEMORY", 16 * 5)  # five columns at a time, two left over
    f, C = discrete.posterior(b, QHAT)
    np.testing.assert_allclose(f, jnp.concatenate([part[0] for part in parts], axis=1), atol=1e-15)
    np.testing.assert_allclose(C, np.mean([part[1] for part in parts], axis=0), atol=1e-15)


@pytest.mark.parametrize("name", ["covariance", "sparse"])
def test_posterior_keeps_the_precision_of_its_inputs(name):
    prior = PRIORS[name]
    b = jax.random.normal(jax.random.key(0), (2, 3))
    low = prior.posterior(b.astype(jnp.float32), QHAT.astype(jnp.float32))
    high = prior.posterior(b, QHAT)
    assert low[0].dtype == low[1].dtype == jnp.float32
    np.testing.assert_allclose(low[0], high[0], atol=1e-5)


# --- averages
# --------------------------------------------------------------------------------------------


def fields(prior, Qhat, count):
    """w and b = Q̂w + Q̂^{1/2}ξ, by a Cholesky factor."""
    W = np.asarray(prior.sample(jax.random.key(3), 2, count))
    noise = np.random.default_rng(4).standard_normal(W.shape)
    return W, jnp.asarray(Qhat @ W + np.linalg.cholesky(Qhat) @ noise)


def test_nishimori(prior):
    W, b = fields(prior, QHAT, 40_000)
    log_partition, f, C = posteriors(prior, b, QHAT)
    expected = averages(prior, QHAT)
    assert np.max(np.abs(z_scores(outer(f, f) - outer(f, W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(f, f), expected["overlap"], axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(f - W, f - W), expected["mmse"], axis=-1))) < 4.5
    np.testing.assert_allclose(C, expected["mmse"], atol=0.02)  # 4.5 standard errors at most
    assert np.abs(z_scores(np.asarray(log_partition), expected["free_entropy"], axis=-1)) < 4.5


def test_overlap_and_mmse_sum_to_second_moment(prior):
    # the mixtures' rule at this Q̂ is accurate to 1e-13; both are averages of different functions
    value = averages(prior, QHAT)
    np.testing.assert_allclose(value["overlap"] + value["mmse"], prior.second_moment(2), atol=1e-12)


@pytest.mark.parametrize(
    "Q", [QHAT, np.diag([0.0, 2.0]), 1e6 * np.ones((2, 2))], ids=["full", "singular", "large"]
)
@pytest.mark.parametrize("covariance", [None, COVARIANCE], ids=["identity", "covariance"])
def test_gaussian_closed_forms(covariance, Q):
    value = averages(Gaussian(covariance), Q)
    covariance = np.eye(2) if covariance is None else covariance
    left = np.linalg.inv(np.linalg.inv(covariance) + Q)
    np.testing.assert_allclose(value["mmse"], left, atol=1e-9)
    np.testing.assert_allclose(value["overlap"], covariance - left, atol=1e-9)
    free = 0.5 * np.trace(covariance @ Q) - 0.5 * np.linalg.slogdet(np.eye(2) + covariance @ Q)[1]
    np.testing.assert_allclose(value["free_entropy"], free, rtol=1e-13)


@pytest.mark.parametrize("qhat", [1e-3, 0.5, 4.0, 60.0, 1000.0])
def test_rademacher_mmse_by_adaptive_quadrature(qhat):
    # 1 - E tanh²(q̂ + √q̂ ξ) = e^{-q̂/2} E sech(√q̂ ξ): no cancellation, so relative accuracy down
    # to e^{-500}
    density = lambda b: np.exp(-0.5 * b**2 / qhat) / np.sqrt(2 * np.pi * qhat) / np.cosh(b)
    end = min(60.0, 14 * np.sqrt(qhat))
    half = sum(
        quad(density, *ends, epsabs=0, epsrel=1e-12)[0] for ends in ((0, end / 9), (end / 9, end))
    )
    value = averages(Rademacher(), np.array([[qhat]]))
    np.testing.assert_allclose(value["mmse"][0, 0], 2 * np.exp(-0.5 * qhat) * half, rtol=1e-10)
    tanh = lambda x: (
        np.tanh(qhat + np.sqrt(qhat) * x) ** 2 * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    )
    np.testing.assert_allclose(
        value["overlap"][0, 0], quad(tanh, -12, 12, limit=200)[0], rtol=1e-10
    )


@pytest.mark.parametrize("qhat", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("density", [0.02, 0.5])
def test_sparse_mmse_by_adaptive_quadrature(density, qhat):
    # V = ρ/(ρ+q̂) + E[r(1-r)m²] with r = P(w≠0|b), m = b/(ρ+q̂), in units u = b/√q̂
    wide = np.sqrt(1 + qhat / density)

    def excess(u):
        spike = (1 - density) * np.exp(-0.5 * u**2)
        slab = density * np.exp(-0.5 * (u / wide) ** 2) / wide
        return (
            spike * slab / (spike + slab) * qhat * u**2 / (density + qhat) ** 2 / np.sqrt(2 * np.pi)
        )

    ends = [0, 1, 2, 3, 4, 5, 6, 8, 12]
    total = 2 * sum(
        quad(excess, *pair, epsabs=0, epsrel=1e-12)[0] for pair in itertools.pairwise(ends)
    )
    value = averages(BernoulliGauss(density), np.array([[qhat]]))
    np.testing.assert_allclose(value["mmse"][0, 0], density / (density + qhat) + total, rtol=1e-10)
    np.testing.assert_allclose(value["overlap"], 1 - value["mmse"], atol=1e-12)


@pytest.mark.parametrize("qhat", [0.0, 1.0, 1e4])
def test_fully_dense_is_gaussian(qhat):
    sparse, gaussian = (
        averages(prior, qhat * np.eye(1)) for prior in (BernoulliGauss(1.0), Gaussian())
    )
    chex.assert_trees_all_close(sparse, gaussian, rtol=1e-12, atol=1e-14)


def test_rank_one_precision_against_one_dimension():
    # b_1 = b_2 = b sees only s = w_1 + w_2 = 2, 0, 0, -2, through b = q̂s + √q̂ ξ
    qhat = 2.3

    def integrand(b, power):
        weight = np.exp(2 * b - 2 * qhat), 2.0, np.exp(-2 * b - 2 * qhat)
        f = (weight[0] - weight[2]) / sum(weight)
        return (
            np.exp(-0.5 * b**2 / qhat) / np.sqrt(2 * np.pi * qhat) * 0.25 * sum(weight) * f**power
        )

    exact = quad(integrand, -40, 40, args=(2,), epsabs=1e-13, limit=200)[0]
    overlap = averages(Rademacher(), qhat * np.ones((2, 2)))["overlap"]
    np.testing.assert_allclose(overlap, np.full((2, 2), exact), atol=1e-9)


# the largest error of Q over all Q̂, from the docstring; off-diagonal entries vanish
@pytest.mark.parametrize(
    ("name", "indices", "tolerance"),
    [
        ("rademacher", 2, 2e-10),
        ("sparse", 2, 4e-9),
        pytest.param("sparse", 3, 2e-5, marks=pytest.mark.slow),
        pytest.param("rademacher", 3, 3e-6, marks=pytest.mark.slow),
        ("rademacher", 4, 2e-4),
        pytest.param("sparse", 4, 2e-3, marks=pytest.mark.slow),
    ],
)
def test_diagonal_precision_factorises(name, indices, tolerance):
    overlap = (
        (lambda *at: averages(*at)["overlap"])
        if indices == 2
        else eqx.filter_jit(type(PRIORS[name]).overlap)
    )
    for scale in (1.0, 12.0):
        diagonal = scale * np.array([1.0, 0.5, 2.0, 1.3])[:indices]
        expected = [
            float(averages(PRIORS[name], np.array([[q]]))["overlap"][0, 0]) for q in diagonal
        ]
        np.testing.assert_allclose(
            overlap(PRIORS[name], np.diag(diagonal)), np.diag(expected), atol=tolerance
        )


def test_limits(discrete):
    for indices in (1, 2):
        nothing = averages(discrete, np.zeros((indices, indices)))
        np.testing.assert_allclose(nothing["overlap"], 0.0, atol=1e-30)
        np.testing.assert_allclose(nothing["mmse"], np.eye(indices), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(nothing["free_entropy"], 0.0, atol=1e-13)
        np.testing.assert_allclose(
            averages(discrete, 1e8 * np.eye(indices))["overlap"], np.eye(indices), atol=1e-7
        )


def test_mutual_information_saturates():
    # ½q̂ - Φ is the information between w and b: log 2 for a sign
    np.testing.assert_allclose(
        50.0 - averages(Rademacher(), 100.0 * np.eye(1))["free_entropy"], np.log(2.0), rtol=1e-12
    )


# --- derivatives: rules against finite differences of the values
# ------------------------------------------------------


def test_derivatives_against_finite_differences(prior):
    exact = derivatives(prior, QHAT)
    for name in exact:
        along = lambda t: averages(prior, QHAT + t * DIRECTION)[name]  # noqa: B023
        change = np.einsum("...pq,pq->...", exact[name], DIRECTION)
        np.testing.assert_allclose(change, slope(along, 0.0, 1e-2), atol=1e-6)  # step^4


def test_gradient_of_free_entropy_is_half_the_overlap(prior):
    # with the test above: finite differences of Φ_w are Q/2 too
    half = 0.5 * averages(prior, QHAT)["overlap"]
    np.testing.assert_allclose(derivatives(prior, QHAT)["free_entropy"], half, atol=1e-13)


def test_derivatives_where_nothing_is_known(prior):
    exact, moment = derivatives(prior, np.zeros((2, 2))), prior.second_moment(2)
    change = np.einsum("ijpq,pq->ij", exact["overlap"], DIRECTION)
    np.testing.assert_allclose(change, moment @ DIRECTION @ moment, atol=1e-12)
    np.testing.assert_allclose(exact["free_entropy"], 0.0, atol=1e-30)


def test_derivatives_at_singular_precision(discrete):
    exact = derivatives(discrete, np.diag([0.0, 2.0]))
    jacobian = exact["overlap"]
    chex.assert_tree_all_finite(exact)
    np.testing.assert_allclose(jacobian[0, 0, 0, 0], 1.0, atol=1e-10)  # the unlearned index: E[w²]²
    one = derivatives(discrete, 2.0 * np.eye(1))["overlap"][0, 0, 0, 0]
    np.testing.assert_allclose(jacobian[1, 1, 1, 1], one, atol=1e-10)
    V = averages(discrete, 2.0 * np.eye(1))["mmse"][0, 0]  # Q_01 grows as V_00 V_11 Q̂_01
    np.testing.assert_allclose(jacobian[0, 1, 0, 1] + jacobian[0, 1, 1, 0], V, atol=1e-10)


def test_derivative_of_mmse_in_both_modes():
    prior, Qhat = PRIORS["rademacher"], 0.8 * np.eye(1)
    V = lambda Qhat: prior.mmse(Qhat)[0, 0]
    forward, reverse = jax.jit(lambda Qhat: (jax.jacfwd(V)(Qhat), jax.jacrev(V)(Qhat)))(Qhat)
    np.testing.assert_allclose(forward, reverse, rtol=1e-14)
    along = lambda q: averages(prior, q * np.eye(1))["mmse"][0, 0]
    np.testing.assert_allclose(forward[0, 0], slope(along, 0.8, 1e-2), rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives():
    prior = PRIORS["sparse"]
    second = jax.jit(jax.grad(jax.grad(lambda q: prior.overlap(q * jnp.eye(1))[0, 0])))
    first = lambda q: derivatives(prior, q * np.eye(1))["overlap"][0, 0, 0, 0]
    np.testing.assert_allclose(second(0.0), -2.0, rtol=1e-12)  # q = q̂ - q̂² + ..
    np.testing.assert_allclose(second(0.8), slope(first, 0.8, 1e-2), rtol=1e-6)


def test_known_derivative_is_ito_s_formula():
    @jax.jit
    def both(b):
        general = field_averages.generator(field_averages.log_partition_of)(
            BernoulliGauss(0.3), b, jnp.asarray(QHAT)
        )
        return general, field_averages.half_outer(BernoulliGauss(0.3), b, jnp.asarray(QHAT))

    general, known = both(jnp.array([0.4, -1.1]))
    np.testing.assert_allclose(np.sum(general * DIRECTION), np.sum(known * DIRECTION), rtol=1e-12)


def test_derivative_in_the_density():
    names = ["overlap", "free_entropy"]
    value = lambda prior, name: jnp.sum(getattr(prior, name)(3.0 * jnp.eye(1)))
    derivative = eqx.filter_jit(
        lambda prior: [jax.grad(value)(prior, name).density for name in names]
    )
    for i, name in enumerate(names):
        along = lambda density: np.sum(averages(BernoulliGauss(density), 3.0 * np.eye(1))[name])  # noqa: B023
        np.testing.assert_allclose(
            derivative(BernoulliGauss(0.2))[i], slope(along, 0.2, 1e-3), rtol=1e-6
        )
        one_sided = (3 * along(1.0) - 4 * along(0.999) + along(0.998)) / 0.002
        np.testing.assert_allclose(
            derivative(BernoulliGauss(1.0))[i], one_sided, atol=1e-5
        )  # step^2


def test_derivative_in_the_covariance():
    # at the identity all eigenvalues are equal, where the derivative of eigh does not exist
    @jax.jit
    def function(t):
        values = averages(Gaussian(jnp.eye(2) + t * DIRECTION), jnp.asarray(QHAT))
        return jnp.stack([jnp.sum(values["overlap"] * DIRECTION), values["free_entropy"]])

    np.testing.assert_allclose(
        jax.jit(jax.jacfwd(function))(0.0), slope(function, 0.0, 1e-2), rtol=1e-6
    )


# --- transforms
# --------------------------------------------------------------------------------------------


def test_jit_is_eager_and_vmap_is_loop():
    prior = PRIORS["sparse"]
    batch = jnp.array([0.0, 0.7, 30.0])[:, None, None]
    mapped = jax.vmap(lambda Qhat: prior.overlap(Qhat))(batch)
    np.testing.assert_allclose(
        mapped, [averages(prior, Qhat)["overlap"] for Qhat in batch], atol=1e-14
    )
    densities = jax.vmap(
        lambda density: BernoulliGauss(density).posterior(jnp.ones((1, 2)), batch[1])[0]
    )
    loop = [
        BernoulliGauss(density).posterior(jnp.ones((1, 2)), batch[1])[0] for density in (0.2, 0.5)
    ]
    np.testing.assert_allclose(densities(jnp.array([0.2, 0.5])), loop, atol=1e-15)


def test_new_parameters_do_not_retrace():
    traces = []

    @eqx.filter_jit
    def mean(prior):
        traces.append(None)
        return prior.posterior(jnp.ones((1, 1)), jnp.eye(1))[0]

    values = [float(mean(BernoulliGauss(density))[0, 0]) for density in (0.1, 0.4, 1)]
    assert len(traces) == 1
    assert values[0] != values[1]


def test_side_information():
    W = jax.random.rademacher(jax.random.key(0), (2, 40_000), jnp.float64)
    A, b = Rademacher().side_information(jax.random.key(1), W, 0.75)
    np.testing.assert_allclose(A, 3.0 * np.eye(2))
    # b is a field of precision A: mean A w, covariance A
    noise = np.asarray(b - A @ W)
    assert np.max(np.abs(z_scores(noise * np.asarray(W), 0.0, axis=-1))) < 4.5
    assert np.max(np.abs(z_scores(outer(noise, noise), A, axis=-1))) < 4.5
    for added in Rademacher().side_information(jax.random.key(1), W, 0.0):
        np.testing.assert_array_equal(added, 0.0)


# --- errors
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: BernoulliGauss(0.0), "density"),
        (lambda: BernoulliGauss(1.2), "density"),
        (lambda: BernoulliGauss(np.nan), "density"),
        (lambda: BernoulliGauss([0.1, 0.2]), "density"),
        (lambda: Gaussian(np.ones(3)), "covariance"),
        (lambda: Gaussian([[1.0, 0.3], [0.2, 1.0]]), "covariance"),
        (lambda: Gaussian(np.diag([1.0, -1e-3])), "covariance"),
        (lambda: Gaussian(np.diag([1.0, np.inf])), "covariance"),
        (lambda: Gaussian(COVARIANCE).overlap(jnp.eye(3)), "indices"),
        (lambda: Gaussian(COVARIANCE).second_moment(3), "indices"),
        (lambda: Rademacher().second_moment(9), "indices"),
        (lambda: BernoulliGauss(0.5).overlap(jnp.eye(9)), "indices"),
        (lambda: Rademacher().sample(jax.random.key(0), 0, 5), "indices"),
        (lambda: Gaussian().sample(jax.random.key(0), 1, 0), "dimension"),
        (lambda: Gaussian().overlap(jnp.ones((2, 3))), "Qhat"),
        (lambda: Rademacher().free_entropy(2.0), "Qhat"),
        (lambda: Gaussian().posterior(jnp.ones(3), jnp.eye(1)), "b"),
        (lambda: Gaussian().posterior(jnp.ones((1, 3)), jnp.eye(2)), "A"),
        (lambda: Gaussian().posterior(jnp.ones((1, 1)), jnp.eye(2)), "A"),
        (lambda: Gaussian().side_information(jax.random.key(0), jnp.ones((1, 3)), 1.0), "strength"),
        (
            lambda: Gaussian().side_information(jax.random.key(0), jnp.ones((1, 3)), -0.1),
            "strength",
        ),
        (lambda: Gaussian().side_information(jax.random.key(0), jnp.ones(3), 0.1), "signal"),
        (lambda: Positive(1.0, 0.0), "precision"),
        (lambda: Positive(0.0, -1.0), "precision"),
        (lambda: Positive(jnp.inf), "slope"),
        (lambda: Positive().second_moment(2), "indices"),
        (lambda: GaussianMixture([1.0], [1.0], [0.0], mirrored=1), "mirrored"),
        (
            lambda: smi.weak_recovery(
                smi.links.phase_retrieval(prior=Positive()), key=jax.random.key(0)
            ),
            "model",
        ),
    ],
)
def test_errors_name_the_argument(call, names):
    with pytest.raises(
        (ValueError, TypeCheckError)
    ) as caught:  # the shape checker, where it is on, speaks first
        call()
    if isinstance(caught.value, ValueError):
        assert re.match(rf"(?s){names}: got .*allowed: ", str(caught.value))


def test_traced_parameters_raise_nothing():
    value = jax.jit(
        lambda density: log_partition(BernoulliGauss(density), jnp.ones(1), jnp.eye(1))
    )(-0.5)
    assert np.isnan(value)
    W = jnp.ones((1, 3))
    b = jax.jit(lambda strength: Gaussian().side_information(jax.random.key(0), W, strength)[1])(
        2.0
    )
    assert not np.any(np.isfinite(b))


def test_the_second_moment_of_several_matrices():
    """Tr S_a S_b/d of two layers of one teacher, d = 200, ρ = 0.5: 1 + ρ and ρ. The norm of W
    fluctuates by √(2/(r d)) = 0.01, its fourth power by .04, times 1.5; two of these."""
    model = smi.AttentionIndexed(2, 0.5, layers=2)
    teacher = model.sample(jax.random.key(0), dimension=200, alpha=0.001).teacher
    layers = teacher.reshape(2, -1, 200)
    S = jnp.einsum("lri,lrj->lij", layers, layers) / np.sqrt(layers.shape[1] * 200)
    overlaps = jnp.einsum("lij,mij->lm", S, S) / 200
    np.testing.assert_allclose(overlaps, model.prior.second_moment(2), atol=0.12)


def test_a_mixture_of_peaks_by_adaptive_quadrature():
    """Q = E f(b)² at precision q̂, P = 1; its limits are the other priors."""
    weights, means, scales = [0.3, 0.7], [1.5, 0.2], [0.4, 0.1]
    prior = smi.priors.GaussianMixture(weights, means, scales)
    known = smi.priors.Rademacher().overlap(jnp.eye(2))
    np.testing.assert_allclose(
        smi.priors.GaussianMixture([1.0], [1.0], [0.0]).overlap(jnp.eye(2)), known, atol=1e-12
    )
    qhat = 2.3
    signs = [
        (p / 2, s * m, v**2)
        for p, m, v in zip(weights, means, scales, strict=True)
        for s in (1, -1)
    ]

    def law(b):  # density of b = q̂ w + √q̂ ξ times powers of w
        total = np.zeros(2)
        for p, m, v in signs:
            spread = qhat**2 * v + qhat
            density = p * np.exp(-0.5 * (b - qhat * m) ** 2 / spread) / np.sqrt(2 * np.pi * spread)
            mean = m + qhat * v * (b - qhat * m) / spread
            total += density * np.array([1.0, mean])
        return total

    exact = quad(lambda b: law(b)[1] ** 2 / law(b)[0], -25, 25, epsabs=1e-13, limit=400)[0]
    assert float(prior.overlap(jnp.full((1, 1), qhat))[0, 0]) == pytest.approx(exact, abs=1e-9)
    second = sum(p * (m**2 + v) for p, m, v in signs)
    assert float(prior.second_moment(1)[0, 0]) == pytest.approx(second, abs=1e-12)
    drawn = prior.sample(jax.random.key(0), 1, 100_000)
    assert float((drawn**2).mean()) == pytest.approx(second, abs=0.02)
    for given in (([0.5], [1.0], [0.1]), ([1.0], [1.0, 2.0], [0.1]), ([1.0], [1.0], [-0.1])):
        with pytest.raises(ValueError, match="got"):
            smi.priors.GaussianMixture(*given)
    with pytest.raises(ValueError, match=r"^indices"):
        prior.second_moment(5)


# --- priors that are not even

HALF_LINE = {  # prior, its density, and where that has ended
    "half-normal": (Positive(), lambda w: 2.0 * norm.pdf(w), 9.5),
    "exponential": (Positive(-1.0, 0.0), lambda w: np.exp(-w), 40.0),
    "cut": (Positive(2.0, 1.0), lambda w: norm.pdf(w - 2.0) / norm.cdf(2.0), 12.0),
}
BITS = GaussianMixture([0.7, 0.3], [0.0, 1.0], [0.0, 0.0], mirrored=False)
PEAKS = GaussianMixture([0.6, 0.4], [-0.5, 1.5], [0.3, 0.1], mirrored=False)


def moments_by_quadrature(density, end, q):
    """E w and E w² of the prior, and E Var[w|b] at precision q: quadratures over w inside one over
    u = √q w + ξ."""

    def unknown(u):
        center = u / q**0.5
        points = [x for x in (center - 3 / q**0.5, center, center + 3 / q**0.5) if 0 < x < end]
        law = lambda w: density(w) * norm.pdf(u - q**0.5 * w)
        where = {"points": points or None, "epsabs": 0, "limit": 99}
        m = [quad(lambda w, k=k: law(w) * w**k, 0, end, **where)[0] for k in range(3)]
        return m[2] - m[1] ** 2 / m[0] if m[0] > 0.0 else 0.0

    ends = [-9, -4, -1, 0, 1, 3, 6, 9, 9 + q**0.5 * end]
    parts = (quad(unknown, *pair, epsabs=1e-12, limit=200)[0] for pair in itertools.pairwise(ends))
    moment = lambda k: quad(lambda w: density(w) * w**k, 0, end, epsabs=0, limit=200)[0]
    return moment(1), moment(2), sum(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "q"), list(itertools.product(HALF_LINE, (1e-3, 0.7, 20.0))))
def test_weights_on_the_half_line_by_adaptive_quadrature(name, q):
    prior, density, end = HALF_LINE[name]
    first, second, unknown = moments_by_quadrature(density, end, q)
    Qhat = jnp.full((1, 1), q)
    assert float(prior.mean_overlap(1)[0, 0]) == pytest.approx(first**2, rel=1e-9)
    assert float(prior.second_moment(1)[0, 0]) == pytest.approx(second, rel=1e-9)
    assert float(prior.mmse(Qhat)[0, 0]) == pytest.approx(unknown, abs=1e-9)
    assert float(prior.overlap(Qhat)[0, 0]) == pytest.approx(second - unknown, abs=1e-9)


def test_limits_on_the_half_line():
    """At q̂ = 0 the mean and the variance; far out V = 1/q̂ of a density; a cut far from its peak
    is no cut: 20 widths away it weighs e^{-200}."""
    for prior, _, _ in HALF_LINE.values():
        S, known = prior.second_moment(1)[0, 0], prior.mean_overlap(1)[0, 0]
        nothing = jnp.zeros((1, 1))
        assert float(prior.mmse(nothing)[0, 0]) == pytest.approx(float(S - known), rel=1e-12)
        assert float(prior.overlap(nothing)[0, 0]) == pytest.approx(float(known), rel=1e-12)
        # half of the density at the edge, times E of what is not Gaussian there: of order q̂^{-3/2}
        assert float(prior.mmse(jnp.full((1, 1), 1e8))[0, 0]) == pytest.approx(1e-8, rel=3e-4)
    whole = GaussianMixture([1.0], [20.0], [1.0], mirrored=False)
    for q in (0.3, 1e4):
        values = [float(p.mmse(jnp.full((1, 1), q))[0, 0]) for p in (Positive(20.0, 1.0), whole)]
        np.testing.assert_allclose(values, 1.0 / (1.0 + q), rtol=1e-10)


@pytest.mark.slow
def test_the_posterior_on_the_half_line_is_the_slope_of_its_partition_function():
    """Both branches of the closed forms and where they meet (x = -3), f and C against central
    differences: step² and rounding/step² for C."""
    prior = Positive(-1.0, 0.3)
    A = jnp.full((1, 1), 0.7)
    b = jnp.array([[-60.0, -5.0, -2.001, -2.0, -1.999, 0.0, 3.0, 40.0]])
    at = jax.vmap(lambda field: log_partition(prior, field[None], A))
    step = 1e-4
    up, here, down = (at(b[0] + s) for s in (step, 0.0, -step))
    f, _ = prior.posterior(b, A)
    np.testing.assert_allclose(f[0], (up - down) / (2 * step), rtol=2e-7)
    each = [float(prior.posterior(b[:, i : i + 1], A)[1][0, 0]) for i in range(8)]
    np.testing.assert_allclose(each, (up - 2 * here + down) / step**2, rtol=1e-5, atol=2e-6)
    assert np.isnan(float(log_partition(Positive(-1.0, 0.0), jnp.ones(1), jnp.zeros((1, 1)))))


@pytest.mark.parametrize("name", HALF_LINE)
def test_drawn_weights_have_their_law(name):
    """Kolmogorov and Smirnov: √n sup|F_n - F| < 2, an error of one draw in 1500."""
    prior, density, _ = HALF_LINE[name]
    W = np.sort(np.asarray(prior.sample(jax.random.key(3), 1, 4000))[0])
    assert W[0] > 0.0
    grid = np.linspace(0.0, W[-1], 20001)
    cumulated = np.concatenate([[0.0], np.cumsum(0.5 * (density(grid)[1:] + density(grid)[:-1]))])
    law = np.interp(W, grid, cumulated * grid[1])
    assert 4000**0.5 * np.abs(law - np.arange(0.5, 4000) / 4000).max() < 2.0


@pytest.mark.parametrize("prior", [BITS, PEAKS], ids=["bits", "peaks"])
@pytest.mark.parametrize("q", [0.5, 40.0])
def test_unequal_peaks_by_adaptive_quadrature(prior, q):
    def law(u):  # density of u = √q w + ξ times powers of w
        total = np.zeros(2)
        for p, m, s in zip(prior.weights, prior.means, prior.scales, strict=True):
            p, m, v = float(p), float(m), float(s) ** 2
            density = p * norm.pdf(u, q**0.5 * m, (1.0 + q * v) ** 0.5)
            total += density * np.array([1.0, m + q**0.5 * v * (u - q**0.5 * m) / (1.0 + q * v)])
        return total

    ends = np.linspace(-12.0 - q**0.5, 12.0 + 2.0 * q**0.5, 9)
    square = lambda u: law(u)[1] ** 2 / max(law(u)[0], 1e-300)
    parts = (quad(square, *pair, epsabs=1e-13, limit=200)[0] for pair in itertools.pairwise(ends))
    exact = sum(parts)
    assert float(prior.overlap(jnp.full((1, 1), q))[0, 0]) == pytest.approx(exact, abs=1e-9)


def test_two_indices_with_unequal_peaks_on_a_fine_grid():
    """Q at a precision that couples the indices, by a sum over 800² points of b: exact to rounding
    for a Gaussian times something analytic."""
    Qhat = np.array([[1.4, 0.5], [0.5, 0.6]])
    root = np.linalg.cholesky(Qhat)
    x = np.linspace(-9.0, 11.0, 800)
    u = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    w = np.array(list(itertools.product((0.0, 1.0), repeat=2)))
    weight = np.prod(np.where(w == 1.0, 0.3, 0.7), axis=1)
    density = weight * np.exp(-0.5 * ((u[:, None] - w @ root) ** 2).sum(-1)) / (2 * np.pi)
    f = density @ w / density.sum(1)[:, None]
    exact = np.einsum("n,np,nq->pq", density.sum(1), f, f) * (x[1] - x[0]) ** 2
    np.testing.assert_allclose(BITS.overlap(Qhat), exact, atol=1e-10)
    np.testing.assert_allclose(BITS.mean_overlap(2), np.full((2, 2), 0.09), atol=1e-15)


def test_four_indices_with_unequal_peaks_are_four_times_one():
    """A sequence of 2^18 points: 1e-4 seen of the worst prior."""
    one = float(BITS.overlap(jnp.full((1, 1), 5.0))[0, 0])
    Q = np.asarray(BITS.overlap(5.0 * jnp.eye(4)))
    np.testing.assert_allclose(Q, np.full((4, 4), 0.09) + (one - 0.09) * np.eye(4), atol=1e-4)


def test_a_prior_that_tells_signs_leaves_no_sign_open():
    kinds = lambda model: [part.kind for part in model.symmetry]
    assert kinds(smi.links.phase_retrieval()) == ["sign"]
    assert kinds(smi.links.phase_retrieval(prior=Positive())) == []
    assert kinds(smi.links.sign_product(2, prior=BITS)) == ["permutation"]
    committee = lambda z: jnp.sum(z[:, 0] ** 2)
    free, told = (smi.MultiIndex(committee, indices=2, noise=0.1, prior=p) for p in (None, PEAKS))
    assert (kinds(free), kinds(told)) == (["rotation"], ["permutation"])
    assert smi.DeepAttention(2, 2, prior=BITS).symmetry == ()


RUNS = {
    "half-normal": (lambda p: smi.links.linear(0.5, prior=p), Positive(), 1.0),
    "exponential": (lambda p: smi.links.sign(prior=p), Positive(-1.0, 0.0), 2.0),
    "bits": (lambda p: smi.links.linear(0.3, prior=p), BITS, 0.6),
    "modulus": (lambda p: smi.links.phase_retrieval(prior=p), Positive(), 0.6),
    "peaks": (lambda p: smi.links.relu(0.2, prior=p), PEAKS, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_runs_under_priors_with_a_mean_follow_state_evolution(name):
    """Ten runs at D = 1000: M, Q and the error within four of their standard errors, which finite
    size does not show in. The errors themselves are 0.5 to 3 % of the numbers."""
    build, prior, alpha = RUNS[name]
    model = build(prior)
    theory = smi.state_evolution(model, alpha, key=jax.random.key(1), averages=smi.Averages(2**12))
    Q = float(theory.overlap[0, 0])
    rows = []
    for seed in range(10):
        data = model.sample(jax.random.key(seed), dimension=1000, alpha=alpha)
        run = smi.gamp(model, data, key=jax.random.key(100 + seed))
        W, estimate = np.asarray(data.teacher), np.asarray(run.weights)
        rows.append([(W * estimate).mean(), (estimate**2).mean(), ((W - estimate) ** 2).mean()])
    mean, error = np.mean(rows, 0), np.std(rows, 0, ddof=1) / 10**0.5
    left = float(prior.second_moment(1)[0, 0]) - Q
    print(name, Q, left, mean, error)
    assert (np.abs(mean - [Q, Q, left]) < 4.0 * error).all()
    assert (error < 0.05 * np.abs(mean)).all()


@pytest.mark.slow
def test_state_evolution_starts_with_what_the_mean_tells():
    """Linear labels of variance Δ with zeros and ones: the fixed point of Q = F(α/(Δ + S - Q)), by
    iteration of sums over the two points and a grid of the noise."""
    noise, alpha = 0.3, 0.6
    xi = np.linspace(-9.0, 9.0, 2001)
    Q = 0.09
    for _ in range(200):
        q = alpha / (noise + 0.3 - Q)
        bits = np.array([0.0, 1.0])
        b = q * bits[:, None] + q**0.5 * xi
        f = 1.0 / (1.0 + 7.0 / 3.0 * np.exp(0.5 * q - b))
        Q = np.array([0.7, 0.3]) @ (f**2 @ norm.pdf(xi)) * (xi[1] - xi[0])
    found = smi.state_evolution(
        smi.links.linear(noise, prior=BITS),
        alpha,
        key=jax.random.key(0),
        iteration=smi.Iteration(newton=False),
    )
    assert float(found.overlap[0, 0]) == pytest.approx(Q, abs=1e-5)  # its tolerance
    assert float(found.history["overlap"][0][0, 0]) > 0.09  # above what is known at once
