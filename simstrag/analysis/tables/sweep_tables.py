"""Tables of a sweep, for a page, a notebook and a CSV file."""

from __future__ import annotations

from typing import Any

from simstrag.analysis.derived.sweep_cells import Cell, Ranked, SweepCells
from simstrag.analysis.tables.comparison_tables import place_cell
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.sweep_text import outcome
from simstrag.experiments.study import text_of

NUMBERS = ("mean time (s)", "time saved over bsp (%)")


def points_table(found: SweepCells) -> Table:
    """A row per point: its values, the fastest policy, its time, and what it saves."""
    rows = tuple(
        (*_values(cell, found), outcome(cell), *(_numbers(cell.best) if cell.best else ("", "")))
        for cell in found.cells
    )
    notes = (
        "Numbers are of the best mean over seeds, with 95 % intervals in brackets. Where there is "
        "no clear winner, the policies named are those that the best mean is not shown to lead.",
    )
    return Table((*found.axes, "fastest policy", *NUMBERS), rows, len(found.axes) + 1, (), notes)


def ranking_table(cell: Cell) -> Table:
    """The policies of one point, best mean first."""
    rows = tuple((p.policy, place_cell(p.place), *_numbers(p)) for p in cell.ranking)
    return Table(("policy", "place", *NUMBERS), rows)


def every_ranking(found: SweepCells) -> Table:
    """The rankings of all points in one table."""
    rows = tuple(
        (*_values(cell, found), *row) for cell in found.cells for row in ranking_table(cell).rows
    )
    return Table((*found.axes, "policy", "place", *NUMBERS), rows, len(found.axes) + 1)


def _values(cell: Cell, found: SweepCells) -> tuple[Any, ...]:
    return tuple(
        Number(text_of(cell.values[key]), cell.values[key])
        if axis.numeric
        else text_of(cell.values[key])
        for key, axis in found.axes.items()
    )


def _numbers(p: Ranked) -> tuple[Number, Number]:
    return Number.estimate(p.time), Number.estimate(p.saved, percent=True)
