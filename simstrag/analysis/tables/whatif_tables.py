"""Tables of a what-if analysis: fixes, kinds of operations, workers and steps."""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.lanes import CHANGED
from simstrag.analysis.text.number_format import MISSING, plural
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.fixes import STEPS
from simstrag.whatif.hardware import HardwareCause
from simstrag.whatif.losses import Losses
from simstrag.whatif.policy_outlook import PoliciesOnRecord


def fixes_table(found: WhatIf) -> Table:
    """The gain of each fix, as replayed."""
    priced = found.gpu_price is not None
    rows = tuple(
        (
            each.name, Number.of(each.seconds), Number.percent(each.share),
            Number.of(each.gpu_hours),
            *((Number.of(each.cost),) if each.cost is not None else ()),
        )
        for each in found.fixes
    )  # fmt: skip
    hours = f"GPU-hours of {STEPS:,} steps"
    headers = ("what is fixed", "saves (s)", "of a step (%)", hours, *(("cost",) if priced else ()))
    note = (
        f"Replays of the record with this fixed; {plural(found.gpus, 'GPU')}. Fixes overlap, so "
        "that single ones do not add up."
    )
    return Table(headers, rows, notes=(note,))


def losses_table(found: Losses) -> Table:
    """What was lost, by kind, in the order in which it is taken away."""
    rows = tuple(
        (each.kind, Number.of(each.seconds), Number.percent(each.share)) for each in found.parts
    )
    note = (
        "Taken away one after the other, from the top; chance is waiting for the slowest of equal "
        "ranks."
    )
    return Table(("lost to", "seconds of a step", "of a step (%)"), rows, notes=(note,))


def hardware_table(found: Sequence[HardwareCause]) -> Table:
    """Findings by clocks, power and heat, a row for each."""
    rows = tuple(
        (
            each.node, each.kind, Number.of(each.start), Number.of(each.end),
            Number.of(each.slowdown),
            ", ".join(
                f"{name} {value if isinstance(value, str) else format(value, '.4g')}"
                for name, value in each.facts.items()
            ),
        )
        for each in found
    )  # fmt: skip
    headers = ("GPU", "why", "from (s)", "to (s)", "slower by up to", "measured")
    note = "Usual clock over clock: what a step bound by the clock takes longer, an upper bound."
    return Table(headers, rows, words=2, notes=(note,))


def policies_table(found: PoliciesOnRecord) -> Table:
    """What each policy would have given, under each reading of the contention."""
    readings = [""] if len(found.host_shares) == 1 else [", device", ", host"]
    rows = tuple(
        (
            each.policy, each.lane or MISSING,
            *(
                cell
                for own in zip(each.seconds, each.slowdowns, each.won_back, strict=True)
                for cell in (Number.of(own[0], 4), Number.of(own[1], 4), Number.percent(own[2]))
            ),
        )
        for each in found.outlooks
    )  # fmt: skip
    columns = ("a step (s)", "S left", "wins back (%)")
    headers = ("policy", "lane", *(f"{name}{at}" for at in readings for name in columns))
    notes = [
        "Simulated on the scenario of the record. A step is one batch of every replica; S left is "
        "over the ideal step, and what is won back is of all that stragglers cost. "
        + "; ".join(f"lane {lane} changes {what}" for lane, what in CHANGED.items())
        + ". Without a target, what stale or left-out gradients cost in learning is not in it."
    ]
    if len(readings) > 1:
        shares = " and ".join(f"{100 * each:.0f} %" for each in found.host_shares)
        notes.append(
            f"The record does not tell whether the device or the host was slowed: {shares} of what "
            "contention added are taken as the host's, which reduced precision does not shorten."
        )
    return Table(headers, rows, words=2, notes=tuple(notes))


def kinds_table(found: WhatIf) -> Table:
    """S_t of each kind of operation, and its delays where they were decomposed."""
    m = found.metrics
    delays = None if m.delays is None else m.delays["kind"].whole
    names = dict.fromkeys([*m.by_kind.whole, *(delays or ())])
    ranked = sorted(names, key=lambda name: -m.by_kind.whole.get(name, 0.0))
    rows = tuple(
        (
            name, Number.of(m.by_kind.whole.get(name), 5),
            *(() if delays is None else (Number.of(delays.get(name), 5),)),
        )
        for name in ranked
    )  # fmt: skip
    headers = ("operations", "slowdown S_t", *(() if delays is None else ("by their delays",)))
    return Table(headers, rows)


def workers_table(found: WhatIf) -> Table:
    """Every worker: S_w, and the waiting for its replica."""
    layout, m = found.replay.layout, found.metrics
    ranks = layout.workers
    slow = {(each.replica, each.stage): each for each in found.culprits}
    rows = []
    for k, replica in enumerate(layout.replica.tolist()):
        for stage in range(layout.stages):
            named = slow.get((replica, stage))
            rows.append((
                str(int(ranks[k, stage])), str(replica), str(stage),
                MISSING if named is None else named.pattern,
                Number.of(None if named is None else named.slowdown),
                Number.of(float(m.by_worker[k, stage]), 5), Number.of(found.late.last[k]),
                Number.of(found.late.waited[k]),
            ))  # fmt: skip
    headers = (
        "rank", "replica", "stage", "slow", "over peers", "S_w", "replica last (steps)",
        "others waited (s)",
    )  # fmt: skip
    note = (
        "S_w is the smaller of the slowdown of its replica and of its stage. Seconds waited are "
        "those of all other replicas together."
    )
    return Table(headers, tuple(rows), words=4, notes=(note,))


def steps_table(found: WhatIf) -> Table:
    """Every step: as recorded, replayed and ideal."""
    m = found.metrics
    rows = tuple(
        (str(step), *(Number.of(float(each[k]), 5) for each in
                      (m.recorded, m.replayed, m.ideal, m.slowdown_by_step)))
        for k, step in enumerate(m.step)
    )  # fmt: skip
    return Table(("step", "recorded (s)", "replayed (s)", "ideal (s)", "slowdown S"), rows)
