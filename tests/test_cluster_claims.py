"""STAR's claims in a cluster: the stated setting, and one row from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simstrag import simulate
from simstrag.claims import judge
from simstrag.claims.claim import Claim, Entrant
from simstrag.claims.cluster_claims import (
    CLUSTER_CLAIMS,
    MODELS,
    QUICK_DRAWS,
    TRAINED_SAMPLES,
    draw,
)
from simstrag.claims.cluster_sweep import simulate_draw, train_draw
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
    told: list[str] = []
    judge(folder=tmp_path, quick=True, on_progress=lambda _, __, what: told.append(what))
    assert told == ["found finished"]


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
