"""Real load beside a step: processes that sleep until they are told what to do, and then say what
they did.

They live as long as the bench that holds them, so that no process starts or ends while anything is
timed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil

from simstrag.calibration.benches.crew import STOP, Crew, Under, toil
from simstrag.processes.affinity import cores, pin

__all__ = ["KINDS", "ON_GPU", "Loads", "burn", "levels", "off", "piece", "split"]

KINDS = {"cpu": "spin", "memory": "hog", "gemm": "gemm", "copy": "copy"}
"""Kinds of load, and what their processes do."""

ON_GPU = ("gemm", "copy")

SHARED = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
"""Levels on what the step itself computes with."""

PERIOD = 0.02
"""Seconds of one busy-and-asleep round of a load with duty below 1."""

SLICE = 0.1
"""Seconds of work between two looks for the next order."""

PIECE = 1e-3
"""Seconds that a piece of work on a GPU is to take; a slice has several even at a low duty."""

SCALES = (1, 2, 4, 8)
"""By how much a piece may be made smaller where a GPU is slow."""

FREE = 0.25
"""Of the memory that is free, what all hogs together may take."""

OFF = 0.15
"""Part of its level by which a load may be off before the visit says so."""


def levels(kind: str, others: int) -> tuple[float, ...]:
    """What of a kind to measure, where there are so many other cores.

    Loads on the other cores go up to all of these: more processes there would only share.

    >>> levels("memory", others=5)
    (0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 5.0)
    """
    if kind != "memory" or not others:
        return SHARED
    doubled = [float(1 << k) for k in range(others.bit_length())]
    return tuple(sorted({0.25, 0.5, 0.75, *doubled, float(others)}))


def split(level: float) -> tuple[int, float]:
    """Processes and the duty of each.

    >>> split(0.75), split(2.0)
    ((1, 0.75), (2, 1.0))
    """
    count = math.ceil(level)
    return count, level / count


def off(share: float, level: float, beside: int) -> float:
    """By how much a load took less (below 0) or more than it was to, as a part of its level.

    beside: so many steps on its core, which never rest.  Then `count` processes get no more than
    count / (count + beside) of it, and no less than their duty of that, as they meet.

    >>> off(1.5, 2.0, beside=0), off(0.5, 1.0, beside=1), round(off(0.6, 0.5, beside=1), 2)
    (-0.25, 0.0, 0.2)
    """
    count, duty = split(level)
    fair = count / (count + beside)
    least, most = (duty * fair, min(level, fair)) if beside else (level, level)
    return (min(share - least, 0.0) + max(share - most, 0.0)) / level


class Order(NamedTuple):
    """What a process of load is to do: a value of `KINDS`, for its duty of the time, where."""

    work: str
    duty: float
    core: int


class Loads:
    """So many processes, asleep; a context manager.

    core: the step's, or that of so many `steps`.  "cpu" runs there; all other kinds run on other
    cores where there are some.
    gpu: torch's name of the GPU that "gemm" and "copy" use.  Each process that was told to load the
    memory keeps 256 MB; where all of them would have more than a quarter of what is free at the
    start, each takes an equal part of that.
    """

    def __init__(self, count: int, core: int, gpu: str = "", steps: int = 1) -> None:
        self.count, self.core, self.gpu, self.steps = count, core, gpu, steps
        self.others = [each for each in cores() if each != core] or [core]

    def __enter__(self) -> Loads:
        room = int(FREE * psutil.virtual_memory().available / max(1, self.count))
        self._crew = Crew(_load, self.count, self.gpu, room, name="load")
        self._crew.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._crew.dismiss()

    @contextlib.contextmanager
    def on(self, kind: str, level: float) -> Iterator[dict[str, Any]]:
        """Inside of it the load works; afterwards the yielded dict says what it did.

        load_seconds: wall clock.  load_share: processors it took (a GPU's: processes that were at
        work on it), to hold against the level.  load_pieces: of work done.  load_error: see `off`;
        load_off: true where that is more than `OFF`.

        Raises `Skipped` where a process failed.  Whatever ends this early, the processes are sent
        home, and the next load calls in new ones.
        """
        count, duty = split(level)
        assert count <= self.count, f"{kind} {level}: there are {self.count} processes"
        places = [self.core] if kind == "cpu" else self.others
        orders = {k: Order(KINDS[kind], duty, places[k % len(places)]) for k in range(count)}
        report: dict[str, Any] = {}
        try:
            self._crew.ask(orders)
            yield report
            done = self._crew.ask(dict.fromkeys(orders, STOP))
        except BaseException:
            self._crew.dismiss()
            raise
        report |= _summed(done, kind)
        beside = kind not in ON_GPU and places == [self.core]
        error = off(report["load_share"], level, self.steps if beside else 0)
        report["load_error"] = round(error, 4)
        if abs(error) > OFF:
            report["load_off"] = True


def _summed(reports: Sequence[dict[str, float]], kind: str) -> dict[str, Any]:
    share = "busy" if kind in ON_GPU else "cpu"
    return {
        "load_seconds": round(max(each["seconds"] for each in reports), 4),
        "load_share": round(sum(each[share] / each["seconds"] for each in reports), 4),
        "load_pieces": sum(each["pieces"] for each in reports),
    }


def _load(pipe: Connection, _rank: int, gpu: str, room: int) -> None:
    """One process of load."""
    pieces: dict[str, Callable[[], object]] = {}

    def begin(order: Order) -> Under:
        pin(order.core)
        if order.work not in pieces:
            on_gpu = order.work in ON_GPU
            pieces[order.work] = _kernels(order.work, gpu) if on_gpu else piece(order.work, room)
        return _counted(pieces[order.work], order.duty, even=order.work in ON_GPU)

    toil(pipe, begin)


def _counted(once: Callable[[], object], duty: float, even: bool) -> Under:
    """Slices of work, and what was done since now.

    even: what a slice was at work too long, since a piece outlasts its turn, the next ones rest.
    """
    count, busy = 0, 0.0
    begun, spent = time.monotonic(), time.process_time()

    def counted() -> None:
        nonlocal count, busy
        started = time.monotonic()
        once()
        busy += time.monotonic() - started
        count += 1

    def work() -> None:
        now = time.monotonic()
        ahead = max(0.0, busy - duty * (now - begun)) if even else 0.0
        until, share = now + SLICE, duty - ahead / SLICE
        if share > 0:
            burn(until, share, counted)
        else:
            time.sleep(SLICE)

    def report() -> dict[str, float]:
        return {
            "seconds": time.monotonic() - begun,
            "cpu": time.process_time() - spent,
            "busy": busy,
            "pieces": count,
        }

    return work, report


def _kernels(work: str, gpu: str) -> Callable[[], object]:
    """A piece of matrix products (of 4096 rows where the GPU is fast), or of copies of 128 MB."""
    import torch

    return _sized(partial(_launch, work, gpu), lambda: torch.cuda.synchronize(gpu))


def _launch(work: str, gpu: str, scale: int) -> Callable[[], object]:
    import torch

    if work == "gemm":
        reduced = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        side = 4096 // scale
        a, b = (torch.randn(side, side, device=gpu).to(reduced) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)
    source = torch.empty((128 << 20) // scale, dtype=torch.uint8, device=gpu).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _sized(
    make: Callable[[int], Callable[[], object]], finish: Callable[[], object]
) -> Callable[[], object]:
    """A piece of about `PIECE` seconds: some launches and the wait for them.

    make: what launches, by a scale of `SCALES`; the first of these is taken at which one launch is
    short enough.
    """

    def took(launch: Callable[[], object]) -> float:
        begun = time.perf_counter()
        launch()
        finish()
        return time.perf_counter() - begun

    for scale in SCALES:
        launch = make(scale)
        took(launch)  # the first one loads kernels
        seconds = min(took(launch) for _ in range(5))
        if seconds <= PIECE:
            break
    launches = max(1, round(PIECE / seconds))

    def once() -> None:
        for _ in range(launches):
            launch()
        finish()

    return once


def burn(until: float, duty: float, piece: Callable[[], object]) -> None:
    """Repeat `piece` until `until` (`time.monotonic`), for `duty` of every period of wall clock."""
    while (now := time.monotonic()) < until:
        busy = until if duty >= 1 else min(until, now + duty * PERIOD)
        while time.monotonic() < busy:
            piece()
        if duty < 1:
            time.sleep(max(0.0, min(until, now + PERIOD) - time.monotonic()))


def piece(work: str, room: int = 256 << 20) -> Callable[[], object]:
    """A short piece of work that can be repeated.

    "spin" stays in registers.  "hog" walks through 256 MB, more than a core's share of any cache,
    and copies 1 MB at a time.

    room: bytes that a hog may allocate, where that is less than 256 MB.
    """
    if work == "spin":
        return lambda: sum(range(2000))
    chunk = 1 << 20
    size = chunk * max(1, min(room, 256 << 20) // (2 * chunk))
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))
    places = itertools.cycle(range(0, size, chunk))

    def copy() -> None:
        start = next(places)
        target[start : start + chunk] = source[start : start + chunk]

    for _ in range(0, size, chunk):  # the system gives memory when it is written to
        copy()
    return copy
