"""Small problems that the calls share, and the table of a file's calls."""

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax

import jaxsmi as smi
from border.judging import Case

matplotlib.use("Agg")

KEY = jax.random.key(0)
LINEAR, SIGN = smi.links.linear(0.5), smi.links.sign()
ATTENTION = smi.DeepAttention(2, 2)
SCORES, RECTANGLE = smi.AttentionIndexed(2, 0.5), smi.Bilinear(1.0, 0.5)
TWO_WIDE = smi.links.square_plus_sign_parity()
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((12, 1, 6))
TEACHER = RANDOM.standard_normal((1, 6))
DATA = smi.Dataset(INPUTS, INPUTS @ TEACHER[0], TEACHER)
ONE_LABEL = smi.Dataset(INPUTS, INPUTS[:, 0] @ TEACHER[0][:, None], TEACHER)
WIDE = smi.Dataset(RANDOM.standard_normal((9, 6, 6)), np.ones(9), np.eye(6))
SERIES = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
NETWORK = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
SEQUENCE = smi.SequenceSingleIndex(SERIES, 1, NETWORK, loss_factor=1.0)
SEMANTIC = smi.sgd.semantic_positional(0.5)
GAUSSIAN = smi.priors.Gaussian()
ADAM = optax.adam(0.1)


def first(z):
    return z[0, 0]


def squared_loss(prediction, label):
    return jnp.sum((prediction - label) ** 2)


def solution(model, weights, cosine=True):
    """A solution as `train` and `gamp` return it, made by hand."""
    runs = weights.shape[:-2]
    P = weights.shape[-2]
    steps = np.arange(4.0)
    history = {"step": np.broadcast_to(steps, (*runs, 4))}
    if cosine:
        history["cosine"] = np.broadcast_to(np.linspace(0, 1, 4)[:, None], (*runs, 4, P))
    square = np.broadcast_to(0.5 * np.eye(P), (*runs, P, P))
    number = np.full(runs, 0.5)
    return smi.Solution(
        overlap=jnp.asarray(square),
        stderr=jnp.asarray(square),
        error=jnp.asarray(number),
        alpha=jnp.asarray(number),
        steps=jnp.asarray(np.full(runs, 4)),
        residual=jnp.asarray(number),
        result=jnp.asarray(np.zeros(runs, int)),
        history=jax.tree.map(jnp.asarray, history),
        covariance=jnp.asarray(square),
        spectral_radius=jnp.asarray(number),
        weights=jnp.asarray(weights),
        model=model,
        kind="train",
    )


SOLVED = solution(LINEAR, TEACHER)
RUNS = solution(SCORES, RANDOM.standard_normal((3, 6, 6)))
FOUND = smi.Threshold(*(jnp.asarray(x) for x in (1.0, 0.1, [1.0], [[1.0]], [[0.0]], 0)))


class Table(dict[str, Case]):
    """Cases by title, in the order in which they are called for."""

    def __call__(self, title, call, valid, others=None, /, **kinds):
        self[title] = Case(call, valid, kinds, others or {})


SIZES = {"model": LINEAR, "key": KEY}
PRIOR = {"prior": "object?"}
OF_DATA = {"data": ("inputs", "labels")}
