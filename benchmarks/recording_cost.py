"""What recording costs a step of real ranks: with the record and without it in turns, on any mesh.

    python -m benchmarks.recording_cost

The cost of recording does not depend on what a step computes.  It is counted in processor seconds
of rank 0, which looks for slow ranks, on a tiny network, where a paired difference shows it.  On a
mesh, the recorder is open in its turns alone: it replaces functions of torch, for all models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.whatif_runs import FACTORS, MESHES, join, launch, steps, wrapped

TARGET = 0.03
"""Seconds of the step of which the cost is stated as a share."""
TINY = 8
"""Width and batch of the network."""
BLOCK, BLOCKS = 20, 150
"""Steps of a block, and pairs of blocks, with the record and without it."""
LOOKS, EVERY = 9, 10.0
"""Looks that are timed, and seconds between two by default."""


def rank_cost(out: Path, pairs: int) -> None:
    """Processor seconds of steps with the record and without it, in turns of `BLOCK` steps."""
    import torch.distributed as dist

    import simstrag.ddp

    costs: dict[str, list[float]] = {}
    for wrapper in (*FACTORS, *MESHES):
        plain, recorded = wrapped(wrapper, TINY), wrapped(wrapper, TINY)
        both = [steps(model, itertools.repeat(TINY), TINY) for model in (plain, recorded)]
        for each in both:
            list(itertools.islice(each, 5))
        recorder: Any = None
        if wrapper in FACTORS:
            recorder = simstrag.ddp.record(recorded, out / wrapper, look_every=1e9)
        means: list[list[float]] = [[], []]
        for turn in range(2 * pairs):
            k = (turn + turn // 2) % 2  # plain, recorded, recorded, plain
            opened: Any = None
            if k and wrapper in MESHES:
                opened = simstrag.ddp.record(recorded, out / f"{wrapper}-{turn}", look_every=0)
            seconds = sum(itertools.islice(both[k], BLOCK))
            if opened is not None:
                begin = time.thread_time()
                opened.close()
                seconds += time.thread_time() - begin
            means[k].append(seconds / BLOCK)
        costs[wrapper] = [b - a for a, b in zip(*means, strict=True)]
        if recorder is not None:
            costs[f"{wrapper} look"] = [_look(recorder) for _ in range(LOOKS)]
    if dist.get_rank() == 0:
        (out / "cost.json").write_text(json.dumps(costs))


def _look(recorder: Any) -> float:
    """Processor seconds of sending, and of a look at as many new steps as it takes in."""
    looks = recorder._looks
    looks._next, looks._seen, looks._pause = 0.0, -1, 0.0
    begin = time.thread_time()
    looks.add([])
    return time.thread_time() - begin


def show_cost(out: Path) -> None:
    """Print what recording costs a step."""
    found = json.loads((out / "cost.json").read_text())
    for wrapper in (*FACTORS, *MESHES):
        cost, low, high = (1e6 * each for each in _median(found[wrapper]))
        look = statistics.median(found.get(f"{wrapper} look", [0.0]))
        looks = f", and a look {1e3 * look:.1f} ms every {EVERY:.0f} s" if look else ""
        share = 1e-6 * cost / TARGET + look / EVERY
        print(
            f"{wrapper}: record costs {cost:.0f} us a step (median of {len(found[wrapper])} pairs "
            f"of {BLOCK} steps; 95 % interval {low:.0f} to {high:.0f}){looks}: "
            f"{100 * share:.2f} % of a step of {1e3 * TARGET:.0f} ms"
        )


def _median(values: list[float]) -> tuple[float, float, float]:
    """The median, and the values between which it is with 95 %, whatever they are drawn from."""
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    ends = (math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half))
    low, high = (ordered[min(max(end, 0), len(values) - 1)] for end in ends)
    return statistics.median(values), low, high


def main() -> None:
    """Measure the cost on all ranks, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="of the ranks: folder of the records")
    parser.add_argument("--pairs", type=int, default=BLOCKS, help="of blocks")
    options = parser.parse_args()
    if "RANK" in os.environ:
        join()
        rank_cost(options.out, options.pairs)
        return
    with tempfile.TemporaryDirectory() as out:
        launch("benchmarks.recording_cost", ["--out", out, "--pairs", str(options.pairs)])
        show_cost(Path(out))


if __name__ == "__main__":
    main()
