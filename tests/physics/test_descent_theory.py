"""Descent on a finite data set: closed forms, independent tables, whole weight vectors, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import differences
from jaxsmi.core.results import Result
from jaxsmi.sgd import Initial, Rule

KEY, SLOW = jax.random.key(0), pytest.mark.slow
FEW = smi.Averages(points=2048, nets=2)
SQUARE = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1)
COMMITTEE = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + jnp.tanh(z[1, 0]), indices=2, noise=0.1)
TANH = smi.MultiIndex(lambda z: 2 * jnp.tanh(z[0, 0]), indices=1)
MIXED = ([[0.3, 0.05], [-0.1, 0.2]], [[0.5, 0.1], [0.1, 0.4]])


def theory(model, alpha, start, rate, steps, points=None, **settings):
    averages = FEW if points is None else smi.Averages(points=points)
    return smi.descent_theory(
        model, alpha, start, rate=rate, steps=steps, key=KEY, averages=averages, **settings
    )


def batches(rate, size, order="shuffled"):
    return Rule(rate, gradient=smi.Gradient(batch_size=size, order=order))


def ridge(alpha, rate, noise, steps, momentum=0.0, decay=0.0, tokens=1, m=0.1, q=0.8):
    """M, Q, training and test loss of y = z* + √Δ ξ: an integral over the Marchenko-Pastur law
    [theory: descent, Eq. (19)]."""
    a, n = alpha * tokens, 400
    angle = np.pi * np.arange(1, n + 1) / (n + 1)
    x = 1 + a + 2 * np.sqrt(a) * np.cos(angle)
    law = 2 / (n + 1) * np.sin(angle) ** 2 * a / x
    if a < 1:
        x, law = np.append(x, 0.0), np.append(law, 1 - a)
    weights = np.stack([np.ones_like(x), 0 * x, 0 * x])  # coefficients of W_0, w*, noise
    memory, records = 0 * weights, []
    for _ in range(steps + 1):
        f, g, h = weights
        M, Q = law @ (m * f + g), law @ (q * f**2 + 2 * m * f * g + g**2 + noise * x * h**2)
        rest = x * (q * f**2 + (1 - g) ** 2 - 2 * m * f * (1 - g)) + noise * (x * h - 1) ** 2
        # samples beyond the rank of the data see noise alone
        train = (law @ rest + noise * (a - 1)) / alpha
        records.append([M, Q, train, tokens * (1 - 2 * M + Q + noise)])
        slope = np.stack([2 * rate * x * f, -2 * rate * x * (1 - g), -2 * rate * (1 - x * h)])
        memory = momentum * memory + decay * weights + slope
        weights = weights - memory
    return np.array(records).T


@pytest.mark.parametrize(
    ("alpha", "noise", "momentum", "decay", "tokens"),
    [
        (1.5, 0.2, 0.3, 0.02, 1),
        pytest.param(0.6, 0.2, 0.6, 0.02, 1, marks=SLOW),
        pytest.param(1.5, 0.0, 0.0, 0.0, 1, marks=SLOW),
        pytest.param(0.6, 0.2, 0.3, 0.0, 2, marks=SLOW),
    ],
)
def test_linear_problems_are_exact_at_any_number_of_points(alpha, noise, momentum, decay, tokens):
    model = smi.MultiIndex(lambda z: z[0], indices=1, tokens=tokens, noise=noise)
    rule = Rule(0.08, momentum=momentum, weight_decay=decay / alpha)  # a step is α samples
    end = theory(model, alpha, (0.1, 0.8), rule, 20)
    names = ("teacher_overlap", "overlap", "train_loss", "test_loss")
    ours = np.stack([np.ravel(end.history[name]) for name in names])
    exact = ridge(alpha, 0.08, noise, 20, momentum, decay, tokens)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-12)  # rounding of some 20 projections
    assert int(end.result) == Result.SUCCESS
    np.testing.assert_allclose(end.error, exact[3, -1] - tokens * noise, atol=1e-12)


# [theory: descent, Table 1]: step, then M, Q (upper triangle), training and test loss, and their
# standard errors in units of 1e-5; 8 nets of 2^15 or 2^16 points.
TABLE = {
    "phase retrieval": (
        SQUARE, 3.0, (0.3, 0.7), 0.005, {},
        {5: [.42314, .64383, 1.53948, 2.23981, 8, 4, 39, 37],
         20: [.67609, .78178, .53919, 1.44211, 31, 12, 93, 174],
         30: [.75622, .81883, .33624, 1.08705, 35, 18, 92, 259]},
    ),
    "draws of a half": (
        SQUARE, 3.0, (0.3, 0.7), batches(0.005, 0.5, "bernoulli"), {},
        {10: [.42323, .64764, 1.55546, 2.24551, 45, 43, 163, 96],
         60: [.75667, .81893, .33696, 1.08342, 98, 46, 260, 530]},
    ),
    "epochs of four": (
        SQUARE, 3.0, (0.3, 0.7), batches(0.005, 0.25), {},
        {10: [.35491, .62371, 1.97598, 2.41611, 14, 9, 79, 54],
         60: [.62639, .75422, .69230, 1.62898, 42, 19, 123, 163]},
    ),
    "four parts for ever": (
        SQUARE, 3.0, (0.3, 0.7), batches(0.01, 0.25, "cyclic"), {},
        {10: [.42386, .63853, 1.53961, 2.22767, 57, 36, 156, 123],
         40: [.68618, .78049, .51231, 1.38328, 38, 14, 95, 195]},
    ),
    "one layer": (
        smi.DeepAttention(1, 2), 1.0, (0.2, 1.0), 0.3, {},
        {5: [.25835, .75678, .12247, .24999, 11, 10, 7, 6],
         20: [.32998, .86056, .05717, .25314, 60, 33, 3, 17],
         40: [.36491, 1.04061, .04237, .27236, 80, 66, 7, 21]},
    ),
    "committee with decay": (
        COMMITTEE, 3.0, MIXED, Rule(0.1, weight_decay=0.01 / 3), {},
        {5: [.59385, .26572, .17791, .49291, .59481, .14026, .43097, .09702, .22348,
             4, 3, 4, 3, 4, 2, 4, 2, 2],
         40: [.67017, .24184, .19968, .61469, .69675, .16321, .60227, .05671, .20940,
              47, 51, 38, 41, 56, 9, 54, 4, 15]},
    ),
    "another student": (
        COMMITTEE, 2.0, Initial(([[0.1, -0.05]], [[0.5]]), teacher=[[1.0, 0.2], [0.2, 0.8]]),
        0.05, {"student": TANH},
        {5: [.40606, .31761, .34321, .13066, .43218, 1, 2, 2, 1, 6],
         40: [.47594, .41117, .41452, .06551, .26984, 4, 5, 11, 3, 9]},
    ),
}  # fmt: skip


def numbers(tree, step):
    """M, Q (upper triangle) and both losses at a step."""
    Q = np.asarray(tree["overlap"][step])
    parts = [np.ravel(tree["teacher_overlap"][step]), Q[np.triu_indices(len(Q))]]
    return np.concatenate([*parts, [tree["train_loss"][step], tree["test_loss"][step]]])


@SLOW
@pytest.mark.parametrize("name", TABLE)
def test_tables_of_an_independent_computation(name):
    model, alpha, start, rate, settings, table = TABLE[name]
    end = theory(model, alpha, start, rate, max(table), points=2**17, **settings)
    for step, row in table.items():
        values, errors = np.split(np.array(row), 2)
        spread = np.hypot(1e-5 * errors, numbers(end.history["stderr"], step))
        # print has five digits
        assert np.all(np.abs(numbers(end.history, step) - values) < 4 * spread + 5e-6), step


def sphere():
    """A step, then rows back to their norms: a transformation of optax that is no SGD."""

    def update(gradient, norm, params):
        after = params - 0.1 * gradient
        return after * norm / jnp.linalg.norm(after, axis=1, keepdims=True) - params, norm

    norms = lambda params: jnp.linalg.norm(params, axis=1, keepdims=True)
    return optax.GradientTransformation(norms, update)


@SLOW
@pytest.mark.parametrize(
    ("optimizer", "rule", "gradient"),
    [
        (optax.sgd(0.1), None, {}),
        (optax.sgd(0.1), None, {"batch_size": 0.5, "order": "bernoulli"}),
        (optax.sgd(0.1), None, {"batch_size": 0.25, "order": "cyclic"}),
        (optax.sgd(0.1), None, {"batch_size": 0.3}),
        (optax.sgd(0.1), None, {"batch_size": 1 / 7}),  # 3000 samples are no multiple
        (optax.sgd(0.05, momentum=0.5, nesterov=True), None, {}),
        (optax.sgd(optax.exponential_decay(0.1, 5, 0.5)), None, {}),
        (sphere(), Rule(0.1, projection="sphere"), {}),
        (optax.sgd(0.1), None, {"loss": lambda x, y: jnp.sum(jnp.sqrt(1 + (x - y) ** 2))}),
    ],
    ids=["full", "bernoulli", "cyclic", "epochs", "sevenths", "nesterov", "schedule", "sphere", "loss"],
)  # fmt: skip
def test_runs_of_finite_dimension_agree(optimizer, rule, gradient):
    """24 runs of `smi.train` at D = 1000 from the same overlaps; corrections are of order 1/D."""
    D, runs = 1000, []
    settings = smi.Gradient(reduction="sum", **gradient)
    for seed in range(24):
        key = jax.random.key(100 + seed)
        teacher = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, 2)))[0].T
        data = COMMITTEE.sample(key, dimension=D, alpha=3.0, teacher=np.sqrt(D) * teacher)
        fit = smi.train(
            COMMITTEE, data, optimizer, key=key, steps=20, gradient=settings, start=MIXED
        )
        M, Q = fit.history["teacher_overlap"], fit.history["overlap"]
        if seed == 0:  # the start has the overlaps exactly
            np.testing.assert_allclose(M[0], MIXED[0], atol=1e-12)
            np.testing.assert_allclose(Q[0], MIXED[1], atol=1e-12)
        runs.append([*np.ravel(M[-1]), *np.ravel(Q[-1])])
    plain = Rule(optimizer, gradient=smi.Gradient(**gradient))
    end = theory(COMMITTEE, 3.0, MIXED, plain if rule is None else rule, 20, points=2**16)
    assert all(len(x) == 21 for x in jax.tree.leaves(end.history))
    assert np.isnan(end.error) == ("loss" in gradient)  # known of the squared loss alone
    expected = np.concatenate([np.ravel(end.teacher_overlap), np.ravel(end.overlap)])
    stderr = np.concatenate([np.ravel(end.stderrs["teacher_overlap"]), np.ravel(end.stderr)])
    spread = np.hypot(np.std(runs, axis=0, ddof=1) / np.sqrt(len(runs)), stderr)
    assert np.all(np.abs(np.mean(runs, axis=0) - expected) < 4 * spread + 2 / D)


@SLOW
def test_tokens_around_fixed_directions():
    """16 runs at D = 1000, each beside theory from its own overlaps with teacher and direction."""
    inputs = smi.Tokens(encoding=[1.0, -0.7], cross=[0.3])
    link = lambda z: jnp.tanh(z[0, 0]) + 0.5 * jnp.tanh(z[0, 1])
    model = smi.MultiIndex(link, indices=1, tokens=2, noise=0.05, inputs=inputs)
    D, apart, summed = 1000, [], smi.Gradient(reduction="sum")
    for seed in range(16):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=D, alpha=2.0)
        fixed = np.concatenate([data.teacher, data.directions])
        W = model.student.start(jax.random.fold_in(key, 7), D) + np.array([[0.5, 0.2]]) @ fixed
        fit = smi.train(model, data, optax.sgd(0.1), key=key, steps=15, gradient=summed, start=W)
        start = Initial((W @ fixed.T / D, W @ W.T / D), teacher=fixed @ fixed.T / D)
        end = theory(model, 2.0, start, 0.1, 15, points=2**13)
        M, Q = fit.weights @ fixed.T / D, fit.weights @ fit.weights.T / D
        apart.append([*np.ravel(M - end.teacher_overlap), *np.ravel(Q - end.overlap)])
    spread = np.std(apart, axis=0, ddof=1) / 4
    assert np.all(np.abs(np.mean(apart, axis=0)) < 4 * spread)


@SLOW
def test_one_pass_is_descent_on_fresh_samples():
    """Nine parts of two layers, each used once, against the map of fresh samples [theory: descent,
    section 6]: .0965, .3497, .9241, .6514 after eight steps."""
    start = ([[0.1, 0.02], [-0.03, 0.15]], [[1.0, 0.05], [0.05, 0.9]])
    model = smi.DeepAttention(2, 2)
    end = theory(model, 4.5, start, batches(0.5, 1 / 9), 8, points=2**19)
    ours = [*np.diagonal(end.teacher_overlap), *np.diagonal(end.overlap)]
    stderr = [*np.diagonal(end.stderrs["teacher_overlap"]), *np.diagonal(end.stderr)]
    np.testing.assert_array_less(
        np.abs(ours - np.array([0.0965, 0.3497, 0.9241, 0.6514])), 4 * np.array(stderr) + 5e-5
    )


@SLOW
@pytest.mark.parametrize(("loss", "rate"), [("squared", 0.1), ("logistic", 0.6)])
def test_with_decay_descent_ends_at_the_minimum(loss, rate):
    """λ = Λ α/κ in the units of `smi.Erm` [theory: descent, Eq. (20)]."""
    loss = getattr(smi.losses, loss)
    model = smi.links.sign() if loss is smi.losses.logistic else smi.links.linear(0.2)
    student = smi.links.linear(0.0)
    alpha, ridge = 2.0, 0.5
    rule = Rule(rate, weight_decay=ridge * rate / alpha, gradient=smi.Gradient(loss=loss))
    end = theory(model, alpha, (0.1, 0.5), rule, 120, points=2**15, student=student)
    learner = smi.Erm(loss=loss, ridge=ridge, student=student)
    exact = smi.state_evolution(model, alpha, key=KEY, learner=learner)
    assert float(end.residual) < 1e-5
    for name in ("teacher_overlap", "overlap", "train_loss", "test_loss"):
        ours, stderr = getattr(end, name), end.stderr if name == "overlap" else end.stderrs[name]
        other = exact.stderr if name == "overlap" else exact.stderrs.get(name, 0.0)
        error = np.hypot(np.asarray(stderr), np.asarray(other))
        assert np.all(np.abs(ours - getattr(exact, name)) < 4 * error + 1e-4), name


@SLOW
def test_nothing_leaves_the_unlearned_state_and_the_gain_is_its_derivative():
    """M = 0 of an even link to rounding; the gain is that of a start nearby."""
    end = theory(SQUARE, 2.0, (0.0, 1.0), 0.005, 5, points=2**14)
    assert float(jnp.max(jnp.abs(end.history["teacher_overlap"]))) < 1e-13
    gain, stderr = end.history["gain"][:, 0, 0], end.history["stderr"]["gain"][:, 0, 0]
    assert float(gain[0]) == 1.0
    # 1.180(3): [theory: descent, section 7]
    assert abs(float(gain[5]) - 1.180) < 4 * np.hypot(3e-3, float(stderr[5]))
    near = theory(SQUARE, 2.0, (0.05, 1.0), 0.005, 5, points=2**14)
    M = near.teacher_overlap[0, 0] / 0.05
    # third order in M: (1/20)² of order one
    assert abs(float(M - gain[5])) < 4 * float(near.stderrs["teacher_overlap"][0, 0]) / 0.05 + 0.02


@SLOW
def test_derivatives_in_rate_and_alpha_of_a_linear_problem():
    def end(rate, alpha, kind):
        rate = optax.sgd(rate) if kind else rate
        return theory(smi.links.linear(0.2), alpha, (0.1, 0.8), rate, 6).overlap[0, 0]

    at = (0.08, 1.5)
    exact = differences(lambda rate, alpha: ridge(alpha, rate, 0.2, 6)[1, -1], at, 1e-4)
    for kind in (False, True):
        ours = jax.grad(end, argnums=(0, 1))(*at, kind)
        np.testing.assert_allclose(ours, exact, rtol=1e-6)
    several = jax.vmap(lambda r: end(r, 1.5, False))(jnp.array([0.05, 0.08]))
    np.testing.assert_allclose(several[1], ridge(1.5, 0.08, 0.2, 6)[1, -1], rtol=1e-10)


@SLOW
def test_derivatives_that_points_miss_are_nan_and_no_others():
    """Labels of signs jump, slopes of |z| too; a start in the span of the teacher has a part of its
    derivative only, and so has no derivative."""
    signs, line = smi.links.sign(), smi.links.linear(0.0)
    few = {"rate": 0.1, "steps": 3, "points": 2048}
    of_signs = lambda m, g, a: theory(
        signs, a, Initial((m, 1.0), teacher=g * jnp.eye(1)), student=line, **few
    ).overlap[0, 0]
    at = (0.2, 1.0, 2.0)
    slopes = np.array(jax.grad(of_signs, argnums=(0, 1, 2))(*at))
    assert np.isnan(slopes[1])
    np.testing.assert_allclose(slopes[::2], differences(of_signs, at, 1e-4)[::2], rtol=1e-5)
    modulus = smi.links.phase_retrieval()
    assert np.isnan(jax.grad(lambda r: theory(modulus, 2.0, (0.1, 1.0), r, 3).overlap[0, 0])(0.1))
    inside = lambda q: theory(line, 2.0, (0.5, q), 0.1, 3).overlap[0, 0]
    assert np.isnan(jax.grad(inside)(0.25))
    assert np.isfinite(jax.grad(inside)(0.5))


def test_a_rate_that_is_too_large_is_said_to_diverge():
    end = theory(SQUARE, 2.0, (0.3, 0.7), 1.0, 8)
    assert int(end.result) == Result.DIVERGED
    assert np.all(np.isfinite(end.trajectory["overlap"]))
    assert 1 <= len(end.trajectory["step"]) < 9
    assert "lower learning rate" in end.message
