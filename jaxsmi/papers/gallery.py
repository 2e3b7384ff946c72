"""The gallery: one static page of all figures in a folder, with what agrees with published numbers
and what does not.

No script, no font, no file from elsewhere: the page opens from a folder as it is, in light and
dark, and its search is a filter of its own. No equation lives here.
"""

from __future__ import annotations

import html
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsmi.papers.common import Article

__all__ = ["CARDS", "FIND", "SEARCH", "card", "page", "summary", "write"]

# Of the cards, on this page and on the site of the documentation: `data-theme` is the theme's
# switch, without one the system decides.
CARDS = """
.gallery { --line: #8884; --good: #007a33; --bad: #b3261e; }
html[data-theme="dark"] .gallery { --good: #5fd38d; --bad: #ff8a80; }
@media (prefers-color-scheme: dark) {
  html:not([data-theme="light"]) .gallery { --good: #5fd38d; --bad: #ff8a80; }
}
.gallery [hidden], section[hidden] { display: none; }
.gallery .find { display: flex; gap: .8rem; align-items: center; margin: 1rem 0; }
.gallery input { font: inherit; color: inherit; padding: .45rem .7rem; width: min(100%, 34rem); }
.gallery input { background: transparent; border: 1px solid var(--line); border-radius: .4rem; }
.gallery .grid { display: grid; gap: 1.5rem; align-items: start; }
.gallery .grid { grid-template-columns: repeat(auto-fill, minmax(min(100%, 38rem), 1fr)); }
.gallery figure { margin: 0; padding: 1rem; border-radius: .5rem; overflow-x: auto; }
.gallery figure { border: 1px solid var(--line); max-width: none; }
.gallery h3 { font-size: 1rem; margin: 0 0 .6rem; }
.gallery figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.gallery figure img { background: #fff; border-radius: .25rem; padding: .3rem; }
.gallery figcaption { font: inherit; font-size: .92rem; color: inherit; text-align: left; }
.gallery figcaption p { display: block; margin: .6rem 0; }
.gallery table { border-collapse: collapse; width: 100%; display: table; }
.gallery table { font-size: .82rem; font-variant-numeric: tabular-nums; }
.gallery th, .gallery td { text-align: left; vertical-align: top; padding: .25rem .5rem; }
.gallery th, .gallery td { color: inherit; }
.gallery th, .gallery td { border-bottom: 1px solid var(--line); }
.gallery td:first-child { min-width: 10rem; }
.gallery td.number, .gallery th.number { text-align: right; white-space: nowrap; }
.gallery .yes { color: var(--good); }
.gallery .no { color: var(--bad); font-weight: 600; }
.gallery tr.remark td { border: 0; padding: 0 .5rem .3rem 1.5rem; opacity: .75; }
.gallery tr:has(+ .remark) td { border-bottom: 0; }
.gallery tr.remark + tr td { border-top: 1px solid var(--line); }
.gallery details { font-size: .85rem; margin: .4rem 0; }
.gallery details pre { overflow-x: auto; padding: .6rem; font-size: .78rem; }
.gallery details pre { border: 1px solid var(--line); border-radius: .25rem; }
.gallery dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
.gallery dt, .gallery dd { margin: 0; overflow-wrap: anywhere; }
.gallery .made { font-size: .8rem; opacity: .75; overflow-wrap: anywhere; }
.gallery .failed { border: 2px solid var(--bad); padding: .8rem; }
"""

# Every word must be in the title, the caption, the parameters or the comparisons of a figure; of an
# address that ends in ?find=words they are found at once.
SEARCH = """
{
  const box = document.querySelector(".gallery .find input");
  const count = document.querySelector(".gallery .find output");
  const cards = [...document.querySelectorAll(".gallery figure")];
  const texts = cards.map(card => [...card.querySelectorAll("h3, figcaption > p, dl, td")]
    .map(part => part.textContent).join(" ").toLowerCase());
  const sections = new Set(cards.map(card => card.closest("section")));
  const find = () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    cards.forEach((card, k) => { card.hidden = !words.every(word => texts[k].includes(word)); });
    for (const section of sections)
      section.hidden = !section.querySelector("figure:not([hidden])");
    for (const link of document.querySelectorAll('nav li > a[href^="#"]')) {
      const card = document.getElementById(link.hash.slice(1));
      if (cards.includes(card)) link.parentElement.hidden = card.hidden;
    }
    const shown = cards.filter(card => !card.hidden).length;
    count.textContent = words.length ? `${shown} of ${cards.length} figures` : "";
  };
  box.value = new URLSearchParams(location.search).get("find") || "";
  box.addEventListener("input", find);
  find();
}
"""

FIND = (
    '<p class="find"><input type="search" placeholder="find figures: a word of the caption, a '
    'parameter" aria-label="Find figures"><output aria-live="polite"></output></p>'
)

_STYLE = """
:root { color-scheme: light dark; }
:root[data-theme="light"] { color-scheme: light; }
:root[data-theme="dark"] { color-scheme: dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 100rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; }
nav ul { columns: 22rem; padding-left: 1.2rem; }
header { position: relative; }
#theme { position: absolute; top: 0; right: 0; font: inherit; padding: .3rem .7rem; }
"""

_SWITCH = """
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
"""

_PIXELS = 92.0  # of the page for an inch of a picture, whose letters then have their size
_COLUMNS = {
    "points": "points",
    "median": "median |Δ|",
    "largest": "largest |Δ|",
    "tolerance": "tolerance",
    "ratio": "worst ratio",
}


def _safe(text: object) -> str:
    """A text with nothing in it that HTML would read as its own."""
    return html.escape(str(text), quote=True)


def _number(value: float | None) -> str:
    """A number of a table, a dash where there is none."""
    return "–" if value is None else f"{float(value):.3g}"


def _compared(compared: Sequence[Mapping[str, Any]]) -> str:
    """The comparisons of a figure as a table."""
    if not compared:
        return "<p>Nothing published to compare with was at hand.</p>"
    rows = []
    for one in compared:
        verdict = (
            '<span class="yes">agrees</span>'
            if one["agrees"]
            else '<span class="no">does not agree</span>'
        )
        cells = "".join(f'<td class="number">{_number(one[name])}</td>' for name in _COLUMNS)
        rows.append(
            f"<tr><td>{_safe(one['what'])}, against "
            f"{_safe(one['against'])}</td>{cells}<td>{verdict}</td></tr>"
        )
        if one["remark"]:
            rows.append(
                '<tr class="remark"><td '
                f'colspan="{len(_COLUMNS) + 2}">{_safe(one["remark"])}</td></tr>'
            )
    titles = "".join(f'<th scope="col" class="number">{title}</th>' for title in _COLUMNS.values())
    head = (
        f'<thead><tr><th scope="col">compared</th>{titles}<th scope="col">verdict</th></tr></thead>'
    )
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _made(record: Mapping[str, Any]) -> str:
    """How a figure was made, in one line."""
    known = record["provenance"]
    size = "sizes of the article" if known["settings"].get("full") else "small sizes"
    parts = [
        f"{record['seconds']:.1f} s",
        size,
        f"jaxsmi {known['jaxsmi']}",
        f"JAX {known['jax']}",
        f"Python {known['python']}",
    ]
    parts += [f"commit {known['commit']}"] if known.get("commit") else []
    return " · ".join(
        _safe(part) for part in [*parts, known["device"], known["platform"], known["time"]]
    )


def _parameters(record: Mapping[str, Any]) -> str:
    """The settings of a figure, and the numbers or ranges of its arrays."""
    settings = record["provenance"]["settings"]
    shown = {"command": f"jaxsmi figure {record['name']}{' --full' * bool(settings.get('full'))}"}
    shown |= record.get("arrays", {})
    rows = "".join(f"<dt>{_safe(name)}</dt><dd>{_safe(text)}</dd>" for name, text in shown.items())
    return f"<details><summary>Parameters and arrays</summary><dl>{rows}</dl></details>"


def _links(name: str, folder: str, recipe: str) -> str:
    """The files behind a figure, and its recipe."""
    files = {"svg": "svg", "pdf": "pdf", "nc": "arrays, netCDF", "json": "how it was made, JSON"}
    links = [f'<a href="{folder}{name}.{end}">{what}</a>' for end, what in files.items()]
    return f"<p>{' · '.join([*links, recipe] if recipe else links)}</p>"


def _code(record: Mapping[str, Any]) -> str:
    """The recipe as it was when the figure was made."""
    recipe = record.get("recipe")
    if not recipe:
        return ""
    summary = f"<summary>Recipe: <code>{_safe(recipe['function'])}</code></summary>"
    return f"<details>{summary}<pre>{_safe(recipe['code'])}</pre></details>"


def card(record: Mapping[str, Any], folder: str = "", recipe: str = "") -> str:
    """A figure with its caption, comparisons, parameters and files, or the reason of its failure.

    Args:
        record: Of the figure.
        folder: Where its files are, with a slash. Default "": beside the page.
        recipe: A link to the recipe, as HTML. Default "": its code is shown.

    Returns:
        A <figure>, as HTML.
    """
    name = _safe(record["name"])
    title = _safe(record["title"])
    head = (
        f'<figure id="{name}" aria-labelledby="{name}-title">'
        f'<h3 id="{name}-title">{name}: {title}</h3>'
    )
    made = f'<p class="made">{_made(record)}</p>'
    if record["failed"]:
        reason = f'<p class="failed">Failed: {_safe(record["failed"])}</p>'
        return f"{head}<figcaption>{reason}{made}</figcaption></figure>"
    inches = (record.get("inches") or [7.0])[0]
    width = round(_PIXELS * float(inches))
    picture = f'<img src="{folder}{name}.png" width="{width}" alt="{title}">'
    code = "" if recipe else _code(record)
    return (
        f'{head}<a href="{folder}{name}.png">{picture}</a>'
        f"<figcaption><p>{_safe(record['caption'])}</p>{_compared(record['compared'])}"
        f"{_links(name, folder, recipe)}{_parameters(record)}{code}{made}</figcaption></figure>"
    )


def _article(article: Article | None, records: Sequence[Mapping[str, Any]]) -> str:
    """The figures of an article, or those of none."""
    prefix = article.prefix if article else "other"
    title = article.title if article else "Other figures"
    source = ""
    if article and article.arxiv:
        source = f' (<a href="https://arxiv.org/abs/{article.arxiv}">arXiv {article.arxiv}</a>)'
    figures = "\n".join(card(record) for record in records)
    head = f'<section><h2 id="{_safe(prefix)}">{_safe(title)}{source}</h2>'
    return f'{head}\n<div class="grid">\n{figures}\n</div></section>'


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """One sentence: figures, comparisons that agree, those that do not, failures."""
    compared = [one for record in records for one in record["compared"]]
    agree = sum(one["agrees"] for one in compared)
    failed = sum(bool(record["failed"]) for record in records)
    return (
        f"{len(records)} figures; {agree} of {len(compared)} comparisons agree within their "
        "tolerance"
        f"{f'; {failed} figures failed' if failed else ''}."
    )


def _grouped(
    records: Sequence[Mapping[str, Any]], articles: Sequence[Article]
) -> list[tuple[Article | None, list[Mapping[str, Any]]]]:
    """The records of each article, by how the names begin, and then those of none."""
    groups: list[tuple[Article | None, list[Mapping[str, Any]]]] = []
    rest = list(records)
    for article in articles:
        groups.append((article, [r for r in rest if r["name"].startswith(f"{article.prefix}-")]))
        rest = [r for r in rest if not r["name"].startswith(f"{article.prefix}-")]
    return [(article, group) for article, group in [*groups, (None, rest)] if group]


def page(records: Sequence[Mapping[str, Any]], articles: Sequence[Article]) -> str:
    """The page of these records (what `making.keep` writes as JSON), article by article.

    Args:
        records: The records of the figures.
        articles: The articles, in the order of the page.

    Returns:
        The page, as HTML.
    """
    contents = "".join(
        f'<li><a href="#{_safe(r["name"])}">{_safe(r["name"])}</a>: {_safe(r["title"])}'
        f"{' <span class=no>failed</span>' if r['failed'] else ''}</li>"
        for r in records
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>jaxsmi: '
        "figures</title>"
        f'<link rel="icon" href="data:,"><style>{_STYLE}{CARDS}</style></head><body '
        'class="gallery">\n'
        '<header><button id="theme" type="button">light / dark</button>'
        f"<h1>jaxsmi: published figures, made again</h1><p>{_safe(summary(records))} Δ is "
        "ours minus the other at the same abscissa; the tolerance shown is the median one, and the "
        "worst ratio is that of a deviation to the tolerance at its own point. All numbers were "
        f"measured when the figure was made.</p>{FIND}</header>\n"
        f'<nav aria-label="Figures"><ul>{contents}</ul></nav>\n<main>\n'
        + "\n".join(_article(article, group) for article, group in _grouped(records, articles))
        + f"\n</main><script>{_SWITCH}{SEARCH}</script></body></html>\n"
    )


def write(
    records: Sequence[Mapping[str, Any]], articles: Sequence[Article], folder: pathlib.Path
) -> pathlib.Path:
    """Write the page as index.html of the folder; returns its path."""
    path = pathlib.Path(folder) / "index.html"
    path.write_text(page(records, articles), encoding="utf-8")
    return path
