"""jit, vmap, forward derivatives, precision, continuation and
batches leave the answers alone; one program for all numbers."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import compilations

KEY = jax.random.key(0)
CHEAP = {"averages": smi.Averages(64, nets=2), "iteration": smi.Iteration(25)}
ALPHAS = (0.5, 3.0)


@pytest.mark.parametrize(
    "build",
    [
        smi.links.linear,
        pytest.param(lambda beta: smi.DeepAttention(1, 2, beta=beta), marks=pytest.mark.slow),
    ],
    ids=["noise", "beta"],
)
def test_one_compilation_of_state_evolution(build):
    options = {"averages": smi.Averages(16, nets=2), "iteration": smi.Iteration(7)}
    solve = lambda *point, key: smi.state_evolution(*point, key=key, **options).overlap
    jax.block_until_ready(solve(build(0.5), 0.7, key=KEY))
    # outside: making a model or a key compiles where caches were cleared
    model, other = build(1.2), jax.random.key(1)
    with compilations() as seen:
        jax.block_until_ready(solve(model, 1.9, key=other))
    assert seen == []


@pytest.mark.slow
def test_one_compilation_of_eight_training_runs():
    model, optimizer = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]), indices=1), optax.sgd(0.1)
    data = [model.sample(key, dimension=6, alpha=2.0) for key in jax.random.split(KEY, 2)]
    keys = [jax.random.split(key, 8) for key in jax.random.split(jax.random.key(1), 2)]
    with compilations() as first:
        smi.train(model, data[0], optimizer, key=keys[0], steps=40, monitor=smi.Monitor(every=10))
    assert first.count("jit(advance)") == 1, first
    with compilations() as seen:
        smi.train(model, data[1], optimizer, key=keys[1], steps=40, monitor=smi.Monitor(every=10))
        # as many records
        smi.train(model, data[1], optimizer, key=keys[0], steps=32, monitor=smi.Monitor(every=8))
    assert "jit(advance)" not in seen


@pytest.mark.slow
def test_one_compilation_of_the_deep_channel():
    """Two skips, given as numbers: one program for the posterior."""
    y, omega = jnp.asarray([[0.6, 0.4], [0.3, 0.7]]), jnp.zeros((2, 2))
    posterior = lambda skip, V: smi.DeepAttention(2, 2, skip).channel.posterior(y, omega, V).g
    with compilations() as seen:
        jax.block_until_ready(posterior(1.0, jnp.eye(2)))
    assert seen  # the counter counts
    with compilations() as seen:
        jax.block_until_ready(posterior(0.4, 0.7 * jnp.eye(2)))
    assert not [name for name in seen if "_respond" in name], seen


@pytest.mark.slow
def test_tangent_of_the_deep_response_with_respect_to_skip_and_overlap():
    """⟨Σ g gᵀ⟩ of the two-layer channel on 32 fixed points, of skip, beta and Q."""
    traced = []
    xi, eta = jax.random.normal(KEY, (2, 32, 2, 2))

    @eqx.filter_jit
    def run(skip, beta, Q):
        traced.append(0)
        channel = smi.DeepAttention(2, 2, skip, beta=beta, tolerance=1e-7).channel
        V = jnp.eye(2) - Q
        omega = jnp.einsum("pq,nqm->npm", jnp.linalg.cholesky(Q), xi)
        fields = omega + jnp.einsum("pq,nqm->npm", jnp.linalg.cholesky(V), eta)
        labels = jax.vmap(lambda z: channel.label(z, jnp.zeros(0)))(fields)
        g = channel.respond(channel.statistic(labels), omega, V).g
        return jnp.einsum("npm,nqm->pq", g, g) / 32

    Q, direction = jnp.diag(jnp.asarray([0.3, 0.5])), jnp.asarray([[0.2, 0.1], [0.1, -0.3]])
    one = jnp.asarray(1.0)
    at = (one, one, Q)
    tangents = (jnp.asarray(0.7), jnp.asarray(0.0), direction)
    value, slope = jax.jvp(run, at, tangents)
    h = 1e-4
    up, down = (run(one + s * h * tangents[0], one, Q + s * h * direction) for s in (1, -1))
    difference = (up - down) / (2 * h)
    # inner integrals are good to 1e-7 or much better, divided by h; h² × third derivative
    assert float(jnp.max(jnp.abs(slope))) > 0.05
    np.testing.assert_allclose(slope, difference, atol=2e-3 * float(jnp.max(jnp.abs(difference))))
    chex.assert_tree_all_finite(value)
    before = len(traced)
    run(jnp.asarray(0.4), jnp.asarray(1.3), 0.5 * Q)
    run(jnp.asarray(1.4), jnp.asarray(0.8), 0.7 * Q)
    assert len(traced) == before


# GAMP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    model = smi.links.linear(0.3)
    return model, model.sample(KEY, dimension=50, alpha=2.0)


def run(problem, max_steps=6, **options):
    iteration = smi.Iteration(max_steps, tolerance=1e-14)
    return smi.gamp(*problem, key=KEY, iteration=iteration, **options)


@pytest.mark.slow
def test_a_continued_run_equals_an_uninterrupted_one(problem):
    whole = run(problem, max_steps=6)
    half = run(problem, max_steps=3)
    rest = run(problem, max_steps=3, start=half)
    assert int(half.state.step) == 3
    assert int(rest.state.step) == 6
    end = lambda sol: (sol.weights, sol.covariance, sol.trajectory["overlap"][-3:])
    chex.assert_trees_all_close(end(rest), end(whole), rtol=0, atol=1e-12)  # the same operations
    np.testing.assert_array_equal(rest.trajectory["step"], [3, 4, 5, 6])


@pytest.mark.slow
def test_record_keeps_any_function_of_the_state(problem):
    norm = lambda state: {"norm": jnp.sum(state.weights**2), "step": state.step}
    sol = run(problem, record=smi.Record(norm, every=2))
    np.testing.assert_array_equal(sol.trajectory["step"], [0, 2, 4, 6])
    record = sol.history["record"]
    np.testing.assert_array_equal(np.asarray(record["step"]), [0, 2, 4, 6])
    np.testing.assert_allclose(record["norm"] / 50, sol.trajectory["overlap"][:, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(record["norm"][-1], jnp.sum(sol.weights**2), rtol=1e-12)


def test_gamp_under_jit(problem):
    model, data = problem
    with_labels = lambda labels: (model, smi.Dataset(data.inputs, labels, data.teacher))
    weights = jax.jit(lambda labels: run(with_labels(labels)).weights)
    np.testing.assert_allclose(weights(data.labels), run(problem).weights, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_float32_inputs_agree_with_float64(problem):
    model, data = problem
    rounded = smi.Dataset(data.inputs.astype(jnp.float32), data.labels, data.teacher)
    double, single = run(problem), run((model, rounded))
    assert single.weights.dtype == jnp.float64
    # inputs rounded to 6e-8, products of 100 samples: a few 1e-6, amplified by six steps
    np.testing.assert_allclose(single.weights, double.weights, atol=1e-3)
    np.testing.assert_allclose(single.overlap, double.overlap, atol=1e-3)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(smi.links.phase_retrieval(), id="closed form"),
        pytest.param(
            smi.DeepAttention(2, 2, tolerance=1e-4), id="deep attention", marks=pytest.mark.slow
        ),
    ],
)
def test_posteriors_do_not_depend_on_their_batch(model):
    """Alone, in a batch of 20, and in another order."""
    channel = model.channel
    rng = np.random.default_rng(0)
    shape = (model.indices, model.tokens)
    omega, fields = rng.standard_normal((2, 20, *shape))
    labels = jax.vmap(lambda z: channel.label(z, jnp.zeros(0)))(jnp.asarray(fields))
    statistic = eqx.filter_jit(channel.statistic)(labels)
    V = 0.3 * jnp.eye(model.indices)
    respond = jax.jit(lambda s, w: channel.respond(s, w, V))
    together = respond(statistic, jnp.asarray(omega))
    order = rng.permutation(20)
    shuffled = respond(statistic[order], jnp.asarray(omega[order]))
    alone = channel.posterior(labels[7], omega[7], V)
    parts = lambda posterior: [posterior.log_partition, posterior.g, posterior.dg]
    scales = [jnp.max(jnp.abs(values)) for values in parts(together)]
    in_units = lambda posterior: jax.tree.map(jnp.divide, parts(posterior), scales)
    back = jax.tree.map(lambda values: values[jnp.argsort(order)], in_units(shuffled))
    # only the order of sums differs; u comes out of the inversion with the same rounding
    chex.assert_trees_all_close(back, in_units(together), rtol=0, atol=1e-11)
    seventh = jax.tree.map(lambda values: values[7], in_units(together))
    chex.assert_trees_all_close(in_units(alone), seventh, rtol=0, atol=1e-9)


def test_state_evolution_of_a_batch_is_a_loop_of_calls():
    """On a CPU: no α waits for the others, and no sample takes their branches. The cosine is the
    root of the overlap."""
    solve = lambda alpha: smi.state_evolution(smi.links.sign(), alpha, key=KEY, **CHEAP)
    names = ("covariance", "steps", "result", "cosine", "overlap", "stderr", "error")
    names += ("spectral_radius",)
    pick = lambda solution: tuple(getattr(solution, name) for name in names)
    batch = jax.jit(jax.vmap(lambda alpha: pick(solve(alpha))))(jnp.asarray(ALPHAS))
    one = jax.jit(lambda alpha: pick(solve(alpha)))
    loop = [one(jnp.asarray(alpha)) for alpha in ALPHAS]
    chex.assert_trees_all_close(batch, jax.tree.map(lambda *x: jnp.stack(x), *loop), rtol=1e-14)
    assert len(set(np.asarray(batch[1]))) > 1
    np.testing.assert_allclose(batch[3][:, 0] ** 2, batch[4][:, 0, 0], rtol=1e-12)
