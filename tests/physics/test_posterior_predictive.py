"""Predictions of the posterior: exact means and spreads, theory, and calibration of whole runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

import jaxsmi as smi
import synthetic
from helpers import slow_but, z_scores
from jaxsmi.core.solution import LearnerSolution

KEY = jax.random.key(0)
SIGN = smi.links.sign()


def posterior(weights, V, kind="gamp", of=smi.Solution):
    """A run that ended at these weights and this covariance."""
    return of(*[None] * 8, V, None, weights=weights, kind=kind)


def weights_of(Q, dimension=7):
    """Rows W (P, D) with W Wᵀ/D = Q, so that fields of Gaussian inputs are N(0, Q)."""
    root = np.linalg.cholesky(Q + 1e-12 * np.eye(len(Q)))
    return jnp.asarray(np.pad(root, ((0, 0), (0, dimension - len(Q)))) * np.sqrt(dimension))


def gaussian_inputs(*shape, seed=1):
    return jax.random.normal(jax.random.key(seed), shape)


def test_a_linear_link_has_its_mean_and_spread():
    """Two indices that are correlated, two tokens: Var Σ a_pm z_pm = Σ_m a_mᵀ V a_m."""
    a, V = np.array([[1.0, -2.0], [0.5, 3.0]]), jnp.array([[0.5, 0.2], [0.2, 0.3]])
    model = smi.MultiIndex(lambda z: jnp.sum(a * z, keepdims=True), indices=2, tokens=2, noise=0.1)
    run, x = posterior(gaussian_inputs(2, 7), V), gaussian_inputs(50, 2, 7)
    found, plug_in = model.predict(run, x, bayes=True), model.predict(run, x)
    assert found.mean.shape == found.std.shape == plug_in.shape
    np.testing.assert_allclose(found.mean, plug_in, atol=1e-12)
    np.testing.assert_allclose(found.std, np.sqrt(np.sum(a * (V @ a))), rtol=1e-12)


@pytest.mark.slow
def test_the_probability_of_a_noisy_sign():
    """Φ(ω/√(V + Δ)), flipped with probability p; (1 + mean)/2 of outcomes with the link E[y|z], to
    the error of the net."""
    W, x, V, flip = weights_of(np.array([[0.6]])), gaussian_inputs(200, 1, 7), 0.4, 0.1
    run, omega = posterior(W, jnp.array([[V]])), (x @ W[0])[:, :, None] / np.sqrt(7)
    for noise, p in ((0.0, 0.0), (0.3, 0.0), (0.3, flip)):
        model = smi.links.sign(noise, p)
        found = model.predict_proba(run, x)[:, 1]
        clean = 0.5 * (1.0 + erf(omega[:, 0, 0] / np.sqrt(2.0 * (V + noise))))
        np.testing.assert_allclose(found, p + (1.0 - 2.0 * p) * clean, rtol=1e-9)
    odds = lambda y, z: jnp.log(0.5 * (1.0 + y * (1.0 - 2.0 * flip) * jnp.sign(z[0, 0])))
    law = smi.MultiIndex(indices=1, log_likelihood=odds, outcomes=[-1.0, 1.0])
    mean, both = law.predict(run, x, bayes=True).mean, law.predict_proba(run, x)
    exact = flip + (1.0 - 2.0 * flip) * 0.5 * (1.0 + erf(omega[:, 0, 0] / np.sqrt(2.0 * V)))
    np.testing.assert_allclose(0.5 * (1.0 + mean), exact, atol=2e-3)
    np.testing.assert_allclose(both, np.stack([1.0 - exact, exact], axis=1), atol=1e-6)


def test_probabilities_of_labels_are_in_their_order():
    """Of a field known to be large: +1 is the second column, the largest field the class."""
    x, V = gaussian_inputs(40, 1, 7), 1e-6
    run = posterior(10.0 * gaussian_inputs(1, 7), jnp.array([[V]]))
    for model in (SIGN, smi.links.door(), smi.links.sign_committee(1)):
        found = model.predict_proba(run, x)
        np.testing.assert_array_equal(2 * jnp.argmax(found, axis=1) - 1, model.predict(run, x))
    with pytest.raises(ValueError, match="model: got 'linear'; allowed: labels of a few known"):
        smi.links.linear(0.1).predict_proba(run, x)
    with pytest.raises(ValueError, match="for a posterior the solution of gamp"):
        SIGN.predict_proba(run.weights, x)


@pytest.mark.slow
def test_a_sign_has_the_error_function():
    """To the error of the net, by jit, by vmap and in any batch, of float32 inputs as well; the
    sharp posterior of a recovered teacher is the plug-in prediction."""
    W, x = weights_of(np.array([[0.6]])), gaussian_inputs(500, 1, 7)
    run = posterior(W, jnp.array([[0.4]]))
    found = SIGN.predict(run, x, bayes=True)
    exact = erf(np.asarray(x @ W[0])[:, 0] / np.sqrt(7 * 2 * 0.4))
    np.testing.assert_allclose(found.mean, exact, atol=4e-3)
    np.testing.assert_allclose(found.std**2, 1 - found.mean**2, atol=1e-12)
    call = lambda x: SIGN.predict(run, x, bayes=True)
    others = [jax.jit(call)(x), jax.vmap(call)(x.reshape(5, 100, 1, 7))]
    for other in others:
        np.testing.assert_allclose(other.mean.ravel(), found.mean, atol=1e-12)
    np.testing.assert_array_equal(call(x[3:5]).std, found.std[3:5])
    assert call(x[:0]).mean.shape == (0,)
    # a field that rounds to the other side of a point moves a mean by 2/1024
    single = call(x.astype(jnp.float32))
    np.testing.assert_allclose(single.mean, found.mean, atol=2e-3)
    sharp = SIGN.predict(posterior(W, jnp.zeros((1, 1))), x, bayes=True)
    np.testing.assert_array_equal(sharp.mean, SIGN.predict(W, x))
    assert not sharp.std.any()


@pytest.mark.slow
def test_strict_precisions_and_derivatives():
    """d E tanh(ω + √V η)/dω by differences; labels that jump have none, instead of zero. (No NaN
    on the way forward.)"""
    model = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]), indices=1, tokens=1, noise=0.1)
    x, V = gaussian_inputs(3, 1, 7), jnp.array([[0.4]])
    mean = lambda W, x=x, model=model: model.predict(posterior(W, V), x, bayes=True).mean[0]
    W = weights_of(np.array([[0.6]]))
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        assert np.isfinite(jax.jit(mean)(W, x.astype(jnp.float32)))
    step = 1e-4 * jnp.eye(1, 7)
    expected = (mean(W + step) - mean(W - step)) / 2e-4
    np.testing.assert_allclose(jax.grad(mean)(W)[0, 0], expected, rtol=1e-5)
    assert np.isnan(jax.grad(lambda W: mean(W, model=SIGN))(W)).all()


@pytest.mark.parametrize(
    ("model", "variances"),
    [
        (smi.AttentionIndexed(2, 0.5, "linear"), [[2.0, 1.0], [1.0, 2.0]]),
        pytest.param(smi.Bilinear(0.5, 0.5), 1.0, marks=pytest.mark.slow),
        pytest.param(smi.Bilinear(1.0, 0.5, symmetric=True), 2.0, marks=pytest.mark.slow),
    ],
)
def test_scores_of_a_matrix_scatter_as_theory_says(model, variances):
    """Fields of a matrix have the covariance V of GOE; of a rectangular one V itself."""
    data = model.sample(KEY, dimension=10, alpha=0.2)
    S = model.student.estimate(model.student.teacher_signal(data.teacher))
    found = model.predict(posterior(S, jnp.array([[0.3]])), data.inputs, bayes=True)
    np.testing.assert_allclose(found.mean, model.predict(S, data.inputs), atol=1e-12)
    spread = np.broadcast_to(np.sqrt(0.3 * np.asarray(variances)), found.std.shape)
    # entries of one matrix are combinations of several points
    np.testing.assert_allclose(found.std, spread, rtol=1e-12)


AT_THEORY = {
    "sign": (SIGN, [[0.6]]),
    "phase retrieval": (smi.links.phase_retrieval(), [[0.6]]),
    "two layers": (smi.DeepAttention(2, 2), [[0.2, 0.1], [0.1, 0.7]]),
    "a sequence": (smi.MultiIndex(jnp.max, indices=1, tokens=3, noise=0.1), [[0.5]]),
    "softmax of two": (smi.AttentionIndexed(2, 0.5), [[0.8]]),
    "softmax of three": (smi.AttentionIndexed(3, 0.5), [[0.8]]),
    "hardmax of two": (smi.AttentionIndexed(2, 0.5, "hardmax"), [[0.8]]),
    "absolute values": (smi.Bilinear(1.0, 0.5, output="absolute"), [[0.8]]),
}


@pytest.mark.parametrize("name", slow_but(AT_THEORY, "softmax of two"))
def test_mean_variance_is_the_bayes_error_of_theory(name):
    """E Var[link(z)|ω] at V = S - Q, over fields of the law of theory."""
    model, Q = AT_THEORY[name]
    Q = np.array(Q)
    V = jnp.asarray(model.prior.second_moment(model.indices) - Q)
    if model.design.has_rows:
        run, x = posterior(weights_of(Q), V), gaussian_inputs(4000, model.tokens, 7)
        found = model.predict(run, x, bayes=True)
    else:
        T, scale = model.tokens, np.sqrt(0.25 / model.prior.weight)
        h = gaussian_inputs(4000, T, T)
        scores = scale * np.sqrt(Q[0, 0] / 2) * (h + jnp.swapaxes(h, 1, 2))
        found = model.metric.posterior_labels(scores.reshape(4000, 1, T * T), V)
    values = np.sum(np.asarray(found.std**2).reshape(4000, -1), axis=1)
    exact = smi.generalization_error(model, Q, key=KEY, bayes=True)
    # the net of the posterior adds up to 1 %: it is one for all inputs
    error = np.std(values) / np.sqrt(4000) + float(exact.stderr)
    assert abs(np.mean(values) - float(exact)) < 4 * error + 0.01 * float(exact)


# model, α, D, seeds
RUNS = {
    "sign": (SIGN, 2.0, 200, 6),
    "phase retrieval": (smi.links.phase_retrieval(), 1.0, 600, 8),
    "two layers": (smi.DeepAttention(2, 2), 0.5, 600, 6),
    "attention-indexed": (smi.AttentionIndexed(2, 0.5), 0.15, 60, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_posterior_of_a_run_is_calibrated(name):
    """On fresh inputs of each data set, E(y - mean)² = E std² (Nishimori), and both are the Bayes
    error, of the run and of theory, but for the spread of data sets and O(1/D)."""
    model, alpha, D, seeds = RUNS[name]
    theory = smi.state_evolution(model, alpha, key=KEY)
    exact = float(smi.generalization_error(model, theory, key=KEY, bayes=True))
    gaps, spreads, errors = [], [], []
    for key in jax.random.split(KEY, seeds):
        data = model.sample(key, dimension=D, alpha=alpha)
        run = smi.gamp(model, data, key=key)
        samples = 8000 / model.design.entries(D)
        fresh = model.sample(KEY, dimension=D, alpha=samples, teacher=data.teacher)
        found = model.predict(run, fresh.inputs, bayes=True)
        fields = model.student.teacher_fields(data.teacher, fresh.inputs)
        truth = jax.vmap(model.link)(fields).reshape(found.mean.shape)
        total = lambda x: float(jnp.sum(x) / len(x))
        gaps.append(total((truth - found.mean) ** 2))
        spreads.append(total(found.std**2))
        of_run = {"data": data} if model.design.has_rows else {}
        error = smi.generalization_error(model, run, key=key, bayes=True, **of_run)
        errors.append(float(error))
    gaps, spreads, errors = map(np.array, (gaps, spreads, errors))
    for difference in (gaps - spreads, gaps - errors, gaps - exact):
        assert abs(z_scores(difference)) < 4
    # and the agreement says something: the spread is known to a tenth
    assert np.std(spreads) / np.sqrt(seeds) < 0.1 * exact
    assert abs(np.mean(spreads) / exact - 1) < 0.15


def test_a_file_of_a_run_holds_its_posterior(tmp_path):
    """The same prediction from a file; that of a learner is refused."""
    pytest.importorskip("h5netcdf")
    run, x = synthetic.solution("gamp"), gaussian_inputs(5, 1, 4)
    smi.save(run, tmp_path / "run.nc")
    smi.save(run, tmp_path / "risk.nc", learner="logistic")
    model = smi.MultiIndex(lambda z: jnp.prod(jnp.tanh(z)), indices=2)
    found = model.predict(smi.load(tmp_path / "run.nc"), x, bayes=True)
    np.testing.assert_array_equal(found, model.predict(run, x, bayes=True))
    with pytest.raises(ValueError, match=r"(?s)solution: got .* learner=smi.Bayes\(\)"):
        model.predict(smi.load(tmp_path / "risk.nc"), x, bayes=True)


def test_no_spread_without_a_posterior():
    """Weights alone, other learners and training have none; the message says what does."""
    W, x, V = weights_of(np.array([[0.6]])), gaussian_inputs(5, 1, 7), jnp.array([[0.4]])
    erm = posterior(W, V, of=LearnerSolution)
    for solution in (W, erm, posterior(W, V, kind="train")):
        assert SIGN.predict(solution, x).shape == (5,)
        with pytest.raises(ValueError, match=r"(?s)solution: got .* learner=smi.Bayes\(\)"):
            SIGN.predict(solution, x, bayes=True)
    with pytest.raises(ValueError, match="bayes: got 'yes'; allowed: True or False"):
        SIGN.predict(erm, x, bayes="yes")
