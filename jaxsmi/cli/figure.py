"""The command `jaxsmi figure NAME|all`: published figures from their recipes, and the gallery of them. No equation lives here."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from jaxsmi.cli.report import Report, progress, table, timed, wrapped
from jaxsmi.core import records
from jaxsmi.core.checks import check
from jaxsmi.papers import gallery, making
from jaxsmi.papers import RECIPES
from jaxsmi.workbench import storage

ALL = "all"


def figure(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Draw a published figure, or all of them, and keep the arrays behind it; index.html shows what agrees with print.

    With `all` a figure that fails is shown as failed and the others go on; what is finished is not made again.
    """
    parser.add_argument(
        "name", metavar="NAME", choices=[ALL, *RECIPES], help=" | ".join([ALL, *RECIPES])
    )
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
        "--reference", type=pathlib.Path, default=argparse.SUPPRESS,
        help="folder of published data to lay over (else the environment's JAXSMI_REFERENCE, else ../shared/reference)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="processes that draw at once (all)")
    parser.add_argument("--again", action="store_true", help="make finished figures again (all)")

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.out, "--out", None, "a folder for the figure")
        check(arguments.workers >= 1, "--workers", arguments.workers, "an integer >= 1")
        reference = making.folder_of_published(getattr(arguments, "reference", None))
        return (_every if arguments.name == ALL else _one)(arguments, reference)

    return execute


def _one(arguments: argparse.Namespace, reference: pathlib.Path | None) -> Report:
    name = arguments.name
    drawn, record = making.draw(
        name, RECIPES[name], full=arguments.full, reference=reference, progress=progress(arguments)
    )
    making.keep(None, record, arguments.out)
    gallery.write(making.records(list(RECIPES), arguments.out), arguments.out)
    data = {
        "caption": drawn.caption,
        "compared": record["compared"],
        "arrays": drawn.arrays,
        "seconds": record["seconds"],
    }
    lines = [wrapped(drawn.caption), *_verdicts([record]), f"{record['seconds']:.1f} s."]
    return Report(
        data, "\n".join(lines), lambda _: None, storage.arrays(drawn.arrays), drawn.figure, name
    )


def _every(arguments: argparse.Namespace, reference: pathlib.Path | None) -> Report:
    made, kept = {}, []
    settings = {
        "full": arguments.full,
        "reference": reference,
        "workers": arguments.workers,
        "again": arguments.again,
    }
    with (
        timed() as seconds,
        tqdm(total=len(RECIPES), desc="figures", disable=not progress(arguments)) as bar,
    ):
        for record, before in making.every(RECIPES, arguments.out, **settings):
            made[record["name"]] = record
            kept += [record["name"]] if before else []
            bar.set_postfix_str(record["name"])
            bar.update()
            gallery.write(making.records(list(RECIPES), arguments.out), arguments.out)
    records = [made[name] for name in RECIPES]
    failed = {record["name"]: record["failed"] for record in records if record["failed"]}
    shown = ("name", "title", "caption", "compared", "seconds", "failed")
    data = {
        "figures": [{key: record[key] for key in shown} for record in records],
        "kept": kept,
        "failed": failed,
        "gallery": str(arguments.out / "index.html"),
        "seconds": seconds[0],
    }
    rows = [
        [r["name"], "failed" if r["failed"] else f"{r['seconds']:.1f}", *_counts(r)]
        for r in records
    ]
    text = [
        table(["figure", "seconds", "compared", "agree"], rows),
        *_verdicts(records),
        *(wrapped(f"{name} failed: {reason}") for name, reason in failed.items()),
        f"{gallery.summary(records)} {len(kept)} were there already. {seconds[0]:.1f} s.",
    ]
    report = Report(
        data, "\n".join(text), lambda it: _overview(it, records), _numbers(records), stem="index"
    )
    if failed:  # all that could be made is made; the shell is told
        print(_json(arguments, data) if arguments.json else report.text)
        raise SystemExit(f"jaxsmi figure: {len(failed)} failed: {', '.join(failed)}")
    return report


def _json(arguments: argparse.Namespace, data: Mapping[str, Any]) -> str:
    settings = {"name": arguments.name, "full": arguments.full, "workers": arguments.workers}
    return json.dumps(
        records.parameters({"command": "figure", "settings": settings, **data}, largest=np.inf),
        allow_nan=False,
    )


def _counts(record: Mapping[str, Any]) -> list[str]:
    return [str(len(record["compared"])), str(sum(one["agrees"] for one in record["compared"]))]


def _verdicts(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not agree, of one figure also what does, in words."""
    lines = []
    for record in records:
        for one in record["compared"]:
            if one["agrees"] and len(records) > 1:
                continue
            verdict = "agrees" if one["agrees"] else "does not agree"
            gap = (
                "no common point"
                if not one["points"]
                else f"largest deviation {one['largest']:.3g}, allowed {one['tolerance']:.3g}"
            )
            remark = f" ({one['remark']})" if one["remark"] else ""
            lines.append(
                wrapped(
                    f"{record['name']}: {one['what']} {verdict} with {one['against']}: {gap}{remark}."
                )
            )
    return lines


def _numbers(records: Sequence[Mapping[str, Any]]) -> Any:
    ratios = [
        np.nan if one["ratio"] is None else one["ratio"]
        for record in records
        for one in record["compared"]
    ]
    return storage.arrays(
        {
            "seconds": np.array([record["seconds"] for record in records]),
            "ratio": np.array(ratios, float),
        }
    )


def _overview(drawing: Any, records: Sequence[Mapping[str, Any]]) -> None:
    """All comparisons in one picture: the largest deviation over its tolerance."""
    found = [
        (f"{r['name']}: {one['what']}", one["ratio"])
        for r in records
        for one in r["compared"]
        if one["points"]
    ]
    drawing.set_size_inches(9, 1.2 + 0.17 * len(found))
    ax = drawing.subplots()
    for row, (_, ratio) in enumerate(found):
        ax.plot(max(ratio, 1e-3), row, "o", ms=4, color="C2" if ratio <= 1 else "C3")
    ax.axvline(1.0, color="k", lw=0.8, ls=":")
    ax.set_xscale("log")
    ax.set_xlabel("largest deviation over its tolerance")
    ax.set_yticks(np.arange(len(found)), [name for name, _ in found], fontsize=6)
    ax.set_ylim(len(found), -1)
    ax.grid(alpha=0.25, lw=0.6)
