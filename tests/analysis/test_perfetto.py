"""The timeline for Perfetto: that it keeps to the format, and that what it shows is what was."""

import collections
import gzip
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag import policies
from simstrag.analysis.derived.phase_intervals import KINDS, micro, phases_of
from simstrag.analysis.derived.steps import fates_of, steps_of
from simstrag.analysis.pages import perfetto
from simstrag.analysis.pages.perfetto import TimelineFile, write_timeline
from simstrag.cli import main
from simstrag.contract import Plan, Policy, Precision, Quorum, Review, Via, View
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from simstrag.timing.timing import Timing
from tests.support import reference, slowed_runs
from tests.support.contention import durations
from tests.support.slowed_runs import WORKERS, scenario

Write = Callable[..., Any]
POLICIES = [
    "bsp", "bsp:via=server", "asgd", "ssp", "ssp:bound=0", "backup", "backup:b=2,late=drop",
    "backup:via=allreduce", "korel", "k_async:x=3", "lgc", "dssp", "star_dynamic", "star_h",
    "star_ring", "lb_bsp", "dropcompute:theta=0.05", "p_reduce", "local_sgd:h=4", "ringmaster",
    "drain:window=3,wait=4", "hot_spare:window=3", "fewer:measure=2",
]  # fmt: skip
UNORDERED = ["cgp", "sync_switch"]
"""Groups with leaders, and more than one way of making updates."""
REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
}
"""Keys that the trace-event format asks of each phase; a thread-scoped instant says so in `s`."""


def run_of(policy: str) -> tuple[Run, Timing]:
    return slowed_runs.run_of(policy, gradients=True)


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Writes a timeline and reads it back: the file's contents, and what was said of it."""

    def write(*given: Any, **also: Any) -> tuple[dict[str, Any], TimelineFile]:
        run, timing = given
        path = tmp_path / "run.json"
        said = write_timeline(run, path, timing, **also)
        return json.loads(path.read_text("utf-8")), said

    return write


def slices(
    file: dict[str, Any], *names: str, process: int = perfetto.WORKERS
) -> list[tuple[int, int, int]]:
    """(thread, from, to) of the slices of these names; by default those of the workers."""
    return sorted(
        (e["tid"], e["ts"], e["ts"] + e["dur"])
        for e in file["traceEvents"]
        if e["ph"] == "X" and e["pid"] == process and e["name"] in names
    )


def instants(file: dict[str, Any], track: int) -> list[dict[str, Any]]:
    return [e for e in file["traceEvents"] if e["ph"] == "i" and e["tid"] == track]


@pytest.mark.parametrize(
    ("policy", "with_timing"),
    [*((policy, True) for policy in (*POLICIES, *UNORDERED)), ("backup", False), ("cgp", False)],
)
def test_a_file_keeps_to_the_trace_event_format(
    policy: str, with_timing: bool, written: Write
) -> None:
    run, timing = run_of(policy)
    file, said = written(run, timing if with_timing else None)
    assert list(file) == ["displayTimeUnit", "metadata", "traceEvents"]
    assert len(file["traceEvents"]) == said.events
    busy_until: dict[tuple[int, int], int] = collections.defaultdict(int)
    latest = 0
    owner: dict[int, int] = {}
    for event in file["traceEvents"]:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert 0 < event["pid"] == owner.setdefault(event["tid"], event["pid"])
        if event["ph"] == "M":
            continue
        assert isinstance(event["ts"], int)
        assert event["ts"] >= latest, "in order of time"
        latest = event["ts"]
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] > 0
            assert event["ts"] >= busy_until[event["pid"], event["tid"]], "one thing at a time"
            busy_until[event["pid"], event["tid"]] = event["ts"] + event["dur"]
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())


@pytest.mark.parametrize("policy", [*POLICIES, *UNORDERED])
def test_phases_last_as_long_as_was_recorded(policy: str) -> None:
    run, timing = run_of(policy)
    phases = phases_of(run, steps_of(run), timing)
    table = run.frame("steps").sort_values(["rank", "step"])
    seconds = np.diff(phases.marks, axis=1)
    total = {name: seconds[:, [k == name for k in KINDS]].sum(axis=1) for name in KINDS}
    assert total["wait"] == pytest.approx(table["wait"].to_numpy(), abs=1e-9)
    communication = total["pull"] + total["push"] + total["exchange"]
    assert communication == pytest.approx(table["communication"].to_numpy(), abs=1e-9)
    assert phases.assumed.any() == (policy in UNORDERED)


@dataclass(frozen=True)
class Alternating(Policy):
    """Twenty updates in full precision, twenty in reduced, through the server."""

    def plan(self, view: View) -> Plan:
        precision = Precision.AMP if view.version // 20 % 2 else Precision.FULL
        quorum = Quorum(count=1, via=Via.SERVER)
        return Plan((quorum,), precision=precision, review=Review(updates=20))


def test_a_switch_of_precision_lies_between_pull_and_computing(written: Write) -> None:
    made = scenario()
    run = simulate(made, Alternating(), record_steps=True)
    file, _ = written(run, made.timing(0))
    switches = slices(file, "switch to amp", "switch to full")
    assert len(switches) > 20
    assert {end - start for _, start, end in switches} <= {9_999, 10_000, 10_001}
    computing = {(rank, start) for rank, start, _ in slices(file, "amp", "full")}
    pulled = {(rank, end) for rank, _, end in slices(file, "pull")}
    assert {(rank, end) for rank, _, end in switches} <= computing
    assert {(rank, start) for rank, start, _ in switches} <= pulled
    pulls = {end - start for rank, start, end in slices(file, "pull") if rank != perfetto.RANK_0}
    assert pulls <= {999, 1_000, 1_001}
    assert "order" not in file["metadata"]


@pytest.mark.parametrize(
    "policy",
    [
        "asgd", "ssp", "bsp:via=server", "k_async:x=3", "lgc", "backup:b=2,late=drop", "star_h",
        "star_dynamic", "ringmaster:r=3",
    ],
)  # fmt: skip
def test_pushes_pulls_and_jobs_are_those_that_were_made(
    policy: str, monkeypatch: pytest.MonkeyPatch, written: Write
) -> None:
    """The reference engine asks `Timing` for each; compiled code cannot be overheard."""
    made: dict[str, set[tuple[int, ...]]] = collections.defaultdict(set)

    def listen(name: str, whose: Callable[..., list[int]], start: int) -> None:
        method = getattr(Timing, name)

        def heard(self: Timing, *args: Any, **also: Any) -> float:
            end: float = method(self, *args, **also)
            made[name].add((*whose(args), *micro([args[start], end]).tolist()))
            return end

        monkeypatch.setattr(Timing, name, heard)

    listen("push", lambda args: [perfetto.RANK_0 + args[0]], 1)
    listen("pull", lambda args: [perfetto.RANK_0 + args[0]], 1)
    listen("serve", lambda args: [], 0)
    reference.simulate(scenario(), policies.load(policy), 3)
    monkeypatch.undo()
    run, timing = run_of(policy)
    file, _ = written(run, timing)
    pulls, pushes = slices(file, "pull"), slices(file, "push")
    assert set(pulls) <= made["pull"]
    assert len(pulls) == len(steps_of(run).rank)
    end = micro(run.updates["time"][-1])
    assert {push for push in pushes if push[2] < end} <= made["push"]
    assert len(pushes) >= run.summary["applied"]
    served = [
        (e["ts"], e["ts"] + e["dur"])
        for e in file["traceEvents"]
        if e["ph"] == "X" and e["tid"] == perfetto.SERVER
    ]
    lost = run.summary["dropped"] if policy.startswith("ringmaster") else 0  # after their service
    assert len(served) == run.summary["applied"] + lost
    assert set(served) <= made["serve"]


@dataclass(frozen=True)
class Pairs(Policy):
    """Ranks 0 and 1 make an update together, and so do 2 and 3; 2 may be left out after one."""

    window: float = math.inf
    leaves: bool = False

    def plan(self, view: View) -> Plan:
        others = (3,) if self.leaves and view.version == 1 else (2, 3)
        first, second = (Quorum(ranks, via=Via.SERVER) for ranks in ((0, 1), others))
        return Plan((replace(first, window=self.window), second), review=Review(updates=1))


def jobs_of(policy: Policy, updates: int, seconds: tuple[float, ...]) -> tuple[list[Any], Run]:
    """(rank, from, to) of the jobs that are shown, half a second each; seconds: of each rank."""
    made = Scenario(
        workers=4, updates=updates, step={"compute": 1.0}, server={"service": 0.5},
        trace=durations(*((each,) for each in seconds)),
    )  # fmt: skip
    run = simulate(made, policy, record_steps=True)
    steps, timing = steps_of(run), made.timing(0)
    served = phases_of(run, steps, timing).served
    shown = [(int(steps.rank[k]), served[k]) for k in np.argsort(served) if served[k] > 0]
    return shown, run


def test_a_job_whose_update_was_still_to_come_holds_up_the_others() -> None:
    jobs, run = jobs_of(Pairs(), 1, (1.0, 1.2, 1.1, 9.0))
    assert run.updates["time"] == [2.5]
    assert jobs == [(0, 1.0), (1, 2.0)]


def test_jobs_behind_one_that_was_dropped_in_service_are_not_shown() -> None:
    """Rank 2 is served from 1.6 to 2.1 s and dropped at 1.8 s, which its row cannot say."""
    jobs, run = jobs_of(Pairs(window=0.8, leaves=True), 4, (1.0, 9.0, 1.6, 1.9))
    assert run.updates["time"] == pytest.approx([1.8, 2.6, 3.6, 5.2])
    assert jobs == [(2, pytest.approx(4.2)), (3, pytest.approx(4.7))]


def test_a_case_that_can_be_counted_by_hand(written: Write) -> None:
    made = Scenario(
        workers=2, updates=2, step={"compute": 1.0}, trace=durations((1.0,) * 2, (2.0,) * 2),
        allreduce={"alpha": 0.25},
    )  # fmt: skip
    file, said = written(simulate(made, "bsp", record_steps=True), made.timing(0))
    second = 1_000_000
    assert slices(file, "full") == [
        (1000, 0, second), (1000, 2.5 * second, 3.5 * second),
        (1001, 0, 2 * second), (1001, 2.5 * second, 4.5 * second),
    ]  # fmt: skip
    assert slices(file, "waiting") == [
        (1000, second, 2 * second), (1000, 3.5 * second, 4.5 * second),
    ]  # fmt: skip
    assert slices(file, "collective") == [
        (rank, at * second, (at + 0.5) * second) for rank in (1000, 1001) for at in (2, 4.5)
    ]
    updates = instants(file, perfetto.UPDATES)
    assert [e["ts"] for e in updates] == [2.5 * second, 5 * second]
    assert updates[1]["name"] == "update 2"
    assert updates[1]["args"] == {
        "version": 2, "members": 2, "ranks": "0 1", "gradients": 2, "samples": 512,
        "staleness_mean": 0.0, "staleness_max": 0, "progress": pytest.approx(0.677249, rel=1e-5),
    }  # fmt: skip
    assert said[1:] == (0.0, 5.0, 0, False)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fate_that_is_derived_is_the_one_that_was_kept(policy: str) -> None:
    (kept, _), (derived, _) = run_of(policy), slowed_runs.run_of(policy)
    steps = steps_of(kept)
    pairs = zip(fates_of(kept, steps), fates_of(derived, steps), strict=True)
    for true, told in pairs:
        assert true == told or (true.word in told.word.split(" or ") and true.update is None)


def test_work_that_was_thrown_away_is_named_apart(written: Write) -> None:
    run, timing = run_of("backup")
    file, _ = written(run, timing)
    computing = [e for e in file["traceEvents"] if e["name"].startswith("full")]
    fates = collections.Counter(e["cat"] for e in computing)
    assert fates["applied"] == run.summary["applied"]
    assert fates["aborted"] == run.summary["aborted"]
    assert {e["name"] for e in computing if e["cat"] == "aborted"} == {"full, aborted"}
    assert {e["name"] for e in computing if e["cat"] == "applied"} == {"full"}


def test_precisions_are_named_apart_and_a_switch_has_its_time(written: Write) -> None:
    run, timing = run_of("korel")
    file, _ = written(run, timing)
    steps = steps_of(run)
    assert len(slices(file, "amp")) == np.count_nonzero(steps.amp) > 0
    to_amp = np.flatnonzero(np.diff(steps.amp.astype(int)) == 1) + 1
    assert all(steps.rank[k] == steps.rank[k - 1] for k in to_amp)
    ends = micro(steps.start[to_amp]).tolist()
    found = [(end - start, end) for _, start, end in slices(file, "switch to amp")]
    assert found == [(10_000, end) for end in ends]


def test_counters_show_each_slowdown_from_when_on_it_holds(written: Write) -> None:
    run, timing = run_of("bsp")
    file, _ = written(run, timing)
    counters = [
        (e["name"], *e["args"].items(), e["ts"]) for e in file["traceEvents"] if e["ph"] == "C"
    ]
    assert counters == [
        ("rank 0", ("net", 1.0), 0), ("rank 1", ("gpu", 1.0), 0), ("rank 2", ("host", 1.0), 0),
        ("rank 1", ("gpu", 2.5), 1_000_000), ("rank 2", ("host", 1.5), 1_500_000),
        ("rank 0", ("net", 4.0), 2_000_000), ("rank 1", ("gpu", 1.0), 2_000_000),
    ]  # fmt: skip


@dataclass(frozen=True)
class Suspecting(Policy):
    """Judges from update 2 on, suspects rank 1 from 4 to 8 and rank 3 from 6 on, helps rank 1."""

    def plan(self, view: View) -> Plan:
        v = view.version
        suspects = {rank for rank, held in ((1, 4 <= v < 8), (3, v >= 6)) if held}
        precision = {1: Precision.AMP} if 1 in suspects else Precision.FULL
        judged = frozenset(suspects) if v >= 2 else None
        return Plan(precision=precision, suspects=judged, review=Review(updates=2))


@pytest.fixture(scope="module")
def suspecting() -> tuple[Run, Timing]:
    made = scenario(samples=WORKERS * 128 * 12, microbatches=1)
    return simulate(made, Suspecting(), record_steps=True), made.timing(0)


def test_what_a_plan_changed_is_a_mark_of_that_name(
    suspecting: tuple[Run, Timing], written: Write
) -> None:
    run, _ = suspecting
    file, _ = written(*suspecting)
    marks = instants(file, perfetto.DECISIONS)
    assert [(e["args"]["update"], e["name"]) for e in marks] == [
        (0, "first plan"), (2, "suspects"), (4, "suspects, precision"), (6, "suspects"),
        (8, "suspects, precision"),
    ]  # fmt: skip
    assert [e["ts"] for e in marks[1:]] == [micro(run.updates["time"][k]) for k in (1, 3, 5, 7)]
    plain = {"amp": "none", "way": "all-reduce", "groups": 1}
    assert marks[0]["args"] == {"update": 0, **plain}, "judges nobody, shares are equal"
    assert marks[1]["args"] == {"update": 2, "suspects": "none", **plain}
    assert marks[3]["args"] == {"update": 6, "suspects": "1 3", **plain, "amp": "1"}


@pytest.mark.parametrize(
    ("spec", "name"),
    [("star_h", "groups"), ("lb_bsp", "batch"), ("sync_switch", "way"), ("cgp", "groups")],
)
def test_a_change_of_groups_shares_or_way_is_named(spec: str, name: str, written: Write) -> None:
    file, _ = written(*run_of(spec))
    assert name in {
        word for e in instants(file, perfetto.DECISIONS) for word in e["name"].split(", ")
    }


def test_a_suspicion_lasts_from_the_plan_with_it_to_the_plan_without(
    suspecting: tuple[Run, Timing], written: Write
) -> None:
    file, _ = written(*suspecting)
    at = micro(suspecting[0].updates["time"]).tolist()
    assert slices(file, "suspected", process=perfetto.SUSPECTS) == [
        (perfetto.SUSPECT_0 + 1, at[3], at[7]),
        (perfetto.SUSPECT_0 + 3, at[5], at[-1]),
    ]
    assert {e["args"]["update"] for e in file["traceEvents"] if e["name"] == "suspected"} == {4, 6}
    unsuspecting, _ = written(*run_of("bsp"))
    assert not any(e["pid"] == perfetto.SUSPECTS for e in unsuspecting["traceEvents"])


def test_a_window_opens_with_the_plan_in_force(
    suspecting: tuple[Run, Timing], written: Write
) -> None:
    run, timing = suspecting
    time = run.updates["time"]
    window = ((time[6] + time[7]) / 2, time[-1])
    file, _ = written(run, timing, window=window)
    first, last = instants(file, perfetto.DECISIONS)
    assert first["ts"] == micro(window[0])
    assert first["name"] == f"in force since {time[5]:.6g} s"
    assert (first["args"]["suspects"], last["args"]["suspects"]) == ("1 3", "3")
    at = micro(time).tolist()
    assert (perfetto.SUSPECT_0 + 1, at[3], at[7]) in slices(
        file, "suspected", process=perfetto.SUSPECTS
    ), "whole, though it began before"


def test_a_run_of_an_older_version_says_that_it_kept_no_decisions(
    suspecting: tuple[Run, Timing], written: Write
) -> None:
    run, timing = suspecting
    file, _ = written(replace(run, decisions=None), timing)
    assert file["metadata"]["decisions"].startswith("an older version wrote the run")
    assert not any(e.get("tid") == perfetto.DECISIONS for e in file["traceEvents"])
    assert "decisions" not in written(run, timing)[0]["metadata"]


def test_a_window_shows_whole_steps_and_says_what_is_left_out(written: Write) -> None:
    run, timing = run_of("bsp")
    whole, _ = written(run, timing)
    file, said = written(run, timing, window=(1.2, 1.8))
    assert said[1:3] == (1.2, 1.8)
    assert not said.cut
    names = ("full", "waiting", "collective")
    assert slices(file, *names) == [
        s for s in slices(whole, *names) if s[1] <= 1_800_000 and s[2] >= 1_200_000
    ]
    steps = len(steps_of(run).rank)
    assert 0 < said.steps_left_out == steps - file["metadata"]["steps"] < steps
    assert file["metadata"]["covers"].startswith("1.2 to 1.8 s of ")
    first = [e for e in file["traceEvents"] if e["ph"] == "C"][:3]
    assert [(e["ts"], e["args"]) for e in first] == [
        (1_200_000, {"net": 1.0}), (1_200_000, {"gpu": 2.5}), (1_200_000, {"host": 1.0}),
    ]  # fmt: skip


def test_of_what_is_too_much_the_stretch_of_most_waiting_is_shown(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 lets the others wait from 1 to 2 s."""
    monkeypatch.setattr(perfetto, "MOST", 150)
    run, timing = run_of("bsp")
    file, said = written(run, timing)
    assert 100 < said.events <= 150
    assert said.cut
    assert 0.9 < said.start < said.end < 2.2
    assert said.steps_left_out > 100
    assert file["metadata"]["steps_left_out"] == said.steps_left_out
    shown = instants(file, perfetto.UPDATES)
    assert all(said.start <= e["ts"] / 1e6 <= said.end for e in shown)


@pytest.mark.parametrize("window", [None, (0.0, 1.0), (1.5, 9.0)])
@pytest.mark.parametrize("policy", ["asgd", "star_h", "local_sgd:h=4", "cgp", "korel", "lb_bsp"])
def test_a_file_never_has_more_events_than_it_may(
    policy: str,
    window: tuple[float, float] | None,
    written: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, timing = run_of(policy)
    for most in range(60, 110, 7):
        monkeypatch.setattr(perfetto, "MOST", most)
        file, said = written(run, timing, window=window)
        assert len(file["traceEvents"]) == said.events <= most
        assert window is None or said.start >= window[0]


def test_equal_runs_give_equal_bytes_gzipped_or_not(tmp_path: Path) -> None:
    for name in ("one.json", "two.json", "one.json.gz", "two.json.gz"):
        slowed_runs.run_of.cache_clear()
        run, timing = run_of("star_h")
        write_timeline(run, tmp_path / name, timing)
    data = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(data) == 4
    assert data["one.json"] == data["two.json"] == gzip.decompress(data["one.json.gz"])
    assert data["one.json.gz"] == data["two.json.gz"]
    assert data["one.json.gz"][4:8] == bytes(4), "the time of day is not in it"


def test_a_run_that_was_read_back_gives_the_same_file(tmp_path: Path) -> None:
    run, timing = run_of("backup")
    write_timeline(run, tmp_path / "here.json", timing)
    write_timeline(Run.read(run.write(tmp_path / "run")), tmp_path / "back.json", timing)
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "back.json").read_bytes()


def test_without_a_timing_nothing_is_made_up(written: Write) -> None:
    run, _ = run_of("asgd")
    file, _ = written(run, None)
    assert slices(file, "push", "pull", "service") == []
    assert len(slices(file, "communication")) > 0
    assert "left out" in file["metadata"]["slowdown"]
    assert "left out" in file["metadata"]["server"]
    assert not any(e["ph"] == "C" for e in file["traceEvents"])


@pytest.mark.parametrize("policy", UNORDERED)
def test_an_order_that_is_assumed_is_said_to_be(policy: str, written: Write) -> None:
    run, timing = run_of(policy)
    file, _ = written(run, timing)
    assert "not known in which order" in file["metadata"]["order"]
    assert "left out" in file["metadata"]["server"]
    assert not any(e["tid"] == perfetto.SERVER for e in file["traceEvents"])
    waits = [e["cat"] for e in file["traceEvents"] if e["name"] == "communication"]
    assert set(waits) == {"communication,order assumed"}


def test_the_file_itself_says_what_it_covers(written: Write) -> None:
    run, timing = run_of("asgd")
    file, said = written(run, timing)
    (about,) = [e for e in file["traceEvents"] if e["tid"] == perfetto.ABOUT and e["ph"] == "X"]
    assert about["args"] == file["metadata"]
    assert about["dur"] == round((said.end - said.start) * 1e6)
    assert all(isinstance(v, str | int) for v in file["metadata"].values()), "a table in the UI"


def test_a_run_without_steps_is_told_how_to_keep_them(tmp_path: Path) -> None:
    run = simulate(scenario(), "bsp", 3)
    with pytest.raises(InputError, match="kept none; simulate it with record_steps=True"):
        write_timeline(run, tmp_path / "run.json", None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("window", "wrong"),
    [((2.0, 1.0), "must end after it begins"), ((99.0, 100.0), "not in the run")],
)
def test_an_impossible_window_is_refused(
    window: tuple[float, float], wrong: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=wrong):
        write_timeline(run_of("bsp")[0], tmp_path / "run.json", run_of("bsp")[1], window)


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    run, timing = run_of("bsp")
    (tmp_path / "run.json").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"run\.json: cannot be written: Is a directory"):
        write_timeline(run, tmp_path / "run.json", timing)
    with pytest.raises(InputError, match=r"file.run\.json: cannot be written: "):
        write_timeline(run, tmp_path / "file" / "run.json", timing)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run.json"]


# -- asked for on the command line

Asked = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Asked:
    """Runs `simstrag run` on a scenario: the exit code, and what it says on stderr."""
    scenario().write(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["simstrag", "run", "scenario.yaml", "-s", "3", *options])
        monkeypatch.setattr("sys.path", [*sys.path])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize(("asked", "window"), [("1:1.5", (1.0, 1.5)), ("2:inf", (2.0, math.inf))])
def test_a_window_is_asked_for_by_name(
    asked: str,
    window: tuple[float, float],
    call: Asked,
    written: Write,
) -> None:
    assert call("--timeline", "t.json", "--window", asked, "-q") == (0, "")
    file, _ = written(*run_of("bsp"), window=window)
    assert json.loads(Path("t.json").read_text("utf-8"))["traceEvents"] == file["traceEvents"]


@pytest.mark.parametrize(
    ("window", "wrong"),
    [
        ("1-2", "--window 1-2: must be FROM:TO in seconds, such as 10:20, or 10:inf"),
        ("1:2:3", "--window 1:2:3: must be FROM:TO"),
        ("2:1", "--window 2:1: must end after it begins"),
        ("nan:1", "--window nan:1: must end after it begins"),
        ("900:901", "the window 900 to 901 s is not in the run, 0 to "),
    ],
)
def test_a_window_that_cannot_be_is_answered_in_one_line(
    window: str, wrong: str, call: Asked
) -> None:
    code, said = call("--timeline", "t.json", "--window", window)
    assert code == 2
    assert said.startswith(f"error: {wrong}")
    assert said.count("\n") == 1
    assert not Path("t.json").exists()


def test_a_window_of_no_timeline_is_told_how_to_ask_for_one(call: Asked) -> None:
    wrong = "error: --window 1:2: needs a timeline; give --timeline FILE\n"
    assert call("--window", "1:2") == (2, wrong)


def test_only_what_was_asked_for_and_is_not_there_is_warned_of(
    call: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--timeline", "t.json", "--window", "0:2")
    assert "timeline" not in call(*asked)[1]
    monkeypatch.setattr(perfetto, "MOST", 150)
    _, said = call(*asked)
    assert "where ranks waited longest (--window FROM:TO shows another part); " in said
