"""Questions that have no theory, no posterior or no minimum, and data that contradict a model: a
ValueError before anything is computed, which names the argument and what is allowed.

Single arguments of a wrong kind or range are tried for all functions in tests/unit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from jaxsmi.descent.baselines import minimum_nuclear_norm
from jaxsmi.thresholds.branch import check_oblique

KEY, SGD = jax.random.key(0), optax.sgd(0.1)
SOFT, TWO = smi.AttentionIndexed(2, 0.5), smi.AttentionIndexed(2, 0.5, layers=2)
HARD = smi.AttentionIndexed(2, 0.5, "hardmax")
THREE, LINEAR_SCORES = (
    smi.AttentionIndexed(3, 0.5, "hardmax"),
    smi.AttentionIndexed(2, 0.5, "linear"),
)
SQUARE, TALL = smi.Bilinear(1.0, 0.2, 0.1), smi.Bilinear(jnp.inf, 0.3)
SYMMETRIC = smi.Bilinear(symmetric=True)
LINEAR, SIGN, PHASE = smi.links.linear(0.1), smi.links.sign(), smi.links.phase_retrieval()
NORMED = smi.links.phase_retrieval(prior=smi.priors.Gaussian(jnp.eye(1)))
NUCLEAR, RISK = smi.MatrixErm(nuclear=0.3), smi.Erm(ridge=0.1)
LOGISTIC = smi.Erm(LINEAR, loss=smi.losses.logistic)
Start, Bayes = smi.Start, smi.Bayes


def sample(model, dimension=6, alpha=0.5):
    return model.sample(KEY, dimension=dimension, alpha=alpha)


def passing(model, data=None, **options):
    return smi.gamp(model, sample(model) if data is None else data, key=KEY, **options)


def labels(of):
    """Message passing of softmax scores on other labels."""
    data = sample(SOFT)
    return passing(SOFT, smi.Dataset(data.inputs, of(data.labels)))


def evolve(model, learner=None, alpha=0.3, **options):
    return smi.state_evolution(model, alpha, learner=learner, key=KEY, **options)


def risk(loss):
    return evolve(SIGN, smi.Erm(LINEAR, loss=loss))


def train(model, data, **options):
    return smi.train(model, data, SGD, key=KEY, steps=1, **options)


def ones(*shape):
    return smi.Dataset(jnp.ones(shape), jnp.ones(shape[0]))


def tokens(**law):
    inputs = smi.Tokens(**{"encoding": [1.0, 2.0]} | law)
    return smi.MultiIndex(lambda z: z[0, 0] * z[0, 1], indices=1, tokens=2, inputs=inputs)


AWARE = tokens(cross=[0.6])  # the teacher overlaps with a direction of the inputs
W = jax.random.normal(KEY, (1, 400))


def directed(U):
    return tokens().sample(KEY, dimension=400, alpha=0.1, teacher=W, directions=U)


def coupled(prior):
    """It learns z1 + z2 first."""
    link = lambda z: jnp.abs(z[0, 0] + z[1, 0]) + 0.1 * jnp.abs(z[0, 0] - z[1, 0])
    return smi.MultiIndex(link, indices=2, noise=0.1, prior=prior)


def oblique(prior, angle):
    return check_oblique(coupled(prior), jnp.asarray([[np.cos(angle)], [np.sin(angle)]]))


MATRICES = [
    ("model: .*3 layer", lambda: evolve(smi.AttentionIndexed(2, 0.5, layers=3))),
    ("model: .*3 layer", lambda: passing(smi.AttentionIndexed(2, 0.5, layers=3))),
    ("teacher", lambda: passing(SOFT, sample(TWO))),
    ("model: .*hardmax with two tokens", lambda: passing(THREE)),
    ("model: .*hardmax with two tokens", lambda: evolve(THREE)),
    ("data.inputs", lambda: passing(SOFT, sample(smi.AttentionIndexed(3, 0.5)))),
    ("data.labels", lambda: labels(lambda y: jnp.ones((18, 3, 3)) / 3)),
    ("labels: .*sum one", lambda: labels(lambda y: 1.1 * y)),
    ("labels: .*positive", lambda: labels(lambda y: y.at[0, 0].set(jnp.array([0.0, 1.0])))),
    ("labels: .*single one", lambda: passing(HARD, sample(SOFT))),
    ("labels: .*symmetric", lambda: passing(LINEAR_SCORES, sample(SOFT))),
    ("precision", lambda: passing(SOFT, learner=Bayes(precision="controlled"))),
    ("calibrate", lambda: passing(SOFT, learner=Bayes(calibrate=True))),
    ("key: got None", lambda: smi.gamp(HARD, sample(HARD))),
    ("key", lambda: smi.generalization_error(smi.AttentionIndexed(3, 0.5), jnp.ones((1, 1)))),
    ("R: .*symmetric", lambda: SOFT.prior.denoise(jnp.arange(16.0).reshape(4, 4), 1.0)),
    ("model: .*a model of indices", lambda: smi.weak_recovery(SOFT, key=KEY)),
    ("model: .*a model of indices", lambda: smi.staircase(SOFT, key=KEY)),
    ("model: .*a model of indices", lambda: smi.first_order(SOFT, key=KEY)),
    ("model: .*gradient is zero", lambda: train(HARD, sample(HARD))),
    ("fit", lambda: smi.averaged(train(SOFT, sample(SOFT)), np.eye(6))),
    ("start", lambda: evolve(SOFT, start=Start(side_information=0.5))),
    ("start", lambda: evolve(SQUARE, start=0.5)),
    ("averages", lambda: evolve(SQUARE, averages=smi.Averages(8192))),
    ("tolerance", lambda: evolve(SOFT, iteration=smi.Iteration(tolerance=1e-4))),
    ("aspect_ratio", lambda: smi.Bilinear(2.0, 0.2, symmetric=True)),
    ("aspect_ratio", lambda: sample(TALL)),
    ("inputs", lambda: passing(smi.Bilinear(2.0), ones(5, 10, 10))),
    ("inputs", lambda: passing(SYMMETRIC, smi.Dataset(jnp.tri(10) * jnp.ones((5, 1, 1)), jnp.ones(5)))),
    ("model", lambda: minimum_nuclear_norm(SQUARE, ones(5, 10, 10))),
    ("data", lambda: minimum_nuclear_norm(smi.Bilinear(), ones(101, 10, 10))),
    ("start", lambda: passing(SQUARE, start="spectral")),
]  # fmt: skip
LEARNERS = [
    ("loss", lambda: evolve(SIGN, RISK)),  # the gradient of a sign vanishes
    ("loss", lambda: risk(lambda p, y: p - y)),
    ("loss", lambda: risk(lambda p, y: jnp.sum(jnp.log(p)))),
    ("loss", lambda: risk(lambda p, y: jnp.sum(jnp.abs(p - y)))),
    ("student", lambda: evolve(SIGN, smi.Erm(smi.DeepAttention(1, 2)))),
    ("model", lambda: evolve(SOFT, LOGISTIC)),
    ("model", lambda: evolve(SQUARE, RISK)),
    ("teacher_overlap", lambda: evolve(SIGN, LOGISTIC, start=Start(0.5, teacher_overlap=0.9))),
    ("side_information", lambda: evolve(SIGN, LOGISTIC, start=Start(side_information=0.5))),
    ("start", lambda: evolve(SIGN, start=Start(teacher_overlap=0.5))),
    ("model", lambda: smi.Mismatched(smi.MultiIndex(lambda z: z[0, 0], indices=1))),
    ("learner", lambda: smi.global_minimum(SIGN, 1.0, learner=smi.Mismatched(LINEAR), key=KEY)),
    ("student", lambda: smi.MatrixErm.of_weight_decay(LINEAR, 0.1)),
    ("student", lambda: smi.MatrixErm.of_weight_decay(TALL, 0.1)),
    ("model", lambda: evolve(SOFT, NUCLEAR)),
    ("model", lambda: evolve(LINEAR, NUCLEAR)),
    ("model", lambda: evolve(TALL, NUCLEAR)),
    ("start", lambda: evolve(SQUARE, NUCLEAR, start=0.5)),
    ("start", lambda: evolve(SQUARE, NUCLEAR, start=Start(teacher_overlap=0.5))),
    ("data.model", lambda: NUCLEAR.risk(jnp.ones((6, 6)), sample(LINEAR))),
    ("weights", lambda: NUCLEAR.risk(jnp.ones((6, 5)), sample(SQUARE))),
]  # fmt: skip
TOKENS = [
    ("gram", lambda: tokens(gram=jnp.eye(2))),
    ("cross", lambda: tokens(cross=jnp.ones((1, 2)))),
    ("cross", lambda: tokens(cross=[1.5])),
    ("cross", lambda: tokens(cross=[0.5, 0.5])),
    ("encoding", lambda: tokens(encoding=[1.0, 2.0, 3.0])),
    ("directions", lambda: SIGN.sample(KEY, dimension=9, alpha=1.0, directions=jnp.eye(9))),
    ("directions", lambda: tokens().sample(KEY, dimension=9, alpha=1.0, directions=jnp.ones((1, 8)))),
    ("directions", lambda: smi.Stream(tokens(), jnp.ones((1, 9)))),
    # 900 where G = 1, and one that is the teacher where R* = 0
    ("directions", lambda: directed(30.0 * jnp.ones((1, 400)))),
    ("directions", lambda: directed(W)),
    # a posterior does not know that the teacher overlaps with directions of its inputs
    ("inputs", lambda: evolve(AWARE)),
    ("inputs", lambda: passing(AWARE, sample(AWARE, 20, 1.0))),
    ("direction_overlap", lambda: evolve(AWARE, RISK, start=Start(direction_overlap=1.5))),
]  # fmt: skip
SPECTRA = [
    ("model", lambda: smi.spectral_overlap(LINEAR, 1.0, key=KEY)),
    ("model", lambda: smi.spectral_overlap(SIGN, 1.0, key=KEY)),
    ("model", lambda: smi.spectral_overlap(SQUARE, 1.0, key=KEY)),
    ("norm", lambda: smi.spectral(NORMED, sample(NORMED), key=KEY, norm=True)),
    ("side_information", lambda: passing(PHASE, start=Start(weights="spectral", side_information=0.5))),
]  # fmt: skip
THRESHOLDS = [
    ("model: .*noiseless link", lambda: smi.weak_recovery(smi.links.product(3), key=KEY)),
    ("model", lambda: smi.recovery_threshold(SIGN)),
    (".*prior", lambda: smi.recovery_threshold(smi.links.phase_retrieval(prior=smi.priors.Rademacher()))),
    ("alpha: .*increasing", lambda: smi.first_order(PHASE, key=KEY, alpha=[2.0, 1.0, 3.0])),
    # priors that tie an oblique direction to others
    ("model: .*oblique", lambda: oblique(smi.priors.Rademacher(), np.pi / 4)),
    ("model: .*oblique", lambda: oblique(smi.priors.Rademacher(), np.arctan(0.5))),
    ("model: .*oblique", lambda: oblique(smi.priors.BernoulliGauss(0.2), np.pi / 4)),
]  # fmt: skip
ROWS = [*MATRICES, *LEARNERS, *TOKENS, *SPECTRA, *THRESHOLDS]


@pytest.mark.parametrize(
    ("said", "call"), ROWS, ids=[f"{k}-{row[0]}" for k, row in enumerate(ROWS)]
)
def test_refusals_name_the_argument(said, call):
    with pytest.raises(ValueError, match=rf"(?s)^((data|start)\.)?{said}") as caught:
        call()
    assert "got" in str(caught.value)


def test_coordinates_and_gaussian_priors_may_be_learned_first():
    for prior in (smi.priors.Rademacher(), smi.priors.BernoulliGauss(0.2)):
        for angle in (0.0, np.pi / 2):
            oblique(prior, angle)
    oblique(smi.priors.Gaussian(), np.pi / 4)


@pytest.mark.slow
def test_the_staircase_of_an_oblique_link_needs_a_gaussian_prior():
    few = {"key": KEY, "averages": smi.Averages(2**9, 2), "alpha_max": 1.0}
    with pytest.raises(ValueError, match=r"^model: got .*oblique"):
        smi.staircase(coupled(smi.priors.Rademacher()), **few)
    assert smi.staircase(coupled(smi.priors.Gaussian()), **few)
