"""Paths that a user names: existing files, and files to write."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simstrag.documents.suggestions import nearest
from simstrag.errors import InputError

LONGEST = 60
"""Characters of the longest value that a message shows."""


def path_of(path: Any, what: str) -> Path:
    """`path` as a `Path`. Raises `InputError` where it is none; what: what it should name.

    >>> path_of(3, "a scenario")
    Traceback (most recent call last):
    simstrag.errors.InputError: 3 is no path; give that of a scenario
    """
    try:
        return Path(path)
    except TypeError:
        shown = repr(path)
        if len(shown) > LONGEST or "\n" in shown:
            shown = f"a {type(path).__name__}"
        raise InputError(f"{shown} is no path; give that of {what}") from None


def require_path(path: str | Path) -> Path:
    """`path`, which exists. Raises `InputError` that names the nearest existing path.

    Where a parent folder is missing, the message names that folder and the nearest name for it.

    >>> require_path("/etcetera/passwd")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: /etcetera/passwd: there is no '/etcetera'...
    """
    path = Path(path)
    missing = _first_missing(path)
    if missing is None:
        return path
    if missing.is_symlink():
        raise InputError(
            f"{path}: the link '{missing}' leads to '{os.readlink(missing)}', not there"
        )
    what = "no such file or folder" if missing == path else f"there is no '{missing}'"
    raise InputError(f"{path}: {what}{nearest(missing.name, _siblings(missing))}")


def refuse_file(folder: Path) -> None:
    """Raise `InputError` where a folder to write is a file.

    >>> refuse_file(Path("/dev/null"))
    Traceback (most recent call last):
    simstrag.errors.InputError: /dev/null: is a file; choose a folder that does not exist yet
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose a folder that does not exist yet")


def check_writable(path: str | Path) -> Path:
    """`path`, a file to write. Raises `InputError` where its folder is missing or read-only.

    >>> check_writable("/etcetera/slow.csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simstrag.errors.InputError: /etcetera/slow.csv: there is no folder '/etcetera'...
    """
    path = Path(path)
    missing = _first_missing(path.parent)
    if missing is not None:
        near = nearest(missing.name, _siblings(missing)) or "; make it, or choose another name"
        raise InputError(f"{path}: there is no folder '{missing}'{near}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written: {path.parent} is no folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{path}: cannot be written: permission denied")
    return path


def writable(path: str | Path, *replaceable: str) -> Path:
    """`path`, a file to write, which may exist only with one of the suffixes `replaceable`.

    Raises `InputError` for a folder, a device or an existing file with another suffix, and where
    `check_writable` does.

    >>> writable("/dev/null", ".json")
    Traceback (most recent call last):
    simstrag.errors.InputError: /dev/null: is not a regular file; choose another name
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; choose another name")
    if path.exists() and path.suffix not in replaceable:
        raise InputError(f"{path}: exists and would be lost; choose another name, or remove it")
    return check_writable(path)


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all: `write` fills a temporary file, which is then renamed.

    A symbolic link stays one. Raises `InputError` where the file cannot be written.
    """
    target = Path(path).resolve()
    part = target.with_name(f".{target.name}.{platform.node()}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document without NaN atomically. Raises `InputError` where that fails."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def lock_file(file: int, taken: str) -> None:
    """Lock an open file until it is closed, on systems with such locks.

    taken: the message of the `InputError` raised where another process holds the lock.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # a system without such locks
        pass
    except OSError:
        raise InputError(taken) from None


def _first_missing(path: Path) -> Path | None:
    """The first of a path's parents, or the path, that does not exist."""
    return next((p for p in (*reversed(path.parents), path) if not os.path.exists(p)), None)


def _siblings(path: Path) -> list[str]:
    """The names in a path's folder; none where it cannot be read."""
    try:
        return sorted(p.name for p in path.parent.iterdir())
    except OSError:
        return []
