"""Error bars over 48 keys: (estimate - truth)/stderr has spread one, beyond two for 8 % at most.

The truth is a trapezoidal sum over two fields, by no code of the averages but the posterior of one
label.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaxsmi as smi
from helpers import slow_but

KEYS = jax.random.split(jax.random.key(7), 48)
HALF = 400  # nodes an axis: kinks of a link leave an error of 1e-5
T = (np.arange(HALF) + 0.5) * 16.0 / HALF - 8.0
WEIGHT = np.exp(-(T**2) / 2.0) * 16.0 / HALF / np.sqrt(2.0 * np.pi)

SPARSE = smi.links.relu(prior=smi.priors.BernoulliGauss(0.6))
MODULUS, NOISY = smi.links.phase_retrieval(), smi.links.absolute(0.1)
PEAK = smi.links.piecewise_linear([-1, 1, 0], [0, 0, 1], [0, 1], 0.05)
OVERLAPS = {
    "|z|, 0.745": (MODULUS, 0.745),
    "|z|, 0.9": (MODULUS, 0.9),
    "|z|, 1.1": (MODULUS, 1.1),  # spectral radius 0.94
    "sparse ReLU": (SPARSE, 0.82),
    "noisy |z|": (NOISY, 1.2),
    "hard tanh": (smi.links.hard_tanh(0.05), 1.0),
    "peak": (PEAK, 2.0),
}
FAST = ("|z|, 0.745",)


@jax.jit
def averages(channel, q):
    """E g², E log Z_out and E (∂g)² at an overlap, of a prior of variance one."""

    def one(node):
        t, weight = node
        if channel.noise_size:  # labels by their density, on the nodes between -8 and 8
            y, omega, weight = jnp.full(HALF, t), q**0.5 * T, 16.0 / HALF
        else:  # labels of the field, and ω given the field
            y = jnp.full(HALF, channel.link(jnp.full((1, 1), t)))
            omega = q * t + (q * (1.0 - q)) ** 0.5 * T
        V = jnp.reshape(1.0 - q, (1, 1))
        post = channel.respond(channel.statistic(y), omega[:, None, None], V)
        density = jnp.exp(post.log_partition) if channel.noise_size else 1.0
        squares = (post.g.ravel() ** 2, post.log_partition, post.dg.ravel() ** 2)
        return jnp.stack([weight * jnp.sum(WEIGHT * density * x) for x in squares])

    return jnp.sum(jax.lax.map(one, (jnp.asarray(T), jnp.asarray(WEIGHT)), batch_size=16), axis=0)


def check_error_bars(found, truth):
    """`found`: value and standard error at each key."""
    z = np.array([float((value - truth) / stderr) for value, stderr in found])
    assert 0.8 < np.std(z) < 1.2
    assert abs(np.mean(z)) < 0.5
    assert np.mean(np.abs(z) > 2.0) <= 0.084  # four of 48


@pytest.mark.parametrize("name", slow_but(OVERLAPS, *FAST))
def test_error_bars_of_overlaps(name):
    model, alpha = OVERLAPS[name]

    def gap(q):
        precision = alpha * averages(model.channel, q)[0]
        return float(model.prior.overlap(jnp.reshape(precision, (1, 1)))[0, 0]) - q

    solve = lambda key: smi.state_evolution(model, alpha, key=key)
    ends = [solve(key) for key in KEYS]
    assert all(end.converged for end in ends)
    near = np.mean([float(end.overlap[0, 0]) for end in ends])  # which root, and no more
    truth = brentq(gap, near - 0.05, near + 0.05, xtol=1e-6)
    check_error_bars([(end.overlap[0, 0], end.stderr[0, 0]) for end in ends], truth)
    check_error_bars([(end.cosine[0], end.stderrs["cosine"][0]) for end in ends], truth**0.5)
    if "|z|" in name:  # of eight nets: the bar is known to 27 %, and z is Student's
        root = np.sqrt(truth)  # the correlation of z and ω
        product = 2.0 / np.pi * root * (np.sqrt(1.0 - truth) + root * np.arcsin(root))
        z = [(end.error - (1.0 + truth - 2.0 * product)) / end.stderrs["error"] for end in ends]
        assert 0.7 < np.std(z) < 1.5
        assert abs(np.mean(z)) < 0.6


@pytest.mark.slow
def test_error_bars_of_weak_recovery():
    truth = 1.0 / float(averages(NOISY.channel, 0.0)[2])
    found = [smi.weak_recovery(NOISY, key=key) for key in KEYS]
    check_error_bars([(step.alpha, step.stderr) for step in found], truth)


def test_weak_recovery_of_a_modulus_is_one_half():
    """To the rounding of sums over a grid: ∂g = y² - 1 is smooth."""
    found = smi.weak_recovery(smi.links.phase_retrieval(), key=KEYS[0])
    assert abs(float(found.alpha) - 0.5) < 3 * float(found.stderr) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("model", [NOISY, MODULUS, SPARSE], ids=["noisy |z|", "|z|", "ReLU"])
def test_error_bars_of_free_entropies(model):
    alpha, q = 1.2, 0.5
    response, log_partition, _ = averages(model.channel, q)
    precision = jnp.reshape(alpha * response, (1, 1))
    entropy = model.prior.entropy_term(jnp.full((1, 1), q), precision)
    # labels 0 of ReLU have a probability, others a density, in the sum as in the library
    truth = float(entropy + alpha * log_partition)
    check_error_bars([smi.free_entropy(model, alpha, q, key=key) for key in KEYS], truth)


HINGE = smi.Erm(smi.links.linear(), loss=smi.losses.hinge, ridge=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "alpha", "settings"),
    [
        (smi.DeepAttention(1, 2), 0.35, {}),
        (smi.links.sign(), 3.0, {"learner": HINGE}),
    ],
    ids=["attention", "hinge"],
)
def test_error_bars_against_many_points(model, alpha, settings):
    """The truth is an average over 2^18 points."""
    solve = lambda key, **more: smi.state_evolution(model, alpha, key=key, **settings, **more)
    truth = solve(jax.random.key(1), averages=smi.Averages(2**18, 16))
    ends = [solve(key) for key in KEYS]
    check_error_bars([(end.overlap[0, 0], end.stderr[0, 0]) for end in ends], truth.overlap[0, 0])
    check_error_bars([(end.cosine[0], end.stderrs["cosine"][0]) for end in ends], truth.cosine[0])


@pytest.mark.slow
def test_a_direction_that_points_seem_to_repel_ends_at_zero_overlap():
    """z_1 - z_2 is not learned yet: some points ask for a negative overlap with it, for ever."""
    link = lambda z: jnp.tanh(2.0 * z[0, 0]) + jnp.tanh(2.0 * z[1, 0])
    model = smi.MultiIndex(link, indices=2, noise=0.05)
    few = smi.Averages(2048, 16)
    ends = [smi.state_evolution(model, 1.5, key=jax.random.key(k), averages=few) for k in range(3)]
    for end in ends:
        assert end.converged
        assert jnp.linalg.eigvalsh(end.overlap)[0] > -1e-12
        assert jnp.all(jnp.isfinite(end.stderr))


@pytest.mark.slow
def test_error_bars_have_the_error_of_integrals_inside():
    """Labels are summed over, on a grid, whose nets agree to rounding; posteriors err alike in all
    of them, by 1e-7."""
    law = lambda y, z: jax.scipy.special.log_ndtr(y * (z[0, 0] - 0.7) / 0.3)
    model = smi.MultiIndex(indices=1, log_likelihood=law, outcomes=[-1.0, 1.0])

    def gap(q):
        t = (T * q**0.5 - 0.7) / (1.09 - q) ** 0.5
        chance, other = jax.scipy.special.ndtr(t), jax.scipy.special.ndtr(-t)
        slope = np.exp(-(t**2) / 2.0) / np.sqrt(2.0 * np.pi * (1.09 - q))
        precision = 3.0 * float(np.sum(WEIGHT * slope**2 / (chance * other)))
        return q - precision / (1.0 + precision)

    found = smi.state_evolution(model, 3.0, key=KEYS[0])
    truth = brentq(gap, 0.1, 0.99, xtol=1e-12)
    assert abs(float(found.overlap[0, 0]) - truth) < 3.0 * float(found.stderr[0, 0]) < 1e-5
    # E[z²|y] by sums over z, for labels cos z with noise .2
    y, step = np.linspace(-4.0, 4.0, 1601, retstep=True)
    z = np.linspace(-8.0, 8.0, 1601)
    joint = np.exp(-((y[:, None] - np.cos(z)) ** 2) / 0.4 - z**2 / 2.0)
    joint /= np.sum(joint) * step
    mass = joint.sum(1)
    exact = 1.0 / float(np.sum(mass * (joint @ z**2 / mass - 1.0) ** 2) * step)
    cosine = smi.MultiIndex(lambda z: jnp.cos(z[0, 0]), indices=1, noise=0.2)
    start = smi.weak_recovery(cosine, key=KEYS[0])
    assert abs(float(start.alpha) - exact) < 3.0 * float(start.stderr) < 1e-5


@pytest.mark.parametrize(
    "law", slow_but(["jumps", "more jumps than pieces", "kink"], "more jumps than pieces")
)
def test_error_bars_of_weak_recovery_from_few_labels(law):
    """Of labels sign(cos 2z) with a tenth flipped, and of a logistic law of |z|, whose integrals end
    at jumps and kinks; sign(cos 4z) has more than twelve, and an error that the bar covers."""
    rate = 4.0 if law == "more jumps than pieces" else 2.0
    odds = lambda z: jnp.where(jnp.cos(rate * z) > 0.0, 0.9, 0.1)
    odds = odds if law != "kink" else lambda z: jax.nn.sigmoid(2.0 * jnp.abs(z) - 1.0)
    law_of = lambda y, z: jnp.log(jnp.where(y > 0.0, odds(z[0, 0]), 1.0 - odds(z[0, 0])))
    model = smi.MultiIndex(indices=1, log_likelihood=law_of, outcomes=[-1.0, 1.0])
    # Gauss's rule on pieces without jump or kink
    x, weight = np.polynomial.legendre.leggauss(40)
    z = ((np.arange(48)[:, None] + 0.5 + 0.5 * x) * np.pi / 8.0).ravel()
    weight = np.tile(weight, 48) * np.exp(-0.5 * z**2) * np.sqrt(np.pi / 2.0) / 8.0
    chance = np.asarray(odds(z))
    masses = [(weight @ p, weight @ (p * (z**2 - 1.0))) for p in (chance, 1.0 - chance)]
    truth = 1.0 / sum(moment**2 / mass for mass, moment in masses)
    found = smi.weak_recovery(model, key=KEYS[0])
    largest = 2e-3 if law == "more jumps than pieces" else 1e-10
    assert abs(float(found.alpha) - truth) < 3.0 * float(found.stderr) < largest * truth
