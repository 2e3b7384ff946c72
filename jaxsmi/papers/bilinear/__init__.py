"""Figures of "Bilinear sequence regression" (arXiv 2410.18858).

They are listed in [theory: bilinear, section 7].

Dots are runs at finite d. By default they are few and small, so that a figure takes a minute or
two, and the caption says how many; `full=True` has the sizes of the article (d = 50 and 100, 16 to
64 runs), which take hours. Errors are per entry of S.
"""

import functools

from jaxsmi.papers.bilinear import descent, runs, theory
from jaxsmi.papers.common import Article

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "bilinear",
    "Bilinear sequence regression",
    "2410.18858",
    {
        "1": theory.bayes_error,
        "1-noisy": functools.partial(theory.bayes_error, noise=0.1),
        "2": theory.aspects,
        "2-noisy": functools.partial(theory.aspects, noise=0.1),
        "3": runs.message_passing,
        "4": theory.thresholds,
        "5": runs.nuclear_norm,
        "5-long": functools.partial(runs.nuclear_norm, beta=2.0),
        "6": descent.descent,
        "6-long": functools.partial(descent.descent, beta=2.0),
        "7": descent.small_start,
        "8": theory.entropies,
        "rates": descent.learning_rates,
    },
)
