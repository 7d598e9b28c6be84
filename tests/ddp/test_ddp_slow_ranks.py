"""Who is named as slow, and when nobody is."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from simstrag.arrays import Reals
from simstrag.ddp.failures.slow_ranks import CALM, LOOK, WINDOW, SlowRankDetector

STEPS, STEP = 2000, 0.1
"""Steps of a drawn job, and the seconds of one."""


def told(*reports: tuple[int, float]) -> list[str]:
    said: list[str] = []
    slow = SlowRankDetector(said.append)
    for step, (rank, seconds) in enumerate(reports):
        slow.add(rank, step, seconds)
    return said


def test_a_rank_that_takes_long_while_others_go_on_is_named_once() -> None:
    (sentence,) = told((0, 0.05), (1, 5.0), (0, 0.04), (0, 0.04), (1, 5.0), (0, 0.04))
    assert sentence == "rank 1 is slow: it took 5.0 s for step 1, the others 0.05 s"


def test_a_pause_of_all_names_nobody() -> None:
    """As for an evaluation: every rank's next step is as long, whoever reports first."""
    assert not told((0, 0.05), (1, 0.05), (0, 20.0), (1, 20.1), (0, 0.05), (1, 0.05))


def test_half_of_the_others_are_waited_for() -> None:
    before = [(rank, 0.05) for rank in range(5)]
    assert not told(*before, (3, 4.0), (0, 0.05))
    assert not told(*before, (3, 4.0), (0, 3.9), (1, 3.8))
    assert len(told(*before, (3, 4.0), (0, 0.05), (1, 0.06))) == 1


def test_one_that_reports_often_does_not_outvote_the_others() -> None:
    before = [(rank, 0.05) for rank in range(5)]
    assert not told(*before, (3, 4.0), *[(0, 0.05)] * 9)


def test_who_has_left_is_not_waited_for() -> None:
    said: list[str] = []
    slow = SlowRankDetector(said.append)
    for rank in range(5):
        slow.add(rank, 0, 0.05)
    slow.add(3, 1, 4.0)
    for rank in (1, 2, 4):
        slow.remove(rank)
    slow.add(0, 1, 0.05)
    assert len(said) == 1


def test_a_rank_alone_is_not_slow() -> None:
    assert not told((0, 0.05), (0, 9.0), (0, 9.0))


def test_reports_that_come_together_are_looked_at_once() -> None:
    said: list[str] = []
    slow = SlowRankDetector(said.append)
    slow.extend((rank, step, 0.2 if rank else 0.1) for step in range(5 * LOOK) for rank in (0, 1))
    (sentence,) = said
    assert sentence.endswith(
        f"(t test of {5 * LOOK} steps ({5 * LOOK} independent) over 5 %; p < 1e-06)"
    )


def drawn(seed: int, cv: float = 0.05, ranks: int = 4) -> Reals:
    """Seconds of steps of equal ranks, shape (steps, ranks): correlated noise, and longer steps."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(size=(STEPS, ranks))
    for step in range(1, STEPS):
        noise[step] = 0.3 * noise[step - 1] + np.sqrt(1 - 0.3**2) * noise[step]
    longer = 1 + (draw.random(noise.shape) < 0.01) * np.minimum(draw.pareto(2.5, noise.shape), 3)
    seconds: Reals = STEP * np.exp(cv * noise) * longer
    return seconds


def messages(seconds: Reals) -> list[tuple[int, str]]:
    """What is said during a job, each with the step before which it was said."""
    now, said = [0], list[tuple[int, str]]()
    slow = SlowRankDetector(lambda sentence: said.append((now[0], sentence)))
    for step, row in enumerate(seconds.tolist()):
        now[0] = step
        slow.extend((rank, step, own) for rank, own in enumerate(row))
    return said


def test_a_clean_job_has_no_message() -> None:
    """`tests/verification/test_live_warnings.py` has the rate over 200 jobs."""
    assert [messages(drawn(seed)) for seed in range(10)] == [[]] * 10


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_is_named_once_and_cleared_once_after_it_recovered(seed: int) -> None:
    seconds = drawn(seed)
    seconds[500:1000, 2] *= 1.3
    (named, first), (cleared, second) = messages(seconds)
    assert first.startswith("rank 2 is chronically slow: it computes 1.")
    assert 500 <= named < 500 + 3 * LOOK
    assert second.startswith("rank 2 is no longer slow: it computed 1.")
    assert 1000 + WINDOW <= cleared < 1000 + 2 * CALM / STEP


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_about_the_threshold_is_not_named_and_cleared_by_turns(seed: int) -> None:
    """Every 2 s it is slower by 12 % or as fast as its peers: before, up to 11 messages."""
    seconds, draw = drawn(seed), np.random.default_rng(seed)
    seconds[:, 1] *= np.repeat(np.where(draw.random(STEPS // 20) < 0.5, 1.12, 0.99), 20)
    assert len(messages(seconds)) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_are_slow_by_turns_have_few_messages(seed: int) -> None:
    """As three ranks on two cores, each time for 10 s: before, 23 to 37 messages."""
    seconds, draw = drawn(seed, ranks=3), np.random.default_rng(seed)
    turns = np.repeat(draw.integers(3, size=STEPS // 100), 100)
    seconds[np.arange(STEPS), turns] *= 1.5
    said = messages(seconds)
    assert 1 <= len(said) <= 9
    for rank in range(3):
        own = [step for step, sentence in said if sentence.startswith(f"rank {rank} ")]
        assert all(np.diff(own) >= WINDOW)


def test_a_warning_returns_on_new_evidence_alone() -> None:
    seconds = drawn(0)
    seconds[200:400, 2] *= 1.5
    seconds[1200:, 2] *= 1.5
    kinds = [sentence.partition(":")[0] for _, sentence in messages(seconds)]
    assert kinds == [
        "rank 2 is chronically slow", "rank 2 is no longer slow", "rank 2 is chronically slow",
    ]  # fmt: skip


def test_a_rank_that_is_slow_in_every_tenth_step_is_named_once() -> None:
    seconds = drawn(0)
    seconds[3::10, 1] *= 2
    ((_, sentence),) = messages(seconds)
    assert re.match(r"rank 1 is slow in one of every \d?0 steps, such as step 1\d3: it", sentence)


def every(period: int, phase: int, length: float) -> Callable[[Reals], None]:
    def pause(seconds: Reals) -> None:
        seconds[phase::period] += length

    return pause


def common(*pauses: Callable[[Reals], None], seed: int = 0) -> list[str]:
    seconds = drawn(seed)
    for pause in pauses:
        pause(seconds)
    return [sentence for _, sentence in messages(seconds)]


def test_pauses_of_all_ranks_are_named_once_with_their_period() -> None:
    (sentence,) = common(every(50, 49, 6.0))
    assert sentence.startswith("all ranks pause together every 50 steps, such as in step 249, for ")
    assert sentence.endswith("for 6 s: up to 54.5 % of the time")


def test_a_checkpoint_and_an_evaluation_are_two_kinds() -> None:
    """Each 200 steps both fall together; that is the kind with the sum of their lengths."""
    first, second = common(every(50, 49, 3.0), every(200, 199, 8.0))
    assert "every 50 steps" in first
    assert "for 3 s" in first
    assert "every 200 steps" in second
    assert "for 11 s" in second


def test_pauses_of_one_rank_or_at_any_time_have_no_period() -> None:
    def scattered(seconds: Reals) -> None:
        steps = np.sort(np.random.default_rng(1).choice(STEPS, 40, replace=False))
        seconds[steps] += 0.8

    assert not any("all ranks" in sentence for sentence in common(scattered))

    def of_one(seconds: Reals) -> None:
        seconds[49::50, 0] += 0.8

    assert not any("all ranks" in sentence for sentence in common(of_one))


def test_a_rank_that_leaves_holds_up_no_judgement_of_common_pauses() -> None:
    said = list[str]()
    slow = SlowRankDetector(said.append)
    for step in range(400):
        for rank in range(3 if step < 100 else 2):
            slow.add(rank, step, 2.1 if step % 40 == 39 else 0.1)
        if step == 99:
            slow.remove(2)
    assert [sentence.partition(",")[0] for sentence in said] == [
        "all ranks pause together every 40 steps"
    ]
