"""Validation of public arguments: a wrong value is an error that names the argument, before
anything is computed.

What an argument may be is written in `tests/fuzzing`, independently of the library.
"""

import inspect
import time

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxsmi as smi
from fuzzing.cases import CASES, DATA, SIGN
from fuzzing.judging import VALUES, judge
from jaxsmi.core import validate
from jaxsmi.core.validate import POSITIVE

# What functions return: made by the package, not by a user.
RETURNED = {
    "Curve", "Estimate", "FirstOrder", "IndexModel", "LearnerSearch", "MatrixModel", "Prediction",
    "Result", "Solution", "SpectralPrior", "Threshold", "Traits",
}  # fmt: skip
# Methods that users call; the others of these classes are called by engines.
METHODS = {
    "draw", "encode", "first", "free_entropy", "interval", "mixed",
    "mmse", "network", "of_weight_decay", "overlap", "posterior", "predict", "predict_proba",
    "risk", "sample", "second_moment", "second_moments", "sharded", "side_information",
    "small_width_error", "standardise", "unwhiten", "whiten",
}  # fmt: skip
# of engines, under a name that is public elsewhere
ENGINES = {"Erm.posterior", "AbstractModelResponder.posterior"} | {
    f"SpectralPrior.{method}"
    for method in ("free_entropy", "posterior", "second_moment", "side_information")
}


def public_calls():
    """Public functions, constructors and methods."""
    modules = [smi]
    for module in modules:
        members = [getattr(module, name) for name in module.__all__]
        modules += [member for member in members if inspect.ismodule(member)]
        yield from (member for member in members if inspect.isfunction(member))
        for kind in members:
            if not inspect.isclass(kind) or inspect.isabstract(kind):
                continue
            if kind.__name__ in RETURNED or "Abstract" in kind.__name__:
                continue
            yield kind.__init__
            methods = [getattr(kind, name) for name in METHODS & set(dir(kind))]
            yield from (x for x in methods if not isinstance(x, property))


def test_every_public_function_has_a_case():
    tried = {getattr(case.call, "__qualname__", "") for case in CASES.values()}
    left = set()
    for function in public_calls():
        name = function.__qualname__.removesuffix(".__init__")
        parameters = set(inspect.signature(function).parameters) - {"self", "args", "kwargs"}
        if parameters and not {name, function.__qualname__} & (tried | ENGINES):
            left.add(name)
    left.discard("setup")  # it is of the whole process
    assert not left, f"add a case of {', '.join(sorted(left))} in tests/fuzzing/cases.py"


def test_a_misspelt_public_name_is_answered_by_the_nearest():
    for module, name, said in (
        (smi, "thresold", r"no attribute 'thresold'; did you mean 'Threshold'"),
        (smi, "Gaussian", r"no attribute 'Gaussian'; it is smi\.priors\.Gaussian"),
        (smi, "zzz", r"no attribute 'zzz'; dir\(jaxsmi\) lists"),
        (smi.links, "logit", r"no attribute 'logit'; did you mean smi\.links\.logistic\?"),
        (smi.losses, "zero_one", r"did you mean smi\.losses\.misclassification\?"),
        (smi.priors, "rademacher", r"did you mean smi\.priors\.Rademacher\?"),
        (smi.sgd, "taylor", r"did you mean smi\.sgd\.flatness\(\.\.\)\.series\?"),
        (smi.sgd, "zzz", r"module 'smi\.sgd' has no attribute 'zzz'$"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(module, name)


def test_wrong_arguments_are_answered_by_those_of_the_function_and_of_its_records():
    for call, said in (
        (lambda: smi.gamp(SIGN, DATA, max_steps=9), r"max_steps is .* iteration=smi\.Iteration\("),
        (lambda: smi.gamp(SIGN, DATA.inputs, DATA.labels), r"of data=smi\.Dataset\(\.\.\)\.$"),
        (lambda: smi.state_evolution(SIGN, 1.0, points=9), r"of averages=smi\.Averages\("),
        (
            lambda: smi.links.phase_retrieval(noise=0.1),
            r"prior; with noise use smi\.links\.absolute\(noise=\.\.\)\.$",
        ),
    ):
        with pytest.raises(TypeError, match=said):
            call()
    # an error inside is not of the call
    with pytest.raises(TypeError, match=r"has no len\(\)$"):
        validate.explained(lambda number: len(number))(1)


# More values like those of a label.
LIKE = {
    "a word": st.text(st.characters(categories=["L"]), min_size=1).filter(lambda w: w != "nan"),
    "digits": st.integers().map(str),
    "-1": st.integers(-(10**6), -1),
    "0.5": st.floats(0.01, 0.99),
    "2.0": st.floats(2.0, 1e6),
    "10**30": st.integers(10**20, 10**40),
    "an array (3, 5, 7)": arrays.array_shapes(min_dims=3, max_dims=5, min_side=3).map(np.zeros),
    "NaNs": st.integers(2, 5).map(lambda n: np.full(n, np.nan)),
    "1j": st.complex_numbers(min_magnitude=0.1, allow_nan=False, allow_infinity=False),
    "complex numbers": st.integers(2, 5).map(lambda n: np.full(n, 1j)),
    "a list of words": st.lists(st.text(min_size=1), min_size=1, max_size=3),
}
ONE_ORDER = {"deadline": None, "derandomize": True, "database": None}
ONE_ORDER |= {"suppress_health_check": list(hypothesis.HealthCheck)}
REPLACEMENTS = [
    (title, name, label) for title, case in CASES.items() for name in case.kinds for label in VALUES
]


@hypothesis.settings(max_examples=200, **ONE_ORDER)
@hypothesis.given(st.data())
def test_a_wrong_value_is_an_error_that_names_the_argument(data):
    title, name, label = data.draw(st.sampled_from(REPLACEMENTS))
    value = data.draw(LIKE.get(label, st.just(VALUES[label])))
    if CASES[title].accepts(name, label):
        return  # other tests compute with right values
    said = judge(CASES[title], name, value, False)
    assert not said, f"{title}({name}={value!r}): {said}"


# by the name of the call, so that `-k` selects a new case
@pytest.mark.slow
@pytest.mark.parametrize("call", dict.fromkeys(title.split(" #")[0] for title in CASES))
def test_all_values_of_all_arguments(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # sweeps write here
    found = []
    for title, name, label in REPLACEMENTS:
        if title.split(" #")[0] != call:
            continue
        said = judge(CASES[title], name, VALUES[label], CASES[title].accepts(name, label))
        found += [f"{title}({name}={label}): {said}"] if said else []
    assert not found, "\n".join(found)


def test_traced_numbers_pass_and_known_ones_are_validated_inside_jit():
    def ask(alpha, Q, points=None):
        alpha = validate.number("alpha", alpha, POSITIVE)
        validate.optional(validate.count, "points", points)
        return alpha * jnp.sum(validate.array("Q", Q, "numbers"))

    assert np.isnan(jax.jit(ask)(-1.0, jnp.ones(2)))
    assert jax.vmap(ask, (0, None))(1.0 + jnp.arange(3.0), [1.0]).shape == (3,)
    assert float(jax.grad(lambda a: ask(a, [a, 1.0]))(2.0)) == 5.0  # d a(a + 1)/da
    with pytest.raises(ValueError, match=r"alpha: got -1\.0"):
        jax.jit(lambda Q: ask(-1.0, Q))(jnp.ones(2))
    with pytest.raises(ValueError, match="alpha: got"):
        jax.vmap(ask, (None, 0))(jnp.ones(3), jnp.ones(3))  # three α, and not one


def test_an_old_key_is_a_key():
    typed, old = jax.random.key(3), jax.random.PRNGKey(3)
    model = smi.links.linear(0.5)
    drawn = [model.sample(k, dimension=4, alpha=1.0).inputs for k in (typed, old, np.asarray(old))]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[1], drawn[2])


def test_empty_arrays_are_refused_unless_allowed():
    """A direction B (P, K) has no columns where a learner's labels depend on none."""
    nothing = np.zeros((1, 0))
    assert validate.array("b0", nothing, "B (P, K)", empty=True).shape == (1, 0)
    for wrong in (nothing, [], None):
        with pytest.raises(ValueError, match=r"^b0: got "):
            validate.array("b0", wrong, "B (P, K)")


def test_validation_costs_as_much_as_a_few_arrays():
    """300 µs is what validation may cost beside a computation; two arrays on a device take 86 µs,
    so 3.5 times as long (measured: 2.3 to 2.6 times, as the processor's speed changed twofold)."""

    def ask(a, b, c, d):
        validate.number("a", a, POSITIVE)
        validate.count("b", b)
        validate.optional(validate.count, "c", c)
        validate.array("d", d, "numbers")

    def put(a, b, c, d):
        jnp.asarray(a)
        jnp.asarray(d)

    times = {ask: [], put: []}
    for _ in range(200):
        for call in times:
            start = time.perf_counter()
            call(1.0, 2, None, [1.0])
            times[call].append(time.perf_counter() - start)
    # other programs of the machine may only lengthen a call
    assert np.quantile(times[ask], 0.1) < 3.5 * np.quantile(times[put], 0.1)
