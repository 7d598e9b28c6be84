"""The HTML report of advice on timeouts: what to set, what that loses, and the two curves."""

from __future__ import annotations

from simstrag.advice.timeouts import TimeoutAdvice
from simstrag.analysis.charts.timeout_charts import false_alarms, lost_hours
from simstrag.analysis.pages import page_footer
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables.table import csv_data
from simstrag.analysis.text.timeouts_text import cautions, sentences, settings_table
from simstrag.runs.run import provenance


def render(advice: TimeoutAdvice, job: str, command: str | None = None) -> str:
    """The report as one HTML file.

    job: what the job is called.
    command: the command line that asked for it.
    """
    table = settings_table(advice)
    return template("timeouts.html").render(
        job=job,
        sentences=sentences(advice),
        cautions=cautions(advice),
        settings=table,
        false_alarms=false_alarms(advice),
        lost_hours=lost_hours(advice),
        command=command,
        provenance=page_footer.provenance(provenance()),
        data=csv_data({"settings": table}),
    )
