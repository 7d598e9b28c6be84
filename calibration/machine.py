"""What the measured machine is, in words that name neither it nor its owner."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from pathlib import Path

__all__ = [
    "busy_seconds",
    "cores",
    "describe_device",
    "describe_software",
    "pin",
    "slug",
    "wait_for_calm",
]

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "hypervisor")


def cores() -> list[int]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int | set[int]) -> None:
    """Keep the calling thread, and what it starts, on `core`, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core} if isinstance(core, int) else core)


def busy_seconds() -> float:
    """CPU seconds that all processes took since boot; 0 where the system does not say."""
    try:
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, _steal = numbers
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def wait_for_calm(patience: float) -> None:
    """Return when all cores were under 5 % busy for three seconds, or after `patience` seconds."""
    begun, calm = time.monotonic(), 0
    while calm < 3 and time.monotonic() - begun < patience:
        before, busy = time.monotonic(), busy_seconds()
        time.sleep(1.0)
        share = (busy_seconds() - busy) / ((time.monotonic() - before) * (os.cpu_count() or 1))
        calm = calm + 1 if share < 0.05 else 0


def describe_device() -> dict[str, str | int | float]:
    """CPU model, the flags that matter for reduced precision, cores, memory."""
    facts = _cpuinfo()
    flags = set(facts.get("flags", "").split())
    found: dict[str, str | int | float] = {
        "kind": "cpu",
        "model": facts.get("model name", platform.processor() or platform.machine()),
        "family_model_stepping": "/".join(
            facts.get(key, "?") for key in ("cpu family", "model", "stepping")
        ),
        "flags": " ".join(flag for flag in FLAGS if flag in flags),
        "cores": os.cpu_count() or 1,
    }
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found["memory_gib"] = round(memory / 2**30, 1)
    return found


def describe_software() -> dict[str, str]:
    """Kernel, Python and torch, and what torch says of its CPU kernels."""
    import numpy
    import torch

    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "numpy": numpy.__version__,
    }


def slug(device: dict[str, str | int | float]) -> str:
    """A short file name for a device: model, cores, and amx where it has it.

    >>> slug({"model": "Intel(R) Xeon(R) Processor", "cores": 2, "flags": "avx2 amx_bf16"})
    'intel-xeon-2-core-amx'
    """
    model = re.sub(r"\(.*?\)|processor|cpu|@.*", " ", str(device["model"]).lower())
    words = re.findall(r"[a-z0-9]+", model)[:4]
    ending = ["amx"] if "amx_bf16" in str(device["flags"]) else []
    return "-".join([*words, str(device["cores"]), "core", *ending])


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
