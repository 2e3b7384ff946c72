"""Learners other than the Bayes-optimal one.

base: the interfaces, and the responders of message passing. erm: the risk R(W); penalties: its
ridge, l1 norm and bounds; losses: losses by name. mismatched: the posterior mean of another model.
The proximal point is in channels/proximal.py, state evolution in inference/learner_map.py
[theory: empirical-risk, Eqs. (1) to (15)]. matrix_erm: the risk of one matrix, with a nuclear norm;
its theory is in inference/matrix_map.py [theory: empirical-risk, Eqs. (24) to (31)];
learned_spectrum: the spectrum of what it learns.
"""

from jaxsmi.learners import losses
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.learners.erm import Erm
from jaxsmi.learners.matrix_erm import MatrixErm
from jaxsmi.learners.mismatched import Mismatched

__all__ = ["AbstractLearner", "Erm", "MatrixErm", "Mismatched", "losses"]
