"""The HTML report of a validation: one file that asks nobody for anything."""

from __future__ import annotations

from importlib import resources

from simstrag.analysis.page import template
from simstrag.analysis.sheets import data_of, sheet_of
from simstrag.fidelity import pictures, tables
from simstrag.fidelity.cases import RULE
from simstrag.fidelity.result import Result
from simstrag.run import provenance

__all__ = ["fragment", "render"]


def render(result: Result, command: str | None = None) -> str:
    """The report. command: what made it."""
    shown = {
        "cases": tables.cases_table(result),
        "ranking": tables.ranking_table(result),
        "mitigation": tables.mitigation_table(result),
        "windows": tables.windows_table(result),
        "ranks": tables.ranks_table(result),
        "loads": tables.loads_table(result),
        "constants": tables.constants_table(result),
        "runs": tables.runs_table(result),
    }
    drawn = tables.pictured(result)
    plan = result.plan
    asked = [
        ("workload", f"{plan.workload}, {plan.batch} samples per batch of a rank"),
        ("precisions", plan.precision),
        ("profile", plan.profile),
        ("profile sha256", plan.sha256),
        ("repetitions", f"{result.repetitions} of {result.asked} asked for"),
        ("seed", str(plan.seed)),
        ("cores", f"{plan.cores}; rank r on the r-th, round about"),
        ("schedules", RULE),
    ]
    source = resources.files("simstrag.fidelity").joinpath("validation.html").read_text("utf-8")
    environment = template("page.html").environment
    return environment.from_string(source).render(
        result=result,
        answer=tables.answer(result),
        asked=asked,
        tables=shown,
        errors=pictures.errors(drawn) if drawn else "",
        paces=[(each.case.name, pictures.pace(each)) for each in drawn],
        command=command,
        provenance=[
            (key, str(value)) for key, value in provenance().items() if not isinstance(value, dict)
        ],
        data=data_of(sheet_of(name, table) for name, table in shown.items()),
    )


def fragment(result: Result) -> str:
    """The verdicts as an HTML fragment, for a notebook."""
    return template("ranking.html").render(table=tables.cases_table(result))
