"""Files that a user named: those that should be there, and those to be written."""

from __future__ import annotations

import os
from pathlib import Path

from simstrag.errors import InputError
from simstrag.names import nearest

__all__ = ["expect", "writable"]


def expect(path: str | Path) -> Path:
    """`path`, which is there. Raises `InputError` that names the nearest one that is.

    Where a folder on the way is missing already, the nearest name is one for that folder.

    >>> expect("/etcetera/passwd")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: /etcetera/passwd: there is no '/etcetera'...
    """
    path = Path(path)
    way = (*reversed(path.parents), path)
    missing = next((place for place in way if not os.path.exists(place)), None)
    if missing is None:
        return path
    place = "" if missing == path else f" '{missing}'"
    what = f"there is no{place}" if place else "no such file or folder"
    raise InputError(f"{path}: {what}{nearest(missing.name, _beside(missing))}")


def writable(path: str | Path, *replaceable: str) -> Path:
    """`path`, a file to be written; one that exists is replaced only with one of these suffixes.

    Raises `InputError` for a folder, a device, and a file of another kind, which would be lost.

    >>> writable("/dev/null", ".json")
    Traceback (most recent call last):
    simstrag.errors.InputError: /dev/null: is no regular file; choose another name
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file; choose another name")
    if path.exists() and path.suffix not in replaceable:
        raise InputError(f"{path}: exists and would be lost; choose another name, or remove it")
    return path


def _beside(path: Path) -> list[str]:
    """The names in its folder; none where that is no folder, or locked."""
    try:
        return sorted(p.name for p in path.parent.iterdir())
    except OSError:
        return []
