"""Free convolution of a Wishart-like law with a semicircle, and of a product of Gaussian matrices
with noise: independent values, identities, limits, derivatives, and matrices.

Values: computed independently of this code to ten digits [theory: random-matrices, section 5].
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import differences
from jaxsmi.numerics.rectangular_spectrum import (
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.numerics.symmetric_spectrum import mutual_information, shrinkage_error, spectrum
from jaxsmi.priors.factors import ProductPrior

SLOW = pytest.mark.slow
# Symmetric laws have parameters (ρ, Δ), rectangular ones (R1, R2, R).
law_of = lambda *point: (spectrum if len(point) == 2 else rectangular_spectrum)(*point)
error_of = {2: shrinkage_error, 3: rectangular_error}  # of (ρ, q̂) and of (β, ρ, q̂)

ANCHORS = [  # a law: edges, ∫ μ³, ∫ μ/x², MMSE
    ((0.05, 10.0), (-6.23170129, 8.49206941), None, None, None),
    ((0.05, 1.0), (-1.95885541, 1.93375554, 2.98559401, 6.87820496), None, None, None),
    ((0.2, 0.1), (-0.57506855, 0.55155437, 0.76535961, 4.71416043), None, None, None),
    ((0.5, 0.01), (-0.14738871, 0.13219940, 0.14651038, 4.12546174), None, None, None),
    ((1.0, 1.0), (-1.48443533, 4.48443533), None, None, None),
    ((2.0, 0.01), (0.08978982, 4.12717527), None, None, None),
    ((1, 0.2, 0.001), (0, 0.05656677, 0.95554060, 3.74709791), 48.6375565780, None, 3.59955410e-4),
    ((1, 0.2, 0.1), (0, 0.56384443, 1.02121413, 3.78063502), 0.4897593602, None, 0.035550251508),
    ((1, 0.2, 1.0), (0, 4.08329215), 0.0524776841, None, 0.309421356931),
    ((1, 0.2, 10.0), (0, 6.82814590), 0.0069198537, None, 0.893837545054),
    ((1, 1, 0.1), (0, 2.65559689), 0.1028312924, None, 0.086467944313),
    ((1, 1, 1.0), (0, 3.15367386), 0.0395725325, None, 0.479246345584),
    ((2, 1, 1.0), (0.42934390, 3.31899183), 0.0486500414, 0.8740320489, 0.464634984147),
    ((2, 2, 0.1), (0.25557809, 2.56133871), 0.0790804089, 2.0977238700, 0.088904149902),
    ((5, 0.2, 10.0), (2.67660288, 7.77382756), 0.0141977740, 0.0523368005, 0.839061818438),
    ((100, 1, 0.5), (2.15067122, 6.74954125), 0.0400244859, 0.1010101010, 0.252368324719),
    ((2, 0.2, 0.001), (0.01189191, 0.05945953, 1.30396758, 4.19481973),
     68.7813235237, 1131.4415384878, 0.000279964664),
    ((2, 0.2, 0.1), (0.11875909, 0.59375778, 1.36236015, 4.22521513),
     0.6900621141, 11.3822889508, 0.027651866263),
    ((2, 0.2, 1.0), (0.37175992, 1.84465040, 1.89246553, 4.49962151),
     0.0714818437, 1.1858413793, 0.248167039577),
    ((5, 0.5, 0.1), (0.29751119, 0.59453942, 0.73743049, 3.87340477),
     0.4347793242, 3.0310708572, 0.051505409642),
    ((20, 0.2, 0.1), (0.53157343, 0.79903471, 2.67042601, 6.95294150),
     2.1756860351, 1.8944188458, 0.020338280059),
]  # fmt: skip


@pytest.mark.parametrize(("point", "edges", "cubed", "inverse_square", "error"), ANCHORS)
def test_spectral_anchors(point, edges, cubed, inverse_square, error):
    """Edges printed to eight digits."""
    law = law_of(*point)
    found = np.asarray(law.edges)
    assert bool(law.gap) == (len(edges) == 4)
    np.testing.assert_allclose(found[np.isfinite(found)], edges, rtol=0, atol=1e-8)
    if cubed is not None:
        np.testing.assert_allclose(law.mean(law.density**2), cubed, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(law.error, error, rtol=0, atol=1e-12)
    elif bool(law.gap):  # the left band holds what the atom at zero held
        left = jnp.sum((law.weight * law.density)[:96])
        np.testing.assert_allclose(left, 1 - point[0], atol=1e-12)
    if inverse_square is not None:
        np.testing.assert_allclose(law.mean(law.x**-2), inverse_square, rtol=0, atol=1e-10)


QHATS = jnp.array([0.02, 0.1, 0.5, 1, 10, 1e4])
ERRORS = {
    0.05: [0.9692431397, 0.6654149320, 0.1838049079, 0.0947203748, 0.0097223530, 9.749972368e-6],
    0.2: [0.9783664904, 0.8654699701, 0.4642742698, 0.2888981790, 0.0353916344, 3.599940000e-5],
    0.5: [0.9796260102, 0.8939276897, 0.5756142031, 0.3969486359, 0.0665414932, 7.499249800e-5],
    1.0: [0.9800159617, 0.9018898753, 0.6192148393, 0.4438687356, 0.0805456705, 9.972660108e-5],
    2.0: [0.9802057371, 0.9055838868, 0.6424505077, 0.4704964089, 0.0865469970, 9.998001596e-5],
}


@pytest.mark.parametrize("rho", ERRORS)
def test_errors_of_the_denoiser(rho):
    found = jax.vmap(lambda qhat: shrinkage_error(rho, qhat))(QHATS)
    np.testing.assert_allclose(found, ERRORS[rho], rtol=0, atol=1e-10)


GREEN = {  # a law: rows of x, H, μ, and of symmetric laws the shrunk x
    (0.5, 1.0): [
        (-3, -0.3150485574, 0, -2.3699028851), (-1, -0.5828211178, 0.2183443128, 0.1656422356),
        (1, 0.2575061881, 0.2310442989, 0.4849876238), (5, 0.2824866518, 0, 4.4350266964),
    ],
    (0.2, 0.1): [
        (-1, -0.9549874787, 0, -0.8090025043), (-0.3, -1.5451658334, 0.7752669036, 0.0090331667),
        (3, 0.3576285459, 0.0477644622, 2.9284742908), (7, 0.1589767356, 0, 6.9682046529),
    ],
    (2.0, 0.1): [(0, -1.4976113423, 0.3125932317, 0.2995222685)],
    (1, 0.2, 0.1): [
        (0.1, 0.4970651526, 0.8887494517), (0.5, 2.4835850371, 0.4177271352),
        (2, 0.4400704697, 0.0479397086), (3, 0.3679835050, 0.0296308896),
    ],
    (2, 0.2, 0.1): [
        (0.2, -1.0895782012, 1.0153216302), (0.5, 2.5255112688, 0.7022341189),
        (2, 0.3848309203, 0.0478094660), (3.5, 0.3270703720, 0.0288724813),
    ],
    (2, 1, 1): [
        (0.8, -0.1955124974, 0.2801279412), (1.5, 0.3425463226, 0.2312704770),
        (3, 0.5512382192, 0.0649038356),
    ],
}  # fmt: skip


@SLOW
@pytest.mark.parametrize("point", GREEN)
def test_green_function_on_and_off_the_support(point):
    law = law_of(*point)
    x, H, density, *shrunk = np.array(GREEN[point], float).T
    found = law.green(x)
    np.testing.assert_allclose(found[0], H, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[1], density, rtol=0, atol=1e-9)
    if shrunk:
        np.testing.assert_allclose(law.shrink(x), shrunk[0], atol=1e-9)
    # off the support: where nothing is singular, H is its own integral
    ends = np.asarray(law.edges)
    off = [1.001 * ends[3], 3 * ends[3], *([0.5 * (ends[1] + ends[2])] if law.gap else [])]
    for y in off:
        kernel = 1 / (y - law.x) if len(point) == 2 else y / (y**2 - law.x**2)
        H, mu = law.green(y)
        assert mu == 0
        np.testing.assert_allclose(H, law.mean(kernel), rtol=1e-8)
    # green() bisects what the quadrature parametrises
    inside = np.asarray(law.weight) > 0
    np.testing.assert_allclose(
        law.green(law.x)[1][inside], law.density[inside], rtol=1e-5, atol=1e-6
    )


GRID = np.array(list(itertools.product((0.05, 0.5, 1.0, 3.0), (1e-2, 0.3, 1.0, 30.0)))).T
ASPECTS = np.repeat((1.0, 1 + 1e-9, 1.001, 1.5, 5.0, 50.0, 1e4), 200)


@pytest.mark.parametrize("family", ["symmetric", "rectangular"])
def test_identities_far_and_wide(family):
    """∫ μ = 1, ∫ x² μ, (π²/3) ∫ μ³ = ∫ μ H²: of 16 symmetric laws, and of 1400 rectangular
    ones with R from 1e-8 to 1e3."""
    rng = np.random.default_rng(0)
    R2, R = 10 ** rng.uniform(-2, 1, ASPECTS.size), 10 ** rng.uniform(-8, 3, ASPECTS.size)
    points = GRID if family == "symmetric" else np.stack([ASPECTS, R2, R])

    def moments(*point):
        law = law_of(*point)
        values = (1.0, law.x**2, law.hilbert**2, np.pi**2 / 3 * law.density**2)
        return [law.mean(x) for x in values]

    mass, second, of_H, of_cube = map(np.asarray, jax.jit(jax.vmap(moments))(*points))
    assert np.abs(mass - 1).max() < 2e-9
    assert np.median(np.abs(mass - 1)) < 1e-12
    exact = 1 + GRID.sum(0) if family == "symmetric" else (1 + R) * np.sqrt(ASPECTS)
    np.testing.assert_allclose(second, exact, rtol=1e-8)
    kept = points[-1] < 100  # beyond, H is a difference of larger numbers
    np.testing.assert_allclose(of_cube[kept], of_H[kept], rtol=1e-6)


DERIVATIVES = [((0.05, 0.1), -3.5410196), ((0.5, 1.0), -0.24190883), ((0.2, 10.0), -3.47742907e-3)]
DERIVATIVES += [((1.0, 10.0), -7.01593993e-3), ((2.0, 0.5), -0.47345903)]
DERIVATIVES += [((1.5, 0.2, 0.1), None), ((2.0, 0.5, 1.0), None), ((5.0, 1.0, 10.0), None)]


@SLOW
@pytest.mark.parametrize(("point", "slope"), DERIVATIVES)
def test_derivatives_of_the_error(point, slope):
    """First and second, against differences of what was tested above; the gap is open in some."""
    error, step = error_of[len(point)], 1e-4 * np.array(point)
    changes = differences(error, point, step)
    for axis in range(len(point)):
        first = jax.jit(jax.jacfwd(error, axis))
        np.testing.assert_allclose(first(*point), changes[axis], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(jax.grad(error, axis)(*point), first(*point), rtol=1e-9)
        second, change = jax.jit(jax.jacfwd(first, axis))(*point), differences(first, point, step)
        np.testing.assert_allclose(second, change[axis], rtol=1e-5, atol=1e-8)
    if slope is not None:
        np.testing.assert_allclose(jax.grad(error, 1)(*point), slope, rtol=2e-8)


@SLOW
@pytest.mark.parametrize("point", [(0.2, 0.1), (2.0, 0.2, 0.1)])
def test_derivatives_of_the_green_function(point):
    """In the parameters, forward and reverse, and of the shrunk values in x, against differences;
    on bands and, of the symmetric law, left, right and in the gap."""
    if len(point) == 2:
        x = jnp.array([-1.0, 0.0, 0.5, 0.65, 0.8, 3.0, 7.0])
    else:
        x = jnp.array([0.2, 0.5, 2.0, 3.5])
    green = lambda *point: jnp.concatenate(law_of(*point).green(x))
    changes = differences(green, point, 1e-6)
    for axis in range(len(point)):
        found = jax.jacfwd(green, axis)(*point)
        np.testing.assert_allclose(found, changes[axis], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(jax.jacrev(green, axis)(*point), found, rtol=1e-10, atol=1e-12)
    shrink = law_of(*point).shrink
    slopes = jax.jvp(shrink, (x,), (jnp.ones_like(x),))[1]
    np.testing.assert_allclose(
        slopes, (shrink(x + 1e-6) - shrink(x - 1e-6)) / 2e-6, rtol=1e-5, atol=1e-6
    )


INFORMATION = [  # a law, I, and what its digits are worth
    ((0.05, 0.1), 0.021396065, 1e-9), ((0.5, 1.0), 0.154531858, 1e-9),
    ((1.0, 10.0), 0.533989619, 1e-9), ((1.0, 1.0, 0.1), 0.0476466222, 2e-10),
    ((1.0, 1.0, 10.0), 1.1452194602, 2e-10), ((1.0, 0.5, 1.0), 0.3282750930, 2e-10),
    ((1.0, 0.5, 100.0), 1.86699625, 5e-9), ((2.0, 1.0, 100.0), 2.1402997191, 2e-10),
    ((2.0, 0.5, 1.0), 0.3165556913, 2e-10), ((2.0, 0.5, 100.0), 1.62735546, 5e-9),
    ((1.0, 0.2, 10.0), 0.6742600, 5e-7), ((2.0, 0.2, 100.0), 0.880899, 5e-7),
    ((2.0, 0.2, 0.1), 0.0472221715, 2e-10), ((2.0, 1.0, 1.0), 0.3362694544, 2e-10),
]  # fmt: skip


@pytest.mark.parametrize(
    ("point", "value", "digits"),
    [pytest.param(*row, marks=() if len(row[0]) == 2 else SLOW) for row in INFORMATION],
)
def test_mutual_information(point, value, digits):
    """And its slope: a quarter of the error of a symmetric matrix, half that of another."""
    information = mutual_information if len(point) == 2 else rectangular_information
    np.testing.assert_allclose(information(*point), value, rtol=0, atol=digits)
    slope = jax.jacfwd(information, len(point) - 1)(*point)
    share = 0.25 if len(point) == 2 else 0.5
    np.testing.assert_allclose(slope, share * error_of[len(point)](*point), rtol=1e-8)


def test_small_precision_and_the_cusp():
    for rho in (0.05, 1.0, 3.0):  # the series joins the integral
        edge = 1e-4 * min(1.0, rho)
        below, above = (shrinkage_error(rho, edge * (1 + side * 1e-9)) for side in (-1, 1))
        np.testing.assert_allclose(below, above, atol=1e-9)
    assert float(shrinkage_error(0.5, 0.0)) == 1.0
    cusp = spectrum(0.5, 0.0175599938)
    np.testing.assert_allclose(cusp.error, 0.0129245487381, atol=1e-10)
    # the density opens like |x|^{1/3} there
    np.testing.assert_allclose(cusp.mean(1.0), 1.0, atol=1e-6)
    np.testing.assert_allclose(shrinkage_error(0.5, 1e8) * 1e8, 0.75, rtol=1e-4)  # 2ρ - ρ²


@pytest.mark.slow
@pytest.mark.parametrize("point", [(1.0, 0.3), (3.0, 0.3), (3.0, 2.0), (1e3, 0.7)])
def test_both_forms_of_the_error_and_its_limits(point):
    at = lambda R: float(rectangular_spectrum(*point, R).error)
    # the form changes at R = 1; the slope is of order one
    np.testing.assert_allclose(at(1.0 - 1e-9), at(1.0 + 1e-9), rtol=2e-9)
    prior = ProductPrior(*point)
    np.testing.assert_allclose(prior.mmse(1e9) * 1e9, prior.law.degrees_of_freedom, rtol=2e-3)
    np.testing.assert_allclose(prior.mmse(1e-4), 1 - 1e-4 + 1e-8, atol=2e-10)
    edge = 3e-4 * min(1.0, point[1] / np.sqrt(point[0]))  # where the expansion takes over
    below, above = (prior.mmse(edge * (1 + side * 1e-12)) for side in (-1, 1))
    np.testing.assert_allclose(below, above, rtol=0, atol=1e-10)
    assert prior.mmse(0.0) == 1.0


@SLOW
def test_transposition_and_infinite_aspect():
    for beta, rho, qhat in ((2.0, 0.5, 3.0), (7.0, 0.1, 40.0)):
        turned = ProductPrior(1 / beta, rho / beta).mmse(qhat)
        np.testing.assert_allclose(ProductPrior(beta, rho).mmse(qhat), turned, rtol=1e-12)
    tall = ProductPrior(jnp.inf, 0.3)
    near = [float(ProductPrior(beta, 0.3).mmse(5.0) - tall.mmse(5.0)) for beta in (1e3, 1e4)]
    np.testing.assert_allclose(near[0] / near[1], 10.0, rtol=0.02)  # 1/β
    slope = jax.grad(tall.law.mutual_information)(5.0)
    np.testing.assert_allclose(slope, 0.5 * tall.mmse(5.0), rtol=1e-9)
    # derivative at β = 1, where the formula is even in log β [theory: random-matrices, section 3]
    slopes = jax.grad(lambda beta, rho: ProductPrior(beta, rho).mmse(5.0), (0, 1))(1.0, 0.3)
    np.testing.assert_allclose(slopes[0], -0.15 * slopes[1], rtol=1e-10)


@SLOW
def test_against_symmetric_matrices():
    """S + √Δ Z at d = 400: mean squared error of the shrunk matrix, and the eigenvalue counts of
    the density; eigenvalues are rigid, their counts within O(1)."""
    rng, d, rho, delta = np.random.default_rng(0), 400, 0.5, 0.5
    W, Z = rng.standard_normal((d, int(rho * d))), rng.standard_normal((d, d))
    S = W @ W.T / np.sqrt(rho * d * d)
    values, vectors = np.linalg.eigh(S + np.sqrt(delta / d) * (Z + Z.T) / np.sqrt(2))
    law = spectrum(rho, delta)
    estimate = (vectors * np.asarray(law.shrink(values))) @ vectors.T
    np.testing.assert_allclose(np.sum((estimate - S) ** 2) / d, law.error, rtol=0.03)
    grid = np.linspace(float(law.edges[0]), float(law.edges[3]), 4001)
    density = np.asarray(law.green(grid)[1])
    below = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(grid))])
    assert np.abs(np.searchsorted(values, grid) / d - below).max() < 5 / d


@SLOW
@pytest.mark.parametrize(
    ("shape", "rank", "noise"),
    [((300, 300), 150, 0.14144), ((600, 300), 60, 0.3), ((150, 600), 90, 0.05)],
)
def test_against_matrices(shape, rank, noise):
    """The error of the shrunk matrix is the one it says: 1 % at d = 300 [theory: random-matrices,
    section 5]. A singular value far outside is kept, less what noise adds to it."""
    long, short = max(shape), min(shape)
    factors = [(shape[0], rank), (rank, shape[1]), shape]
    keys = jax.random.split(jax.random.key(4), 3)
    left, right, Z = (jax.random.normal(k, s) for k, s in zip(keys, factors, strict=True))
    S, unit = left @ right / np.sqrt(rank), (shape[0] * shape[1]) ** 0.25
    seen = (S + np.sqrt(noise) * Z) / unit
    mean, error = ProductPrior(shape[0] / shape[1], rank / shape[1]).law.shrink(seen, 1 / noise)
    np.testing.assert_allclose(jnp.mean((unit * mean - S) ** 2), error, rtol=0.015)
    point = long / short, rank / short
    np.testing.assert_allclose(error, rectangular_error(*point, 1 / noise), rtol=1e-12)
    law = rectangular_spectrum(*point, noise)
    values = jnp.linalg.svd(seen, compute_uv=False)
    assert values.max() < law.edges[3] * 1.03
    np.testing.assert_allclose(jnp.mean(values), law.mean(law.x), rtol=0.01)
    far = 1e3
    added = (point[0] + 1.0) * noise / np.sqrt(point[0]) / far
    np.testing.assert_allclose(far - law.shrink(far), added, rtol=1e-4)
