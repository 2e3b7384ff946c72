"""Output channels: what a label says about its fields.

base states the equations that all channels share; explicit those of a response in closed form.
scalar, products, piecewise, logistic: log Z_out of ready-made links. likelihood: of any p(y|z),
integrated. attention_link, attention: deep attention on the fields, and its exact log Z_out;
rotations: of a last layer of rank two; scales: of one with query and key untied; nested: the error
of both inside an integral; paired_attention: of three layers and more; two_heads: of one layer of
two heads. matrix_scores, hardmax, hardmax_posterior: labels of a matrix of scores; layered_scores:
of several layers of them; symmetric_fields: any channel on them. proximal: losses. jumps: whether a
link is continuous.
"""

from jaxsmi.channels.attention import DeepAttentionChannel, SingleAttentionChannel
from jaxsmi.channels.base import (
    AbstractChannel,
    ClosedFormChannel,
    Posterior,
    Response,
)
from jaxsmi.channels.likelihood import IntegratedChannel, NoInference
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
