"""Models: a prior, a sensing law and a channel under one name. A new model is one file."""

from jaxsmi.core.results import Estimate
from jaxsmi.models import links
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.generalization import generalization_error
from jaxsmi.models.index import AbstractIndexModel
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.symmetry import AbstractSymmetry, align
from jaxsmi.models.tokens import Tokens

__all__ = [
    "AbstractIndexModel",
    "AbstractMatrixModel",
    "AbstractModel",
    "AbstractSymmetry",
    "AttentionIndexed",
    "Bilinear",
    "DeepAttention",
    "Estimate",
    "MultiIndex",
    "SequenceSingleIndex",
    "Tokens",
    "align",
    "generalization_error",
    "links",
]
