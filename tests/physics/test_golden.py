"""Numbers of each engine on each family: a change that moves them is meant, and said.

A change that moves one of them beyond its tolerance belongs under "Numerical changes" of the
CHANGELOG, with the reason. Same key, same points: the tolerance is rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.priors import BernoulliGauss, Gaussian, Rademacher

KEY, OTHER = jax.random.key(1), jax.random.key(2)
FEW = {"key": KEY, "averages": smi.Averages(2**10, 4)}
FEWER = {"key": KEY, "averages": smi.Averages(2**9, 4)}
ONE, TWO = smi.DeepAttention(1, 2), smi.DeepAttention(2, 2)
PHASE, SOFT = smi.links.phase_retrieval(), smi.AttentionIndexed(2, 0.5)
CORRELATED = Gaussian([[1.0, 0.3], [0.3, 0.8]])


def evolved(model, alpha, **settings):
    if settings.get("averages"):  # the fixed point itself, whatever the steps to it
        settings["iteration"] = smi.Iteration(tolerance=1e-10)
    return smi.state_evolution(model, alpha, **settings)


def overlap(model, alpha, **settings):
    return evolved(model, alpha, **settings).overlap


def overlap_of_message_passing(model, dimension, alpha, steps):
    data = model.sample(KEY, dimension=dimension, alpha=alpha)
    return smi.gamp(model, data, key=OTHER, iteration=smi.Iteration(steps)).overlap


def posterior(model, seed=0):
    """log Z and g of the channel at one ω and V."""
    rng, P, M = np.random.default_rng(seed), model.indices, model.tokens
    V = 0.35 * np.eye(P) + 0.1
    omega = 0.8 * rng.standard_normal((P, M))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((P, M))
    found = model.channel.posterior(model.link(jnp.asarray(z)), omega, V, key=KEY)
    return jnp.append(found.log_partition, found.g)


def network_flow():
    series = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
    model = smi.SequenceSingleIndex(series, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0)
    return smi.sgd.flow(model, 0.05, [0.2, 0.5, 1.0, 2.0]).teacher_overlap


def trained():
    link = lambda z: jnp.tanh(z[0, 0]) + z[1, 0] * z[1, 1]
    model = smi.MultiIndex(link, indices=2, tokens=2)
    data = model.sample(KEY, dimension=40, alpha=4.0)
    return smi.train(model, data, optax.adam(0.05), key=OTHER, steps=30).overlap


def answers(solution):
    return [solution.overlap, solution.spectral_radius, solution.error]


def slope(function, *at):
    return jax.grad(function, tuple(range(len(at))))(*at)


def softmax(rho, **options):
    return smi.AttentionIndexed(2, rho, **options)


# fmt: off
NUMBERS = {
    "state evolution, phase retrieval": (lambda: answers(evolved(PHASE, 0.8, **FEW)), [0.21352242693, 0.77489375379, 0.56117164239]),
    "state evolution, binary prior": (lambda: overlap(smi.links.sign(prior=Rademacher()), 1.2, **FEW), [0.6686613798669]),
    "state evolution, sparse prior": (lambda: overlap(smi.links.phase_retrieval(prior=BernoulliGauss(0.4)), 0.7, **FEW), [0.15141433807]),
    "state evolution, correlated prior": (lambda: overlap(smi.links.sign_product(2, CORRELATED), 4.0, **FEW), [0.61206931694, 0.25228048569, 0.25228048569, 0.48977988521]),
    "state evolution, attention": (lambda: overlap(ONE, 0.4, **FEW), [0.57535428702]),
    "state evolution, two layers": (lambda: overlap(TWO, 0.8, **FEWER), [0.16031262203, -0.0010674357593, -0.0010674357593, 0.98517602355]),
    "state evolution, softmax of a matrix": (lambda: overlap(SOFT, 0.1), [1.1078039827]),
    "state evolution, hardmax of a matrix": (lambda: overlap(softmax(0.5, output="hardmax"), 1.0), [1.4210683114]),
    "state evolution, bilinear": (lambda: overlap(smi.Bilinear(1.0, 0.2), 0.3), [0.65259567971]),
    "derivative in α, phase retrieval": (lambda: slope(lambda a: overlap(PHASE, a, **FEWER)[0, 0], 0.8), [0.87396296283]),
    "derivatives, softmax of a matrix": (lambda: slope(lambda a, width: evolved(softmax(width, beta=1.3), a).error, 0.1, 0.5), [-6.2190473085, 0.44792360711]),
    "free entropy, softmax of a matrix": (lambda: smi.free_entropy(SOFT, 0.1, jnp.full((1, 1), 0.75390199133)).value, [0.028984672391]),
    "free entropy, phase retrieval": (lambda: smi.free_entropy(PHASE, 0.8, 0.4, **FEW).value, [-0.58021027465]),
    "free entropy, attention": (lambda: smi.free_entropy(ONE, 0.4, 0.5, **FEW).value, [-0.83499048647]),
    "message passing, phase retrieval": (lambda: overlap_of_message_passing(PHASE, 150, 2.0, 12), [1.1436780894]),
    "message passing, attention": (lambda: overlap_of_message_passing(ONE, 150, 1.0, 12), [1.1422865211]),
    "message passing, softmax of a matrix": (lambda: overlap_of_message_passing(SOFT, 30, 0.15, 15), [1.0914413517]),
    "message passing, bilinear": (lambda: overlap_of_message_passing(smi.Bilinear(1.0, 0.25), 20, 0.6, 15), [1.1171504569]),
    "channel, two layers": (lambda: posterior(TWO), [-3.0045306318, -0.039073809679, 0.068112316095, 1.4515454149, 1.3856036915]),
    "prior, sparse, two indices": (lambda: BernoulliGauss(0.3).overlap(0.7 * jnp.eye(2) + 0.2)[0], [0.56961990175, 0.037063537863]),
    "prior, binary, three indices": (lambda: Rademacher().overlap(0.5 * jnp.eye(3) + 0.1)[0], [0.39295983874, 0.034536920495, 0.034536920495]),
    "online SGD, flow": (network_flow, [0.062613837811, 0.087672308242, 0.15290621212, 0.43141216124]),
    "online SGD, largest rate": (lambda: smi.sgd.maximal_rate(smi.sgd.semantic_positional(0.6, 1.0)).value, [6.4655324669]),
    "descent": (trained, [1.509770407, -0.029276249999, -0.029276249999, 0.80297103978]),
}
# fmt: on


def compare(name, **tolerance):
    compute, expected = NUMBERS[name]
    found = np.concatenate([np.ravel(x) for x in jax.tree.leaves(compute())])
    np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_number_stays(name):
    # measured: 8e-11 at most, of eleven digits; another processor rounds sums in another order
    compare(name, rtol=1e-8, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NUMBERS)
def test_number_on_an_accelerator(name):
    if jax.default_backend() == "cpu":
        pytest.skip("no accelerator that JAX can see")
    compare(name, rtol=1e-6, atol=1e-9)
