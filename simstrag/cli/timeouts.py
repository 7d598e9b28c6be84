"""`simstrag advise --timeouts`: when to take a rank for lost, and whether to wait for it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from simstrag.advice.timeouts import SEEDS, TimeoutAdvice, timeouts
from simstrag.cli.console import command_line, print_brief, print_paragraphs, print_table
from simstrag.cli.output import emit
from simstrag.cli.progress import show_count
from simstrag.documents.file_io import write_atomically
from simstrag.runs.run import check_directory, plain
from simstrag.scenario.scenario import Scenario


def advise_on_timeouts(
    scenario: Scenario, name: str, failures: Path | None, seeds: int | None, folder: Path,
    verbose: bool,
) -> None:  # fmt: skip
    """Print the timeouts that lose least, and write their page. name: of the job."""
    from simstrag.analysis.pages.timeouts_report import render

    check_directory(folder, "timeouts.json")
    with show_count(after=10.0) as show:
        tried = SEEDS if seeds is None else seeds
        advice = timeouts(scenario, failures, seeds=tried, on_progress=show)
        show.begin_last("drawing the report")
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / "report.html"
        text = render(advice, name, command_line())
        write_atomically(page, partial(Path.write_text, data=text, encoding="utf-8"))
        document = advice.to_dict()
        numbers = json.dumps(plain(document), indent=2)
        write_atomically(folder / "timeouts.json", partial(Path.write_text, data=numbers))
    shown = partial(_print, advice, verbose)
    emit(document | {"report": page}, shown, report=page)


def _print(advice: TimeoutAdvice, verbose: bool) -> None:
    from simstrag.analysis.text.timeouts_text import brief, cautions, sentences, settings_table

    if not verbose:
        print_brief(brief(advice))
        return
    table = settings_table(advice)
    print_table(table.headers, table.rows)
    warned = (f"caution: {text}" for text in cautions(advice))
    print_paragraphs(*table.notes, *sentences(advice), *warned)
