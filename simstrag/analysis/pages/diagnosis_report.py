"""The HTML report of a diagnosis: who was slow, what it cost, why, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simstrag.analysis.charts import whatif_charts
from simstrag.analysis.pages import page_footer
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables import whatif_tables
from simstrag.analysis.tables.table import csv_data
from simstrag.analysis.text.diagnosis_lines import headline, lines
from simstrag.analysis.text.whatif_text import policy_sentences, sentences
from simstrag.runs.run import provenance
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.diagnosis import Diagnosis


def render(found: Diagnosis, command: str | None = None) -> str:
    """The report as one HTML file. command: the command line that asked for it."""
    record, steps = found.record, found.steps
    tables = {} if found.losses is None else {"losses": whatif_tables.losses_table(found.losses)}
    if found.hardware:
        tables["hardware"] = whatif_tables.hardware_table(found.hardware)
    first = headline(found)
    shown: dict[str, Any] = {} if steps is None else _of_steps(steps)
    tables |= shown.pop("tables", {})
    return template("diagnosis.html").render(
        job=Path(record.source.split(" and ")[0]).name,
        headline=first,
        lines=[line for line in lines(found) if line.text != first],
        notes=list(record.notes),
        steps=steps,
        clocks=whatif_charts.clock_map(record),
        tables=tables,
        read={
            "files": record.source,
            "format": record.form,
            **({} if not record.began else {"began": record.began}),
            **({} if not record.nodes else {"nodes": ", ".join(record.nodes)}),
        },
        command=command,
        provenance=page_footer.provenance(provenance()),
        data=csv_data(tables),
        **shown,
    )


def _of_steps(steps: WhatIf) -> dict[str, Any]:
    """The variables of the page for a replay: tables, sentences, charts."""
    tables = {"fixes": whatif_tables.fixes_table(steps)} if steps.fixes else {}
    tables |= {
        "operations": whatif_tables.kinds_table(steps),
        "workers": whatif_tables.workers_table(steps),
        "steps": whatif_tables.steps_table(steps),
    }
    if steps.policies is not None:
        tables["policies"] = whatif_tables.policies_table(steps.policies)
    step, timeline = whatif_charts.worst_step(steps)
    return {
        "tables": tables,
        "sentences": sentences(steps),
        "warnings": steps.warnings,
        "policies": () if steps.policies is None else policy_sentences(steps.policies),
        "fullest": whatif_charts.FULLEST,
        "heatmap": whatif_charts.heatmap(steps),
        "step": step,
        "timeline": timeline,
    }
