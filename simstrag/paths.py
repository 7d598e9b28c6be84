"""Files that a user named and that are not there."""

from __future__ import annotations

import os
from pathlib import Path

from simstrag.errors import InputError
from simstrag.names import nearest

__all__ = ["expect"]


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


def _beside(path: Path) -> list[str]:
    """The names in its folder; none where that is no folder, or locked."""
    try:
        return sorted(p.name for p in path.parent.iterdir())
    except OSError:
        return []
