"""Online SGD of sequence single-index models: expansions, risk, flow, simulation, phase diagram [ALSKZ25]."""

from jaxsmi.models.sequence_single_index import (
    Attention,
    HermiteSeries,
    LinearAttention,
    Network,
    semantic_positional,
)
from jaxsmi.sgd.diagram import BOUNDARIES, LABELS, boundaries, phase_diagram, transition
from jaxsmi.sgd.dynamics import flow, maximal_rate, recovery_time
from jaxsmi.sgd.hermite import (
    coefficients,
    flatness,
    hessian_at_origin,
    information_exponent,
    sample_complexity,
    taylor,
)
from jaxsmi.sgd.population import gradient_noise, hessian, risk
from jaxsmi.sgd.simulation import semantic_fraction, simulate
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
    "maximal_rate",
    "phase_diagram",
    "recovery_time",
    "risk",
    "sample_complexity",
    "semantic_fraction",
    "semantic_positional",
    "simulate",
    "taylor",
    "transition",
]
