"""Jobs that shared a device two by two, of a profile whose source says who ran beside whom.

Such a source tells no level of a load, so that no law can be fitted; see `recordings` of a profile.
"""

# ruff: noqa: RUF001 - a multiplication sign is meant

from __future__ import annotations

import statistics

import numpy as np
from matplotlib.axes import Axes

from simstrag.analysis.charts.profile_marks import logarithmic, look
from simstrag.analysis.text.number_format import number
from simstrag.analysis.text.profile_text import Table
from simstrag.profile.profile import Profile

__all__ = ["pairs", "pairs_panel", "pairs_table"]


def pairs(profile: Profile) -> dict[str, list[float | None]]:
    """Slowdowns of each job beside the others, None where the two did not fit into memory.

    >>> from simstrag.profile.profile import Profile
    >>> given = {"name": "a card", "date": "", "command": "", "device": {}, "software": {}}
    >>> beside = {"slowdown_beside": {"resnet": {"lm": 1.5, "gan": None}}}
    >>> pairs(Profile.model_validate({**given, "recordings": beside}))
    {'resnet': [1.5, None]}
    """
    found = profile.recordings.get("slowdown_beside", {})
    return {job: list(beside.values()) for job, beside in found.items() if beside}


def pairs_table(profile: Profile) -> Table:
    """Each job: beside how many, and by how much it was slowed."""
    rows = []
    for job, slowdowns in pairs(profile).items():
        known = [value for value in slowdowns if value is not None]
        ends = (min(known), statistics.median(known), max(known)) if known else (None,) * 3
        rows.append([
            job, str(len(known)), *map(number, ends), str(len(slowdowns) - len(known)),
        ])  # fmt: skip
    headers = ["job", "beside", "least", "median", "most", "did not fit"]
    note = "Slowdown of the job, alone over shared speed, beside each other job on one device."
    return Table("Beside another job", headers, rows, (note,), least=("did not fit", "least"))


def pairs_panel(ax: Axes, profile: Profile) -> None:
    """Slowdowns of all pairs in order: the share of pairs that is slowed no more."""
    values = sorted(v for of in pairs(profile).values() for v in of if v is not None)
    share = 100 * np.arange(1, len(values) + 1) / len(values)
    ax.plot(share, values, color=look(0)["color"], label=f"{len(values)} pairs")
    logarithmic(ax, "slowdown (×)")
    ax.axhline(1.0, color="0.6", linewidth=0.7)
    ax.set_xlim(0.0, 100.0)
    ax.set_xlabel("pairs that are slowed no more (%)")
