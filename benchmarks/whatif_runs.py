"""What-if analysis of real runs against their measured slowdown, and what recording costs.

    python -m benchmarks.whatif_runs --out runs/whatif   # 40 loaded and 40 clean runs
    python -m benchmarks.whatif_runs --cost              # record on and off in turns

Each run trains a network on four ranks of gloo, under DDP or FSDP2, two ranks a core.  A loaded run
and a clean one make a pair.  In the loaded one rank 1 has a larger batch, by one of `FACTORS`: real
computing, and no sleeping.  Ranks 1 and 3 share a core, so a factor of 1.4 slows a step by 1.2.

The measured slowdown is the mean step of the loaded run over that of the clean one.  The estimate
has only the loaded run: its mean step over what is left of it when the named ranks are as fast as
the others.  S, also printed, has all operations ideal, which includes the noise of the cores.

Runs that a folder holds are not made again, so that an interrupted series goes on; leave the
machine alone meanwhile.

The cost of recording does not depend on what a step computes.  It is counted in processor seconds
of rank 0, which looks for slow ranks, on a tiny network, where a paired difference shows it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WRAPPERS = ("ddp", "fsdp2")
FACTORS = (1.4, 1.6, 2.0, 3.0)
REPEATS = 5
"""Pairs of each wrapper and factor."""
RANKS, SLOW, STEPS, SETTLING = 4, 1, 60, 3
WIDTH, BATCH, TINY = 128, 2048, 8
BLOCK, BLOCKS = 20, 50
"""Steps of a turn, and turns, of a paired measurement."""
DONE = "done"


class Job(NamedTuple):
    """One run. factor: of rank 1's batch; number: of the pair."""

    wrapper: str
    factor: float
    number: int
    is_loaded: bool

    @property
    def name(self) -> str:
        """Of its folder."""
        load = "loaded" if self.is_loaded else "clean"
        return f"{self.wrapper}-{self.factor:g}-{self.number}-{load}"


def jobs(pairs: int) -> list[Job]:
    """Pairs in an order that takes turns between wrappers and factors."""
    cases = [(w, f, k) for k in range(REPEATS) for f in FACTORS for w in WRAPPERS]
    return [Job(*case, loaded) for case in cases[:pairs] for loaded in (True, False)]


# -- on a rank ---------------------------------------------------------------------------------


def wrapped(wrapper: str, width: int = WIDTH) -> Any:
    """The network in its wrapper, the same on all ranks."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    halves = [
        nn.Sequential(*itertools.chain(*((nn.Linear(width, width), nn.ReLU()) for _ in range(3))))
        for _ in range(2)
    ]
    model = nn.Sequential(*halves, nn.Linear(width, 10))
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    for half in halves:
        fully_shard(half)
    return fully_shard(model)


def steps(model: Any, samples: int, width: int = WIDTH) -> Iterator[float]:
    """Take steps for ever; the processor seconds of each."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(samples, width), torch.randint(0, 10, (samples,))
    while True:
        begin = time.thread_time()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield time.thread_time() - begin


def rank_runs(out: Path, todo: list[Job]) -> None:
    """Make all runs on this rank, one after another."""
    import torch.distributed as dist

    import simstrag.ddp

    rank = dist.get_rank()
    for job in todo:
        samples = round(BATCH * (job.factor if job.is_loaded and rank == SLOW else 1))
        model = wrapped(job.wrapper)
        with simstrag.ddp.record(model, out / job.name, look_every=0):
            list(itertools.islice(steps(model, samples), STEPS + SETTLING))
        dist.barrier()
        if rank == 0:
            (out / job.name / DONE).touch()


def rank_cost(out: Path) -> None:
    """Steps with the record and without it, in turns of `BLOCK` steps."""
    import torch.distributed as dist

    import simstrag.ddp

    costs: dict[str, list[float]] = {}
    for wrapper in WRAPPERS:
        whole = itertools.islice(steps(wrapped(wrapper), BATCH), 5, 25)
        costs[f"{wrapper} step"] = list(whole)
        plain, recorded = wrapped(wrapper, TINY), wrapped(wrapper, TINY)
        simstrag.ddp.record(recorded, out / wrapper)
        both = [steps(model, TINY, TINY) for model in (plain, recorded)]
        for each in both:
            list(itertools.islice(each, 5))
        medians: list[list[float]] = [[], []]
        for turn in range(2 * BLOCKS):
            k = (turn + turn // 2) % 2  # plain, recorded, recorded, plain
            seconds = list(itertools.islice(both[k], BLOCK))
            medians[k].append(statistics.median(seconds))
        costs[wrapper] = [b - a for a, b in zip(*medians, strict=True)]
    if dist.get_rank() == 0:
        (out / "cost.json").write_text(json.dumps(costs))


# -- on their launcher -------------------------------------------------------------------------


def judge(out: Path, made: list[Job]) -> None:
    """Print the estimates against the measured slowdowns, and who was named."""
    from simstrag.whatif.analysis import analyse

    found = {job: analyse(out / job.name) for job in made}
    errors: list[float] = []
    for wrapper, factor in itertools.product(WRAPPERS, FACTORS):
        own = [j for j in made if j.is_loaded and (j.wrapper, j.factor) == (wrapper, factor)]
        rows = []
        for job in own:
            loaded, clean = found[job], found[job._replace(is_loaded=False)]
            measured = loaded.metrics.recorded.mean() / clean.metrics.recorded.mean()
            saved = [each.seconds for each in loaded.fixes if each.kind in ("worker", "workers")]
            mean = loaded.metrics.replayed.mean()
            rows.append((measured, mean / (mean - max(saved, default=0)), loaded.metrics.slowdown))
        if rows:
            measured, estimate, s = (statistics.median(each) for each in zip(*rows, strict=True))
            errors += [e - m for m, e, _ in rows]
            print(
                f"{wrapper}, batch x {factor:g}: measured {measured:.2f}, estimated "
                f"{estimate:.2f}, S {s:.2f} (medians of {len(rows)})"
            )
    print(
        f"estimate - measured: median {statistics.median(errors):+.3f}, "
        f"median size {statistics.median(map(abs, errors)):.3f}, {min(errors):+.2f} to "
        f"{max(errors):+.2f}; within .05 in {sum(abs(e) <= 0.05 for e in errors)} of {len(errors)}"
    )
    for is_loaded, right in ((True, [SLOW]), (False, [])):
        named = [
            sorted(c.rank for c in found[j].culprits) for j in made if j.is_loaded == is_loaded
        ]
        what = f"only rank {SLOW} named" if is_loaded else "no rank named"
        kind = "loaded" if is_loaded else "clean"
        print(f"{kind} runs: {what} in {named.count(right)} of {len(named)}")


def show_cost(out: Path) -> None:
    """Print what recording costs a step."""
    found = json.loads((out / "cost.json").read_text())
    for wrapper in WRAPPERS:
        low, middle, high = (1e6 * each for each in statistics.quantiles(found[wrapper], n=4))
        step = 1e3 * statistics.median(found[f"{wrapper} step"])
        print(
            f"{wrapper}: record costs {middle:.0f} us a step (median of {len(found[wrapper])} "
            f"pairs of {BLOCK} steps; quartiles {low:.0f} to {high:.0f}), {middle / 10 / step:.2f} "
            f"% of a step that computes {step:.1f} ms"
        )


def launch(arguments: list[str]) -> None:
    """Run this module on all ranks; they end with this process."""
    from simstrag.ddp.launch import run

    os.environ["OMP_NUM_THREADS"] = "1"
    if code := run(["-m", "benchmarks.whatif_runs", *arguments], RANKS, pinned=True):
        raise SystemExit(code)


def main() -> None:
    """Make the runs that are missing and judge all, or measure the cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the records; else none is kept")
    parser.add_argument("--pairs", type=int, default=len(WRAPPERS) * len(FACTORS) * REPEATS)
    parser.add_argument("--cost", action="store_true", help="measure what record costs a step")
    options = parser.parse_args()
    if "RANK" in os.environ:
        import torch

        import simstrag.ddp

        torch.set_num_threads(1)
        simstrag.ddp.join()
        out = options.out
        rank_cost(out) if options.cost else rank_runs(out, _missing(out, jobs(options.pairs)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        if options.cost:
            launch(["--cost", "--out", temporary])
            show_cost(Path(temporary))
            return
        todo = _missing(out, jobs(options.pairs))
        begin = time.monotonic()
        if todo:
            launch(["--out", str(out), "--pairs", str(options.pairs)])
        print(f"{len(todo)} runs in {time.monotonic() - begin:.0f} s", file=sys.stderr)
        judge(out, jobs(options.pairs))


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
