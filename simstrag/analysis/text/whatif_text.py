"""A replay in words: its error, what was lost, causes and parts of a step.

Who was slow and what would help, a diagnosis says: `diagnosis_text`.
"""

from __future__ import annotations

from collections.abc import Iterator

from simstrag.analysis.text.number_format import capital, number, percent, plural, seconds
from simstrag.analysis.text.remark import say
from simstrag.whatif.analysis import WhatIf
from simstrag.whatif.causes import Cause
from simstrag.whatif.culprits import Culprit, excess_by_part
from simstrag.whatif.fixes import Fix, describe_worker
from simstrag.whatif.policy_outlook import ROUNDING, PoliciesOnRecord

SMALLEST = 1e-6
"""Sentences give the p-value down to this one, and a bound below it."""
EQUAL = 1e-5
"""Sentences leave out a smaller error of the replay."""
MOSTLY = 0.5
"""Share of what a worker computes longer from which a part of its step is named."""
CAUSES = {
    "stages": "{who} computes {ratio} times as long as the mean stage: layers are spread unevenly.",
    "tokens": "Seconds go with tokens (correlation {correlation}): batches of unequal length.",
    "lengths": "Forward and backward of a micro-batch are long together (correlation "
    "{correlation}): sequences of unequal length.",
    "input": "Before its first operation a step waits; that costs {seconds:s}: input, garbage "
    "collection or another pause of the host.",
    "gc": "Garbage collection takes {seconds:s} of a step.",
    "link": "The link from {subject} takes {ratio} times as long as the median link for a "
    "transfer.",
}
"""The sentence of each cause."""


def sentences(found: WhatIf) -> tuple[str, ...]:
    """The error of the replay; and what was lost by its definition, where ranks are several."""
    return (_replay(found), *(() if found.replay.layout.is_alone else _lost(found)))


def policy_sentences(found: PoliciesOnRecord) -> tuple[str, ...]:
    """The check by bsp and the warnings; the table of policies says the rest."""
    return (
        f"In a scenario of this record, bsp takes {seconds(found.replayed)} a step, as the replay "
        f"does: S is {number(found.replayed / found.ideal, 4)} in both, to "
        f"{max(found.bsp_error, ROUNDING):.0e}.",
        *(f"{capital(warning)}." for warning in found.warnings),
    )  # fmt: skip


def cost_of(fix: Fix) -> str:
    """GPU-hours of 1,000 steps, and their price where it is known."""
    hours = f"{number(fix.gpu_hours)} GPU-hours"
    return hours if fix.cost is None else f"{hours} ({number(fix.cost)} at your price)"


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


def _lost(found: WhatIf) -> Iterator[str]:
    m = found.metrics
    share = 1 - 1 / m.slowdown
    yield (
        f"With every operation at the average of its kind, a step would take "
        f"{seconds(float(m.ideal.mean()))}: the slowdown S is {number(m.slowdown, 4)}, and "
        f"{percent(share)} % of the time is lost."
    )
    own = [each for each in found.fixes if each.kind in ("worker", "cause")]
    best = max(own, key=lambda each: each.seconds, default=None)
    if best is not None and best.kind == "worker" and best.share > share:
        yield (
            f"{capital(best.name)} saves more, {percent(best.share)} %: the average counts the "
            "slow worker in, the fix takes the median of the others."
        )


def explained_text(found: WhatIf, slow: Culprit) -> Iterator[str]:
    """The causes that make a worker slow which would else be as fast as its peers."""
    for cause in found.causes:
        if slow.rank in cause.explains:
            yield (
                f"{percent(cause.explains[slow.rank])} % of what "
                f"{describe_worker(found.replay, slow)} computes longer goes with its "
                f"{cause.subject}: it is no slow rank, but has more to compute."
            )


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
    alike = [share for (own, _), share in shares.items() if own == kind]
    text = "no single part: {named} has the most, {most:%} of it."
    if most >= MOSTLY:
        text = "{named}: {most:%} of it."
    elif len(alike) > 1 and sum(alike) >= MOSTLY:
        text = "{kind}: {all:%} of it, over {n} such parts, {named} the most with {most:%}."
    return say(
        f"What {{who}} computes longer is in {text}", who=who, kind=kind, most=most, n=len(alike),
        named=f"{kind}-{at}" if at else kind, all=sum(alike),
    )  # fmt: skip


def cause_text(cause: Cause) -> str:
    kind = "tokens" if (cause.name, cause.subject) == ("lengths", "tokens") else cause.name
    template = CAUSES.get(kind, CAUSES["link"])
    return say(template, subject=cause.subject, who=capital(cause.subject), **cause.facts)


def p_text(p: float) -> str:
    return f"< {SMALLEST:g}" if p < SMALLEST else f"= {number(p, 2)}"
