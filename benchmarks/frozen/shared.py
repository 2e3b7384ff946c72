"""Models, data and functions that the entries share."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from adapters import posterior_parts

import jaxsmi as smi


def key(n=0):
    return jax.random.key(n)


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def soft_link(z):
    return jnp.tanh(2.0 * z[0, 0]) + 0.3 * z[0, 0]


def pair_link(z):
    return jnp.sum(z[0] * jnp.tanh(z[1]))


def vector_link(z):
    return jnp.stack([jnp.tanh(z[0, 0] + z[1, 0]), z[0, 0] * z[1, 0]])


def logistic(y, z):
    return jax.nn.log_sigmoid(3.0 * y * z[0, 0])


def jump_link(z):
    return jnp.where(z[0, 0] >= 0.0, 1.0, -1.0)


class Steep(eqx.Module):
    """A link with a number in it, to be differentiated."""

    slope: object

    def __call__(self, z):
        return jnp.tanh(self.slope * z[0, 0]) + 0.5 * z[0, 0] ** 2


def steep(slope, noise=0.2):
    return smi.MultiIndex(Steep(jnp.asarray(slope, float)), indices=1, noise=noise)


def user_model(noise=0.2):
    return smi.MultiIndex(soft_link, indices=1, noise=noise)


def likelihood_model():
    return smi.MultiIndex(jump_link, indices=1, log_likelihood=logistic, name="logistic")


def likelihood_data(D=120, N=300):
    rng = np.random.default_rng(5)
    W, x = rng.standard_normal((1, D)), rng.standard_normal((N, 1, D))
    z = (x[:, 0] @ W[0]) / np.sqrt(D)
    y = np.where(rng.random(N) < 1.0 / (1.0 + np.exp(-3.0 * z)), 1.0, -1.0)
    return smi.Dataset(x, y, W)


def fields_for(model, seed=0):
    """ω, fields z ~ N(ω, V), V, of one sample."""
    rng, P, M = np.random.default_rng(seed), model.indices, model.tokens
    V = 0.35 * np.eye(P) + 0.1 * np.ones((P, P))
    omega = 0.8 * rng.standard_normal((P, M))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((P, M))
    return jnp.asarray(omega), jnp.asarray(z), jnp.asarray(V)


def posterior(model, seed=0, y=None, noise=0.0, spread=1.0, **words):
    omega, z, V = fields_for(model, seed)
    y = model.link(z) if y is None else y
    y = y + noise * np.random.default_rng(9).standard_normal(np.shape(y)) if noise else y
    return posterior_parts(model.channel.posterior(y, omega, spread * V, **words))


def norm_and_precision(state):
    """What GAMP is asked to record."""
    return {"norm": jnp.sum(state.weights**2), "precision": state.precision, "step": state.step}


def weight_norm(weights):
    """What training is asked to record."""
    return {"norm": jnp.sum(weights**2), "count": jnp.asarray(weights.size)}


INDEX_MODELS = {
    "linear": lambda: smi.links.linear(0.3),
    "linear, 2 tokens": lambda: smi.links.linear(0.1, tokens=2),
    "sign": lambda: smi.links.sign(),
    "sign, Rademacher": lambda: smi.links.sign(smi.priors.Rademacher()),
    "phase retrieval": lambda: smi.links.phase_retrieval(),
    "phase retrieval, squared": lambda: smi.links.phase_retrieval(squared=True),
    "phase retrieval, sparse": lambda: smi.links.phase_retrieval(
        prior=smi.priors.BernoulliGauss(0.4)
    ),
    "sign product 2": lambda: smi.links.sign_product(2),
    "sign product 3": lambda: smi.links.sign_product(3),
    "product 2": lambda: smi.links.product(2),
    "product 3": lambda: smi.links.product(3),
    "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    "user, noise": user_model,
    "user, two indices and tokens": lambda: smi.MultiIndex(
        pair_link, indices=2, tokens=2, noise=0.1
    ),
    "user, vector label": lambda: smi.MultiIndex(vector_link, indices=2, noise=0.3),
    "attention 1, 2 tokens": lambda: smi.DeepAttention(1, 2, beta=1.3),
    "attention 1, 3 tokens": lambda: smi.DeepAttention(1, 3),
    "attention 2": lambda: smi.DeepAttention(2, 2, skip=1.0),
    "attention 3": lambda: smi.DeepAttention(3, 2, skip=[1.0, 0.5]),
    "attention, heads": lambda: smi.DeepAttention(2, 2, 0.7, heads=(2, 1)),
    "attention, untied": lambda: smi.DeepAttention(2, 2, 0.7, tied=(False, True)),
    "attention, all untied, heads, rank 2": lambda: smi.DeepAttention(
        2, 3, 0.5, ranks=2, heads=2, tied=False
    ),
    "attention, ranks": lambda: smi.DeepAttention(2, 3, 0.5, ranks=(2, 1)),
    "attention, noise": lambda: smi.DeepAttention(1, 2, noise=0.05),
    "attention, hardmax": lambda: smi.DeepAttention(2, 3, activation="hardmax"),
}
