"""Tests, doctests and benchmarks run in double precision and compile quickly."""

import pytest

import jaxsmi as smi

smi.setup()

# Examples of docstrings that compile for more than five seconds: they run with the slow tests.
SLOW_EXAMPLES = {
    "jaxsmi.descent.analysis.learned_at",
    "jaxsmi.descent.options.Stream",
    "jaxsmi.descent.training.train",
    "jaxsmi.inference.curve.curve",
    "jaxsmi.inference.learner_search.global_minimum",
    "jaxsmi.inference.spectral.spectral",
    "jaxsmi.inference.message_passing.gamp",
    "jaxsmi.learners.matrix_erm.MatrixErm",
    "jaxsmi.models.base.AbstractModel.predict",
    "jaxsmi.models.links.logistic",
    "jaxsmi.sgd.gradient_flow.flow",
    "jaxsmi.sgd.gradient_flow.recovery_time",
    "jaxsmi.sgd.landscape.rates",
    "jaxsmi.sgd.multi_pass.descent_theory",
    "jaxsmi.sgd.simulation.simulate",
    "jaxsmi.workbench.sweeps.sweep",
}


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
