"""Models: a prior, a design, a channel, a student and a metric under one name."""

from jaxsmi.core.solution import Estimate
from jaxsmi.design.tokens import Tokens
from jaxsmi.models import links
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.models.base import AbstractModel, Prediction
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.index import IndexModel, MultiIndex, align
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.models.prediction import generalization_error
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.symmetry import AbstractSymmetry

__all__ = [
    "AbstractModel",
    "AbstractSymmetry",
    "AttentionIndexed",
    "Bilinear",
    "DeepAttention",
    "Estimate",
    "IndexModel",
    "MatrixModel",
    "MultiIndex",
    "Prediction",
    "SequenceSingleIndex",
    "Tokens",
    "align",
    "generalization_error",
    "links",
]
