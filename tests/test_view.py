"""What a policy sees of an engine: facts of the moment, worked out when they are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from simstrag.engine.simulate import simulate
from simstrag.policy import WINDOW, Plan, Quorum, Review, Via, View
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
