"""Real runs of the cases of a plan, one record each, resumed where they stopped.

Repetition 1 of every case comes before repetition 2 of any, so that what drifts within minutes
falls on all alike, and what is compared ran side by side.
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

from simstrag.calibration.benches.occupancy import Occupancy
from simstrag.calibration.cells import Skipped
from simstrag.ddp.hints import hints_of
from simstrag.ddp.record.replay import finish
from simstrag.documents.paths import hold, write_json, write_whole
from simstrag.errors import InputError, SimstragError
from simstrag.runs.run import Run, plain
from simstrag.validation.cases import Case, Plan
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.schedule import Schedule
from simstrag.validation.prediction import synchronous
from simstrag.validation.rank_pool import Failed, Order, Pace, Ranks

__all__ = ["CALIBRATION", "Between", "Campaign", "Outcome", "finished", "held", "refuse_others"]

PLAN, RUNS, OUTCOME, LOCK = "plan.json", "runs", "outcome.json", ".lock"
CALIBRATION = "calibration"
"""Where a validation that calibrates first has its profile."""

OVERHEAD = 8.0
"""Seconds that a run takes beside its steps: warming up, a server's start, load processes."""

START, PATIENCE = 120.0, 5.0
"""Seconds, and how many times as long as predicted, after which a run is given up."""

OFF, TRIES = 0.15, 5
"""By how much the pace of a core may differ from the calibrated one; how often a run is made, else.

Who computes on the other thread of a core slows steps by a quarter.  Where such neighbours come and
go every few seconds the calibrated pace lies between both, and either is within `OFF` of it; where
they are there or not for minutes the other one is not.
"""

CALM, PAUSE = 60.0, 5.0
"""Seconds for which a run waits for cores of that pace, and between two looks."""

ASIDE, FAILED = ".aside-", ".failed-"
"""In the names of folders of tries that do not count: those that were disturbed, and those that
failed where a disturbed one had finished."""

TRY = re.compile(f"({re.escape(ASIDE)}|{re.escape(FAILED)})[0-9]+$")
"""The end of such names."""

OnRun = Callable[[int, int, str], None]
"""Told runs done, runs to do, and what comes next."""

Between = Callable[[float], object]
"""Called between two repetitions with the share of them that is done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run went. reason: of one that failed.  load: what was really done for load.

    took: seconds, all included.  foreign, stolen: cores that other processes and other machines
    took meanwhile.  pace: seconds of a step of nothing else on each core before the run, and after
    it (`Ranks.pace`).  aside: pace and makespan of tries before it, which were disturbed.
    failed_tries: why others came to nothing.
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
        """Whether a core that it used was not of the usual pace, before it or after."""
        return any(off(each, usual, self.case) for each in self.pace)

    def run(self) -> Run:
        """Its record."""
        return Run.read(self.folder)


class Campaign:
    """The real runs of a plan, in a folder.

    predicted: seconds that each case should take, by which time is planned and runs are given up.
    file: the profile that policies are told.  alone: what the cores' pace is timed with; usual:
    seconds of that by the profile.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        predicted: Mapping[Case, float],
        file: Path,
        alone: Pace,
        usual: float,
    ) -> None:
        self.plan, self.folder, self.predicted, self.file = plan, folder, predicted, file
        self.alone, self.usual = alone, usual

    @property
    def round_seconds(self) -> float:
        """Of one repetition of all cases, about."""
        return sum(seconds + OVERHEAD for seconds in self.predicted.values())

    def repetitions(self, wanted: int, minutes: float) -> int:
        """How many fit into the time.  Raises `InputError` where not even one does."""
        fit = math.floor(60 * minutes / self.round_seconds)
        if fit < 1:
            raise InputError(
                f"--minutes {minutes:g}: one repetition of {len(self.predicted)} cases takes about "
                f"{self.round_seconds / 60:.1f} minutes; give as many, or fewer --steps"
            )
        return min(wanted, fit)

    def carry_out(
        self,
        repetitions: int,
        on_run: OnRun = lambda *_: None,
        minutes: float = math.inf,
        between: Between = lambda _: None,
    ) -> list[Outcome]:
        """Do what is not done yet; the outcomes of all runs, in their order.

        When so many minutes have passed no further repetition is begun, and nothing is made again
        or waited for; `between` is not counted.
        """
        wanted = [(case, k) for k in range(repetitions) for case in self.plan.cases]
        found: list[Outcome] = []
        most = max(case.ranks for case in self.plan.cases)
        until = time.monotonic() + 60 * minutes
        with Ranks(most, self.plan.workload) as ranks:
            for number, (case, k) in enumerate(wanted):
                first = number % len(self.plan.cases) == 0
                if first and k and self.outcome(case, k) is None:
                    begun = time.monotonic()
                    between(k / repetitions)
                    until += time.monotonic() - begun
                late = time.monotonic() > until
                if late and first and self.outcome(case, k) is None:
                    break
                on_run(number, len(wanted), f"{case.name}, repetition {k + 1}")
                known = self.outcome(case, k)
                if known is None or (not late and self._is_again(known)):
                    known = self._run(ranks, case, k, until)
                found.append(known)
        return found

    def outcome(self, case: Case, repetition: int) -> Outcome | None:
        """Of a run that was done before."""
        folder = self._at(case, repetition)
        told = _outcome(folder)
        if told is None:
            return None
        tries = map(_outcome, _beside(folder, FAILED))
        failed = tuple(each["reason"] for each in tries if each is not None)
        return Outcome(case, repetition, folder, **told, failed_tries=failed)

    def _at(self, case: Case, repetition: int) -> Path:
        return self.folder / RUNS / f"{case.name}-{repetition + 1}"

    def _run(self, ranks: Ranks, case: Case, repetition: int, until: float = math.inf) -> Outcome:
        """One run; another where cores were not of the usual pace, whatever it came to.

        Those before it are kept beside it.  Where it fails after some of them it is kept too, and
        the last of them counts.
        """
        folder = self._at(case, repetition)
        if self.outcome(case, repetition) is not None:
            _set_aside(folder, ASIDE)
        while True:
            aside = _beside(folder, ASIDE)
            self._calm(ranks, case, until)
            found = self._tried(ranks, case, repetition, [_told(each) for each in aside])
            if not found.finished and aside:  # a finished one is better than none
                _set_aside(folder, FAILED)
                aside[-1].rename(folder)
                return self.outcome(case, repetition) or found
            if time.monotonic() > until or not self._is_again(found):
                return found
            _set_aside(folder, ASIDE)

    def _is_again(self, known: Outcome) -> bool:
        """Whether a run that is there is to be made again."""
        tries = 1 + len(known.aside) + len(known.failed_tries)
        return known.finished and known.disturbed(self.usual) and tries < TRIES

    def _calm(self, ranks: Ranks, case: Case, until: float) -> None:
        """Wait for cores of the usual pace, for `CALM` seconds at most; a failure is the run's."""
        until = min(until, time.monotonic() + CALM)
        with contextlib.suppress(Failed):
            while time.monotonic() < until and off(ranks.pace(self.alone), self.usual, case):
                time.sleep(PAUSE)

    def _tried(
        self, ranks: Ranks, case: Case, repetition: int, aside: Sequence[Mapping[str, Any]]
    ) -> Outcome:
        """One try from nothing: what a broken one left is taken away."""
        folder = self._at(case, repetition)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun, reason = time.monotonic(), ""
        load: list[Mapping[str, Any]] = []
        pace: list[list[float]] = []
        with Occupancy() as seen:
            try:
                pace.append(ranks.pace(self.alone))
                self._train(ranks, case, repetition, folder, load)
                pace.append(ranks.pace(self.alone))
            except (SimstragError, Skipped) as failure:
                reason = str(failure)
        told = {
            "finished": not reason, "reason": reason, "took": round(time.monotonic() - begun, 3),
            "foreign": round(seen.foreign, 4), "stolen": round(seen.stolen, 4), "load": load,
            "pace": pace, "aside": aside,
        }  # fmt: skip
        write_json(folder / OUTCOME, plain(told))
        found = self.outcome(case, repetition)
        assert found is not None
        return found

    def _train(
        self, ranks: Ranks, case: Case, repetition: int, folder: Path, load: list[Mapping[str, Any]]
    ) -> None:
        plan, store = self.plan, folder / "store"
        order = Order(
            str(store), case.ranks, case.policy, plan.workload, plan.batch, plan.samples(case),
            plan.precision, str(self.file), str(folder), plan.seed + repetition, self._warm(case),
        )  # fmt: skip
        limit = START + PATIENCE * self.predicted[case]
        with _loaded(plan.schedule(case), load) as go:
            answers = ranks.run(order, limit, go)
        store.unlink(missing_ok=True)
        result = {"accuracy": answers[0]["accuracy"]}
        (folder / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        finish(folder)

    def _warm(self, case: Case) -> tuple[tuple[str, int], ...]:
        """A server is not started twice: its ranks take the same steps as those of DDP."""
        hints = hints_of(self.file, self.plan.batch, self.plan.samples(case))
        own = {case.policy: 3} if synchronous(case, hints) else {}
        reduced = {} if self.plan.precision == "full" else {"amp_all": 3}
        return tuple(({"bsp": 5} | reduced | own).items())


def off(pace: Sequence[float], usual: float, case: Case) -> bool:
    """Whether a core that a case uses is not of the usual pace."""
    return any(abs(each - usual) > OFF * usual for each in pace[: case.ranks])


def finished(folder: Path) -> int:
    """How many runs of a validation have finished so far, tries that do not count left out."""
    runs = [each for each in (folder / RUNS).glob("*") if not TRY.search(each.name)]
    return sum(told["finished"] for each in runs if (told := _outcome(each)) is not None)


def _outcome(folder: Path) -> dict[str, Any] | None:
    """What is written of a try; None of one that was broken off."""
    try:
        return dict(json.loads((folder / OUTCOME).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _beside(folder: Path, word: str) -> list[Path]:
    """The tries beside one that have the word in their names, the first one first."""
    found = folder.parent.glob(f"{folder.name}{word}*")
    return sorted(found, key=lambda each: int(each.name.rpartition("-")[2]))


def _set_aside(folder: Path, word: str) -> None:
    folder.rename(folder.with_name(f"{folder.name}{word}{len(_beside(folder, word)) + 1}"))


def _told(folder: Path) -> dict[str, Any]:
    """Pace and makespan of a run that was set aside."""
    told = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    return {"pace": told["pace"], "makespan": Run.read(folder).summary["makespan"]}


@contextlib.contextmanager
def _loaded(
    schedule: Schedule, load: list[Mapping[str, Any]]
) -> Iterator[Callable[[float], object]]:
    """Load by a schedule from the moment that is told; what was really done enters `load`."""
    if not schedule.episodes:
        yield lambda zero: None
        return
    with Injector(schedule) as injector:
        yield injector.go
    injector.check()
    load += [each.document() for each in injector.done]


@contextlib.contextmanager
def held(folder: Path, plan: Plan) -> Iterator[None]:
    """The folder of a plan, which is written down there; nobody else uses it meanwhile.

    Raises `InputError` where another validation is in it, or goes on in it, or other files are.
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
        taken = "another validation is under way there; wait, or choose another folder"
        hold(lock, f"{folder}: {taken}")
        begun = written.exists() and (folder / RUNS).exists()
        if begun and written.read_text(encoding="utf-8") != text:
            raise InputError(
                f"{folder}: another validation is in it, with another profile, seed, policies or "
                "number of steps; choose another folder, or ask for the same to go on"
            )
        write_whole(written, lambda part: part.write_text(text, encoding="utf-8"))
        yield
    finally:
        os.close(lock)


def refuse_others(folder: Path) -> None:
    """Raises `InputError` for a folder with files of anything else than a validation."""
    there = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    if PLAN not in there and there - {LOCK, CALIBRATION}:
        raise InputError(f"{folder}: holds other files; choose a folder that does not exist yet")
