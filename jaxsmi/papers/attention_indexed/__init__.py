"""The five figures of "Bayes optimal learning of attention-indexed models" (arXiv 2506.01582).

They are listed in [theory: attention-indexed, section 9].

Dots are message passing and gradient descent at finite d (runs that diverged are NaN in the arrays
and left out of means). By default they are few and small, so that a figure takes a minute or two;
`full=True` has the sizes of the article (message passing at d = 100 and 120, 16 seeds; descent at d
= 200 with 32 starts, on 4 data sets), which take hours. Errors are ‖Ŝ - S‖²/d.
"""

from jaxsmi.papers.attention_indexed import hardmax, softmax
from jaxsmi.papers.common import Article

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "attention-indexed",
    "Bayes optimal learning of attention-indexed models",
    "2506.01582",
    {
        "1": hardmax.two_tokens,
        "2": softmax.two_tokens,
        "3": softmax.linear,
        "4": softmax.more_tokens,
        "5": softmax.small_width,
    },
)
