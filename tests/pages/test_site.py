"""The documentation as `make docs` builds it: links, names, and what a browser shows of it."""

import functools
import html
import http.server
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from figures import browser

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "out" / "site"
pytestmark = pytest.mark.skipif(
    not SITE.is_dir(), reason="no site in out/site: `make docs` builds it"
)
THEME = "[PST]: "  # what the theme says of itself on every page
looked_at = pytest.mark.skipif(browser.browser() is None, reason=f"none of {browser.NAMES}")


@functools.cache
def pages():
    """Those that were written; not the theme's parts, nor a copy that a browser is looking at."""
    paths = [path for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts]
    written = [path for path in paths if not path.name.startswith("counted-")]
    return {path: path.read_text(encoding="utf-8") for path in written}


@functools.cache
def anchors(path):
    return set(map(html.unescape, re.findall(r'\b(?:id|name)="([^"]+)"', pages()[path])))


def links(text):
    """Addresses of a page, by the tag and the attribute that hold them."""
    for tag, rest in re.findall(r"<(a|img|script|link|source|iframe)\b([^>]*)>", text):
        for value in re.findall(r'\b(?:href|src)="([^"]*)"', rest):
            yield tag, html.unescape(value)


def broken(path):
    for _, address in links(pages()[path]):
        if re.match(r"(https?|mailto|data):", address):
            continue
        file, anchor = urldefrag(address)
        target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
        if target.is_dir():
            target = target / "index.html"
        there = target.is_file() and SITE in target.parents
        if there and anchor and target.suffix == ".html":
            there = unquote(anchor) in anchors(target)
        if not there:
            yield address


def test_every_link_inside_the_site_leads_somewhere():
    found = {f"{path.relative_to(SITE)}: {address}" for path in pages() for address in broken(path)}
    assert len(pages()) > 60
    assert not found, sorted(found)[:40]


def test_nothing_is_loaded_from_elsewhere():
    found = [
        (path.name, address)
        for path, text in pages().items()
        for tag, address in links(text)
        if tag != "a" and address.startswith("http") and 'rel="canonical"' not in text
    ]
    assert not found, found[:10]
    assert not [css for css in SITE.rglob("*.css") if re.search(r"url\(.?http", css.read_text())]


def test_references_lead_to_other_libraries_and_to_theory():
    text = pages()[SITE / "docs" / "reference" / "descent.html"]
    assert "https://optax.readthedocs.io/en/latest/api/transformations.html#optax.Grad" in text
    text = pages()[SITE / "docs" / "reference" / "inference.html"]
    assert "https://docs.jax.dev/en/latest/_autosummary/jax.typing.ArrayLike.html" in text
    assert "../theory/multi-index.html#eq-49" in text
    assert "../references.html#tcdkz25" in text
    text = pages()[SITE / "docs" / "reference" / "extending.html"]
    assert "https://docs.kidger.site/equinox/api/module/module/#equinox.Module" in text


def test_all_formulas_are_typeset():
    """As many equations with a number as the page of theory has, and none left as text."""
    for page in sorted((ROOT / "docs" / "theory").glob("*.md")):
        tags = set(re.findall(r"\\tag\{(\w+)\}", page.read_text(encoding="utf-8")))
        text = pages()[SITE / "docs" / "theory" / f"{page.stem}.html"]
        assert set(re.findall(r'id="eq-(\w+)"', text)) == tags
        assert "katex-error" not in text


# What a browser shows -----------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        pass


@pytest.fixture(scope="module")
def served():
    """The address of the site: scripts may not read files of a folder that is not served."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda path: f"http://127.0.0.1:{server.server_port}/{path.relative_to(SITE)}"
        server.shutdown()


PAGES = {  # with so many pictures at least
    "docs/index": 1, "docs/gallery/index": 2, "docs/reference/inference": 0,
    "docs/theory/multi-index": 0, "notebooks/01_two_layers": 2,
}  # fmt: skip


@looked_at
@pytest.mark.parametrize(("page", "images"), PAGES.items())
def test_pages_open(served, page, images):
    found, messages = browser.counted(SITE / f"{page}.html", address=served)
    assert found["images"] >= images
    assert not found["broken"]
    assert not found["silent"]
    assert not found["wide"]
    assert not [message for message in messages if THEME not in message]


NARROW = """<iframe src="{page}.html" style="width: 390px; height: 1000px"></iframe><script>
addEventListener("load", () => {{
  const all = document.querySelector("iframe").contentDocument.querySelectorAll(".bd-article *");
  const outside = [...all].filter(e => e.getBoundingClientRect().right > 391);
  const told = document.createElement("pre");
  told.id = "counted";  // formulas, tables of numbers and lines of code scroll
  const cut = outside.filter(e => !e.closest(".formula, table") && !e.matches("pre *"));
  told.textContent = `${{cut.length}} of ${{all.length}}`;
  document.body.append(told);
}});</script>"""


@looked_at
@pytest.mark.parametrize("page", ["docs/index", "docs/reference/inference", "docs/how-to/own-link"])
def test_nothing_is_cut_on_a_telephone(served, page):
    """In a frame: a window of a headless browser is wider."""
    path = SITE / f"{page}.html"
    frame = path.with_name("counted-narrow.html")
    frame.write_text(NARROW.format(page=path.stem), encoding="utf-8")
    try:
        shown, _ = browser.visit(served(frame))
    finally:
        frame.unlink()
    cut, count = re.search(r'<pre id="counted">(\d+) of (\d+)', shown).groups()
    assert int(cut) == 0
    assert int(count) > 50


@looked_at
def test_search_finds(served):
    shown, messages = browser.visit(f"{served(SITE / 'search.html')}?q=staircase")
    assert not [message for message in messages if THEME not in message]
    found = re.search(r'<ul[^>]*class="search".*?</ul>', shown, re.DOTALL)
    assert found, shown[-2000:]
    assert "reference/thresholds.html" in found.group()
