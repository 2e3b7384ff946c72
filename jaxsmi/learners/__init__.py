"""Learners other than Bayes: what a student believes about data that were made otherwise.

base: the declared face. erm: minimisers of a loss with a ridge. mismatched: posteriors of another
model. losses: ready-made losses.
"""

from jaxsmi.learners import losses
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.learners.erm import Erm
from jaxsmi.learners.mismatched import Mismatched

__all__ = ["AbstractLearner", "Erm", "Mismatched", "losses"]
