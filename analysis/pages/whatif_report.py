"""The HTML report of a what-if analysis: who was slow, why, and what fixing it gives."""

from __future__ import annotations

from pathlib import Path

from simstrag.analysis.charts import whatif_charts
from simstrag.analysis.pages import facts
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables import whatif_tables
from simstrag.analysis.tables.table import csv_data
from simstrag.analysis.text.number_format import plural
from simstrag.analysis.text.whatif_text import headline, policy_sentences, sentences
from simstrag.runs.run import provenance
from simstrag.whatif.analysis import WhatIf


def render(found: WhatIf, command: str | None = None) -> str:
    """The report as one HTML file. command: the command line that asked for it."""
    layout = found.replay.layout
    tables = {"fixes": whatif_tables.fixes_table(found)} if found.fixes else {}
    tables |= {
        "operations": whatif_tables.kinds_table(found),
        "workers": whatif_tables.workers_table(found),
        "steps": whatif_tables.steps_table(found),
    }
    if found.policies is not None:
        tables["policies"] = whatif_tables.policies_table(found.policies)
    step, timeline = whatif_charts.worst_step(found)
    return template("whatif.html").render(
        job=Path(found.record.source).name,
        gpus=plural(found.gpus, "GPU"),
        headline=headline(found),
        sentences=sentences(found),
        policies=() if found.policies is None else policy_sentences(found.policies),
        cautions=list(found.record.notes),
        warnings=found.warnings,
        fullest=whatif_charts.FULLEST,
        heatmap=whatif_charts.heatmap(found),
        step=step,
        timeline=timeline,
        tables=tables,
        read={
            "format": found.record.form,
            "steps": f"{plural(len(layout.step), 'step')}, numbers {layout.step[0]} to "
            f"{layout.step[-1]}",
            "replicas": str(len(layout.replica)),
            "stages": str(layout.stages),
            "GPUs": str(found.gpus),
        },
        command=command,
        provenance=facts.provenance(provenance()),
        data=csv_data(tables),
    )
