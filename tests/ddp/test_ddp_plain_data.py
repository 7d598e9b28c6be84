"""Plain data as bytes, and collectives of it: what arrives, and what is refused unexecuted."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from simstrag.ddp import plain_collectives
from simstrag.ddp.plain_data import dump, load
from simstrag.errors import InputError
from tests.ddp.test_ddp_listener import Trap
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a trap makes where it is unpickled; no test may let it."""
    yield tmp_path / "unpickled"
    assert not (tmp_path / "unpickled").exists()


def test_plain_data_arrives_as_it_was() -> None:
    value = {
        (0, "step"): [torch.ones(2, dtype=torch.bfloat16), None, b"bytes", "text", True],
        7: (math.inf, 1 << 70, torch.float64, (), {"nested": {1, 2}}),
    }
    arrived = load(dump(value), "it")
    assert torch.equal(arrived[0, "step"].pop(0), value[0, "step"].pop(0))  # type: ignore[attr-defined,arg-type]
    assert arrived == value
    assert type(load(dump(np.float64(0.1)), "it")) is float


@pytest.mark.parametrize("form", [pickle.dumps, dump, lambda trap: dump([trap])[:-9]])
def test_data_that_is_not_plain_is_refused_in_one_line(mark: Path, form: Any) -> None:
    with pytest.raises(InputError, match=r"it cannot be read: it holds .* keep to") as caught:
        load(form(Trap(mark)), "it")
    assert "\n" not in str(caught.value)


def test_data_that_has_no_bytes_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"another process: .*lambda.*; keep to") as caught:
        dump({"a function": lambda: 0})
    assert "\n" not in str(caught.value)


def exchanged(rank: int, world: int) -> list[Any]:
    """What this rank gets of values of all sizes, and in a group of the others."""
    own = {"rank": rank, "text": "x" * 1000 * rank}
    group = dist.new_group([2, 1])
    return [
        plain_collectives.gather(own),
        plain_collectives.broadcast(own, source=1),
        [] if rank == 0 else plain_collectives.gather(rank, group),
        None if rank == 0 else plain_collectives.broadcast((rank,), 2, group),
    ]


def test_ranks_gather_and_broadcast_plain_values(ranks: Ranks) -> None:
    values = [{"rank": rank, "text": "x" * 1000 * rank} for rank in range(3)]
    first, second, third = ranks.run(exchanged, 3)
    assert first == [values, values[1], [], None]
    order = second[2]
    assert sorted(order) == [1, 2]
    assert second == third == [values, values[1], order, (2,)]


def trapped(rank: int, world: int, mark: str) -> str:
    try:
        plain_collectives.gather(Trap(Path(mark)) if rank == 1 else rank)
    except InputError as error:
        return str(error)
    return ""


def test_a_value_of_another_rank_that_is_not_plain_is_refused(ranks: Ranks, mark: Path) -> None:
    for said in ranks.run(trapped, 2, str(mark)):
        assert re.match(r"what another rank sends cannot be read: it holds .*pathlib.Path", said)
        assert "\n" not in said
