"""State evolution and its potential against closed forms, known thresholds, and identities of the
theory.

Statistical comparisons are z-scores: difference over standard error. Where a test says 5 standard
errors, a correct library fails it by chance less than once in 10^4 runs of the file (the keys are
fixed: it fails always or never), and the standard error is asserted to be small enough that an
error of a factor of two could not hide in it.
"""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import jaxsmi as smi
from helpers import linear_overlap, mean_and_error, result, slow_but, two_layers, z_scores
from jaxsmi import Result
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.numerics import fixed_point

KEY, SLOW = jax.random.key(0), pytest.mark.slow
PHASE = smi.links.phase_retrieval()
ZERO = jnp.zeros(())


def evolve(model, alpha, points=None, seed=0, nets=None, start=None, **iteration):
    averages = smi.Averages(points, nets)
    settings = {"averages": averages, "iteration": smi.Iteration(**iteration), "start": start}
    return smi.state_evolution(model, alpha, key=jax.random.key(seed), **settings)


# The stopping test --------------------------------------------------------------------------------


def solved(map_of, start, tolerance, **settings):
    """The fixed point of a map of V that iteration ends at."""
    start, S = jnp.asarray(start), jnp.eye(len(start))
    settings = {"geometric": False, "newton": True} | settings
    solver = fixed_point.FixedPointSolver(map_of, start, S, jnp.asarray(tolerance), **settings)
    return fixed_point.solve(solver)


def test_a_turning_point_is_not_a_fixed_point():
    """F_11 = 0.8 V_11 + 30 (V_22 - 0.01) + .., F_22 = 0.7 V_22 + ..: V_11 turns 0.15 above its fixed
    point 0.5, where the residual is 0.0003 and ρ = 0.8."""
    rows, columns, slopes = (0, 0, 1), (0, 1, 1), jnp.array([0.8, 30.0, 0.7])
    jacobian = jnp.zeros((2, 2, 2, 2)).at[rows, rows, columns, columns].set(slopes)
    end = jnp.diag(jnp.array([0.5, 0.01]))

    def map_of(V):
        value = end + fixed_point.apply(jacobian, V - end)
        return fixed_point.Evaluation(value, jacobian, value[None], ZERO, 0.0 * value)

    start = end + jnp.diag(jnp.array([0.15, 0.001]))
    residual = float(jnp.max(jnp.abs(map_of(start).value - start)))
    assert residual / (1.0 - 0.8) < 2e-3
    found = solved(map_of, start, 2e-3, newton=False, max_steps=200)
    assert result(found) == Result.SUCCESS
    assert np.max(np.abs(found.state.V - end)) < 2e-3


@pytest.mark.parametrize(
    ("f", "slope", "start", "end"),
    [
        # J is stated .99 where it is .86: sixteen steps of the stated map go too far
        (lambda v: 0.5 + 0.86 * (v - 0.5), lambda v: 0.99, 0.6, 0.5),
        # fixed points .00115, .0114 and .488: what grows from below ends at the first
        (lambda v: 3 * v / (1 + 2000 * v) + v**2 / (2 * v**2 + 0.0128), None, 1e-5, 0.00115),
    ],
)
def test_several_steps_at_once_end_where_single_ones_do(f, slope, start, end):
    def map_of(V):
        value = f(V)
        J = jax.grad(f)(V[0, 0]) if slope is None else jnp.asarray(slope(V))
        return fixed_point.Evaluation(value, J.reshape(1, 1, 1, 1), value[None], ZERO, 0.0 * value)

    found = solved(map_of, [[start]], 1e-5, max_steps=400)
    assert result(found) == Result.SUCCESS
    np.testing.assert_allclose(found.state.V, end, atol=3e-5)


@pytest.mark.parametrize("jumps", [True, False])
def test_a_map_that_jumps_ends_within_its_error(jumps):
    """F crosses V by a jump of .004: a residual of .002 remains, a distance of .02. The spread .01
    of two nets is an error of .1 of the fixed point."""

    def map_of(V):
        value = 0.5 + 0.9 * (V - 0.5) - 0.002 * jnp.where(V > 0.5, 1.0, -1.0)
        replicas = value + jnp.array([0.01, -0.01])[:, None, None]
        return fixed_point.Evaluation(value, jnp.full((1,) * 4, 0.9), replicas, ZERO, 0.0 * value)

    found = solved(map_of, [[0.7]], 1e-4, max_steps=100, jumps=jumps)
    assert result(found) == (Result.SUCCESS if jumps else Result.MAX_STEPS)
    if jumps:
        assert int(found.step) < 40
        np.testing.assert_allclose(found.state.V, 0.5, atol=0.03)
        assert float(found.state.remaining[0, 0]) > 0.005  # goes into the error bar


def test_a_jacobian_above_one_by_its_error_ends_an_iteration_that_stands():
    """F contracts to 0.5 and jumps by 2e-6, J is stated as 1.01, replicas differ by 2e-2. A growing
    direction goes on: 1.3 times its distance from one a step, with errors of a tenth of that."""

    def map_of(V):
        value = 0.5 + 0.9 * (V - 0.5) - 2e-6 * jnp.where(V > 0.5, 1.0, -1.0)
        replicas = value + jnp.array([0.01, -0.01])[:, None, None]
        return fixed_point.Evaluation(value, jnp.full((1,) * 4, 1.01), replicas, ZERO, 0.0 * value)

    found = solved(map_of, [[0.7]], 1e-7, max_steps=100)
    assert result(found) == Result.SUCCESS
    assert float(found.state.spectral_radius) > 1.0  # state evolution says MARGINAL
    # a fiftieth of the standard error 0.01, over 1 - 0.9, and one more of it
    np.testing.assert_allclose(found.state.V, 0.5, atol=4e-3)

    def grows(V):
        value = 1.0 - jnp.minimum(1.3 * (1.0 - V), 0.5 + 0.5 * (1.0 - V))
        replicas = value + 0.1 * (1.0 - V) * jnp.array([1.0, -1.0])[:, None, None]
        slope = jnp.where(1.0 - V < 0.5 / 0.8, 1.3, 0.5)
        return fixed_point.Evaluation(value, slope.reshape((1,) * 4), replicas, ZERO, 0.0 * value)

    found = solved(grows, [[1.0 - 1e-8]], 1e-6, max_steps=200)
    assert result(found) == Result.SUCCESS
    np.testing.assert_allclose(found.state.V, 0.0, atol=1e-3)


@SLOW
def test_steps_far_from_the_end_take_a_part_of_the_points():
    """An eighth of 512 points is the map of 64; its steps lead to the end of 512 points."""
    problem = lambda points: OverlapMap(smi.DeepAttention(2, 2), jnp.asarray(0.6), KEY, points, 4)
    whole, V = problem(512), jnp.diag(jnp.array([0.99, 0.3]))
    part, few = eqx.filter_jit(whole.evaluate)(V, jnp.asarray(0.125)), problem(64).evaluate(V)
    noise = fixed_point.standard_error(few.replicas)
    # the coefficient of the control variate is fitted with zeros for what is missing
    assert np.all(np.abs(part.value - few.value) < 0.1 * noise)
    settings = {"max_steps": 100, "tolerance": jnp.asarray(1e-5)}
    solver = whole.solver(jnp.diag(jnp.array([0.999, 0.999])), **settings)
    ends = [fixed_point.solve(dataclasses.replace(solver, rough=rough)) for rough in (None, 0.125)]
    assert all(result(end) == Result.SUCCESS for end in ends)
    np.testing.assert_allclose(ends[0].state.V, ends[1].state.V, atol=2e-5)


@SLOW
def test_a_layer_that_turns_back_is_followed_to_recovery():
    """Two layers, skip 2.416, α = 1.25: what is missing of layer 2 throws layer 1 back to V_11 =
    0.13, where it turns."""
    model = smi.DeepAttention(2, 2, skip=2.41617888881)
    key = jax.random.fold_in(KEY, 0)
    settings = {"averages": smi.Averages(512), "iteration": smi.Iteration(tolerance=2e-3)}
    start = jnp.diag(jnp.array([1 - 0.00666, 1 - 0.005]))
    found = smi.state_evolution(model, 1.25, key=key, start=start, **settings)
    assert np.max(found.trajectory["covariance"][:, 0, 0]) > 0.1
    assert found.overlap[0, 0] > 0.99


# Closed forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "newton"), [(1, True), pytest.param(3, False, marks=SLOW)])
def test_linear_channel_with_noise_matches_its_closed_form(tokens, newton):
    """q = q̂/(1 + q̂), q̂ = αM/(1 - q + Δ): fixed point, and with newton=False every step on the
    way to it.

    The control variate makes the outer average of this channel exact, so that 64 points do.
    """
    iteration = {"max_steps": 1000, "tolerance": 1e-11, "newton": newton}
    for alpha in (0.2, 1.0, 2.5):
        for noise in (0.01, 0.3, 2.0):
            model, load = smi.links.linear(noise, tokens=tokens), alpha * tokens
            solution = evolve(model, alpha, 64, 3, start=0.01, **iteration)
            assert result(solution) == Result.SUCCESS
            assert abs(float(solution.overlap[0, 0]) - linear_overlap(load, noise)) < 1e-8
            assert float(solution.stderr[0, 0]) < 1e-10
            assert float(solution.stderrs["cosine"][0]) < 1e-10 / np.sqrt(solution.overlap[0, 0])
            if not newton:
                overlaps = solution.trajectory["overlap"][:, 0, 0]
                qhat = load / (1.0 - overlaps[:-1] + noise)
                assert len(overlaps) > 5
                assert overlaps[0] == pytest.approx(0.01)
                np.testing.assert_allclose(overlaps[1:], qhat / (1.0 + qhat), rtol=0, atol=1e-10)


# Thresholds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "slope"),
    [(PHASE, 2.0), (smi.DeepAttention(1, 3), 12.0)],
    ids=["phase retrieval", "attention, 3 tokens"],
)
def test_slope_at_zero_overlap_is_the_inverse_threshold(model, slope):
    """d response/dQ at 0 is 1/α_c: 2 for phase retrieval, M(M+1) for one attention layer; also
    response(Q)/Q for Q → 0."""
    channel, tiny = model.channel, 1e-10

    @jax.jit
    def at(key):
        Q = tiny * jnp.eye(1)
        return channel.response(Q, jnp.eye(1) - Q, key=key, points=2**12, nets=4)

    found = [at(key) for key in jax.random.split(jax.random.key(5), 8)]
    for per_key in ([f.jacobian[0, 0, 0, 0] for f in found], [f.mean[0, 0] / tiny for f in found]):
        z = z_scores(per_key, slope)
        stderr = mean_and_error(per_key)[1]
        assert abs(z) < 5
        assert stderr < 0.01 * slope


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_the_error_bar_has_what_the_tolerance_leaves_open(tolerance):
    """y = z + noise of variance 1/2 at α = 1: q̂ = 1/(1 - q + 1/2), q = q̂/(1 + q̂): q = 1/2, without
    statistical error. After plain steps the bar is the distance to first order, whose square is
    below 2 %; after a Newton step it is no smaller."""
    plain, polished = (
        evolve(smi.links.linear(0.5), 1.0, tolerance=tolerance, newton=newton)
        for newton in (False, None)
    )
    distance = 0.5 - float(plain.overlap[0, 0])
    assert distance > 1e-5
    assert distance == pytest.approx(float(plain.stderr[0, 0]), rel=0.02)
    assert abs(0.5 - float(polished.overlap[0, 0])) < float(polished.stderr[0, 0])


@pytest.mark.parametrize("tolerance", [1e-3, None])
def test_a_run_on_its_way_to_recovery_is_recovered(tolerance):
    """It was SUCCESS at 0.999963 ± 8e-8 where V fell by half a step and the tolerance was met."""
    end = evolve(PHASE, 2.0, tolerance=tolerance)
    assert result(end) == Result.RECOVERED
    assert float(end.overlap[0, 0]) == 1.0
    assert float(end.stderr[0, 0]) == 0.0


def _by_sums(alpha, label_law, weights):
    """Overlap of one index, labels ±1, from sums over 4001 points of each field."""
    x = np.linspace(-8.0, 8.0, 4001)
    mass = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) * (x[1] - x[0])

    def excess(q):
        plus, minus, slope = label_law(np.sqrt(q) * x, 1.0 - q, x[::4], 4.0 * mass[::4])
        field = alpha * np.sum(mass * slope**2 * (1.0 / plus + 1.0 / minus))
        return weights(field, x, mass) - q

    return scipy.optimize.brentq(excess, 0.1, 0.95, xtol=1e-14)


def _of_signs(omega, V, *_):
    """P(y = ±1), and the derivative of P(y = 1) in ω, for signs."""
    z = omega / np.sqrt(V)
    return *scipy.stats.norm.cdf([z, -z]), scipy.stats.norm.pdf(z) / np.sqrt(V)


def _of_logistic_labels(omega, V, x, mass):
    p = scipy.special.expit(omega[:, None] + np.sqrt(V) * x)
    return p @ mass, (1.0 - p) @ mass, p * (1.0 - p) @ mass


def _gaussian_weights(field, *_):
    return field / (1.0 + field)


def _binary_weights(field, x, mass):
    return np.sum(mass * np.tanh(field + np.sqrt(field) * x))


@pytest.mark.parametrize(
    ("model", "alpha", "law", "weights"),
    [
        (smi.links.sign(), 2.0, _of_signs, _gaussian_weights),
        (smi.links.sign(prior=smi.priors.Rademacher()), 1.2, _of_signs, _binary_weights),
        pytest.param(smi.links.logistic(), 2.0, _of_logistic_labels, _gaussian_weights, marks=SLOW),
    ],
    ids=["sign", "binary", "logistic"],
)
def test_one_field_with_few_labels_has_eleven_digits(model, alpha, law, weights):
    """Labels are summed over, and the field is on a grid: no sampling error is left."""
    end = evolve(model, alpha, tolerance=1e-12)
    # the bar of a posterior that is integrated is an estimate from above
    assert float(end.stderr[0, 0]) < (1e-6 if law is _of_logistic_labels else 1e-10)
    assert abs(float(end.overlap[0, 0]) - _by_sums(alpha, law, weights)) < 1e-11


@SLOW
def test_labels_that_jump_recover_binary_weights_with_noise():
    """Their Fisher information about the fields is infinite, whatever is added to the sign."""
    binary = {"indices": 1, "prior": smi.priors.Rademacher()}
    for law in (jnp.sign, lambda z: jnp.tanh(3.0 * z)):
        model = smi.MultiIndex(lambda z, law=law: law(z[0, 0]), noise=0.1, **binary)
        end = evolve(model, 1.4, points=2**10, start=0.99)
        assert (result(end) == Result.RECOVERED) == (law is jnp.sign)


@SLOW
def test_informed_and_uninformed_starts_meet_where_the_transition_is_continuous():
    """One key, one map: both starts end at one fixed point, to the tolerance of the solver and not
    only statistically."""
    for model, alpha, starts in ((PHASE, 0.8, (1e-3, 0.9)), (two_layers(), 0.5, (0.05, 0.5))):
        low, high = (evolve(model, alpha, 1024, 2, start=q0, tolerance=1e-6) for q0 in starts)
        assert result(low) == result(high) == Result.SUCCESS
        np.testing.assert_allclose(low.overlap, high.overlap, rtol=0, atol=3e-6)


# The map ------------------------------------------------------------------------------------------


@SLOW
def test_one_map_with_and_without_a_basis_of_learned_directions():
    """All directions learned in any basis: the same step, Jacobian and replicas, turned."""
    model = smi.links.sign_product(2)
    V = jnp.asarray([[0.6, 0.1], [0.1, 0.8]])
    U = jnp.asarray([[0.6, -0.8], [0.8, 0.6]])
    settings = {"alpha": jnp.asarray(2.0), "key": jax.random.key(0), "points_per_net": 64}
    whole = OverlapMap(model, **settings, nets=2)
    turned = OverlapMap(model, **settings, nets=2, learned=U)
    evaluate = eqx.filter_jit(OverlapMap.evaluate)
    one, two = evaluate(whole, V), evaluate(turned, U.T @ V @ U)
    np.testing.assert_allclose(two.value, U.T @ one.value @ U, rtol=1e-10)
    np.testing.assert_allclose(two.replicas, U.T @ one.replicas @ U, rtol=1e-10)
    jacobian = jnp.einsum("pi,qj,pqrs,rk,sl->ijkl", U, U, one.jacobian, U, U)
    np.testing.assert_allclose(two.jacobian, jacobian, rtol=1e-10, atol=1e-12)


# Identities ---------------------------------------------------------------------------------------

# Overlaps inside the cone, with off-diagonals; h: step of the central difference. Labels that jump
# (signs) are summed over, so that they take as small a step as the others.
CASES = {
    "linear": (lambda: smi.links.linear(0.2), [[0.4]], 1e-4, 2**10),
    "phase retrieval": (lambda: PHASE, [[0.4]], 1e-4, 2**13),
    "sign": (smi.links.sign, [[0.5]], 1e-3, 2**13),
    "sign product": (lambda: smi.links.sign_product(2), [[0.5, 0.2], [0.2, 0.6]], 1e-3, 2**11),
    "one attention layer": (lambda: smi.DeepAttention(1, 3), [[0.6]], 1e-4, 2**12),
    "two attention layers": (two_layers, [[0.3, 0.1], [0.1, 0.7]], 1e-4, 2**7),
}
KEYS = 16


@functools.cache
def directional(name):
    """Per key: d response[dQ] from the identity, by differences; ½ tr(response dQ), d E log Z[dQ]
    by differences."""
    make, Q, h, samples = CASES[name]
    channel, Q = make().channel, jnp.asarray(Q)
    P = Q.shape[0]
    dQ = jnp.asarray([[1.0]]) if P == 1 else jnp.asarray([[0.7, -0.4], [-0.4, 0.5]])

    @jax.jit
    def at(Q, key):
        return channel.response(Q, jnp.eye(P) - Q, key=key, points=samples, nets=2)

    rows = []
    for key in jax.random.split(jax.random.key(11), KEYS):
        here, up, down = at(Q, key), at(Q + h * dQ, key), at(Q - h * dQ, key)
        identity = jnp.einsum("abcd,cd->ab", here.jacobian, dQ)
        difference = (up.mean - down.mean) / (2 * h)
        half = 0.5 * jnp.sum(here.mean * dQ)
        entropy = (jnp.mean(up.log_partition) - jnp.mean(down.log_partition)) / (2 * h)
        rows.append((identity, difference, half, entropy))
    return tuple(np.stack([np.asarray(row[k]) for row in rows]) for k in range(4))


QUICK = ("phase retrieval", "sign")
each_case = pytest.mark.parametrize("name", slow_but(CASES, *QUICK))


@each_case
def test_jacobian_identity(name):
    """d response[dQ] = E Σ ∂g dQ ∂gᵀ against central differences of the map, in standard errors
    over independent keys."""
    identity, difference, _, _ = directional(name)
    spread = (identity - difference).std(axis=0, ddof=1) / np.sqrt(KEYS)
    error = np.abs((identity - difference).mean(axis=0))
    size = np.abs(identity.mean(axis=0)).max()
    # differences: h² third derivatives, rounding eps/h
    assert (error < 5 * spread + 2e-3 * size).all()
    assert spread.max() < 0.06 * size


@each_case
def test_response_is_the_gradient_of_the_free_entropy(name):
    """d E[log Z_out]/dQ = response/2: the output term of the replica free entropy generates state
    evolution."""
    _, _, half, entropy = directional(name)
    spread = (half - entropy).std(ddof=1) / np.sqrt(KEYS)
    assert abs((half - entropy).mean()) < 5 * spread + 2e-3 * abs(half.mean())
    assert spread < 0.06 * abs(half.mean())


@pytest.mark.parametrize(("depth", "tokens"), [(1, 3), pytest.param(2, 2, marks=SLOW)])
def test_near_perfect_recovery_the_channel_counts_its_constraints(depth, tokens):
    """V → 0: the label fixes M linear combinations of the fields, tr(V · response) = M, whatever
    the shape of V."""
    model = smi.DeepAttention(depth, tokens)
    shape = jnp.asarray([[0.5]]) if depth == 1 else jnp.asarray([[5.0, 0.1], [0.1, 0.05]])
    V = 1e-8 * shape
    few = {"key": jax.random.key(8), "points": 64, "nets": 8, "tangents": False}
    found = jax.jit(lambda V: model.channel.response(jnp.eye(depth) - V, V, **few))(V)
    traces = np.einsum("pq,rqp->r", np.asarray(V), np.asarray(found.replicas))
    z = z_scores(traces, tokens)
    stderr = mean_and_error(traces)[1]
    # samples whose sign copies overlap are a fraction of order √V_max = 2e-4
    assert abs(z) * stderr < 5 * stderr + 1e-3
    assert stderr < 0.02
    assert float(found.inaccurate) <= 0.01


# The free entropy ---------------------------------------------------------------------------------


def test_free_entropy_of_the_linear_channel():
    """Exact: E log N(y; ω, V + Δ) = -½ - ½ log 2π(V + Δ), q̂ = α/(V + Δ), Φ_w = ½ q̂ - ½ log(1 +
    q̂)."""
    alpha, noise, q = 1.7, 0.3, 0.4
    phi = lambda q: smi.free_entropy(smi.links.linear(noise), alpha, q, key=KEY)
    found, v = phi(q), 1 - q + noise
    qhat = alpha / v
    exact = -0.5 * q * qhat + 0.5 * qhat - 0.5 * np.log1p(qhat)
    exact -= alpha * (0.5 + 0.5 * np.log(2 * np.pi * v))
    assert abs(float(found.value) - exact) < 4 * float(found.stderr) + 1e-9
    assert float(found.stderr) < 5e-3
    assert np.isnan(jax.jit(lambda q: phi(q).value)(2.0))


POTENTIALS = {
    "linear": (smi.links.linear(0.3), 1.7),
    "phase retrieval": (PHASE, 0.9),
    "perceptron, Rademacher": (smi.links.sign(prior=smi.priors.Rademacher()), 1.0),
    "two indices": (smi.links.sign_product(2), 3.2),
    "committee with flips": (smi.links.sign_committee(3, flip=0.1), 3.0),
}


@SLOW
@pytest.mark.parametrize("name", POTENTIALS)
def test_the_gradient_of_the_free_entropy_is_the_residual(name):
    """dΦ = ½ tr[(F(Q̂) - Q) dQ̂] with dQ̂ by differences, away from the fixed point: sampled to the
    error that Φ reports."""
    model, alpha = POTENTIALS[name]
    S = np.eye(model.indices)
    settings = {"key": KEY, "points": 2**10, "nets": 8}
    qhat = lambda Q: alpha * np.asarray(model.channel.response(Q, S - Q, **settings).mean)
    # ∫ dΦ over [Q - h, Q + h] by the trapezoidal rule in Q̂
    nodes = [jnp.asarray(x * S) for x in np.linspace(0.45, 0.55, 9)]
    fields = [qhat(Q) for Q in nodes]
    pulls = [0.5 * (model.prior.overlap(f) - Q) for f, Q in zip(fields, nodes, strict=True)]
    both = zip(itertools.pairwise(pulls), itertools.pairwise(fields), strict=True)
    change = sum(float(np.sum(0.5 * (a + b) * (g - f))) for (a, b), (f, g) in both)
    potential = functools.partial(smi.free_entropy, key=KEY, averages=smi.Averages(2**13))
    down, up = (potential(model, alpha, Q) for Q in (nodes[0], nodes[-1]))
    error = np.hypot(float(up.stderr), float(down.stderr))  # generous: they share all points
    assert abs(float(up.value - down.value) - change) < 3 * error + 1e-3 * abs(change)
