"""Reviews that a policy judges in blocks change nothing that happens."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simstrag import policies
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, PlanError, StallError
from simstrag.policy import Block, JudgesBlocks, Plan, Policy, View
from simstrag.scenario.scenario import Scenario
from simstrag.traces.generate import generate
from tests.strategies import Script, failing, plans, scenarios, scripts, uneven
from tests.strategies import policies as drawn_policies

quickly = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
JUDGES = tuple(
    name
    for name, policy in ((name, policies.load(name)) for name in policies.names())
    if isinstance(policy, JudgesBlocks) and not getattr(policy, "oracle", False)
)
FACTS = ("local_times", "amp", "batch", "lower_bound", "communication")
SEEN: list[tuple[Any, ...]] = []
"""What policies of this file were shown, review by review, since it was last cleared."""


@dataclass(frozen=True)
class OneByOne:
    """What another policy says; it is asked at every review."""

    policy: Policy

    def plan(self, view: View) -> Plan:
        return self.policy.plan(view)

    def summary(self) -> dict[str, int | float]:
        return policies.counts(self.policy, "", ())


@dataclass(frozen=True)
class InBlocksOf(OneByOne):
    """The same, in blocks of so many reviews at most."""

    policy: JudgesBlocks
    most: int

    @property
    def reviews_ahead(self) -> int:
        return min(self.most, getattr(self.policy, "reviews_ahead", self.most))

    def first_change(self, block: Block) -> int:
        return self.policy.first_change(block)


def outcome(scenario: Scenario, policy: Policy, seed: int, engine: str = "native") -> Any:
    """All tables of a run, and its summary; or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = simulate(scenario, policy, seed, engine=engine, record_gradients=True)
    except (InputError, PlanError, StallError) as error:
        return type(error)
    tables = (run.updates, run.gradients, run.decisions)
    summary = {k: v for k, v in run.summary.items() if k != "policy"}
    return summary, [table.frame().to_csv() for table in tables if table is not None]


@quickly
@given(
    data=st.data(),
    scenario=scenarios() | uneven(),
    policy=drawn_policies(JUDGES),
    most=st.sampled_from((2, 3, 7, 240)),
)
def test_a_policy_that_judges_blocks_decides_as_one_by_one(
    data: st.DataObject, scenario: Scenario, policy: JudgesBlocks, most: int
) -> None:
    if data.draw(st.booleans(), label="fails"):
        scenario = scenario.replaced(failures=data.draw(failing(scenario.workers)))
    expected = outcome(scenario, OneByOne(policy), 0)
    assert outcome(scenario, InBlocksOf(policy, most), 0) == expected


# -- what blocks show ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Noting:
    """A script, and `SEEN` has what it was shown; it knows when its plan changes."""

    script: Script
    columns: int
    last_: list[Any] = field(default_factory=list)  # the plan, and the steps of the last review

    def plan(self, view: View) -> Plan:
        shown = (
            view.version, view.samples, view.time, view.steps.tolist(),
            *(view.newest(name, 1)[:, 0].tolist() for name in FACTS),
            *(view.medians("local_times", self.columns, skip).tolist() for skip in (False, True)),
        )  # fmt: skip
        SEEN.append(shown)
        plan = self.script.plan(view)
        if self.last_ and plan == self.last_[0]:
            plan = self.last_[0]
        self.last_[:] = [plan, view.steps]
        return plan


class NotingBlocks(Noting):
    """The same, by blocks."""

    def first_change(self, block: Block) -> int:
        newest = [block.newest(name) for name in FACTS]
        medians = [block.medians("local_times", self.columns, skip) for skip in (False, True)]
        assert (np.cumsum(block.new, axis=0) + self.last_[1] == block.steps).all()
        for k in range(len(block)):
            version = int(block.versions[k])
            view = View(block.steps.shape[1], version)
            if self.script.plan(view) != self.last_[0]:
                return k
            self.last_[1] = block.steps[k]
            SEEN.append((
                version, int(block.samples[k]), float(block.times[k]), block.steps[k].tolist(),
                *(rows[k].tolist() for rows in (*newest, *medians)),
            ))  # fmt: skip
        return len(block)


@quickly
@given(data=st.data(), scenario=scenarios() | uneven(), columns=st.integers(1, 16))
def test_blocks_show_what_views_show(data: st.DataObject, scenario: Scenario, columns: int) -> None:
    kind = data.draw(st.sampled_from((None, "groups", "bounded", "standing")), label="kind")
    if kind == "standing":
        script = Script(((0, data.draw(plans(scenario), label="plan")),))
    else:
        script = data.draw(scripts(scenario, kind), label="script")
    if data.draw(st.booleans(), label="fails"):
        scenario = scenario.replaced(failures=data.draw(failing(scenario.workers)))
    shown = []
    for policy in (Noting(script, columns), NotingBlocks(script, columns)):
        SEEN.clear()
        result = outcome(scenario, policy, 0)
        shown.append((result, repr(SEEN) if isinstance(result, tuple) else None))
    assert shown[1] == shown[0]


def test_ranks_that_take_more_steps_than_blocks_have_room_for_end_the_block() -> None:
    slow = {"time": 0, "node": 0, "resource": "gpu", "kind": "slowdown", "value": 400.0}
    scenario = Scenario.of(
        {"workers": 3, "updates": 2000, "step": {"compute": 0.1, "cv": 0.1}, "trace": [slow],
         "learner": {"batch": 1}},
    )  # fmt: skip
    plan = policies.load("asgd").plan(View(3))
    script = Script(((0, plan), (1500, policies.load("bsp").plan(View(3)))))
    assert outcome(scenario, NotingBlocks(script, 3), 0) == outcome(scenario, Noting(script, 3), 0)


def test_logs_that_fill_up_end_a_block() -> None:
    scenario = Scenario.of(
        {"workers": 40, "updates": 600, "step": {"compute": 0.1, "cv": 0.3},
         "learner": {"batch": 1}},
    )  # fmt: skip
    policy = policies.load("korel:delta_on=0.02,z_on=1,k_on=1,delta_off=0.5,z_off=9")
    declared = scenario.replaced(step={"compute": 0.1, "cv": 0.3, "amp_ratio": 1.5})
    assert outcome(declared, policy, 0) == outcome(declared, OneByOne(policy), 0)


UNSTEADY = (
    "korel", "korel:W=4,k_on=1,dwell=5,P_probe=15,cooldown=20", "star_h", "star_h:form=ring",
    "star_ml", "cgp", "cgp:every=5,groups=rounds", "drain", "drain:checks=1,wait=5", "hot_spare",
    "hot_spare:rest=7,checks=1,pause=0.1", "sync_switch:share=0.7,stragglers=greedy",
    "sync_switch:share=0.7,stragglers=elastic", "dssp", "dssp:low=0,extra=2",
)  # fmt: skip


def unsteady(noise: dict[str, float], updates: int) -> Scenario:
    """A job of some length whose ranks are slow now and then."""
    trace = generate(nodes=6, seconds=60.0, seed=1)
    return Scenario.of({
        "workers": 6, "samples": updates * 6 * 32,
        "step": {"compute": 0.1, "amp_ratio": 1.4, "cv": 0.06, "host_share": 0.2},
        "noise": noise, "server": {"service": 0.01, "push": 0.001, "pull": 0.001},
        "learner": {"batch": 32}, "trace": tuple(row._asdict() for row in trace.rows),
        "trace_end": "loop",
    })  # fmt: skip


@pytest.mark.parametrize("spec", UNSTEADY)
def test_in_a_long_run_all_decisions_are_those_of_one_by_one(spec: str) -> None:
    for noise in ({"lag1": 0.0}, {"lag1": 0.7}):
        scenario, policy = unsteady(noise, 500), policies.load(spec)
        expected = outcome(scenario, OneByOne(policy), 0)
        assert isinstance(expected, tuple)
        for most in (5, 240):
            assert isinstance(policy, JudgesBlocks)
            assert outcome(scenario, InBlocksOf(policy, most), 0) == expected


def test_every_policy_that_judges_blocks_has_a_long_run() -> None:
    assert {spec.partition(":")[0] for spec in UNSTEADY} == {*JUDGES}


@pytest.mark.parametrize("spec", [*JUDGES])
def test_a_policy_that_judges_blocks_is_asked_at_few_reviews(spec: str) -> None:
    asked = []

    @dataclass(frozen=True)
    class Counting(InBlocksOf):
        def plan(self, view: View) -> Plan:
            asked.append(view.version)
            return super().plan(view)

    scenario = Scenario.of(
        {"workers": 8, "samples": 8000, "step": {"compute": 0.1, "cv": 0.05, "amp_ratio": 1.5},
         "learner": {"batch": 1}},
    )  # fmt: skip
    policy = policies.load(spec)
    assert isinstance(policy, JudgesBlocks)
    simulate(scenario, Counting(policy, 240), 0)
    assert len(asked) < 200  # of 1,000
