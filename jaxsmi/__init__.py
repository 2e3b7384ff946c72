"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors
and channels they share. Importing starts no device and sets no flag; theory is meant for float64:
jax.config.update("jax_enable_x64", True).
"""

from jaxsmi import models, priors, sgd, text
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Record
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.descent import baselines
from jaxsmi.descent.averaging import averaged
from jaxsmi.descent.order import learned_at
from jaxsmi.descent.stream import Stream
from jaxsmi.descent.task import Batches, Stop
from jaxsmi.descent.training import train
from jaxsmi.inference.branches import global_minimum
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.learner_search import search_learner
from jaxsmi.inference.message_passing import gamp
from jaxsmi.inference.potential import free_entropy
from jaxsmi.inference.spectral import spectral
from jaxsmi.inference.spectral_theory import spectral_overlap
from jaxsmi.learners import Erm, MatrixErm, Mismatched, losses
from jaxsmi.models import (
    AttentionIndexed,
    Bilinear,
    DeepAttention,
    MultiIndex,
    SequenceSingleIndex,
    Tokens,
    align,
    generalization_error,
    links,
)
from jaxsmi.thresholds.recovery import recovery_threshold
from jaxsmi.thresholds.search import search_threshold
from jaxsmi.thresholds.stairs import staircase
from jaxsmi.thresholds.transitions import first_order
from jaxsmi.thresholds.weak import weak_recovery
from jaxsmi.workbench.order import learning_order
from jaxsmi.workbench.sweeps import sweep

__all__ = [
    "AttentionIndexed",
    "Batches",
    "Bilinear",
    "Dataset",
    "DeepAttention",
    "Erm",
    "MatrixErm",
    "Mismatched",
    "MultiIndex",
    "Record",
    "Result",
    "SequenceSingleIndex",
    "Solution",
    "Stop",
    "Stream",
    "Threshold",
    "Tokens",
    "align",
    "averaged",
    "baselines",
    "first_order",
    "free_entropy",
    "gamp",
    "generalization_error",
    "global_minimum",
    "learned_at",
    "learning_order",
    "links",
    "losses",
    "models",
    "priors",
    "recovery_threshold",
    "search_learner",
    "search_threshold",
    "sgd",
    "spectral",
    "spectral_overlap",
    "staircase",
    "state_evolution",
    "sweep",
    "text",
    "train",
    "weak_recovery",
]


def __dir__() -> list[str]:
    """The names that users are meant to find: what the rooms hold besides is not offered."""
    return __all__
