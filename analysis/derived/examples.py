"""Runs to look at: each with its steps, its durations, who waited for whom, and where to look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simstrag.analysis.derived import windows
from simstrag.analysis.derived.waiting import Steps, Waiting, steps_of, waiting
from simstrag.analysis.tables.comparison_tables import CONTROL
from simstrag.analysis.text.number_format import listed
from simstrag.errors import InputError
from simstrag.experiments.compare import Comparison
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.contention import Contention
from simstrag.timing.timing import Timing

__all__ = [
    "Example", "close_look", "control_name", "example", "examples_of", "excerpts", "kept_of",
    "timing_of",
]  # fmt: skip


class Example(NamedTuple):
    """One run to look at. name: as a reader knows it.  timing: None where it is not known."""

    name: str
    run: Run
    steps: Steps
    timing: Timing | None
    waiting: Waiting

    @property
    def end(self) -> float:
        """Seconds until the run ended."""
        return float(self.run.updates["time"][-1])


def example(name: str, run: Run, timing: Timing | None, workers: int) -> Example:
    """A run that kept its steps, and what follows from them."""
    steps = steps_of(run)
    total = float(np.sum(run.summary["wait_by_rank"]))
    if run.excerpt is not None:
        blank = np.zeros((0, 0))
        waited = Waiting(blank, blank, total, "only an excerpt of its steps was kept")
    elif timing is None and run.recorded is None:
        blank = np.zeros((workers, workers))
        waited = Waiting(blank, blank, total, "the run's trace or profile is not at hand")
    else:
        waited = waiting(run, steps, timing, run.summary["architecture"], workers)
    return Example(name, run, steps, timing, waited)


def examples_of(comparison: Comparison) -> list[Example]:
    """The example runs of a comparison, those of the first seed, the clean control too."""
    scenario = comparison.scenario
    clean, first = scenario.without_contention(), scenario.seed_list[0]
    return [
        example(
            control_name(name), run, (clean if name == "clean" else scenario).timing(first),
            scenario.workers,
        )
        for name, run in comparison.examples.items()
    ]  # fmt: skip


def timing_of(run: Run, scenario: Scenario) -> Timing:
    """The durations of a run. Raises `InputError` where its trace was another one."""
    trace = scenario.inputs.trace
    recorded = run.provenance["sha256"]["trace"]
    if recorded != (None if trace is None else trace.sha256):
        raise InputError(
            f"the run of {run.policy} met another trace than the scenario has; give the scenario "
            "it was simulated under, for the clean control scenario.without_contention()"
        )
    return scenario.timing(run.seed)


def close_look(examples: Sequence[Example], workers: int) -> windows.Window:
    """The window that their timelines show: where the contention of one of them sets in."""
    contended = [e for e in examples if e.timing is not None and e.timing.contention.slowdowns]
    replayed = [e for e in examples if e.timing is not None and e.timing.contention.durations]
    shortest = min(e.end for e in examples)
    of_window = (contended or replayed or list(examples))[0]
    contention = Contention() if of_window.timing is None else of_window.timing.contention
    cycle = windows.cycle_of([of_window.steps])
    if not cycle > 0:  # nobody started a second step: the whole run is a close look
        cycle = shortest
    window = windows.choose(contention, workers, cycle, shortest, kept_of(examples, cycle))
    return window if of_window.run.recorded is None else _waited_longest(of_window, window)


def _waited_longest(e: Example, window: windows.Window) -> windows.Window:
    """As long a window where a rank of a real run waited longest: its contention is unknown."""
    length, begun = window.end - window.start, float(e.steps.start.min())
    middle = float(e.steps.finish[np.argmax(e.steps.wait)])
    start = max(begun, min(middle - length / 2, e.end - length))
    return windows.Window(start, start + length, window.ranks, "a rank waited longest there")


def kept_of(examples: Sequence[Example], cycle: float) -> windows.Kept:
    """What all of them have to look at. cycle: seconds between two steps of a rank."""
    excerpts = [e.run.excerpt for e in examples if e.run.excerpt is not None]
    if not excerpts:
        return windows.ALL
    ranks = frozenset.intersection(*(frozenset(x["ranks"]) for x in excerpts))
    period = max((x["period"] for x in excerpts if x["period"] is not None), default=math.inf)
    window = min((x["window"] for x in excerpts if x["window"] is not None), default=math.inf)
    return windows.Kept(period, window, ranks, min(2 * cycle, window / 8))


def excerpts(examples: Sequence[Example], workers: int) -> str:
    """Of which runs not all steps were kept, and which were, in words; empty where all are."""
    names: dict[str, list[str]] = {}
    for e in examples:
        if e.run.excerpt is not None:
            names.setdefault(_kept_steps(e.run.excerpt, workers), []).append(e.name)
    found = [f"of {listed(own)}, {what}" for what, own in names.items()]
    if not found:
        return ""
    windows = any(e.run.excerpt and e.run.excerpt["period"] is not None for e in examples)
    more = ", which stand for all of that time in the picture of the whole run" if windows else ""
    return f"Not all steps were kept: {'; '.join(found)}{more}."


def _kept_steps(excerpt: Mapping[str, Any], workers: int) -> str:
    ranks = len(excerpt["ranks"])
    parts = [f"those of {ranks} of {workers} ranks"] if ranks < workers else []
    if excerpt["period"] is not None:
        parts.append(f"those in the first {excerpt['window']:g} of each {excerpt['period']:g} s")
    return " and ".join(parts)


def control_name(name: str) -> str:
    """What a reader knows an example of a comparison as."""
    return CONTROL if name == "clean" else name
