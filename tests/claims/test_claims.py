"""The scoreboard of the papers' claims: its data, one claim from end to end, the identities."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simstrag import simulate
from simstrag.analysis.text.claim_text import sentences
from simstrag.claims import CLAIMS, judge
from simstrag.claims.claim import Claim, Learner
from simstrag.claims.identities import Identity, contention_cost, identities, needed_ratio
from simstrag.claims.measures import MEAN_OF_SPEEDUPS, SPEEDUP, PointRuns
from simstrag.claims.scoreboard import ClaimResult
from simstrag.claims.trial import ClaimVerdict, Reached, Trial, averaged, reach
from simstrag.cli.commands import EXAMPLES
from simstrag.errors import InputError
from simstrag.experiments.paired_statistics import Estimate
from simstrag.experiments.study import Study
from simstrag.scenario.scenario import Scenario
from tests.support.commands import Call

SMALL: dict[str, Any] = {"samples": 8 * 128 * 40, "target_progress": 25.0}
IDENTITIES = (Identity("What is said", "a number", "by a formula"),)
OF_ONE_JOB = [claim for claim in CLAIMS if claim.draw is None]
TRAINED = [claim for claim in CLAIMS if claim.trained]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Claim:
    """Korel's first claim over one constant, on a sixth of the work; no other claim is known."""
    claim = replace(CLAIMS[0], scenario={**CLAIMS[0].scenario, **SMALL}, axes=CLAIMS[0].axes[:1])
    monkeypatch.setattr("simstrag.claims.scoreboard.CLAIMS", (claim,))
    return claim


@pytest.mark.parametrize("claim", OF_ONE_JOB, ids=lambda claim: claim.name)
def test_every_claim_has_a_valid_study_whose_map_holds_the_nearest_setting(claim: Claim) -> None:
    assert bool(claim.learners) != bool(claim.untestable)
    for learner in claim.learners:
        quick = claim.study(learner, quick=True)
        points = Study.of(quick).points()
        assert claim.policy in points[0].scenario.policies
        for axis in claim.drawn_axes(learner, quick=True):
            assert axis.values[axis.here] in quick["grid"][axis.key]


def test_names_are_unique_and_the_nearest_value_is_that_of_the_scenario() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for claim in OF_ONE_JOB:
        for axis in claim.axes:
            section, _, key = axis.key.partition(".")
            stated = claim.study(claim.learners[0], quick=True)["scenario"].get(section, {})
            value = stated.get(key, 1.0 if section == "contention" else None) if key else stated
            assert axis.values[axis.here] == value, (claim.name, axis.key)


def test_a_claim_is_judged_at_every_point_by_runs_that_the_folder_keeps(
    tiny: Claim, tmp_path: Path
) -> None:
    (row,) = judge(folder=tmp_path, quick=True).rows
    trial = row.trials["formula"]
    assert [point.place for point in trial.points] == [(0,), (1,), (2,)]
    scenario = Scenario.of(tiny.study("formula", quick=True)["scenario"])
    clean, bsp, korel = (
        sum(simulate(world, policy, seed).summary["time_to_target"] for seed in range(3))
        for world, policy in (
            (scenario.without_contention(), "bsp"), (scenario, "bsp"), (scenario, "korel"),
        )
    )  # fmt: skip
    assert trial.here.estimate.value == pytest.approx((bsp - korel) / (bsp - clean), rel=1e-9)
    told: list[str] = []
    judge(folder=tmp_path, quick=True, on_progress=lambda _, __, what: told.append(what))
    assert {*told} == {"korel-delay: reading", "found finished"}


def test_a_point_of_the_map_has_the_wider_interval_of_one_among_many(
    tiny: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside: dict[tuple[int, ...], float] = {}

    def reached(claim: Claim, place: tuple[int, ...], runs: PointRuns, learner: Learner) -> Reached:
        outside[place] = runs.outside
        return reach(claim, place, runs, learner)

    monkeypatch.setattr("simstrag.claims.trial.reach", reached)
    ((trial,),) = (row.trials.values() for row in judge(folder=tmp_path, quick=True).rows)
    wide = pytest.approx(0.05 / 3)
    assert outside == {p.place: 0.05 if p is trial.here else wide for p in trial.points}


def test_the_examples_of_the_help_write_a_page_with_map_and_command(
    tiny: Claim, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.claims.scoreboard.identities", lambda _: IDENTITIES)
    for example in EXAMPLES["claims"]:
        code, out, err = call(*example.removeprefix("simstrag ").split())
        assert (code, err) == (0, "")
        assert tiny.name in out
    page = (folder / "reports" / "claims" / "claims.html").read_text(encoding="utf-8")
    assert f"simstrag claims --only {tiny.name} --quick" in page
    assert f'{tiny.name}, by formula"' in page
    document = json.loads(call("claims", "--quick", "--json")[1])
    assert document["claims"][0]["formula"]["points"][0].keys() >= {"value", "low", "high"}


def runs_of(**seconds: tuple[float | None, ...]) -> dict[str, list[dict[str, Any]]]:
    """Runs by policy and seed, None of one that missed its target."""
    return {
        name: [{"time_to_target": each, "makespan": each or 1.0} for each in own]
        for name, own in seconds.items()
    }


def test_a_policy_that_misses_the_target_has_not_shown_its_claim(tiny: Claim) -> None:
    runs = runs_of(bsp=(2.0, 2.0), korel=(None, None))
    found = reach(replace(tiny, rivals=("bsp",)), (0,), PointRuns(runs, runs["bsp"], True))
    assert (found.holds, found.note) == (False, "korel missed the target in 2 of 2")


def test_an_unknown_claim_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"there is no claim 'korel-dela'; known: korel-delay, .*Did you"
    ):
        judge(["korel-dela"], tmp_path)


def test_what_only_training_can_tell_is_not_tried_by_a_quick_scoreboard(tmp_path: Path) -> None:
    names = [TRAINED[0].name, CLAIMS[-1].name]
    board = judge(names, tmp_path, quick=True)
    assert [row.verdict for row in board.rows] == [ClaimVerdict.UNTRIED, ClaimVerdict.UNTESTABLE]
    assert board.frame().empty


def test_the_identities_have_the_numbers_that_they_are_known_by() -> None:
    texts = [each.found for each in identities(quick=True)]
    assert texts[0].startswith("18.3 % (14 % faster) to 21.4 %")
    assert texts[1].startswith("1.66; ")
    assert texts[2] == "x = 1 in 10 of 10; groups beat every x in 10 of 10"
    assert texts[3].startswith("54 % more")


def test_the_cost_of_contention_and_the_ratio_invert_the_metric() -> None:
    slow, clean = 1.2, 1.0
    mitigated = slow - 0.5 * (slow - clean)
    assert contention_cost(0.5, slow / mitigated) == pytest.approx(slow / clean - 1)
    rho = needed_ratio(0.7, 3.0)
    assert (3.0 - 3.0 / rho) / (3.0 - 1) == pytest.approx(0.7)
    assert math.isclose(needed_ratio(1.0, 2.0), 2.0)


def test_a_claim_to_be_faster_does_not_hold_where_both_take_the_same_time(tiny: Claim) -> None:
    runs = runs_of(bsp=(2.0, 2.0), korel=(2.0, 2.0))
    faster = replace(tiny, number=1.0, measure=SPEEDUP, rivals=("bsp",))
    found = reach(faster, (0,), PointRuns(runs, (), True))
    assert (found.estimate.value, found.holds) == (1.0, False)


def test_a_claim_against_several_does_not_hold_where_one_rival_leaves_it_open(tiny: Claim) -> None:
    """In the mean ssp is slower than bsp, but it took less time than korel under one seed."""
    runs = runs_of(korel=(1.0, 1.0), bsp=(1.2, 1.21), ssp=(0.5, 1.96))
    faster = replace(tiny, number=1.0, measure=SPEEDUP, rivals=("bsp", "ssp"))
    found = reach(faster, (0,), PointRuns(runs, (), True))
    assert (found.versus["bsp"].low > 1, found.holds) == (True, None)
    assert found.estimate.value == found.versus["bsp"].value
    assert found.estimate.low == found.versus["ssp"].low


def two_points(claim: Claim, slow: tuple[float, float]) -> Trial:
    """Korel takes 1 s; bsp takes 2 and 4 s, and ssp 2 s and `slow`, under two seeds each."""
    runs = {
        (k,): PointRuns(runs_of(korel=(1.0, 1.0), bsp=(bsp, bsp), ssp=ssp), (), True)
        for k, (bsp, ssp) in enumerate(((2.0, (2.0, 2.0)), (4.0, slow)))
    }
    points = tuple(reach(claim, place, at) for place, at in runs.items())
    return Trial("formula", claim.axes, points, averaged(claim, points, runs))


@pytest.fixture
def average(tiny: Claim) -> Claim:
    """A claim about the average of a map."""
    rivals = ("bsp", "ssp")
    return replace(tiny, measure=MEAN_OF_SPEEDUPS, rivals=rivals, is_averaged=True, number=3.2)


def test_an_average_is_that_of_the_table_of_speedups_with_the_largest_of_each(
    average: Claim,
) -> None:
    trial = two_points(average, (8.0, 8.0))
    assert trial.average.estimate.value == (2 + 4 + 2 + 8) / 4
    assert trial.average.geometric == pytest.approx((2 * 4 * 2 * 8) ** 0.25)
    assert {n: p.versus[n].value for n, p in trial.average.largest.items()} == {"bsp": 4, "ssp": 8}
    assert trial.verdict == ClaimVerdict.MEAN
    found = " ".join(sentences(ClaimResult(average, {"formula": trial})))
    assert "2 scenarios and 2 methods is 4.000×, the geometric mean" in found  # noqa: RUF001 - meant
    assert "largest over ssp is 8.00×, at slowdown 1.5×" in found  # noqa: RUF001


def test_a_claim_about_an_average_is_judged_by_the_average_alone(average: Claim) -> None:
    below = two_points(replace(average, number=5.0), (8.0, 8.0))
    assert (below.points[1].holds, below.verdict) == (True, ClaimVerdict.NOT)
    open_ = two_points(average, (2.0, 8.0))
    assert open_.verdict == ClaimVerdict.OPEN


def test_an_average_over_a_point_that_misses_its_target_is_not_known(average: Claim) -> None:
    missed = runs_of(korel=(None, None), bsp=(1.0, 1.0), ssp=(1.0, 1.0))
    runs = {(0,): PointRuns(missed, (), True)}
    points = tuple(reach(average, place, at) for place, at in runs.items())
    found = averaged(average, points, runs)
    assert (math.isnan(found.estimate.value), found.holds) == (True, False)


def held_at(claim: Claim, *places: tuple[int, int]) -> Trial:
    """On a map of three by two."""
    first, second = claim.axes[0].coarse(), claim.axes[1].coarse()
    two = replace(second, values=second.values[:2], labels=("low", "high"), here=0)
    points = [
        Reached((a, b), Estimate(0, 0, 0), {}, "", (a, b) in places)
        for a in range(3) for b in range(2)
    ]  # fmt: skip
    return Trial("formula", (first, two), tuple(points))


def test_a_region_names_no_point_at_which_the_claim_does_not_hold() -> None:
    claim = CLAIMS[0]
    block = held_at(claim, (0, 0), (1, 0), (0, 1), (1, 1))
    assert block.region == (
        "4 of 6 points: slowdown 1.25\N{MULTIPLICATION SIGN} to 2\N{MULTIPLICATION SIGN}; "
        "gain of reduced precision low to high"
    )
    stairs = held_at(claim, (0, 0), (0, 1), (2, 1))
    assert stairs.region == (
        "3 of 6 points: slowdown 1.25\N{MULTIPLICATION SIGN} at low; "
        "1.25\N{MULTIPLICATION SIGN}, 4\N{MULTIPLICATION SIGN} at high"
    )
