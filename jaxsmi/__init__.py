"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors and channels they share.
Importing starts no device and sets no flag; theory is meant for float64: jax.config.update("jax_enable_x64", True).
"""

from jaxsmi import baselines, models, priors, sgd, text
from jaxsmi.evolution import state_evolution
from jaxsmi.learning import averaged, learned_at, learning_order
from jaxsmi.message_passing import gamp
from jaxsmi.models import (
    AttentionIndexed,
    Bilinear,
    DeepAttention,
    MultiIndex,
    SequenceSingleIndex,
    align,
    generalization_error,
    links,
)
from jaxsmi.potential import free_entropy
from jaxsmi.search import search_threshold
from jaxsmi.sweeps import sweep
from jaxsmi.thresholds import recovery_threshold, staircase, weak_recovery
from jaxsmi.training import Stream, train
from jaxsmi.transitions import first_order
from jaxsmi.types import Dataset, Result, Solution, Threshold

__all__ = [
    "AttentionIndexed",
    "Bilinear",
    "Dataset",
    "DeepAttention",
    "MultiIndex",
    "Result",
    "SequenceSingleIndex",
    "Solution",
    "Stream",
    "Threshold",
    "align",
    "averaged",
    "baselines",
    "first_order",
    "free_entropy",
    "gamp",
    "generalization_error",
    "learned_at",
    "learning_order",
    "links",
    "models",
    "priors",
    "recovery_threshold",
    "search_threshold",
    "sgd",
    "staircase",
    "state_evolution",
    "sweep",
    "text",
    "train",
    "weak_recovery",
]
