"""What is said of a user's mistake, and of a command that Ctrl-C ended."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["Interrupted", "UsageError", "in_words"]

UsageError: Any = typer.BadParameter.__base__
"""Click's own, of which Typer passes on this one kind."""


class Interrupted(Exception):
    """Ctrl-C ended a command; the message says what it leaves behind."""


def in_words(error: Exception) -> str:
    """One line, or nothing where the help was shown instead.

    >>> from simstrag import InputError
    >>> in_words(InputError("workers is 0"))
    'workers is 0'
    """
    if not isinstance(error, UsageError):
        return str(error)
    near = getattr(error, "possibilities", None)
    if near:
        listed = " or ".join(f"'{name}'" for name in near)
        return f"{error.message.rstrip('.')}. Did you mean {listed}?"
    return str(error.format_message())
