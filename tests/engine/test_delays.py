"""Messages of a node that take longer, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from simstrag.engine.simulate import simulate
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

pytestmark = pytest.mark.parametrize("engine", ["native", "plain"])


def late(node: int, *changes: tuple[float, float]) -> list[dict[str, Any]]:
    """Rows of (time, seconds) for a node."""
    row = {"node": node, "resource": "net", "kind": "delay"}
    return [{"time": time, "value": value, **row} for time, value in changes]


def times(engine: str, policy: str, trace: list[dict[str, Any]], **keys: Any) -> list[float]:
    """Of three updates of two workers, or as many as `keys` say."""
    declared = {"workers": 2, "updates": 3, "step": {"compute": 1.0}, "trace": trace} | keys
    return list(simulate(Scenario.of(declared), policy, engine=engine).updates["time"])


def test_a_push_and_a_pull_take_longer_from_the_row_on(engine: str) -> None:
    """Pushes and pulls of 0.125 s; those of rank 1 that begin from 1 s on take 0.5 s more.

    The first round ends with a push at 1.125 + 1.25 - 0.125 s; then pull, step and push of rank 1
    take 0.625 + 1 + 0.625 s.
    """
    server = {"push": 0.125, "pull": 0.125}
    trace = late(1, (1.0, 0.5))
    assert times(engine, "bsp:via=server", trace, server=server) == [1.75, 4.0, 6.25]
    assert times(engine, "asgd", trace, server=server) == [1.25, 1.75, 2.5]


def test_a_chunk_passes_each_late_link_of_a_ring_once_a_turn(engine: str) -> None:
    """Of four ranks one is late by 0.5 s a hop: six hops by ring take 6 * 0.5 / 4 s more."""
    trace, keys = late(2, (0.0, 0.5)), {"workers": 4, "updates": 1}
    assert times(engine, "bsp", trace, **keys) == [1.75]
    tree = {"algorithm": "tree"}  # two hops up and two down, each as long as the latest
    assert times(engine, "bsp", trace, allreduce=tree, **keys) == [3.0]
    half = {"overlap": 0.5}
    assert times(engine, "bsp", trace, allreduce=half, **keys) == [1.375]


def test_a_delay_repeats_with_its_trace(engine: str) -> None:
    """The first pull is late by 0.5 s, and the fourth push, which begins at 4.875 s."""
    trace = late(0, (0.0, 0.5), (1.0, 0.0), (4.0, 0.0))
    server = {"push": 0.125}
    found = times(engine, "bsp:via=server", trace, server=server, updates=4, trace_end="loop")
    assert found == [1.625, 2.75, 3.875, 5.5]


def test_a_worker_is_as_late_as_the_latest_of_its_ranks(engine: str) -> None:
    """Ranks 2 and 3 make worker 1: its push and pull take 0.5 s more, and 1 s from 4 s on."""
    trace = late(2, (0.0, 0.5)) + late(3, (0.0, 0.25), (4.0, 1.0))
    keys = {"server": {"push": 0.125}, "worker": {"ranks": 2}}
    assert times(engine, "bsp:via=server", trace, **keys) == [2.125, 4.25, 7.375]


def test_a_job_that_ends_before_its_trace_makes_a_worker_late_is_told_so(engine: str) -> None:
    scenario = Scenario.of({
        "workers": 2, "updates": 3, "step": {"compute": 1.0}, "trace": late(3, (5.0, 0.5)),
        "worker": {"ranks": 2},
    })  # fmt: skip
    assert scenario.timing(0).contention.first_slowdown == 5.0
    said = " ".join(simulate(scenario, "bsp", engine=engine).warnings)
    assert "the trace's first slowdown is at 5 s" in said


def test_a_delay_is_of_the_network_and_not_negative(engine: str) -> None:
    row = {"time": 0.0, "node": 0, "kind": "delay"}
    with pytest.raises(InputError, match="row 1: a delay is of resource net, not gpu"):
        Trace.from_rows([row | {"resource": "gpu", "value": 1.0}])
    with pytest.raises(InputError, match="row 1: delay -1 must be 0 or more seconds"):
        Trace.from_rows([row | {"resource": "net", "value": -1.0}])


def test_without_contention_no_message_is_late(engine: str) -> None:
    scenario = Scenario.of({
        "workers": 2, "updates": 1, "step": {"compute": 1.0}, "trace": late(0, (0.0, 0.5)),
        "contention": {"severity": 2.0},
    })  # fmt: skip
    assert simulate(scenario, "bsp", engine=engine).summary["makespan"] == 2.0
    assert simulate(scenario.without_contention(), "bsp", engine=engine).summary["makespan"] == 1
