"""Makes a `Run` and a `Trace` of the journal of a real run, finished or cut off.

What was recorded is told to the bookkeeping again, and the recorded plans are put in the place of
the policy; nothing is decided anew and no time is worked out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.ddp.journal import facts_of, plan_of, read
from simstrag.errors import InputError, PlanError
from simstrag.live import Live
from simstrag.plan import Plan
from simstrag.policy import Hints, View
from simstrag.recorder import Recorder
from simstrag.run import TABLES, Run, provenance
from simstrag.scenario import Scenario
from simstrag.summary import summarise
from simstrag.tables import write_table
from simstrag.trace import Row, Trace

__all__ = ["finish", "run_of", "trace_of"]


def run_of(folder: str | Path) -> Run:
    """The run whose journal is in a folder, as far as it came.

    Its scenario holds what the journal's header says under `recorded`.  Progress is unknown unless
    the noise scale is.  Raises `InputError` where there is no journal, or nothing was applied.
    """
    header, lines = read(folder)
    policy = _Recorded(header, lines)
    recorder = Recorder(keep_updates=True, keep_steps=True, keep_gradients=True)
    live = _told_again(header, lines, policy, recorder)
    if live.version == policy.began:
        raise InputError(f"{folder}: the run ended before its first update; there is no more")
    recorder.judged = False  # of a real run nobody knows the truth about its stragglers
    workers, learner = header["world_size"], {"batch": header["batch"]}
    if live.hints.noise_scale is not None:
        learner["noise_scale"] = live.hints.noise_scale
    scenario = Scenario(workers=workers, updates=1, step={"compute": 1.0}, learner=learner)
    summary, warnings = summarise(scenario, policy, header["policy"], recorder, live.learner)
    tables: dict[str, Any] = {name: recorder.storage.table(name) for name in TABLES}
    declared = {"workers": workers, "learner": learner, "recorded": header}
    made = {**provenance(), **header.get("software", {})}
    seed = int(header.get("seed", 0))
    return Run(header["policy"], seed, declared, summary, made, **tables, warnings=warnings)


def trace_of(run: Run) -> Trace:
    """The local times of a recorded run as durations, one per step, in full precision.

    A step in reduced precision counts as long as it would have taken in full precision, by the
    gain that was known when it was recorded.  Raises `InputError` where that was not known.
    """
    hints = run.scenario["recorded"]["hints"]
    frame = run.frame("steps")
    seconds = (frame["finish"] - frame["start"]).to_numpy()
    amp = (frame["precision"] == "amp").to_numpy()
    if amp.any() and hints.get("amp_ratio") is None:
        raise InputError(
            "the run has steps in reduced precision, and nothing says what that gained: a trace is "
            "of full precision; record it with a profile, or under a policy that does not switch"
        )
    seconds = np.where(amp, seconds * (hints.get("amp_ratio") or 1.0), seconds)
    rows = zip(frame["start"].tolist(), frame["rank"].tolist(), seconds.tolist(), strict=True)
    in_order = sorted(rows)
    return Trace.from_rows([Row(t, rank, "step", "duration", s) for t, rank, s in in_order])


def finish(folder: str | Path) -> Run:
    """Make the run of a journal and write it beside it, with the trace of its local times.

    What a training measured at its end, such as its accuracy, enters the summary.  Raises
    `InputError` as `run_of` does.
    """
    folder = Path(folder)
    run = run_of(folder)
    result = folder / "result.json"
    if result.exists():
        measured = json.loads(result.read_text(encoding="utf-8"))
        run = replace(run, summary={**run.summary, "accuracy": measured["accuracy"]})
    for name in TABLES:
        columns = getattr(run, name)
        if columns is not None:
            write_table(folder, name, columns)
    with contextlib.suppress(InputError):  # steps in reduced precision of unknown gain
        trace_of(run).write(folder / "trace.csv")
    run.note(folder)
    return run


class _Recorded:
    """Answers with the plans that were recorded, by the number of the question."""

    def __init__(self, header: Mapping[str, Any], lines: list[list[Any]]) -> None:
        self._plans: dict[int, Plan] = {
            line[1]: plan_of(line[3]) for line in lines if line[0] == "plan"
        }
        ended = [line[2] for line in lines if line[0] == "end"]
        self._summary: dict[str, int | float] = ended[-1] if ended else {}
        facts = header.get("facts")
        self.began = 0 if facts is None else int(facts["version"])
        self._asked = 0 if facts is None else int(facts["asked"])
        self._plan = None if facts is None else plan_of(facts["plan"])

    def plan(self, view: View) -> Plan:
        self._asked += 1
        self._plan = self._plans.get(self._asked, self._plan)
        if self._plan is None:
            raise InputError("the journal has no plan: it was cut off before the first")
        return self._plan

    def summary(self) -> dict[str, int | float]:
        return self._summary


def _told_again(
    header: Mapping[str, Any], lines: list[list[Any]], policy: _Recorded, recorder: Recorder
) -> Live:
    facts = header.get("facts")
    live = Live(
        policy, header["world_size"], header["batch"], Hints(**header["hints"]),
        name=header["policy"], facts=None if facts is None else facts_of(facts), recorder=recorder,
    )  # fmt: skip
    for kind, *values in lines:
        if kind == "done":
            at, rank, seconds = values
            live.done(rank, at, seconds)
        elif kind == "lockstep":
            start, seconds, end = values
            live.lockstep(start, np.array(seconds), end)
        elif kind == "reduced":
            at, number = values
            live.reduced(number, at)
        elif kind == "wait":
            live.wait(values[0])
        elif kind == "gone":
            at, rank = values
            with contextlib.suppress(PlanError):  # it was the last
                live.gone(rank, at)
        live.news()
    live.end()
    return live
