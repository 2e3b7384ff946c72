"""Online SGD of attention of extensive rank: closed forms, matrix equations, runs of finite size."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

import jaxsmi as smi
from helpers import differences
from jaxsmi.models.teacher_student import MatrixPair
from jaxsmi.priors.factors import WishartLaw
from jaxsmi.sgd.extensive_rank import FactorMotion, FactorState

HALF = smi.sgd.Rule(0.0, gradient=smi.Gradient(loss=smi.losses.squared))
KEY = jax.random.key(0)


def wishart(rng, d, r):
    W = rng.normal(size=(d, r))
    return W @ W.T / np.sqrt(r * d)


def matrix_flow(S2, W, a, b, t, steps=60):
    """S_1(t) of dW/dt = -(a S_1 + b S_2) W, W (d, r), by Runge and Kutta's rule of fourth order."""
    drift = lambda t, W: -(a(t) * (W @ (W.T @ W)) + b(t) * (S2 @ W))
    h = t / steps
    for s in np.arange(steps) * h:
        one = drift(s, W)
        two = drift(s + h / 2, W + h / 2 * one)
        three = drift(s + h / 2, W + h / 2 * two)
        W = W + h / 6 * (one + 2 * two + 2 * three + drift(s + h, W + h * three))
    return W @ W.T


def overlaps_at(nodes, weights, width, size, a, b, t):
    """Overlaps of S_1(t) from the equations of B and P at given g_11, g_12 (f = 1)."""
    drift = lambda t, y: [b(t), *(2.0 * (a(t) + b(t) * nodes * y[1:]))]
    y = solve_ivp(drift, (0.0, t), np.zeros(len(nodes) + 1), rtol=1e-10, atol=1e-12).y[:, -1]
    pair = MatrixPair(*(jnp.asarray(x) for x in (nodes, weights, width)))
    state = FactorState(jnp.asarray(y[0]), jnp.asarray(y[1:]))
    return FactorMotion(state, pair, jnp.ones(()), jnp.asarray(size)).overlaps(state)


A, B = (lambda t: 0.3 + 0.1 * np.sin(t)), (lambda t: -0.5 + 0.05 * t)


@pytest.mark.parametrize("width", [1.0, 0.3])
def test_closed_form_is_the_matrix_equation(width):
    # q_11 and q_12 of one matrix: errors of order 1/d
    rng, d, sigma = np.random.default_rng(0), 160, 0.8
    r = round(width * d)
    S2 = wishart(rng, d, d // 2)
    S1 = matrix_flow(S2, sigma * rng.normal(size=(d, r)) / (r * d) ** 0.25, A, B, 3.0)
    size = sigma**2 / np.sqrt(width)
    weights = np.full(d, 1.0 / d)
    M, Q = overlaps_at(np.linalg.eigvalsh(S2), weights, width, size, A, B, 3.0)
    np.testing.assert_allclose(Q[0, 0], np.sum(S1**2) / d, rtol=4.0 / d)
    np.testing.assert_allclose(M[0, 0], np.sum(S1 * S2) / d, rtol=4.0 / d)


@pytest.mark.slow
def test_softmax_of_two_tokens_is_the_table():
    # the table is theory at the overlaps of one teacher of d = 150: 1/√(r d) = 1.3 % of Tr S
    t = np.arange(7.0)
    model, student = smi.AttentionIndexed(2, 0.5), smi.AttentionIndexed(2, 1.0)
    path = smi.sgd.flow(model, 0.8, t / 4.0, rate=HALF, student=student, key=KEY)
    q12 = [0.4472, 0.6033, 0.7862, 0.9407, 1.0555, 1.1407, 1.2057]
    q11 = [0.8205, 0.5926, 0.6038, 0.7036, 0.8147, 0.9155, 1.0026]
    loss = [0.2248, 0.1347, 0.0731, 0.0406, 0.0243, 0.0156, 0.0107]
    np.testing.assert_allclose(path.teacher_overlap[:, 0, 0], q12, rtol=0.013)
    np.testing.assert_allclose(path.overlap[:, 0, 0], q11, rtol=0.013)
    np.testing.assert_allclose(path.risk, loss, rtol=0.02)
    assert np.all(path.stderr.teacher_overlap < 1e-3)
    np.testing.assert_allclose(path.overlap[0, 0, 0], 2 * 0.8**4, rtol=1e-12)
    np.testing.assert_allclose(path.teacher_overlap[0, 0, 0], 0.64 * 0.5**0.5, rtol=1e-12)


@pytest.mark.slow
def test_linear_scores_have_constant_derivatives():
    # g_11 = -g_12 = T(T+1)/2 of ½‖h_1 - h_2‖²; the matrix equation at t_spec = f t
    rng, d, width, t = np.random.default_rng(1), 160, 0.5, 0.05
    S2 = wishart(rng, d, d // 2)
    r, c = round(width * d), 3.0
    W = rng.normal(size=(d, r)) / (r * d) ** 0.25
    S1 = matrix_flow(S2, W, lambda t: c, lambda t: -c, 4.0 * t / np.sqrt(width))
    start = smi.sgd.Initial(1.0, teacher=np.linalg.eigvalsh(S2))
    model, student = (smi.AttentionIndexed(2, rho, "linear") for rho in (0.5, width))
    path = smi.sgd.flow(model, start, [t], rate=HALF, student=student, key=KEY)
    np.testing.assert_allclose(path.overlap[0, 0, 0], np.sum(S1**2) / d, rtol=5.0 / d)
    np.testing.assert_allclose(path.teacher_overlap[0, 0, 0], np.sum(S1 * S2) / d, rtol=5.0 / d)


@pytest.mark.slow
def test_matrix_itself_learns_as_one_row():
    # one token, linear: q_11 - 2 q_12 + q_22 = e^{-(4 - 2κ) t} e(0), also of SGD itself
    kappa, t, d = 0.4, 0.4, 40
    model = smi.AttentionIndexed(1, 0.5, "linear")
    rule = smi.sgd.Rule(kappa, gradient=smi.Gradient(loss=smi.losses.squared))
    path = smi.sgd.flow(model, (0.3, 0.8), [t], rate=rule, key=KEY)
    error = 1.5 - 2.0 * path.teacher_overlap[0, 0, 0] + path.overlap[0, 0, 0]
    exact = (1.5 - 0.6 + 0.8) * np.exp(-(4.0 - 2.0 * kappa) * t)
    np.testing.assert_allclose(error, exact, atol=5.0 * float(path.stderr.overlap[0, 0, 0]) + 2e-3)
    rng, ratios = np.random.default_rng(2), []
    for _ in range(6):
        gap = rng.normal(size=(d, d))
        gap, first = gap + gap.T, np.sum((gap + gap.T) ** 2)
        for x in rng.normal(size=(round(t * d * d / kappa), d)):
            h = (x @ gap @ x - np.trace(gap)) / d
            gap = gap - kappa * h / d * (np.outer(x, x) - np.eye(d))
        ratios.append(np.sum(gap**2) / first)
    # standard error of six runs beside corrections of order 1/d to the rate
    np.testing.assert_allclose(np.mean(ratios), exact / 1.7, rtol=0.15)


@pytest.mark.slow
def test_derivatives_are_differences():
    averages = smi.Averages(points=2**12, nets=2)

    def overlap(start, width, beta):
        model = smi.AttentionIndexed(2, width, beta=beta)
        start = smi.sgd.Initial(start)
        path = smi.sgd.flow(model, start, [0.3], key=KEY, averages=averages)
        return path.teacher_overlap[0, 0, 0]

    at = (0.8, 0.5, 1.2)
    # rtol 1e-7 of the integrator over 2 h
    slopes = jax.grad(overlap, (0, 1, 2))(*at)
    np.testing.assert_allclose(slopes, differences(overlap, at, 1e-4), rtol=5e-3)


@pytest.mark.slow
def test_recovery_takes_a_time_of_log_d():
    # ℓ = (h_1² - h_2²)² has g_11 = 24 q_11 - 8 q_22 and g_12 = -16 q_12; S_2² = 1. At q_12 = 0 q_11
    # goes to 1/3, where q_12 grows at 32, and of factors at 32 f Tr S_1/d
    model = smi.AttentionIndexed(1, 0.5, lambda h: h**2)
    values, means = np.repeat([-1.0, 1.0], 16), (1e-4, 1e-6, 1e-8)
    nodes, weights = WishartLaw(jnp.asarray(0.5), jnp.ones(())).eigenvalues(48)
    S1 = lambda D: 0.64 * nodes / (1.0 + D * 0.64 * nodes)
    D = brentq(lambda D: weights @ S1(D) ** 2 - 1.0 / 3.0, 0.0, 10.0)
    for rate, starts in (
        (32.0 * 4.0 / 0.5**0.5 * float(weights @ S1(D)), [0.8] * 3),
        (32.0, [(0.5 * mean, 0.7) for mean in means]),
    ):
        times = [
            smi.sgd.recovery_time(model, smi.sgd.Initial(start, teacher=values + mean), key=KEY)
            for start, mean in zip(starts, means, strict=True)
        ]
        steps = np.diff([float(time.value[0]) for time in times])
        # nets, and at 1e-4 the approach of q_11 to 1/3
        np.testing.assert_allclose(steps, np.log(100.0) / rate, rtol=5e-3)


@pytest.mark.slow
def test_runs_of_factors_follow_the_flow():
    # `smi.train` on a Stream at κ = 0.15, t = 4 η n/(√ρ_1 d²): errors of order κ and 1/d
    d, batch, eta, steps = 100, 128, 20.0, 500
    model, student = smi.AttentionIndexed(2, 0.5), smi.AttentionIndexed(2, 1.0)
    paths, runs = [], []
    for seed in range(3):
        key = jax.random.key(seed)
        teacher = model.student.start(jax.random.fold_in(key, 7), d)
        fit = smi.train(
            student,
            smi.Stream(model, teacher, dtype=jnp.float32),
            optax.sgd(eta),
            key=key,
            steps=steps,
            start=0.8,
            gradient=smi.Gradient(loss=smi.losses.squared, batch_size=batch),
            monitor=smi.Monitor(every=steps // 2),
        )
        values = jnp.linalg.eigvalsh(teacher.T @ teacher) / np.sqrt(len(teacher) * d)
        start = smi.sgd.Initial(0.8, teacher=values)
        t = eta * np.asarray(fit.history["step"])[1:] / d**2
        path = smi.sgd.flow(model, start, t, rate=HALF, student=student, key=KEY)
        paths.append([path.teacher_overlap[:, 0, 0], path.overlap[:, 0, 0]])
        names = ("teacher_overlap", "overlap")
        runs.append([fit.history[name][1:, 0, 0] for name in names])
    # starts of d² numbers: √(2/d²) of Tr S_1, 3 runs; κ raises q_11 by 0.08 κ at t_spec = 1
    np.testing.assert_allclose(np.mean(runs, 0), np.mean(paths, 0), rtol=0.03)
