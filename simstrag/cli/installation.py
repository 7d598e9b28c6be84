"""What this installation can do: tried, not assumed; and how to get what it lacks."""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from simstrag.processes.pool import cores

__all__ = ["Finding", "examine"]

OPTIONAL = ("torch", "dask", "ray")
"""Packages that some of what simstrag does may need, and that it runs without."""
CPU_BF16 = ("amx_bf16", "avx512_bf16")
"""What Linux calls the instructions of x86 that compute in bfloat16."""


class Finding(NamedTuple):
    """One thing tried. works: None where it is a fact, or nobody needs it.

    remedy: the command that brings what is missing, or empty.
    """

    what: str
    works: bool | None
    says: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All there is to find out, in order; nothing is changed and nothing is fetched.

    >>> examine()[0].what
    'simstrag'
    """
    return [
        Finding("simstrag", None, _version_here()),
        Finding("python", None, f"{platform.python_version()} on {platform.platform(terse=True)}"),
        _libraries(),
        _cores(),
        *(_package(name) for name in OPTIONAL),
        *_devices(),
        _report(),
    ]


def _version_here() -> str:
    from simstrag.runs.run import provenance

    found = provenance()
    commit = found["commit"]
    return str(found["simstrag"]) + (f", commit {commit}" if commit else "")


def _requirements() -> Iterator[tuple[str, str | None]]:
    """(package, extra) of all that this package declares to need; extra: None for always."""
    for text in metadata.requires("simstrag") or ():
        extra = re.search(r"extra == ['\"]([^'\"]+)", text)
        yield re.split(r"[^\w.-]", text, maxsplit=1)[0], extra[1] if extra else None


def _libraries() -> Finding:
    """Those without which nothing goes."""
    needed = [name for name, extra in _requirements() if extra is None]
    versions = {name: _version(name) for name in needed}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding("libraries", False, f"missing: {', '.join(missing)}", "make setup")
    return Finding("libraries", True, ", ".join(f"{n} {v}" for n, v in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> Finding:
    """Those that this process may use, which may be fewer than there are."""
    says = f"{cores()} of {os.cpu_count()}; `compare` starts as many processes unless --jobs says"
    return Finding("cores", None, says)


def _package(name: str) -> Finding:
    """An optional package: there, and can it be imported?"""
    extras = [extra for package, extra in _requirements() if package == name and extra]
    remedy = f'pip install -e ".[{extras[0]}]"' if extras else ""
    version = _version(name)
    if version is None:
        if not extras:
            return Finding(name, None, "not installed; nothing in this version uses it")
        return Finding(name, False, "not installed", remedy)
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken installation may raise anything
        return Finding(name, False, f"{version}, but importing it fails: {_line(error)}", remedy)
    return Finding(name, True, version)


def _devices() -> list[Finding]:
    """Whether there is CUDA, and what computes in bfloat16: as the kernel and torch see it."""
    found = [_cpu_bf16()]
    try:
        torch: Any = importlib.import_module("torch")
        cuda = torch.cuda
        if not cuda.is_available():
            build = torch.version.cuda
            why = f"torch is built for CUDA {build}" if build else "torch is built without CUDA"
            return [*found, Finding("cuda", None, f"no device; {why}")]
        names = [cuda.get_device_name(k) for k in range(cuda.device_count())]
        bf16 = "computes in bf16" if cuda.is_bf16_supported() else "does not compute in bf16"
        says = f"{len(names)} device(s): {', '.join(names)}; the first {bf16}"
        return [*found, Finding("cuda", True, says)]
    except Exception as error:  # no torch, or a driver that does not fit
        return [*found, Finding("cuda", None, f"not known without torch: {_line(error)}")]


def _cpu_bf16() -> Finding:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return Finding("bf16 on this CPU", None, "not known: there is no /proc/cpuinfo")
    flags = {*text.split()}
    found = [name for name in CPU_BF16 if name in flags]
    if not found:
        return Finding("bf16 on this CPU", None, "no instructions for it; AMX: no")
    amx = "yes" if "amx_bf16" in flags else "no"
    return Finding("bf16 on this CPU", True, f"{', '.join(found)}; AMX: {amx}")


def _report() -> Finding:
    """Simulate four steps and draw their report."""
    try:
        from simstrag.analysis.pages.report import render
        from simstrag.experiments.compare import compare
        from simstrag.scenario.scenario import Scenario

        case = Scenario.of({"workers": 2, "samples": 512, "step": {"compute": 0.1}})
        size = len(render(compare(case, ["bsp"], jobs=1)))
    except Exception as error:  # whatever it is, it is the answer
        return Finding("a report", False, f"fails: {_line(error)}", "make setup")
    return Finding("a report", True, f"simulated and drawn, {size // 1000} kB")


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
