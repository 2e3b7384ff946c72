"""A recipe for each published figure: a file, or a folder, of this room is an article.

`RECIPES[name](full=False, progress=False, reference=None)` computes its arrays, draws them, and
compares them with published data where a folder of them is given. No equation lives here.
"""

from jaxsmi.core.parts import declared
from jaxsmi.papers.common import Article, Comparison, Drawn, Recipe

ARTICLES: list[Article] = declared(__name__, "ARTICLE", Article)
RECIPES: dict[str, Recipe] = {
    name: recipe for article in ARTICLES for name, recipe in article.figures.items()
}

__all__ = ["ARTICLES", "RECIPES", "Article", "Comparison", "Drawn", "Recipe"]
