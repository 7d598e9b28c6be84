"""A what-if analysis in words: the replay first, then what was lost, who, why and what to fix."""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.text.number_format import join, number, percent, plural, seconds
from simstrag.statistics.slow_workers import FEWEST, FLOOR
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.causes import Cause
from simstrag.whatif.culprits import Culprit, excess_by_part
from simstrag.whatif.fixes import STEPS, Fix, describe_worker
from simstrag.whatif.policy_outlook import ROUNDING, PoliciesOnRecord, PolicyOutlook

MOST = 4
"""Most culprits that have a sentence."""
SMALLEST = 1e-6
"""Sentences give the p-value down to this one, and a bound below it."""
EQUAL = 1e-5
"""Sentences leave out a smaller error of the replay."""
MOSTLY = 0.5
"""Share of what a worker computes longer from which a part of its step is named."""
ALONE = (
    "The record has one rank, so that nothing could be compared: whether the rank is slow, and "
    "what that costs, takes a record of the others, too."
)


def sentences(found: WhatIf) -> tuple[str, ...]:
    """Every sentence, the error of the replay first."""
    if found.replay.layout.is_alone:
        return (_replay(found), ALONE, *map(cause_text, found.causes), *_gains(found))
    return (_replay(found), _lost(found), *_who(found), *_why(found), *_gains(found))


def policy_sentences(found: PoliciesOnRecord) -> tuple[str, ...]:
    """The check by bsp, the warnings, and the policies that would have helped most."""
    return (
        f"In a scenario of this record, bsp takes {seconds(found.replayed)} a step, as the replay "
        f"does: S is {number(found.replayed / found.ideal, 4)} in both, to "
        f"{max(found.bsp_error, ROUNDING):.0e}.",
        *(f"{_capital(warning)}." for warning in found.warnings),
        *_best_policies(found),
    )  # fmt: skip


def _best_policies(found: PoliciesOnRecord) -> Iterator[str]:
    """The best of those that change nothing in training, and a quicker one if there is any."""
    quicker = [each for each in found.outlooks if max(each.won_back) > 0]
    safe = next((each for each in quicker if each.lane == "A"), None)
    if not quicker:
        yield "No policy that was compared would have made this job quicker than bsp."
    if safe is not None:
        yield f"Without a change of training, {_helps(found, safe)}"
    if quicker and quicker[0] is not safe:
        yield f"With one, {_helps(found, quicker[0])}"


def _helps(found: PoliciesOnRecord, best: PolicyOutlook) -> str:
    low, high = min(best.seconds), max(best.seconds)
    took = seconds(high) if low == high else f"{seconds(low)} to {seconds(high)}"
    more = "" if low == high else " or more; how much depends on whether the device was slowed"
    return (
        f"{best.policy} would have helped most: {took} a step, which is "
        f"{percent(1 - high / found.replayed)} % less{more}."
    )


def cost_of(fix: Fix) -> str:
    """GPU-hours of 1,000 steps, and their price where it is known."""
    hours = f"{number(fix.gpu_hours)} GPU-hours"
    return hours if fix.cost is None else f"{hours} ({number(fix.cost)} at your price)"


def _share(found: WhatIf) -> float:
    return 1 - 1 / found.metrics.slowdown


def _replay(found: WhatIf) -> str:
    m = found.metrics
    if not found.record.is_timed:
        return "The error of the replay is unknown: the record has no time of a whole step."
    error = 1 / m.replay_error - 1
    apart = f"{percent(abs(error), 2)} % {'longer' if error > 0 else 'shorter'} than"
    return (
        f"The replay is {'as long as' if abs(error) < EQUAL else apart} the recorded step: "
        f"{seconds(float(m.replayed.mean()))} against {seconds(float(m.recorded.mean()))}, means "
        f"of {plural(len(m.step), 'step')}."
    )


def _lost(found: WhatIf) -> str:
    m = found.metrics
    return (
        f"With every operation at the average of its kind, a step would take "
        f"{seconds(float(m.ideal.mean()))}: the slowdown S is {number(m.slowdown, 4)}, and "
        f"{percent(_share(found))} % of the time is lost."
    )


def _who(found: WhatIf) -> Iterator[str]:
    steps, late, layout = len(found.metrics.step), found.late, found.replay.layout
    if not found.culprits and len(layout.replica) > 1:
        if any(each.hides_ranks for each in found.unseen):
            yield "This record does not show which rank was slow."
        elif steps >= FEWEST:
            yield f"Beyond chance, no worker is slower than its peers by {100 * FLOOR:.0f} %."
        often = max(range(len(late.last)), key=lambda k: late.last[k])
        hours = sum(late.waited) * found.gpus / len(layout.replica) / 3600
        what = "rank" if layout.stages == 1 else "replica"
        yield (
            f"{_last(f'{what} {layout.replica[often]}', late.last[often], found)}, more often than "
            f"any other; waiting cost {number(hours)} GPU-hours in all."
        )
    for slow in found.culprits[:MOST]:
        k = layout.replica.tolist().index(slow.replica)
        hours = late.waited[k] * found.gpus / len(layout.replica) / 3600
        whose = "it" if layout.stages == 1 else f"replica {slow.replica}"
        yield (
            f"{_capital(describe_worker(found.replay, slow))} {_pattern(slow, found.metrics.step)} "
            f"({slow.test}; p {p_text(slow.p)}). {_last(whose, late.last[k], found)}, and it cost "
            f"the others {number(hours)} GPU-hours of waiting in all."
        )
        for cause in found.causes:
            if slow.rank in cause.explains:
                yield (
                    f"{percent(cause.explains[slow.rank])} % of what it computes longer goes with "
                    f"its {cause.subject}: it is no slow rank, but has more to compute."
                )
    if len(found.culprits) > MOST:
        yield f"{len(found.culprits) - MOST} more workers are slow; the table has them."


def _last(whose: str, times: int, found: WhatIf) -> str:
    steps = plural(len(found.metrics.step), "step")
    if found.late.waits > 1:
        return f"The others waited longest for {whose} in {times} of {steps}"
    return f"{_capital(whose)} was the last to finish in {times} of {steps}"


def _pattern(slow: Culprit, steps: tuple[int, ...]) -> str:
    times = f"{number(slow.slowdown)} times as long as its peers"
    if slow.pattern == "chronic":
        until = "" if slow.until == steps[-1] else f" until step {slow.until}"
        return (
            f"is chronically slow: it computes {times} in {len(slow.steps)} of {len(steps)} "
            f"steps, since step {slow.since}{until}"
        )
    if slow.pattern == "periodic":
        return (
            f"is slow every {slow.period} steps: it computes {times} in steps {slow.steps[0]}, "
            f"{slow.steps[1]}, ..."
        )
    listed = join([str(step) for step in slow.steps[:5]])
    return f"was slow once: it computed {times} in step {listed}"


def _why(found: WhatIf) -> Iterator[str]:
    yield from (cause_text(each) for each in found.causes)
    if not found.record.is_pipeline:
        yield from _parts(found)
    elif not found.causes:
        yield (
            f"The record shows no cause beyond {'the slow workers' if found.culprits else 'chance'}"
            ": the stages, the lengths of micro-batches, the delay before the first operation, "
            "garbage collection and the links between stages are each worth less than 1 % of a "
            "step."
        )


def _parts(found: WhatIf) -> Iterator[str]:
    """Which part of a step was slow, where ranks have parts."""
    layout = found.replay.layout
    if (~layout.communicates).sum() < 2:
        if not found.causes:
            tokens = "it does not go with tokens, and " if found.record.tokens is not None else ""
            yield (
                f"The record does not show why: {tokens}what a rank computes in a step is one "
                "number there."
            )
        return
    yield from filter(None, (part_text(found, slow) for slow in found.culprits[:MOST]))


def part_text(found: WhatIf, slow: Culprit) -> str:
    """Which part of its step makes a worker slow; empty where a step has one part, or a cause."""
    layout = found.replay.layout
    explained = any(slow.rank in cause.explains for cause in found.causes)
    if found.record.is_pipeline or explained or (~layout.communicates).sum() < 2:
        return ""
    return _slow_part(excess_by_part(layout, slow), describe_worker(found.replay, slow))


def _slow_part(shares: dict[tuple[str, int], float], who: str) -> str:
    """The part, or the parts of a kind, that have most of what a worker computes longer."""
    (kind, at), most = next(iter(shares.items()))
    named = f"{kind}-{at}" if at else kind
    if most >= MOSTLY:
        return f"What {who} computes longer is in {named}: {percent(most)} % of it."
    alike = [share for (own, _), share in shares.items() if own == kind]
    if len(alike) > 1 and sum(alike) >= MOSTLY:
        return (
            f"What {who} computes longer is in {kind}: {percent(sum(alike))} % of it, over "
            f"{len(alike)} such parts, {named} the most with {percent(most)} %."
        )
    return (
        f"What {who} computes longer is in no single part: {named} has the most, "
        f"{percent(most)} % of it."
    )


def cause_text(cause: Cause) -> str:
    facts = cause.facts
    match cause.name:
        case "stages":
            return (
                f"{_capital(cause.subject)} computes {number(facts['ratio'])} times as long as the "
                "mean stage: layers are spread unevenly."
            )
        case "lengths" if cause.subject == "tokens":
            return (
                f"Seconds go with tokens (correlation {number(facts['correlation'])}): batches of "
                "unequal length."
            )
        case "lengths":
            return (
                "Forward and backward of a micro-batch are long together (correlation "
                f"{number(facts['correlation'])}): sequences of unequal length."
            )
        case "input":
            return (
                f"Before its first operation a step waits; that costs {seconds(facts['seconds'])}: "
                "input, garbage collection or another pause of the host."
            )
        case "gc":
            return f"Garbage collection takes {seconds(facts['seconds'])} of a step."
    return (
        f"The link from {cause.subject} takes {number(facts['ratio'])} times as long as the median "
        "link for a transfer."
    )


def _gains(found: WhatIf) -> Iterator[str]:
    own = [each for each in found.fixes if each.kind in ("worker", "cause")]
    if own:
        best = max(own, key=lambda each: each.seconds)
        yield (
            f"What gives most: {best.name}. A step is then {seconds(best.seconds)} "
            f"({percent(best.share)} %) shorter, which is {cost_of(best)} in {STEPS:,} steps."
        )
        if best.kind == "worker" and best.share > _share(found):
            yield (
                "That is more than what is lost above, where the average counts the slow worker "
                "in; its fix takes the median of the others."
            )
    together = next((each for each in found.fixes if each.kind == "together"), None)
    if together is not None:
        total = sum(each.seconds for each in own)
        why = "they overlap" if total > together.seconds else "some help only together"
        yield (
            f"All fixes together make a step {seconds(together.seconds)} "
            f"({percent(together.share)} %) shorter, which is {cost_of(together)} in {STEPS:,} "
            f"steps. One by one they add up to {seconds(total)}: {why}."
        )


def p_text(p: float) -> str:
    return f"< {SMALLEST:g}" if p < SMALLEST else f"= {number(p, 2)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
