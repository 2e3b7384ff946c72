"""Online SGD: expansions, risks and their derivatives, the chain of the overlaps, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import jaxsmi as smi
from helpers import averages_of_nets, compilations, differences, keys, slow_but, z_scores
from jaxsmi.core.results import Result
from jaxsmi.numerics import linear_algebra
from jaxsmi.sgd.hermite import TokenGrid, activation_coefficients, correlation
from jaxsmi.sgd.leaps import sampled_expansion
from jaxsmi.sgd.problem import pair_of

SGD = smi.sgd
SLOW = pytest.mark.slow
KEY = jax.random.key(0)
HE2, HE4 = {(2, 0): 1.0, (0, 2): 1.0}, {(4, 0): 1.0, (0, 4): 1.0}
MIXED = {(0, 0): 4 / 3, (4, 0): 1.0, (0, 4): 2.0}
series = SGD.HermiteSeries


def trace(terms, norm="none", encoding="paired"):
    return smi.SequenceSingleIndex(series(terms), 2, SGD.Attention(trace_norm=norm), encoding)


def network(terms, tied=True):
    length = len(next(iter(terms)))
    return smi.SequenceSingleIndex(
        series(terms, True), length, SGD.Network(jax.nn.relu, tied), loss_factor=1.0
    )


def value(model, *v):
    return float(SGD.risk(model, jnp.stack([jnp.asarray(x) for x in v])).value)


# Expansions ---------------------------------------------------------------------------------------


def test_hermite_coefficients_of_the_softmax():
    """[theory: online-sgd, Table 1]: error 1e-13 of its last digit."""
    softmax = lambda z: jax.nn.softmax(z[:, None] * z, axis=-1)[0, 0]
    p = np.asarray(SGD.coefficients(softmax, 2, 4))[..., 0]
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
    np.testing.assert_allclose([p[n] for n in known], list(known.values()), atol=1e-13)


EXPONENTS = {
    "sum": (lambda z: z[0] + z[1], 2, 1, 2.0),
    "product": (lambda z: z[0] * z[1], 2, 2, 1.0),
    "four tokens": (series({(1, 4, 0, 0): 1.0, (0, 0, 2, 2): 1.0}), 4, 4, 4.0),
    "He2 He3": (series({(2, 3): 1.0}), 2, 5, 12.0),
    "mixed": (series(MIXED), 2, 4, 120.0),
    "difference": (lambda z: z[0] - z[1], 2, 1, 2.0),
    "linear hides product": (lambda z: z[0] + z[0] * z[1], 2, 1, 1.0),
    "cancellation": (lambda z: z[0] ** 2 * jnp.exp(-(z[0] ** 2)), 1, 4, 0.002743),
    "softmax": (lambda z: jax.nn.softmax(z[:, None] * z, axis=-1)[0, 0], 2, 2, 0.027563),
    "trace": (SGD.Attention(trace_norm="none"), 2, 2, 0.065063),
}


@pytest.mark.parametrize(
    "name",
    slow_but(EXPONENTS, *(set(EXPONENTS) - {"He2 He3", "difference", "linear hides product"})),
)
def test_information_exponents(name):
    """[theory: online-sgd, Table 9]: to its last digit."""
    target, length, order, level = EXPONENTS[name]
    found = SGD.exponents(target, length)
    assert (found.order, found.status) == (order, "found")
    assert found.levels[order] == pytest.approx(level, abs=6e-7)


def test_exponents_of_a_kink_and_of_poles():
    """P_2(|z|) = 1/π: the trapezoidal rule at a kink is good to 4e-4 here; tanh(z_1 z_2) against
    quadrature with the density K_0(|w|)/π of w = z_1 z_2."""
    kink = SGD.exponents(lambda z: jnp.abs(z[0]), 1)
    assert kink.order == 2
    assert kink.levels[2] == pytest.approx(1 / np.pi, rel=1e-3)
    poles = SGD.exponents(lambda z: jnp.tanh(z[0] * z[1]), 2)
    exact = 2 * integrate.quad(lambda w: w * np.tanh(w) * special.k0(w) / np.pi, 0, 60)[0]
    assert poles.levels[2] == pytest.approx(exact**2, abs=1e-8)


@pytest.mark.slow
def test_constant_undetermined_and_blind():
    constant = SGD.exponents(lambda z: 1.0 + 0.0 * z[0], 1)
    assert (constant.order, constant.status) == (None, "constant")
    beyond = SGD.exponents(series({(5,): 1.0}), 1, degree=4)
    assert (beyond.order, beyond.status) == (None, "undetermined")
    for target in (lambda z: z[0] - z[1], lambda z: z[0] ** 2 - z[1] ** 2):
        blind = SGD.exponents(target, 2, student=SGD.Network(jax.nn.relu))
        assert blind.student_order is None  # the contraction with 1 vanishes
    even = SGD.exponents(lambda z: z[0] + z[0] * z[1], 2, student=SGD.LinearAttention())
    assert (even.order, even.student_order) == (1, 2)


LEAPS = {  # exponent and largest leap of labels, and of functions of them
    "He3": (lambda z: z[0, 0] ** 3 - 3 * z[0, 0], 1, (3, 3), (1, 1)),
    "He4": (lambda z: z[0, 0] ** 4 - 6 * z[0, 0] ** 2 + 3, 1, (4, 4), (2, 2)),
    "one by one": (lambda z: z[0, 0] * (1 + z[1, 0] + z[1, 0] * z[2, 0]), 3, (1, 1), (1, 1)),
    "nothing": (lambda z: 1.0 + 0.0 * z[0, 0], 1, (None, None), (None, None)),
}


@pytest.mark.parametrize("name", slow_but(LEAPS, "He3", "nothing"))
def test_exponents_and_leaps(name):
    """[theory: online-sgd, Table 11]."""
    link, indices, *known = LEAPS[name]
    model = smi.MultiIndex(link, indices=indices, noise=0.3)
    for generative, pair in zip((False, True), known, strict=True):
        found = SGD.exponents(model, generative=generative)
        assert (found.order, found.leap) == pair


def test_coefficients_of_five_fields_have_honest_errors():
    """Sign of a product of five: E y h_n = (2/π)^{5/2} at n = (1, .., 1), at |n| = 7 with one order
    three (2/π)^{5/2}/(-√6), else zero up to there. All 792 within the width of 32 nets, and χ² of
    their deviations that of Student's law of 31 degrees, 31/29."""
    found = sampled_expansion(lambda z: jnp.prod(jnp.sign(z)), 5, 7, KEY, 2**8)
    odd = np.sort(found.orders, axis=1)
    exact = np.zeros(len(odd))
    exact[(odd == [1, 1, 1, 1, 1]).all(1)] = (2 / np.pi) ** 2.5
    exact[(odd == [1, 1, 1, 1, 3]).all(1)] = -((2 / np.pi) ** 2.5) / 6**0.5
    z = (found.value[:, 0] - exact)[1:] / found.stderr[1:, 0]
    assert np.abs(z).max() < found.width
    assert float(np.mean(z**2)) == pytest.approx(31 / 29, rel=0.2)
    assert found.orders[found.is_nonzero(1e-10)][0].tolist() == [1, 1, 1, 1, 1]
    assert found.variance == pytest.approx(1.0, abs=0.02)


FIVE = [(5, (0, 1, 2, 3, 4))]
LARGE = {  # rows of each leap, of labels and of functions of them: parity and degree decide
    "product of five": (lambda z: jnp.prod(z[:, 0]), (5, 1), FIVE, [(2, (0, 1, 2, 3, 4))]),
    "parity of five": (lambda z: jnp.sign(jnp.prod(z[:, 0])), (5, 1), FIVE, FIVE),
    "attention of three tokens": (None, (2, 3), [(2, (0, 1))], [(2, (0, 1))]),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW) for n in LARGE])
def test_leaps_of_more_than_four_fields(name):
    link, (P, M), *known = LARGE[name]
    model = smi.MultiIndex(link, indices=P, tokens=M) if link else smi.DeepAttention(P, M)
    for generative, steps in zip((False, True), known, strict=True):
        found = SGD.exponents(model, generative=generative)
        assert list(found.steps) == steps
        assert found.hidden < 0.35


@SLOW
def test_sampled_exponents_and_those_of_links():
    product = lambda z: z[0] * z[1] + (z[2] ** 3 - 3 * z[2]) * z[3]
    found = SGD.exponents(product, 6, degree=4, student=SGD.Network(jax.nn.relu))
    assert (found.order, found.student_order) == (2, 2)
    # one of the two is a list of terms, or on a grid: both are sampled
    terms = series({(2, 0, 0, 0, 0): 1.0, (1, 1, 0, 0, 0): 1.0})
    assert SGD.exponents(terms, 5, degree=3, student=SGD.Network(jax.nn.relu)).student_order == 2
    signs = lambda z: jnp.sign(z[0] * z[1] * z[2])
    assert SGD.exponents(signs, 3, degree=3, student=series({(1, 1, 1): 1.0})).student_order == 3
    assert (np.abs(found.levels[2:5] - [1.0, 0.0, 6.0]) < 5 * found.errors[2:5]).all()
    parity = SGD.exponents(smi.links.square_plus_sign_parity(), generative=True)
    assert parity.steps == ((2, (0,)), (2, (1, 2)))
    assert SGD.exponents(smi.links.sign_product(3)).order == 3
    assert SGD.exponents(smi.links.logistic(), generative=True).order == 1
    assert SGD.exponents(smi.links.door()).order == 2
    assert SGD.exponents(SGD.semantic_positional(0.3)).order == 2


def test_series_and_activations():
    """g² token by token; ReLU c = 1/√(2π), 1/2, 1/(2√π), 0; E erf(x) x = 2/√(3π)."""
    one = series({(2, 0): 0.7, (1, 3): -0.4, (0, 0): 0.2})
    for z in np.random.default_rng(0).normal(size=(5, 2)):
        assert float(one.squared()(jnp.asarray(z))) == pytest.approx(float(one(z)) ** 2, rel=1e-12)
    relu = activation_coefficients(jax.nn.relu, 3)
    known = [1 / np.sqrt(2 * np.pi), 0.5, 1 / (2 * np.sqrt(np.pi)), 0.0]
    np.testing.assert_allclose(relu, known, atol=1e-14)
    smooth = activation_coefficients(jax.scipy.special.erf, 1)
    np.testing.assert_allclose(smooth, [0.0, 2 / np.sqrt(3 * np.pi)], atol=1e-14)


# Risk ---------------------------------------------------------------------------------------------

POINTS = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]
RISKS = {  # [theory: online-sgd, Table 3], at POINTS
    "He2": "2.877498426837 2.807009232444 3.000316281631 2.964138567939 2.595541649262"
    " 3.296065810212",
    "He2, √2": "2.438749213419 2.388905826063 2.500158140816 2.474576634136 2.239375663994"
    " 2.648032905106",
    "mixed, √2": "60.108686685810 60.140540500521 60.091760214930 60.103697895859 60.618347721177"
    " 60.055657483973",
}


@pytest.mark.parametrize("name", [n if n == "He2" else pytest.param(n, marks=SLOW) for n in RISKS])
def test_risks_of_two_tokens(name):
    model = trace(MIXED if "mixed" in name else HE2, "sqrtL" if "√2" in name else "none")
    for point, known in zip(POINTS, map(float, RISKS[name].split()), strict=True):
        found = SGD.risk(model, point)
        assert float(found.value) == pytest.approx(known, abs=1e-12 * max(known, 2.0))
        assert float(found.stderr) < 1e-10


def test_risks_of_the_semantic_positional_problem():
    """[theory: online-sgd, Table 3]; one compilation serves all ω and a."""
    known = [
        (0.67, 1.0, 0.0, 0.0, 0.1317520759470),
        (0.67, 1.0, 1.0, 0.0, 0.0826822321808),
        (0.67, 1.0, 0.0, 1.0, 0.1015513481809),
        (0.67, 1.0, 0.5, 0.4, 0.1175037043688),
        (0.67, 1.0, 0.3, 0.8, 0.1086606621182),
        (0.64, 1.0, 0.6, 0.5, 0.1096583311452),
        (0.95, 0.76, 0.6, 0.5, 0.0945985812170),
    ]
    for omega, a, m, e, exact in known:
        assert value(SGD.semantic_positional(omega, a), m, e) == pytest.approx(exact, abs=1e-12)


@SLOW
def test_risks_of_three_tokens():
    """[theory: online-sgd, Table 3]: error 1e-10."""
    terms = {(2, 0, 0): 1.0, (0, 2, 0): 1.0, (0, 0, 2): 1.0}
    model = smi.SequenceSingleIndex(series(terms, True), 3, SGD.Attention(), "orthonormal")
    for v, exact in [
        ((0.5, 0.0, 0.0, 0.0), 1.8259683949),
        ((0.5, 0.3, -0.2, 0.1), 1.8385000486),
        ((1.0, 0.0, 0.0, 0.0), 1.6767643974),
    ]:
        assert value(model, *v) == pytest.approx(exact, abs=1e-10)


def test_series_of_the_risk():
    """[theory: online-sgd, Table 2] to 1e-12: R_mm, R_ee and the quartic of m. (That of He4 is
    2 √24 · 0.0490421560 = 0.480513032 by the coefficients of Table 1; Table 2 prints ..052.)"""
    for terms, norm, R_mm, R_ee, quartic in [
        (HE2, "none", -0.563913555150, 1.038004107154, 0.0),
        (HE4, "none", 0.0, 1.038004107154, 0.480513032),
        (MIXED, "sqrtL", 0.0, -0.147664613090, 0.509661035),
    ]:
        found = SGD.flatness(trace(terms, norm), 4).series
        at = lambda *n, found=found: found.get(n, 0.0)
        np.testing.assert_allclose([2 * at(2, 0), 2 * at(0, 2)], [R_mm, R_ee], atol=1e-12)
        assert at(4, 0) == pytest.approx(quartic, abs=1e-9)


@pytest.mark.slow
def test_flatness_tells_curvature_from_escape():
    attention = SGD.flatness(trace(HE4))
    assert (attention.order, attention.escape) == (2, np.inf)  # the encoding's is positive
    assert SGD.flatness(trace(HE4, encoding=None)).order == 4
    assert SGD.flatness(trace({n: -c for n, c in HE4.items()}, encoding=None)).escape == 4
    down = SGD.flatness(trace(MIXED, "sqrtL"))
    assert (down.order, down.escape) == (2, 2)
    np.testing.assert_allclose(np.abs(down.direction), [0.0, 1.0], atol=1e-8)
    tiny = smi.SequenceSingleIndex(series(HE2), 2, loss_factor=1e-10)
    assert SGD.flatness(tiny)[:2] == (2, 2)  # c is a scale
    # a kink costs the coefficients of a network nothing
    curvature = 2 * SGD.flatness(network(HE2)).series[2,]
    assert curvature == pytest.approx(-2 / np.sqrt(np.pi), abs=1e-13)
    odd = smi.SequenceSingleIndex(lambda z: z[0] ** 3 - 3 * z[0], 1, lambda z: z[0] + z[0] ** 3)
    assert SGD.flatness(odd).escape == 3


@SLOW
def test_hessians():
    """[theory: online-sgd, Table 4]; elsewhere the change of the gradient (central differences,
    h = 1e-4: h² of the fourth derivative); at full overlap that just inside."""
    for omega, R_ee, R_mm in [(0.0, 0.133260281, -0.220502338), (0.64, -0.078849550, -0.079380842)]:
        H = SGD.hessian(SGD.semantic_positional(omega), [0.0, 0.0])
        np.testing.assert_allclose(H, np.diag([R_mm, R_ee]), atol=6e-10)
    model = SGD.semantic_positional(0.67)
    slope = lambda *v: np.asarray(SGD.averages(model, v)[0].teacher_gradient[0])
    v = (0.5, 0.4)
    np.testing.assert_allclose(slope(*v), [-0.03204343, -0.02122950], atol=1e-7)
    np.testing.assert_allclose(SGD.hessian(model, v), differences(slope, v, 1e-4), atol=1e-7)
    inside, at = (SGD.hessian(model, [m, 0.0]) for m in (1.0 - 1e-8, 1.0))
    np.testing.assert_allclose(inside, at, atol=1e-6)
    # the rules change at 1.6 steps, 0.9871: no jump there (curvature times h² is 1e-7)
    below, between, above = (SGD.hessian(model, [m, 0.0]) for m in (0.9870, 0.9871, 0.9872))
    np.testing.assert_allclose(0.5 * (below + above), between, atol=1e-6)


@SLOW
def test_derivatives_at_full_overlap():
    """∂_m C at m = 1 is E|∇p|² (Price) and continuous; that of a sampled risk is NaN there."""
    p00 = jax.tree_util.Partial(lambda z: SGD.Attention("identity")(z)[0, :1])
    grid = TokenGrid.of(2)
    slope = jax.jit(jax.jacfwd(lambda m: correlation(p00, p00, m, jnp.zeros(2), grid, grid)))
    assert float(slope(1.0)) == pytest.approx(0.1010508376176, abs=1e-12)  # Table 1
    assert float(slope(-1.0)) == pytest.approx(-float(slope(1.0)), abs=1e-12)  # p is even
    near, nearer = float(slope(1.0 - 1e-3)), float(slope(1.0 - 1e-6))
    assert abs(nearer - slope(1.0)) < 2e-3 * abs(near - slope(1.0))
    square = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1)
    few = smi.Averages(points=2**13, nets=4)
    risk = lambda m: SGD.risk(square, ([[m]], [[1.0]]), key=KEY, averages=few).value
    assert np.isnan(jax.grad(risk)(1.0))
    assert jax.grad(risk)(0.9) == pytest.approx(-7.2, abs=0.3)  # -8 m, on coarse nets


@pytest.mark.parametrize("row", [2.0, 8.0])
def test_long_rows_of_the_encoding_stay_on_the_grid(row):
    """F = g = z², one token: R = c (3 + E (ξ + μ)⁴ - 2 (1 + μ² + 2 m²)), μ = row · e."""
    model = smi.SequenceSingleIndex(lambda z: z[0] ** 2, 1, lambda z: z[0] ** 2, [[row]])
    mu, m = 0.9 * row, 0.2
    exact = 0.5 * (3 + mu**4 + 6 * mu**2 + 3 - 2 * (1 + mu**2 + 2 * m**2))
    assert value(model, m, 0.9) == pytest.approx(exact, rel=1e-12)


def test_gradients_in_the_models_numbers_and_through_closures():
    """Reverse against central differences (h = 1e-5: 1e-9); a target that closes over a number."""
    v = jnp.array([0.5, 0.4])
    risk = jax.jit(lambda *x: SGD.risk(SGD.semantic_positional(*x), v).value)
    at = (0.67, 0.9)
    np.testing.assert_allclose(jax.grad(risk, (0, 1))(*at), differences(risk, at), atol=1e-8)
    closed = lambda c: smi.SequenceSingleIndex(lambda z: c * z[0] ** 2, 1, lambda z: z[0] ** 2)
    slope = jax.grad(lambda c: SGD.risk(closed(c), 0.5).value)(1.2)
    assert float(slope) == pytest.approx(0.5 * (6 * 1.2 - 2 * 1.5), rel=1e-12)  # c² 3 - 2c (1+2m²)


def test_jit_and_map_are_the_loop_and_out_of_range_is_nan():
    model = smi.SequenceSingleIndex(lambda z: z[0] ** 2, 1, lambda z: jnp.tanh(z[0]) ** 2)
    points = jnp.linspace(-1.0, 1.0, 9)
    risk = lambda v: SGD.risk(model, v).value
    loop = [float(risk(v)) for v in points]
    np.testing.assert_allclose(jax.jit(lambda p: jax.lax.map(risk, p))(points), loop, atol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.vmap(risk))(points), loop, atol=1e-14)
    assert np.isnan(jax.jit(risk)(1.5))
    second = jax.jit(lambda m: SGD.hessian(network(HE2), m))
    assert np.isnan(second(1.5)).all()
    assert np.isfinite(second(0.5)).all()


@SLOW
@pytest.mark.parametrize("name", ["tied", "untied", "attention"])
def test_averages_without_sampling_are_those_of_nets(name):
    """Risk and noise as finite sums and on grids, in standard errors of nets; up to a multiple of v
    the projection of the gradient, too."""
    terms = {(2, 0, 1): 0.5, (0, 2, 0): 0.8, (0, 0, 1): 0.3}
    model, v = {
        "tied": (network(terms), [0.6]),
        "untied": (network(terms, tied=False), [0.3, 0.5, 0.8]),
        "attention": (SGD.semantic_positional(0.67), [0.5, 0.4]),
    }[name]
    pair, exact = pair_of(model), SGD.averages(model, v)[0]
    M, Q = np.reshape(v, (pair.groups, pair.fixed)), np.eye(pair.groups)
    found = averages_of_nets(model, M, Q, 2**12, 16, jax.random.key(1))
    trace = lambda x: jnp.trace(x, axis1=-2, axis2=-1)
    for sampled, known in (
        (found.risk, exact.risk),
        (trace(found.gradient_noise), trace(exact.gradient_noise)),
    ):
        assert abs(z_scores(sampled, known)) < 5
    if name == "attention":  # along the direction that turns v
        turn = np.array([0.4, -0.5])
        slope = np.asarray(found.teacher_gradient)[:, 0] @ turn
        assert abs(z_scores(slope, exact.teacher_gradient[0] @ turn)) < 5
        for omega, V in ((0.5, 0.02682), (0.8, 0.03283)):  # [theory: online-sgd, Table 4]
            square = SGD.averages(SGD.semantic_positional(omega), [0.0, 0.0])[0].gradient_noise
            assert float(square[0, 0]) == pytest.approx(V, abs=1e-4)


@SLOW
def test_sampled_risks_have_honest_errors():
    """z-scores of 40 independent estimates against the exact risk: Student's t of 15 degrees of
    freedom has variance 15/13, within four standard deviations."""
    terms = {(2, 0, 0, 0): 1.0, (0, 1, 1, 0): 0.5}
    exact = network(terms)
    same = series(terms, True)
    model = smi.SequenceSingleIndex(lambda z: same(z), 4, SGD.Network(jax.nn.relu), loss_factor=1.0)
    few = smi.Averages(points=2**12, nets=16)
    estimate = lambda k: SGD.risk(model, 0.5, key=k, averages=few)
    found = jax.jit(lambda k: jax.lax.map(estimate, k))(keys(40))
    z = np.asarray((found.value - SGD.risk(exact, 0.5).value) / found.stderr)
    assert np.mean(z**2) == pytest.approx(15 / 13, abs=4 * 15 / 13 * np.sqrt(2.5 / 40))


# The chain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 57, 997])
def test_chi_square(count):
    """Mean n, variance 2n, third cumulant 8n, of 400 000 draws, within five standard errors."""
    tries, n = linear_algebra.acceptance_tries(count), 400_000
    normals = jax.random.normal(jax.random.key(count), (n, 3, tries))
    x = np.asarray(linear_algebra.chi_square(jnp.asarray(float(count)), normals))
    centred = x - count
    for moment, known in ((x, count), (centred**2, 2 * count), (centred**3, 8 * count)):
        assert abs(moment.mean() - known) < 5 * moment.std() / np.sqrt(n)


@SLOW
def test_runs_do_not_depend_on_their_company_or_on_the_bar():
    model = SGD.semantic_positional(0.64)
    settings = {"dimension": 50, "rate": 1.0, "alpha": 6.0, "start": (0.3, 0.1)}
    together = SGD.simulate(model, keys(3), monitor=smi.Monitor(every=70), **settings)
    bar = smi.Monitor(every=70, progress=True)
    alone = SGD.simulate(model, keys(3)[1], monitor=bar, **settings)
    np.testing.assert_allclose(together.teacher_overlap[1], alone.teacher_overlap[0], atol=1e-14)
    np.testing.assert_array_equal(together.step, [0, 70, 140, 210, 280, 300])  # the last is early
    np.testing.assert_array_equal(together.teacher_overlap[:, -1], together.end)
    assert (np.asarray(together.result) == Result.SUCCESS).all()
    np.testing.assert_array_equal(together.gram, np.broadcast_to(np.eye(2), (3, 2, 2)))


@SLOW
def test_runs_stop_at_their_target_and_tell_when_they_arrived():
    run = {"dimension": 50, "start": (0.6, 0.0)}
    model = SGD.semantic_positional(0.2)
    watch = smi.Monitor(level=0.7, target=0.8, every=64)
    found = SGD.simulate(model, keys(4), rate=2.0, alpha=400.0, monitor=watch, **run)
    size = np.linalg.norm(np.asarray(found.end), axis=(1, 2))
    assert (np.asarray(found.result) == Result.SUCCESS).all()
    assert ((size >= 0.8) & (size < 0.95)).all()
    reached, steps = np.asarray(found.reached), np.asarray(found.steps)
    assert ((reached > 0) & (reached <= steps)).all()
    after = np.asarray(found.step)[None] > steps[:, None]
    np.testing.assert_array_equal(np.isnan(found.teacher_overlap[:, :, 0, 0]), after)
    short = SGD.simulate(model, keys(2), rate=0.01, alpha=0.2, monitor=watch, **run)
    assert (np.asarray(short.result) == Result.MAX_STEPS).all()
    assert np.isinf(np.asarray(short.reached)).all()


def test_one_compilation_for_all_numbers():
    run = lambda omega, rate, D: SGD.simulate(
        SGD.semantic_positional(omega), keys(2), dimension=D, rate=rate, alpha=10 / D, start=0.3
    )
    run(0.64, 1.0, 500)
    with compilations() as names:
        for omega, rate, dimension in ((0.5, 1.0, 500), (0.64, 0.3, 600), (0.7, 0.2, 5000)):
            run(omega, rate, dimension)
    assert not [name for name in names if "advance" in name or "run" in name], names


@SLOW
def test_a_student_of_more_rows_has_the_cosine_of_its_nearest_teacher():
    link = lambda z: jnp.sum(jax.scipy.special.erf(z[:, 0]))
    teacher, student = (smi.MultiIndex(link, indices=p, tokens=1) for p in (2, 3))
    start = (np.array([[0.1, 0.5], [0.3, 0.0], [0.2, 0.2]]), np.eye(3))
    runs = SGD.simulate(
        teacher, KEY, student=student, dimension=20, rate=0.1, alpha=0.05, start=start
    )
    np.testing.assert_allclose(runs.cosine[0, 0], [0.5, 0.3, 0.2])
    assert np.isnan(runs.distance).all()
    assert runs.teacher_overlap.shape == (1, 2, 3, 2)


@SLOW
def test_labels_of_signs_are_learned_by_a_line():
    """Predictions (1,) of labels ()."""
    rule = SGD.Rule(0.3, gradient=smi.Gradient(loss=smi.losses.logistic))
    line = smi.links.linear()
    run = {"dimension": 100, "rate": rule, "alpha": 10.0, "student": line}
    assert (SGD.simulate(smi.links.sign(), keys(4), **run).final > 0.5).all()


@SLOW
def test_the_rate_of_a_sample():
    """κ = c η/(1 - β); runs have it, and time is κ α."""
    for reduction, kappa in (("mean", 0.1 / 4), ("sum", 0.1), ("sum/D", 0.1 / 50)):
        batches = smi.Gradient(batch_size=4, reduction=reduction)
        rule = SGD.Rule(0.1, gradient=batches, momentum=0.5)
        assert float(rule.per_sample(50)) == pytest.approx(2 * kappa)
        runs = SGD.simulate(smi.DeepAttention(2, 2), KEY, dimension=50, rate=rule, alpha=0.16)
        assert float(runs.kappa) == pytest.approx(2 * kappa)
        np.testing.assert_allclose(runs.alpha, np.arange(3) * 4 / 50)
        np.testing.assert_allclose(runs.time, 2 * kappa * np.asarray(runs.alpha))


@SLOW
def test_a_run_that_overflows_says_so_and_one_out_of_range_inside_jit_too():
    wild = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1)
    run = lambda rate: SGD.simulate(wild, keys(4), dimension=20, rate=rate, alpha=3.0)
    codes = np.asarray(run(30.0).result)
    assert set(codes) <= {Result.NONFINITE, Result.DIVERGED, Result.SUCCESS}
    assert (codes == Result.NONFINITE).any()
    inside = jax.jit(run)(-0.1)
    assert int(inside.result[0]) == Result.INVALID
    assert np.isnan(inside.teacher_overlap).all()


@SLOW
def test_rates_of_a_teacher_of_another_norm():
    """y = z*², E z*² = 2: Λ = 8 E z*² = 16; linear labels have κ_max = 1."""
    link = lambda z: z[0, 0] ** 2
    few = smi.Averages(points=2**13)
    wide = smi.MultiIndex(link, indices=1, prior=smi.priors.Gaussian([[2.0]]))
    found = SGD.rates(wide, 0.7, key=KEY, averages=few)
    np.testing.assert_allclose(found.signal, [[16.0]], rtol=1e-8)
    square = smi.MultiIndex(link, indices=1)
    jitted = jax.jit(lambda Q: SGD.rates(square, Q, key=KEY, averages=few).signal)(0.7)
    np.testing.assert_allclose(jitted, [[8.0]], rtol=1e-8)
    assert float(SGD.maximal_rate(smi.links.linear(0.0), key=KEY).value) == pytest.approx(1.0)
