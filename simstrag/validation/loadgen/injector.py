"""Carries out a schedule of load with real processes, and records their work.

The load processes are those of calibration, on the same cores. Load "cpu" shares the core of its
rank, "memory" runs on the other cores, "gemm" and "copy" run on its GPU, and "net"
streams over the loopback. Load "link" limits the rate of the `LimitedLink` of its rank.
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
from typing import Any

from simstrag.calibration.benches.background_load import ON_GPU, Loads
from simstrag.calibration.benches.background_traffic import Traffic
from simstrag.calibration.benches.bench import Skipped
from simstrag.ddp.journal.journal import LOAD, NAME
from simstrag.documents.file_io import write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.runs.run import plain
from simstrag.validation.loadgen.limited_link import LimitedLink
from simstrag.validation.loadgen.schedule import Episode, Schedule

FORMAT = "simstrag-load/1"

POLL = 0.02
"""Polling interval for the start of a run, in seconds."""

PATIENCE = 5.0
"""Seconds after the end of a schedule until load is killed."""


@dataclass(frozen=True, slots=True)
class InjectedEpisode:
    """One episode as it was carried out.

    episode: with the real times: when all processes worked, and when the last one stopped.
    planned: the episode of the schedule.
    report: measurements of the load itself (see `Loads.on`); for "net", bytes per second.
    """

    episode: Episode
    planned: Episode
    report: Mapping[str, Any]

    @property
    def late(self) -> float:
        """Delay of the start in seconds."""
        return self.episode.start - self.planned.start

    def document(self) -> dict[str, Any]:
        """JSON values. share: used share of a core; off: the load missed its level."""
        return {
            **asdict(self.episode), "late": round(self.late, 4),
            "share": self.report.get("load_share"), "off": bool(self.report.get("load_off")),
        }  # fmt: skip


class Injector:
    """Load processes for a schedule; a context manager that leaves no process behind.

    ranks: ranks on this host; by default all ranks of the schedule.
    cores: core of each rank; by default rank r has core r modulo the number of cores.
    gpus: torch's device name of each rank's GPU.
    link: link of the rank with episodes of kind "link".

    Load processes start on entering, sleep until their time, and end with this process. The thread
    that enters must live as long as they do.
    """

    def __init__(
        self,
        schedule: Schedule,
        ranks: Iterable[int] | None = None,
        cores: Mapping[int, int] | None = None,
        gpus: Mapping[int, str] | None = None,
        link: LimitedLink | None = None,
    ) -> None:
        self.schedule, self.gpus = schedule, dict(gpus or {})
        wanted = schedule.ranks if ranks is None else sorted(set(ranks) & set(schedule.ranks))
        self.cores = assign_cores(wanted) if cores is None else dict(cores)
        self._link = link
        self._plans = {rank: schedule.on(rank) for rank in wanted}
        limits = [each for plan in self._plans.values() for each in plan if each.kind == "link"]
        if limits and link is None:
            raise InputError(
                f"rank {limits[0].rank}: load link needs a LimitedLink and the rank behind it"
            )
        for rank, plan in self._plans.items():
            if any(each.kind in ON_GPU for each in plan) and rank not in self.gpus:
                raise InputError(f"rank {rank}: loads gemm and copy need to know its GPU")
        self._loads: dict[int, Loads] = {}
        self._traffic: dict[int, Traffic] = {}
        self._done: list[InjectedEpisode] = []
        self._failures: list[Exception] = []
        self._threads: list[threading.Thread] = []
        self._over, self._forced = threading.Event(), threading.Event()

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

    def __exit__(self, kind: object, *failure: object) -> None:
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
        """The load processes of a rank, each kind run once to allocate memory and load kernels."""
        highest: dict[str, float] = {}
        for each in plan:
            highest[each.kind] = max(highest.get(each.kind, 0.0), each.level)
        count = math.ceil(max(highest.values()))
        with Loads(count, self.cores[rank], self.gpus.get(rank, "")) as loads:
            for kind, level in highest.items():
                with loads.on(kind, level):
                    pass
            yield loads

    def go(self, zero: float | None = None) -> float:
        """Start the schedule at `zero` (`time.monotonic`), by default now; returns the start."""
        assert not self._threads, "a schedule runs once"
        zero = time.monotonic() if zero is None else zero
        for rank in self._plans:
            name = f"load of rank {rank}"
            self._threads.append(threading.Thread(None, self._follow, name, (rank, zero)))
            self._threads[-1].start()
        return zero

    def check(self) -> None:
        """Raise the exception of the first load that failed, usually `Skipped`."""
        if self._failures:
            raise self._failures[0]

    def wait(self) -> Schedule:
        """Wait for the end; returns the schedule as carried out.  Raises like `check`."""
        for each in self._threads:
            each.join()
        return self.schedule_done

    @property
    def done(self) -> tuple[InjectedEpisode, ...]:
        """Episodes carried out so far, in order of time."""
        return tuple(sorted(self._done, key=lambda each: each.episode.start))

    @property
    def schedule_done(self) -> Schedule:
        """The schedule as carried out, for simulation.  Raises like `check`."""
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

    def _carry_out(self, episode: Episode, zero: float) -> InjectedEpisode:
        with self._at_work(episode) as report:
            start = time.monotonic() - zero
            self._over.wait(max(0.0, zero + episode.stop - time.monotonic()))
        stop = time.monotonic() - zero
        real = replace(episode, start=round(start, 6), stop=round(stop, 6))
        return InjectedEpisode(real, episode, report)

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
        load = (
            self._traffic[episode.rank].streaming(episode.level)
            if episode.kind == "net"
            else self._loads[episode.rank].on(episode.kind, episode.level)
        )
        with load as report:
            yield report


@contextlib.contextmanager
def inject_beside(
    schedule: Schedule,
    folder: Path,
    link: LimitedLink | None = None,
    gpus: Mapping[int, str] | None = None,
) -> Iterator[Injector]:
    """Put load beside the ranks of a run, starting with the run's first recorded step.

    folder: folder of the run; the file `LOAD` there records the load, however the run ends.
    link, gpus: as for `Injector`.
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
            record = {"format": FORMAT, "done": [each.document() for each in injector.done]}
            write_json(folder / LOAD, plain(record))


def read_load(folder: Path) -> Schedule:
    """The load recorded with the run in a folder; without a record, an empty schedule."""
    if not (folder / LOAD).exists():
        return Schedule((), 1.0)
    record = json.loads((folder / LOAD).read_text(encoding="utf-8"))["done"]
    names = [each.name for each in fields(Episode)]
    episodes = tuple(Episode(**{name: each[name] for name in names}) for each in record)
    return Schedule(episodes, max(each.stop for each in episodes))


def _zero(journal: Path) -> float | None:
    """Start of a run on the clock `time.monotonic`; None before its first recorded step."""
    try:
        for line in journal.read_text(encoding="utf-8").splitlines():
            kind, *values = json.loads(line)
            if kind in ("lockstep", "done"):
                return time.monotonic() - float(values[2 if kind == "lockstep" else 0])
    except (OSError, ValueError):  # not there yet, or incomplete
        pass
    return None


def assign_cores(ranks: Iterable[int]) -> dict[int, int]:
    """The core of each rank if ranks are pinned round-robin.

    >>> list(assign_cores([0, 1])) == [0, 1]
    True
    """
    allowed = cores()
    return {rank: allowed[rank % len(allowed)] for rank in ranks}
