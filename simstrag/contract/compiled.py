"""The compiled library: the native engine, and loops over ranks that policies share.

It is compiled when the package is built. Everything that it does, Python does too, more slowly and
with the same bits.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Array
from simstrag.errors import InputError

SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = Path(__file__).parent.parent / "engine" / "native" / f"kernel{SUFFIX}"
LOOPS: dict[str, tuple[Any, str]] = {
    "medians": (ctypes.c_int, "ppiiiiip"),
    "enter_rows": (ctypes.c_int, "pppiippippp"),
    "row_medians": (ctypes.c_int, "piipp"),
    "correctly_rounded_sum": (ctypes.c_double, "pi"),
    "ward_sizes": (ctypes.c_int64, "piffp"),
}
"""Result and arguments of each loop: p, an address; i, a whole number; f, a float."""
ARGUMENTS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_double}


@functools.cache
def loops() -> Any:
    """The loops that policies share; None where the library was not built.

    Raises `InputError` where it was built by another version.
    """
    if not LIBRARY.exists():
        return None
    library = ctypes.CDLL(str(LIBRARY))
    for name, (result, arguments) in LOOPS.items():
        declare(library, name, result, arguments)
    return library


def declare(library: Any, name: str, result: Any, arguments: str) -> None:
    """Set the types of a function of the library.  Raises `InputError` where it is not there."""
    try:
        function = getattr(library, name)
    except AttributeError:
        raise InputError(
            f"the native engine {LIBRARY.name} has no {name}: it was built by another version of "
            "simstrag; install simstrag again"
        ) from None
    function.restype, function.argtypes = result, [ARGUMENTS[kind] for kind in arguments]


def contiguous(values: npt.ArrayLike, dtype: Any) -> Array:
    """An array of this dtype that has an `address`: the same one, or a copy where it has none.

    Bind it to a name that outlives the call into the library: an address keeps no array alive.
    """
    array = np.asarray(values, dtype=dtype)
    return array if array.flags.carray else np.array(array, order="C")


def address(array: Array) -> int:
    """Where the values of a contiguous array are; `ctypes.data`, and several times faster.

    It stays right while the array lives. Raises `ValueError` or `TypeError` for other arrays, those
    that are read-only and those without values.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
