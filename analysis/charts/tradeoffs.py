"""Makespan against what counts: whom nobody beats in both, by their means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from simstrag.analysis.charts import live_charts, pictures
from simstrag.analysis.charts.figures import front
from simstrag.analysis.pages.sections import looks
from simstrag.analysis.tables.standings import Standings
from simstrag.analysis.tables.table import Table
from simstrag.analysis.text.number_format import listed
from simstrag.experiments.paired_statistics import Estimate

__all__ = ["Point", "Tradeoff", "tradeoff"]


class Point(NamedTuple):
    """A policy between two wishes; on_front: whether no other has both means as good."""

    policy: str
    makespan: Estimate
    outcome: Estimate
    on_front: bool


class Tradeoff(NamedTuple):
    """Policies by makespan and outcome, in seconds or as an accuracy; axis: the outcome's words."""

    axis: str
    points: Sequence[Point]

    @property
    def sentence(self) -> str:
        """Who is on the front."""
        names = [p.policy for p in self.points if p.on_front]
        verb = "is" if len(names) == 1 else "are"
        return (
            f"On the Pareto front of the means {verb} {listed(names)}; where bars overlap, another "
            "draw of seeds may put others there."
        )

    @property
    def table(self) -> Table:
        ends = ("", ", low", ", high")
        columns = (f"{axis}{end}" for axis in ("makespan (s)", self.axis) for end in ends)
        rows = ((p.policy, *p.makespan, *p.outcome, str(p.on_front)) for p in self.points)
        return Table(("policy", *columns, "on the front of means"), tuple(rows))

    def picture(self, s: Standings) -> Markup:
        """Dots with intervals, filled on the front."""
        label = f"Makespan against {self.axis}"
        axes = "makespan (s)", self.axis
        return pictures.dots("tradeoff", label, axes, self.points, looks(s.comparison))

    def plot(self, styles: Mapping[str, dict[str, Any]]) -> Any:
        """The same as a Bokeh plot."""
        return live_charts.dots(("makespan (s)", self.axis), self.points, styles)


def tradeoff(s: Standings) -> Tradeoff | None:
    """Against time to target, else against accuracy; None where makespan is all there is."""
    scenario = s.comparison.scenario
    if scenario.sample_target is None:
        return None
    if s.comparison.has_target:
        axis, sign = "time to target (s)", 1.0
        outcomes = {p.policy: p.time["time_to_target"] for p in s.policies}
    elif scenario.learner.curve is not None:
        axis, sign = "accuracy", -1.0
        outcomes = {p.policy: s.mean(s.comparison.column(p.policy, axis)) for p in s.policies}
    else:
        return None
    known = [p for p in s.policies if math.isfinite(outcomes[p.policy].value)]
    x = np.array([p.time["makespan"].value for p in known])
    y = np.array([sign * outcomes[p.policy].value for p in known])
    points = [
        Point(p.policy, p.time["makespan"], outcomes[p.policy], bool(best))
        for p, best in zip(known, front(x, y), strict=True)
    ]
    return Tradeoff(axis, points) if points else None
