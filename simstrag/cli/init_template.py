"""A first scenario for a contention trace: it runs as it is, and says what its owner must decide.

What the trace tells is taken from it: how many workers there are, on which nodes, and which of
their resources are slowed.  All else is assumed, and each line that assumes says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from simstrag.documents.paths import placed, write_whole
from simstrag.engine.simulate import check
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

__all__ = ["starter", "write_starter"]

POLICIES = ("bsp", "backup", "ssp", "asgd", "cgp", "lb_bsp")
"""None of them needs to be told what reduced precision gains."""
ALONE = 4
"""Workers where the trace names one node: all but one are never slowed."""
MOST_UPDATES, LEAST_UPDATES, STEPS = 500, 50, 40_000
"""Updates of a run, and steps of all its workers: a first comparison should take minutes."""
COMPUTE = 1.0
"""Seconds of a step of which nothing is known; less where the trace is short."""
BATCH, NOISE_SCALE = 32, 500
TARGET = 0.8
"""The share of what bsp reaches with the samples that is the target."""


def write_starter(trace: str | Path, out: str | Path) -> Path:
    """Write the scenario of `starter` to a file that does not exist yet; its path.

    Raises `InputError` for a trace that cannot be simulated, and where `out` cannot be written.
    """
    trace, out = Path(trace), placed(out)
    if os.path.lexists(out):
        raise InputError(f"{out}: is there already; choose another name with --out")
    text = starter(Trace.read(trace), _seen_from(out.parent, trace))
    scenario = Scenario.of(_parsed(text), str(out), out.parent)
    for policy in POLICIES:
        check(scenario, policy, 0)
    write_whole(out, lambda part: part.write_text(text, encoding="utf-8"))
    return out


def _seen_from(folder: Path, file: Path) -> str:
    """The path of a file from a folder, either of which may be behind a link."""
    return os.path.relpath(file.parent.resolve() / file.name, folder.resolve())


def starter(trace: Trace, name: str) -> str:
    """A commented scenario in YAML. name: of the trace's file, as seen from the scenario's folder.

    >>> trace = Trace.from_rows([(0, 2, "gpu", "slowdown", 1), (60, 3, "gpu", "slowdown", 2)])
    >>> print(starter(trace, "slow.csv"))  # doctest: +ELLIPSIS
    # A first scenario...
    workers: 2...
    nodes: [2, 3]...
    """
    nodes = _nodes(trace)
    compute = _compute(trace)
    updates = max(LEAST_UPDATES, min(MOST_UPDATES, STEPS // len(nodes)))
    return "\n".join([
        f"# A first scenario for {_quoted(name)}. It runs as it is.",
        "# ASSUMED marks what nobody measured: put your own number there, then believe the result.",
        "",
        *_where(trace, nodes),
        "",
        *_contention(trace, name),
        "",
        *_step(trace, compute),
        "",
        *_communication(trace),
        "",
        *_work(len(nodes), updates, compute, trace),
        "",
        *_asked(),
        "",
    ])  # fmt: skip


def _nodes(trace: Trace) -> list[int]:
    if len(trace.nodes) > 1:
        return list(trace.nodes)
    return [trace.nodes[0] + k for k in range(ALONE)]


def _where(trace: Trace, nodes: list[int]) -> list[str]:
    lines = [
        "# Data-parallel replicas, one on each node of the trace. If you have nodes that are never",
        "# slowed, they have no row there: raise the number, and where `nodes` stands below, name",
        "# them there too.",
        f"workers: {len(nodes)}",
    ]
    if len(trace.nodes) == 1:
        lines = [
            "# Data-parallel replicas: ASSUMED, since the trace names one node only. The first is",
            "# on it, the others are on nodes that are never slowed.",
            f"workers: {len(nodes)}",
        ]
    if nodes != list(range(len(nodes))):
        lines.append(_said(f"nodes: {nodes}", "of each worker, as the trace numbers them"))
    return lines


def _contention(trace: Trace, name: str) -> list[str]:
    lines = ["# Who is slowed, when and by how much.", f"trace: {_quoted(name)}"]
    slow = sorted(
        f"{node} ({resource})"
        for (node, resource, kind), rows in trace.by_key().items()
        if kind == "slowdown" and rows[-1][1] != 1
    )
    if trace.end > 0 and slow:
        lines += [
            f"# Its last rows leave node {', '.join(slow[:4])} slowed: that is held from then on.",
            _said("trace_end: hold", "or loop, which forgets it and begins anew"),
        ]
    elif trace.end > 0:
        lines += [
            _said("trace_end: loop", "after its last row: begin anew; or hold, or error"),
            _said("trace_per_seed: shift", "each seed starts elsewhere in it; or same"),
        ]
    if any(row.kind == "slowdown" and row.value < 1 for row in trace.rows):
        lines.append(_said("allow_speedup: true", "it has factors below 1"))
    return lines


def _step(trace: Trace, compute: float) -> list[str]:
    source = "the mean of those recorded" if trace.replays else "ASSUMED"
    host = _said("  host_share: 0.2", "the part of it that host contention stretches: ASSUMED")
    return [
        "# What a training step costs on an idle node; a measured profile would replace all of it.",
        "step:",
        _said(f"  compute: {compute:.3g}", f"seconds in full precision: {source}"),
        *([host] if any(row.resource == "host" for row in trace.rows) else []),
        _said("  cv: 0.05", "its noise, standard deviation over mean: ASSUMED"),
        _said("  # amp_ratio: 1.5", "full over reduced-precision time, if you measured it"),
    ]


def _communication(trace: Trace) -> list[str]:
    costs = [
        _said("allreduce: {alpha: 5.0e-5, bandwidth: 1.25e+9, bytes: 1.0e+8}", "s, byte/s"),
        _said("server: {service: 0.01, push: 0.08, pull: 0.08}", "seconds per gradient"),
    ]
    if any(row.resource == "net" for row in trace.rows):
        return ["# Communication, which the trace slows: ASSUMED, 100 MB of gradients.", *costs]
    return [
        "# Communication is free until you say what it costs: ASSUMED. That flatters policies",
        "# through a server (asgd, ssp, backup) most. For example, for 100 MB of gradients:",
        *(f"# {line}" for line in costs),
    ]


def _compute(trace: Trace) -> float:
    """Seconds of a step: recorded, or such that the work is no longer than the trace."""
    recorded = [row.value for row in trace.rows if row.kind == "duration"]
    if recorded:
        return sum(recorded) / len(recorded)
    return min(COMPUTE, trace.end / MOST_UPDATES) or COMPUTE


def _work(workers: int, updates: int, compute: float, trace: Trace) -> list[str]:
    """What ends a run, and what its updates are worth."""
    whole = workers * BATCH
    target = TARGET * updates * whole / (NOISE_SCALE + whole)
    span = f"; the trace spans {trace.end:.4g} s" if trace.end > 0 else ""
    lasts = f"{updates} updates, {updates * compute:.4g} s of computing{span}"
    return [
        "# What ends a run: equal work, and a target for all to reach; 1 is a noise-free update.",
        _said(f"samples: {updates * whole}", lasts),
        _said(f"target_progress: {target:.3g}", f"{TARGET:.0%} of what bsp makes of them"),
        "",
        "# What updates are worth: batch is of one worker; noise_scale is the gradient noise scale",
        "# in samples; c_tau is what a stale sample costs. All three are ASSUMED.",
        f"learner: {{batch: {BATCH}, noise_scale: {NOISE_SCALE}, c_tau: 1.0}}",
    ]


def _asked() -> list[str]:
    return [
        "# What is compared; `simstrag policies` lists all there are. korel and amp_all compute in",
        "# reduced precision, and need step.amp_ratio.",
        f"policies: [{', '.join(POLICIES)}]",
        _said("seeds: 10", "runs of each; with more of them, narrower intervals"),
    ]


def _said(entry: str, comment: str) -> str:
    return f"{entry:<24} # {comment}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _parsed(text: str) -> dict[str, object]:
    from ruamel.yaml import YAML

    parsed: dict[str, object] = YAML(typ="safe", pure=True).load(text)
    return parsed
