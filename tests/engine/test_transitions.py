"""The table of transitions in `engine.rules` has all that gradients make, and no other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simstrag.contract import Damping, Late, Plan, Policy, Quorum, Via
from simstrag.engine import rules
from simstrag.engine.messages import Decision, Lost, Update
from simstrag.engine.rule_state import Gradient
from simstrag.engine.rules import Rules
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, PlanError, StallError
from simstrag.scenario.scenario import Scenario
from tests.support.strategies import Fixed, Script, churning, failing, policies, uneven
from tests.support.trace_rows import recorded

CALLS = ("begin", "receive", "replan", "change", "regroup", "halt", "restart", "saved")


class Transition(NamedTuple):
    """A state of a contribution, what moves it, and what becomes of it."""

    before: str
    by: str
    after: str


def table() -> set[Transition]:
    """What the docstring of the rules lists; a cell may have several words, each a row."""
    text = rules.__doc__ or ""
    lines = re.findall(r"(?m)^    (\S.*?)  +(\S.*?)  +(\S.*?)  +\S", text)
    cells = [[cell.split(", ") for cell in line] for line in lines if line[0] != "from"]
    return {Transition(*row) for line in cells for row in itertools.product(*line)}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[Transition]:
    """The transitions of all runs of the plain engine from now on."""
    found: set[Transition] = set()
    held: dict[tuple[int, int], Watched] = {}
    told = ""

    class Watched(Gradient):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            first = [held[self.rank, step].state.name for step, _ in self.kept[-1:]]
            found.add(Transition(*(first or ["-"]), "Start", self.state.name))
            held.update(((self.rank, step), self) for step, _ in self.steps)

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state" and hasattr(self, name):
                found.add(Transition(self.state.name, told, value.name))
            super().__setattr__(name, value)

    def fates(decisions: list[Decision]) -> Iterator[tuple[int, int, str, str]]:
        for each in decisions:
            if isinstance(each, Lost):
                yield each.rank, each.step, "Lost", each.fate
            if isinstance(each, Update):
                yield from ((own.rank, own.step, "Update", "applied") for own in each.gradients)

    def watch(call: str) -> None:
        original = getattr(Rules, call)

        def watched(self: Rules, *arguments: Any, **named: Any) -> list[Decision]:
            nonlocal told
            told = type(arguments[0]).__name__ if call == "receive" else "plan"
            decisions: list[Decision] = original(self, *arguments, **named)
            for rank, step, by, fate in fates(decisions):
                found.add(Transition(held[rank, step].state.name, by, fate))
            return decisions

        monkeypatch.setattr(Rules, call, watched)

    monkeypatch.setattr(rules, "Gradient", Watched)
    for call in CALLS:
        watch(call)
    return found


def run(scenario: Scenario, policy: Policy) -> None:
    try:
        simulate(scenario, policy, engine="plain")
    except (InputError, PlanError, StallError):  # it has made transitions until then
        return


PLANS = (
    Plan((Quorum((2, 3)),)),
    Plan((Quorum((0, 2, 3), riders=((1, 0),)),)),
    Plan((Quorum((0, 3), window=0.0, riders=((1, 3), (2, 3))),)),
    Plan((Quorum(count=2, via=Via.LEADER),)),
    Plan((Quorum((0, 1), via=Via.LEADER, rounds=2), Quorum((2, 3), via=Via.LEADER)), fuse=True),
    Plan((Quorum(count=2, via=Via.SERVER, window=0.5),)),
    Plan((Quorum(count=2, via=Via.SERVER, late=Late.DROP),)),
    Plan((Quorum(count=1, via=Via.SERVER, late=Late.ABORT),)),
    Plan((Quorum(count=2, late=Late.JOIN),)),
    Plan((Quorum(via=Via.SERVER, parents=((1, 0), (3, 2))),)),
    Plan((Quorum(via=Via.SERVER, parents=((0, 3), (1, 3))),)),
    Plan((Quorum((0, 1), via=Via.SERVER, steps=2),), average=True),
    Plan((Quorum(count=1, via=Via.SERVER),), damping=Damping(cutoff=1)),
    Plan((Quorum((0, 1, 2), via=Via.SERVER), Quorum((3,), via=Via.SERVER))),
    Plan((Quorum(steps=3, overlap=1),), average=True),
)


def uneven_world(**keys: Any) -> Scenario:
    """Four ranks of different speeds; all that is sent takes time."""
    rows = recorded(([1, 1], [1, 2], [3, 2], [1.25, 4]))
    server = {"push": 0.25, "pull": 0.125, "service": 0.125}
    return Scenario.of({
        "workers": 4, "updates": 8, "step": {"compute": 1}, "trace": rows, "server": server,
        "allreduce": {"alpha": 0.03125}, "trace_end": "loop", **keys,
    })  # fmt: skip


def test_the_table_has_every_transition_and_no_other(seen: set[Transition]) -> None:
    for first, second in itertools.combinations(PLANS, 2):
        turns = tuple((version, (first, second)[version % 2]) for version in range(8))
        run(uneven_world(), Script(turns))
    for plan in PLANS:
        for time in (1.1, 1.3, 2.1, 3.2):
            lost = {"events": [{"time": time, "rank": 2}]}
            run(uneven_world(failures=lost | {"on_fault": "restart"}), Fixed(plan))
            run(uneven_world(failures=lost | {"on_fault": "continue"}), Fixed(plan))
    assert seen == table()


@settings(
    max_examples=settings().max_examples // 2, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(data=st.data(), scenario=uneven())
def test_no_drawn_run_leaves_the_table(
    seen: set[Transition], data: st.DataObject, scenario: Scenario
) -> None:
    seen.clear()
    workers = scenario.workers
    policy = data.draw(policies() | churning(workers, trees=data.draw(st.booleans())))
    if data.draw(st.booleans()):
        scenario = scenario.replaced(failures=data.draw(failing(workers)))
    run(scenario, policy)
    assert seen <= table()
