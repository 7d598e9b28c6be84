"""Energy counters of this machine: RAPL of the processors, NVML of a GPU.

Both count joules since some moment, and are refreshed now and then: RAPL about every millisecond,
NVML every 20 to 100 ms, by the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simstrag.errors import InputError

POWERCAP = Path("/sys/class/powercap")
"""Where Linux has the counters of processors; AMD's are named like Intel's."""


class Rapl:
    """The counters of all processor packages, with all their cores, added up.

    Raises `InputError` where there is none, or one may not be read.
    """

    source = "RAPL"

    def __init__(self, root: Path = POWERCAP) -> None:
        domains = sorted(root.glob("*rapl:*"))
        self._packages = [d for d in domains if _text(d / "name").startswith("package")]
        if not self._packages:
            raise InputError("this machine shows no energy counter of its processors (RAPL)")
        self._before = self._counts()
        self._ranges = [int(_text(d / "max_energy_range_uj")) for d in self._packages]
        self._joules = 0.0

    def joules(self) -> float:
        """Energy since the counter was made; each counter may have begun anew once since a call."""
        now = self._counts()
        for before, after, most in zip(self._before, now, self._ranges, strict=True):
            self._joules += (after - before + (most if after < before else 0)) / 1e6
        self._before = now
        return self._joules

    def _counts(self) -> list[int]:
        return [int(_text(domain / "energy_uj")) for domain in self._packages]


class Nvml:
    """The counter of one GPU, by its UUID; Volta or newer.

    Raises `InputError` where nvidia-ml-py is not installed, or the driver does not answer.
    """

    source = "NVML"

    def __init__(self, uuid: str) -> None:
        try:
            import pynvml
        except ImportError:
            raise InputError(
                "the energy of a GPU is read by nvidia-ml-py: pip install 'simstrag[power]'"
            ) from None
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError as error:
            raise InputError(f"NVML does not tell the energy of this GPU: {error}") from None
        self._read: Callable[[Any], int] = pynvml.nvmlDeviceGetTotalEnergyConsumption
        self._handle, self._first = handle, first

    def joules(self) -> float:
        """Energy since the counter was made."""
        return float(self._read(self._handle) - self._first) / 1e3


EnergyCounter = Rapl | Nvml


def mean_watts(counter: EnergyCounter, work: Callable[[], object], seconds: float) -> float:
    """Mean watts while some work is repeated for `seconds` or longer.

    It counts from one refresh of the counter to another.
    """
    start = _refresh(counter, work)
    while True:
        now, joules = _refresh(counter, work)
        if now - start[0] >= seconds:
            return (joules - start[1]) / (now - start[0])


def _refresh(counter: EnergyCounter, work: Callable[[], object]) -> tuple[float, float]:
    """The moment of the next refresh, and the joules then."""
    before = counter.joules()
    while True:
        work()
        joules = counter.joules()
        if joules != before:
            return time.perf_counter(), joules


def _text(path: Path) -> str:
    """The text of a file.  Raises `InputError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except PermissionError:
        raise InputError(f"{path} may not be read: `sudo chmod a+r {path}` allows it") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
