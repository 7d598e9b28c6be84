"""The policies that tests/ddp/test_ddp_trainer.py leaves out, under the same questions."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.ddp import test_ddp_membership as failing
from tests.ddp import test_ddp_trainer as few
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


@pytest.mark.parametrize(
    "policy", ["asgd", "ssp:bound=1", "k_async:x=2", "backup:b=1,late=drop", "ringmaster"]
)
def test_the_reference_engine_books_recorded_arrivals_as_the_server_did(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    few.test_the_reference_engine_books_recorded_arrivals_as_the_server_did(policy, ranks, tmp_path)


@pytest.mark.parametrize(
    "policy",
    ["sync_switch", "star_dynamic", "star_h:phi=64", "cgp", "cgp:groups=window", "lgc",
     "local_sgd:h=3", "p_reduce:p=2", "lb_bsp", "dssp", "staleness_lr", "bsp:via=server",
     "drain:window=3,wait=4", "hot_spare:window=3,checks=1", "fewer",
     "tree", "streaming_diloco:h=6,p=2,tau=2", "dc_asgd"],
)  # fmt: skip
def test_a_policy_trains_four_ranks_and_leaves_a_record(
    policy: str, ranks: Ranks, tmp_path: Path
) -> None:
    few.test_a_policy_trains_four_ranks_and_leaves_a_record(policy, ranks, tmp_path)


def test_under_a_server_the_others_go_on_without_a_rank_whose_backward_failed(
    ranks: Ranks,
) -> None:
    failing.test_under_a_server_the_others_go_on_without_a_rank_that_failed("backward", ranks)
