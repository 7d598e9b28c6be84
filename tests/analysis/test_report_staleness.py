"""How stale gradients were: what is derived from steps against what the runs themselves counted."""

import numpy as np
import pytest

from simstrag.analysis.derived.example_runs import example
from simstrag.analysis.tables.run_tables import (
    Staleness,
    staleness_by_rank,
    staleness_of,
    staleness_table,
)
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

WORKERS = 4
POLICIES = [
    "asgd", "ssp", "ssp:bound=1", "k_async:x=2", "lgc", "dssp", "star_dynamic", "star_h", "cgp",
    "backup:b=2,late=drop", "sync_switch", "p_reduce", "local_sgd:h=4",
]  # fmt: skip


def scenario() -> Scenario:
    slow = {"time": 1.0, "node": 1, "resource": "gpu", "kind": "slowdown", "value": 2.5}
    return Scenario.of({
        "workers": WORKERS, "samples": WORKERS * 128 * 60, "trace": [slow],
        "step": {"compute": 0.05, "amp_ratio": 1.5, "cv": 0.05},
        "server": {"service": 0.003, "push": 0.002, "pull": 0.001},
    })  # fmt: skip


def stale(policy: str, **keep: bool) -> tuple[list[Staleness], dict[str, float]]:
    run = simulate(scenario(), policy, 3, record_steps=True, **keep)
    counted = {
        "mean": run.summary["mean_staleness"],
        "most": max(run.updates["staleness_max"]),
        "applied": run.summary["applied"],
    }
    return staleness_of([example(policy, run, None)]), counted


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_derived_is_what_the_run_counted(policy: str) -> None:
    found, counted = stale(policy)
    if not counted["most"]:
        assert found == []
        return
    (one,) = found
    assert one.caption == ""
    assert one.versions.mean() == pytest.approx(counted["mean"])
    assert one.versions.max() == counted["most"]


def test_a_log_of_gradients_says_the_same() -> None:
    (derived,), _ = stale("asgd")
    (logged,), _ = stale("asgd", record_gradients=True)
    for rank in range(WORKERS):
        own = [np.sort(one.versions[one.rank == rank]) for one in (derived, logged)]
        assert np.array_equal(*own)


def test_policies_without_stale_gradients_are_left_out() -> None:
    assert stale("bsp")[0] == []


def test_numbers_are_of_gradients_that_there_were() -> None:
    one = Staleness("mine", np.array([0, 0, 0, 2]), np.array([0, 1, 4, 7]), 4)
    assert one.quantiles(3)[0].tolist() == [0, 0, 1, 4, 4]
    assert np.isnan(one.quantiles(3)[1]).all()
    assert staleness_table([one]).rows == (("mine", "4", "3.00", "1", "7", "7"),)
    assert staleness_by_rank([one], 3).rows[2] == ("mine", 2, 1, 7.0, 7.0, 7.0, 7.0, 7.0)


def test_what_the_log_does_not_tell_is_counted() -> None:
    one = Staleness("mine", np.array([0]), np.array([3]), 5)
    assert one.caption == "The log lacks 4 of the 5 applied gradients."
