"""A recorded run told again by the engine: does that make of its times what really happened?

Its own local times, step by step, go through the engine under its own policy.  What collectives and
the server took is the run's own too, as means, since a run lasts as long as their sum; where a
step waited longer than that for the server or for a change of mechanism, its local time is as much
longer.  So this tests the mechanism (who
waits for whom, what is stale, what the policy decides), and no foresight.  With a profile it is
predicted as well: beside the load that `simstrag ddp --load` put beside it, else without any.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simstrag.ddp.record import journal
from simstrag.ddp.record.replay import amp_gain, run_of, trace_of
from simstrag.ddp.record.server_latency import (
    PARTS,
    RoundTrip,
    beyond_constants,
    reduction_rests,
    round_trips,
)  # fmt: skip
from simstrag.ddp.support import profile_hints
from simstrag.documents.paths import write_json, write_whole
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.processes.affinity import cores
from simstrag.profile.profile import Profile
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import Run, plain
from simstrag.scenario.scenario import Scenario
from simstrag.validation.cases import CLEAN, Case
from simstrag.validation.loadgen.injector import read_load
from simstrag.validation.loadgen.schedule import Schedule
from simstrag.validation.measure import Measure, measure
from simstrag.validation.prediction import GRID, SEEDS, Constant, Predictor, synchronous
from simstrag.validation.validation import describe_differences

__all__ = ["Line", "Replayed", "replay"]

REPLAY = "replay.json"


class Line(NamedTuple):
    """A number of the run, and what was made of it; predicted: None without a profile."""

    what: str
    unit: str
    real: float
    replayed: float
    predicted: float | None

    @property
    def error(self) -> float:
        """Of what was replayed, relative; absolute where the run has 0."""
        return (self.replayed - self.real) / (self.real or 1.0)


@dataclass(frozen=True)
class Replayed:
    """What came of it.

    constants: that the replay took from the run, besides its local times.  real, again: the record,
    and what the engine made of its times, to look further into.  beside: what load was predicted.
    grid, paces: seconds per full batch between its points of the real run, of the replayed one, and
    of the one predicted, if there is one.
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
        """Write replay.json and report.html into a folder; the report.  command: what made it.

        Raises `InputError` where it cannot be written, or other files are in it.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            there = {each.name for each in folder.iterdir()}
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
        if there and REPLAY not in there:
            raise InputError(
                f"{folder}: holds other files; choose a folder that does not exist yet"
            )
        write_json(folder / REPLAY, plain(self.document()))
        html, page = html_page(self, command), folder / "report.html"
        write_whole(page, lambda part: part.write_text(html, encoding="utf-8"))
        return page

    def document(self) -> dict[str, Any]:
        """As plain JSON would have it, but for NaN."""
        return {
            "format": "simstrag-replay/1", "run": self.folder, "policy": self.policy,
            "lines": [{**line._asdict(), "error": line.error} for line in self.lines],
            "constants": [each._asdict() for each in self.constants], "remarks": self.remarks,
        }  # fmt: skip

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows of a table."""
        predicted = any(line.predicted is not None for line in self.lines)
        headers = ["", "real", "replayed", "error (%)"] + [f"predicted {self.beside}"] * predicted
        return headers, [
            [f"{line.what} ({line.unit})", f"{line.real:.5g}", f"{line.replayed:.5g}",
             f"{100 * line.error:+.2f}"]
            + ([] if not predicted else ["" if line.predicted is None else f"{line.predicted:.5g}"])
            for line in self.lines
        ]  # fmt: skip

    def _repr_html_(self) -> str:
        return html_fragment(self)


def replay(folder: str | Path, profile: str | Path | None = None) -> Replayed:
    """Replay a folder with the record of a real run.

    profile: a calibration of the same workload and batch; with it the run is predicted too.

    Raises `InputError` if the folder has no record or only a later part of one, if a rank was lost
    or left, if the gain of its reduced-precision steps is unknown, or if the profile has another
    batch or full precision.
    """
    folder = Path(folder)
    if not (folder / journal.NAME).is_file():
        raise InputError(
            f"{folder}: has no record of a real run; give a folder that `simstrag ddp --out` or "
            "wrap(..., out=...) wrote"
        )
    header, lines = journal.read_journal(folder)
    if header.get("facts") is not None:
        raise InputError(f"{folder}: the record goes on from another; give that of the first part")
    if (left := _left(lines)) is not None:
        raise InputError(
            f"{folder}: rank {left} was lost before the end, or the others went on without it, and "
            "a replay is of runs that kept all their ranks; give one that did"
        )
    run = run_of(folder)
    ranks, batch = header["world_size"], header["batch"]
    case = Case(str(header["policy"]), ranks, CLEAN, 1)
    full = ranks * batch
    samples = int(run.summary["samples"]) // full * full
    if not samples:
        raise InputError(f"{folder}: the run ended before its first {full} samples; run it longer")
    trips = round_trips(lines)
    constants, remarks = _constants(lines, trips, ranks), [WHAT, *run.warnings]
    means = {name: constant.value for name, constant in constants.items()}
    again = _again(run, header, constants, beyond_constants(lines, trips, means), samples)
    longest = max(float(each.summary["makespan"]) for each in (run, again))
    grid = tuple(np.linspace(0.0, 1.15 * longest, GRID + 1).tolist())
    real, replayed = (measure(each, samples, batch, [0.0], grid) for each in (run, again))
    if header["hints"]["amp_ratio"] is None and run.summary["amp_share"]:
        remarks.append("The policy was told no gain of reduced precision; here it is, as measured.")
    predicted, schedule = None, read_load(folder)
    kinds = {each.kind for each in schedule.episodes} - {"cpu"}
    if profile is not None and kinds:
        remarks.append(f"Not predicted: the load beside it was of kind {', '.join(sorted(kinds))}.")
    elif profile is not None:
        known = Profile.read(profile)
        predicted = _predicted(known, header, case, samples, folder, schedule, grid)
        if "device" in header:
            other = describe_differences(known, header["device"])
            remarks += [f"{each[0].upper()}{each[1:]}." for each in other]
        remarks.append(
            f"The prediction includes the load recorded in {journal.LOAD} and no other."
            if schedule.episodes
            else "The prediction is for no load: contention during the run is not in it."
        )
    told = {"real": real, "replayed": replayed, "predicted": predicted}
    return Replayed(
        folder, case.policy, tuple(_lines(real, replayed, predicted)), tuple(constants.values()),
        tuple(remarks), run, again, "beside its load" if schedule.episodes else "without load",
        grid, {name: each.pace for name, each in told.items() if each is not None},
    )  # fmt: skip


WHAT = (
    "Replayed are the run's own local times and the means of its own communication: this tests "
    "the mechanism, not foresight."
)


def _left(lines: Sequence[Sequence[Any]]) -> int | None:
    """The rank that was lost, or without which others went on; None where all stayed.

    Of one that was lost nobody knows the step that it was in, which may have been a long one.  At
    its end a run is left by one rank after the other, each after the step it was in.
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


def _constants(
    lines: Sequence[Sequence[Any]], trips: Mapping[int, list[RoundTrip]], ranks: int
) -> dict[str, Constant]:
    """What communication took, in the mean, by the record."""
    found: dict[str, Constant] = {}

    def note(what: str, values: Sequence[float]) -> None:
        values = [value for value in values if not math.isnan(value)]
        if values:
            mean = max(0.0, statistics.fmean(values))
            found[what] = Constant(what, str(ranks), mean, "s", f"mean of {len(values)} here")

    note("rest", reduction_rests(lines))
    for part in PARTS:
        note(part, [getattr(t, part) for own in trips.values() for t in own if t.charged])
    return found


def _again(
    run: Run,
    header: Mapping[str, Any],
    constants: Mapping[str, Constant],
    late: Mapping[tuple[int, float], float],
    samples: int,
) -> Run:
    """The same by the engine."""
    ranks, hints = header["world_size"], header["hints"]

    def value(name: str) -> float:
        return constants[name].value if name in constants else 0.0

    step: dict[str, Any] = {"compute": float(hints["clean_seconds"] or 1.0)}
    gain = amp_gain(header)
    if gain is not None:
        step["amp_ratio"] = gain
    scenario = Scenario.of(
        {
            "workers": ranks, "samples": samples, "learner": {"batch": header["batch"]},
            "step": step, "trace": trace_of(run, late),
            "allreduce": {"alpha": value("rest") / (2 * (ranks - 1)) if ranks > 1 else 0.0},
            "server": {name: value(name) for name in ("push", "service", "pull")},
        },
        source=f"the run {header['policy']}",
    )  # fmt: skip
    return simulate(scenario, header["policy"], record_gradients=True)


def _predicted(
    profile: Profile,
    header: Mapping[str, Any],
    case: Case,
    samples: int,
    folder: Path,
    schedule: Schedule,
    grid: Sequence[float],
) -> Measure:
    """Of runs under some seeds the one whose makespan is in the middle."""
    import tempfile

    workload, batch = profile.workload, header["batch"]
    if workload is None or workload.batch != batch:
        other = "no workload" if workload is None else f"batches of {workload.batch} samples"
        raise InputError(
            f"{folder}: the run is of batches of {batch} samples, and profile {profile.name} of "
            f"{other}; calibrate with --batch {batch}, or train with that of the profile"
        )
    if (full := str(header["precision"]).split()[0]) != workload.full:
        raise InputError(
            f"{folder}: full precision of the run is {full}, that of profile {profile.name} "
            f"{workload.full}; calibrate with the --precision of the run"
        )
    steps = samples // (case.ranks * batch)
    own = Case(case.policy, case.ranks, CLEAN, steps)
    with tempfile.TemporaryDirectory() as scratch:
        predictor = Predictor(profile, Path(scratch), header.get("cores", len(cores())))
        updates = synchronous(own, profile_hints(profile, batch, samples))
        scenario = predictor.scenario(own, schedule, updates)
        runs = [
            measure(
                simulate(scenario, own.policy, seed, record_gradients=True), samples, batch, [0.0],
                grid,
            )
            for seed in range(SEEDS)
        ]  # fmt: skip
    middle = statistics.median(each.makespan for each in runs)
    return min(runs, key=lambda each: abs(each.makespan - middle))


def _lines(real: Measure, replayed: Measure, predicted: Measure | None) -> list[Line]:
    def told(name: str, rank: int | None = None) -> float | None:
        if predicted is None:
            return None
        value = getattr(predicted, name)
        return float(value if rank is None else value[rank])

    found = [
        Line("makespan", "s", real.makespan, replayed.makespan, told("makespan")),
        Line("mean step", "s", real.step, replayed.step, told("step")),
    ]
    if any(value > 0 for value in (*real.staleness, *replayed.staleness)):
        for rank, pair in enumerate(zip(real.staleness, replayed.staleness, strict=True)):
            found.append(
                Line(f"staleness of rank {rank}", "updates", *pair, told("staleness", rank))
            )
        for rank, pair in enumerate(zip(real.shares, replayed.shares, strict=True)):
            found.append(Line(f"share of rank {rank}", "of updates", *pair, told("shares", rank)))
    return found
