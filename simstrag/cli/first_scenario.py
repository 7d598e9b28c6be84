"""A first scenario for a contention trace: it runs as it is, and marks the owner's decisions.

The trace gives the workers, their nodes and the slowed resources; the page beside an imported trace
gives the cost of an all-reduce.  The rest is assumed, and each assumption is marked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import jinja2
from ruamel.yaml import YAML

from simstrag.documents.file_io import check_writable, write_atomically
from simstrag.engine.simulate import check
from simstrag.errors import InputError
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import quoted, scenario_of, workers

POLICIES = ("bsp", "backup", "ssp", "asgd", "cgp", "lb_bsp")
"""Policies that do not need the gain of reduced precision."""
WORKERS_OF_ONE_NODE = 4
"""Workers for a trace of one node; only the first is ever slowed."""
MOST_UPDATES, LEAST_UPDATES, STEPS = 500, 50, 40_000
"""Updates of a run, and steps of all its workers: a first comparison should take minutes."""
COMPUTE = 1.0
"""Seconds of a step of unknown length; less if the trace is short."""
BATCH, NOISE_SCALE = 32, 500
TARGET = 0.8
"""The target, as a share of the progress of bsp after the samples."""


def write_first_scenario(trace: str | Path, out: str | Path) -> Path:
    """Write `first_scenario` to a file that does not exist yet, and return its path.

    Raises `InputError` if the trace cannot be simulated, or `out` cannot be written.
    """
    trace, out = Path(trace), check_writable(out)
    if os.path.lexists(out):
        raise InputError(f"{out}: is there already; choose another name with --out")
    # Either path may contain a symbolic link.
    name = os.path.relpath(trace.parent.resolve() / trace.name, out.parent.resolve())
    text = first_scenario(Trace.read(trace), name, scenario_of(trace))
    scenario = Scenario.of(YAML(typ="safe", pure=True).load(text), str(out), out.parent)
    for policy in POLICIES:
        check(scenario, policy, 0)
    write_atomically(out, lambda part: part.write_text(text, encoding="utf-8"))
    return out


def first_scenario(trace: Trace, name: str, recorded: Sequence[str] = ()) -> str:
    """A commented scenario in YAML, by the template `first_scenario.yaml.jinja`.

    name: path of the trace, as seen from the scenario's folder.
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
    durations = [row.value for row in trace.rows if row.kind == "duration"]
    # Without recorded durations, a step is short enough for all updates to fit within the trace.
    compute = min(COMPUTE, trace.end / MOST_UPDATES) or COMPUTE
    if durations:
        compute = sum(durations) / len(durations)
    updates = max(LEAST_UPDATES, min(MOST_UPDATES, STEPS // len(nodes)))
    batch = len(nodes) * BATCH
    span = f"; the trace spans {trace.end:.4g} s" if trace.end > 0 else ""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["beside"] = lambda entry, comment: f"{entry:<24} # {comment}"
    template = Path(__file__).with_name("first_scenario.yaml.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        trace=trace,
        name=quoted(name),
        workers=workers(nodes),
        slowed=sorted(
            f"{node} ({resource})"
            for (node, resource, kind), rows in trace.by_key().items()
            if kind == "slowdown" and rows[-1][1] != 1
        ),
        replayed=trace.nodes_with_durations >= set(nodes),
        compute=compute,
        source="the mean of those recorded" if trace.replays else "ASSUMED",
        resources={resource for _, resource, _ in trace.keys},
        imported=[line for line in recorded if line.startswith("allreduce:")],
        samples=updates * batch,
        length=f"{updates} updates, {updates * compute:.4g} s of computing{span}",
        share=TARGET,
        target=TARGET * updates * batch / (NOISE_SCALE + batch),
        batch=BATCH,
        noise_scale=NOISE_SCALE,
        policies=POLICIES,
    )
