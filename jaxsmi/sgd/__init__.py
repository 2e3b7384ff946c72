"""Online SGD of index models and of sequence single-index models [ALSKZ25]: expansions, exponents,
risk, flow, exact runs, rates.

The theory is on the page `docs/theory/online-sgd.md`, which the functions cite equation by
equation.
"""

from jaxsmi.models.sequence_single_index import semantic_positional
from jaxsmi.models.teacher_student import Attention, HermiteSeries, LinearAttention, Network
from jaxsmi.sgd.exponents import exponents
from jaxsmi.sgd.flow import flow, recovery_time
from jaxsmi.sgd.hermite import coefficients
from jaxsmi.sgd.landscape import averages, flatness, hessian, maximal_rate, rates, risk
from jaxsmi.sgd.problem import Initial, Rule
from jaxsmi.sgd.simulation import simulate

# What to use in place of names of version 0.1.
_REMOVED = {
    "averages": "gradient_noise",
    "exponents": "information_exponent leaps",
    "flatness(..).series": "taylor",
    "hessian": "hessian_at_origin",
    "Rule.per_sample": "per_sample_rate",
}

__all__ = [
    "Attention",
    "HermiteSeries",
    "Initial",
    "LinearAttention",
    "Network",
    "Rule",
    "averages",
    "coefficients",
    "exponents",
    "flatness",
    "flow",
    "hessian",
    "maximal_rate",
    "rates",
    "recovery_time",
    "risk",
    "semantic_positional",
    "simulate",
]


def __getattr__(name: str) -> object:
    new = "".join(new for new, old in _REMOVED.items() if name in old.split())
    hint = f"; it is now smi.sgd.{new}" if new else ""
    raise AttributeError(f"module 'jaxsmi.sgd' has no attribute {name!r}{hint}", name=name)
