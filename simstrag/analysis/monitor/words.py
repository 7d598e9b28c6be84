"""A snapshot in words: what is wrong and what would help, first in one sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator

from simstrag.analysis.monitor.snapshot import SLOW, Snapshot, WatchedRank
from simstrag.analysis.text.number_format import join, number, percent, plural, seconds
from simstrag.rendering import answer, html_fragment

WORTH = 0.01
"""The headline names the cost of waiting from this share of GPU-hours on."""
CALM = 15.0
"""The view says how long no row has come, from so many seconds on."""


def headline(found: Snapshot) -> str:
    """The main finding, in one sentence."""
    if not found.steps:
        return _begin(found)
    silent = [each for each in found.ranks if each.silent]
    if silent:
        first = silent[0]
        more = f" (and {plural(len(silent) - 1, 'other rank')})" if len(silent) > 1 else ""
        return (
            f"Rank {first.rank}{more} has written nothing for {seconds(first.silent)}, and the "
            "others went on: it may have been killed."
        )
    if found.slowest is not None:
        rank, ratio = found.slowest
        cost = next((each.awaited for each in found.ranks if each.rank == rank), 0.0)
        share = cost / found.spent if found.spent else 0.0
        waits = f"; waiting for it cost {percent(share)} % of GPU-hours" if cost > 0 else ""
        if ratio < SLOW:
            return f"Rank {rank} was chronically slow, and is like its peers lately{waits}."
        return f"Rank {rank} computes {factor(ratio)} times as long as its peers{waits}."
    waiting = f"{percent(found.lost_share)} % of GPU-hours went into waiting"
    if not found.is_synced:
        return "No rank is chronically slow."
    if found.lost_share < WORTH:
        return f"All is well: no rank is chronically slow, and {waiting}."
    return f"No rank is chronically slow; {waiting} for ranks that were slow by turns."


def _begin(found: Snapshot) -> str:
    if not found.ranks:
        return "No rank has written yet."
    return f"{plural(len(found.ranks), 'rank')} began; no step is known of all of them yet."


def help_line(found: Snapshot) -> str:
    """What would help, in one sentence; empty before the first advice."""
    if found.advice is None:
        return ""
    action = found.advice.action.partition(". ")[0].rstrip(".")
    return f"{action}." if action else found.advice.line("policy") or found.advice.line("fix")


def status(found: Snapshot) -> str:
    """How far the run is, and whether it goes on."""
    parts = [f"step {found.last}"] if found.last >= 0 else []
    if found.step_seconds:
        parts.append(f"{seconds(found.step_seconds)} a step")
    parts.append(plural(len(found.ranks), "rank"))
    if found.is_over:
        parts.append("finished or stopped")
    elif found.age > CALM:
        parts.append(f"nothing written for {found.age:.0f} s")
    else:
        parts.append("running")
    if found.share < 0.98 and found.steps:
        parts.append(f"{percent(found.share, 2)} % read")
    return " · ".join(parts)


def lost(found: Snapshot) -> str:
    """The loss so far, in GPU-hours and as a share."""
    if not found.is_synced:
        return (
            "not known while it runs: ranks do not wait for each other in every step; "
            "simstrag diagnose says it of a finished run"
        )
    return (
        f"{hours(found.lost)} GPU-hours{money(found, found.lost)} of {hours(found.spent)}, "
        f"{percent(found.lost_share)} %, waiting for the slowest rank of a step"
    )


def hours(gpu_seconds: float) -> str:
    """GPU-seconds as GPU-hours."""
    return number(gpu_seconds / 3600)


def money(found: Snapshot, gpu_seconds: float) -> str:
    """What GPU-seconds cost at the price that was given, in brackets; empty without one."""
    if found.gpu_price is None:
        return ""
    return f" ({number(found.gpu_price * gpu_seconds / 3600)} at your price)"


def waited(found: Snapshot, rank: WatchedRank) -> str:
    """The waiting of the others for one rank."""
    within = f", in {join(rank.groups)}" if rank.groups else ""
    cost = f"{hours(rank.awaited)} GPU-hours{money(found, rank.awaited)}"
    return f"for rank {rank.rank}{within}: {cost}, last in {plural(rank.last, 'step')}"


def waited_for_others(found: Snapshot) -> str:
    """What was waited for the ranks that are not listed; empty if that is nothing."""
    listed = found.awaited
    rest = found.lost - sum(each.awaited for each in listed)
    others = len(found.ranks) - len(listed)
    if not others or not found.lost or rest <= 0:
        return ""
    return f"for the {plural(others, 'other rank')}: {hours(rest)} GPU-hours{money(found, rest)}"


def factor(ratio: float) -> str:
    """How many times as long as its peers a rank computes."""
    return f"{ratio:.2f}"


def advice_age(found: Snapshot) -> str:
    """Of which steps the advice is, and how old; or why there is none."""
    if found.advice is None:
        return found.why_no_advice
    minutes = (found.made - found.advice.made) / 60
    old = "just now" if minutes < 1 else f"{plural(int(minutes), 'minute')} ago"
    note = f"; {found.why_no_advice}" if found.why_no_advice else ""
    assumed = f", for {found.advice.assumed} (assumed)" if found.advice.assumed else ""
    return f"of steps {found.advice.first} to {found.advice.last}, {old}{assumed}{note}"


@html_fragment.register
def _(found: Snapshot) -> str:
    from simstrag.analysis.pages.templates import fragment  # of a page, with matplotlib

    return fragment([], list(paragraphs(found)))


@answer.register
def paragraphs(found: Snapshot) -> Iterator[str]:
    """All that a snapshot says, line by line, for a stream that is no terminal."""
    yield headline(found)
    if said := help_line(found):
        yield said
    yield f"run      {found.source}: {status(found)}"
    if found.steps:
        yield f"lost     {lost(found)}"
    for each in found.awaited[:3]:
        yield (f"waiting  {waited(found, each)}")
    for warned in found.warnings:
        yield f"warning  {warned.text}"
    if found.advice is not None:
        yield from (f"{label:8} {text}" for label, text in found.advice.lines)
    if age := advice_age(found):
        yield f"advice   {age}"


def brief(found: Snapshot) -> str:
    """One line, for a log."""
    clock = time.strftime("%H:%M:%S", time.localtime(found.made))
    parts = [status(found), headline(found)]
    if found.is_synced and found.steps:
        parts.append(f"lost {hours(found.lost)} GPU-hours{money(found, found.lost)}")
    return f"{clock}  {' · '.join(parts)}"
