"""Functions that stand in for some of torch's while a recorder is open.

They call what they stand in for, and change no argument and no result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class StandIns:
    """What `close` undoes, the last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    @property
    def are_in_place(self) -> bool:
        """Whether they are not closed."""
        return bool(self._undo)

    def on_close(self, undo: Callable[[], Any]) -> None:
        """Call this at the end, too."""
        self._undo.append(undo)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Let a function stand in for one of a module or class of torch, if it has this one."""
        original = getattr(owner, name, None)
        if original is None:
            return
        kept = vars(owner)[name]  # of a class in C++, what makes a method of it
        marked = wrap(original)
        setattr(owner, name, functools.wraps(original)(marked))

        def undo() -> None:
            if getattr(owner, name) is marked:  # else somebody's stands around it
                setattr(owner, name, kept)

        self.on_close(undo)

    def close(self) -> None:
        """Put the functions of torch back."""
        while self._undo:
            self._undo.pop()()


def argument(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """What reads an argument of a call of this function; None where the call does not give it.

    >>> read = argument(lambda tensor, group=None: None, "group")
    >>> read("x", "own"), read("x", group="own"), read("x")
    ('own', 'own', None)
    """
    place = list(inspect.signature(function).parameters).index(name)

    def read(*arguments: Any, **named: Any) -> Any:
        return named.get(name) if len(arguments) <= place else arguments[place]

    return read
