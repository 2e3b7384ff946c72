"""Noiseless links without a channel: limits of vanishing label noise, against exact values and the
exact channels of the same labels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.core.results import Result, message, worst
from jaxsmi.numerics.continuation import limit

KEY = jax.random.key(1)
LADDER = tuple(0.1 / 2**k for k in range(4))


def attention(z):
    return jax.nn.softmax(z.T @ z, axis=-1)


SQUARE = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1)


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0, 1.25])
def test_a_power_is_found_and_its_limit(power):
    steps = np.asarray(LADDER)
    exact = np.array([[2.0, 0.3], [0.3, 1.0]])
    slope = np.array([[1.0, -0.2], [-0.2, 0.5]])
    values = exact + slope * steps[:, None, None] ** power
    spread = 0.01 * np.random.default_rng(0).standard_normal((8, 1, 2, 2))
    spread -= spread.mean(0)
    found = limit(jnp.asarray(steps), jnp.asarray(values + spread))
    np.testing.assert_allclose(found.value, exact, atol=1e-9)  # rounding over r^p - 1
    # an offset that all steps share is that of the limit: the jackknife is exact
    np.testing.assert_allclose(found.replicas, exact + spread[:, 0], atol=1e-9)


@pytest.mark.parametrize("logs", [0, 1])
def test_the_error_covers_what_a_power_does_not_describe(logs):
    steps = np.asarray(LADDER)
    values = 1.0 + np.sqrt(steps) * (1.0 - 0.5 * logs * np.log(steps)) + 2.0 * steps
    found = limit(jnp.asarray(steps), jnp.asarray(values)[None])
    assert abs(found.value - 1.0) < 2.0 * found.error
    assert found.error < abs(values[-1] - 1.0)  # and better than the last value


def test_the_gravest_of_many_codes():
    """Numbers of codes are no order: INACCURATE (6) is milder than MAX_STEPS (2)."""
    order = [Result.SUCCESS, Result.INACCURATE, Result.MARGINAL, Result.MAX_STEPS]
    order += [Result.DIVERGED, Result.NONFINITE, Result.INVALID]
    for mild, grave in itertools.combinations(order, 2):
        for codes in ([mild, grave], [grave, mild, mild]):
            assert worst(jnp.array(codes)) == grave
            assert jax.jit(worst)(jnp.array(codes)) == grave
    for code in Result:
        assert worst(jnp.array([code, code])) == code
    # the sentence is that of the gravest, not of the most frequent
    assert "MAX_STEPS: Not converged: take more steps" in message([0, 2, 7, 7])


EXACT = {
    "product": (lambda z: z[0, 0] * z[1, 0], (2, 1), 0.1, 0.59375),
    "attention": (attention, (1, 2), 0.01, 1 / 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_thresholds_of_noiseless_links_are_their_exact_values(name):
    """Of z_1 z_2, and of one attention layer, 1/(M(M + 1)), through their plain links."""
    link, (indices, tokens), first, exact = EXACT[name]
    model = smi.MultiIndex(link, indices=indices, tokens=tokens)
    noises = first / 2.0 ** np.arange(4)
    found = smi.weak_recovery(model, key=KEY, noises=noises, averages=smi.Averages(points=2**12))
    assert found.result == smi.Result.SUCCESS
    assert abs(found.alpha - exact) < 2 * found.stderr < 0.4 * exact


@pytest.mark.slow
def test_state_evolution_is_that_of_the_exact_channel():
    sizes = {"key": KEY, "averages": smi.Averages(2**11)}
    exact = smi.state_evolution(smi.links.phase_retrieval(), 0.8, **sizes)
    found = smi.noiseless_limit(SQUARE, 0.8, (0.08, 0.04, 0.02, 0.01), **sizes)
    assert found.result == smi.Result.SUCCESS
    # common points: the extrapolation is an order finer than their statistical error
    np.testing.assert_allclose(found.overlap, exact.overlap, atol=0.005)
    np.testing.assert_allclose(found.stderr, exact.stderr, rtol=0.2)
    np.testing.assert_allclose(found.overlap + found.covariance, np.eye(1), atol=1e-12)
