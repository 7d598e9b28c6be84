"""STAR's claims in a cluster: the stated setting, and one row from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from simstrag.claims.claim import Claim, Entrant
from simstrag.claims.cluster_claims import CLUSTER_CLAIMS, MODELS, TRAINED_SAMPLES, draw
from simstrag.cluster.study import ClusterStudy
from simstrag.documents.yaml_file import read_mapping

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
