"""A first scenario for a contention trace: it runs as it is, and marks what its owner must decide.

The trace says how many workers there are, on which nodes, and which of their resources are slowed;
the page beside an imported trace says what an all-reduce costs.  All else is assumed, and each
line that assumes says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML

from simstrag.documents.file_io import check_writable, write_atomically
from simstrag.engine.simulate import check
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import scenario_of
from simstrag.traces.scenario_lines import quoted, workers

POLICIES = ("bsp", "backup", "ssp", "asgd", "cgp", "lb_bsp")
"""None of them needs the gain of reduced precision."""
WORKERS_OF_ONE_NODE = 4
"""Workers for a trace of one node: all but one are never slowed."""
MOST_UPDATES, LEAST_UPDATES, STEPS = 500, 50, 40_000
"""Updates of a run, and steps of all its workers: a first comparison should take minutes."""
COMPUTE = 1.0
"""Seconds of a step of unknown length; less where the trace is short."""
BATCH, NOISE_SCALE = 32, 500
TARGET = 0.8
"""The target, as a share of what bsp reaches with the samples."""


def write_first_scenario(trace: str | Path, out: str | Path) -> Path:
    """Write `first_scenario` to a file that does not exist yet, and return its path.

    Raises `InputError` for a trace that cannot be simulated, and where `out` cannot be written.
    """
    trace, out = Path(trace), check_writable(out)
    if os.path.lexists(out):
        raise InputError(f"{out}: is there already; choose another name with --out")
    # Either of them may be behind a link.
    name = os.path.relpath(trace.parent.resolve() / trace.name, out.parent.resolve())
    text = first_scenario(Trace.read(trace), name, scenario_of(trace))
    scenario = Scenario.of(YAML(typ="safe", pure=True).load(text), str(out), out.parent)
    for policy in POLICIES:
        check(scenario, policy, 0)
    write_atomically(out, lambda part: part.write_text(text, encoding="utf-8"))
    return out


def first_scenario(trace: Trace, name: str, recorded: Sequence[str] = ()) -> str:
    """A commented scenario in YAML.

    name: of the trace's file, as seen from the scenario's folder.
    recorded: lines of a scenario that the trace's importer wrote.

    >>> trace = Trace.from_rows([(0, 2, "gpu", "slowdown", 1), (60, 3, "gpu", "slowdown", 2)])
    >>> print(first_scenario(trace, "slow.csv"))  # doctest: +ELLIPSIS
    # A first scenario...
    workers: 2...
    nodes: [2, 3]...
    """
    nodes = list(trace.nodes)
    if len(nodes) == 1:
        nodes = [nodes[0] + k for k in range(WORKERS_OF_ONE_NODE)]
    compute = _compute(trace)
    sections = (
        [
            f"# A first scenario for {quoted(name)}. It runs as it is.",
            "# ASSUMED marks what was not measured: replace it by your own number, then trust the "
            "result.",
        ],
        _workers(trace, nodes),
        _contention(trace, name),
        _step(trace, nodes, compute),
        _communication(trace, recorded),
        *_work(len(nodes), compute, trace),
        [
            "# The policies to compare; `simstrag policies` lists them all. korel and amp_all use",
            "# reduced precision, and need step.amp_ratio.",
            f"policies: [{', '.join(POLICIES)}]",
            _line("seeds: 10", "runs of each policy; more of them narrow the intervals"),
        ],
    )
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _workers(trace: Trace, nodes: list[int]) -> list[str]:
    if len(trace.nodes) == 1:
        about = [
            "# Data-parallel replicas: ASSUMED, since the trace names one node only. The first is",
            "# on it, the others are on nodes that are never slowed.",
        ]
    else:
        about = [
            "# Data-parallel replicas, one on each node of the trace. Nodes that are never slowed",
            "# have no rows there: if you have such, raise the number, and add them to `nodes`",
            "# where that stands below.",
        ]
    count, *numbers = workers(nodes)
    return [*about, count, *(_line(n, "of each worker, as in the trace") for n in numbers)]


def _contention(trace: Trace, name: str) -> list[str]:
    lines = ["# Which nodes are slowed, when and by how much.", f"trace: {quoted(name)}"]
    slow = sorted(
        f"{node} ({resource})"
        for (node, resource, kind), rows in trace.by_key().items()
        if kind == "slowdown" and rows[-1][1] != 1
    )
    if trace.end > 0 and slow:
        lines += [
            f"# Its last rows leave node {', '.join(slow[:4])} slowed: that is held from then on.",
            _line("trace_end: hold", "or loop, which forgets it and begins anew"),
        ]
    elif trace.end > 0:
        lines += [
            _line("trace_end: loop", "after its last row: begin anew; or hold, or error"),
            _line("trace_per_seed: shift", "each seed starts elsewhere in it; or same"),
        ]
    return [*lines, *([_line("allow_speedup: true", "it has factors below 1")] * trace.speeds_up)]


def _step(trace: Trace, nodes: list[int], compute: float) -> list[str]:
    if trace.nodes_with_durations >= set(nodes):
        return [
            "# Steps take the durations that the trace recorded. For policies that use reduced",
            "# precision state its gain, and any compute:",
            f"# step: {{compute: {compute:.3g}, amp_ratio: 1.5}}",
        ]
    source = "the mean of those recorded" if trace.replays else "ASSUMED"
    host = _line("  host_share: 0.2", "the part of it that host contention stretches: ASSUMED")
    return [
        "# What a training step costs on an idle node; a measured profile would replace all of it.",
        "step:",
        _line(f"  compute: {compute:.3g}", f"seconds in full precision: {source}"),
        *([host] * _has(trace, "host")),
        _line("  cv: 0.05", "its noise, standard deviation over mean: ASSUMED"),
        _line("  # amp_ratio: 1.5", "full over reduced-precision time, if you measured it"),
    ]


def _communication(trace: Trace, recorded: Sequence[str]) -> list[str]:
    allreduce = _line("allreduce: {alpha: 5.0e-5, bandwidth: 1.25e+9, bytes: 1.0e+8}", "s, byte/s")
    server = _line("server: {service: 0.01, push: 0.08, pull: 0.08}", "seconds per gradient")
    imported = [line for line in recorded if line.startswith("allreduce:")]
    if imported:
        return [
            "# What an all-reduce costs, as the importer of the trace derived it.",
            *imported,
            "# A server is free until you say what it costs: ASSUMED. That flatters policies",
            "# through a server (asgd, ssp, backup). For example, for 100 MB of gradients:",
            f"# {server}",
        ]
    if _has(trace, "net"):
        about = "# Communication, which the trace slows: ASSUMED, 100 MB of gradients."
        return [about, allreduce, server]
    return [
        "# Communication is free until you say what it costs: ASSUMED. That flatters policies",
        "# through a server (asgd, ssp, backup) most. For example, for 100 MB of gradients:",
        f"# {allreduce}",
        f"# {server}",
    ]


def _has(trace: Trace, resource: str) -> bool:
    return any(of == resource for _, of, _ in trace.keys)


def _compute(trace: Trace) -> float:
    """Seconds of a step: the mean of those recorded, else so few that the trace spans the work."""
    recorded = [row.value for row in trace.rows if row.kind == "duration"]
    if recorded:
        return sum(recorded) / len(recorded)
    return min(COMPUTE, trace.end / MOST_UPDATES) or COMPUTE


def _work(count: int, compute: float, trace: Trace) -> tuple[list[str], list[str]]:
    """What ends a run, and what its updates are worth."""
    updates = max(LEAST_UPDATES, min(MOST_UPDATES, STEPS // count))
    batch = count * BATCH
    target = TARGET * updates * batch / (NOISE_SCALE + batch)
    span = f"; the trace spans {trace.end:.4g} s" if trace.end > 0 else ""
    length = f"{updates} updates, {updates * compute:.4g} s of computing{span}"
    return [
        "# What ends a run: equal work, and a target for all to reach; 1 is a noise-free update.",
        _line(f"samples: {updates * batch}", length),
        _line(f"target_progress: {target:.3g}", f"{TARGET:.0%} of what bsp makes of them"),
    ], [
        "# What updates are worth: batch is of one worker; noise_scale is the gradient noise scale",
        "# in samples; c_tau is what a stale sample costs. All three are ASSUMED.",
        f"learner: {{batch: {BATCH}, noise_scale: {NOISE_SCALE}, c_tau: 1.0}}",
    ]


def _line(entry: str, comment: str) -> str:
    return f"{entry:<24} # {comment}"
