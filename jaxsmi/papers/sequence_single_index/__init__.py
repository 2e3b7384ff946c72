"""Figures 1 to 13 of "Asymptotics of SGD in sequence-single index models" (arXiv 2506.02651),
listed in [theory: online-sgd, section 9].

Risks and the phase diagram are exact; dots and lines with noise are runs of SGD by the exact chain
of the overlaps. By default grids are coarse and runs few, so that a figure takes a minute or two;
`full=True` has the sizes of the article.
"""

from jaxsmi.papers.common import Article
from jaxsmi.papers.sequence_single_index import (
    attention,
    blind,
    injection,
    landscapes,
    lengths,
    runs,
    transition,
)

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "single-index",
    "Asymptotics of SGD in sequence-single index models",
    "2506.02651",
    {
        "1": landscapes.encoding_changes_the_landscape,
        "2": landscapes.encoding_helps,
        "3": runs.tying,
        "4": runs.phases,
        "5": runs.convergence,
        "6": injection.injection_shows_odd_targets,
        "7": lengths.equal_rates,
        "8": lengths.linear_target,
        "9": lengths.growing_rate,
        "10": attention.attention_beside_squares,
        "11": blind.what_tied_networks_cannot_see,
        "12": transition.small_dimension,
        "13": transition.misaligned_runs,
    },
)
