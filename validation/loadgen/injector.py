"""Carries out a schedule with real load, and says what it really did.

Loads are those that calibration measured beside: the same processes on the same cores, told to work
and to rest.  "cpu" shares the rank's core, "memory" is on the others, "gemm" and "copy" are on its
GPU (untried), "net" streams over the loopback.  "link" limits the `Link` behind which a rank is,
which has the rate again afterwards that it had before.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from simstrag.calibration.benches.loads import ON_GPU, Loads
from simstrag.calibration.benches.traffic import Traffic
from simstrag.calibration.cells import Skipped
from simstrag.ddp.record.journal import LOAD, NAME
from simstrag.documents.paths import write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import plain
from simstrag.validation.loadgen.network import Link
from simstrag.validation.loadgen.schedule import Episode, Schedule

__all__ = ["Done", "Injector", "beside", "done", "seats"]

FORMAT = "simstrag-load/1"

POLL = 0.02
"""Seconds between two looks whether a run has begun."""

PATIENCE = 5.0
"""Seconds by which the end of a schedule may be overrun before load is taken away by force."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was really done in place of one episode.

    episode: with the times at which all its processes were at work, and at which the last ended.
    planned: what it was to be.  report: what the load measured of itself (see `Loads.on`; of "net",
    bytes per second).
    """

    episode: Episode
    planned: Episode
    report: Mapping[str, Any]

    @property
    def late(self) -> float:
        """Seconds after its time at which it began."""
        return self.episode.start - self.planned.start

    def document(self) -> dict[str, Any]:
        """As plain JSON.  share: of its cores, what it really took; off: that is not its level."""
        return {
            **asdict(self.episode), "late": round(self.late, 4),
            "share": self.report.get("load_share"), "off": bool(self.report.get("load_off")),
        }  # fmt: skip


class Injector:
    """Loads for a schedule; a context manager that leaves no process behind.

    ranks: those of the schedule that run on this host, else all of it.  cores: of each rank, else
    rank r has the r-th core, round about, as `simstrag ddp` pins them.  gpus: torch's name of each
    rank's, by rank.  link: that to the rank of episodes of kind "link".

    Load processes are started on entering, are asleep until their time, and end with this process
    however it ends; they must be started by a thread that lives as long.
    """

    def __init__(
        self,
        schedule: Schedule,
        ranks: Iterable[int] | None = None,
        cores: Mapping[int, int] | None = None,
        gpus: Mapping[int, str] | None = None,
        link: Link | None = None,
    ) -> None:
        self.schedule, self.gpus = schedule, dict(gpus or {})
        wanted = schedule.ranks if ranks is None else sorted(set(ranks) & set(schedule.ranks))
        self.cores = seats(wanted) if cores is None else dict(cores)
        self._link = link
        self._plans = {rank: schedule.on(rank) for rank in wanted}
        limits = [each for plan in self._plans.values() for each in plan if each.kind == "link"]
        if limits and link is None:
            raise InputError(
                f"rank {limits[0].rank}: load link needs a Link, and the rank behind it"
            )
        for rank, plan in self._plans.items():
            if any(each.kind in ON_GPU for each in plan) and rank not in self.gpus:
                raise InputError(f"rank {rank}: loads gemm and copy need to know its GPU")
        self._loads: dict[int, Loads] = {}
        self._traffic: dict[int, Traffic] = {}
        self._done: list[Done] = []
        self._failures: list[Exception] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._forced = threading.Event()

    def __enter__(self) -> Injector:
        with contextlib.ExitStack() as stack:
            for rank, plan in self._plans.items():
                near = [each for each in plan if each.kind not in ("net", "link")]
                if near:
                    self._loads[rank] = stack.enter_context(self._warm(rank, near))
                streams = [each.level for each in plan if each.kind == "net"]
                if streams:
                    self._traffic[rank] = stack.enter_context(Traffic(math.ceil(max(streams))))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        try:
            for each in self._threads:
                each.join(PATIENCE if kind is None else 0.5)
        finally:
            self._forced.set()
            self._stack.close()
            for each in self._threads:
                each.join()

    @contextlib.contextmanager
    def _warm(self, rank: int, plan: Sequence[Episode]) -> Iterator[Loads]:
        """The loads of a rank; the first order of a kind takes memory and loads kernels."""
        highest = {each.kind: 0.0 for each in plan}
        for each in plan:
            highest[each.kind] = max(highest[each.kind], each.level)
        count = math.ceil(max(highest.values()))
        with Loads(count, self.cores[rank], self.gpus.get(rank, "")) as loads:
            for kind, level in highest.items():
                with loads.on(kind, level):
                    pass
            yield loads

    def go(self, zero: float | None = None) -> float:
        """Begin: the schedule's times count from `zero` (`time.monotonic`), else from now."""
        assert not self._threads, "a schedule is carried out once"
        zero = time.monotonic() if zero is None else zero
        for rank in self._plans:
            name = f"load of rank {rank}"
            thread = threading.Thread(target=self._follow, args=(rank, zero), name=name)
            self._threads.append(thread)
            thread.start()
        return zero

    def check(self) -> None:
        """Raises what the first load that failed raised, `Skipped` as a rule."""
        if self._failures:
            raise self._failures[0]

    def wait(self) -> Schedule:
        """Until all is done; what was done.  Raises what `check` raises."""
        for each in self._threads:
            each.join()
        return self.did

    @property
    def done(self) -> tuple[Done, ...]:
        """What was done so far, in order of time."""
        return tuple(sorted(self._done, key=lambda each: each.episode.start))

    @property
    def did(self) -> Schedule:
        """The same as a schedule, which can be simulated.  Raises what `check` raises."""
        self.check()
        episodes = tuple(each.episode for each in self.done)
        last = max((each.stop for each in episodes), default=0.0)
        return Schedule(episodes, max(self.schedule.seconds, last))

    def _follow(self, rank: int, zero: float) -> None:
        try:
            for episode in self._plans[rank]:
                if self._over.wait(max(0.0, zero + episode.start - time.monotonic())):
                    return
                if time.monotonic() < zero + episode.stop:
                    self._done.append(self._carry_out(episode, zero))
        except Exception as failure:
            if not self._forced.is_set():
                self._failures.append(failure)

    def _carry_out(self, episode: Episode, zero: float) -> Done:
        with self._at_work(episode) as report:
            start = time.monotonic() - zero
            self._over.wait(max(0.0, zero + episode.stop - time.monotonic()))
        stop = time.monotonic() - zero
        real = replace(episode, start=round(start, 6), stop=round(stop, 6))
        return Done(real, episode, report)

    @contextlib.contextmanager
    def _at_work(self, episode: Episode) -> Iterator[dict[str, Any]]:
        if episode.kind == "link":
            assert self._link is not None
            before = self._link.rate
            try:
                self._link.limit(episode.level * 1e9)
            except InputError as error:
                raise Skipped(str(error)) from None
            try:
                yield {}
            finally:
                self._link.limit(before)
            return
        if episode.kind != "net":
            with self._loads[episode.rank].on(episode.kind, episode.level) as report:
                yield report
            return
        report = {}
        with self._traffic[episode.rank].streaming(episode.level) as stream:
            yield report
        report |= stream.report


@contextlib.contextmanager
def beside(
    schedule: Schedule,
    folder: Path,
    link: Link | None = None,
    gpus: Mapping[int, str] | None = None,
) -> Iterator[Injector]:
    """Load beside ranks of this host, timed from the moment at which the run in a folder began.

    Its first step says when that was.  However it ends, what was done is in `LOAD` in the folder.
    link, gpus: as of an `Injector`.
    """
    over = threading.Event()

    def follow() -> None:
        while not over.wait(POLL):
            if (zero := _zero(folder / NAME)) is not None:
                injector.go(zero)
                return

    thread = threading.Thread(target=follow, name="load")
    injector = Injector(schedule, gpus=gpus, link=link)
    try:
        with injector:
            thread.start()
            try:
                yield injector
            finally:
                over.set()
                thread.join()
    finally:
        if injector.done and folder.exists():
            told = {"format": FORMAT, "done": [each.document() for each in injector.done]}
            write_json(folder / LOAD, plain(told))


def done(folder: Path) -> Schedule:
    """The load that was beside the run in a folder, as `LOAD` has it; no episodes without that."""
    if not (folder / LOAD).exists():
        return Schedule((), 1.0)
    told = json.loads((folder / LOAD).read_text(encoding="utf-8"))["done"]
    names = [each.name for each in fields(Episode)]
    episodes = tuple(Episode(**{name: each[name] for name in names}) for each in told)
    return Schedule(episodes, max(each.stop for each in episodes))


def _zero(journal: Path) -> float | None:
    """When a run began, in `time.monotonic`; None until it has told of a step."""
    try:
        for line in journal.read_text(encoding="utf-8").splitlines():
            kind, *values = json.loads(line)
            if kind in ("lockstep", "done"):
                return time.monotonic() - float(values[2 if kind == "lockstep" else 0])
    except (OSError, ValueError):  # it is not there yet, or not whole
        pass
    return None


def seats(ranks: Iterable[int]) -> dict[int, int]:
    """The core of each rank where ranks are pinned round about.

    >>> list(seats([0, 1])) == [0, 1]
    True
    """
    allowed = cores()
    return {rank: allowed[rank % len(allowed)] for rank in ranks}
