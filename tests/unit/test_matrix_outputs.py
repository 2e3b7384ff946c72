"""Any output of a model of one matrix, against quadratures, exact channels and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import jaxsmi as smi
from helpers import result
from jaxsmi.channels.hardmax import HardmaxScores
from jaxsmi.channels.matrix_scores import LinearScores

KEY = jax.random.key(0)
ONE = jnp.ones((1, 1))


def signs_information(q):
    """E_ω Σ_y P_y g², one-dimensional."""
    V = 1.0 - q

    def density(x):
        u = np.sqrt(q / V) * x
        return 2.0 * np.exp(norm.logpdf(x) + 2.0 * norm.logpdf(u) - norm.logcdf(u)) / V

    return quad(density, -9, 9, epsabs=1e-12, limit=400)[0]


def modulus_information(q):
    """E (E[z|y, ω] - ω)²/V² of y = |z|, two-dimensional: E[z|y, ω] = y tanh(ωy/V)."""
    V = 1.0 - q
    x, w = np.polynomial.hermite_e.hermegauss(120)
    omega = np.sqrt(q) * x[:, None]
    z = omega + np.sqrt(V) * x[None]
    g = (z * np.tanh(omega * z / V) - omega) / V
    return w @ g**2 @ w / (2.0 * np.pi)


@pytest.mark.slow
def test_one_bit_state_evolution_against_quadrature():
    """The iteration V = MMSE(α f(1 - V)) with f by quad; ours within five of its error bars."""
    model = smi.Bilinear(1.0, 0.2, output="sign")
    V = 1.0
    for _ in range(60):
        V = float(model.prior.mmse(signs_information(1.0 - V)))
    solution = smi.state_evolution(model, 1.0, key=KEY)
    stderr = float(solution.stderr[0, 0])
    assert stderr < 1e-5
    assert abs(float(solution.error) - V) < 5.0 * stderr + 1e-8
    assert float(smi.weak_recovery(model, key=KEY, samples=2**10).alpha) == 0.0
    assert np.isinf(float(smi.recovery_threshold(model).alpha))


@pytest.mark.slow
def test_response_of_the_modulus_against_quadrature():
    """Within five error bars, at 2^14 points; Gauss–Hermite is good to 1e-6 at this q."""
    model = smi.Bilinear(1.0, 0.2, output="absolute")
    for q in (0.2, 0.6):
        sizes = {"key": KEY, "samples": 2**11, "randomisations": 8}
        response = model.channel.response(q * ONE, (1.0 - q) * ONE, **sizes)
        stderr = float(jnp.std(response.replicas, ddof=1)) / np.sqrt(8)
        assert stderr < 1e-2
        assert abs(float(response.mean[0, 0]) - modulus_information(q)) < 5.0 * stderr + 1e-6


@pytest.mark.slow
def test_phaseless_weak_recovery_and_recovery():
    """α = 1/(F'(0) f'(0)) = 1/2 whatever the ratios; D of the linear output; S up to its sign."""
    for beta, rho in ((1.0, 0.2), (2.0, 0.7)):
        model = smi.Bilinear(beta, rho, output="absolute")
        slope = (1.0 - float(model.prior.mmse(1e-4))) / 1e-4
        assert slope == pytest.approx(1.0, abs=1e-3)
        found = smi.weak_recovery(model, key=KEY)
        assert abs(float(found.alpha) - 0.5) < 5.0 * float(found.stderr)
        exact = smi.recovery_threshold(smi.Bilinear(beta, rho)).alpha
        assert float(smi.recovery_threshold(model).alpha) == pytest.approx(float(exact))
    model = smi.Bilinear(1.0, 0.2, output="absolute")
    assert result(smi.state_evolution(model, 0.7, key=KEY)) is smi.Result.RECOVERED
    S = np.asarray(model.draw_teacher(KEY, 10))
    assert float(model.estimation_error(-S, S)) == 0.0


@pytest.mark.slow
def test_a_symmetric_field_has_twice_the_variance():
    """A straight line as a piecewise link, whose channel is that of the linear output."""
    link = smi.links.piecewise_linear([1.0], [0.0], np.zeros(0), 0.3)
    model = smi.Bilinear(1.0, 0.5, symmetric=True, output=link)
    exact = smi.Bilinear(1.0, 0.5, 0.3, symmetric=True)
    sizes = {"key": KEY, "samples": 2**8, "randomisations": 4}
    response = model.channel.response(0.7 * ONE, 0.8 * ONE, **sizes)
    f = exact.channel.information
    np.testing.assert_allclose(response.mean[0, 0], f(0.7, 0.8), rtol=1e-12)
    slope = jax.grad(lambda q: f(q, 1.5 - q))(0.7)
    np.testing.assert_allclose(response.jacobian.ravel()[0], slope, rtol=1e-12)
    g = model.channel.posterior(0.4, [[0.1]], [[0.8]]).g
    np.testing.assert_allclose(g[0, 0], (0.4 - 0.1) / (0.8 + 0.15), rtol=1e-12)


def scores(count, size, seed=0):
    normal = np.random.default_rng(seed).normal(size=(count, size, size))
    return jnp.asarray(normal + np.swapaxes(normal, 1, 2))


def test_a_linear_function_of_scores_is_the_linear_output():
    """To the tolerance of the numerical integral; labels are not symmetric, their mean counts."""
    model = smi.AttentionIndexed(2, 0.5, output=lambda h: h, noise=0.2)
    exact = LinearScores(tokens=2, noise=jnp.asarray(0.2))
    omega = scores(4, 2)
    labels = omega + jnp.asarray([[0.3, 0.5], [-0.1, 0.2]])
    post = model.channel.respond(labels, omega.reshape(4, 1, 4), 0.6 * ONE)
    mean = 0.5 * (labels + jnp.swapaxes(labels, 1, 2))
    np.testing.assert_allclose(
        post.g.reshape(4, 2, 2), exact.gamma(mean, omega, jnp.asarray(0.6)), atol=1e-4
    )


def test_scores_by_brute_force():
    """E[h|y, ω] of a function of the scores, by weighing 10⁶ draws; five standard errors."""
    function = lambda h: jnp.tanh(h[0, 1]) * h[0, 0]
    model = smi.AttentionIndexed(2, 0.5, output=function, noise=0.3)
    omega, V, y = np.array([[0.3, -0.4], [-0.4, 0.8]]), 0.7, 0.5
    normal = np.random.default_rng(1).normal(size=(10**6, 2, 2))
    deviation = np.sqrt(V) * (normal + np.swapaxes(normal, 1, 2)) / np.sqrt(2.0)
    h = omega + deviation
    weight = np.exp(-0.5 * (y - np.tanh(h[:, 0, 1]) * h[:, 0, 0]) ** 2 / 0.3)
    weight = (weight / weight.sum())[:, None, None]
    gamma = np.sum(weight * deviation, axis=0) / V
    error = np.sqrt(np.sum(weight**2 * (deviation / V - gamma) ** 2, axis=0))
    found = model.channel.posterior(y, omega.reshape(1, 4), V * ONE).g.reshape(2, 2)
    assert np.all(np.abs(found - gamma) < 5.0 * error + 1e-3)


@pytest.mark.slow
def test_hardmax_by_its_outcomes():
    """An indicator as a likelihood against the exact channel: a grid sees jumps to 2 %."""
    hardmax = lambda h: jax.nn.one_hot(jnp.argmax(h, -1), 2)
    eye = np.eye(2)
    labels = jnp.asarray([[eye[i], eye[j]] for i in range(2) for j in range(2)])
    law = lambda y, h: jnp.where(jnp.all(hardmax(h) == y), 0.0, -1e4)
    model = smi.AttentionIndexed(2, 0.5, log_likelihood=law, outcomes=labels)
    exact = HardmaxScores(tokens=2)
    omega = scores(4, 2)
    post = model.channel.respond(labels, omega.reshape(4, 1, 4), 0.6 * ONE)
    gamma = exact.gamma(exact.statistic(labels), omega, jnp.asarray(0.6))
    np.testing.assert_allclose(post.g.reshape(4, 2, 2), gamma, atol=3e-2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: smi.Bilinear(output="softmax"), "output"),
        (lambda: smi.Bilinear(output=3), "output"),
        (lambda: smi.Bilinear(output=smi.links.product(2)), "output"),
        (lambda: smi.Bilinear(noise=0.1, output=smi.links.relu()), "noise"),
        (lambda: smi.Bilinear(output="sign", log_likelihood=lambda y, z: z), "log_likelihood"),
        (lambda: smi.AttentionIndexed(2, 0.5, output=lambda h: h[5, 5, 5], noise=0.1), "output"),
        (lambda: smi.AttentionIndexed(2, 0.5, output=lambda h: h, noise=0.1, layers=2), "layers"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=rf"^{name}: got"):
        call()


@pytest.mark.slow
def test_message_passing_of_one_bit_labels_against_theory():
    """The mean of six runs at d = 40, within three standard errors and 5 % of finite size."""
    model = smi.Bilinear(1.0, 0.2, output="sign")
    errors = []
    for key in jax.random.split(KEY, 6):
        data = model.sample(key, dimension=40, alpha=1.0)
        errors.append(float(smi.gamp(model, data, key=key).error))
    theory = float(smi.state_evolution(model, 1.0, key=KEY).error)
    spread = np.std(errors, ddof=1) / np.sqrt(6)
    assert abs(np.mean(errors) - theory) < 3.0 * spread + 0.05 * theory
