"""Reviews that a policy judges in blocks change nothing that happens."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simstrag import policies
from simstrag.contract import Block, JudgesBlocks, Plan, Policy, Review, View
from simstrag.engine import reviews
from simstrag.engine.kernel import Kernel, Stop
from simstrag.engine.simulate import simulate
from simstrag.errors import InputError, PlanError, StallError
from simstrag.policies.korel import Korel
from simstrag.scenario.scenario import Scenario
from simstrag.traces.generate import generate
from tests.support.strategies import Script, failing, plans, scenarios, scripts, uneven
from tests.support.strategies import policies as drawn_policies
from tests.support.trace_rows import slowed

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


@pytest.fixture(autouse=True, scope="module")
def blocks_from_the_start() -> Iterator[Counter[str]]:
    """Blocks are tried from the first review on; how often they stop, and are gone back from."""
    tried: Counter[str] = Counter()
    advance, go_back = Kernel._pass, Kernel.go_back

    def counted(kernel: Kernel, reviews: int, until: float) -> Stop | None:
        stop = advance(kernel, reviews, until)
        tried[str(stop)] += 1
        tried["lockstep"] += bool(kernel.memory.job["may_lockstep"])
        return stop

    def back(kernel: Kernel, kept: int) -> None:
        tried["back"] += 1
        go_back(kernel, kept)

    with pytest.MonkeyPatch.context() as patch, reviews.always(240):
        patch.setattr(Kernel, "_pass", counted)
        patch.setattr(Kernel, "go_back", back)
        yield tried


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


def outcome(scenario: Scenario, policy: Policy, logs: bool) -> Any:
    """All tables of a run, and its summary; or its error.  Without logs it may be in lockstep."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = simulate(scenario, policy, 0, record_gradients=logs)
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
    logs=st.booleans(),
)
def test_a_policy_that_judges_blocks_decides_as_one_by_one(
    data: st.DataObject, scenario: Scenario, policy: JudgesBlocks, most: int, logs: bool
) -> None:
    if data.draw(st.booleans(), label="fails"):
        scenario = scenario.replaced(failures=data.draw(failing(scenario.workers)))
    expected = outcome(scenario, OneByOne(policy), logs)
    assert outcome(scenario, InBlocksOf(policy, most), logs) == expected


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
@given(
    data=st.data(),
    scenario=scenarios() | uneven(),
    columns=st.integers(1, 16),
    logs=st.booleans(),
)
def test_blocks_show_what_views_show(
    data: st.DataObject, scenario: Scenario, columns: int, logs: bool
) -> None:
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
        result = outcome(scenario, policy, logs)
        shown.append((result, repr(SEEN) if isinstance(result, tuple) else None))
    assert shown[1] == shown[0]


def test_ranks_that_take_more_steps_than_there_is_room_for_end_the_block(
    blocks_from_the_start: Counter[str],
) -> None:
    scenario = Scenario.of(
        {"workers": 3, "updates": 9000, "step": {"compute": 0.1, "cv": 0.1},
         "trace": [slowed(0, 400.0)], "learner": {"batch": 1}},
    )  # fmt: skip
    alone = replace(policies.load("asgd").plan(View(3)), review=Review(updates=16))
    script = Script(((0, alone), (8000, policies.load("bsp").plan(View(3)))))
    before = blocks_from_the_start["None"]
    blocks, views = (outcome(scenario, cls(script, 3), False) for cls in (NotingBlocks, Noting))
    assert blocks == views
    assert blocks_from_the_start["None"] > before


def test_logs_that_fill_up_end_a_block(blocks_from_the_start: Counter[str]) -> None:
    scenario = Scenario.of(
        {"workers": 40, "updates": 3000, "step": {"compute": 0.1, "cv": 0.1, "amp_ratio": 1.5},
         "learner": {"batch": 1}},
    )  # fmt: skip
    policy, before = policies.load("korel"), blocks_from_the_start["None"]
    assert outcome(scenario, policy, True) == outcome(scenario, OneByOne(policy), True)
    assert blocks_from_the_start["None"] > before


@pytest.mark.parametrize("time", [2.05, 9.63, 13.5, 21.7])
@pytest.mark.parametrize("back", [True, False])
def test_a_rank_that_fails_within_a_block_changes_nothing_before_it(
    time: float, back: bool
) -> None:
    """A race in lockstep is disbanded at the failure, and the plan changes before that."""
    event = {"time": time, "rank": 2} | ({"back": time + 5} if back else {})
    scenario = Scenario.of(
        {"workers": 4, "updates": 300, "step": {"compute": 0.1, "cv": 0.3},
         "learner": {"batch": 1}, "failures": {"events": [event], "on_fault": "continue"}},
    )  # fmt: skip
    judged = [Plan(suspects=frozenset(ranks)) for ranks in ((), (1,))]
    script = Script(((0, judged[0]), *((at, judged[at // 7 % 2]) for at in range(7, 300, 7))))
    blocks, views = (outcome(scenario, cls(script, 3), False) for cls in (NotingBlocks, Noting))
    assert blocks == views


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
    failures = {"on_fault": "continue", "events": [{"time": 29.7, "rank": 2, "back": 33.7}]}
    for noise, fails in (({"lag1": 0.0}, None), ({"lag1": 0.7}, failures)):
        scenario, policy = unsteady(noise, 500).replaced(failures=fails), policies.load(spec)
        expected = outcome(scenario, OneByOne(policy), False)
        assert isinstance(expected, tuple)
        for most in (5, 240):
            assert isinstance(policy, JudgesBlocks)
            assert outcome(scenario, InBlocksOf(policy, most), False) == expected


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


def test_these_tests_tried_blocks(blocks_from_the_start: Counter[str]) -> None:
    assert min(blocks_from_the_start[word] for word in ("back", "lockstep", "Stop.HORIZON")) > 10


@pytest.mark.parametrize("answer", [-1, 1000, None, "all"])
def test_a_number_that_is_none_of_a_block_is_refused(answer: Any) -> None:
    class Wrong(Korel):
        def first_change(self, block: Block) -> int:
            return answer  # type: ignore[no-any-return]

    scenario = unsteady({"lag1": 0.0}, 100)
    with pytest.raises(PlanError, match=r"first_change returned .* for \d+ reviews from version"):
        simulate(scenario, Wrong())


def test_a_block_tells_nothing_once_the_engine_has_moved_on() -> None:
    kept: list[Block] = []

    class Keeping(Korel):
        def first_change(self, block: Block) -> int:
            kept.append(block)
            return super().first_change(block)

    simulate(unsteady({"lag1": 0.0}, 100), Keeping())
    with pytest.raises(PlanError, match="of a Block while `first_change` runs"):
        kept[0].newest("local_times")
