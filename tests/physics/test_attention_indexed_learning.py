"""Attention-indexed models on data: message passing against state evolution, descent and its
average, networks of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.core.codes import Result
from jaxsmi.design.index import IndexOperator
from jaxsmi.design.symmetric import SymmetricOperator

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "samples", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (12, 3))]
)
def test_the_adjoint_is_the_transpose_of_forward(samples):
    """⟨g, forward(W)⟩ = ⟨adjoint(g), W⟩, with batches that do and do not divide the samples."""
    one, two, three = jax.random.split(KEY, 3)
    inputs = jax.random.normal(one, (samples, 3, 5))
    matrix = jax.random.normal(two, (1, 5, 5))
    g = jax.random.normal(three, (samples, 1, 3, 3))
    matrix, g = (
        matrix + jnp.swapaxes(matrix, 1, 2),
        (g + jnp.swapaxes(g, 2, 3)).reshape(samples, 1, 9),
    )
    cases = [
        (SymmetricOperator(inputs, batch=4), matrix, g),
        (SymmetricOperator(inputs), matrix, g),
    ]
    cases.append((IndexOperator(inputs), matrix[0, :2], jax.random.normal(three, (samples, 2, 3))))
    for sensing, W, field in cases:
        left, right = jnp.sum(field * sensing.forward(W)), jnp.sum(sensing.adjoint(field) * W)
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_fields_are_the_indices_of_the_article():
    """h_ab = (x_aᵀ S x_b - δ_ab Tr S)/√d."""
    model = smi.AttentionIndexed(3, 0.5)
    data = model.sample(KEY, dimension=10, alpha=0.2)
    fields = model.design.operator(data.inputs).forward(model.student.teacher_signal(data.teacher))
    S, x = np.asarray(model.student.estimate(data.teacher)), np.asarray(data.inputs)
    h = (np.einsum("nad,de,nbe->nab", x, S, x) - np.trace(S) * np.eye(3)) / np.sqrt(10)
    np.testing.assert_allclose(np.asarray(fields).reshape(-1, 3, 3), h, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(model.link)(fields), data.labels, atol=1e-12)


@pytest.mark.slow
def test_layers_are_those_of_the_network():
    """The recursion on raw tokens against X_l = [c + softmax(β (X S Xᵀ/√d - centre))] X_{l-1}
    itself."""
    model = smi.AttentionIndexed(3, 0.4, beta=0.8, layers=3, skip=0.6)
    data = model.sample(KEY, dimension=9, alpha=0.1)
    x0, d, B = np.asarray(data.inputs[0]), 9, np.eye(3)
    x = x0
    for layer, S in enumerate(np.asarray(model.student.estimate(data.teacher))):
        scores = x @ S @ x.T / np.sqrt(d) - np.trace(S) / np.sqrt(d) * B @ B.T
        A = np.asarray(jax.nn.softmax(0.8 * jnp.asarray(scores), axis=-1))
        if layer < 2:
            x, B = (0.6 * np.eye(3) + A) @ x, (0.6 * np.eye(3) + A) @ B
    np.testing.assert_allclose(data.labels[0], A, atol=1e-12)
    np.testing.assert_allclose(x, B @ x0, atol=1e-12)
    for refused in (
        lambda: smi.gamp(model, data),
        lambda: smi.state_evolution(model, 0.1),
        lambda: smi.recovery_threshold(model),
    ):
        with pytest.raises(ValueError, match=r"^model: .*3 layer"):
            refused()
    fit = smi.train(model, data, optax.adam(0.05), key=KEY, steps=20)
    assert fit.weights.shape == (3, 9, 9)
    assert fit.history["cosine"].shape[1:] == (3,)
    assert fit.history["train_loss"][-1] < fit.history["train_loss"][1]


# Message passing
# --------------------------------------------------------------------------------------------

TRAJECTORIES = {  # [theory: attention-indexed, section 11]
    ("hardmax", 0.5): (0.38331, 0.26782, 0.23312, 0.22077, 0.21608, 0.21425),
    ("softmax", 0.1): (0.63373, 0.51409, 0.45961, 0.43119, 0.41530, 0.40608),
}


@pytest.mark.parametrize(("output", "alpha"), TRAJECTORIES)
def test_the_trajectory_of_state_evolution(output, alpha):
    solution = smi.state_evolution(
        smi.AttentionIndexed(2, 0.5, output), alpha, iteration=smi.Iteration(6, newton=False)
    )
    past = solution.trajectory
    np.testing.assert_allclose(past["covariance"][1:, 0, 0], TRAJECTORIES[output, alpha], atol=6e-6)
    np.testing.assert_allclose(past["covariance"][0], 1.0)
    np.testing.assert_allclose(past["overlap"] + past["covariance"], 1.5)


@pytest.mark.slow
def test_undamped_message_passing_follows_state_evolution():
    """Hardmax, d = 80: finite-size errors of one run are some 5 % [theory: attention-indexed,
    section 6]."""
    model = smi.AttentionIndexed(2, 0.5, "hardmax")
    data = model.sample(jax.random.key(3), dimension=80, alpha=0.5)
    run = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(6, damping=0.0))
    past = run.trajectory
    moment = np.sum(np.asarray(model.student.estimate(data.teacher)) ** 2) / 80
    error = past["overlap"][:, 0, 0] - 2 * past["teacher_overlap"][:, 0, 0] + moment
    np.testing.assert_allclose(error[1:], TRAJECTORIES["hardmax", 0.5], rtol=0.12)
    np.testing.assert_allclose(
        past["covariance"][1:, 0, 0], TRAJECTORIES["hardmax", 0.5], rtol=0.12
    )
    np.testing.assert_allclose(error[-1], run.error, rtol=1e-12)
    assert past["damping"][0] == 0.0


@pytest.mark.slow
def test_softmax_is_learned_in_single_precision_inputs_and_predicts():
    model = smi.AttentionIndexed(2, 0.5)
    data = model.sample(KEY, dimension=40, alpha=0.25, dtype="float32")
    run = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(100))
    assert Result(int(run.result)) == Result.RECOVERED
    assert run.error < 1e-2
    assert run.weights.shape == (40, 40)
    assert run.history["damping"][0] == 0.4
    fresh = model.sample(jax.random.key(9), dimension=40, alpha=0.05, teacher=data.teacher)
    assert np.abs(np.asarray(model.predict(run, fresh.inputs) - fresh.labels)).max() < 0.1
    again = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(3), start=run.state)
    assert int(again.steps) > int(run.steps)


@pytest.mark.slow
def test_side_information_and_the_informed_start():
    model = smi.AttentionIndexed(2, 0.5, "linear", noise=0.5)
    data = model.sample(KEY, dimension=40, alpha=0.1)
    plain = smi.gamp(model, data, key=KEY)
    told = smi.gamp(model, data, key=KEY, start=smi.Start(side_information=0.9))
    informed = smi.gamp(model, data, key=KEY, start="informed")
    assert told.error < 0.5 * plain.error
    np.testing.assert_allclose(
        informed.error, plain.error, rtol=0.05
    )  # one [theory: attention-indexed, Eq. (27)]


@pytest.mark.slow
def test_a_diverging_run_starts_again_with_more_damping():
    """α = 0.05, T = 2, d = 100: damping 0.4 diverges [theory: attention-indexed, section 6]."""
    model = smi.AttentionIndexed(2, 0.5)
    data = model.sample(jax.random.key(1), dimension=100, alpha=0.05)
    assert (
        Result(int(smi.gamp(model, data, key=KEY, iteration=smi.Iteration(damping=0.4)).result))
        == Result.DIVERGED
    )
    run = smi.gamp(model, data, key=KEY)
    assert float(run.history["damping"][0]) > 0.4
    assert Result(int(run.result)) in (Result.SUCCESS, Result.MAX_STEPS)
    assert abs(float(run.error) / float(smi.state_evolution(model, 0.05).error) - 1) < 0.3


AMP = [("softmax", 2, 0.1, 100, 12), ("softmax", 2, 0.15, 100, 12), ("softmax", 3, 0.06, 100, 12),
       ("hardmax", 2, 0.5, 100, 12), ("softmax", 2, 0.15, 200, 8)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("output", "tokens", "alpha", "dimension", "seeds"), AMP)
def test_message_passing_reaches_theory(output, tokens, alpha, dimension, seeds):
    """Mean bias between -2 standard errors and 10 % (5 % at d = 200) plus 2 standard errors."""
    model = smi.AttentionIndexed(tokens, 0.5, output)
    errors = []
    for seed in range(seeds):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=dimension, alpha=alpha)
        errors.append(float(smi.gamp(model, data, key=key, iteration=smi.Iteration(80)).error))
    theory = float(smi.state_evolution(model, alpha).error)
    bias, stderr = np.mean(errors) / theory - 1, np.std(errors, ddof=1) / np.sqrt(seeds) / theory
    print(
        f"{output} T={tokens} alpha={alpha} d={dimension}: theory {theory:.4f}, bias {bias:.3f} ± {stderr:.3f}"
    )
    assert -2 * stderr <= bias <= (0.05 if dimension == 200 else 0.1) + 2 * stderr


# Descent
# --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_averaging_is_of_the_matrix():
    model = smi.AttentionIndexed(2, 0.5)
    data = model.sample(KEY, dimension=12, alpha=0.3)
    fit = smi.train(model, data, optax.adam(0.05), key=jax.random.split(KEY, 3), steps=100)
    np.testing.assert_allclose(float(fit.alpha[0]), data.samples / 144)
    S = np.stack([np.asarray(w).T @ np.asarray(w) / np.sqrt(6 * 12) for w in fit.state.weights])
    np.testing.assert_allclose(fit.weights, S, atol=1e-12)
    truth = np.asarray(model.student.estimate(data.teacher))
    mean = smi.averaged(fit, data.teacher)
    each = ((S - truth) ** 2).sum((1, 2)) / 12
    np.testing.assert_allclose(fit.error, each, rtol=1e-10)
    np.testing.assert_allclose(mean.single, each.mean(), rtol=1e-12)
    np.testing.assert_allclose(mean.error, ((S.mean(0) - truth) ** 2).sum() / 12, rtol=1e-12)
    np.testing.assert_allclose(mean.extrapolated, (3 * mean.error - mean.single) / 2, rtol=1e-12)
    for wrong in (
        smi.train(model, data, optax.adam(0.05), key=KEY, steps=2),
        smi.gamp(
            smi.links.linear(0.1),
            smi.links.linear(0.1).sample(KEY, dimension=9, alpha=2.0),
            key=KEY,
        ),
    ):
        with pytest.raises(ValueError, match=r"^fit: "):
            smi.averaged(wrong, data.teacher)


@pytest.mark.slow
def test_a_wider_student_and_fresh_samples():
    model, wide = smi.AttentionIndexed(2, 0.25), smi.AttentionIndexed(2, 1.0)
    data = model.sample(KEY, dimension=12, alpha=1.0)
    fit = smi.train(wide, data, optax.adam(0.05), key=KEY, steps=300)
    assert fit.state.weights.shape == (12, 12)
    assert fit.error < 0.2
    stream = smi.Stream(model, data.teacher)
    online = smi.train(
        model, stream, optax.adam(0.05), key=KEY, steps=300, gradient=smi.Gradient(batch_size=50)
    )
    assert online.error < 0.5
    assert np.isinf(float(online.alpha))
    hard = smi.AttentionIndexed(2, 0.5, "hardmax")
    with pytest.raises(ValueError, match=r"^model: .*gradient is zero"):
        smi.train(hard, hard.sample(KEY, dimension=8, alpha=1.0), optax.adam(0.1), key=KEY)


@pytest.mark.slow
def test_averaged_descent_approaches_theory():
    """d = 50, α = 0.1, K = 16 [theory: attention-indexed, section 8]: AGD below GD, extrapolated
    within 0.9 to 1.6 of theory, loss below 1e-3."""
    model = smi.AttentionIndexed(2, 0.5)
    data = model.sample(KEY, dimension=50, alpha=0.1)
    fit = smi.train(model, data, optax.adam(0.05), key=jax.random.split(KEY, 16), steps=2000)
    mean, theory = smi.averaged(fit, data.teacher), float(smi.state_evolution(model, 0.1).error)
    print(
        f"GD {float(mean.single):.3f}, AGD {float(mean.error):.3f}, extrapolated {float(mean.extrapolated):.3f}, "
        f"theory {theory:.3f}"
    )
    assert mean.error < mean.single
    assert 0.9 < float(mean.extrapolated) / theory < 1.6
    assert np.all(np.asarray(fit.history["train_loss"])[:, -1] < 1e-3)


# Bad input
# --------------------------------------------------------------------------------------------

SOFT = smi.AttentionIndexed(2, 0.5)
DATA = SOFT.sample(KEY, dimension=6, alpha=0.5)


def hard_labels():
    hard = smi.AttentionIndexed(2, 0.5, "hardmax")
    return hard, smi.Dataset(DATA.inputs, DATA.labels)


BAD = {
    "data.inputs": lambda: smi.gamp(
        SOFT, smi.Dataset(jnp.ones((3, 3, 4)), jnp.ones((3, 2, 2)) / 2)
    ),
    "data.labels": lambda: smi.gamp(SOFT, smi.Dataset(DATA.inputs, jnp.ones((18, 3, 3)) / 3)),
    "labels: .*sum one": lambda: smi.gamp(SOFT, smi.Dataset(DATA.inputs, DATA.labels * 1.1)),
    "labels: .*positive": lambda: smi.gamp(
        SOFT, smi.Dataset(DATA.inputs, DATA.labels.at[0, 0].set(jnp.array([0.0, 1.0])))
    ),
    "labels: .*single one": lambda: smi.gamp(*hard_labels()),
    "labels: .*symmetric": lambda: smi.gamp(smi.AttentionIndexed(2, 0.5, "linear"), DATA),
    "precision": lambda: smi.gamp(SOFT, DATA, learner=smi.Bayes(precision="controlled")),
    "calibrate": lambda: smi.gamp(SOFT, DATA, learner=smi.Bayes(calibrate=True)),
    "damping": lambda: smi.gamp(SOFT, DATA, iteration=smi.Iteration(damping=1.0)),
    "teacher": lambda: SOFT.sample(KEY, dimension=6, alpha=0.5, teacher=jnp.ones((3, 5))),
    "dimension": lambda: SOFT.sample(KEY, dimension=1, alpha=0.5),
    "alpha": lambda: smi.state_evolution(SOFT, 0.0),
    "skip": lambda: smi.AttentionIndexed(2, 0.5, layers=2, skip=-1.0),
    "layers": lambda: smi.AttentionIndexed(2, 0.5, "linear", layers=2),
    "overlap": lambda: smi.free_entropy(SOFT, 0.1, jnp.array([[1.6]])),
    "qhat": lambda: SOFT.prior.denoise(jnp.eye(4), 0.0),
    "R": lambda: SOFT.prior.denoise(jnp.ones((4, 3)), 1.0),
    "R: .*symmetric": lambda: SOFT.prior.denoise(jnp.arange(16.0).reshape(4, 4), 1.0),
    "solution": lambda: SOFT.predict(smi.state_evolution(SOFT, 0.1), DATA.inputs),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    pattern = name if ":" in name else f"{name}: .*allowed: "
    with pytest.raises(ValueError, match=rf"^{pattern}"):
        BAD[name]()


@pytest.mark.slow
def test_single_precision_labels_are_warned_of():
    with pytest.warns(UserWarning, match="float32") as seen:
        run = smi.gamp(
            SOFT,
            smi.Dataset(DATA.inputs, DATA.labels.astype("float32")),
            key=KEY,
            iteration=smi.Iteration(1),
        )
    assert len(seen) == 1
    np.testing.assert_allclose(
        run.weights, smi.gamp(SOFT, DATA, key=KEY, iteration=smi.Iteration(1)).weights, atol=1e-3
    )  # rounding over beta, some 1e-6


def test_integer_inputs_are_numbers_like_others():
    signs = jnp.where(DATA.inputs > 0, 1, -1)
    whole, same = smi.Dataset(signs, DATA.labels), smi.Dataset(signs * 1.0, DATA.labels)
    np.testing.assert_array_equal(
        *(SOFT.design.operator(d.inputs).forward(jnp.ones((1, 6, 6)) / 7) for d in (whole, same))
    )
    S = SOFT.student.estimate(DATA.teacher)
    np.testing.assert_array_equal(SOFT.predict(S, signs), SOFT.predict(S, signs * 1.0))


@pytest.mark.slow
def test_what_does_not_fit_is_refused():
    two = smi.AttentionIndexed(2, 0.5, layers=2).sample(KEY, dimension=6, alpha=0.5)
    with pytest.raises(ValueError, match=r"^data.*2 layer"):
        smi.gamp(SOFT, two)
    # one matrix may learn from two layers, but has no overlap with them
    fit = smi.train(SOFT, two, optax.adam(0.1), key=KEY, steps=1)
    assert np.all(np.isnan(fit.cosine))
    assert np.isnan(fit.error)
    for name in ("weak_recovery", "staircase", "first_order"):
        with pytest.raises(ValueError, match=r"^model: .*a model of indices"):
            getattr(smi, name)(SOFT, key=KEY)
    fit = smi.train(SOFT, DATA, optax.adam(0.1), key=jax.random.split(KEY, 2), steps=1)
    for teacher in (None, jnp.ones((3, 7)), jnp.ones(6)):
        with pytest.raises(ValueError, match=r"^teacher: "):
            smi.averaged(fit, teacher)
    with pytest.raises(ValueError, match=r"^side_information: "):
        smi.state_evolution(SOFT, 0.1, start=smi.Start(side_information=0.5))
