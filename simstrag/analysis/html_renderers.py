"""Registers what this package says and draws: comparisons in words, and results as HTML."""

from __future__ import annotations

from typing import Any

from simstrag.advice.advice import Advice
from simstrag.advice.cluster_advice import ClusterAdvice
from simstrag.claims.scoreboard import Scoreboard
from simstrag.cluster.runs import ClusterResults
from simstrag.errors import InputError
from simstrag.experiments.comparison import Comparison
from simstrag.experiments.sweep import Sweep
from simstrag.profile.profile import Profile
from simstrag.rendering import answer, html_fragment, html_page
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.diagnosis import Diagnosis


@answer.register
def _(comparison: Comparison) -> Any:
    from simstrag.analysis.derived.ranking import standings
    from simstrag.analysis.text.answer import answer

    return answer(standings(comparison))


@answer.register(Advice)
@answer.register(ClusterAdvice)
def _(advice: Advice | ClusterAdvice) -> Any:
    from simstrag.analysis.text.advice_text import sentences

    return sentences(advice)


@html_fragment.register
def _(comparison: Comparison) -> str:
    from simstrag.analysis.derived.ranking import standings
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.comparison_tables import ranking_table

    return fragment([ranking_table(standings(comparison))], paragraphs=comparison.answer.sentences)


@html_page.register
def _(comparison: Comparison, command: str | None = None) -> str:
    from simstrag.analysis.pages import report

    return report.render(comparison, command)


@html_fragment.register
def _(sweep: Sweep) -> str:
    from simstrag.analysis.charts.sweep_charts import pictures
    from simstrag.analysis.derived.sweep_cells import sweep_cells
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.sweep_tables import points_table
    from simstrag.analysis.text.sweep_text import sentences

    found = sweep_cells(sweep)
    return fragment([points_table(found)], sentences(found), pictures(found) if found.axes else ())


@html_fragment.register
def _(results: ClusterResults) -> str:
    from simstrag.analysis.charts.cluster_charts import changes, completion
    from simstrag.analysis.derived.cluster_combinations import combinations
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.cluster_tables import ranking_table
    from simstrag.analysis.text.cluster_text import sentences

    try:
        found = combinations(results)
    except InputError as error:  # nothing has ended
        return fragment([], [str(error)])
    pictures = [completion(found), *([changes(found)] if len(found.every) > 1 else [])]
    return fragment([ranking_table(found)], sentences(found), pictures)


@html_fragment.register
def _(profile: Profile) -> str:
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.profile_tables import tables
    from simstrag.analysis.text.profile_text import describe

    return fragment(tables(profile), describe(profile))


@html_fragment.register
def _(found: WhatIf) -> str:
    from simstrag.analysis.charts.whatif_charts import heatmap
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.whatif_tables import fixes_table, policies_table
    from simstrag.analysis.text.whatif_text import policy_sentences, sentences

    tables = [fixes_table(found)] if found.fixes else []
    texts = [*found.warnings, *sentences(found)]
    if found.policies is not None:
        tables.append(policies_table(found.policies))
        texts += policy_sentences(found.policies)
    return fragment(tables, texts, [heatmap(found)])


@answer.register
def _(found: Diagnosis) -> Any:
    from simstrag.analysis.text.diagnosis_lines import brief

    return brief(found, found.folder)


@html_fragment.register
def _(found: Diagnosis) -> str:
    from simstrag.analysis.charts.whatif_charts import clock_map, heatmap
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.whatif_tables import fixes_table
    from simstrag.analysis.text.diagnosis_lines import lines

    steps = found.steps
    pictures = [heatmap(steps)] if steps is not None else [clock_map(found.record)]
    texts = [f"{line.label}: {line.text}" for line in lines(found)]
    tables = [] if steps is None or not steps.fixes else [fixes_table(steps)]
    return fragment(tables, texts, [each for each in pictures if each is not None])


@html_page.register
def _(found: Diagnosis, command: str | None = None) -> str:
    from simstrag.analysis.pages import diagnosis_report

    return diagnosis_report.render(found, command)


@html_fragment.register
def _(board: Scoreboard) -> str:
    from simstrag.analysis.pages.templates import fragment
    from simstrag.analysis.tables.claim_tables import claims_table
    from simstrag.analysis.text.claim_text import headline

    return fragment([claims_table(board)], [headline(board)])


@html_page.register
def _(board: Scoreboard, command: str | None = None) -> str:
    from simstrag.analysis.pages import claims_report

    return claims_report.render(board, command)
