"""Bethe free entropy and stability of a run, several starts, and unstable ends
[docs/theory/multi-index.md, "The end of a run"]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

TEXTBOOK = smi.Bayes("divergence", calibrate=False)
STARTS = ("spectral", 1e-3)


def linear_run(noise, dimension, seed=0, alpha=2.0):
    model, key = smi.links.linear(noise), jax.random.key(seed)
    data = model.sample(key, dimension=dimension, alpha=alpha)
    return (
        model,
        data,
        smi.gamp(model, data, key=key, learner=TEXTBOOK, iteration=smi.Iteration(tolerance=1e-11)),
    )


def test_free_entropy_is_the_evidence_of_a_linear_model():
    """log p(y|X)/D = log N(y; 0, X Xᵀ/D + Δ)/D: exact for every D but for corrections of O(1/D),
    which at D = 400 are below 3/D in the mean of six data sets (Wishart fluctuations)."""
    gaps, D, noise, alpha = [], 400, 0.3, 0.6
    for seed in range(6):
        _, data, run = linear_run(noise, D, seed, alpha)
        X = np.asarray(data.stored_inputs)[:, 0] / np.sqrt(D)
        K = X @ X.T + noise * np.eye(len(X))
        y = np.ravel(data.labels)
        evidence = -0.5 * y @ np.linalg.solve(K, y) - 0.5 * np.linalg.slogdet(2 * np.pi * K)[1]
        gaps.append(float(run.free_entropy) - evidence / D)
    assert abs(np.mean(gaps)) < 3.0 / D
    assert np.std(gaps) < 3.0 / D


@pytest.mark.parametrize("flip", [0.0, pytest.param(0.03, marks=pytest.mark.slow)])
def test_binary_weights_are_recovered_above_their_threshold(flip):
    """1.49 and 1.92. Once all are known hardly any label has a message: the run went on with A = 0
    to Ŵ = 0 and "Converged." The evidence is that of the flips, and log 2 for each weight."""
    model, D = smi.links.sign(flip=flip, prior=smi.priors.Rademacher()), 500
    for seed in range(6):
        data = model.sample(jax.random.key(seed), dimension=D, alpha=2.5)
        run = smi.gamp(model, data, key=jax.random.key(seed))
        assert int(run.result) == smi.Result.RECOVERED
        np.testing.assert_allclose(run.cosine, 1.0, atol=1e-6)
        share = np.mean(np.sign(data.stored_inputs[:, 0] @ data.teacher[0]) != data.labels)
        evidence = share * np.log(flip) + (1 - share) * np.log(1 - flip) if flip else 0.0
        # a label within 1e-5 of its jump costs up to 100/D
        assert abs(float(run.free_entropy) + np.log(2.0) - 2.5 * evidence) < 0.01


@pytest.mark.slow
def test_slope_in_the_noise_is_that_of_the_labels_at_fixed_messages():
    """dΦ/dΔ = (1/D) Σ_μ ∂_Δ log Z_out at fixed ω and V: Φ is stationary in the rest, also at a
    noise that is not that of the labels. The central difference of step 1e-3 errs by 1e-6/6 of a
    third derivative, of order 2/Δ³."""
    noise, step, D = 0.5, 1e-3, 200
    key = jax.random.key(0)
    data = smi.links.linear(0.3).sample(key, dimension=D, alpha=2.0)
    settings = {"key": key, "learner": TEXTBOOK, "iteration": smi.Iteration(tolerance=1e-11)}
    below, run, above = (
        smi.gamp(smi.links.linear(noise + shift), data, **settings) for shift in (-step, 0.0, step)
    )
    difference = float(above.free_entropy - below.free_entropy) / (2.0 * step)
    v = float(run.covariance[0, 0]) + noise
    gap = np.ravel(data.labels) - np.ravel(run.state.omega)
    explicit = np.sum(0.5 * gap**2 / v**2 - 0.5 / v) / D
    assert abs(explicit) > 0.05
    np.testing.assert_allclose(difference, explicit, atol=step**2 / 6.0 * 2.0 / noise**3)


CASES = {
    "relu": (lambda: smi.links.relu(0.1), 1.5, 400),
    "sign": (lambda: smi.links.sign(noise=0.1), 2.0, 400),
    "sparse": (lambda: smi.links.linear(0.2, prior=smi.priors.BernoulliGauss(0.3)), 0.8, 400),
    "softmax": (lambda: smi.AttentionIndexed(2, 0.5, "softmax"), 0.15, 40),
}


@pytest.mark.slow
def test_a_free_entropy_is_the_evidence_or_nan():
    """Models with too few flips widen V to fit the labels; Φ without V = C is no evidence, and was
    larger than that of the true model."""
    data = smi.links.sign(flip=0.1).sample(jax.random.key(1), dimension=300, alpha=3.0)
    key = jax.random.key(0)
    few, true, many = (smi.gamp(smi.links.sign(flip=p), data, key=key) for p in (0.0, 0.1, 0.3))
    assert np.isnan(few.free_entropy)
    assert "that was widened" in few.message
    assert float(true.free_entropy) > float(many.free_entropy) + 10.0 / 300
    plain = smi.gamp(smi.links.sign(), data, key=key, learner=smi.Bayes(calibrate=False))
    assert float(true.free_entropy) > float(plain.free_entropy) + 10.0 / 300


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_mean_over_data_is_that_of_theory(name):
    """E Φ of runs = Φ(Q) of state evolution, within three standard errors of eight data sets and
    2 nats, the order of the corrections."""
    make, alpha, D = CASES[name]
    model = make()
    theory = smi.state_evolution(model, alpha, key=jax.random.key(0))
    wanted = smi.free_entropy(model, alpha, theory, key=jax.random.key(0))
    values = []
    for seed in range(8):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=D, alpha=alpha)
        values.append(float(smi.gamp(model, data, key=key).free_entropy))
    entries = model.design.entries(D)
    error = np.hypot(np.std(values, ddof=1) / np.sqrt(8), float(wanted.stderr))
    assert abs(np.mean(values) - float(wanted)) < 3.0 * error + 2.0 / entries


def test_stability_is_the_spectral_radius_of_state_evolution():
    """Of a linear link both are α V²/(Δ + V)², exactly, at the fixed point that does not depend on
    the data."""
    _, _, run = linear_run(0.1, 400, alpha=0.6)  # shapes, and so the program, of the test above
    theory = smi.state_evolution(smi.links.linear(0.1), 0.6, key=jax.random.key(0))
    np.testing.assert_allclose(run.stability, theory.spectral_radius, rtol=1e-3)


@pytest.mark.slow
def test_even_labels_are_started_twice_and_the_best_end_is_returned():
    """Inside jit, too."""
    model, key = smi.links.phase_retrieval(), jax.random.key(1)
    data = model.sample(key, dimension=100, alpha=2.0)
    run = smi.gamp(model, data, key=key)
    assert len(run.ends.result) >= 2
    np.testing.assert_array_equal(run.ends.agreement, run.ends.agreement.T)
    best = np.nanargmax(run.ends.free_entropy)
    assert float(run.free_entropy) > float(run.ends.free_entropy[best]) - 1.0 / 100
    assert any(np.array_equal(run.weights, weights) for weights in run.ends.weights)
    with pytest.raises(ValueError, match="start"):
        smi.gamp(model, data, key=key, start=())
    # in the order of the starts, though the spectral one runs first
    twice = (smi.gamp(model, data, key=key, start=start) for start in (STARTS, STARTS[::-1]))
    ends, reversed_ends = (run.ends.weights for run in twice)
    np.testing.assert_allclose(ends, reversed_ends[::-1], rtol=1e-10)
    inside = jax.jit(lambda key: smi.gamp(model, data, key=key))(key)
    np.testing.assert_allclose(inside.overlap, run.overlap, rtol=1e-5)
    assert int(inside.result) == int(run.result)


@pytest.mark.slow
def test_an_end_that_labels_hardly_prefer_to_nothing_is_ambiguous():
    """|z| at α = .9 and D = 1000: theory gains 4 nats. Of the first data set every uninformed start
    ends with Q = .29 at a squared cosine of .003, with 2 nats more than nothing and two more than
    the end of an informed start: no run can tell. The second gains 18 nats."""
    model, ends = smi.links.phase_retrieval(), []
    for seed in range(2):
        of_data, of_run = jax.random.split(jax.random.key(seed))
        data = model.sample(of_data, dimension=1000, alpha=0.9)
        ends.append(smi.gamp(model, data, key=of_run))
    assert ends[0].ends.agreement[0, 1] > 0.99
    assert [int(end.result) for end in ends] == [smi.Result.AMBIGUOUS, smi.Result.SUCCESS]


@pytest.mark.slow
def test_symmetric_committee_specialises():
    """State evolution of tanh 2z_1 + tanh 2z_2 at α = 3 is at .854 in both directions; the
    unspecialised saddle, both rows the same, at .466. Finite D = 500 moves both by about .05."""
    link = lambda z: jnp.tanh(2.0 * z[0, 0]) + jnp.tanh(2.0 * z[1, 0])
    model = smi.MultiIndex(link, indices=2, noise=0.05)
    for seed in (1000, 1001):
        key = jax.random.key(seed)
        data = model.sample(key, dimension=500, alpha=3.0)
        run = smi.gamp(model, data, key=key)
        assert bool(run.converged)
        assert float(run.stability) < 1.0
        assert np.all(run.cosine**2 > 0.7)


@pytest.mark.slow
def test_a_matrix_that_contradicts_its_labels_is_overconfident():
    """From a tiny start of |S·x| the overlap grows far above what is shared with the teacher, C
    falls to 2e-4, and the labels are missed; from one of the size of its chance overlap the run
    learns. d = 60."""
    model, key = smi.Bilinear(1.0, 0.2, output="absolute"), jax.random.key(1005)
    data = model.sample(key, dimension=60, alpha=0.8)
    tiny = smi.gamp(model, data, key=key, start=1e-3, iteration=smi.Iteration(damping=0.7))
    assert tiny.result == smi.Result.OVERCONFIDENT
    assert float(jnp.ravel(tiny.covariance)[0]) < 1e-3
    default = smi.gamp(model, data, key=key, start=0.1)
    assert float(jnp.ravel(default.cosine)[0]) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "numbers"), [(300, range(8)), (1000, range(4, 8))])
def test_a_committee_below_its_specialisation_is_not_torn_apart(dimension, numbers):
    """α = 1, below 2.05: theory's rows are alike, Q = 0.240 in all entries. Calibration took the
    fluctuations of their difference for signal: 5 of 8 runs ended with Q_12 near 0, or not at all."""
    model = smi.links.sign_committee(2)
    expected = float(smi.state_evolution(model, 1.0, key=jax.random.key(0)).overlap[0, 1])
    for number in numbers:
        key = jax.random.key(10 * number + 1)
        run = smi.gamp(model, model.sample(key, dimension=dimension, alpha=1.0), key=key)
        assert run.converged
        # the spread of Q at finite D is 0.4/√D or so
        np.testing.assert_allclose(run.overlap, expected, atol=1.2 / dimension**0.5)
