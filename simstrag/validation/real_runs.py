"""The real runs of a validation: one folder each, resumable, repeated when disturbed.

Repetition 1 of every case comes before repetition 2 of any case, so slow drift of the machine
affects all cases alike.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simstrag.calibration.benches.bench import Skipped
from simstrag.calibration.benches.machine_state import Occupancy
from simstrag.ddp.journal.run_from_journal import finish
from simstrag.ddp.policy_support import profile_hints
from simstrag.ddp.workload_rank import Training
from simstrag.documents.file_io import lock_file, refuse_file, write_atomically, write_json
from simstrag.errors import InputError, SimstragError
from simstrag.runs.run import Run, plain
from simstrag.validation.cases import Case, ValidationPlan
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.schedule import Schedule
from simstrag.validation.prediction import synchronous
from simstrag.validation.rank_pool import PaceRequest, RankPool, RunRequest

PLAN, RUNS, OUTCOME, LOCK = "plan.json", "runs", "outcome.json", ".lock"
REPLICA = "replica.json"
"""File of the seconds of a step of a replica."""
CALIBRATION = "calibration"
"""Folder of the calibration of a validation that calibrates first."""

OVERHEAD = 8.0
"""Seconds of a run outside its steps: warm-up, start of a server and of load processes."""

START, PATIENCE = 120.0, 5.0
"""A run is aborted after START seconds plus PATIENCE times its predicted makespan."""

OFF, TRIES = 0.15, 5
"""Largest relative deviation from the calibrated pace of a core, and attempts per run.

A neighbour on the other hardware thread of a core slows steps by a quarter. If neighbours change
every few seconds, the calibrated pace lies between both states and either is within `OFF`; if they
stay for minutes, one state is outside.
"""

CALM, PAUSE = 60.0, 5.0
"""Longest wait for cores at the calibrated pace, and polling interval, in seconds."""

ASIDE, FAILED = ".aside-", ".failed-"
"""Suffixes of folders that do not count: disturbed attempts, and failures after a disturbed one."""

TRY = re.compile(f"({re.escape(ASIDE)}|{re.escape(FAILED)})[0-9]+$")
"""Matches such suffixes."""

OnRun = Callable[[int, int, str], None]
"""Progress callback: runs done, runs in total, description of the next one."""

Between = Callable[[float], object]
"""Callback between two repetitions: the share of repetitions that is done."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of one real run.

    reason: why it failed; "" if it finished.
    took: wall-clock seconds, overhead included.
    foreign: mean cores used by other processes during the run.
    stolen: mean cores taken by other virtual machines during the run.
    load: load episodes as carried out.
    pace: seconds of a bare step on each core before and after the run.
    aside: pace and makespan of earlier attempts that were disturbed.
    failed_tries: reasons of attempts that failed after a disturbed one had finished.
    """

    case: Case
    repetition: int
    folder: Path
    finished: bool
    reason: str
    took: float
    foreign: float
    stolen: float
    load: tuple[Mapping[str, Any], ...]
    pace: tuple[Sequence[float], ...] = ()
    aside: tuple[Mapping[str, Any], ...] = ()
    failed_tries: tuple[str, ...] = ()

    def disturbed(self, usual: float) -> bool:
        """Whether a core that it used was off the usual pace before or after the run."""
        return any(off(each, usual, self.case) for each in self.pace)

    def run(self) -> Run:
        """The recorded run."""
        return Run.read(self.folder)


@dataclass
class Campaign:
    """Runs the cases of a plan for real, in a folder.

    predicted: predicted makespan of each case in seconds, for planning and time limits.
    file: the profile from which policies get their hints.
    alone: the step that times the pace of the cores.
    usual: seconds of that step by the profile.
    """

    plan: ValidationPlan
    folder: Path
    predicted: Mapping[Case, float]
    file: Path
    alone: PaceRequest
    usual: float

    def repetitions(self, wanted: int, minutes: float) -> int:
        """Number of repetitions that fit into the time.  Raises `InputError` for none."""
        one = sum(seconds + OVERHEAD for seconds in self.predicted.values())
        fit = math.floor(60 * minutes / one)
        if fit < 1:
            raise InputError(
                f"--minutes {minutes:g}: one repetition of {len(self.predicted)} cases takes about "
                f"{one / 60:.1f} minutes; give more --minutes or fewer --steps"
            )
        return min(wanted, fit)

    def carry_out(
        self,
        repetitions: int,
        on_run: OnRun = lambda *_: None,
        minutes: float = math.inf,
        between: Between = lambda _: None,
    ) -> list[RunOutcome]:
        """Run all cases without an outcome; returns the outcomes of all runs in order.

        minutes: after this time no repetition starts, no run is repeated, and no wait for calm
            cores begins; time in `between` does not count.
        """
        wanted = [(case, k) for k in range(repetitions) for case in self.plan.cases]
        found: list[RunOutcome] = []
        most = max(case.ranks for case in self.plan.cases)
        until = time.monotonic() + 60 * minutes
        with RankPool(most, self.plan.workload) as ranks:
            for number, (case, k) in enumerate(wanted):
                first, known = number % len(self.plan.cases) == 0, self.outcome(case, k)
                if first and k and known is None:
                    started = time.monotonic()
                    between(k / repetitions)
                    until += time.monotonic() - started
                late = time.monotonic() > until
                if late and first and known is None:
                    break
                on_run(number, len(wanted), f"{case.name}, repetition {k + 1}")
                if known is None or (not late and self._must_repeat(known)):
                    known = self._run(ranks, case, k, until)
                found.append(known)
        return found

    def outcome(self, case: Case, repetition: int) -> RunOutcome | None:
        """The outcome on disk; None for a run that has none."""
        folder = self._at(case, repetition)
        record = _read_outcome(folder)
        if record is None:
            return None
        tries = map(_read_outcome, _attempts(folder, FAILED))
        failed = tuple(each["reason"] for each in tries if each is not None)
        return RunOutcome(case, repetition, folder, **record, failed_tries=failed)

    def _at(self, case: Case, repetition: int) -> Path:
        return self.folder / RUNS / f"{case.name}-{repetition + 1}"

    def _run(
        self, ranks: RankPool, case: Case, repetition: int, until: float = math.inf
    ) -> RunOutcome:
        """One run, repeated while cores are off their usual pace.

        Disturbed attempts stay on disk.  If a later attempt fails, the last disturbed one counts.
        """
        folder = self._at(case, repetition)
        if self.outcome(case, repetition) is not None:
            _rename_attempt(folder, ASIDE)
        while True:
            aside = _attempts(folder, ASIDE)
            self._wait_for_calm(ranks, case, until)
            disturbed = [_read_disturbed(each) for each in aside]
            found = self._attempt(ranks, case, repetition, disturbed)
            if not found.finished and aside:  # the last disturbed attempt finished
                _rename_attempt(folder, FAILED)
                aside[-1].rename(folder)
                return self.outcome(case, repetition) or found
            if time.monotonic() > until or not self._must_repeat(found):
                return found
            _rename_attempt(folder, ASIDE)

    def _must_repeat(self, known: RunOutcome) -> bool:
        tries = 1 + len(known.aside) + len(known.failed_tries)
        return known.finished and known.disturbed(self.usual) and tries < TRIES

    def _wait_for_calm(self, ranks: RankPool, case: Case, until: float) -> None:
        """Wait at most `CALM` seconds for cores at the usual pace; failures are left to the run."""
        until = min(until, time.monotonic() + CALM)
        with contextlib.suppress(Skipped):
            while time.monotonic() < until and off(ranks.pace(self.alone), self.usual, case):
                time.sleep(PAUSE)

    def _attempt(
        self, ranks: RankPool, case: Case, repetition: int, aside: Sequence[Mapping[str, Any]]
    ) -> RunOutcome:
        folder = self._at(case, repetition)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started, reason = time.monotonic(), ""
        load: list[Mapping[str, Any]] = []
        pace: list[list[float]] = []
        with Occupancy() as seen:
            try:
                pace.append(ranks.pace(self.alone))
                self._train(ranks, case, repetition, folder, load)
                pace.append(ranks.pace(self.alone))
            except (SimstragError, Skipped) as failure:
                reason = str(failure)
        record = {
            "finished": not reason, "reason": reason, "took": round(time.monotonic() - started, 3),
            "foreign": round(seen.foreign, 4), "stolen": round(seen.stolen, 4), "load": load,
            "pace": pace, "aside": aside,
        }  # fmt: skip
        write_json(folder / OUTCOME, plain(record))
        found = self.outcome(case, repetition)
        assert found is not None
        return found

    def _train(
        self,
        ranks: RankPool,
        case: Case,
        repetition: int,
        folder: Path,
        load: list[Mapping[str, Any]],
    ) -> None:
        plan, store = self.plan, folder / "store"
        training = Training(
            plan.workload, case.policy, plan.samples(case), plan.worker_batch(case),
            plan.seed + repetition, plan.precision, str(self.file) if case.shards == 1 else None,
            str(folder), shards=case.shards,
        )  # fmt: skip
        order = RunRequest(str(store), case.ranks, training, self._warm(case))
        limit = START + PATIENCE * self.predicted[case]
        with _load_by(plan.schedule(case), load) as go:
            answers = ranks.run(order, limit, go)
        store.unlink(missing_ok=True)
        result = {"accuracy": answers[0]["accuracy"]}
        (folder / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        finish(folder)

    def _warm(self, case: Case) -> tuple[tuple[str, int], ...]:
        """Warm-up policies and steps; served policies warm up on bsp, to start one server only."""
        hints = profile_hints(self.file, self.plan.batch, self.plan.samples(case))
        own = {case.policy: 3} if synchronous(case, hints) else {}
        reduced = {} if self.plan.precision == "full" else {"amp_all": 3}
        return tuple(({"bsp": 5} | reduced | own).items())


def off(pace: Sequence[float], usual: float, case: Case) -> bool:
    """Whether a core that a case uses deviates from the usual pace by more than `OFF`."""
    return any(abs(each - usual) > OFF * usual for each in pace[: case.ranks])


def count_finished(folder: Path) -> int:
    """Number of finished runs of a validation, without attempts that do not count."""
    runs = [each for each in (folder / RUNS).glob("*") if not TRY.search(each.name)]
    return sum(record["finished"] for each in runs if (record := _read_outcome(each)) is not None)


def _read_outcome(folder: Path) -> dict[str, Any] | None:
    """The outcome file of an attempt; None for an interrupted one."""
    try:
        return dict(json.loads((folder / OUTCOME).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _attempts(folder: Path, word: str) -> list[Path]:
    """Folders of the attempts of a run with this suffix, oldest first."""
    found = folder.parent.glob(f"{folder.name}{word}*")
    return sorted(found, key=lambda each: int(each.name.rpartition("-")[2]))


def _rename_attempt(folder: Path, word: str) -> None:
    folder.rename(folder.with_name(f"{folder.name}{word}{len(_attempts(folder, word)) + 1}"))


def _read_disturbed(folder: Path) -> dict[str, Any]:
    """Pace and makespan of a disturbed attempt."""
    record = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    return {"pace": record["pace"], "makespan": Run.read(folder).summary["makespan"]}


@contextlib.contextmanager
def _load_by(
    schedule: Schedule, load: list[Mapping[str, Any]]
) -> Iterator[Callable[[float], object]]:
    """Yields a function that starts the schedule; appends the episodes carried out to `load`."""
    if not schedule.episodes:
        yield lambda zero: None
        return
    with Injector(schedule) as injector:
        yield injector.go
    injector.check()
    load += [each.document() for each in injector.done]


@contextlib.contextmanager
def lock_folder(folder: Path, plan: ValidationPlan) -> Iterator[None]:
    """Write the plan to the folder and lock the folder.

    Raises `InputError` if another validation uses the folder, or if it holds other files.
    """
    text = json.dumps(plain(plan.document()), indent=1) + "\n"
    written = folder / PLAN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_others(folder)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        taken = "another validation is running there; wait, or choose another folder"
        lock_file(lock, f"{folder}: {taken}")
        started = written.exists() and (folder / RUNS).exists()
        if started and written.read_text(encoding="utf-8") != text:
            raise InputError(
                f"{folder}: holds another validation, with another profile, seed, policies or "
                "number of steps; choose another folder, or repeat the same command to resume it"
            )
        write_atomically(written, lambda part: part.write_text(text, encoding="utf-8"))
        yield
    finally:
        os.close(lock)


def refuse_others(
    folder: Path, own: str = PLAN, also: Sequence[str] = (LOCK, CALIBRATION, REPLICA)
) -> None:
    """Raises `InputError` for a folder that holds other files; with `own` in it, it may."""
    refuse_file(folder)
    there = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    if own not in there and there.difference(also):
        raise InputError(f"{folder}: holds other files; choose a folder that does not exist yet")
