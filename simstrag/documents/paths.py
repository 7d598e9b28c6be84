"""Files that a user named: those that should be there, and those to be written."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

__all__ = ["expect", "hold", "placed", "writable", "write_json", "write_whole"]


def expect(path: str | Path) -> Path:
    """`path`, which is there. Raises `InputError` that names the nearest one that is.

    Where a folder on the way is missing already, the nearest name is one for that folder.

    >>> expect("/etcetera/passwd")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: /etcetera/passwd: there is no '/etcetera'...
    """
    path = Path(path)
    missing = _missing(path)
    if missing is None:
        return path
    what = "no such file or folder" if missing == path else f"there is no '{missing}'"
    raise InputError(f"{path}: {what}{nearest(missing.name, _beside(missing))}")


def placed(path: str | Path) -> Path:
    """`path`, a file to be written, whose folder is there. Raises `InputError` where it cannot be.

    >>> placed("/etcetera/slow.csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: /etcetera/slow.csv: there is no folder '/etcetera'...
    """
    path = Path(path)
    missing = _missing(path.parent)
    if missing is not None:
        near = nearest(missing.name, _beside(missing)) or "; make it, or choose another name"
        raise InputError(f"{path}: there is no folder '{missing}'{near}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written: {path.parent} is no folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path}: cannot be written: permission denied")
    return path


def writable(path: str | Path, *replaceable: str) -> Path:
    """`path`, a file to be written; one that exists is replaced only with one of these suffixes.

    Raises `InputError` for a folder, a device, a file of another kind, which would be lost, and as
    `placed` does.

    >>> writable("/dev/null", ".json")
    Traceback (most recent call last):
    simstrag.errors.InputError: /dev/null: is no regular file; choose another name
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no regular file; choose another name")
    if path.exists() and path.suffix not in replaceable:
        raise InputError(f"{path}: exists and would be lost; choose another name, or remove it")
    return placed(path)


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then put it there in one move: whole or not at all.

    A link to a file stays one. Raises `InputError` where it cannot be written.
    """
    target = Path(path).resolve()
    part = target.with_name(f".{target.name}.{platform.node()}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def write_json(path: str | Path, document: Any) -> None:
    """Write a document that has no NaN, whole or not at all.

    Raises `InputError` where it cannot be written.
    """
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def hold(file: int, taken: str) -> None:
    """Lock an open file until it is closed, where the system has such locks.

    taken: what `InputError` says where another process has locked it.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on this system
        pass
    except OSError:
        raise InputError(taken) from None


def _missing(path: Path) -> Path | None:
    """The first place on the way to a file that is not there."""
    way = (*reversed(path.parents), path)
    return next((place for place in way if not os.path.exists(place)), None)


def _beside(path: Path) -> list[str]:
    """The names in its folder; none where that is no folder, or locked."""
    try:
        return sorted(p.name for p in path.parent.iterdir())
    except OSError:
        return []
