"""Runs to look at: each with its steps, its durations and its waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simstrag.analysis.derived.phase_intervals import Phases, phases_of
from simstrag.analysis.derived.steps import RunSteps, steps_of
from simstrag.analysis.derived.waiting import Waiting, waiting
from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.analysis.text.number_format import join
from simstrag.arrays import Bools, Floats
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.timing import Timing


class Example(NamedTuple):
    """One run to look at.

    name: the policy, or the clean control.
    timing: None where the durations are unknown.
    """

    name: str
    run: Run
    steps: RunSteps
    phases: Phases
    timing: Timing | None
    waiting: Waiting

    @property
    def workers(self) -> int:
        return len(self.run.summary["wait_by_rank"])

    @property
    def end(self) -> float:
        """Seconds until the run ended."""
        return float(self.run.updates["time"][-1])

    def parts(self) -> dict[str, Floats]:
        """Seconds of each rank by activity, shape (workers,).

        Computing outside recorded steps is divided between the precisions as recorded computing is.
        For an excerpt, these are totals over all steps, which the run keeps.
        """
        steps, summary = self.steps, self.run.summary

        def worked(chosen: Bools) -> Floats:
            seconds = np.clip(steps.finish - steps.start, 0.0, None)
            ranks = steps.rank[chosen]
            return np.asarray(np.bincount(ranks, seconds[chosen], self.workers), dtype=np.float64)

        if self.run.excerpt is None:
            lost, kept = worked(steps.lost), worked(~steps.lost)
            reduced = worked(~steps.lost & steps.amp)
        else:
            names = ("full", "amp", "lost")
            full, reduced, lost = (np.array(self.run.excerpt[f"{n}_by_rank"]) for n in names)
            kept = full + reduced
        amp = reduced / np.where(kept > 0, kept, 1.0)
        compute, communication, wait = (
            np.array(summary[f"{name}_by_rank"], dtype=np.float64)
            for name in ("compute", "communication", "wait")
        )
        done = compute - lost
        return {
            "full": done * (1 - amp), "amp": done * amp, "lost": lost,
            "communication": communication, "wait": wait,
        }  # fmt: skip

    def mean_parts(self) -> dict[str, float]:
        """Mean seconds of a rank by activity."""
        return {name: float(values.mean()) for name, values in self.parts().items()}


def example(name: str, run: Run, timing: Timing | None) -> Example:
    """A run that kept its steps, and what follows from them."""
    steps = steps_of(run)
    phases = phases_of(run, steps, timing)
    return Example(name, run, steps, phases, timing, waiting(run, steps, phases, timing))


def examples_of(comparison: Comparison) -> list[Example]:
    """The example runs of a comparison under its first seed, the clean control included."""
    scenario = comparison.scenario
    clean, first = scenario.without_contention(), scenario.seed_list[0]
    timing = {True: clean.timing(first), False: scenario.timing(first)}
    return [
        example(control_name(name), run, timing[name == "clean"])
        for name, run in comparison.examples.items()
    ]


def control_name(name: str) -> str:
    """The name of an example of a comparison for a reader."""
    return CONTROL if name == "clean" else name


def example_of(run: Run, scenario: Scenario | None) -> Example:
    """A run with the durations of its scenario, if there is one.

    Raises `InputError` where the run had another trace.
    """
    if scenario is None:
        return example(run.policy, run, None)
    trace = scenario.inputs.trace
    recorded = run.provenance["sha256"]["trace"]
    if recorded != (None if trace is None else trace.sha256):
        raise InputError(
            f"the run of {run.policy} met another trace than the scenario has; give the scenario "
            "it was simulated under, for the clean control scenario.without_contention()"
        )
    return example(run.policy, run, scenario.timing(run.seed))


def describe_excerpts(examples: Sequence[Example]) -> str:
    """A sentence on the runs that kept only some of their steps; empty where all kept all."""
    names: dict[str, list[str]] = {}
    windows = False
    for e in examples:
        if (excerpt := e.run.excerpt) is not None:
            ranks, parts = len(excerpt["ranks"]), []
            if ranks < e.workers:
                parts.append(f"those of {ranks} of {e.workers} ranks")
            if excerpt["period"] is not None:
                windows, each = True, f"of each {excerpt['period']:g} s"
                parts.append(f"those in the first {excerpt['window']:g} {each}")
            names.setdefault(" and ".join(parts), []).append(e.name)
    if not names:
        return ""
    more = ", which stand for the whole period in the picture of the whole run" if windows else ""
    listed = [f"of {join(own)}, {what}" for what, own in names.items()]
    return f"Only some steps were kept: {'; '.join(listed)}{more}."
