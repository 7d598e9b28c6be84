"""Charts of advice on timeouts: false alarms and lost GPU-hours over the detection timeout."""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.advice.timeout_trials import gpu_hours
from simstrag.advice.timeouts import TimeoutAdvice
from simstrag.analysis.charts.chart import PAGE, WIDTH, Chart, Curve, Mark, Rule
from simstrag.analysis.charts.matplotlib_renderer import BESIDE, Picture, canvas, draw, svg

X = "detection timeout (s)"


def false_alarms(advice: TimeoutAdvice) -> Picture:
    """Ranks that are taken for lost though they live, per day, with the interval."""
    detection = advice.job.detections
    expected, low, high = advice.false_positives(detection)
    marks = [Curve("false alarms", 1, detection, expected, low, high), *_rules(advice)]
    label = "False alarms per day over the detection timeout"
    return _draw("false-alarms", label, "false alarms a day", marks)


def lost_hours(advice: TimeoutAdvice) -> Picture:
    """GPU-hours lost per day, and those of them that all wait for silent ranks."""
    job, detection = advice.job, advice.job.detections
    waiting = gpu_hours(job, job.waiting(detection))
    lost = gpu_hours(job, advice.model_losses(detection))
    marks = [
        Curve("all", 0, detection, lost),
        Curve("waiting for silent ranks", 1, detection, waiting),
        Curve("false alarms, restarts", 2, detection, lost - waiting),
        *_rules(advice),
    ]
    label = "GPU-hours lost per day over the detection timeout"
    return _draw("lost-hours", label, "GPU-hours lost a day", marks)


def _rules(advice: TimeoutAdvice) -> tuple[Mark, ...]:
    longest = Rule(advice.job.silences.longest, "x", "longest silence seen", dotted=True)
    return Rule(advice.choice.detection, "x", "the choice", left=True), longest


def _draw(name: str, label: str, y: str, marks: Sequence[Mark]) -> Picture:
    chart = Chart(label, X, y, marks, y_range=(0.0, None))
    with canvas(*chart.size) as figure:
        ax = figure.add_subplot()
        draw(chart, ax, PAGE)
        ax.set_xscale("log")
        ax.legend(**BESIDE)
        return Picture(svg(figure, name, label), WIDTH)
