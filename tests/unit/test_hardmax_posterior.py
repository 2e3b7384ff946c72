"""Hardmax of many tokens: what a label says of its scores, against closed forms and rejection."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.channels.hardmax import HardmaxScores
from jaxsmi.channels.hardmax_posterior import hardmax_moments, possible

KEY = jax.random.key(0)


def scores(count, size, seed=0):
    normal = np.random.default_rng(seed).normal(size=(count, size, size))
    return normal + np.swapaxes(normal, 1, 2)


def drawn(omega, V, count, seed=1):
    """Scores (count, T, T) around ω, and at which ones tokens point (count, T)."""
    normal = np.random.default_rng(seed).normal(size=(count, *omega.shape))
    h = omega + np.sqrt(V / 2.0) * (normal + np.swapaxes(normal, 1, 2))
    return h, h.argmax(-1)


def test_labels_that_point_in_a_circle_are_impossible():
    """Of three tokens, those that no draw of 10⁵ has; refused as labels."""
    _, targets = drawn(np.zeros((3, 3)), 1.0, 10**5)
    labels = np.array(list(itertools.product(range(3), repeat=3)))
    occurs = [np.any(np.all(targets == label, axis=1)) for label in labels]
    np.testing.assert_array_equal(possible(jnp.asarray(labels)), occurs)
    assert np.sum(~np.asarray(occurs)) == 2
    circle = jnp.eye(3)[jnp.array([[1, 2, 0]])]
    with pytest.raises(ValueError, match=r"^labels: got"):
        HardmaxScores(tokens=3).check_labels(circle)


@pytest.mark.slow
def test_two_tokens_are_the_closed_form():
    """Γ of all four labels, to 1e-3 of the tolerance: one smooth integral."""
    exact = HardmaxScores(tokens=2)
    targets = jnp.asarray([[0, 0], [0, 1], [1, 0], [1, 1]])
    omega = jnp.asarray(scores(4, 2))
    gamma = exact.gamma(2.0 * (targets == jnp.arange(2)) - 1.0, omega, jnp.asarray(0.6))
    found = hardmax_moments(targets, omega, jnp.asarray(0.6))
    np.testing.assert_allclose(found.g.reshape(4, 2, 2), gamma, atol=1e-5)
    assert np.all(np.asarray(found.error) < 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("V", "spread"), [(0.6, 1.0), (0.05, 0.5)])
def test_three_tokens_by_rejection(V, spread):
    """Γ and Z_out by 2·10⁶ draws: five standard errors, and the error that the integral tells."""
    omega = spread * scores(1, 3)[0]
    h, targets = drawn(omega, V, 2 * 10**6)
    code = targets @ np.array([1, 3, 9])
    for value, count in zip(*np.unique(code, return_counts=True), strict=True):
        if count < 2000:
            continue
        deviation = (h[code == value] - omega) / V
        label = jnp.asarray(targets[code == value][:1])
        found = hardmax_moments(label, jnp.asarray(omega[None]), jnp.asarray(V))
        mean = deviation.mean(0)
        allowed = float(found.error[0]) * (1.0 + np.abs(mean).max())
        error = 5.0 * deviation.std(0) / np.sqrt(count) + allowed
        assert np.all(np.abs(found.g.reshape(3, 3) - mean) < error)
        share = count / len(h)
        assert abs(float(jnp.exp(found.log_mass[0])) - share) < 5.0 * np.sqrt(share / len(h)) + 1e-3


@pytest.mark.slow
def test_unlikely_labels_of_four_tokens_have_weight():
    """A label of probability below 1e-9 has a finite Γ that pulls its scores the right way."""
    omega = jnp.asarray(4.0 * np.eye(4))[None]
    found = hardmax_moments(jnp.asarray([[1, 0, 3, 2]]), omega, jnp.asarray(0.1))
    gamma = np.asarray(found.g.reshape(4, 4))
    assert np.isfinite(gamma).all()
    assert float(found.log_mass[0]) < -20.0
    assert gamma[0, 1] > 0.0
    assert gamma[2, 3] > 0.0
    assert np.all(np.diagonal(gamma) < 0.0)


@pytest.mark.slow
def test_message_passing_of_three_tokens_against_theory():
    """Three runs at d = 36: see `docs/theory/attention-indexed.md` for the allowance."""
    model = smi.AttentionIndexed(3, 0.5, output="hardmax")
    errors = []
    for key in jax.random.split(KEY, 3):
        data = model.sample(key, dimension=36, alpha=0.3)
        options = {"iteration": smi.Iteration(60, tolerance=2e-3)}
        errors.append(float(smi.gamp(model, data, key=key, **options).error))
    theory = float(smi.state_evolution(model, 0.3, key=KEY).error)
    spread = np.std(errors, ddof=1) / np.sqrt(3)
    assert abs(np.mean(errors) - theory) < 3.0 * spread + 0.1 * theory
