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
    """Functions put in place of a library's own until `close`, which undoes the last first."""

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
        place = _places.get((owner, name))
        if place is None or place.standing is not original:  # else somebody's stands around it
            place = _places[owner, name] = _Place(owner, name)
        place.add(wrap)
        self.on_close(functools.partial(place.remove, wrap))

    def close(self) -> None:
        """Put the functions of torch back."""
        while self._undo:
            self._undo.pop()()


class _Place:
    """A function of torch for which those of open recorders stand in, the last around the others.

    Recorders are closed in any order; after the last one the function is what it was.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._original = self.standing = getattr(owner, name)
        self._kept = vars(owner)[name]  # of a class in C++, what makes a method of it
        self._wraps: list[Wrap] = []

    def add(self, wrap: Wrap) -> None:
        self._wraps.append(wrap)
        self._stand()

    def remove(self, wrap: Wrap) -> None:
        self._wraps.remove(wrap)
        if getattr(self._owner, self._name) is self.standing:  # else somebody's stands around it
            self._stand()

    def _stand(self) -> None:
        self.standing = self._original
        for wrap in self._wraps:
            self.standing = functools.wraps(self.standing)(wrap(self.standing))
        setattr(self._owner, self._name, self.standing if self._wraps else self._kept)
        if not self._wraps:
            _places.pop((self._owner, self._name), None)


_places: dict[tuple[Any, str], _Place] = {}


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
