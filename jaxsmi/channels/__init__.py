"""Output channels: what a label says about its fields.

base.py states the equations that all channels share.
"""

from jaxsmi.channels.attention import DeepAttentionChannel, SingleAttentionChannel
from jaxsmi.channels.base import (
    AbstractChannel,
    ClosedFormChannel,
    NoInference,
    Posterior,
    Response,
)
from jaxsmi.channels.likelihood import IntegratedChannel
from jaxsmi.channels.products import ProductChannel, SquarePlusSignParityChannel, TripleSignChannel
from jaxsmi.channels.scalar import LinearChannel, ModulusChannel, SignChannel, SignProductChannel

__all__ = [
    "AbstractChannel",
    "ClosedFormChannel",
    "DeepAttentionChannel",
    "LinearChannel",
    "ModulusChannel",
    "NoInference",
    "Posterior",
    "ProductChannel",
    "Response",
    "IntegratedChannel",
    "SignChannel",
    "SignProductChannel",
    "SingleAttentionChannel",
    "SquarePlusSignParityChannel",
    "TripleSignChannel",
]
