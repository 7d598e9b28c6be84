"""STAR's claims in a cluster: the stated setting, and one row from end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simstrag import simulate
from simstrag.claims import judge
from simstrag.claims.claim import Claim, Entrant
from simstrag.claims.cluster_claims import (
    CLUSTER_CLAIMS,
    DRAWS,
    MODELS,
    QUICK_DRAWS,
    TRAINED_SAMPLES,
    draw,
)
from simstrag.claims.cluster_sweep import (
    asked_runs,
    simulate_draw,
    train_draw,
    trial_of_draws,
)
from simstrag.claims.measures import PointRuns
from simstrag.cluster.study import ClusterStudy
from simstrag.documents.yaml_file import read_mapping
from simstrag.scenario.scenario import Scenario
from simstrag.timing.noise import keys

EXAMPLE = Path("examples/cluster.yaml")


def test_the_models_are_those_of_the_example() -> None:
    """Both are the fit to STAR's logs, with three digits."""
    example = read_mapping(EXAMPLE, "cluster study", "")["workloads"]
    ours = draw(0)["workloads"]
    assert [*ours] == [*MODELS] == [*example]
    for name, workload in example.items():
        del ours[name]["scenario"]["learner"]
        assert ours[name] == workload


def test_updates_and_bytes_are_those_of_the_logs() -> None:
    star_models = pytest.importorskip("benchmarks.star_models")
    assert {n: m.update for n, m in MODELS.items()} == {
        name: row.update for name, row in star_models.MODELS.items()
    }


@pytest.mark.parametrize("jobs", [24, 64])
@pytest.mark.parametrize("trained", [False, True])
def test_a_draw_is_a_study_in_which_every_job_finds_room_at_once(jobs: int, trained: bool) -> None:
    study = ClusterStudy.of(draw(3, 0.5, jobs, trained=trained))
    coming = study.arriving("bsp", 3)
    assert (len(coming), sum(job.workers for job in coming)) == (jobs, 8 * jobs)
    assert study.slots >= 8 * jobs
    assert {job.arrival for job in coming} == {0.0}
    assert [job.number for job in coming] == [*range(jobs)]
    assert (coming[0].samples == TRAINED_SAMPLES) is trained
    assert draw(3) != draw(4)


@pytest.mark.parametrize("claim", CLUSTER_CLAIMS, ids=lambda claim: claim.name)
def test_every_entrant_of_a_claim_is_known(claim: Claim) -> None:
    entrants = {Entrant.of(text) for _, text in claim.parts}
    named = {Entrant.of(text) for text in (claim.policy, *claim.rivals, *claim.beside)}
    assert Entrant.of(claim.policy) in entrants
    everyone = entrants | named
    ClusterStudy.of(
        draw(0) | {
            "policies": sorted({one.policy for one in everyone}),
            "placers": sorted({one.placer for one in everyone}),
            "managers": sorted({one.manager for one in everyone}),
        }
    )  # fmt: skip


def test_parts_run_in_the_nearest_setting_alone_and_rivals_on_the_whole_map() -> None:
    claim = CLUSTER_CLAIMS[0]
    runs = [*asked_runs(claim, "formula", quick=False)]
    by_place: dict[tuple[int, ...], set[str]] = {}
    for run in runs:
        by_place.setdefault(run.place, set()).add(run.entrant)
    judged = {claim.policy, *claim.rivals}
    parts = {entrant for _, entrant in claim.parts}
    assert by_place.pop((1, 0)) == judged | {*claim.beside} | parts
    assert [*by_place.values()] == [judged] * 5
    assert len(runs) == DRAWS * (len(judged | {*claim.beside} | parts) + 5 * len(judged))


def test_a_row_is_judged_over_draws_which_the_folder_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws of two jobs; the same command computes nothing again."""
    tiny = replace(CLUSTER_CLAIMS[1], rivals=("lb_bsp", "sync_switch"))
    monkeypatch.setattr("simstrag.claims.scoreboard.CLAIMS", (tiny,))
    monkeypatch.setattr("simstrag.claims.cluster_sweep.SHORT", {"jobs": 2, "seconds": 15.0})
    monkeypatch.setattr("simstrag.claims.scoreboard.identities", lambda _: ())
    board = judge(folder=tmp_path, quick=True)
    (row,) = board.rows
    trial = row.trials["formula"]
    assert (trial.axes, len(trial.points)) == ((), 1)
    assert [one.entrant for one in trial.entrants] == [
        "bsp", "lb_bsp", "sync_switch", tiny.policy,
    ]  # fmt: skip
    seconds = [
        simulate_draw(ClusterStudy.of(draw(k, jobs=2, seconds=15.0)), Entrant.of(name), k)
        for name in (tiny.policy, "lb_bsp") for k in range(QUICK_DRAWS)
    ]  # fmt: skip
    own, rival = (
        sum(run["time_to_target"] for run in seconds[k : k + QUICK_DRAWS]) / QUICK_DRAWS
        for k in (0, QUICK_DRAWS)
    )
    assert trial.entrants[-1].seconds.value == pytest.approx(own)
    assert trial.here.versus["lb_bsp"].value == pytest.approx(1 - own / rival)
    page = board.write().read_text(encoding="utf-8")
    assert "+ placer: whole" in page
    (shown,) = board.document["claims"]
    assert shown["formula"]["entrants"][-1]["seconds"]["value"] == pytest.approx(own)
    reports: list[str] = []
    judge(folder=tmp_path, quick=True, on_progress=lambda _, __, what: reports.append(what))
    assert reports == ["found finished"]


def summaries(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[Mapping[str, Any]]]:
    """Of entrants that took so long in each draw."""
    return {
        name: [{"time_to_target": each, "makespan": each, "stragglers": 0} for each in times]
        for name, times in seconds.items()
    }


SMALL = replace(CLUSTER_CLAIMS[1], rivals=("lb_bsp",), parts=(("alone", "star_h:form=ring"),))
OWN, TIMES = SMALL.policy, (10.0, 11.0, 13.0)
FOUND = summaries({OWN: TIMES, "lb_bsp": (21.0, 20.0, 27.0), "bsp": (20.0, 22.0, 26.0)})
PLACES = [(k, j) for k in range(3) for j in range(2)]


def test_a_point_of_a_cluster_s_map_has_the_interval_of_one_among_six() -> None:
    axes = SMALL.drawn_axes("formula", quick=False)
    trial = trial_of_draws(SMALL, "formula", axes, dict.fromkeys(PLACES, FOUND), {})
    outside = {p.place: 0.05 if p.place == (1, 0) else 0.05 / 6 for p in trial.points}
    assert [*outside] == PLACES
    for point in trial.points:
        runs = PointRuns(FOUND, (), True, outside[point.place])
        assert point.estimate == SMALL.measure.of(runs, OWN, ["lb_bsp"])
    assert trial.here.estimate.value == pytest.approx(1 - 34 / 68)
    assert [one.saved.value for one in trial.entrants][:1] == [0.0]


def test_a_part_that_fails_leaves_the_verdict_and_a_rival_that_fails_does_not() -> None:
    part, rival = {(1, 0): {"star_h:form=ring": "lost"}}, {(1, 0): {"lb_bsp": "lost"}}
    axes = SMALL.drawn_axes("formula", quick=False)
    whole, cut = (
        trial_of_draws(SMALL, "formula", axes, dict.fromkeys(PLACES, FOUND), failed)
        for failed in (part, rival)
    )
    assert (whole.here.failed, whole.here.estimate.value) == (False, 0.5)
    assert (cut.here.failed, cut.here.note) == (True, "lb_bsp failed: lost")


def test_accuracies_of_entrants_end_at_one() -> None:
    runs = {
        name: [{**run, "accuracy": 0.9 + 0.045 * k} for k, run in enumerate(own)]
        for name, own in FOUND.items()
    }
    axes = SMALL.drawn_axes("real", quick=False)
    trial = trial_of_draws(SMALL, "real", axes, {(0, 0): runs}, {})
    assert {one.accuracy.high for one in trial.entrants} == {1.0}


def test_a_claim_with_draws_needs_an_entrant_beside() -> None:
    with pytest.raises(ValueError, match="star-cluster-ring: a claim with draws has an entrant"):
        replace(SMALL, beside=())


def test_a_job_of_a_cluster_trains_by_the_gradients_that_its_run_applied() -> None:
    """Alone in the cluster, it trains as in a run of one job under the same seed."""
    study = ClusterStudy.of(draw(1, jobs=1, trained=True))
    digits = CLUSTER_CLAIMS[0].real
    assert not isinstance(digits, str)
    found = train_draw(study, Entrant.of("asgd"), 1, digits)
    section = study.workloads["resnet20"].scenario
    alone = Scenario.of({
        **section, **digits, "workers": 8, "samples": TRAINED_SAMPLES, "nodes": [0] * 8,
    })  # fmt: skip
    run = simulate(alone, "asgd", int(keys(1, [0])[0]))
    assert found["accuracy"] == run.summary["accuracy"]
    assert found["makespan"] == pytest.approx(run.summary["makespan"])
