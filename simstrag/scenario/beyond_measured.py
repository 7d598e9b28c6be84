"""Numbers of a scenario beyond the range that its profile measured, or beyond any usual range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simstrag.profile.batch_laws import fit_of
from simstrag.profile.plausible import doubt
from simstrag.profile.profile import AllReduceTimes, Profile
from simstrag.profile.responses import evaluate
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import uses
from simstrag.trace.row_validation import RESOURCES, UTILISATION

APART = 100
"""Factor between seconds of launching and of the device that hardly any job passes, ASSUMED."""


class BeyondMeasured(NamedTuple):
    """A quantity that a scenario uses outside the range in which its profile was measured.

    what: the use in words, such as "all-reduce of 0.5 MB".
    used, low, high: the value in use, and the ends of the measured range.
    unit: unit of all three.
    section: "allreduce" or "server" for runs that make updates through them, "amp" for runs in
        reduced precision, "contention" for all runs.

    >>> print(BeyondMeasured("all-reduce of 0.5 MB", 0.5e6, 1e6, 4e9, "bytes", "allreduce"))
    all-reduce of 0.5 MB: measured from 1 MB on; 2x below
    """

    what: str
    used: float
    low: float
    high: float
    unit: str
    section: str

    @property
    def factor(self) -> float:
        """The ratio, above 1, to the nearest measured value."""
        return self.low / self.used if self.used < self.low else self.used / self.high

    def __str__(self) -> str:
        if self.used < self.low:
            measured, side = f"from {_amount(self.low, self.unit)} on", "below"
        else:
            measured, side = f"up to {_amount(self.high, self.unit)}", "beyond"
        return f"{self.what}: measured {measured}; {self.factor:.2g}x {side}"

    def concerns(self, summary: Mapping[Any, Any]) -> bool:
        """Whether a run with this summary uses the quantity."""
        return (
            bool(summary["amp_share"] > 0) if self.section == "amp" else uses(summary, self.section)
        )


def beyond_measured(
    scenario: Scenario, summaries: Sequence[Mapping[Any, Any]] | None = None
) -> list[BeyondMeasured]:
    """The quantities that the scenario takes from its profile beyond their measured range.

    Constants that the scenario states do not count, nor constants of unknown range.
    summaries: summaries of runs; quantities that none of them uses are left out.
    """
    profile = scenario.inputs.profile
    if profile is None:
        return []
    uses = [
        *_allreduce(scenario, profile), *_server(scenario, profile), *_amp(scenario, profile),
        *_loads(scenario),
    ]  # fmt: skip
    outside = [each for each in uses if not each.low <= each.used <= each.high]
    if summaries is None:
        return outside
    return [each for each in outside if any(map(each.concerns, summaries))]


def doubts(scenario: Scenario) -> list[str]:
    """The doubts about the numbers in force; a free all-reduce is none.

    >>> doubts(Scenario(workers=2, updates=9, step={"compute": 350}))
    ['Doubtful: step.compute is 350 s, usual are 1e-05 to 60: one kernel takes microseconds to
    start, and a day has 86,400 s; is it in milliseconds?']
    """
    step, allreduce = scenario.inputs.step, scenario.inputs.allreduce
    streams = {"step.launch": step.host, "step.device": step.gpu}
    numbers = {
        **(streams if step.overlaps else {"step.compute": step.clean}),
        "allreduce.bytes": allreduce.bytes,
        "allreduce.bandwidth": allreduce.bandwidth, "allreduce.alpha": allreduce.alpha,
        "learner.batch": scenario.learner.batch,
    }  # fmt: skip
    sentences = [
        sentence
        for key, value in numbers.items()
        if value and value < math.inf
        for sentence in doubt(key, value)
    ]
    if step.amp is not None:
        parts = (step.host, step.gpu, *step.amp)
        if max(parts) > APART * min(parts):
            listed = ", ".join(f"{each:g}" for each in parts)
            sentences.append(
                f"Doubtful: launch and device take {listed} s in full and in reduced precision, a "
                f"factor of more than {APART}; is one in milliseconds?"
            )
    return sentences


def _allreduce(scenario: Scenario, profile: Profile) -> Iterator[BeyondMeasured]:
    stated = set() if scenario.allreduce is None else scenario.allreduce.model_fields_set
    times, size, ranks = profile.allreduce, scenario.inputs.allreduce.bytes, scenario.workers
    if times is None or {"alpha", "bandwidth"} <= stated or ranks == 1:
        return
    fitted = _fitted(times, profile)
    if fitted.smallest is not None and fitted.largest is not None and size > 0:
        what, ends = f"all-reduce of {_amount(size, 'bytes')}", (fitted.smallest, fitted.largest)
        yield BeyondMeasured(what, size, *ends, "bytes", "allreduce")
    if fitted.ranks:
        what, ends = f"all-reduce among {ranks} ranks", (min(fitted.ranks), max(fitted.ranks))
        yield BeyondMeasured(what, ranks, *ends, "ranks", "allreduce")


def _fitted(times: AllReduceTimes, profile: Profile) -> Any:
    """The source of the range of the constants: themselves, or the fit that gave them."""
    if times.ranks:
        return times
    constants = times.alpha.value, times.bandwidth.value
    fits = (f for f in profile.collective_fits if (f.alpha.value, f.bandwidth.value) == constants)
    return next(fits, times)


def _server(scenario: Scenario, profile: Profile) -> Iterator[BeyondMeasured]:
    """The world size, if the profile timed training under a server."""
    section, times = scenario.server, {"service", "push", "pull"}
    if section is not None and (section.link or times <= section.model_fields_set):
        return
    ranks = [each.ranks for each in profile.transfers if each.ranks]
    if profile.server is not None and ranks:
        what = f"server of {scenario.workers} ranks"
        yield BeyondMeasured(what, scenario.workers, 1, max(ranks), "ranks", "server")


def _amp(scenario: Scenario, profile: Profile) -> Iterator[BeyondMeasured]:
    """The gain of reduced precision at a batch that was not timed in it."""
    times, workload, batch = scenario.inputs.times, profile.workload, scenario.learner.batch
    if times is None or workload is None or times.amp_ratio is None or batch == workload.batch:
        return
    fit = fit_of(profile, workload.amp)
    low, high = (workload.batch, workload.batch) if fit is None else fit.range
    what = f"gain of reduced precision at a batch of {batch}"
    yield BeyondMeasured(what, batch, low, high, "samples", "amp")


def _loads(scenario: Scenario) -> Iterator[BeyondMeasured]:
    trace = scenario.inputs.trace
    for response in scenario.inputs.responses:
        assert trace is not None
        h, resource = trace.histories, RESOURCES.index(response.resource)
        chosen = (h.kind == UTILISATION) & (h.resource == resource)
        level = float(h.value[h.rows_of(chosen)].max())
        what = f"utilisation of {response.resource} at {level:.3g}"
        yield BeyondMeasured(what, level, 0.0, response.highest, "", "contention")
        severity = scenario.contention.severity
        if severity > 1 and level <= response.highest:
            slowed = 1 + severity * (float(evaluate(response, level)) - 1)
            highest = max(each.slowdown.value for each in response.levels)
            what = f"slowdown of steps by the load of {response.resource} at severity {severity:g}"
            yield BeyondMeasured(what, slowed, 0.0, highest, "", "contention")


def _amount(value: float, unit: str) -> str:
    if unit != "bytes":
        return f"{value:.3g} {unit}".strip()
    power = next((p for p in (3, 2, 1) if value >= 1000**p), 0)
    return f"{value / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB')[power]}"
