"""Real load beside a step: processes that sleep until a load is requested, and report their work.

They live as long as the bench that holds them, so that no process starts or ends while a step is
timed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import psutil

from simstrag.calibration.benches.workers import STOP, ContinuousWork, WorkerGroup, serve_continuous
from simstrag.processes.affinity import cores, pin

KINDS = {"cpu": "spin", "memory": "hog", "gemm": "gemm", "copy": "copy"}
"""The work of each kind of load."""

ON_GPU = ("gemm", "copy")

SHARED = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
"""Levels of a load on the resource that the step computes with."""

PERIOD = 0.02
"""Seconds of one busy-and-asleep round of a load with duty below 1."""

SLICE = 0.1
"""Seconds of work between two looks for the next request."""

PIECE = 1e-3
"""Seconds that a piece of work on a GPU aims at; a slice has several even at a low duty."""

SCALES = (1, 2, 4, 8)
"""Factors by which a piece shrinks on a slow GPU."""

FREE_MEMORY_SHARE = 0.25
"""The part of the free memory that all hogs together may use."""

OFF = 0.15
"""Relative error of a load's level above which the visit reports `load_off`."""


def levels(kind: str, others: int) -> tuple[float, ...]:
    """The levels of a kind of load to measure.

    A load on the other cores goes up to one process per core: more would only share them.

    others: number of other cores.

    >>> levels("memory", others=5)
    (0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 5.0)
    """
    if kind != "memory" or not others:
        return SHARED
    doubled = [float(1 << k) for k in range(others.bit_length())]
    return tuple(sorted({0.25, 0.5, 0.75, *doubled, float(others)}))


def split(level: float) -> tuple[int, float]:
    """Number of processes of a level, and the duty of each.

    >>> split(0.75), split(2.0)
    ((1, 0.75), (2, 1.0))
    """
    count = math.ceil(level)
    return count, level / count


def level_error(share: float, level: float, steps: int) -> float:
    """Relative error of a load's level; below 0 it used less than its level.

    Steps never sleep.  Beside them, `count` processes of a load get at most s of the core, and at
    least duty x s, with s = count / (count + steps).

    share: processors that the load used.
    steps: number of processes that compute steps on its core.

    >>> level_error(1.5, 2.0, steps=0), level_error(0.5, 1.0, steps=1)
    (-0.25, 0.0)
    >>> round(level_error(0.6, 0.5, steps=1), 2)
    0.2
    """
    count, duty = split(level)
    fair = count / (count + steps)
    least, most = (duty * fair, min(level, fair)) if steps else (level, level)
    return (min(share - least, 0.0) + max(share - most, 0.0)) / level


class LoadRequest(NamedTuple):
    """A request to a load process: a value of `KINDS`, the duty, the core."""

    work: str
    duty: float
    core: int


class Loads(WorkerGroup):
    """`count` load processes, asleep; a context manager.

    core: core of the step; "cpu" loads run there, other kinds on other cores if there are any.
    gpu: torch's name of the GPU that "gemm" and "copy" use.
    steps: number of processes that compute steps on `core`.

    A "memory" process keeps 256 MB; where all of them would use more than a quarter of the memory
    that is free at the start, each keeps an equal part of that quarter.
    """

    def __init__(self, count: int, core: int, gpu: str = "", steps: int = 1) -> None:
        super().__init__(_run_load, count, name="load")
        self.core, self.gpu, self.steps = core, gpu, steps
        self.others = [each for each in cores() if each != core] or [core]

    def __enter__(self) -> Self:
        room = int(FREE_MEMORY_SHARE * psutil.virtual_memory().available / max(1, self.count))
        self.arguments = (self.gpu, room)
        return super().__enter__()

    @contextlib.contextmanager
    def on(self, kind: str, level: float) -> Iterator[dict[str, Any]]:
        """Load in this context; afterwards the yielded dict has its report.

        load_seconds: wall clock.
        load_share: processors used, or on a GPU processes at work; compare with the level.
        load_pieces: pieces of work.
        load_error: see `level_error`.
        load_off: true where the error is more than `OFF`.

        Raises `Skipped` where a process failed; the next load starts new processes.
        """
        count, duty = split(level)
        assert count <= self.count, f"{kind} {level}: there are {self.count} processes"
        places = [self.core] if kind == "cpu" else self.others
        requests = {
            k: LoadRequest(KINDS[kind], duty, places[k % len(places)]) for k in range(count)
        }
        report: dict[str, Any] = {}
        try:
            self.request(requests)
            yield report
            reports = self.request(dict.fromkeys(requests, STOP))
        except BaseException:
            self.shut_down()
            raise
        used = "busy" if kind in ON_GPU else "cpu"
        share = round(sum(each[used] / each["seconds"] for each in reports), 4)
        on_step_core = kind not in ON_GPU and places == [self.core]
        error = level_error(share, level, self.steps if on_step_core else 0)
        report |= {
            "load_seconds": round(max(each["seconds"] for each in reports), 4),
            "load_share": share,
            "load_pieces": sum(each["pieces"] for each in reports),
            "load_error": round(error, 4),
        }
        if abs(error) > OFF:
            report["load_off"] = True


def _run_load(pipe: Connection, _rank: int, gpu: str, room: int) -> None:
    pieces: dict[str, Callable[[], object]] = {}

    def begin(request: LoadRequest) -> ContinuousWork:
        work, duty, core = request
        pin(core)
        if work not in pieces:
            pieces[work] = _gpu_piece(work, gpu) if work in ON_GPU else make_piece(work, room)
        return _work(pieces[work], duty, even=work in ON_GPU)

    serve_continuous(pipe, begin)


def _work(piece: Callable[[], object], duty: float, even: bool) -> ContinuousWork:
    """Slices of work, and a report of the work since now.

    even: if a piece overran its slice, later slices work less, so that the average keeps the duty.
    """
    count, busy = 0, 0.0
    start, spent = time.monotonic(), time.process_time()

    def counted() -> None:
        nonlocal count, busy
        started = time.monotonic()
        piece()
        busy += time.monotonic() - started
        count += 1

    def work() -> None:
        now = time.monotonic()
        ahead = max(0.0, busy - duty * (now - start)) if even else 0.0
        until, share = now + SLICE, duty - ahead / SLICE
        if share > 0:
            burn(until, share, counted)
        else:
            time.sleep(SLICE)

    def report() -> dict[str, float]:
        return {
            "seconds": time.monotonic() - start,
            "cpu": time.process_time() - spent,
            "busy": busy,
            "pieces": count,
        }

    return work, report


def burn(until: float, duty: float, piece: Callable[[], object]) -> None:
    """Repeat `piece` until `until` (`time.monotonic`), for `duty` of every period of wall clock."""
    while (now := time.monotonic()) < until:
        busy = until if duty >= 1 else min(until, now + duty * PERIOD)
        while time.monotonic() < busy:
            piece()
        if duty < 1:
            time.sleep(max(0.0, min(until, now + PERIOD) - time.monotonic()))


def make_piece(work: str, room: int = 256 << 20) -> Callable[[], object]:
    """A short, repeatable piece of work of a CPU.

    "spin" stays in registers.  "hog" walks through 256 MB, more than a core's share of any cache,
    and copies 1 MB at a time.

    room: most bytes that a hog may allocate.
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

    for _ in range(0, size, chunk):  # the system provides memory at the first write
        copy()
    return copy


def _gpu_piece(work: str, gpu: str) -> Callable[[], object]:
    """A piece of matrix products (4096 rows on a fast GPU), or of copies of 128 MB."""
    import torch

    def make(scale: int) -> Callable[[], object]:
        if work == "gemm":
            reduced = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
            side = 4096 // scale
            a, b = (torch.randn(side, side, device=gpu).to(reduced) for _ in range(2))
            out = torch.empty_like(a)
            return lambda: torch.mm(a, b, out=out)
        source = torch.empty((128 << 20) // scale, dtype=torch.uint8, device=gpu).random_()
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return _size_piece(make, lambda: torch.cuda.synchronize(gpu))


def _size_piece(
    make: Callable[[int], Callable[[], object]], finish: Callable[[], object]
) -> Callable[[], object]:
    """A piece of about `PIECE` seconds: some launches and the wait for them.

    make: makes the launching function of a scale; the first of `SCALES` with a short enough launch
        is used.
    """

    def time_launch(launch: Callable[[], object]) -> float:
        start = time.perf_counter()
        launch()
        finish()
        return time.perf_counter() - start

    for scale in SCALES:
        launch = make(scale)
        time_launch(launch)  # the first one loads kernels
        seconds = min(time_launch(launch) for _ in range(5))
        if seconds <= PIECE:
            break
    launches = max(1, round(PIECE / seconds))

    def piece() -> None:
        for _ in range(launches):
            launch()
        finish()

    return piece
