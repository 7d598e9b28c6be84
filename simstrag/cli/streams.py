"""Standard streams that are closed: before the command begins, or while it writes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

__all__ = ["UNREAD", "aside", "let_go", "opened"]

UNREAD = 1
"""The exit code where nobody reads on, which is Click's and Rich's too."""
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def opened() -> None:
    """Let those that the caller has closed lead nowhere, also for processes started from here.

    Else the next file that is opened would take their place.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


def let_go() -> None:
    """Send nowhere what is still to be written to stdout: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What this process and those that it starts in here print goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
