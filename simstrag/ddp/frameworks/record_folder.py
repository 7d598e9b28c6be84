"""The folder of a record, before there is one; loads no torch."""

from __future__ import annotations

from pathlib import Path

from simstrag.errors import InputError

RANK_FILES = "rank-*.csv"


def has_record(folder: Path) -> bool:
    """Whether ranks have recorded steps there."""
    return any(folder.glob(RANK_FILES))


def require_new(folder: Path) -> None:
    """Raise `InputError` for a folder that has a record, before a job begins."""
    if folder.is_file():
        raise InputError(f"{folder}: is a file; give a folder for the record")
    if has_record(folder):
        raise InputError(f"{folder}: a job was recorded there; choose another folder")
