"""`watch`: what is known of a run now; `Watcher` keeps it up to date while the run goes on."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simstrag.analysis.monitor import words  # noqa: F401 - registers how a snapshot is said
from simstrag.analysis.monitor.follow import Follower, RankProgress, RecordFollower
from simstrag.analysis.monitor.follow_journal import JournalFollower
from simstrag.analysis.monitor.snapshot import Snapshot, Warned, WatchedRank
from simstrag.analysis.monitor.totals import LATEST, Totals
from simstrag.arrays import Reals
from simstrag.ddp.failures.slow_ranks import SlowRankDetector
from simstrag.documents.file_io import path_of, require_path
from simstrag.errors import InputError
from simstrag.records.record import Record
from simstrag.records.steps import APART
from simstrag.whatif.analysis import check_numbers

SILENT = 15.0
"""Seconds without a row after which a rank is silent, if others write: ranks write once a second,
or once a step."""
PATIENCE = 5.0
"""Steps of the usual length that a silent rank may take, if that is more."""
QUIET = 60.0
"""Seconds without a row of any rank after which a run counts as over; it may be paused."""
KEPT = 50
"""Latest warnings that are kept."""
FULL = 1 << 20
"""Free bytes of the disk below which a recorder ends."""
TESTED = 50_000
"""Latest rows of a piece that the tests of slow ranks look at, and at least twice `LATEST` steps: a
late watcher skips the rest, and may then name a later step as the first slow one."""


def follower(paths: Sequence[str | Path]) -> Follower:
    """What follows a record or a run. Raises `InputError` where there is no such folder."""
    if not paths:
        raise InputError("give the folder of a run")
    folders = [require_path(path_of(path, "the folder of a run")) for path in paths]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the folder that the run writes")
    journals = [folder for folder in folders if JournalFollower.recognise(folder)]
    if not journals:
        return RecordFollower(folders)
    if len(folders) > 1:
        raise InputError(
            f"{journals[0]}: is a run, whose journal has all ranks; give this folder alone"
        )
    return JournalFollower(journals[0])


class Watcher:
    """Follows one run, and says what is known of it.

    paths: its folder, or those of all hosts.
    gpu_price: of a GPU-hour, in any currency.
    Raises `InputError` where there is no such folder.
    """

    def __init__(self, paths: Sequence[str | Path], gpu_price: float | None = None) -> None:
        check_numbers(gpu_price, None, compares=False)
        self._follower, self._price = follower(paths), gpu_price
        self.folders = [Path(path) for path in paths]
        self._warnings: deque[Warned] = deque(maxlen=KEPT)
        self._said = set[str]()
        self._begin()

    def _begin(self) -> None:
        self._totals, self._restarts = Totals(), self._follower.restarts
        self._detector = SlowRankDetector(self._warn)

    def update(self) -> Snapshot:
        """Read one piece of what is new, and say what is known now."""
        try:
            piece = self._follower.piece()
        except OSError as error:
            self._warn(f"{self._follower.source}: cannot be read: {error.strerror}")
            piece = None
        if self._follower.restarts != self._restarts:
            self._begin()
        if piece is not None:
            self._add(piece)
        progress = self._follower.progress()
        self._look(progress)
        return self._snapshot(progress)

    def catch_up(self) -> Snapshot:
        """Read all that is there."""
        found, before = self.update(), -1.0
        while before < found.share < 1:
            before, found = found.share, self.update()
        return found

    @property
    def has_ended(self) -> bool:
        """Whether the run has said that it has ended."""
        return self._follower.is_over

    @property
    def restarts(self) -> int:
        """Number of times that reading began anew."""
        return self._restarts

    @property
    def latest(self) -> Record | None:
        """The record of the latest steps; None before any."""
        return self._totals.latest

    def _add(self, piece: Record) -> None:
        try:
            steps, own = self._totals.add(piece)
        except InputError as error:
            self._warn(str(error))
            return
        if self._follower.share < 1:  # more is there; the tests are of now
            return
        tested = max(2 * LATEST, TESTED // len(own))
        ranks, rows = self._totals.ranks.tolist(), own[:, -tested:]
        for k, step in enumerate(steps[-tested:].tolist()):
            self._detector.extend(
                (rank, step, float(seconds))
                for rank, seconds in zip(ranks, rows[:, k].tolist(), strict=True)
            )

    def _warn(self, text: str) -> None:
        self._warnings.append(Warned(self._totals.last, text))

    def _look(self, progress: dict[int, RankProgress]) -> None:
        """Warn of what files and disks show, once each."""
        found = [*self._follower.problems, *self._torn(progress), *self._stopped(progress)]
        for folder in self.folders:
            try:
                free = shutil.disk_usage(folder).free
            except OSError:
                continue
            if free < FULL:
                found.append(f"{folder}: the disk is full, and recording ends there")
        for text in found:
            if text not in self._said:
                self._warn(text)
        self._said = set(found)

    def _torn(self, progress: dict[int, RankProgress]) -> list[str]:
        """Ranks whose file ended within a line some time ago."""
        return [
            f"rank {rank}: its file ends within a line; its disk may be full, or it was killed"
            for rank, each in progress.items()
            if each.torn and time.time() - each.written > SILENT
        ]

    def _stopped(self, progress: dict[int, RankProgress]) -> list[str]:
        newest = max((each.step for each in progress.values()), default=-1)
        silent = self._silent(progress)
        return [
            f"rank {rank} has written nothing after step {each.step}, and others are at {newest}: "
            "it may have been killed"
            for rank, each in progress.items()
            if silent[rank] or (self._is_quiet(progress) and newest - each.step > APART)
        ]

    def _silent(self, progress: dict[int, RankProgress]) -> dict[int, float]:
        """Seconds of each rank's silence while others went on; 0 for a rank that writes."""
        limit = max(SILENT, PATIENCE * self._totals.means[0])
        newest = max((each.written for each in progress.values()), default=0.0)
        latest = max((each.step for each in progress.values()), default=-1)
        return {
            rank: newest - each.written
            if newest - each.written > limit and latest > each.step else 0.0
            for rank, each in progress.items()
        }  # fmt: skip

    def _is_quiet(self, progress: dict[int, RankProgress]) -> bool:
        written = max((each.written for each in progress.values()), default=0.0)
        limit = max(QUIET, PATIENCE * self._totals.means[0])
        return bool(written) and time.time() - written > limit

    def _snapshot(self, progress: dict[int, RankProgress]) -> Snapshot:
        totals, silent = self._totals, self._silent(progress)
        sums, (step_seconds, computing, waiting) = totals.sums, totals.means
        gpus = totals.gpus or len(progress)
        is_synced = self._follower.is_synced
        each_gpu = gpus / max(1, len(totals.ranks)) * is_synced
        factors = _over_others(computing)
        places = {rank: k for k, rank in enumerate(totals.ranks.tolist())}
        ranks = []
        for rank, each in progress.items():
            k = places.get(rank)
            known = (0.0, 0.0, 1.0, 0.0, 0, ()) if k is None else (
                float(computing[k]), float(waiting[k]), float(factors[k]),
                float(sums.waited[k]) * each_gpu, int(sums.last[k]), totals.groups_of(sums, k),
            )  # fmt: skip
            ranks.append(WatchedRank(rank, each.step, *known, silent[rank]))
        shown = [k for rank in progress if (k := places.get(rank)) is not None]
        return Snapshot(
            source=self._follower.source,
            made=time.time(),
            written=max((each.written for each in progress.values()), default=0.0),
            is_over=self._follower.is_over or self._is_quiet(progress),
            is_synced=is_synced,
            share=self._follower.share,
            first=totals.first,
            last=totals.last,
            steps=sums.steps,
            gpus=gpus,
            gpu_price=self._price,
            spent=sums.seconds * gpus,
            lost=float(sums.waited.sum()) * each_gpu,
            ranks=tuple(ranks),
            numbers=totals.numbers,
            own=totals.own[shown] if shown else np.zeros((len(ranks), 0)),
            step_seconds=step_seconds,
            slowest=self._detector.slowest(),
            warnings=tuple(self._warnings),
        )


def _over_others(seconds: Reals) -> Reals:
    """Seconds of each rank over the median of all other ranks; 1 for a rank that is alone.

    >>> _over_others(np.array([1.0, 2.0])).tolist(), _over_others(np.array([3.0])).tolist()
    ([0.5, 2.0], [1.0])
    """
    if len(seconds) < 2:
        return np.ones(len(seconds))
    others = np.where(np.eye(len(seconds), dtype=bool), np.nan, seconds)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.nan_to_num(seconds / np.nanmedian(others, axis=1), nan=1.0))


def watch(*paths: str | Path, gpu_price: float | None = None) -> Snapshot:
    """What is known of a run now, also while other processes record it.

    paths: the folder of a record or a run, or those of all hosts of a job.
    gpu_price: of a GPU-hour, in any currency.
    What would help is said by `simstrag.diagnose` and `simstrag advise`.
    Raises `InputError` where there is no such folder, and for a folder without steps.
    """
    found = Watcher(paths, gpu_price).catch_up()
    if not found.ranks:
        raise InputError(
            f"{found.source}: holds no record of simstrag.ddp.record, and no run of simstrag ddp"
        )
    return found
