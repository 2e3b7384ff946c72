"""Online SGD of index models: the exact chain, its flow, its rates, against closed forms, whole
vectors and each other [theory: online-sgd, sections 11 to 13]."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.special import erf
from whole_vectors import whole_vectors

import jaxsmi as smi
from helpers import averages_of_nets, differences, keys, mean_and_error
from jaxsmi import Result

KEY, SLOW = jax.random.key(0), pytest.mark.slow
TWO = smi.DeepAttention(2, 2)
ONE = smi.DeepAttention(1, 2)
SQUARE = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, symmetry=[((0,), "sign")])
START = ([[0.1, 0.02], [-0.03, 0.15]], [[1.0, 0.05], [0.05, 0.9]])


def committee(units):
    link = lambda z: jnp.sum(erf(z[:, 0] / np.sqrt(2.0)))
    return smi.MultiIndex(link, indices=units, noise=0.1)


def rule(rate, momentum=0.0, decay=0.0, projection=None, **gradient):
    settings = {"momentum": momentum, "weight_decay": decay, "projection": projection}
    return smi.sgd.Rule(rate, gradient=smi.Gradient(**gradient), **settings)


def flow(model, start, times, rate, points, nets=None, tolerance=None):
    averages, iteration = smi.Averages(points, nets), smi.Iteration(tolerance=tolerance)
    settings = {"key": KEY, "averages": averages, "iteration": iteration}
    return smi.sgd.flow(model, start, times, rate=rate, **settings)


def flat(*arrays):
    """Arrays of runs or times, (runs, ..) each, side by side: (runs, entries)."""
    return np.concatenate([np.asarray(x).reshape(len(x), -1) for x in arrays], axis=1)


def of_path(path, *names):
    """M, Q and more at all times, and their standard errors."""
    names = ("teacher_overlap", "overlap", *names)
    return (flat(*(getattr(x, name) for name in names)) for x in (path, path.stderr))


def last(runs):
    """|M| and Q of the last record, flattened (runs, P k + P P)."""
    return flat(np.abs(runs.teacher_overlap[:, -1]), runs.overlap[:, -1])


def agree(found, expected, errors=0.0, limit=4.5, bias=0.0):
    """Means of runs (runs, n) within so many combined standard errors and a bias."""
    mean, error = mean_and_error(found)
    gap, error = np.abs(mean - expected), np.hypot(error, errors)
    print(np.c_[mean, error, np.broadcast_to(expected, mean.shape), gap / error].round(5))
    assert (gap < limit * error + bias).all()


# The chain ----------------------------------------------------------------------------------------


def linear_means(D, n, a, noise, steps, m, q):
    """E M and E Q of linear labels after some steps, at any D and B [theory: online-sgd, section
    11]."""
    miss, error = m - 1.0, q - 2.0 * m + 1.0
    for _ in range(steps):
        miss *= 1.0 - a * n
        error = error * (1.0 - 2.0 * a * n + a * a * n * (D + n + 1)) + D * a * a * noise * n
    return miss + 1.0, error + 2.0 * (miss + 1.0) - 1.0


@pytest.mark.parametrize(
    ("D", "B", "rate", "runs"), [pytest.param(10, 1, 0.3, 20_000, marks=SLOW), (30, 7, 2.0, 4000)]
)
def test_linear_labels_have_their_exact_means_at_any_dimension(D, B, rate, runs):
    settings = {"dimension": D, "rate": rule(rate, batch_size=B), "alpha": 20 * B / D}
    start = ([[0.1]], [[0.5]])
    found = smi.sgd.simulate(smi.links.linear(0.2), keys(runs), start=start, **settings)
    ends = flat(found.teacher_overlap[:, -1], found.overlap[:, -1])
    agree(ends, linear_means(D, B, 2.0 * rate / (B * D), 0.2, 20, 0.1, 0.5))


DIRECTED = smi.MultiIndex(
    lambda z: jnp.tanh(z[0, 0] + 0.5 * z[0, 1]),
    indices=1,
    tokens=2,
    noise=0.1,
    inputs=smi.Tokens(encoding=[[1.5], [-1.0]], cross=[[0.4]]),
)
PAIRS = {
    "two layers": (TWO, None, 12, rule(1.0)),
    "batches, momentum, decay": (TWO, None, 12, rule(2.0, 0.5, 0.08, batch_size=3)),
    "sphere with momentum": (TWO, None, 12, rule(0.5, 0.5, projection="sphere")),
    "more rows than fields": (committee(2), committee(3), 9, rule(0.7)),
    "three rows, momentum": (committee(2), committee(3), 11, rule(0.4, 0.5, 0.09)),
    "batches used twice": (ONE, None, 8, rule(2.0, batch_size=2, repeats=2)),
    "a rate for each row": (TWO, None, 10, rule([0.5, 1.5])),
    "directions of the inputs": (DIRECTED, None, 8, rule(0.1)),
}


@SLOW
@pytest.mark.parametrize("name", PAIRS)
def test_the_chain_has_the_law_of_whole_vectors(name):
    """First and second moments after 15 steps in small dimension, where every factor shows."""
    model, student, D, update = PAIRS[name]
    run = {"dimension": D, "rate": update, "alpha": 15 * update.batch_size / D, "student": student}
    chain = last(smi.sgd.simulate(model, keys(20_000), **run))
    M, Q = whole_vectors(model, keys(4000, 1), **run)
    whole = flat(np.abs(M), Q)
    for power in (1, 2):
        agree(chain**power, *mean_and_error(whole**power))


@SLOW
def test_weights_and_teacher_are_where_smi_train_begins():
    """Mean overlaps of the chain and of `smi.train` on a Stream from one W, W* after the same
    steps, B = 2: within standard errors at every record."""
    W, T = (TWO.student.start(k, 40) for k in jax.random.split(KEY))
    shared = {"monitor": smi.Monitor(every=20)}
    batches = smi.Gradient(batch_size=2)
    stream = smi.Stream(TWO, T)
    fit = smi.train(
        TWO, stream, optax.sgd(2.0), key=keys(64), steps=40, gradient=batches, start=W, **shared
    )
    start = smi.sgd.Initial(W, teacher=T)
    settings = {"dimension": 40, "rate": rule(2.0, batch_size=2), "alpha": 2.0, "start": start}
    chain = smi.sgd.simulate(TWO, keys(4000, 1), **settings, **shared)
    for k in range(3):
        whole = np.asarray(fit.history["teacher_overlap"][:, k]).reshape(64, -1)
        mean, error = mean_and_error(np.asarray(chain.teacher_overlap[:, k]).reshape(4000, -1))
        if k == 0:
            np.testing.assert_allclose(whole[0], mean, atol=1e-12)
        else:
            agree(whole, mean, error)


@pytest.mark.slow
def test_near_recovery_no_digits_are_lost():
    """The error ‖W - W*‖²/D falls by a constant factor far below rounding of Q - 2M + ρ."""
    start = ([[0.95]], [[1.0]])
    runs = smi.sgd.simulate(ONE, keys(8), dimension=100, rate=0.5, alpha=130.0, start=start)
    distance = np.asarray(runs.distance[:, :, 0])
    assert np.median(distance, axis=0)[-1] < 1e-24
    assert (np.asarray(runs.result) == Result.SUCCESS).all()
    assert (distance[:, -1] >= 0.0).all()


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_singular_starts_are_exact(batch):
    """W = W* of noiseless labels stays there; W = 0 and W in the span of W* go on without a NaN."""
    run = {"dimension": 50, "rate": rule(0.5, batch_size=batch), "alpha": 5 * batch / 50}
    still = smi.sgd.simulate(TWO, keys(2), start=(np.eye(2), np.eye(2)), **run)
    np.testing.assert_allclose(still.distance, 0.0, atol=1e-30)
    for M, Q in ((np.zeros((2, 2)), np.zeros((2, 2))), (np.diag([0.5, 0.5]), 0.25 * np.eye(2))):
        assert np.isfinite(smi.sgd.simulate(TWO, keys(2), start=(M, Q), **run).overlap).all()


# Averages -----------------------------------------------------------------------------------------


def averages(model, M, Q, size, nets=2):
    """A_T, A_Z, N_s and R, flattened, of each net."""
    return flat(*averages_of_nets(model, M, Q, size, nets, KEY))


@SLOW
def test_averages_of_committees_are_their_closed_forms():
    """Within five standard errors of the values of [theory: online-sgd, Eq. (63)]."""
    M, Q = [[0.3, 0.1], [-0.2, 0.4]], [[0.8, 0.2], [0.2, 1.1]]
    known = [-0.656441148391, -0.357026484468, -0.494231714706, -0.432647466711]
    known += [0.273499169079, 0.694565186091, 0.343565663740, 0.374324460122]
    known += [1.713975466992, 1.317166890835, 1.317166890835, 1.383573324812, 1.147087713590]
    found = averages(committee(2), M, Q, 2**14, nets=16)
    agree(found, known, limit=5.0)
    assert mean_and_error(found)[1].max() < 1e-3


def test_averages_of_phase_retrieval_are_polynomials():
    """E s z* = 12 m (q - ρ) and so on; on grids to rounding."""
    for m, q, known in (
        (0.3, 0.7, [-1.08, 2.36, 61.968, 2.71]),
        (-0.2, 0.5, [12 * -0.2 * -0.5, 12 * 0.25 - 2.0 - 0.32, None, 0.75 - 1.16 + 3.0]),
    ):
        found = averages(SQUARE, [[m]], [[q]], 2**13).mean(0)
        for value, expected in zip(found, known, strict=True):
            assert expected is None or value == pytest.approx(expected, rel=1e-6)


@SLOW
def test_averages_of_one_layer():
    """To 1e-8 on a grid of 48 points an axis, of an independent table."""
    for M, Q, known in (
        (0.5, 1.0, [-0.0896982541, 0.1982029417, 0.1852519885, 0.2384994444]),
        (0.2, 0.6, [-0.0740710330, 0.1384031056, 0.1594021185, 0.2362706352]),
    ):
        found = averages(ONE, [[M]], [[Q]], 2 * 48**4).mean(0)
        np.testing.assert_allclose(found, known, atol=1e-8)


# The flow -----------------------------------------------------------------------------------------


@SLOW
def test_linear_flow_is_its_closed_form():
    """m(α) and ε(α) of linear labels with noise; gradient flow of κ = 0 in t."""
    rate, noise, m, q = 0.3, 0.2, 0.1, 0.5
    times = rate * np.array([0.5, 1.0, 3.0])
    model, start = smi.links.linear(noise), ([[m]], [[q]])
    path = flow(model, start, times, rate, 2**14)
    known = 1.0 + (m - 1.0) * np.exp(-2.0 * times)
    end = rate * noise / (1.0 - rate)
    error = end + (q - 2 * m + 1 - end) * np.exp(-4.0 * times * (1 - rate))
    found, spread = of_path(path, "risk")
    expected = np.stack([known, error + 2 * known - 1, error + noise], axis=1)
    assert (np.abs(found - expected) < 5.0 * spread + 1e-7).all()
    assert spread.max() < 5e-3
    np.testing.assert_allclose(path.alpha, times / rate)
    risk = smi.sgd.risk(model, start, key=KEY, averages=smi.Averages(points=2**13))
    assert abs(float(risk) - (q - 2 * m + 1 + noise)) < 5.0 * float(risk.stderr) < 0.02
    still = flow(model, start, times, 0.0, 2**14)
    gap = np.abs(still.teacher_overlap[:, 0, 0] - known)
    assert (gap < 5.0 * still.stderr.teacher_overlap[:, 0, 0] + 1e-7).all()


# [SS95], two units, κ = .2, by an independent integration of the closed right-hand side, to 1e-10:
# M, Q and risk at α = 5 and 10, and M at α = 20 with a weight decay of .02
COMMITTEE = (
    [0.4356027910, 0.3241853003, 0.2843082833, 0.4021616351, 0.5296844261, 0.1111851839, 0.1111851839, 0.4495811725, 0.2126616330],
    [0.5001706766, 0.3785840267, 0.3448651660, 0.4654923451, 0.5824356727, 0.1983015110, 0.1983015110, 0.5144928124, 0.1562031149],
)  # fmt: skip
DECAYED = [0.45441556, 0.35903313, 0.34047273, 0.43484121]


@SLOW
def test_committee_flow():
    start = ([[0.1, 0.02], [-0.05, 0.08]], [[0.5, 0.1], [0.1, 0.4]])
    path = flow(committee(2), start, [1.0, 2.0], 0.2, 2**16, 16)
    mean, error = of_path(path, "risk")
    assert (np.abs(mean - COMMITTEE) < 4.5 * error).all()
    assert error.max() < 3e-3
    decayed = flow(committee(2), start, [4.0], rule(0.2, decay=0.02), 2**16, 16)
    gap = np.abs(np.ravel(decayed.teacher_overlap) - DECAYED)
    assert (gap < 4.5 * np.ravel(decayed.stderr.teacher_overlap)).all()


@SLOW
def test_flow_is_the_limit_of_the_chain():
    """Two layers at κ = .5 from some overlaps to α = 15: the flow, chains of D = 2000 and 10^5,
    within four combined standard errors and 30/D."""
    path = flow(TWO, START, 0.5 * np.array([5.0, 15.0]), 0.5, 2**17, 8, 1e-6)
    theory, error = of_path(path)
    for D, runs in ((2000, 128), (10**5, 8)):
        settings = {"alpha": 15.0, "monitor": smi.Monitor(every=5 * D), "start": START}
        chain = smi.sgd.simulate(TWO, keys(runs, D), dimension=D, rate=0.5, **settings)
        for k, record in enumerate((1, 3)):
            found = flat(chain.teacher_overlap[:, record], chain.overlap[:, record])
            agree(found, theory[k], error[k], limit=4.0, bias=30.0 / D)


@SLOW
def test_large_batches_are_a_map():
    """B = b D: M' = M - κ b A_T, Q' = Q - κ b (A_Z + A_Zᵀ) + κ² b² G Γ⁺ Gᵀ + κ² b N_s on the averages
    of the flow [theory: online-sgd, Eq. (73)], beside the chain of D = 600, B = 300, 8 steps."""
    b, kappa = 0.5, 0.5

    def step(M, Q, key):
        found = smi.sgd.averages(TWO, (M, Q), key=key, averages=smi.Averages(2**18, 8))[0]
        G = np.concatenate([found.teacher_gradient, found.student_gradient], axis=1)
        Gamma = np.block([[np.eye(2), M.T], [M, Q]])
        drift = found.student_gradient + found.student_gradient.T
        square = kappa**2 * b * (b * G @ np.linalg.pinv(Gamma) @ G.T + found.gradient_noise)
        return M - kappa * b * found.teacher_gradient, Q - kappa * b * drift + square

    ends = []
    for key in jax.random.split(KEY, 4):
        M, Q = map(np.asarray, START)
        for _ in range(8):
            M, Q = (np.asarray(x) for x in step(M, Q, key))
        ends.append(flat(M[None], Q[None])[0])
    update = rule(150.0, batch_size=300)
    chain = smi.sgd.simulate(TWO, keys(400), dimension=600, rate=update, alpha=4.0, start=START)
    # with its sign: the start sets that of M, and one entry is as small as its spread
    found = flat(chain.teacher_overlap[:, -1], chain.overlap[:, -1])
    agree(found, *mean_and_error(ends), limit=4.0, bias=3.0 / 600)


@SLOW
def test_derivatives_of_the_flow_are_those_of_its_answers():
    """In the start, in κ and in a parameter of the model: central differences, h = 1e-4."""

    def value(size, rate, skip):
        start = (jnp.asarray(START[0]) * size, START[1])
        path = flow(smi.DeepAttention(2, 2, skip=skip), start, [0.6], rate, 2**9, 2, 1e-9)
        return path.teacher_overlap[0, 1, 1]

    at = (1.0, 0.5, 1.0)
    slopes = jax.jit(jax.grad(value, (0, 1, 2)))(*at)
    np.testing.assert_allclose(slopes, differences(jax.jit(value), at, 1e-4), rtol=1e-4)


@SLOW
def test_what_symmetry_forbids_stays_zero():
    """From diagonal M and Q the flow of two layers keeps them diagonal exactly."""
    path = flow(TWO, (np.diag([0.1, 0.2]), np.eye(2)), [0.5], 0.3, 2**9, 2)
    for matrix in (path.teacher_overlap[0], path.overlap[0]):
        np.testing.assert_allclose(matrix * (1.0 - np.eye(2)), 0.0, atol=1e-14)


# The start ----------------------------------------------------------------------------------------

RATES = {  # skip: Λ, H and noise of two layers, to 1e-8 and 1e-6 by trapezoidal sums of another code
    1.0: ([0.01918730, 0.10920634, 0.10920634, 0.75446166], [0.03132641, 0.38917599], [0.066030, 1.108106]),
    0.5: ([0.0317155, 0.1043270, 0.1043270, 0.4651930], [0.0614177, 0.3043370], [0.060329, 0.29203]),
}  # fmt: skip


@SLOW
@pytest.mark.parametrize("skip", RATES)
def test_rates_of_the_unlearned_state(skip):
    """[theory: online-sgd, section 13]: within five standard errors, 3e-4 at most of Λ."""
    model = smi.DeepAttention(2, 2, skip=skip)
    found = smi.sgd.rates(model, key=KEY, averages=smi.Averages(points=2**22))
    means = (found.signal, found.pull, found.noise)
    largest = (3e-4, 2e-3, 2e-2)
    for mean, error, value, allowed in zip(means, found.stderr, RATES[skip], largest, strict=True):
        assert (np.abs(np.ravel(mean) - value) < 5.0 * np.ravel(error) + 1e-6).all()
        assert np.max(error) < allowed
    assert found.signal[1, 1] > 10.0 * found.signal[0, 0]  # the last layer first


@SLOW
def test_rates_of_one_layer():
    """Λ = .441004675562 = 2 |R_mm| of the semantic/positional problem at ω = 0."""
    found = smi.sgd.rates(ONE, key=KEY, averages=smi.Averages(points=2**18))
    bar = float(found.stderr.signal[0, 0])
    assert float(found.signal[0, 0]) == pytest.approx(0.441004675562, abs=5 * bar + 1e-6)
    assert bar < 3e-3
    series = smi.sgd.flatness(smi.sgd.semantic_positional(0.0), 2).series
    assert float(-4.0 * series[2, 0]) == pytest.approx(0.441004675562, abs=1e-10)
    for rate in (0.1, 0.2):
        growth = rate * found.signal - 0.5 * rate**2 * found.noise
        np.testing.assert_allclose(found.cosine(rate), growth)
    np.testing.assert_allclose(found.escape(0.1, 1000), np.log(1000.0) / (2 * found.cosine(0.1)[0]))


@SLOW
def test_rates_are_those_of_the_flow():
    """ln M of a small start on the sphere grows at the rate of the cosine."""
    kappa = 0.2
    found = smi.sgd.rates(TWO, key=KEY, averages=smi.Averages(points=2**20))
    start, update = (1e-4 * np.eye(2), np.eye(2)), rule(kappa, projection="sphere")
    path = flow(TWO, start, kappa * np.array([0.5, 1.0]), update, 2**19, None, 1e-8)
    diagonal = lambda x: np.diagonal(np.asarray(x), axis1=-2, axis2=-1)
    M, error = diagonal(path.teacher_overlap), diagonal(path.stderr.teacher_overlap)
    rate = np.log(M[1] / M[0]) / 0.5
    gap = np.abs(rate - diagonal(found.cosine(kappa)))
    assert (gap < 5.0 * error[1] / M[1] / 0.5 + 1e-4).all()


@SLOW
def test_largest_rate_of_two_layers():
    found = smi.sgd.maximal_rate(TWO, key=KEY, averages=smi.Averages(points=2**20))
    assert abs(float(found.value) - 0.388) < 4.0 * np.hypot(float(found.stderr), 0.002)
    close = (1 - 1e-6) * np.eye(2)
    settings = {"dimension": 4000, "alpha": 60.0, "start": (close, close)}
    below, above = (
        smi.sgd.simulate(TWO, keys(16), rate=rate, **settings).distance for rate in (0.3, 0.5)
    )
    assert np.median(below[:, -1]) < 1e-5 < 1e-4 < np.median(np.max(above, axis=-1)[:, -1])
