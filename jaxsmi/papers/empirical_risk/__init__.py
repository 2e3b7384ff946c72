"""Figures of learners other than Bayes: double descent, classifiers, one layer of attention, and
positional and semantic attention [theory: empirical-risk, section 1].

Theory of "High-dimensional learning of narrow neural networks" (arXiv 2409.13904) [Cui24]; the
figures are ours. `full=True` has more points, and larger and more runs.
"""

from jaxsmi.papers.common import Article
from jaxsmi.papers.empirical_risk import attention, ridge, signs

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "empirical-risk",
    "High-dimensional learning of narrow neural networks",
    "2409.13904",
    {
        "double-descent": ridge.double_descent,
        "signs": signs.signs,
        "attention": attention.attention_risk,
        "positional": attention.positional_semantic,
    },
)
