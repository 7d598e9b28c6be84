"""The control message: digests that only the plan decides, and who is odd."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from simstrag.contract import ALL, Damping, Late, Plan, Precision, Quorum, Review, Via
from simstrag.ddp.allreduce import control_message
from simstrag.ddp.allreduce.control_message import (
    WIDTH,
    ControlMessages,
    PlanDigests,
    describe_disagreement,
    pack,
    unpack,
)
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

RICH = """
from simstrag.contract import Damping, Late, Plan, Precision, Quorum, Review, Via
Plan(
    quorums=(Quorum((3, 1), via=Via.LEADER), Quorum((0, 2), count=1, via=Via.LEADER)),
    precision={1: Precision.AMP},
    batch=(0.5, 1.5, 1.25, 0.75),
    damping=Damping(power=0.5, cutoff=7),
    suspects=frozenset(%s),
    review=Review(seconds=0.1),
).resolved(4)
"""


def rich(suspects: str = "{3, 1}") -> Plan:
    setup, _, plan = (RICH % suspects).strip().partition("\n")
    names: dict[str, object] = {}
    exec(setup, names)
    found: Plan = eval(plan, names)
    return found


def digest(plan: Plan, version: int) -> int:
    return PlanDigests().of(plan, version)


def slots(digests: list[int], versions: list[int] | None = None) -> ControlMessages:
    n = len(digests)
    return ControlMessages(
        np.zeros(n),
        np.ones(n),
        np.array(digests),
        np.array(versions or [4] * n),
        np.zeros(n, int),
        np.ones(n),
        np.ones(n),
    )


def test_a_slot_comes_out_as_it_went_in() -> None:
    gathered = torch.zeros(3, WIDTH, dtype=torch.float64)
    sent = [1234.5, 0.1, 2**48 - 1, 2**40, 5, 0.7, 0.3]
    pack(gathered[2], *sent)  # type: ignore[arg-type]
    found = unpack(gathered)
    assert [each.tolist()[2] for each in found] == sent
    gathered.zero_()
    assert (found.start[2], found.version[2]) == (1234.5, 2**40), (
        "the next step's message must not change this one"
    )


def test_the_digest_is_the_same_in_a_process_with_another_hash_seed() -> None:
    setup, _, plan = (RICH % "{3, 1}").strip().partition("\n")
    module = "simstrag.ddp.allreduce.control_message"
    program = f"{setup}\nfrom {module} import PlanDigests\nprint(PlanDigests().of({plan}, 9))"
    found = subprocess.run(
        [sys.executable, "-P", "-c", program], env={"PYTHONHASHSEED": "1"},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert found.stdout.strip() == str(digest(rich(), 9))


def test_equal_plans_have_equal_digests_however_they_are_written() -> None:
    written = rich("{1, 3}")
    assert written == rich()
    assert digest(written, 3) == digest(rich(), 3)
    one = Plan(precision=np.array([False, True]), batch=(1, 1)).resolved(2)
    other = Plan(precision={1: Precision.AMP}, quorums=(Quorum(ALL, count=2),)).resolved(2)
    assert one == other
    assert digest(one, 0) == digest(other, 0)
    one, other = (Plan(suspects=frozenset(ranks)) for ranks in ([0, 8], [8, 0]))
    assert list(one.suspects or ()) != list(other.suspects or ()), "as sets happen to be ordered"
    assert digest(one, 0) == digest(other, 0)
    assert digest(Plan(deadline=1), 0) == digest(Plan(deadline=1.0), 0)


@pytest.mark.parametrize(
    "changed",
    [
        Plan(quorums=(Quorum(late=Late.DROP, count=1),)),
        Plan(quorums=(Quorum(via=Via.SERVER),)),
        Plan(damping=Damping(power=1)),
        Plan(suspects=frozenset()),
        Plan(review=Review(updates=1)),
        Plan(batch=(1 + 2**-50, 1 - 2**-50)),
        Plan(precision=Precision.AMP),
    ],
)
def test_every_field_of_a_plan_is_in_its_digest(changed: Plan) -> None:
    assert digest(changed.resolved(2), 0) != digest(Plan().resolved(2), 0)


def test_a_plan_that_stands_is_not_written_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    digests, plan, written = PlanDigests(), rich(), list[Plan]()
    expected = [digest(plan, version) for version in range(300)]
    text = control_message._text

    def write(plan: Plan) -> str:
        written.append(plan)
        return text(plan)

    monkeypatch.setattr(control_message, "_text", write)
    assert [digests.of(plan, version) for version in range(300)] == expected
    assert written == [plan]


def test_what_reads_differently_in_each_process_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold <object"):
        digest(Plan(fuse=object()), 0)  # type: ignore[arg-type]


def test_equal_slots_are_no_disagreement() -> None:
    assert describe_disagreement(slots([7, 7, 7])) is None


def test_the_odd_rank_is_named_where_the_others_are_a_majority() -> None:
    said = describe_disagreement(slots([7, 7, 8]))
    assert said is not None
    assert said.startswith("rank 2 is at version 4 with plan 000000000008, the other 2 ranks")
    said = describe_disagreement(slots([7, 8, 7, 7]), ranks=[4, 5, 6, 9])
    assert said is not None
    assert said.startswith("rank 5 ")
    said = describe_disagreement(slots([7, 7, 7], [4, 3, 4]))
    assert said is not None
    assert said.startswith("rank 1 is at version 3 with plan 000000000007, the other 2 ranks")


@pytest.mark.parametrize("digests", [[1, 2], [1, 2, 3], [1, 1, 2, 2]])
def test_without_a_majority_every_digest_is_shown(digests: list[int]) -> None:
    said = describe_disagreement(slots(digests))
    assert said is not None
    assert "other" not in said
    for rank, own in enumerate(digests):
        assert f"rank {rank} is at version 4 with plan {own:012x}" in said


def rank_gathers(rank: int, world: int) -> list[list[float]]:
    own = torch.zeros(WIDTH, dtype=torch.float64)
    pack(own, 100.0 + rank, 0.5 * rank, 10 + rank, 3)
    gathered = torch.zeros(world, WIDTH, dtype=torch.float64)
    dist.all_gather_single(gathered.view(-1), own)
    return [each.tolist() for each in unpack(gathered)[:3]]


def test_every_rank_gathers_all_slots_in_order(ranks: Ranks) -> None:
    expected = [[100.0, 101.0, 102.0], [0.0, 0.5, 1.0], [10, 11, 12]]
    assert ranks.run(rank_gathers, 3) == [expected] * 3
