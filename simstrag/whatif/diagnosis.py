"""`diagnose`: what the files of a job say: who was slow, what it cost, why, and what would help.

    found = simstrag.diagnose("steps.csv", "nvidia-smi.csv", gpu_price=2.0)

It joins what the rooms below it find: `simstrag.records` reads, `analysis` replays steps, `losses`
splits what was lost, `hardware` looks at clocks and power, `visibility` says what the files cannot
show, and a scenario of the record compares policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simstrag.documents.printable import shell_command
from simstrag.errors import InputError
from simstrag.records.read import read_record
from simstrag.records.record import Record, Unseen
from simstrag.rendering import answer, html_fragment, html_page
from simstrag.statistics.startup import leading
from simstrag.whatif.analysis import WhatIf, analyse, check_numbers, loadable, replay_of
from simstrag.whatif.culprits import Culprit
from simstrag.whatif.fixes import pause_fixes
from simstrag.whatif.hardware import HardwareCause, hardware, rank_of
from simstrag.whatif.losses import STRAGGLERS, Losses, losses
from simstrag.whatif.network import SlowNetwork, slower_network
from simstrag.whatif.visibility import find_unseen

if TYPE_CHECKING:
    from simstrag.experiments.comparison import Comparison
    from simstrag.traces.provenance import Labelled
    from simstrag.whatif.job_scenario import JobScenario

NUMBERS, PAGE, SCENARIO, TRACE = "diagnosis.json", "report.html", "scenario.yaml", "trace.csv"
USUAL = ("lb_bsp", "drain", "backup", "cgp")
"""Policies that are compared unless others are named: the quickest of each lane on most traces
of docs/advice.md that needs no reduced precision, whose gain no record has."""
WORTH = 0.01
"""Share of the time that stragglers must cost for policies to be compared unasked."""


class PolicyGain(NamedTuple):
    """The gain of a policy on the job.

    lane: how much it changes training: A, B, C, or None where it declares nothing.
    share: of bsp's time that it saves; below 0 where it takes longer.
    """

    policy: str
    lane: str | None
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """The diagnosis of a job by its files.

    record: what was read.
    steps: the replay of its steady steps; None without steps.
    losses: what was lost, by kind; None without steps.
    network: steps in which collectives took longer; None without any.
    hardware: what clocks, power and heat show, by node.
    unseen: what the files cannot show.
    job: the scenario of the steps; None where they are of one rank, or hold the waiting.
    contention: the trace of a record without such steps; None where it shows no slowdown.
    gains: of the policies that were compared, the largest first.
    comparison: of those on `contention`.
    asked: files and options, as they were given to `diagnose`; empty for a record.
    refused: why policies were not compared; empty where they were, or none was asked for.
    folder: where it was written; None where it was not.
    """

    record: Record
    steps: WhatIf | None
    losses: Losses | None
    network: SlowNetwork | None
    hardware: tuple[HardwareCause, ...]
    unseen: tuple[Unseen, ...]
    job: JobScenario | None
    contention: Labelled | None
    gains: tuple[PolicyGain, ...]
    comparison: Comparison | None = None
    asked: tuple[str, ...] = ()
    refused: str = ""
    folder: Path | None = None

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.record.source}; print it, or write(folder)>"

    def __str__(self) -> str:
        """The short answer, as the command prints it."""
        return "\n".join(f"{line.label:8}{line.text}" for line in answer(self))

    @property
    def hides_ranks(self) -> bool:
        """Whether a slow rank may be hidden, so that no rank can be called like its peers."""
        return any(each.hides_ranks for each in self.unseen)

    def hardware_of(self, slow: Culprit) -> tuple[HardwareCause, ...]:
        """The causes on the card of a slow rank."""
        return tuple(each for each in self.hardware if rank_of(self.record, each.node) == slow.rank)

    @property
    def has_scenario(self) -> bool:
        """Whether policies can be compared on it."""
        return self.job is not None or self.contention is not None

    def commands(self, out: Path | None = None) -> tuple[str, ...]:
        """The commands that go on from here, as they have to be typed; empty without a scenario.

        out: the folder that it was written to; None where it was not.
        """
        out = out or self.folder
        if not self.has_scenario or not (out or self.asked):
            return ()
        folder = out or Path("reports") / (Path(self.asked[0]).name.partition(".")[0] or "slow")
        again = shell_command(["simstrag", "diagnose", *self.asked, "--out", str(folder)])
        reports = folder.with_name(f"{folder.name}-policies")
        compare = shell_command(
            ["simstrag", "compare", str(folder / SCENARIO), "--out", str(reports)]
        )
        return (compare,) if out is not None else (again, compare)

    @property
    def document(self) -> dict[str, Any]:
        """The contents of `--json`; those of the steps have the names of ByteDance's output."""
        record = self.record
        document: dict[str, Any] = {} if self.steps is None else self.steps.document
        about = document.setdefault("record", {"source": record.source, "format": record.form})
        about |= {
            "began": record.began or None, "nodes": list(record.nodes),
            "series": [each.quantity for each in record.series], "notes": list(record.notes),
        }  # fmt: skip
        return document | {
            "hang": record.hang or None,
            "losses": None if self.losses is None else {
                "step_seconds": self.losses.step,
                "start_up": {"steps": self.losses.start_up[0],
                             "seconds": self.losses.start_up[1]},
                "parts": [
                    {"kind": each.kind, "seconds_per_step": each.seconds, "share": each.share,
                     **each.facts}
                    for each in self.losses.parts
                ],
            },
            "network": None if self.network is None else self.network._asdict(),
            "hardware": [
                {"node": each.node, "kind": each.kind, "start": each.start, "end": each.end,
                 "slowdown": each.slowdown, **each.facts}
                for each in self.hardware
            ],
            "bounds": [
                {"quantity": each.quantity, "low": each.middle[0], "high": each.middle[1],
                 "slowest_rank": each.slowest[0] if each.slowest[1] else None}
                for each in record.bounds
            ],
            "episodes": [
                {"node": record.nodes[each.node], "start": each.start, "end": each.end,
                 "factor": each.factor, "what": each.what}
                for each in record.episodes
            ],
            "unseen": [each._asdict() for each in self.unseen],
            "gains": [each._asdict() for each in self.gains],
            "refused": self.refused or None,
            "next": list(self.commands()),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return html_fragment(self)

    def write(self, folder: str | Path, command: str | None = None) -> Path:
        """Write numbers, page and, where there is one, the scenario, to a folder; returns the page.

        command: the command line that asked for it, shown in the report.
        Raises `InputError` where the folder holds something else, an edited scenario among it, or
        cannot be written.
        """
        from simstrag.runs.run import plain, write_directory

        def fill(target: Path) -> None:
            if self.job is not None:
                self.job.write(target)
            elif self.contention is not None:
                self.contention.write(target / TRACE)
                names = [each.policy for each in self.gains] or USUAL
                text = "\n".join([*_lines_of(self.contention), _policies_line(names)]) + "\n"
                (target / SCENARIO).write_text(text, encoding="utf-8")
            _keep_edits(Path(folder), target)
            document = self.document | {"next": list(self.commands(Path(folder)))}
            numbers = json.dumps(plain(document), indent=1, allow_nan=False) + "\n"
            page = html_page(replace(self, folder=Path(folder)), command)
            for name, text in ((NUMBERS, numbers), (PAGE, page)):
                (target / name).write_text(text, encoding="utf-8")

        return write_directory(Path(folder), NUMBERS, fill) / PAGE


def _keep_edits(folder: Path, new: Path) -> None:
    """Raise `InputError` where a folder holds another scenario than the one to be written."""
    for name in (SCENARIO, TRACE):
        old = folder / name
        if (old.exists() and not (new / name).exists()) or (
            old.exists() and old.read_bytes() != (new / name).read_bytes()
        ):
            raise InputError(
                f"{old}: was edited, or is of another diagnosis; choose another folder, or remove "
                f"{folder}"
            )


def diagnose(
    *files: str | Path | Record | Sequence[str | Path],
    gpu_price: float | None = None,
    compare: str | Sequence[str] | None = None,
    amp_ratio: float | None = None,
    jobs: int | None = None,
    columns: Mapping[str, str] | None = None,
    form: str | None = None,
) -> Diagnosis:
    """What the files of one job say of slow workers.

    files: logs, profiles, metrics, folders, or one `Record`.
    gpu_price: of a GPU-hour, in any currency.
    compare: policies to simulate, such as `["korel", "ssp:bound=5"]`; a plain string is one.
        `USUAL` where stragglers cost something; none for an empty list.
    amp_ratio: what reduced precision gains in the job; a typical number if a policy needs it.
    jobs: processes that simulate; all cores by default.
    columns: names of columns by meaning, such as `{"rank": "gpu"}`.
    form: name of the format, where the content does not tell it.
    Raises `InputError` for a file that is no record, and for records that do not fit together.

    >>> print(diagnose("examples/logs/steps.csv", compare=[]))  # doctest: +ELLIPSIS
    who     Rank 2 on gpu03 takes 1.80 times as long as its peers from step 30...
    """
    compare = None if compare is None else loadable(compare)
    check_numbers(gpu_price, amp_ratio, compare is None or bool(compare))
    if len(files) == 1 and isinstance(files[0], list | tuple):
        files = tuple(files[0])
    if len(files) == 1 and isinstance(files[0], Record):
        record = files[0]
    else:
        paths: list[Any] = [each for each in files if not isinstance(each, Record)]
        if len(paths) < len(files):
            raise InputError("give files, or one record; simstrag.records.read.join joins records")
        record = read_record(*paths, columns=columns, form=form)
    causes = hardware(record) if record.series else ()
    found = (
        _of_steps(record, causes, gpu_price, compare, amp_ratio, jobs)
        if len(record)
        else _of_nodes(record, causes, compare, jobs)
    )
    options = {"--format": form, "--gpu-price": gpu_price, "--amp-ratio": amp_ratio}
    asked = [
        *(str(each) for each in files if not isinstance(each, Record)),
        *(word for name, value in options.items() if value is not None
          for word in (name, value if isinstance(value, str) else f"{value:g}")),
        *(word for pair in (columns or {}).items() for word in ("--column", "=".join(pair))),
        *(("--compare", ",".join(compare) or "none") if compare is not None else ()),
    ]  # fmt: skip
    return replace(found, asked=() if isinstance(files[0], Record) else tuple(asked))


def _of_steps(
    record: Record, causes: tuple[HardwareCause, ...], price: float | None,
    compare: Sequence[str] | None, amp_ratio: float | None, jobs: int | None,
) -> Diagnosis:  # fmt: skip
    found, lost, network = _analyse(record, price)
    layout = found.replay.layout
    unseen = found.unseen
    hides = any(each.hides_ranks for each in unseen) and not found.culprits
    job: JobScenario | None = None
    gains: tuple[PolicyGain, ...] = ()
    refused = ""
    if len(layout.replica) > 1 and not hides:
        names = compare
        if compare is None:
            names = USUAL if lost.of(STRAGGLERS).share >= WORTH else ()
        try:
            job, found, gains = _policies(found, names or (), amp_ratio, jobs)
        except InputError as error:
            if compare:  # asked for
                raise
            refused = str(error)
    elif compare:
        raise InputError(
            f"{record.source}: policies cannot be compared, because it does not show "
            f"{unseen[0].what}; what would: {unseen[0].remedy}"
        )
    diagnosis = Diagnosis(
        record, found, lost, network, causes, unseen, job, None, gains, refused=refused
    )
    if len(layout.replica) == 1 and (record.bounds or record.series or record.episodes):
        return _with_contention(diagnosis, record.of_steps(layout.step[:0]), compare, jobs)
    return diagnosis


def _analyse(record: Record, price: float | None) -> tuple[WhatIf, Losses, SlowNetwork | None]:
    """The replay of the steady steps, what was lost in them, and the start-up before them."""
    replay = replay_of(record)
    alone, numbers = replay.alone(), replay.layout.step
    first = 0 if record.is_pipeline else leading(alone)
    if first:
        record = record.of_steps(numbers[first:])
    found = analyse(record, price, replay=None if first else replay)
    own = found.replay.alone()
    longest = alone[:, :first].max(axis=0, initial=0.0)
    extra = float((longest - np.median(own.max(axis=0))).sum()) if first else 0.0
    network = slower_network(found.replay.layout)
    places = {rank: k for k, rank in enumerate(found.replay.layout.replica.tolist())}
    lost = losses(
        own, found.replay.layout.step, [(places[each.replica], each) for each in found.culprits],
        float((found.metrics.replayed - own.max(axis=0)).mean()),
        0.0 if network is None else network.lost, (first, extra),
    )  # fmt: skip
    if record.is_pipeline or found.late.waits > 1:
        fixed = (each.seconds for each in found.fixes if each.kind in ("worker", "workers"))
        lost = lost.with_stragglers(max(fixed, default=0.0))
    pauses = pause_fixes(lost, found.gpus, price)
    return replace(found, fixes=(*pauses, *found.fixes)), lost, network


def _policies(
    found: WhatIf, names: Sequence[str], amp_ratio: float | None, jobs: int | None
) -> tuple[JobScenario, WhatIf, tuple[PolicyGain, ...]]:
    """The scenario of the steps, and what policies give on it."""
    from simstrag.whatif.job_scenario import job_scenario
    from simstrag.whatif.policy_outlook import compare_policies

    job = job_scenario(
        found.record, found.replay, names or USUAL, gpus=found.gpus, gpu_price=found.gpu_price,
        amp_ratio=amp_ratio,
    )  # fmt: skip
    if not names:
        return job, found, ()
    replayed = float(found.metrics.replayed.mean())
    outlook = compare_policies(job, replayed, float(found.metrics.ideal.mean()), jobs)
    gains = (
        PolicyGain(each.policy, each.lane, 1 - max(each.seconds) / replayed)
        for each in outlook.outlooks
        if each.policy != "bsp" or "bsp" in names
    )
    return job, replace(found, policies=outlook), tuple(gains)


def _of_nodes(
    record: Record, causes: tuple[HardwareCause, ...], compare: Sequence[str] | None,
    jobs: int | None,
) -> Diagnosis:  # fmt: skip
    """Of a record without steps: what its series, extremes or episodes tell."""
    found = Diagnosis(
        record, None, None, None, causes, find_unseen(record, None), None, None, ()
    )  # fmt: skip
    return _with_contention(found, record, compare, jobs)


def _with_contention(
    found: Diagnosis, record: Record, compare: Sequence[str] | None, jobs: int | None
) -> Diagnosis:
    """With the trace of what is not steps, and the policies on it."""
    contention = _contention(record, found.hardware)
    names = USUAL if compare is None else compare
    if contention is None or not names:
        return replace(found, contention=contention)
    comparison, gains = _compare(contention, names, jobs)
    return replace(found, contention=contention, comparison=comparison, gains=gains)


def _contention(record: Record, causes: tuple[HardwareCause, ...]) -> Labelled | None:
    """The trace of a record without steps; None where it slows nothing."""
    from simstrag.traces.of_record import trace_of

    try:
        labelled = trace_of(record)
    except InputError:
        return None
    return labelled if labelled.scenario and np.any(labelled.trace.changes.value > 1) else None


def _compare(
    labelled: Labelled, names: Sequence[str], jobs: int | None
) -> tuple[Comparison, tuple[PolicyGain, ...]]:
    """The policies on the scenario of a trace, and what each saves of bsp's time."""
    from ruamel.yaml import YAML

    from simstrag.experiments.compare import compare
    from simstrag.experiments.comparison import BASELINE
    from simstrag.policies import declared_lane, load
    from simstrag.scenario.scenario import Scenario

    document = YAML(typ="safe", pure=True).load("\n".join(_lines_of(labelled)))
    scenario = Scenario.of({**document, "trace": labelled.trace}, labelled.trace.source)
    asked = [*dict.fromkeys([BASELINE, *names])]
    found = compare(scenario, asked, sensitivity=False, jobs=jobs)
    usual = float(found.column(BASELINE, "makespan").mean())
    gains = (
        PolicyGain(
            name, declared_lane(load(name), name),
            1 - float(found.column(name, "makespan").mean()) / usual,
        )
        for name in found.policies
        if name != BASELINE or BASELINE in names
    )  # fmt: skip
    return found, tuple(sorted(gains, key=lambda each: -each.share))


def _lines_of(labelled: Labelled) -> list[str]:
    """The scenario of a trace; an assumed step is such that the run spans the trace."""
    from simstrag.traces.provenance import STEPS

    spanning = f"{{compute: {labelled.trace.end / STEPS or 1.0:.6g}"
    return [
        re.sub(r"\{compute: [\d.e+-]+", spanning, line)
        if line.startswith("step: ") and line.endswith("# ASSUMED")
        else line
        for line in labelled.lines(TRACE)
    ]


def _policies_line(names: Sequence[str]) -> str:
    """The key of a scenario with the policies to compare."""
    return f"policies: {json.dumps([*dict.fromkeys(['bsp', *names])])}"
