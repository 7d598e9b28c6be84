"""Modules that a user wrote, imported again where their file has changed."""

from __future__ import annotations

import contextlib
import importlib
import os
import struct
import sys
import threading
import time
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

READ, CHANGED = "__simstrag_read__", (0, 0)
"""Name in a user's module of `_state_of` its file as imported; if that changed meanwhile."""
IMPORTING = threading.RLock()


def import_as_it_is(name: str) -> ModuleType:
    """A user's module as its file is now: it is imported again where the file has changed."""
    with IMPORTING:
        is_new, began = name not in sys.modules, time.time_ns()
        module = importlib.import_module(name)  # waits for a thread that imports it
        if name == "__main__" or (not is_new and _is_as_read(module)):
            return module
        if not is_new:
            sys.modules.pop(name, None)
            # Python compares whole seconds with its compiled file's, and edits may be closer.
            with contextlib.suppress(OSError):
                os.remove(cache_from_source(module.__file__ or ""))
            module = importlib.import_module(name)
        state = _state_of(module)
        setattr(module, READ, CHANGED if state and state[0] > began else state)
        return module


def _is_as_read(module: ModuleType) -> bool:
    """Whether a module's file is as it was imported, by this or by the user's own import."""
    state = _state_of(module)
    if READ in vars(module):
        return bool(state == vars(module)[READ])
    if state is None or _compiled_from(module) in (None, (state[0] // 10**9, state[1])):
        setattr(module, READ, state)
        return True
    return False


def _compiled_from(module: ModuleType) -> tuple[int, int] | None:
    """Seconds and bytes of the file from which Python compiled a module, where it kept them."""
    try:
        header = Path(module.__cached__ or "").read_bytes()[:16]
        flags, seconds, size = struct.unpack("<4x3I", header)
    except (AttributeError, OSError, struct.error):
        return None
    return None if flags else (seconds, size)


def _state_of(module: ModuleType) -> tuple[int, int] | None:
    """When a module's file was changed, in ns, and its bytes; None for no file of its own."""
    try:
        state = os.stat(getattr(module, "__file__", None) or "")
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size
