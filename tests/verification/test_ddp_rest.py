"""Real ranks that a policy rests, and takes back or never does, at every size of a small world."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from simstrag.ddp.journal.run_from_journal import finish
from tests.ddp.test_ddp_replayed import Rest
from tests.ddp.test_ddp_trainer import train
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


@pytest.mark.parametrize(("first", "world"), [(2, 2), (2, 3), (2, 4), (0, 2), (0, 3)])
def test_ranks_that_rest_train_again_when_they_are_taken_back(
    first: int, world: int, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(train, world, Rest(first, 5), 4, str(tmp_path))
    assert len({each["samples"] for each in found}) == 1
    applied = finish(tmp_path).frame("gradients").query("fate == 'applied'")
    contributors = applied.groupby("update")["rank"].nunique().tolist()
    assert contributors == [1 if first <= k < 5 else world for k in range(len(contributors))]


@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_that_no_plan_wants_ends_with_the_others(world: int, ranks: Ranks) -> None:
    first, *others = ranks.run(train, world, Rest(0, np.inf), 4)
    assert len(first["losses"]) == 4 * world
    for other in others:
        assert np.isnan(other["losses"]).tolist() == [True]
