"""Free convolution of a product of Gaussian matrices with noise: independent values, identities,
limits, derivatives, matrices.

Values: computed independently of this code to ten digits [theory: random-matrices, section 5].
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsmi.numerics.random_matrix.rectangular import (
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.priors.product import ProductPrior

ANCHORS = {  # (R1, R2, R): edges, ∫ μ³, ∫ μ/x², MMSE
    (1, 0.2, 0.001): ((0, 0.05656677, 0.95554060, 3.74709791), 48.6375565780, None, 0.000359955410),
    (1, 0.2, 0.1): ((0, 0.56384443, 1.02121413, 3.78063502), 0.4897593602, None, 0.035550251508),
    (1, 0.2, 1.0): ((0, 4.08329215), 0.0524776841, None, 0.309421356931),
    (1, 0.2, 10.0): ((0, 6.82814590), 0.0069198537, None, 0.893837545054),
    (1, 1, 0.1): ((0, 2.65559689), 0.1028312924, None, 0.086467944313),
    (1, 1, 1.0): ((0, 3.15367386), 0.0395725325, None, 0.479246345584),
    (2, 0.2, 0.001): (
        (0.01189191, 0.05945953, 1.30396758, 4.19481973),
        68.7813235237,
        1131.4415384878,
        0.000279964664,
    ),
    (2, 0.2, 0.1): (
        (0.11875909, 0.59375778, 1.36236015, 4.22521513),
        0.6900621141,
        11.3822889508,
        0.027651866263,
    ),
    (2, 0.2, 1.0): (
        (0.37175992, 1.84465040, 1.89246553, 4.49962151),
        0.0714818437,
        1.1858413793,
        0.248167039577,
    ),
    (2, 1, 1.0): ((0.42934390, 3.31899183), 0.0486500414, 0.8740320489, 0.464634984147),
    (2, 2, 0.1): ((0.25557809, 2.56133871), 0.0790804089, 2.0977238700, 0.088904149902),
    (5, 0.5, 0.1): (
        (0.29751119, 0.59453942, 0.73743049, 3.87340477),
        0.4347793242,
        3.0310708572,
        0.051505409642,
    ),
    (5, 0.2, 10.0): ((2.67660288, 7.77382756), 0.0141977740, 0.0523368005, 0.839061818438),
    (20, 0.2, 0.1): (
        (0.53157343, 0.79903471, 2.67042601, 6.95294150),
        2.1756860351,
        1.8944188458,
        0.020338280059,
    ),
    (100, 1, 0.5): ((2.15067122, 6.74954125), 0.0400244859, 0.1010101010, 0.252368324719),
}
GREEN = {  # (R1, R2, R): x, μ, H
    (1, 0.2, 0.1): [
        (0.1, 0.8887494517, 0.4970651526),
        (0.5, 0.4177271352, 2.4835850371),
        (2, 0.0479397086, 0.4400704697),
        (3, 0.0296308896, 0.3679835050),
    ],
    (2, 0.2, 0.1): [
        (0.2, 1.0153216302, -1.0895782012),
        (0.5, 0.7022341189, 2.5255112688),
        (2, 0.0478094660, 0.3848309203),
        (3.5, 0.0288724813, 0.3270703720),
    ],
    (2, 1, 1): [
        (0.8, 0.2801279412, -0.1955124974),
        (1.5, 0.2312704770, 0.3425463226),
        (3, 0.0649038356, 0.5512382192),
    ],
}
INFORMATION = {  # (β, ρ): I at h = 0.1, 1, 10, 100, with what their digits are worth
    (1, 1): (0.0476466222, 0.3407520806, 1.1452194602, 2.2219627964, 2e-10),
    (1, 0.5): (0.0476213253, 0.3282750930, 1.0202171334, 1.86699625, 5e-9),
    (2, 1): (0.0476382021, 0.3362694544, 1.1052751346, 2.1402997191, 2e-10),
    (2, 0.5): (0.0475876489, 0.3165556913, 0.9213386986, 1.62735546, 5e-9),
    (1, 0.2): (0.0474413799, 0.2810754172, 0.6742600, 1.086709, 5e-7),
    (2, 0.2): (0.0472221715, 0.2526460037, 0.5601146, 0.880899, 5e-7),
}
ASPECTS = (1.0, 1 + 1e-9, 1.001, 1.5, 5.0, 50.0, 1e4)


@pytest.mark.parametrize("point", ANCHORS)
def test_spectral_anchors(point):
    edges, cubed, inverse_square, error = ANCHORS[point]
    law = rectangular_spectrum(*point)
    found = np.asarray(law.edges)
    assert bool(law.gap) == (len(edges) == 4)
    np.testing.assert_allclose(
        found[np.isfinite(found)], edges, rtol=0, atol=6e-9
    )  # printed to eight digits
    np.testing.assert_allclose(law.cubed, cubed, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(law.error, error, rtol=0, atol=1e-12)
    if inverse_square is not None:
        np.testing.assert_allclose(law.mean(law.x**-2), inverse_square, rtol=0, atol=1e-10)


@pytest.mark.parametrize("point", GREEN)
def test_density_and_hilbert_transform(point):
    law = rectangular_spectrum(*point)
    x, density, hilbert = np.array(GREEN[point]).T
    H, mu = law.green(x)
    np.testing.assert_allclose(mu, density, rtol=0, atol=1e-10)
    np.testing.assert_allclose(H, hilbert, rtol=0, atol=1e-10)
    # off the support: where nothing is singular, H is its own integral
    ends = np.asarray(law.edges)
    off = [
        1.001 * ends[3],
        3 * ends[3],
        *([0.5 * ends[0]] if point[0] > 1 else []),
        *([0.5 * (ends[1] + ends[2])] if law.gap else []),
    ]
    for y in off:
        H, mu = law.green(y)
        assert mu == 0
        np.testing.assert_allclose(H, law.mean(y / (y**2 - law.x**2)), rtol=1e-10)
    np.testing.assert_allclose(law.green(law.x)[1], law.density, rtol=1e-6)


def test_identities_far_and_wide():
    """∫ μ = 1, ∫ x² μ = (1 + R) √R₁, (π²/3) ∫ μ³ = ∫ μ H² of 1400 laws, R from 1e-8 to 1e3; their
    two errors at R = 1."""
    rng = np.random.default_rng(0)
    R1 = np.repeat(ASPECTS, 200)
    R2, R = 10 ** rng.uniform(-2, 1, R1.size), 10 ** rng.uniform(-8, 3, R1.size)
    law = jax.jit(jax.vmap(rectangular_spectrum))(*map(jnp.asarray, (R1, R2, R)))
    mean = lambda values: 2 * np.sum(np.asarray(law.weight * law.density * values), axis=1)
    assert np.abs(mean(1.0) - 1).max() < 2e-9
    assert np.median(np.abs(mean(1.0) - 1)) < 1e-14
    np.testing.assert_allclose(mean(law.x**2), (1 + R) * np.sqrt(R1), rtol=1e-8)
    cubed = np.pi**2 / 3 * 2 * np.sum(np.asarray(law.weight * law.density**3), axis=1)
    kept = R < 100  # beyond, H is a difference of larger numbers
    np.testing.assert_allclose(cubed[kept], mean(law.hilbert**2)[kept], rtol=1e-6)


@pytest.mark.parametrize("point", [(1.0, 0.3), (3.0, 0.3), (3.0, 2.0), (1e3, 0.7)])
def test_both_forms_of_the_error_and_its_limits(point):
    below, above = (
        float(rectangular_spectrum(*point, 1.0 + side * 1e-9).error) for side in (-1, 1)
    )
    np.testing.assert_allclose(
        below, above, rtol=2e-9
    )  # the form changes at R = 1; the slope is of order one
    prior = ProductPrior(*point)
    np.testing.assert_allclose(prior.mmse(1e9) * 1e9, prior.law.degrees_of_freedom, rtol=2e-3)
    np.testing.assert_allclose(prior.mmse(1e-4), 1 - 1e-4 + 1e-8, atol=2e-10)
    edge = 3e-4 * min(1.0, point[1] / np.sqrt(point[0]))  # where the expansion takes over
    np.testing.assert_allclose(
        prior.mmse(edge * (1 - 1e-12)), prior.mmse(edge * (1 + 1e-12)), rtol=0, atol=1e-10
    )
    assert prior.mmse(0.0) == 1.0


@pytest.mark.slow
def test_transposition_and_infinite_aspect():
    for beta, rho, qhat in ((2.0, 0.5, 3.0), (7.0, 0.1, 40.0)):
        np.testing.assert_allclose(
            ProductPrior(beta, rho).mmse(qhat),
            ProductPrior(1 / beta, rho / beta).mmse(qhat),
            rtol=1e-12,
        )
    tall = ProductPrior(jnp.inf, 0.3)
    near = [float(ProductPrior(beta, 0.3).mmse(5.0) - tall.mmse(5.0)) for beta in (1e3, 1e4)]
    np.testing.assert_allclose(near[0] / near[1], 10.0, rtol=0.02)  # 1/β
    np.testing.assert_allclose(
        jax.grad(tall.law.mutual_information)(5.0), 0.5 * tall.mmse(5.0), rtol=1e-9
    )
    # derivative at β = 1, where the formula is even in log β [theory: random-matrices, section 3]
    slopes = jax.grad(lambda beta, rho: ProductPrior(beta, rho).mmse(5.0), (0, 1))(1.0, 0.3)
    np.testing.assert_allclose(slopes[0], -0.15 * slopes[1], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [p if p[1] == 0.5 else pytest.param(p, marks=pytest.mark.slow) for p in INFORMATION]
)
def test_mutual_information(point):
    *values, tolerance = INFORMATION[point]
    found = [float(rectangular_information(*point, h)) for h in (0.1, 1.0, 10.0, 100.0)]
    np.testing.assert_allclose(found, values, rtol=0, atol=tolerance)
    point = tuple(map(float, point))
    for h in (1e-5, 0.3, 30.0, 1e4):
        slope = jax.jacfwd(rectangular_information, 2)(*point, h)
        np.testing.assert_allclose(slope, 0.5 * rectangular_error(*point, h), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("point", [(1.5, 0.2, 10.0), (2.0, 0.5, 1.0), (5.0, 1.0, 0.1)])
def test_derivatives_of_the_error(point):
    """First and second, against differences of what was tested above; the gap is open in the second
    case."""
    for axis in range(3):
        first, step = jax.jit(jax.jacfwd(rectangular_error, axis)), 1e-4 * point[axis]
        up, down = (
            tuple(x + side * step * (k == axis) for k, x in enumerate(point)) for side in (1, -1)
        )
        difference = (rectangular_error(*up) - rectangular_error(*down)) / (2 * step)
        np.testing.assert_allclose(first(*point), difference, rtol=1e-6)
        np.testing.assert_allclose(
            jax.jit(jax.jacfwd(first, axis))(*point),
            (first(*up) - first(*down)) / (2 * step),
            rtol=1e-6,
        )


@pytest.mark.slow
def test_shrinkage_is_smooth_and_better_than_nothing():
    law = rectangular_spectrum(2.0, 0.2, 0.1)
    x = jnp.linspace(0.01, 5.0, 200)
    slopes = jax.jvp(law.shrink, (x,), (jnp.ones_like(x),))[1]
    np.testing.assert_allclose(
        slopes, (law.shrink(x + 1e-6) - law.shrink(x - 1e-6)) / 2e-6, rtol=1e-6, atol=1e-7
    )
    far = (
        1e3  # a singular value far outside is kept, less what noise adds to it: (R₁ + 1) R/(√R₁ x)
    )
    np.testing.assert_allclose(far - law.shrink(far), 3.0 * 0.1 / np.sqrt(2.0) / far, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "rank", "noise"),
    [
        ((300, 300), 150, 0.14144),
        pytest.param((600, 300), 60, 0.3, marks=pytest.mark.slow),
        pytest.param((150, 600), 90, 0.05, marks=pytest.mark.slow),
    ],
)
def test_against_matrices(shape, rank, noise):
    """The error of the shrunk matrix is the one it says: 1 % at d = 300 [theory: random-matrices,
    section 5]."""
    long, short = max(shape), min(shape)
    keys = jax.random.split(jax.random.key(4), 3)
    S = (
        jax.random.normal(keys[0], (shape[0], rank))
        @ jax.random.normal(keys[1], (rank, shape[1]))
        / np.sqrt(rank)
    )
    prior = ProductPrior(shape[0] / shape[1], rank / shape[1])
    unit = (shape[0] * shape[1]) ** 0.25
    seen = (S + np.sqrt(noise) * jax.random.normal(keys[2], shape)) / unit
    mean, error = prior.denoise(seen, 1 / noise)
    found = jnp.mean((unit * mean - S) ** 2)
    np.testing.assert_allclose(found, error, rtol=0.015)
    np.testing.assert_allclose(
        error, rectangular_error(long / short, rank / short, 1 / noise), rtol=1e-12
    )
    values = jnp.linalg.svd(seen, compute_uv=False)
    law = rectangular_spectrum(long / short, rank / short, noise)
    assert values.max() < law.edges[3] * 1.03
    np.testing.assert_allclose(jnp.mean(values), law.mean(law.x), rtol=0.01)
