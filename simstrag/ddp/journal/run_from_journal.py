"""A `Run` and a `Trace` from the journal of a real run, finished or cut off.

The engine replays the recorded events, with the recorded plans in place of the policy: no decision
is made and no time is computed.

A training that was resumed, or went on as a smaller world, has several journals: its parts.
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

from simstrag.contract import Hints, Plan, View
from simstrag.ddp.journal.journal import (
    ATTEMPT,
    LOAD,
    NAME,
    facts_from_json,
    plan_from_json,
    read_journal,
)
from simstrag.engine.live import Facts, Live
from simstrag.engine.recorder import Recorder
from simstrag.engine.summary import summarise
from simstrag.errors import InputError, NobodyLeft
from simstrag.learning.noise_scale_estimate import NoiseAverages, NormPair, estimate_at_end
from simstrag.runs.run import TABLES, Run, provenance
from simstrag.runs.tables import write_table
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Row, Trace

GENERATION = "generation"
"""Prefix of the numbered folders of smaller worlds."""

TOO_SHORT = "the run ended before its first update; there is no more"

LEAST = 1e-6
"""Least seconds of a step in a trace."""

LOADED = f"load was put beside ranks on purpose; {LOAD} says when, and how much of it there was"

INTERNAL = ("format", "facts")
"""Keys of a header that serve the replay only."""


def run_of(folder: str | Path) -> Run:
    """The run whose journal is in a folder, as far as it came.

    Its `recorded` is the journal's header.  Time and samples of a resumed training count on from
    the checkpoint.  Progress is by the noise scale as it was estimated, before that by the first
    estimate, or a hint; unknown without any.  Raises `InputError` without a journal, and for a run
    without updates.
    """
    header, lines = read_journal(folder)
    facts = None if header.get("facts") is None else facts_from_json(header["facts"])
    policy = _Recorded(facts, lines)
    if not policy.known:
        raise InputError(f"{folder}: {TOO_SHORT}")
    measured = MeasuredNorms(lines, header["world_size"] * header["batch"])
    recorder = Recorder(keep_updates=True, keep_steps=True, keep_gradients=True)
    live = Live(
        policy, header["world_size"], header["batch"], Hints.of(header["hints"]),
        name=header["policy"], recorder=recorder, facts=facts,
        noise_scale=measured.first_scale(NoiseAverages() if facts is None else facts.noise),
    )  # fmt: skip
    _replay_events(live, lines)
    if live.version == policy.began:
        raise InputError(f"{folder}: {TOO_SHORT}")
    recorder.judged = False  # the true stragglers of a real run are unknown
    workers, learner = header["world_size"], {"batch": header["batch"]}
    if live.hints.noise_scale is not None:
        learner["noise_scale"] = live.hints.noise_scale
    scenario = Scenario(workers=workers, updates=1, step={"compute": 1.0}, learner=learner)
    # The warnings of `summarise` are about simulations.
    summary, _ = summarise(scenario, policy, header["policy"], recorder, live.learner)
    summary |= measured.summary(live.noise)
    tables: dict[str, Any] = {name: recorder.storage.table(name) for name in TABLES}
    made = {**provenance(), **header.get("software", {})}
    notes = [] if live.learner.lost is None else [f"progress is unknown: {live.learner.lost}"]
    if ineffective := _count_without_effect(lines, workers):
        notes.append(
            f"{ineffective} gradients count as applied and changed nothing: they were not finite, "
            "or lost with their rank"
        )
    if summary["amp_share"] and "stand-in" in header.get("precision", ""):
        notes.append(f"reduced precision was no number format of a GPU: {header['precision']}")
    return Run(
        header["policy"], int(header.get("seed", 0)), {"workers": workers, "learner": learner},
        summary, made, **tables, warnings=tuple(notes),
        recorded={name: value for name, value in header.items() if name not in INTERNAL},
    )  # fmt: skip


def _count_without_effect(lines: list[list[Any]], ranks: int) -> int:
    """The number of gradients that count as applied and changed nothing."""
    missing = [rank for line in lines if line[0] == "applied" for rank in line[3]]
    skipped = [line for line in lines if line[0] == "skipped"]
    return len(missing) + ranks * len(skipped)


def part_folders(folder: str | Path) -> list[Path]:
    """The folders of a training that have a journal, in order of time.

    They are its own folder and subfolders of smaller worlds (`generation-1`, ...) and later starts
    (`attempt-1`, ...), which may contain others.
    """
    folder = Path(folder)
    later = [*_numbered(folder, GENERATION), *_numbered(folder, ATTEMPT)]
    own = [folder] if (folder / NAME).exists() else []
    return own + [each for inner in later for each in part_folders(inner)]


class SampleCount:
    """The samples that a training has computed, read from its latest journal while that grows.

    batch: samples of a gradient.
    """

    def __init__(self, folder: str | Path, batch: int) -> None:
        self._folder, self._batch = folder, batch
        self._path, self._read, self.samples = Path(), 0, 0

    def update(self) -> int:
        """Read what was written since the last call; `samples` so far, and 0 before a journal."""
        for part in part_folders(self._folder)[-1:]:
            if part != self._path:
                self._path, self._read, self.samples = part, 0, 0
            try:
                with (part / NAME).open("rb") as file:
                    file.seek(self._read)
                    lines = file.read().rpartition(b"\n")[0].splitlines(keepends=True)
            except OSError:  # removed since it was found
                continue
            self._read += sum(map(len, lines)) + bool(lines)
            for line in lines:
                if line.startswith(b'["header"'):
                    self.samples = (json.loads(line)[1].get("facts") or {}).get("samples", 0)
                elif line.startswith(b'["done"'):
                    self.samples += self._batch
                elif line.startswith(b'["lockstep"'):
                    self.samples += self._batch * len(json.loads(line)[2])
        return self.samples


def _numbered(folder: Path, word: str) -> list[Path]:
    found = [(each.name.rpartition("-")[2], each) for each in folder.glob(f"{word}-*")]
    return [each for _, each in sorted((int(n), each) for n, each in found if n.isdecimal())]


def trace_of(run: Run, more: Mapping[tuple[int, float], float] | None = None) -> Trace:
    """The local times of a recorded run as durations, one per step, in full precision.

    more: seconds to add, by rank and finish of a step.

    A step in reduced precision is stretched by the gain.  Raises `InputError` where that is
    unknown.
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
    """The gain of reduced precision: by the profile, else as measured; None if unknown."""
    known = header.get("hints", {}).get("amp_ratio")
    return header.get("gain") if known is None else known


def finish(folder: str | Path) -> Run:
    """Make runs of a training as `finish_all` does; return the run of its last part."""
    return list(finish_all(folder).values())[-1]


def finish_all(folder: str | Path) -> dict[Path, Run]:
    """Make a run of each part, and write it and the trace of its local times beside the journal.

    The accuracy at the end enters the summary of the last part.  A part without a run, such as one
    that ended before its first update, is left out with a warning.  Raises `InputError` where no
    part has one.
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
    for part, run in runs.items():
        notes, ranks = list(run.warnings), run.scenario["workers"]
        if ranks > asked.get("cores", ranks):
            notes.append(
                f"{ranks} ranks shared {asked['cores']} cores: steps measure the scheduler too"
            )
        inside = [each for each in (part, *part.parents) if each.is_relative_to(folder)]
        if any((each / LOAD).exists() for each in inside):  # the load goes on beside later parts
            notes.append(LOADED)
        seed, recorded = run.seed, run.recorded
        if asked:
            seed, recorded = asked.get("seed", 0), {**(recorded or {}), "asked": asked}
        runs[part] = replace(run, seed=seed, recorded=recorded, warnings=tuple(notes))
    for part, run in runs.items():
        _write(run, part)
    return runs


def _document(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; empty without one."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


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
    """Answers with the recorded plans, by the number of the request."""

    def __init__(self, facts: Facts | None, lines: list[list[Any]]) -> None:
        self._plans: dict[int, Plan] = {
            line[1]: plan_from_json(line[3]) for line in lines if line[0] == "plan"
        }
        ended = [line[2] for line in lines if line[0] == "end"]
        self._summary: dict[str, int | float] = ended[-1] if ended else {}
        self.began = 0 if facts is None else facts.version
        self._asked = 0 if facts is None else facts.asked
        self._plan = None if facts is None else facts.plan

    @property
    def known(self) -> bool:
        """Whether there is a plan."""
        return bool(self._plans) or self._plan is not None

    def plan(self, view: View) -> Plan:
        self._asked += 1
        self._plan = self._plans.get(self._asked, self._plan)
        assert self._plan is not None, "no plan was recorded"
        return self._plan

    def summary(self) -> dict[str, int | float]:
        return self._summary


class MeasuredNorms:
    """The squared norms of gradients that a journal has.

    round_samples: one batch of every rank.
    """

    def __init__(self, lines: list[list[Any]], round_samples: int) -> None:
        found = [values for kind, *values in lines if kind == "norms"]
        self._samples = [int(samples) for samples, *_ in found]
        self._pairs = [NormPair(*norms) for _, *norms in found]
        self._round_samples = round_samples

    def first_scale(self, noise: NoiseAverages) -> float | None:
        """The first estimate of the noise scale after `noise`; None without one."""
        for samples, pair in zip(self._samples, self._pairs, strict=True):
            if noise.scale is not None:
                break
            noise = noise.with_pair(pair, samples, self._round_samples)
        return noise.scale

    def summary(self, noise: NoiseAverages) -> dict[str, Any]:
        """The noise scale at the end, and its 95 % interval.

        noise: the averages at the end; where a resumed part measured too little, they are its
            estimate, without an interval.
        """
        found = estimate_at_end(self._pairs, self._samples, self._round_samples)
        names = "noise_scale", "noise_scale_low", "noise_scale_high"
        return dict(zip(names, found or (noise.scale, None, None), strict=True))


def _replay_events(live: Live, lines: list[list[Any]]) -> None:
    for kind, *values in lines:
        if kind == "done":
            at, rank, seconds = values
            live.finish_step(rank, at, seconds)
        elif kind == "lockstep":
            start, seconds, end = values
            live.lockstep(start, np.array(seconds), end)
        elif kind == "reduced":
            at, number = values
            live.finish_reduction(number, at)
        elif kind == "norms":
            live.measure(NormPair(*values[1:]))
        elif kind == "wait":
            live.wait(values[0])
        elif kind == "gone":
            at, rank = values
            with contextlib.suppress(NobodyLeft):
                live.lose_rank(rank, at)
        live.news()
    live.end()
