"""Records local times of real training steps on one core while real burners come and go on it.

`python -m simstrag.calibration.record --out DIR` writes one `series-K.csv.gz` per series, recorded
one after the other and never two at once, and `recording.json`: command, machine, seeds, schedules
as planned and as measured.  A rerun keeps finished series and records the missing ones.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gzip
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simstrag.calibration.benches.burner import burners, schedule
from simstrag.calibration.benches.machine import describe_software
from simstrag.processes.affinity import cores, pin
from simstrag.workloads.device import describe_device

if TYPE_CHECKING:
    from simstrag.workloads import Precisions, Shape, Task

__all__ = ["COLUMNS", "Plan", "record", "record_series"]

FORMAT = "simstrag-recording/1"

COLUMNS = (
    "series",
    "step",
    "start",  # seconds since the series began
    "seconds",  # local time: wall clock of forward and backward
    "cpu_seconds",  # CPU time of the training thread in the same span
    "precision",  # full or amp
    "block_position",  # 0 = first step after a change of precision
    "others_busy",  # ticks the other cores were busy, counted since boot, read after the step
    "stolen",  # ticks the hypervisor took from this core, the same way
)

HOW = (
    "Each series was recorded by itself, one after the other, by one training thread pinned to "
    "one core; no two series ever ran at once. seconds = wall clock of forward+backward on one "
    "worker; optimizer, clearing of gradients and the recorder's own reading of /proc/stat lie "
    "between steps, outside of it. Warm-up steps before each series are not recorded. Burners are "
    "real processes pinned to the same core; their start and stop are stamped by themselves on "
    "the same clock (CLOCK_MONOTONIC)."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and in which pattern to record; seconds, and steps per block of one precision."""

    seconds: float = 185.0
    core: int = 1
    full_block: int = 12
    amp_block: int = 6
    warm_up: float = 3.0
    lead: tuple[float, float] = (15.0, 22.0)
    span: tuple[float, float] = (8.0, 40.0)
    gap: tuple[float, float] = (10.0, 28.0)


Step = tuple[int, int, float, float, float, str, int, int, int]


def record_series(task: Task, number: int, plan: Plan) -> tuple[list[Step], dict[str, Any]]:
    """Run one series with the schedule of seed `number`; its steps and its description."""
    episodes = schedule(number, plan.seconds, plan.lead, plan.span, plan.gap)
    allowed = set(cores())
    pin(plan.core)
    try:
        with burners(episodes, plan.core) as load:
            _run(task, number, plan, time.monotonic() + plan.warm_up)
            begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            zero = time.monotonic()
            load.go(zero)
            steps = _run(task, number, plan, zero + plan.seconds, zero)
            reports = load.reports()
    finally:
        pin(allowed)
    described = {
        "series": number,
        "seed": number,
        "begun": begun,
        "seconds": plan.seconds,
        "steps": len(steps),
        "tick_seconds": 1.0 / os.sysconf("SC_CLK_TCK"),
        "episodes": [
            {
                **asdict(episode),
                "burners": [
                    {key: value for key, value in report.items() if key != "episode"}
                    for report in reports
                    if report["episode"] == index
                ],
            }
            for index, episode in enumerate(episodes)
        ],
    }
    return steps, described


def _run(task: Task, series: int, plan: Plan, until: float, zero: float = 0.0) -> list[Step]:
    steps: list[Step] = []
    number = 0
    while time.monotonic() < until:
        place = number % (plan.full_block + plan.amp_block)
        amp = place >= plan.full_block
        cpu, begun = time.thread_time(), time.monotonic()
        task.gradient(number, "amp" if amp else "full")
        ended, cpu = time.monotonic(), time.thread_time() - cpu
        busy, stolen = ticks(plan.core)
        position = place - plan.full_block if amp else place
        steps.append(
            (
                series,
                number,
                round(begun - zero, 6),
                round(ended - begun, 7),
                round(cpu, 7),
                "amp" if amp else "full",
                position,
                busy,
                stolen,
            )
        )
        task.update()
        number += 1
    return steps


def ticks(core: int) -> tuple[int, int]:
    """(busy ticks of all other cores, stolen ticks of `core`) since boot; zeros where unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return 0, 0
    busy = stolen = 0
    for name, *numbers in lines[1:]:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(n) for n in numbers[:8])
        if name == f"cpu{core}":
            stolen = steal
        else:
            busy += user + nice + system + irq + softirq
    return busy, stolen


def record(
    out: Path, count: int, plan: Plan, shape: Shape, precisions: Precisions | None = None
) -> dict[str, Any]:
    """Record the series 0 .. count-1 that `out` lacks, one by one; the whole description."""
    import torch

    from simstrag.workloads import Task, choose_precisions

    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "recording.json"
    if path.exists():
        described: dict[str, Any] = json.loads(path.read_text())
        if described["plan"] != json.loads(json.dumps(asdict(plan))):
            raise SystemExit(f"{path} was recorded by another plan: {described['plan']}")
        stand_in = bool(described["precisions"]["stand_in"])
    else:
        allowed = set(cores())
        pin(plan.core)
        precisions = precisions or choose_precisions(shape)
        pin(allowed)
        stand_in = precisions.stand_in
        described = {
            "format": FORMAT,
            "how": HOW,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": f"python -m simstrag.calibration.record --out DIR --series {count} "
            f"--seconds {plan.seconds:g} --core {plan.core}",
            "device": describe_device(),
            "software": describe_software(),
            "workload": {
                "name": shape.name,
                "shape": asdict(shape),
                "parameters": Task(shape).parameters,
                "optimizer": "SGD, outside of the timed part",
                "threads": 1,
            },
            "precisions": asdict(precisions),
            "plan": asdict(plan),
            "columns": list(COLUMNS),
            "series": [],
        }
    finished = {entry["series"] for entry in described["series"]}
    for number in range(count):
        if number in finished and (out / file_name(number)).exists():
            continue
        print(f"series {number}: {plan.seconds:g} s", flush=True)
        steps, entry = record_series(Task(shape, stand_in=stand_in), number, plan)
        write_steps(out / file_name(number), steps)
        kept = [other for other in described["series"] if other["series"] != number]
        described["series"] = sorted([*kept, entry], key=lambda each: each["series"])
        _write_text(path, json.dumps(described, indent=1) + "\n")
    return described


def file_name(number: int) -> str:
    """Of one series' steps."""
    return f"series-{number}.csv.gz"


def write_steps(path: Path, steps: Sequence[Step]) -> None:
    """As gzipped CSV, whole or not at all; the same steps give the same bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(steps)
    scratch = path.with_suffix(".part")
    scratch.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    scratch.replace(path)


def _write_text(path: Path, text: str) -> None:
    scratch = path.with_suffix(".part")
    scratch.write_text(text)
    scratch.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    from simstrag.workloads import Shape

    parser = argparse.ArgumentParser(
        prog="python -m simstrag.calibration.record", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--series", type=int, default=8, help="how many series")
    parser.add_argument("--seconds", type=float, default=185.0, help="length of each")
    parser.add_argument("--core", type=int, default=cores()[-1], help="core of worker and burners")
    given = parser.parse_args(arguments)
    record(given.out, given.series, Plan(seconds=given.seconds, core=given.core), Shape())


if __name__ == "__main__":
    main()
