"""Plain data as bytes, for other processes: what comes from a socket is never unpickled.

Plain are numbers, text, bytes, dtypes, tensors, and the lists, tuples and dicts of them: what
`torch.load(weights_only=True)` reads.  Messages of every step have types of their own instead.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from simstrag.errors import InputError

ADVICE = "keep to numbers, text, tensors, and lists, tuples and dicts of them"


def dump(value: Any) -> bytes:
    """The bytes of a value; numpy's numbers become Python's.

    Raises `InputError` for what has no bytes, such as a function in a function.
    """
    buffer = io.BytesIO()
    try:
        torch.save(_plain(value), buffer)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise InputError(f"what goes to another process: {error}; {ADVICE}") from None
    return buffer.getvalue()


def load(content: bytes, what: str) -> Any:
    """The value of these bytes, its tensors on the CPU.

    what: names the value in messages.
    Raises `InputError` for anything but plain data, of which nothing is executed.
    """
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        held = "bytes that are no plain data"
        with contextlib.suppress(Exception):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
            held = ", ".join(sorted(names)) or held
        raise InputError(f"{what} cannot be read: it holds {held}; {ADVICE}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (dict, defaultdict):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value
