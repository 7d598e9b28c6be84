"""Signals that end a command from outside, and their handlers.

Ctrl-C sends SIGINT to every process of a terminal, a scheduler sends SIGTERM, and a terminal that
is closed sends SIGHUP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class StopSignal:
    """The signal that ended a command; SIGINT until another one has."""

    number: int = signal.SIGINT

    @property
    def code(self) -> int:
        """The exit code of the command: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.number


@contextlib.contextmanager
def interrupt_on_stop() -> Iterator[StopSignal]:
    """The first stop signal raises `KeyboardInterrupt` inside, a second one ends the process.

    Signals that the caller of this command ignores stay ignored, as under `nohup`.
    """
    stop = StopSignal()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    handled = [n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    with _handle(handled, interrupt):
        yield stop


def interrupt_by_default() -> contextlib.AbstractContextManager[None]:
    """Stop signals that have no handler yet raise `KeyboardInterrupt` inside."""
    unhandled = [n for n in STOP_SIGNALS if signal.getsignal(n) is signal.SIG_DFL]
    return _handle(unhandled, signal.default_int_handler)


@contextlib.contextmanager
def postpone_stop() -> Iterator[None]:
    """Processes started inside never receive a stop signal; this process receives it afterwards.

    Blocking alone does not postpone a signal: a library's thread that has not blocked it receives
    it, and Python would run the handler in the main thread, in the midst of starting processes.
    """
    if sys.platform == "win32":
        yield
        return
    late: list[int] = []

    def postpone(number: int, frame: FrameType | None) -> None:
        late.append(number)

    ignored = (signal.SIG_IGN, None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with _handle([n for n in STOP_SIGNALS if signal.getsignal(n) not in ignored], postpone):
            yield
    finally:
        try:
            for number in late:
                signal.raise_signal(number)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_handler(number: signal.Signals) -> contextlib.AbstractContextManager[None]:
    """The handler of a signal is afterwards what it was before, whatever replaced it inside."""
    return _handle([number], signal.getsignal(number))


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals, for good: this process ends by other means."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def exit_on(*numbers: signal.Signals) -> None:
    """End at once with exit code 0 on any of these signals, also while the interpreter ends."""
    for number in numbers:
        signal.signal(number, lambda *_: os._exit(0))


def postpone_sigterm(seconds: float) -> None:
    """SIGTERM ends this process only after some seconds; a second SIGTERM ends it at once."""

    def postpone(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, postpone)


@contextlib.contextmanager
def _handle(
    numbers: Collection[signal.Signals],
    handler: Callable[[int, FrameType | None], object] | int | None,
) -> Iterator[None]:
    """Signals have this handler inside; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            if handler_before is not None:  # it is not Python's
                signal.signal(number, handler_before)
