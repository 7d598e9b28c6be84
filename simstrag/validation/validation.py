"""Validation: runs cases on real ranks, predicts them from a calibration, and compares.

`cases` chooses the runs, `real_runs` runs and `prediction` simulates them, `case_results` compares.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from simstrag.calibration.benches.machine_state import FOREIGN_LIMIT
from simstrag.calibration.calibrate import PROFILE, Calibration
from simstrag.calibration.cells import MeasurementCell
from simstrag.calibration.measurement_rounds import OnPlan, OnVisit
from simstrag.calibration.plan import CalibrationRequest
from simstrag.ddp.policy_support import profile_hints
from simstrag.documents.file_io import write_atomically, write_json
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.processes.children import require_posix
from simstrag.profile.profile import Profile
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import plain
from simstrag.validation.case_results import Result, build_case_result, paces
from simstrag.validation.cases import CLEAN, Case, ValidationPlan, cases_of, draw_schedule
from simstrag.validation.distributions import FEWEST, Distributions, compare
from simstrag.validation.prediction import Predictor, synchronous
from simstrag.validation.rank_pool import PaceRequest, RankPool, ReplicaPaceRequest
from simstrag.validation.real_runs import (
    CALIBRATION,
    FAILED,
    REPLICA,
    RUNS,
    Campaign,
    OnRun,
    RunOutcome,
    lock_folder,
    refuse_others,
)
from simstrag.validation.run_metrics import sample
from simstrag.workloads.device import describe_device

LONG = 0.040
"""Step time, in seconds, below which unmodelled overhead matters; shorter steps get a remark."""

FIRST = 0.5
"""Share of the calibration time spent before the first repetition."""

SHARDED = ("korel", "lb_bsp", "asgd", "backup", "diloco:h=10")
"""Policies of a validation with shards, unless others are asked for."""

BEGUN = "begun.json"
"""File of the profile as it was before the first repetition."""

LATE = 0.1
"""Delay of load, in seconds, above which there is a remark."""


@dataclass(frozen=True)
class Validation:
    """The result of a validation and its folder."""

    result: Result
    folder: Path

    @property
    def failed(self) -> bool:
        """Whether any real run failed."""
        return bool(self.result.failed)

    def _repr_html_(self) -> str:
        return html_fragment(self.result)

    def write(self, command: str | None = None) -> Path:
        """Write validation.json, validation.csv and report.html; returns the report."""
        result, page = self.result, self.folder / "report.html"
        write_json(self.folder / "validation.json", plain(result.document()))
        table = pd.DataFrame(result.rows())
        write_atomically(
            self.folder / "validation.csv",
            lambda part: table.to_csv(part, index=False, lineterminator="\r\n"),
        )
        html = html_page(result, command)
        write_atomically(page, lambda part: part.write_text(html, encoding="utf-8"))
        return page


class InterleavedCalibration:
    """A calibration of the CPU that alternates with the repetitions of a validation.

    A shared machine changes by the minute. Half of the calibration runs before the first repetition
    and the rest between repetitions, so that both see the same conditions.

    request: what to measure, and the total minutes.
    folder: folder of the validation; the calibration goes into its subfolder `calibration`.
    policies, ranks: the cases of the validation, checked before anything is measured.
    only: the cells to measure; all that the request wants by default.

    Raises `InputError` for an unknown workload, for a policy that cannot run for real and for a
    folder that holds runs of another profile or another calibration.
    """

    def __init__(
        self,
        request: CalibrationRequest,
        folder: str | Path,
        policies: Sequence[str] = (),
        ranks: Sequence[int] = (),
        only: Collection[MeasurementCell] = (),
    ) -> None:
        require_posix("a validation")
        self.request, self.place = replace(request, device="cpu"), Path(folder) / CALIBRATION
        self.only = only
        refuse_others(Path(folder))
        _check_cases(policies, ranks)
        self._calibration().check_folder()
        if (Path(folder) / RUNS).exists() and not self.first_profile.exists():
            raise InputError(
                f"{folder}: holds a validation of a finished profile; choose another folder, or "
                "give that --profile to resume it"
            )

    def _calibration(self) -> Calibration:
        return Calibration(self.request, self.place, only=self.only)

    @property
    def first_profile(self) -> Path:
        """File of the profile before the first repetition; it determines the plan."""
        return self.place / BEGUN

    def begin(self, on_visit: OnVisit | None = None, on_plan: OnPlan = lambda text: None) -> Path:
        """Measure the part before the first repetition; returns its profile."""
        if not self.first_profile.exists():
            text = self.go_on(0.0, on_visit, on_plan).read_text(encoding="utf-8")
            write_atomically(
                self.first_profile, lambda part: part.write_text(text, encoding="utf-8")
            )
        return self.first_profile

    def go_on(
        self,
        done: float,
        on_visit: OnVisit | None = None,
        on_plan: OnPlan = lambda text: None,
    ) -> Path:
        """Measure the part due after a share of the repetitions; returns the whole profile."""
        calibration = self._calibration()
        calibration.run(on_visit, calibration.minutes * (FIRST + (1 - FIRST) * done), on_plan)
        return self.place / PROFILE


def validate(
    profile: str | Path | InterleavedCalibration,
    folder: str | Path,
    policies: Sequence[str] = (),
    ranks: Sequence[int] = (),
    *,
    shards: int = 1,
    steps: int = 300,
    repetitions: int = 5,
    minutes: float = 45.0,
    seed: int = 0,
    on_run: OnRun = lambda *_: None,
    on_plan: Callable[[str], None] = lambda _: None,
) -> Validation:
    """Run cases on real ranks of this machine and compare each with its prediction.

    profile: file of the calibration of this machine, which fixes workload, batch and precisions; or
        an `InterleavedCalibration`, whose first part fixes the plan and the policies' hints, and
        whose whole profile the simulation uses.
    folder: receives all records; the same call resumes an interrupted validation.
    policies, ranks: replace the default cases (`cases_of`).
    shards: ranks of a worker; above 1, a case has replicas whose model they shard.
    steps: steps of each rank in a run.
    repetitions: real runs of each case.
    minutes: time for real runs; if too short, there are fewer repetitions and a remark.
    seed: determines the schedules of load.
    on_run: progress callback (runs done, runs in total, description).
    on_plan: receives, before the first run, a sentence on what does not fit.

    Raises `InputError` for mistakes that the caller can correct.
    """
    require_posix("a validation")
    calibration = profile if isinstance(profile, InterleavedCalibration) else None
    file = profile.begin() if isinstance(profile, InterleavedCalibration) else Path(profile)
    folder, known = Path(folder), Profile.read(file)
    replica = None if shards == 1 else _replica_step(known, folder, ranks, shards)
    plan = make_plan(known, policies, ranks, steps, seed, shards, replica)
    assert known.workload is not None
    with lock_folder(folder, plan):
        predictor = Predictor(known, plan.cores, replica=replica)
        on_run(0, 1, "simulating")
        predicted = {case: predictor.predict(case, plan) for case in plan.cases}
        campaign = Campaign(
            plan, folder, {case: each.makespan for case, each in predicted.items()},
            file.absolute(), PaceRequest(known.workload.full, plan.batch),
            predictor.pace(max(case.ranks for case in plan.cases)),
        )  # fmt: skip
        fit = campaign.repetitions(repetitions, minutes)
        runs = fit * len(plan.cases)
        if fit < repetitions:
            on_plan(_describe_fit(fit, repetitions, minutes))

        def calibrate(share: float) -> Path:
            """Go on with the calibration, if there is one; returns the profile in force."""

            def report_visit(used: float, total: float, what: str) -> None:
                on_run(round(share * runs), runs, f"calibrating, {what}")

            return file if calibration is None else calibration.go_on(share, report_visit)

        outcomes = campaign.carry_out(fit, on_run, minutes, calibrate)
        if calibration is not None:
            known = Profile.read(calibrate(1.0))
            predictor = Predictor(known, plan.cores, predictor, replica)
            plan = replace(plan, profile=known.name, sha256=known.sha256)
            predicted = {case: predictor.predict(case, plan) for case in plan.cases}
        fit = len(outcomes) // len(plan.cases)
        on_run(1, 1, "comparing")
        results = []
        for case, prediction in predicted.items():
            adapted = predictor.adapt(prediction, plan, paces(case, outcomes))
            found = build_case_result(case, plan, adapted, outcomes)
            own = compare_distributions(predictor, case, plan, outcomes)
            results.append(replace(found, distributions=own))
        constants = tuple(predictor.constants.values())
        remarks = tuple(validation_remarks(known, plan, outcomes, repetitions, fit, minutes))
        parts = tuple(results), tuple(outcomes), constants, remarks
        return Validation(Result(plan, *parts, repetitions, fit), folder)


def compare_distributions(
    predictor: Predictor, case: Case, plan: ValidationPlan, outcomes: Sequence[RunOutcome]
) -> Distributions | None:
    """The distributions of a case; None with fewer than `FEWEST` finished runs.

    outcomes: may contain those of other cases.
    """
    finished = [each for each in outcomes if each.case == case and each.finished]
    if len(finished) < FEWEST:
        return None
    real = [sample(each.run(), plan.samples(case)) for each in finished]
    return compare(real, predictor.draw_runs(case, plan))


def describe_differences(profile: Profile, there: Mapping[str, Any] | None = None) -> list[str]:
    """Differences between the machine of a profile and this one, a sentence each.

    there: description of another machine to compare with, as by `describe_device`.
    """
    device, where = (describe_device(), "here it is") if there is None else (there, "the run's")
    return [
        f"the profile is of another machine: its {word} is {profile.device[word]!r}, "
        f"{where} {device.get(word)!r}"
        for word in ("model", "cores", "flags")
        if profile.device.get(word) not in (None, device.get(word))
    ]


def _replica_step(
    profile: Profile, folder: Path, ranks: Sequence[int], shards: int
) -> dict[str, float]:
    """Seconds of a step of a replica here, measured once and kept in the folder."""
    kept, workload = folder / REPLICA, profile.workload
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    if workload is None:
        raise InputError(f"profile {profile.name} has no workload to train")
    most = max(ranks, default=2 * shards)
    with RankPool(most, workload.name) as pool, tempfile.TemporaryDirectory() as place:
        asked = ReplicaPaceRequest(
            f"{place}/store", most, shards, workload.name, workload.batch, _precision(profile)
        )
        found = pool.replica_pace(asked)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(kept, found)
    return found


def _precision(profile: Profile) -> str:
    """The argument of `simstrag.ddp.wrap` for the precisions of a profile."""
    assert profile.workload is not None
    if profile.workload.stand_in:
        return "stand-in"
    return "bf16" if profile.workload.amp.startswith("bf16") else "full"


def make_plan(
    profile: Profile,
    policies: Sequence[str],
    ranks: Sequence[int],
    steps: int,
    seed: int,
    shards: int = 1,
    replica: Mapping[str, float] | None = None,
) -> ValidationPlan:
    """The plan of a validation.  Raises `InputError` for anything that cannot run.

    replica: seconds of a step of a replica; for `shards` above 1.
    """
    from simstrag.workloads import load

    workload = profile.workload
    if workload is None or profile.step is None:
        raise InputError(
            f"profile {profile.name} has no workload to train; make one with "
            "`simstrag calibrate --workload digits`"
        )
    if profile.device.get("kind", "cpu") != "cpu":
        raise InputError(
            f"profile {profile.name} is of a GPU, but validation runs on the CPU; calibrate with "
            "--device cpu"
        )
    load(workload.name)
    cases = _check_cases(policies, ranks, steps, profile, workload.batch, shards)
    count = len(cores())
    predictor = Predictor(profile, count, replica=replica)
    case_of = {case.ranks: case for case in cases}  # cases of one world size have equal steps
    clean = {world: predictor.clean(case) for world, case in case_of.items()}
    schedules = {
        (world, name): draw_schedule(name, world, clean[world], seed, profile)
        for world, name in dict.fromkeys(case.place for case in cases)
    }
    what = (workload.name, workload.batch, _precision(profile))
    return ValidationPlan(cases, schedules, *what, seed, count, profile.name, profile.sha256)


def _check_cases(
    policies: Sequence[str],
    ranks: Sequence[int],
    steps: int = 1,
    profile: Profile | None = None,
    batch: int = 1,
    shards: int = 1,
) -> tuple[Case, ...]:
    """The requested cases on this machine.  Raises `InputError` for one that cannot run."""
    if shards > 1:
        ranks, policies = ranks or (2 * shards,), policies or SHARDED
        if odd := [world for world in ranks if world % shards or world == shards]:
            raise InputError(
                f"shards {shards}: {odd[0]} ranks are not two or more replicas of {shards}; give "
                f"--ranks {2 * shards}"
            )
    if any(world < 2 for world in ranks):
        raise InputError(f"ranks {min(ranks)}: a single rank waits for no other; give 2 or more")
    cases = cases_of(policies, ranks, steps, len(cores()), shards)
    for case in cases:
        synchronous(case, profile_hints(profile, batch, case.steps * case.ranks * batch))
    return cases


def _describe_fit(fit: int, requested: int, minutes: float) -> str:
    spread = "unknown" if fit == 1 else "less certain"
    return (
        f"only {fit} of {requested} repetitions fit into {minutes:g} minutes, so the spread of "
        f"real runs is {spread}"
    )


def validation_remarks(
    profile: Profile,
    plan: ValidationPlan,
    outcomes: Sequence[RunOutcome],
    requested: int,
    fit: int,
    minutes: float,
) -> list[str]:
    """Remarks on how the verdicts came about, a sentence each."""
    assert profile.step is not None
    remarks = []
    if fit < requested:
        remarks.append(_describe_fit(fit, requested, minutes))
    compute = profile.step.compute.value
    if compute < LONG:
        remarks.append(
            f"a step takes {1000 * compute:.3g} ms; below {1000 * LONG:.0f} ms costs that no "
            "profile has, such as the policy's own decisions, are no longer small"
        )
    if profile.software.get("freed_memory") != "kept":
        remarks.append(
            "the profile was measured by processes that may have returned freed memory at every "
            "step, which is slower; ranks here keep it"
        )
    remarks += describe_differences(profile)
    if plan.precision == "stand-in":
        remarks.append(
            "reduced precision is a stand-in (fp32 compute on fp64 parameters), because bf16 is "
            "not faster on this CPU"
        )
    timed = {each.ranks for each in profile.locksteps if each.batch == plan.batch}
    for ranks in sorted({case.ranks for case in plan.cases} - timed):
        shared = ", and a second rank on a core counts as one more level of load"
        remarks.append(
            f"the profile has no lockstep times of {ranks} ranks: the runtime's own work counts as "
            f"0{shared if ranks > plan.cores else ''}; calibrate again with the part lockstep, "
            "which times 2 and 4 ranks"
        )
    used = [max(each.foreign, each.stolen) for each in outcomes]
    if disturbed := [share for share in used if share > FOREIGN_LIMIT]:
        remarks.append(
            f"in {len(disturbed)} of {len(outcomes)} runs other processes or virtual machines used "
            f"more than {FOREIGN_LIMIT:g} of a core, {max(disturbed):.2f} at most"
        )
    late = [load["late"] for each in outcomes for load in each.load]
    if late and max(late) > LATE:
        remarks.append(f"load started up to {max(late):.2f} s late")
    loaded = [each for each in outcomes if each.finished and each.case.schedule != CLEAN]
    if idle := [each for each in loaded if not each.load]:
        remarks.append(
            f"{len(idle)} of {len(loaded)} runs under load were too short: they ended before any "
            "load"
        )
    if missed := [each for each in loaded if any(load["off"] for load in each.load)]:
        remarks.append(
            f"in {len(missed)} of {len(loaded)} runs under load some load used noticeably more or "
            "less of a core than its level"
        )
    remarks += [
        f"a repeated attempt failed; the earlier one counts: {each.case.name}, repetition "
        f"{each.repetition + 1}: {reason} (kept as runs/{each.folder.name}{FAILED}*)"
        for each in outcomes
        for reason in each.failed_tries
    ]
    remarks += [
        f"a run failed: {each.case.name}, repetition {each.repetition + 1}: {each.reason} (to "
        f"repeat it, delete runs/{each.folder.name} and give the same command)"
        for each in outcomes
        if not each.finished
    ]
    return remarks
