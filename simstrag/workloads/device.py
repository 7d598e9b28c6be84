"""A description of the device, without the machine's or its owner's name."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "hypervisor")


def describe_device(name: str = "cpu") -> dict[str, Any]:
    """The CPU, or a GPU (by torch's device name) with its CPU as `host`."""
    if name == "cpu":
        return _describe_cpu()
    import torch

    gpu = torch.cuda.get_device_properties(name)
    return {
        "kind": "cuda",
        "model": gpu.name,
        "gpus": torch.cuda.device_count(),
        "memory_gib": round(gpu.total_memory / 2**30, 1),
        "capability": f"{gpu.major}.{gpu.minor}",
        "multiprocessors": gpu.multi_processor_count,
        "host": _describe_cpu(),
    }


def _describe_cpu() -> dict[str, str | int | float]:
    """CPU model, flags for reduced precision, cores and memory."""
    cpuinfo: dict[str, str] = {}
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
        pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
        cpuinfo = {key.strip(): value.strip() for key, value in pairs}
    flags = set(cpuinfo.get("flags", "").split())
    description: dict[str, str | int | float] = {
        "kind": "cpu",
        "model": cpuinfo.get("model name", platform.processor() or platform.machine()),
        "family_model_stepping": "/".join(
            cpuinfo.get(key, "?") for key in ("cpu family", "model", "stepping")
        ),
        "flags": " ".join(flag for flag in FLAGS if flag in flags),
        "cores": os.cpu_count() or 1,
    }
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        description["memory_gib"] = round(memory / 2**30, 1)
    return description
