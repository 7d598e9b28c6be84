"""What is in a profile, as tables in words: for a terminal, a notebook, and whoever asks."""

# ruff: noqa: RUF002 - dashes are meant

from __future__ import annotations

from html import escape

from simstrag.analysis.tables.profile_network import (
    collective_fits,
    collectives,
    locksteps,
    overlaps,
    transfers,
)
from simstrag.analysis.tables.profile_pairs import pairs_table
from simstrag.analysis.tables.profile_steps import batch_fits, laws, levels, steps
from simstrag.analysis.text.number_format import number, percent
from simstrag.analysis.text.profile_text import MS, Table, head, shown
from simstrag.profile.profile import Profile

__all__ = ["html", "tables"]


def tables(profile: Profile) -> list[Table]:
    """Those that have rows, in the order in which one asks: steps, contention, communication, ...

    >>> from simstrag.profile.profile import Profile
    >>> median = {"value": 0.02, "kind": "measured", "low": 0.019, "high": 0.021}
    >>> profile = Profile.model_validate({
    ...     "name": "a card", "date": "", "command": "", "device": {}, "software": {},
    ...     "cells": [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}],
    ... })
    >>> (table,) = tables(profile)
    >>> table.title, table.rows[0][:3]
    ('Steps', ['fp32', '8', '20 (19–21)'])
    """
    made = [
        steps(profile), batch_fits(profile), laws(profile), levels(profile), pairs_table(profile),
        *collectives(profile), collective_fits(profile), transfers(profile), overlaps(profile),
        locksteps(profile), learning(profile), amp_ratios(profile), constants(profile),
        held_out(profile), skipped(profile),
    ]  # fmt: skip
    return [table.trimmed() for table in made if table.rows]


def html(profile: Profile) -> str:
    """All of it as an HTML fragment, for a notebook."""
    import pandas as pd

    said = [f"<p>{escape(text)}</p>" for text in head(profile)]
    for table in tables(profile):
        frame = pd.DataFrame(table.rows, columns=table.headers)
        said += [f"<h4>{escape(table.title)}</h4>", frame.to_html(index=False)]
        said += [f"<p><small>{escape(note)}</small></p>" for note in table.notes]
    return "\n".join(said)


def learning(profile: Profile) -> Table:
    """The gradient noise scale."""
    rows = [[number(at.batch), str(at.trained), shown(at.scale)] for at in profile.learning]
    headers = ["small batch", "samples trained", "noise scale (samples)"]
    return Table("Gradient noise scale along training", headers, rows)


def amp_ratios(profile: Profile) -> Table:
    """Full over reduced precision, by model."""
    rows = [
        [r.model, r.device, number(r.batch), f"{r.full} / {r.amp}", shown(r.ratio), r.source]
        for r in profile.amp_ratios
    ]
    headers = ["model", "device", "batch", "precisions", "gain", "source"]
    return Table("Gain of reduced precision", headers, rows, wraps=5)


def constants(profile: Profile) -> Table:
    """What a simulation takes where its scenario states nothing else."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for part, units in UNITS.items():
        for name, (unit, scale) in units.items():
            quantity = getattr(getattr(profile, part), name, None)
            if quantity is not None:
                rows.append([
                    f"{part}.{name}", shown(quantity, scale).removesuffix(" (assumed)"), unit,
                    quantity.kind, number(quantity.n),
                ])  # fmt: skip
                notes += [f"{part}.{name}: {quantity.note}"] if quantity.note else []
    headers = ["constant", "value", "unit", "how", "samples"]
    return Table("What a simulation reads", headers, rows, tuple(notes))


UNITS = {
    "step": {
        "compute": ("ms", MS), "host_share": ("", 1.0), "amp_ratio": ("", 1.0),
        "amp_ratio_contended": ("", 1.0), "amp_switch": ("ms", MS),
    },
    "allreduce": {
        "alpha": ("µs", 1e6), "bandwidth": ("GB/s", 1e-9), "bytes": ("MB", 1e-6),
        "overlap": ("", 1.0), "intra_alpha": ("µs", 1e6), "intra_bandwidth": ("GB/s", 1e-9),
    },
    "server": {"service": ("ms", MS), "push": ("ms", MS), "pull": ("ms", MS)},
}  # fmt: skip
"""Unit in which a constant is shown, and what its value is multiplied by for that."""


def held_out(profile: Profile) -> Table:
    """How well the fits predict what they were not made of."""
    rows = [
        [
            h.part, str(len(h.cells)), percent(h.median), percent(h.threshold),
            "yes" if h.median <= h.threshold else "NO",
            f"{percent(h.worst)} ({max(h.cells, key=lambda c: abs(c.error)).cell})",
        ]
        for h in profile.held_out
    ]  # fmt: skip
    headers = ["part", "cells", "median error (%)", "at most (%)", "holds", "worst (%)"]
    rule = "Absolute errors of cells that no fit had seen, chosen by a rule fixed beforehand."
    notes = [f"{h.part}: {h.note}" for h in profile.held_out if h.note]
    return Table("Predicted and held out", headers, rows, (rule, *notes), wraps=5)


def skipped(profile: Profile) -> Table:
    """What could not be measured."""
    rows = [[each.cell, each.reason] for each in profile.skipped]
    return Table("Skipped", ["cell", "reason"], rows, wraps=1)
