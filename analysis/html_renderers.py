"""Registers what this package says and draws: comparisons in words, and results as HTML."""

from __future__ import annotations

from typing import Any

from simstrag.experiments.comparison import Comparison
from simstrag.profile.profile import Profile
from simstrag.rendering import answer, html_fragment, html_page


@answer.register
def _(comparison: Comparison) -> Any:
    from simstrag.analysis.derived.standings import standings
    from simstrag.analysis.text.answer import answer

    return answer(standings(comparison))


@html_fragment.register
def _(comparison: Comparison) -> str:
    from simstrag.analysis.derived.standings import standings
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.comparison_tables import ranking_table

    return fragment([ranking_table(standings(comparison))], paragraphs=comparison.answer.sentences)


@html_page.register
def _(comparison: Comparison, command: str | None = None) -> str:
    from simstrag.analysis.pages import report

    return report.render(comparison, command)


@html_fragment.register
def _(profile: Profile) -> str:
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.profile_tables import describe, tables

    return fragment(tables(profile), describe(profile))
