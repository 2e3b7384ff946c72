"""Arguments that contradict each other, data that contradict a model, and questions without theory,
posterior or minimum: a ValueError before anything is computed, of one sentence that names the
argument, what came and what is allowed.

Single arguments of a wrong kind or range are tried by test_validation.py, for all functions.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.descent.baselines import minimum_nuclear_norm
from jaxsmi.priors import BernoulliGauss, Gaussian, GaussianMixture, Rademacher
from jaxsmi.thresholds.branch import _dependence, check_oblique

KEY, NAN, SGD, Start = jax.random.key(0), float("nan"), smi.sgd, smi.Start
LINEAR, SIGN, MODULUS = smi.links.linear(0.5), smi.links.sign(), smi.links.phase_retrieval()
TWO, SINGLE = smi.DeepAttention(depth=2, tokens=2), smi.DeepAttention(depth=1, tokens=2)
SCORES, PARITY = smi.AttentionIndexed(2, 0.5), smi.links.square_plus_sign_parity()
HARDMAX = smi.DeepAttention(2, 2, activation="hardmax")
ONES = GaussianMixture([1.0], [1.0], [1.0], mirrored=False)
SEMANTIC = SGD.semantic_positional(0.5)
ZERO, EYE, ONE = np.zeros((2, 2)), np.eye(2), np.eye(1)
INPUTS = np.random.default_rng(0).standard_normal((6, 1, 5))
PAIRS = np.random.default_rng(1).standard_normal((6, 2, 5))
MIXED = np.array([[0.6, 0.4], [0.3, 0.7]])  # a label of attention
MANY = np.tile(MIXED, (6, 1, 1))
ONES, WIDE = np.ones((6, 1)), np.ones((2, 5))
DATA, BARE = smi.Dataset(INPUTS, ONES, np.ones((1, 5))), smi.Dataset(INPUTS, ONES)
VECTORS = smi.Dataset(np.random.default_rng(0).standard_normal((9, 1, 4)), np.zeros(9))
WHITE = VECTORS.whiten(np.eye(4))
LAZY = LINEAR.sample(KEY, dimension=5, alpha=2.0, store=False)
SGD_START = (0.1 * EYE, EYE)
ADAM = optax.adam(0.1)
BROKEN = np.ones((20, 1, 5))
BROKEN[3] = NAN


def first(z):
    return z[0, 0]


def odds(y, z):
    return jax.nn.log_sigmoid(y * z[0, 0])


def counts_of_squares(y, z):
    rate = z[0, 0] ** 2
    return jax.scipy.special.xlogy(y, rate) - rate - jax.scipy.special.gammaln(y + 1.0)


def deep(depth=2, **options):
    return smi.DeepAttention(depth, 2, **options)


def multi(link=first, indices=1, **options):
    return smi.MultiIndex(link, indices=indices, **options)


def stairs_of_noise(noise):
    return smi.staircase(smi.links.linear(noise), key=KEY)


def law(**options):
    return smi.MultiIndex(**{"indices": 1, "log_likelihood": odds} | options)


def laplace(scale, drawn):
    likelihood = lambda y, z: -jnp.abs(y - z[0, 0]) / scale
    draw = lambda key, z: z[0, 0] + drawn * jax.random.laplace(key)
    return law(link=first, log_likelihood=likelihood, sampler=draw)


def logistic(labels):
    draw = lambda key, z: labels[jax.random.bernoulli(key, jax.nn.sigmoid(z[0, 0])).astype(int)]
    return law(link=lambda z: 2.0 * jax.nn.sigmoid(z[0, 0]) - 1.0, sampler=draw)


def poisson(factor):
    draw = lambda key, z: jax.random.poisson(key, factor * z[0, 0] ** 2)
    return law(link=lambda z: z[0, 0] ** 2, log_likelihood=counts_of_squares, sampler=draw)


def flipped(k, **options):
    return smi.links.sign_committee(k, flip=0.1, **options)


def sample(model=LINEAR, alpha=1.0, **options):
    return model.sample(KEY, dimension=5, alpha=alpha, **options)


def gamp(model, inputs=INPUTS, labels=ONES, teacher=None, **options):
    return smi.gamp(model, smi.Dataset(inputs, labels, teacher), key=KEY, **options)


def evolve(model=LINEAR, alpha=1.0, **options):
    return smi.state_evolution(model, alpha, key=KEY, **options)


def error(model, overlap):
    return smi.generalization_error(model, overlap, key=KEY)


def posterior(model, y, omega=ZERO, V=EYE):
    return model.channel.posterior(y, omega, V)


def noiseless(model, noises=(0.1, 0.05, 0.025, 0.0125)):
    return smi.weak_recovery(model, key=KEY, noises=noises)


def train(model=LINEAR, data=DATA, steps=2, monitor=None, **gradient):
    settings = {"gradient": smi.Gradient(**gradient), "monitor": monitor}
    return smi.train(model, data, ADAM, key=KEY, steps=steps, **settings)


def sequence(target=jnp.sum, length=2, *options, **named):
    return smi.SequenceSingleIndex(target, length, *options, **named)


def flow(model=TWO, start=SGD_START, times=(0.1,), key=KEY, **settings):
    return SGD.flow(model, start, times, key=key, **settings)


def run(model=TWO, key=KEY, rate=0.1, batch=None, rule=None, **settings):
    gradient = None if batch is None else smi.Gradient(**batch)
    rule = SGD.Rule(**{"rate": rate, "gradient": gradient} | (rule or {}))
    return SGD.simulate(model, key, **{"dimension": 50, "alpha": 0.1, "rate": rule} | settings)


def descend(rate=0.1, model=None, start=(0.1, 1.0), **settings):
    model = multi(lambda z: jnp.sum(jnp.tanh(z)), 2) if model is None else model
    return smi.descent_theory(model, 2.0, start, rate=rate, steps=2, key=KEY, **settings)


def taught(teacher, student=None):
    return SGD.Initial(student, teacher=teacher)


def passing(model, data=None, **options):
    return smi.gamp(model, sample(model) if data is None else data, key=KEY, **options)


def relabelled(of):
    """Message passing of softmax scores on other labels."""
    data = sample(SCORES)
    return passing(SCORES, smi.Dataset(data.inputs, of(data.labels)))


def profile(columns):
    """Linear labels of weights whose columns have variances of their own."""
    return smi.links.linear(0.1, prior=smi.priors.GaussianProfile(np.arange(1.0, columns + 1.0)))


def risk(loss):
    return evolve(SIGN, learner=smi.Erm(LINEAR, loss=loss))


def ones(*shape):
    return smi.Dataset(jnp.ones(shape), jnp.ones(shape[0]))


def tokens(**law):
    inputs = smi.Tokens(**{"encoding": [1.0, 2.0]} | law)
    return multi(lambda z: z[0, 0] * z[0, 1], tokens=2, inputs=inputs)


def directed(U):
    return tokens().sample(KEY, dimension=400, alpha=0.1, teacher=W, directions=U)


def coupled(prior):
    """It learns z1 + z2 first."""
    link = lambda z: jnp.abs(z[0, 0] + z[1, 0]) + 0.1 * jnp.abs(z[0, 0] - z[1, 0])
    return multi(link, 2, noise=0.1, prior=prior)


def direction(angle):
    return jnp.asarray([[np.cos(angle)], [np.sin(angle)]])


def oblique(prior, angle):
    return check_oblique(coupled(prior), direction(angle))


CORRELATED = multi(lambda z: jnp.sum(z**2), 2, prior=Gaussian([[1.0, 0.5], [0.5, 1.0]]))
SQUARE = multi(lambda z: z[0, 0] ** 2)
DIRECTED = tokens(encoding=[[1.0], [1.0]], cross=[[1.0]])
JUMPS = multi(lambda z: jnp.sign(z[0, 0] - 0.1))

# Matrices, learners and directions of inputs
LAYERED, THREE = smi.AttentionIndexed(2, 0.5, layers=2), smi.AttentionIndexed(3, 0.5)
ARGMAX, ARGMAX_THREE = (smi.AttentionIndexed(tokens, 0.5, "hardmax") for tokens in (2, 3))
LINEAR_SCORES = smi.AttentionIndexed(2, 0.5, "linear")
BILINEAR, TALL = smi.Bilinear(1.0, 0.2, 0.1), smi.Bilinear(jnp.inf, 0.3)
SYMMETRIC = smi.Bilinear(symmetric=True)
NORMED = smi.links.phase_retrieval(prior=Gaussian(ONE))
NUCLEAR, RISK = smi.MatrixErm(nuclear=0.3), smi.Erm(ridge=0.1)
LOGISTIC = smi.Erm(LINEAR, loss=smi.losses.logistic)
AWARE = tokens(cross=[0.6])  # the teacher overlaps with a direction of the inputs
W = jax.random.normal(KEY, (1, 400))
BITS = law(log_likelihood=lambda y, z: odds(2.0 * y - 1.0, z), outcomes=[0.0, 1.0])

# What the message begins with, as a regular expression, and the call.
MODELS = [
    (r"noise: got Rademacher\(\); allowed: a variance", lambda: smi.links.sign(Rademacher())),
    (r"squared: got Rademacher\(\)", lambda: smi.links.phase_retrieval(Rademacher())),
    ("flip", lambda: smi.links.sign(flip=0.6)),
    ("flip", lambda: smi.links.sign_committee(3, flip=0.6)),
    ("flip: .*slopes are 0", lambda: smi.links.piecewise_linear([0, 1], [-1, 1], [0], flip=0.1)),
    ("flip: got 0.1; allowed: 0 for labels with", lambda: flipped(3, noise=0.1)),
    ("flip: got 0.1; allowed: 0 for labels with", lambda: flipped(5)),
    (r"inputs: .*an array of shape \(N, 1, 5\)", lambda: LINEAR.predict(WIDE[:1], np.ones((4, 6)))),
    (r"inputs: .*for one input x\[None\]", lambda: LINEAR.predict(WIDE[:1], np.ones(5))),
    (r"inputs: .*for one input x\[None\]", lambda: TWO.predict(WIDE, WIDE)),
    (r"model: .*; of a link smi.MultiIndex\(link, ", lambda: smi.gamp(first, DATA, key=KEY)),
    ("link: .*jnp.sin instead of math.sin", lambda: multi(lambda z: math.sin(z[0, 0]))),
    (
        r"log_likelihood: .*of \(y, z\), in this order",
        lambda: law(outcomes=[0.0, 1.0], log_likelihood=lambda z, y: odds(y, z)),
    ),
    ("loss: got 'logistic'; .*such as smi.losses.squared", lambda: smi.Erm(loss="logistic")),
    ("skip", lambda: deep(skip=[1.0, 1.0])),
    ("beta", lambda: deep(beta=[1.0, 2.0])),
    ("ranks", lambda: deep(ranks=(1, 1, 1))),
    ("tied", lambda: deep(tied=(True,))),
    (r"noise: .*0 with hardmax", lambda: deep(noise=0.1, activation="hardmax")),
    (r"symmetry: got 'signs'.*'signed permutation'", lambda: multi(symmetry=[((0,), "signs")])),
    (r"symmetry: .*indices from 0 to 1", lambda: multi(indices=2, symmetry=[((0, 2), "sign")])),
    ("indices", lambda: smi.MultiIndex(channel=SIGN.channel, indices=2)),
    ("tokens", lambda: smi.MultiIndex(channel=SIGN.channel, tokens=3)),
    ("link", lambda: smi.MultiIndex(jnp.sum, channel=SIGN.channel)),
    ("link", lambda: smi.MultiIndex(indices=2)),
    ("noise", lambda: smi.MultiIndex(channel=SIGN.channel, noise=0.5)),
    ("tolerance", lambda: smi.MultiIndex(channel=SIGN.channel, tolerance=1e-3)),
    ("max_nodes", lambda: smi.MultiIndex(channel=SIGN.channel, max_nodes=2**12)),
    ("max_nodes", lambda: multi(noise=0.1, max_nodes=100)),
    ("log_likelihood", lambda: smi.MultiIndex(channel=SIGN.channel, log_likelihood=min)),
    ("noise", lambda: multi(log_likelihood=min, noise=0.3)),
    ("link: .*use jnp instead of np in `link`", lambda: multi(lambda z: np.sin(z[0, 0]))),
    (
        "log_likelihood: .*use jnp instead of np",
        lambda: law(outcomes=[-1.0, 1.0], log_likelihood=lambda y, z: np.exp(z[0, 0])),
    ),
    ("link", lambda: multi(lambda z: z @ jnp.ones(3))),
    # JAX would read the last index there is
    (r"link: .*index 2 is out of bounds", lambda: multi(lambda z: jnp.abs(z[2, 0]), 2, noise=0.1)),
    (
        r"log_likelihood: .*index 1 is out",
        lambda: law(link=first, log_likelihood=lambda y, z: z[1]),
    ),
    (r"link: .*returns a list.*such as jnp\.stack\(", lambda: multi(lambda z: [z[0, 0]])),
    (r"link: .*returns a tuple", lambda: multi(lambda z: (z[0, 0],), noise=0.1)),
    (r"link: .*returns a NoneType", lambda: multi(lambda z: None)),
    (r"link: .*returns complex numbers \(\)", lambda: multi(lambda z: 1j * z[0, 0], noise=0.1)),
    (r"sampler: .*function of \(", lambda: law(link=first, sampler=lambda key, z: [z[0, 0]])),
    (r"log_likelihood: .*function of \(", lambda: law(link=first, log_likelihood=lambda y, z: [y])),
    (r"log_likelihood: .*function of", lambda: law(link=first, log_likelihood=lambda y, z: z[0])),
    (r"log_likelihood: .*function of \(", lambda: law(link=first, log_likelihood=lambda y: y)),
    ("sampler", lambda: multi(sampler=min)),
    ("outcomes", lambda: multi(outcomes=[0, 1])),
    ("outcomes", lambda: law(outcomes=[1.0])),
    ("log_likelihood", lambda: law(outcomes=[0.0, 1.0])),
    # counts of mean z² that are cut off: they add up to one at small fields alone
    (
        "log_likelihood: got 0.02199 in all at a field -4; .*list more",
        lambda: multi(None, log_likelihood=counts_of_squares, outcomes=np.arange(9.0)),
    ),
    ("sampler", lambda: law(link=first, sampler=lambda z: z)),
    ("sampler", lambda: law(outcomes=[-1, 1], sampler=min)),
    ("sampler: .*do not follow", lambda: laplace(0.3, 1.0)),
    ("sampler: .*do not follow", lambda: laplace(0.01, 0.012)),
    ("sampler: .*do not follow", lambda: logistic(jnp.array([0.0, 1.0]))),
    ("sampler: .*do not follow", lambda: poisson(2.0)),
    (
        "log_likelihood: got it without a link.* or outcomes=",
        lambda: law(sampler=lambda key, z: 1.0),
    ),
    ("knots", lambda: smi.links.piecewise_linear([0.0, 1.0], [0.0, 0.0], [0.0, 1.0])),
    ("knots", lambda: smi.links.piecewise_linear([0, 1, 0], [0, 0, 0], [1.0, -1.0])),
    ("offsets", lambda: smi.links.piecewise_linear([0.0, 1.0], [0.0], [0.0])),
    ("slopes", lambda: smi.links.piecewise_linear([0.0, 0.0], [1.0, 1.0], [0.0])),
    ("output", lambda: smi.Bilinear(output="softmax")),
    ("output", lambda: smi.Bilinear(output=smi.links.product(2))),
    ("noise", lambda: smi.Bilinear(noise=0.1, output=smi.links.relu())),
    ("log_likelihood", lambda: smi.Bilinear(output="sign", log_likelihood=lambda y, z: z)),
    ("output", lambda: smi.AttentionIndexed(2, 0.5, output=lambda h: h[5, 5, 5], noise=0.1)),
    ("layers", lambda: smi.AttentionIndexed(2, 0.5, output=lambda h: h, noise=0.1, layers=2)),
    ("solution", lambda: LINEAR.predict(smi.Solution(*[None] * 10), INPUTS)),
    ("solution", lambda: LINEAR.predict(WIDE, INPUTS)),
    ("inputs", lambda: TWO.predict(WIDE, INPUTS)),
    ("inputs", lambda: LINEAR.predict(np.ones((1, 5)), INPUTS[:, :, :4])),
    ("estimate", lambda: smi.align(np.ones((2, 4)), WIDE, TWO)),
    ("teacher", lambda: smi.align(np.ones((3, 5)), np.ones((3, 5)), TWO)),
    ("overlap", lambda: error(TWO, np.eye(3))),
    ("data", lambda: smi.generalization_error(LINEAR, 0.5, data=DATA, key=KEY)),
]
PRIORS = [
    ("density", lambda: BernoulliGauss([0.1, 0.2])),
    ("covariance", lambda: Gaussian(np.ones(3))),
    ("covariance", lambda: Gaussian([[1.0, 0.3], [0.2, 1.0]])),
    ("covariance", lambda: Gaussian(np.diag([1.0, -1e-3]))),
    ("indices", lambda: Gaussian(EYE).overlap(jnp.eye(3))),
    ("indices", lambda: Rademacher().second_moment(9)),
    ("Qhat", lambda: Gaussian().overlap(jnp.ones((2, 3)))),
    ("b", lambda: Gaussian().posterior(jnp.ones(3), jnp.eye(1))),
    ("A", lambda: Gaussian().posterior(jnp.ones((1, 3)), jnp.eye(2))),
    ("signal", lambda: Gaussian().side_information(KEY, jnp.ones(3), 0.1)),
    ("weights", lambda: GaussianMixture([0.5], [1.0], [0.1])),
    (".*", lambda: GaussianMixture([1.0], [1.0, 2.0], [0.1])),
    ("scales", lambda: GaussianMixture([1.0], [1.0], [-0.1])),
    ("dimension", lambda: smi.priors.GaussianProfile([1.0, 2.0]).sample(KEY, 1, 3)),
    ("eigenvalues", lambda: smi.priors.Spectrum([1.0, 1.0])),
    ("weights", lambda: smi.priors.Spectrum([0.0, 1.0], weights=[1.0])),
    ("rank_ratio", lambda: smi.AttentionIndexed(2, smi.priors.ProductPrior(1.0, 0.5))),
    ("dimension: got 1000000; .*2.40", lambda: SIGN.sample(KEY, dimension=10**6, alpha=2.0)),
    ("parameters: got .mass.; .*noise", lambda: smi.sweep(smi.links.linear, [1.0], {"mass": [1]})),
    (
        "model",
        lambda: smi.weak_recovery(
            smi.links.phase_retrieval(prior=GaussianMixture([1.0], [1.0], [1.0], mirrored=False)),
            key=KEY,
        ),
    ),
]
DATA_SETS = [
    ("teacher", lambda: sample(teacher=WIDE)),
    ("labels", lambda: smi.Dataset(INPUTS, np.ones(5))),
    (
        r"inputs: .* 5 of them not finite, the first at \[3, 0, 0\]",
        lambda: smi.Dataset(BROKEN, np.ones(20)),
    ),
    (r"labels: .*give X\.T", lambda: smi.Dataset(INPUTS[:, 0].T, np.ones(6))),
    ("teacher", lambda: smi.Dataset(INPUTS, ONES, np.ones((1, 4)))),
    (r"data: .*data\.stored\(\)", lambda: LAZY.first(3)),
    ("covariance", lambda: VECTORS.whiten(np.eye(3))),
    ("covariance", lambda: VECTORS.whiten(np.diag([1.0, 1.0, 1.0, 0.0]))),
    ("covariance", lambda: VECTORS.whiten(np.ones((2, 1, 4)))),
    ("covariance", lambda: VECTORS.first(4).whiten()),
    ("tokens", lambda: VECTORS.whiten(np.eye(4), tokens=EYE)),
    ("data", lambda: WHITE.whiten(np.eye(4))),
    ("data", lambda: VECTORS.unwhiten(np.ones((1, 4)))),
    ("weights", lambda: WHITE.unwhiten(np.ones((1, 3)))),
    (r".*rows W", lambda: sample(smi.Bilinear(1.0, 0.5)).whiten(np.eye(5))),
]
INFERENCE = [
    ("inputs", lambda: gamp(TWO, INPUTS, MANY)),
    ("teacher", lambda: gamp(LINEAR, teacher=WIDE)),
    ("labels", lambda: gamp(TWO, PAIRS, 1.01 * MANY)),  # rows that do not sum to one
    ("labels", lambda: gamp(TWO, PAIRS, np.tile([[1.5, -0.5], [0.3, 0.7]], (6, 1, 1)))),
    ("labels", lambda: gamp(TWO, PAIRS, MANY.astype(np.float32))),
    (r"labels: .*reshape\(6, 2, 2\)\.$", lambda: gamp(SCORES, PAIRS, np.ones((6, 1, 2, 2)))),
    (r"labels: .*\+1 and -1: take 2 \* labels - 1", lambda: gamp(SIGN, labels=np.arange(6) % 2)),
    ("labels", lambda: gamp(MODULUS, labels=-np.ones(6))),
    ("labels", lambda: gamp(smi.links.relu(), labels=-np.ones(6))),
    (
        r"labels: got the label 2\.0; .*list more",
        lambda: gamp(law(outcomes=[-1.0, 1.0]), labels=np.array([1, -1, 1, 2.0, 1, 3])),
    ),
    (
        r"loss: .*and labels 2 \* y - 1",
        lambda: smi.gamp(BITS, smi.Dataset(INPUTS, np.ones(6)), learner=LOGISTIC, key=KEY),
    ),
    (r"labels: .*integers >= 0", lambda: gamp(smi.links.poisson(), labels=np.full(6, -1.0))),
    (r"labels: .*counts: integers >= 0", lambda: gamp(smi.links.poisson(), labels=np.full(6, 0.5))),
    ("start", lambda: gamp(LINEAR, start=WIDE)),
    ("start", lambda: gamp(LINEAR, start=np.ones(7))),
    ("teacher", lambda: gamp(LINEAR, start="informed")),
    ("teacher", lambda: gamp(LINEAR, start=Start(side_information=0.1))),
    ("key", lambda: smi.gamp(LINEAR, DATA)),
    (r"model: .*noise > 0", lambda: gamp(deep(ranks=3), PAIRS, MANY)),
    (r"model: .*one head in the last layer", lambda: gamp(deep(heads=(1, 2)), PAIRS, MANY)),
    (r"model: .*noise > 0", lambda: gamp(deep(tied=False, ranks=2), PAIRS, MANY)),
    (r"model: .*trained on data", lambda: gamp(HARDMAX, PAIRS, MANY)),
    ("start", lambda: evolve(start=np.ones((2, 2)))),
    ("start", lambda: evolve(TWO, start=np.array([[0.5, 0.3], [0.0, 0.5]]))),
    ("points", lambda: evolve(averages=smi.Averages(4))),
    ("model", lambda: smi.free_entropy(SEMANTIC, 1.0, 0.5, key=KEY)),
    (r"model: .*outside of jax\.jit", lambda: jax.jit(lambda: smi.staircase(SIGN, key=KEY))()),
    (r"model: .*outside of jax\.jit", lambda: jax.jit(lambda: smi.first_order(SIGN, key=KEY))()),
    (r"model: .*outside of jax\.jit", lambda: jax.vmap(stairs_of_noise)(np.ones(2))),
    ("omega", lambda: posterior(TWO, MIXED, np.zeros((1, 1)))),
    ("V", lambda: posterior(TWO, MIXED, V=np.eye(3))),
    ("V", lambda: posterior(TWO, MIXED, V=ZERO)),
    ("V", lambda: posterior(TWO, MIXED, V=np.array([[1.0, 2.0], [2.0, 1.0]]))),
    ("V", lambda: posterior(TWO, MIXED, V=np.array([[1.0, 0.2], [0.1, 1.0]]))),
    ("labels", lambda: posterior(TWO, 0.9 * MIXED)),
    ("labels", lambda: posterior(SINGLE, np.full((2, 2), NAN), np.zeros((1, 2)), ONE)),
    ("labels", lambda: posterior(SIGN, 0.0, 0.0 * ONE, ONE)),
    ("labels", lambda: posterior(MODULUS, -1.0, 0.0 * ONE, ONE)),
    ("labels", lambda: posterior(LINEAR, np.array([np.inf]), 0.0 * ONE, ONE)),
    ("labels", lambda: posterior(multi(noise=0.1), np.ones(2), 0.0 * ONE, ONE)),
    ("labels", lambda: posterior(PARITY, -2.0, np.zeros((3, 1)), np.eye(3))),
    (r"noises: .*four variances", lambda: noiseless(SQUARE, (0.1, 0.05, 0.025))),
    (r"noises: .*falling by one factor", lambda: noiseless(SQUARE, (0.1, 0.05, 0.02, 0.01))),
    (r"noises: .*falling by one factor", lambda: noiseless(SQUARE, (0.0125, 0.025, 0.05, 0.1))),
    (r"noises: .*already has a posterior", lambda: noiseless(MODULUS)),
    (r"noises: .*jump", lambda: noiseless(JUMPS)),
    (r"noises: .*softmax student", lambda: noiseless(HARDMAX)),
    (r"noises: .*None for (a matrix|this) model", lambda: noiseless(smi.Bilinear(1.0, 0.2))),
    (r"model: .*noises=\[\.\.\]\) and smi\.noiseless_limit", lambda: gamp(SQUARE)),
]
TRAINING = [
    ("batch_size: got 7; allowed: at most 6", lambda: train(batch_size=7)),
    (
        "patience: .*without a test set or a teacher",
        lambda: train(data=BARE, monitor=smi.Monitor(patience=3)),
    ),
    ("target: got .*without a teacher", lambda: train(data=BARE, monitor=smi.Monitor(target=0.5))),
    ("target: .*2 rows", lambda: train(multi(), sample(deep()), monitor=smi.Monitor(target=0.5))),
    ("start: ", lambda: smi.train(LINEAR, DATA, ADAM, key=KEY, steps=1, start=np.ones((3, 5)))),
    ("data.inputs: ", lambda: train(TWO)),
    ("data.labels: ", lambda: train(data=smi.Dataset(INPUTS, np.ones((6, 2))))),
    (r"data\.inputs.*Stream", lambda: train(data=LAZY)),
    (r"data\.inputs.*Stream", lambda: train(data=sample(dtype=jnp.bfloat16))),
    ("test", lambda: train(monitor=smi.Monitor(test=LAZY))),
    ("teacher", lambda: smi.Stream(smi.Bilinear(1.0, 0.5, 0.1), np.ones((5, 12)))),
    ("loss: got .*function of", lambda: train(TWO, sample(TWO), loss=lambda p, y: (p - y) ** 2)),
    ("loss: got .*function of", lambda: train(TWO, sample(TWO), loss=lambda p: p)),
    ("loss: got .*function of", lambda: train(TWO, sample(TWO), loss=lambda p, y: None)),
    (r"model: .*gradient.*softmax student", lambda: train(HARDMAX, sample(HARDMAX))),
]
SGD_ROWS = [
    ("encoding", lambda: sequence(length=3, encoding="paired")),
    ("encoding", lambda: sequence(encoding=jnp.ones((3, 2)))),
    ("encoding", lambda: sequence(jnp.sum, 2, SGD.Network(), "paired")),
    ("reduction", lambda: SGD.Attention("bilinear")),
    ("fields", lambda: sequence(SGD.HermiteSeries({(2,): 1.0}))),
    ("target", lambda: sequence(lambda z: 1j * jnp.sum(z))),
    ("target", lambda: sequence(lambda z: jnp.log(-(jnp.sum(z) ** 2)))),
    ("student", lambda: sequence(lambda z: z)),
    ("terms", lambda: SGD.HermiteSeries({(-1,): 1.0})),
    (r"\(M, Q\)", lambda: SGD.risk(SEMANTIC, [0.9, 0.9])),
    ("key", lambda: SGD.risk(SGD.semantic_positional(0.5, loss="frobenius"), 0.1)),
    ("model", lambda: SGD.hessian(SQUARE, ([[0.1]], [[1.0]]), key=KEY)),
    ("model", lambda: SGD.exponents(lambda z: jnp.exp(z[0] ** 2 / 2), 1)),
    ("degree", lambda: SGD.exponents(deep(3), degree=9)),
    ("model", lambda: SGD.exponents(smi.Bilinear())),
    ("times", lambda: flow(times=[0.2, 0.1])),
    ("iteration", lambda: flow(iteration=smi.Iteration(damping=0.5))),
    ("key", lambda: flow(key=None)),
    (r"\(M, Q\)", lambda: flow(start=(2.0 * EYE, EYE))),
    ("model", lambda: flow(BILINEAR)),
    ("start", lambda: flow(SCORES, -1.0)),
    ("teacher", lambda: flow(SCORES, taught([0.0], 1.0))),
    ("teacher", lambda: flow(SCORES, taught([[1.0]], 1.0))),
    ("rate", lambda: flow(SCORES, 1.0, rate=0.1)),
    (".*layer", lambda: flow(LAYERED, 1.0)),
    ("rate: .*commutes.*smi.train", lambda: descend(ADAM)),
    ("rate: .*smi.train", lambda: descend(optax.chain(optax.clip_by_global_norm(1.0), ADAM))),
    ("rate: ", lambda: descend(optax.sign_sgd(0.1))),
    ("rate: ", lambda: descend([0.1, 0.2, 0.3])),
    ("reduction: .*'sum'", lambda: descend(SGD.Rule(0.1, gradient=smi.Gradient(reduction="mean")))),
    ("batch_size: .*share", lambda: descend(SGD.Rule(0.1, gradient=smi.Gradient(batch_size=10)))),
    (".*repeats", lambda: descend(SGD.Rule(0.1, gradient=smi.Gradient(repeats=2)))),
    ("averages: .*raise averages.points", lambda: descend(averages=smi.Averages(16, 4))),
    ("Q: got ", lambda: descend(start=(0.1, -1.0))),
    (".*semi-definite", lambda: descend(start=(2.0, 1.0))),
    ("model: .*smi.train", lambda: descend(model=BILINEAR)),
    ("student: .*gradient", lambda: descend(model=SIGN, student=SIGN)),
    ("overlap", lambda: SGD.rates(TWO, [[1.0, 0.2], [0.2, 1.0]], key=KEY)),
    ("model", lambda: SGD.rates(CORRELATED, key=KEY)),
    ("model", lambda: SGD.maximal_rate(smi.links.linear(0.1), key=KEY)),
    ("dimension", lambda: SGD.Rule(0.1, gradient=smi.Gradient(reduction="sum/D")).per_sample()),
    ("dimension", lambda: run(dimension=5)),
    ("dimension", lambda: run(dimension=7, rule={"momentum": 0.5})),
    ("rate", lambda: run(rate=[0.1, 0.1, 0.1])),
    ("loss", lambda: run(batch={"loss": lambda a, b: float(a - b) ** 2})),
    ("monitor", lambda: run(monitor=smi.Monitor(patience=3))),
    ("teacher", lambda: run(start=taught("random"))),
    ("teacher", lambda: run(start=taught([[1.0, 0.2], [0.1, 1.0]]))),
    ("teacher", lambda: run(start=taught("iid", SGD_START))),
    ("teacher", lambda: run(start=np.ones((2, 50)))),
    ("teacher", lambda: run(DIRECTED, dimension=40, start=taught(0.5 * np.ones((1, 40))))),
    ("M", lambda: run(start=(np.eye(3), EYE))),
    ("Q", lambda: run(start=(EYE, np.array([[1.0, 0.3], [0.2, 1.0]])))),
    (r"\(M, Q\)", lambda: run(start=(EYE, 0.5 * EYE))),
    ("student", lambda: run(student=smi.DeepAttention(2, 3))),
    ("student", lambda: run(student=MODULUS)),
    ("student", lambda: run(student=HARDMAX)),
    ("student", lambda: run(SIGN)),
    ("key", lambda: run(key=jax.random.split(KEY, 0))),
    ("model", lambda: run(smi.Bilinear())),
]
MATRICES = [
    ("model: .*3 layer", lambda: evolve(smi.AttentionIndexed(2, 0.5, layers=3))),
    ("model: .*3 layer", lambda: passing(smi.AttentionIndexed(2, 0.5, layers=3))),
    ("teacher", lambda: passing(SCORES, sample(LAYERED))),
    (r"model: .*one layer \(hardmax: and two tokens\)", lambda: passing(ARGMAX_THREE)),
    (r"model: .*one layer \(hardmax: and two tokens\)", lambda: evolve(ARGMAX_THREE)),
    ("data.labels", lambda: relabelled(lambda y: jnp.ones((25, 3, 3)) / 3)),
    ("labels: .*sum to one", lambda: relabelled(lambda y: 1.1 * y)),
    ("labels: .*positive", lambda: relabelled(lambda y: y.at[0, 0].set(jnp.array([0.0, 1.0])))),
    ("labels: .*one entry 1 and zeros", lambda: passing(ARGMAX, sample(SCORES))),
    ("labels: .*symmetric", lambda: passing(LINEAR_SCORES, sample(SCORES))),
    ("precision", lambda: passing(SCORES, learner=smi.Bayes(precision="controlled"))),
    ("calibrate", lambda: passing(SCORES, learner=smi.Bayes(calibrate=True))),
    ("key: got None", lambda: smi.gamp(ARGMAX, sample(ARGMAX))),
    ("key", lambda: smi.generalization_error(THREE, jnp.ones((1, 1)))),
    ("model: .*a model of indices", lambda: smi.weak_recovery(SCORES, key=KEY)),
    ("model: .*a model of indices", lambda: smi.staircase(SCORES, key=KEY)),
    ("model: .*a model of indices", lambda: smi.first_order(SCORES, key=KEY)),
    ("start", lambda: evolve(SCORES, start=Start(side_information=0.5))),
    ("start", lambda: evolve(BILINEAR, start=0.5)),
    ("averages", lambda: evolve(BILINEAR, averages=smi.Averages(8192))),
    ("tolerance", lambda: evolve(SCORES, iteration=smi.Iteration(tolerance=1e-4))),
    ("aspect_ratio", lambda: smi.Bilinear(2.0, 0.2, symmetric=True)),
    ("aspect_ratio", lambda: sample(TALL)),
    ("inputs", lambda: passing(smi.Bilinear(2.0), ones(5, 10, 10))),
    ("inputs", lambda: passing(SYMMETRIC, smi.Dataset(np.tile(np.tri(10), (5, 1, 1)), np.ones(5)))),
    ("model", lambda: minimum_nuclear_norm(BILINEAR, ones(5, 10, 10))),
    ("data", lambda: minimum_nuclear_norm(smi.Bilinear(), ones(101, 10, 10))),
    ("start", lambda: passing(BILINEAR, start="spectral")),
]  # fmt: skip
LEARNERS = [
    ("loss: .*for labels .1 and -1", lambda: evolve(LINEAR, learner=LOGISTIC)),
    ("loss: .*huber", lambda: evolve(LINEAR, learner=smi.Erm(loss=smi.losses.huber))),
    ("loss", lambda: risk(lambda p, y: p - y)),
    ("loss", lambda: risk(lambda p, y: jnp.sum(jnp.log(p)))),
    ("loss", lambda: risk(lambda p, y: jnp.sum(jnp.abs(p - y)))),
    ("student", lambda: evolve(SIGN, learner=smi.Erm(smi.DeepAttention(1, 2)))),
    ("ridge", lambda: smi.Erm(ridge=EYE)),
    ("ridge", lambda: smi.Erm(ridge=[0.1, -0.1])),
    ("ridge", lambda: evolve(profile(3), learner=smi.Erm(ridge=[0.1, 0.2]))),
    ("ridge", lambda: smi.Erm(LINEAR, ridge=[0.1, 0.2]).risk(np.ones((1, 5)), DATA)),
    ("student", lambda: evolve(profile(3), learner=smi.Mismatched(profile(2)))),
    ("model", lambda: evolve(SCORES, learner=LOGISTIC)),
    ("model", lambda: evolve(BILINEAR, learner=RISK)),
    ("teacher_overlap",
     lambda: evolve(SIGN, learner=LOGISTIC, start=Start(0.5, teacher_overlap=0.9))),
    ("start", lambda: evolve(SIGN, start=Start(teacher_overlap=0.5))),
    ("model", lambda: smi.Mismatched(smi.MultiIndex(lambda z: z[0, 0], indices=1))),
    ("learner", lambda: smi.global_minimum(SIGN, 1.0, learner=smi.Mismatched(LINEAR), key=KEY)),
    ("student", lambda: smi.MatrixErm.of_weight_decay(LINEAR, 0.1)),
    ("student", lambda: smi.MatrixErm.of_weight_decay(TALL, 0.1)),
    ("model", lambda: evolve(LINEAR, learner=NUCLEAR)),
    ("model", lambda: evolve(TALL, learner=NUCLEAR)),
    ("start", lambda: evolve(BILINEAR, learner=NUCLEAR, start=0.5)),
    ("start", lambda: evolve(BILINEAR, learner=NUCLEAR, start=Start(teacher_overlap=0.5))),
    ("data.model", lambda: NUCLEAR.risk(jnp.ones((6, 6)), sample(LINEAR))),
    ("weights", lambda: NUCLEAR.risk(jnp.ones((6, 5)), sample(BILINEAR))),
    ("l1", lambda: evolve(multi(jnp.sum, 2), learner=smi.Erm(l1=0.1))),
    ("bounds", lambda: smi.Erm(bounds=(1.0, 0.0))),
    ("loss: .* gradient is zero", lambda: evolve(ARGMAX, learner=NUCLEAR)),
    ("model: .*one matrix", lambda: evolve(LAYERED, learner=NUCLEAR)),
    ("student", lambda: smi.MatrixErm(0.1, student=LINEAR)),
    ("key", lambda: smi.state_evolution(SCORES, 0.2, learner=NUCLEAR)),
]  # fmt: skip
DIRECTIONS = [
    ("gram", lambda: tokens(gram=jnp.eye(2))),
    ("cross", lambda: tokens(cross=jnp.ones((1, 2)))),
    ("cross", lambda: tokens(cross=[1.5])),
    ("cross", lambda: tokens(cross=[0.5, 0.5])),
    ("encoding", lambda: tokens(encoding=[1.0, 2.0, 3.0])),
    ("directions", lambda: sample(SIGN, directions=np.eye(5))),
    ("directions", lambda: sample(tokens(), directions=jnp.ones((1, 8)))),
    ("directions", lambda: smi.Stream(tokens(), jnp.ones((1, 9)))),
    # 900 where G = 1, and one that is the teacher where R* = 0
    ("directions", lambda: directed(30.0 * jnp.ones((1, 400)))),
    ("directions", lambda: directed(W)),
    # a posterior does not know that the teacher overlaps with directions of its inputs
    ("inputs", lambda: evolve(AWARE)),
    ("inputs", lambda: passing(AWARE, sample(AWARE))),
    ("direction_overlap", lambda: evolve(AWARE, learner=RISK, start=Start(direction_overlap=1.5))),
]  # fmt: skip
SPECTRA = [
    ("model", lambda: smi.spectral_overlap(SIGN, 1.0, key=KEY)),
    ("model", lambda: smi.spectral_overlap(BILINEAR, 1.0, key=KEY)),
    ("estimate_norm", lambda: smi.spectral(NORMED, sample(NORMED), key=KEY, estimate_norm=True)),
    ("side_information",
     lambda: passing(MODULUS, start=Start(weights="spectral", side_information=0.5))),
]  # fmt: skip
THRESHOLDS = [
    (r"model: call it: smi\.links\.sign\(\)", lambda: smi.curve(smi.links.sign, [1.0], key=KEY)),
    (r"prior: call it: Rademacher\(\.\.\)", lambda: smi.links.sign(prior=Rademacher)),
    (r"loss: call it: smi\.losses\.huber\(\)", lambda: smi.Erm(LINEAR, loss=smi.losses.huber)),
    (r"link: call it: smi\.links\.sign\(\)", lambda: multi(smi.links.sign)),
    ("link: got Multi.* need no MultiIndex", lambda: multi(SIGN)),
    ("link: .*use jnp.where", lambda: multi(lambda z: 1.0 if z[0, 0] > 0 else -1.0)),
    ("model: .*noiseless link", lambda: smi.weak_recovery(smi.links.product(3), key=KEY)),
    ("model: got sign, whose labels fix", lambda: smi.recovery_threshold(SIGN)),
    (".*prior", lambda: smi.recovery_threshold(smi.links.phase_retrieval(prior=Rademacher()))),
    ("alpha: .*increasing", lambda: smi.first_order(MODULUS, key=KEY, alpha=[2.0, 1.0, 3.0])),
    # priors that tie an oblique direction to others
    ("model: .*oblique", lambda: oblique(Rademacher(), np.pi / 4)),
    ("model: .*oblique", lambda: oblique(Rademacher(), np.arctan(0.5))),
]  # fmt: skip
LONG = [  # seconds each: a model's averages or its spectrum are compiled before
    (r"model: .*gradient.*softmax student", lambda: train(SIGN, sample(SIGN))),
    ("model: .*oblique", lambda: oblique(BernoulliGauss(0.2), np.pi / 4)),
    ("weight_decay", lambda: flow(rate=SGD.Rule(0.0, weight_decay=0.1))),
    ("M", lambda: flow(start=(ZERO, EYE))),
    ("M", lambda: flow(SEMANTIC, 0.0)),
    ("model", lambda: SGD.rates(smi.links.linear(0.1), key=KEY)),
    ("target", lambda: SGD.risk(sequence(lambda z: jnp.exp(z[0] ** 2), 1, jnp.sum), 0.3)),
    ("fit", lambda: smi.averaged(train(SCORES, sample(SCORES)), np.eye(6))),
    ("ridge", lambda: passing(LINEAR, learner=smi.Erm(ridge=[0.1, 0.2]))),
    ("loss", lambda: evolve(SIGN, learner=RISK)),  # the gradient of a sign vanishes
]
ROWS = [*MODELS, *PRIORS, *DATA_SETS, *INFERENCE, *TRAINING, *SGD_ROWS]
ROWS += [*MATRICES, *LEARNERS, *DIRECTIONS, *SPECTRA, *THRESHOLDS]
ROWS += LONG
NAMES = [f"{k}-{said.partition(':')[0]}" for k, (said, _) in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("said", "call"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row in LONG)) for row in ROWS],
    ids=NAMES,
)
def test_refusals_name_the_argument(said, call):
    with pytest.raises(ValueError, match=rf"(?s)^([\w.]+, )*([\w]+\.)*{said}") as caught:
        call()
    assert "got" in str(caught.value)
    assert "allowed: " in str(caught.value).lower()


def test_draws_of_a_likelihood_are_accepted():
    """At all scales of the noise, and where labels of other fields are not possible."""
    uniform = lambda y, z: jnp.where(jnp.abs(y - z[0, 0]) < 0.5, 0.0, -jnp.inf)
    draw = lambda key, z: z[0, 0] + jax.random.uniform(key) - 0.5
    law(link=first, log_likelihood=uniform, sampler=draw)
    logistic(jnp.array([-1.0, 1.0]))
    poisson(1.0)
    for scale in (1e-6, 0.01, 0.3, 100.0):
        laplace(scale, scale)


@pytest.mark.parametrize("model", [smi.links.product(3), smi.links.sign_product(4), SQUARE])
def test_links_without_inference_still_sample(model):
    """They have labels and predictions; for inference they need noise, and say so."""
    data = sample(model, 2.0)
    assert model.predict(data.teacher, data.inputs).shape == data.labels.shape == (10,)
    zero, eye = np.zeros((model.indices, model.tokens)), np.eye(model.indices)
    for call in (
        lambda: smi.gamp(model, data, key=KEY),
        lambda: evolve(model),
        lambda: posterior(model, data.labels[0], zero, eye),
    ):
        with pytest.raises(ValueError, match=r"noise > 0"):
            call()


@pytest.mark.parametrize(
    "link",
    [
        lambda z: z[jnp.argmax(z[:, 0]), 0],
        lambda z: z.at[0, 0].set(1.0).sum(),
        lambda z: jax.lax.fori_loop(0, 2, lambda i, a: a + z[i, 0], 0.0),
    ],
)
def test_links_that_read_traced_places_are_allowed(link):
    assert multi(link, 2, noise=0.1).indices == 2


def test_coordinates_and_gaussian_priors_may_be_learned_first():
    """The other direction does not depend on them, to rounding; on an oblique one it does."""
    dependence = lambda prior, angle: max(map(float, _dependence(prior, direction(angle))))
    independent = [(Gaussian(), np.pi / 4)]
    for prior in (Rademacher(), BernoulliGauss(0.2)):
        independent += [(prior, 0.0), (prior, np.pi / 2)]
        assert dependence(prior, np.pi / 4) > 0.3
    for prior, angle in independent:
        oblique(prior, angle)
        assert dependence(prior, angle) < 1e-12


@pytest.mark.slow
def test_the_staircase_of_an_oblique_link_needs_a_gaussian_prior():
    few = {"key": KEY, "averages": smi.Averages(2**9, 2), "alpha_max": 1.0}
    with pytest.raises(ValueError, match=r"^model: got .*oblique"):
        smi.staircase(coupled(Rademacher()), **few)
    stairs = smi.staircase(coupled(Gaussian()), **few)
    assert stairs
    for step in stairs:
        assert int(step.result) == smi.Result.SUCCESS
        assert np.isfinite(step.alpha)
        assert np.isfinite(step.overlap).all()
