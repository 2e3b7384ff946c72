"""Theory of matrix models, attention-indexed and bilinear: errors, thresholds, limits, free entropy,
derivatives.

Values: computed independently of this code [theory: attention-indexed, section 11; bilinear,
section 9]; published curves in reference/.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import differences, published_columns, result
from jaxsmi import Result
from jaxsmi.descent.baselines import nuclear_norm_threshold, ridge_error
from jaxsmi.priors.factors import WishartPrior

SLOW = pytest.mark.slow

# Errors -----------------------------------------------------------------------------------------

ALPHAS = {
    "softmax": (0.01, 0.02, 0.05, 0.1, 0.2, 0.24),
    "linear": (0.01, 0.02, 0.05, 0.15),
    "hardmax": (0.02, 0.05, 0.1, 0.2, 0.5, 2, 5, 20),
}
SCORES = {  # (output, ρ): errors of two tokens at these α
    ("softmax", 0.05): (0.88734927, 0.47616577, 0, 0, 0, 0),
    ("softmax", 0.2): (0.95072778, 0.87933015, 0.56147533, 0, 0, 0),
    ("softmax", 0.5): (0.95669692, 0.90663410, 0.72367742, 0.39219602, 0, 0),
    ("softmax", 1): (0.95840802, 0.91373146, 0.76491687, 0.49992171, 0.08426494, 0.00634485),
    ("softmax", 2): (0.95921822, 0.91696295, 0.78322988, 0.55092982, 0.13908908, 0.02206179),
    ("linear", 0.05): (0.73417993, 0, 0, 0),
    ("linear", 0.5): (0.93250426, 0.85025192, 0.55505581, 0),
    ("linear", 2): (0.93826517, 0.87340423, 0.66722474, 0.06127304),
    ("hardmax", 0.05): (0.85103803, 0.40402727, 0.11774961, 0.03012378, 0.00482449, 3.0072e-4, 4.808e-5, 3.00e-6),
    ("hardmax", 0.5): (0.95489234, 0.87872694, 0.74511035, 0.52215560, 0.21306193, 0.02383275, 0.00403759, 2.5398e-4),
    ("hardmax", 2): (0.96863638, 0.92177058, 0.84541805, 0.70561769, 0.41535545, 0.07202268, 0.01380025, 9.0077e-4),
}  # fmt: skip
# (ρ, β, Δ, α): E
BILINEAR = {
    (0.05, 1, 0, 0.04): 0.9235161343, (0.05, 1, 0, 0.08): 0.5262917100, (0.05, 1, 0.1, 0.96): 0.0112659853,
    (0.05, 2, 0, 0.06): 0.4911092385, (0.05, 2, 0.1, 0.1): 0.2132778173, (0.05, 100, 0, 0.04): 0.2062278740,
    (0.05, np.inf, 0, 0.04): 0.1920000000, (0.05, np.inf, 0.1, 0.96): 0.0054612047, (0.1, 1, 0, 0.1): 0.7922297403,
    (0.1, 2, 0.1, 0.1): 0.7392539666, (0.1, 100, 0, 0.1): 0.0082644466, (0.1, np.inf, 0.1, 0.1): 0.2586874512,
    (0.2, 1, 0, 0.06): 0.9347783280, (0.2, 1, 0, 0.3): 0.3474043203, (0.2, 1, 0.1, 0.96): 0.0580385483,
    (0.2, 2, 0, 0.2): 0.5174960553, (0.2, 100, 0, 0.2): 0.0065299342, (0.2, np.inf, 0, 0.1): 0.4500000000,
    (0.5, 1, 0, 0.7): 0.0843815809, (0.5, 2, 0, 0.6): 0.0511766430, (0.5, 100, 0, 0.5): 0.0025507571,
    (0.5, 100, 0.1, 0.96): 0.0818466029, (0.5, np.inf, 0.1, 0.1): 0.7508345079, (1, 1, 0, 0.96): 0.0190498208,
    (1, 2, 0, 0.96): 0.0058644669, (1, 100, 0.1, 0.96): 0.1655107995, (1, np.inf, 0, 0.96): 0.0016000000,
    (2, 1, 0, 0.96): 0.0343970288, (2, 2, 0.1, 0.96): 0.2680462648, (2, 100, 0, 0.1): 0.8843220367,
    (2, np.inf, 0.1, 0.96): 0.2243944832, (0.2, 1, 0.5, 1): 0.2399797370, (0.2, 1, 0.5, 1.5): 0.1465480354,
    (0.05, 1000, 0, 0.02): 0.5918532076, (0.1, 1000, 0, 0.1): 0.0008116224, (0.5, 1000, 0, 0.5): 0.0002505008,
    (1, 1000, 0, 0.96): 0.0016032713, (2, 1000, 0.1, 0.96): 0.2246176584, (0.5, 1, 0.1, 0.4): 0.5812981126,
    (0.1, 0.5, 0, 0.2): 0.5174960553, (0.1, 0.2, 0.1, 0.3): 0.5820622179, (0.2, 2, 0, 0.002): 0.9979996007,
    (10, 2, 0.1, 0.5): 0.5734075650, (1000, 2, 0.1, 0.5): 0.5741656589, (0.2, 1, 1e-3, 0.6): 0.0014980671,
}  # fmt: skip
SYMMETRIC = {  # (α, κ, Δ): e
    (0.1, 0.5, 0): 0.723677422150, (0.2, 0.5, 0): 0.392196017335, (0.3, 0.5, 0): 0.128130896279,
    (0.2, 0.5, 0.25): 0.517849638899, (0.25, 1, 0): 0.374822611804, (0.1, 0.2, 0.1): 0.606698456546,
    (0.3, 2, 0.5): 0.539423939825,
}  # fmt: skip


def slow_hardmax(rows):
    return [pytest.param(*row, marks=[SLOW] * (row[0] == "hardmax")) for row in rows]


def symmetric(rho, noise=0.0):
    return smi.Bilinear(1.0, rho, noise, symmetric=True)


@jax.jit
@jax.vmap
def error(alpha, beta, rho, noise):
    return smi.state_evolution(smi.Bilinear(beta, rho, noise), alpha).error


@jax.jit
@jax.vmap
def symmetric_error(alpha, rho, noise):
    return smi.state_evolution(symmetric(rho, noise), alpha).error


@pytest.mark.parametrize(("output", "rho"), slow_hardmax(SCORES))
def test_errors_of_scores(output, rho):
    """To half a unit of the last of eight digits, and theirs; of hardmax to its response, 1e-6, and
    to the three digits that are printed from α = 2 on."""
    model, alpha = smi.AttentionIndexed(2, rho, output), jnp.asarray(ALPHAS[output])
    found = jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error)(alpha)
    known = np.array(SCORES[output, rho])
    allowed = np.where(alpha < 2, 1e-6, 2e-3) * known if output == "hardmax" else 1e-8
    assert np.all(np.abs(found - known) < allowed)


@SLOW
@pytest.mark.parametrize("rho", [0.05, 0.5, 2])
def test_hardmax_errors_far_out(rho):
    """V = π(1 + ρ) D²/(8 K² α²)."""
    model = smi.AttentionIndexed(2, rho, "hardmax")
    K, D = 1.8063945711, 2 * rho - rho**2 if rho < 1 else 1.0
    law = np.pi * (1 + rho) * D**2 / (8 * K**2)
    np.testing.assert_allclose(model.decay, law, rtol=1e-9)
    end = float(smi.state_evolution(model, 2000.0).error)
    np.testing.assert_allclose(end * 2000.0**2, law, rtol=5e-3)


@SLOW
def test_errors_of_bilinear_regression():
    rho, beta, noise, alpha = np.array(list(BILINEAR)).T
    found = error(alpha, beta, rho, noise)
    np.testing.assert_allclose(found, list(BILINEAR.values()), rtol=0, atol=1e-10)  # the last digit


@SLOW
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("delta_0_beta_1", 5e-5), ("delta_0.1_beta_1", 5e-5), ("delta_0_beta_inf", 1e-10)],
)
def test_published_curves(reference, name, tolerance):
    """[theory: bilinear, section 9]: typically 1e-6; wrong in print below α = .005 and at the
    threshold of β = 1."""
    names = ("rho", "delta", "beta", "alpha", "mmse", "mse_ridge_opt")
    table = published_columns(reference / f"bsr/theory/{name}.csv", *names).T
    rho, noise, beta, alpha, published, ridge = table[table[:, 3] > 0].T
    np.testing.assert_allclose(ridge_error(alpha, noise, noise), ridge, rtol=0, atol=1e-9)
    recovery = np.where(rho < 1, rho * (2 - rho) if np.isfinite(beta[0]) else rho, 1.0)
    kept = (alpha >= 0.005) & ((noise > 0) | (np.abs(alpha - recovery) > 2e-3))
    assert kept.sum() > 0.95 * kept.size
    gap = np.abs(np.asarray(error(alpha, beta, rho, noise)) - published)[kept]
    assert gap.max() < tolerance
    assert np.median(gap) < 1e-6


@pytest.mark.parametrize(
    ("kappa", "noise"),
    [(0.5, 0.25), *(pytest.param(kappa, 0, marks=SLOW) for kappa in (0.1, 0.5, 1.0, 5.0))],
)
def test_published_curves_of_the_symmetric_model(reference, kappa, noise):
    name = f"line_noise_{kappa}_{noise}" if noise else f"line_no_noise_{kappa}"
    alpha, published = published_columns(reference / f"quadratic/{name}.csv", "alpha", "gen_error")
    found = symmetric_error(alpha, np.full_like(alpha, kappa), np.full_like(alpha, noise))
    recovery = np.inf if noise else (kappa - kappa**2 / 2 if kappa < 1 else 0.5)
    kept = (alpha > 0.02) & (np.abs(alpha - recovery) > 5e-3)
    # [theory: bilinear, section 9]; κ = 0.1 has rows that are off by up to 4e-3 where its two bands
    # merge
    gap = np.abs(np.asarray(found) - published)[kept]
    assert np.median(gap) < 1e-5
    assert np.quantile(gap, 0.8 if kappa == 0.1 else 1.0) < 1e-4


@SLOW
def test_the_symmetric_model_is_the_linear_channel_of_one_token():
    """And both obey q̂ = 2α/(e + Δ/2), e = mmse(q̂)."""
    alpha, kappa, noise = np.array(list(SYMMETRIC)).T
    own = symmetric_error(alpha, kappa, noise)
    np.testing.assert_allclose(own, list(SYMMETRIC.values()), rtol=0, atol=2e-12)
    for (a, k, D), found in zip(SYMMETRIC, own, strict=True):
        model = smi.AttentionIndexed(1, k, "linear", noise=D)
        other = smi.state_evolution(model, a)
        assert abs(found - other.error) < 1e-10
        qhat = other.state["qhat"]
        np.testing.assert_allclose(qhat, 2 * a / (other.error + 0.5 * D), rtol=1e-10)
        np.testing.assert_allclose(other.error, model.prior.mmse(qhat), rtol=1e-10)


TRAJECTORIES = [  # model, α; V_1 to V_6, with one of ten steps V_10, end
    (smi.Bilinear(1, 0.2), 0.3, (0.66297715, 0.53776906, 0.47329928, 0.43491042, 0.41010755), 0.36192253, 0.3474043203),
    (smi.Bilinear(1, 0.2), 0.4, (0.57599609, 0.40816170, 0.31449796, 0.25299305, 0.20868995), 0.09556219, 0),
    (smi.Bilinear(1, 0.2, 0.5), 0.65, (0.55119955, 0.44227542, 0.41009817, 0.40008180, 0.39691400), 0.39544167, 0.3954368286),
    (smi.Bilinear(2, 0.2), 0.2, (0.72552370, 0.62762447, 0.58065386, 0.55518667, 0.54048812), 0.51967849, 0.5174960553),
    (smi.Bilinear(2, 1, 0.1), 0.5, (0.66585337, 0.57537696, 0.54273161, 0.52981048, 0.52451192), 0.52076770, 0.5207182254),
    (smi.AttentionIndexed(2, 0.5, "hardmax"), 0.5, (0.38331, 0.26782, 0.23312, 0.22077, 0.21608, 0.21425), None, None),
    (smi.AttentionIndexed(2, 0.5), 0.1, (0.63373, 0.51409, 0.45961, 0.43119, 0.41530, 0.40608), None, None),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("model", "alpha", "first", "tenth", "end"), TRAJECTORIES)
def test_trajectories(model, alpha, first, tenth, end):
    """To the digits printed: eight of bilinear regression, five of scores."""
    steps = 6 if tenth is None else 50
    run = smi.state_evolution(model, alpha, iteration=smi.Iteration(steps, newton=False))
    V = np.asarray(run.history["covariance"])[:, 0, 0]
    overlaps = np.asarray(run.history["overlap"])[:, 0, 0]
    norm = float(model.prior.norm)
    np.testing.assert_allclose((V + overlaps)[np.isfinite(V)], norm, rtol=1e-12)
    accuracy = 6e-6 if tenth is None else 6e-9
    np.testing.assert_allclose(V[1 : len(first) + 1], first, rtol=0, atol=accuracy)
    assert V[0] == 1.0
    if tenth is not None:
        np.testing.assert_allclose([V[10], run.error], [tenth, end], rtol=0, atol=accuracy)
        assert result(run) == (Result.RECOVERED if end == 0 else Result.SUCCESS)


# Thresholds -------------------------------------------------------------------------------------

RECOVERY = {  # output, tokens: α of perfect recovery at ρ = 0.05, 0.2, 0.5, 1
    ("softmax", 2): (0.024375, 0.09, 0.1875, 0.25),
    ("softmax", 3): (0.00975, 0.036, 0.075, 0.1),
    ("softmax", 5): (0.00348214, 0.01285714, 0.02678571, 0.03571429),
    ("linear", 1): (0.04875, 0.18, 0.375, 0.5),
    ("linear", 3): (0.008125, 0.03, 0.0625, 0.08333333),
}
NUCLEAR = {  # (ρ, β): α_NN, α_PR
    (0.2, 1): (0.5716899213, 0.36), (0.5, 1): (0.9054173332, 0.75), (0.2, 2): (0.4752778039, 0.28),
    (0.5, 2): (0.8284921266, 0.625), (0.05, 1): (0.2021445594, 0.0975), (0.05, 5): (0.1269359301, 0.0595),
    (0.9, 10): (0.9909250172, 0.909), (0.2, 100): (0.3625606432, 0.2016), (0.001, 1): (0.0055382768, 0.001999),
}  # fmt: skip


@pytest.mark.parametrize(
    ("output", "tokens"),
    [
        pytest.param(*p, marks=[SLOW] * (p in {("softmax", 3), ("softmax", 5), ("linear", 3)}))
        for p in RECOVERY
    ],
)
def test_perfect_recovery(output, tokens):
    """At its threshold, which the error reaches continuously from below."""
    for rho, value in zip((0.05, 0.2, 0.5, 1.0), RECOVERY[output, tokens], strict=True):
        model = smi.AttentionIndexed(tokens, rho, output)
        threshold = float(smi.recovery_threshold(model).alpha)
        assert abs(threshold - value) < 5e-9
        below, nearer, above = (
            smi.state_evolution(model, threshold * part) for part in (0.99, 0.999, 1.0001)
        )
        assert (result(above), float(above.error)) == (Result.RECOVERED, 0.0)
        assert result(below) == Result.SUCCESS
        assert 0.0 < float(nearer.error) < 0.2 * float(below.error) < 0.01


def test_no_recovery_of_ranks_or_with_noise():
    hardmax = smi.AttentionIndexed(2, 0.5, "hardmax")
    noisy = smi.AttentionIndexed(2, 0.5, "linear", noise=0.1)
    for model in (hardmax, noisy, smi.Bilinear(2.0, 0.2, 0.1)):
        assert np.isinf(smi.recovery_threshold(model).alpha)


@SLOW
def test_recovery_and_nuclear_norm_thresholds():
    for (rho, beta), (nuclear, bayes) in NUCLEAR.items():
        assert abs(nuclear_norm_threshold(beta, rho) - nuclear) < 1e-10
        assert abs(nuclear_norm_threshold(1 / beta, rho / beta) - nuclear) < 1e-10
        assert abs(float(smi.recovery_threshold(smi.Bilinear(beta, rho)).alpha) - bayes) < 1e-10
    far, tall = (nuclear_norm_threshold(beta, 0.2) for beta in (1e6, jnp.inf))
    np.testing.assert_allclose(far, tall, atol=1e-6)
    assert nuclear_norm_threshold(2.0, 1.5) == 1.0
    slope = jax.grad(nuclear_norm_threshold, 1)(2.0, 0.2)
    difference = differences(lambda rho: nuclear_norm_threshold(2.0, rho), [0.2], 1e-6)
    np.testing.assert_allclose(slope, difference[0], rtol=1e-7)
    # just below the threshold V = D R, and R goes to zero with it
    model = smi.Bilinear(2.0, 0.5)
    assert result(smi.state_evolution(model, 0.625)) == Result.RECOVERED
    assert 0 < smi.state_evolution(model, 0.6249).error < 1e-3


@pytest.mark.slow
def test_published_nuclear_norm_thresholds(reference):
    """Median difference 1e-10, largest 1.6e-6 [theory: bilinear, section 9]."""
    file = reference / "bsr/min_norm/thresholds.csv"
    rho, beta, published = published_columns(file, "rho", "beta", "alpha_MNNE")
    kept = np.flatnonzero((rho > 0) & (rho < 1))[::5]
    gap = np.abs(jax.vmap(nuclear_norm_threshold)(beta[kept], rho[kept]) - published[kept])
    assert gap.max() < 2e-6
    assert np.median(gap) < 1e-8


# Small widths -----------------------------------------------------------------------------------


@SLOW
def test_small_width_of_scores():
    prior = WishartPrior(1e-4)
    found = [1 - float(prior.mmse(t * 1e-4)) for t in (1.5, 2, 4)]
    np.testing.assert_allclose(found, [0.111445, 0.250150, 0.562542], atol=1e-6)
    # not (1 - t)², as printed
    np.testing.assert_allclose(found, [(1 - 1 / t) ** 2 for t in (1.5, 2, 4)], atol=4e-4)
    hard, soft = (smi.AttentionIndexed(2, 0.5, output) for output in ("hardmax", "softmax"))
    assert abs(float(hard.small_width_threshold) - 0.4034106290) < 1e-9
    assert float(smi.AttentionIndexed(3, 0.5).small_width_threshold) == pytest.approx(0.1)
    limit = hard.small_width_error(jnp.array([0.3, 0.42, 0.45, 0.5, 0.6, 0.8, 1, 2, 5]))
    printed = (1, 0.99835985, 0.98779284, 0.95269345, 0.84376573, 0.60584647, 0.42958986, 0.11947587, 0.01938070)  # fmt: skip
    np.testing.assert_allclose(limit, printed, atol=6e-9)
    limit = soft.small_width_error(jnp.array([0.2, 0.3, 0.4, 0.45, 0.6]))
    np.testing.assert_allclose(limit, (1, 0.96, 0.64, 0.36, 0), atol=1e-9)
    thin = smi.AttentionIndexed(2, 0.001, "hardmax")
    alphas = 0.001 * jnp.array([0.2, 0.3, 0.4, 0.5, 0.6, 1])
    found = jax.vmap(lambda alpha: smi.state_evolution(thin, alpha).error)(alphas)
    known = (0.999020, 0.997196, 0.987914, 0.943708, 0.840257, 0.429125)
    np.testing.assert_allclose(found, known, atol=1e-6)


LOW_RANK = [  # β, Δ, scaled α, errors; of (5, 0.1) the last by a root to 16 digits
    (1, 0, (0.5, 0.6, 0.75, 0.9), (1, 0.96, 0.75, 0.36)),
    (2, 0, (0.5, 0.6, 0.75, 0.9), (0.9964420600, 0.9292351316, 0.6809322616, 0.2956901232)),
    (5, 0, (0.5, 0.6, 0.75, 0.9), (0.9119052599, 0.7536630212, 0.4629782264, 0.1769377076)),
    (1, 0.1, (0.6, 0.75, 0.9), (0.9918823416, 0.8796693311, 0.6769924623)),
    (5, 0.1, (0.6, 0.75, 0.9), (0.8590786647, 0.6577576203, 0.4755474577)),
]


@pytest.mark.parametrize(
    ("beta", "noise", "scaled", "values"),
    [pytest.param(*row, marks=[SLOW] * (row[:2] != (1, 0.1))) for row in LOW_RANK],
)
def test_low_rank(beta, noise, scaled, values):
    model, thin = smi.Bilinear(beta, 0.1, noise), 1e-4
    np.testing.assert_allclose(model.small_width_error(jnp.asarray(scaled)), values, atol=1e-10)
    threshold = (1 + noise) * np.sqrt(beta) / (1 + beta)
    np.testing.assert_allclose(model.small_width_threshold, threshold, rtol=1e-14)
    there = smi.state_evolution(smi.Bilinear(beta, thin, noise), 0.75 * thin * (1 + beta) / beta)
    # O(√ρ) at β = 1
    np.testing.assert_allclose(there.error, model.small_width_error(0.75), atol=3e-3)
    limit = symmetric(0.1).small_width_error(jnp.asarray([0.3, 0.75]))
    np.testing.assert_allclose(limit, (1.0, 0.75), atol=1e-9)


# Free entropy -----------------------------------------------------------------------------------

FREE = [  # model, α; error, φ
    (smi.Bilinear(1, 1), 0.5, 0.45566397, -0.0902707800),
    (smi.Bilinear(1, 1), 0.95, 0.02501959, 0.2228155646),
    (smi.Bilinear(2, 0.5), 0.2, 0.75526401, -0.1719843243),
    (smi.Bilinear(2, 0.5), 0.575, 0.10282710, -0.1792987283),
    (smi.AttentionIndexed(2, 0.5, "hardmax"), 0.3, None, None),
    (smi.AttentionIndexed(3, 0.5), 0.05, None, None),
    (smi.AttentionIndexed(2, 0.5, "linear"), 0.08, None, None),
]


@SLOW
@pytest.mark.parametrize(("model", "alpha", "left", "value"), FREE)
def test_free_entropy_is_stationary_at_the_fixed_point(model, alpha, left, value):
    """A maximum, of the value of [theory: bilinear, Eq. (13)], φ up to what does not depend on q:
    φ = Φ + (α/2)(log α - 1) - Σ_0(β) for Δ = 0; and 4 Ψ' = f (to 1e-6: central differences), Ψ as
    in [theory: attention-indexed, section 11]."""
    end = smi.state_evolution(model, alpha)
    norm, q = model.prior.norm, end.overlap[0, 0]
    phi = lambda q: smi.free_entropy(model, alpha, q * jnp.ones((1, 1))).value
    slope = jax.grad(phi)
    assert abs(slope(q)) < 1e-8
    assert slope(0.9 * q) > 0 > slope(norm - 0.9 * (norm - q))
    there = smi.free_entropy(model, alpha, end).value
    np.testing.assert_allclose(there, phi(q), rtol=1e-12)
    if value is not None:
        np.testing.assert_allclose(end.error, left, atol=1e-8)
        beta = float(model.prior.law.aspect_ratio)
        constant = {1: -0.25, 2: -0.0767132049}[beta] - 0.5 * alpha * (np.log(alpha) - 1)
        np.testing.assert_allclose(there - constant, value, atol=2e-9)
    else:
        channel = model.channel
        found = differences(lambda q: channel.mean_log_partition(q, norm - q), [q])[0]
        np.testing.assert_allclose(4 * found, channel.information(q, norm - q), rtol=1e-6)


def test_mean_log_partition_of_hardmax():
    for rho, q, value in ((0.5, 0.9, -0.88675045), (1, 1.5, -0.70667595), (0.2, 1.1, -0.41225026)):
        found = smi.AttentionIndexed(2, rho, "hardmax").channel.mean_log_partition(q, 1 + rho - q)
        np.testing.assert_allclose(found, value, atol=6e-9)


# Limits and derivatives -------------------------------------------------------------------------


@SLOW
def test_limits():
    """Wide products are Gaussian, tiny noise leaves D Δ/(α - D), few labels α/(1 + Δ)."""
    alpha, one = jnp.asarray([0.2, 0.5, 0.8]), jnp.ones(3)
    for noise in (0.0, 0.1):
        wide = error(alpha, 2.0 * one, 1e4 * one, noise * one)
        np.testing.assert_allclose(wide, ridge_error(alpha, noise, noise), atol=1e-7)
    quiet = float(smi.state_evolution(smi.Bilinear(1.0, 0.2, 1e-5), 0.6).error)
    np.testing.assert_allclose(quiet, 0.36e-5 / 0.24, rtol=1e-3)
    assert error(alpha[:1], one[:1], 0.5 * one[:1], 1e-5 * one[:1]) > 0.1
    first = float(smi.state_evolution(smi.Bilinear(3.0, 0.4, 0.5), 1e-4).error)
    np.testing.assert_allclose(1 - first, 1e-4 / 1.5, rtol=1e-3)
    table = {(0.5, 0.3, 0.1): 0.5951316645, (2, 0.05, 0.5): 0.4219387779, (1, 0.2, 0): 0.2182178902}
    for point, value in table.items():
        np.testing.assert_allclose(ridge_error(*point), value, atol=1e-10)
    tall = smi.Bilinear(jnp.inf, 0.1, 0.1).small_width_error(0.75)
    np.testing.assert_allclose(tall, ridge_error(0.75, 0.1, 0.1), rtol=1e-12)


def scores_error(output):
    return lambda alpha, rho: smi.state_evolution(smi.AttentionIndexed(2, rho, output), alpha).error


def bilinear_error(alpha, rho, noise, beta=np.inf):
    return smi.state_evolution(smi.Bilinear(beta, rho, noise), alpha).error


DERIVATIVES = {
    "softmax": (scores_error("softmax"), (0.08, 0.6)),
    "hardmax": (scores_error("hardmax"), (0.08, 0.6)),
    "square": (bilinear_error, (0.3, 0.2, 0.1, 1.0)),
    "short": (bilinear_error, (0.4, 0.3, 0.2, 0.5)),
    "infinitely long": (bilinear_error, (0.3, 0.5, 0.1)),
    "low rank": (lambda alpha: smi.Bilinear(1.0, 0.2, 0.1).small_width_error(alpha), (0.75,)),
}


@SLOW
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    """Against differences of errors that are known to 1e-11; β = 1 is one of the points."""
    function, at = DERIVATIVES[name]
    slopes = jax.jit(jax.grad(function, tuple(range(len(at)))))(*at)
    np.testing.assert_allclose(slopes, differences(jax.jit(function), at, 1e-5), rtol=1e-5)
    if name == "square":
        np.testing.assert_allclose(slopes[0], -2.07500184, atol=1e-8)
    if name in ("softmax", "hardmax"):
        slope = jax.jit(jax.grad(function))
        second = jax.jit(jax.grad(jax.grad(function)))(*at)
        difference = differences(lambda alpha: slope(alpha, at[1]), at[:1])[0]
        np.testing.assert_allclose(second, difference, rtol=1e-6)
    if name == "softmax":  # recovered: V is zero, and so are its derivatives
        assert [float(jax.grad(function, k)(0.4, 0.6)) for k in range(2)] == [0.0, 0.0]


@SLOW
def test_wide_products_and_numbers_out_of_range_under_jit():
    """Derivatives of wide products are those of ridge regression; bad numbers are NaN and a code."""

    def one(alpha, rho, noise):
        return smi.state_evolution(smi.Bilinear(1.0, rho, noise), alpha)

    slopes = jax.jit(jax.grad(lambda a, r, n: one(a, r, n).error, (0, 2)))(0.5, 1e6, 0.1)
    expected = jax.grad(lambda a, n: ridge_error(a, n, n), (0, 1))(0.5, 0.1)
    np.testing.assert_allclose(slopes, expected, rtol=1e-6)
    columns = [0.5, 0.1, 0.3, jnp.nan], [0.2, -0.2, 0.2, 0.2], [1e-11, 0.0, -0.1, 0.0]
    found = jax.jit(jax.vmap(one))(*map(jnp.asarray, columns))
    np.testing.assert_allclose(found.error[0], 0.36e-11 / 0.14, rtol=1e-2)
    assert np.isnan(found.error[1:]).all()
    assert (np.asarray(found.result)[1:] == Result.INVALID).all()
    assert np.isnan(jax.jit(nuclear_norm_threshold)(1.0, jnp.nan))
    assert np.isnan(jax.jit(ridge_error)(-0.5, 0.1))
