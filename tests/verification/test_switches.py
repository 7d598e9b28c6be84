"""A change of policy in mid-run, between every two policies there are: nothing is lost or stuck."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from simstrag import policies
from simstrag.contract import Hints, Plan, Via, View
from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.strategies import Switching
from tests.support.trace_rows import slowed

N = 6
HINTS = Hints(batch=16, samples=30 * N * 16, noise_scale=100.0)
SWITCH = 9
"""The version at which the second policy takes over."""
OVERLAP = {"streaming_diloco", "decoupled_diloco"}
"""No other plan may follow theirs (rule 6c)."""
NAMES = [name for name in policies.names() if name not in OVERLAP]
PRIVATE = ("local_sgd", "diloco", "async_local_sgd")
SPECS = {name: name for name in NAMES} | {name: f"{name}:h=2" for name in PRIVATE}
"""By their names alone, but for those whose updates are otherwise so large that there are few."""
LOSE = {"drain", "fewer", "hot_spare", "backup", "ringmaster"}
"""They drop or abort, or leave ranks out; all others keep every gradient and every rank."""
AMID = {"async_local_sgd"}
"""Its ranks are amid contributions at the change, whose steps wait for the next one (rule 6b)."""

WORLD = Scenario.of(
    {
        "workers": N,
        "samples": 30 * N * 16,
        "microbatches": 4,
        "step": {"compute": 1.0, "amp_ratio": 1.5, "cv": 0.1},
        "server": {"service": 0.05},
        "allreduce": {"alpha": 0.01},
        "learner": {"batch": 16, "noise_scale": 100},
        "trace": [slowed(1, 1.7), slowed(4, 2.6, resource="step")],
    }
)


class Noted:
    """What a policy says, and what it said first."""

    def __init__(self, name: str) -> None:
        self.policy = policies.load(SPECS[name])
        self.first: list[Plan] = []

    @property
    def oracle(self) -> bool:
        return getattr(self.policy, "oracle", False)

    def __deepcopy__(self, memo: object) -> Noted:
        return self  # so that the test sees what the run saw

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        self.first = self.first or [plan.resolved(N)]
        return plan


def finished(run: Run) -> Iterator[tuple[int, float, int | None]]:
    """(rank, finish, the update it entered or None) of every step that ended."""
    assert run.steps is not None
    assert run.gradients is not None
    gradients = zip(*(run.gradients[name] for name in ("rank", "step", "update")), strict=True)
    update = {(rank, step): version for rank, step, version in gradients}
    columns = ("rank", "step", "finish")
    for rank, step, finish in zip(*(run.steps[name] for name in columns), strict=True):
        yield rank, finish, update[rank, step]


@pytest.mark.parametrize("first", NAMES)
def test_every_gradient_is_accounted_for(first: str) -> None:
    for second in NAMES:
        run = simulate(
            WORLD, Switching(policies.load(SPECS[first]), policies.load(SPECS[second]), SWITCH)
        )
        assert len(run.updates["time"]) > SWITCH
        s = run.summary
        assert s["started"] == s["applied"] + s["dropped"] + s["aborted"] + s["in_flight"], second
        assert s["samples"] >= 30 * N * 16, second
        if not {first, second} & LOSE:
            assert (s["dropped"], s["aborted"]) == (0, 0), second


@pytest.mark.parametrize("first", sorted(set(NAMES) - LOSE - AMID))
def test_who_had_finished_is_not_kept_waiting_for_who_had_not(first: str) -> None:
    """Whatever was ready at the change enters its new quorum's updates before what was not."""
    for second in sorted(set(NAMES) - LOSE):
        noted = Noted(second)
        switching = Switching(policies.load(SPECS[first]), noted, SWITCH)
        run = simulate(WORLD, switching, record_steps=True, record_gradients=True)
        change = run.updates["time"][SWITCH - 1]
        (plan,) = noted.first
        steps = [
            (rank, finish, version or len(run.updates["time"]) + 1)
            for rank, finish, version in finished(run)
            if version is None or version > SWITCH
        ]
        for quorum in plan.quorums:
            if quorum.steps > 1 or quorum.rounds > 1:
                continue  # who had finished goes on with its private work
            own = [(f, v) for rank, f, v in steps if rank in quorum.members]
            ready = [version for finish, version in own if finish <= change]
            others = [version for finish, version in own if finish > change]
            if ready and others:
                assert max(ready) <= min(others), (second, quorum)


def test_the_pairs_hold_every_kind_of_change() -> None:
    """From and to every way of making updates, so that the tests above say something."""
    first = {name: policies.load(name).plan(View(N, hints=HINTS)) for name in NAMES}
    vias = {name: plan.quorums[0].via for name, plan in first.items()}
    found = {(vias[a], vias[b]) for a, b in itertools.product(vias, repeat=2)}
    assert found == set(itertools.product(Via, repeat=2))
