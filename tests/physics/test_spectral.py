"""The optimal spectral estimator, its theory and the start it gives [theory: spectral, Eqs. (1) to (14)]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import jaxsmi as smi
from helpers import mean_and_error, result, runs_of
from jaxsmi import Result
from jaxsmi.inference.spectral import combined, with_estimated_norm
from jaxsmi.inference.spectral_theory import (
    LabelMoments,
    Outlier,
    largest_overlap,
    outlier,
    transformed,
)

KEY, SLOW = jax.random.key(0), pytest.mark.slow
PHASE = smi.links.phase_retrieval()


def one_layer(alpha, tokens):
    """The closed case of one attention layer, r² ~ χ²_M, by quadrature and a root. Of one token:
    Eq. (6), G = y² - 1 with y ~ N(0, 1), the case of phase retrieval."""

    def level(q):
        def part(r):
            return (r**2 - 1) ** 2 / (1 - q + q * r**2) * stats.chi.pdf(r, tokens)

        mean = integrate.quad(part, 0, 15, limit=400)[0]
        return alpha * ((1 - q) * mean + tokens - 1) - 1

    return optimize.brentq(level, 1e-9, 1 - 1e-9, xtol=1e-13)


def phase_retrieval(alpha):
    return one_layer(alpha, 1)


def signs(alpha):
    c = 2 / np.pi
    a = alpha * c**2
    return (a - np.sqrt(a**2 - 4 * c**2 * (a - 1))) / (2 * c**2)


CLOSED = [
    (PHASE, 0.6, phase_retrieval(0.6)),
    (PHASE, 1.5, phase_retrieval(1.5)),
    (smi.DeepAttention(1, 2), 0.3, one_layer(0.3, 2)),
    (smi.DeepAttention(1, 3), 0.25, one_layer(0.25, 3)),
    pytest.param(smi.links.sign_product(2), 2.6, signs(2.6), marks=SLOW),
]


@pytest.mark.parametrize(("model", "alpha", "exact"), CLOSED)
def test_closed_cases(model, alpha, exact):
    """Four standard errors, of sixteen nets; signs have no statistical error, but that of the
    fixed point (1e-7)."""
    found = smi.spectral_overlap(model, alpha, key=KEY)
    gap = np.abs(found.value - exact * np.eye(model.indices))
    assert np.all(gap <= 4.0 * found.stderr + 1e-6)
    assert np.all(found.stderr < 0.01)


def test_the_quadratures_of_these_tests_give_the_reference():
    """[theory: spectral, Eq. (6)], to the ten digits of a computation done elsewhere; the outlier to
    2e-5, as a prototype has it."""
    np.testing.assert_allclose(phase_retrieval(0.9), 0.1827591719, atol=2e-10)
    np.testing.assert_allclose(one_layer(0.8, 2), 0.8334119141, atol=2e-10)
    np.testing.assert_allclose(signs(4.0), 0.4292036732, atol=2e-10)
    known = [0.79284, 1.06306, 0.18197, 1.03374]
    np.testing.assert_allclose(scalar_outlier(0.9, 0.95), known, atol=3e-5)


def test_it_leaves_zero_at_weak_recovery():
    """Exact thresholds 1/2 and 1/(M(M+1)) = 1/6, where labels of one layer tell all from 1/(M-1)
    on."""
    for model, threshold in ((PHASE, 0.5), (smi.DeepAttention(1, 2), 1 / 6)):
        below = smi.spectral_overlap(model, 0.9 * threshold, key=KEY).value[0, 0]
        above = smi.spectral_overlap(model, 1.15 * threshold, key=KEY).value[0, 0]
        assert abs(float(below)) < 1e-4
        assert float(above) > 0.01
    everything = smi.spectral_overlap(smi.DeepAttention(1, 2), 1.05, key=KEY).value[0, 0]
    np.testing.assert_allclose(everything, 1.0, atol=1e-5)


@SLOW
def test_two_layers_show_the_last_one_alone():
    """Layer 1 stays at zero, beyond its own threshold (0.717), too; layer 2 leaves it at weak
    recovery, and lies below state evolution."""
    model = smi.DeepAttention(2, 2, skip=1.0)
    threshold = smi.weak_recovery(model, key=KEY).alpha
    assert float(smi.spectral_overlap(model, 0.93 * threshold, key=KEY).value[1, 1]) < 1e-3
    for alpha in (0.3, 0.5, 0.9):
        found = smi.spectral_overlap(model, alpha, key=KEY)
        np.testing.assert_allclose(found.value[0], 0.0, atol=1e-6)
        theory = smi.state_evolution(model, alpha, key=KEY).overlap[1, 1]
        assert 0.05 < float(found.value[1, 1]) < float(theory)


@SLOW
@pytest.mark.parametrize(("model", "alpha", "exact"), [CLOSED[0], CLOSED[2]])
def test_the_error_bar_is_honest(model, alpha, exact):
    """24 keys: the mean square of the z-scores within 2.2 (99.9 % of χ²_24/24, and some for tails)."""
    found = [smi.spectral_overlap(model, alpha, key=key) for key in jax.random.split(KEY, 24)]
    scores = [float((x.value[0, 0] - exact) / x.stderr[0, 0]) for x in found]
    assert np.mean(np.square(scores)) < 2.2


def test_the_second_moment_only_sets_the_units():
    """W ~ N(0, S): the labels of phase retrieval scale with √S, and so does Q with S."""
    unit = smi.spectral_overlap(PHASE, 0.9, key=KEY)
    wide = smi.links.phase_retrieval(prior=smi.priors.Gaussian(4.0 * jnp.eye(1)))
    found = smi.spectral_overlap(wide, 0.9, key=KEY).value
    np.testing.assert_allclose(found, 4.0 * unit.value, rtol=1e-5)


def normal_excess(count):
    """G = y² - 1 of phase retrieval at the midpoints of `count` equal parts of the normal law."""
    y = stats.norm.ppf((np.arange(count) + 0.5) / count)
    return jnp.asarray(y**2 - 1)[:, None, None]


def scalar_outlier(alpha, s):
    """Eqs. (8) to (12) for one index and token, by quadrature and a root in V: V, m, q and the
    edge, written independently of the library."""
    G = lambda y: y**2 - 1
    H = lambda y, V: G(y) / (1 + (s - V) * G(y))

    def mean(f):
        return 2 * integrate.quad(lambda y: f(y) * stats.norm.pdf(y), 0, 14, limit=400)[0]

    def level(V):
        return V * alpha * mean(lambda y: G(y) * H(y, V)) - 1

    V = optimize.brentq(level, 0.02, s - 1e-6)
    m = 1 / V + alpha * mean(lambda y: H(y, V))
    kappa = V**2 * alpha * mean(lambda y: H(y, V) ** 2)
    q = (1 - kappa) / (1 + V**2 * alpha * mean(lambda y: H(y, V) ** 2 * G(y)))
    edge = lambda V: V**2 * alpha * mean(lambda y: H(y, V) ** 2) - 1
    at = optimize.brentq(edge, V, s - 1e-6)
    return V, m, q, 1 / at + alpha * mean(lambda y: H(y, at))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.6, 0.9, 1.5])
def test_the_outlier_of_phase_retrieval(alpha):
    """V, m, Q and the edge against an independent quadrature; 2^14 midpoints leave 1e-3 of the
    heavy tail of G."""
    optimal = jnp.full((1, 1), phase_retrieval(alpha))
    got = outlier(normal_excess(2**14), 1, jnp.asarray(alpha), jnp.asarray(0.95), optimal)
    V, m, q, edge = scalar_outlier(alpha, 0.95)
    numbers = [got.resolvent[0, 0, 0], got.eigenvalue[0], got.overlap[0, 0], got.edge]
    np.testing.assert_allclose(numbers, [V, m, q, edge], atol=1e-3)


@SLOW
def test_near_one_the_outlier_is_that_of_linear_message_passing():
    """s → 1: V = I - Q, m = 1 and the overlap of Eq. (4), of two indices with two copies, to a few
    times 1 - s = 0.001; and m to the square of it, m = 1 + (1 - s)/(1 - q): a change of 𝒯_s by
    (1 - s) 𝒯² moves the eigenvalue by (1 - s) g gᵀ/(W Wᵀ) = (1 - s) Q̂/Q."""
    c = 2 / np.pi
    y = jnp.asarray([1.0, -1.0])[:, None, None]
    G = c * y * jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
    q = signs(4.0)
    got = outlier(G, 1, jnp.asarray(4.0), jnp.asarray(0.999), q * jnp.eye(2))
    assert int(got.copies[0]) == 2
    assert not np.any(got.copies[1:])
    np.testing.assert_allclose(got.overlap, q * np.eye(2), atol=1e-3)
    np.testing.assert_allclose(got.resolvent[0], (1 - q) * np.eye(2), atol=2e-3)
    np.testing.assert_allclose(got.eigenvalue[0], 1.0 + 0.001 / (1 - q), atol=2e-5)


@SLOW
def test_the_outlier_of_labels_that_are_not_centred():
    """Any labels have their outlier at m = 1 for s → 1, with V = I - Q of the same labels, as
    α⟨Tr_M G⟩ is taken off: two tokens, 40 labels with a mean of G that is far from zero."""
    roots = jax.random.normal(KEY, (40, 2, 2))
    G = 1.3 * roots @ jnp.swapaxes(roots, 1, 2) - jnp.eye(2)
    assert abs(float(jnp.mean(jnp.trace(G, axis1=1, axis2=2)))) > 0.5
    alpha = jnp.asarray(1.0)
    moments = LabelMoments(jnp.zeros((1, 40, 1, 1)), G[None])
    q = 1.0 - float(largest_overlap(moments, alpha).state.V[0, 0])
    got = outlier(G, 2, alpha, jnp.asarray(0.999), q * jnp.eye(1))
    assert 0.1 < q < 0.95
    np.testing.assert_allclose(got.eigenvalue[0], 1.0 + 0.001 / (1 - q), atol=2e-4)
    np.testing.assert_allclose(got.resolvent[0, 0, 0], 1.0 - q, atol=5e-3)
    np.testing.assert_allclose(got.overlap[0, 0], q, atol=5e-3)


def test_transformed_covariances_are_bounded():
    """T_s = G (I + sG)^{-1} lies in (-1/(1-s), 1/s), for Cov = I + G of any rank."""
    roots = jax.random.normal(KEY, (50, 3, 2))
    G = roots @ jnp.swapaxes(roots, 1, 2) - jnp.eye(3)
    T = transformed(G, 0.9)
    np.testing.assert_allclose(T @ (jnp.eye(3) + 0.9 * G), G, atol=1e-9)
    values = np.linalg.eigvalsh(T)
    assert values.min() > -10.0 - 1e-9
    assert values.max() < 1 / 0.9


def dense(data, s=0.95):
    """Eigenvalues of T_s of phase retrieval, the largest first, those of centred labels, and the
    vector of the first."""
    G = np.asarray(data.labels) ** 2 - 1
    x = np.asarray(data.inputs)[:, 0]
    values, vectors = np.linalg.eigh((x.T * (G / (1 + s * G))) @ x / data.dimension)
    return values[::-1] - len(x) / data.dimension * np.mean(G), vectors[:, -1]


def estimates(seeds, **settings):
    """Data and spectral estimates of phase retrieval."""
    return runs_of(PHASE, seeds, solver=smi.spectral, estimate_norm=False, **settings)


@pytest.mark.slow
def test_it_finds_the_top_eigenvector():
    """Against a dense eigensolver, and scaled to the overlap that theory expects."""
    data = PHASE.sample(KEY, dimension=120, alpha=2.0)
    found = smi.spectral(PHASE, data, key=KEY, estimate_norm=False)
    values, vector = dense(data)
    got = np.asarray(found.history["eigenvalue"][0])
    np.testing.assert_allclose(got[0], values[0], atol=1e-6)  # its residual, 1e-3, squared
    assert np.all(got <= values[:4] + 1e-9)
    cosine = vector @ np.asarray(found.weights[0])
    assert abs(cosine) > (1 - 1e-6) * np.linalg.norm(found.weights)
    np.testing.assert_allclose(found.overlap, found.history["expected"][0], rtol=1e-9)
    np.testing.assert_allclose(found.covariance + found.overlap, 1.0, atol=1e-9)
    assert result(found) == Result.SUCCESS


@SLOW
def test_it_is_scaled_as_a_posterior_mean_and_its_memory_makes_cavity_fields():
    """Of 12 data sets, D = 400, α = 1.5: Ŵ W*ᵀ/D = Ŵ Ŵᵀ/D, and ω of law Q z + noise of variance
    Q(1 - Q): E ω z = E ω² = Q, within four standard errors of the twelve and 0.02 for finite size.
    Without the memory E ω² is larger by a third."""
    rows = []
    for data, found in estimates(12, dimension=400, alpha=1.5):
        z = data.inputs[:, 0] @ data.teacher[0] / jnp.sqrt(400.0)
        cross = jnp.vdot(found.weights, data.teacher) / 400.0
        omega, onsager = found.state.omega[:, 0, 0], found.state.onsager[:, 0, 0]
        aligned = jnp.sign(cross) * jnp.stack([cross, jnp.mean(omega * z)])
        squares = jnp.stack([jnp.mean(omega**2), jnp.mean((omega + onsager) ** 2)])
        rows.append(jnp.concatenate([aligned, squares]) / found.overlap[0, 0])
    mean, error = mean_and_error(rows)
    assert np.all(np.abs(mean[:3] - 1.0) < 4.0 * error[:3] + 0.02)
    assert np.all(error[:3] < 0.05)
    assert mean[3] > 1.3


@SLOW
def test_eigenvalues_lie_where_theory_puts_them():
    """One attention layer, D = 300, α = 0.6: the outlier of twelve data sets within four standard
    errors and 0.02 (finite size) of theory, its spread below 0.1; the second eigenvalue is of the
    bulk, whose edge is approached from below."""
    runs = runs_of(smi.DeepAttention(1, 2), 12, dimension=300, alpha=0.6, solver=smi.spectral)
    past = [found.history for _, found in runs]
    tops = [float(h["eigenvalue"][0, 0] - h["outlier"][0, 0]) for h in past]
    gaps = [float(h["eigenvalue"][0, 1] - h["edge"][0]) for h in past]
    mean, error = mean_and_error(tops)
    assert abs(mean) < 4.0 * error + 0.02
    assert np.std(tops) < 0.1
    assert -0.2 < np.mean(gaps) < 0.05


@SLOW
def test_the_expected_overlap_is_that_of_the_labels_at_hand():
    """Phase retrieval, D = 400, 24 data sets: measured cosine² lie around what is expected of each
    (four standard errors), nearer than around their own mean; and vary with it."""
    runs = [found for _, found in estimates(24, dimension=400, alpha=1.5)]
    expected = [float(found.history["expected"][0, 0, 0]) for found in runs]
    measured = [float(found.cosine[0] ** 2) for found in runs]
    mean, error = mean_and_error(np.subtract(measured, expected))
    assert abs(mean) < 4.0 * error + 0.01
    assert np.corrcoef(expected, measured)[0, 1] > 0.2


@pytest.mark.slow
def test_the_eigenvector_that_theory_means_need_not_be_on_top():
    """In 60 dimensions an eigenvector of layer 1, of which labels tell nothing, came above that of
    layer 2: of theory's it has next to nothing."""
    rng = np.random.default_rng(0)
    P, D, A = 2, 60, 4
    vectors = np.linalg.qr(rng.standard_normal((P * D, A)))[0].T.reshape(A, P, D)
    vectors[0, 1] *= 1e-5  # layer 1 alone
    vectors[1, 0] *= 1e-2  # layer 2
    vectors[3, 0] = 0.0  # layer 2, further down
    gram = np.zeros((A, A, P, P))
    gram[0, 0, 1, 1] = 1.08
    nothing = np.zeros((A, P, P))
    theory = Outlier(
        learned=jnp.asarray(True),
        eigenvalue=jnp.asarray([1.4, np.nan, np.nan, np.nan]),
        edge=jnp.asarray(1.0),
        resolvent=jnp.asarray(nothing),
        scale=jnp.asarray(nothing),
        gram=jnp.asarray(gram),
        overlap=jnp.asarray(np.diag([0.0, 0.92])),
        copies=jnp.asarray([1, 0, 0, 0]),
    )
    W = np.asarray(combined(jnp.asarray(vectors), theory, jax.random.key(0)))
    expected = np.sqrt(1.08 * D) * vectors[1] / np.linalg.norm(vectors[1])
    np.testing.assert_allclose(W[0], expected, atol=1e-12)
    assert (W[1:] == 0.0).all()


@SLOW
def test_two_copies_are_put_together():
    """sign(z1 z2): the eigenvectors are W1 + W2 and W1 - W2; rows of the estimate are the teacher's
    up to the symmetry of the model, each with the cosine² of theory, within 0.15 at D = 500."""
    model = smi.links.sign_product(2)
    key = jax.random.key(1)
    data = model.sample(key, dimension=500, alpha=6.0)
    found = smi.spectral(model, data, key=key)
    np.testing.assert_allclose(found.overlap, found.history["expected"][0], atol=0.1)
    assert np.all(np.abs(found.cosine**2 - signs(6.0)) < 0.15)


@SLOW
def test_a_handful_of_dimensions_or_samples():
    """P D below what the eigensolver takes is diagonalised; one label is no reason to refuse."""
    for dimension, alpha in ((3, 4.0), (30, 1 / 30)):
        data = PHASE.sample(KEY, dimension=dimension, alpha=alpha)
        assert np.isfinite(smi.gamp(PHASE, data, key=KEY, iteration=smi.Iteration(5)).weights).all()
    data = PHASE.sample(KEY, dimension=40, alpha=3.0)
    found = smi.spectral(PHASE, data, key=KEY, estimate_norm=False)
    np.testing.assert_allclose(found.history["eigenvalue"][0], dense(data)[0][:4], rtol=1e-9)


@SLOW
def test_directions_of_unequal_strength_are_put_together():
    """sign(z1 z2) with correlated teachers, α = 10: z1 + z2 and z1 - z2 have an eigenvector each, at
    eigenvalues of their own. The estimate has the overlap of the optimal one, .850 and .603, to
    s < 1 and labels (0.03), and the cosines of each row at D = 200 are within 0.08 of that."""
    S = jnp.asarray([[1.0, 0.6], [0.6, 1.0]])
    model = smi.links.sign_product(2, prior=smi.priors.Gaussian(S))
    limit = smi.spectral_overlap(model, 10.0, key=KEY).value
    for _, found in runs_of(model, 4, dimension=200, alpha=10.0, solver=smi.spectral):
        np.testing.assert_allclose(found.history["expected"][0], limit, atol=0.03)
        np.testing.assert_allclose(found.overlap, limit, atol=0.04)
        np.testing.assert_allclose(found.cosine**2, jnp.diagonal(limit), atol=0.08)


@SLOW
def test_near_the_threshold_the_error_bar_has_what_the_iteration_misses():
    """sign(z1 z2), whose labels have no statistical error, from below α_c = π²/4 to above it: the
    exact overlap within four times the error bar and 1e-6."""
    for alpha in (2.46, 2.468, 2.48):
        found = smi.spectral_overlap(smi.links.sign_product(2), alpha, key=KEY)
        exact = max(signs(alpha), 0.0) if alpha > np.pi**2 / 4 else 0.0
        assert abs(found.value[0, 0] - exact) < 4.0 * found.stderr[0, 0] + 1e-6


@SLOW
def test_below_the_threshold_nothing_is_learned():
    data = PHASE.sample(KEY, dimension=100, alpha=0.3)
    found = smi.spectral(PHASE, data, key=KEY)
    assert result(found) == Result.NOTHING_LEARNED
    np.testing.assert_array_equal(found.weights, 0.0)
    assert "weak_recovery" in found.message


def test_the_norm_is_the_root_of_its_equation():
    """Phase retrieval: N (1/ρ - ⟨y²⟩/ρ²) + D (1 - 1/ρ) = 0, from Eq. (14)."""
    data = PHASE.sample(KEY, dimension=100, alpha=1.3, teacher=1.3 * jnp.ones((1, 100)))
    N, D, square = 130, 100, float(jnp.mean(data.labels**2))
    level = lambda r: N * (1 / r - square / r**2) + D * (1 - 1 / r)
    got = with_estimated_norm(PHASE, data, None).prior.covariance[0, 0]
    np.testing.assert_allclose(got, optimize.brentq(level, 0.5, 4.0), rtol=1e-3)


@SLOW
def test_message_passing_starts_from_it():
    """The default, beside a random start, D = 300, α = 0.9: the end of larger free entropy."""
    data = PHASE.sample(KEY, dimension=300, alpha=0.9)
    run = smi.gamp(PHASE, data, key=KEY)
    assert float(run.overlap[0, 0]) > 0.1
    same = smi.gamp(PHASE, data, key=KEY, start=("spectral", 1e-3))
    np.testing.assert_array_equal(run.weights, same.weights)
    inside = jax.jit(lambda k: smi.gamp(PHASE, data, key=k).weights)(KEY)
    np.testing.assert_allclose(inside, run.weights, atol=1e-6)


@SLOW
def test_a_run_that_loses_it_gives_it_back():
    """Near the threshold in small dimension some runs end at zero: REGRESSED, and the last record is of
    what is returned."""
    runs = (run for _, run in runs_of(PHASE, 40, dimension=200, alpha=0.6, start="spectral"))
    run = next(run for run in runs if result(run) == Result.REGRESSED)
    np.testing.assert_allclose(run.overlap, run.trajectory["overlap"][-1], rtol=1e-12)
    np.testing.assert_allclose(run.overlap, run.weights @ run.weights.T / 200, rtol=1e-12)
    np.testing.assert_array_equal(run.weights, run.state.weights)
    assert float(run.overlap[0, 0]) > 0.01
    assert "spectral" in run.message
