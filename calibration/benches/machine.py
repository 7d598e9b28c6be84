"""What the measured machine is, in words that name neither it nor its owner."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["describe_software", "slug"]


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
        **_cuda_versions(),
        "numpy": numpy.__version__,
    }


def slug(device: Mapping[str, Any]) -> str:
    """A short file name for a device: model, and of a CPU cores, and amx where it has it.

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


def _cuda_versions() -> dict[str, str]:
    """Of CUDA, NCCL and the driver, where there is a GPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    versions = {
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
    }
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        versions["driver"] = answer.stdout.split("\n")[0].strip()
    return versions
