"""A recipe for each published figure: `RECIPES[name](full=False)` computes its arrays and draws them. No equation lives here."""

from jaxsmi.figures import attention_indexed, bilinear, sequence_single_index
from jaxsmi.figures.common import Drawn

RECIPES = attention_indexed.RECIPES | bilinear.RECIPES | sequence_single_index.RECIPES

__all__ = ["RECIPES", "Drawn"]
