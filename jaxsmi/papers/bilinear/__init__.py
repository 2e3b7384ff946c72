"""Figures of "Bilinear sequence regression" (arXiv 2410.18858).

They are listed in [theory: bilinear, section 7].

Dots are runs at finite d. By default they are few and small, so that a figure takes a minute or
two, and the caption says how many; `full=True` has the sizes of the article (d = 50 and 100, 16 to
64 runs), which take hours. Errors are per entry of S.
"""

import functools

from jaxsmi.papers.bilinear import descent, runs, theory
from jaxsmi.papers.common import Recipe

__all__ = ["RECIPES"]

RECIPES: dict[str, Recipe] = {
    "bilinear-1": theory.bayes_error,
    "bilinear-1-noisy": functools.partial(theory.bayes_error, noise=0.1),
    "bilinear-2": theory.aspects,
    "bilinear-2-noisy": functools.partial(theory.aspects, noise=0.1),
    "bilinear-3": runs.message_passing,
    "bilinear-4": theory.thresholds,
    "bilinear-5": runs.nuclear_norm,
    "bilinear-5-long": functools.partial(runs.nuclear_norm, beta=2.0),
    "bilinear-6": descent.descent,
    "bilinear-6-long": functools.partial(descent.descent, beta=2.0),
    "bilinear-7": descent.small_start,
    "bilinear-8": theory.entropies,
    "bilinear-rates": descent.learning_rates,
}
