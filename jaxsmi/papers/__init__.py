"""A recipe for each published figure.

`RECIPES[name](full=False, progress=False, reference=None)` computes its arrays, draws them, and
compares them with published data where a folder of them is given. No equation lives here.
"""

from jaxsmi.papers import attention_indexed, bilinear, multi_index, quadratic, sequence_single_index
from jaxsmi.papers.common import Comparison, Drawn, Recipe

RECIPES: dict[str, Recipe] = (
    multi_index.RECIPES
    | attention_indexed.RECIPES
    | bilinear.RECIPES
    | quadratic.RECIPES
    | sequence_single_index.RECIPES
)

__all__ = ["RECIPES", "Comparison", "Drawn", "Recipe"]
