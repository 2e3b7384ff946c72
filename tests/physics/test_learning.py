"""The published run of stochastic gradient descent, and the order in which message passing and
descent learn the layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import keys

RUNS, D = 8, 500
THRICE = smi.Gradient(batch_size=200, repeats=3, reduction="sum/D")


def published(steps, key):
    """Two layers, α = 15, batches of 200, three updates on each, learning rate 15, weight decay
    0.07/D, start 0.9 N(0, 1)."""
    model = smi.DeepAttention(2, 2)
    data = model.sample(key, dimension=D, alpha=15.0, dtype=jnp.float32)
    optimizer = optax.chain(optax.add_decayed_weights(0.07 / D), optax.sgd(15.0))
    settings = {"gradient": THRICE, "start": 0.9, "monitor": smi.Monitor(every=50)}
    return smi.train(model, data, optimizer, key=keys(RUNS), steps=steps, **settings)


def compare(fit, reference, steps):
    """How far mean cosines at `steps` are from the published ones, beyond three combined standard
    errors."""
    table = np.genfromtxt(reference / "smi" / "sgd_cosine_2layer.csv", delimiter=",", names=True)
    cosines = np.asarray(fit.history["cosine"])
    gaps = []
    for step in steps:
        here = cosines[:, list(np.asarray(fit.history["step"][0])).index(step)]
        for p in range(2):
            mean, spread = (
                np.interp(step, table["step"], table[f"cos{p + 1}_{kind}"])
                for kind in ("mean", "std")
            )
            stderr = np.sqrt((here[:, p].var(ddof=1) + spread**2) / RUNS)
            print(f"step {step}, layer {p + 1}: {here[:, p].mean():.3f}, published {mean:.3f}, ± {stderr:.3f}")  # fmt: skip
            gaps.append(abs(here[:, p].mean() - mean) - 3 * stderr)
    return np.array(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [500, 10_000])
def test_the_published_run(reference, steps):
    fit = published(steps, jax.random.key(0))
    records = [step for step in (100, 500, 2000, 10_000) if step <= steps]
    assert np.all(compare(fit, reference, records) < 0.05)
    learned = np.asarray(smi.learned_at(fit, 0.5))
    assert np.all(learned[:, 1] < 250)
    assert np.all(learned[:, 1] < learned[:, 0])  # the last layer first


@pytest.mark.slow
def test_the_last_layer_is_learned_first_by_message_passing_and_by_descent():
    model, key = smi.DeepAttention(2, 2), jax.random.key(1)
    data = model.sample(key, dimension=D, alpha=15.0)
    decay = optax.chain(optax.add_decayed_weights(0.07 / D), optax.sgd(15.0))
    batches = smi.Gradient(batch_size=200)
    methods = {
        "GAMP": {"alpha": 1.2},
        "SGD": {"optimizer": decay, "steps": 6000, "gradient": THRICE, "start": 0.9},
        "Adam": {"optimizer": optax.adam(1e-2), "steps": 3000, "gradient": batches},
    }
    order = smi.learning_order(model, data, methods, key=key, seeds=4)
    for name in methods:
        assert order.order(name)[0] == 1, name
        learned = np.asarray(order.learned[name])
        assert np.all(learned[:, 1] < learned[:, 0]), name
    assert np.all(np.isfinite(np.asarray(order.learned["GAMP"])))
