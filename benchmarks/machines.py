"""How far the simulation is off on this machine: few cases of `simstrag validate`, often repeated.

    python -m benchmarks.machines --minutes 25      # make validate-here
    python -m benchmarks.machines --quick           # a short try, which writes nothing
    python -m benchmarks.machines --table           # docs/measured/machines.txt, from the rows

Two ranks train the digits without load and beside it, at a batch whose step takes about 50 ms, for
about five seconds a run.  The row goes to `simstrag/validation/measurements/machines.csv`.  Ctrl-C
loses the current run alone: the same command goes on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.results import keep_tables
from benchmarks.tables import Table
from simstrag.calibration.calibrate import PROFILE, Calibration
from simstrag.calibration.cells import MeasurementCell, Part
from simstrag.calibration.plan import CalibrationRequest
from simstrag.cli.progress import show_count, show_seconds
from simstrag.documents.file_io import write_json
from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.runs.run import provenance
from simstrag.validation.case_results import Result
from simstrag.validation.judgement import MISSED, NOISY, PREDICTED
from simstrag.validation.rank_pool import PaceRequest, RankPool
from simstrag.validation.real_runs import CALIBRATION
from simstrag.validation.tables import answer
from simstrag.validation.validation import InterleavedCalibration, validate

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "simstrag" / "validation" / "measurements" / "machines.csv"
FIRST = ROWS.parent / "amd-epyc-2-core-digits"
FOLDER = Path("reports/machines")
LOADS = {"clean": "none", "one": "beside rank 1", "both": "beside 0 and 1 in turn"}
WORDS = {PREDICTED: "predicted", NOISY: "too noisy", MISSED: "missed"}

STEP, RUN = 0.050, 5.0
"""Seconds of a step and of a run without load that are aimed at."""
FIRST_BATCH, MULTIPLE, TRIES = 256, 16, 5
"""Batch of the first look, of what batches are multiples, and looks, of which the quickest counts:
a neighbour makes a step longer, never shorter."""
GAIN = 1.05
"""Gain of bf16 from which korel, which needs it, is the third case; asgd is it otherwise."""
CALIBRATING, RUNNING = {False: 0.38, True: 0.55}, {False: 0.58, True: 0.4}
"""Shares of the minutes, by whether it is a short try; the rest is to choose the batch and to
simulate."""
REPETITIONS = {False: 20, True: 2}
"""Real runs of each case."""
QUICK_LEVELS = (0.0, 1.0, 2.0, 3.0)
"""Levels of load that a short try calibrates with."""

COLUMNS = (
    "date", "processor", "family_model_stepping", "cores", "flags", "threads_per_core", "torch",
    "command", "cases", "runs", "step_ms", "gain", "side_by_side", "pace", "predicted", "noisy",
    "missed", "median_error", "worst_error", "worst_case", "ks_makespan", "ks_step", "inside",
    "commit",
)  # fmt: skip
"""Columns of machines.csv; the field of a quantity that was not measured is empty."""

MachineRow = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MachineSetting:
    """What is chosen at the start, and kept for a resumed measurement."""

    batch: int
    policy: str
    minutes: float
    quick: bool

    @classmethod
    def kept(cls, folder: Path, minutes: float, quick: bool) -> MachineSetting:
        """The setting of an unfinished measurement in the folder, else a new one."""
        file = folder / "setting.json"
        if file.exists():
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        setting = cls(*choose(), minutes, quick)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, {name: getattr(setting, name) for name in cls.__slots__})
        return setting

    @property
    def request(self) -> CalibrationRequest:
        """The calibration, which `cells` restricts."""
        parts: tuple[Part, ...] = ("step", "contention", "lockstep")
        return CalibrationRequest(
            "digits", "cpu", (*parts, "server") if self.policy == "asgd" else parts, (self.batch,),
            ("fp32", "bf16"), CALIBRATING[self.quick] * self.minutes,
        )  # fmt: skip

    def cells(self, folder: Path) -> list[MeasurementCell]:
        """What the simulation of two ranks beside load of a core reads."""
        benches = Calibration(self.request, folder).benches
        return [cell for bench in benches for cell in bench.cells if self._reads(cell)]

    def _reads(self, cell: MeasurementCell) -> bool:
        if cell.part == "step":
            return cell.precision in self.request.precisions
        if self.quick and cell.level not in QUICK_LEVELS:
            return False
        if cell.part == "contention":
            return (cell.precision, cell.load) == ("fp32", "cpu")
        return cell.ranks == 2


def choose() -> tuple[int, str]:
    """A batch whose step takes about `STEP` here, and the policy of the third case."""
    with RankPool(2, "digits") as pool:

        def seconds(precision: str, batch: int) -> float:
            looks = [pool.pace(PaceRequest(precision, batch)) for _ in range(TRIES)]
            return min(statistics.fmean(cores) for cores in looks)

        share = STEP / seconds("fp32", FIRST_BATCH)
        batch = max(MULTIPLE, MULTIPLE * round(FIRST_BATCH * share / MULTIPLE))
        gain = seconds("fp32", batch) / seconds("bf16", batch)
    return batch, "korel" if gain > GAIN else "asgd"


def measure(folder: Path, setting: MachineSetting) -> tuple[Result, Profile]:
    """Calibrate and validate in the folder, or go on with it."""
    place = folder / "validation"
    only = setting.cells(place / CALIBRATION)
    calibration = InterleavedCalibration(setting.request, place, [setting.policy], [2], only)
    with show_seconds() as visit:
        calibration.begin(visit, _say)
    with show_count() as run:
        found = validate(
            calibration, place, [setting.policy], [2],
            steps=round((0.2 if setting.quick else 1.0) * RUN / STEP),
            repetitions=REPETITIONS[setting.quick],
            minutes=RUNNING[setting.quick] * setting.minutes,
            on_run=run, on_plan=_say,
        )  # fmt: skip
    found.write("make validate-here")
    return found.result, Profile.read(place / CALIBRATION / PROFILE)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def row_of(result: Result, profile: Profile) -> dict[str, Any]:
    """The row of a measurement; None for what was not measured."""
    step, device = profile.step, profile.device
    assert step is not None
    together = (each.interference for each in profile.locksteps if not each.load)
    verdicts = Counter(verdict.word for _, verdict in result.verdicts)
    inside, runs = result.inside
    measured: dict[str, Any] = {
        "step_ms": 1000 * step.compute.value,
        "gain": step.amp_ratio and step.amp_ratio.value,
        "side_by_side": next((each.value for each in together if each is not None), None),
        "pace": step.pace and step.pace.value,
        "median_error": result.median_error,
        "worst_error": result.worst and result.worst[1].error,
        "ks_makespan": result.median_distance("makespan") if runs else None,
        "ks_step": result.median_distance("step") if runs else None,
        "inside": inside / runs if runs else None,
    }
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": device["model"],
        "family_model_stepping": device["family_model_stepping"],
        "cores": device["cores"],
        "flags": " ".join(f for f in str(device["flags"]).split() if f.endswith("bf16")),
        "threads_per_core": threads_per_core(),
        "torch": profile.software.get("torch"),
        "command": "make validate-here",
        "cases": len(result.verdicts),
        "runs": result.repetitions,
        "predicted": verdicts[PREDICTED], "noisy": verdicts[NOISY], "missed": verdicts[MISSED],
        "worst_case": result.worst and result.worst[0].name,
        "commit": provenance()["commit"],
        **{k: v if v is None else f"{v:.4g}" for k, v in measured.items()},
    }  # fmt: skip


def threads_per_core() -> int | None:
    """Hardware threads of a core that the system sees; None where it does not say.

    A virtual machine may hide that two of its processors are threads of one core.
    """
    file = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    if not file.exists():
        return None
    ends = (part.split("-") for part in file.read_text().strip().split(","))
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def read_rows() -> list[MachineRow]:
    """The rows of machines.csv, the oldest first."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append_row(row: Mapping[str, Any]) -> None:
    """Add a row to machines.csv."""
    with ROWS.open("a", encoding="utf-8", newline="") as file:
        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


def table_of(rows: Iterable[MachineRow]) -> Table:
    """The table of docs/measured/machines.txt; machines.csv has more columns."""
    header = (
        "processor", "date", "step (ms)", "bf16", "side by side", "pace (%)", "cases, runs",
        "predicted, noisy, missed", "median error (%)", "worst (%)", "KS makespans", "KS steps",
        "nine of ten (%)",
    )  # fmt: skip
    return Table("Machines", header, [_cells(row) for row in rows])


def _cells(row: MachineRow) -> tuple[str, ...]:
    def number(name: str, form: str, scale: float = 1.0) -> str:
        return f"{scale * float(row[name]):{form}}" if row[name] else ""

    about = [row["family_model_stepping"], *row["flags"].split()]
    name = f"{row['processor']} ({', '.join(filter(None, about))})"
    worst = number("worst_error", "+.1f", 100), row["worst_case"] and f"(`{row['worst_case']}`)"
    return (
        name, row["date"], number("step_ms", ".3g"), number("gain", ".2f"),
        number("side_by_side", ".2f"), number("pace", ".1f", 100), f"{row['cases']}, {row['runs']}",
        f"{row['predicted']}, {row['noisy']}, {row['missed']}",
        number("median_error", ".1f", 100), " ".join(filter(None, worst)),
        number("ks_makespan", ".2f"), number("ks_step", ".2f"), number("inside", ".0f", 100),
    )  # fmt: skip


def cases_of(found: Mapping[str, Any]) -> Table:
    """The table of docs/measured/validation.txt: makespans of the cases of a `validation.json`."""
    rows = []
    for each in found["cases"]:
        schedule, ranks, policy = each["case"].split("-")
        makespan, pace = each["makespan"], each["at_pace"]["error"]
        rows.append((
            LOADS[schedule], ranks, policy, f"{makespan['real']:.1f}",
            f"{100 * makespan['spread']:.1f}", f"{makespan['simulated']:.1f}",
            f"{100 * makespan['error']:+.1f}", f"{100 * makespan['allowed']:.1f}",
            WORDS[makespan["word"]], f"{100 * pace:+.1f}",
        ))  # fmt: skip
    header = (
        "load", "ranks", "policy", "real (s)", "spread (%)", "simulated (s)", "error (%)",
        "allowed (%)", "verdict", "error at the run's pace (%)",
    )  # fmt: skip
    return Table("Makespans of 16 cases on an AMD EPYC, 23 November 2026", header, rows)


def write_tables() -> None:
    """Write the table of machines, and that of the cases of the first one."""
    keep_tables("machines", [table_of(read_rows())])
    with gzip.open(FIRST / "validation.json.gz", "rt", encoding="utf-8") as file:
        keep_tables("validation", [cases_of(json.load(file))])


def main() -> int:
    """Measure, append the row, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="of the whole: 25, and 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="a short try, which writes nothing")
    parser.add_argument("--table", action="store_true", help="only write the table of the docs")
    asked = parser.parse_args()
    if asked.table:
        write_tables()
        return 0
    folder = FOLDER / ("try" if asked.quick else "unfinished")
    minutes = asked.minutes or (3.0 if asked.quick else 25.0)
    try:
        setting = MachineSetting.kept(folder, minutes, asked.quick)
        _say(f"batch {setting.batch}, {setting.policy}; {setting.minutes:g} minutes")
        result, profile = measure(folder, setting)
    except KeyboardInterrupt:
        _say(f"the finished part is kept in {folder}; the same command goes on from there")
        return 130
    except InputError as error:
        _say(str(error))
        return 2
    row = {name: "" if v is None else str(v) for name, v in row_of(result, profile).items()}
    folder.rename(FOLDER / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}")
    print(" ".join(answer(result)))
    header, cells = table_of([row]).header, _cells(row)
    print("\n".join(f"{name}: {cell}" for name, cell in zip(header, cells, strict=True) if cell))
    if not asked.quick:
        append_row(row)
        write_tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
