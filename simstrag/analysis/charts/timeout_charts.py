"""Charts of advice on timeouts: false alarms and lost GPU-hours over the detection timeout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simstrag.advice.timeout_trials import gpu_hours
from simstrag.advice.timeouts import TimeoutAdvice
from simstrag.analysis.charts.chart import Chart, Curve, Mark, Rule
from simstrag.analysis.charts.matplotlib_renderer import Picture, picture
from simstrag.arrays import Floats

X = "detection timeout (s)"
WORST = 5.0
"""Timeouts that lose more than this many times the least are not drawn."""


def false_alarms(advice: TimeoutAdvice) -> Picture:
    """Ranks that are taken for lost though they live, per day, with the interval."""
    detection = _drawn(advice)
    expected, low, high = advice.false_positives(detection)
    curve = Curve("false alarms", 1, detection, expected, low, high, along="y")
    marks = [curve, *_rules(advice)]
    label = "False alarms per day over the detection timeout"
    return _draw("false-alarms", label, "false alarms a day", marks, detection)


def lost_hours(advice: TimeoutAdvice) -> Picture:
    """GPU-hours lost per day, and those of them that all wait for silent ranks."""
    job, detection = advice.job, _drawn(advice)
    waiting = gpu_hours(job, job.waiting(detection))
    lost = gpu_hours(job, advice.model_losses(detection))
    marks = [
        Curve("all", 0, detection, lost),
        Curve("waiting for silent ranks", 1, detection, waiting),
        Curve("restarting ranks, dead or alive", 2, detection, lost - waiting),
        *_rules(advice),
    ]
    label = "GPU-hours lost per day over the detection timeout"
    return _draw("lost-hours", label, "GPU-hours lost a day", marks, detection)


def _drawn(advice: TimeoutAdvice) -> Floats:
    """The timeouts from the shortest to the longest that lose little enough."""
    detection = advice.job.detections
    lost = advice.model_losses(detection)
    near = np.flatnonzero(lost <= WORST * lost.min())
    return detection[near[0] : near[-1] + 1]


def _rules(advice: TimeoutAdvice) -> tuple[Mark, ...]:
    longest, beyond = advice.job.silences.longest, advice.is_extrapolated
    seen = Rule(longest, "x", "longest silence seen", dotted=True, left=beyond)
    return Rule(advice.choice.detection, "x", "the choice", left=not beyond), seen


def _draw(name: str, label: str, y: str, marks: Sequence[Mark], detection: Floats) -> Picture:
    ends = float(detection[0]), float(detection[-1])
    return picture(Chart(label, X, y, marks, x_range=ends, y_range=(0.0, None)), name, log_x=True)
