"""Labels that depend on the signs of a few fields: orthants, published committees, own links."""

import csv
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

import jaxsmi as smi
from helpers import gauss_legendre, respond
from jaxsmi.channels.orthants import OrthantChannel, log_orthants, sign_patterns

KEY, SLOW = jax.random.key(0), pytest.mark.slow
FEW = smi.Averages(points=2**11)
V = np.array([[0.7, 0.35, -0.2], [0.35, 0.4, 0.1], [-0.2, 0.1, 0.9]])


@pytest.mark.slow
def test_orthants_have_their_probabilities():
    """At w = 0 (1 + (2/π) Σ s_i s_j asin ρ_ij)/8; elsewhere SciPy's integral, to its 1e-5."""
    scale = np.sqrt(np.diag(V))
    angle = np.arcsin(np.minimum(V / np.outer(scale, scale), 1.0))
    signs = sign_patterns(3)
    pairs = sum(signs[:, i] * signs[:, j] * angle[i, j] for i, j in ((0, 1), (0, 2), (1, 2)))
    centred = np.exp(log_orthants(jnp.zeros(3), jnp.asarray(V)))
    np.testing.assert_allclose(centred, (1 + 2 / np.pi * pairs) / 8, rtol=1e-13)
    w = np.array([0.5, -0.3, 0.8])
    for P in (2, 3):
        ours = np.exp(log_orthants(jnp.asarray(w[:P]), jnp.asarray(V[:P, :P])))
        for p, s in zip(ours, sign_patterns(P), strict=True):
            law = multivariate_normal(cov=V[:P, :P] * np.outer(s, s))
            assert abs(p - law.cdf(s * w[:P])) < 2e-5
        assert abs(np.sum(ours) - 1) < 1e-13


HALF = lambda z: 0.5 * (jnp.sign(z[0, 0]) + jnp.sign(z[1, 0]))


def test_an_own_link_of_signs_has_the_closed_form():
    noisy = smi.MultiIndex(HALF, indices=2, noise=0.01).channel
    assert isinstance(noisy, OrthantChannel)
    assert noisy.values.tolist() == [1.0, 0.0, 0.0, -1.0]
    bent = smi.MultiIndex(lambda z: HALF(z) + 0.01 * z[0, 0], indices=2, noise=0.01)
    shifted = smi.MultiIndex(lambda z: jnp.sign(z[0, 0] - 0.1), indices=1, noise=0.01)
    assert not any(isinstance(m.channel, OrthantChannel) for m in (bent, shifted))


@SLOW
def test_a_minimiser_sees_signs_as_their_linear_part():
    """Square loss: labels sign(z) are c z with noise 1 - c², c = √(2/π), of which only the moments
    count: M = c M', Q = c² Q' of a linear teacher with noise (1 - c²)/c². With noise labels are
    drawn: they jump, and their slope, which is zero, must not stand for that of their average."""
    c = np.sqrt(2 / np.pi)
    learner = smi.Erm(smi.links.linear(0.0), loss=smi.losses.squared, ridge=0.5)
    signs = smi.MultiIndex(lambda z: jnp.sign(z[0, 0]), indices=1)
    linear = smi.links.linear((1.0 - c**2) / c**2)
    ours, other = [smi.state_evolution(m, 2.0, key=KEY, learner=learner) for m in (signs, linear)]
    bar = lambda end, name: end.stderr if name == "overlap" else end.stderrs[name]
    for name, power in (("teacher_overlap", 1), ("overlap", 2)):
        apart = getattr(ours, name) - c**power * getattr(other, name)
        error = np.hypot(bar(ours, name), c**power * bar(other, name))
        assert abs(float(apart[0, 0])) < 4 * float(error[0, 0]) + 1e-9
    assert smi.MultiIndex(HALF, indices=2, noise=0.1).channel.pathwise is False


def flipped_perceptron(alpha, p):
    """q of Bayes for y = ±sign z, - with probability p: q = q̂/(1 + q̂), by quadrature over ω."""
    x, w = gauss_legendre(-8.5, 8.5, 200)
    weight = w * norm.pdf(x)

    def excess(q):
        omega, scale = np.sqrt(q) * x, np.sqrt(1 - q)
        Z, other = (p + (1 - 2 * p) * norm.cdf(y * omega / scale) for y in (1, -1))
        slope = (1 - 2 * p) * norm.pdf(omega / scale) / scale
        qhat = alpha * np.sum(weight * slope**2 * (1 / Z + 1 / other))
        return qhat / (1 + qhat) - q

    return brentq(excess, 1e-9, 0.9, xtol=1e-12)


@SLOW
def test_a_flipped_perceptron_learns_what_quadrature_says():
    """Less and less as p grows, nothing at p = 1/2; p = 0 is the noiseless one. A committee of one
    member is the perceptron."""
    overlaps = []
    for p in (0.0, 0.02, 0.2, 0.5):
        end = smi.state_evolution(smi.links.sign(flip=p), 2.0, key=KEY, averages=FEW)
        one = smi.state_evolution(smi.links.sign_committee(1, flip=p), 2.0, key=KEY, averages=FEW)
        np.testing.assert_allclose(end.overlap, one.overlap, atol=1e-6)
        q, error = float(end.overlap[0, 0]), float(end.stderr[0, 0])
        exact = flipped_perceptron(2.0, p) if p < 0.5 else 0.0
        assert abs(q - exact) < 5 * error + 1e-5
        overlaps.append(q)
    assert np.all(np.diff(overlaps) < -0.04)


@pytest.mark.slow
def test_run_with_flipped_labels_follows_its_theory():
    """A run at D = 800; and noise inside the sign next to flips, of which labels have one normal
    each: the share of flips of a field far from zero."""
    model, key = smi.links.sign(flip=0.1), jax.random.key(3)
    end = smi.state_evolution(model, 3.0, key=key, averages=FEW)
    run = smi.gamp(model, model.sample(key, dimension=800, alpha=3.0), key=key)
    assert int(run.result) == int(end.result) == 0
    assert abs(float(run.overlap[0, 0] - end.overlap[0, 0])) < 4 / np.sqrt(800)
    channel, z = smi.links.sign(noise=0.5, flip=0.1).channel, 0.3
    labels = jax.vmap(channel.label)(jnp.full((4000, 1, 1), z), jax.random.normal(key, (4000, 2)))
    share = 0.1 + 0.8 * norm.cdf(z / np.sqrt(0.5))
    assert abs(float(jnp.mean(labels > 0)) - share) < 4 * np.sqrt(share * (1 - share) / 4000)


@pytest.mark.slow
def test_a_tie_stays_zero_when_labels_are_flipped():
    """Z(y) = (1 - p) Z_0(y) + p Z_0(-y) of two members."""
    clean, flipped = (smi.links.sign_committee(2, flip=p).channel for p in (0.0, 0.15))
    y, w = jnp.asarray([1.0, 0.0, -1.0]), jnp.tile(jnp.asarray([[0.4], [-1.1]]), (3, 1, 1))
    Z, mixed = (np.exp(respond(c, y, w, V[:2, :2]).log_partition) for c in (clean, flipped))
    np.testing.assert_allclose(mixed, 0.85 * Z + 0.15 * Z[::-1], rtol=1e-12)
    labels = jax.vmap(flipped.label)(jnp.tile(w, (100, 1, 1)), jax.random.normal(KEY, (300, 1)))
    assert bool(jnp.all(labels == 0.0))


@pytest.mark.parametrize("name", ["sign", "one", pytest.param("three", marks=SLOW)])
def test_flips_mix_both_labels(name):
    """Z = p + (1 - 2p) Z_0, g = (1 - 2p) Z_0 g_0/Z; labels are flipped as often."""
    k = 3 if name == "three" else 1
    link = smi.links.sign if name == "sign" else functools.partial(smi.links.sign_committee, k)
    p, w = 0.15, np.linspace(-1.0, 1.5, 4)[:, None, None] * np.arange(1, k + 1)[:, None]
    y, V_k = jnp.asarray([1.0, 1.0, -1.0, -1.0]), jnp.asarray(V[:k, :k])
    clean, flipped = (link(flip=f).channel for f in (0.0, p))
    one, two = (respond(channel, y, jnp.asarray(w), V_k) for channel in (clean, flipped))
    Z = np.exp(one.log_partition)
    np.testing.assert_allclose(np.exp(two.log_partition), p + (1 - 2 * p) * Z, rtol=1e-12)
    share = ((1 - 2 * p) * Z / (p + (1 - 2 * p) * Z))[:, None, None]
    np.testing.assert_allclose(two.g, share * one.g, rtol=1e-11, atol=1e-13)
    outer = np.einsum("npm,nqr->npmqr", one.g, one.g)
    slope = share[..., None, None] * (one.dg + outer) - np.einsum("npm,nqr->npmqr", two.g, two.g)
    np.testing.assert_allclose(two.dg, slope, rtol=1e-10, atol=1e-12)
    fields = jnp.asarray(np.tile(w[:1], (4000, 1, 1)))
    noise = jax.random.normal(KEY, (4000, 1))
    labels = jax.vmap(flipped.label)(fields, noise)
    share = float(jnp.mean(labels != clean.link(fields[0])))
    assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / 4000)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, pytest.param(3, marks=SLOW)])
def test_posteriors_of_all_labels_at_once_are_those_of_each(k):
    """The same sums over orthants in another order: rounding, by 1/P of the rarest (1e-4)."""
    channel, V_k = smi.links.sign_committee(k, "mean").channel, jnp.asarray(V[:k, :k])
    w = jnp.asarray(np.random.default_rng(0).standard_normal((8, k, 1)))
    labels = jnp.tile(channel.outcomes, (8, 1))
    each = eqx.filter_jit(channel.respond_to_each)(labels, w, V_k)
    one = respond(channel, labels.reshape(-1), jnp.repeat(w, labels.shape[1], axis=0), V_k)
    for name in ("log_partition", "g", "dg"):
        np.testing.assert_allclose(getattr(each, name), getattr(one, name), rtol=1e-10, atol=1e-11)


@SLOW
def test_information_falls_with_flips():
    """I = -Φ - α h(p) nats an entry, h the entropy of a flip, at the fixed point of each p; the run
    at D = 500 ends at the overlap of theory."""
    information, key = [], jax.random.key(3)
    for p in (0.0, 0.05, 0.2, 0.5):
        model = smi.links.sign_committee(3, flip=p)
        end = smi.state_evolution(model, 3.0, key=KEY, averages=FEW)
        phi = smi.free_entropy(model, 3.0, end, key=KEY, averages=FEW)
        h = -(p * np.log(p) + (1 - p) * np.log(1 - p)) if p else 0.0
        information.append(-float(phi.value) - 3.0 * h)
        if p == 0.05:
            run = smi.gamp(model, model.sample(key, dimension=500, alpha=3.0), key=key)
            spread = 2.0 / np.sqrt(500)
            assert abs(float(jnp.trace(run.overlap) - jnp.trace(end.overlap))) < 4 * spread
    assert np.all(np.diff(information) < -0.01)
    assert abs(information[-1]) < 1e-9


@SLOW
def test_little_noise_on_levels_changes_nothing():
    """Labels 0 and 1 at a variance of 0.01: five standard deviations from their middle. .213771 is
    of an independent computation."""
    models = smi.MultiIndex(HALF, indices=2, noise=0.01), smi.links.sign_committee(2, "mean")
    noisy, plain = [smi.state_evolution(m, 0.85, key=KEY, averages=FEW) for m in models]
    assert int(noisy.result) == int(plain.result) == 0
    np.testing.assert_allclose(noisy.overlap, plain.overlap, atol=1e-4)
    np.testing.assert_allclose(plain.overlap[0], [0.213771] * 2, atol=1e-4)


def published(reference, prior):
    """Rows of print's own data, by α."""
    with (reference / "peers" / "committee" / f"committee_{prior}.csv").open() as file:
        return {round(float(row["alpha"]), 2): row for row in csv.DictReader(file)}


@SLOW
def test_published_committee_of_two(reference):
    """[AMBKMZ18]'s own data: before, at and after specialisation. Print converges to 1e-4, next to
    specialisation (α near 2) to 6e-3."""
    rows = published(reference, "gaussian")
    for alpha in (0.85, 1.65, 2.25, 2.85):
        end = smi.state_evolution(smi.links.sign_committee(2), alpha, key=KEY)
        assert int(end.result) == 0
        for name, k in (("q11", (0, 0)), ("q12", (0, 1))):
            assert abs(float(rows[alpha][name]) - float(end.overlap[k])) < 1e-3


@SLOW
def test_runs_of_a_committee_reach_theory():
    """D = 1000, α = 4: both members are told apart."""
    model = smi.links.sign_committee(2)
    theory = smi.state_evolution(model, 4.0, key=KEY)
    runs = []
    for seed in range(6):
        key = jax.random.key(seed)
        run = smi.gamp(model, model.sample(key, dimension=1000, alpha=4.0), key=key)
        runs.append(np.sort(run.cosine**2))
    expected = np.sqrt(np.diagonal(theory.overlap)) ** 2
    spread = np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs))
    assert np.all(np.abs(np.mean(runs, axis=0) - np.sort(expected)) < 4 * spread + 0.02)


def sorted_rest(k, count):
    """Sorted fields p (n, k) of the directions orthogonal to the sum, their weights, and the
    polynomial |p|²/(k - 1) - 1 that a growing overlap there is an average of."""
    r, w = gauss_legendre(0.0, 9.0, count)
    if k == 2:
        p = np.stack([-r, r], axis=1) / np.sqrt(2)
        return p, 2 * w * norm.pdf(r), r**2 - 1
    angle, v = gauss_legendre(0.0, np.pi / 3, count // 4)  # of one order of three
    p = np.sqrt(2 / 3) * np.cos(angle[:, None] + 2 * np.pi / 3 * np.arange(3))
    p = np.sort(r[:, None, None] * p, axis=2).reshape(-1, 3)
    weight = np.outer(w * r * np.exp(-(r**2) / 2), v / (np.pi / 3))
    return p, weight.ravel(), np.repeat(r**2 / 2 - 1, len(angle))


def averages_of(k, vote, count=80):
    """Function of the overlap q of the sum of the fields, of which alone something is learned:
    E Σ_y Z (∂ log Z)², E Σ_y Z c_y², c_y = E[(|p|²/(k-1) - 1) 1_y]/Z, and E Σ_y Z log Z. Given p,
    j fields are positive where the sum lies between the j-th of the numbers -√k p and the next."""
    p, weight, square = sorted_rest(k, count)
    cuts = np.pad(-np.sqrt(k) * p[:, ::-1], ((0, 0), (1, 1)), constant_values=np.inf)
    cuts[:, 0] = -np.inf
    number = np.arange(k + 1)
    labels = np.sign(2 * number - k) if vote == "majority" else number
    x, w = gauss_legendre(-9.0, 9.0, count)

    def averages(q):
        u = (cuts - np.sqrt(q) * x[:, None, None]) / np.sqrt(1 - q)
        low, high = u[..., :-1], u[..., 1:]
        # of the smaller tail: nothing cancels
        inside = np.where(low > 0, norm.sf(low) - norm.sf(high), norm.cdf(high) - norm.cdf(low))
        edge = (norm.pdf(low) - norm.pdf(high)) / np.sqrt(1 - q)
        parts = [np.einsum("xpj,p->jx", a, b) for a, b in
                 ((inside, weight), (edge, weight), (inside, weight * square))]  # fmt: skip
        Z, slope, growth = (np.array([a[labels == y].sum(0) for y in set(labels)]) for a in parts)
        safe = np.maximum(Z, 1e-300)
        mean = lambda a: np.sum(a @ (w * norm.pdf(x)))
        return mean(slope**2 / safe), mean(growth**2 / safe), mean(Z * np.log(safe))

    return averages


def specialisation(k, vote):
    """α_c and q for Gaussian weights, q = q̂/(1 + q̂): α_c E Σ_y Z c_y² = 1."""
    averages = averages_of(k, vote)

    def excess(q):
        f, growth, _ = averages(q)
        return q / (1 - q) * growth / f - 1

    q = brentq(excess, 0.5, 0.97, xtol=1e-10)
    return 1 / averages(q)[1], q


@SLOW
@pytest.mark.parametrize(("k", "vote"), [(2, "majority"), (3, "mean"), (3, "majority")])
def test_specialisation_is_the_second_stair(k, vote, reference):
    """Members are told apart from the second threshold of the staircase on: 2.05238, 5.01788 and
    19.232 by quadrature. Print's data grow from zero at 2.05, by a line through α = 2.1 and 2.15."""
    exact, q = specialisation(k, vote)
    few = smi.Averages(points=2**12)
    model = smi.links.sign_committee(k, vote)
    first, second = smi.staircase(model, key=KEY, alpha_max=25.0, averages=few)
    assert float(first.alpha) == 0.0
    assert abs(float(second.alpha) - exact) < 4 * float(second.stderr)
    assert float(second.stderr) < 0.02 * exact
    np.testing.assert_allclose(second.overlap, q / k * np.ones((k, k)), atol=0.01)
    np.testing.assert_allclose(second.subspace, (np.eye(k) - 1 / k) / (k - 1), atol=1e-6)
    if k == 2:
        rows = published(reference, "gaussian")
        gap = [float(rows[a]["q11"]) - float(rows[a]["q12"]) for a in (2.1, 2.15)]
        assert abs(2.1 - 0.05 * gap[0] / (gap[1] - gap[0]) - exact) < 0.005


def binary_transition():
    """α at which the overlap q of the sum of two binary rows, ±√2 or 0, has Φ = -2 log 2, that of
    Q = S."""
    averages = averages_of(2, "majority")
    x, w = gauss_legendre(-9.0, 9.0, 200)

    def prior(qhat):
        """q, and E log Z_w: half of the weights are ±√2, half are 0."""
        total = np.zeros(2)
        for mean in (np.sqrt(2), 0.0):
            b = qhat * mean + np.sqrt(qhat) * x
            Z = 0.5 * (1 + np.exp(-qhat) * np.cosh(np.sqrt(2) * b))
            f = np.exp(-qhat) * np.sinh(np.sqrt(2) * b) / np.sqrt(2) / Z
            total += 0.5 * np.array([np.sum(w * norm.pdf(x) * a) for a in (f**2, np.log(Z))])
        return total

    def state(q):
        f, _, log_partition = averages(q)
        qhat = brentq(lambda h: prior(h)[0] - q, 1e-6, 30.0)
        alpha = qhat / f
        return alpha, -0.5 * q * qhat + prior(qhat)[1] + alpha * log_partition

    return state(brentq(lambda q: state(q)[1] + 2 * np.log(2), 0.5, 0.8))[0]


BINARY = smi.links.sign_committee(2, prior=smi.priors.Rademacher())


@SLOW
def test_published_binary_committee(reference):
    """Before and after specialisation (α = 1.589), to 1e-3; from 1.977 on print stops at 0.9991 of
    a perfect recovery."""
    rows = published(reference, "binary")
    for alpha in (0.95, 1.75, 1.95, 2.1):
        end = smi.state_evolution(BINARY, alpha, key=KEY, averages=smi.Averages(2**13))
        assert smi.Result(int(end.result)).name == ("SUCCESS" if alpha < 2 else "RECOVERED")
        for name, k in (("q11", (0, 0)), ("q12", (0, 1))):
            assert abs(float(rows[alpha][name]) - float(end.overlap[k])) < 1e-3


@SLOW
def test_binary_committee_is_recovered_by_a_jump():
    """Φ is -2 log 2, that of Q = S, at 1.54609, before specialisation; the branch of two overlaps
    (q_+, q_-) ends at 1.97698, its largest α by an independent quadrature over both fields. Q = S
    is stable under a discrete prior."""
    exact, few = binary_transition(), smi.Averages(2**13)
    np.testing.assert_allclose(exact, 1.54609, atol=1e-5)
    solve = lambda alpha, start: smi.state_evolution(
        BINARY, alpha, key=KEY, averages=few, start=start
    )
    excess, errors, ends = [], [], (1.53, 1.56)
    for alpha in ends:
        phi = smi.free_entropy(BINARY, alpha, solve(alpha, None), key=KEY, averages=few)
        excess.append(float(phi.value) + 2.0 * np.log(2.0))
        errors.append(float(phi.stderr))
    slope = (excess[1] - excess[0]) / (ends[1] - ends[0])
    found = ends[0] - excess[0] / slope  # Φ is straight to 1e-5 there
    assert abs(found - exact) < 4 * max(errors) / abs(slope) + 1e-4
    codes = [int(solve(*at).result) for at in ((1.53, 0.99), (1.97, None), (1.985, None))]
    assert codes == [smi.Result.RECOVERED, smi.Result.SUCCESS, smi.Result.RECOVERED]


@SLOW
def test_thresholds_of_the_binary_committee_are_bisected():
    """Those of the test above; Q = S is stable at any α, also below the grid."""
    few = smi.Averages(2**11, 2)
    found = smi.first_order(BINARY, key=KEY, alpha=[1.4, 1.7, 1.9, 2.1], averages=few)
    optimal, end = found.information_theoretic, found.algorithmic
    # two nets: errors of errors, so that four bars are wide
    assert abs(float(optimal.alpha) - binary_transition()) < 4 * float(optimal.stderr) < 0.02
    assert abs(float(end.alpha) - 1.97698) < 4 * float(end.stderr) < 0.01
    assert float(found.spinodal.alpha) == 0.0
    assert len(found.alpha) == 6  # beside the end and where the free entropies are equal, too
    np.testing.assert_allclose(found.informed[:, 0, 0], 1.0, atol=1e-6)
