"""What a run counts and when it ends, shown on cases small enough to check by hand."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import simstrag
from simstrag import Plan, Quorum, Review, Scenario, Via, View, policies
from simstrag.errors import InputError, StallError
from tests.support.strategies import Fixed, Script
from tests.support.trace_rows import slowed

STEP = {"compute": 0.5}


def scenario(**changes: Any) -> Scenario:
    data = {"workers": 2, "updates": 4, "step": STEP, "learner": {"batch": 10}}
    return Scenario.of(data | changes)


@dataclass
class Watcher:
    """Keeps every view; asks again as `review` says."""

    review: Review = field(default_factory=lambda: Review(updates=1))
    quorum: Quorum = field(default_factory=Quorum)

    def plan(self, view: View) -> Plan:
        SEEN.append(replace(view))
        return Plan((self.quorum,), review=self.review)


SEEN: list[View] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def test_a_policy_sees_the_computing_alone() -> None:
    case = scenario(server={"service": 0.25, "push": 0.125, "pull": 0.0625}, trace=[slowed(1, 2.0)])
    simstrag.simulate(case, Watcher(quorum=Quorum(via=Via.SERVER)))
    assert SEEN[1].local_times[:, -1].tolist() == [0.5, 1.0]
    assert SEEN[1].communication[:, -1].tolist() == [0.1875, 0.1875]


def test_a_run_that_passes_the_end_of_its_trace_can_be_an_error() -> None:
    case = scenario(trace=[slowed(0, 1.0), slowed(0, 1.0, time=1.5)], trace_end="error")
    with pytest.raises(InputError, match=r"the trace ends at 1.5 s"):
        simstrag.simulate(case)
    assert simstrag.simulate(case.replaced(updates=3)).summary["makespan"] == 1.5


def test_what_happens_at_the_very_end_of_a_trace_still_happens() -> None:
    """Two updates in one instant with a review between them; the outer world comes last."""
    case = scenario(updates=2, trace=[slowed(0, 1.0, time=0.5)], trace_end="error")
    run = simstrag.simulate(case, Watcher(quorum=Quorum(count=1, via=Via.SERVER)))
    assert run.updates["time"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("review", "versions"),
    [
        (Review(updates=2), [0, 2, 4]),
        (Review(samples=30), [0, 2, 4]),
        (Review(seconds=1.25), [0, 3]),
        (Review(updates=3, samples=20), [0, 1, 2, 3, 4]),
        (Review(), [0]),
    ],
)
def test_a_review_comes_at_the_first_update_past_it(review: Review, versions: list[int]) -> None:
    simstrag.simulate(scenario(updates=5), Watcher(review))
    assert [view.version for view in SEEN] == versions


@dataclass
class Stalls:
    """Rank 0 may not go on before its rider, and the rider not before rank 0 finishes again."""

    def plan(self, view: View) -> Plan:
        return Plan((Quorum((0,), riders=((1, 0),)),), bound=0)


def test_a_run_in_which_nothing_can_happen_names_policy_plan_time_and_ranks() -> None:
    with pytest.raises(StallError) as error:
        simstrag.simulate(scenario(trace=[slowed(1, 2.0)]), Stalls())
    message = str(error.value)
    for part in ("Stalls", "at 1 s", "version 1", "ranks [1]", "riders=((1, 0),)"):
        assert part in message


def test_with_samples_beside_a_target_the_run_goes_on_until_both_are_reached() -> None:
    learner = {"batch": 10, "noise_scale": 20}  # progress 20 / (20 + 20) an update
    case = scenario(updates=None, samples=40, target_progress=2.0, learner=learner)
    summary = simstrag.simulate(case).summary
    assert (summary["makespan"], summary["time_to_target"]) == (1.0, 2.0)
    assert summary["updates"] == 4


def test_every_gradient_weighs_one_nth() -> None:
    run = simstrag.simulate(scenario(), "asgd", record_gradients=True)
    assert run.gradients is not None
    weights = dict(zip(run.gradients["fate"], run.gradients["weight"], strict=True))
    assert weights == {"applied": 0.5, "in_flight": 0.0}


def test_truth_knows_a_straggler_by_its_noise_free_step() -> None:
    @dataclass
    class Accuses:
        """Suspects rank 1, rightly until the contention is over."""

        def plan(self, view: View) -> Plan:
            return Plan(suspects=frozenset({1}))

    case = scenario(
        workers=3, updates=4, trace=[slowed(1, 2.0), slowed(1, 1.0, time=1.5), slowed(2, 1.0)]
    )  # rank 1 starts slow steps at 0 and 1 (the second ends at 1.75), clean ones at 1.75 and 2.25
    summary = simstrag.simulate(case, Accuses()).summary
    assert (summary["detection_precision"], summary["detection_recall"]) == (0.5, 1.0)


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_rank_that_is_out_is_judged_by_the_step_that_it_would_start(engine: str) -> None:
    """Rank 1 leaves after one slow step of 1 s, and its contention is over at 1.75 s."""
    plan = Plan((Quorum((0, 2)),), suspects=frozenset({1}))
    policy = Script(((0, replace(plan, quorums=(Quorum(),))), (1, plan)))
    case = scenario(workers=3, updates=4, trace=[slowed(1, 2.0), slowed(1, 1.0, time=1.75)])
    summary = simstrag.simulate(case, policy, engine=engine).summary  # updates at 1, 1.5, 2, 2.5
    assert (summary["hits"], summary["false_alarms"], summary["misses"]) == (2, 2, 0)


def test_the_deviation_of_asgd_is_what_all_others_applied_meanwhile() -> None:
    """In turn, three equal ranks: after the first round each gradient missed two of three."""
    case = scenario(workers=3, updates=9, server={"service": 0.125})
    asgd = simstrag.simulate(case, "asgd").summary["deviation"]
    assert asgd == pytest.approx((0 + 1 / 9 + 4 / 9 + 6 * 4 / 9) / 9)
    assert simstrag.simulate(case, "bsp").summary["deviation"] == 0
    assert simstrag.simulate(case, "backup:weigh=members").summary["deviation"] is None


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_staleness_and_deviation_are_exact_where_their_sums_exceed_64_bits(engine: str) -> None:
    """In turn, four equal ranks: gradients miss 0, 1, 2, and then always 3 others."""
    case = scenario(
        workers=4,
        updates=12,
        server={"service": 0.125},
        learner={"batch": 2**30},
        step={"compute": 0.1},
    )
    summary = simstrag.simulate(case, "asgd", engine=engine).summary
    missed = (0, 1, 2, *[3] * 9)
    assert summary["effective_staleness"] == pytest.approx(sum(missed) / 12)
    assert summary["deviation"] == pytest.approx(sum(k**2 for k in missed) / 12 / 4**2)


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_pause_counts_as_waiting(engine: str) -> None:
    """The rank computes twice for 0.5 s, and waits 3 s before each step."""
    paused = Fixed(Plan(pause=3))
    run = simstrag.simulate(scenario(workers=1, updates=2), paused, engine=engine)
    assert run.summary["compute_by_rank"] == [1.0]
    assert run.summary["wait_by_rank"] == [6.0]


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_communication_that_a_run_on_hides_is_not_counted(engine: str) -> None:
    """Steps of 0.5 s and 1 s, three a contribution, one of them run on; all-reduce 1 s.

    Averaged from 2 to 3 and from 5 to 6.  Rank 0 runs on until 1.5 and until 4.5; rank 1 until 3
    and until 6.
    """
    overlapped = Plan((Quorum(steps=3, overlap=1),), average=True)
    case = scenario(updates=2, allreduce={"alpha": 0.5}, trace=[slowed(1, 2.0)])
    summary = simstrag.simulate(case, Fixed(overlapped), engine=engine).summary
    assert summary["makespan"] == 6
    assert summary["compute_by_rank"] == [3, 6]
    assert summary["communication_by_rank"] == [2, 0]
    assert summary["wait_by_rank"] == [1, 0]


LEAVING = {"drain", "fewer", "hot_spare"}
"""Policies that leave ranks out."""


FORMS = (
    Plan((Quorum(steps=4, overlap=2),), average=True, fragments=2),
    Plan((Quorum(steps=(4, 2, 3, 3, 2, 5), count=4, grace=0.3, overlap=1),), average=True),
    Plan((Quorum(steps=3, count=2, via=Via.SERVER),), average=True),
    Plan((Quorum(count=3, partial=True),)),
    Plan((Quorum(count=3, grace=0.2),)),
)


@pytest.mark.parametrize(
    "policy", [*policies.names(), "backup:late=drop", "cgp:groups=rounds", *map(Fixed, FORMS)]
)
def test_every_second_of_every_rank_is_accounted_for(policy: str | Fixed) -> None:
    case = scenario(
        workers=6,
        updates=None,
        samples=30 * 6 * 10,
        microbatches=5,
        step={"compute": 0.5, "amp_ratio": 1.5, "cv": 0.3, "amp_switch": 0.125},
        server={"service": 0.05, "push": 0.1, "pull": 0.07},
        allreduce={"alpha": 0.01},
        trace=[slowed(1, 1.7), slowed(4, 2.6), slowed(2, 3.0, resource="net")],
    )
    run = simstrag.simulate(case, policy)
    names = ("compute_by_rank", "communication_by_rank", "wait_by_rank")
    parts = zip(*(run.summary[name] for name in names), strict=True)
    end = run.updates["time"][-1]
    for computed, communicated, waited in parts:
        busy = computed + communicated + waited
        if policy in LEAVING and busy < end:  # a rank in no quorum is idle, and neither waits
            continue
        assert busy == pytest.approx(end, rel=1e-9)
