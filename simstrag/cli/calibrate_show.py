"""`simstrag calibrate show` and `compare`: describe a profile, or compare two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import print_line, print_paragraphs, print_sentences, print_table
from simstrag.cli.options import argument, option
from simstrag.cli.output import emit
from simstrag.documents.file_io import writable, write_atomically
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.calibration.compare import ComparedNumber, SideBySide

PICTURES = (".png", ".svg")
"""Formats of a picture."""

UNITS = {"s": ("ms", 1e3), "B": ("MB", 1e-6), "B/s": ("GB/s", 1e-9)}
"""The unit in which a number is shown, and the factor to it."""

MOST = 12
"""Largest number of cells that a sentence names."""

PARTS = (
    "cells", "batches", "responses", "collectives", "collective_fits", "transfers", "overlaps",
    "locksteps", "learning", "amp_ratios", "skipped",
)  # fmt: skip
"""Parts of a profile whose numbers are counted."""

PROFILE = "A profile in JSON, or the folder of a calibration."


def show(
    profile: Annotated[Path, argument(PROFILE, "PROFILE")],
    plot: Annotated[
        Path | None, option("Draw the profile into FILE, *.png or *.svg.", "FILE", "--plot")
    ] = None,
) -> None:
    """Print a profile: every number with its interval and origin."""
    from simstrag.analysis.tables.profile_tables import tables
    from simstrag.analysis.text.profile_text import describe
    from simstrag.profile.profile import Profile

    if plot is not None and writable(plot, *PICTURES).suffix not in PICTURES:
        raise InputError(
            f"{plot}: is no name of a picture; give a name ending in {' or '.join(PICTURES)}"
        )
    content = Profile.read(profile)
    if plot is not None:
        from simstrag.analysis.charts.calibration_figure import draw, save

        figure = draw(content)
        write_atomically(plot, lambda part: save(figure, part, plot.suffix))
    summary = {
        "text": "\n".join(describe(content)),
        "numbers": {part: len(getattr(content, part)) for part in PARTS},
        "held_out": [
            {
                "part": h.part, "cells": len(h.cells), "median": h.median, "worst": h.worst,
                "threshold": h.threshold, "holds": h.median <= h.threshold,
            }
            for h in content.held_out
        ],
        "picture": plot,
    }  # fmt: skip

    def show_numbers() -> None:
        print_paragraphs(*describe(content))
        for each in tables(content):
            print_sentences(f"== {each.title}")
            print_table(each.headers, each.rows, wraps=each.wraps, least=each.least)
            for line in (*each.notes, ""):
                print_sentences(line)

    document = {"summary": summary, "profile": content.model_dump(mode="json")}
    emit(document, show_numbers, picture=plot)


def compare(
    a: Annotated[Path, argument("A profile, or the folder of a calibration.", "A")],
    b: Annotated[Path, argument("Another one.", "B")],
) -> None:
    """Compare two profiles number by number, within their errors."""
    from simstrag.calibration.compare import compare as compare_profiles
    from simstrag.profile.profile import Profile

    sides = compare_profiles(Profile.read(a), Profile.read(b))
    document = {
        "text": sides.text,
        "a": sides.a.name,
        "b": sides.b.name,
        "same_device": sides.same_device,
        "judged": len(sides.judged),
        "agreeing": sides.agreeing,
        "half_width": sides.half_width,
        "parts": sides.parts,
        "differs": [asdict(change) for change in sides.differences],
        "cells": sides.records,
        "only_a": sides.only_a,
        "only_b": sides.only_b,
    }
    emit(document, lambda: _print(sides))


def _print(sides: SideBySide) -> None:
    from simstrag.analysis.text.number_format import percent
    from simstrag.analysis.text.profile_text import caution

    differs = "; ".join(map(str, sides.differences))
    print_paragraphs(
        sides.text,
        *([f"Differences: {differs}."] if differs else []),
        *caution(sides.a), *caution(sides.b),
    )  # fmt: skip
    if sides.parts:
        rows = [
            [p["part"], str(p["numbers"]), percent(p["agreeing"]), percent(p["half_width"], 2)]
            for p in sides.parts
        ]
        print_table(["part", "numbers", "agree (%)", "median half-width (%)"], rows)
        print_line()
    if sides.pairs:
        print_pairs(sides.pairs)
        print_line()
    for name, only in (("a", sides.only_a), ("b", sides.only_b)):
        if only:
            more = f"; and {len(only) - MOST} more, see --json" if len(only) > MOST else ""
            print_sentences(f"In {name} alone: {'; '.join(only[:MOST])}{more}.")


def print_pairs(pairs: Sequence[ComparedNumber]) -> None:
    """Print a table with a row per number that both profiles have."""
    from simstrag.analysis.text.number_format import number
    from simstrag.analysis.text.profile_text import text

    rows = []
    for pair in pairs:
        unit, scale = UNITS.get(pair.number.unit, (pair.number.unit, 1.0))
        verdict = {None: "not judged", True: "yes", False: "NO"}[pair.agrees]
        rows.append([
            f"{pair.number.cell}: {pair.number.name}" + (f" ({unit})" if unit else ""),
            text(pair.a, scale), text(pair.b, scale), f"{pair.ratio:.3f}",
            number(pair.errors, 2, sign=True), verdict,
        ])  # fmt: skip
    print_table(["cell", "a", "b", "b / a", "apart (s.e.)", "agrees"], rows, least=("b / a",))
