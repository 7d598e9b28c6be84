"""Registers what this package draws: comparisons and profiles as HTML."""

from __future__ import annotations

from simstrag.experiments.compare import Comparison
from simstrag.profile.profile import Profile
from simstrag.rendering import html_fragment, html_page


@html_fragment.register
def _(comparison: Comparison) -> str:
    from simstrag.analysis.derived.standings import standings
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.comparison_tables import ranking_table

    return fragment([ranking_table(standings(comparison))])


@html_page.register
def _(comparison: Comparison, command: str | None = None) -> str:
    from simstrag.analysis.pages import report

    return report.render(comparison, command)


@html_fragment.register
def _(profile: Profile) -> str:
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.profile_tables import describe, tables

    return fragment(tables(profile), describe(profile))
