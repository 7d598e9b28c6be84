"""A first scenario for a contention trace: it runs as it is, and lists the numbers not given.

The trace gives the workers, their nodes and the slowed resources, the page beside an imported trace
the sections that its importer derived, a `JobDescription` the rest.  What is missing then is a
typical number, never 0, and named in the scenario's `placeholders`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from ruamel.yaml import YAML

from simstrag.documents.file_io import check_writable, path_of, write_atomically
from simstrag.documents.printable import printable
from simstrag.engine.simulate import check
from simstrag.errors import InputError
from simstrag.profile.responses import law_of
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.sections import MOST
from simstrag.timing.constants import AllReduce, server_on_link
from simstrag.timing.noise import share_seen
from simstrag.trace.trace import Trace
from simstrag.traces.provenance import BATCH, STEPS, quoted, scenario_of, typical_step, workers

POLICIES = ("bsp", "lb_bsp", "drain", "backup", "ssp", "cgp", "asgd")
"""Policies that do not need the gain of reduced precision."""
WORKERS_OF_ONE_NODE = 4
"""Workers for a trace of one node; only the first is ever slowed."""
LEAST_UPDATES, MOST_STEPS = 50, 40_000
"""Least updates of a run, and most steps of all workers: a first comparison takes minutes."""
SEEDS, MOST_SEEDS = 10, 40
"""Runs of each policy, and most of them where fewer see too little of the trace."""
ENOUGH = 0.9
"""The share of a trace that the runs see."""
LATENCY, LINK, PARAMETERS = 5e-5, 1.25e9, 25e6
"""Seconds per hop of TCP; bytes/s of 10 Gbit Ethernet; the parameters of a ResNet-50."""
NOISE_SCALE = 500
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}
"""Bytes of a parameter in a gradient, by its precision."""
TARGET = 0.8
"""The target, as a share of the progress of bsp after the samples."""
UNKNOWN_WORKERS = "placeholders: [workers]"
"""The line by which an importer says that its log may lack workers."""
LOAD = "contention"
"""The section of the assumed law of loads."""
ORDER = ("step", "noise", "allreduce", "server", "learner")
"""The order of sections; others follow."""
WIDTH = 96
"""Most characters of a line of the list of placeholders."""


@dataclass(frozen=True, slots=True)
class JobDescription:
    """Known facts about a job; None for what is not known.

    step: seconds of a step in full precision on an idle node.
    parameters: size of the model.
    link: bytes/s of the link of a node.
    latency: seconds per hop.
    batch: samples of a worker's step.
    precision: of gradients, a key of `WIDTHS`.
    """

    workers: int | None = None
    step: float | None = None
    parameters: float | None = None
    link: float | None = None
    latency: float | None = None
    batch: int | None = None
    precision: str = "fp32"


class Entry(NamedTuple):
    """A key of a section; given: whether its value was given or measured."""

    value: Any
    comment: str
    given: bool = True


Sections = dict[str, dict[str, Entry]]


def write_first_scenario(
    trace: str | Path, out: str | Path, job: JobDescription = JobDescription()
) -> Path:
    """Write `first_scenario` to a file that does not exist yet, and return its path.

    Raises `InputError` if the trace cannot be simulated, or `out` cannot be written.

    >>> import tempfile
    >>> trace = Trace.from_rows([(0, 2, "gpu", "slowdown", 1), (60, 3, "gpu", "slowdown", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace.write(Path(folder) / "slow.csv")
    ...     path = write_first_scenario(Path(folder) / "slow.csv", Path(folder) / "mine.yaml")
    ...     Scenario.read(path).nodes
    (2, 3)
    """
    trace = path_of(trace, "a trace")
    if not isinstance(job, JobDescription):
        raise InputError(f"job {job!r} is none; give JobDescription(...)")
    out = check_writable(path_of(out, "a scenario to write"))
    if os.path.lexists(out):
        raise InputError(f"{out}: is there already; choose another name with --out")
    # Either path may contain a symbolic link.
    name = os.path.relpath(trace.parent.resolve() / trace.name, out.parent.resolve())
    text = first_scenario(Trace.read(trace), name, scenario_of(trace), job)
    scenario = Scenario.of(_read(text), str(out), out.parent)
    for policy in POLICIES:
        check(scenario, policy, 0)
    write_atomically(out, lambda part: part.write_text(text, encoding="utf-8"))
    return out


def read_first_scenario(trace: Path, job: JobDescription = JobDescription()) -> Scenario:
    """The first scenario of a trace file, not written. Raises as `write_first_scenario` does."""
    recorded = scenario_of(trace)
    text = first_scenario(Trace.read(trace), str(trace.absolute()), recorded, job)
    return Scenario.of(_read(text), f"the first scenario of {trace}", trace.parent)


def first_scenario(
    trace: Trace, name: str, recorded: Sequence[str] = (), job: JobDescription = JobDescription()
) -> str:
    """A commented scenario in YAML, by the template `first_scenario.yaml.jinja`.

    name: path of the trace, as seen from the scenario's folder.
    recorded: lines of a scenario that the trace's importer wrote.

    >>> trace = Trace.from_rows([(0, 2, "gpu", "slowdown", 1), (60, 3, "gpu", "slowdown", 2)])
    >>> print(first_scenario(trace, "slow.csv"))  # doctest: +ELLIPSIS
    # A first scenario...
    workers: 2...
    nodes: [2, 3]...
    """
    nodes = _nodes(trace, job.workers)
    sections = _sections(trace, nodes, job, _derived(recorded))
    placeholders = _placeholders(trace, sections, job, recorded)
    listed = textwrap.wrap(f"[{', '.join(placeholders)}]", WIDTH, subsequent_indent=" " * 15)
    learner = sections["learner"]
    step = sections.get("step") or {"compute": Entry(_mean_duration(trace), "")}
    compute = step["compute"].value
    updates = max(LEAST_UPDATES, min(STEPS, MOST_STEPS // len(nodes)))
    batch = len(nodes) * learner["batch"].value
    seeds, seen = _seeds(trace, updates * compute)
    span = f"; the trace spans {trace.end:.4g} s" if trace.end > 0 else ""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["beside"] = _beside
    template = Path(__file__).with_name("first_scenario.yaml.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        trace=trace,
        name=quoted(name),
        placeholders="\n".join(listed) if placeholders else "",
        one_node="workers" in placeholders and len(trace.nodes) == 1,
        only_slow="workers" in placeholders,
        workers=workers(nodes),
        slowed=[] if _recovers(trace) else _slowed_at_the_end(trace),
        forgotten=_slowed_at_the_end(trace, before=False),
        seen=seen,
        compute=compute,
        sections={key: _lines(key, entries) for key, entries in sections.items()},
        slows_links=_slows(trace, "net"),
        whole=_is_whole(sections["allreduce"]),
        samples=updates * batch,
        length=f"{updates} updates, {updates * compute:.4g} s of computing{span}",
        share=TARGET,
        target=TARGET * updates * batch / (learner["noise_scale"].value + batch),
        cautions=[_wrapped(text) for text in _cautions(recorded)],
        policies=POLICIES,
        seeds=seeds,
    )


def missing(path: Path, job: JobDescription) -> list[str]:
    """The placeholders of a first scenario for a trace file."""
    trace = Trace.read(path)
    recorded = scenario_of(path)
    sections = _sections(trace, _nodes(trace, job.workers), job, _derived(recorded))
    return _placeholders(trace, sections, job, recorded)


def _placeholders(
    trace: Trace, sections: Sections, job: JobDescription, recorded: Sequence[str]
) -> list[str]:
    """The numbers not given."""
    is_known = job.workers is not None or (len(trace.nodes) > 1 and UNKNOWN_WORKERS not in recorded)
    return ([] if is_known else ["workers"]) + [
        f"{section}.{key}"
        for section, entries in sections.items()
        for key, entry in entries.items()
        if not entry.given
    ]


def _read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def _beside(line: str, comment: str) -> str:
    return f"{line:<26} # {comment}"


def _lines(section: str, entries: Mapping[str, Entry]) -> str:
    """A section in YAML, a key a line."""
    lines = [f"{section}:"]
    for key, (value, comment, given) in entries.items():
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value}"
        if re.fullmatch(r"\d+e.*", shown):  # YAML wants a point
            shown = shown.replace("e", ".0e")
        lines.append(_beside(f"  {key}: {shown}", ("" if given else "PLACEHOLDER: ") + comment))
    return "\n".join(lines)


def _nodes(trace: Trace, wanted: int | None) -> list[int]:
    """The node of each worker: those of the trace, then nodes that are never slowed."""
    nodes = list(trace.nodes)
    if wanted is None:
        wanted = len(nodes) if len(nodes) > 1 else WORKERS_OF_ONE_NODE
    if wanted > MOST:
        raise InputError(f"--workers {wanted}: must be {MOST} or less")
    if wanted < len(nodes):
        raise InputError(
            f"--workers {wanted}: the trace has rows of {len(nodes)} nodes; give at least as many, "
            "or choose `workers` and `nodes` in the scenario"
        )
    others = (node for node in itertools.count(nodes[0]) if node not in trace.nodes)
    return sorted([*nodes, *itertools.islice(others, wanted - len(nodes))])


def _recovers(trace: Trace) -> bool:
    """Whether a slowdown ends, or becomes less, within the trace."""
    return any(
        abs(after - 1) < abs(value - 1)
        for (_, _, kind), rows in trace.by_key().items()
        if kind == "slowdown"
        for (_, value), (_, after) in itertools.pairwise(rows)
    )


def _slowed_at_the_end(trace: Trace, before: bool = True) -> list[str]:
    """The nodes that the last rows leave slowed; before: also those that were slowed earlier."""
    return [
        f"{node} ({resource})"
        for (node, resource, kind), rows in sorted(trace.by_key().items())
        if kind == "slowdown"
        and rows[-1][1] != 1
        and (before or all(time == trace.end or value == 1 for time, value in rows))
    ]


def _seeds(trace: Trace, length: float) -> tuple[int, str]:
    """How many runs see enough of the trace, which begin at different moments, and what they see.

    length: of a run, in seconds.
    """
    if trace.replays or not 0 < length < trace.end:
        return SEEDS, ""
    shares = ((n, share_seen(range(n), length / trace.end)) for n in range(SEEDS, MOST_SEEDS + 1))
    n, share = next((each for each in shares if each[1] >= ENOUGH), (MOST_SEEDS, 0.0))
    share = share or share_seen(range(n), length / trace.end)
    return n, f"{n} seeds, of {length:.4g} s of computing each, see {share:.0%} or more"


def _slows(trace: Trace, resource: str) -> bool:
    return any(resource == each for _, each, _ in trace.keys)


def _mean_duration(trace: Trace) -> float:
    """The mean of the recorded durations; NaN without any."""
    durations = [row.value for row in trace.rows if row.kind == "duration"]
    return sum(durations) / len(durations) if durations else math.nan


def _derived(recorded: Sequence[str]) -> Sections:
    """The sections on the page beside a trace; of what its importer assumed, the law of loads."""
    taken = [line for line in recorded if "ASSUMED" not in line or line.startswith(LOAD)]
    stated = _read("\n".join(taken)) or {}
    return {
        section: {
            key: Entry(value, "as the trace's importer derived it") for key, value in keys.items()
        }
        if section != LOAD
        else {key: Entry(value, _law(value), False) for key, value in keys.items()}
        for section, keys in stated.items()
        if isinstance(keys, dict)
    }


def _cautions(recorded: Sequence[str]) -> list[str]:
    """Cautions of the importer that a report must repeat."""
    lines = [line for line in recorded if line.startswith("cautions:")]
    return [str(each) for line in lines for each in _read(line)["cautions"]]


def _wrapped(text: str) -> str:
    """An item of a list in YAML; a line's end in quotes is a space."""
    shown = json.dumps(printable(text), ensure_ascii=False)
    return textwrap.fill(
        f"- {shown}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _law(response: float) -> str:
    other = 3 - response
    return f"a load u slows by {law_of(response)}; {other}: by {law_of(other)}"


def _sections(
    trace: Trace, nodes: Sequence[int], job: JobDescription, derived: Sections
) -> Sections:
    """All sections: what the job gives, else what the importer derived, else what is typical."""
    sections = dict(derived)
    if not trace.nodes_with_durations >= set(nodes):
        sections.setdefault("step", _step(trace))
    if job.step is not None:
        given = Entry(job.step, "seconds of a step in full precision")
        sections["step"] = sections.get("step", {}) | {"compute": given}
    sections["allreduce"] = _allreduce(job, derived.get("allreduce", {}))
    if "server" not in derived:
        sections["server"] = _server(sections["allreduce"], len(nodes), _slows(trace, "net"))
    sections["learner"] = _learner(job) | derived.get("learner", {})
    order = [*ORDER, *(key for key in sections if key not in ORDER)]
    return {key: sections[key] for key in order if key in sections}


def _step(trace: Trace) -> dict[str, Entry]:
    """A step on an idle node; without recorded durations, all updates fit within the trace."""
    compute = Entry(_mean_duration(trace), "seconds: the mean of those recorded")
    if math.isnan(compute.value):
        what = "seconds of a step in full precision; an example, --step"
        compute = Entry(typical_step(trace.end), what, False)
    host = Entry(0.2, "the part of it that host contention stretches", False)
    return {
        "compute": compute,
        **({"host_share": host} if _slows(trace, "host") else {}),
        "cv": Entry(0.05, "its noise, standard deviation over mean", False),
    }


def _allreduce(job: JobDescription, derived: dict[str, Entry]) -> dict[str, Entry]:
    """Given values replace derived ones, derived ones typical ones.

    Without derived bytes, alpha holds the time of the whole all-reduce
    (`provenance.constant_allreduce`), which only a link and parameters together replace.
    """
    width = WIDTHS[job.precision]
    typical = {
        "alpha": Entry(LATENCY, "seconds per hop; as of TCP, --latency", False),
        "bandwidth": Entry(LINK, "bytes/s of a link; 10 Gbit Ethernet, --link", False),
        "bytes": Entry(
            width * PARAMETERS, f"{width} x 25 million, as in ResNet-50, --parameters", False
        ),
    }
    given: dict[str, Entry] = {}
    if job.latency is not None:
        given["alpha"] = Entry(job.latency, "seconds per hop")
    if job.link is not None:
        given["bandwidth"] = Entry(job.link, "bytes/s of a link")
    if job.parameters is not None:
        given["bytes"] = Entry(width * job.parameters, f"{width} x {job.parameters:.4g} parameters")
    if derived and (not given or _is_kept(derived, job)):
        return derived
    return typical | ({} if _is_whole(derived) else derived) | given


def _is_whole(derived: Mapping[str, Entry]) -> bool:
    """Whether a derived all-reduce is its whole time, without bytes."""
    return bool(derived) and not ("bytes" in derived and derived["bytes"].value)


def _is_kept(derived: Mapping[str, Entry], job: JobDescription) -> bool:
    return _is_whole(derived) and None in (job.link, job.parameters)


FLAGS = ("latency", "link", "parameters")
"""The flags that describe an all-reduce."""


def describe_measured_allreduce(path: Path, job: JobDescription) -> str:
    """What flags do to the all-reduce that a log measured; empty if they do nothing."""
    derived = _derived(scenario_of(path)).get("allreduce", {})
    flags = [f"--{name}" for name in FLAGS if getattr(job, name) is not None]
    if not flags or not derived:
        return ""
    if _is_kept(derived, job):
        return (
            f"the all-reduce stays as the log measured it, without {' and '.join(flags)}; --link "
            "and --parameters together replace it"
        )
    if not _is_whole(derived):
        return f"{' and '.join(flags)} replaced what the log measured of the all-reduce"
    return "the all-reduce is that of --link and --parameters, not as the log measured it"


def _server(allreduce: Mapping[str, Entry], n: int, slows_links: bool) -> dict[str, Entry]:
    """One server on a link like the workers'; typical times where the all-reduce tells none."""
    constants = AllReduce(**{key: entry.value for key, entry in allreduce.items()})
    if server_on_link(constants, n, slows_links).service:
        link = "store_and_forward" if slows_links else "cut_through"
        return {"link": Entry(link, "as in the all-reduce: service, push and pull follow")}
    gradient = WIDTHS["fp32"] * PARAMETERS / LINK
    push = LATENCY + gradient if slows_links else LATENCY
    return {
        "service": Entry(gradient, "seconds at the server", False),
        "push": Entry(push, "seconds to the server", False),
        "pull": Entry(LATENCY + gradient, "seconds from the server", False),
    }


def _learner(job: JobDescription) -> dict[str, Entry]:
    batch = Entry(BATCH, "samples of a worker; an example, --batch", False)
    return {
        "batch": batch if job.batch is None else Entry(job.batch, "samples of a worker"),
        "noise_scale": Entry(NOISE_SCALE, "samples; `simstrag calibrate` measures it", False),
        "c_tau": Entry(1.0, "what a stale sample costs, relative to a fresh one", False),
    }
