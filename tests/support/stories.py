"""Stories: small runs worked out by hand, event by event, and what both engines make of them.

`2.1` is step 1 of rank 2, counted from 0.  Each line of a story is a moment and what happens then:

    2  start 0.1 1.1 on 1     these steps begin to compute, on version 1 of the parameters
    4  update 0.1 1.1 to 2    their gradients become version 2

and at the end, which gradients were lost: `dropped 2.0`, `aborted 2.0`.  Recorded durations make
the steps as long as the story says; whatever costs nothing in a story is not mentioned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simstrag.contract import ALL, Plan, Policy, Quorum, Via
from simstrag.scenario.scenario import Scenario
from tests.support import reference
from tests.support.strategies import Fixed
from tests.support.trace_rows import recorded, slowed

Step = tuple[int, int]


@dataclass
class Story:
    """What happened: starts with their moment and version, updates with theirs, what was lost."""

    starts: set[tuple[float, Step, int]] = field(default_factory=set)
    updates: list[tuple[float, int, tuple[Step, ...]]] = field(default_factory=list)
    lost: dict[str, set[Step]] = field(default_factory=lambda: {"dropped": set(), "aborted": set()})

    @classmethod
    def read(cls, text: str) -> Story:
        story = cls()
        for line in text.strip().splitlines():
            first, *words = line.split()
            if first in story.lost:
                story.lost[first] |= {_step(word) for word in words}
                continue
            verb, *middle, _, version = words
            steps = tuple(_step(word) for word in middle)
            if verb == "start":
                story.starts |= {(float(first), step, int(version)) for step in steps}
            else:
                assert verb == "update"
                story.updates.append((float(first), int(version), steps))
        return story


def _step(word: str) -> Step:
    rank, _, k = word.partition(".")
    return int(rank), int(k)


def by_reference(scenario: Scenario, policy: Policy) -> Story:
    result = reference.simulate(scenario, policy)
    story = Story({(t, (rank, k), version) for rank, k, version, _, t in result.starts})
    for entry in result.log:
        members = sorted((r, k) for update, r, k, _ in result.fates if update == entry.version)
        assert tuple(dict.fromkeys(rank for rank, _ in members)) == entry.members
        story.updates.append((entry.time, entry.version, tuple(members)))
    for _, rank, k, fate in result.fates:
        if fate != "applied":
            story.lost[fate].add((rank, k))
    return story


def by_plain(scenario: Scenario, policy: Policy) -> Story:
    return by_engine(scenario, policy, "plain")


def by_engine(scenario: Scenario, policy: Policy, engine: str = "native") -> Story:
    """An engine lists the starts of steps that ended; the reference those of all."""
    from simstrag.engine.simulate import simulate

    run = simulate(scenario, policy, record_steps=True, record_gradients=True, engine=engine)
    steps, gradients, updates = run.frame("steps"), run.frame("gradients"), run.frame("updates")
    columns = (steps["start"], steps["rank"], steps["step"], steps["version"])
    story = Story({(t, (rank, k), v) for t, rank, k, v in zip(*columns, strict=True)})
    for time, version, members in zip(
        updates["time"], updates["version"], updates["members"], strict=True
    ):
        own = gradients[gradients["update"] == version]
        applied = sorted(zip(own["rank"], own["step"], strict=True))
        assert tuple(dict.fromkeys(rank for rank, _ in applied)) == tuple(members)
        story.updates.append((time, version, tuple(applied)))
    for fate, lost in story.lost.items():
        own = gradients[gradients["fate"] == fate]
        lost |= set(zip(own["rank"], own["step"], strict=True))
    return story


Engine = Callable[[Scenario, Policy], Story]


def world(durations: list[list[float]], updates: int, **keys: Any) -> Scenario:
    """Ranks whose steps take the given seconds, the last of them over and over.

    A key `net` is a dict of rank to the slowdown of its network.
    """
    net = keys.pop("net", {}).items()
    rows = recorded(durations) + [slowed(rank, value, resource="net") for rank, value in net]
    keys = {"step": {"compute": 1.0}, "trace": rows} | keys
    return Scenario.of({"workers": len(durations), "updates": updates} | keys)


def served(ranks: Any = ALL, **quorum: Any) -> Plan:
    """A plan of one quorum at the server."""
    return Plan((Quorum(ranks, via=Via.SERVER, **quorum),))


def tell(engine: Engine, scenario: Scenario, policy: Policy | Plan) -> Callable[[str], None]:
    """A check that the engine does exactly what a story says."""
    found = engine(scenario, Fixed(policy) if isinstance(policy, Plan) else policy)

    def check(text: str) -> None:
        story = Story.read(text)
        assert found.updates == story.updates
        assert found.lost == story.lost
        if engine is by_reference:
            assert found.starts == story.starts
        else:
            last = {rank: k for _, (rank, k), _ in sorted(story.starts)}
            missing = story.starts - found.starts
            assert found.starts <= story.starts
            assert all(last[rank] == k for _, (rank, k), _ in missing)

    return check
