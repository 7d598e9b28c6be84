"""What the ranks feel of a trace, against the plain way to say it; and what it costs to set up."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.timing.constants import AllReduce, ServerCost, ServerLoad, Step
from simstrag.timing.contention import Contention
from simstrag.timing.noise import Noise
from simstrag.timing.timing import Timing
from simstrag.trace import read_files
from simstrag.trace.slowdown import ONE, Piecewise
from simstrag.trace.trace import RESOURCES, Trace
from tests.support import stepwise
from tests.support.strategies import traces
from tests.support.trace_rows import slowed

STEP = Step(host=0.3, gpu=0.7, amp_ratio=1.4)
NODES = (None, (0, 0, 3, 2), (3, 1, 1, 9))


def series(trace: Trace, rank: int, resource: str, nodes: Any, period: float) -> Piecewise:
    node = rank if nodes is None else nodes[rank]
    rows = trace.by_key().get((node, resource, "slowdown"))
    return ONE if rows is None else stepwise.of(rows, period)


@given(traces(4), st.sampled_from(NODES), st.sampled_from(("hold", "loop")), st.booleans())
def test_ranks_feel_what_the_rows_of_their_nodes_say(
    rows: list[Any], nodes: Any, trace_end: str, loaded: bool
) -> None:
    trace = Trace.from_rows(rows)
    if nodes is not None and not set(nodes) & set(trace.nodes):
        return
    load = ServerLoad(frozenset({1, 2}), host=1.0 if trace.replays else 1.3, net=1.7)
    contention = Contention.of(trace, 4, nodes, trace_end)
    timing = Timing(STEP, AllReduce(), ServerCost(), contention, Noise(0, None), nodes, load)
    period = trace.end if trace_end == "loop" and trace.end > 0 else math.inf
    nets = []
    for rank in range(4):
        own = {name: series(trace, rank, name, nodes, period) for name in RESOURCES}
        assert {name: contention.of_rank(rank, name) for name in RESOURCES} == own
        beside = loaded and rank in load.ranks
        host, net = (load.host, load.net) if beside else (1.0, 1.0)
        for amp, r in ((False, 1.0), (True, 0.7 / (1 / 1.4 - 0.3))):
            parts = [own[name] for name in ("step", "host", "gpu")]
            expected = stepwise.combine(
                parts,
                lambda S, H, G, host=host, r=r: S * (STEP.host * H * host + STEP.gpu * G / r),
            )
            assert timing.stretch(rank, amp, loaded) == expected
        nets.append(stepwise.combine([own["net"]], lambda value, net=net: value * net))
        felt = own["net"] is not ONE or beside
        assert timing.net(rank, loaded) == (nets[-1] if felt else None)
    for members in ((0, 1, 2, 3), (1, 3), (2,)):
        largest = stepwise.combine([nets[rank] for rank in members], lambda *values: max(values))
        found = timing.slowest_net(members, loaded)
        assert (found.times, found.values) == (largest.times, largest.values)


def moved(trace: Trace, offset: float) -> list[tuple[Any, ...]]:
    """The rows of a trace that begins at an offset, key by key."""
    rows: list[tuple[Any, ...]] = []
    for key, recorded in sorted(trace.by_key().items()):
        own = recorded
        if key[2] != "duration":
            held = stepwise.of(recorded, trace.end, before=float(key[2] == "slowdown"))
            own = list(zip(held.times, held.values, strict=True))
            rows += [(time, *key, stepwise.at(held, offset)) for time in (0.0, trace.end)]
        rows += [(t - offset, *key, value) for t, value in own if t >= offset]
        rows += [(t - offset + trace.end, *key, value) for t, value in own if t < offset]
    return sorted(rows, key=lambda row: float(row[0]))


@given(
    traces(3),
    st.floats(0, 1, exclude_max=True) | st.sampled_from((5e-324, 1e-18, 1e-9)),
    st.booleans(),
)
def test_a_trace_that_begins_elsewhere_has_the_rows_it_would_have_one_by_one(
    rows: list[Any], share: float, utilised: bool
) -> None:
    for row in rows if utilised else ():
        if (row["resource"], row["kind"]) == ("gpu", "slowdown"):
            row |= {"kind": "utilisation", "value": row["value"] / 8}
    trace = Trace.from_rows(rows)
    if trace.end > 0 and share * trace.end < trace.end:
        assert [tuple(row) for row in trace.shift(share * trace.end).rows] == moved(
            trace, share * trace.end
        )


# -- setting up


def calls(of: Callable[[], Any]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        of()
    finally:
        sys.setprofile(before)
    return count


def trace_of(path: Path, breakpoints: int, resources: tuple[str, ...]) -> Path:
    rows = [
        (k * 1000 / breakpoints, node, resource, "slowdown", 1 + (k * 7 + node) % 5)
        for k in range(breakpoints)
        for node in range(20)
        for resource in resources
    ]
    Trace.from_rows(rows).write(path)
    return path


@pytest.mark.parametrize("resources", [("gpu",), ("net",), RESOURCES])
@pytest.mark.parametrize("trace_per_seed", ["same", "shift"])
@pytest.mark.parametrize("name", ["slow.csv", "slow.parquet"])
def test_more_breakpoints_are_no_more_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, trace_per_seed: str, resources: Any
) -> None:
    """From the file to the first event of a run, whatever is done to rows is done to columns."""
    from simstrag.engine.simulate import check

    monkeypatch.setattr(read_files, "SMALL", 0)
    counts = []
    for breakpoints in (300, 10, 200):  # the first one loads what is loaded once
        path = trace_of(tmp_path / f"{breakpoints}-{name}", breakpoints, resources)
        scenario = Scenario(
            workers=20, updates=1, step={"compute": 0.1, "host_share": 0.2}, trace=str(path),
            trace_per_seed=trace_per_seed, allreduce={"alpha": 0.001},
        )  # fmt: skip
        counts.append(calls(lambda scenario=scenario: check(scenario, "bsp", 3)))
    assert counts[2] < 1.02 * counts[1]


def test_runs_of_one_trace_share_what_was_made_of_it(tmp_path: Path) -> None:
    path = trace_of(tmp_path / "slow.csv", 30, ("gpu",))
    scenario = Scenario(workers=20, updates=1, step={"compute": 0.1, "cv": 0.1}, trace=str(path))
    first, second = scenario.timing(0), scenario.timing(1)
    assert first.contention is second.contention
    assert first.stretches(amp=False) is second.stretches(amp=False)
    assert first.seed != second.seed
    assert first.compute(3, 0, 0.0, amp=False) != second.compute(3, 0, 0.0, amp=False)


@pytest.mark.parametrize("trace_per_seed", ["same", "shift"])
def test_another_process_gets_the_columns_and_nothing_made_of_them(
    tmp_path: Path, trace_per_seed: str
) -> None:
    path = trace_of(tmp_path / "slow.csv", 3000, ("gpu",))
    scenario = Scenario(
        workers=20, updates=9, step={"compute": 0.1, "cv": 0.1}, trace=str(path),
        trace_per_seed=trace_per_seed,
    )  # fmt: skip
    run = simulate(scenario, "bsp", 3)
    sent = pickle.dumps(scenario)
    assert len(sent) < 60_000 * 40
    assert simulate(pickle.loads(sent), "bsp", 3).summary == run.summary


@pytest.mark.parametrize(("severity", "makespan"), [(0, 1.0), (0.5, 1.5), (1, 2.0), (2, 3.0)])
def test_severity_scales_what_a_slowdown_adds(severity: float, makespan: float) -> None:
    """Ten steps of .1 s at a slowdown of 2."""
    case = {"workers": 4, "updates": 10, "step": {"compute": 0.1}, "trace": [slowed(0, 2.0)]}
    run = simulate(Scenario.of(case | {"contention": {"severity": severity}}), "bsp")
    assert run.summary["makespan"] == pytest.approx(makespan)


@pytest.mark.parametrize(("severity", "makespan"), [(0, 0.5), (0.5, 0.75), (1, 1.0), (2, 1.5)])
def test_severity_scales_what_a_duration_has_beyond_the_median(
    severity: float, makespan: float
) -> None:
    """Two steps of .1, .25 and .5 s: the median of a step is .25 s."""
    times = enumerate((0.1, 0.25, 0.5))
    rows = [(0.0, n, "step", "duration", seconds) for n, seconds in times for _ in range(2)]
    case = Scenario(workers=3, updates=2, trace=Trace.from_rows(rows))
    varied = case.replaced(contention={"severity": severity})
    assert simulate(varied, "bsp").summary["makespan"] == pytest.approx(makespan)
    assert varied.timing(0).compute(0, 0, 0.0, amp=False) == pytest.approx(0.1)


def test_the_severity_as_recorded_changes_no_bit() -> None:
    inputs = Scenario.read("examples/demo.yaml").replaced(contention={"severity": 1}).inputs
    assert inputs.contention is inputs.trace
