"""The errors of in-context learning that a figure draws, against the specification's equations
evaluated in 60 digits, and against limits that the equations must have.

[Lu, Letey, Zavatone-Veth, Maiti, Pehlevan, PNAS 2025]
"""

import ast
import itertools
from decimal import Decimal, getcontext
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "notebooks" / "figures" / "icl_linear_attention.py"
getcontext().prec = 60
GRID = list(itertools.product((0.5, 2.0, 10.0), (0.3, 1.0, 4.0, 50.0), (0.01, 0.5)))


@pytest.fixture(scope="module")
def errors():
    """`errors` of the script, without its fits and pictures."""
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in ("resolvent", "errors")
    ]
    scope = {"np": np}
    exec(compile(ast.Module(kept, []), str(SCRIPT), "exec"), scope)
    return scope["errors"]


def root(k, x):
    """M > 0 of (x/k) M² + (x + 1 - 1/k) M - 1 = 0, by bisection and Newton steps: no formula of
    roots."""
    f = lambda m: x / k * m * m + (x + 1 - 1 / k) * m - 1
    low, high = Decimal(0), Decimal(1)
    while f(high) < 0:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    m = high
    for _ in range(6):
        m -= f(m) / (2 * x / k * m + x + 1 - 1 / k)
    assert abs(f(m)) < Decimal("1e-50") * (1 + x / k * m * m)
    return m


def specified(tau, alpha, kappa, rho):
    """e_ICL and e_IDG, the equations as they stand in the specification."""
    tau, alpha, kappa, rho = (Decimal(number) for number in (tau, alpha, kappa, rho))
    x = (1 + rho) / alpha
    if tau < 1:
        mu = x * root(kappa / tau, x)
        fresh = (
            tau * (1 + x) / (1 - tau) * (1 - tau * (1 - mu) ** 2 - (x - rho) * mu / x)
            - 2 * tau * (1 - mu)
            + rho
            + 1
        )
        eps = (1 - tau) * x / (tau * mu)
        c = 1 / (1 - kappa / (1 + kappa * eps / (1 - tau)) ** 2)
        training = tau * (
            (x + eps) ** 2 / eps
            + (rho + x - 2 * x * (1 - tau) * (x / eps + 1)) / (1 - tau - c * (1 - tau) ** 2)
        )
        return fresh, training
    m = root(kappa, x)
    star = 1 / (1 - kappa * (m / (kappa + m)) ** 2)
    fresh = (
        (star - 1 / (tau - 1)) * (1 + x) * (x * m) ** 2
        + (3 - 2 * tau) * m * x**2 / (tau - 1)
        + ((1 + rho) * m / (tau - 1) + 1) * x
        + rho * m / (tau - 1)
        + rho
    )
    return fresh, tau * (rho + x * (1 - x * m)) / (tau - 1)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9, 1.1, 2.0, 20.0])
def test_the_formulas_in_sixty_digits(errors, tau):
    for alpha, kappa, rho in GRID:
        made, known = errors(tau, alpha, kappa, rho), specified(tau, alpha, kappa, rho)
        for ours, other in zip(made, known, strict=True):
            assert abs(ours / float(other) - 1.0) < 1e-10, (alpha, kappa, rho)


@pytest.mark.parametrize("tau", [0.2, 0.8, 1.3, 5.0])
def test_tasks_without_number_are_fresh_ones(errors, tau):
    """κ → ∞: both errors have one limit, which they approach as 1/κ."""
    for alpha, rho in ((0.5, 0.01), (4.0, 0.5)):
        fresh, training = specified(tau, alpha, 10**25, rho)
        assert abs(fresh - training) < Decimal("1e-22")
        # rest 1/κ
        assert np.allclose(errors(tau, alpha, 1e9, rho), float(fresh), rtol=1e-7)


def test_many_contexts_of_many_tasks_shrink_the_mean(errors):
    """κ, τ → ∞: the best multiple of (d/l) Σ y x, whose noise is x = (1 + ρ)/α: ρ + x/(1 + x)."""
    for alpha, rho in ((0.5, 0.01), (2.0, 0.1), (10.0, 0.5)):
        x = (1.0 + rho) / alpha
        # rests 1/τ and 1/κ
        assert np.allclose(errors(1e8, alpha, 1e8, rho), rho + x / (1.0 + x), rtol=1e-6)
