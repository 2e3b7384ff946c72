"""Online SGD of index models: the exact chain, its flow, its rates, against closed forms, whole
vectors and each other [theory: online-sgd, sections 11 to 13]."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.special import erf
from whole_vectors import whole_vectors

import jaxsmi as smi
from helpers import keys, mean_and_error
from jaxsmi.core.codes import Result
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.averages import net_averages
from jaxsmi.sgd.problem import pair_of

KEY = jax.random.key(0)
TWO = smi.DeepAttention(2, 2)
ONE = smi.DeepAttention(1, 2)
START = ([[0.1, 0.02], [-0.03, 0.15]], [[1.0, 0.05], [0.05, 0.9]])
SLOW = pytest.mark.slow


def committee(units, v=1.0, noise=0.1):
    link = lambda z: v * jnp.sum(erf(z[:, 0] / np.sqrt(2.0)))
    return smi.MultiIndex(link, indices=units, tokens=1, noise=noise)


def last(runs):
    """|M| and Q of the last record, flattened (runs, P k + P P)."""
    M, Q = np.asarray(runs.teacher_overlap[:, -1]), np.asarray(runs.overlap[:, -1])
    return np.concatenate([np.abs(M).reshape(len(M), -1), Q.reshape(len(Q), -1)], axis=1)


def agree(found, expected, errors=0.0, limit=4.5):
    """Means of runs (runs, n) within so many combined standard errors."""
    mean, error = mean_and_error(found)
    z = (mean - expected) / np.hypot(error, errors)
    print(np.c_[mean, error, np.broadcast_to(expected, mean.shape), z].round(5))
    assert (np.abs(z) < limit).all()


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
    ("D", "B", "rate", "runs"),
    [pytest.param(10, 1, 0.3, 20_000, marks=pytest.mark.slow), (30, 7, 2.0, 4000)],
)
def test_linear_labels_have_their_exact_means_at_any_dimension(D, B, rate, runs):
    rule = smi.sgd.Rule(rate, gradient=smi.Gradient(batch_size=B))
    settings = {"dimension": D, "rate": rule, "alpha": 20 * B / D, "start": ([[0.1]], [[0.5]])}
    found = smi.sgd.simulate(smi.links.linear(0.2), keys(runs), **settings)
    known = linear_means(D, B, 2.0 * rate / (B * D), 0.2, 20, 0.1, 0.5)
    M, Q = found.teacher_overlap[:, -1, 0], found.overlap[:, -1, 0]
    agree(np.concatenate([M, Q], axis=1), known)


def rule(rate, momentum=0.0, decay=0.0, projection=None, **gradient):
    return smi.sgd.Rule(
        rate,
        gradient=smi.Gradient(**gradient),
        momentum=momentum,
        weight_decay=decay,
        projection=projection,
    )


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
    M, Q = (np.asarray(x).reshape(4000, -1) for x in whole_vectors(model, keys(4000, 1), **run))
    whole = np.concatenate([np.abs(M), Q], axis=1)
    for power in (1, 2):
        mean, error = mean_and_error(whole**power)
        agree(chain**power, mean, error)


@SLOW
def test_weights_and_teacher_are_where_smi_train_begins():
    """Mean overlaps of the chain and of `smi.train` on a Stream from one W, W* after the same
    steps, B = 2: within standard errors at every record."""
    D, runs, steps = 40, 64, 40
    W, T = (TWO.start(k, D) for k in jax.random.split(KEY))
    fit = smi.train(
        TWO,
        smi.Stream(TWO, T),
        optax.sgd(2.0),
        key=keys(runs),
        steps=steps,
        gradient=smi.Gradient(batch_size=2),
        start=W,
        monitor=smi.Monitor(every=20),
    )
    chain = smi.sgd.simulate(
        TWO,
        keys(4000, 1),
        dimension=D,
        rate=rule(2.0, batch_size=2),
        alpha=2.0 * steps / D,
        start=smi.sgd.Initial(W, teacher=T),
        monitor=smi.Monitor(every=20),
    )
    for k in range(3):
        whole = np.asarray(fit.history["teacher_overlap"][:, k]).reshape(runs, -1)
        mean, error = mean_and_error(np.asarray(chain.teacher_overlap[:, k]).reshape(4000, -1))
        if k == 0:
            np.testing.assert_allclose(whole[0], mean, atol=1e-12)
        else:
            agree(whole, mean, error)


@SLOW
def test_published_small_dimensions():
    """[theory: online-sgd, Table 10], an independent chain and its standard errors."""
    table = [
        (20, rule(1.0), 5.0, "0.2161(7) 0.2961(9) 0.3250(10) 0.7876(18)"),
        # λ = 0.01 a step: Λ = λ η D/B
        (
            12,
            rule(2.0, 0.5, 0.12, batch_size=2),
            6.0,
            "0.2391(16) 0.3375(20) 0.5441(19) 0.9225(26)",
        ),
        (20, rule(1.0, projection="sphere"), 5.0, "0.1947(5) 0.2662(7) 0.1967(5) 0.5477(9)"),
        (12, rule(0.5, 0.5, projection="sphere"), 5.0, "0.2514(7) 0.3281(8) 0.2534(7) 0.6140(10)"),
    ]
    for D, update, alpha, known in table:
        runs = smi.sgd.simulate(TWO, keys(20_000, D), dimension=D, rate=update, alpha=alpha)
        value, error = np.array([x.rstrip(")").split("(") for x in known.split()], float).T
        agree(last(runs)[:, :4], value, error * 1e-4, limit=3.5)


def test_near_recovery_no_digits_are_lost():
    """The error ‖W - W*‖²/D falls by a constant factor far below rounding of Q - 2M + ρ."""
    start = ([[0.95]], [[1.0]])
    runs = smi.sgd.simulate(ONE, keys(8), dimension=100, rate=0.5, alpha=130.0, start=start)
    distance = np.asarray(runs.distance[:, :, 0])
    there = np.median(distance, axis=0)
    print(there)
    assert there[-1] < 1e-24
    assert (np.asarray(runs.result) == Result.SUCCESS).all()
    assert (distance[:, -1] >= 0.0).all()


@pytest.mark.parametrize("batch", [1, 3])
def test_singular_starts_are_exact(batch):
    """W = W* of noiseless labels stays there; W = 0 and W in the span of W* go on without a NaN."""
    run = {"dimension": 50, "rate": rule(0.5, batch_size=batch), "alpha": 5 * batch / 50}
    still = smi.sgd.simulate(TWO, keys(2), start=(np.eye(2), np.eye(2)), **run)
    np.testing.assert_allclose(still.distance, 0.0, atol=1e-30)
    for M, Q in ((np.zeros((2, 2)), np.zeros((2, 2))), (np.diag([0.5, 0.5]), 0.25 * np.eye(2))):
        assert np.isfinite(smi.sgd.simulate(TWO, keys(2), start=(M, Q), **run).overlap).all()


# The flow -----------------------------------------------------------------------------------------


def averages(model, M, Q, size, nets=2):
    """A_T, A_Z, V and R, flattened, of each net."""
    pair = pair_of(model)
    law = net_averages(pair, triangular_root(pair.gram), KEY, size, nets)
    at = lambda net: net.at(jnp.asarray(M), jnp.asarray(Q))
    found = eqx.filter_jit(lambda law: law.over_nets(at))(law)
    return np.concatenate([np.asarray(x).reshape(nets, -1) for x in found], axis=1)


def erf_averages(a, C, teachers, noise):
    """E s h', E s s and the risk of committees v Σ erf(z/√2) by closed forms: a the weights of all
    units in the residual (teachers negative), C the covariance of (z*, z)."""
    n = len(a)
    students = range(teachers, n)

    def I2(i, j):
        scale = np.sqrt((1 + C[i, i]) * (1 + C[j, j]))
        return 2 / np.pi * np.arcsin(C[i, j] / scale)

    def slopes(i, j):
        return 2 / np.pi / np.sqrt((1 + C[i, i]) * (1 + C[j, j]) - C[i, j] ** 2)

    def I3(i, j, k):
        top = C[j, k] * (1 + C[i, i]) - C[i, j] * C[i, k]
        below = (1 + C[i, i]) * (1 + C[k, k]) - C[i, k] ** 2
        return 2 / np.pi * top / ((1 + C[i, i]) * np.sqrt(below))

    def I4(i, j, k, l):
        L4 = (1 + C[i, i]) * (1 + C[j, j]) - C[i, j] ** 2
        L0 = L4 * C[k, l] - C[j, k] * C[j, l] * (1 + C[i, i]) - C[i, k] * C[i, l] * (1 + C[j, j])
        L0 += C[i, j] * C[i, k] * C[j, l] + C[i, j] * C[i, l] * C[j, k]
        tail = lambda m: (
            L4 * (1 + C[m, m])
            - C[j, m] ** 2 * (1 + C[i, i])
            - C[i, m] ** 2 * (1 + C[j, j])
            + 2 * C[i, j] * C[i, m] * C[j, m]
        )
        return 4 / np.pi**2 / np.sqrt(L4) * np.arcsin(L0 / np.sqrt(tail(k) * tail(l)))

    every = range(n)
    v = a[teachers]
    first = [[2 * v * sum(a[i] * I3(p, b, i) for i in every) for b in every] for p in students]
    second = [
        [
            4
            * v
            * v
            * (
                sum(a[i] * a[j] * I4(p, q, i, j) for i in every for j in every)
                + noise * slopes(p, q)
            )
            for q in students
        ]
        for p in students
    ]
    risk = sum(a[i] * a[j] * I2(i, j) for i in every for j in every) + noise
    first = np.array(first)
    return np.concatenate(
        [first[:, :teachers].ravel(), first[:, teachers:].ravel(), np.ravel(second), [risk]]
    )


@SLOW
def test_averages_of_committees_are_their_closed_forms():
    """Within five standard errors, and closed forms themselves beside an independent table to
    1e-11 [theory: online-sgd, Eq. (63)]."""
    M, Q = np.array([[0.3, 0.1], [-0.2, 0.4]]), np.array([[0.8, 0.2], [0.2, 1.1]])
    C = np.block([[np.eye(2), M.T], [M, Q]])
    known = erf_averages(np.array([-1.0, -1.0, 1.0, 1.0]), C, 2, 0.1)
    table = [-0.656441148391, -0.357026484468, -0.494231714706, -0.432647466711]
    table += [0.273499169079, 0.694565186091, 0.343565663740, 0.374324460122]
    table += [1.713975466992, 1.317166890835, 1.317166890835, 1.383573324812, 1.147087713590]
    np.testing.assert_allclose(known, table, atol=1e-11)
    found = averages(committee(2), M, Q, 2**14, nets=16)
    mean, error = mean_and_error(found)
    assert (np.abs(mean - known) < 5.0 * error).all()
    assert error.max() < 1e-3


def test_averages_of_phase_retrieval_are_polynomials():
    """E s z* = 12 m (q - ρ) and so on; on grids to rounding."""
    model = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1)
    for m, q, known in (
        (0.3, 0.7, [-1.08, 2.36, 61.968, 2.71]),
        (-0.2, 0.5, [12 * -0.2 * -0.5, 12 * 0.25 - 2.0 - 0.32, None, 0.75 - 1.16 + 3.0]),
    ):
        found = averages(model, [[m]], [[q]], 2**13).mean(0)
        for value, expected in zip(found, known, strict=True):
            assert expected is None or value == pytest.approx(expected, rel=1e-6)


@SLOW
def test_averages_of_one_layer():
    """To 1e-8 on a grid of 48 points an axis, of an independent table."""
    for M, Q, known in (
        (0.5, 1.0, [-0.0896982541, 0.1982029417, 0.1852519885, 0.2384994444]),
        (0.2, 0.6, [-0.0740710330, 0.1384031056, 0.1594021185, 0.2362706352]),
    ):
        found = averages(ONE, [[M]], [[Q]], 2 * 48**4)
        print(found - known)
        np.testing.assert_allclose(found.mean(0), known, atol=1e-8)


@SLOW
def test_linear_flow_is_its_closed_form():
    """m(α) and ε(α) of linear labels with noise; gradient flow of κ = 0 in t."""
    rate, noise, m, q = 0.3, 0.2, 0.1, 0.5
    times = rate * np.array([0.5, 1.0, 3.0])
    model = smi.links.linear(noise)
    path = smi.sgd.flow(
        model, ([[m]], [[q]]), times, rate=rate, key=KEY, averages=smi.Averages(points=2**14)
    )
    known = 1.0 + (m - 1.0) * np.exp(-2.0 * times)
    end = rate * noise / (1.0 - rate)
    error = end + (q - 2 * m + 1 - end) * np.exp(-4.0 * times * (1 - rate))
    for found, expected, spread in (
        (path.teacher_overlap[:, 0, 0], known, path.stderr.teacher_overlap[:, 0, 0]),
        (path.overlap[:, 0, 0], error + 2 * known - 1, path.stderr.overlap[:, 0, 0]),
        (path.risk, error + noise, path.stderr.risk),
    ):
        print(found - expected, spread)
        assert (np.abs(found - expected) < 5.0 * spread + 1e-7).all()
        assert spread.max() < 5e-3
    np.testing.assert_allclose(path.alpha, times / rate)
    risk = smi.sgd.risk(model, ([[m]], [[q]]), key=KEY, averages=smi.Averages(points=2**13))
    assert abs(float(risk) - (q - 2 * m + 1 + noise)) < 5.0 * float(risk.stderr) < 0.02
    still = smi.sgd.flow(model, ([[m]], [[q]]), times, key=KEY, averages=smi.Averages(points=2**14))
    gap = np.abs(still.teacher_overlap[:, 0, 0] - known)
    assert (gap < 5.0 * still.stderr.teacher_overlap[:, 0, 0] + 1e-7).all()


@SLOW
def test_committee_flow():
    """[SS95]: two units, κ = .2, with the closed right-hand side, to 1e-10: an independent
    table, and its weight decay."""
    start = (np.array([[0.1, 0.02], [-0.05, 0.08]]), np.array([[0.5, 0.1], [0.1, 0.4]]))
    known = {
        5: [
            0.4356027910,
            0.3241853003,
            0.2843082833,
            0.4021616351,
            0.5296844261,
            0.1111851839,
            0.1111851839,
            0.4495811725,
            0.2126616330,
        ],
        10: [
            0.5001706766,
            0.3785840267,
            0.3448651660,
            0.4654923451,
            0.5824356727,
            0.1983015110,
            0.1983015110,
            0.5144928124,
            0.1562031149,
        ],
    }
    path = smi.sgd.flow(
        committee(2),
        start,
        0.2 * np.array([5.0, 10.0]),
        rate=0.2,
        key=KEY,
        averages=smi.Averages(2**16, 16),
    )
    for k, values in enumerate(known.values()):
        parts = (path.teacher_overlap, path.overlap, path.risk)
        errors = (path.stderr.teacher_overlap, path.stderr.overlap, path.stderr.risk)
        mean = np.concatenate([np.ravel(x[k]) for x in parts])
        error = np.concatenate([np.ravel(x[k]) for x in errors])
        print(np.c_[mean, error, values])
        assert (np.abs(mean - values) < 4.5 * error).all()
        assert error.max() < 3e-3
    decayed = smi.sgd.flow(
        committee(2),
        start,
        [4.0],
        rate=rule(0.2, decay=0.02),
        key=KEY,
        averages=smi.Averages(2**16, 16),
    )
    values = np.array([[0.45441556, 0.35903313], [0.34047273, 0.43484121]])
    gap = np.abs(decayed.teacher_overlap[0] - values)
    assert (gap < 4.5 * np.asarray(decayed.stderr.teacher_overlap[0])).all()


@SLOW
def test_flow_is_the_limit_of_the_chain():
    """Two layers at κ = .5 from given overlaps to α = 15: the flow, chains of D = 2000 and 10^5,
    within four combined standard errors and 30/D."""
    times = 0.5 * np.array([5.0, 15.0])
    path = smi.sgd.flow(
        TWO,
        START,
        times,
        rate=0.5,
        key=KEY,
        averages=smi.Averages(2**17, 8),
        iteration=smi.Iteration(tolerance=1e-6),
    )
    for D, runs in ((2000, 128), (10**5, 8)):
        chain = smi.sgd.simulate(
            TWO,
            keys(runs, D),
            dimension=D,
            rate=0.5,
            alpha=15.0,
            monitor=smi.Monitor(every=5 * D),
            start=START,
        )
        for k, record in enumerate((1, 3)):
            for found, theory, error in (
                (chain.teacher_overlap, path.teacher_overlap, path.stderr.teacher_overlap),
                (chain.overlap, path.overlap, path.stderr.overlap),
            ):
                mean, spread = mean_and_error(np.asarray(found[:, record]).reshape(runs, -1))
                gap = np.abs(mean - np.ravel(theory[k]))
                print(D, mean, spread, np.ravel(theory[k]), np.ravel(error[k]))
                assert (gap < 4.0 * np.hypot(spread, np.ravel(error[k])) + 30.0 / D).all()


@SLOW
def test_large_batches_are_a_map():
    """B = b D: M' = M - κ b A_T, Q' = Q - κ b (A_Z + A_Zᵀ) + κ² b² G Γ⁺ Gᵀ + κ² b V on the averages
    of the flow [theory: online-sgd, Eq. (73)], beside the chain of D = 600, B = 300, 8 steps."""
    b, kappa = 0.5, 0.5

    def step(M, Q, key):
        found = smi.sgd.averages(TWO, (M, Q), key=key, averages=smi.Averages(2**18, 8))[0]
        G = np.concatenate([found.fixed, found.own], axis=1)
        Gamma = np.block([[np.eye(2), M.T], [M, Q]])
        drift = found.own + found.own.T
        square = kappa**2 * b * (b * G @ np.linalg.pinv(Gamma) @ G.T + found.square)
        return M - kappa * b * found.fixed, Q - kappa * b * drift + square

    ends = []
    for key in jax.random.split(KEY, 4):
        M, Q = map(np.asarray, START)
        for _ in range(8):
            M, Q = (np.asarray(x) for x in step(M, Q, key))
        ends.append(np.concatenate([np.abs(M).ravel(), Q.ravel()]))
    update = rule(150.0, batch_size=300)
    chain = smi.sgd.simulate(TWO, keys(400), dimension=600, rate=update, alpha=4.0, start=START)
    theory, error = mean_and_error(ends)
    mean, spread = mean_and_error(last(chain))
    print(np.c_[mean, spread, theory, error])
    assert (np.abs(mean - theory) < 4.0 * np.hypot(spread, error) + 3.0 / 600).all()


@SLOW
def test_derivatives_of_the_flow_are_those_of_its_answers():
    """In the start, in κ and in a parameter of the model: central differences, h = 1e-4."""
    few, fine = smi.Averages(points=2**9, nets=2), smi.Iteration(tolerance=1e-9)
    settings = {"key": KEY, "averages": few, "iteration": fine}

    def value(numbers):
        model = smi.DeepAttention(2, 2, skip=numbers[2])
        M = jnp.asarray(START[0]) * numbers[0]
        path = smi.sgd.flow(model, (M, START[1]), [0.6], rate=numbers[1], **settings)
        return path.teacher_overlap[0, 1, 1]

    at = jnp.array([1.0, 0.5, 1.0])
    slopes = np.asarray(jax.jit(jax.grad(value))(at))
    fast, h = jax.jit(value), 1e-4
    for k, slope in enumerate(slopes):
        step = h * np.eye(3)[k]
        difference = float(fast(at + step) - fast(at - step)) / (2 * h)
        assert float(slope) == pytest.approx(difference, rel=1e-4)


@SLOW
def test_what_symmetry_forbids_stays_zero():
    """From diagonal M and Q the flow of two layers keeps them diagonal exactly."""
    start = (np.diag([0.1, 0.2]), np.eye(2))
    few = smi.Averages(points=2**9, nets=2)
    path = smi.sgd.flow(TWO, start, [0.5], rate=0.3, key=KEY, averages=few)
    off = 1.0 - np.eye(2)
    np.testing.assert_allclose(path.teacher_overlap[0] * off, 0.0, atol=1e-14)
    np.testing.assert_allclose(path.overlap[0] * off, 0.0, atol=1e-14)


# The start ----------------------------------------------------------------------------------------


@SLOW
def test_rates_of_the_unlearned_state():
    """[theory: online-sgd, section 13] to 1e-8 by trapezoidal sums of another code: within five
    standard errors, 3e-4 at most of Λ."""
    known = {
        1.0: (
            [0.01918730, 0.10920634, 0.10920634, 0.75446166],
            [0.03132641, 0.38917599],
            [0.066030, 1.108106],
        ),
        0.5: (
            [0.0317155, 0.1043270, 0.1043270, 0.4651930],
            [0.0614177, 0.3043370],
            [0.060329, 0.29203],
        ),
    }
    for skip, values in known.items():
        model = smi.DeepAttention(2, 2, skip=skip)
        found = smi.sgd.rates(model, key=KEY, averages=smi.Averages(points=2**22))
        for mean, error, value, allowed in zip(
            (found.signal, found.pull, found.noise),
            found.stderr,
            values,
            (3e-4, 2e-3, 2e-2),
            strict=True,
        ):
            print(np.ravel(mean), np.ravel(error), value)
            assert (np.abs(np.ravel(mean) - value) < 5.0 * np.ravel(error) + 1e-6).all()
            assert np.max(error) < allowed
    assert found.signal[1, 1] > 10.0 * found.signal[0, 0]  # the last layer first


def trapezoid(model, h, last=6.5):
    """Λ, E s·z, E|s|² and the risk at M = 0, Q = I of two layers and tokens: sums over a grid of the
    four fields, of which half is enough for each row. At M = 0 student and teacher are independent:
    Λ by Stein from the link alone, the others from f, its Jacobian J and E f f*ᵀ."""
    whole = np.arange(-round(last / h), round(last / h) + 1) * h
    half = whole[whole >= 0]
    density = lambda x: h * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    link = lambda z: jnp.ravel(model.link(z))
    second = jnp.asarray(np.stack(np.meshgrid(whole, whole), -1).reshape(-1, 2))
    weights = jnp.asarray(np.outer(density(whole), density(whole)).ravel())
    twice = density(half) * np.where(half == 0, 1.0, 2.0)

    def slab(part):
        first, weight = part

        def one(other):
            z = jnp.stack([first, other], axis=1)
            f, J = link(z), jax.jacfwd(link)(z)
            H = jnp.einsum("pm,pk->pmk", z, z) - jnp.eye(2)
            along = jnp.einsum("opm,pm->op", J, z)
            JJ = jnp.einsum("opm,kpm->okp", J, J)
            fJJ = jnp.einsum("o,okp->kp", f, JJ)
            curvature = f[:, None, None, None] * H
            return f, jnp.outer(f, f), curvature, along, f @ along, JJ, fJJ, f @ fJJ

        found = jax.vmap(one)(second)
        return jax.tree.map(lambda x: weight * jnp.tensordot(weights, x, 1), found)

    firsts = jnp.asarray(np.stack(np.meshgrid(half, half), -1).reshape(-1, 2))
    parts = (firsts, jnp.asarray(np.outer(twice, twice).ravel()))
    shapes = jax.eval_shape(slab, tuple(x[0] for x in parts))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape), shapes)
    add = lambda total, part: (jax.tree.map(jnp.add, total, slab(part)), None)
    f, ff, curvature, along, f_along, JJ, fJJ, ffJJ = jax.jit(
        lambda parts: jax.lax.scan(add, zero, parts)[0]
    )(parts)
    signal = 2 * jnp.einsum("opmk,oqmk->pq", curvature, curvature)
    noise = 4 * (ffJJ - 2 * f @ fJJ + jnp.einsum("ok,okp->p", ff, JJ))
    return signal, 2 * (f_along - f @ along), noise, 2 * (jnp.trace(ff) - f @ f)


@SLOW
def test_rates_of_the_unlearned_state_to_eight_digits():
    """[theory: online-sgd, Eq. (68)] by sums over fields at steps of 0.1; nets are within their
    bars of them."""
    found = trapezoid(TWO, 0.1)
    known = ([0.01918730, 0.10920634, 0.10920634, 0.75446166], [0.03132641, 0.38917599])
    for mean, value in zip(found[:2], known, strict=True):
        np.testing.assert_allclose(np.ravel(mean), value, atol=1.5e-8)
    np.testing.assert_allclose(found[2], [0.066030, 1.108106], atol=1.5e-6)
    np.testing.assert_allclose(found[3], 0.60481225, atol=1.5e-8)
    half = trapezoid(smi.DeepAttention(2, 2, skip=0.5), 0.2)
    np.testing.assert_allclose(
        np.ravel(half[0]), [0.0317155, 0.1043270, 0.1043270, 0.4651930], atol=1.5e-7
    )
    np.testing.assert_allclose(half[1], [0.0614177, 0.3043370], atol=1.5e-7)
    nets = smi.sgd.rates(TWO, key=KEY, averages=smi.Averages(points=2**20))
    for mean, error, value in zip(
        (nets.signal, nets.pull, nets.noise), nets.stderr, found[:3], strict=True
    ):
        assert (np.abs(mean - value) < 5.0 * error + 1e-6).all()


@pytest.mark.slow
def test_rates_of_one_layer():
    """Λ = .441004675562 = 2 |R_mm| of the semantic/positional problem at ω = 0."""
    found = smi.sgd.rates(ONE, key=KEY, averages=smi.Averages(points=2**18))
    assert found.signal[0, 0] == pytest.approx(
        0.441004675562, abs=5 * float(found.stderr.signal[0, 0]) + 1e-6
    )
    assert float(found.stderr.signal[0, 0]) < 3e-3
    series = smi.sgd.flatness(smi.sgd.semantic_positional(0.0), 2).series
    assert pytest.approx(-4.0 * series[2, 0], abs=1e-10) == 2.0 * 0.220502337781
    for rate in (0.1, 0.2):
        growth = rate * found.signal - 0.5 * rate**2 * found.noise
        np.testing.assert_allclose(found.cosine(rate), growth)
    np.testing.assert_allclose(found.escape(0.1, 1000), np.log(1000.0) / (2 * found.cosine(0.1)[0]))


@SLOW
def test_rates_are_those_of_the_flow():
    """ln M of a small start on the sphere grows at the rate of the cosine."""
    kappa, small = 0.2, 1e-4
    found = smi.sgd.rates(TWO, key=KEY, averages=smi.Averages(points=2**20))
    times = kappa * np.array([0.5, 1.0])
    path = smi.sgd.flow(
        TWO,
        (small * np.eye(2), np.eye(2)),
        times,
        rate=rule(kappa, projection="sphere"),
        key=KEY,
        averages=smi.Averages(points=2**19),
        iteration=smi.Iteration(tolerance=1e-8),
    )
    for p in range(2):
        M = np.asarray(path.teacher_overlap[:, p, p])
        error = np.asarray(path.stderr.teacher_overlap[:, p, p]) / M
        rate = np.log(M[1] / M[0]) / 0.5
        expected = float(found.cosine(kappa)[p, p])
        print(p, rate, expected, error)
        assert abs(rate - expected) < 5.0 * error[1] / 0.5 + 1e-4


@SLOW
def test_largest_rate_of_two_layers():
    found = smi.sgd.maximal_rate(TWO, key=KEY, averages=smi.Averages(points=2**20))
    print(found)
    assert abs(float(found.value) - 0.388) < 4.0 * np.hypot(float(found.stderr), 0.002)
    below, above = (
        smi.sgd.simulate(
            TWO,
            keys(16),
            dimension=4000,
            rate=rate,
            alpha=60.0,
            start=((1 - 1e-6) * np.eye(2), np.eye(2) * (1 - 1e-6)),
        ).distance
        for rate in (0.3, 0.5)
    )
    assert np.median(below[:, -1]) < 1e-5 < 1e-4 < np.median(np.max(above, axis=-1)[:, -1])


@SLOW
def test_escape_of_phase_retrieval():
    """Mean α of |m| = 1/2 from a uniform start on the sphere, κ = 1/24: the formula of the
    linearised start with corrections O(1/D), D = 10^5: 32.97; the chain of an independent code
    33.9(8)."""
    model = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1, symmetry=[((0,), "sign")])
    D, kappa, h = 1000, 1 / 24, 0.5
    r = 8 * kappa * (1 - 12 * kappa)
    formula = np.log(D * h**2 / (1 - h**2) * (1 - 12 * kappa)) + np.euler_gamma + np.log(2.0)
    runs = smi.sgd.simulate(
        model,
        keys(4000),
        dimension=D,
        rate=rule(kappa, projection="sphere"),
        alpha=120.0,
        start=smi.sgd.Initial(teacher="orthonormal"),
        monitor=smi.Monitor(target=h + 1e-9),
    )
    reached = np.asarray(runs.reached_alpha)[:, 0]
    assert np.isfinite(reached).all()
    mean, error = mean_and_error(reached)
    print(mean, error, formula / (2 * r), reached.std(), np.pi / np.sqrt(2) / (2 * r))
    assert abs(mean - 19.34) < 4 * np.hypot(error, 0.10)
    assert abs(mean - formula / (2 * r)) < 0.4  # 2048 κ²/(2 D) of the rate, and more of O(1/D)
    assert reached.std() == pytest.approx(6.9, rel=0.05)


@SLOW
def test_the_last_layer_is_learned_first():
    """κ = .2, D = 500, iid starts: α at |cosine| = 1/2, medians of an independent chain 11.9 and
    175 (48 runs, quartiles [10.6, 13.1] and [146, 216])."""
    runs = smi.sgd.simulate(TWO, keys(96), dimension=500, rate=0.2, alpha=400.0)
    median = np.median(np.asarray(runs.reached_alpha), axis=0)
    print(np.quantile(np.asarray(runs.reached_alpha), [0.25, 0.5, 0.75], axis=0))
    assert 11.0 < median[1] < 13.5
    assert 150.0 < median[0] < 205.0
