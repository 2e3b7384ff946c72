"""Output channels: p(y|z) of a label given its fields, and the posterior of the fields.

base: the interface, its results, and their averages over labels. fibres: integrals over the fields
that give a label; orbits: over curves of these. signs, piecewise: closed forms. orthants:
committees of signs. likelihood: any p(y|z). jumps: discontinuities of a link. attention_link,
attention, paired_attention: deep attention. matrix_scores: labels of a matrix of scores; pullback:
of their coordinates, and of layers. proximal: losses.
"""

from jaxsmi.channels.attention import DeepAttentionChannel, SingleAttentionChannel
from jaxsmi.channels.base import (
    AbstractChannel,
    ClosedFormChannel,
    Posterior,
    Response,
)
from jaxsmi.channels.fibres import Fibre, FibreChannel
from jaxsmi.channels.likelihood import IntegratedChannel, NoInference
from jaxsmi.channels.orbits import ProductChannel
from jaxsmi.channels.orthants import OrthantChannel
from jaxsmi.channels.piecewise import ModulusChannel, PiecewiseLinearChannel
from jaxsmi.channels.pullback import PullbackChannel
from jaxsmi.channels.signs import (
    LogisticChannel,
    SignChannel,
    SignProductChannel,
    SquarePlusSignParityChannel,
)

__all__ = [
    "AbstractChannel",
    "ClosedFormChannel",
    "DeepAttentionChannel",
    "Fibre",
    "FibreChannel",
    "IntegratedChannel",
    "LogisticChannel",
    "ModulusChannel",
    "NoInference",
    "OrthantChannel",
    "PiecewiseLinearChannel",
    "Posterior",
    "ProductChannel",
    "PullbackChannel",
    "Response",
    "SignChannel",
    "SignProductChannel",
    "SingleAttentionChannel",
    "SquarePlusSignParityChannel",
]
