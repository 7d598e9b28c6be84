"""Draws cluster studies on which predictors of stragglers are trained and checked.

    python -m benchmarks.prediction FOLDER

Each has 60 jobs of STAR's ten models (`examples/cluster.yaml`) that arrive at 8 nodes of 8 devices.
Their processors are assumed: a fifth of those of the example, so that workers slow each other.
`train-0` to `train-2` and `held-out-0`, `held-out-1` are draws of jobs, arrivals and nodes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

EXAMPLE = Path(__file__).parent.parent / "examples" / "cluster.yaml"
STUDIES = {"train-0": 0, "train-1": 1, "train-2": 2, "held-out-0": 100, "held-out-1": 101}
NODES = {"count": 8, "gpus": 8, "cores": 20, "nic_in": 1.28e9, "nic_out": 1.28e9}
JOBS, GAP, LASTS, SIZES, BATCH = 60, 12.0, (40.0, 160.0), (4, 8), 128
"""Jobs, mean seconds between arrivals, seconds of a job without contention, ranks, samples."""


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


def main(folder: str) -> None:
    """Write the studies."""
    for name, seed in STUDIES.items():
        path = Path(folder) / f"{name}.yaml"
        path.write_text(yaml.safe_dump(draw(seed), sort_keys=False), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
