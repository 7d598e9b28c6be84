"""Who is named as slow, and when nobody is."""

from __future__ import annotations

from simstrag.ddp.failures.slow_ranks import LOOK, SlowRankDetector


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
