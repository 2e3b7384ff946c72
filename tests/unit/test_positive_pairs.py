"""Two positive indices that a field couples, against nested adaptive quadratures of SciPy, sums on
grids and Monte-Carlo of plain NumPy, and the one-index closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import dblquad

import jaxsmi as smi
from jaxsmi.priors import Positive

jax.config.update("jax_enable_x64", True)

HALF_NORMAL, EXPONENTIAL, CUT = (0.0, 1.0), (-1.0, 0.0), (2.0, 1.0)
FIELDS = {  # slope and precision of the prior, b, A
    "plain": (HALF_NORMAL, [0.3, -0.5], [[1.0, 0.4], [0.4, 2.0]]),
    "exponential": (EXPONENTIAL, [-3.0, 2.0], [[2.0, 1.9], [1.9, 2.0]]),
    "far in": (HALF_NORMAL, [40.0, 30.0], [[5.0, 1.0], [1.0, 4.0]]),
    "far out": (HALF_NORMAL, [-500.0, -300.0], [[3.0, 1.0], [1.0, 3.0]]),
    "in and out": (CUT, [30.0, -40.0], [[1.0, 0.4], [0.4, 2.0]]),
    "one sum": (HALF_NORMAL, [50.0, 52.0], [[100.0, 99.9], [99.9, 100.0]]),
    "one difference": (CUT, [5.0, 4.0], [[100.0, -99.9], [-99.9, 100.0]]),
    "singular": (EXPONENTIAL, [-3.0, 1.0], [[4.0, -4.0], [-4.0, 4.0]]),
}


def moments(law, b, A):
    """log ∫ e^{h·w - ½w·Hw}, E w and the covariance by adaptive quadratures over the quadrant, as
    far as the density, whose logarithm is concave, is above e^{-45} of its largest."""
    slope, precision = law
    H = np.array(A) + precision * np.eye(2)
    h = np.array(b) + slope
    peak = np.ones(2)
    for _ in range(4000):  # one coordinate after the other
        peak[0] = max((h[0] - H[0, 1] * peak[1]) / H[0, 0], 0.0)
        peak[1] = max((h[1] - H[0, 1] * peak[0]) / H[1, 1], 0.0)

    def exponent(x, y):
        square = H[0, 0] * x * x + 2.0 * H[0, 1] * x * y + H[1, 1] * y * y
        return h[0] * x + h[1] * y - 0.5 * square

    top = exponent(*peak)
    best = lambda x: max((h[1] - H[0, 1] * x) / H[1, 1], 0.0)

    def reach(x):  # of y around the best one
        push = max(H[0, 1] * x - h[1], 0.0)
        return 90.0 / (push + (push**2 + 90.0 * H[1, 1]) ** 0.5)

    def edge(sign):
        away = 1e-6
        x = peak[0] + sign * away
        while x > 0.0 and exponent(x, best(x)) - top > -45.0:
            away *= 1.1
            x = peak[0] + sign * away
        return max(x, 0.0)

    cuts = np.linspace(edge(-1), edge(1), 5)
    options = {"epsabs": 0.0, "epsrel": 1e-10}
    inside = (lambda x: max(best(x) - reach(x), 0.0), lambda x: best(x) + reach(x))

    def integral(function):
        law = lambda y, x: function(x, y) * np.exp(exponent(x, y) - top)
        return sum(dblquad(law, *pair, *inside, **options)[0] for pair in itertools.pairwise(cuts))

    Z = integral(lambda x, y: 1.0)
    sizes = [lambda x, y: (x - peak[0]) ** 2, lambda x, y: (y - peak[1]) ** 2]
    size = np.sqrt([integral(square) / Z for square in sizes])
    # two units off, so that no integral vanishes
    one = lambda x: (x - peak[0]) / size[0] + 2.0
    two = lambda y: (y - peak[1]) / size[1] + 2.0
    first = np.array([integral(lambda x, y: one(x)), integral(lambda x, y: two(y))]) / Z
    mixed = integral(lambda x, y: one(x) * two(y)) / Z
    off = first - 2.0
    square = np.array([[1.0, mixed - 2.0 * first.sum() + 4.0]] * 2)
    square[1] = square[0, ::-1]
    covariance = np.outer(size, size) * (square - np.outer(off, off))
    return np.log(Z) + top, peak + size * off, covariance


def norm_of(law):
    """∫ e^{hw - ½aw²} dw over the half-line, by its closed forms at the three laws."""
    return {HALF_NORMAL: np.sqrt(np.pi / 2.0), EXPONENTIAL: 1.0}.get(
        law, np.sqrt(2.0 * np.pi) * np.exp(2.0) * 0.9772498680518208
    )


def posterior(law, b, A):
    prior = Positive(*law)
    b, A = jnp.asarray(b), jnp.asarray(A)
    f, C = prior.posterior(b[:, None], A)
    return float(prior.log_partition(b, A)), np.asarray(f[:, 0]), np.asarray(C)


def compared(name):
    """Relative to the sizes of w: 1e-8, a hundred times what the quadratures are asked for."""
    law, b, A = FIELDS[name]
    log_Z, f, C = posterior(law, b, A)
    exact_log_Z, exact_f, exact_C = moments(law, b, A)
    assert log_Z == pytest.approx(exact_log_Z - 2.0 * np.log(norm_of(law)), abs=1e-8)
    np.testing.assert_allclose(f, exact_f, rtol=1e-8)
    size = np.sqrt(np.outer(*2 * [np.diag(exact_C)]))
    np.testing.assert_allclose(C / size, exact_C / size, atol=1e-8)


@pytest.mark.slow
def test_a_pair_by_adaptive_quadrature():
    compared("plain")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FIELDS if name != "plain"])
def test_pairs_by_adaptive_quadrature(name):
    compared(name)


def test_a_diagonal_precision_leaves_two_single_indices():
    """To rounding: the rule has 156 nodes."""
    prior = Positive(*EXPONENTIAL)
    A = np.diag([0.7, 5.0])
    for b in ([-60.0, 1.0], [-2.0, -7.0], [0.0, 40.0], [3.0, 0.3]):
        _, f, C = posterior(EXPONENTIAL, b, A)
        alone = [prior.posterior(np.full((1, 1), b[p]), A[p : p + 1, p : p + 1]) for p in (0, 1)]
        np.testing.assert_allclose(f, [float(f[0, 0]) for f, _ in alone], rtol=1e-12)
        np.testing.assert_allclose(C, np.diag([float(C[0, 0]) for _, C in alone]), atol=1e-13)


def drawn_averages(Qhat, samples, seed):
    """Means and standard errors of f fᵀ, w* fᵀ and log Z_w of half-normal pairs, in plain NumPy:
    the posterior is a sum over 80² Gauss–Legendre nodes of [0, 9]²."""
    random = np.random.default_rng(seed)
    w = np.abs(random.standard_normal((samples, 2)))
    b = w @ Qhat + random.standard_normal((samples, 2)) @ np.linalg.cholesky(Qhat).T
    x, weight = np.polynomial.legendre.leggauss(80)
    x, weight = 4.5 * (x + 1.0), 4.5 * weight * np.sqrt(2.0 / np.pi)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    square = np.einsum("np,pq,nq->n", grid, Qhat + np.eye(2), grid)
    factor = np.outer(weight, weight).ravel() * np.exp(-0.5 * square)
    law = np.exp(b @ grid.T) * factor
    Z = law.sum(1)
    f = law @ grid / Z[:, None]
    products = lambda one, two: (one[:, :, None] * two[:, None, :]).reshape(samples, 4)
    rows = np.concatenate([products(f, f), products(w, f), np.log(Z)[:, None]], axis=1)
    return rows.mean(0), rows.std(0) / samples**0.5


@pytest.mark.slow
def test_averages_over_fields_beside_plain_monte_carlo():
    """Within four standard errors, of 1 to 3 % of the numbers; E f fᵀ = E w* fᵀ of Nishimori."""
    Qhat = np.array([[1.4, 0.9], [0.9, 0.8]])
    mean, error = drawn_averages(Qhat, 4000, 0)
    prior = Positive()
    Q = np.asarray(prior.overlap(Qhat)).ravel()
    exact = np.concatenate([Q, Q, [float(prior.free_entropy(Qhat))]])
    assert (np.abs(mean - exact) < 4.0 * error).all()
    assert (error < 0.04 * np.abs(exact)).all()


SPREAD = [(0.0, 0.0), (1.0, 0.3), (10.0, 0.0), (100.0, 1.0), (1e4, 1.0), (1e6, 30.0)]


@pytest.mark.slow
@pytest.mark.parametrize("law", [HALF_NORMAL, EXPONENTIAL, CUT, (20.0, 1.0), (-5.0, 0.1)])
def test_what_is_known_and_what_is_left_make_the_second_moment(law):
    """E f fᵀ + E C = E w wᵀ, where all three are computed apart, also where Q̂ is singular; and
    a diagonal Q̂ against one index."""
    prior = Positive(*law)
    S = np.asarray(prior.second_moment(2))
    for (r, s), angle in zip(SPREAD, itertools.cycle((0.6, -1.0)), strict=False):
        axes = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        Qhat = (axes * [r, s]) @ axes.T
        np.testing.assert_allclose(prior.overlap(Qhat) + prior.mmse(Qhat), S, atol=1e-9 * S[0, 0])
    q = np.array([300.0, 0.2])
    alone = [float(prior.mmse(np.full((1, 1), value))[0, 0]) for value in q]
    np.testing.assert_allclose(prior.mmse(np.diag(q)), np.diag(alone), rtol=1e-9, atol=1e-12)
    free = sum(float(prior.free_entropy(np.full((1, 1), value))) for value in q)
    assert float(prior.free_entropy(np.diag(q))) == pytest.approx(free, rel=1e-9)


@pytest.mark.slow
def test_derivatives_of_averages_by_differences():
    """In Q̂ and in the parameters of the prior: errors step² and rounding/step."""
    Qhat, change = jnp.array([[1.4, 0.9], [0.9, 0.8]]), jnp.array([[0.3, -0.2], [-0.2, 0.5]])

    def function(t):
        prior = Positive(0.5 + 0.4 * t, 1.0 - 0.3 * t)
        moved = Qhat + t * change
        return jnp.append(prior.overlap(moved).ravel(), prior.free_entropy(moved))

    slope = jax.jvp(function, (0.0,), (1.0,))[1]
    step = 1e-3
    np.testing.assert_allclose(slope, (function(step) - function(-step)) / (2 * step), rtol=1e-5)


def test_more_than_two_indices_are_refused():
    for call in (lambda: Positive().second_moment(3), lambda: Positive().mmse(np.eye(3))):
        with pytest.raises(ValueError, match=r"^indices: got 3; allowed: 1 or 2 .* GaussianM"):
            call()


@pytest.mark.slow
def test_a_committee_of_two_half_normal_indices_follows_state_evolution():
    """Ten runs at D = 1000: overlaps with the signal and with itself within four of their
    standard errors."""
    link = lambda z: jnp.tanh(z[0, 0]) + 2.0 * jnp.tanh(z[1, 0])
    model = smi.MultiIndex(link, indices=2, noise=0.3, prior=Positive())
    theory = smi.state_evolution(model, 1.5, key=jax.random.key(1), samples=2**11)
    Q = np.asarray(theory.overlap)
    rows = []
    for seed in range(10):
        data = model.sample(jax.random.key(seed), dimension=1000, alpha=1.5)
        run = smi.gamp(model, data, key=jax.random.key(100 + seed))
        W, estimate = np.asarray(data.teacher), np.asarray(run.weights)
        rows.append([W @ estimate.T / 1000, estimate @ estimate.T / 1000])
    mean, error = np.mean(rows, 0), np.std(rows, 0, ddof=1) / 10**0.5
    print(Q, theory.stderr, mean, error)
    assert (np.abs(mean - Q) < 4.0 * error).all()
    assert (error < 0.05 * np.abs(mean)).all()
    assert Q[1, 1] > Q[0, 0] + 0.02
