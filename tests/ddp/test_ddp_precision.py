"""Number formats: what full and reduced precision are, and that fp16 ranks skip together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from simstrag.contract import Plan, Precision, Quorum, Via, View
from simstrag.ddp import precision as module
from simstrag.ddp.allreduce.broadcast_and_average import digest
from simstrag.ddp.allreduce.hook import Reducer
from simstrag.ddp.journal.run_from_journal import run_of
from simstrag.ddp.local_step_timer import StepTimer, shared_core_clock
from simstrag.ddp.precision import NumberFormats
from simstrag.errors import InputError
from simstrag.learning import loss_scale
from tests.support.ranks import Ranks, ranks

__all__ = ["ranks"]

SCALE = 2.0**10
"""At which these gradients overflow only when they are made to; at the first scale they may."""


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batch_of(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    luck = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=luck), torch.randint(0, 3, (5,), generator=luck)


class Rank:
    """One rank's synchronous step out of the parts: formats, hook and optimizer."""

    def __init__(self, precision: str) -> None:
        self.model = network()
        self.formats = NumberFormats(self.model, precision)
        self.reducer = Reducer(StepTimer(shared_core_clock(cores=1.0)))
        self.ddp = self.reducer.wrap(self.formats.module)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, seed: int, amp: bool, blow_up: float = 1.0) -> bool:
        """Whether the update was applied."""
        x, y = batch_of(seed)
        self.optimizer.zero_grad()
        with self.formats.context(amp):
            loss = self.ddp(lambda: blow_up * cross_entropy(self.model(x), y))
            self.reducer.scale = self.formats.scale
            self.formats.scaled(loss).backward()
        self.reducer.wait()
        finite = self.formats.finite(p.grad for p in self.model.parameters())
        if finite:
            self.optimizer.step()
        self.formats.update(finite)
        return finite


def rank_overflows(rank: int, world: int) -> tuple[list[int], list[float], list[bytes]]:
    """Rank 0 runs fp16 but for steps 12..17, and overflows at 5, 6 and 20; the others run fp32.

    The steps skipped, the scales, and the digests of the parameters after each step.
    """
    own = Rank("fp16")
    own.formats.load_state_dict(own.formats.state_dict() | {"scale": SCALE})
    skipped, scales, digests = [], [], []
    for step in range(24):
        amp = rank == 0 and not 12 <= step < 18
        blow_up = 1e6 if rank == 0 and step in (5, 6, 20) else 1.0
        if not own.step(100 * rank + step, amp, blow_up):
            skipped.append(step)
        scales.append(own.formats.scale)
        for buffer in own.model.buffers():
            buffer.zero_()  # running means are each rank's own
        digests.append(digest(own.model, own.optimizer).encode())
    return skipped, scales, digests


def test_an_overflow_on_one_fp16_rank_makes_all_skip_and_only_its_own_scale_back_off(
    ranks: Ranks,
) -> None:
    found = ranks.run(rank_overflows, 3)
    assert [skipped for skipped, _, _ in found] == [[5, 6, 20]] * 3
    digests = [digests for _, _, digests in found]
    assert digests[0] == digests[1] == digests[2]
    assert digests[0][4] == digests[0][6] != digests[0][7]
    expected = [SCALE] * 5 + [SCALE / 2] + [SCALE / 4] * 6 + [1.0] * 6 + [SCALE / 4] * 2
    assert found[0][1] == expected + [SCALE / 8] * 4
    assert found[1][1] == found[2][1] == [1.0] * 24


@dataclass
class OneReduced:
    """Rank 0 in reduced precision, by an all-reduce or at a server."""

    served: bool

    def plan(self, view: View) -> Plan:
        quorum = Quorum(count=1, via=Via.SERVER) if self.served else Quorum()
        return Plan((quorum,), precision={0: Precision.AMP})


def trainer_overflows(rank: int, world: int, served: bool, out: str) -> tuple[list[int], str]:
    """Ten steps by `wrap`, of which rank 0's overflow at 3 and 7; and where the model stood still.

    Scales begin where these gradients do not overflow by themselves.
    """
    from simstrag.ddp import wrap
    from simstrag.ddp.allreduce import broadcast_and_average

    with patch.object(loss_scale, "FIRST", SCALE):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = wrap(
            model, optimizer, OneReduced(served), batch=5, precision="fp16", out=out
        )  # fmt: skip
    still = []
    with trainer:
        for step in range(10):
            x, y = batch_of(100 * rank + step)
            blow_up = 1e6 if rank == 0 and step in (3, 7) else 1.0
            before = [p.detach().clone() for p in model.parameters()]
            trainer.step(lambda: blow_up * cross_entropy(model(x), y))  # noqa: B023
            after = list(model.parameters())
            if all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
                still.append(step)
            dist.barrier()
        assert all(torch.isfinite(p).all() for p in model.parameters())
        for buffer in model.buffers():
            buffer.zero_()
        return still, "" if served else broadcast_and_average.digest(model, optimizer)


def test_a_trainer_s_ranks_all_skip_a_step_that_overflows_on_one(
    ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(trainer_overflows, 3, False, str(tmp_path))
    assert found[0][0] == [3, 7]
    assert found == [found[0]] * 3
    assert "2 gradients" not in (said := " ".join(run_of(tmp_path).warnings))
    assert "6 gradients count as applied and changed nothing" in said


def test_a_server_leaves_out_gradients_that_are_not_finite(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(trainer_overflows, 2, True, str(tmp_path))
    assert "2 gradients count as applied and changed nothing" in " ".join(run_of(tmp_path).warnings)


def test_a_scale_grows_after_as_many_good_steps_as_gradscaler_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_scale, "INTERVAL", 5)
    own = NumberFormats(network(), "fp16")
    theirs = torch.amp.GradScaler("cpu", growth_interval=5)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for step in range(30):
        finite = step not in (7, 8, 21)
        with own.context(amp=True):
            pass
        own.update(finite)
        loss = (parameter * (1.0 if finite else float("inf"))).sum()
        optimizer.zero_grad()
        theirs.scale(loss).backward()  # type: ignore[no-untyped-call]
        theirs.step(optimizer)
        theirs.update()
        assert own.scale == theirs.get_scale(), step


def test_the_scale_starts_and_moves_as_gradscaler_s_defaults_say() -> None:
    state = torch.amp.GradScaler("cpu").state_dict()
    assert state["scale"] == loss_scale.FIRST
    assert state["growth_factor"] == loss_scale.GROWTH
    assert state["backoff_factor"] == loss_scale.BACKOFF
    assert state["growth_interval"] == loss_scale.INTERVAL


def rank_mixes(rank: int, world: int, precision: str) -> tuple[str, set[str], list[float]]:
    """Each rank is reduced in steps of its own; digest, formats of gradients, first gradients."""
    own = Rank(precision)
    first: list[float] = []
    for step in range(12):
        own.step(100 * rank + step, amp=(step + rank) % 3 == 0)
        if step == 0:
            first = torch.cat([p.grad.flatten() for p in own.model.parameters()]).tolist()  # type: ignore[union-attr]
    means = own.model.get_buffer("1.running_mean")
    assert bool((means != 0).all()), "running means are kept"
    assert int(own.model.get_buffer("1.num_batches_tracked")) == 12
    kinds = {str(p.grad.dtype) for p in own.model.parameters() if p.grad is not None}
    means.zero_()
    own.model.get_buffer("1.running_var").zero_()
    return digest(own.model, own.optimizer), kinds, first


@pytest.mark.parametrize(
    ("precision", "kind", "tolerance"),
    [("bf16", "torch.float32", 3e-2), ("stand-in", "torch.float64", 1e-5)],
)
def test_ranks_in_different_formats_stay_the_same(
    ranks: Ranks, precision: str, kind: str, tolerance: float
) -> None:
    found = ranks.run(rank_mixes, 3, precision)
    assert len({digest for digest, _, _ in found}) == 1
    assert [kinds for _, kinds, _ in found] == [{kind}] * 3
    whole = []
    for rank in range(3):
        model, (x, y) = network(), batch_of(100 * rank)
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        whole.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
        expected = torch.stack(whole).mean(0)
    error = (torch.tensor(found[0][2]) - expected).norm() / expected.norm()
    assert 1e-9 < error < tolerance, "rank 0 was in reduced precision, and near the truth"


def test_the_stand_in_computes_in_float32_and_casts_what_the_bare_model_is_given() -> None:
    seen: list[torch.dtype] = []
    model = network()
    model[3].register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))  # type: ignore[index, union-attr]
    formats = NumberFormats(model, "stand-in")
    x, y = batch_of(0)
    for amp in (True, False):
        with formats.context(amp):
            formats.module(lambda: cross_entropy(model(x), y)).backward()
    model(x)
    assert seen == [torch.float32, torch.float64, torch.float64]
    assert "stand-in" in formats.label
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def gain_of(ratio: float) -> Any:
    """Stands for the clock: calls each step once, and says that bf16 is so many times as fast."""

    def measured(full: Any, amp: Any, rounds: int, steps: int, limit: float) -> float:
        full(0)
        amp(0)
        return ratio

    return measured


@pytest.mark.parametrize("ratio", [0.35, 1.15])
def test_bf16_that_is_no_faster_is_refused_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    monkeypatch.setattr(module, "gain", gain_of(ratio))
    model = network()
    formats = NumberFormats(model)
    with pytest.raises(InputError, match="measured at the first step"), formats.context(True):
        pass
    formats.settle(lambda: cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]))
    with pytest.raises(InputError, match=f"bf16 was measured {ratio:.2f} times") as refused:
        formats.context(True).__enter__()
    assert "precision='stand-in'" in str(refused.value)
    assert formats.label == "fp32 only"
    with formats.context(False):
        assert model(batch_of(0)[0]).dtype == torch.float32


def test_bf16_that_is_faster_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gain", gain_of(1.2))
    model = network()
    formats = NumberFormats(model)
    formats.settle(lambda: cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]))
    assert formats.label == "fp32 and bf16 autocast"
    with formats.context(True):
        assert formats.module(lambda: model(batch_of(0)[0])).dtype == torch.bfloat16
    assert formats.scale == 1


def test_settling_leaves_everything_as_it_was() -> None:
    """The closure is really timed here, with buffers, dropout and gradients that exist already."""
    model = nn.Sequential(network(), nn.Dropout(0.5))
    x, y = batch_of(0)
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    before, luck = digest(model, None), torch.get_rng_state()
    formats = NumberFormats(model)
    formats.settle(lambda: cross_entropy(model(x), y))
    assert formats.gain > 0
    assert digest(model, None) == before
    assert torch.equal(torch.get_rng_state(), luck)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_the_gain_of_a_pair_that_was_asked_for_is_told_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trace of full precision needs it."""
    monkeypatch.setattr(module, "gain", gain_of(0.5))
    model = network()
    formats = NumberFormats(model, "bf16")
    formats.settle(lambda: cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]))
    assert (formats.gain, formats.amp) == (0.5, "bf16")
    monkeypatch.setattr(module, "gain", gain_of(2.0))
    formats.settle(lambda: cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]))
    assert formats.gain == 0.5, "what is known is not measured again"


def rank_settles(rank: int, world: int) -> tuple[str, float]:
    model = network()
    formats = NumberFormats(model)
    with patch.object(module, "gain", gain_of((2.0, 1.1, 1.5)[rank])):
        formats.settle(lambda: cross_entropy(model(batch_of(0)[0]), batch_of(0)[1]))
    return formats.amp, formats.gain


def test_the_rank_that_gains_least_decides_for_all(ranks: Ranks) -> None:
    assert ranks.run(rank_settles, 3) == [("", 1.1)] * 3


def test_a_checkpoint_keeps_the_scale() -> None:
    one, other = NumberFormats(network(), "fp16"), NumberFormats(network(), "fp16")
    with one.context(True):
        pass
    one.update(False)
    one.update(True)
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    with other.context(True):
        assert other.scale == 2.0**15
    with pytest.raises(InputError, match="full precision is fp32 does not fit fp64"):
        NumberFormats(network(), "stand-in").load_state_dict(one.state_dict())


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="no precision 'fp8'; known: auto, full, bf16"):
        NumberFormats(network(), "fp8")
    with pytest.raises(InputError, match="needs a GPU"):
        NumberFormats(network(), "tf32+bf16")
    with pytest.raises(InputError, match="'full' has no reduced precision"):
        NumberFormats(network(), "full").context(True).__enter__()


def test_only_where_somebody_may_run_fp16_are_gradients_looked_at() -> None:
    bad = [torch.tensor([1.0, float("nan")]), None]
    assert NumberFormats(network(), "bf16").finite(bad)
    assert not NumberFormats(network(), "fp16").finite(bad)
    assert NumberFormats(network(), "fp16").finite([torch.ones(2), None])
