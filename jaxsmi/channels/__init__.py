"""Output channels: p(y|z) of a label given its fields, and the posterior of the fields.

base: the interface. posterior: its results. averages: their averages over labels. fibres: integrals
over what a label leaves open. pullback: a channel seen through a linear map of the fields.
signs, piecewise, products: ready-made links. likelihood: any p(y|z). jumps: discontinuities of a
link. attention_link, attention, paired_attention, rotations, scales: deep attention. matrix_scores,
hardmax, hardmax_posterior, layered_scores: labels of a matrix of scores. proximal: losses.
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
from jaxsmi.channels.piecewise import ModulusChannel, PiecewiseLinearChannel
from jaxsmi.channels.products import ProductChannel, SquarePlusSignParityChannel
from jaxsmi.channels.pullback import PullbackChannel
from jaxsmi.channels.signs import LogisticChannel, SignChannel, SignProductChannel

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
