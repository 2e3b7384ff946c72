"""Message passing on inputs that are not iid Gaussian, beside theory: covariances of features and
of tokens, other laws of entries."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import jaxsmi as smi
from helpers import mean_and_error, z_scores
from jaxsmi.priors import Gaussian, GaussianProfile

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
D, RUNS = 500, 6
RNG = np.random.default_rng(0)
BASIS = linalg.qr(RNG.standard_normal((D, D)))[0]
EIGENVALUES = np.exp(RNG.standard_normal(D))
EIGENVALUES /= EIGENVALUES.mean()
DELTA2 = EIGENVALUES.var()
SIGMA, ROOT = (BASIS * EIGENVALUES) @ BASIS.T, (BASIS * np.sqrt(EIGENVALUES)) @ BASIS.T
LABELS = {
    "linear": lambda rng, z: z[:, None] + np.sqrt(0.5) * rng.standard_normal((len(z), 1)),
    "sign": lambda rng, z: np.sign(z),
}
MODELS = {
    "linear": lambda prior: smi.links.linear(0.5, prior=prior),
    "sign": lambda prior: smi.links.sign(prior=prior),
}


def anisotropic(label, seed):
    """Inputs of covariance SIGMA with labels of a Gaussian teacher, and their generator."""
    rng = np.random.default_rng(seed)
    x, W = rng.standard_normal((2 * D, 1, D)) @ ROOT, rng.standard_normal((1, D))
    return smi.Dataset(x, LABELS[label](rng, x[:, 0] @ W[0] / np.sqrt(D)), W), rng


@pytest.mark.parametrize("label", LABELS)
def test_strong_anisotropy_before_and_after_whitening(label):
    """δ² = 1.2, Gaussian iid weights: raw runs warn and do not settle; whitened ones settle, with
    either prior at the theory of that prior."""
    runs, settled = {"gaussian": [], "profile": []}, 0
    hundred = smi.Iteration(100)
    for seed in range(RUNS):
        raw, key = anisotropic(label, 100 + seed)[0], jax.random.key(seed)
        white = raw.whiten(SIGMA)
        with pytest.warns(UserWarning, match=r"data\.whiten"):
            run = smi.gamp(MODELS[label](None), raw, key=key, iteration=hundred)
        settled += bool(run.converged)
        priors = {"gaussian": Gaussian(), "profile": GaussianProfile(white.whitening.variances)}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, prior in priors.items():
                run = smi.gamp(MODELS[label](prior), white, key=key, iteration=hundred)
                assert bool(run.converged)
                runs[name].append(run.cosine[0] ** 2)
    assert settled <= 2
    for name, prior in {"gaussian": Gaussian(), "profile": GaussianProfile(EIGENVALUES)}.items():
        theory = float(smi.state_evolution(MODELS[label](prior), 2.0, key=KEY).overlap[0, 0])
        mean, error = mean_and_error(runs[name])
        assert error < 0.02
        assert abs(mean - theory) < 4 * error, (name, mean, error, theory)
    assert np.mean(runs["profile"]) > np.mean(runs["gaussian"]) + 0.03


def test_a_profile_moves_weak_recovery_by_its_spread():
    """|z|: α_c = 1/2 of a Gaussian prior, 1/(2 (1 + δ²)) here: small overlaps shrink below, and
    grow above."""
    model = smi.links.phase_retrieval(prior=GaussianProfile(EIGENVALUES))
    for factor, grows in ((0.9, False), (1.15, True)):
        alpha = factor * 0.5 / (1 + DELTA2)
        start = 1e-4
        sol = smi.state_evolution(model, alpha, key=KEY, start=start, iteration=smi.Iteration(200))
        assert (float(sol.overlap[0, 0]) > 5 * start) == grows, (factor, sol.overlap)


def test_whitening_by_the_samples_themselves_is_not_theory():
    """c = D/N = 1/2: far off, and warned of; by 40 D other inputs within errors."""
    model = smi.links.linear(0.5)
    theory = float(smi.state_evolution(model, 2.0, key=KEY).overlap[0, 0])
    own, others = [], []
    for seed in range(RUNS):
        raw, rng = anisotropic("linear", 200 + seed)
        other = rng.standard_normal((40 * D, 1, D)) @ ROOT
        with pytest.warns(UserWarning, match="smaller than chance"):
            own.append(smi.gamp(model, raw.whiten(), key=KEY).cosine[0] ** 2)
        others.append(smi.gamp(model, raw.whiten(other), key=KEY).cosine[0] ** 2)
    assert abs(z_scores(own, theory)) > 5
    # what is left of Σ has δ² = 1/40, which is below the error of six runs
    assert abs(z_scores(others, theory)) < 4


def test_correlated_tokens():
    """Two tokens of correlation 0.7: with the composed link at its theory, without far off."""
    C = np.array([[1.0, 0.7], [0.7, 1.0]])
    link = lambda z: jnp.tanh(z[0, 0]) * z[0, 1] + 0.5 * z[0, 0]
    model, alpha = smi.MultiIndex(link, indices=1, tokens=2, noise=0.1), 0.6
    root = jnp.asarray(linalg.sqrtm(C))
    mixed = smi.MultiIndex(lambda z: link(z @ root), indices=1, tokens=2, noise=0.1)
    runs = {"mixed": [], "plain": []}
    for seed in range(2 * RUNS):  # runs of the wrong model are near its theory, too: 6 do not tell
        rng = np.random.default_rng(300 + seed)
        x = np.einsum("mk,nkd->nmd", linalg.sqrtm(C), rng.standard_normal((int(alpha * D), 2, D)))
        W = rng.standard_normal((1, D))
        z = np.swapaxes(x @ W.T, 1, 2) / np.sqrt(D)
        y = np.asarray(jax.vmap(link)(z)) + np.sqrt(0.1) * rng.standard_normal(len(z))
        raw, key = smi.Dataset(x, y, W), jax.random.key(seed)
        white = raw.whiten(np.eye(D), tokens=C)
        assert white.second_moments().failing == ()
        runs["mixed"].append(smi.gamp(mixed, white, key=key).cosine[0] ** 2)
        with pytest.warns(UserWarning, match="correlations of the tokens"):
            runs["plain"].append(smi.gamp(model, raw, key=key).cosine[0] ** 2)
    end = lambda model: float(smi.state_evolution(model, alpha, key=KEY).overlap[0, 0])
    assert abs(z_scores(runs["mixed"], end(mixed))) < 4
    assert abs(z_scores(runs["plain"], end(model))) > 4


@pytest.mark.parametrize("label", LABELS)
def test_laws_of_entries_do_not_matter(label):
    """The squared cosine of eight runs on inputs of each law, beside theory and beside Gaussian inputs."""
    model, runs = MODELS[label](None), 8
    theory = smi.state_evolution(model, 2.0, key=KEY)
    cosines = {}
    for k, law in enumerate(("gaussian", "rademacher", "uniform", "sparse")):
        keys = jax.random.split(jax.random.fold_in(KEY, k), (runs, 2))
        data = [model.sample(a, dimension=D, alpha=2.0, inputs=law) for a, _ in keys]
        solutions = [smi.gamp(model, d, key=b) for d, (_, b) in zip(data, keys, strict=True)]
        converged = [int(s.result) in (smi.Result.SUCCESS, smi.Result.RECOVERED) for s in solutions]
        assert sum(converged) >= 7  # at this size a run may wander around its fixed point
        cosines[law] = mean_and_error([s.cosine[0] ** 2 for s in solutions])
    limit, gaussian = (theory.overlap[0, 0], theory.stderr[0, 0]), cosines["gaussian"]
    for law, (mean, error) in cosines.items():
        assert error < 0.02
        for other, spread in (limit, gaussian):
            assert abs(mean - other) <= 4 * np.hypot(error, spread), (law, mean, error, other)


@pytest.mark.parametrize(("law", "kurtosis"), [("gaussian", 3), ("rademacher", 1), ("sparse", 30)])
def test_scores_of_a_token_with_itself_see_the_kurtosis(law, kurtosis):
    """Var h_aa = [2 Σ S_ij² + (κ - 3) Σ S_ii²]/d, in NumPy, near 2(1 + ρ) + (κ - 3) ρ."""
    model, d = smi.AttentionIndexed(tokens=2, rank_ratio=0.5), 150
    data = model.sample(KEY, dimension=d, alpha=2.0, inputs=law)
    W = np.asarray(data.teacher)
    S = W @ W.T / np.sqrt(W.shape[1] * d) if W.shape[0] == d else W.T @ W / np.sqrt(len(W) * d)
    x = np.asarray(data.inputs).reshape(-1, d)
    h = (np.einsum("ni,ij,nj->n", x, S, x, optimize=True) - np.trace(S)) / np.sqrt(d)
    exact = (2 * np.sum(S**2) + (kurtosis - 3) * np.sum(np.diag(S) ** 2)) / d
    error = np.std(h**2) / np.sqrt(len(h))
    assert abs(np.mean(h**2) - exact) < 4 * error
    # S_ii² = ρ (1 + 2/r), and as much in Σ S_ij²: r = 75
    assert exact == pytest.approx(3.0 + (kurtosis - 3) * 0.5, rel=0.1)
