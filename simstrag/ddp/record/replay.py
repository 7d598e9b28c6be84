"""Makes a `Run` and a `Trace` of the journal of a real run, finished or cut off.

What was recorded is told to the bookkeeping again, and the recorded plans are put in the place of
the policy; nothing is decided anew and no time is worked out.

A training that was taken up again, or went on as a smaller world, has several journals: its parts.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.ddp.record.journal import (
    ATTEMPT,
    LOAD,
    NAME,
    facts_from_json,
    plan_from_json,
    read_journal,
)
from simstrag.engine.live import Live
from simstrag.engine.recorder import Recorder
from simstrag.engine.summary import summarise
from simstrag.errors import InputError, NobodyLeft
from simstrag.plan import Plan
from simstrag.policy import Hints, View
from simstrag.runs.run import TABLES, Run, provenance
from simstrag.runs.tables import write_table
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Row, Trace

__all__ = ["amp_gain", "finish", "finish_all", "part_folders", "run_of", "trace_of"]

GENERATION = "generation"
"""Folders of ranks that went on without others, numbered."""

BEFORE = "the run ended before its first update; there is no more"

LEAST = 1e-6
"""Seconds of a step, whatever is taken off."""

LOADED = f"load was put beside ranks on purpose; {LOAD} says when, and how much of it there was"

UNTOLD = ("format", "facts")
"""What a header has for those alone who tell the journal again."""


def run_of(folder: str | Path) -> Run:
    """The run whose journal is in a folder, as far as it came.

    `recorded` is what the journal's header says.  Time and samples of a training that was taken up
    count on from where it was.  Progress is unknown unless the noise scale is known.  Raises
    `InputError` where there is no journal, or nothing was applied.
    """
    header, lines = read_journal(folder)
    policy = _Recorded(header, lines)
    if not policy.known:
        raise InputError(f"{folder}: {BEFORE}")
    recorder = Recorder(keep_updates=True, keep_steps=True, keep_gradients=True)
    live = _told_again(header, lines, policy, recorder)
    if live.version == policy.began:
        raise InputError(f"{folder}: {BEFORE}")
    recorder.judged = False  # of a real run nobody knows the truth about its stragglers
    workers, learner = header["world_size"], {"batch": header["batch"]}
    if live.hints.noise_scale is not None:
        learner["noise_scale"] = live.hints.noise_scale
    scenario = Scenario(workers=workers, updates=1, step={"compute": 1.0}, learner=learner)
    # What `summarise` would warn of is said of simulations: nothing is left to real training here.
    summary, _ = summarise(scenario, policy, header["policy"], recorder, live.learner)
    tables: dict[str, Any] = {name: recorder.storage.table(name) for name in TABLES}
    made = {**provenance(), **header.get("software", {})}
    said = [] if live.learner.lost is None else [f"progress is unknown: {live.learner.lost}"]
    if nothing := _nothing(lines, workers):
        said.append(
            f"{nothing} gradients count as applied and changed nothing: they were not finite, or "
            "lost with their rank"
        )
    if summary["amp_share"] and "stand-in" in header.get("precision", ""):
        said.append(f"reduced precision was no number format of a GPU: {header['precision']}")
    return Run(
        header["policy"], int(header.get("seed", 0)), {"workers": workers, "learner": learner},
        summary, made, **tables, warnings=tuple(said),
        recorded={name: told for name, told in header.items() if name not in UNTOLD},
    )  # fmt: skip


def _nothing(lines: list[list[Any]], ranks: int) -> int:
    """How many gradients were booked with an update and are not in it."""
    missing = [rank for line in lines if line[0] == "applied" for rank in line[3]]
    skipped = [line for line in lines if line[0] == "skipped"]
    return len(missing) + ranks * len(skipped)


def part_folders(folder: str | Path) -> list[Path]:
    """The folders of a training that have a journal, in the order of what happened.

    Its own, those of smaller worlds (`generation-1`, ...), and those of later starts (`attempt-1`,
    ...), which may have others in turn.
    """
    folder = Path(folder)
    later = [*_numbered(folder, GENERATION), *_numbered(folder, ATTEMPT)]
    own = [folder] if (folder / NAME).exists() else []
    return own + [each for inner in later for each in part_folders(inner)]


def _numbered(folder: Path, word: str) -> list[Path]:
    found = [(each.name.rpartition("-")[2], each) for each in folder.glob(f"{word}-*")]
    return [each for _, each in sorted((int(n), each) for n, each in found if n.isdecimal())]


def trace_of(run: Run, more: Mapping[tuple[int, float], float] | None = None) -> Trace:
    """The local times of a recorded run as durations, one per step, in full precision.

    A step in reduced precision counts as long as it would have taken in full precision.
    more: seconds to add to the step that a rank finished at that time.  Raises `InputError` where
    nothing says what reduced precision gained.
    """
    gain = amp_gain(run.recorded or {})
    frame = run.frame("steps")
    seconds = (frame["finish"] - frame["start"]).to_numpy()
    amp = (frame["precision"] == "amp").to_numpy()
    if amp.any() and gain is None:
        raise InputError(
            "the run has steps in reduced precision, and nothing says what that gained: a trace is "
            "of full precision; record it with a profile, or under a policy that does not switch"
        )
    if more is not None:
        ends = zip(frame["rank"].tolist(), frame["finish"].tolist(), strict=True)
        seconds = seconds + [more.get(end, 0.0) for end in ends]
    seconds = np.maximum(seconds, LEAST)
    seconds = np.where(amp, seconds * (gain or 1.0), seconds)
    rows = zip(frame["start"].tolist(), frame["rank"].tolist(), seconds.tolist(), strict=True)
    in_order = sorted(rows)
    return Trace.from_rows([Row(t, rank, "step", "duration", s) for t, rank, s in in_order])


def amp_gain(header: Mapping[str, Any]) -> float | None:
    """How many times as long a step takes in full precision: by the profile, else as measured."""
    known = header.get("hints", {}).get("amp_ratio")
    return header.get("gain") if known is None else known


def finish(folder: str | Path) -> Run:
    """Make runs of a training, as `finished` does; the one of its last part."""
    return list(finish_all(folder).values())[-1]


def finish_all(folder: str | Path) -> dict[Path, Run]:
    """Make a run of each part, and write it beside its journal, with the trace of its local times.

    What a training measured at its end, such as its accuracy, enters the summary of the last part.
    A part of which nothing can be made, such as one that ended before its first update, is left out
    with a warning; raises `InputError` where that is so of all, or there is no journal.
    """
    folder = Path(folder)
    measured, asked = _document(folder / "result.json"), _document(folder / "training.json")
    runs, failed = {}, []
    for each in part_folders(folder) or [folder]:
        try:
            runs[each] = run_of(each)
        except InputError as error:
            failed.append(error)
    if not runs:
        raise failed[0]
    for lost in failed:
        warnings.warn(str(lost), stacklevel=2)
    if measured:
        last, run = list(runs.items())[-1]
        runs[last] = replace(run, summary={**run.summary, "accuracy": measured["accuracy"]})
    if asked:
        runs = {each: _asked(run, asked) for each, run in runs.items()}
    runs = {each: _loaded(run, each, folder) for each, run in runs.items()}
    for each, run in runs.items():
        _write(run, each)
    return runs


def _asked(run: Run, asked: Mapping[str, Any]) -> Run:
    """With what `simstrag ddp` was asked for, and what follows from where it ran."""
    said, ranks = list(run.warnings), run.scenario["workers"]
    if ranks > asked.get("cores", ranks):
        said.append(f"{ranks} ranks shared {asked['cores']} cores: steps measure the scheduler too")
    told = {**(run.recorded or {}), "asked": asked}
    return replace(run, seed=asked.get("seed", 0), recorded=told, warnings=tuple(said))


def _document(path: Path) -> dict[str, Any]:
    """What a file of JSON holds; nothing where there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _loaded(run: Run, part: Path, folder: Path) -> Run:
    """Load goes on beside later parts, which are in the folder of the first one."""
    inside = [each for each in (part, *part.parents) if each.is_relative_to(folder)]
    there = any((each / LOAD).exists() for each in inside)
    return replace(run, warnings=(*run.warnings, LOADED)) if there else run


def _write(run: Run, folder: Path) -> None:
    for name in TABLES:
        columns = getattr(run, name)
        if columns is not None:
            write_table(folder, name, columns)
    try:
        trace_of(run).write(folder / "trace.csv")
    except InputError as error:
        warnings.warn(f"{folder} has no trace.csv: {error}", stacklevel=3)
    run.note(folder)


class _Recorded:
    """Answers with the plans that were recorded, by the number of the question."""

    def __init__(self, header: Mapping[str, Any], lines: list[list[Any]]) -> None:
        self._plans: dict[int, Plan] = {
            line[1]: plan_from_json(line[3]) for line in lines if line[0] == "plan"
        }
        ended = [line[2] for line in lines if line[0] == "end"]
        self._summary: dict[str, int | float] = ended[-1] if ended else {}
        facts = header.get("facts")
        self.began = 0 if facts is None else int(facts["version"])
        self._asked = 0 if facts is None else int(facts["asked"])
        self._plan = None if facts is None else plan_from_json(facts["plan"])

    @property
    def known(self) -> bool:
        """Whether there is any plan."""
        return bool(self._plans) or self._plan is not None

    def plan(self, view: View) -> Plan:
        self._asked += 1
        self._plan = self._plans.get(self._asked, self._plan)
        assert self._plan is not None, "who has no plan is not asked"
        return self._plan

    def summary(self) -> dict[str, int | float]:
        return self._summary


def _told_again(
    header: Mapping[str, Any], lines: list[list[Any]], policy: _Recorded, recorder: Recorder
) -> Live:
    facts = header.get("facts")
    live = Live(
        policy, header["world_size"], header["batch"], Hints(**header["hints"]),
        name=header["policy"], recorder=recorder,
        facts=None if facts is None else facts_from_json(facts),
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
            with contextlib.suppress(NobodyLeft):
                live.gone(rank, at)
        live.news()
    live.end()
    return live
