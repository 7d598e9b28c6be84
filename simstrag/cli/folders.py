"""Where a comparison is written, and where its finished runs are until all are."""

from __future__ import annotations

import os
from pathlib import Path

from simstrag.errors import InputError

__all__ = ["comparison_folder", "kept_beside"]


def comparison_folder(out: Path | None, scenario: Path) -> Path:
    """`out`, or by default reports/<scenario>.

    Raises `InputError` where the default is of another scenario file, whose report would be lost.
    """
    from simstrag.experiments.compare import origin

    if out is not None:
        return out
    folder = Path("reports") / scenario.stem
    of = origin(folder)
    if of is not None and of != scenario.resolve():
        raise InputError(
            f"{folder}: is of another scenario, {os.path.relpath(of)}; "
            f"choose a folder for {scenario} with --out"
        )
    return folder


def kept_beside(folder: Path) -> Path:
    """Where finished runs are kept until all are."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(f"{named.name}.partial")
