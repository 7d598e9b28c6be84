"""Conformance vectors, through all engines: small cases without noise.

48 of serial steps, and 29 of overlapping ones, of which 6 have batch shares.  Their logs were made
by two implementations that share no code with this project, the second one from docs/semantics.md
alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simstrag.contract import ALL, Late, Plan, Precision, Quorum, Via
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from tests.support import reference
from tests.support.strategies import Fixed

VECTORS = Path(__file__).parents[1] / "vectors"
FILES = {"plans": 48, "overlapping": 29}
COUNTS = ("updates", "samples", "started", "applied", "dropped", "aborted", "in_flight")
Outcome = tuple[dict[str, Any], list[tuple[float, int, list[int], int]]]


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / f"{name}.jsonl").read_text().splitlines()]


def plan_of(written: dict[str, Any]) -> Plan:
    quorums = [
        Quorum(
            ALL if q["ranks"] == "all" else tuple(q["ranks"]),
            q["count"],
            Via(q["via"]),
            Late(q["late"]),
            riders=tuple((child, parent) for child, parent in q["riders"]),
        )
        for q in written["quorums"]
    ]
    return Plan(
        tuple(quorums),
        fuse=written.get("fuse", False),
        bound=written.get("bound"),
        precision=Precision(written["precision"]),
        batch=written.get("batch"),
    )


def by_reference(scenario: Scenario, plan: Plan) -> Outcome:
    result = reference.simulate(scenario, Fixed(plan))
    last = result.log[-1]
    summary = vars(result) | {
        "updates": last.version,
        "samples": last.samples,
        "progress": last.progress,
    }
    return summary, [(e.time, e.version, list(e.members), e.samples) for e in result.log]


def by_plain(scenario: Scenario, plan: Plan) -> Outcome:
    return by_engine(scenario, plan, "plain")


def by_engine(scenario: Scenario, plan: Plan, engine: str = "native") -> Outcome:
    run = simulate(scenario, Fixed(plan), engine=engine)
    names = ("time", "version", "members", "samples")
    columns = [list(run.updates[name]) for name in names]
    rows = zip(*columns, strict=True)
    log = [(time, version, list(members), n) for time, version, members, n in rows]
    return dict(run.summary), log


def test_all_vectors_are_there() -> None:
    assert {name: len(cases(name)) for name in FILES} == FILES


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("engine", [by_reference, by_plain, by_engine])
def test_every_update_of_every_vector_is_reproduced(
    engine: Callable[[Scenario, Plan], Outcome], name: str
) -> None:
    for number, case in enumerate(cases(name)):
        expect = case["expect"]
        summary, log = engine(Scenario.of(case["case"]), plan_of(case["plan"]))
        for key in COUNTS:
            assert summary[key] == expect[key], (number, key)
        for key in ("makespan", "progress", "mean_staleness"):
            assert summary[key] == pytest.approx(expect[key], rel=1e-9, abs=0), (number, key)
        assert list(summary["staleness_by_rank"]) == pytest.approx(expect["staleness_by_rank"])
        assert [time for time, *_ in log] == pytest.approx(
            [entry["time"] for entry in expect["log"]], rel=1e-9, abs=0
        )
        assert [rest for _, *rest in log] == [
            [entry["version"], entry["members"], entry["samples"]] for entry in expect["log"]
        ], number
