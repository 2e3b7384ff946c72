"""Online SGD against its theory: flow, chain of the overlaps, whole weight vectors, scaling, gain,
phases
[theory: online-sgd, section 8].

`pytest -m slow -rP tests/physics/test_sgd.py` prints what was measured.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import fisher_exact

import jaxsmi as smi
from helpers import keys, mean_and_error
from jaxsmi.core.codes import Result
from jaxsmi.sgd.dynamics import drift
from jaxsmi.sgd.tying import sum_of_squares

SGD = smi.sgd
SLOW = pytest.mark.slow


def relu(length, tied=True):
    return smi.SequenceSingleIndex(
        sum_of_squares(length), length, SGD.Network(jax.nn.relu, tied), loss_factor=1.0
    )


def monomial(k):
    """Target and student h_k of one token, c = 1: R = 2 - 2 m^k."""
    h = SGD.HermiteSeries({(k,): 1.0}, True)
    return smi.SequenceSingleIndex(h, 1, h, loss_factor=1.0)


# Phases -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_transition():
    """[theory: online-sgd, Table 4]: to 1e-9; its slope by central differences."""
    for a, omega in ((1.0, 0.640962617902), (0.8, 0.856900344242)):
        assert float(SGD.transition(a)) == pytest.approx(omega, abs=1e-9)
    assert np.isnan(SGD.transition(0.7243))
    assert float(SGD.transition(0.724390881431 + 1e-10)) == pytest.approx(
        1.0, abs=1e-9
    )  # a hair inside: NaN beyond
    h = 1e-5
    slope = jax.grad(lambda a: SGD.transition(a))(0.9)
    assert float(slope) == pytest.approx(
        float(SGD.transition(0.9 + h) - SGD.transition(0.9 - h)) / (2 * h), rel=1e-6
    )


@pytest.mark.slow
def test_boundaries():
    """[theory: online-sgd, Table 5]: its error is 1e-6; the corners' cross at a = 0.7635."""
    known = {
        1.00: (0.508214, 0.640963, 0.737607, 0.841605),
        0.95: (0.557734, None, None, 0.863110),
        0.85: (0.714092, None, None, 0.915687),
        0.80: (0.841662, 0.856900, 0.917510, 0.946872),
        0.78: (0.907992, None, None, 0.960244),
        0.77: (0.945493, None, None, 0.967118),
        0.765: (0.965483, None, None, 0.970602),
    }
    for a, values in known.items():
        found = SGD.boundaries(a)
        for name, value in zip(SGD.BOUNDARIES, values, strict=True):
            if value is not None:
                assert float(found[name]) == pytest.approx(value, abs=2e-6), (a, name)
    at = SGD.boundaries(0.7635)
    assert float(at["positional minimum"]) == pytest.approx(float(at["semantic minimum"]), abs=1e-4)


@pytest.mark.slow
def test_phase_diagram():
    """[theory: online-sgd, Table 5]: the cells of each label on its grid, ±6 (grid ties near
    corners); under a minute.
    """
    begin = time.perf_counter()
    found = SGD.phase_diagram(np.linspace(0.7, 1.0, 31), np.linspace(0.4, 0.98, 30))
    assert time.perf_counter() - begin < 60
    known = {
        "unique semantic": 542,
        "unique semantic, misaligned dynamics": 8,
        "global semantic": 99,
        "global semantic, positional dynamics": 93,
        "global positional": 79,
        "unique positional": 109,
    }
    for name, count in found.counts().items():
        assert abs(count - known.get(name, 0)) <= (6 if name in known else 0), name
    for i, j in ((0, 30), (12, 30), (25, 20)):  # the label's risks are those of the model
        model = SGD.semantic_positional(found.omega[i], found.a[j])
        np.testing.assert_allclose(
            found.hessian[i, j], np.diag(SGD.hessian(model))[::-1], atol=1e-12
        )
        for m, e, R in found.minima[i][j]:
            assert pytest.approx(float(SGD.risk(model, m, e).value), abs=1e-9) == R
    wedge = SGD.phase_diagram(0.76, 0.98).minima[0][0]
    np.testing.assert_allclose(wedge[0, :2], [0.26, 0.97], atol=0.01)  # neither corner


# Flow and chain -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_drift_is_the_mean_step_of_the_chain():
    """40 000 single steps from (0.5, 0.4) at d = 1e6, where corrections are 1e-6, in z-scores; V
    term included (γ = 3).
    """
    model, d, gamma, v = SGD.semantic_positional(0.67), 10**6, 3.0, jnp.array([0.5, 0.4])
    one = SGD.simulate(model, keys(40_000), dimension=d, gamma=gamma, steps=1, m=v[0], e=v[1])
    mean, error = mean_and_error((np.asarray(one.end) - np.asarray(v)) * d / gamma)
    expected = np.asarray(drift(model, v, jnp.asarray(gamma)))
    assert (np.abs(mean - expected) < 4.5 * error).all()
    first = np.asarray(drift(model, v, jnp.asarray(gamma), order=1))
    np.testing.assert_allclose(
        first, [0.019787, 0.011424], atol=1e-6
    )  # [theory: online-sgd, Table 6]
    assert np.abs(expected - first).max() > 2 * error.max()  # the test would see the V term missing


FLOW = {0.8: 0.176, 1.6: 0.301, 2.4: 0.476, 3.2: 0.651, 4.0: 0.763, 8.0: 0.837}
GRADIENT_FLOW = {0.8: 0.241, 1.6: 0.522, 2.4: 0.833, 3.2: 0.966, 4.0: 0.994, 8.0: 1.000}


@pytest.mark.slow
def test_flow_of_a_network():
    """[theory: online-sgd, Table 6]: to its last digit, both orders; the end point solves (1 -
    m²)|R_m| = γ V m/2.
    """
    model, times = relu(4), list(FLOW)
    second, first = SGD.flow(model, 0.1, times=times, gamma=0.08), SGD.flow(model, 0.1, times=times)
    np.testing.assert_allclose(second.m, list(FLOW.values()), atol=6e-4)
    np.testing.assert_allclose(first.m, list(GRADIENT_FLOW.values()), atol=6e-4)
    m = float(SGD.flow(model, 0.1, times=[60.0], gamma=0.08).m[0])
    V = float(SGD.gradient_noise(model, m).value)
    assert (1 - m**2) * 2 * m / np.sqrt(np.pi) == pytest.approx(0.04 * V * m, rel=1e-6)


@pytest.mark.slow
def test_flow_in_closed_form():
    """Gradient flow of h_1 and h_2: m = tanh(2t + ..), and m²/(1 - m²) grows as e^{8t}; first
    passages by event.
    """
    one, two = monomial(1), monomial(2)
    t = np.array([0.1, 0.3])
    np.testing.assert_allclose(
        SGD.flow(one, 0.1, times=t).m, np.tanh(2 * t + np.arctanh(0.1)), atol=1e-7
    )
    ratio = 0.01 / 0.99 * np.exp(8 * t)
    np.testing.assert_allclose(
        SGD.flow(two, 0.1, times=t).m, np.sqrt(ratio / (1 + ratio)), atol=1e-7
    )
    assert float(SGD.recovery_time(one, 0.1)) == pytest.approx(
        (np.arctanh(0.5) - np.arctanh(0.1)) / 2, abs=1e-7
    )
    assert float(SGD.recovery_time(one, 0.6)) == 0.0
    assert np.isinf(SGD.recovery_time(two, 0.1, longest=0.01))


@SLOW
def test_maximal_rate():
    """Tied and untied have the same: (2/√π)/(L + 1) for the sum of h_2 and ReLU; attention as
    [theory: online-sgd, Table 4]."""
    for tied in (True, False):
        assert float(SGD.maximal_rate(relu(4, tied))) == pytest.approx(
            2 / np.sqrt(np.pi) / 5, rel=1e-10
        )
    assert float(SGD.maximal_rate(SGD.semantic_positional(0.64))) == pytest.approx(5.7, abs=0.05)


@pytest.mark.slow
def test_chain_of_a_network_follows_the_flow():
    """d = 4000, 200 runs to t = 1.6, at four times, in their standard errors plus the flow's own
    1/d.
    """
    model = relu(4)
    found = SGD.simulate(
        model, keys(200), dimension=4000, gamma=0.08, steps=80_000, m=0.1, eta=0.9, every=20_000
    )
    mean, error = mean_and_error(found.m)
    theory = SGD.flow(model, 0.1, times=np.asarray(found.time)[1:], gamma=0.08).m
    assert (np.abs(mean[1:] - np.asarray(theory)) < 4 * error[1:] + 0.01 * np.asarray(theory)).all()
    assert (
        abs(mean[-1] - 0.302) < 3 * 0.006 + 4 * error[-1]
    )  # whole vectors, [theory: online-sgd, Table 6]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=SLOW)])
def test_whole_weight_vectors_are_the_chain(tied):
    """d = 12, three directions, random start: means and spreads of both methods, in z-scores."""
    if tied:
        target = lambda z: z[0] * z[1] + 0.5 * z[2]
        model = smi.SequenceSingleIndex(
            target, 3, SGD.Attention(), jnp.array([[1.0, 0.0], [-0.5, 0.8], [0.2, 0.4]])
        )
    else:
        model = relu(3, tied=False)
    settings = {"dimension": 12, "gamma": 0.4, "steps": 40, "every": 40}
    whole = np.asarray(SGD.simulate(model, keys(4000), **settings, method="full").end)
    chain = np.asarray(SGD.simulate(model, keys(4000, 1), **settings).end)
    for power in (1, 2):
        (a, da), (b, db) = mean_and_error(whole**power), mean_and_error(chain**power)
        assert (np.abs(a - b) < 4.5 * np.hypot(da, db)).all()


# Full size ----------------------------------------------------------------------------------------


@SLOW
def test_whole_weight_vectors_of_the_semantic_positional_problem():
    """[theory: online-sgd, Table 6]: d = 100, 1500 steps from (0.3, 0.25), ω = 0.64;
    whole vectors (300 runs) and chain (6000), against its
    runs.
    """
    for loss, c, gamma, known, error in (
        ("squared", 0.5, 2.0, (0.650, 0.230), 0.003),
        ("frobenius", 1.0, 0.5, (0.532, 0.353), 0.0015),
    ):
        model = SGD.semantic_positional(0.64, 1.0, c, loss)
        settings = {"dimension": 100, "gamma": gamma, "steps": 1500, "m": 0.3, "e": 0.25}
        (a, da), (b, db) = (
            mean_and_error(SGD.simulate(model, keys(n, n), **settings, method=method).end)
            for n, method in ((300, "full"), (6000, "reduced"))
        )
        print(loss, "whole", a, da, "chain", b, db)
        assert (np.abs(a - b) < 4 * np.hypot(da, db)).all()
        assert (np.abs(b - np.array(known)) < 4 * np.hypot(db, error)).all()


@SLOW
def test_whole_weight_vectors_in_high_dimension():
    """d = 4000, L = 4, to t = 1.6, 8 runs: 1e10 random numbers; against the flow and
    [theory: online-sgd, Table 6]."""
    model = relu(4)
    settings = {
        "dimension": 4000,
        "gamma": 0.08,
        "steps": 80_000,
        "m": 0.1,
        "eta": 0.9,
        "every": 40_000,
        "method": "full",
    }
    mean, error = mean_and_error(SGD.simulate(model, keys(8), **settings).m)
    print("t = .8, 1.6:", mean[1:], error[1:])
    assert abs(mean[1] - 0.180) < 4 * np.hypot(error[1], 0.004)
    assert abs(mean[2] - 0.302) < 4 * np.hypot(error[2], 0.006)


@SLOW
def test_trajectory_of_a_network():
    """[theory: online-sgd, Table 6]: 24 runs of d = 4000 to t = 8 against 400 of the chain."""
    known = {
        0.8: (0.180, 0.004),
        1.6: (0.302, 0.006),
        2.4: (0.475, 0.007),
        3.2: (0.650, 0.006),
        4.0: (0.762, 0.003),
        8.0: (0.838, 0.001),
    }
    found = SGD.simulate(
        relu(4), keys(400), dimension=4000, gamma=0.08, steps=400_000, m=0.1, eta=0.9, every=40_000
    )
    mean, error = mean_and_error(found.m)
    for t, (value, spread) in known.items():
        k = round(t / 0.8)
        print(t, mean[k], error[k], value, spread)
        assert abs(mean[k] - value) < 4 * np.hypot(error[k], spread)


SCALING = {  # [theory: online-sgd, Table 6]: γ, and mean steps with their errors
    1: (0.05, {100: (462, 11), 400: (2069, 17), 1600: (8667, 32)}),
    2: (0.01, {100: (4402, 199), 400: (25633, 1087), 1600: (133935, 4006)}),
    3: (0.002, {64: (304211, 22584), 128: (1357948, 81861), 256: (5714403, 422178)}),
}
RUNS = {1: 256, 2: 256, 3: 64}


@SLOW
@pytest.mark.parametrize("k", SCALING)
def test_scaling_with_the_dimension(k):
    """Steps to m = 1/2 from 1/√d: d, d log d and, at γ ~ 1/√d, d^{k-1}; against the table in
    z-scores.
    """
    gamma, table = SCALING[k]
    model, means = monomial(k), []
    for d, (value, spread) in table.items():
        rate = gamma if k < 3 else gamma / np.sqrt(d)
        found = SGD.simulate(
            model,
            keys(RUNS[k], d),
            dimension=d,
            gamma=rate,
            steps=40 * value,
            m=d**-0.5,
            until=0.5,
            eta=0.49999,
        )
        assert (np.asarray(found.result) == Result.SUCCESS).all()
        mean, error = mean_and_error(found.steps)
        print(
            f"k = {k}, d = {d}: {mean:.0f} ± {error:.0f} ({RUNS[k]} runs), table {value} ± {spread}"
        )
        assert abs(mean - value) < 4 * np.hypot(error, spread)
        means.append((d, mean, error))
    d, mean, error = np.array(means).T
    y = mean / np.log(0.5 * np.sqrt(d)) if k == 2 else mean
    exponent = np.polyfit(np.log(d), np.log(y), 1, w=mean / error)[0]
    spread = np.hypot(*(error / mean)[[0, -1]]) / np.log(d[-1] / d[0])
    print(f"exponent {exponent:.3f} ± {spread:.3f}" + (" of steps/log" if k == 2 else ""))
    assert (
        abs(exponent - {1: 1.03, 2: 1.0, 3: 2.11}[k]) < 4 * spread + 0.02
    )  # finite d: 7.6 has 1.03, and 2.16, 2.07 for k = 3


@SLOW
@pytest.mark.parametrize(
    ("schedule", "law", "tolerance"), [("equal", 1.0, 0.05), ("linear", 2.0, 0.1)]
)
def test_gain(schedule, law, tolerance):
    """[theory: online-sgd, Table 7], d = 1000, η = 0.2, 24 tied and 6 untied runs:
    L at equal rates, L² at γ_tied = L γ_untied."""
    found = SGD.gain(jax.random.key(0), (1, 2, 4, 8), schedule=schedule)
    print(schedule, found.gain, found.stderr, found.exponent, found.exponent_stderr)
    assert found.bound == ["none"] * 4
    assert found.exponent == pytest.approx(law, abs=tolerance)


@SLOW
def test_gain_where_the_tied_network_is_blind():
    """z_1² - z_2²: κ = 0, gain 0; a run that does not arrive makes a bound."""
    blind = lambda L: SGD.HermiteSeries({(2, 0): 1.0, (0, 2): -1.0}, True)
    found = SGD.gain(jax.random.key(0), (2,), dimension=100, gamma=0.02, target=blind, runs=(2, 2))
    assert found.gain[0] == 0.0
    assert np.isinf(found.tied[0]).all()
    assert np.isfinite(found.untied[0]).all()  # one row goes up, the other down
    # its lowest order cancels, a higher one does not
    seen = lambda L: SGD.HermiteSeries({(1, 0): 0.1, (0, 1): -0.1, (2, 0): 1.0, (0, 2): 1.0})
    assert (
        SGD.gain(jax.random.key(0), (2,), dimension=100, gamma=0.01, target=seen, runs=(2, 2)).gain[
            0
        ]
        > 0.0
    )
    with pytest.raises(ValueError, match="blind"):  # ReLU has no third coefficient
        SGD.gain(jax.random.key(0), (2,), target=lambda L: SGD.HermiteSeries({(3, 0): 1.0}))
    late = {"dimension": 100, "gamma": 0.02, "runs": (4, 4)}
    short = SGD.gain(jax.random.key(0), (2,), patience=0.5, **late)
    assert short.bound == ["both late"]
    assert np.isnan(short.gain[0])
    kinds = {(False, False): "none", (True, False): "upper", (False, True): "lower"}
    seen = set()
    for seed in (2, 3, 4, 6):  # both ways of being late are among them, and none
        some = SGD.gain(jax.random.key(seed), (2,), patience=1.25, **late)
        missed = (bool(np.isinf(some.tied[0]).any()), bool(np.isinf(some.untied[0]).any()))
        assert some.bound == [kinds.get(missed, "both late")]
        seen.add(missed)
    assert len(seen) == 4


# [theory: online-sgd, Table 8]: c, loss, d, γ, m at the start, runs, P by ω, its 50 % point
SEMANTIC = {
    "unsquared": (
        1.0,
        "frobenius",
        1000,
        0.05,
        0.0,
        64,
        {
            0.50: 1.00,
            0.56: 0.98,
            0.60: 0.89,
            0.61: 0.80,
            0.62: 0.50,
            0.64: 0.36,
            0.66: 0.22,
            0.68: 0.08,
            0.72: 0.02,
        },
        0.625,
    ),
    "squared": (
        0.5,
        "squared",
        1000,
        0.2,
        0.0,
        64,
        {0.56: 0.98, 0.60: 0.97, 0.62: 0.80, 0.64: 0.61, 0.66: 0.27, 0.68: 0.11, 0.72: 0.03},
        0.645,
    ),
    "squared, random start": (
        0.5,
        "squared",
        1000,
        0.1,
        None,
        64,
        {0.50: 1.00, 0.56: 0.98, 0.60: 0.92, 0.64: 0.64, 0.68: 0.33},
        None,
    ),
    "unsquared, d = 100": (
        1.0,
        "frobenius",
        100,
        0.05,
        0.0,
        128,
        {0.50: 1.00, 0.60: 0.85, 0.64: 0.44, 0.70: 0.09, 0.80: 0.00},
        None,
    ),
}


@SLOW
@pytest.mark.parametrize("name", SEMANTIC)
def test_probability_of_the_semantic_minimum(name):
    """Fisher's exact test against the table, at 1 % for the whole family of 26 comparisons; the 50
    % point to 0.015.
    """
    c, loss, d, gamma, m, runs, table, half = SEMANTIC[name]
    comparisons = sum(len(row[6]) for row in SEMANTIC.values())
    found = []
    for k, (omega, value) in enumerate(table.items()):
        model, seeds = (
            SGD.semantic_positional(omega, 1.0, c, loss),
            jax.random.split(jax.random.fold_in(jax.random.key(11), k), runs),
        )
        done = SGD.simulate(
            model, seeds, dimension=d, gamma=gamma, steps=20_000_000, m=m, until=0.8**0.5
        )
        P, error, count = SGD.semantic_fraction(done)
        assert count == runs
        ours, theirs = round(P * runs), round(value * runs)
        p = fisher_exact([[ours, runs - ours], [theirs, runs - theirs]])[1]
        print(f"{name}: ω = {omega}: {P:.3f} ± {error:.3f}, table {value}, p = {p:.3f}")
        assert p > 0.01 / comparisons, omega
        found.append(P)
    if half is not None:
        omega, P = np.array(list(table)), np.array(found)
        k = int(np.flatnonzero(P >= 0.5)[-1])
        point = omega[k] + (P[k] - 0.5) / (P[k] - P[k + 1]) * (omega[k + 1] - omega[k])
        print(f"{name}: 50 % at ω = {point:.4f}")
        assert point == pytest.approx(half, abs=0.015)


@SLOW
def test_speed_of_the_chain():
    """At least a million steps a second, summed over 256 runs, on a core (XLA may use more:
    `taskset -c 0` measures one).
    """
    model, settings = (
        SGD.semantic_positional(0.64),
        {"dimension": 1000, "gamma": 0.2, "steps": 20_000},
    )
    jax.block_until_ready(SGD.simulate(model, keys(256), **settings).end)
    begin = time.perf_counter()
    jax.block_until_ready(SGD.simulate(model, keys(256, 1), **settings).end)
    rate = 256 * 20_000 / (time.perf_counter() - begin)
    print(f"{rate:.3g} steps a second")
    assert rate > 1e6
