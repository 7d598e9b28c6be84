"""The page of a scoreboard of claims: a table, a section and a map a claim, the identities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simstrag.analysis.charts.claim_maps import draw_map
from simstrag.analysis.pages import page_footer
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables.claim_tables import claims_table, entrants_table, points_table
from simstrag.analysis.tables.table import csv_data
from simstrag.analysis.text.claim_text import headline, sentences
from simstrag.claims.claim import Claim
from simstrag.claims.cluster_claims import SHORT
from simstrag.claims.scoreboard import ClaimResult, Scoreboard
from simstrag.runs.run import provenance


def render(board: Scoreboard, command: str | None = None) -> str:
    """The page as one HTML file. command: the command line that asked for it."""
    tables = {"claims": claims_table(board), "points": points_table(board)}
    return template("claims.html").render(
        board=board,
        headline=headline(board),
        tables=tables,
        links={row.claim.name: row.claim.name for row in board.rows},
        sections=[_section(row, board.quick) for row in board.rows],
        command=command or "simstrag claims",
        provenance=page_footer.provenance(provenance()),
        data=csv_data(tables),
    )


def _section(row: ClaimResult, quick: bool) -> Mapping[str, Any]:
    claim = row.claim
    maps = [draw_map(claim, t) for t in row.trials.values() if len(t.points) > 1]
    about = {"paper": claim.paper, "its setting": claim.setting, "nearest scenario": claim.nearest}
    return {
        "name": claim.name,
        "says": claim.says,
        "verdict": row.verdict,
        "about": {**about, "measure": claim.measure.words},
        "sentences": [*sentences(row)],
        "maps": maps,
        "entrants": entrants_table([row]) if claim.draw is not None else None,
        "scenario": _scenario(claim, quick),
        "command": f"simstrag claims --only {claim.name}{' --quick' if quick else ''}",
    }


def _scenario(claim: Claim, quick: bool) -> str:
    """The keys of its nearest scenario as YAML; that which trains where only training can tell."""
    if not claim.learners:
        return ""
    if claim.draw is not None:
        return page_footer.as_yaml(claim.draw(0, **(SHORT if quick else {})))
    scenario = claim.study(claim.learners[0], quick)["scenario"]
    return page_footer.as_yaml(scenario)
