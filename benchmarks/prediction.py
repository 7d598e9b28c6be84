"""Draws cluster studies on which predictors of stragglers are trained and checked, and uses them.

    python -m benchmarks.prediction FOLDER
    python -m benchmarks.prediction WEIGHTS.npz [--seeds N]

The first form writes studies.  Each has 60 jobs of STAR's ten models (`examples/cluster.yaml`) that
arrive at 8 nodes of 8 devices.  Their processors are assumed: a fifth of those of the example, so
that workers slow each other.  `train-0` to `train-2` and `held-out-0`, `held-out-1` are draws of
jobs, arrivals and nodes.

The second prints mean completion times of `examples/cluster.yaml` where all jobs use star_h with
each predictor, over those with the median, with 95 % intervals, paired over seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.cluster_tables import OTHERS, run, show_change, show_seconds, times
from benchmarks.cluster_tables import study as example
from benchmarks.tables import Table, show
from simstrag.experiments.paired_statistics import mean, ratio_of_times

EXAMPLE = Path(__file__).parent.parent / "examples" / "cluster.yaml"
STUDIES = {"train-0": 0, "train-1": 1, "train-2": 2, "held-out-0": 100, "held-out-1": 101}
NODES = {"count": 8, "gpus": 8, "cores": 20, "nic_in": 1.28e9, "nic_out": 1.28e9}
JOBS, GAP, LASTS, SIZES, BATCH = 60, 12.0, (40.0, 160.0), (4, 8), 128
"""Jobs, mean seconds between arrivals, seconds of a job without contention, ranks, samples."""

CASES: dict[str, dict[str, Any]] = {"as it is": {}, "with a tenant on a node": {"trace": OTHERS}}
"""Changes of the example."""


def draw(seed: int) -> dict[str, Any]:
    """One study, as the keys of its file."""
    workloads = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["workloads"]
    random, arrival, jobs = np.random.default_rng(seed), 0.0, []
    for _ in range(JOBS):
        name = list(workloads)[random.integers(len(workloads))]
        arrival += random.exponential(GAP)
        workers = int(random.choice(SIZES))
        updates = max(
            1, round(random.uniform(*LASTS) / workloads[name]["scenario"]["step"]["compute"])
        )
        jobs.append({
            "workload": name, "workers": workers, "samples": updates * BATCH * workers,
            "arrival": round(arrival, 2),
        })  # fmt: skip
    return {
        "nodes": [NODES], "workloads": workloads, "jobs": jobs, "placers": ["random"],
    }  # fmt: skip


def write(folder: Path) -> None:
    """Write the studies."""
    for name, seed in STUDIES.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(draw(seed), sort_keys=False), encoding="utf-8")
        print(path)


def compare(weights: Path, seeds: int) -> None:
    """Print the completion times under each predictor."""
    for title, changes in CASES.items():
        case, first, rows = example(**changes), None, []
        for predictor in ("median", "last", "oracle", f"lstm:{weights.absolute()}"):
            runs = run(case, f"star_h:predictor={predictor}", "spread", seeds)
            found = times(runs)
            first = found if first is None else first
            straggling = np.mean([one.summary["stragglers"] for one in runs])
            rows.append((
                predictor.partition(":")[0], show_seconds(mean(found)),
                show_change(ratio_of_times(found, first)), f"{straggling:.0f}",
            ))  # fmt: skip
        header = ("predictor", "completion, s", "against median", "stragglers")
        show([Table(f"The example {title}", header, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, metavar="FOLDER|WEIGHTS.npz")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.path.suffix == ".npz":
        compare(options.path, options.seeds)
    else:
        write(options.path)


if __name__ == "__main__":
    main()
