"""`[KEY, Eq. (3)]` and `[theory: page, Eqs. (1), (2); KEY]` in pages and docstrings are links: to
the list of articles, to a page of docs/theory, to its equations and numbered sections.
"""

import functools
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[2]
ARTICLES = "docs/references"
KEY = r"[A-Z][A-Za-z]*\d{2}[a-z]?"
BRACKET = re.compile(rf"\[(?:theory: |{KEY}\b)[^\]\[]*\]")
PART = re.compile(
    rf"theory: (?P<page>[\w-]+)|(?P<key>\b{KEY}\b)|\((?P<equation>\d+)\)"
    r"|(?P<section>(?<=section )\d+|(?<=sections )\d+)"
)
PLAIN = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.reference)
PLAIN += (addnodes.desc_signature, nodes.title)


@functools.cache
def keys():
    return set(re.findall(r"@\w+\{(\w+),", (ROOT / "references.bib").read_text(encoding="utf-8")))


@functools.cache
def section_anchors(page):
    """Number of a heading of a theory page: its anchor."""
    text = (ROOT / "docs" / "theory" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"^## ((\d+)\. .*)$", text, re.MULTILINE)
    return {number: slug(heading) for heading, number in found}


def slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def targets(text):
    """Parts of a bracket that are links: start, end, page, anchor."""
    page = None
    for match in PART.finditer(text):
        kind, value = match.lastgroup, match.group(match.lastgroup)
        if kind == "page":
            page = value
            yield match.start("page"), match.end("page"), f"docs/theory/{page}", ""
        elif kind == "key":
            page = None
            if value in keys():
                yield match.start(), match.end(), ARTICLES, nodes.make_id(value)
        elif page and kind == "equation":
            yield match.start(), match.end(), f"docs/theory/{page}", f"eq-{value}"
        elif page and kind == "section" and value in section_anchors(page):
            yield match.start(), match.end(), f"docs/theory/{page}", section_anchors(page)[value]


def linked(text, address):
    """A text as nodes, its citations linked."""
    out, done = [], 0
    for bracket in BRACKET.finditer(text):
        for start, end, page, anchor in targets(bracket.group()):
            start, end = bracket.start() + start, bracket.start() + end
            out.append(nodes.Text(text[done:start]))
            uri = address(page) + (f"#{anchor}" if anchor else "")
            out.append(nodes.reference("", text[start:end], refuri=uri, internal=True))
            done = end
    return [*out, nodes.Text(text[done:])]


def resolve(app, doctree, docname):
    if docname == ARTICLES or app.builder.format != "html":
        return

    def address(page):
        return app.builder.get_relative_uri(docname, page)

    for text in list(doctree.findall(nodes.Text)):
        if "[" not in text or any(isinstance(one, PLAIN) for one in _above(text)):
            continue
        if BRACKET.search(text):
            text.parent.replace(text, linked(str(text), address))


def _above(node):
    while node.parent is not None:
        node = node.parent
        yield node


def anchors(app, doctree):
    """Headings keep the anchor that a code host gives them, beside that of Sphinx."""
    for section in doctree.findall(nodes.section):
        name = section.get("slug")
        if name and name not in section["ids"]:
            section["ids"].append(name)


def setup(app):
    app.connect("doctree-read", anchors)
    app.connect("doctree-resolved", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
