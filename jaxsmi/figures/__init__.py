"""A recipe for each published figure: `RECIPES[name](full=False)` computes its arrays and draws them. No equation lives here."""

from jaxsmi.figures.attention_indexed import RECIPES, Drawn

__all__ = ["RECIPES", "Drawn"]
