"""Newton steps in V and α together along a branch of state evolution, against the route that solves
for V at each α: same random points, another way to the same root."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.thresholds.crossing import SearchRegion, crossings
from jaxsmi.thresholds.following import approach
from jaxsmi.thresholds.scan import Place, Scan

KEY = jax.random.key(0)


def _modulus_then_modulation(z):
    """|z1| is learned first, z2 next."""
    return jnp.abs(z[0, 0]) * (1.0 + 0.5 * z[1, 0] ** 2)


@eqx.filter_jit
def approached(model, region, key):
    end = approach(region.branch(model, region.guess, key), region.V0, region.floor)
    return *end.stand.moved(end.stretch), end.near, end.count, end.stand.grown.subspace


def test_both_routes_find_the_same_root():
    """Roots of the solved route are good to 1e-4 in h; the last Newton step is below 2e-3 in log α,
    and leaves a fraction of it."""
    model = smi.MultiIndex(_modulus_then_modulation, indices=2, noise=0.3)
    first = smi.weak_recovery(model, key=KEY, samples=2**10, randomisations=4)
    np.testing.assert_allclose(first.subspace, np.diag([1.0, 0.0]), atol=0.05)
    learned = np.asarray([[1.0], [0.0]])
    scan = Scan.of(model, learned, float(first.alpha), [first], KEY, 20.0, 2**10)
    place = scan.along(None)
    assert isinstance(place, Place)
    solved = scan.upwards()
    assert isinstance(solved, Place)
    print("scans", place.alpha, solved.alpha, float(place.V[0, 0]), float(solved.V[0, 0]))
    # both interpolate h between points at most 20 % apart
    assert abs(np.log(place.alpha / solved.alpha)) < 0.05
    keys = jax.random.split(KEY, 2)
    region = SearchRegion(
        scan.learned, jnp.asarray(place.alpha), jnp.asarray(1e-6), place.V, keys, 64
    )
    roots = crossings(model, region)
    for k in range(2):
        alpha, V, near, count, X = approached(model, region, keys[k])
        print("root", float(alpha), float(roots.alpha[k]), "points", int(count) + 1)
        assert near
        assert int(count) < 8
        np.testing.assert_allclose(alpha, roots.alpha[k], rtol=1e-3)
        np.testing.assert_allclose(V, roots.V[k], rtol=1e-2)
        np.testing.assert_allclose(X, roots.X[k], atol=1e-6)


@pytest.mark.slow
def test_the_staircase_of_three_layers():
    """Layer 3, then layer 1, then layer 2, each to 2 % and within three joint standard errors of
    the script that shares nothing with the library [theory: deep-attention, Table 1]."""
    stairs = smi.staircase(smi.DeepAttention(3, 2), key=KEY)
    independent = [(0.2070, 0.0008), (0.971, 0.005), (np.nan, np.nan)]
    assert len(stairs) == 3
    for step, (value, error) in zip(stairs, independent, strict=True):
        print(float(step.alpha), float(step.stderr), step.message)
        assert smi.Result(int(step.result)) == smi.Result.SUCCESS
        assert float(step.stderr) < 0.02 * float(step.alpha)
        assert abs(float(step.alpha) - value) < 3 * np.hypot(error, float(step.stderr))
    for step, layer in zip(stairs, (2, 0, 1), strict=True):
        assert np.argmax(np.diagonal(step.subspace)) == layer
