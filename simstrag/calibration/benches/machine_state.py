"""The measured machine: its software, its load by other processes, and the pace of its cores.

The pace of a core is the time of a Python loop.  It shows what no processor time shows: on a
virtual machine, work on the other hardware thread of a core appears in no clock of the guest.  Such
work slows a Python loop more than it slows steps: on a guest of an AMD EPYC the loop took 1.05 or
1.9 ms where steps of a small network took 46 or 58 ms, for seconds or minutes on end.  The loop is
therefore timed before and after each visit.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from simstrag.calibration.cells import Visit
from simstrag.processes.affinity import cores, pin

FOREIGN_LIMIT = 0.1
"""Cores that other processes may use during a visit that still counts as calm."""

PACE_LIMIT = 1.2
"""Factor by which a core's pace may differ from its usual pace around a visit that counts."""

TIMED_CORES = 4
"""Number of cores, from the first, whose pace is timed: the first ranks and the steps use them."""

LOOP, TIMES = 100_000, 21
"""Numbers that a loop adds (about 1 ms), and number of loops.  Their median counts, because some
milliseconds of disturbance do not matter to a visit of a second."""


def describe_software() -> dict[str, str]:
    """Versions of kernel, Python, torch and numpy, torch's CPU capability, and CUDA's versions."""
    import numpy
    import torch

    cuda: dict[str, str] = {}
    if torch.cuda.is_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        cuda = {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl))}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            (cuda["driver"],) = query_gpu(["driver_version"])
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **cuda,
        "numpy": numpy.__version__,
    }


def query_gpu(fields: Iterable[str], *options: str) -> list[str]:
    """The fields of the first GPU by nvidia-smi. Raises `OSError` or `SubprocessError`."""
    output = subprocess.run(
        ["nvidia-smi", *options, f"--query-gpu={','.join(fields)}",
         "--format=csv,noheader,nounits"],
        capture_output=True, text=True, timeout=10, check=True,
    ).stdout  # fmt: skip
    return [word.strip() for word in output.split("\n")[0].split(",")]


def slug(device: Mapping[str, Any]) -> str:
    """A short file name for a device: the model, then GPUs, or cores and AMX.

    >>> slug({"model": "Intel(R) Xeon(R) Processor", "cores": 2, "flags": "avx2 amx_bf16"})
    'intel-xeon-2-core-amx'
    >>> slug({"kind": "cuda", "model": "NVIDIA H200", "gpus": 8})
    'nvidia-h200-8-gpu'
    """
    model = re.sub(r"\(.*?\)|processor|cpu|@.*", " ", str(device["model"]).lower())
    words = re.findall(r"[a-z0-9]+", model)[:4]
    if device.get("kind") == "cuda":
        return "-".join([*words, str(device["gpus"]), "gpu"])
    ending = ["amx"] if "amx_bf16" in str(device["flags"]) else []
    return "-".join([*words, str(device["cores"]), "core", *ending])


class Occupancy:
    """Cores that other processes used between entering and leaving this context.

    foreign: processor seconds of all processes but this one and its descendants, per second.
        Kernel work on our behalf that is charged to no process counts as foreign.
    stolen: processor seconds that the hypervisor gave to other machines, per second.

    >>> with Occupancy() as occupancy:
    ...     _ = sum(range(100_000))
    >>> 0 <= occupancy.foreign <= os.cpu_count()
    True
    """

    foreign: float = 0.0
    stolen: float = 0.0

    def __enter__(self) -> Occupancy:
        self._start, self._own, (self._all, self._steal) = time.monotonic(), _own(), _all()
        return self

    def __exit__(self, *failure: object) -> None:
        own, (busy, steal) = _own(), _all()
        seconds = max(time.monotonic() - self._start, 1e-9)
        most = float(os.cpu_count() or 1)
        self.foreign = min(max(busy - self._all - (own - self._own), 0.0) / seconds, most)
        self.stolen = max(steal - self._steal, 0.0) / seconds


def _all() -> tuple[float, float]:
    """Processor seconds since boot: of all processes, and of the hypervisor's other machines."""
    t = psutil.cpu_times()
    used = sum(getattr(t, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    return used, getattr(t, "steal", 0.0)


def _own() -> float:
    """Processor seconds of this process and its descendants, finished ones included."""
    total, here = 0.0, psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def measure_paces() -> dict[int, float]:
    """Seconds of a loop on each of the first cores; this thread keeps its affinity.

    >>> all(seconds > 0 for seconds in measure_paces().values())
    True
    """
    allowed = cores()
    try:
        paces = {}
        for core in allowed[:TIMED_CORES]:
            pin(core)
            times = timeit.repeat(lambda: sum(range(LOOP)), number=1, repeat=TIMES)
            paces[core] = statistics.median(times)
        return paces
    finally:
        pin(set(allowed))


def usual_paces(visits: Iterable[Visit]) -> dict[int, float]:
    """The usual pace of each core: the median of its loops around all visits.

    It is not the fastest loop: a simulation predicts training on this machine with its usual
    neighbours.
    """
    times: dict[int, list[float]] = {}
    for core, *seconds in (row for visit in visits for row in visit.facts.get("pace", ())):
        times.setdefault(core, []).extend(seconds)
    return {core: statistics.median(seconds) for core, seconds in times.items()}


def pace_deviation(paces: Mapping[int, float], usual: Mapping[int, float]) -> float:
    """The largest factor by which a core is slower or quicker than usual; 1 for unknown cores.

    >>> pace_deviation({0: 0.5, 1: 0.75}, {0: 0.5, 1: 0.5}), pace_deviation({0: 0.25}, {0: 0.5})
    (1.5, 2.0)
    >>> pace_deviation({0: 1}, {})
    1.0
    """
    ratios = [seconds / usual.get(core, seconds) for core, seconds in paces.items()]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)


def visit_deviation(visit: Visit, usual: Mapping[int, float]) -> float:
    """The larger `pace_deviation` of before and after a visit."""
    rows: Sequence[Sequence[float]] = visit.facts.get("pace", ())
    looks = zip(*([(int(core), s) for s in seconds] for core, *seconds in rows), strict=True)
    return max((pace_deviation(dict(look), usual) for look in looks), default=1.0)
