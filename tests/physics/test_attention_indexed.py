"""Attention-indexed models: state equations against independent values, exact thresholds, limits,
derivatives, data.

Values: computed independently of this code [theory: attention-indexed, section 11].
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.channels.hardmax import HardmaxScores, hardmax_response, sampled_response
from jaxsmi.channels.matrix_scores import SoftmaxScores, centred
from jaxsmi.channels.signs import log_quadrant
from jaxsmi.core.codes import Result
from jaxsmi.priors.wishart import WishartLaw, WishartPrior

SOFTMAX = {
    0.05: (0.88734927, 0.47616577, 0, 0, 0, 0),
    0.2: (0.95072778, 0.87933015, 0.56147533, 0, 0, 0),
    0.5: (0.95669692, 0.90663410, 0.72367742, 0.39219602, 0, 0),
    1: (0.95840802, 0.91373146, 0.76491687, 0.49992171, 0.08426494, 0.00634485),
    2: (0.95921822, 0.91696295, 0.78322988, 0.55092982, 0.13908908, 0.02206179),
}
LINEAR = {
    0.05: (0.73417993, 0, 0, 0),
    0.5: (0.93250426, 0.85025192, 0.55505581, 0),
    2: (0.93826517, 0.87340423, 0.66722474, 0.06127304),
}
HARDMAX = {
    0.05: (
        0.85103803,
        0.40402727,
        0.11774961,
        0.03012378,
        0.00482449,
        3.0072e-4,
        4.808e-5,
        3.00e-6,
    ),
    0.5: (
        0.95489234,
        0.87872694,
        0.74511035,
        0.52215560,
        0.21306193,
        0.02383275,
        0.00403759,
        2.5398e-4,
    ),
    2: (
        0.96863638,
        0.92177058,
        0.84541805,
        0.70561769,
        0.41535545,
        0.07202268,
        0.01380025,
        9.0077e-4,
    ),
}


def errors(output, rho, alphas):
    model = smi.AttentionIndexed(2, rho, output)
    return jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error)(jnp.asarray(alphas))


@pytest.mark.parametrize("rho", SOFTMAX)
def test_softmax(rho):
    found = errors("softmax", rho, (0.01, 0.02, 0.05, 0.1, 0.2, 0.24))
    np.testing.assert_allclose(
        found, SOFTMAX[rho], rtol=0, atol=1e-8
    )  # half a unit of the last digit, and theirs


@pytest.mark.parametrize("rho", LINEAR)
def test_linear(rho):
    np.testing.assert_allclose(
        errors("linear", rho, (0.01, 0.02, 0.05, 0.15)), LINEAR[rho], rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("rho", [pytest.param(rho, marks=pytest.mark.slow) for rho in HARDMAX])
def test_hardmax(rho):
    found = errors("hardmax", rho, (0.02, 0.05, 0.1, 0.2, 0.5, 2, 5, 20))
    np.testing.assert_allclose(found[:5], HARDMAX[rho][:5], rtol=1e-6)
    np.testing.assert_allclose(
        found[5:], HARDMAX[rho][5:], rtol=2e-3
    )  # printed to three digits at the end
    far = smi.AttentionIndexed(2, rho, "hardmax")
    K, D = 1.8063945711, float(far.prior.degrees_of_freedom)
    law = np.pi * (1 + rho) * D**2 / (8 * K**2)
    np.testing.assert_allclose(far.decay, law, rtol=1e-9)
    np.testing.assert_allclose(
        float(smi.state_evolution(far, 2000.0).error) * 2000.0**2, law, rtol=5e-3
    )


@pytest.mark.parametrize(
    ("output", "tokens", "values"),
    [
        ("softmax", 2, (0.024375, 0.09, 0.1875, 0.25)),
        ("softmax", 3, (0.00975, 0.036, 0.075, 0.1)),
        pytest.param(
            "softmax", 5, (0.00348214, 0.01285714, 0.02678571, 0.03571429), marks=pytest.mark.slow
        ),
        ("linear", 1, (0.04875, 0.18, 0.375, 0.5)),
        pytest.param("linear", 3, (0.008125, 0.03, 0.0625, 0.08333333), marks=pytest.mark.slow),
    ],
)
def test_perfect_recovery(output, tokens, values):
    for rho, value in zip((0.05, 0.2, 0.5, 1.0), values, strict=True):
        model = smi.AttentionIndexed(tokens, rho, output)
        threshold = float(smi.recovery_threshold(model).alpha)
        assert abs(threshold - value) < 5e-9
        above = smi.state_evolution(model, threshold * 1.0001)
        below, nearer = (smi.state_evolution(model, threshold * part) for part in (0.99, 0.999))
        assert (int(above.result), float(above.error)) == (Result.RECOVERED, 0.0)
        assert int(below.result) == Result.SUCCESS
        assert (
            0.0 < float(nearer.error) < 0.2 * float(below.error) < 0.01
        )  # continuous: V falls to zero
    assert np.isinf(float(smi.recovery_threshold(smi.AttentionIndexed(2, 0.5, "hardmax")).alpha))
    assert np.isinf(
        float(smi.recovery_threshold(smi.AttentionIndexed(2, 0.5, "linear", noise=0.1)).alpha)
    )


def test_noise_and_one_token_obey_their_equation():
    model = smi.AttentionIndexed(1, 0.7, "linear", noise=0.3)
    end = smi.state_evolution(model, 0.2)
    qhat = float(end.state["qhat"])
    np.testing.assert_allclose(qhat, 0.2 * 2 / (float(end.error) + 0.15), rtol=1e-10)
    np.testing.assert_allclose(end.error, model.prior.mmse(qhat), rtol=1e-10)


def test_the_quadratic_network_published_elsewhere(reference):
    """T = 1, linear: columns alpha and gen_error of the symmetric variant [theory:
    attention-indexed, section 11]."""
    np.testing.assert_allclose(
        [float(smi.state_evolution(smi.AttentionIndexed(1, rho, "linear"), alpha).error)
         for rho, alpha in ((0.5, 0.1423543307), (0.5, 0.2837086614), (1, 0.2524645669))],
        [0.5808504025, 0.1637708727, 0.3689264997], rtol=1e-6,
    )  # fmt: skip


@pytest.mark.slow
def test_small_width():
    prior = WishartPrior(1e-4)
    found = [1 - float(prior.mmse(t * 1e-4)) for t in (1.5, 2, 4)]
    np.testing.assert_allclose(found, [0.111445, 0.250150, 0.562542], atol=1e-6)
    np.testing.assert_allclose(
        found, [(1 - 1 / t) ** 2 for t in (1.5, 2, 4)], atol=4e-4
    )  # not (1 - t)², as printed
    assert (
        abs(float(smi.AttentionIndexed(2, 0.5, "hardmax").small_width_threshold) - 0.4034106290)
        < 1e-9
    )
    assert float(smi.AttentionIndexed(3, 0.5, "softmax").small_width_threshold) == pytest.approx(
        0.1
    )
    limit = smi.AttentionIndexed(2, 0.5, "hardmax").small_width_error(
        jnp.array([0.3, 0.42, 0.45, 0.5, 0.6, 0.8, 1, 2, 5])
    )
    printed = (
        1,
        0.99835985,
        0.98779284,
        0.95269345,
        0.84376573,
        0.60584647,
        0.42958986,
        0.11947587,
        0.01938070,
    )
    np.testing.assert_allclose(limit, printed, atol=6e-9)
    soft = smi.AttentionIndexed(2, 0.5, "softmax").small_width_error(
        jnp.array([0.2, 0.3, 0.4, 0.45, 0.6])
    )
    np.testing.assert_allclose(soft, (1, 0.96, 0.64, 0.36, 0), atol=1e-9)
    hard = errors("hardmax", 0.001, 0.001 * np.array([0.2, 0.3, 0.4, 0.5, 0.6, 1]))
    np.testing.assert_allclose(
        hard, (0.999020, 0.997196, 0.987914, 0.943708, 0.840257, 0.429125), atol=1e-6
    )


def test_hardmax_response_values():
    channel = HardmaxScores()
    for rho, values in (
        (0.05, (2.4347045, 2.9029773, 5.3719488, 8.6890862, 27.98375)),
        (1, (1.8753501, 2.2033226, 3.9616802, 6.3493769)),
    ):
        for e, value in zip((0, 0.25, 0.75, 0.9, 0.99), values, strict=False):
            np.testing.assert_allclose(channel.information(rho + e, 1 - e), value, rtol=2e-7)


@pytest.mark.slow
def test_bivariate_signs_far_in_the_tails():
    channel = HardmaxScores()
    far = channel.gamma(jnp.array([1.0, 1.0]), jnp.array([[-60.0, 0.0], [0.0, -60.0]]), 1.0)
    np.testing.assert_allclose(
        np.diagonal(far) / 2, 15.016620374, rtol=1e-6
    )  # 40-digit quadrature (spec: 15.0188)
    mixed = channel.gamma(jnp.array([1.0, -1.0]), jnp.array([[-60.0, 0.0], [0.0, 40.0]]), 1.0)
    np.testing.assert_allclose(np.diagonal(mixed) / 2, [27.519, -22.521], atol=1e-3)
    from scipy.stats import multivariate_normal

    for x, c in (((0.3, -1.0), 1 / 3), ((2.0, 3.0), -1 / 3), ((-3.0, -2.0), 1 / 3)):
        exact = multivariate_normal([0, 0], [[1, c], [c, 1]]).cdf(x)
        np.testing.assert_allclose(
            log_quadrant(*jnp.array(x), jnp.asarray(c)), np.log(exact), atol=1e-10
        )


def test_gamma_is_the_posterior_mean():
    """E[h|y, ω] = ω + V Γ: softmax by projecting, hardmax by counting draws."""
    rng, V = np.random.default_rng(0), 0.6

    def goe(n, T):
        a = rng.standard_normal((n, T, T))
        return (a + a.transpose(0, 2, 1)) / np.sqrt(2)

    omega = 0.8 * goe(1, 3)[0]
    h = omega + np.sqrt(V) * goe(1, 3)[0]
    channel = SoftmaxScores(3, jnp.asarray(1.7))
    seen = channel.statistic(jax.nn.softmax(1.7 * jnp.asarray(h), axis=-1))
    np.testing.assert_allclose(seen, centred(jnp.asarray(h)), atol=1e-12)
    np.testing.assert_allclose(
        channel.gamma(seen, omega, V), centred(jnp.asarray(h - omega)) / V, atol=1e-11
    )
    omega = 0.5 * goe(1, 2)[0]
    h = omega + np.sqrt(V) * goe(400_000, 2)
    signs = np.sign(np.stack([h[:, 0, 0] - h[:, 0, 1], h[:, 1, 1] - h[:, 0, 1]], -1))
    for s in ((1, 1), (1, -1), (-1, 1)):
        chosen = h[(signs == s).all(1)]
        expected = (chosen.mean(0) - omega) / V
        spread = chosen.std(0) / V / np.sqrt(len(chosen))
        found = np.asarray(HardmaxScores().gamma(jnp.asarray(s, float), jnp.asarray(omega), V))
        assert np.all(np.abs(found - expected) < 4.5 * spread)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["softmax", pytest.param("hardmax", marks=pytest.mark.slow)])
def test_derivatives(output):
    def error(alpha, rho):
        return smi.state_evolution(smi.AttentionIndexed(2, rho, output), alpha).error

    at = (0.08, 0.6)
    for position in range(2):
        ends = [error(*(x + s * 1e-5 * (k == position) for k, x in enumerate(at))) for s in (1, -1)]
        np.testing.assert_allclose(
            jax.grad(error, position)(*at), (ends[0] - ends[1]) / 2e-5, rtol=1e-6
        )
    slope = jax.jit(jax.grad(error))
    second = jax.jit(jax.grad(jax.grad(error)))(*at)
    np.testing.assert_allclose(
        second, (slope(at[0] + 1e-5, at[1]) - slope(at[0] - 1e-5, at[1])) / 2e-5, rtol=1e-6
    )
    if output == "softmax":  # recovered: V is zero, and so are its derivatives
        assert [float(jax.grad(error, k)(0.4, 0.6)) for k in range(2)] == [0.0, 0.0]


def test_the_law_of_the_data():
    """Var h = Q_0 off the diagonal and 2 Q_0 on it, for the S that was drawn; labels are those of
    the indices."""
    model = smi.AttentionIndexed(2, 0.5, "softmax", beta=1.3)
    data = model.sample(jax.random.key(0), dimension=50, alpha=4.0)
    assert data.inputs.shape == (10_000, 2, 50)
    S = np.asarray(WishartLaw.matrix(data.teacher.T))
    x = np.asarray(data.inputs[:3])
    h = (np.einsum("nad,de,nbe->nab", x, S, x) - np.trace(S) * np.eye(2)) / np.sqrt(50)
    np.testing.assert_allclose(
        model.student.fields(data.teacher, data.inputs[:3])[:, 0], h, atol=1e-12
    )
    raised = np.exp(1.3 * h)
    np.testing.assert_allclose(data.labels[:3], raised / raised.sum(-1, keepdims=True), atol=1e-12)
    every = np.asarray(model.student.fields(data.teacher, data.inputs)[:, 0])
    moment = np.sum(S**2) / 50
    for value, expected in ((every[:, 0, 0].var(), 2 * moment), (every[:, 0, 1].var(), moment)):
        assert abs(value / expected - 1) < 5 * np.sqrt(
            3 / 10_000
        )  # excess kurtosis of order one at d = 50
    hard = smi.AttentionIndexed(2, 0.5, "hardmax").sample(
        jax.random.key(0), dimension=20, alpha=0.5
    )
    assert set(np.unique(hard.labels)) == {0.0, 1.0}


def test_the_shrunk_matrix_is_as_good_as_said():
    prior, rng = WishartPrior(0.5), np.random.default_rng(1)
    S = np.asarray(WishartLaw.matrix(jax.random.normal(jax.random.key(2), (300, 150))))
    Z = rng.standard_normal((300, 300))
    R = S + np.sqrt(1 / (2.0 * 300)) * (Z + Z.T) / np.sqrt(2)
    estimate, V = prior.denoise(R, 2.0)
    assert (
        abs(np.sum((np.asarray(estimate) - S) ** 2) / 300 / float(V) - 1) < 0.04
    )  # one sample: below 3 % at d = 500


BAD = {
    "output": {"output": "sparsemax"},
    "tokens": {"tokens": 1},
    "rank_ratio": {"rank_ratio": 0.0},
    "beta": {"beta": np.inf},
    "noise": {"noise": 0.1},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name):
    with pytest.raises(ValueError, match=rf"^{name}: got .*; allowed: "):
        smi.AttentionIndexed(**({"tokens": 2, "rank_ratio": 0.5} | BAD[name]))
    with pytest.raises(ValueError, match=r"^tokens: .*2 to 5 for hardmax"):
        smi.AttentionIndexed(6, 0.5, "hardmax")
    with pytest.raises(ValueError, match=r"^alpha: "):
        smi.state_evolution(smi.AttentionIndexed(2, 0.5), 0.0)


# More tokens, free entropy, prediction error
# --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sampled_hardmax_agrees_with_the_exact_one():
    """Two tokens, both ways: within 3.5 standard errors of 8 replicas (Student's law: 1 % each)."""
    for u in (1.0, 0.6, 0.3):
        replicas = np.asarray(sampled_response(2, 1 - u**2, u**2))
        exact = float(hardmax_response(1 - u**2, u**2))
        assert abs(replicas.mean() - exact) < 3.5 * replicas.std(ddof=1) / np.sqrt(8)
        assert replicas.std(ddof=1) / np.sqrt(8) < 5e-3 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "value", "error"), [(3, 5.702, 0.002), (4, 9.511, 0.003)])
def test_hardmax_of_more_tokens(tokens, value, error):
    """f(0) against [theory: attention-indexed, section 11]; state evolution with its error bar; a
    table holds its own points."""
    replicas = np.asarray(sampled_response(tokens, 0.0, 1.0))
    stderr = replicas.std(ddof=1) / np.sqrt(8)
    print(f"T={tokens}: {replicas.mean():.4f} ± {stderr:.4f}, known {value} ± {error}")
    assert abs(replicas.mean() - value) < 3 * np.hypot(stderr, error)
    if tokens == 3:
        model = smi.AttentionIndexed(3, 0.5, "hardmax")
        channel = model.channel
        for u in (0.25, 0.5, 0.9):
            direct = np.asarray(sampled_response(3, 1 - u**2, u**2))
            table, spread = (
                float(channel.information(1 - u**2, u**2)),
                float(channel.uncertainty(1 - u**2, u**2)),
            )
            assert (
                abs(direct.mean() / table - 1)
                < 4 * (spread + direct.std(ddof=1) / np.sqrt(8) / direct.mean()) + 2e-3
            )
        solution = smi.state_evolution(model, 0.2)
        two = smi.state_evolution(smi.AttentionIndexed(2, 0.5, "hardmax"), 0.2)
        print(
            f"V {float(solution.error):.4f} ± {float(solution.stderr[0, 0]):.4f}; two tokens {float(two.error):.4f}"
        )
        assert 0 < float(solution.stderr[0, 0]) < 0.02
        assert float(solution.error) < float(two.error)
        assert abs(float(model.small_width_threshold) - 0.1754) < 1e-3
        # posteriors of three tokens are sampled
        with pytest.raises(ValueError, match=r"^key: got None"):
            smi.gamp(model, model.sample(jax.random.key(0), dimension=8, alpha=0.5))


@pytest.mark.slow
def test_free_entropy_is_stationary_at_the_fixed_point():
    """And 4 Ψ' = f (to 1e-6: central differences), Ψ as in [theory: attention-indexed, section
    11]."""
    for output, tokens, alpha in (("hardmax", 2, 0.3), ("softmax", 3, 0.05), ("linear", 2, 0.08)):
        model = smi.AttentionIndexed(tokens, 0.5, output)
        end = smi.state_evolution(model, alpha)

        def phi(q, model=model, alpha=alpha):
            return smi.free_entropy(model, alpha, q * jnp.ones((1, 1))).value

        q = end.overlap[0, 0]
        assert abs(float(jax.grad(phi)(q))) < 1e-8
        assert phi(q - 0.05) < phi(q)
        np.testing.assert_allclose(smi.free_entropy(model, alpha, end).value, phi(q), rtol=1e-12)
        left = model.prior.norm - q
        ends = [model.channel.mean_log_partition(q + s * 1e-5, left - s * 1e-5) for s in (1, -1)]
        np.testing.assert_allclose(
            4 * (ends[0] - ends[1]) / 2e-5, model.channel.information(q, left), rtol=1e-6
        )
    for rho, q, value in ((0.5, 0.9, -0.88675045), (1, 1.5, -0.70667595), (0.2, 1.1, -0.41225026)):
        found = smi.AttentionIndexed(2, rho, "hardmax").channel.mean_log_partition(q, 1 + rho - q)
        np.testing.assert_allclose(found, value, atol=6e-9)


ERRORS = {  # [theory: attention-indexed, section 11]
    (1, 0.5, 1.0): 0.28681980, (1, 0.5, 0.39219602): 0.12085256, (1, 0.5, 0.1281309): 0.04140767,
    (0.5, 0.5, 1.0): 0.12679244, (0.5, 0.5, 0.39219602): 0.05053094, (0.5, 0.5, 0.1281309): 0.01666351,
    (3, 0.5, 1.0): 0.55880731, (3, 0.5, 0.39219602): 0.27876023, (3, 0.5, 0.1281309): 0.11398423,
    (0.5, 1.0, 0.5): 0.05931049, (1, 1.0, 0.5): 0.13415249, (3, 1.0, 0.5): 0.28844200,
}  # fmt: skip


def bayes(model, V, **kwargs):
    overlap = (model.prior.norm - V) * jnp.ones((1, 1))
    return smi.generalization_error(
        model, overlap, predictor=kwargs.pop("predictor", "bayes"), **kwargs
    )


@pytest.mark.parametrize(("beta", "rho", "V"), ERRORS)
def test_prediction_error_of_softmax(beta, rho, V):
    np.testing.assert_allclose(
        bayes(smi.AttentionIndexed(2, rho, beta=beta), V).value, ERRORS[beta, rho, V], atol=6e-9
    )


@pytest.mark.slow
def test_prediction_error_by_sampling_agrees_with_closed_forms():
    """The general route on models that have a closed form, and both predictors where both are
    exact."""
    key, rng = jax.random.key(0), np.random.default_rng(0)
    goe = rng.standard_normal((2, 200_000, 2, 2))
    goe = (goe + goe.transpose(0, 1, 3, 2)) / np.sqrt(2)
    for output in ("softmax", "hardmax", "linear"):
        model, V = smi.AttentionIndexed(2, 0.5, output), 0.4
        omega = jnp.asarray(np.sqrt(1.1) * goe[0])
        h = omega + jnp.asarray(np.sqrt(V) * goe[1])
        squared = np.asarray(
            jnp.sum((jax.vmap(model.link)(h) - jax.vmap(model.link)(omega)) ** 2, (1, 2))
        )
        plug_in = bayes(model, V, predictor="plug-in").value
        assert abs(squared.mean() - plug_in) < 4 * squared.std() / np.sqrt(200_000)
        assert bayes(model, V).value <= plug_in + 1e-12
    three = bayes(smi.AttentionIndexed(3, 0.5), 0.4, key=key)
    assert 0 < three.stderr < 5e-3 * three.value
    with pytest.raises(ValueError, match=r"^key: "):
        bayes(smi.AttentionIndexed(3, 0.5), 0.4, key=None)
