"""The directives `find-figures`, a search, and `gallery`: every recipe of `jaxsmi figure`, article
by article, from the recipes themselves, with its picture, caption, comparisons and files where
`jaxsmi figure all --out out/gallery` has drawn it.
"""

import functools
import html
import inspect
import json
import shutil
from pathlib import Path

import sources
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
DRAWN = ROOT / "out" / "gallery"
FOLDER = "_gallery"  # of pictures and arrays, on the site
ENDINGS = (".png", ".svg", ".pdf", ".nc", ".json")


def function(recipe):
    while isinstance(recipe, functools.partial):
        recipe = recipe.func
    return recipe


def title(recipe):
    """The first sentence of a recipe."""
    return " ".join(inspect.getdoc(function(recipe)).partition("\n\n")[0].split())


def record_of(name):
    """The record of a figure that was drawn with all its files, or None."""
    files = [DRAWN / f"{name}{ending}" for ending in ENDINGS]
    if not all(file.is_file() for file in files):
        return None
    record = json.loads(files[-1].read_text(encoding="utf-8"))
    return None if record["failed"] else record


class Find(SphinxDirective):
    """The search of the cards; it stands before them, where headings leave a directive's text."""

    has_content = False

    def run(self):
        from jaxsmi.papers import gallery

        text = f"<style>{gallery.CARDS}</style><div class='gallery'>{gallery.FIND}</div>"
        return [nodes.raw("", text, format="html")]


class Gallery(SphinxDirective):
    """Headings as Markdown, parsed where the directive stands; cards as the page of `jaxsmi figure
    all` has them.
    """

    has_content = False

    def run(self):
        from jaxsmi.papers import ARTICLES, gallery

        lines = []
        for article in ARTICLES:
            lines += [f"## {article.title}", ""]
            if article.arxiv:
                lines += [f"[arXiv {article.arxiv}](https://arxiv.org/abs/{article.arxiv})", ""]
            cards = [self.card(name, recipe) for name, recipe in article.figures.items()]
            lines += self.raw("<div class='gallery'><div class='grid'>", *cards, "</div></div>")
        lines += self.raw(f"<script>{gallery.SEARCH}</script>")
        self.env.note_dependency(str(ROOT / "jaxsmi" / "papers"))
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    def raw(self, *parts):
        return ["````{raw} html", *parts, "````", ""]

    def card(self, name, recipe):
        from jaxsmi.papers import gallery

        made = function(recipe)
        path = Path(inspect.getsourcefile(made)).relative_to(ROOT).as_posix()
        sources.wanted(self.env.app).add(path)
        line = inspect.getsourcelines(made)[1]
        uri = f"../{sources.page_of(path)}.html#L-{line}"
        link = f'<a href="{uri}">recipe</a>'
        record = record_of(name)
        if record is not None:
            return gallery.card(record, f"{FOLDER}/", link)
        head = f"<h3>{name}: {html.escape(title(recipe))}</h3>"
        return f'<figure id="{name}">{head}<figcaption><p>{link}</p></figcaption></figure>'


def copy(app, error):
    """Pictures and arrays into the site, where they were drawn."""
    if error or app.builder.format != "html":
        return
    from jaxsmi.papers import RECIPES

    for name in RECIPES:
        if record_of(name) is not None:
            folder = Path(app.outdir) / "docs" / FOLDER
            folder.mkdir(exist_ok=True)
            for ending in ENDINGS:
                shutil.copy(DRAWN / f"{name}{ending}", folder)


def setup(app):
    app.add_directive("find-figures", Find)
    app.add_directive("gallery", Gallery)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
