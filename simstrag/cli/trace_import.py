"""`simstrag trace import`: a trace from what others have recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simstrag.cli.console import print_json, print_paragraphs, print_path
from simstrag.cli.options import Json, Quiet
from simstrag.errors import InputError

__all__ = ["import_"]

FEW = 8
"""Names of nodes that are printed; the page has them all."""


def import_(
    name: Annotated[
        str,
        typer.Argument(
            help="alibaba-pai-minibatch, bytedance-straggler, kineto or utilisation.",
            metavar="FORMAT", show_default=False,
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(help="What to import.", metavar="FILE...", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, or parquet by its name.", metavar="TRACE")
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="Of a utilisation: gpu=NAME, time=NAME, ...", metavar="WHAT=NAME"),
    ] = None,
    fraction: Annotated[
        bool | None,
        typer.Option("--fraction/--percent", help="What utilisation is told in; percent."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(help="Share of it that is the job's own: gpu=0.6.", metavar="WHAT=SHARE"),
    ] = None,
    clean: Annotated[
        float | None,
        typer.Option(help="Of a PAI job: quantile that is clean; 0.", metavar="Q"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Make a trace of a record, and a page beside it that says how."""
    from simstrag.traces.formats import import_trace
    from simstrag.traces.labelled import page_of

    page_of(out)
    found = import_trace(
        name, files, clean=clean, fraction=fraction, columns=_pairs("--column", column),
        own=_numbers("--own", _pairs("--own", own)),
    )  # fmt: skip
    page = found.write(out)
    if as_json:
        print_json({
            "trace": out, "page": page, "rows": len(found.trace), "origin": found.origin,
            "notes": list(found.notes), "scenario": list(found.lines(str(out))),
            "nodes": dict(zip(map(str, found.trace.nodes), found.names, strict=False)),
        })  # fmt: skip
        return
    print_path("trace", out, quiet)
    if not quiet:
        print_path("page", page)
        print_paragraphs(*found.notes)
        _more(found.lines(str(out)), found.trace.nodes, found.names)


def _more(scenario: tuple[str, ...], nodes: tuple[int, ...], names: tuple[str, ...]) -> None:
    """What goes into a scenario, and what its nodes were called."""
    if scenario:
        print("a scenario that runs as it is:", *(f"  {line}" for line in scenario), sep="\n")
    if names and list(names) != list(map(str, nodes)):
        called = [f"{node} is {name}" for node, name in zip(nodes, names, strict=True)]
        rest = [f"... ({len(names)} in all, in the page)"] if len(names) > FEW else []
        print(f"nodes: {', '.join(called[:FEW] + rest)}")


def _pairs(option: str, given: list[str] | None) -> dict[str, str] | None:
    """`WHAT=NAME`, each at most once."""
    if not given:
        return None
    found: dict[str, str] = {}
    for text in given:
        what, equals, name = (part.strip() for part in text.partition("="))
        if not what or not equals or not name:
            raise InputError(f"{option} {text}: write it as what=value, such as gpu=...")
        if what in found:
            raise InputError(f"{option} {text}: {what} is {found[what]} already; say it once")
        found[what] = name
    return found


def _numbers(option: str, pairs: dict[str, str] | None) -> dict[str, float] | None:
    if pairs is None:
        return None
    found = {}
    for what, text in pairs.items():
        try:
            found[what] = float(text)
        except ValueError:
            raise InputError(f"{option} {what}={text}: '{text}' is not a number") from None
    return found
