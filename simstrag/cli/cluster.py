"""`simstrag cluster`: jobs that share nodes, under all policies, placers, managers and seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simstrag.cli.console import (
    print_brief,
    print_line,
    print_sentences,
    print_table,
)
from simstrag.cli.options import JobsOption, SeedsOption, VerboseOption, argument, flag, out_option
from simstrag.cli.output import emit, mode
from simstrag.cli.read_inputs import folder_of
from simstrag.cli.sweep import (
    AddressOption,
    BackendOption,
    ShardOption,
    draw_report,
    parse_shard,
    run_and_draw,
)
from simstrag.errors import InputError

USED = ("cores used", "card in", "card out", "GPUs used")
"""Headers of the shares of capacity that jobs used."""

if TYPE_CHECKING:
    import pandas as pd

    from simstrag.cluster.runs import ClusterResults


def cluster(
    study: Annotated[Path, argument("A cluster study in YAML.", "STUDY")],
    out: Annotated[
        Path | None, out_option("Folder of the results; reports/<study> by default.")
    ] = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = None,
    address: AddressOption = None,
    shard: ShardOption = None,
    constants: Annotated[
        bool, flag("Print the constants that managers use; measure them, but run no study.")
    ] = False,
    verbose: VerboseOption = False,
) -> None:
    """Simulate jobs that share nodes; run it again to go on."""
    if constants:
        if seeds is not None:
            raise InputError(f"--seeds {seeds}: --constants runs no study; leave it out")
        _print_constants(study)
        return
    from simstrag.cluster.runs import cluster as run_cluster

    sys.path.append(str(study.absolute().parent))
    run = partial(
        run_cluster, study, folder_of(study, out), seeds=seeds, jobs=jobs, address=address,
        shard=parse_shard(shard),
    )  # fmt: skip
    result, page, warnings = run_and_draw(run, backend, draw)
    failed, summary = result.failed, result.summary()
    warnings += _warn_of_unfinished(summary)
    document = {
        "runs": len(result.runs),
        "failed": [{**run._asdict(), "error": error} for run, error in failed.items()],
        "summary": summary.to_dict("records"),
        "warnings": warnings,
        "written": result.folder,
        "tables": result.tables,
        "report": page,
    }
    written = {"results": result.folder} if mode().quiet or page is None else {"report": page}
    shown = partial(_print, result, summary, verbose)
    emit(document, shown, warnings, **written)
    if failed:
        raise typer.Exit(1)


def _warn_of_unfinished(summary: pd.DataFrame) -> list[str]:
    """That means are of other jobs in each row, where a horizon cuts some."""
    if summary.empty or (summary["finished"] == summary["jobs"]).all():
        return []
    least, most = summary["finished"].min(), summary["finished"].max()
    ended = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    return [
        f"only {ended} of {summary['jobs'][0]:g} jobs ended by the horizon, and each row of "
        "summary.csv is of its own; the answer and the report compare those that ended in every "
        "row; raise `horizon` to compare all"
    ]


def _print_constants(path: Path) -> None:
    """Measured constants of every workload, beside STAR's of the same name."""
    from simstrag.cluster.constants import FIELDS, MIB, STAR, of_star
    from simstrag.cluster.measured_constants import measure_all
    from simstrag.cluster.study import ClusterStudy

    study = ClusterStudy.read(path)
    cores = study.each_node[0].cores
    measured = measure_all(study)
    star = {name: of_star(name, cores) for name in measured if name in STAR}

    def cell(name: str, field: str) -> str:
        unit = MIB if field in ("extra_bytes", "freed_bytes") else 1.0
        values = [getattr(of[name], field) / unit for of in (measured, star) if name in of]
        first, *others = (f"{value:.3g}" for value in values)
        return " ".join([first, *(f"({other})" for other in others)])

    def show() -> None:
        rows = [[name, *(cell(name, field) for field in FIELDS)] for name in measured]
        print_table(["workload", *FIELDS.values()], rows)
        print_line(
            f"in brackets: STAR's table; the study's managers use `constants: {study.constants}`"
        )

    document = {
        "used": study.constants,
        "measured": {name: asdict(each) for name, each in measured.items()},
        "star": {name: asdict(each) for name, each in star.items()},
    }
    emit(document, show)


def draw(result: ClusterResults) -> Path | None:
    """The report of a study."""
    from simstrag.analysis.pages.cluster_report import render

    return draw_report(result, render)


def _print(result: ClusterResults, summary: pd.DataFrame, verbose: bool) -> None:
    """The short answer; or all sentences and tables."""
    from simstrag.analysis.derived.cluster_combinations import combinations
    from simstrag.analysis.text.cluster_text import brief, cautions, sentences

    try:
        found = combinations(result)
    except InputError as error:
        print_sentences(f"no answer: {error}")
        _print_tables(result, summary)
        return
    if not verbose:
        print_brief(brief(found))
        return
    for text in sentences(found):
        print_sentences(text)
    _print_tables(result, summary)
    for text in cautions(found):
        print_sentences(f"caution: {text}")


def _print_tables(result: ClusterResults, summary: pd.DataFrame) -> None:
    """A row for each mix of policies, placer and, where jobs ask one, manager."""
    if len(summary):
        managed = set(summary["manager"]) != {"none"}
        names = ("policies", "placer", *(("manager",) if managed else ()))
        headers = (*names, "completion time, s", "over the first", "slowdown")
        rows = [_cells(row, names) for row in summary.to_dict("records")]
        if managed:  # the most that any job lost to delays, of its completion time
            headers += ("lost at most",)
            shares = summary["largest_lost_share"]
            rows = [[*row, f"{share:.2%}"] for row, share in zip(rows, shares, strict=True)]
        print_table(headers, rows)
        print_table((*names, *USED), [_used(row, names) for row in summary.to_dict("records")])
    for run, error in result.failed.items():
        print_line(f"failed: {run}: {error}")
    if len(summary) and (summary["finished"] < summary["jobs"]).any():
        print_line(
            "some jobs had not ended at the horizon: a row is of the jobs that ended in it, the "
            "report of those that ended in every row"
        )


def _cells(row: Mapping[Any, Any], names: Sequence[str]) -> list[str]:
    from simstrag.analysis.text.number_format import MISSING, estimate, number

    shown = [
        estimate(*(row[f"{name}{end}"] for end in ("", "_low", "_high"))).removesuffix(
            f" ({MISSING})"
        )
        for name in ("mean_completion_time", "ratio")
    ]
    return [*(str(row[name]) for name in names), *shown, number(row["mean_slowdown"])]


def _used(row: Mapping[Any, Any], names: Sequence[str]) -> list[str]:
    from simstrag.analysis.text.number_format import MISSING, percent
    from simstrag.cluster.utilisation import UTILISATION

    shares = [f"{percent(row[name], 2)} %" for name in UTILISATION[: len(USED)]]
    shown = [MISSING if share.startswith(MISSING) else share for share in shares]
    return [*(str(row[name]) for name in names), *shown]
