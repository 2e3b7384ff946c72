"""The public names, and the modules that they come from: what `__init__.py` loads on first use."""

from . import models, priors, sgd
from .core.data import Dataset
from .core.options import Averages, Bayes, Iteration, Record, Start, setup
from .core.results import Result
from .core.solution import Estimate, Solution, Threshold
from .descent import baselines
from .descent.analysis import averaged, learned_at
from .descent.options import Gradient, Monitor, Stream
from .descent.training import train
from .inference.curve import Curve, curve
from .inference.evolution import free_entropy, noiseless_limit, state_evolution
from .inference.learner_search import LearnerSearch, global_minimum, search_learner
from .inference.message_passing import gamp
from .inference.spectral import spectral
from .inference.spectral_theory import spectral_overlap
from .learners import Erm, MatrixErm, Mismatched, losses
from .models import (
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
from .sgd.multi_pass import descent_theory
from .thresholds.search import search_threshold
from .thresholds.stairs import staircase
from .thresholds.transitions import FirstOrder, first_order, recovery_threshold
from .thresholds.weak import weak_recovery
from .workbench.order import learning_order
from .workbench.storage import load, save
from .workbench.sweeps import sweep

__all__ = [
    "AttentionIndexed",
    "Averages",
    "Bayes",
    "Bilinear",
    "Curve",
    "Dataset",
    "DeepAttention",
    "Erm",
    "Estimate",
    "FirstOrder",
    "Gradient",
    "Iteration",
    "LearnerSearch",
    "MatrixErm",
    "Mismatched",
    "Monitor",
    "MultiIndex",
    "Record",
    "Result",
    "SequenceSingleIndex",
    "Solution",
    "Start",
    "Stream",
    "Threshold",
    "Tokens",
    "align",
    "averaged",
    "baselines",
    "curve",
    "descent_theory",
    "first_order",
    "free_entropy",
    "gamp",
    "generalization_error",
    "global_minimum",
    "learned_at",
    "learning_order",
    "links",
    "load",
    "losses",
    "models",
    "noiseless_limit",
    "priors",
    "recovery_threshold",
    "save",
    "search_learner",
    "search_threshold",
    "setup",
    "sgd",
    "spectral",
    "spectral_overlap",
    "staircase",
    "state_evolution",
    "sweep",
    "train",
    "weak_recovery",
]

__version__: str
