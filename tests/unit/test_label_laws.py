"""Random labels, pieces of straight lines, and symmetries found by looking."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

import jaxsmi as smi
from helpers import respond
from jaxsmi.channels.averages import draw_posteriors

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


@pytest.mark.parametrize(
    "name", ["door", *(pytest.param(name, marks=pytest.mark.slow) for name in ("relu", "logistic"))]
)
def test_responses_are_those_of_adaptive_quadratures(name):
    """E Σ g gᵀ at an overlap, within five standard errors and 1e-6."""
    make, exact = KNOWN[name]
    q = 0.4
    found = make().channel.response(
        jnp.full((1, 1), q), jnp.full((1, 1), 1 - q), key=KEY, points=2**11, nets=8
    )
    spread = float(np.std(found.replicas, ddof=1)) / 8**0.5
    assert float(found.mean[0, 0]) == pytest.approx(exact(q), abs=5.0 * spread + 1e-6)
    assert spread < 3e-3 * float(found.mean[0, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "alpha"), [("relu", 0.8), ("logistic", 4.0), ("door", 1.4), ("door", 2.5)]
)
def test_state_evolution_and_message_passing_of_these_labels(name, alpha):
    """The fixed point q = αf/(1 + αf) of the quadratures; runs at D = 1000 within 4/√D."""
    make, exact = KNOWN[name]
    q = 0.01
    for _ in range(800):
        rise = alpha * exact(q)
        q, old = rise / (1.0 + rise), q
        if abs(q - old) < 1e-9:
            break
    found = smi.state_evolution(make(), alpha, key=KEY)
    print(name, alpha, q, found.overlap, found.stderr)
    assert found.overlap[0, 0] == pytest.approx(q, abs=5 * float(found.stderr[0, 0]) + 1e-5)
    if alpha == 1.4:
        return  # next to its threshold: finite runs differ by more
    data = make().sample(KEY, dimension=1000, alpha=alpha)
    run = smi.gamp(make(), data, key=KEY)
    assert float(run.cosine[0]) ** 2 == pytest.approx(q, abs=4.0 / 1000**0.5)


SLOPES = jnp.array([0.0, 1.0])
LINKS = {
    "linear": smi.links.linear,
    "sign": smi.links.sign,
    "phase_retrieval": smi.links.phase_retrieval,
    "sign_product": lambda: smi.links.sign_product(2),
    "product": lambda: smi.links.product(2),
    "square_plus_sign_parity": smi.links.square_plus_sign_parity,
    "logistic": smi.links.logistic,
    "poisson": smi.links.poisson,
    "relu": smi.links.relu,
    "leaky": lambda: smi.links.relu(leak=0.2),
    "noisy": lambda: smi.links.relu(noise=0.1),
    "hard_tanh": smi.links.hard_tanh,
    "absolute": smi.links.absolute,
    "door": smi.links.door,
    "lists": lambda: smi.links.piecewise_linear([0, 1, 0], [-1, 0, 1], [-1, 1]),
    "arrays": lambda: smi.links.piecewise_linear(SLOPES, [0, 0], [0]),
}


SLOW = ("sign_product", "product", "square_plus_sign_parity")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in LINKS]
)
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


def test_a_law_of_few_labels_can_be_made_inside_jit():
    """Its odds are traced there: they were put into a message that they add up to one."""
    fields = jnp.array([[0.3], [-0.2]])
    found = jax.jit(lambda z: smi.links.softmax(2).channel.link(z))(fields)
    np.testing.assert_allclose(found, smi.links.softmax(2).channel.link(fields), rtol=1e-12)


@pytest.mark.slow
def test_pieces_with_traced_slopes():
    """A slope that is traced may not be zero; where it is not, it is what it was."""
    point = (jnp.asarray(0.4), jnp.full((1, 1), 0.1), jnp.full((1, 1), 0.7))
    value = jax.jit(lambda leak: smi.links.relu(leak=leak).channel.log_partition(*point))
    expected = smi.links.relu(leak=0.2).channel.log_partition(*point)
    assert float(value(0.2)) == pytest.approx(float(expected), rel=1e-12)
    assert np.isnan(value(0.0))
    found = jax.jit(
        lambda a: smi.state_evolution(
            smi.links.door(), a, key=KEY, start=0.5, averages=smi.Averages(64)
        )
    )
    exact = smi.state_evolution(
        smi.links.door(), 2.0, key=KEY, start=0.5, averages=smi.Averages(64)
    )
    assert float(exact.overlap[0, 0]) > 0.5
    np.testing.assert_allclose(found(2.0).overlap, exact.overlap, rtol=1e-9)


def test_weak_recovery_of_the_door_is_its_closed_form():
    """1/α = (2Kφ(K))² (1/p + 1/(1 - p)), p = 1/2."""
    found = smi.weak_recovery(smi.links.door(), key=KEY, averages=smi.Averages(points=2**11))
    exact = 1.0 / (4.0 * (2.0 * DOOR * norm.pdf(DOOR)) ** 2)
    assert float(found.alpha) == pytest.approx(exact, abs=1e-9)


def log_odds(y, z):
    """Labels ±1 of the logistic law, as a user writes it."""
    return jax.nn.log_sigmoid(y * z[0, 0])


def test_a_users_law_with_outcomes_is_the_closed_form():
    mine = smi.MultiIndex(indices=1, log_likelihood=log_odds, outcomes=[-1.0, 1.0], tolerance=1e-7)
    assert mine.name == "log_odds"
    omega = jnp.linspace(-3, 3, 16).reshape(16, 1, 1)
    V = jnp.full((1, 1), 0.7)
    labels = jnp.tile(jnp.array([1.0, -1.0]), 8)
    ours, known = (
        respond(model.channel, labels, omega, V) for model in (mine, smi.links.logistic())
    )
    np.testing.assert_allclose(ours.log_partition, known.log_partition, atol=1e-6)
    np.testing.assert_allclose(ours.g, known.g, atol=1e-6)
    np.testing.assert_allclose(mine.channel.link(jnp.full((1, 1), 0.3)), 2 * expit(0.3) - 1)


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


@pytest.mark.parametrize("wrong", [-1.0, 0.5])
@pytest.mark.slow
def test_labels_of_counts_are_whole_numbers(wrong):
    """Neither a negative one, whose posterior is NaN, nor a fraction, of which the formula of the
    probability gives a number."""
    model = smi.links.poisson()
    labels = np.arange(6.0)
    inputs = np.random.default_rng(0).normal(size=(6, 1, 5))
    assert np.isfinite(
        smi.gamp(model, smi.Dataset(inputs, labels), key=KEY, iteration=smi.Iteration(2)).overlap
    )
    with pytest.raises(ValueError, match=r"^labels: got .*; allowed: counts: integers >= 0"):
        smi.gamp(model, smi.Dataset(inputs, np.append(labels[1:], wrong)), key=KEY)
    for m in (model, model.mixed([[4.0]])):
        with pytest.raises(ValueError, match=r"^labels: got .*; allowed: counts"):
            m.channel.posterior(wrong, np.zeros((1, 1)), np.eye(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "poisson"])
def test_runs_on_random_labels_follow_their_theory(name):
    """Within 4/√D; Nishimori: E g gᵀ = -E ∂g at the fixed point."""
    model, alpha = {
        "softmax": (smi.links.softmax(2), 4.0),
        "poisson": (smi.links.poisson(0.5), 3.0),
    }[name]
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
    return smi.MultiIndex(
        indices=2,
        tokens=2,
        log_likelihood=lambda y, z: jax.nn.log_sigmoid(y * score(z)),
        outcomes=[-1.0, 1.0],
    )


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
    is claimed, and that within the tolerance down to V = 1e-7. Below, four fields are flagged."""
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
        assert float(found.log_partition) == pytest.approx(np.log(law.sum()), abs=1e-3)
        assert size < 1e-7 or float(found.error) < float(model.channel.tolerance)


def refused(name, make):
    with pytest.raises(ValueError, match=rf"^{name}: got"):
        make()


def test_what_laws_of_labels_refuse():
    one = lambda z: z[0, 0]
    law = {"indices": 1, "log_likelihood": log_odds}
    refused("sampler", lambda: smi.MultiIndex(one, indices=1, sampler=min))
    refused("outcomes", lambda: smi.MultiIndex(one, indices=1, outcomes=[0, 1]))
    refused("outcomes", lambda: smi.MultiIndex(**law, outcomes=[1.0]))
    refused("outcomes", lambda: smi.MultiIndex(**law, outcomes=["a", "b"]))
    refused("log_likelihood", lambda: smi.MultiIndex(**law, outcomes=[0.0, 1.0]))
    refused("sampler", lambda: smi.MultiIndex(one, **law, sampler=lambda z: z))
    refused("sampler", lambda: smi.MultiIndex(**law, outcomes=[-1, 1], sampler=min))
    refused("link", lambda: smi.MultiIndex(**law, sampler=lambda key, z: 1.0))
    model = smi.MultiIndex(**law, outcomes=[-1.0, 1.0])
    refused("labels", lambda: smi.gamp(model, smi.Dataset(jnp.ones((4, 1, 9)), jnp.full(4, 2.0))))
    refused("beta", lambda: smi.links.logistic(0.0))
    refused("classes", lambda: smi.links.softmax(1))
    refused("knots", lambda: smi.links.piecewise_linear([0.0, 1.0], [0.0, 0.0], [0.0, 1.0]))
    refused("knots", lambda: smi.links.piecewise_linear([0, 1, 0], [0, 0, 0], [1.0, -1.0]))
    refused("offsets", lambda: smi.links.piecewise_linear([0.0, 1.0], [0.0], [0.0]))
    refused("slopes", lambda: smi.links.piecewise_linear([0.0, 0.0], [1.0, 1.0], [0.0]))
    refused("noise", lambda: smi.links.relu(-1.0))
    relu = smi.links.relu()
    refused("labels", lambda: smi.gamp(relu, smi.Dataset(jnp.ones((4, 1, 9)), jnp.full(4, -1.0))))


@pytest.mark.parametrize(
    ("link", "indices", "kinds"),
    [
        (lambda z: z[0, 0] ** 2, 1, ["sign"]),
        (lambda z: z[0, 0] ** 3, 1, []),
        (lambda z: jnp.sum(jax.scipy.special.erf(z)), 2, ["permutation"]),
        (lambda z: z[0] * jnp.tanh(z[1]), 2, ["joint sign"]),
        (lambda z: z[0, 0] ** 2 + z[1, 0] ** 4, 2, ["sign"]),
        (lambda z: jnp.sum(z**2), 2, ["rotation"]),
        (lambda z: jnp.sum(jnp.cos(z)), 2, ["signed permutation"]),
        (jnp.prod, 3, ["even signed permutation"]),
        (lambda z: z[0, 0] ** 2 + z[1, 0] * z[2, 0] ** 3, 3, ["sign", "joint sign"]),
        (lambda z: z[0, 0] / 0.0, 1, []),
    ],
)
def test_symmetries_are_found_by_looking(link, indices, kinds):
    model = smi.MultiIndex(link, indices=indices)
    assert [part.kind for part in model.symmetry] == kinds
    assert smi.MultiIndex(link, indices=indices, symmetry=()).symmetry == ()


def test_a_link_of_a_traced_number_has_no_symmetry_and_a_committee_its_order():
    made = jax.jit(lambda s: smi.MultiIndex(lambda z: s * z[0, 0] ** 2, indices=1).symmetry == ())
    assert bool(made(1.0))
    model = smi.MultiIndex(lambda z: jnp.sum(jnp.tanh(z)), indices=3)
    W = jax.random.normal(KEY, (3, 50))
    turned = W[jnp.array([2, 0, 1])]
    np.testing.assert_allclose(smi.align(turned, W, model), W)
    found = model.metric.overlaps(turned, W)["cosine"]
    np.testing.assert_allclose(found, 1.0)


@pytest.mark.parametrize("beta", [1.0, 10.0])
def test_the_logistic_sum_is_exact_but_for_rounding(beta):
    """log Z_out and g at V = 1 against adaptive quadrature, up to the steepest that is allowed."""
    channel = smi.links.logistic(beta).channel
    for omega in (-2.0, 0.1, 0.7):
        average = lambda f, w=omega: quad(
            lambda z: norm.pdf(z - w) * f(beta * z), -10, 10, epsabs=1e-14, limit=400, points=[0.0]
        )[0]
        Z = average(expit)
        slope = beta * average(lambda x: expit(x) * expit(-x))
        found = channel.posterior(1.0, [[omega]], [[1.0]])
        assert float(found.log_partition) == pytest.approx(np.log(Z), abs=1e-11)
        assert float(found.g[0, 0]) == pytest.approx(slope / Z, abs=1e-10)
