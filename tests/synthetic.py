"""Solutions made by hand, for the tests of what stores and draws them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Solution, Threshold


class Layers(eqx.Module):
    """Stands for a model with layers."""

    skip: jax.Array
    ranks: tuple = eqx.field(static=True, default=(1, 1))

    @property
    def index_names(self):
        return self._model.index_names

    @property
    def metric(self):
        return self._model.metric

    @property
    def _model(self):
        return smi.DeepAttention(len(self.ranks), 2, ranks=self.ranks)


def solution(
    kind="state_evolution", alpha=1.2, steps=7, result=Result.SUCCESS, moment=1.0, key=None
):
    """Two layers whose overlaps rise geometrically, with `10 - steps` empty rows of history."""
    step = np.arange(1.0, 11.0)
    overlap = moment * np.array([np.diag([1 - 0.9**t, 1 - 0.5**t]) for t in step])
    overlap[:, 0, 1] = overlap[:, 1, 0] = 0.01
    history = {
        "step": step,
        "overlap": overlap,
        "covariance": moment * np.eye(2) - overlap,
        "residual": moment * 0.9**step,  # at least as long as a plain step
    }
    if kind == "gamp":
        history["cosine"] = np.sqrt(np.diagonal(overlap, axis1=1, axis2=2) / moment)
        history["loudest"] = np.arange(3.0) + step[:, None]  # what a user asked to record
    for values in history.values():
        values[steps:] = np.nan
    arrays = {
        "overlap": overlap[steps - 1],
        "stderr": np.full((2, 2), 0.01 if kind != "gamp" else 0.0),
        "covariance": history["covariance"][steps - 1],
        "weights": np.arange(8.0).reshape(2, 4) if kind == "gamp" else None,
        "history": history,
    }
    numbers = {"alpha": alpha, "steps": steps, "residual": 0.5**steps, "result": int(result)}
    arrays |= numbers | {"error": 0.25, "spectral_radius": 0.5}
    key = jax.random.key(3) if key is None else key
    model = Layers(jnp.array([1.0, 0.5]))
    return Solution(**jax.tree.map(jnp.asarray, arrays), model=model, key=key, kind=kind)


def curve():
    """Solutions at three alpha, not in order."""
    return [solution(alpha=alpha, steps=steps) for alpha, steps in ((0.9, 8), (0.3, 4), (0.6, 6))]


def threshold(alpha, subspace=None, overlap=None):
    subspace = jnp.eye(1) if subspace is None else jnp.asarray(subspace)
    overlap = 0.0 * subspace if overlap is None else overlap
    return Threshold(*map(jnp.asarray, (alpha, 0.01, jnp.full(4, alpha), subspace, overlap, 0)))


def data(teacher=True):
    """Six samples of two tokens in four dimensions, with matrices as labels."""
    inputs = np.arange(48.0).reshape(6, 2, 4)
    return Dataset(inputs, inputs @ inputs.transpose(0, 2, 1), np.ones((2, 4)) if teacher else None)
