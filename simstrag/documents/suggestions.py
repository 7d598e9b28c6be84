"""The nearest known name for a misspelt one."""

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint to append to an error message: the nearest known name; empty without one.

    name: a misspelt name, or a value that is no name and has no nearest one.

    >>> nearest("asg", ["bsp", "asgd"])
    ". Did you mean 'asgd'?"
    """
    if not isinstance(name, str):
        return ""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.65)
    return f". Did you mean '{matches[0]}'?" if matches else ""


def choices(name: object, known: Iterable[str]) -> str:
    """What ends an error message on an unknown name: all known ones, and the nearest.

    >>> choices("asg", ["bsp", "asgd"])
    "known: bsp, asgd. Did you mean 'asgd'?"
    """
    known = list(known)
    return f"known: {', '.join(known) or 'none'}{nearest(name, known)}"
