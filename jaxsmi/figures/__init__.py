"""A recipe for each published figure: `RECIPES[name](full=False)` computes its arrays and draws them. No equation lives here."""

from jaxsmi.figures import attention_indexed, bilinear
from jaxsmi.figures.common import Drawn

RECIPES = attention_indexed.RECIPES | bilinear.RECIPES

__all__ = ["RECIPES", "Drawn"]
