"""Modules that a user wrote, imported again where their file has changed."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from importlib.util import cache_from_source
from types import ModuleType

READ, CHANGED = "__simstrag_read__", (0, 0)
"""Name in a user's module of `_state_of` its file as imported; if that changed meanwhile."""
BEGUN = time.time_ns()
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
    """Whether a module's file is as it was imported; of another importer, as this process began."""
    state, read = _state_of(module), vars(module).get(READ)
    return state is None or state[0] <= BEGUN if read is None else state == read


def _state_of(module: ModuleType) -> tuple[int, int] | None:
    """When a module's file was changed, in ns, and its bytes; None for no file of its own."""
    try:
        state = os.stat(getattr(module, "__file__", None) or "")
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size
