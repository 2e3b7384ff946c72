"""The optimal spectral estimator as D → ∞ [theory: spectral, Eqs. (1) to (6)]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import jaxsmi as smi

KEY = jax.random.key(0)


def phase_retrieval(alpha):
    """Eq. (6), G = y² - 1 with y ~ N(0, 1), by quadrature and a root."""

    def level(q):
        def part(y):
            return (y**2 - 1) ** 2 / (1 + q * (y**2 - 1)) * stats.norm.pdf(y)

        return alpha * (1 - q) * 2 * integrate.quad(part, 0, 15, limit=400)[0] - 1

    return optimize.brentq(level, 1e-9, 1 - 1e-9, xtol=1e-13)


def one_layer(alpha, tokens):
    """The closed case of one attention layer, r² ~ χ²_M."""

    def level(q):
        def part(r2):
            return (r2 - 1) ** 2 / (1 - q + q * r2) * stats.chi2.pdf(r2, tokens)

        mean = integrate.quad(part, 0, 200, limit=400)[0]
        return alpha * ((1 - q) * mean + tokens - 1) - 1

    return optimize.brentq(level, 1e-9, 1 - 1e-9, xtol=1e-13)


def signs(alpha):
    c = 2 / np.pi
    a = alpha * c**2
    return (a - np.sqrt(a**2 - 4 * c**2 * (a - 1))) / (2 * c**2)


CLOSED = [
    (smi.links.phase_retrieval(), 0.6, phase_retrieval(0.6)),
    (smi.links.phase_retrieval(), 1.5, phase_retrieval(1.5)),
    (smi.DeepAttention(1, 2), 0.3, one_layer(0.3, 2)),
    (smi.DeepAttention(1, 3), 0.25, one_layer(0.25, 3)),
    (smi.links.sign_product(2), 2.6, signs(2.6)),
]


@pytest.mark.parametrize(("model", "alpha", "exact"), CLOSED)
def test_closed_cases(model, alpha, exact):
    """Four standard errors, of sixteen nets; signs have no statistical error, but that of the
    fixed point (1e-7)."""
    found = smi.spectral_overlap(model, alpha, key=KEY)
    gap = np.abs(found.value - exact * np.eye(model.indices))
    assert np.all(gap <= 4.0 * found.stderr + 1e-6)
    assert np.all(found.stderr < 0.01)


def test_the_quadrature_of_these_tests_gives_the_reference():
    """[theory: spectral, Eq. (6)], to the ten digits of a computation done elsewhere."""
    np.testing.assert_allclose(phase_retrieval(0.9), 0.1827591719, atol=2e-10)
    np.testing.assert_allclose(one_layer(0.8, 2), 0.8334119141, atol=2e-10)
    np.testing.assert_allclose(signs(4.0), 0.4292036732, atol=2e-10)


def test_it_leaves_zero_at_weak_recovery():
    """Exact thresholds 1/2 and 1/(M(M+1)) = 1/6, where labels of one layer tell all from 1/(M-1)
    on."""
    for model, threshold in ((smi.links.phase_retrieval(), 0.5), (smi.DeepAttention(1, 2), 1 / 6)):
        below = smi.spectral_overlap(model, 0.9 * threshold, key=KEY).value[0, 0]
        above = smi.spectral_overlap(model, 1.15 * threshold, key=KEY).value[0, 0]
        assert abs(float(below)) < 1e-4
        assert float(above) > 0.01
    everything = smi.spectral_overlap(smi.DeepAttention(1, 2), 1.05, key=KEY).value[0, 0]
    np.testing.assert_allclose(everything, 1.0, atol=1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("model", "alpha", "exact"), [CLOSED[0], CLOSED[2]])
def test_the_error_bar_is_honest(model, alpha, exact):
    """24 keys: the mean square of the z-scores within 2.2 (99.9 % of χ²_24/24, and some for tails)."""
    scores = []
    for key in jax.random.split(KEY, 24):
        found = smi.spectral_overlap(model, alpha, key=key)
        scores.append(float((found.value[0, 0] - exact) / found.stderr[0, 0]))
    assert np.mean(np.square(scores)) < 2.2


def test_the_second_moment_only_sets_the_units():
    """W ~ N(0, S): the labels of phase retrieval scale with √S, and so does Q with S."""
    unit = smi.spectral_overlap(smi.links.phase_retrieval(), 0.9, key=KEY)
    wide = smi.links.phase_retrieval(prior=smi.priors.Gaussian(4.0 * jnp.eye(1)))
    np.testing.assert_allclose(
        smi.spectral_overlap(wide, 0.9, key=KEY).value, 4.0 * unit.value, rtol=1e-5
    )


def test_what_it_refuses():
    for model, word in (
        (smi.links.linear(0.1), "model"),
        (smi.links.sign(), "model"),
        (smi.Bilinear(1.0, 0.2, 0.1), "model"),
    ):
        with pytest.raises(ValueError, match=word):
            smi.spectral_overlap(model, 1.0, key=KEY)
    with pytest.raises(ValueError, match="alpha"):
        smi.spectral_overlap(smi.links.phase_retrieval(), -1.0, key=KEY)
    with pytest.raises(ValueError, match="key"):
        smi.spectral_overlap(smi.links.phase_retrieval(), 1.0)
