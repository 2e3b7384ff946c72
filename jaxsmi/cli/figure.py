"""The command `jaxsmi figure NAME|all`: published figures from their recipes, and the gallery of
them.

No equation lives here.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import progress
from jaxsmi.cli.report import Report, table, timed, wrapped
from jaxsmi.core.checks import check
from jaxsmi.papers import ARTICLES, RECIPES, gallery, making
from jaxsmi.papers.common import Folder
from jaxsmi.papers.making import Record
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.plotting.palette import INK
from jaxsmi.workbench.plotting.style import PAGE

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]

ALL = "all"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    names = [ALL, *RECIPES]
    parser.add_argument("name", metavar="NAME", choices=names, help=" | ".join(names))
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick",
        dest="full",
        action="store_false",
        help="small sizes: a minute or two a figure (the default)",
    )
    size.add_argument(
        "--full", dest="full", action="store_true", help="sizes of the articles: hours"
    )
    parser.set_defaults(full=False)
    parser.add_argument(
        "--reference",
        type=pathlib.Path,
        help="folder of published data to lay over (else the environment's JAXSMI_REFERENCE, "
        "else ../shared/reference)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that draw at once (all)")
    parser.add_argument("--again", action="store_true", help="make finished figures again (all)")


def _execute(arguments: argparse.Namespace) -> Report:
    """One figure, or all of them."""
    check(arguments.out is not None, "--out", None, "a folder for the figure")
    check(arguments.workers >= 1, "--workers", arguments.workers, "an integer >= 1")
    reference = making.folder_of_published(arguments.reference)
    if arguments.name == ALL:
        return _every(arguments, reference)
    return _one(arguments, reference)


def _write_gallery(folder: pathlib.Path) -> None:
    """The page of all figures that are in the folder."""
    gallery.write(making.records(list(RECIPES), folder), ARTICLES, folder)


def _one(arguments: argparse.Namespace, reference: Folder) -> Report:
    """One figure, made again whether it is there or not."""
    name = arguments.name
    drawn, record = making.draw(
        name, RECIPES[name], full=arguments.full, reference=reference, progress=progress(arguments)
    )
    making.keep(drawn, record, arguments.out)
    _write_gallery(arguments.out)
    data = {
        "caption": drawn.caption,
        "compared": record["compared"],
        "arrays": drawn.arrays,
        "seconds": record["seconds"],
    }
    lines = [wrapped(drawn.caption), *_verdicts([record]), f"{record['seconds']:.1f} s."]
    return Report(
        data,
        "\n".join(lines),
        stored=lambda: storage.arrays(drawn.arrays),
        figure=drawn.figure,
        stem=name,
        written=[
            *(arguments.out / f"{name}{ending}" for ending in making.FILES),
            arguments.out / "index.html",
        ],
    )


def _every(arguments: argparse.Namespace, reference: Folder) -> Report:
    """All figures that are not there yet; those that fail are named, and the others go on."""
    made: dict[str, Record] = {}
    reused: list[str] = []
    figures = making.every(
        RECIPES,
        arguments.out,
        full=arguments.full,
        reference=reference,
        workers=arguments.workers,
        again=arguments.again,
    )
    hidden = not progress(arguments)
    with timed() as seconds, tqdm(total=len(RECIPES), desc="figures", disable=hidden) as bar:
        for record, there in figures:
            name = record["name"]
            made[name] = record
            reused += [name] if there else []
            bar.set_postfix_str(name)
            bar.update()
            _write_gallery(arguments.out)
    records = [made[name] for name in RECIPES]
    failed = {record["name"]: record["failed"] for record in records if record["failed"]}
    shown = ("name", "title", "caption", "compared", "seconds", "failed")
    data = {
        "figures": [{key: record[key] for key in shown} for record in records],
        "kept": reused,
        "failed": failed,
        "gallery": str(arguments.out / "index.html"),
        "seconds": seconds[0],
    }
    text = [
        table(["figure", "seconds", "compared", "agree"], [_row(record) for record in records]),
        *_verdicts(records),
        *(wrapped(f"{name} failed: {reason}") for name, reason in failed.items()),
        f"{gallery.summary(records)} {len(reused)} were there already. {seconds[0]:.1f} s.",
    ]
    return Report(
        data,
        "\n".join(text),
        lambda figure: _overview(figure, records),
        lambda: _numbers(records),
        stem="index",
        problem=f"{len(failed)} failed: {', '.join(failed)}" if failed else "",
    )


def _row(record: Mapping[str, Any]) -> list[str]:
    """Cells of a figure: its name, how long it took, how many comparisons there are, and how many
    agree.
    """
    compared = record["compared"]
    seconds = "failed" if record["failed"] else f"{record['seconds']:.1f}"
    agree = sum(one["agrees"] for one in compared)
    return [record["name"], seconds, str(len(compared)), str(agree)]


def _verdicts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not agree, of one figure also what does, in words."""
    lines = []
    for record in records:
        for one in record["compared"]:
            if one["agrees"] and len(records) > 1:
                continue
            verdict = "agrees" if one["agrees"] else "does not agree"
            gap = "no common point"
            if one["points"]:
                gap = f"largest deviation {one['largest']:.3g}, allowed {one['tolerance']:.3g}"
            remark = f" ({one['remark']})" if one["remark"] else ""
            what = f"{record['name']}: {one['what']} {verdict} with {one['against']}"
            lines.append(wrapped(f"{what}: {gap}{remark}."))
    return lines


def _numbers(records: Sequence[Mapping[str, Any]]) -> xarray.Dataset:
    """Seconds of all figures, and ratios of all comparisons, NaN without a common point."""
    ratios = [one["ratio"] for record in records for one in record["compared"]]
    return storage.arrays(
        {
            "seconds": np.array([record["seconds"] for record in records]),
            "ratio": np.array([np.nan if ratio is None else ratio for ratio in ratios], float),
        }
    )


def _overview(figure: Figure, records: Sequence[Mapping[str, Any]]) -> None:
    """All comparisons in one picture: the largest deviation over its tolerance."""
    ratios = [
        (f"{record['name']}: {one['what']}", one["ratio"])
        for record in records
        for one in record["compared"]
        if one["points"]
    ]
    figure.set_size_inches(PAGE, 1.2 + 0.12 * len(ratios))
    ax = figure.subplots()
    verdicts = {"agrees": {"color": plotting.colour(0), "marker": "o", "ls": "none", "ms": 3.0}}
    verdicts["does not"] = {"color": plotting.colour(1), "marker": "X", "ls": "none", "ms": 5.0}
    for row, (_, ratio) in enumerate(ratios):
        ax.plot(max(ratio, 1e-3), row, **verdicts["agrees" if ratio <= 1 else "does not"])
    ax.axvline(1.0, color=INK, lw=0.8, ls=":")
    plotting.legend_above(ax, 2, verdicts)
    ax.set_xscale("log")
    ax.set_xlabel("largest deviation over its tolerance")
    ax.set_yticks(np.arange(len(ratios)), [name for name, _ in ratios], fontsize=5)
    ax.set_ylim(len(ratios), -1)


COMMAND = Command(
    "figure",
    "Draw a published figure, or all of them, and keep the arrays behind it; index.html shows what "
    "agrees with print.",
    _add_flags,
    _execute,
    details=(
        "With `all` a figure that fails is shown as failed and the others go on, the exit status "
        "is 1, and what is "
        "finished is not made again."
    ),
    takes_model=False,
    operand="NAME",
    resumes=True,
)
