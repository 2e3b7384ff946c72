"""Priors that are not the same for w and -w: half-line, zeros and ones, unequal peaks. Against
adaptive quadratures and sums on fine grids of SciPy and NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import jaxsmi as smi
from jaxsmi.priors import GaussianMixture, Positive

jax.config.update("jax_enable_x64", True)

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
    assert float(prior.known(1)[0, 0]) == pytest.approx(first**2, rel=1e-9)
    assert float(prior.second_moment(1)[0, 0]) == pytest.approx(second, rel=1e-9)
    assert float(prior.mmse(Qhat)[0, 0]) == pytest.approx(unknown, abs=1e-9)
    assert float(prior.overlap(Qhat)[0, 0]) == pytest.approx(second - unknown, abs=1e-9)


def test_limits_on_the_half_line():
    """At q̂ = 0 the mean and the variance; far out V = 1/q̂ of a density; a cut far from its peak
    is no cut: 20 widths away it weighs e^{-200}."""
    for prior, _, _ in HALF_LINE.values():
        S, known = prior.second_moment(1)[0, 0], prior.known(1)[0, 0]
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
    log_partition = jax.vmap(lambda field: prior.log_partition(field[None], A))
    step = 1e-4
    up, here, down = (log_partition(b[0] + s) for s in (step, 0.0, -step))
    f, _ = prior.posterior(b, A)
    np.testing.assert_allclose(f[0], (up - down) / (2 * step), rtol=2e-7)
    each = [float(prior.posterior(b[:, i : i + 1], A)[1][0, 0]) for i in range(8)]
    np.testing.assert_allclose(each, (up - 2 * here + down) / step**2, rtol=1e-5, atol=2e-6)
    assert np.isnan(float(Positive(-1.0, 0.0).log_partition(jnp.ones(1), jnp.zeros((1, 1)))))


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
    np.testing.assert_allclose(BITS.known(2), np.full((2, 2), 0.09), atol=1e-15)


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


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Positive(1.0, 0.0), "precision"),
        (lambda: Positive(0.0, -1.0), "precision"),
        (lambda: Positive(jnp.inf), "slope"),
        (lambda: Positive().second_moment(3), "indices"),
        (lambda: GaussianMixture([1.0], [1.0], [0.0], mirrored=1), "mirrored"),
        (
            lambda: smi.weak_recovery(
                smi.links.phase_retrieval(prior=Positive()), key=jax.random.key(0)
            ),
            "model",
        ),
    ],
)
def test_what_priors_with_a_mean_refuse(call, name):
    with pytest.raises(ValueError, match=rf"^{name}: got"):
        call()


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
    theory = smi.state_evolution(model, alpha, key=jax.random.key(1), samples=2**12)
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
        smi.links.linear(noise, prior=BITS), alpha, key=jax.random.key(0), newton=False
    )
    assert float(found.overlap[0, 0]) == pytest.approx(Q, abs=1e-5)  # its tolerance
    assert float(found.history["overlap"][0][0, 0]) > 0.09  # above what is known at once
