"""How time and memory grow: with workers, updates, breakpoints, policies, noise and logs.

Seconds are of the processor, of whole calls of `simulate`, whose scenario and trace file were read
before.  What has a peak of memory is run in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import study
from benchmarks.jobs import Job
from benchmarks.stopwatch import timed
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

__all__ = ["measure"]

ROOT = Path(__file__).parent.parent
PROFILE = ROOT / "calibration" / "profiles" / "intel-xeon-2-core-amx.json"
"""That of the demo."""
STEP = {"compute": 0.1, "amp_ratio": 1.6}
NOISES: dict[str, dict[str, Any]] = {
    "none": {"step": STEP},
    "lognormal": {"step": STEP | {"cv": 0.05}},
    "shifted_exponential": {"step": STEP | {"cv": 0.05, "noise": "shifted_exponential"}},
    "profile": {"profile": str(PROFILE), "learner": {"batch": 8}},
}
LOGS: dict[str, dict[str, Any]] = {
    "sample": {"record_updates": False},
    "updates": {},
    "steps": {"record_steps": True},
    "gradients": {"record_gradients": True},
}
BREAKPOINTS = (0, 1, 10, 100, 1000)
UPDATES = 10_000
REPETITIONS = 3
IMPORT = [sys.executable, "-c", "import simstrag"]
HELP = [str(Path(sys.executable).with_name("simstrag")), "--help"]
COMPILE = "from simstrag.engine.kernel import ready; ready()"

Tell = Callable[[str], None]


def measure(quick: bool, tell: Tell) -> dict[str, Any]:
    """The section `cost` of the results."""
    found: dict[str, Any] = {"startup": _startup(tell)}
    tell("breakpoints")
    found["breakpoints"] = _breakpoints((8,) if quick else (8, 64, 512))
    found["noise"] = _each(NOISES, lambda given: _bsp(64, 2_000 if quick else 20_000, given), tell)
    found["logs"] = _logs(quick, tell)
    found["workers"] = _workers((8, 4096) if quick else (8, 64, 512, 4096, 65536), tell)
    found["updates"] = _updates((1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000))
    found["policies"] = _policies((8,) if quick else (8, 64, 512, 4096), tell)
    if not quick:
        tell("compiling")
        found["compiling"] = _compiling()
    return found


def _each(cases: dict[str, Any], one: Callable[[Any], Any], tell: Tell) -> dict[str, Any]:
    found = {}
    for name, given in cases.items():
        tell(name)
        found[name] = one(given)
    return found


def _median(what: Callable[[], Any]) -> float:
    return statistics.median(timed(what).cpu for _ in range(REPETITIONS))


def _bsp(workers: int, updates: int, given: dict[str, Any]) -> float:
    """Nanoseconds per step."""
    scenario = _scenario(workers, updates, given)
    seconds = _median(partial(simulate, scenario, "bsp", record_updates=False))
    return seconds / (workers * updates) * 1e9


def _scenario(workers: int, updates: int, given: dict[str, Any]) -> Scenario:
    scenario = Scenario.of({"workers": workers, "updates": updates} | given)
    _ = scenario.inputs
    return scenario


# -- breakpoints ---------------------------------------------------------------------------------


def _breakpoints(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Seconds of bsp by noise, workers and breakpoints per worker, over so many updates."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            for count in BREAKPOINTS:
                file = Path(folder) / f"{n}-{count}.parquet"
                Trace.from_rows(Job("bsp", n, UPDATES, breakpoints=count).trace).write(file)
                for noise in ("none", "profile"):
                    given = NOISES[noise] | ({"trace": str(file)} if count else {})
                    scenario = _scenario(n, UPDATES, given)
                    seconds = _median(partial(simulate, scenario, "bsp", record_updates=False))
                    found.setdefault(noise, {}).setdefault(str(n), {})[str(count)] = seconds
    return found


# -- logs, policies ------------------------------------------------------------------------------


def _logs(quick: bool, tell: Tell) -> dict[str, Any]:
    """Nanoseconds per gradient and megabytes above the least of bsp and asgd by what is kept."""
    rounds = 1_000 if quick else 5_000
    found: dict[str, Any] = {}
    for policy in ("bsp", "asgd"):
        for log, kept in LOGS.items():
            tell(f"logs: {log} of {policy}")
            found.setdefault(policy, {})[log] = _apart(policy, 64, rounds, kept)
    return found


def _policies(sizes: tuple[int, ...], tell: Tell) -> dict[str, Any]:
    """Seconds per million gradients of the policies of the study, on its kind of trace."""
    found: dict[str, Any] = {}
    for n in sizes:
        given = study.scenario(n, max(100, 200_000 // n))
        for policy in study.POLICIES:
            tell(f"{policy}, {n} workers")
            taken = timed(partial(study.run, given, policy))
            found.setdefault(policy, {})[str(n)] = taken.cpu / taken.answer.summary["applied"] * 1e6
    return found


# -- workers, updates ----------------------------------------------------------------------------


def _workers(sizes: tuple[int, ...], tell: Tell) -> dict[str, Any]:
    """Of bsp with noise: seconds to set up, seconds and peak of memory of 1,000 updates."""
    found = {}
    for n in sizes:
        tell(f"{n} workers x 1,000 updates")
        found[str(n)] = _apart("bsp", n, 1_000, {"record_updates": False})
    return found


def _updates(counts: tuple[int, ...]) -> dict[str, Any]:
    """The same of 64 workers by updates."""
    return {str(u): _apart("bsp", 64, u, {"record_updates": False}) for u in counts}


def _apart(policy: str, workers: int, rounds: int, kept: dict[str, Any]) -> dict[str, float]:
    """Run in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_observed, policy, workers, rounds, kept).result()


def _observed(policy: str, workers: int, rounds: int, kept: dict[str, Any]) -> dict[str, float]:
    """Seconds in all and of one round, nanoseconds per gradient, megabytes before and at most."""

    def run(workers: int, rounds: int) -> float:
        whole = {"samples": workers * rounds, "learner": {"batch": 1}} | NOISES["lognormal"]
        scenario = Scenario.of({"workers": workers} | whole)
        return timed(partial(simulate, scenario, policy, **kept)).cpu

    run(2, 2)  # loads the code, which is not a run's own
    before, setup = _peak(), run(workers, 1)
    seconds = run(workers, rounds)
    return {
        "seconds": seconds,
        "setup": setup,
        "nanoseconds": seconds / (workers * rounds) * 1e9,
        "before_mb": before,
        "peak_mb": _peak(),
    }


def _peak() -> float:
    """The most memory that this process had so far, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS: bytes


# -- beginnings ----------------------------------------------------------------------------------


def _startup(tell: Tell) -> dict[str, Any]:
    """Seconds until a fresh process is done: the median of the wall's, and of the processor's."""
    found = {}
    for name, command in {"import": IMPORT, "help": HELP}.items():
        tell(f"start: {name}")
        _process(command)
        cpu, wall = zip(*(_process(command) for _ in range(7)), strict=True)
        found[name] = {"cpu": statistics.median(cpu), "wall": statistics.median(wall)}
    return found


def _compiling() -> dict[str, float]:
    """Seconds to compile the engine where nothing is kept yet, and to find it on disk."""
    with tempfile.TemporaryDirectory() as cache:
        command, kept = [sys.executable, "-c", COMPILE], os.environ | {"NUMBA_CACHE_DIR": cache}
        first, again = (_process(command, kept)[0] for _ in range(2))
    return {"first": first, "again": again}


def _process(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds of a command: of the processor, and of the wall."""
    before = os.times()
    subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, after.elapsed - before.elapsed
