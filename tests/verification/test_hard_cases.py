"""Which kind of contention each mitigation can and cannot offset, on one contended rank.

Reduced precision shortens device work only; moving samples helps against whatever stretches a step;
only not waiting helps where the network is slow, which no local time shows.
"""

from __future__ import annotations

import pytest

from simstrag.engine.simulate import simulate
from simstrag.runs.run import Run
from simstrag.scenario.scenario import Scenario
from tests.support.trace_rows import slowed

N, BATCH = 8, 128
SLOWDOWN = 3.0


def world(resource: str | None, host_share: float = 0.3) -> Scenario:
    """Rank 0 is contended throughout; the same communication for all-reduce and server."""
    return Scenario.of(
        {
            "workers": N,
            "samples": 200 * N * BATCH,
            "step": {"compute": 1.0, "host_share": host_share, "amp_ratio": 1.4},
            "allreduce": {"alpha": 0.02},
            "server": {"service": 0.01, "push": 0.2, "pull": 0.2},
            "learner": {"batch": BATCH},
            "trace": [slowed(0, SLOWDOWN, resource=resource)] if resource else None,
        }
    )


def run(policy: str, resource: str | None, host_share: float = 0.3) -> Run:
    return simulate(world(resource, host_share), policy)


def mitigation(policy: str, resource: str, host_share: float = 0.3) -> float:
    """The share of the delay of bsp that a policy removes."""
    slow, own = (run(p, resource, host_share).summary["makespan"] for p in ("bsp", policy))
    clean = run("bsp", None, host_share).summary["makespan"]
    return float((slow - own) / (slow - clean))


def test_korel_sees_nothing_of_a_slow_network() -> None:
    """Synchronous local times are the same as ever: it is bsp, log for log."""
    korel = run("korel", "net")
    assert korel.summary["switches"] == 0
    assert korel.updates == run("bsp", "net").updates
    # nor is a rank with a slow network a straggler in truth
    assert korel.summary["detection_recall"] is None


def test_moving_samples_does_nothing_for_a_slow_network() -> None:
    assert run("lb_bsp", "net").updates == run("bsp", "net").updates


def hurt(policy: str) -> float:
    """What the slow network costs a policy, against itself without contention."""
    slow, clean = (run(policy, resource).summary["makespan"] for resource in ("net", None))
    return float(slow / clean)


@pytest.mark.parametrize("policy", ["asgd", "star_h"])
def test_who_does_not_wait_for_it_is_little_hurt_by_a_slow_network(policy: str) -> None:
    """One rank of eight needs 1.2 s instead of 0.4 s for its transfers; the others go on."""
    assert hurt(policy) < 1.1


@pytest.mark.parametrize("policy", ["bsp:via=server", "ssp:bound=8", "cgp"])
def test_who_waits_for_it_in_the_end_is_hurt(policy: str) -> None:
    """A bound only puts the wait off; groups made by local times do not know whom to leave out."""
    assert hurt(policy) > 1.45


def test_star_counts_a_slow_network_as_a_straggler() -> None:
    summary = run("star_h", "net").summary
    assert summary["decisions"] >= 1
    assert summary["dynamic"] >= 1


def test_where_the_device_is_a_small_part_reduced_precision_cannot_help() -> None:
    """Nine tenths of a step are host work, and that is what is contended."""
    assert mitigation("korel", "host", host_share=0.7) < 0.2
    assert mitigation("lb_bsp", "host", host_share=0.7) > 0.8


def test_moving_samples_offsets_device_and_host_alike() -> None:
    for resource in ("gpu", "host", "step"):
        assert mitigation("lb_bsp", resource) > 0.8, resource
