"""Growth of time and memory with workers, updates, breakpoints, policies, noise and logs.

Seconds are processor seconds of whole calls of `simulate`; its scenario and trace file are read
beforehand.  Each run whose peak memory is measured has its own process.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import study
from benchmarks.jobs import Job
from benchmarks.stopwatch import Progress, time_call
from simstrag import policies
from simstrag.contract import Plan, Policy, View
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

__all__ = ["measure"]

ROOT = Path(__file__).parent.parent
PROFILE = ROOT / "simstrag/calibration/profiles/intel-xeon-2-core-amx.json"
"""The profile of examples/demo.yaml."""
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
REVIEWING = ("korel", "dssp", "lb_bsp", "star_h", "star_dynamic", "cgp")
STARTS = {
    "python": [sys.executable, "-c", ""],
    "import": [sys.executable, "-c", "import simstrag"],
    "help": [str(Path(sys.executable).with_name("simstrag")), "--help"],
}


def measure(quick: bool, progress: Progress) -> dict[str, Any]:
    """The section `cost` of the results."""
    return {
        "startup": _startup(progress),
        "breakpoints": _breakpoints((8,) if quick else (8, 64, 512), progress),
        "noise": _noises(2_000 if quick else 20_000, progress),
        "logs": _logs(1_000 if quick else 5_000, progress),
        "workers": _workers((8, 4096) if quick else (8, 64, 512, 4096, 65536), progress),
        "updates": _updates((1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)),
        "reviews": _reviews((8,) if quick else (8, 64, 512), progress),
        "policies": _policies((8,) if quick else (8, 64, 512, 4096), progress),
    }


# -- breakpoints, noise --------------------------------------------------------------------------


def _breakpoints(sizes: tuple[int, ...], progress: Progress) -> dict[str, Any]:
    """Seconds of bsp over `UPDATES` updates, by noise, workers and breakpoints per worker."""
    progress("breakpoints")
    seconds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            for count in BREAKPOINTS:
                file = Path(folder) / f"{n}-{count}.parquet"
                Trace.from_rows(Job("bsp", n, UPDATES, breakpoints=count).trace).write(file)
                for noise in ("none", "profile"):
                    sections = NOISES[noise] | ({"trace": str(file)} if count else {})
                    by_count = seconds.setdefault(noise, {}).setdefault(str(n), {})
                    by_count[str(count)] = _bsp_seconds(n, UPDATES, sections)
    return seconds


def _noises(updates: int, progress: Progress) -> dict[str, float]:
    """Nanoseconds per step of bsp with 64 workers, by noise."""
    nanoseconds = {}
    for name, sections in NOISES.items():
        progress(name)
        nanoseconds[name] = _bsp_seconds(64, updates, sections) / (64 * updates) * 1e9
    return nanoseconds


def _bsp_seconds(workers: int, updates: int, sections: dict[str, Any]) -> float:
    """Median processor seconds of a run; its inputs are read beforehand."""
    scenario = Scenario.of({"workers": workers, "updates": updates} | sections)
    _ = scenario.inputs
    run = partial(simulate, scenario, "bsp", record_updates=False)
    return statistics.median(time_call(run).cpu for _ in range(REPETITIONS))


# -- logs, workers, updates, policies ------------------------------------------------------------


def _logs(rounds: int, progress: Progress) -> dict[str, Any]:
    """Cost of runs of bsp and asgd with 64 workers, by log."""
    costs: dict[str, Any] = {}
    for policy in ("bsp", "asgd"):
        for log, options in LOGS.items():
            progress(f"logs: {log} of {policy}")
            costs.setdefault(policy, {})[log] = _in_own_process(policy, 64, rounds, options)
    return costs


def _workers(sizes: tuple[int, ...], progress: Progress) -> dict[str, Any]:
    """Cost of 1,000 updates of bsp with noise, by workers."""
    costs = {}
    for n in sizes:
        progress(f"{n} workers x 1,000 updates")
        costs[str(n)] = _in_own_process("bsp", n, 1_000, LOGS["sample"])
    return costs


def _updates(counts: tuple[int, ...]) -> dict[str, Any]:
    """Cost of bsp with noise and 64 workers, by updates."""
    return {str(u): _in_own_process("bsp", 64, u, LOGS["sample"]) for u in counts}


def _in_own_process(
    policy: str, workers: int, rounds: int, options: dict[str, Any]
) -> dict[str, float]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measure_run, policy, workers, rounds, options).result()


def _measure_run(
    policy: str, workers: int, rounds: int, options: dict[str, Any]
) -> dict[str, float]:
    """Seconds of a run and of its set-up, nanoseconds per gradient, memory in MB."""

    def run(workers: int, rounds: int) -> float:
        size = {"workers": workers, "samples": workers * rounds, "learner": {"batch": 1}}
        scenario = Scenario.of(size | NOISES["lognormal"])
        return time_call(partial(simulate, scenario, policy, **options)).cpu

    run(2, 2)  # loads the engine, whose time and memory do not belong to the run
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
    """Peak memory of this process, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS: bytes


def _policies(sizes: tuple[int, ...], progress: Progress) -> dict[str, Any]:
    """Seconds per million gradients, by policy of the study and workers, on its kind of trace."""
    seconds: dict[str, Any] = {}
    for n in sizes:
        scenario = study.build_scenario(n, max(100, 200_000 // n))
        for policy in study.POLICIES:
            progress(f"{policy}, {n} workers")
            timed = time_call(partial(study.run, scenario, policy))
            per_gradient = timed.cpu / timed.result.summary["applied"]
            seconds.setdefault(policy, {})[str(n)] = per_gradient * 1e6
    return seconds


class _Counting:
    """A policy that counts in a list how often it was asked, in the copy that a run makes, too."""

    def __init__(self, policy: Policy, asked: list[int]) -> None:
        self._policy, self._asked = policy, asked

    def __deepcopy__(self, memo: Any) -> _Counting:
        return _Counting(copy.deepcopy(self._policy, memo), self._asked)

    def plan(self, view: View) -> Plan:
        self._asked[0] += 1
        return self._policy.plan(view)


def _reviews(sizes: tuple[int, ...], progress: Progress) -> dict[str, Any]:
    """Microseconds of processor time of a run per review, by policy and workers."""
    costs: dict[str, Any] = {}
    for n in sizes:
        scenario = study.build_scenario(n, max(500, 100_000 // n))
        for policy in REVIEWING:
            progress(f"reviews of {policy}, {n} workers")
            asked = [0]
            simulate(scenario, _Counting(policies.load(policy), asked), record_updates=False)
            run = partial(simulate, scenario, policy, record_updates=False)
            seconds = [time_call(run).cpu / asked[0] for _ in range(REPETITIONS)]
            costs.setdefault(policy, {})[str(n)] = statistics.median(seconds) * 1e6
    return costs


# -- start-up ------------------------------------------------------------------------------------


def _startup(progress: Progress) -> dict[str, Any]:
    """Median processor and wall seconds of commands in a new process."""
    medians = {}
    for name, command in STARTS.items():
        progress(f"start: {name}")
        _time_command(command)
        cpu, wall = zip(*(_time_command(command) for _ in range(7)), strict=True)
        medians[name] = {"cpu": statistics.median(cpu), "wall": statistics.median(wall)}
    return medians


def _time_command(command: list[str]) -> tuple[float, float]:
    """Processor and wall seconds of a command."""
    before = os.times()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, after.elapsed - before.elapsed
