"""Online SGD of one direction against its theory: flow, chain of the overlaps, whole weight vectors,
scaling, phases [theory: online-sgd, section 8].

`pytest -m slow -rP tests/physics/test_sgd.py` prints what was measured.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import fisher_exact
from whole_vectors import whole_vectors

import jaxsmi as smi
from helpers import keys, mean_and_error
from jaxsmi.core.results import Result
from jaxsmi.sgd.gradient_flow import RowMotion
from jaxsmi.sgd.problem import Overlaps, pair_of
from jaxsmi.sgd.sample_averages import SgdSetting

SGD = smi.sgd
SLOW = pytest.mark.slow


def relu(length, tied=True):
    terms = {tuple(2 * (i == l) for i in range(length)): 1.0 for l in range(length)}
    target = SGD.HermiteSeries(terms, normalised=True)
    return smi.SequenceSingleIndex(target, length, SGD.Network(jax.nn.relu, tied), loss_factor=1.0)


def monomial(k):
    """Target and student h_k of one token, c = 1: R = 2 - 2 m^k."""
    h = SGD.HermiteSeries({(k,): 1.0}, True)
    return smi.SequenceSingleIndex(h, 1, h, loss_factor=1.0)


def semantic(path):
    """m of each record."""
    return np.asarray(path.teacher_overlap)[..., 0, 0]


@SLOW
def test_transition():
    """[theory: online-sgd, Table 4]: ω at which both curvatures of the origin are equal, linear in
    ω at both ends."""
    for a, omega in ((1.0, 0.640962617902), (0.8, 0.856900344242)):
        ends = [SGD.hessian(SGD.semantic_positional(w, a), [0.0, 0.0]) for w in (0.0, 1.0)]
        low, high = (float(H[0, 0] - H[1, 1]) for H in ends)
        assert low / (low - high) == pytest.approx(omega, abs=1e-9)


@SLOW
def test_drift_is_the_mean_step_of_the_chain():
    """40 000 single steps from (0.5, 0.4) at d = 1e6, where corrections are 1e-6, in z-scores; V
    term included (γ = 3)."""
    model, d, gamma, v = SGD.semantic_positional(0.67), 10**6, 3.0, np.array([0.5, 0.4])
    one = SGD.simulate(model, keys(40_000), dimension=d, rate=gamma, alpha=1 / d, start=v)
    mean, error = mean_and_error((np.asarray(one.end)[:, 0] - v) * d / gamma)
    averages = SgdSetting.of(pair_of(model), v, None, None, (2, 2)).averages
    x = Overlaps(jnp.asarray(v)[None], jnp.eye(1))
    motion = lambda kappa: RowMotion(x, kappa, jnp.zeros(()), noisy=True, projected=True)
    drift = lambda kappa: np.asarray(motion(kappa).velocity(averages, x).M[0])
    assert (np.abs(mean - drift(gamma)) < 4.5 * error).all()
    np.testing.assert_allclose(drift(0.0), [0.019787, 0.011424], atol=1e-6)  # Table 6
    assert np.abs(drift(gamma) - drift(0.0)).max() > 2 * error.max()  # the N_s term shows


FLOW = {0.8: 0.176, 1.6: 0.301, 2.4: 0.476, 3.2: 0.651, 4.0: 0.763, 8.0: 0.837}
GRADIENT_FLOW = {0.8: 0.241, 1.6: 0.522, 2.4: 0.833, 3.2: 0.966, 4.0: 0.994, 8.0: 1.000}


@SLOW
def test_flow_of_a_network():
    """[theory: online-sgd, Table 6]: to its last digit, both orders; the end point solves (1 -
    m²)|R_m| = γ N_s m/2."""
    model, times = relu(4), list(FLOW)
    flow = lambda rate, t=times: semantic(SGD.flow(model, 0.1, t, rate=rate))
    np.testing.assert_allclose(flow(0.08), list(FLOW.values()), atol=6e-4)
    np.testing.assert_allclose(flow(0.0), list(GRADIENT_FLOW.values()), atol=6e-4)
    m = float(flow(0.08, [60.0])[0])
    noise = float(SGD.averages(model, m)[0].gradient_noise[0, 0])
    assert (1 - m**2) * 2 * m / np.sqrt(np.pi) == pytest.approx(0.04 * noise * m, rel=1e-6)


@SLOW
def test_flow_in_closed_form():
    """Gradient flow of h_1 and h_2: m = tanh(2t + ..), and m²/(1 - m²) grows as e^{8t}; first
    passages by event; never, where the rate is so large that the origin is stable."""
    one, two = monomial(1), monomial(2)
    t = np.array([0.1, 0.3])
    exact = np.tanh(2 * t + np.arctanh(0.1))
    np.testing.assert_allclose(semantic(SGD.flow(one, 0.1, t)), exact, atol=1e-7)
    ratio = 0.01 / 0.99 * np.exp(8 * t)
    exact = np.sqrt(ratio / (1 + ratio))
    np.testing.assert_allclose(semantic(SGD.flow(two, 0.1, t)), exact, atol=1e-7)
    passage = float(SGD.recovery_time(one, 0.1).value)
    assert passage == pytest.approx((np.arctanh(0.5) - np.arctanh(0.1)) / 2, abs=1e-7)
    assert float(SGD.recovery_time(one, 0.6).value) == 0.0
    above = 1.5 * SGD.maximal_rate(relu(2)).value
    assert np.isinf(SGD.recovery_time(relu(2), 0.01, rate=above).value)


@SLOW
def test_maximal_rate():
    """Tied and untied have the same: (2/√π)/(L + 1) for the sum of h_2 and ReLU; attention as
    [theory: online-sgd, Table 4]."""
    for tied in (True, False):
        rate = float(SGD.maximal_rate(relu(4, tied)).value)
        assert rate == pytest.approx(2 / np.sqrt(np.pi) / 5, rel=1e-10)
    rate = float(SGD.maximal_rate(SGD.semantic_positional(0.64)).value)
    assert rate == pytest.approx(5.7, abs=0.05)


@SLOW
def test_chain_of_a_network_follows_the_flow():
    """d = 4000, 200 runs to t = 1.6, in their standard errors plus the flow's own 1/d; at t = 1.6
    whole vectors have 0.302(6) [theory: online-sgd, Table 6]."""
    model, every = relu(4), smi.Monitor(every=20_000)
    run = {"dimension": 4000, "rate": 0.08, "alpha": 20.0, "start": 0.1, "monitor": every}
    found = SGD.simulate(model, keys(200), **run)
    mean, error = mean_and_error(semantic(found))
    theory = semantic(SGD.flow(model, 0.1, np.asarray(found.time)[1:], rate=0.08))
    assert (np.abs(mean[1:] - theory) < 4 * error[1:] + 0.01 * theory).all()
    assert abs(mean[-1] - 0.302) < 3 * 0.006 + 4 * error[-1]


@SLOW
@pytest.mark.parametrize("tied", [True, False])
def test_whole_weight_vectors_are_the_chain(tied):
    """d = 12, three directions, random start: means and spreads of both, in z-scores."""
    model = relu(3, tied=False)
    if tied:
        target = lambda z: z[0] * z[1] + 0.5 * z[2]
        rows = [[1.0, 0.0], [-0.5, 0.8], [0.2, 0.4]]
        model = smi.SequenceSingleIndex(target, 3, SGD.Attention(), rows)
    run = {"dimension": 12, "rate": 0.4, "alpha": 40 / 12}
    whole = np.asarray(whole_vectors(model, keys(4000), **run)[0])
    chain = np.asarray(SGD.simulate(model, keys(4000, 1), **run).end)
    for power in (1, 2):
        (a, da), (b, db) = mean_and_error(whole**power), mean_and_error(chain**power)
        assert (np.abs(a - b) < 4.5 * np.hypot(da, db)).all()


@SLOW
@pytest.mark.parametrize(
    ("loss", "c", "gamma", "known", "error"),
    [
        ("squared", 0.5, 2.0, (0.650, 0.230), 0.003),
        ("frobenius", 1.0, 0.5, (0.532, 0.353), 0.0015),
    ],
)
def test_whole_weight_vectors_of_the_semantic_positional_problem(loss, c, gamma, known, error):
    """[theory: online-sgd, Table 6]: d = 100, 1500 steps from (0.3, 0.25), ω = 0.64; whole vectors
    (300 runs) and chain (6000)."""
    model = SGD.semantic_positional(0.64, 1.0, c, loss)
    run = {"dimension": 100, "rate": gamma, "alpha": 15.0, "start": (0.3, 0.25)}
    a, da = mean_and_error(whole_vectors(model, keys(300), **run)[0])
    b, db = mean_and_error(SGD.simulate(model, keys(6000, 1), **run).end)
    print(loss, "whole", a, da, "chain", b, db)
    assert (np.abs(a - b) < 4 * np.hypot(da, db)).all()
    assert (np.abs(b - np.array(known)) < 4 * np.hypot(db, error)).all()


SCALING = {  # [theory: online-sgd, Table 6]: γ, and mean steps with their errors
    1: (0.05, {100: (462, 11), 400: (2069, 17), 1600: (8667, 32)}),
    2: (0.01, {100: (4402, 199), 400: (25633, 1087), 1600: (133935, 4006)}),
    3: (0.002, {64: (304211, 22584), 128: (1357948, 81861), 256: (5714403, 422178)}),
}


@SLOW
@pytest.mark.parametrize("k", SCALING)
def test_scaling_with_the_dimension(k):
    """Steps to m = 1/2 from 1/√d: d, d log d and, at γ ~ 1/√d, d^{k-1}; against the table in
    z-scores."""
    (gamma, table), means = SCALING[k], []
    runs = 256 if k < 3 else 64
    for d, (value, spread) in table.items():
        settings = {"rate": gamma if k < 3 else gamma / np.sqrt(d), "alpha": 40 * value / d}
        settings |= {"start": d**-0.5, "monitor": smi.Monitor(target=0.5)}
        found = SGD.simulate(monomial(k), keys(runs, d), dimension=d, **settings)
        assert (np.asarray(found.result) == Result.SUCCESS).all()
        mean, error = mean_and_error(found.steps)
        assert abs(mean - value) < 4 * np.hypot(error, spread)
        means.append((d, mean, error))
    d, mean, error = np.array(means).T
    y = mean / np.log(0.5 * np.sqrt(d)) if k == 2 else mean
    exponent = np.polyfit(np.log(d), np.log(y), 1, w=mean / error)[0]
    spread = np.hypot(*(error / mean)[[0, -1]]) / np.log(d[-1] / d[0])
    print(f"exponent {exponent:.3f} ± {spread:.3f}" + (" of steps/log" if k == 2 else ""))
    assert abs(exponent - {1: 1.03, 2: 1.0, 3: 2.11}[k]) < 4 * spread + 0.02  # at finite d


@SLOW
@pytest.mark.parametrize(("schedule", "law"), [(lambda L: 1, 1.0), (lambda L: L, 2.0)])
def test_gain_of_tying(schedule, law):
    """[theory: online-sgd, Table 7], d = 1000, η = 0.2: mean steps of untied over tied networks,
    L at equal rates, L² at γ_tied = L γ_untied."""
    start, gains = 1 / np.sqrt(1000) / np.hypot(1 - 1 / np.sqrt(1000), 1 / np.sqrt(1000)), []
    for L in (1, 2, 4):
        steps = []
        for tied, runs in ((True, 24), (False, 6)):
            model, rate = relu(L, tied), 0.002 * (schedule(L) if tied else 1)
            time = float(SGD.recovery_time(model, start, rate=rate, level=0.2).value)
            watch = smi.Monitor(target=0.2, level=0.2)
            run = {"dimension": 1000, "rate": rate, "alpha": 4 * time / rate, "monitor": watch}
            found = SGD.simulate(model, keys(runs, L), start=start, **run)
            assert (np.asarray(found.result) == Result.SUCCESS).all()
            steps.append(mean_and_error(found.reached))
        gains.append((steps[1][0] / steps[0][0], np.hypot(*(e / m for m, e in steps))))
    gain, relative = np.array(gains).T
    print(gain, relative)
    exponent = np.polyfit(np.log([1, 2, 4]), np.log(gain), 1, w=1 / relative)[0]
    assert exponent == pytest.approx(law, abs=0.1)


# [theory: online-sgd, Table 8]: c, loss, d, γ, start, runs, P by ω, its 50 % point
SEMANTIC = {
    "unsquared": (
        (1.0, "frobenius", 1000, 0.05, 0.0, 64),
        {0.56: 0.98, 0.60: 0.89, 0.62: 0.50, 0.64: 0.36, 0.66: 0.22, 0.72: 0.02}, 0.625,
    ),
    "squared": (
        (0.5, "squared", 1000, 0.2, 0.0, 64),
        {0.56: 0.98, 0.62: 0.80, 0.64: 0.61, 0.66: 0.27, 0.68: 0.11, 0.72: 0.03}, 0.645,
    ),
    "squared, random start": (
        (0.5, "squared", 1000, 0.1, None, 64), {0.50: 1.00, 0.60: 0.92, 0.64: 0.64, 0.68: 0.33}, None,
    ),
    "unsquared, d = 100": (
        (1.0, "frobenius", 100, 0.05, 0.0, 128), {0.60: 0.85, 0.64: 0.44, 0.70: 0.09}, None,
    ),
}  # fmt: skip


@SLOW
@pytest.mark.parametrize("name", SEMANTIC)
def test_probability_of_the_semantic_minimum(name):
    """Fisher's exact test against the table, at 1 % for the whole family of comparisons; the 50 %
    point to 0.015."""
    (c, loss, d, gamma, start, runs), table, half = SEMANTIC[name]
    comparisons = sum(len(row[1]) for row in SEMANTIC.values())
    watch = smi.Monitor(target=0.8**0.5)
    settings = {"dimension": d, "rate": gamma, "alpha": 2e7 / d, "start": start, "monitor": watch}
    share = []
    for k, (omega, value) in enumerate(table.items()):
        seeds = jax.random.split(jax.random.fold_in(jax.random.key(11), k), runs)
        done = SGD.simulate(SGD.semantic_positional(omega, 1.0, c, loss), seeds, **settings)
        assert (np.asarray(done.result) == Result.SUCCESS).all()
        m, e = np.abs(np.asarray(done.end)[:, 0]).T
        ours, theirs = int(np.sum(m > e)), round(value * runs)
        p = fisher_exact([[ours, runs - ours], [theirs, runs - theirs]])[1]
        print(f"{name}: ω = {omega}: {ours / runs:.3f}, table {value}, p = {p:.3f}")
        assert p > 0.01 / comparisons, omega
        share.append(ours / runs)
    if half is not None:
        omega, P = np.array(list(table)), np.array(share)
        k = int(np.flatnonzero(P >= 0.5)[-1])
        point = omega[k] + (P[k] - 0.5) / (P[k] - P[k + 1]) * (omega[k + 1] - omega[k])
        assert point == pytest.approx(half, abs=0.015)
