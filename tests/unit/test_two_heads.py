"""One layer of two heads between two tokens: its posterior against draws in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import respond

BETA = 1.3
KEY = jax.random.key(0)


def kept(z):
    gap = z[..., 0] - z[..., 1]
    logits = BETA * np.stack([z[..., 0] * gap, -z[..., 1] * gap])
    return 1.0 / (1.0 + np.exp(-logits))


def response(label, omega, V, radius=0.03, count=2_000_000):
    """g of all draws of fields whose labels lie within a radius of this one, extrapolated to zero
    from two radii (errors are of second order), and its error: the scatter, and a third of what
    the radius changes."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((count, 2, 2))
    z = omega + np.einsum("pq,nqm->npm", np.linalg.cholesky(V), noise)
    distance = np.hypot(*(kept(z).mean(-1) - np.diagonal(label)[:, None]))
    inverse = np.linalg.inv(V)
    each = [inverse @ (z[distance < r] - omega) for r in (radius, 2 * radius)]
    near, far = (x.mean(0) for x in each)
    scatter = each[0].std(0) / np.sqrt(len(each[0]))
    return (4 * near - far) / 3, 4.5 * 4 / 3 * scatter + abs(near - far) / 3


@pytest.mark.slow
def test_posterior_against_draws_of_nearby_labels():
    """The tolerance is 1e-2 of 1 + max|g|; beside it the error of the draws."""
    channel = smi.DeepAttention(1, 2, heads=2, beta=BETA).channel
    V = np.array([[0.8, 0.2], [0.2, 0.6]])
    fields = np.array([[[1.2, -0.5], [0.4, 0.9]], [[-0.3, 0.8], [1.5, 0.2]]])
    omega = np.array([[[0.6, -0.1], [0.3, 0.2]], [[0.2, 0.5], [0.9, 0.1]]])
    labels = jax.vmap(channel.link)(jnp.asarray(fields))
    post = respond(channel, labels, jnp.asarray(omega), jnp.asarray(V))
    for n in range(2):
        expected, error = response(np.asarray(labels[n]), omega[n], V)
        assert error.max() < 0.15
        size = 1 + np.abs(expected).max()
        assert np.all(np.abs(post.g[n] - expected) < 0.01 * size + error)
        assert post.error[n] < 0.01
    # heads can be exchanged
    swap = respond(channel, labels, jnp.asarray(omega[:, ::-1]), jnp.asarray(V[::-1, ::-1]))
    np.testing.assert_allclose(swap.g, post.g[:, ::-1], atol=0.02 * (1 + np.abs(post.g).max()))


@pytest.mark.slow
def test_the_average_is_on_the_nishimori_line():
    """E Σ g gᵀ = -E Σ ∂g at Q = 0.3, of both estimates by their spread over nets."""
    channel = smi.DeepAttention(1, 2, heads=2).channel
    Q, V = 0.3 * jnp.eye(2), 0.7 * jnp.eye(2)
    post = channel.draw(Q, V, key=KEY, samples=128, randomisations=8)
    difference = jnp.einsum("npm,nqm->npq", post.g, post.g) + jnp.einsum("npmqm->npq", post.dg)
    each = np.asarray(difference).reshape(8, 128, 2, 2).mean(1)
    error = each.std(0, ddof=1) / np.sqrt(8)
    assert np.all(abs(each.mean(0)) < 5 * error + 0.02)
