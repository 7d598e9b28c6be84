"""A derived trace, with its label, an account of how it was made, and a scenario that runs it.

The label is a column `origin` of the file, which stays with the rows wherever the file goes.  The
account is a page beside the file: `slow.md` beside `slow.csv`; it shows the scenario in YAML.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from simstrag.documents.file_io import writable, write_atomically
from simstrag.documents.printable import printable
from simstrag.errors import InputError
from simstrag.trace.read_files import read_label
from simstrag.trace.trace import Trace

ORIGIN = "origin"
"""The column of the label."""
SUFFIXES = (".csv", ".parquet")
HEADING = "A scenario that runs as it is:"
BATCH, COMPUTE = 32, 1.0
"""Samples in a batch, and seconds of a step of unknown length; less if the trace is short."""
STEPS = 500
"""Steps of each worker in such a scenario, if the record does not say."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A trace, its label, and its sources.

    origin: the label: the format it was imported from, or a word such as `resampled`.
    sources: (name, sha256) of the files it was made of.
    notes: sentences on what is measured, derived, assumed, dropped and missing.
    cautions: those that the report of every comparison with the trace repeats.
    scenario: lines of YAML that `lines` does not add; empty if they would not make a scenario.

    >>> trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0)])
    >>> print(Labelled(trace, "mine", notes=("Measured: nothing.",)).page("slow"))
    # slow: a trace, origin mine
    <BLANKLINE>
    Rows: 1. Nodes: 1. The last row is at 0 s.
    <BLANKLINE>
    - **Measured:** nothing.
    <BLANKLINE>
    """

    trace: Trace
    origin: str
    sources: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    scenario: tuple[str, ...] = ()

    def lines(self, file: str) -> tuple[str, ...]:
        """A scenario with this trace that runs as it is; empty without `scenario`.

        file: path of the trace, as seen from the scenario.
        """
        if not self.scenario:
            return ()
        cautions = json.dumps([*map(printable, self.cautions)], ensure_ascii=False)
        return (
            *workers(self.trace.nodes), f"trace: {quoted(file)}", *self.scenario,
            *([f"cautions: {cautions}"] if self.cautions else []),
        )  # fmt: skip

    def page(self, title: str, file: str = "") -> str:
        """The account in Markdown. file: name of the trace, in the scenario that the page shows."""
        trace, scenario = self.trace, self.lines(file or f"{title}.csv")
        lines = [
            f"# {title}: a trace, origin {self.origin}",
            "",
            f"Rows: {len(trace):,}. Nodes: {len(trace.nodes)}. The last row is at {trace.end:g} s.",
            "",
        ]
        if self.sources:
            lines += [f"- from `{name}`, sha256 {digest}" for name, digest in self.sources]
        lines += [f"- {_bold(note)}" for note in self.notes]
        if scenario:
            lines += ["", HEADING, "", *(f"    {line}" for line in scenario)]
        if trace.names:
            lines += ["", "| node | called |", "|---|---|"]
            lines += [f"| {node} | {name} |" for node, name in trace.names.items()]
        return "\n".join(lines) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write the trace to `path`, CSV or parquet by its name, and its page; the page's path.

        Raises `InputError`, and writes neither, if either exists or cannot be written.
        """
        page = page_of(path)
        self.trace.write(path, **{ORIGIN: self.origin})
        text = self.page(Path(path).stem, Path(path).name)
        write_atomically(page, lambda part: part.write_text(text, encoding="utf-8"))
        return page


def page_of(path: str | Path) -> Path:
    """The page beside a new trace. Raises `InputError` if one of them cannot be written.

    >>> page_of("slow.txt")
    Traceback (most recent call last):
    simstrag.errors.InputError: slow.txt: is no name of a trace; name it *.csv or *.parquet
    """
    if writable(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: is no name of a trace; name it *.csv or *.parquet")
    return writable(Path(path).with_suffix(".md"))


def scenario_of(path: str | Path) -> tuple[str, ...]:
    """The lines of the scenario on the page beside a labelled trace; empty if there are none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0)])
    ...     _ = Labelled(trace, "mine", scenario=("updates: 9",)).write(f"{folder}/slow.csv")
    ...     scenario_of(f"{folder}/slow.csv")
    ('workers: 1', 'trace: slow.csv', 'updates: 9')
    """
    page = Path(path).with_suffix(".md")
    if origin_of(path) is None or not page.exists():
        return ()
    _, _, below = page.read_text(encoding="utf-8").partition(f"\n{HEADING}\n\n")
    block = itertools.takewhile(lambda line: line.startswith("    "), below.splitlines())
    return tuple(line.removeprefix("    ") for line in block)


def contents(paths: Sequence[str | Path]) -> tuple[tuple[str, str], ...]:
    """The `sources` of a labelled trace: name and sha256 of each file."""
    return tuple((Path(path).name, sha256(Path(path).read_bytes()).hexdigest()) for path in paths)


def origin_of(path: str | Path) -> str | None:
    """The label of a trace file; None for a plain record.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = Trace.from_rows([(0, 0, "gpu", "slowdown", 2.0)])
    ...     _ = Labelled(trace, "mine").write(f"{folder}/slow.csv")
    ...     origin_of(f"{folder}/slow.csv")
    'mine'
    """
    path = Path(path)
    return read_label(path.read_bytes(), path, ORIGIN) or None


def count_note(kind: str, *counts: tuple[int, str]) -> tuple[str, ...]:
    """A note on counts, without the counts that are 0; empty if all are 0.

    >>> count_note("Dropped", (2, "cells given twice"), (0, "rows outside"))
    ('Dropped: 2 cells given twice.',)
    >>> count_note("Dropped", (0, "cells given twice"))
    ()
    """
    stated = ", and ".join(f"{count} {what}" for count, what in counts if count)
    return (f"{kind}: {stated}.",) if stated else ()


def _bold(note: str) -> str:
    """A note with its first word, its kind, in bold."""
    kind, colon, rest = note.partition(":")
    return f"**{kind}:**{rest}" if colon and kind.isalpha() else note


def workers(nodes: Sequence[int]) -> list[str]:
    """A worker on each node.

    >>> workers([0, 1]), workers([3, 5])
    (['workers: 2'], ['workers: 2', 'nodes: [3, 5]'])
    """
    by_default = list(nodes) == list(range(len(nodes)))
    return [f"workers: {len(nodes)}", *([] if by_default else [f"nodes: {list(nodes)}"])]


def constant_allreduce(seconds: float, ranks: int) -> str:
    """An all-reduce of `ranks` ranks that takes `seconds` s.

    A ring of n ranks has 2 (n - 1) hops of alpha; without bytes they are its whole time.

    >>> constant_allreduce(0.6, 4)
    'allreduce: {alpha: 0.1, bytes: 0}  # a ring of 4: 6 hops, 0.6 s in all'
    """
    hops = 2 * (ranks - 1)
    how = f"# a ring of {ranks}: {hops} hops, {seconds:.4g} s in all"
    return f"allreduce: {{alpha: {seconds / hops:.6g}, bytes: 0}}  {how}"


def typical_step(end: float) -> float:
    """Seconds of a step of unknown length, such that a run does not outlast a trace.

    >>> typical_step(3600.0), typical_step(50.0), typical_step(0.0)
    (1.0, 0.1, 1.0)
    """
    return min(COMPUTE, end / STEPS) or COMPUTE


def run_of(steps: int, ranks: int) -> list[str]:
    """The end of a run: the samples of `steps` steps of each rank.

    >>> run_of(100, 4)
    ['samples: 12800  # 100 steps of each worker', 'learner: {batch: 32}  # ASSUMED']
    """
    samples = f"samples: {steps * ranks * BATCH}  # {steps} steps of each worker"
    return [samples, f"learner: {{batch: {BATCH}}}  # ASSUMED"]


def quoted(text: str) -> str:
    """A string in YAML, in quotes unless it can be nothing else.

    >>> quoted("slow.csv"), quoted("1.5"), quoted("no: 1.csv")
    ('slow.csv', '"1.5"', '"no: 1.csv"')
    """
    is_plain = re.fullmatch(r"[\w./][\w./-]*\.(csv|parquet)", text, re.ASCII)
    return text if is_plain else json.dumps(text, ensure_ascii=printable(text) != text)
