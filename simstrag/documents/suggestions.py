"""What a person meant who wrote a name that does not exist."""

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error: the nearest known name, or nothing.

    >>> nearest("asg", ["bsp", "asgd"])
    ". Did you mean 'asgd'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f". Did you mean '{found[0]}'?" if found else ""
