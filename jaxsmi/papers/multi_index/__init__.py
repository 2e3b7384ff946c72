"""Figures of "Fundamental limits of learning in sequence multi-index models and deep attention
networks" (arXiv 2502.00901), listed in [theory: deep-attention, section 7].

By default grids are coarse, dimensions and samples small, so that a figure takes a minute or two;
`full=True` has the sizes of the article (D = 1000, 16 runs of message passing; eight runs of
descent to 1700 epochs; three layers at 10⁴ samples), hours.
"""

from jaxsmi.papers.common import Article
from jaxsmi.papers.multi_index import depth, order, three_layers, two_layers

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "deep-attention",
    "Fundamental limits of learning in sequence multi-index models and deep attention networks",
    "2502.00901",
    {
        "1": two_layers.two_layers,
        "2": order.which_layer_first,
        "3": three_layers.three_layers,
        "4": depth.depth,
    },
)
