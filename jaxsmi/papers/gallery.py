"""The gallery: one static page of all figures in a folder, with what agrees with published numbers
and what does not.

No script, no font, no file from elsewhere: the page opens from a folder as it is. No equation lives
here.
"""

from __future__ import annotations

import html
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsmi.papers.common import Article

__all__ = ["page", "summary", "write"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #007a33; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --good: #5fd38d; --bad: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 100rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
nav ul { columns: 22rem; padding-left: 1.2rem; }
.grid { display: grid; gap: 1.5rem; align-items: start; }
.grid { grid-template-columns: repeat(auto-fill, minmax(min(100%, 38rem), 1fr)); }
figure { margin: 0; padding: 1rem; border-radius: .5rem; overflow-x: auto; }
figure { border: 1px solid var(--line); }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: .25rem; }
figcaption { font-size: .92rem; }
figcaption p { margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; }
table { font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; }
th, td { border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap; }
.yes { color: var(--good); }
.no { color: var(--bad); font-weight: 600; }
tr.remark td { border: 0; padding: 0 .5rem .3rem 1.5rem; opacity: .75; }
tr:has(+ .remark) td { border-bottom: 0; }
tr.remark + tr td { border-top: 1px solid var(--line); }
.made { font-size: .8rem; opacity: .75; overflow-wrap: anywhere; }
.failed { border: 2px solid var(--bad); padding: .8rem; }
"""


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


def _figure(record: Mapping[str, Any]) -> str:
    """A figure with its caption and its comparisons, or the reason of its failure."""
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
    files = (
        f'<a href="{name}.nc">{name}.nc</a> (arrays)',
        f'<a href="{name}.json">{name}.json</a> (how it was made)',
    )
    links = f"<p>Behind it: {', '.join(files)}.</p>"
    return (
        f'{head}<a href="{name}.png"><img src="{name}.png" alt="{title}"></a>'
        f"<figcaption><p>{_safe(record['caption'])}</p>{_compared(record['compared'])}"
        f"{links}{made}</figcaption></figure>"
    )


def _article(article: Article | None, records: Sequence[Mapping[str, Any]]) -> str:
    """The figures of an article, or those of none."""
    prefix = article.prefix if article else "other"
    title = article.title if article else "Other figures"
    source = ""
    if article and article.arxiv:
        source = f' (<a href="https://arxiv.org/abs/{article.arxiv}">arXiv {article.arxiv}</a>)'
    figures = "\n".join(_figure(record) for record in records)
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
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>\n'
        f"<header><h1>jaxsmi: published figures, made again</h1><p>{_safe(summary(records))} Δ is "
        "ours minus the other at the same abscissa; the tolerance shown is the median one, and the "
        "worst ratio is that of a deviation to the tolerance at its own point. All numbers were "
        "measured when the figure was made.</p></header>\n"
        f'<nav aria-label="Figures"><ul>{contents}</ul></nav>\n<main>\n'
        + "\n".join(_article(article, group) for article, group in _grouped(records, articles))
        + "\n</main></body></html>\n"
    )


def write(
    records: Sequence[Mapping[str, Any]], articles: Sequence[Article], folder: pathlib.Path
) -> pathlib.Path:
    """Write the page as index.html of the folder; returns its path."""
    path = pathlib.Path(folder) / "index.html"
    path.write_text(page(records, articles), encoding="utf-8")
    return path
