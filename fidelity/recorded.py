"""A recorded run told again by the engine: does that make of its times what really happened?

Its own local times, step by step, go through the engine under its own policy.  What collectives and
the server took is the run's own too, as means, since a run lasts as long as their sum; where the
gradient of a step took longer than that on its way to the server and the parameters before it on
theirs to the rank, its local time is as much longer.  So this tests the mechanism (who waits for
whom, what is stale, what the policy decides), and no foresight.  With a profile it is foretold as
well, as it would have been without load.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.ddp import journal
from simstrag.ddp.hints import hints_of
from simstrag.ddp.replay import gain_of, run_of, trace_of
from simstrag.engine import simulate
from simstrag.errors import InputError
from simstrag.fidelity.cases import CLEAN, Case
from simstrag.fidelity.foretold import SEEDS, Constant, Foretelling, synchronous
from simstrag.fidelity.measure import Measure, measure
from simstrag.fidelity.schedule import Schedule
from simstrag.profile import Profile
from simstrag.run import Run
from simstrag.scenario import Scenario

__all__ = ["Replayed", "replay"]


class Line(NamedTuple):
    """A number of the run, and what was made of it; foretold: None without a profile."""

    what: str
    unit: str
    real: float
    replayed: float
    foretold: float | None

    @property
    def error(self) -> float:
        """Of what was replayed, relative; absolute where the run has 0."""
        return (self.replayed - self.real) / (self.real or 1.0)


@dataclass(frozen=True)
class Replayed:
    """What came of it.

    constants: that the replay took from the run, besides its local times.  real, again: the record,
    and what the engine made of its times, to look further into.
    """

    folder: Path
    policy: str
    lines: tuple[Line, ...]
    constants: tuple[Constant, ...]
    remarks: tuple[str, ...]
    real: Run
    again: Run

    def document(self) -> dict[str, Any]:
        """As plain JSON would have it, but for NaN."""
        return {
            "format": "simstrag-replay/1", "run": self.folder, "policy": self.policy,
            "lines": [{**line._asdict(), "error": line.error} for line in self.lines],
            "constants": [each._asdict() for each in self.constants], "remarks": self.remarks,
        }  # fmt: skip

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows of a table."""
        foretold = any(line.foretold is not None for line in self.lines)
        headers = ["", "real", "replayed", "error (%)"] + ["foretold without load"] * foretold
        return headers, [
            [f"{line.what} ({line.unit})", f"{line.real:.5g}", f"{line.replayed:.5g}",
             f"{100 * line.error:+.2f}"]
            + ([] if not foretold else ["" if line.foretold is None else f"{line.foretold:.5g}"])
            for line in self.lines
        ]  # fmt: skip

    def _repr_html_(self) -> str:
        from simstrag.analysis.page import template
        from simstrag.analysis.tables import Table

        headers, rows = self.rows()
        table = Table(tuple(headers), tuple(map(tuple, rows)), 1, (), self.remarks)
        return template("ranking.html").render(table=table)


def replay(folder: str | Path, profile: str | Path | None = None) -> Replayed:
    """Replay a folder with the record of a real run.

    profile: of the same workload and batch, by which it is foretold too.  Raises `InputError` where
    there is no record or it is of a later part, where its steps in reduced precision are of unknown
    gain, and for a profile of another batch.
    """
    folder = Path(folder)
    header, lines = journal.read(folder)
    if header.get("facts") is not None:
        raise InputError(f"{folder}: the record goes on from another; give that of the first part")
    run = run_of(folder)
    ranks, batch = header["world_size"], header["batch"]
    case = Case(str(header["policy"]), ranks, CLEAN, 1)
    full = ranks * batch
    samples = int(run.summary["samples"]) // full * full
    if not samples:
        raise InputError(f"{folder}: the run ended before its first {full} samples; run it longer")
    real = measure(run, samples, batch, [0.0], [0.0, 1.0])
    trips = _trips(lines)
    constants, remarks = _constants(lines, trips, ranks), [WHAT]
    again = _again(run, header, constants, _late(trips, constants), samples)
    replayed = measure(again, samples, batch, [0.0], [0.0, 1.0])
    if header["hints"]["amp_ratio"] is None and run.summary["amp_share"]:
        remarks.append("The policy was told no gain of reduced precision; here it is, as measured.")
    foretold = None
    if profile is not None:
        foretold = _foretold(Profile.read(profile), header, case, samples, folder)
        remarks.append("Foretold is without load: what contention there was is not in it.")
    return Replayed(
        folder, case.policy, tuple(_lines(real, replayed, foretold)), tuple(constants.values()),
        tuple(remarks), run, again,
    )  # fmt: skip


WHAT = (
    "Replayed are the run's own local times and the means of its own communication: this tests "
    "the mechanism, not foresight."
)

Trip = dict[str, float]
"""Of a gradient to the server, by the record: its stamps; `push`, `pull`: seconds of its way, and
of the parameters' before it."""


def _trips(lines: Sequence[Sequence[Any]]) -> dict[int, list[Trip]]:
    """Of each rank, those after which it went on, in order.

    Parameters were on their way where the next step follows at once: none was aborted in between,
    and none taken without the server.
    """
    found: dict[int, list[Trip]] = defaultdict(list)
    together = sorted(line[1] for line in lines if line[0] == "lockstep")
    rows = [line[1] for line in lines if line[0] == "push"]
    for row in sorted(rows, key=lambda row: float(row["begun"])):
        trip = {name: math.nan if row.get(name) is None else float(row[name]) for name in STAMPS}
        trip["push"] = trip["first"] - trip["begun"] - row["seconds"]
        own = found[row["rank"]]
        if not own:  # the run began, for the server, when `at` was 0
            trip["pull"] = trip["begun"] - (trip["received"] - trip["at"])
        elif trip["step"] == own[-1]["step"] + 1 and (
            bisect(together, own[-1]["at"]) == bisect(together, trip["at"])
        ):
            trip["pull"] = trip["begun"] - own[-1]["replied"]
        own.append(trip)
    return found


def _constants(
    lines: Sequence[Sequence[Any]], trips: Mapping[int, list[Trip]], ranks: int
) -> dict[str, Constant]:
    """What communication took, in the mean, by the record."""
    found: dict[str, Constant] = {}

    def note(what: str, values: Sequence[float]) -> None:
        values = [value for value in values if not math.isnan(value)]
        if values:
            mean = max(0.0, statistics.fmean(values))
            found[what] = Constant(what, str(ranks), mean, "s", f"mean of {len(values)} here")

    steps = [line for line in lines if line[0] == "lockstep"]
    begun = [line[1] for line in steps[1:]]
    # From the last gradient to the begin of the next step: what is left of the reduction, the
    # update and the decision.
    note("together", [
        following - start - max(seconds)
        for (_, start, seconds, *_), following in zip(steps, begun, strict=False)
    ])  # fmt: skip
    whole = [trip for own in trips.values() for trip in own]
    for name in WAYS:
        note(name, [trip[name] for trip in whole if name in trip])
    # One at a time, in the order of replies: what came while another was served has waited for it.
    served = sorted(whole, key=lambda trip: trip["replied"])
    before = [-math.inf, *(trip["replied"] for trip in served)]
    note("service", [
        trip["replied"] - max(trip["first"], free)
        for trip, free in zip(served, before, strict=False) if _at_once(trip)
    ])  # fmt: skip
    return found


WAYS = ("push", "pull")
STAMPS = ("step", "at", "begun", "first", "received", "applied", "replied")


def _at_once(trip: Trip) -> bool:
    """Whether the reply followed the update, as it does unless somebody is waited for."""
    return trip["replied"] - trip["applied"] < 10 * max(trip["applied"] - trip["first"], 1e-4)


def _late(
    trips: Mapping[int, list[Trip]], constants: Mapping[str, Constant]
) -> dict[tuple[int, float], float]:
    """Of a rank's step that was done then: how much longer than in the mean its ways took."""
    return {
        (rank, trip["at"]): sum(trip[name] - constants[name].value for name in WAYS if name in trip)
        for rank, own in trips.items() for trip in own
    }  # fmt: skip


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
    gain = gain_of(header)
    if gain is not None:
        step["amp_ratio"] = gain
    scenario = Scenario.of(
        {
            "workers": ranks, "samples": samples, "learner": {"batch": header["batch"]},
            "step": step, "trace": trace_of(run, late),
            "allreduce": {"alpha": value("together") / (2 * (ranks - 1)) if ranks > 1 else 0.0},
            "server": {name: value(name) for name in ("push", "service", "pull")},
        },
        source=f"the run {header['policy']}",
    )  # fmt: skip
    return simulate(scenario, header["policy"], record_gradients=True)


def _foretold(
    profile: Profile, header: Mapping[str, Any], case: Case, samples: int, folder: Path
) -> Measure:
    """Of runs under some seeds the one whose makespan is in the middle."""
    import tempfile

    workload, batch = profile.workload, header["batch"]
    if workload is None or workload.batch != batch:
        other = "no workload" if workload is None else f"batches of {workload.batch} samples"
        raise InputError(
            f"{folder}: the run is of batches of {batch} samples, and profile {profile.name} of "
            f"{other}; calibrate with --batch {batch}"
        )
    from simstrag.places import cores

    steps = samples // (case.ranks * batch)
    own = Case(case.policy, case.ranks, CLEAN, steps)
    with tempfile.TemporaryDirectory() as scratch:
        foretelling = Foretelling(profile, Path(scratch), len(cores()))
        updates = synchronous(own, hints_of(profile, batch, samples))
        scenario = foretelling.scenario(own, Schedule((), 1.0), updates)
        runs = [
            measure(
                simulate(scenario, own.policy, seed, record_gradients=True), samples, batch, [0.0],
                [0.0, 1.0],
            )
            for seed in range(SEEDS)
        ]  # fmt: skip
    middle = statistics.median(each.makespan for each in runs)
    return min(runs, key=lambda each: abs(each.makespan - middle))


def _lines(real: Measure, replayed: Measure, foretold: Measure | None) -> list[Line]:
    def told(name: str, rank: int | None = None) -> float | None:
        if foretold is None:
            return None
        value = getattr(foretold, name)
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
