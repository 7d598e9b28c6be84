"""`simstrag calibrate show` and `compare`: describe a profile, or compare two."""

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
from simstrag.cli.options import Json, find_profile
from simstrag.documents.file_io import writable, write_atomically
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.calibration.compare import ComparedNumber, SideBySide
    from simstrag.profile.profile import Profile

PICTURES = (".png", ".svg")
"""Formats of a picture."""

UNITS = {"s": ("ms", 1e3), "B": ("MB", 1e-6), "B/s": ("GB/s", 1e-9)}
"""The unit in which a number is shown, and the factor to it."""

MOST = 12
"""Largest number of cells that a sentence names."""

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
        typer.Option(
            "--plot",
            help="Draw the profile into FILE, *.png or *.svg.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a profile: every number with its interval and origin."""
    from simstrag.analysis.tables.profile_tables import describe, tables

    if plot is not None and writable(plot, *PICTURES).suffix not in PICTURES:
        raise InputError(
            f"{plot}: is no name of a picture; give a name ending in {' or '.join(PICTURES)}"
        )
    content = read_profile(profile)
    if plot is not None:
        _draw(content, plot)
    if as_json:
        print_json({"summary": _summary(content, plot), "profile": content.model_dump(mode="json")})
        return
    print_paragraphs(*describe(content))
    for each in tables(content):
        print_sentences(f"== {each.title}")
        print_table(each.headers, each.rows, wraps=each.wraps, least=each.least)
        for line in (*each.notes, ""):
            print_sentences(line)
    if plot is not None:
        print_path("picture", plot)


def compare(
    a: Annotated[
        Path,
        typer.Argument(
            help="A profile, or the folder of a calibration.", metavar="A", show_default=False
        ),
    ],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="B", show_default=False)],
    as_json: Json = False,
) -> None:
    """Compare two profiles number by number, within their errors."""
    from simstrag.calibration.compare import compare as compare_profiles

    sides = compare_profiles(read_profile(a), read_profile(b))
    if as_json:
        print_json(_document(sides))
    else:
        _print(sides)


def read_profile(path: Path) -> Profile:
    """The profile in a file, or in the folder of a calibration. Raises `InputError`."""
    from simstrag.profile.profile import Profile

    file = find_profile(path)
    if not file.exists():
        raise InputError(
            f"{path}: has no {file.name}; give a profile, or let simstrag calibrate --out {path} "
            "finish it"
        )
    return Profile.read(file)


def _draw(profile: Profile, path: Path) -> None:
    from simstrag.analysis.charts.calibration_figure import draw, save

    figure = draw(profile)
    write_atomically(path, lambda part: save(figure, part, path.suffix))


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


def _document(sides: SideBySide) -> dict[str, Any]:
    return {
        "text": sides.text,
        "a": sides.a.name,
        "b": sides.b.name,
        "same_device": sides.same_device,
        "judged": len(sides.judged),
        "agreeing": sides.agreeing,
        "half_width": sides.half_width,
        "parts": sides.parts,
        "differs": [
            {"where": c.where, "key": c.key, "a": c.a, "b": c.b} for c in sides.differences
        ],
        "cells": sides.records,
        "only_a": list(sides.only_a),
        "only_b": list(sides.only_b),
    }


def _print(sides: SideBySide) -> None:
    from simstrag.analysis.text.number_format import percent

    differs = (
        [f"Differences: {'; '.join(map(str, sides.differences))}."] if sides.differences else []
    )
    print_paragraphs(sides.text, *differs)
    if sides.parts:
        rows = [
            [p["part"], str(p["numbers"]), percent(p["agreeing"]), percent(p["half_width"], 2)]
            for p in sides.parts
        ]
        print_table(["part", "numbers", "agree (%)", "median half-width (%)"], rows)
        print()
    if sides.pairs:
        print_pairs(sides.pairs)
        print()
    for name, only in (("a", sides.only_a), ("b", sides.only_b)):
        if only:
            more = f"; and {len(only) - MOST} more, see --json" if len(only) > MOST else ""
            print_sentences(f"In {name} alone: {'; '.join(only[:MOST])}{more}.")


def print_pairs(pairs: Sequence[ComparedNumber]) -> None:
    """Print a table with a row per number that both profiles have."""
    headers = ["cell", "a", "b", "b / a", "apart (s.e.)", "agrees"]
    print_table(headers, [_row(pair) for pair in pairs], least=("b / a",))


def _row(pair: ComparedNumber) -> list[str]:
    from simstrag.analysis.tables.profile_tables import text
    from simstrag.analysis.text.number_format import number

    unit, scale = UNITS.get(pair.number.unit, (pair.number.unit, 1.0))
    verdict = {None: "not judged", True: "yes", False: "NO"}[pair.agrees]
    return [
        f"{pair.number.cell}: {pair.number.name}" + (f" ({unit})" if unit else ""),
        text(pair.a, scale), text(pair.b, scale), f"{pair.ratio:.3f}",
        number(pair.errors, 2, sign=True), verdict,
    ]  # fmt: skip
