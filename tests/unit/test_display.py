"""What a reader sees at the prompt and in a notebook: numbers with their errors, what became of a
run, how to mend it.
"""

import dataclasses
import functools
import importlib.metadata
import pickle
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
import synthetic
from jaxsmi.core.display import format_estimate
from jaxsmi.core.driver import Bar
from jaxsmi.core.solution import Estimate
from jaxsmi.thresholds.transitions import FirstOrder

KEY = jax.random.key(0)
MATRIX = smi.AttentionIndexed(tokens=2, rank_ratio=0.5)


def test_version_is_that_of_the_package():
    assert smi.__version__ == importlib.metadata.version("jaxsmi")


def test_a_solution_shows_its_numbers_its_result_and_the_remedy():
    solution = synthetic.solution(result=smi.Result.MAX_STEPS)
    shown = repr(solution)
    assert "MAX_STEPS" in shown
    assert f"{float(solution.overlap[0, 0]):.3f} ± 0.010" in shown
    assert "take more steps" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 100
    # more steps help a short run, a larger dimension one that fluctuates; theory has none
    for kind, steps, named in (("gamp", 300, True), ("gamp", 50, False), ("train", 300, False)):
        run = synthetic.solution(kind, result=smi.Result.MAX_STEPS)
        run = dataclasses.replace(run, steps=jnp.asarray(steps))
        assert ("simulate a larger dimension" in run.message) == named
    assert "take a ridge" in smi.Result.MAX_STEPS.learner
    batch = jax.vmap(lambda a: smi.state_evolution(MATRIX, a))(jnp.array([0.1, 0.15]))
    assert "2 SUCCESS" in repr(batch)


@pytest.mark.parametrize("code", ["MAX_STEPS", "UNSTABLE", "OVERCONFIDENT"])
def test_noise_that_the_model_lacks_is_named_for_runs(code):
    for kind, said in (("gamp", True), ("state_evolution", False)):
        message = synthetic.solution(kind, result=smi.Result[code]).message
        assert ("Labels noisier than the model says" in message) is said


def test_what_is_traced_or_no_number_can_be_summary():
    seen = []

    def run(alpha):
        solution = smi.state_evolution(MATRIX, alpha)
        seen.extend([repr(solution), repr(smi.links.linear(alpha))])
        data = smi.Dataset(alpha * jnp.ones((6, 1, 3)), alpha * jnp.ones((6,)))
        seen.append(repr(data))
        return solution.error

    jax.jit(run)(0.1)
    assert len(seen) == 3
    solution = smi.state_evolution(MATRIX, 0.1)
    for tree in (jax.tree.map(lambda x: x.shape, solution), jax.tree.map(lambda x: None, solution)):
        assert repr(tree).startswith("Solution(")


def test_data_show_their_sizes_and_no_closure():
    data = smi.links.sign().sample(KEY, dimension=50, alpha=2.0)
    assert "N = 100 samples of M = 1 tokens, D = 50" in repr(data)
    assert "function" not in repr(data)
    assert "0x" not in repr(data)


def test_models_are_shown_as_their_constructors_with_all_numbers():
    assert repr(smi.DeepAttention(2, 2, skip=0.5)).startswith("DeepAttention(depth=2, tokens=2, ")
    assert "noise=0.3" in repr(smi.links.linear(0.3))
    assert "rank_ratio=0.5" in repr(MATRIX)
    assert repr(smi.priors.BernoulliGauss(0.99)) == "BernoulliGauss(density=0.99)"
    mixture = smi.priors.GaussianMixture([1.0], [0.0], [1.0], mirrored=False)
    assert repr(mixture) == "GaussianMixture(weights=[1], means=[0], scales=[1], mirrored=False)"


def tanh_sum(z):
    return jnp.sum(jnp.tanh(z[:, 0]))


def test_a_models_functions_are_shown_by_name():
    assert "(link=tanh_sum, " in repr(smi.MultiIndex(tanh_sum, indices=2, noise=0.1))
    assert "(link=<lambda>, " in repr(smi.MultiIndex(lambda z: z[0, 0] ** 3, indices=1))
    assert "link=" not in repr(smi.links.sign())  # made of a channel
    inner = eqx.Partial(lambda scale, z: scale * z[0, 0], 2.0)
    for link, name in (
        (eqx.Partial(tanh_sum), "tanh_sum"),
        (functools.partial(jax.jit(tanh_sum)), "tanh_sum"),
        (inner, "f(z)"),
    ):
        assert smi.MultiIndex(link, indices=2).name == name

    def log_p(y, z):
        return jax.nn.log_sigmoid(y * z[0, 0])

    def logistic(y, z):
        return log_p(y, z)

    own = lambda law: smi.MultiIndex(log_likelihood=law, outcomes=[-1.0, 1.0], indices=1).name
    assert own(lambda y, z: log_p(y, z)) == own(log_p) == "own law p(y|z)"
    assert own(logistic) == "logistic"


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.43211, 0.0123, "0.432 ± 0.012"),
        (1.49271, 1.6e-4, "1.49271 ± 0.00016"),
        (12.3, 4.5, "12.3 ± 4.5"),
        (0.5, 0.0, "0.5"),
        (0.5, np.nan, "0.5 (no error bar)"),
        (0.4056, 0.003, "0.4056 ± 0.0030"),
    ],
)
def test_a_number_has_as_many_digits_as_its_error_allows(value, error, shown):
    assert format_estimate(value, error) == shown
    assert repr(Estimate(jnp.asarray(value), jnp.asarray(error))) == f"Estimate({shown})"


@pytest.mark.parametrize(
    ("values", "errors", "shown"),
    [
        ([0.25412, 0.17531], [3.1e-4, 0.012], "[0.25412, 0.17531] ± [0.00031, 0.012]"),
        (0.125 * np.arange(8.0), np.zeros(8), "[0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875] ± "
         "[0, 0, 0, 0, 0, 0, 0, 0]"),
        ([0.5, np.nan], [0.01, np.nan], "[0.500, nan] ± [0.01, nan]"),
        ([3.0e-8, 0.5], [1e-10, 1e-9], "[3e-08, 0.5] ± [1e-10, 1e-09]"),
        ([12.34, 1.2], [4.0, 3.0], "[12.3, 1.2] ± [4, 3]"),
        (np.linspace(0.0, 1.0, 101), np.full(101, 0.001), "[0.0000, 0.0100, 0.0200, ..., 0.9800, "
         "0.9900, 1.0000] ± [0.001, 0.001, 0.001, ..., 0.001, 0.001, 0.001]"),
    ],
)  # fmt: skip
def test_an_estimate_of_several_numbers_shows_them(values, errors, shown):
    assert repr(Estimate(jnp.asarray(values), jnp.asarray(errors))) == f"Estimate({shown})"


def test_thresholds_show_their_error():
    threshold = synthetic.threshold(0.5)
    assert "α = 0.500 ± 0.010: SUCCESS" in repr(threshold)
    # of weak recovery: exact. Of the end of a branch: the grid of α began above it
    none, end = (
        dataclasses.replace(synthetic.threshold(0.0, overlap=Q), stderr=jnp.zeros(()))
        for Q in (None, jnp.eye(1))
    )
    assert "Something is learned at any α > 0." in repr(none)
    assert "Its branch exists at any α > 0." in repr(end)
    grid, Q = jnp.asarray([0.1, 1.0, 5.0]), jnp.zeros((3, 1, 1))
    beyond = dataclasses.replace(threshold, alpha=jnp.asarray(jnp.inf))
    found = FirstOrder("first order", beyond, threshold, end, grid, Q, Q)
    assert found.message == "\n".join(dict.fromkeys([end.message, beyond.message]))
    none = FirstOrder("none", None, None, None, grid, Q, Q)
    assert none.message.endswith("no transition.")  # the curve of one index hides none
    Q = jnp.zeros((3, 2, 2))
    none = FirstOrder("none", None, None, None, grid, Q, Q)
    assert none.message in " ".join(repr(none).split())
    assert none.message.endswith("or one that is narrower than its spacing, at most 4.")
    shown = repr(found)
    for row in ("spinodal +0: at any α", "information-theoretic +0.500", "algorithmic +at no α"):
        assert re.search(row, shown)


def test_a_staircase_says_why_it_ends():
    few = smi.Averages(points=2**9, nets=2)
    stairs = smi.staircase(smi.links.phase_retrieval(), key=KEY, alpha_max=0.3, averages=few)
    assert (len(stairs), stairs.message) == (0, repr(stairs))
    assert repr(stairs).endswith("labels alone up to α = 0.3 (alpha_max).")
    # copies keep the message
    same = jax.tree.map(lambda x: x, pickle.loads(pickle.dumps(stairs)))
    assert (type(same), same.message) == (type(stairs), stairs.message)


@pytest.mark.slow
def test_a_staircase_names_the_directions_that_are_left():
    few = smi.Averages(points=2**9, nets=2)
    stairs = smi.staircase(smi.links.sign_committee(2), key=KEY, alpha_max=1.0, averages=few)
    assert len(stairs) == 1
    assert stairs.message == "1 of 2 directions are not learned up to α = 1 (alpha_max)."
    assert repr(stairs) == f"{stairs[0]!r}\n{stairs.message}"


def test_a_bar_counts_though_it_is_hidden():
    with Bar(3, "a run", False) as bar:
        bar.update(2, {"Q": "0.5"})
    assert bar.count == 2


def test_a_run_that_nearly_recovered_gets_no_remedy():
    run = synthetic.solution("gamp", result=smi.Result.MAX_STEPS)
    assert "take more steps" in run.message
    run = dataclasses.replace(run, covariance=1e-5 * np.eye(2), overlap=np.eye(2))
    assert run.message == "Nearly recovered: 1e-05 of the signal is unknown, and fluctuates."
