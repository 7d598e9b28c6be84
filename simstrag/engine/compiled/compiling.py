"""How functions are compiled, and when what was compiled before may be used again.

Numba keeps compiled code on disk and looks at the time of the one file a function stands in; here
functions call others in other files, so the key of an entry holds a digest of them all.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.event import Event, Listener, install_listener
from numba.core.sigutils import normalize_signature

__all__ = ["columnwise", "compiled", "digest", "entry", "make_ready", "within"]

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = {"nogil": True, "error_model": "numpy"}


def digest(folder: Path = Path(__file__).parent) -> str:
    """Of the sources in a folder."""
    sources = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"\0".join(sources)).hexdigest()


SOURCES = digest()


class _Cache(FunctionCache):  # type: ignore[misc]
    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return *super()._index_key(signature, codegen), SOURCES


def entry(function: F) -> F:
    """Compiled at its first call from Python, and kept on disk with all that it calls."""
    dispatcher = njit(**OPTIONS)(function)
    dispatcher._cache = _Cache(function)
    return dispatcher  # type: ignore[no-any-return]


def compiled(function: F) -> F:
    """Compiled for other compiled code."""
    return njit(**OPTIONS)(function)  # type: ignore[no-any-return]


def columnwise(function: F) -> F:
    """Compiled for loops over columns without NaN, several elements at a time."""
    return njit(**OPTIONS, fastmath={"nnan", "nsz"})(function)  # type: ignore[no-any-return]


def within(function: F) -> F:
    """A part of whoever calls it."""
    return njit(**OPTIONS, inline="always")(function)  # type: ignore[no-any-return]


class _Announcer(Listener):  # type: ignore[misc]
    """Says once that code is being compiled, where none was found on disk."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Event) -> None:
        if not self.said:
            logging.getLogger("simstrag").warning(
                "compiling the engine: this takes a minute or two, once"
            )
        self.said = True

    def on_end(self, event: Event) -> None:
        """Nothing is said."""


def make_ready(entries: Iterable[tuple[Any, str]]) -> None:
    """Compile entries for these signatures, or find them on disk."""
    with install_listener("numba:compile", _Announcer()):
        for function, signature in entries:
            types, _ = normalize_signature(signature)  # as callers ask: the disk knows no other
            function.compile(types)
