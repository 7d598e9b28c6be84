"""Loops over arrays as machine code, made at their first run and kept on disk."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which loops over arrays and says the same in either form, as machine code.

    Whoever imports it need not load the compiler.
    """

    @functools.cache
    def ready() -> Callable[..., Any]:
        from numba import njit

        return njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return ready()(*given)

    return call
