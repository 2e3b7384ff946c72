"""The room of online SGD: expansions, risks and their derivatives, the chain of the overlaps, what
is refused.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import compilations, keys
from jaxsmi.core.codes import Result
from jaxsmi.numerics import triangular
from jaxsmi.sgd.correlation import correlation
from jaxsmi.sgd.hermite import activation_coefficients
from jaxsmi.sgd.noise import noise_at
from jaxsmi.sgd.population import gradient, net_average, overlaps, risk_at

SGD = smi.sgd
SLOW = pytest.mark.slow
HE2, HE4 = {(2, 0): 1.0, (0, 2): 1.0}, {(4, 0): 1.0, (0, 4): 1.0}
MIXED = {(0, 0): 4 / 3, (4, 0): 1.0, (0, 4): 2.0}


def trace(terms, norm="none", encoding="paired"):
    return smi.SequenceSingleIndex(
        SGD.HermiteSeries(terms), 2, SGD.Attention(trace_norm=norm), encoding
    )


# Expansions ---------------------------------------------------------------------------------------


def test_hermite_coefficients_of_the_softmax():
    """[theory: online-sgd, Table 1]: error 1e-13 of its last digit."""
    p = np.asarray(SGD.coefficients(lambda z: jax.nn.softmax(z[:, None] * z, axis=-1)[0, 0], 2, 4))[
        ..., 0
    ]
    known = {
        (0, 0): 1 - 1 / np.sqrt(8),
        (2, 0): 0.125,
        (1, 1): -0.1062875009029,
        (0, 2): -0.0253132252876,
        (4, 0): -0.0541265877365,
        (3, 1): 0.0605674925047,
        (2, 2): -0.0200213763453,
        (1, 3): -0.0013564730257,
        (0, 4): 0.0050844317424,
        (1, 2): 0.0,
    }
    for n, value in known.items():
        assert p[n] == pytest.approx(value, abs=1e-13)


def series(terms):
    return SGD.HermiteSeries(terms)


EXPONENTS = {
    "sum": (lambda z: z[0] + z[1], 2, 1, 2.0),
    "product": (lambda z: z[0] * z[1], 2, 2, 1.0),
    "four tokens": (series({(1, 4, 0, 0): 1.0, (0, 0, 2, 2): 1.0}), 4, 4, 4.0),
    "order five": (series({(1, 4, 0, 0): 1.0}), 4, 5, 24.0),
    "He2 He3": (series({(2, 3): 1.0}), 2, 5, 12.0),
    "He2 + He2": (series(HE2), 2, 2, 4.0),
    "He4 + He4": (series(HE4), 2, 4, 48.0),
    "mixed": (series(MIXED), 2, 4, 120.0),
    "He3": (series({(3,): 1.0}), 1, 3, 6.0),
    "difference": (lambda z: z[0] - z[1], 2, 1, 2.0),
    "difference of squares": (lambda z: z[0] ** 2 - z[1] ** 2, 2, 2, 4.0),
    "linear hides product": (lambda z: z[0] + z[0] * z[1], 2, 1, 1.0),
    "cancellation": (lambda z: z[0] ** 2 * jnp.exp(-(z[0] ** 2)), 1, 4, 0.002743),
    "softmax": (lambda z: jax.nn.softmax(z[:, None] * z, axis=-1)[0, 0], 2, 2, 0.027563),
    "trace": (SGD.Attention(trace_norm="none"), 2, 2, 0.065063),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_information_exponents(name):
    """[theory: online-sgd, Table 9]: to its last digit."""
    target, length, order, level = EXPONENTS[name]
    found = SGD.information_exponent(target, length)
    assert (found.order, found.status) == (order, "found")
    assert found.levels[order] == pytest.approx(level, abs=6e-7)


def test_exponents_of_a_kink_and_of_poles():
    """P_2(|z|) = 1/π: the trapezoidal rule at a kink is good to h²/12 times the jump of the slope,
    relative 4e-4 here.
    tanh(z_1 z_2)
    against adaptive quadrature of the one-dimensional law of the product (SciPy, 1e-9)."""
    kink = SGD.information_exponent(lambda z: jnp.abs(z[0]), 1)
    assert kink.order == 2
    assert kink.levels[2] == pytest.approx(1 / np.pi, rel=1e-3)
    poles = SGD.information_exponent(lambda z: jnp.tanh(z[0] * z[1]), 2)
    from scipy import integrate, special

    # E tanh(z1 z2) z1 z2 with the density K_0(|w|)/π of w = z1 z2
    exact = 2 * integrate.quad(lambda w: w * np.tanh(w) * special.k0(w) / np.pi, 0, 60)[0]
    assert poles.levels[2] == pytest.approx(exact**2, abs=1e-8)


def test_constant_undetermined_and_blind():
    assert SGD.information_exponent(lambda z: 1.0 + 0.0 * z[0], 1)[:2] == (None, "constant")
    assert SGD.information_exponent(series({(5,): 1.0}), 1, degree=4)[:2] == (None, "undetermined")
    tied = SGD.Network(jax.nn.relu)
    for target in (lambda z: z[0] - z[1], lambda z: z[0] ** 2 - z[1] ** 2):
        assert (
            SGD.information_exponent(target, 2, student=tied).student_order is None
        )  # the contraction with 1 vanishes
    assert (
        SGD.information_exponent(
            lambda z: z[0] + z[0] * z[1], 2, student=SGD.LinearAttention()
        ).student_order
        == 2
    )  # even


@SLOW
def test_sampled_exponents():
    found = SGD.information_exponent(
        lambda z: z[0] * z[1] + (z[2] ** 3 - 3 * z[2]) * z[3],
        6,
        key=jax.random.key(0),
        student=SGD.Network(jax.nn.relu),
    )
    assert (found.order, found.student_order) == (2, 2)
    assert abs(found.levels[2] - 1.0) < 5 * found.errors[2]
    assert abs(found.levels[4] - 6.0) < 5 * found.errors[4]
    assert abs(found.levels[3]) < 5 * found.errors[3]


def test_squares_of_series():
    one = SGD.HermiteSeries({(2, 0): 0.7, (1, 3): -0.4, (0, 0): 0.2})
    for z in np.random.default_rng(0).normal(size=(5, 2)):
        assert float(one.squared()(jnp.asarray(z))) == pytest.approx(
            float(one(jnp.asarray(z))) ** 2, rel=1e-12
        )


def test_coefficients_of_activations():
    """ReLU: c_0 = 1/√(2π), c_1 = 1/2, c_2 = 1/(2√π), c_3 = 0; erf: E erf(x) x = 2/√(3π)."""
    relu = np.asarray(activation_coefficients(jax.nn.relu, 3))
    np.testing.assert_allclose(
        relu, [1 / np.sqrt(2 * np.pi), 0.5, 1 / (2 * np.sqrt(np.pi)), 0.0], atol=1e-14
    )
    smooth = np.asarray(activation_coefficients(jax.scipy.special.erf, 1))
    assert smooth[1] == pytest.approx(2 / np.sqrt(3 * np.pi), abs=1e-14)
    assert smooth[0] == pytest.approx(0.0, abs=1e-15)


# Risk ---------------------------------------------------------------------------------------------

POINTS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]
RISKS = {  # [theory: online-sgd, Table 3], at POINTS
    "He2": (
        HE2,
        "none",
        [
            2.877498426837,
            2.807009232444,
            3.000316281631,
            2.964138567939,
            2.595541649262,
            3.296065810212,
        ],
    ),
    "He2, √2": (
        HE2,
        "sqrtL",
        [
            2.438749213419,
            2.388905826063,
            2.500158140816,
            2.474576634136,
            2.239375663994,
            2.648032905106,
        ],
    ),
    "He4": (
        HE4,
        "none",
        [
            24.877498426837,
            24.907530491355,
            25.000316281631,
            25.011571235146,
            25.358011459123,
            25.296065810212,
        ],
    ),
    "mixed, √2": (
        MIXED,
        "sqrtL",
        [
            60.108686685810,
            60.140540500521,
            60.091760214930,
            60.103697895859,
            60.618347721177,
            60.055657483973,
        ],
    ),
}


@pytest.mark.parametrize("name", [n if n == "He2" else pytest.param(n, marks=SLOW) for n in RISKS])
def test_risks_of_two_tokens(name):
    terms, norm, known = RISKS[name]
    model = trace(terms, norm)
    for (m, e), value in zip(POINTS, known, strict=True):
        found = SGD.risk(model, m, e)
        assert float(found.value) == pytest.approx(value, abs=1e-12 * max(value, 2.0))
        assert float(found.stderr) < 1e-10


def test_risks_of_the_semantic_positional_problem():
    """[theory: online-sgd, Table 3]; one compilation serves all ω and a."""
    known = [
        (0.67, 1.0, 0.0, 0.0, 0.1317520759470),
        (0.67, 1.0, 1.0, 0.0, 0.0826822321808),
        (0.67, 1.0, 0.0, 1.0, 0.1015513481809),
        (0.67, 1.0, 0.5, 0.4, 0.1175037043688),
        (0.67, 1.0, 0.6, 0.5, 0.1121380044562),
        (0.67, 1.0, 0.3, 0.8, 0.1086606621182),
        (0.64, 1.0, 0.0, 0.0, 0.1289743615127),
        (0.64, 1.0, 1.0, 0.0, 0.0754436228586),
        (0.64, 1.0, 0.6, 0.5, 0.1096583311452),
        (0.95, 0.76, 0.0, 0.0, 0.0979971777300),
        (0.95, 0.76, 0.0, 1.0, 0.0948970119483),
        (0.95, 0.76, 0.6, 0.5, 0.0945985812170),
    ]
    for omega, a, m, e, value in known:
        assert float(SGD.risk(SGD.semantic_positional(omega, a), m, e).value) == pytest.approx(
            value, abs=1e-12
        )


@SLOW
def test_risks_of_three_tokens():
    """[theory: online-sgd, Table 3]: error 1e-10."""
    model = smi.SequenceSingleIndex(
        SGD.HermiteSeries({(2, 0, 0): 1.0, (0, 2, 0): 1.0, (0, 0, 2): 1.0}, True),
        3,
        SGD.Attention(),
        "orthonormal",
    )
    point = (0.3, -0.2, 0.1)
    for m, e, value in [
        (0.0, 0.0, 1.8757030607),
        (0.5, 0.0, 1.8259683949),
        (0.5, point, 1.8385000486),
        (1.0, 0.0, 1.6767643974),
    ]:
        assert float(SGD.risk(model, m, jnp.asarray(e)).value) == pytest.approx(value, abs=1e-10)


def test_hessians_of_the_figures():
    """[theory: online-sgd, Table 2] to 1e-12, by Hermite coefficients;
    h_n instead of He_n changes R_mm by √2 and not R_ee.

    The quartic of He4 is 2 √24 · 0.0490421560 = 0.480513032 by the coefficients of its own 7.1; it
    prints 0.480513052.
    """
    for terms, norm, R_mm, R_ee, quartic in [
        (HE2, "none", -0.563913555150, 1.038004107154, 0.0),
        (HE2, "sqrtL", -0.398747098850, 0.519002053577, 0.0),
        (HE4, "none", 0.0, 1.038004107154, 0.480513032),
        (HE4, "sqrtL", 0.0, 0.519002053577, 0.339774024),
        (MIXED, "none", 0.0, 0.095195065572, 0.720769548),
        (MIXED, "sqrtL", 0.0, -0.147664613090, 0.509661035),
    ]:
        model = trace(terms, norm)
        np.testing.assert_allclose(
            SGD.hessian_at_origin(model), [[R_mm, 0.0], [0.0, R_ee]], atol=1e-12
        )
        assert SGD.taylor(model, 4).get((4, 0), 0.0) == pytest.approx(quartic, abs=1e-9)
    normalised = smi.SequenceSingleIndex(
        SGD.HermiteSeries(HE2, True), 2, SGD.Attention(trace_norm="none"), "paired"
    )
    np.testing.assert_allclose(
        SGD.hessian_at_origin(normalised),
        [[-0.56391355515 / 2**0.5, 0], [0, 1.038004107154]],
        atol=1e-12,
    )


@pytest.mark.slow
def test_hessian_by_differentiation_is_the_closed_form():
    """At the origin; elsewhere the rate of change of the gradient (central differences, h = 1e-4:
    h² of the fourth
    derivative).
    """
    model = SGD.semantic_positional(0.67)
    np.testing.assert_allclose(SGD.hessian(model), SGD.hessian_at_origin(model), atol=1e-12)
    slope = jax.jit(lambda v: gradient(model, v))
    v, h = jnp.array([0.5, 0.4]), 1e-4
    np.testing.assert_allclose(
        slope(v), [-0.03204343, -0.02122950], atol=1e-7
    )  # [theory: online-sgd, Table 3]
    differences = np.stack([(slope(v + h * u) - slope(v - h * u)) / (2 * h) for u in jnp.eye(2)])
    np.testing.assert_allclose(SGD.hessian(model, 0.5, 0.4), differences, atol=1e-7)


@pytest.mark.slow
def test_hessians_of_the_semantic_positional_problem():
    """[theory: online-sgd, Table 4]."""
    known = [
        (0.0, 0.133260281, -0.220502338),
        (0.25, 0.050404879, -0.165376753),
        (0.64, -0.078849550, -0.079380842),
    ]
    for omega, R_ee, R_mm in [*known, (1.0, -0.198161330, 0.0)]:
        np.testing.assert_allclose(
            SGD.hessian(SGD.semantic_positional(omega)), np.diag([R_mm, R_ee]), atol=6e-10
        )


def test_derivatives_at_full_overlap():
    """∂_m C at m = 1 is E Σ_l ∂_l g ∂_l f there (Price), here by the formula that needs no
    derivative of g; and it is
    continuous.
    """
    p = SGD.semantic_positional(0.0).target
    p00 = jax.tree_util.Partial(lambda z: p(z)[0, :1])
    e = jnp.zeros(2)
    slope = jax.jit(lambda m: jax.jacfwd(lambda m: correlation(p00, p00, m, e))(m))
    assert float(slope(1.0)) == pytest.approx(
        0.1010508376176, abs=1e-12
    )  # [theory: online-sgd, Table 1]: E|∇p|²
    assert float(slope(-1.0)) == pytest.approx(-float(slope(1.0)), abs=1e-12)  # p is even
    near, nearer = float(slope(1.0 - 1e-3)), float(slope(1.0 - 1e-6))
    assert abs(nearer - slope(1.0)) < 2e-3 * abs(near - slope(1.0))


@SLOW
def test_derivatives_of_the_risk_at_full_overlap():
    """Those just inside; a sampled risk, which loses half of them there, says NaN."""
    model = SGD.semantic_positional(0.3)
    slope = jax.jit(jax.jacfwd(lambda m: risk_at(model, jnp.stack([m, 0.0])).value))
    for sign in (1.0, -1.0):
        assert float(slope(sign)) == pytest.approx(float(slope(sign * (1 - 1e-9))), rel=1e-7)
    sampled = smi.SequenceSingleIndex(lambda z: jnp.sum(z**2), 2, SGD.Network(jnp.square))
    assert np.isnan(
        jax.grad(lambda m: risk_at(sampled, m[None], jax.random.key(0), 256).value)(1.0)
    )


@pytest.mark.slow
def test_the_hessian_at_full_overlap():
    """That just inside."""
    model = SGD.semantic_positional(0.3)
    np.testing.assert_allclose(SGD.hessian(model, 1.0), SGD.hessian(model, 1.0 - 1e-8), atol=1e-6)


@pytest.mark.parametrize("row", [2.0, 8.0])
def test_long_rows_of_the_encoding_stay_on_the_grid(row):
    """F = g = z², one token: R = c (3 + E (ξ + μ)⁴ - 2 (1 + μ² + 2 m²)), μ = row · e."""
    model = smi.SequenceSingleIndex(lambda z: z[0] ** 2, 1, lambda z: z[0] ** 2, [[row]])
    mu, m = 0.9 * row, 0.2
    exact = 0.5 * (3 + mu**4 + 6 * mu**2 + 3 - 2 * (1 + mu**2 + 2 * m**2))
    found = SGD.risk(model, m, 0.9)
    assert float(found.value) == pytest.approx(exact, rel=1e-12)


def test_rules_near_full_overlap_agree():
    """√(1 - m²) = 1.3 steps, where the kernel gives way to nodes in ξ: both are right to 1e-11."""
    model = SGD.semantic_positional(0.64)
    step = np.sqrt(1 - 0.13**2)
    value = jax.jit(lambda m: risk_at(model, jnp.stack([m, 0.02])).value)
    at, around = value(step), [value(step + k * 1e-3) for k in (-2, -1, 1, 2)]
    smooth = (
        -around[0] + 4 * around[1] + 4 * around[2] - around[3]
    ) / 6  # cubic interpolation: h⁴ of a fourth derivative
    assert float(at) == pytest.approx(float(smooth), abs=1e-11)


def test_gradients_in_the_models_numbers():
    """Forward and reverse, against central differences (h = 1e-5: 1e-9)."""
    v, h = jnp.array([0.5, 0.4]), 1e-5
    value = jax.jit(lambda omega, a: risk_at(SGD.semantic_positional(omega, a), v).value)
    backward = jax.jit(jax.grad(lambda x: risk_at(SGD.semantic_positional(x[0], x[1]), v).value))(
        jnp.array([0.67, 0.9])
    )
    differences = [
        (value(0.67 + h, 0.9) - value(0.67 - h, 0.9)) / (2 * h),
        (value(0.67, 0.9 + h) - value(0.67, 0.9 - h)) / (2 * h),
    ]
    np.testing.assert_allclose(backward, differences, atol=1e-8)
    model = SGD.semantic_positional(0.67)
    np.testing.assert_allclose(
        jax.jit(jax.grad(lambda v: risk_at(model, v).value))(v),
        [-0.03204343, -0.02122950],
        atol=1e-7,
    )


def test_jit_and_map_are_the_loop():
    """A batch of points by lax.map and by vmap (which takes every rule at once), against one after
    the other.
    """
    model = smi.SequenceSingleIndex(lambda z: z[0] ** 2, 1, lambda z: jnp.tanh(z[0]) ** 2)
    points = jnp.linspace(-1.0, 1.0, 9)[:, None]
    value = lambda v: risk_at(model, v).value
    one_by_one = [float(SGD.risk(model, v[0]).value) for v in points]
    np.testing.assert_allclose(
        jax.jit(lambda p: jax.lax.map(value, p))(points), one_by_one, atol=1e-14
    )
    np.testing.assert_allclose(jax.jit(jax.vmap(value))(points), one_by_one, atol=1e-14)


def test_symmetries():
    model = trace(HE2)
    value = lambda m, e: float(SGD.risk(model, m, e).value)
    assert value(0.4, 0.3) == pytest.approx(value(-0.4, -0.3), abs=1e-12)  # F is even
    assert value(0.4, 0.3) == pytest.approx(value(-0.4, 0.3), abs=1e-12)  # g is even too


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_networks_with_a_series_against_averages(tied):
    """Risk and noise of the gradient as finite sums, against nets, in their standard errors; V(0)
    = 2 (L + 1).
    """
    target = SGD.HermiteSeries({(2, 0, 1): 0.5, (0, 2, 0): 0.8, (0, 0, 1): 0.3}, True)
    model = smi.SequenceSingleIndex(target, 3, SGD.Network(jax.nn.relu, tied), loss_factor=1.0)
    v = overlaps(model, 0.6 if tied else jnp.array([0.3, 0.5, 0.8]))
    slopes = jax.grad(model.sample_loss, argnums=1)
    square = lambda hidden, fields: jnp.sum(slopes(hidden, fields) ** 2)
    for exact, of in ((risk_at(model, v), model.sample_loss), (noise_at(model, v), square)):
        sampled = net_average(model, v, jax.random.key(1), 2**12, of)
        assert abs(float(sampled.value - exact.value)) < 5 * float(sampled.stderr)
    squares = smi.SequenceSingleIndex(
        SGD.HermiteSeries({(2, 0, 0): 1.0, (0, 2, 0): 1.0, (0, 0, 2): 1.0}, True),
        3,
        SGD.Network(jax.nn.relu, tied),
        loss_factor=1.0,
    )
    assert float(SGD.gradient_noise(squares).value) == pytest.approx(8.0, abs=1e-12)


@SLOW
def test_noise_of_attention():
    """Exact on the grid: against the averages of [theory: online-sgd, Tables 4 and 6] in their
    errors,
    and against nets here."""
    for omega, value in ((0.5, 0.02682), (0.64, 0.02787), (0.67, 0.02850), (0.8, 0.03283)):
        assert float(SGD.gradient_noise(SGD.semantic_positional(omega)).value) == pytest.approx(
            value, abs=1e-4
        )
    model = SGD.semantic_positional(0.67)
    exact = SGD.gradient_noise(model, 0.5, 0.4)
    assert float(exact.value) == pytest.approx(0.02705, abs=2e-5)
    slopes = jax.grad(model.sample_loss, argnums=1)
    square = lambda hidden, fields: jnp.sum(slopes(hidden, fields) ** 2)
    sampled = net_average(model, overlaps(model, 0.5, 0.4), jax.random.key(0), 2**13, square)
    assert abs(float(sampled.value - exact.value)) < 5 * float(sampled.stderr)


def test_sampled_risks_have_honest_errors():
    """z-scores of 40 independent estimates against the exact risk: mean square 1 within four of
    its standard deviations.
    """
    series_of_four = SGD.HermiteSeries({(2, 0, 0, 0): 1.0, (0, 1, 1, 0): 0.5}, True)
    exact = smi.SequenceSingleIndex(series_of_four, 4, SGD.Network(jax.nn.relu))
    sampled = smi.SequenceSingleIndex(lambda z: series_of_four(z), 4, SGD.Network(jax.nn.relu))
    value = SGD.risk(exact, 0.5).value
    found = jax.lax.map(lambda k: risk_at(sampled, jnp.array([0.5]), k, 2**8), keys(40))
    z = np.asarray((found.value - value) / found.stderr)
    # Student's t of 15 degrees of freedom has variance 15/13
    assert np.mean(z**2) == pytest.approx(15 / 13, abs=4 * 15 / 13 * np.sqrt(2.5 / 40))


def test_flatness_tells_curvature_from_escape():
    attention = SGD.flatness(trace(HE4))
    assert (attention.order, attention.escape) == (
        2,
        np.inf,
    )  # the encoding's curvature is positive
    assert SGD.flatness(trace(HE4, encoding=None)).order == 4
    assert SGD.flatness(trace({n: -c for n, c in HE4.items()}, encoding=None)).escape == 4
    down = SGD.flatness(trace(MIXED, "sqrtL"))
    assert (down.order, down.escape) == (2, 2)
    np.testing.assert_allclose(np.abs(down.direction), [0.0, 1.0], atol=1e-8)
    tiny = smi.SequenceSingleIndex(SGD.HermiteSeries(HE2), 2, loss_factor=1e-10)
    assert SGD.flatness(tiny)[:2] == (2, 2)  # c is a scale
    network = smi.SequenceSingleIndex(
        SGD.HermiteSeries(HE2, True), 2, SGD.Network(), loss_factor=1.0
    )
    assert SGD.hessian_at_origin(network)[0, 0] == pytest.approx(
        -2 / np.sqrt(np.pi), abs=1e-13
    )  # the kink costs nothing
    odd = smi.SequenceSingleIndex(lambda z: z[0] ** 3 - 3 * z[0], 1, lambda z: z[0] + z[0] ** 3)
    assert SGD.flatness(odd).escape == 3


def test_predicted_sample_complexity():
    """k = 1, 2, 3 in closed form for a student h_k, c = 1: R = 2 - 2 m^k."""
    for k, time in ((1, 0.5 / 2), (2, np.log(0.5 * 20) / 4), (3, (20 - 2) / 6)):
        model = smi.SequenceSingleIndex(
            SGD.HermiteSeries({(k,): 1.0}, True),
            1,
            SGD.HermiteSeries({(k,): 1.0}, True),
            loss_factor=1.0,
        )
        assert float(SGD.sample_complexity(model, 400, 0.01)) == pytest.approx(
            400 * time / 0.01, rel=1e-10
        )
    assert np.isinf(SGD.sample_complexity(trace(HE4, encoding=None), 400, 0.01))


# The chain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 57, 997])
def test_chi_square(count):
    """Mean n, variance 2n, third cumulant 8n, of 400 000 draws, within five standard errors."""
    tries, n = triangular.acceptance_tries(count), 400_000
    normals = jax.random.normal(jax.random.key(count), (n, 3, tries))
    x = np.asarray(triangular.chi_square(jnp.asarray(float(count)), normals))
    centred = x - count
    for moment, value in ((x, count), (centred**2, 2 * count), (centred**3, 8 * count)):
        assert abs(moment.mean() - value) < 5 * moment.std() / np.sqrt(n)


@pytest.mark.slow
def test_runs_do_not_depend_on_their_company_or_on_the_bar():
    model = SGD.semantic_positional(0.64)
    settings = {"dimension": 50, "gamma": 1.0, "steps": 300, "m": 0.3, "e": 0.1, "every": 50}
    together = SGD.simulate(model, keys(3), **settings)
    for k, key in enumerate(keys(3)):
        alone = SGD.simulate(model, key, **settings, progress=True)
        np.testing.assert_allclose(together.overlaps[k], alone.overlaps[0], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(together.step, np.arange(0, 301, 50))
    np.testing.assert_allclose(together.overlaps[:, -1], together.end, atol=0)
    assert (np.asarray(together.result) == Result.SUCCESS).all()


@pytest.mark.slow
def test_runs_stop_where_they_are_told_and_say_when_they_arrived():
    model = SGD.semantic_positional(0.2)
    found = SGD.simulate(
        model, keys(4), dimension=50, gamma=2.0, steps=20_000, m=0.6, eta=0.7, until=0.8, every=64
    )
    size = np.linalg.norm(np.asarray(found.end), axis=1)
    assert (np.asarray(found.result) == Result.SUCCESS).all()
    assert ((size >= 0.8) & (size < 0.95)).all()
    assert (
        (np.asarray(found.reached) > 0) & (np.asarray(found.reached) <= np.asarray(found.steps))
    ).all()
    seen = np.asarray(found.overlaps)
    after = np.asarray(found.step)[None] > np.asarray(found.steps)[:, None]
    np.testing.assert_array_equal(np.isnan(seen[..., 0]), after)
    short = SGD.simulate(
        model, keys(2), dimension=50, gamma=0.01, steps=10, m=0.6, eta=0.7, until=0.8
    )
    assert (np.asarray(short.result) == Result.MAX_STEPS).all()
    assert np.isinf(np.asarray(short.reached)).all()


@pytest.mark.parametrize("method", ["reduced", pytest.param("full", marks=pytest.mark.slow)])
def test_the_last_record_may_come_early(method):
    found = SGD.simulate(
        SGD.semantic_positional(0.6),
        keys(2),
        dimension=20,
        gamma=0.5,
        steps=100,
        every=30,
        method=method,
    )
    np.testing.assert_array_equal(found.step, [0, 30, 60, 90, 100])
    np.testing.assert_array_equal(found.overlaps[:, -1], found.end)


@pytest.mark.slow
def test_an_untied_network_of_one_token_has_a_vector_of_one_overlap():
    model = smi.SequenceSingleIndex(
        SGD.HermiteSeries({(2,): 1.0}, True), 1, SGD.Network(jax.nn.relu, tied=False)
    )
    runs = SGD.simulate(model, keys(2), dimension=20, gamma=0.1, steps=4, every=2)
    assert runs.m.shape == (2, 3, 1)
    assert SGD.flow(model, 0.3, times=[0.1, 0.2], gamma=0.1).m.shape == (2, 1)


def test_one_compilation_for_all_numbers():
    settings = {"steps": 10, "m": 0.3, "e": 0.1}
    SGD.simulate(SGD.semantic_positional(0.64), keys(2), dimension=500, gamma=1.0, **settings)
    with compilations() as names:
        _vary_everything(settings)
    assert not [name for name in names if "advance" in name or "run" in name], names


def _vary_everything(settings):
    for omega, gamma, dimension in ((0.5, 1.0, 500), (0.64, 0.3, 600), (0.7, 0.2, 5000)):
        SGD.simulate(
            SGD.semantic_positional(omega), keys(2), dimension=dimension, gamma=gamma, **settings
        )


def test_data_of_the_model():
    data = SGD.semantic_positional(0.3).sample(jax.random.key(0), dimension=20, samples=7)
    assert data.inputs.shape == (7, 2, 20)
    assert data.labels.shape == (7, 2, 2)
    assert float(jnp.linalg.norm(data.teacher)) == pytest.approx(np.sqrt(20))


# What is refused ----------------------------------------------------------------------------------

MODEL = SGD.semantic_positional(0.5)
NETWORK = smi.SequenceSingleIndex(series(HE2), 2, SGD.Network())
RUN = {"dimension": 100, "gamma": 0.1, "steps": 10}
REFUSED = {
    "length": lambda: smi.SequenceSingleIndex(jnp.sum, 0),
    "paired": lambda: smi.SequenceSingleIndex(jnp.sum, 3, encoding="paired"),
    "encoding's shape": lambda: smi.SequenceSingleIndex(jnp.sum, 2, encoding=jnp.ones((3, 2))),
    "encoding not finite": lambda: smi.SequenceSingleIndex(
        jnp.sum, 2, encoding=jnp.array([[1.0], [jnp.nan]])
    ),
    "encoding of a network": lambda: smi.SequenceSingleIndex(jnp.sum, 2, SGD.Network(), "paired"),
    "loss": lambda: smi.SequenceSingleIndex(jnp.sum, 2, loss="l1"),
    "loss_factor": lambda: smi.SequenceSingleIndex(jnp.sum, 2, loss_factor=0.0),
    "reduction": lambda: SGD.Attention("mean"),
    "trace_norm": lambda: SGD.Attention("trace", "L"),
    "bilinear without vectors": lambda: SGD.Attention("bilinear"),
    "bilinear of norm zero": lambda: SGD.Attention(
        "bilinear", left=jnp.zeros(2), right=jnp.ones(2)
    ),
    "bilinear of another length": lambda: smi.SequenceSingleIndex(
        jnp.sum, 2, SGD.Attention("bilinear", left=jnp.ones(3), right=jnp.ones(3))
    ),
    "a series of another length": lambda: smi.SequenceSingleIndex(
        SGD.HermiteSeries({(2,): 1.0}), 2
    ),
    "no second moment": lambda: SGD.risk(
        smi.SequenceSingleIndex(lambda z: jnp.exp(z[0] ** 2), 1, lambda z: z[0]), 0.3
    ),
    "longest": lambda: SGD.recovery_time(NETWORK, 0.1, longest=-1.0),
    "another shape": lambda: smi.SequenceSingleIndex(lambda z: z, 2),
    "complex": lambda: smi.SequenceSingleIndex(lambda z: 1j * jnp.sum(z), 2),
    "not finite": lambda: smi.SequenceSingleIndex(lambda z: jnp.log(-(jnp.sum(z) ** 2)), 2),
    "no terms": lambda: SGD.HermiteSeries({}),
    "negative degree": lambda: SGD.HermiteSeries({(-1,): 1.0}),
    "omega": lambda: SGD.semantic_positional(1.1),
    "a": lambda: SGD.semantic_positional(0.5, 0.0),
    "outside the ball": lambda: SGD.risk(MODEL, 0.9, 0.9),
    "e without encoding": lambda: SGD.risk(trace(HE2, encoding=None), 0.1, 0.1),
    "key": lambda: SGD.risk(SGD.semantic_positional(0.5, loss="frobenius"), 0.1),
    "infinite second moment": lambda: SGD.information_exponent(lambda z: jnp.exp(z[0] ** 2 / 2), 1),
    "tolerance": lambda: SGD.information_exponent(jnp.sum, 1, tolerance=0.0),
    "degree": lambda: SGD.information_exponent(jnp.sum, 1, degree=0),
    "many tokens without a key": lambda: SGD.information_exponent(jnp.sum, 6),
    "dimension": lambda: SGD.simulate(MODEL, keys(1), **(RUN | {"dimension": 3})),
    "gamma": lambda: SGD.simulate(MODEL, keys(1), **(RUN | {"gamma": 0.0})),
    "steps": lambda: SGD.simulate(MODEL, keys(1), **(RUN | {"steps": 0})),
    "eta": lambda: SGD.simulate(MODEL, keys(1), **RUN, eta=1.0),
    "eta below the start": lambda: SGD.simulate(MODEL, keys(1), **RUN, m=0.6, eta=0.5),
    "until": lambda: SGD.simulate(MODEL, keys(1), **RUN, until=1.5),
    "method": lambda: SGD.simulate(MODEL, keys(1), **RUN, method="exact"),
    "flow from the origin": lambda: SGD.flow(MODEL, 0.0, times=[1.0]),
    "times": lambda: SGD.flow(NETWORK, 0.1, times=[1.0, 0.5]),
    "flow's gamma": lambda: SGD.flow(NETWORK, 0.1, times=[1.0], gamma=-1.0),
    "flow's eta": lambda: SGD.recovery_time(NETWORK, 0.1, eta=2.0),
    "omega of the diagram": lambda: SGD.phase_diagram(0.9, 1.0),
    "transition": lambda: SGD.transition(1.2),
    "gain's schedule": lambda: SGD.gain(jax.random.key(0), schedule="cubic"),
    "gain's lengths": lambda: SGD.gain(jax.random.key(0), ()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    with pytest.raises(ValueError, match="allowed"):
        REFUSED[name]()


def test_out_of_range_under_jit_is_nan():
    value = jax.jit(lambda m: SGD.risk(NETWORK, m).value)
    assert np.isnan(value(1.5))
    assert np.isfinite(value(0.5))
    second = jax.jit(lambda m: SGD.hessian(NETWORK, m))
    assert np.all(np.isnan(second(1.5)))
    assert np.all(np.isfinite(second(0.5)))
