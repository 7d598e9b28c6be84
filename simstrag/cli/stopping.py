"""What ends a command from outside: Ctrl-C, a scheduler, a terminal that was closed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["Stop", "stoppable"]

TOLD = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Stop:
    """Which signal ended a command; Ctrl-C as long as no other did."""

    number: int = signal.SIGINT

    @property
    def code(self) -> int:
        """The exit code that says so: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.number


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """All of them raise `KeyboardInterrupt` in here, but those that the caller of this command
    wants to be ignored; a second one ends it at once."""
    stop = Stop()

    def hear(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in TOLD}
    heard = [number for number in TOLD if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, hear)
    try:
        yield stop
    finally:
        for number in heard:
            signal.signal(number, before[number])
