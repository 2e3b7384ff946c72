"""The directive `gallery`: every recipe of `jaxsmi figure`, article by article, from the recipes
themselves; with its picture where `jaxsmi figure all --out out/gallery` has drawn it.
"""

import functools
import inspect
import json
import shutil
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
DRAWN = ROOT / "out" / "gallery"


def title(recipe):
    """The first sentence of a recipe, without the number that print gives the figure."""
    while isinstance(recipe, functools.partial):
        recipe = recipe.func
    return " ".join(inspect.getdoc(recipe).partition("\n\n")[0].split())


def source(recipe):
    while isinstance(recipe, functools.partial):
        recipe = recipe.func
    return Path(inspect.getsourcefile(recipe)).relative_to(ROOT).as_posix()


class Gallery(SphinxDirective):
    """Headings and lists in Markdown, parsed where the directive stands."""

    has_content = False

    def run(self):
        from jaxsmi.papers import ARTICLES

        lines = []
        for article in ARTICLES:
            lines += [f"## {article.title}", ""]
            if article.arxiv:
                lines += [f"[arXiv {article.arxiv}](https://arxiv.org/abs/{article.arxiv})", ""]
            for name, recipe in article.figures.items():
                lines += self.entry(name, recipe)
            lines.append("")
        self.env.note_dependency(str(ROOT / "jaxsmi" / "papers"))
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    def entry(self, name, recipe):
        path = source(recipe)
        said = f"- `{name}` – {title(recipe)} ([recipe](../{path}))"
        record = DRAWN / f"{name}.json"
        if not record.is_file() or not record.with_suffix(".png").is_file():
            return [said]
        held = json.loads(record.read_text(encoding="utf-8"))
        folder = ROOT / "docs" / "_gallery"
        folder.mkdir(exist_ok=True)
        shutil.copy(record.with_suffix(".png"), folder)
        picture = f"  ![{held['title']}](_gallery/{name}.png)"
        agree = sum(one["agrees"] for one in held["compared"])
        compared = f"{agree} of {len(held['compared'])} comparisons agree within their tolerance"
        return [said, "", picture, "", f"  {held['caption']} *{compared}.*", ""]


def setup(app):
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
