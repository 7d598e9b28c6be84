"""`simstrag init`: a first scenario from a contention trace."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simstrag.cli.console import ask, print_line, print_sentences
from simstrag.cli.options import TraceFile, option, out_option
from simstrag.cli.output import emit, mode
from simstrag.cli.read_inputs import check_trace
from simstrag.documents.printable import shell_command, shell_word
from simstrag.documents.units import BYTES_PER_SECOND, COUNTS, SECONDS, parse_quantity
from simstrag.errors import InputError

if TYPE_CHECKING:
    from simstrag.whatif.first_scenario import JobDescription

JOB = "The job"

SHOWN_NODES = 8
"""Most nodes that are listed."""
UNITS: dict[str, tuple[Mapping[str, float], str, str]] = {
    "step": (SECONDS, "0.35s or 350ms", "A step in full precision on an idle node"),
    "parameters": (COUNTS, "100e6 or 100M", "Parameters of the model"),
    "link": (BYTES_PER_SECOND, "25Gbit or 3.1GB", "The link of a node"),
    "latency": (SECONDS, "50us or 0.05ms", "The latency of a hop"),
    "batch": (COUNTS, "32", "Samples of a worker's step"),
}
"""What a job is described by: its units, an example, and what it is."""
KEYS = {
    "step": "step.compute", "parameters": "allreduce.bytes", "link": "allreduce.bandwidth",
    "batch": "learner.batch", "latency": "allreduce.alpha",
}  # fmt: skip
"""The key of the scenario to which each leads, in bytes a gradient for parameters."""
ASKED = {name: key for name, key in KEYS.items() if name != "latency"}
"""What is asked for on a terminal, and the placeholder without an answer."""


def _flag(name: str) -> Any:
    _, example, what = UNITS[name]
    return option(f"{what}.", example, group=JOB)


StepOption = Annotated[str | None, _flag("step")]
ParametersOption = Annotated[str | None, _flag("parameters")]
LinkOption = Annotated[str | None, _flag("link")]
BatchOption = Annotated[str | None, _flag("batch")]
LatencyOption = Annotated[str | None, _flag("latency")]
WidthOption = Annotated[str, option("Of gradients.", "WORD", "--precision", group=JOB)]
WorkersOption = Annotated[
    int | None, option("By default the nodes of the trace.", "N", min=1, group=JOB)
]


def init(
    trace: TraceFile,
    step: StepOption = None,
    parameters: ParametersOption = None,
    link: LinkOption = None,
    batch: BatchOption = None,
    latency: LatencyOption = None,
    precision: WidthOption = "fp32",
    workers: WorkersOption = None,
    out: Annotated[Path, out_option("Scenario to write.", "FILE")] = Path("scenario.yaml"),
) -> None:
    """Write a first scenario for a trace, with placeholders."""
    from simstrag.scenario.beyond_measured import doubts
    from simstrag.scenario.scenario import Scenario
    from simstrag.trace.trace import Trace
    from simstrag.whatif.first_scenario import (
        describe_measured_allreduce,
        missing,
        write_first_scenario,
    )

    check_trace(trace)
    job = describe_job(
        {"step": step, "parameters": parameters, "link": link, "latency": latency, "batch": batch},
        precision, workers,
    )  # fmt: skip
    if sys.stdin.isatty() and sys.stdout.isatty() and mode().talks and not out.exists():
        unknown = missing(trace, job)
        job = replace(job, **{name: _ask(name) for name, key in ASKED.items() if key in unknown})
    write_first_scenario(trace, out, job)
    written = Scenario.read(out)
    placeholders, doubtful = written.placeholders, doubts(written)
    document = {"scenario": out, "placeholders": placeholders, "warnings": doubtful}
    emit(document, warnings=doubtful, scenario=out)
    if not mode().talks:
        return
    if measured := describe_measured_allreduce(trace, job):
        print_sentences(f"measured: {measured}")
    nodes = Trace.read(trace).nodes
    if len(nodes) > 1 and nodes != tuple(range(len(nodes))) and workers is None:
        listed = ", ".join(map(str, nodes[:SHOWN_NODES]))
        print_line(
            f"workers: {len(nodes)}, the nodes with rows ({listed}"
            f"{', ...' if len(nodes) > SHOWN_NODES else ''}); raise it, and add to nodes, for "
            "nodes that were never slowed"
        )
    flags = " ".join(f"--{name}" for name, key in ASKED.items() if key in placeholders)
    if placeholders:
        how = f"give {flags}, or replace them in {out}" if flags else f"replace them in {out}"
        print_sentences(f"placeholders: {', '.join(placeholders)}; {how}")
    print_line(f"next: simstrag compare {shell_word(str(out))}")


def describe_job(
    texts: Mapping[str, str | None], precision: str, workers: int | None
) -> JobDescription:
    """The job of the flags; texts: those of `UNITS`. Raises `InputError`."""
    from simstrag.whatif.first_scenario import WIDTHS, JobDescription

    if precision not in WIDTHS:
        raise InputError(f"--precision {precision}: give one of {', '.join(WIDTHS)}")
    known = {name: _parse(name, text) for name, text in texts.items() if text is not None}
    return JobDescription(workers=workers, precision=precision, **known)


def example_command(trace: Path, out: Path, placeholders: Collection[str]) -> str:
    """An `init` with an example of each flag that gives a placeholder; empty without such."""
    flags = [
        word
        for name, key in ASKED.items()
        if key in placeholders
        for word in (f"--{name}", UNITS[name][1].partition(" ")[0])
    ]
    return (
        shell_command(["simstrag", "init", str(trace), *flags, "--out", str(out)]) if flags else ""
    )


def _parse(name: str, text: str) -> Any:
    """The quantity of a flag. Raises `InputError`."""
    from simstrag.profile.plausible import require_possible
    from simstrag.whatif.first_scenario import WIDTHS

    units, example, _ = UNITS[name]
    value = parse_quantity(text, f"--{name}", units, example)
    width = WIDTHS["fp32"] if name == "parameters" else 1
    require_possible(KEYS[name], width * value, f"--{name} {text}")
    if name != "batch":
        return value
    if not value.is_integer():
        raise InputError(f"--batch {text}: must be a whole number of samples")
    return int(value)


def _ask(name: str) -> Any:
    """A quantity that is typed on the terminal; None for an empty answer."""
    _, example, what = UNITS[name]
    while True:
        text = ask(f"{what}, such as {example} (empty: a placeholder): ")
        if not text:
            return None
        try:
            return _parse(name, text)
        except InputError as error:
            print_line(error)
