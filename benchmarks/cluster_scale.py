"""What a cluster of 64 nodes with 8 devices each costs for a day of 5,000 arrivals.

    python -m benchmarks.cluster_scale JOBS.csv [--most N]

JOBS.csv: `submit_s`, `duration_s`, `gpus`, such as the 5,778 jobs of one production cluster over
two months (microsoft/elasticflow-traces @277ed24, MIT), which is not part of the project.  Its
times are divided so that 5,000 jobs come within a day.  Workloads and nodes are assumed.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy

DAYS = 52.8
"""Days over which the first 5,000 jobs came."""
CARD = 1.25e9
"""Bytes/s of a network card."""


def workload(compute: float, host_share: float, size: float, service: float) -> dict[str, Any]:
    """compute: seconds of a step.  size: bytes of a gradient.  service: seconds at a server."""
    moved = size / CARD
    scenario = {
        "step": {"compute": compute, "host_share": host_share, "cv": 0.1},
        "learner": {"batch": 128},
        "allreduce": {"bytes": size, "bandwidth": CARD, "alpha": 1e-4},
        "server": {"service": service, "push": moved, "pull": moved},
    }
    return {"scenario": scenario, "host_cores": 4}


def study(jobs: Path, most: int) -> ClusterStudy:
    """Four workloads under four policies, drawn alike; shares are renegotiated every 5 s."""
    return ClusterStudy.of({
        "nodes": [{"count": 64, "gpus": 8, "cores": 32, "nic_in": CARD, "nic_out": CARD}],
        "interval": 5,
        "workloads": {
            "small": workload(0.4, 0.3, 1.1e6, 0.02), "wide": workload(0.5, 0.2, 6e7, 0.03),
            "recurrent": workload(0.35, 0.2, 5e7, 0.02), "deep": workload(2.5, 0.3, 2.4e7, 0.05),
        },
        "arrivals": {"file": str(jobs.absolute()), "most": most, "compress": DAYS},
        "policies": [{"small": "bsp", "wide": "asgd", "recurrent": "star_h", "deep": "lb_bsp"}],
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--most", type=int, default=5000)
    options = parser.parse_args()
    begin, busy = time.monotonic(), time.process_time()
    run = simulate_cluster(study(options.jobs, options.most), alone=False)
    print(run.summary)
    print(
        f"{time.monotonic() - begin:.0f} s, {time.process_time() - busy:.0f} of the processor, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB, "
        f"{len(run.shares)} changes of shares"
    )


if __name__ == "__main__":
    main()
