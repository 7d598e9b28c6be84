"""`simstrag calibrate show` and `compare`: look at a profile, or at two beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.cli.console import (
    print_json,
    print_paragraphs,
    print_path,
    print_sentences,
    print_table,
)
from simstrag.cli.options import Json
from simstrag.documents.paths import expect, writable, write_whole
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.calibration.compare import ComparedNumber, SideBySide
    from simstrag.profile.profile import Profile

__all__ = ["compare", "profile_at", "show", "show_pairs"]

PICTURES = (".png", ".svg")
INSIDE = "profile.json"
"""The profile in a folder that calibration wrote."""

UNITS = {"s": ("ms", 1e3), "B": ("MB", 1e-6), "B/s": ("GB/s", 1e-9)}
"""The unit in which a number is shown, and what it is multiplied by for that."""
MOST = 12
"""Names of cells in a sentence."""

ProfileFile = Annotated[
    Path,
    typer.Argument(
        help="A profile in JSON, or the folder of a calibration.",
        metavar="PROFILE",
        show_default=False,
    ),
]


def show(
    profile: ProfileFile,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw it, *.png or *.svg.", metavar="FILE", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is in a profile, and how sure it is."""
    from simstrag.analysis.tables.profile_tables import describe, tables

    if plot is not None and writable(plot, *PICTURES).suffix not in PICTURES:
        raise InputError(f"{plot}: is no name of a picture; name it {' or '.join(PICTURES)}")
    found = profile_at(profile)
    if plot is not None:
        _draw(found, plot)
    if as_json:
        print_json({"summary": _summary(found, plot), "profile": found.model_dump(mode="json")})
        return
    print_paragraphs(*describe(found))
    for each in tables(found):
        print_sentences(f"== {each.title}")
        print_table(each.headers, each.rows, wraps=each.wraps, least=each.least)
        for line in (*each.notes, ""):
            print_sentences(line)
    if plot is not None:
        print_path("picture", plot)


def compare(
    a: Annotated[Path, typer.Argument(help="A profile.", metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="B", show_default=False)],
    as_json: Json = False,
) -> None:
    """Say where two profiles agree within their errors, and what differs."""
    from simstrag.calibration.compare import compare as compare_profiles

    found = compare_profiles(profile_at(a), profile_at(b))
    if as_json:
        print_json(_as_data(found))
    else:
        _print(found)


def profile_at(path: Path) -> Profile:
    """The profile in a file, or in the folder that calibration wrote. Raises `InputError`."""
    from simstrag.profile.profile import Profile

    if expect(path).is_dir():
        if not (path / INSIDE).exists():
            raise InputError(
                f"{path}: has no {INSIDE}; give a profile, or let simstrag calibrate --out {path} "
                "finish it"
            )
        path = path / INSIDE
    return Profile.read(path)


def _draw(profile: Profile, path: Path) -> None:
    from simstrag.analysis.charts.profile_figure import draw, save

    figure = draw(profile)
    write_whole(path, lambda part: save(figure, part, path.suffix))


def _summary(profile: Profile, plot: Path | None) -> dict[str, Any]:
    from simstrag.analysis.tables.profile_tables import describe

    parts = (
        "cells", "batches", "responses", "collectives", "collective_fits", "transfers", "overlaps",
        "locksteps", "learning", "amp_ratios", "skipped",
    )  # fmt: skip
    return {
        "text": "\n".join(describe(profile)),
        "numbers": {part: len(getattr(profile, part)) for part in parts},
        "held_out": [
            {
                "part": h.part, "cells": len(h.cells), "median": h.median, "worst": h.worst,
                "threshold": h.threshold, "holds": h.median <= h.threshold,
            }
            for h in profile.held_out
        ],
        "picture": plot,
    }  # fmt: skip


def _as_data(found: SideBySide) -> dict[str, Any]:
    return {
        "text": found.text,
        "a": found.a.name,
        "b": found.b.name,
        "same_device": found.same_device,
        "judged": len(found.judged),
        "agreeing": found.agreeing,
        "half_width": found.half_width,
        "parts": found.parts,
        "differs": [
            {"where": c.where, "key": c.key, "a": c.a, "b": c.b} for c in found.differences
        ],
        "cells": found.records,
        "only_a": list(found.only_a),
        "only_b": list(found.only_b),
    }


def _print(found: SideBySide) -> None:
    from simstrag.analysis.text.number_format import percent

    differs = (
        [f"What differs: {'; '.join(map(str, found.differences))}."] if found.differences else []
    )
    print_paragraphs(found.text, *differs)
    if found.parts:
        rows = [
            [p["part"], str(p["numbers"]), percent(p["agreeing"]), percent(p["half_width"], 2)]
            for p in found.parts
        ]
        print_table(["part", "numbers", "agree (%)", "median half-width (%)"], rows)
        print()
    if found.pairs:
        show_pairs(found.pairs)
        print()
    for name, only in (("a", found.only_a), ("b", found.only_b)):
        if only:
            more = f"; and {len(only) - MOST} more, see --json" if len(only) > MOST else ""
            print_sentences(f"In {name} alone: {'; '.join(only[:MOST])}{more}.")


def show_pairs(pairs: Sequence[ComparedNumber]) -> None:
    """A table with a row per number that two profiles have."""
    headers = ["cell", "a", "b", "b / a", "apart (s.e.)", "agrees"]
    print_table(headers, [_row(pair) for pair in pairs], least=("b / a",))


def _row(pair: ComparedNumber) -> list[str]:
    from simstrag.analysis.tables.profile_tables import shown
    from simstrag.analysis.text.number_format import number

    unit, scale = UNITS.get(pair.number.unit, (pair.number.unit, 1.0))
    verdict = {None: "not judged", True: "yes", False: "NO"}[pair.agrees]
    return [
        f"{pair.number.cell}: {pair.number.name}" + (f" ({unit})" if unit else ""),
        shown(pair.a, scale), shown(pair.b, scale), f"{pair.ratio:.3f}",
        number(pair.errors, 2, sign=True), verdict,
    ]  # fmt: skip
