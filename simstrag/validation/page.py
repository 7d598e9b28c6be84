"""HTML reports of a validation and of a replay, as single files."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

from simstrag.analysis.pages.templates import fragment, template
from simstrag.analysis.tables.table import csv_data
from simstrag.rendering import html_fragment, html_page
from simstrag.runs.run import provenance
from simstrag.validation import pictures, tables
from simstrag.validation.case_results import Result
from simstrag.validation.cases import RULE
from simstrag.validation.replay import Replayed


@html_page.register
def _(result: Result, command: str | None = None) -> str:
    """The report of a validation."""
    shown = {
        "cases": tables.cases_table(result),
        "ranking": tables.ranking_table(result),
        "mitigation": tables.mitigation_table(result),
        "distributions": tables.distributions_table(result),
        "quantiles": tables.quantiles_table(result),
        "windows": tables.windows_table(result),
        "ranks": tables.ranks_table(result),
        "loads": tables.loads_table(result),
        "constants": tables.constants_table(result.constants),
        "runs": tables.runs_table(result),
    }
    drawn = [each for each in result.cases if each.real]
    plan = result.plan
    request = [
        ("workload", f"{plan.workload}, batch {plan.batch} per rank"),
        ("precisions", plan.precision),
        ("profile", plan.profile),
        ("profile sha256", plan.sha256),
        ("repetitions", f"{result.repetitions} of {result.requested} requested"),
        ("seed", str(plan.seed)),
        ("cores", f"{plan.cores}; rank r on core r modulo {plan.cores}"),
        ("schedules", RULE),
    ]
    return _rendered(
        "validation.html",
        result=result,
        answer=tables.answer(result),
        request=request,
        tables=shown,
        errors=pictures.errors(drawn) if drawn else "",
        paces=[(each.case.name, pictures.pace(each)) for each in drawn],
        curves=[
            (case.name, pictures.distributions(case.name, each))
            for case, each in result.distributions
        ],
        command=command,
        provenance=_provenance(),
        data=csv_data(shown),
    )


@html_fragment.register
def _(result: Result) -> str:
    """The table of verdicts for a notebook."""
    return fragment([tables.cases_table(result)])


@html_page.register
def _(replayed: Replayed, command: str | None = None) -> str:
    """The report of a replay."""
    shown = {"numbers": replayed.table(), "constants": tables.constants_table(replayed.constants)}
    return _rendered(
        "replay.html",
        replayed=replayed,
        tables=shown,
        paces=pictures.replayed_paces(replayed.grid, replayed.paces),
        command=command,
        provenance=_provenance(),
        data=csv_data(shown),
    )


@html_fragment.register
def _(replayed: Replayed) -> str:
    """The numbers of a replay for a notebook."""
    return fragment([replace(replayed.table(), notes=replayed.remarks)])


def _rendered(name: str, **given: Any) -> str:
    source = resources.files("simstrag.validation").joinpath(name).read_text("utf-8")
    return template("page.html").environment.from_string(source).render(**given)


def _provenance() -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in provenance().items() if not isinstance(value, dict)]
