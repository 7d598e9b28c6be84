"""The benches of a calibration: what they measure fits together, on machines of every size."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from simstrag.calibration.benches import allreduce, bench_selection  # noqa: E402
from simstrag.calibration.benches.allreduce import AllReduceBench  # noqa: E402
from simstrag.calibration.benches.bench_selection import build_benches  # noqa: E402
from simstrag.calibration.benches.measured_device import find_device  # noqa: E402
from simstrag.calibration.benches.training_jobs import Jobs  # noqa: E402
from simstrag.workloads import Precisions, load  # noqa: E402

CHOSEN = Precisions("fp32", "bf16", stand_in=False, probed_gain=2.0)


@pytest.mark.parametrize(
    ("cpus", "gpus", "ranks"),
    [(1, 0, 2), (2, 0, 2), (3, 0, 3), (6, 0, 6), (16, 0, 16), (16, 1, 8), (4, 1, 4), (16, 4, 4)],
)
def test_overlap_is_measured_among_the_ranks_whose_all_reduce_is_fitted(
    cpus: int, gpus: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (allreduce, bench_selection):
        monkeypatch.setattr(module, "cores", lambda: list(range(cpus)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 36, 1 << 36))
    jobs = Jobs(load("mlp"), find_device("cpu"))
    reduces, overlaps = build_benches(jobs, CHOSEN, 1 << 20, gpus, ("allreduce", "overlap"))
    assert {cell.ranks for cell in overlaps.cells} == {ranks}
    alone = {c.ranks for c in reduces.cells if c.group == "all" and c.ranks <= max(2, cpus)}
    assert max(alone) == ranks


@pytest.mark.parametrize(
    ("cpus", "gpus", "full", "lockstep", "served"),
    [
        (1, 0, "fp32", {2}, {2}), (2, 0, "fp32", {2, 4}, {2}), (16, 0, "fp32", {2, 4}, {4}),
        (2, 0, "fp64", {2, 4}, {2}), (2, 0, "bf16", set(), set()), (2, 1, "fp32", set(), set()),
    ],
)  # fmt: skip
def test_ranks_train_on_a_cpu_in_what_the_runtime_trains_in(
    cpus: int,
    gpus: int,
    full: str,
    lockstep: set[int],
    served: set[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_selection, "cores", lambda: list(range(cpus)))
    chosen = Precisions(full, "bf16", stand_in=full == "fp64", probed_gain=2.0)
    jobs = Jobs(load("mlp"), find_device("cpu"))
    cells = [
        c for b in build_benches(jobs, chosen, 9, gpus, ("lockstep", "server")) for c in b.cells
    ]
    assert {c.ranks for c in cells if c.part == "lockstep"} == lockstep
    assert {c.ranks for c in cells if c.part == "server" and c.ranks} == served


@pytest.mark.parametrize(("ranks", "gpus", "shared"), [(2, 1, True), (4, 4, False), (9, 9, True)])
def test_ranks_that_share_a_gpu_or_a_core_are_oversubscribed(
    ranks: int, gpus: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allreduce, "cores", lambda: list(range(8)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(AllReduceBench, "_time", lambda bench, cell: {"seconds": (1.0,)})
    bench = AllReduceBench("gloo", "cuda", (ranks,), (1024,))
    assert bench.visit(bench.cells[0])[1] == {"oversubscribed": shared}
