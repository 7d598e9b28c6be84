"""The rules by themselves: facts in, decisions out, without a clock."""

from __future__ import annotations

import math
import subprocess
import sys

from simstrag.contract import Late, Plan, Quorum, Review, Via
from simstrag.engine.agenda import Agenda
from simstrag.engine.messages import (
    Applied,
    Ask,
    CollectiveEnded,
    Enough,
    Finished,
    Lost,
    Reduction,
    Start,
    StepEnded,
    Update,
    Wake,
)
from simstrag.engine.rule_state import Limits
from simstrag.engine.rules import Rules
from simstrag.learning.noise_scale import NoiseScale


def rules_of(plan: Plan, updates: int = 100) -> Rules:
    learner = NoiseScale(batch=8, noise_scale=100.0, c_tau=1.0)
    return Rules(2, plan.resolved(2), learner, Limits(updates=updates))


def start(rank: int, step: int, version: int) -> Start:
    return Start(rank, step, version, False, 8, False, None, False, None, 0.0)


def test_a_barrier_goes_from_its_steps_to_an_update_and_the_next_steps() -> None:
    rules = rules_of(Plan())
    assert rules.begin() == [start(0, 0, 0), start(1, 0, 0)]
    assert rules.receive(StepEnded(1, 0, 8), 1.0) == []
    assert rules.receive(StepEnded(0, 0, 8), 2.0) == [Wake(2.0, Enough(0))]
    assert rules.receive(Enough(0), 2.0) == [Reduction(1, (0, 1), (), Via.ALLREDUCE, False, (0, 1))]
    assert rules.receive(CollectiveEnded(1), 2.5) == [
        Update(1, (Applied(0, 0, 0, 0, 8, 0.5, 1), Applied(1, 0, 0, 0, 8, 0.5, 1))),
        start(0, 1, 1),
        start(1, 1, 1),
    ]


def test_a_fact_about_a_step_that_was_aborted_is_stale() -> None:
    rules = rules_of(Plan((Quorum(count=1, late=Late.ABORT),)))
    rules.begin()
    rules.receive(StepEnded(1, 0, 8), 1.0)
    assert rules.receive(Enough(0), 1.0) == [
        Lost(0, 0, "aborted", None),
        Reduction(1, (1,), (), Via.ALLREDUCE, False, (1,)),
    ]
    assert not rules.expects(StepEnded(0, 0, 8), 2.0)


def test_a_review_is_asked_before_anybody_starts_and_its_answer_goes_on() -> None:
    rules = rules_of(Plan((Quorum(count=1),), review=Review(updates=1)))
    rules.begin()
    rules.receive(StepEnded(0, 0, 8), 1.0)
    rules.receive(Enough(0), 1.0)
    *_, last = rules.receive(CollectiveEnded(1), 1.0)
    assert last == Ask()
    assert rules.replan(rules.plan) == [start(0, 1, 1)]


def test_nothing_starts_after_the_last_update() -> None:
    rules = rules_of(Plan((Quorum(count=1),)), updates=1)
    rules.begin()
    rules.receive(StepEnded(0, 0, 8), 1.0)
    rules.receive(Enough(0), 1.0)
    assert rules.receive(CollectiveEnded(1), 1.0)[-1] == Finished()


def test_an_agenda_tells_the_facts_of_an_instant_by_turn_and_passes_over_stale_ones() -> None:
    rules = rules_of(Plan((Quorum(count=1, late=Late.ABORT),)))
    agenda = Agenda(rules)
    rules.begin()
    for fact in (Enough(0), StepEnded(1, 0, 8), StepEnded(0, 0, 8)):
        agenda.add(1.0, fact)
    assert agenda.tell(0.5) is None
    for _ in range(2):  # gradients
        assert agenda.tell(1.0) == [Wake(1.0, Enough(0))]
    closing = [Lost(1, 0, "aborted", None), Reduction(1, (0,), (), Via.ALLREDUCE, False, (0,))]
    assert agenda.tell(1.0) == closing
    assert agenda.next == math.inf


def test_the_rules_load_no_clock_and_no_framework() -> None:
    program = (
        "import sys, simstrag.engine.rules; "
        "print(*{'simpy', 'torch', 'pandas', 'pyarrow', 'simstrag.timing'} & {*sys.modules})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == []
