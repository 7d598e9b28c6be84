"""The native library: its functions, and the layout of the records that it works on.

It is compiled when the package is built, by the system's C compiler or by Python's (`ziglang`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simstrag.contract.compiled import LIBRARY, declare
from simstrag.errors import InputError

__all__ = ["LIBRARY", "Library", "library"]

TYPES = {"double": "f8", "whole": "i8", "flag": "i1", "word": "u8"}
FUNCTIONS = {
    "advance": "f", "end": "", "refile": "", "report": "", "resize": "", "disband_all": "",
    "find_least": "", "serve_until": "f", "ends": "if", "threshold": "if", "newest": "piip",
    "retime": "fppppf", "fail": "i", "lose": "fi", "halt": "f",
    "start_waiting": "f", "usage": "fp", "next_event": "",
    "hold": "", "go_back": "", "held_bytes": "", "newest_passed": "piip",
}  # fmt: skip
"""Arguments after the first, an address: f, a float; i, a whole number; p, an address."""
RESULTS = {"advance": ctypes.c_int, "threshold": ctypes.c_double, "next_event": ctypes.c_double}
RESULTS["held_bytes"] = ctypes.c_int64
NOT_RECORDS = ("tables", "scalars", "stops", "states")


@dataclass(frozen=True)
class Library:
    """The functions of the native engine, the dtypes of its job and of each table, and its words.

    stops: why `advance` comes back, by number.  states: numbers of where a gradient is.
    """

    functions: Any
    job: np.dtype[Any]
    tables: dict[str, np.dtype[Any]]
    stops: list[str]
    states: dict[str, int]


@functools.cache
def library() -> Library:
    """The library, its layouts checked.  Raises `InputError` without one that fits."""
    if not LIBRARY.exists():
        raise InputError(
            f"the native engine {LIBRARY.name} was not built when simstrag was installed: install "
            "a C compiler (gcc, clang, or `pip install ziglang`) and install simstrag again"
        )
    functions = ctypes.CDLL(str(LIBRARY))
    for name, arguments in FUNCTIONS.items():
        declare(functions, name, RESULTS.get(name), "p" + arguments)
    text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(functions, "layout"))).decode()
    lines = (line.partition(":") for line in text.split("\n"))
    parts = {name: body[:-1].split(",") for name, _, body in lines}
    tables, scalars, stops, states = (parts.pop(name) for name in NOT_RECORDS)
    records = {
        f"struct {name}": np.dtype(_fields(body), align=True) for name, body in parts.items()
    }
    dtypes: dict[str, np.dtype[Any]] = {}
    for kind, _, name in (entry.rpartition(" ") for entry in tables):
        dtypes[name] = records[kind] if kind in records else np.dtype(TYPES[kind])
    places = [place for name in dtypes for place in ((name, "u8"), (f"{name}_size", "i8"))]
    job = np.dtype([*places, *_fields(scalars)], align=True)
    sizes = (ctypes.c_int64 * (len(records) + 1)).in_dll(functions, "sizes")
    own = [dtype.itemsize for dtype in (*records.values(), job)]
    assert own == list(sizes), "the library's layout is not what it says"
    return Library(
        functions, job, dtypes, stops, {word: number for number, word in enumerate(states)}
    )


def _fields(entries: Sequence[str]) -> list[Any]:
    """Fields of a dtype, from "type name count"."""
    fields = []
    for kind, name, count in (entry.split() for entry in entries):
        fields.append((name, TYPES[kind], int(count)) if count != "1" else (name, TYPES[kind]))
    return fields
