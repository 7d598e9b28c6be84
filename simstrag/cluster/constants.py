"""What a workload takes when it leaves its barrier, what a delay of it frees, and its sensitivity.

STAR's table is that of its release, github.com/pcl-projects/Training-Sync-Mode @6c596a7, which it
measured with eight workers on one node and a server on another: percent of a node's processors,
MiB/s of a card of 1221.12 MiB/s.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of a workload for the managers.

    extra_cores, extra_bytes: what its server's node is asked for more, once it has left its
        barrier: cores, and bytes/s in each direction.
    freed_cores, freed_bytes: what one worker leaves of its node for each second of delay per
        iteration: cores, and bytes/s.
    sensitivity_cores, sensitivity_bytes: by how much it slows when it gets less; from 1 on.
    """

    extra_cores: float
    extra_bytes: float
    freed_cores: float
    freed_bytes: float
    sensitivity_cores: float
    sensitivity_bytes: float


FIELDS = {
    "extra_cores": "extra cores", "extra_bytes": "extra MiB/s", "freed_cores": "freed cores",
    "freed_bytes": "freed MiB/s", "sensitivity_cores": "sensitivity, cores",
    "sensitivity_bytes": "sensitivity, card",
}  # fmt: skip
"""Name of each constant in tables."""
STAR = {
    "resnet20": Constants(18.86, 3.675, 0.91, 1.285, 4.889, 0.933),
    "resnet56": Constants(11.80, 0.839, 0.856, 1.542, 3.743, 0.983),
    "alexnet": Constants(3.41, 22.614, 1.156, 25.87, 6.436, 7.059),
    "mobilenet": Constants(4.71, 3.402, 1.048, 3.16, 6.229, 2.625),
    "googlenet": Constants(3.84, 6.491, 0.644, 0.027, 3.750, 2.528),
    "densenet121": Constants(4.64, 12, 0.838, 0.91, 3.839, 3.872),
    "vgg13": Constants(40, 178.768, 1.206, 34.355, 5.250, 28.0),
    "vgg16": Constants(41.26, 218.587, 1.288, 42.515, 2.286, 10.469),
    "lstm": Constants(36.74, 270.048, 1.244, 62.277, 4.047, 33.87),
    "transformer": Constants(38.92, 258.758, 1.48, 62.226, 4.412, 32.989),
}
"""STAR's table, in percent of a node's processors and MiB/s."""


def of_star(workload: str, cores: float) -> Constants:
    """STAR's constants of a model, on nodes with so many cores, in cores and bytes/s.

    >>> of_star("alexnet", cores=200).extra_cores
    6.82
    """
    row, percent = STAR[workload], cores / 100
    return Constants(
        row.extra_cores * percent, row.extra_bytes * MIB, row.freed_cores * percent,
        row.freed_bytes * MIB, row.sensitivity_cores, row.sensitivity_bytes,
    )  # fmt: skip
