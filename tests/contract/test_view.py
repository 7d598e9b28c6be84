"""What a policy sees of an engine: facts of the moment, worked out when they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simstrag.contract import WINDOW, Plan, Quorum, Review, Via, View
from simstrag.contract.medians import medians
from simstrag.engine.simulate import simulate
from simstrag.policies import load
from simstrag.scenario.scenario import Scenario

ROWS = (
    "steps", "local_times", "amp", "batch", "lower_bound", "communication", "pending_since",
)  # fmt: skip
WINDOWS = ROWS[1:-1]
SCENARIO = Scenario(workers=3, updates=40, step={"compute": 0.1, "cv": 0.3})
APART = (Quorum((0,), via=Via.SERVER), Quorum((1, 2), via=Via.SERVER))
"""Ranks 1 and 2 wait for each other, rank 0 for nobody: their numbers of steps differ."""


@dataclasses.dataclass(frozen=True)
class Looking:
    """Has a look at every view."""

    look: Callable[[View], None]
    quorums: tuple[Quorum, ...]

    def plan(self, view: View) -> Plan:
        self.look(view)
        return Plan(self.quorums, review=Review(updates=1))


def views(look: Callable[[View], None], quorums: tuple[Quorum, ...] = (Quorum(),)) -> None:
    simulate(SCENARIO, Looking(look, quorums))


@pytest.mark.parametrize("name", ROWS)
def test_nobody_can_write_on_an_array(name: str) -> None:
    def look(view: View) -> None:
        with pytest.raises(ValueError, match="read-only"):
            getattr(view, name)[0] = 1

    views(look)


@pytest.mark.parametrize("quorums", [(Quorum(),), APART], ids=["together", "apart"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("columns", [0, 1, 5, WINDOW])
def test_the_newest_columns_are_the_last_ones(
    name: str, columns: int, quorums: tuple[Quorum, ...]
) -> None:
    def look(view: View) -> None:
        newest, window = view.newest(name, columns), getattr(view, name)
        assert np.array_equal(newest, window[:, WINDOW - columns :], equal_nan=name != "amp")

    views(look, quorums)


@pytest.mark.parametrize("quorums", [(Quorum(),), APART], ids=["together", "apart"])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 5, WINDOW])
def test_medians_are_those_of_the_newest_columns(
    columns: int, skip: bool, quorums: tuple[Quorum, ...]
) -> None:
    def look(view: View) -> None:
        for name in ("local_times", "communication", "batch"):
            expected = medians(view.newest(name, columns).T, skip)
            assert np.array_equal(view.medians(name, columns, skip), expected, equal_nan=True)

    views(look, quorums)


def test_a_window_ends_with_what_the_step_just_made_took() -> None:
    times: list[list[float]] = [[], [], []]

    def look(view: View) -> None:
        for rank, steps in enumerate(view.steps):
            if steps > len(times[rank]):
                times[rank].append(float(view.local_times[rank, -1]))
            known = times[rank][-WINDOW:]
            assert view.local_times[rank, WINDOW - len(known) :].tolist() == known
            assert np.isnan(view.local_times[rank, : WINDOW - len(known)]).all()

    views(look, APART)
    assert len(times[0]) > len(times[1]) > WINDOW


def test_a_copy_outlives_the_moment() -> None:
    copies: list[View] = []
    shown: list[list[float]] = []

    def look(view: View) -> None:
        copies.append(dataclasses.replace(view))
        shown.append(view.local_times[:, -1].tolist())

    views(look)
    assert [copy.local_times[:, -1].tolist() for copy in copies[1:]] == shown[1:]


def test_there_is_nothing_else_in_a_view() -> None:
    def look(view: View) -> None:
        with pytest.raises(AttributeError, match="a View has no momentum"):
            _ = view.momentum  # type: ignore[attr-defined]

    views(look)


class Wandering:
    """Leaves rank 2 out between versions 10 and 20, and again between 30 and 33."""

    def __init__(self, look: Callable[[View], None]) -> None:
        self.look = look

    def plan(self, view: View) -> Plan:
        self.look(view)
        out = 10 <= view.version < 20 or 30 <= view.version < 33
        ranks = (0, 1) if out else (0, 1, 2)
        return Plan((Quorum(ranks, count=1, via=Via.SERVER),), review=Review(updates=1))


def reviewed(policy: str, look: Callable[[View], None]) -> Any:
    """A policy of a spec that shows every view, at every update."""

    class Shown:
        def __init__(self) -> None:
            self.policy = load(policy)

        def plan(self, view: View) -> Plan:
            look(view)
            plan = self.policy.plan(view)
            return dataclasses.replace(plan, review=Review(updates=1))

    return Shown()


@pytest.mark.parametrize("engine", ["native", "plain"])
@pytest.mark.parametrize(
    "policy", ["wandering", "bsp", "backup", "backup:late=drop", "lgc", "local_sgd:h=3", "cgp"]
)
def test_the_values_since_a_step_are_those_of_its_later_steps(policy: str, engine: str) -> None:
    seen: list[tuple[int, int, int, list[float]]] = []

    def look(view: View) -> None:
        for rank, known in enumerate(view.steps.tolist()):
            for first in (0, known - 20, known - 3, known, known + 2):
                values = view.since(rank, first)
                aborted = view.since(rank, first, "lower_bound")
                assert len(values) == len(aborted) == min(max(known - first, 0), WINDOW, known)
                seen.append((rank, max(first, 0), known, values.tolist()))

    wanderer = Wandering(look) if policy == "wandering" else reviewed(policy, look)
    run = simulate(SCENARIO, wanderer, record_steps=True, engine=engine)
    columns = (run.steps[name] for name in ("rank", "step", "start", "finish"))
    took = {(rank, k): finish - start for rank, k, start, finish in zip(*columns, strict=True)}
    for rank, first, known, values in seen:
        expected = [took[rank, k] for k in range(first, known)][-WINDOW:]
        assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_rank_that_enters_again_shows_its_later_steps_apart(engine: str) -> None:
    before, later = dict[int, int](), dict[int, int]()

    def look(view: View) -> None:
        if view.version in (20, 33):
            holds = not np.isnan(view.pending_since[2])
            before[view.version] = int(view.steps[2]) + holds
            assert len(view.since(2, before[view.version])) == 0
        for entered, first in before.items():
            later[entered] = len(view.since(2, first))

    run = simulate(SCENARIO, Wandering(look), record_steps=True, engine=engine)
    entered = {version: run.updates["time"][version - 1] for version in before}
    rows = list(zip(*(run.steps[name] for name in ("rank", "step", "start")), strict=True))
    for version, first in before.items():
        begun = [k for rank, k, start in rows if rank == 2 and start >= entered[version]]
        assert min(begun) == first
        assert later[version] > 0
