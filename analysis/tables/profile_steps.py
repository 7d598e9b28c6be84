"""Tables of a profile's steps: clean, against the batch, and beside loads."""

# ruff: noqa: RUF001 - a multiplication sign is meant

from __future__ import annotations

from simstrag.analysis.text.number_format import MISSING, number
from simstrag.analysis.text.profile_text import (
    HELD_OUT,
    MS,
    Table,
    bytes_of,
    formula,
    ordered,
    shown,
    span,
    worst,
)
from simstrag.errors import InputError
from simstrag.profile.batch_laws import seconds
from simstrag.profile.measurements import Response, StepCell
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import NoiseSamples
from simstrag.profile.responses import evaluate

__all__ = ["batch_fits", "laws", "levels", "steps"]


def steps(profile: Profile) -> Table:
    """Each precision and batch; the gain is over full precision at the same batch."""
    full = None if profile.workload is None else profile.workload.full
    in_full = {c.batch: c.seconds.value for c in profile.cells if c.precision == full}
    headers = [
        "precision", "batch", "median (ms)", "mean (ms)", "samples/s", "gain", "scatter (%)",
        "lag 1", "update (ms)", "host (ms)", "host share", "memory", "steps", "fit",
    ]  # fmt: skip
    rows = [
        [
            cell.precision, str(cell.batch), shown(cell.seconds, MS), shown(cell.mean, MS),
            number(cell.batch / cell.seconds.value), _gain(cell, in_full), *_scatter(cell.noise),
            shown(cell.update, MS), shown(cell.host, MS), shown(cell.host_share),
            bytes_of(cell.peak_bytes), number(cell.seconds.n), HELD_OUT if cell.held_out else "",
        ]
        for cell in profile.cells
    ]  # fmt: skip
    notes = (
        "Forward and backward of one worker; in brackets 95 % intervals. "
        f"Gain: over {full or 'full precision'} at the same batch. Scatter: nine of ten single "
        "steps about their mean; lag 1: correlation of successive steps.",
    )
    least = (
        "lag 1", "memory", "update (ms)", "host (ms)", "steps", "mean (ms)", "scatter (%)",
        "host share", "samples/s",
    )  # fmt: skip
    return Table("Steps", headers, rows, notes, least=least)


def _gain(cell: StepCell, in_full: dict[int, float]) -> str:
    there = in_full.get(cell.batch)
    return MISSING if there is None else number(there / cell.seconds.value)


def _scatter(noise: NoiseSamples | None) -> tuple[str, str]:
    if noise is None:
        return MISSING, MISSING
    last = len(noise.quantiles) - 1
    low, high = (noise.quantiles[round(last * level)] - 1 for level in (0.05, 0.95))
    ends = f"{number(100 * low, 2, sign=True)} to {number(100 * high, 2, sign=True)}"
    return ends, number(noise.lag1_autocorrelation, 2)


def batch_fits(profile: Profile) -> Table:
    """Laws of the step against the batch."""
    rows = []
    for fit in profile.batches:
        off = [
            seconds(fit, cell.batch) / cell.seconds.value - 1
            for cell in profile.cells
            if cell.precision == fit.precision and not cell.held_out
        ]
        knee = "" if fit.knee is None else f", no quicker below {shown(fit.knee)}"
        rows.append([
            fit.precision, f"{shown(fit.fixed, MS)} + {shown(fit.per_sample, MS)} × batch{knee}",
            span(fit.fitted), span(fit.held_out), worst(off), ordered(fit.errors),
        ])  # fmt: skip
    headers = ["precision", "median step (ms)", "batches in the fit", "held out",
               "off by at most (%)", "cross-validated error of laws (%)"]  # fmt: skip
    return Table("Step against batch", headers, rows, wraps=5)


def laws(profile: Profile) -> Table:
    """What each load does, as a law of its level."""
    rows = [
        [
            each.load, each.resource, each.precision or "all-reduce", formula(each),
            f"{each.highest:g}", ordered(each.errors),
        ]
        for each in profile.responses
    ]  # fmt: skip
    headers = ["load", "takes", "of steps in", "slowdown at level u", "extrapolated above",
               "cross-validated error of laws (%)"]  # fmt: skip
    notes = [
        f"{each.load}, {each.precision}: {each.note}" for each in profile.responses if each.note
    ]
    level = "Level u = 1 takes all of one core's, or of the device's, time; 0.5 half of it."
    return Table("Under contention: laws", headers, rows, (level, *notes), wraps=5)


def levels(profile: Profile) -> Table:
    """Each measured level beside its law."""
    rows = []
    for each in profile.responses:
        for at in each.levels:
            law = _law_at(each, at.level)
            off = [] if law is None else [law / at.slowdown.value - 1]
            rows.append([
                each.load, each.precision or "all-reduce", f"{at.level:g}", shown(at.slowdown),
                number(law), worst(off), HELD_OUT if at.held_out else "",
            ])  # fmt: skip
    headers = ["load", "of steps in", "level", "slowdown", "by the law", "off by (%)", "fit"]
    return Table("Under contention: what was measured", headers, rows, least=("by the law",))


def _law_at(response: Response, level: float) -> float | None:
    """None where the law has no value there."""
    try:
        return float(evaluate(response, level))
    except InputError:
        return None
