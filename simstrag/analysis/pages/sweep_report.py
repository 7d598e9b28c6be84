"""The HTML report of a sweep: where which policy is fastest, and the ranking at each point."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from simstrag.analysis.charts.sweep_charts import pictures
from simstrag.analysis.derived.sweep_cells import SweepCells, sweep_cells
from simstrag.analysis.pages import page_footer
from simstrag.analysis.pages.templates import template
from simstrag.analysis.tables.sweep_tables import every_ranking, points_table, ranking_table
from simstrag.analysis.tables.table import csv_data
from simstrag.analysis.text.sweep_text import cautions, describe, outcome, sentences
from simstrag.experiments.study import OWN, text_of
from simstrag.experiments.sweep import Sweep


def render(sweep: Sweep, x: str | None = None, y: str | None = None) -> str:
    """The report of a sweep, finished or not, as one HTML file.

    x, y: keys along the axes of the picture; by default those with most values.
    Raises `InputError` for a study of one point, and for a key that was not varied.
    """
    found = sweep_cells(sweep)
    along_x, along_y, others = found.choose(x, y)
    uneven = [axis.key for axis in (along_x, along_y) if axis and not axis.even]
    tables = {"points": points_table(found), "rankings": every_ranking(found)}
    return template("sweep.html").render(
        found=found,
        sentences=sentences(found),
        cautions=cautions(found),
        pictures=pictures(found, x, y),
        panels=[axis.key for axis in others],
        uneven=uneven,
        points=tables["points"],
        rankings=[
            (describe(cell, found), outcome(cell), ranking_table(cell)) for cell in found.cells
        ],
        asked=_asked(found),
        fixed=page_footer.as_yaml(_fixed(found)),
        data=csv_data(tables),
        **page_footer.about(sweep),
    )


def _asked(found: SweepCells) -> dict[str, str]:
    values = {key: ", ".join(map(text_of, axis.values)) for key, axis in found.axes.items()}
    names = {"time_to_target": "time to target", "makespan": "makespan"}
    by = dict.fromkeys(names[time] for time in found.sweep.times)
    return values | {
        "policies": ", ".join(found.policies),
        "seeds": f"{found.seeds}, the same for every policy and at every point",
        "ranked by": " or ".join(by),
    }


def _fixed(found: SweepCells) -> Mapping[str, Any]:
    """The keys of the scenario that no point changes."""
    kept = copy.deepcopy(dict(found.sweep.study["scenario"]))
    for key, value in found.sweep.points[0].items():
        section, _, inner = key.partition(".")
        place = (kept.get(section) or {}) if inner else kept
        if key in found.axes:
            place.pop(inner or section, None)
        elif inner:
            kept[section] = {**place, inner: value}
        else:
            kept[section] = value
    return {key: value for key, value in kept.items() if key not in OWN and value != {}}
