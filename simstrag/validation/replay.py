"""Replays a recorded real run on the engine, and predicts it if there is a profile.

The replay takes the run's own local step times, its policy, and the means of its communication
times. A step that waited longer than these means is lengthened by the difference. So a replay tests
the mechanism (which rank waits, which gradient is stale, what the policy decides) and predicts
nothing. The prediction uses only the profile and the recorded load.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.tables.table import Number, Table
from simstrag.ddp.journal import journal
from simstrag.ddp.journal.communication_from_journal import (
    PARTS,
    beyond_constants,
    reduction_rests,
    round_trips,
)  # fmt: skip
from simstrag.ddp.journal.run_from_journal import amp_gain, run_of, trace_of
from simstrag.documents.file_io import require_path, write_atomically, write_json
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.profile.profile import Profile
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import Run, plain
from simstrag.scenario.scenario import Scenario
from simstrag.validation.case_results import drop_nan
from simstrag.validation.cases import CLEAN, Case
from simstrag.validation.loadgen.injector import read_load
from simstrag.validation.loadgen.schedule import Schedule
from simstrag.validation.prediction import GRID, SEEDS, Constant, Predictor
from simstrag.validation.real_runs import refuse_others
from simstrag.validation.run_metrics import Measure, document_of, measure
from simstrag.validation.validation import describe_differences

REPLAY = "replay.json"
SCOPE = (
    "The replay uses the run's own local step times and mean communication times: it tests the "
    "mechanism and predicts nothing."
)


class Line(NamedTuple):
    """One number of a run, replayed and predicted; `predicted` is None without a profile."""

    what: str
    unit: str
    real: float
    replayed: float
    predicted: float | None

    @property
    def error(self) -> float:
        """Relative error of the replay; the absolute one if the real number is 0."""
        return (self.replayed - self.real) / (self.real or 1.0)


@dataclass(frozen=True)
class Replayed:
    """A replayed run.

    lines: the compared numbers.
    constants: communication times that the replay took from the run.
    real, again: the recorded and the replayed run.
    beside: the load of the prediction, in words.
    grid: edges of the intervals of the pace, in seconds.
    paces: seconds per full batch in each interval, of the real, replayed and predicted run.
    """

    folder: Path
    policy: str
    lines: tuple[Line, ...]
    constants: tuple[Constant, ...]
    remarks: tuple[str, ...]
    real: Run
    again: Run
    beside: str
    grid: tuple[float, ...]
    paces: Mapping[str, tuple[float, ...]]

    def write(self, folder: str | Path, command: str | None = None) -> Path:
        """Write replay.json and report.html to a folder; returns the report.

        Raises `InputError` if the folder cannot be written or holds other files.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refuse_others(folder, REPLAY, ())
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
        write_json(folder / REPLAY, plain(self.document()))
        html, page = html_page(self, command), folder / "report.html"
        write_atomically(page, lambda part: part.write_text(html, encoding="utf-8"))
        return page

    def document(self) -> dict[str, Any]:
        """JSON-like values; may contain NaN."""
        return {
            "format": "simstrag-replay/1", "run": self.folder, "policy": self.policy,
            "lines": [{**line._asdict(), "error": line.error} for line in self.lines],
            "constants": document_of(self.constants), "remarks": self.remarks,
        }  # fmt: skip

    def table(self) -> Table:
        """One row per compared number."""
        is_predicted = any(line.predicted is not None for line in self.lines)
        headers = ("", "real", "replayed", "error (%)", f"predicted {self.beside}")
        rows = []
        for line in self.lines:
            real, replayed, predicted = (
                Number("" if value is None else f"{value:.5g}", value)
                for value in (line.real, line.replayed, line.predicted)
            )
            error = Number(f"{100 * line.error:+.2f}", 100 * line.error)
            rows.append((f"{line.what} ({line.unit})", real, replayed, error, predicted))
        shown = len(headers) if is_predicted else len(headers) - 1
        return Table(headers[:shown], tuple(row[:shown] for row in rows))

    def _repr_html_(self) -> str:
        return html_fragment(self)


def replay(folder: str | Path, profile: str | Path | None = None) -> Replayed:
    """Replay the record of a real run.

    profile: a calibration of the same workload and batch; with it the run is predicted too.

    Raises `InputError` if the folder has no record or only a later part of one, if a rank was lost
    or left, if the gain of its reduced-precision steps is unknown, or if the profile has another
    batch or full precision.
    """
    folder = require_path(folder)
    if not (folder / journal.NAME).is_file():
        raise InputError(
            f"{folder}: has no record of a real run; give a folder that `simstrag ddp --out` or "
            "wrap(..., out=...) wrote"
        )
    header, lines = journal.read_journal(folder)
    if header.get("facts") is not None:
        raise InputError(f"{folder}: the record continues another one; give the first part")
    if (left := _lost_rank(lines)) is not None:
        raise InputError(
            f"{folder}: rank {left} was lost or left before the end; replay a run that kept all "
            "its ranks"
        )
    run = run_of(folder)
    ranks, batch = header["world_size"], header["batch"]
    case, full = Case(str(header["policy"]), ranks, CLEAN, 1), ranks * batch
    samples = int(run.summary["samples"]) // full * full
    if not samples:
        raise InputError(f"{folder}: the run ended before its first {full} samples; run it longer")
    trips, remarks = round_trips(lines), [SCOPE, *run.warnings]
    times = {"rest": reduction_rests(lines)} | {
        part: [getattr(t, part) for own in trips.values() for t in own if t.charged]
        for part in PARTS
    }
    constants = {}
    for what, values in times.items():
        if there := drop_nan(values):
            mean, origin = max(0.0, statistics.fmean(there)), f"mean of {len(there)} here"
            constants[what] = Constant(what, str(ranks), mean, "s", origin)
    means = {what: constant.value for what, constant in constants.items()}
    again = _simulate(run, header, means, beyond_constants(lines, trips, means), samples)
    longest = max(float(each.summary["makespan"]) for each in (run, again))
    grid = tuple(np.linspace(0.0, 1.15 * longest, GRID + 1).tolist())
    measures = {
        name: measure(each, samples, batch, [0.0], grid)
        for name, each in (("real", run), ("replayed", again))
    }
    if header["hints"]["amp_ratio"] is None and run.summary["amp_share"]:
        remarks.append(
            "The real policy had no hint of the gain of reduced precision; the replay gives it the "
            "measured one."
        )
    schedule = read_load(folder)
    kinds = {each.kind for each in schedule.episodes} - {"cpu"}
    if profile is not None and kinds:
        remarks.append(f"Not predicted: the run had load of kind {', '.join(sorted(kinds))}.")
    elif profile is not None:
        known = Profile.read(profile)
        measures["predicted"] = _predict(known, header, case, samples, folder, schedule, grid)
        if "device" in header:
            differences = describe_differences(known, header["device"])
            remarks += [f"{each[0].upper()}{each[1:]}." for each in differences]
        remarks.append(
            f"The prediction includes the load recorded in {journal.LOAD} and no other."
            if schedule.episodes
            else "The prediction is for no load: contention during the run is not in it."
        )
    return Replayed(
        folder, case.policy, tuple(_lines(**measures)), tuple(constants.values()), tuple(remarks),
        run, again, "with its load" if schedule.episodes else "without load", grid,
        {name: each.pace for name, each in measures.items()},
    )  # fmt: skip


def _lost_rank(lines: Sequence[Sequence[Any]]) -> int | None:
    """The rank that was lost, or that left while others went on; None if all stayed.

    At the end of a run, ranks leave one after the other, each after its current step.
    """
    left, after = None, Counter[int]()
    for kind, *values in lines:
        if kind == "lost":
            return int(values[1])
        if kind == "gone" and left is None:
            left = int(values[1])
        elif kind == "done" and left is not None:
            after[values[1]] += 1
    return left if max(after.values(), default=0) > 1 else None


def _simulate(
    run: Run,
    header: Mapping[str, Any],
    means: Mapping[str, float],
    late: Mapping[tuple[int, float], float],
    samples: int,
) -> Run:
    """The run on the engine, with its own step times and mean communication times."""
    ranks, hints = header["world_size"], header["hints"]
    gain, rest = amp_gain(header), means.get("rest", 0.0)
    step = {"compute": float(hints["clean_seconds"] or 1.0)}
    if gain is not None:
        step["amp_ratio"] = gain
    scenario = Scenario.of(
        {
            "workers": ranks, "samples": samples, "learner": {"batch": header["batch"]},
            "step": step, "trace": trace_of(run, late),
            "allreduce": {"alpha": rest / (2 * (ranks - 1)) if ranks > 1 else 0.0},
            "server": {name: means.get(name, 0.0) for name in ("push", "service", "pull")},
        },
        source=f"the run {header['policy']}",
    )  # fmt: skip
    return simulate(scenario, header["policy"], record_gradients=True)


def _predict(
    profile: Profile,
    header: Mapping[str, Any],
    case: Case,
    samples: int,
    folder: Path,
    schedule: Schedule,
    grid: Sequence[float],
) -> Measure:
    """The predicted run of median makespan over seeds."""
    workload, batch = profile.workload, header["batch"]
    if workload is None or workload.batch != batch:
        other = "no workload" if workload is None else f"batch {workload.batch}"
        raise InputError(
            f"{folder}: the run has batch {batch}, profile {profile.name} has {other}; calibrate "
            f"with --batch {batch}, or train with the batch of the profile"
        )
    if (full := str(header["precision"]).split()[0]) != workload.full:
        raise InputError(
            f"{folder}: full precision of the run is {full}, that of profile {profile.name} "
            f"{workload.full}; calibrate with the --precision of the run"
        )
    own = Case(case.policy, case.ranks, CLEAN, samples // (case.ranks * batch))
    predictor = Predictor(profile, header.get("cores", len(cores())))
    runs = predictor.simulate(own, schedule, SEEDS, record_gradients=True)
    measures = [measure(run, samples, batch, [0.0], grid) for run in runs]
    middle = statistics.median(each.makespan for each in measures)
    return min(measures, key=lambda each: abs(each.makespan - middle))


def _lines(real: Measure, replayed: Measure, predicted: Measure | None = None) -> list[Line]:
    def line(what: str, unit: str, name: str, rank: int | None = None) -> Line:
        values: list[Any] = [
            None if each is None else getattr(each, name) for each in (real, replayed, predicted)
        ]
        if rank is not None:
            values = [value and value[rank] for value in values]
        return Line(what, unit, *values)

    lines = [line("makespan", "s", "makespan"), line("mean step", "s", "step")]
    ranks = range(len(real.staleness))
    if any(value > 0 for value in (*real.staleness, *replayed.staleness)):
        lines += [line(f"staleness of rank {k}", "updates", "staleness", k) for k in ranks]
        lines += [line(f"share of rank {k}", "of updates", "shares", k) for k in ranks]
    return lines
