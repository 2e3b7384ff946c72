"""Figures 1 to 5 of "Asymptotics of SGD in sequence-single index models" (arXiv 2506.02651),
listed in [theory: online-sgd, section 9].

Risks and the phase diagram are exact; dots and lines with noise are runs of SGD by the exact chain
of the overlaps. By default grids are coarse and runs few, so that a figure takes a minute or two;
`full=True` has the sizes of the article.
"""

from jaxsmi.papers.common import Recipe
from jaxsmi.papers.sequence_single_index import landscapes, runs

__all__ = ["RECIPES"]

RECIPES: dict[str, Recipe] = {
    "single-index-1": landscapes.encoding_changes_the_landscape,
    "single-index-2": landscapes.encoding_helps,
    "single-index-3": runs.tying,
    "single-index-4": runs.phases,
    "single-index-5": runs.convergence,
}
