"""Real load beside a step: processes that sleep until they are told what to do, and then say what
they did.

They live as long as the bench that holds them, so that no process starts or ends while anything is
timed.  This module is also their program, `python -m simstrag.calibration.loads`: it obeys lines of
JSON on its standard input, and dies with its parent.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simstrag.calibration.burner import burn, die_with_parent, piece
from simstrag.calibration.machine import cores, pin

__all__ = ["KINDS", "LoadFailed", "Loads", "levels", "split"]

KINDS = {"cpu": "spin", "memory": "hog", "gemm": "gemm", "copy": "copy"}
"""Kinds of load, and what their processes do."""

GPU = ("gemm", "copy")

SHARED = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0)
"""Levels on what the step itself computes with."""

SLICE = 0.1
"""Seconds of work between two looks for the next order."""

PATIENCE = 60.0
"""Seconds after which a load that does not answer is given up."""

REACHED = 0.8
"""Share of the wanted load below which a report says that it fell short."""


class LoadFailed(RuntimeError):
    """A process of load that ended, is silent, or could not do what it was told."""


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


class Loads:
    """So many processes, asleep; a context manager.

    core: the step's.  "cpu" runs there; all other kinds run on other cores where there are some.
    gpu: torch's name of the GPU that "gemm" and "copy" use.
    """

    def __init__(self, count: int, core: int, gpu: str = "") -> None:
        self.count, self.core, self.gpu = count, core, gpu
        self.others = [each for each in cores() if each != core] or [core]
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Loads:
        try:
            for _ in range(self.count):
                self._children.append(
                    subprocess.Popen(
                        [sys.executable, "-m", __name__, str(os.getpid())],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            for child in self._children:
                _answer(child)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # an order to a process that ended
                        pipe.close()
        self._children = []

    @contextlib.contextmanager
    def on(self, kind: str, level: float) -> Iterator[dict[str, Any]]:
        """Inside of it the load works; afterwards the yielded dict says what it did.

        load_seconds: wall clock.  load_share: processors it took (a GPU's: processes that were at
        work on it), to hold against the level.  load_pieces: of work done.  load_short: why it is
        to be doubted, if it is.  Raises `LoadFailed` where a process failed.
        """
        count, duty = split(level)
        shared = kind == "cpu" or self.others == [self.core]
        places = [self.core] if kind == "cpu" else self.others
        busy = self._children[:count]
        assert len(busy) == count, f"{kind} {level}: there are {len(self._children)} processes"
        report: dict[str, Any] = {}
        for number, child in enumerate(busy):
            place = places[number % len(places)]
            _tell(child, {"work": KINDS[kind], "duty": duty, "core": place, "gpu": self.gpu})
        for child in busy:
            _answer(child)
        try:
            yield report
        finally:
            for child in busy:
                _tell(child, {})
            report |= _summed([_answer(child) for child in busy], kind)
        wanted = count * duty / (count + 1) if shared and kind in ("cpu", "memory") else level
        if report["load_share"] < REACHED * wanted:
            report["load_short"] = f"took {report['load_share']:.2f}, wanted {wanted:.2f}"


def _summed(reports: Sequence[dict[str, float]], kind: str) -> dict[str, Any]:
    share = "cpu" if kind in ("cpu", "memory") else "busy"
    return {
        "load_seconds": round(max(each["seconds"] for each in reports), 4),
        "load_share": round(sum(each[share] / each["seconds"] for each in reports), 4),
        "load_pieces": sum(each["pieces"] for each in reports),
    }


def _tell(child: subprocess.Popen[str], order: dict[str, Any]) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise LoadFailed("a load's process has ended") from None


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], PATIENCE)
    line = child.stdout.readline() if ready else ""
    if not line:
        raise LoadFailed(
            "a load's process has ended" if ready else f"a load is silent for {PATIENCE:g} s"
        )
    answer: dict[str, Any] = json.loads(line)
    if "failed" in answer:
        raise LoadFailed(f"a load failed: {answer['failed']}")
    return answer


def main(parent: int) -> None:
    """One process of load: obey orders until the input ends."""
    die_with_parent(parent)
    _say({})
    pieces: dict[str, Callable[[], object]] = {}
    while order := _order():
        pin(order["core"])
        work = order["work"]
        try:
            if work not in pieces:
                pieces[work] = _kernels(work, order["gpu"]) if work in GPU else piece(work)
        except Exception as error:
            _say({"failed": f"{type(error).__name__}: {error}"})
            continue
        _say({})
        _say(_work(pieces[work], order["duty"]))


def _work(once: Callable[[], object], duty: float) -> dict[str, float]:
    """Work until the next line comes; what was done."""
    count, busy = 0, 0.0

    def counted() -> None:
        nonlocal count, busy
        begun = time.monotonic()
        once()
        busy += time.monotonic() - begun
        count += 1

    begun, spent = time.monotonic(), time.process_time()
    while not select.select([sys.stdin], [], [], 0)[0]:
        burn(time.monotonic() + SLICE, duty, counted)
    sys.stdin.readline()
    seconds = time.monotonic() - begun
    return {
        "seconds": seconds, "cpu": time.process_time() - spent, "busy": busy, "pieces": count
    }  # fmt: skip


def _kernels(work: str, gpu: str) -> Callable[[], object]:
    """Pieces of some 1 ms on a large GPU: matrix products of 4096, or copies of 128 MB."""
    import torch

    reduced = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if work == "gemm":
        a, b = (torch.randn(4096, 4096, device=gpu).to(reduced) for _ in range(2))
        out = torch.empty_like(a)
    else:
        big = torch.empty(256 << 20, dtype=torch.uint8, device=gpu).random_()
        half = len(big) // 2

    def launched() -> None:
        for _ in range(4):
            if work == "gemm":
                torch.mm(a, b, out=out)
            else:
                big[:half].copy_(big[half:])
        torch.cuda.synchronize(gpu)

    launched()
    return launched


def _order() -> dict[str, Any]:
    """The next line that is no order to stop; {} at the end of the input."""
    for line in iter(sys.stdin.readline, ""):
        order: dict[str, Any] = json.loads(line)
        if order:
            return order
    return {}


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
