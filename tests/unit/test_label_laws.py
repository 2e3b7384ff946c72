"""Random labels and pieces of straight lines: responses, labels, and runs."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.channels.base import draw_posteriors

KEY = jax.random.key(0)
DOOR = 0.6744897501960817


def relu_response(q, noise=None):
    """E g² of y = max(z, 0) at the overlap q: z is known where y > 0, else g = -φ/(√V Φ)."""
    V = 1.0 - q

    def inner(omega):
        s = omega / V**0.5
        seen = quad(lambda t: norm.pdf(t) * t**2, -s, np.inf)[0]  # (z - ω)²/V where z > 0
        unseen = np.exp(2.0 * norm.logpdf(s) - norm.logcdf(-s))
        return (seen + unseen) / V

    return quad(lambda x: norm.pdf(x) * inner(q**0.5 * x), -9, 9, epsabs=1e-10, limit=200)[0]


def signs_response(positive, slope, q):
    """E g² of labels ±1 with P(+1|ω) and its derivative: Σ_y P_y (P_y'/P_y)²."""
    V = 1.0 - q

    def inner(omega):
        p, d = positive(omega, V), slope(omega, V)
        return d * d * (1.0 / p + 1.0 / (1.0 - p)) if 1e-14 < p < 1.0 - 1e-14 else 0.0

    kinks = [x / q**0.5 for x in (-DOOR, DOOR)]
    given = {"epsabs": 1e-10, "limit": 400, "points": kinks}
    return quad(lambda x: norm.pdf(x) * inner(q**0.5 * x), -9, 9, **given)[0]


def logistic_response(q, beta=1.0):
    """E g² of the logistic channel, by adaptive quadratures."""
    average = lambda f, w, V: quad(lambda t: norm.pdf(t) * f(beta * (w + V**0.5 * t)), -9, 9)[0]
    positive = lambda w, V: average(expit, w, V)
    slope = lambda w, V: beta * average(lambda x: expit(x) * expit(-x), w, V)
    return signs_response(positive, slope, q)


def door_response(q):
    """E g² of y = sign(|z| - K)."""
    ends = lambda w, V: ((DOOR - w) / V**0.5, (-DOOR - w) / V**0.5)
    positive = lambda w, V: 1.0 - norm.cdf(ends(w, V)[0]) + norm.cdf(ends(w, V)[1])
    slope = lambda w, V: (norm.pdf(ends(w, V)[0]) - norm.pdf(ends(w, V)[1])) / V**0.5
    return signs_response(positive, slope, q)


KNOWN = {
    "relu": (smi.links.relu, relu_response),
    "logistic": (smi.links.logistic, logistic_response),
    "door": (smi.links.door, door_response),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_responses_are_those_of_adaptive_quadratures(name):
    """E Σ g gᵀ at an overlap, within five standard errors and 1e-6."""
    make, exact = KNOWN[name]
    q = 0.4
    Q = jnp.full((1, 1), q)
    found = make().channel.response(Q, 1 - Q, key=KEY, points=2**11, nets=8)
    spread = float(np.std(found.replicas, ddof=1)) / 8**0.5
    assert float(found.mean[0, 0]) == pytest.approx(exact(q), abs=5.0 * spread + 1e-6)
    assert spread < 3e-3 * float(found.mean[0, 0])


SLOPES = jnp.array([0.0, 1.0])  # inside jit they would be traced
READY = (
    "linear", "sign", "phase_retrieval", "square_plus_sign_parity", "logistic", "poisson", "relu",
    "hard_tanh", "absolute", "door",
)  # fmt: skip
LINKS = {name: getattr(smi.links, name) for name in READY} | {
    "sign_product": lambda: smi.links.sign_product(2),
    "product": lambda: smi.links.product(2),
    "leaky": lambda: smi.links.relu(leak=0.2),
    "noisy": lambda: smi.links.relu(noise=0.1),
    "lists": lambda: smi.links.piecewise_linear([0, 1, 0], [-1, 0, 1], [-1, 1]),
    "arrays": lambda: smi.links.piecewise_linear(SLOPES, [0, 0], [0]),
    "softmax": lambda: smi.links.softmax(2),
    "attention": lambda: smi.DeepAttention(1, 2),
}


# five members have a link, and no channel
PICKLED = LINKS | {"sign_committee": lambda: smi.links.sign_committee(5)}


@pytest.mark.parametrize("name", PICKLED)
def test_links_are_pickled(name):
    model = PICKLED[name]()
    copy = pickle.loads(pickle.dumps(model))
    assert jax.tree.structure(copy) == jax.tree.structure(model)
    jax.tree.map(np.testing.assert_array_equal, copy, model)


# one link of each channel that is decided when the link is made
@pytest.mark.parametrize("name", slow_but(LINKS, "sign", "relu", "noisy", "arrays"))
def test_a_link_made_inside_jit_is_the_link_made_outside(name):
    """Which slopes are flat, and whether there is noise, is known there, too."""
    outside = LINKS[name]()
    labels = outside.sample(KEY, dimension=4, alpha=2.0).labels

    def posterior(model):
        omega = 0.1 * jnp.ones((model.indices, model.tokens))
        return model.channel.posterior(labels[3], omega, 0.7 * jnp.eye(model.indices))

    found = jax.jit(lambda _: posterior(LINKS[name]()))(0.0)
    expected = posterior(outside)
    assert bool(jnp.isfinite(expected.log_partition))
    np.testing.assert_allclose(found.log_partition, expected.log_partition, rtol=1e-9)
    np.testing.assert_allclose(found.g, expected.g, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_pieces_with_traced_slopes():
    """A slope that is traced may not be zero; where it is not, it is what it was."""
    point = (jnp.asarray(0.4), jnp.full((1, 1), 0.1), jnp.full((1, 1), 0.7))
    value = jax.jit(lambda leak: smi.links.relu(leak=leak).channel.log_partition(*point))
    expected = smi.links.relu(leak=0.2).channel.log_partition(*point)
    assert float(value(0.2)) == pytest.approx(float(expected), rel=1e-12)
    assert np.isnan(value(0.0))


@pytest.mark.parametrize("flip", slow_but([0.0, 0.1], 0.1))
def test_weak_recovery_of_the_door_is_its_closed_form(flip):
    """1/α = (1 - 2 flip)² (2Kφ(K))² (1/p + 1/(1 - p)), p = 1/2."""
    few = smi.Averages(points=2**11)
    found = smi.weak_recovery(smi.links.door(flip=flip), key=KEY, averages=few)
    exact = 1.0 / (4.0 * (2.0 * (1.0 - 2.0 * flip) * DOOR * norm.pdf(DOOR)) ** 2)
    assert float(found.alpha) == pytest.approx(exact, abs=1e-9)


def door_by_its_probabilities(flip, width=DOOR):
    """The door as a law of one's own, whose jumps are not known."""
    one = lambda z: jnp.where(jnp.abs(z[0, 0]) >= width, 1 - flip, flip)
    law = lambda y, z: jnp.log(jnp.where(y > 0, one(z), 1 - one(z)))
    return smi.MultiIndex(None, indices=1, log_likelihood=law, outcomes=[-1.0, 1.0])


@pytest.mark.parametrize(
    "make", slow_but([smi.links.door, door_by_its_probabilities], smi.links.door)
)
def test_points_see_the_jumps_of_the_door_next_to_perfect_recovery(make):
    """E log Z_out + h(p) = -2 √V φ(κ) ∫ du {h[p + (1 - 2p) Φ(u)] - h(p)} for V → 0."""
    h = lambda p: -p * np.log(p) - (1 - p) * np.log(1 - p)
    flip, V = 0.03, 1e-9
    excess = lambda u: h(flip + (1 - 2 * flip) * norm.cdf(u)) - h(flip)
    expected = -2.0 * V**0.5 * norm.pdf(DOOR) * quad(excess, -9, 9)[0]
    overlap = jnp.array([[1.0 - V]]), jnp.array([[V]])
    channel = (make(DOOR, flip=flip) if make is smi.links.door else make(flip)).channel
    got = channel.response(*overlap, key=KEY, points=2048, nets=8, tangents=False)
    found = got.log_partition + h(flip)
    np.testing.assert_allclose(np.mean(found), expected, rtol=1e-6)  # of the expansion: √V


@pytest.mark.parametrize("overlap", slow_but([0.0, 0.3, 0.9], 0.3))
def test_a_law_that_jumps_is_integrated_between_its_jumps(overlap):
    """Averages are those of the channel in closed form to rounding of the points; refined sums had
    errors of 1e-4, alike in all nets, which no error bar knew."""
    Q, V = (jnp.array([[x]]) for x in (overlap, 1.0 - overlap))
    law, door = (
        model.channel.response(Q if overlap else None, V, key=KEY, points=1024, nets=4)
        for model in (door_by_its_probabilities(0.05), smi.links.door(DOOR, flip=0.05))
    )
    for name in ("mean", "log_partition", "jacobian"):
        np.testing.assert_allclose(getattr(law, name), getattr(door, name), rtol=1e-7, atol=1e-9)
    assert law.error < 1e-9
    assert law.inaccurate == 0.0


def both_doors(flip):
    return (make(flip) for make in (door_by_its_probabilities, partial(smi.links.door, DOOR)))


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0.05, 0.0])
def test_messages_of_a_law_that_jumps_are_those_of_its_closed_form(flip):
    """Also of labels that ω contradicts by many deviations, where all mass is in a far piece."""
    law, door = both_doors(flip)
    labels = jnp.array([1.0, -1.0, 1.0, -1.0])
    omega = jnp.array([3.0, 0.3, -1.4, 0.6]).reshape(-1, 1, 1)
    for V in jnp.array([[[1.0]], [[0.01]]]):
        one, other = (model.channel.respond(labels, omega, V) for model in (law, door))
        np.testing.assert_allclose(one.log_partition, other.log_partition, atol=1e-9)
        np.testing.assert_allclose(one.g, other.g, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(one.dg, other.dg, rtol=1e-6, atol=1e-6)
        assert jnp.all(one.error < 1e-9)
    messages = lambda channel: lambda w, V: channel.respond(labels, w, V).g
    slopes = (jax.jacfwd(messages(m.channel), (0, 1))(omega, jnp.eye(1)) for m in (law, door))
    for one, other in zip(*slopes, strict=True):  # ends of pieces stay where they are
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [0.05, 0.0])
def test_a_run_on_a_law_that_jumps_is_that_of_its_closed_form(flip):
    law, door = both_doors(flip)
    data = door.sample(KEY, dimension=400, alpha=2.5)
    one, other = (smi.gamp(model, data, key=KEY) for model in (law, door))
    assert int(one.result) == int(other.result) == smi.Result.SUCCESS
    assert int(one.steps) == int(other.steps)
    np.testing.assert_allclose(one.overlap, other.overlap, atol=1e-6)


def test_rounding_is_no_message_at_perfect_recovery():
    """Binary weights that are known leave V = 1e-300, over which rounding was infinite: a run from
    the teacher ended with NONFINITE."""
    channel = door_by_its_probabilities(0.05).channel
    labels, omega = jnp.array([1.0, -1.0]), jnp.array([0.3, 1.4]).reshape(-1, 1, 1)
    post = channel.respond(labels, omega, jnp.full((1, 1), 1e-300))
    np.testing.assert_array_equal(post.g, 0.0)
    np.testing.assert_array_equal(post.dg, 0.0)
    assert jnp.all(post.error < 1e-9)


@pytest.mark.slow
def test_the_door_ends_where_its_quadrature_does():
    """Drawn labels would jump back and forth at the end: labels are summed over."""
    found = smi.state_evolution(smi.links.door(), 2.0, key=KEY)
    exact = brentq(lambda q: 2.0 * (1 - q) * door_response(q) - q, 0.5, 0.9, xtol=1e-9)
    assert bool(found.converged)
    assert abs(float(found.overlap[0, 0]) - exact) < 3.0 * float(found.stderr[0, 0]) < 1e-4


@pytest.mark.slow
def test_relu_recovers_once_half_of_its_labels_are_as_many_as_the_unknowns():
    """y = 0 fixes nothing, and happens half of the time; ρD entries of a sparse row are unknown."""
    relu, sparse = smi.links.relu(), smi.links.relu(prior=smi.priors.BernoulliGauss(0.6))
    assert [float(smi.recovery_threshold(m).alpha) for m in (relu, sparse)] == pytest.approx(
        [2, 1.2]
    )
    end = lambda alpha: smi.state_evolution(relu, alpha, key=KEY, averages=smi.Averages(2**11))
    assert int(end(2.3).result) == smi.Result.RECOVERED
    assert int(end(1.8).result) == smi.Result.SUCCESS


@pytest.mark.slow
def test_labels_of_a_law_have_its_probabilities():
    """20 000 labels at one field: frequencies within five standard errors; the same key, the same
    labels."""
    noise = jax.random.normal(KEY, (20_000, 1))
    softmax, counts = smi.links.softmax(3), smi.links.poisson(0.5)
    z = jnp.array([[0.2], [-0.5], [1.0]])
    drawn = jax.vmap(softmax.channel.label, (None, 0))(z, noise)
    p = np.asarray(jax.nn.softmax(z[:, 0]))
    assert (np.abs(drawn.mean(0) - p) < 5 * np.sqrt(p * (1 - p) / 20_000)).all()
    drawn = jax.vmap(counts.channel.label, (None, 0))(z[:1], noise)
    mean = np.exp(0.1)
    assert float(drawn.mean()) == pytest.approx(mean, abs=5 * (mean / 20_000) ** 0.5)
    assert float(drawn.var()) == pytest.approx(mean, abs=0.06)
    again = jax.vmap(counts.channel.label, (None, 0))(z[:1], noise)
    np.testing.assert_array_equal(drawn, again)


RUNS = {
    "softmax": (smi.links.softmax(2), 4.0),
    "poisson": (smi.links.poisson(0.5), 3.0),
    "relu": (smi.links.relu(), 0.8),
    "logistic": (smi.links.logistic(), 4.0),
    "door": (smi.links.door(), 2.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_runs_follow_their_theory(name):
    """Within 4/√D; Nishimori: E g gᵀ = -E ∂g at the fixed point."""
    model, alpha = RUNS[name]
    theory = smi.state_evolution(model, alpha, key=KEY)
    data = model.sample(KEY, dimension=1000, alpha=alpha)
    run = smi.gamp(model, data, key=KEY)
    Q = np.diagonal(theory.overlap)
    np.testing.assert_allclose(np.asarray(run.cosine) ** 2, Q, atol=4.0 / 1000**0.5)
    V = jnp.eye(model.indices) - theory.overlap
    post = draw_posteriors(model.channel, theory.overlap, V, key=KEY, points=2**11, nets=8)
    gap = np.einsum("npm,nqm->npq", post.g, post.g) + np.einsum("npmqm->npq", post.dg)
    each = gap.reshape(8, -1, *gap.shape[1:]).mean(1)
    assert (np.abs(each.mean(0)) < 6 * each.std(0, ddof=1) / 8**0.5 + 1e-4).all()


def attended(beta=6.0):
    """A sentiment: ±1 by the read-out z_2 of two tokens, attended with the softmax of 2 z_1."""
    score = lambda z: beta * jnp.sum(jax.nn.softmax(2.0 * z[0]) * z[1])
    law = lambda y, z: jax.nn.log_sigmoid(y * score(z))
    return smi.MultiIndex(indices=2, tokens=2, log_likelihood=law, outcomes=[-1.0, 1.0])


@pytest.mark.slow
def test_a_likelihood_of_minus_infinity_is_the_noiseless_law():
    """Where no field near ω allows the label the posterior is finite, and state evolution is that
    of the sign to its error bars."""
    law = lambda y, z: jnp.where(y * z[0, 0] > 0.0, 0.0, -jnp.inf)
    model = smi.MultiIndex(indices=1, log_likelihood=law, outcomes=[-1.0, 1.0])
    posterior = model.channel.posterior(1.0, -20.0 * jnp.ones((1, 1)), jnp.eye(1))
    assert jnp.isfinite(posterior.g).all()
    exact, found = (smi.state_evolution(m, 2.0, key=KEY) for m in (smi.links.sign(), model))
    gap = abs(found.overlap - exact.overlap)[0, 0]
    assert found.converged
    assert gap < 4 * (found.stderr + exact.stderr)[0, 0]


def softmax_odds(z):
    e = np.exp(z[..., 0] - z[..., 0].max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attended_odds(z):
    a = np.exp(2.0 * z[:, 0])
    positive = expit(6.0 * (a * z[:, 1]).sum(1) / a.sum(1))
    return np.stack([1.0 - positive, positive], -1)


SEVERAL = {
    "softmax": (lambda: smi.links.softmax(3), 3, softmax_odds),
    "attended": (attended, 2, attended_odds),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_random_labels_of_several_fields_near_certainty(name):
    """log Z and g of three and four fields by products of Gauss-Hermite rules (24 nodes an axis:
    20 and 28 differ by 3e-6 at V = 0.1, less below), relative to 1 + max|g|: within the error that
    is claimed, and that within the tolerance down to V = 1e-7 (four fields: 1e-4)."""
    make, P, odds = SEVERAL[name]
    model = make()
    M = model.tokens
    x, w = np.polynomial.hermite_e.hermegauss(24)
    axes = np.stack(np.meshgrid(*[x] * (P * M), indexing="ij"), -1).reshape(-1, P, M)
    weight = np.prod(np.meshgrid(*[w / np.sqrt(2 * np.pi)] * (P * M), indexing="ij"), axis=0)
    rng = np.random.default_rng(0)
    labels = model.channel.outcomes
    for n, size in enumerate((1e-1, 1e-2, 1e-4, 1e-7, 1e-10)):
        noise = rng.standard_normal((P, P))
        V = size * (np.eye(P) + 0.1 * noise @ noise.T)
        omega = rng.standard_normal((P, M)) * 1.5
        root = np.linalg.cholesky(V)
        z = omega + np.einsum("pq,nqm->npm", root, axes)
        y = n % len(labels)
        law = weight.ravel() * odds(z)[:, y]
        mean = np.einsum("n,npm->pm", law, axes) / law.sum()
        g = np.linalg.solve(root.T, mean)
        found = model.channel.posterior(labels[y], jnp.asarray(omega), jnp.asarray(V))
        off = np.abs(np.asarray(found.g) - g).max() / (1.0 + np.abs(g).max())
        print(name, size, float(found.log_partition) - np.log(law.sum()), off, float(found.error))
        assert off < float(found.error)
        bound = float(found.error)  # of log Z as well
        assert float(found.log_partition) == pytest.approx(np.log(law.sum()), abs=bound)
        # nets of four fields are of a wider Gaussian since labels in the tails asked for it: 0.016
        # at V = 1e-7, where the tolerance is 0.01
        least = 1e-4 if P * M == 4 else 1e-7
        assert size < least or float(found.error) < float(model.channel.tolerance)
