"""Korel's decisions, told as stories: facts on the left, the plan after them on the right.

A line reads `updates | who is slowed down in them, and how much | whom the policy takes for
stragglers`: `AMP 2` is a suspect in reduced precision, `trial 2` one that runs full-precision steps
for a probe or a confirmation.  Every plan of every update is compared, so a line that says `11-16`
says that nothing changed within.  Before a story that begins with update 27 are 20 clean updates
and 6 in which rank 2 takes twice as long; the policy suspects no rank in them.  Unless said
otherwise a clean step takes 1 s and AMP is 1.66 times as fast, and the policy has both as hints.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simstrag.arrays import Floats
from simstrag.contract import WINDOW, Hints, Plan, View
from simstrag.errors import InputError
from simstrag.policies.korel import Korel
from tests.support.lockstep import BspRun, World, bsp_run, in_amp

Row = tuple[int, int, str, str]
LINE = re.compile(r"(\d+)(?:-(\d+))? *\| *(.*?) *\| *(.*)")
FACT = re.compile(r"ranks? ([\d ]+) x([\d.]+)")


def tell(korel: Korel, n: int = 4, **given: Any) -> Callable[[str], BspRun]:
    """A check that every plan of a policy that lives through a story is what the story says."""

    def check(story: str) -> BspRun:
        rows = [read(line) for line in story.strip().splitlines()]
        if rows[0][0] == 27:
            rows = [(1, 20, "clean", "nobody"), (21, 26, "rank 2 x2", "nobody"), *rows]
        facts = {
            version: slowdowns(fact, n)
            for first, last, fact, _ in rows
            for version in range(first, last + 1)
        }
        assert sorted(facts) == list(range(1, len(facts) + 1)), "a story leaves no update out"
        world = World(lambda step, time: facts[step + 1], len(facts), n, range(n), **given)
        run = bsp_run(korel, world)
        actual = []
        for first, last, fact, _ in rows:
            versions = range(first, last + 1)
            for said, group in itertools.groupby(versions, lambda v: reading(run.plans[v], n)):
                own = list(group)
                actual.append((own[0], own[-1], fact, said))
        assert written(actual) == written(rows)
        return run

    return check


def read(line: str) -> Row:
    found = LINE.fullmatch(line.strip())
    assert found, f"cannot read the line: {line}"
    return int(found[1]), int(found[2] or found[1]), found[3], found[4]


def written(rows: list[Row]) -> str:
    return "\n".join(f"{first}-{last} | {fact} | {said}" for first, last, fact, said in rows)


def slowdowns(facts: str, n: int) -> Floats:
    found = np.ones(n)
    for ranks, factor in FACT.findall(facts):
        found[[int(rank) for rank in ranks.split()]] = float(factor)
    assert FACT.findall(facts) or facts == "clean", facts
    return found


def reading(plan: Plan, n: int) -> str:
    suspects = sorted(plan.suspects or ())
    amp = in_amp(plan, n)
    assert set(np.flatnonzero(amp)) <= set(suspects), "nobody else is in reduced precision"
    words = [
        f"{word} {' '.join(map(str, ranks))}"
        for word, ranks in (
            ("AMP", [rank for rank in suspects if amp[rank]]),
            ("trial", [rank for rank in suspects if not amp[rank]]),
        )
        if ranks
    ]
    return ", ".join(words) or "nobody"


# -- on ------------------------------------------------------------------------------------------


def test_a_straggler_is_in_amp_after_seven_slow_steps() -> None:
    tell(Korel())("""
        27-99 | rank 2 x2 | AMP 2
    """)


def test_a_slowdown_below_a_fifth_takes_one_step_more() -> None:
    tell(Korel())("""
        1-20  | clean        | nobody
        21-27 | rank 2 x1.15 | nobody
        28-40 | rank 2 x1.15 | AMP 2
    """)


def test_an_episode_of_four_slow_steps_goes_unnoticed() -> None:
    tell(Korel())("""
        1-20  | clean     | nobody
        21-24 | rank 2 x2 | nobody
        25-99 | clean     | nobody
    """)


def test_one_of_five_is_noticed_when_it_is_over() -> None:
    tell(Korel())("""
        1-20  | clean     | nobody
        21-25 | rank 2 x2 | nobody
        26    | clean     | nobody
        27-46 | clean     | AMP 2
        47-99 | clean     | nobody
    """)


def test_nobody_is_judged_before_a_full_window() -> None:
    tell(Korel())("""
        1-11  | rank 2 x2 | nobody
        12-30 | rank 2 x2 | AMP 2
    """)


def test_a_slowdown_of_eight_percent_is_nobodys_business() -> None:
    tell(Korel())("1-99 | rank 2 x1.08 | nobody")


def test_two_stragglers_are_judged_each_by_itself() -> None:
    tell(Korel(), n=7)("""
        27-30 | rank 2 x2                | AMP 2
        31-36 | rank 2 x2, rank 4 x1.5   | AMP 2
        37-60 | rank 2 x2, rank 4 x1.5   | AMP 2 4
    """)


# -- off -----------------------------------------------------------------------------------------


def test_it_stays_in_amp_for_at_least_the_dwell() -> None:
    tell(Korel())("""
        27-28 | rank 2 x2 | AMP 2
        29-46 | clean     | AMP 2
        47-99 | clean     | nobody
    """)


def test_a_recovered_rank_leaves_amp_after_five_good_checks() -> None:
    """The window needs six clean steps of ten before its median is clean: off with the tenth."""
    tell(Korel())("""
        27-80 | rank 2 x2 | AMP 2
        81-89 | clean     | AMP 2
        90-99 | clean     | nobody
    """)


def test_it_stays_in_amp_while_only_amp_makes_it_look_well() -> None:
    """x1.4 in AMP takes .84 s, less than its clean neighbours: taken at face value it is well."""
    facts = """
        1-20    | clean       | nobody
        21-26   | rank 2 x1.4 | nobody
        27-150  | rank 2 x1.4 | AMP 2
        """
    tell(Korel())(facts)
    with pytest.raises(AssertionError):
        tell(Korel(rho=1.0))(facts)


def test_whoever_flaps_has_to_dwell_longer() -> None:
    """A policy that takes AMP times at face value: 20 AMP steps, then 40, 80, 160, 160."""
    tell(Korel(rho=1.0))("""
        1-20    | clean       | nobody
        21-26   | rank 2 x1.4 | nobody
        27-46   | rank 2 x1.4 | AMP 2
        47-58   | rank 2 x1.4 | nobody
        59-98   | rank 2 x1.4 | AMP 2
        99-110  | rank 2 x1.4 | nobody
        111-190 | rank 2 x1.4 | AMP 2
        191-202 | rank 2 x1.4 | nobody
        203-362 | rank 2 x1.4 | AMP 2
        363-374 | rank 2 x1.4 | nobody
        375-534 | rank 2 x1.4 | AMP 2
        535-540 | rank 2 x1.4 | nobody
    """)


def test_a_quiet_time_forgives_earlier_flapping() -> None:
    tell(Korel(rho=1.0))("""
        1-20    | clean       | nobody
        21-26   | rank 2 x1.4 | nobody
        27-46   | rank 2 x1.4 | AMP 2
        47-58   | rank 2 x1.4 | nobody
        59-98   | rank 2 x1.4 | AMP 2
        99-600  | clean       | nobody
        601-606 | rank 2 x1.4 | nobody
        607-626 | rank 2 x1.4 | AMP 2
        627-630 | rank 2 x1.4 | nobody
    """)


# -- probes --------------------------------------------------------------------------------------


def test_every_200_amp_steps_a_probe_runs_two_full_precision_steps() -> None:
    run = tell(Korel())("""
        27-226  | rank 2 x2 | AMP 2
        227-228 | rank 2 x2 | trial 2
        229-428 | rank 2 x2 | AMP 2
        429-430 | rank 2 x2 | trial 2
        431-440 | rank 2 x2 | AMP 2
    """)
    assert run.summary["probes"] == 2


def test_a_probe_is_one_step_where_changing_precision_is_known_to_be_free() -> None:
    tell(
        Korel(), hints=Hints(amp_ratio=1.66, host_seconds=0.0, clean_seconds=1.0, amp_switch=0.0)
    )("""
        27-226  | rank 2 x2 | AMP 2
        227     | rank 2 x2 | trial 2
        228-240 | rank 2 x2 | AMP 2
    """)


def test_a_probe_frees_a_rank_that_an_overrated_amp_would_hold_for_ever() -> None:
    """Believed to gain 2.0, a clean rank looks 20 % slow in AMP; only the probe sees the truth."""
    story = """
        1-20    | clean     | nobody
        21-26   | rank 2 x2 | nobody
        27-100  | rank 2 x2 | AMP 2
        101-226 | clean     | AMP 2
        227-228 | clean     | trial 2
        229-300 | clean     | nobody
        """
    run = tell(Korel(rho=2.0))(story)
    assert run.summary == {
        "switches": 2,
        "activations": 1,
        "recoveries": 1,
        "efficacy_stops": 0,
        "probes": 1,
        "confirmations": 0,
    }


def test_without_probes_it_is_held_for_ever() -> None:
    tell(Korel(rho=2.0, probes=False))("""
        27-100  | rank 2 x2 | AMP 2
        101-900 | clean     | AMP 2
    """)


def test_where_a_change_of_precision_costs_more_than_five_steps_nothing_is_probed() -> None:
    tell(
        Korel(), hints=Hints(amp_ratio=1.66, host_seconds=0.0, clean_seconds=1.0, amp_switch=5.1)
    )("""
        27-500  | rank 2 x2 | AMP 2
    """)


def test_of_an_unknown_amp_ratio_only_a_probe_tells_recovery() -> None:
    tell(Korel(), hints=Hints())("""
        27-100  | rank 2 x2 | AMP 2
        101-226 | clean     | AMP 2
        227-228 | clean     | trial 2
        229-300 | clean     | nobody
    """)


# -- efficacy ------------------------------------------------------------------------------------


def test_where_amp_does_not_help_it_is_stopped_once_that_is_confirmed() -> None:
    """Contention of the host part: AMP saves 2.5 %.  Cool-downs of 500 and 1000 updates follow."""
    run = tell(Korel(), host=0.9, gpu=0.1, rho=1.05, resource="host")("""
        27-46     | rank 2 x2 | AMP 2
        47-56     | rank 2 x2 | trial 2
        57-558    | rank 2 x2 | nobody
        559-578   | rank 2 x2 | AMP 2
        579-588   | rank 2 x2 | trial 2
        589-1590  | rank 2 x2 | nobody
        1591-1600 | rank 2 x2 | AMP 2
    """)
    assert run.summary["efficacy_stops"] == run.summary["confirmations"] == 2


def test_without_trials_it_is_stopped_at_once() -> None:
    tell(Korel(probes=False), host=0.9, gpu=0.1, rho=1.05, resource="host")("""
        27-46 | rank 2 x2 | AMP 2
        47-99 | rank 2 x2 | nobody
    """)


def test_contention_that_grows_after_the_switch_is_no_proof_against_amp() -> None:
    """AMP at x4 takes longer than full precision did at x2; the confirmation sees x4 for both."""
    tell(Korel())("""
        27-30 | rank 2 x2 | AMP 2
        31-46 | rank 2 x4 | AMP 2
        47-56 | rank 2 x4 | trial 2
        57-99 | rank 2 x4 | AMP 2
    """)


def test_an_activation_that_helps_ends_the_doubling_of_cool_downs() -> None:
    """At x8 AMP saves 4 %, which is in vain; at x2 it saves 14 %.  Without x2: 1000 updates off."""
    tell(Korel(), host=0.6, gpu=0.4, rho=1.3, resource="host")("""
        1-20      | clean     | nobody
        21-26     | rank 2 x8 | nobody
        27-46     | rank 2 x8 | AMP 2
        47-56     | rank 2 x8 | trial 2
        57-100    | rank 2 x8 | nobody
        101-600   | clean     | nobody
        601-606   | rank 2 x2 | nobody
        607-650   | rank 2 x2 | AMP 2
        651-659   | clean     | AMP 2
        660-700   | clean     | nobody
        701-706   | rank 2 x8 | nobody
        707-726   | rank 2 x8 | AMP 2
        727-736   | rank 2 x8 | trial 2
        737-1238  | rank 2 x8 | nobody
        1239-1250 | rank 2 x8 | AMP 2
    """)


# -- where the median says nothing ---------------------------------------------------------------


def test_of_two_ranks_the_slower_is_compared_with_the_faster() -> None:
    tell(Korel(), n=2)("""
        1-20  | clean     | nobody
        21-27 | rank 1 x2 | nobody
        28-60 | rank 1 x2 | AMP 1
        61-69 | clean     | AMP 1
        70-99 | clean     | nobody
    """)


def test_two_ranks_need_no_clean_step_to_be_told_apart() -> None:
    tell(Korel(), n=2, hints=Hints(amp_ratio=1.66))("""
        1-20  | clean     | nobody
        21-27 | rank 1 x2 | nobody
        28-60 | rank 1 x2 | AMP 1
    """)


def test_a_majority_of_stragglers_is_found_through_the_known_clean_step() -> None:
    tell(Korel())("""
        1-20  | clean           | nobody
        21-27 | ranks 0 1 2 x2  | nobody
        28-60 | ranks 0 1 2 x2  | AMP 0 1 2
        61-69 | clean           | AMP 0 1 2
        70-99 | clean           | nobody
    """)


def test_without_the_guard_a_majority_passes_for_normal() -> None:
    story = """
        1-20  | clean           | nobody
        21-60 | ranks 0 1 2 x2  | nobody
        """
    tell(Korel(global_shift_guard=False))(story)
    tell(Korel(), hints=Hints(amp_ratio=1.66))(story)


def test_a_slowdown_of_all_alike_leaves_nobody_to_blame() -> None:
    tell(Korel())("""
        1-20  | clean             | nobody
        21-60 | ranks 0 1 2 3 x2  | nobody
    """)


def test_a_clean_step_known_fifteen_percent_too_low_does_no_harm() -> None:
    hints = Hints(amp_ratio=1.66, host_seconds=0.0, clean_seconds=0.87)
    tell(Korel(), hints=hints)("""
        27-60 | rank 2 x2 | AMP 2
        61-69 | clean     | AMP 2
        70-99 | clean     | nobody
    """)


def test_a_rank_alone_has_nobody_to_lag_behind() -> None:
    tell(Korel(), n=1)("1-99 | rank 0 x2 | nobody")


# -- drivers that are late -----------------------------------------------------------------------


def test_steps_begun_before_a_switch_count_for_neither_side() -> None:
    """Plans are obeyed one step late: the first AMP step is the 29th, the first of the trial the
    230th, and the full-precision step 232, begun before the trial was over, is left out.
    """
    tell(Korel(), lag=1)("""
        27-227  | rank 2 x2 | AMP 2
        228-230 | rank 2 x2 | trial 2
        231-300 | rank 2 x2 | AMP 2
    """)


def test_a_policy_asked_every_fifth_update_counts_its_checks() -> None:
    tell(Korel(), every=5)("""
        1-20  | clean     | nobody
        21-34 | rank 2 x2 | nobody
        35-60 | rank 2 x2 | AMP 2
        61-89 | clean     | AMP 2
        90-99 | clean     | nobody
    """)


def test_a_view_that_lost_times_still_shows_the_newest() -> None:
    run = tell(Korel(), every=20)("""
        1-59   | rank 2 x2 | nobody
        60-99  | rank 2 x2 | AMP 2
    """)
    assert run.summary["activations"] == 1


def test_a_cancelled_step_is_no_measurement() -> None:
    korel = Korel()
    for version in range(1, 60):
        times = np.ones((4, WINDOW))
        times[2] = 5.0
        cancelled = np.zeros((4, WINDOW), dtype=bool)
        cancelled[2] = True
        steps = np.full(4, version)
        plan = korel.plan(View(4, version, steps=steps, local_times=times, lower_bound=cancelled))
    assert plan.suspects == frozenset()


def test_an_amp_ratio_that_the_host_part_forbids_is_refused_when_amp_is_first_used() -> None:
    world = World(lambda step, time: 2.0, updates=40, n=4, host=0.5, gpu=0.5, rho=1.3)
    with pytest.raises(InputError, match="rho 3 is impossible"):
        bsp_run(Korel(rho=3.0), world)
