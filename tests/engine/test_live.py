"""The live bookkeeping, told what an independent engine worked out, keeps the same books."""

import heapq
import math
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest

from simstrag import policies
from simstrag.contract import Hints, Plan, Quorum, Review, Via, View
from simstrag.engine.live import Facts, Live, Lost, Reduction, Start, Update
from simstrag.errors import PlanError
from simstrag.scenario.scenario import Scenario
from tests.support import reference
from tests.support.strategies import Fixed
from tests.support.trace_rows import recorded

BATCH = 32
GAIN = 2.0
SPECS = (
    "bsp", "bsp:via=server", "asgd", "ssp:bound=1", "ssp:bound=0", "backup:b=1",
    "backup:b=1,late=drop", "k_async:x=2", "lgc", "cgp", "cgp:groups=window", "local_sgd:h=3",
    "p_reduce:p=2,window=0.05", "star_ring", "star_dynamic", "star_h", "ringmaster",
    "staleness_lr", "dssp", "sync_switch", "korel", "lb_bsp",
    "drain:window=1,probe=1,wait=4,checks=1", "hot_spare:window=1,checks=1,rest=4", "fewer",
    "hot_spare:window=1,checks=1,rest=4,pause=2",
)  # fmt: skip


@dataclass
class Told:
    """A world whose steps take given seconds, told to a `Live` one by one."""

    live: Live
    seconds: list[list[float]]
    now: float = 0.0
    updates: list[Update] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    begun: dict[tuple[int, int], float] = field(default_factory=dict)
    finishes: list[tuple[float, int, int]] = field(default_factory=list)

    def run(self, samples: int) -> None:
        self.listen()
        while sum(g.samples for u in self.updates for g in u.gradients) < samples:
            finish, rank, step = self.finishes[0] if self.finishes else (math.inf, 0, 0)
            if self.live.expiry < finish:
                self.now = self.live.expiry
                self.live.wait(self.now)
            else:
                heapq.heappop(self.finishes)
                begun, self.now = self.begun[rank, step], finish
                self.live.finish_step(rank, finish, finish - begun)
            self.listen()

    def listen(self) -> None:
        while news := self.live.news():
            for each in news:
                if isinstance(each, Update):
                    self.updates.append(each)
                elif isinstance(each, Lost):
                    self.lost.append(each)
                    self.finishes = [f for f in self.finishes if f[1:] != (each.rank, each.step)]
                    heapq.heapify(self.finishes)
                elif isinstance(each, Reduction):
                    self.live.finish_reduction(each.number, self.now)
                else:
                    begun = self.begun[each.rank, each.step] = self.now + each.pause
                    work = self.seconds[each.rank][each.step] / (GAIN if each.amp else 1)
                    finish = begun + work * (each.samples / BATCH)
                    heapq.heappush(self.finishes, (finish, each.rank, each.step))


def durations(workers: int, seed: int, steps: int = 400) -> list[list[float]]:
    luck = np.random.default_rng(seed)
    pace = luck.uniform(0.8, 2.5, workers)
    drawn = luck.lognormal(0, 0.15, (workers, steps)) * pace[:, np.newaxis]
    drawn[-1, 60:120] *= 3
    return drawn.tolist()  # type: ignore[no-any-return]


def judged(
    spec: str, seconds: list[list[float]], samples: int, updates: int | None = None
) -> reference.Result:
    """What the reference engine makes of a world of these steps and of free communication."""
    limit = {"samples": samples} if updates is None else {"updates": updates}
    scenario = Scenario(
        workers=len(seconds), **limit, step={"compute": 1.0, "amp_ratio": GAIN},
        trace=recorded(seconds),
        learner={"batch": BATCH, "noise_scale": 500},
    )  # fmt: skip
    return reference.simulate(scenario, policies.load(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_told_of_arrivals_it_books_what_the_reference_engine_books(spec: str) -> None:
    seconds = durations(4, seed=1)
    samples = 150 * 4 * BATCH
    expected = judged(spec, seconds, samples)
    hints = Hints(samples=samples, noise_scale=500, amp_ratio=GAIN, batch=BATCH)
    told = Told(Live(policies.load(spec), 4, BATCH, hints), seconds)
    told.run(samples)
    assert len(told.updates) == len(expected.log)
    for update, entry in zip(told.updates, expected.log, strict=True):
        found = [
            (g.rank, g.step, update.version - 1 - g.version, g.samples, g.weight)
            for g in update.gradients
        ]
        assert sorted(found) == sorted(map(tuple, entry.gradients))
    lost = [(rank, step, fate) for update, rank, step, fate in expected.fates if fate != "applied"]
    assert [each[:3] for each in told.lost] == lost


def test_a_step_in_lockstep_is_the_same_as_arrivals_one_by_one() -> None:
    seconds = np.array(durations(3, seed=5, steps=60))
    seconds[0, 20:40] *= 3
    hints = Hints(amp_ratio=GAIN, batch=BATCH)
    told = Told(Live(policies.load("korel"), 3, BATCH, hints), seconds.tolist())
    told.run(50 * 3 * BATCH)
    live, plans = Live(policies.load("korel"), 3, BATCH, hints), []
    now = 0.0
    for step in range(50):
        gains = np.array([GAIN if amp else 1.0 for amp in live.plan.in_amp])
        live.lockstep(now, seconds[:, step] / gains)
        plans.append(live.plan)
        now = live.now
    assert live.plan == told.live.plan
    assert len(set(plans)) > 1, "korel must have switched"
    assert now == pytest.approx(told.now)


def test_a_step_in_lockstep_is_no_news() -> None:
    live = Live(policies.load("bsp"), 2, BATCH)
    live.news()
    live.lockstep(0.0, np.array([1.0, 2.0]))
    assert live.news() == []
    assert live.version == 1


@pytest.mark.parametrize("spec", ["korel", "star_dynamic", "dssp", "cgp"])
def test_going_on_from_facts_makes_the_same_decisions(spec: str) -> None:
    hints = Hints(amp_ratio=GAIN, noise_scale=500, batch=BATCH)
    whole = Live(policies.load(spec), 3, BATCH, hints)
    parts = Live(policies.load(spec), 3, BATCH, hints)
    seconds = durations(3, seed=7, steps=200)

    def go(live: Live, rounds: range) -> list[object]:
        decided: list[object] = []
        for k in rounds:
            at = live.now + 3.0
            for rank in range(3):
                live.finish_step(rank, at + 0.01 * rank, seconds[rank][k])
                for each in live.news():
                    if isinstance(each, Reduction):
                        live.finish_reduction(each.number, at)
            decided.append(live.plan)
        return decided

    expected = go(whole, range(60))
    found = go(parts, range(30))
    facts: Facts = pickle.loads(pickle.dumps(parts.facts()))
    parts = Live(parts.policy, 3, BATCH, hints, facts=facts)
    found += go(parts, range(30, 60))
    assert found == expected
    assert parts.version == whole.version


def test_all_ranks_go_on_from_the_facts_of_a_job_that_lost_one() -> None:
    live = Live(policies.load("asgd"), 2, BATCH)
    live.finish_step(1, 0.5, 0.5)
    live.lose_rank(1, 1.0)
    again = Live(live.policy, 2, BATCH, facts=live.facts())
    assert [each.rank for each in again.news() if isinstance(each, Start)] == [0, 1]


def test_groups_whose_steps_are_fixed_regroup_when_all_have_come_in() -> None:
    groups = [((0, 1), (2, 3)), ((0, 2), (1, 3))]

    @dataclass
    class Regrouping:
        def plan(self, view: View) -> Plan:
            now = groups[view.version >= 2]
            quorums = tuple(Quorum(group, via=Via.LEADER) for group in now)
            return Plan(quorums, review=Review(updates=1))

    live = Live(Regrouping(), 4, BATCH, fixed=lambda quorum: quorum.via is Via.LEADER)

    def come_in(group: tuple[int, ...], at: float) -> list[int]:
        live.news()
        for rank in group:
            live.finish_step(rank, at, 0.5)
        (closing,) = [each for each in live.news() if isinstance(each, Reduction)]
        live.finish_reduction(closing.number, at)
        return [each.rank for each in live.news() if isinstance(each, Start)]

    assert come_in((0, 1), 1.0) == [0, 1]
    assert come_in((0, 1), 2.0) == [], "the plan has changed, and 2 and 3 still compute"
    assert come_in((2, 3), 3.0) == [0, 1, 2, 3]
    assert [quorum.members for quorum in live.plan.quorums] == [(0, 2), (1, 3)]
    assert come_in((0, 2), 4.0) == [0, 2]


def test_a_barrier_goes_on_without_a_rank_that_is_gone() -> None:
    live = Live(policies.load("bsp:via=server"), 3, BATCH)
    live.finish_step(0, 1.0, 1.0)
    live.finish_step(1, 1.5, 1.5)
    live.news()
    live.lose_rank(2, 4.0)
    update = next(each for each in live.news() if isinstance(each, Update))
    assert [gradient.rank for gradient in update.gradients] == [0, 1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_grace_begins_whichever_of_two_that_finish_at_once_is_told_first(
    order: tuple[int, int],
) -> None:
    live = Live(Fixed(Plan((Quorum(count=2, via=Via.SERVER, grace=0.5),))), 3, BATCH)
    for rank in order:
        live.finish_step(rank, at=1.0, seconds=1.0)
    assert live.expiry == 1.5


def test_a_bound_does_not_wait_for_a_rank_that_is_gone() -> None:
    live = Live(policies.load("ssp:bound=0"), 2, BATCH)
    live.finish_step(0, 1.0, 1.0)
    assert [each.rank for each in live.news() if isinstance(each, Start)] == [0, 1]
    live.lose_rank(1, 2.0)
    assert [each.rank for each in live.news() if isinstance(each, Start)] == [0]


def test_a_plan_does_not_wait_for_the_fixed_steps_of_a_rank_that_is_gone() -> None:
    @dataclass
    class Changing:
        def plan(self, view: View) -> Plan:
            alone = tuple(Quorum((rank,), via=Via.LEADER) for rank in (0, 1))
            quorums = (Quorum(via=Via.SERVER),) if view.version else alone
            return Plan(quorums, review=Review(updates=1))

    live = Live(Changing(), 2, BATCH, fixed=lambda quorum: True)
    live.lose_rank(0, 1.0)
    live.finish_step(1, 2.0, 2.0)
    live.finish_reduction(0, 2.0)
    assert [quorum.via for quorum in live.plan.quorums] == [Via.SERVER]


def test_the_last_rank_cannot_be_gone() -> None:
    live = Live(policies.load("asgd"), 1, BATCH)
    with pytest.raises(PlanError, match="all ranks of its plan are gone"):
        live.lose_rank(0, 1.0)


def test_models_are_averaged_without_a_rank_that_is_gone_beside_their_steps() -> None:
    live = Live(policies.load("streaming_diloco:h=2,p=1,tau=1"), 3, BATCH)
    for rank in (0, 1):
        live.finish_step(rank, 1.0, 1.0)
    live.news()
    live.lose_rank(2, 2.0)
    (reduction,) = live.news()
    assert isinstance(reduction, Reduction)
    assert reduction.members == (0, 1)
    live.finish_step(0, 2.5, 1.5)
    assert live.news() == [], "it has run on, and waits"
    live.finish_reduction(reduction.number, 3.0)
    update, start = live.news()
    assert isinstance(update, Update)
    assert isinstance(start, Start)
    assert (start.rank, start.step, start.version) == (0, 2, 1)


def test_a_step_beside_an_all_reduce_is_under_way_too() -> None:
    live = Live(policies.load("streaming_diloco:h=2,p=1,tau=1"), 2, BATCH)
    live.finish_step(0, 1.0, 1.0)
    assert live.facts().started.tolist() == [1, 0]
    assert [live.steps_left(rank) for rank in (0, 1)] == [1, 0]
