"""Real CPU load that comes and goes on one core by a seeded schedule.

Each burner of each episode is a process of its own, started before the series and asleep until its
episode, so that starting it disturbs nothing.  This module is the burner's program too, and imports
little beyond the standard library.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from simstrag.processes.affinity import die_with_parent

__all__ = [
    "KINDS",
    "Burners",
    "Episode",
    "Kind",
    "burn",
    "burners",
    "piece",
    "schedule",
]

PERIOD = 0.02
"""Seconds of one busy-and-asleep round of a burner with duty below 1."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of load: `count` processes, each busy for `duty` of every period, at `nice`.

    work: "spin" stays in registers, "stream" copies 8 MB back and forth and so takes cache and
    memory bandwidth too.
    """

    name: str
    count: int = 1
    duty: float = 1.0
    nice: int = 0
    work: str = "spin"


KINDS = (
    Kind("spin duty 0.25", duty=0.25),
    Kind("spin duty 0.5", duty=0.5),
    Kind("spin duty 0.75", duty=0.75),
    Kind("spin"),
    Kind("spin nice 5", nice=5),
    Kind("stream", work="stream"),
    Kind("2 spin", count=2),
    Kind("3 spin", count=3),
)


@dataclass(frozen=True, slots=True)
class Episode:
    """One contended span: seconds since the series began, as planned, and the kind of load."""

    start: float
    stop: float
    kind: Kind


def schedule(
    seed: int,
    seconds: float,
    lead: tuple[float, float] = (15.0, 22.0),
    span: tuple[float, float] = (8.0, 40.0),
    gap: tuple[float, float] = (10.0, 28.0),
) -> tuple[Episode, ...]:
    """The episodes of one series: a clean lead, then contended spans and clean gaps in turn.

    Kinds are drawn without repetition until all were used, lengths uniformly from `span` and `gap`
    (seconds); no episode ends later than `seconds - gap[0] / 2`.

    >>> schedule(3, 185.0) == schedule(3, 185.0)
    True
    """
    rng = random.Random(seed)
    deck: list[Kind] = []
    episodes: list[Episode] = []
    now = rng.uniform(*lead)
    while True:
        deck = deck or rng.sample(KINDS, len(KINDS))
        stop = min(now + rng.uniform(*span), seconds - gap[0] / 2)
        if stop - now < span[0]:
            return tuple(episodes)
        episodes.append(Episode(round(now, 3), round(stop, 3), deck.pop()))
        now = stop + rng.uniform(*gap)


@dataclass(slots=True)
class Burners:
    """The burner processes of one series, asleep until `go`."""

    children: list[tuple[int, subprocess.Popen[str]]]

    def go(self, zero: float) -> None:
        """Say when the series begins (`time.monotonic`), from which on episodes count."""
        for _, child in self.children:
            assert child.stdin is not None
            child.stdin.write(f"{zero!r}\n")
            child.stdin.flush()

    def reports(self) -> list[dict[str, Any]]:
        """What each burner measured: its episode, start, stop, CPU seconds. Waits for all."""
        found = []
        for episode, child in self.children:
            out, _ = child.communicate(timeout=60)
            if child.returncode != 0:
                raise RuntimeError(f"the burner of episode {episode} failed: {out!r}")
            found.append({"episode": episode, **json.loads(out)})
        return found


@contextmanager
def burners(episodes: tuple[Episode, ...], core: int) -> Iterator[Burners]:
    """Start every burner of a series, pinned to `core`; none is left on leaving."""
    started = Burners([])
    try:
        for number, episode in enumerate(episodes):
            job = json.dumps({**asdict(episode), "core": core, "parent": os.getpid()})
            for _ in range(episode.kind.count):
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "simstrag.calibration.benches.burner", job],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                started.children.append((number, child))
        for _, child in started.children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError("a burner did not start")
        yield started
    finally:
        for _, child in started.children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None and not pipe.closed:
                    pipe.close()


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

    "spin" stays in registers.  "stream" copies 8 MB, which takes cache and some bandwidth.  "hog"
    walks through 256 MB, more than a core's share of any cache, and copies 1 MB at a time; it has
    less where `room`, the bytes that it may take, is less.
    """
    if work == "spin":
        return lambda: sum(range(2000))
    size, chunk = 8 << 20, 8 << 20
    if work == "hog":
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


def main(job: dict[str, Any]) -> None:
    """One burner: sleep until the episode, burn, print what was measured."""
    die_with_parent(job["parent"])
    kind = Kind(**job["kind"])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {job["core"]})
    os.nice(kind.nice)
    repeated = piece(kind.work)
    print("ready", flush=True)
    zero = float(sys.stdin.readline())
    time.sleep(max(0.0, zero + job["start"] - time.monotonic()))
    started, cpu = time.monotonic(), time.process_time()
    burn(zero + job["stop"], kind.duty, repeated)
    stopped = time.monotonic()
    print(
        json.dumps(
            {
                "started": round(started - zero, 6),
                "stopped": round(stopped - zero, 6),
                "cpu_seconds": round(time.process_time() - cpu, 6),
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
