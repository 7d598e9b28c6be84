"""How often `diagnose` is right about drawn jobs whose truth is known, and how often it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simstrag.whatif.diagnosis import Diagnosis, diagnose
from simstrag.whatif.losses import CHANCE, DRIFT, STRAGGLERS, WORTH
from tests.support import drawn_jobs
from tests.support.drawn_jobs import Job

pytestmark = pytest.mark.thorough
NEAR = 0.3
"""Relative error within which the share of a loss is right."""
RAMP = 0.5
"""That of drift, whose beginning is lost in noise."""


def rate(draw: Callable[[int], Job], right: Callable[[Job, Diagnosis], bool], draws: int) -> float:
    jobs = (draw(seed) for seed in range(draws))
    return sum(right(job, diagnose(job.record, compare=[])) for job in jobs) / draws


def material(found: Diagnosis) -> set[str]:
    """The kinds of loss that are worth a word, beside chance."""
    assert found.losses is not None
    return {each.kind for each in found.losses.parts if each.share >= WORTH} - {CHANCE}


def named(found: Diagnosis) -> set[int]:
    assert found.steps is not None
    return {each.rank for each in found.steps.culprits}


def is_quiet(job: Job, found: Diagnosis) -> bool:
    assert found.losses is not None
    silent = not named(found) and not material(found) and not found.hides_ranks
    return silent and found.losses.start_up[0] == job.start_up


def names_slow(job: Job, found: Diagnosis) -> bool:
    assert found.steps is not None
    patterns = {each.pattern for each in found.steps.culprits}
    return named(found) == {*job.slow} and patterns == {"chronic"} and not found.hides_ranks


def names_slow_and_loss(job: Job, found: Diagnosis) -> bool:
    return names_slow(job, found) and material(found) == {STRAGGLERS}


def finds_loss(job: Job, found: Diagnosis) -> bool:
    assert found.losses is not None
    if named(found) or material(found) != {job.kind}:
        return False
    loss = found.losses.of(job.kind)
    error = RAMP if job.kind == DRIFT else NEAR
    return abs(loss.share / job.share - 1) <= error and loss.facts.get("period", 0) == job.period


def cannot_tell(job: Job, found: Diagnosis) -> bool:
    return found.hides_ranks and not named(found)


def test_clean_jobs_raise_at_most_one_alarm_in_a_hundred() -> None:
    assert rate(drawn_jobs.clean, is_quiet, 300) >= 0.99


@pytest.mark.parametrize("draw", [drawn_jobs.slow_rank, drawn_jobs.slow_node])
def test_slow_ranks_are_named_and_nothing_else(draw: Callable[[int], Job]) -> None:
    assert rate(draw, names_slow_and_loss, 300) >= 0.95


def test_all_ranks_of_the_slower_cards_are_named() -> None:
    assert rate(drawn_jobs.slow_group, names_slow_and_loss, 300) >= 0.95


@pytest.mark.parametrize("kind", drawn_jobs.LOSSES)
def test_a_loss_has_the_right_kind_and_size(kind: str) -> None:
    assert rate(drawn_jobs.LOSSES[kind], finds_loss, 300) >= 0.95


def test_equal_walls_are_not_taken_for_equal_ranks() -> None:
    assert rate(drawn_jobs.equal_walls, cannot_tell, 300) >= 0.99


def test_the_start_is_set_apart() -> None:
    assert rate(drawn_jobs.start_up, is_quiet, 300) >= 0.95


def test_a_restarted_job_names_its_slow_rank(tmp_path: Path) -> None:
    right = 0
    for seed in range(60):
        text, rank = drawn_jobs.restarted(seed)
        log = tmp_path / f"steps-{seed}.csv"
        log.write_text(text)
        right += named(diagnose(log, compare=[])) == {rank}
    assert right >= 57
