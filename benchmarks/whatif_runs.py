"""What-if analysis of real runs against their measured slowdown.

    python -m benchmarks.whatif_runs --out runs/whatif   # 40 runs, each loaded and clean in turns

Each run trains a network on four ranks of gloo, under DDP or FSDP2.  In turns of `TURN` steps rank
1 has a larger batch: real computing, and no sleeping.  The record is split into its loaded steps
and its clean ones, and each half is analysed by itself.  So both meet the same load of other
programs, which moves the steps of whole runs by more than the slowdown in question.

A load on one rank leaves the others alone, as on GPUs of their own: each rank has a core, or, where
cores are fewer, a control group whose quota is `QUOTA` of one.  Two ranks that share a core without
quotas take it from each other: which of them ends first is the scheduler's choice, and the one that
ends last has the other's load in its computing.

The measured slowdown is the mean loaded step over the mean clean one; its standard error is
printed.  The estimate has only the loaded half: its mean step over what is left of it when the
named ranks are as fast as the others.  S, also printed, has all operations ideal, which includes
the noise of the cores, and so does what other programs took of the cores meanwhile.

Runs that a folder holds are not made again, so that an interrupted series goes on; leave the
machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FACTORS = {"ddp": (1.5, 1.75, 2.0, 2.5), "fsdp2": (2.0, 2.5, 3.0, 3.5)}
"""Of rank 1's batch.  They slow a step by 1.2 to 2, more under DDP: FSDP2 waits more often."""
MESHES = {"hsdp": ("replicate", "shard"), "fsdp2 x tp": ("dp", "tp")}
"""Dimensions of the meshes of 2 x 2 ranks of `benchmarks.recording_cost`."""
REPEATS = 5
"""Runs of each wrapper and factor."""
RANKS, SLOW, SETTLING, TURN, TURNS = 4, 1, 3, 5, 96
"""TURN: steps of a turn; TURNS: loaded and clean ones of a run."""
QUOTA, PERIOD = 1000, 2500
"""Microseconds of a core that a rank may take in each period: the least, two fifths."""
GROUPS = Path("/sys/fs/cgroup/cpu")
"""Where Linux has the control groups of processors, in their version 1."""
WIDTH, BATCH = 128, 2048
DONE = "done.json"


class Job(NamedTuple):
    """One run. factor: of rank 1's batch in loaded steps; number: of the run."""

    wrapper: str
    factor: float
    number: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.wrapper}-{self.factor:g}-{self.number}"


def jobs(runs: int) -> list[Job]:
    """Runs in an order that takes turns between wrappers and factors."""
    turns = zip(*FACTORS.values(), strict=True)
    pairs = [pair for factors in turns for pair in zip(FACTORS, factors, strict=True)]
    return [Job(*pair, k) for k in range(REPEATS) for pair in pairs][:runs]


def is_loaded(step: Any) -> Any:
    """Whether a step, or each of several, is one of those with load."""
    return (step - SETTLING) // TURN % 2 == 0


# -- on a rank ---------------------------------------------------------------------------------


def wrapped(wrapper: str, width: int = WIDTH) -> Any:
    """The network in its wrapper, the same on all ranks."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    halves = [
        nn.Sequential(*itertools.chain(*((nn.Linear(width, width), nn.ReLU()) for _ in range(3))))
        for _ in range(2)
    ]
    model = nn.Sequential(*halves, nn.Linear(width, 10))
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    mesh = _mesh(wrapper) if wrapper in MESHES else None
    if wrapper == "fsdp2 x tp":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        for half in halves:
            parallelize_module(half, mesh["tp"], plan)
        mesh = mesh["dp"]
    for half in halves:
        fully_shard(half, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@functools.cache
def _mesh(wrapper: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=MESHES[wrapper])


def steps(model: Any, sizes: Iterable[int], width: int = WIDTH) -> Iterator[float]:
    """Take a step with each of these batch sizes; the processor seconds of each."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    most = round(max(map(max, FACTORS.values())) * BATCH)
    x, y = torch.randn(most, width), torch.randint(0, 10, (most,))
    for size in sizes:
        begin = time.thread_time()
        optimizer.zero_grad()
        cross_entropy(model(x[:size]), y[:size]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield time.thread_time() - begin


def rank_runs(out: Path, todo: list[Job]) -> None:
    """Make all runs on this rank, one after another."""
    import torch
    import torch.distributed as dist

    import simstrag.ddp

    rank = dist.get_rank()
    if _shares_cores():
        _limit(rank)
    for job in todo:
        more = round(job.factor * BATCH) if rank == SLOW else BATCH
        sizes = (more if is_loaded(step) else BATCH for step in range(SETTLING + TURN * TURNS))
        model = wrapped(job.wrapper)
        begin, cores, own = time.monotonic(), _busy(), time.process_time()
        with simstrag.ddp.record(model, out / job.name, look_every=0):
            list(steps(model, sizes))
        ours = torch.tensor(time.process_time() - own, dtype=torch.float64)
        dist.all_reduce(ours)
        if rank == 0:
            foreign = (_busy() - cores - float(ours)) / (time.monotonic() - begin)
            (out / job.name / DONE).write_text(json.dumps({"foreign_cores": foreign}))


def _shares_cores() -> bool:
    return len(os.sched_getaffinity(os.getppid())) < RANKS


def _limit(rank: int) -> None:
    """Give this rank its quota of the core that it is pinned to."""
    group = _group(rank)
    try:
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(QUOTA))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise SystemExit(
            f"{group}: {error.strerror}. Fewer than {RANKS} cores: ranks need quotas of control "
            "groups, version 1, which root can make"
        ) from None


def _group(rank: int) -> Path:
    return GROUPS / f"simstrag-whatif-{rank}"


def _busy() -> float:
    """Seconds that the cores of this host have worked, also for other machines on it."""
    import psutil

    times = psutil.cpu_times()
    return float(times.user + times.system + times.irq + times.softirq + times.steal)


# -- on their launcher -------------------------------------------------------------------------


class Judged(NamedTuple):
    """What the two halves of a run say.

    measured, estimated: slowdowns; s: that of all operations ideal.
    spread: standard error of the measured one.
    named, falsely: ranks that are named in the loaded half and in the clean one.
    foreign: cores that other programs took.
    """

    job: Job
    measured: float
    spread: float
    estimated: float
    s: float
    named: list[int]
    falsely: list[int]
    foreign: float

    @property
    def error(self) -> float:
        """Of the estimate."""
        return self.estimated - self.measured


def judge(out: Path, job: Job) -> Judged:
    """Analyse the two halves of a run."""
    import numpy as np

    from simstrag.records.read import read_record
    from simstrag.whatif.analysis import analyse

    whole = read_record(out / job.name)
    numbers = np.unique(whole.step)
    loaded, clean = (
        analyse(whole.of_steps(numbers[is_loaded(numbers) == load])) for load in (True, False)
    )
    saved = [each.seconds for each in loaded.fixes if each.kind in ("worker", "workers")]
    mean = float(loaded.metrics.replayed.mean())
    measured, spread = _ratio(*(half.metrics.recorded for half in (loaded, clean)))
    named, falsely = (sorted(each.rank for each in half.culprits) for half in (loaded, clean))
    estimated = mean / (mean - max(saved, default=0))
    foreign = json.loads((out / job.name / DONE).read_text())["foreign_cores"]
    s = loaded.metrics.slowdown
    return Judged(job, measured, spread, estimated, s, named, falsely, foreign)


def _ratio(loaded: Any, clean: Any) -> tuple[float, float]:
    """A ratio of mean steps, and its standard error over pairs of turns, since noise may last."""
    import numpy as np

    pairs = [
        seconds[: len(seconds) // TURN * TURN].reshape(-1, TURN).mean(axis=1)
        for seconds in (loaded, clean)
    ]
    ratio = float(loaded.mean() / clean.mean())
    off = pairs[0] - ratio * pairs[1]
    return ratio, float(np.std(off, ddof=1) / math.sqrt(len(off)) / clean.mean())


def show(runs: list[Judged]) -> None:
    """Print the estimates against the measured slowdowns, and who was named."""
    for each in runs:
        print(
            f"{each.job.name}: measured {each.measured:.3f} ({each.spread:.3f}), estimated "
            f"{each.estimated:.3f}, named {each.named} and in clean steps {each.falsely}; "
            f"{each.foreign:.2f} cores to others"
        )
    for wrapper, factor in ((w, f) for w in FACTORS for f in FACTORS[w]):
        own = [each for each in runs if each.job[:2] == (wrapper, factor)]
        if own:
            measured, spread, estimated, s = (
                statistics.median(getattr(each, name) for each in own)
                for name in ("measured", "spread", "estimated", "s")
            )
            print(
                f"{wrapper}, batch x {factor:g}: measured {measured:.2f} (standard error "
                f"{spread:.3f}), estimated {estimated:.2f}, S {s:.2f} (medians of {len(own)})"
            )
    kinds = {wrapper: [r for r in runs if r.job.wrapper == wrapper] for wrapper in FACTORS}
    for what, some in {"all runs": runs, **kinds}.items():
        if some:
            print(
                f"{what}: estimate - measured {_spread([each.error for each in some])}\n"
                f"  of {len(some)}, only rank {SLOW} named in "
                f"{sum(r.named == [SLOW] for r in some)} loaded halves, no rank in "
                f"{sum(not r.falsely for r in some)} clean ones"
            )


def _spread(errors: list[float]) -> str:
    """Mean with its standard error, median and range of errors."""
    error = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else math.nan
    return (
        f"{statistics.mean(errors):+.3f} (standard error {error:.3f}; median "
        f"{statistics.median(errors):+.3f}, {min(errors):+.3f} to {max(errors):+.3f}; within .05 "
        f"in {sum(abs(e) <= 0.05 for e in errors)} of {len(errors)})"
    )


def launch(module: str, arguments: list[str]) -> None:
    """Run a module on all ranks; they end with this process."""
    from simstrag.ddp.launch import run

    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        if code := run(["-m", module, *arguments], RANKS, pinned=True):
            raise SystemExit(code)
    finally:
        for rank in range(RANKS):
            with contextlib.suppress(FileNotFoundError):
                _group(rank).rmdir()


def join() -> None:
    """Join the other ranks, on one thread."""
    import torch

    import simstrag.ddp

    torch.set_num_threads(1)
    simstrag.ddp.join()


def main() -> None:
    """Make the runs that are missing, and judge all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the records; else none is kept")
    parser.add_argument("--runs", type=int, default=REPEATS * sum(map(len, FACTORS.values())))
    options = parser.parse_args()
    wanted = jobs(options.runs)
    if "RANK" in os.environ:
        join()
        rank_runs(options.out, _missing(options.out, wanted))
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        todo = _missing(out, wanted)
        begin = time.monotonic()
        if todo:
            launch("benchmarks.whatif_runs", ["--out", str(out), "--runs", str(options.runs)])
        print(f"{len(todo)} runs in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        show([judge(out, job) for job in wanted])


def _missing(out: Path, wanted: list[Job]) -> list[Job]:
    """The runs that a folder does not hold; what an interrupted one left is removed."""
    todo = [job for job in wanted if not (out / job.name / DONE).exists()]
    if os.environ.get("RANK", "0") == "0":
        for job in todo:
            for file in (out / job.name).glob("*"):
                file.unlink()
    return todo


if __name__ == "__main__":
    main()
