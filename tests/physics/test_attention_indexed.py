"""Channels of attention-indexed models, their prediction errors and their data.

Values: computed independently of this code [theory: attention-indexed, section 11].
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import jaxsmi as smi
from helpers import z_scores
from jaxsmi.channels.matrix_scores import HardmaxScores, SoftmaxScores, centred
from jaxsmi.channels.signs import log_quadrant
from jaxsmi.priors.factors import WishartLaw

SLOW = pytest.mark.slow

# Posteriors -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hardmax_response_values():
    channel = HardmaxScores()
    for rho, values in (
        (0.05, (2.4347045, 2.9029773, 5.3719488, 8.6890862, 27.98375)),
        (1, (1.8753501, 2.2033226, 3.9616802, 6.3493769)),
    ):
        for e, value in zip((0, 0.25, 0.75, 0.9, 0.99), values, strict=False):
            np.testing.assert_allclose(channel.information(rho + e, 1 - e), value, rtol=2e-7)


@SLOW
def test_bivariate_signs_far_in_the_tails():
    def gamma(signs, omega):
        found = HardmaxScores().gamma(jnp.array(signs), jnp.diag(jnp.array(omega)), 1.0)
        return np.diagonal(found) / 2

    # 40-digit quadrature (spec: 15.0188)
    np.testing.assert_allclose(gamma([1.0, 1.0], [-60.0, -60.0]), 15.016620374, rtol=1e-6)
    np.testing.assert_allclose(gamma([1.0, -1.0], [-60.0, 40.0]), [27.519, -22.521], atol=1e-3)
    for x, c in (((0.3, -1.0), 1 / 3), ((2.0, 3.0), -1 / 3), ((-3.0, -2.0), 1 / 3)):
        exact = np.log(multivariate_normal([0, 0], [[1, c], [c, 1]]).cdf(x))
        np.testing.assert_allclose(log_quadrant(*jnp.array(x), jnp.asarray(c)), exact, atol=1e-10)


def goe(rng, *shape):
    a = rng.standard_normal(shape)
    return (a + a.swapaxes(-1, -2)) / np.sqrt(2)


def test_gamma_is_the_posterior_mean():
    """E[h|y, ω] = ω + V Γ of softmax, by projecting."""
    rng, V = np.random.default_rng(0), 0.6
    omega = 0.8 * goe(rng, 3, 3)
    h = omega + np.sqrt(V) * goe(rng, 3, 3)
    channel = SoftmaxScores(3, jnp.asarray(1.7))
    seen = channel.statistic(jax.nn.softmax(1.7 * jnp.asarray(h), axis=-1))
    np.testing.assert_allclose(seen, centred(jnp.asarray(h)), atol=1e-12)
    expected = centred(jnp.asarray(h - omega)) / V
    np.testing.assert_allclose(channel.gamma(seen, omega, V), expected, atol=1e-11)


# Prediction errors ------------------------------------------------------------------------------

ERRORS = {  # (β, ρ, V)
    (1, 0.5, 1.0): 0.28681980, (1, 0.5, 0.39219602): 0.12085256, (1, 0.5, 0.1281309): 0.04140767,
    (0.5, 0.5, 1.0): 0.12679244, (0.5, 0.5, 0.39219602): 0.05053094, (0.5, 0.5, 0.1281309): 0.01666351,
    (3, 0.5, 1.0): 0.55880731, (3, 0.5, 0.39219602): 0.27876023, (3, 0.5, 0.1281309): 0.11398423,
    (0.5, 1.0, 0.5): 0.05931049, (1, 1.0, 0.5): 0.13415249, (3, 1.0, 0.5): 0.28844200,
}  # fmt: skip


def prediction_error(model, V, bayes=True, key=None):
    overlap = (model.prior.norm - V) * jnp.ones((1, 1))
    return smi.generalization_error(model, overlap, bayes=bayes, key=key)


def test_prediction_error_of_softmax():
    for (beta, rho, V), known in ERRORS.items():
        found = prediction_error(smi.AttentionIndexed(2, rho, beta=beta), V).value
        np.testing.assert_allclose(found, known, atol=6e-9)  # half a unit of the last digit


@SLOW
def test_prediction_error_by_sampling_agrees_with_closed_forms():
    """The general route on models that have a closed form, and both predictors where both are
    exact."""
    rng, V = np.random.default_rng(0), 0.4
    normal = goe(rng, 2, 200_000, 2, 2)
    omega = jnp.asarray(np.sqrt(1.1) * normal[0])
    h = omega + jnp.asarray(np.sqrt(V) * normal[1])
    for output in ("softmax", "hardmax", "linear"):
        model = smi.AttentionIndexed(2, 0.5, output)
        link = jax.vmap(model.link)
        plug_in = prediction_error(model, V, bayes=False).value
        assert abs(z_scores(jnp.sum((link(h) - link(omega)) ** 2, (1, 2)), plug_in)) < 4
        assert prediction_error(model, V).value <= plug_in + 1e-12
    three = prediction_error(smi.AttentionIndexed(3, 0.5), V, key=jax.random.key(0))
    assert 0 < three.stderr < 5e-3 * three.value


# Data -------------------------------------------------------------------------------------------


def scores_of(S, x):
    """h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d of tokens (n, T, d)."""
    tokens, d = x.shape[1:]
    return (np.einsum("nad,de,nbe->nab", x, S, x) - np.trace(S) * np.eye(tokens)) / np.sqrt(d)


def test_the_law_of_the_data():
    """Var h = Q_0 off the diagonal and 2 Q_0 on it, for the S that was drawn; labels are those of
    the indices."""
    model = smi.AttentionIndexed(2, 0.5, "softmax", beta=1.3)
    data = model.sample(jax.random.key(0), dimension=50, alpha=4.0)
    assert data.inputs.shape == (10_000, 2, 50)
    S = np.asarray(WishartLaw.matrix(data.teacher.T))
    h = scores_of(S, np.asarray(data.inputs[:3]))
    fields = model.student.fields(data.teacher, data.inputs)[:, 0]
    np.testing.assert_allclose(fields[:3], h, atol=1e-12)
    raised = np.exp(1.3 * h)
    np.testing.assert_allclose(data.labels[:3], raised / raised.sum(-1, keepdims=True), atol=1e-12)
    # excess kurtosis of order one at d = 50
    variances = np.array([jnp.var(fields[:, 0, 0]) / 2, jnp.var(fields[:, 0, 1])])
    assert np.all(np.abs(variances / (np.sum(S**2) / 50) - 1) < 5 * np.sqrt(3 / 10_000))
    hard = smi.AttentionIndexed(2, 0.5, "hardmax")
    data = hard.sample(jax.random.key(0), dimension=20, alpha=0.5)
    assert set(np.unique(data.labels)) == {0.0, 1.0}


@SLOW
def test_layers_are_those_of_the_network():
    """The recursion on raw tokens against X_l = [c + softmax(β (X S Xᵀ/√d - centre))] X_{l-1}
    itself."""
    model = smi.AttentionIndexed(3, 0.4, beta=0.8, layers=3, skip=0.6)
    data = model.sample(jax.random.key(0), dimension=9, alpha=0.1)
    x0, B = np.asarray(data.inputs[0]), np.eye(3)
    x = x0
    for layer, S in enumerate(np.asarray(model.student.estimate(data.teacher))):
        scores = x @ S @ x.T / 3 - np.trace(S) / 3 * B @ B.T
        A = np.asarray(jax.nn.softmax(0.8 * jnp.asarray(scores), axis=-1))
        if layer < 2:
            x, B = (0.6 * np.eye(3) + A) @ x, (0.6 * np.eye(3) + A) @ B
    np.testing.assert_allclose(data.labels[0], A, atol=1e-12)
    np.testing.assert_allclose(x, B @ x0, atol=1e-12)
