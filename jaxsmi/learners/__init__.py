"""Learners other than Bayes: what a student believes about data that were made otherwise.

base: the declared face, and what a linear learner makes of a field of its weights. erm: the risk
R(W) and its ridge. mismatched: the averages of another prior. losses: ready-made losses.
The proximal point is in channels/proximal.py, state evolution in inference/learner_map.py
[theory: empirical-risk, Eqs. (1) to (15)]. matrix_erm: the risk of one matrix, with a nuclear norm,
whose theory is in inference/matrix_learner.py [theory: empirical-risk, Eqs. (24) to (31)].
"""

from jaxsmi.learners import losses
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.learners.erm import Erm
from jaxsmi.learners.matrix_erm import MatrixErm
from jaxsmi.learners.mismatched import Mismatched

__all__ = ["AbstractLearner", "Erm", "MatrixErm", "Mismatched", "losses"]
