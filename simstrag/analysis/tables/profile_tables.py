"""The contents of a profile as tables: for a terminal and a notebook."""

# ruff: noqa: RUF001, RUF002 - dashes and multiplication signs are meant

from __future__ import annotations

import contextlib
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from simstrag.analysis.tables.table import Table
from simstrag.analysis.text.number_format import MISSING, join, number, percent
from simstrag.analysis.text.profile_text import (
    bytes_of,
    errors_by_law,
    formula,
    join_numbers,
    ranks_of,
    text,
    worst_error,
)
from simstrag.errors import InputError
from simstrag.profile.batch_laws import seconds
from simstrag.profile.profile import Profile, constant_of, pair_slowdowns
from simstrag.profile.quantity import NoiseSamples
from simstrag.profile.responses import evaluate

MS = 1e3
"""Milliseconds in a second."""
HELD_OUT = "held out"
UNITS = {
    "step": {
        "compute": ("ms", MS), "host_share": ("", 1.0), "launch.full": ("ms", MS),
        "launch.amp": ("ms", MS), "device.full": ("ms", MS), "device.amp": ("ms", MS),
        "amp_ratio": ("", 1.0),
        "amp_ratio_contended": ("", 1.0), "amp_switch": ("ms", MS),
        "pace": ("%", 100.0),
    },
    "allreduce": {
        "alpha": ("µs", 1e6), "bandwidth": ("GB/s", 1e-9), "bytes": ("MB", 1e-6),
        "overlap": ("", 1.0), "intra_alpha": ("µs", 1e6), "intra_bandwidth": ("GB/s", 1e-9),
    },
    "server": {"service": ("ms", MS), "push": ("ms", MS), "pull": ("ms", MS)},
    "power": {"idle": ("W", 1.0), "busy": ("W", 1.0), "busy_amp": ("W", 1.0)},
}  # fmt: skip
"""Unit of each constant, and the factor that takes its value there."""


def tables(profile: Profile) -> list[Table]:
    """The tables that have rows: steps, contention, communication, learning, constants.

    >>> median = {"value": 0.02, "kind": "measured", "low": 0.019, "high": 0.021}
    >>> profile = Profile.model_validate({
    ...     "name": "a card", "date": "", "command": "", "device": {}, "software": {},
    ...     "cells": [{"precision": "fp32", "batch": 8, "seconds": median, "mean": median}],
    ... })
    >>> (table,) = tables(profile)
    >>> table.title, table.rows[0][:3]
    ('Steps', ('fp32', '8', '20 (19–21)'))
    """
    every = [
        _steps(profile), _batch_fits(profile), _laws(profile), _levels(profile), _pairs_of(profile),
        *_collectives(profile), _collective_fits(profile), _transfers(profile), _overlaps(profile),
        _locksteps(profile), _learning(profile), _amp_ratios(profile), _constants(profile),
        _held_out(profile),
        _table("Skipped", [{"cell": s.cell, "reason": s.reason} for s in profile.skipped],
               wraps="reason"),
    ]  # fmt: skip
    return [table.trimmed() for table in every if table.rows]


# -- steps and contention ------------------------------------------------------------------------


def _steps(profile: Profile) -> Table:
    full = None if profile.workload is None else profile.workload.full
    in_full = {
        c.batch: c.seconds.value
        for c in profile.cells
        if c.precision == full and c.seconds.kind == "measured"
    }

    def scatter(noise: NoiseSamples) -> str:
        last = len(noise.quantiles) - 1
        ends = (100 * (noise.quantiles[round(last * level)] - 1) for level in (0.05, 0.95))
        return " to ".join(number(end, 2, sign=True) for end in ends)

    rows = [
        {
            "precision": c.precision, "batch": str(c.batch),
            "median (ms)": text(c.seconds, MS) + (
                " (by the law)" if c.seconds.kind == "fitted" and profile.origin == "measured"
                else ""
            ),
            "mean (ms)": text(c.mean, MS), "samples/s": number(c.batch / c.seconds.value),
            "gain": number(in_full.get(c.batch, math.nan) / c.seconds.value)
            if c.seconds.kind == "measured" else MISSING,
            "scatter (%)": MISSING if c.noise is None else scatter(c.noise),
            "lag 1": MISSING if c.noise is None else number(c.noise.lag1_autocorrelation, 2),
            "update (ms)": text(c.update, MS), "host (ms)": text(c.host, MS),
            "launch (ms)": text(c.launch, MS), "device (ms)": text(c.device, MS),
            "host share": text(c.host_share), "memory": bytes_of(c.peak_bytes),
            "steps": number(c.seconds.n), "fit": HELD_OUT if c.held_out else "",
            "visits": "unstable" if c.unstable else "",
        }
        for c in profile.cells
    ]  # fmt: skip
    note = (
        "Forward and backward of one worker, with 95 % intervals in brackets. "
        f"Gain: over {full or 'full precision'} at the same batch. Scatter: the range of nine in "
        "ten single steps about their mean. Lag 1: correlation of successive steps."
    )
    notes = [
        f"Unstable, {c.precision} {c.batch}: {c.unstable}." for c in profile.cells if c.unstable
    ]
    by_law: dict[str, list[str]] = defaultdict(list)
    for c in profile.cells:
        if c.seconds.kind != "measured" and profile.origin == "measured":
            by_law[c.seconds.note.partition("; ")[0]].append(f"{c.precision} {c.batch}")
    notes += [f"Not measured, {join(cells)}: {why}." for why, cells in by_law.items()]
    least = (
        "lag 1", "memory", "update (ms)", "host (ms)", "steps", "mean (ms)", "scatter (%)",
        "host share", "samples/s", "launch (ms)", "device (ms)",
    )  # fmt: skip
    return _table("Steps", _without_empty(rows), note, *notes, least=least)


def _without_empty(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows without the columns of the overlapping law where no row has anything there."""
    names = ("launch (ms)", "device (ms)", "visits")
    empty = {name for name in names if all(row[name] in ("", MISSING) for row in rows)}
    return [{key: cell for key, cell in row.items() if key not in empty} for row in rows]


def _batch_fits(profile: Profile) -> Table:
    rows = []
    for fit in profile.batches:
        of_device = fit.part == "device"
        timed = [
            (cell.batch, cell.device if of_device else cell.seconds)
            for cell in profile.cells
            if cell.precision == fit.precision and not cell.held_out
        ]
        errors = [seconds(fit, at) / each.value - 1 for at, each in timed if each is not None]
        knee = "" if fit.knee is None else f", no quicker below {text(fit.knee)}"
        law = f"{text(fit.fixed, MS)} + {text(fit.per_sample, MS)} × batch{knee}"
        rows.append({
            "precision": fit.precision,
            "of": "the device's part" if of_device else "a step", "median (ms)": law,
            "batches in the fit": join_numbers(fit.fitted), "held out": join_numbers(fit.held_out),
            "off by at most (%)": worst_error(errors),
            "cross-validated error of laws (%)": errors_by_law(fit.errors),
        })  # fmt: skip
    return _table("Step against batch", rows, wraps="cross-validated error of laws (%)")


def _laws(profile: Profile) -> Table:
    rows = [
        {
            "load": r.load, "takes": r.resource, "of steps in": r.precision or "all-reduce",
            "slowdown at level u": formula(r), "extrapolated above": f"{r.highest:g}",
            "cross-validated error of laws (%)": errors_by_law(r.errors),
        }
        for r in profile.responses
    ]  # fmt: skip
    level = "Level u = 1 takes all of one core's, or of the device's, time; 0.5 half of it."
    notes = [f"{r.load}, {r.precision}: {r.note}" for r in profile.responses if r.note]
    wraps = "cross-validated error of laws (%)"
    return _table("Under contention: laws", rows, level, *notes, wraps=wraps)


def _levels(profile: Profile) -> Table:
    rows = []
    for r in profile.responses:
        for at in r.levels:
            law = None
            with contextlib.suppress(InputError):  # the law has no value at this level
                law = float(evaluate(r, at.level))
            rows.append({
                "load": r.load, "of steps in": r.precision or "all-reduce",
                "level": f"{at.level:g}", "slowdown": text(at.slowdown), "by the law": number(law),
                "off by (%)": worst_error([] if law is None else [law / at.slowdown.value - 1]),
                "fit": HELD_OUT if at.held_out else "",
            })  # fmt: skip
    return _table("Under contention: what was measured", rows, least=("by the law",))


def _pairs_of(profile: Profile) -> Table:
    rows = []
    for job, slowdowns in pair_slowdowns(profile).items():
        known = [value for value in slowdowns if value is not None]
        rows.append({
            "job": job, "beside": str(len(known)), "least": number(min(known, default=None)),
            "median": number(statistics.median(known) if known else None),
            "most": number(max(known, default=None)),
            "did not fit": str(len(slowdowns) - len(known)),
        })  # fmt: skip
    note = "Slowdown of the job, alone over shared speed, beside each other job on one device."
    return _table("Beside another job", rows, note, least=("did not fit", "least"))


# -- communication -------------------------------------------------------------------------------


def _collectives(profile: Profile) -> Iterator[Table]:
    """One table per backend and load: a row per size, a column per number and group of ranks."""
    tables = defaultdict(list)
    for c in profile.collectives:
        tables[c.backend, c.load, c.level].append(c)
    for (backend, load, level), cells in tables.items():
        over = {(c.ranks, c.group) for c in cells if c.oversubscribed}
        columns = {
            g: f"{ranks_of(*g)}{' **' if g in over else ''} (ms)"
            for g in dict.fromkeys((c.ranks, c.group) for c in cells)
        }
        rows = {
            size: {"bytes": bytes_of(size), **dict.fromkeys(columns.values(), "")}
            for size in sorted({c.bytes for c in cells})
        }
        for c in cells:
            held_out = " *" if c.held_out else ""
            rows[c.bytes][columns[c.ranks, c.group]] = text(c.seconds, MS) + held_out
        notes = {
            "Median from the latest start to the latest end of the members.":
                profile.origin == "measured",
            "* held out of the fit.": any(c.held_out for c in cells),
            "** more ranks than cores: the scheduler's time too.": bool(over),
        }  # fmt: skip
        note = " ".join(each for each, holds in notes.items() if holds)
        beside = f", beside load {load} {level:g}" if load else ""
        least = tuple(columns.values())[:0:-1]
        yield _table(f"All-reduce, {backend}{beside}", list(rows.values()), note, least=least)


def _collective_fits(profile: Profile) -> Table:
    rows = []
    for fit in profile.collective_fits:
        most = max(fit.residuals, key=lambda r: abs(r.error), default=None)
        at = "" if most is None else f" at {most.ranks} ranks, {bytes_of(most.bytes)}"
        rows.append({
            "backend": fit.backend, "algorithm": fit.algorithm,
            "ranks": ranks_of(join_numbers(fit.ranks), fit.group),
            "sizes": f"{bytes_of(fit.smallest)} to {bytes_of(fit.largest)}",
            "alpha (µs)": text(fit.alpha, 1e6), "bandwidth (GB/s)": text(fit.bandwidth, 1e-9),
            "off by at most (%)": worst_error([r.error for r in fit.residuals]) + at,
        })  # fmt: skip
    notes = dict.fromkeys(fit.note for fit in profile.collective_fits)
    least = ("backend", "sizes")
    return _table("All-reduce: fits", rows, *notes, wraps="off by at most (%)", least=least)


def _transfers(profile: Profile) -> Table:
    rows = [
        {
            "bytes": bytes_of(t.bytes), "ranks": str(t.ranks or ""), "push (ms)": text(t.push, MS),
            "service (ms)": text(t.service, MS), "pull (ms)": text(t.pull, MS),
            "step slower": "" if t.slowdown is None else text(t.slowdown),
        }
        for t in profile.transfers
    ]  # fmt: skip
    note = (
        "Rows with ranks: these ranks train the workload under the server of simstrag.ddp, and the "
        "service includes its bookkeeping and its optimizer. Rows without: one worker moves bytes "
        "over TCP."
    )
    return _table("Parameter server", rows, note if any(t.ranks for t in profile.transfers) else "")


def _overlaps(profile: Profile) -> Table:
    rows = [
        {
            "backend": o.backend, "ranks": str(o.ranks), "precision": o.precision,
            "batch": str(o.batch), "bytes": bytes_of(o.bytes), "share hidden": text(o.overlap),
        }
        for o in profile.overlaps
    ]  # fmt: skip
    return _table("All-reduce hidden by backward", rows)


def _locksteps(profile: Profile) -> Table:
    rows = [
        {
            "ranks": str(c.ranks), "precision": c.precision, "batch": str(c.batch),
            "load on a core": f"{c.load} {c.level:g}" if c.load else "none",
            "rest (ms)": text(c.rest, MS),
            "step slower": "" if c.slowdown is None else text(c.slowdown),
            "bare step slower": "" if c.interference is None else text(c.interference),
        }
        for c in profile.locksteps
    ]  # fmt: skip
    note = (
        "Rest: from the last gradient of the slowest rank to the next step. Step slower: the step "
        "among the ranks over the step alone on its core; beside a load, over the step among the "
        "ranks without it. Bare: on all their cores at once, without DDP."
    )
    return _table("Ranks in lockstep", rows, note)


# -- learning, constants, errors -----------------------------------------------------------------


def _learning(profile: Profile) -> Table:
    rows = [
        {
            "small batch": number(at.batch), "samples trained": str(at.trained),
            "noise scale (samples)": text(at.scale),
        }
        for at in profile.learning
    ]  # fmt: skip
    return _table("Gradient noise scale along training", rows)


def _amp_ratios(profile: Profile) -> Table:
    rows = [
        {
            "model": r.model, "device": r.device, "batch": number(r.batch),
            "precisions": f"{r.full} / {r.amp}", "gain": text(r.ratio), "source": r.source,
        }
        for r in profile.amp_ratios
    ]  # fmt: skip
    return _table("Gain of reduced precision", rows, wraps="source")


def _constants(profile: Profile) -> Table:
    """The constants of a simulation whose scenario states no others."""
    rows, notes = [], []
    for part, units in UNITS.items():
        for name, (unit, scale) in units.items():
            quantity = constant_of(profile, part, name)
            if quantity is not None:
                rows.append({
                    "constant": f"{part}.{name}",
                    "value": text(quantity, scale).removesuffix(" (assumed)"), "unit": unit,
                    "how": quantity.kind, "samples": number(quantity.n),
                })  # fmt: skip
                notes += [f"{part}.{name}: {quantity.note}"] if quantity.note else []
    return _table("What a simulation reads", rows, *notes)


def _held_out(profile: Profile) -> Table:
    rows = [
        {
            "part": h.part, "cells": str(len(h.cells)), "median error (%)": percent(h.median),
            "at most (%)": percent(h.threshold),
            "holds": "yes" if h.median <= h.threshold else "NO",
            "worst (%)": f"{percent(h.worst)} ({max(h.cells, key=lambda c: abs(c.error)).cell})",
        }
        for h in profile.held_out
    ]  # fmt: skip
    rule = "Absolute errors at cells that no fit used, chosen by a rule that was fixed beforehand."
    notes = [f"{h.part}: {h.note}" for h in profile.held_out if h.note]
    return _table("Predicted and held out", rows, rule, *notes, wraps="worst (%)")


def _table(
    title: str, rows: list[dict[str, str]], *notes: str, wraps: str = "", least: Sequence[str] = ()
) -> Table:
    headers = tuple(rows[0]) if rows else ()
    return Table(
        headers,
        tuple(tuple(row.values()) for row in rows),
        words=len(headers),
        notes=tuple(filter(None, notes)),
        title=title,
        wraps=headers.index(wraps) if wraps and rows else 0,
        least=tuple(least),
    )
