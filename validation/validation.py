"""Runs cases for real, simulates the same from the calibration alone, and compares."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simstrag.calibration.benches.occupancy import LIMIT
from simstrag.calibration.calibrate import PROFILE, Asked, Calibration
from simstrag.calibration.campaign import OnVisit
from simstrag.ddp.hints import hints_of
from simstrag.documents.paths import write_json, write_whole
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.profile.profile import Profile
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import plain
from simstrag.validation.campaign import (
    CALIBRATION,
    FAILED,
    RUNS,
    Campaign,
    Outcome,
    held,
    refuse_others,
)
from simstrag.validation.cases import CLEAN, Case, Plan, cases_of, drawn
from simstrag.validation.prediction import SEEDS, Predictor, synchronous
from simstrag.validation.rank_pool import Pace
from simstrag.validation.result import Result, of_case, paces
from simstrag.workloads.device import describe_device

__all__ = ["Calibrating", "Validation", "elsewhere", "planned", "validate"]

LONG = 0.040
"""Seconds that a step should take at least, for what is in no profile to be small beside it."""

FIRST = 0.5
"""Part of a calibration's minutes that comes before the first repetition."""

BEGUN = "begun.json"
"""The profile of that part, beside the one of all."""

LATE = 0.1
"""Seconds by which load may begin late without being told."""

OnRun = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Validation:
    """What came of it, and the folder in which all of it is.

    result: cases with their verdicts, rankings, mitigation, constants, remarks.
    """

    result: Result
    folder: Path

    @property
    def failed(self) -> bool:
        """Whether any run came to nothing."""
        return bool(self.result.failed)

    def _repr_html_(self) -> str:
        return html_fragment(self.result)

    def write(self, command: str | None = None) -> Path:
        """Write validation.json, validation.csv and report.html; the report."""
        result, page = self.result, self.folder / "report.html"
        write_json(self.folder / "validation.json", plain(result.document()))
        write_whole(self.folder / "validation.csv", self._table)
        html = html_page(result, command)
        write_whole(page, lambda part: part.write_text(html, encoding="utf-8"))
        return page

    def _table(self, path: Path) -> None:
        rows = [plain(row) for row in self.result.rows()]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


class Calibrating:
    """A calibration of the CPU that takes turns with the repetitions of a validation.

    A machine that others use too changes by the minute, and what calibration meets should be what
    the runs meet: half of its minutes come before the first repetition, the others between them.

    asked: what to measure, in minutes in all.  folder: of the validation; it goes into
    `calibration` of that.  policies, ranks: those to be validated, of which one that cannot run for
    real is refused before anything is measured, and so is a folder with runs of another profile.
    Raises `InputError`.
    """

    def __init__(
        self,
        asked: Asked,
        folder: str | Path,
        policies: Sequence[str] = (),
        ranks: Sequence[int] = (),
    ) -> None:
        self.asked, self.place = replace(asked, device="cpu"), Path(folder) / CALIBRATION
        refuse_others(Path(folder))
        _possible(policies, ranks)
        if (Path(folder) / RUNS).exists() and not self.begun.exists():
            raise InputError(
                f"{folder}: a validation with a profile that was whole before it is in it; choose "
                "another folder, or give that --profile to go on"
            )

    @property
    def begun(self) -> Path:
        """The profile as it was before the first repetition, by which the plan is made."""
        return self.place / BEGUN

    def begin(self, on_visit: OnVisit | None = None) -> Path:
        """Measure what comes before the first repetition, as far as it was not; that profile."""
        Calibration.of(self.asked, self.place).check_kept()
        if not self.begun.exists():
            text = self.go_on(0.0, on_visit).read_text(encoding="utf-8")
            write_whole(self.begun, lambda part: part.write_text(text, encoding="utf-8"))
        return self.begun

    def go_on(self, done: float, on_visit: OnVisit | None = None) -> Path:
        """Measure what is due when that share of the repetitions is done; the profile of all."""
        calibration = Calibration.of(self.asked, self.place)
        calibration.run(on_visit, calibration.minutes * (FIRST + (1 - FIRST) * done))
        return self.place / PROFILE


def validate(
    profile: str | Path | Calibrating,
    folder: str | Path,
    policies: Sequence[str] = (),
    ranks: Sequence[int] = (),
    *,
    steps: int = 300,
    repetitions: int = 5,
    minutes: float = 45.0,
    seed: int = 0,
    on_run: OnRun = lambda *_: None,
) -> Validation:
    """Run cases for real on this machine and hold the simulation of each against them.

    profile: the calibration of this machine, a file; workload, batch and precisions are its own.
    Or one that goes on between the repetitions (`Calibrating`): plan and policies know what was
    measured before the first, the simulation all of it.
    folder: of all records; the same call goes on there where it was interrupted.
    policies, ranks: instead of the default cases (`cases_of`).  steps: of each rank in a run.
    minutes: for real runs; where it is too little for `repetitions` there are fewer, which is said.
    Raises `InputError` for what the caller can correct.
    """
    goes_on = profile if isinstance(profile, Calibrating) else None
    file = Path(profile) if not isinstance(profile, Calibrating) else profile.begin()
    folder, known = Path(folder), Profile.read(file)
    plan = planned(known, policies, ranks, steps, seed)
    assert known.workload is not None
    with held(folder, plan):
        predictor = Predictor(known, folder / "predicted", plan.cores)
        on_run(0, 1, "simulating")
        predicted = {case: predictor.predict(case, plan, SEEDS) for case in plan.cases}
        campaign = Campaign(
            plan, folder, {case: each.makespan for case, each in predicted.items()},
            file.absolute(), Pace(known.workload.full, plan.batch),
            predictor.pace(max(case.ranks for case in plan.cases)),
        )  # fmt: skip
        fit = campaign.repetitions(repetitions, minutes)
        if goes_on is None:
            outcomes = campaign.carry_out(fit, on_run, minutes)
        else:

            def between(share: float) -> Path:
                runs = fit * len(plan.cases)

                def told(used: float, total: float, what: str) -> None:
                    on_run(round(share * runs), runs, f"calibrating, {what}")

                return goes_on.go_on(share, told)

            outcomes = campaign.carry_out(fit, on_run, minutes, between)
            known = Profile.read(between(1.0))
            whole = folder / "predicted" / "whole"
            predictor = Predictor(known, whole, plan.cores, told=predictor)
            plan = replace(plan, profile=known.name, sha256=known.sha256)
            predicted = {case: predictor.predict(case, plan, SEEDS) for case in plan.cases}
        fit = len(outcomes) // len(plan.cases)
        on_run(1, 1, "comparing")
        adapted = {
            case: predictor.adapt(predicted[case], plan, paces(case, outcomes))
            for case in plan.cases
        }
        result = Result(
            plan,
            tuple(of_case(case, plan, adapted[case], outcomes) for case in plan.cases),
            tuple(outcomes),
            tuple(predictor.constants.values()),
            tuple(_remarks(known, plan, outcomes, repetitions, fit, minutes)),
            repetitions,
            fit,
        )
    return Validation(result, folder)


def elsewhere(profile: Profile, there: Mapping[str, Any] | None = None) -> list[str]:
    """A line for each way in which a profile's machine is another one than this.

    there: the machine of a run instead, as `describe_device` has it.
    """
    device, where = (describe_device(), "here it is") if there is None else (there, "the run's")
    return [
        f"the profile is of another machine: its {word} is {profile.device[word]!r}, "
        f"{where} {device.get(word)!r}"
        for word in ("model", "cores", "flags")
        if profile.device.get(word) not in (None, device.get(word))
    ]


def planned(
    profile: Profile, policies: Sequence[str], ranks: Sequence[int], steps: int, seed: int
) -> Plan:
    """All that is decided before anything runs; whatever cannot be is refused here.

    Raises `InputError`.
    """
    from simstrag.workloads import load

    workload = profile.workload
    if workload is None or profile.step is None:
        raise InputError(
            f"profile {profile.name} is of no workload, so nothing can be trained as it was timed; "
            "make one with `simstrag calibrate --workload digits`"
        )
    if profile.device.get("kind", "cpu") != "cpu":
        raise InputError(
            f"profile {profile.name} is of a GPU, and real runs are made on the CPU so far; "
            "calibrate with --device cpu"
        )
    load(workload.name)
    cases, count = _possible(policies, ranks, steps, profile, workload.batch), len(cores())
    with tempfile.TemporaryDirectory() as scratch:
        predictor = Predictor(profile, Path(scratch), count)
        one_of = {case.ranks: case for case in cases}  # all of so many ranks take as many steps
        clean = {world: predictor.clean(case) for world, case in one_of.items()}
    places = dict.fromkeys(case.place for case in cases)
    return Plan(
        cases,
        {(world, name): drawn(name, world, clean[world], seed, profile) for world, name in places},
        workload.name,
        workload.batch,
        _precision(profile),
        seed,
        count,
        profile.name,
        profile.sha256,
    )


def _possible(
    policies: Sequence[str],
    ranks: Sequence[int],
    steps: int = 1,
    profile: Profile | None = None,
    batch: int = 1,
) -> tuple[Case, ...]:
    """The cases asked for on this machine.  Raises `InputError` for one that cannot be run."""
    if any(world < 2 for world in ranks):
        raise InputError(f"ranks {min(ranks)}: there is nobody to wait for; give 2 or more")
    cases = cases_of(policies, ranks, steps, len(cores()))
    for case in cases:
        synchronous(case, hints_of(profile, batch, case.steps * case.ranks * batch))
    return cases


def _precision(profile: Profile) -> str:
    """The pair of the profile in the words of `simstrag.ddp.wrap`."""
    assert profile.workload is not None
    if profile.workload.stand_in:
        return "stand-in"
    return "bf16" if profile.workload.amp.startswith("bf16") else "full"


def _remarks(
    profile: Profile, plan: Plan, outcomes: Sequence[Outcome], asked: int, fit: int, minutes: float
) -> list[str]:
    """What somebody who reads the verdicts should know of how they came about."""
    assert profile.step is not None
    said = []
    if fit < asked:
        said.append(
            f"{fit} of {asked} repetitions fit into {minutes:g} minutes, so the spread of real "
            "runs is known less well" + (", of one not at all" if fit == 1 else "")
        )
    compute = profile.step.compute.value
    if compute < LONG:
        said.append(
            f"a step takes {1000 * compute:.3g} ms; below {1000 * LONG:.0f} ms what is in no "
            "profile, such as what a policy takes to decide, weighs more"
        )
    if profile.software.get("freed_memory") != "kept":
        said.append(
            "the profile was measured by processes that may have given memory back at every step, "
            "which takes longer; ranks here keep it"
        )
    said += elsewhere(profile)
    if plan.precision == "stand-in":
        said.append(
            "reduced precision is a stand-in: fp32 compute on fp64 parameters, for a CPU on which "
            "bf16 is not faster"
        )
    timed = {each.ranks for each in profile.locksteps if each.batch == plan.batch}
    for ranks in sorted({case.ranks for case in plan.cases} - timed):
        shared = ", and a second rank on a core taken for one more level of load"
        said.append(
            f"the profile has no steps of {ranks} ranks in lockstep: what the runtime does in a "
            f"step is taken for nothing{shared if ranks > plan.cores else ''}; calibrate anew, "
            "with part lockstep among all others, which times 2 and 4"
        )
    disturbed = [each for each in outcomes if max(each.foreign, each.stolen) > LIMIT]
    if disturbed:
        most = max(max(each.foreign, each.stolen) for each in disturbed)
        said.append(
            f"in {len(disturbed)} of {len(outcomes)} runs others took more than {LIMIT:g} of a "
            f"core, {most:.2f} at most"
        )
    late = [load["late"] for each in outcomes for load in each.load]
    if late and max(late) > LATE:
        said.append(f"load began up to {max(late):.2f} s late")
    loaded = [each for each in outcomes if each.finished and each.case.schedule != CLEAN]
    if idle := [each for each in loaded if not each.load]:
        said.append(
            f"in {len(idle)} of {len(loaded)} runs under load it never was on: they were too short"
        )
    missed = [each for each in loaded if any(load["off"] for load in each.load)]
    if missed:
        said.append(
            f"in {len(missed)} of {len(loaded)} runs under load some of it took noticeably more or "
            "less of a core than its level says"
        )
    failed = [each for each in outcomes if not each.finished]
    said += [
        f"a try failed, beside one that finished and counts: {each.case.name}, repetition "
        f"{each.repetition + 1}: {reason} (it is kept as runs/{each.folder.name}{FAILED}*)"
        for each in outcomes
        for reason in each.failed_tries
    ]
    said += [
        f"a run failed: {each.case.name}, repetition {each.repetition + 1}: {each.reason} (delete "
        f"runs/{each.folder.name} and give the same command to have it made again)"
        for each in failed
    ]
    return said
