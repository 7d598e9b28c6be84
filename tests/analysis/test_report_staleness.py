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
from tests.support.slowed_runs import WORKERS, run_of

POLICIES = [
    "asgd", "ssp", "ssp:bound=1", "k_async:x=2", "lgc", "dssp", "star_dynamic", "star_h", "cgp",
    "backup:b=2,late=drop", "sync_switch", "p_reduce", "local_sgd:h=4",
]  # fmt: skip


def stale(policy: str, gradients: bool = False) -> list[Staleness]:
    run, _ = run_of(policy, gradients)
    return staleness_of([example(policy, run, None)])


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_derived_is_what_the_run_counted(policy: str) -> None:
    run, _ = run_of(policy)
    most = max(run.updates["staleness_max"])
    if not most:
        assert stale(policy) == []
        return
    (one,) = stale(policy)
    assert one.caption == ""
    assert one.versions.mean() == pytest.approx(run.summary["mean_staleness"])
    assert one.versions.max() == most


def test_a_log_of_gradients_says_the_same() -> None:
    (derived,), (logged,) = stale("asgd"), stale("asgd", gradients=True)
    for rank in range(WORKERS):
        own = [np.sort(one.versions[one.rank == rank]) for one in (derived, logged)]
        assert np.array_equal(*own)


def test_policies_without_stale_gradients_are_left_out() -> None:
    assert stale("bsp") == []


def test_numbers_are_of_gradients_that_there_were() -> None:
    one = Staleness("mine", np.array([0, 0, 0, 2]), np.array([0, 1, 4, 7]), 4)
    assert one.quantiles(3)[0].tolist() == [0, 0, 1, 4, 4]
    assert np.isnan(one.quantiles(3)[1]).all()
    assert staleness_table([one]).rows == (("mine", "4", "3.00", "1", "7", "7"),)
    assert staleness_by_rank([one], 3).rows[2] == ("mine", 2, 1, 7.0, 7.0, 7.0, 7.0, 7.0)


def test_what_the_log_does_not_tell_is_counted() -> None:
    one = Staleness("mine", np.array([0]), np.array([3]), 5)
    assert one.caption == "The log lacks 4 of the 5 applied gradients."
