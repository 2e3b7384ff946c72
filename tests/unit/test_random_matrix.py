"""Free convolution of a Wishart-like law with a semicircle: independent values, identities,
derivatives, and a simulation.

Values: computed independently of this code to ten digits [theory: random-matrices, section 5].
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsmi.numerics.random_matrix.symmetric import mutual_information, shrinkage_error, spectrum

QHATS = (0.02, 0.1, 0.5, 1, 10, 100, 1e4)
ERRORS = {
    0.05: (
        0.9692431397,
        0.6654149320,
        0.1838049079,
        0.0947203748,
        0.0097223530,
        9.747236689e-4,
        9.749972368e-6,
    ),
    0.2: (
        0.9783664904,
        0.8654699701,
        0.4642742698,
        0.2888981790,
        0.0353916344,
        3.593992137e-3,
        3.599940000e-5,
    ),
    0.5: (
        0.9796260102,
        0.8939276897,
        0.5756142031,
        0.3969486359,
        0.0665414932,
        7.422727700e-3,
        7.499249800e-5,
    ),
    1: (
        0.9800159617,
        0.9018898753,
        0.6192148393,
        0.4438687356,
        0.0805456705,
        9.484451711e-3,
        9.972660108e-5,
    ),
    2: (
        0.9802057371,
        0.9055838868,
        0.6424505077,
        0.4704964089,
        0.0865469970,
        9.813355591e-3,
        9.998001596e-5,
    ),
}
EDGES = {
    (0.05, 0.1): (-6.23170129, 8.49206941),
    (0.05, 1): (-1.95885541, 1.93375554, 2.98559401, 6.87820496),
    (0.2, 10): (-0.57506855, 0.55155437, 0.76535961, 4.71416043),
    (0.5, 100): (-0.14738871, 0.13219940, 0.14651038, 4.12546174),
    (1, 1): (-1.48443533, 4.48443533),
    (2, 100): (0.08978982, 4.12717527),
}
GREEN = {  # (ρ, Δ): λ, H, μ, f
    (0.5, 1.0): [
        (-3, -0.3150485574, 0, -2.3699028851),
        (-1, -0.5828211178, 0.2183443128, 0.1656422356),
        (1, 0.2575061881, 0.2310442989, 0.4849876238),
        (5, 0.2824866518, 0, 4.4350266964),
    ],
    (0.2, 0.1): [
        (-1, -0.9549874787, 0, -0.8090025043),
        (-0.3, -1.5451658334, 0.7752669036, 0.0090331667),
        (0.8, 0.7971051385, 0.0417506137, 0.6405789723),
        (3, 0.3576285459, 0.0477644622, 2.9284742908),
        (7, 0.1589767356, 0, 6.9682046529),
    ],
    (2.0, 0.1): [
        (0, -1.4976113423, 0.3125932317, 0.2995222685),
        (5, 0.3181128083, 0, 4.9363774383),
    ],
}


@pytest.mark.parametrize("rho", ERRORS)
def test_errors_of_the_denoiser(rho):
    found = jax.vmap(lambda qhat: shrinkage_error(rho, qhat))(jnp.asarray(QHATS))
    np.testing.assert_allclose(found, ERRORS[rho], rtol=0, atol=1e-10)


@pytest.mark.parametrize("point", EDGES)
def test_edges_and_gaps(point):
    law = spectrum(point[0], 1 / point[1])
    edges = np.asarray(law.edges)
    assert bool(law.gap) == (len(EDGES[point]) == 4)
    np.testing.assert_allclose(edges[np.isfinite(edges)], EDGES[point], rtol=0, atol=1e-8)
    if bool(law.gap):  # the left band holds what the atom at zero held
        np.testing.assert_allclose(
            jnp.sum((law.weight * law.density)[:96]), 1 - point[0], atol=1e-12
        )


@pytest.mark.parametrize("point", GREEN)
def test_green_function_on_and_off_the_support(point):
    law = spectrum(*point)
    values = np.array(GREEN[point], float)
    H, density = law.green(values[:, 0])
    np.testing.assert_allclose(H, values[:, 1], atol=1e-9)
    np.testing.assert_allclose(density, values[:, 2], atol=1e-9)
    np.testing.assert_allclose(law.shrink(values[:, 0]), values[:, 3], atol=1e-9)


@pytest.mark.parametrize("delta", [1e-2, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 3.0])
def test_identities(rho, delta):
    law = spectrum(rho, delta)
    np.testing.assert_allclose(law.mean(1.0), 1.0, atol=1e-10)
    np.testing.assert_allclose(law.mean(law.x), np.sqrt(rho), atol=1e-10)
    np.testing.assert_allclose(law.mean(law.x**2), 1 + rho + delta, rtol=1e-10)
    np.testing.assert_allclose(law.mean(law.hilbert**2), np.pi**2 / 3 * law.cubed, rtol=1e-9)
    # green() bisects what the quadrature parametrises
    H, density = law.green(law.x)
    inside = np.asarray(law.weight) > 0
    np.testing.assert_allclose(
        np.asarray(H)[inside], np.asarray(law.hilbert)[inside], rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        np.asarray(density)[inside], np.asarray(law.density)[inside], rtol=1e-5, atol=1e-6
    )
    # the logarithmic potential, by the quadrature of its definition at a point outside
    out = law.edges[3] + 1.0
    H_out = float(law.green(out)[0])
    np.testing.assert_allclose(law.mean(1.0 / (out - law.x)), H_out, rtol=1e-10)


def test_in_the_gap_the_green_function_is_its_integral():
    law = spectrum(0.2, 0.1)
    point = 0.5 * (law.edges[1] + law.edges[2])
    np.testing.assert_allclose(law.green(point)[0], law.mean(1.0 / (point - law.x)), rtol=1e-8)
    assert float(law.green(point)[1]) == 0.0


@pytest.mark.parametrize(
    ("rho", "qhat", "slope"),
    [
        pytest.param(0.05, 0.1, -3.5410196, marks=pytest.mark.slow),
        pytest.param(0.5, 1, -0.24190883, marks=pytest.mark.slow),
        pytest.param(0.2, 10, -3.47742907e-3, marks=pytest.mark.slow),
        (1, 10, -7.01593993e-3),
        (2, 0.5, -0.47345903),
    ],
)
def test_derivatives_of_the_error(rho, qhat, slope):
    rho, qhat = float(rho), float(qhat)
    np.testing.assert_allclose(jax.grad(shrinkage_error, 1)(rho, qhat), slope, rtol=2e-8)
    for position, (value, step) in enumerate(((rho, 1e-5 * rho), (qhat, 1e-5 * qhat))):
        ends = [
            shrinkage_error(
                *(value + s * step if k == position else x for k, x in enumerate((rho, qhat)))
            )
            for s in (1, -1)
        ]
        numeric = (ends[0] - ends[1]) / (2 * step)  # rounding 1e-16/1e-5, curvature 1e-10
        np.testing.assert_allclose(
            jax.grad(shrinkage_error, position)(rho, qhat), numeric, rtol=1e-6, atol=1e-8
        )
    twice = jax.grad(jax.grad(shrinkage_error, 1), 1)(rho, qhat)
    slopes = [jax.grad(shrinkage_error, 1)(rho, qhat * (1 + s)) for s in (1e-5, -1e-5)]
    np.testing.assert_allclose(twice, (slopes[0] - slopes[1]) / (2e-5 * qhat), rtol=1e-6)


@pytest.mark.slow
def test_derivatives_of_the_green_function():
    points = jnp.array(
        [-1.0, 0.0, 0.5, 0.65, 0.8, 3.0, 7.0]
    )  # left, band, band, gap, band, band, right

    def green(rho, delta, x):
        return jnp.concatenate(spectrum(rho, delta).green(x))

    arguments = (0.2, 0.1, points)
    for position in (0, 1):
        moved = [
            green(*(x + s * 1e-6 if k == position else x for k, x in enumerate(arguments)))
            for s in (1, -1)
        ]
        found = jax.jacfwd(green, position)(*arguments)
        np.testing.assert_allclose(found, (moved[0] - moved[1]) / 2e-6, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            jax.jacrev(green, position)(*arguments), found, rtol=1e-10, atol=1e-12
        )
    law = spectrum(0.2, 0.1)
    slope = jax.vmap(jax.grad(lambda x: law.green(x)[0]))(points)
    numeric = (law.green(points + 1e-6)[0] - law.green(points - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rho", "qhat", "sigma", "value"),
    [
        (0.05, 0.1, 0.944084677, 0.021396065),
        (0.5, 1, 0.059063717, 0.154531858),
        (1, 10, -0.333313309, 0.533989619),
    ],
)
def test_mutual_information(rho, qhat, sigma, value):
    law = spectrum(rho, 1 / qhat)
    np.testing.assert_allclose(law.mean(law.log_potential), sigma, atol=1e-9)
    np.testing.assert_allclose(mutual_information(rho, qhat), value, atol=1e-9)
    slope = jax.grad(mutual_information, 1)(float(rho), float(qhat))
    np.testing.assert_allclose(slope, shrinkage_error(rho, qhat) / 4, atol=1e-9)


def test_small_precision_and_the_cusp():
    for rho in (0.05, 1.0, 3.0):  # the series joins the integral
        edge = 1e-4 * min(1.0, rho)
        below, above = (
            shrinkage_error(rho, edge * (1 - 1e-9)),
            shrinkage_error(rho, edge * (1 + 1e-9)),
        )
        np.testing.assert_allclose(below, above, atol=1e-9)
    assert float(shrinkage_error(0.5, 0.0)) == 1.0
    cusp = spectrum(0.5, 0.0175599938)
    np.testing.assert_allclose(cusp.error, 0.0129245487381, atol=1e-10)
    np.testing.assert_allclose(
        cusp.mean(1.0), 1.0, atol=1e-6
    )  # the density opens like |x|^{1/3} there
    np.testing.assert_allclose(shrinkage_error(0.5, 1e8) * 1e8, 0.75, rtol=1e-4)  # 2ρ - ρ²


def test_against_matrices():
    """S + √Δ Z at d = 400: mean squared error of the shrunk matrix, and the eigenvalue counts of
    the density."""
    rng, d, rho, delta = np.random.default_rng(0), 400, 0.5, 0.5
    W = rng.standard_normal((d, int(rho * d)))
    S = W @ W.T / np.sqrt(rho * d * d)
    Z = rng.standard_normal((d, d))
    R = S + np.sqrt(delta / d) * (Z + Z.T) / np.sqrt(2)
    values, vectors = np.linalg.eigh(R)
    law = spectrum(rho, delta)
    estimate = (vectors * np.asarray(law.shrink(values))) @ vectors.T
    error = np.sum((estimate - S) ** 2) / d
    assert abs(error - float(law.error)) < 0.03 * float(
        law.error
    )  # [theory: random-matrices, section 5]
    grid = np.linspace(float(law.edges[0]), float(law.edges[3]), 4001)
    density = np.asarray(law.green(grid)[1])
    below = np.concatenate([[0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(grid))])
    counted = np.searchsorted(values, grid) / d
    assert np.abs(counted - below).max() < 5 / d  # eigenvalues are rigid: O(1/d)
