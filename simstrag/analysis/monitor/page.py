"""A snapshot as one HTML page, which loads itself again and nothing else."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simstrag.analysis.charts.chart import CONTENTION
from simstrag.analysis.monitor.snapshot import SLOW, Snapshot
from simstrag.analysis.monitor.words import (
    advice_age,
    factor,
    headline,
    help_line,
    hours,
    status,
    waited_for_others,
)
from simstrag.analysis.pages import templates
from simstrag.analysis.text.number_format import capital, join, number, percent, plural, seconds
from simstrag.arrays import Reals
from simstrag.documents.file_io import write_atomically

COLUMNS = 120
"""Most columns of the picture."""
AWAITED = 8
"""Most ranks of the list of who was waited for."""
FULLEST = 2.0
"""Ratio of the strongest colour."""


def write(found: Snapshot, path: Path, every: int) -> None:
    """Write the page of a snapshot in place of an older one, at once.

    every: seconds after which it loads itself again.
    Raises `InputError` where it cannot be written.
    """
    text = page(found, every)
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def page(found: Snapshot, every: int) -> str:
    """The page of a snapshot. every: seconds after which it loads itself again, until the end."""
    slow, (ratios, begins) = found.wrong, found.picture(COLUMNS)
    per_column = len(found.numbers) / max(1, len(begins))
    return templates.template("watch.html").render(
        name=found.source,
        every=0 if found.is_over else every,
        status=capital(status(found)),
        headline=headline(found),
        help=help_line(found),
        is_wrong=bool(slow),
        steps=found.steps,
        numbers=_numbers(found),
        span=f"steps {begins[0]} to {found.last}" if len(begins) else "",
        column="one step" if per_column <= 1 else f"about {plural(round(per_column), 'step')}",
        rows=[
            {
                "rank": each.rank, "cells": cells(ratios[k]), "is_slow": each.rank in slow,
                "words": f"rank {each.rank}: {factor(each.factor)} times as long as its peers",
                "computing": seconds(each.computing), "factor": factor(each.factor),
                "waits": f"silent {each.silent:.0f} s" if each.silent else seconds(each.waiting),
            }
            for k, each in enumerate(found.ranks)
        ],
        waits=[
            {
                "rank": each.rank, "is_slow": each.rank in slow,
                "width": round(100 * each.awaited / found.lost, 2),
                "words": f"{percent(each.awaited / found.lost)} %, last in "
                f"{plural(each.last, 'step')}{f', in {join(each.groups)}' if each.groups else ''}",
            }
            for each in found.awaited[:AWAITED]
        ],
        others=capital(others) + "." if (others := waited_for_others(found)) else "",
        warnings=found.warnings[::-1],
        lines=() if found.advice is None else found.advice.lines,
        age=capital(advice_age(found)) + "." if advice_age(found) else "",
        made=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.made)),
    )  # fmt: skip


def _numbers(found: Snapshot) -> list[tuple[str, str]]:
    """The numbers at the top, and what they are."""
    shown = []
    if found.is_synced:
        shown.append((hours(found.lost), f"GPU-hours lost, of {hours(found.spent)}"))
        if found.lost_money is not None:
            shown.append((number(found.lost_money), "lost at your price of a GPU-hour"))
        shown.append((f"{percent(found.lost_share)} %", "of GPU-hours went into waiting"))
    shown.append((seconds(found.step_seconds), "a step lately"))
    if found.slowest is not None:
        shown.append((f"{factor(found.slowest[1])} ×", f"rank {found.slowest[0]} over its peers"))  # noqa: RUF001 - times
    return shown


def cells(ratios: Reals) -> str:
    """The row of a rank as a picture in a data URL: the redder, the slower."""
    weight = np.clip((ratios - 1) / (FULLEST - 1), 0.0, 1.0)
    alpha = np.where(ratios < SLOW, 0.0, 0.15 + 0.85 * weight)
    pixels = np.zeros((1, max(1, len(ratios)), 4), np.uint8)
    pixels[..., :3] = [int(CONTENTION[k : k + 2], 16) for k in (1, 3, 5)]
    pixels[0, : len(ratios), 3] = np.round(255 * alpha)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG of pixels in red, green, blue and opacity, shape (rows, columns, 4)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows, columns = pixels.shape[:2]
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    return b"".join((
        b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)),
        chunk(b"IEND", b""),
    ))  # fmt: skip
