"""Online SGD of index models and of sequence single-index models [ALSKZ25]: expansions, exponents,
risk, flow, exact runs, rates. multi_pass: `smi.descent_theory`, where samples are used again.

The theory is on the pages `docs/theory/online-sgd.md` and `descent.md` (multi_pass), which the
functions cite equation by equation. Inside, `pair` is the `TeacherStudent` of a call: both links,
their shapes and the loss.
"""

from jaxsmi.core import validate
from jaxsmi.models.sequence_single_index import semantic_positional
from jaxsmi.models.teacher_student import Attention, HermiteSeries, LinearAttention, Network
from jaxsmi.sgd.gradient_flow import flow, recovery_time
from jaxsmi.sgd.hermite import coefficients
from jaxsmi.sgd.landscape import averages, flatness, hessian, maximal_rate, rates, risk
from jaxsmi.sgd.leaps import exponents
from jaxsmi.sgd.problem import Initial, Rule
from jaxsmi.sgd.simulation import simulate

# Names of version 0.1, and what replaces them.
_REMOVED = {
    "gradient_noise": "averages",
    "hessian_at_origin": "hessian",
    "information_exponent": "exponents",
    "leaps": "exponents",
    "per_sample_rate": "Rule.per_sample",
    "taylor": "flatness(..).series",
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

validate.suggest_names(__name__, "smi.sgd", _REMOVED)
