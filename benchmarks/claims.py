"""The whole board of claims, and what it took: the table of docs/measured/claims.txt.

    python -m benchmarks.claims FOLDER [--jobs N] [--write]

Runs stay in FOLDER, so that the same command goes on after an interrupt; its `made.json` has the
seconds of every claim, without those of a claim before its interrupt.  `--write` replaces the
table.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.analysis.tables.claim_tables import claims_table
from simstrag.analysis.text.claim_text import value_text
from simstrag.claims.registry import CLAIMS
from simstrag.claims.scoreboard import FOUND, ClaimResult, Scoreboard, judge


def run_claims(folder: Path, jobs: int) -> tuple[Scoreboard, Mapping[str, float]]:
    """The board, and by claim the seconds in which its runs were computed."""
    log = folder / "made.json"
    folder.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = json.loads(log.read_text("utf-8")) if log.exists() else {}
    rows = []
    for claim in CLAIMS:
        row, took = _timed(claim.name, folder, jobs)
        rows.append(row)
        seconds[claim.name] = round(seconds.get(claim.name, 0.0) + took, 1)
        log.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
        print(f"{claim.name}: {seconds[claim.name]:.0f} s", flush=True)
    return Scoreboard(folder, False, tuple(rows)), seconds


def _timed(name: str, folder: Path, jobs: int) -> tuple[ClaimResult, float]:
    """A row and the seconds that it took; 0 where all of its runs were found finished."""
    reports, start = set[str](), time.perf_counter()
    board = judge([name], folder, jobs=jobs, on_progress=lambda _, __, what: reports.add(what))
    return board.rows[0], time.perf_counter() - start if reports - {FOUND} else 0.0


def table(board: Scoreboard, seconds: Mapping[str, float]) -> Table:
    """The board's table, with the most that each map shows and the seconds of each claim."""
    found = claims_table(board)
    rows = [
        (*map(str, cells), _most(row), f"{seconds.get(row.claim.name, 0.0):.0f}", str(where))
        for (*cells, where), row in zip(found.rows, board.rows, strict=True)
    ]
    title = f"The board, {sum(seconds.values()) / 60:.0f} minutes in all"
    *headers, where = found.headers
    return Table(title, (*headers, "most on the map", "s", where), rows)


def _most(row: ClaimResult) -> str:
    trial = next(iter(row.trials.values()), None)
    if trial is None or len(trial.points) == 1 or math.isnan(trial.best.estimate.value):
        return "–"  # noqa: RUF001 - the dash of an empty cell
    return value_text(row.claim, trial.best.estimate.value)


def main() -> None:
    """Make the board, print its table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    add_write(parser, "claims")
    given = parser.parse_args()
    found = table(*run_claims(given.folder, given.jobs))
    show([found])
    if given.write:
        keep_tables("claims", [found], describe_machine())


if __name__ == "__main__":
    main()
