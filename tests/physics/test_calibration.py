"""Labels against what a run believes of them [theory: multi-index, Eq. (45)]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import result
from jaxsmi import Result
from jaxsmi.inference.corrections import Draws, misfit, widened

KEY = jax.random.key(0)
N, D = 4000, 200
MODELS = {
    "phase retrieval": smi.links.phase_retrieval(),
    "linear, noise": smi.links.linear(0.3),
    "sign": smi.links.sign(),
    "attention": smi.DeepAttention(1, 3),
}


def measured(model, believed, true=0.4):
    """The misfit of a run whose fields have the variance `true` around ω, and that takes it for
    `believed`."""
    data = model.sample(KEY, dimension=D, alpha=N / D)
    z = model.design.operator(data.inputs).forward(data.teacher)
    rho = jnp.mean(z**2)
    normal = jax.random.normal(jax.random.key(1), z.shape)
    omega = (1.0 - true) * z + jnp.sqrt(true * (1.0 - true) * rho) * normal
    V = believed * rho * jnp.eye(model.indices)
    numbers = Draws.of(model.channel, N, jax.random.key(2))
    return misfit(model.channel, data.labels, omega, V, numbers, model.design.operator(data.inputs))


@pytest.mark.parametrize("name", MODELS)
def test_labels_fit_a_run_that_is_as_sure_as_it_may_be(name):
    """On the Nishimori line the ratio is one: four standard errors. They do not fit a run that is too
    sure."""
    model = MODELS[name]
    found = measured(model, 0.4)
    assert abs(float(found.significance)) < 4.0
    assert abs(float(found.ratio) - 1.0) < 0.3
    found = measured(model, 0.04)
    assert float(found.significance) > 5.0
    assert float(found.excess) > 1.3
    assert float(measured(model, 0.9).excess) == 1.0


def test_the_ratio_of_linear_labels_is_that_of_the_variances():
    """E (y - ω)² = V + Δ: (0.4 + 0.3)/(0.04 + 0.3), to five standard errors of √(2/N)."""
    found = measured(MODELS["linear, noise"], 0.04)
    assert abs(float(found.ratio) - 0.7 / 0.34) < 5.0 * np.sqrt(4.0 / N) * 0.7 / 0.34


def test_v_is_widened_up_to_the_second_moment():
    S = jnp.array([[2.0, 0.3], [0.3, 1.0]])
    V = jnp.array([[0.2, 0.05], [0.05, 0.1]])
    np.testing.assert_array_equal(widened(V, S, jnp.ones(())), V)
    np.testing.assert_allclose(widened(V, S, jnp.asarray(2.0)), 2.0 * V, rtol=1e-12)
    np.testing.assert_allclose(widened(V, S, jnp.asarray(1e9)), 0.999 * S, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 0, 2, 13, 14, 18, 35, 1, 3])
def test_small_runs_do_not_call_a_wrong_layer_recovered(seed):
    """Two layers at D = 100, α = 1.2: these ended RECOVERED with cosines of .2 to .94 of the first
    layer (1 and 3 were right, and are)."""
    model = smi.DeepAttention(2, 2, skip=1.0)
    data = model.sample(jax.random.key(seed), dimension=100, alpha=1.2)
    solution = smi.gamp(model, data, key=jax.random.key(seed), iteration=smi.Iteration(150))
    if result(solution) == Result.RECOVERED:
        assert np.min(np.abs(solution.cosine)) > 0.95
    else:
        assert result(solution) != Result.SUCCESS
