"""Models: a prior, a sensing law and a channel under one name. A new model is one file."""

from jaxsmi.models import links
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.models.base import AbstractIndexModel, AbstractMatrixModel, Estimate, Symmetry, align, generalization_error
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.sequence_single_index import SequenceSingleIndex

__all__ = [
    "AbstractIndexModel",
    "AbstractMatrixModel",
    "AttentionIndexed",
    "Bilinear",
    "DeepAttention",
    "Estimate",
    "MultiIndex",
    "SequenceSingleIndex",
    "Symmetry",
    "align",
    "generalization_error",
    "links",
]
