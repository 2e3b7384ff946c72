"""Online SGD of index models and of sequence single-index models [ALSKZ25]: expansions, exponents,
risk, flow, runs, rates, phases.

The theory is on the page `docs/theory/online-sgd.md`, which the functions cite equation by
equation.
"""

from jaxsmi.models.sequence_single_index import (
    Attention,
    HermiteSeries,
    LinearAttention,
    Network,
    semantic_positional,
)
from jaxsmi.sgd.diagram import BOUNDARIES, LABELS, boundaries, phase_diagram, transition
from jaxsmi.sgd.dynamics import flow, recovery_time
from jaxsmi.sgd.exponents import information_exponent
from jaxsmi.sgd.hermite import coefficients
from jaxsmi.sgd.landscape import hessian, risk
from jaxsmi.sgd.large_batches import large_batch_map
from jaxsmi.sgd.leaps import leaps
from jaxsmi.sgd.noise import gradient_noise
from jaxsmi.sgd.origin import flatness, hessian_at_origin, sample_complexity, taylor
from jaxsmi.sgd.rates import maximal_rate, rates
from jaxsmi.sgd.runs import semantic_fraction
from jaxsmi.sgd.simulation import per_sample_rate, simulate
from jaxsmi.sgd.tying import gain

__all__ = [
    "BOUNDARIES",
    "LABELS",
    "Attention",
    "HermiteSeries",
    "LinearAttention",
    "Network",
    "boundaries",
    "coefficients",
    "flatness",
    "flow",
    "gain",
    "gradient_noise",
    "hessian",
    "hessian_at_origin",
    "information_exponent",
    "large_batch_map",
    "leaps",
    "maximal_rate",
    "per_sample_rate",
    "phase_diagram",
    "rates",
    "recovery_time",
    "risk",
    "sample_complexity",
    "semantic_fraction",
    "semantic_positional",
    "simulate",
    "taylor",
    "transition",
]
