"""The sentences of a diagnosis: who was slow, what was lost, why, and what would help.

`diagnosis_lines` chooses those that have room.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from simstrag.analysis.text.gain_text import ERROR
from simstrag.analysis.text.lanes import CHANGED
from simstrag.analysis.text.number_format import (
    capital,
    join,
    number,
    percent,
    plural,
    seconds,
)
from simstrag.analysis.text.remark import say
from simstrag.analysis.text.whatif_text import (
    cause_text,
    cost_of,
    explained_text,
    p_text,
    part_text,
)
from simstrag.experiments.decision import MODEL_ERROR
from simstrag.records.record import QUANTITIES, RELATIVE, Bounds, Record
from simstrag.records.steps import NO_COLLECTIVE
from simstrag.statistics.slow_workers import FEWEST
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.culprits import Culprit, Group, computing
from simstrag.whatif.diagnosis import Diagnosis
from simstrag.whatif.fixes import STEPS, describe_worker
from simstrag.whatif.hardware import HardwareCause, gone, healthy_facts, rank_of
from simstrag.whatif.losses import COMMON, DRIFT, NETWORK, SCATTERED, STRAGGLERS, WORTH, Loss

MOST_NAMED = 4
"""Most texts on who was slow; the whole says how many more there are."""
SLIGHT = 0.005
"""Least share of the time that a policy saves to be said: less is the transient of its start."""
UNITS = {
    "clock": " MHz", "usual clock": " MHz", "temperature": " C", "power": " W",
    "power limit": " W", "usual power limit": " W",
}  # fmt: skip
"""Units of what hardware measures."""
SAID = 0.0005
"""Share of the time from which a loss has a number."""
NAMES = {
    STRAGGLERS: "stragglers", COMMON: "pauses common to all ranks", SCATTERED: "scattered pauses",
    DRIFT: "slow drift of all ranks", NETWORK: "slower collectives",
}  # fmt: skip
"""What each loss is called, in the order in which they are said."""
PAUSES = {
    COMMON: "{of:The rank pauses/All ranks pause} {each:s} {often}: such as a checkpoint, an "
    "evaluation or the loader.",
    SCATTERED: "{pauses:# pause} of {each:s} (median) on {ranks:# rank} by turns: such as garbage "
    "collection or preemption.",
    DRIFT: "{of:The rank takes/All ranks together take} {ratio} times as long as at best in "
    "{steps:.0f} steps, from step {since:.0f} to {until:.0f}.",
}
"""How pauses or drift come; of: ranks of the record."""
GROUPS = {
    "node": "All {count} ranks of node {name} take {times} times as long as the other "
    "nodes'{when}: it is the node, not its cards one by one.",
    "mesh": "{name} (ranks {ranks}) takes {times} times as long as its peers{when}.",
    "group": "Ranks {name}{hosts} take {times} times as long as the fastest ranks{when}: two kinds "
    "of card, of node or of work.",
}
"""A node, a place of a mesh or the slower half, with how slow it is."""


def texts(found: Diagnosis, out: Path | None) -> dict[str, list[str]]:
    """What is to say, by label, in the order of the whole."""
    named, hidden = [*_named(found)], _hidden(found)
    return {
        "hang": [f"{found.record.hang}."] if found.record.hang else [],
        "record": [_covers(found)],
        "unseen": hidden if named else [],
        "caution": [_sentence(text) for text in _cautions(found)],
        "lost": [*_lost(found)],
        "not by": _not_lost(found),
        "who": named or hidden,
        "why": [*_why(found)],
        "fix": [*_fixes(found)],
        "policy": [*_policies(found)],
        "to see": [f"{each.what.partition(':')[0]}: {each.remedy}." for each in found.unseen],
        "next": [*found.commands(out)],
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _covers(found: Diagnosis) -> str:
    """What was read, and what it covers."""
    record = found.record
    parts = [f"{record.source}: {record.form}"]
    if len(record):
        ranks, steps = len(np.unique(record.rank)), np.unique(record.step)
        hosts = len(set(record.hosts.values()))
        on = f" on {plural(hosts, 'host')}" if hosts else ""
        parts.append(
            f"{plural(len(steps), 'step')} of {plural(ranks, 'rank')}{on}, numbers {steps[0]} to "
            f"{steps[-1]}"
        )
    if record.series:
        end = max(float(each.time.max()) for each in record.series if len(each.time))
        quantities = join([each.quantity for each in record.series])
        parts.append(f"{quantities} of {plural(len(record.nodes), 'node')} over {seconds(end)}")
    if record.episodes:
        parts.append(f"{plural(len(record.episodes), 'episode')} on nodes")
    if record.bounds:
        parts.append(f"the extremes over ranks of {join([b.quantity for b in record.bounds])}")
    began = f", from {record.began}" if record.began else ""
    return f"{'; '.join(parts)}{began}."


def _cautions(found: Diagnosis) -> Iterator[str]:
    """What is missing, as far as it changes how the numbers are read."""
    if found.contention is not None and found.gains:
        yield from found.contention.cautions[:1]
    warnings = found.record.missing if found.steps is None else found.steps.warnings
    yield from (each for each in warnings if each != NO_COLLECTIVE)
    for node, at in gone(found.record).items():
        yield f"{node} has no values after {_when(found.record, at)}: it may be gone"
    for note in found.record.notes:
        if note.startswith(("Assumed: times of", "Derived: a step here")):
            yield note.partition(": ")[2]


def _lost(found: Diagnosis) -> Iterator[str]:
    yield from _extremes(found.record)
    lost = found.losses
    if lost is None:
        return
    assert found.steps is not None
    layout = found.steps.replay.layout
    if len(layout.step) < FEWEST:
        yield f"{plural(len(layout.step), 'step')} of {seconds(lost.step)}: too few to split."
        return
    parts, names = _parts(found), _names(found)
    some = [each for each in parts if each.share >= SAID]
    said = join([f"{names[each.kind]} {percent(each.share)} %" for each in some])
    share = f"{percent(sum(each.share for each in some))} %" if some else "Nothing"
    limits = ", as far as this record shows" if _hides_stragglers(found) else ""
    yield f"{share} of {seconds(lost.step)} a step{f': {said}' if said else ''}{limits}."
    yield from (
        _pause(each, len(layout.replica)) for each in parts if each.share >= WORTH and each.facts
    )
    count, took = lost.start_up
    if count:
        yield (
            f"The first {plural(count, 'step')} took {seconds(took)} longer than usual ones, once: "
            "the start (compiling, caches) is not in the numbers above."
        )


def _not_lost(found: Diagnosis) -> list[str]:
    """The kinds of loss that were looked for and not found."""
    if found.steps is None or len(found.steps.replay.layout.step) < FEWEST:
        return []
    names = _names(found)
    none = [names[each.kind] for each in _parts(found) if each.share < SAID]
    return [_sentence(join(none))] if none else []


def _parts(found: Diagnosis) -> list[Loss]:
    """The kinds of loss that the record can show."""
    assert found.losses is not None
    assert found.steps is not None
    parts = [found.losses.of(kind) for kind in NAMES]
    if len(found.steps.replay.layout.replica) == 1:
        return [each for each in parts if each.kind in (COMMON, DRIFT)]
    return [each for each in parts if each.kind != STRAGGLERS or not _hides_stragglers(found)]


def _hides_stragglers(found: Diagnosis) -> bool:
    return found.hides_ranks and not (found.steps and found.steps.culprits)


def _names(found: Diagnosis) -> dict[str, str]:
    """Of the kinds of loss; one rank alone has nothing in common with others."""
    assert found.steps is not None
    is_alone = len(found.steps.replay.layout.replica) == 1
    return NAMES | ({COMMON: "pauses", DRIFT: "slow drift"} if is_alone else {})


def _pause(part: Loss, of: int) -> str:
    """How pauses or drift come, in one sentence. of: ranks of the record."""
    facts, often = part.facts, ""
    if part.kind == COMMON:
        often = say("in {steps:# step}", **facts)
        if facts["period"]:
            often = say("every {period:.0f} steps (from step {phase:.0f} on)", **facts)
    return say(PAUSES[part.kind], of=of, often=often, **facts)


def _extremes(record: Record) -> Iterator[str]:
    """What extremes over ranks tell, the largest difference of times first."""
    timed = [each for each in record.bounds if each.quantity not in QUANTITIES]
    for each in sorted(timed, key=lambda b: -_spread(b))[:2]:
        if np.isfinite(_spread(each)):
            yield (
                f"{each.quantity} is {_range(each)} times over the ranks."
                if each.quantity.startswith(RELATIVE)
                else f"{each.quantity} takes {_range(each)} s over the ranks: "
                f"{seconds(_spread(each))} between the fastest and the slowest."
            )


def _spread(bounds: Bounds) -> float:
    return bounds.middle[1] - bounds.middle[0]


def _range(bounds: Bounds) -> str:
    return " to ".join(map(number, bounds.middle))


def _hidden(found: Diagnosis) -> list[str]:
    return [f"This record does not show {each.what}." for each in found.unseen if each.hides_ranks]


def _named(found: Diagnosis) -> Iterator[str]:
    """Who was slow, or that none was; nothing where the record does not show it."""
    steps = found.steps
    if steps is None:
        yield from _who_of_nodes(found)
        return
    if steps.replay.layout.is_alone:
        return
    for group in steps.groups:
        yield _of_group(found, group)
    for slow in _single(found):
        yield f"{capital(_worker(found, slow))} {_pattern(found, slow)}."
    if steps.culprits or _hides_stragglers(found):
        return
    if len(steps.replay.layout.step) < FEWEST:
        yield _longest(steps)
    else:
        yield (
            f"No rank is slower than its peers by 5 % for {FEWEST} steps or more, beyond chance "
            "(level 1 %)."
        )


def _longest(steps: WhatIf) -> str:
    """Who took longest where steps are too few for a test."""
    layout = steps.replay.layout
    mine = computing(layout).sum(axis=1).mean(axis=1)
    worst = int(np.argmax(mine))
    ratio = float(mine[worst] / np.median(np.delete(mine, worst)))
    return (
        f"{'Rank' if layout.stages == 1 else 'Replica'} {layout.replica[worst]} took longest: "
        f"{number(ratio)} times the median of the others, in "
        f"{plural(len(layout.step), 'step')}, which are too few to tell that from chance."
    )


def _who_of_nodes(found: Diagnosis) -> Iterator[str]:
    """Nodes that clocks, episodes or extremes name."""
    if len(found.hardware) > MOST_NAMED:
        slow = len({each.node for each in found.hardware})
        yield f"{slow} of {len(found.record.nodes)} GPUs are slow at times; the costliest:"
    for cause in found.hardware:
        text = "{card} is slow {when}"
        if np.isfinite(cause.slowdown):
            text += ": up to {times} times as long, if a step is bound by the clock"
        when = _span(found.record, cause)
        yield say(f"{text}.", card=_card(cause), when=when, times=cause.slowdown)
    for each in found.record.bounds:
        if each.quantity not in QUANTITIES and _spread(each) > 0 and each.slowest[1]:
            low, high = each.middle
            yield say(
                "Rank {rank} is the slowest in {often} of {all:# report}: {times} times as long as "
                "the fastest ({ends}{unit} of {what}).",
                rank=each.slowest[0], often=each.slowest[1], all=len(each.low),
                times=float(high / low) if low else np.inf, ends=_range(each), what=each.quantity,
                unit="" if each.quantity.startswith(RELATIVE) else " s",
            )  # fmt: skip
    for spell in found.record.episodes:
        cost = f", {number(spell.factor)} times as long" * bool(np.isfinite(spell.factor))
        yield (
            f"{capital(spell.what)} was on {found.record.nodes[spell.node]} from "
            f"{_when(found.record, spell.start)} to {_when(found.record, spell.end)}{cost}."
        )
    if found.record.series and not found.hardware and not found.hides_ranks:
        which = "No GPU that kept its values" if gone(found.record) else "No GPU"
        if facts := join(healthy_facts(found.record)):
            yield f"{which} is slowed by its clock, power or heat: {facts}."


def _single(found: Diagnosis) -> list[Culprit]:
    """The slow workers that are of no group."""
    assert found.steps is not None
    grouped = {each.rank for group in found.steps.groups for each in group.members}
    return [each for each in found.steps.culprits if each.rank not in grouped]


def _of_group(found: Diagnosis, group: Group) -> str:
    first = max(group.members, key=lambda each: each.slowdown)
    ranks = sorted(each.rank for each in group.members)
    hosts = dict.fromkeys(found.record.hosts[k] for k in ranks if k in found.record.hosts)
    return say(
        GROUPS[group.kind], name=capital(group.name) if group.kind == "mesh" else group.name,
        count=len(ranks), ranks=[each.rank for each in group.members], times=group.slowdown,
        hosts=f" on {join([*hosts])}" if hosts else "",
        when=_pattern(found, first).partition(" times as long as its peers")[2],
    )  # fmt: skip


def _worker(found: Diagnosis, slow: Culprit) -> str:
    """A rank with its host."""
    assert found.steps is not None
    host = found.record.hosts.get(slow.rank)
    return f"{describe_worker(found.steps.replay, slow)}{f' on {host}' if host else ''}"


def _pattern(found: Diagnosis, slow: Culprit) -> str:
    """How a worker is slow, since when, and how sure that is."""
    assert found.steps is not None
    numbers = found.steps.replay.layout.step
    times = f"{number(slow.slowdown)} times as long as its peers"
    sure = f"(p {p_text(slow.p)})"
    if slow.pattern == "chronic":
        if slow.since == numbers[0] and slow.until == numbers[-1]:
            return f"takes {times} all along {sure}"
        until = "the end" if slow.until == numbers[-1] else f"step {slow.until}"
        return f"takes {times} from step {slow.since}{_at(found, slow.since)} to {until} {sure}"
    if slow.pattern == "periodic":
        return f"takes {times} every {slow.period} steps, since step {slow.since} {sure}"
    listed = join([str(step) for step in slow.steps[:4]])
    more = f" and {len(slow.steps) - 4} more" if len(slow.steps) > 4 else ""
    return f"takes {times} in step {listed}{more} {sure}"


def _at(found: Diagnosis, step: int) -> str:
    """When a step began, where the record has times."""
    record = found.record
    if record.time is None:
        return ""
    times = record.time[record.step == step]
    known = times[np.isfinite(times)]
    return f" ({_when(record, float(known.min()))})" if len(known) else ""


def _when(record: Record, moment: float) -> str:
    """A moment by the clock, to the second, or in seconds of the log."""
    if not record.began:
        return f"{seconds(moment)} into the log"
    began = datetime.fromisoformat(record.began)
    at = began + timedelta(seconds=round(moment))
    return f"{at:%H:%M:%S}" if at.date() == began.date() else f"{at:%m-%d %H:%M:%S}"


def _why(found: Diagnosis) -> Iterator[str]:
    steps = found.steps
    if steps is not None:
        for slow in steps.culprits:
            yield from explained_text(steps, slow)
        yield from (cause_text(each) for each in steps.causes)
        for slow in _single(found):
            parts = part_text(steps, slow)
            if parts:
                yield parts
        beside = [
            (cause, slow.rank) for slow in steps.culprits for cause in found.hardware_of(slow)
        ]
        yield from (f"{_hardware(cause)}, beside rank {rank}." for cause, rank in beside)
        yield from (
            f"{_hardware(cause)} {_span(found.record, cause)}."
            + " No file says which rank that is." * (rank_of(found.record, cause.node) is None)
            for cause in found.hardware
            if not any(cause is each for each, _ in beside)
        )
        if found.network is not None:
            slower = found.network
            alone = len({*found.record.hosts.values()}) == 1
            what = "what its ranks share on their host" if alone else "the network"
            yield (
                f"The collective itself takes {number(slower.ratio)} times as long from step "
                f"{slower.since} to {slower.until}: {what}, and no rank."
            )
        if steps.culprits and not steps.causes and not found.record.series:
            yield "Step times do not show it; clocks and power beside them would (nvidia-smi)."
    else:
        yield from (f"{_hardware(each)}." for each in found.hardware)
        yield from _extreme_causes(found.record)


def _extreme_causes(record: Record) -> Iterator[str]:
    """Clocks, power and heat of the ranks with the extremes; clocks first, which say the most."""
    for each in sorted(record.bounds, key=lambda bounds: "clock" not in bounds.quantity):
        unit = QUANTITIES.get(each.quantity)
        if unit is not None and np.isfinite(each.middle).all() and len(each.low):
            scale, unit = (100, "%") if unit == "of 1" else (1, unit)
            said = [
                f"{number(scale * value)} {unit}"
                + (f" on rank {ranks[-1]}" if ranks[-1] >= 0 else "")
                for value, ranks in zip(each.middle, (each.low_rank, each.high_rank), strict=True)
            ]
            yield f"{capital(each.quantity)}: {', '.join(said)}."


def _span(record: Record, cause: HardwareCause) -> str:
    """When a card was slow."""
    if cause.is_constant:
        return "all along"
    return f"from {_when(record, cause.start)} to {_when(record, cause.end)}"


def _card(cause: HardwareCause) -> str:
    return cause.node if cause.node.startswith("GPU") else f"GPU {cause.node}"


def _hardware(cause: HardwareCause) -> str:
    """A cause of hardware with what was measured."""
    facts = cause.facts
    said = [
        f"{name} {number(value) + UNITS.get(name, '') if isinstance(value, float | int) else value}"
        for name, value in facts.items()
        if name != "episodes"
    ]
    return f"{_card(cause)}: {cause.kind} ({', '.join(said)})"


def _fixes(found: Diagnosis) -> Iterator[str]:
    steps = found.steps
    if steps is None:
        return
    own = [each for each in steps.fixes if each.kind != "metric"]
    best = max((each.seconds for each in own if each.kind in ("worker", "cause")), default=0.0)
    own = [e for e in own if e.kind not in ("together", "workers") or e.seconds > 1.001 * best]
    for each in sorted(own, key=lambda fix: -fix.seconds):
        if each.kind != "all":
            yield (
                f"{each.name}: {percent(each.share)} % less time, {seconds(each.seconds)} of a "
                f"step, {cost_of(each)} in {STEPS:,} steps."
            )


def _policies(found: Diagnosis) -> Iterator[str]:
    gains = [each for each in found.gains if each.share >= SLIGHT]
    baseline = "plain synchronous training (bsp)"
    for lane in ("A", "B", "C", None):
        best = next((each for each in gains if each.lane == lane), None)
        if best is not None:
            what = f"changes {CHANGED[lane]}" if lane else "does not declare what it changes"
            known = f" (below {ERROR})" if best.share < MODEL_ERROR else ""
            less = f"{percent(best.share)} % less time than {baseline}{known}"
            yield f"{best.policy}: {less}; it {what}."
            baseline = "bsp"
    if found.refused:
        yield f"None was compared: {found.refused.removeprefix(f'{found.record.source}: ')}."
    if found.gains and not gains:
        names = join([each.policy for each in found.gains])
        yield f"None of {names} takes at least {100 * SLIGHT:g} % less time than {baseline}."
