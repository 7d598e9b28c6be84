"""Reads the logs of nccl-tests: all-reduce times of a cluster, without running anything there.

Source of the format: https://github.com/NVIDIA/nccl-tests, `src/common.cu`.  The tag of mpirun,
`[1,0]<stdout>:`, may stand before a line and, where pipes were cut, inside one.  GPUs and nodes
are counted from the lines `#  Rank  0 Pid ... on HOST device 0 ...`; times are microseconds, means
over the test's iterations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simstrag.calibration.fits.collective_fit import Point
from simstrag.errors import InputError

__all__ = ["Log", "points", "read", "read_all"]

TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
RANK = re.compile(r"^#\s*Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\S+\s*(?:\[\S+\])?\s*(.*)$")
NUMBER = r"(\d+(?:\.\d+)?)"
ROW = re.compile(
    rf"^\s*(\d+)\s+(\d+)\s+([a-z]\S*)\s+([a-z]\S*)\s+(?:-?\d+\s+)?"
    rf"{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\S+)\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\S+)\s*$"
)
BUS = 0.1
"""Relative distance allowed between busbw as printed and that of an all-reduce."""


@dataclass(frozen=True, slots=True)
class Log:
    """One run: how many GPUs each node had, what they are, and seconds by bytes.

    out_of_place, in_place: seconds of each size, in the log's order.
    """

    ranks_per_node: tuple[int, ...]
    gpu: str
    out_of_place: dict[int, float]
    in_place: dict[int, float]

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return sum(self.ranks_per_node)


def read(path: Path) -> Log:
    """One log. Raises `InputError` where it is another tool's, another collective's, or empty.

    Where a size occurs several times, the last counts.
    """
    try:
        lines = [TAG.sub("", line) for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the log: {error}") from None
    nodes: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    out_of_place, in_place = {}, {}
    for number, line in enumerate(lines, 1):
        if match := RANK.match(line):
            nodes[match[2]] += 1
            gpus[match[3].strip()] += 1
        elif match := ROW.match(line):
            if match[4] == "none":
                raise InputError(
                    f"{path}: line {number}: redop none reduces nothing, so this is no all-reduce; "
                    "give what all_reduce_perf printed"
                )
            size, out, algorithm, bus, inside = (float(match[k]) for k in (1, 5, 6, 7, 9))
            if size > 0 and out > 0 and inside > 0:
                _check_kind(f"{path}: line {number}", algorithm, bus, sum(nodes.values()))
                out_of_place[int(size)], in_place[int(size)] = out * 1e-6, inside * 1e-6
    if not nodes or not out_of_place:
        missing = "lines '# Rank ... on HOST device ...'" if not nodes else "rows of times"
        raise InputError(
            f"{path}: has no {missing}, so is no log of nccl-tests; give what all_reduce_perf "
            "printed"
        )
    if sum(nodes.values()) < 2:
        raise InputError(f"{path}: is of one GPU, which has nothing to reduce; give a log of more")
    return Log(tuple(nodes.values()), gpus.most_common(1)[0][0], out_of_place, in_place)


def points(log: Log, in_place: bool = True) -> list[Point]:
    """What a fit takes; in place is how training reduces its gradients."""
    times = log.in_place if in_place else log.out_of_place
    return [Point(log.ranks_per_node, size, seconds) for size, seconds in times.items()]


def read_all(paths: Sequence[Path]) -> list[Log]:
    """Several logs. Raises `InputError` for no file and for two of the same placement."""
    logs = [read(path) for path in paths]
    if not logs:
        raise InputError("no log given; name one or more files that all_reduce_perf printed")
    seen: dict[tuple[int, ...], Path] = {}
    for path, log in zip(paths, logs, strict=True):
        placement = tuple(sorted(log.ranks_per_node))
        if placement in seen:
            raise InputError(
                f"{path}: has the same {log.ranks} GPUs on {len(placement)} nodes as "
                f"{seen[placement]}; give one log for each placement"
            )
        seen[placement] = path
    return logs


def _check_kind(where: str, algorithm: float, bus: float, ranks: int) -> None:
    """The columns do not name the collective, but busbw over algbw does: 2(n-1)/n here.

    Both are printed with two digits after the point, so that small ones tell nothing; nor do two
    GPUs, with which the factor is 1 as it is for others.
    """
    if ranks < 3 or algorithm < 1:
        return
    factor = 2 * (ranks - 1) / ranks
    if abs(bus / algorithm / factor - 1) > BUS:
        raise InputError(
            f"{where}: busbw is {bus / algorithm:.2f} times algbw, and {factor:.2f} for an "
            f"all-reduce over {ranks} GPUs; give a log of all_reduce_perf"
        )
