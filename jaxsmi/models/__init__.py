"""Models: a prior, a design, a channel, a student and a metric under one name.

base: the interfaces. index: functions of a few fields, ready-made in links; families of them are
deep_attention and sequence_single_index [theory: multi-index, deep-attention, online-sgd]. matrix:
one matrix of extensive rank, attention_indexed and bilinear [theory: attention-indexed, bilinear].
symmetry: what labels leave open of W [theory: multi-index, Eqs. (80), (81)]. prediction: errors on
new inputs [theory: multi-index, Eqs. (77) to (79)]. teacher_student: what online SGD sees.
"""

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
