"""`simstrag doctor`: the abilities of this installation, and commands that install the rest."""

from __future__ import annotations

import importlib
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.cli.console import print_table
from simstrag.cli.errors import EXTRAS
from simstrag.cli.output import emit
from simstrag.cli.progress import show_spinner

SIGNS = {True: "yes", False: "NO", None: "-"}
OPTIONAL = ("torch", "distributed", "ray", "transformers")
CPU_BF16 = ("amx_bf16", "avx512_bf16")
"""Linux's names of the x86 instructions that compute in bfloat16."""


class Finding(NamedTuple):
    """The result of one check.

    what: the subject of the check.
    works: whether it works; None if it is a fact, or optional and absent.
    says: the answer in words.
    remedy: the command that installs it if it is missing, or empty.
    """

    what: str
    works: bool | None
    says: str
    remedy: str = ""


def doctor() -> None:
    """Check what this installation can do.

    Prints a command for everything that is missing. Changes nothing.
    """
    with show_spinner("checking"):
        findings = examine()
    rows = [
        [f.what, SIGNS[f.works], f"{f.says}\n{f.remedy}" if f.remedy else f.says] for f in findings
    ]
    document = {"findings": [finding._asdict() for finding in findings]}
    emit(document, lambda: print_table(["what", "works", ""], rows, wraps=2))


def examine() -> list[Finding]:
    """All checks in order; they change nothing and download nothing.

    >>> examine()[0].what
    'simstrag'
    """
    from simstrag.processes.pool import core_count
    from simstrag.runs.run import provenance

    source = provenance()
    commit = f", commit {source['commit']}" if source["commit"] else ""
    cores = f"{core_count()} of {os.cpu_count()}; `compare` starts one process on each (--jobs)"
    return [
        Finding("simstrag", None, f"{source['simstrag']}{commit}"),
        Finding("python", None, f"{platform.python_version()} on {platform.platform(terse=True)}"),
        check_libraries(),
        Finding("cores", None, cores),
        *map(check_optional, OPTIONAL),
        _check_cpu_bf16(),
        check_cuda(),
        check_report(),
    ]


def check_libraries() -> Finding:
    """The libraries that every command needs."""
    required = [text for text in metadata.requires("simstrag") or () if "extra ==" not in text]
    versions = {name: _version(name) for name in (re.split(r"[^\w.-]", r)[0] for r in required)}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding("libraries", False, f"missing: {', '.join(missing)}", "make setup")
    return Finding("libraries", True, ", ".join(f"{n} {v}" for n, v in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_optional(package: str) -> Finding:
    """Whether an optional package is installed and can be imported."""
    from simstrag.ddp.policy_support import torch_caution

    remedy = f'pip install "simstrag[{EXTRAS[package]}]"'
    version = _version(package)
    if version is None:
        return Finding(package, None, "not installed", remedy)
    try:
        importlib.import_module(package)
    except Exception as error:  # a broken installation may raise anything
        says = f"{version}, but importing it fails: {_first_line(error)}"
        return Finding(package, False, says, remedy)
    if package == "torch" and (caution := torch_caution(version)):
        return Finding(package, True, caution)
    return Finding(package, True, version)


def _check_cpu_bf16() -> Finding:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return Finding("bf16 on this CPU", None, "unknown: there is no /proc/cpuinfo")
    flags = {*text.split()}
    names = [name for name in CPU_BF16 if name in flags]
    if not names:
        return Finding("bf16 on this CPU", None, "no instructions for it; AMX: no")
    amx = "yes" if "amx_bf16" in flags else "no"
    return Finding("bf16 on this CPU", True, f"{', '.join(names)}; AMX: {amx}")


def check_cuda() -> Finding:
    try:
        torch: Any = importlib.import_module("torch")
        cuda = torch.cuda
        if not cuda.is_available():
            build = torch.version.cuda
            why = f"torch is built for CUDA {build}" if build else "torch is built without CUDA"
            return Finding("cuda", None, f"no device; {why}")
        names = [cuda.get_device_name(k) for k in range(cuda.device_count())]
        bf16 = "computes in bf16" if cuda.is_bf16_supported() else "does not compute in bf16"
        return Finding(
            "cuda", True, f"{len(names)} device(s): {', '.join(names)}; the first {bf16}"
        )
    except Exception as error:  # no torch, or a driver that does not fit
        return Finding("cuda", None, f"unknown without torch: {_first_line(error)}")


def check_report() -> Finding:
    """Simulate four steps and draw their report."""
    try:
        from simstrag.analysis.pages.report import render
        from simstrag.experiments.compare import compare
        from simstrag.scenario.scenario import Scenario

        case = Scenario.of({"workers": 2, "samples": 512, "step": {"compute": 0.1}})
        size = len(render(compare(case, ["bsp"], jobs=1)))
    except Exception as error:  # the reason is the finding
        return Finding("a report", False, f"fails: {_first_line(error)}", "make setup")
    return Finding("a report", True, f"simulated and drawn, {size // 1000} kB")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
