"""The result of a sweep in words: where which policy is fastest, and what to know beforehand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from simstrag.analysis.derived.sweep_cells import Cell, Ranked, SweepCells
from simstrag.analysis.text.cautions import STALE
from simstrag.analysis.text.gain_text import ERROR, PolicyNames
from simstrag.analysis.text.number_format import capital, join, percent
from simstrag.analysis.text.remark import say
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import MODEL_ERROR
from simstrag.experiments.study import text_of

MOST = 8
"""Most warnings that a page repeats."""


def sentences(found: SweepCells) -> tuple[str, ...]:
    """Where which policy is fastest, what that saves, what is missing, and what the policies do."""
    wins = Counter(cell.winner for cell in found.cells if cell.winner)
    names = PolicyNames()
    named = {policy: names.of(policy) for policy, _ in wins.most_common()}
    does = " ".join(f"{policy}:{text}" for policy, (_, text) in named.items() if text)
    full = {policy: name for policy, (name, _) in named.items()}
    return tuple(filter(None, (_winners(found, wins, full), _savings(found), _gaps(found), does)))


def describe(cell: Cell, found: SweepCells) -> str:
    """A point by the keys that vary."""
    return ", ".join(f"{key}: {text_of(cell.values[key])}" for key in found.axes)


def outcome(cell: Cell) -> str:
    """The fastest policy of a point, in words."""
    if cell.winner:
        return cell.winner
    if cell.best:
        return f"no clear winner: {join(cell.contenders)}"
    return f"no result: {_not_ended(cell.missing)}" if cell.missing else "no result"


def cautions(found: SweepCells) -> list[str]:
    """What a reader must know before relying on the picture, most important first."""
    return [*_unranked(found), *_worth(found), *_seeds(found), *found.warnings[:MOST], *(
        [f"{len(found.warnings) - MOST} more warnings are in the files of the runs."]
        if len(found.warnings) > MOST else []
    )]  # fmt: skip


def _winners(found: SweepCells, wins: Counter[str], full: Mapping[str, str]) -> str:
    points = len(found.cells)
    unclear = sum(cell.best is not None and not cell.winner for cell in found.cells)
    if not any(cell.best for cell in found.cells):
        return "No point has a result yet."
    if not wins:
        return "At no point is one policy shown to be faster than every other."
    (best, most), *others = wins.most_common()
    first = best if full[best] == best else capital(full[best])
    among = ""
    if any(cell.inaccurate for cell in found.cells):
        among = ", of those shown to be as accurate as bsp"
        among += " (one seed cannot show it of another: run more)" if found.seeds < 2 else ""
    if most == points:
        return f"{first} is the fastest policy at all {points} points{among}."
    named = [f"{first} is the fastest policy at {most} of {points} points"]
    named += [f"{full[policy]} at {count}" for policy, count in others]
    rest = f"; at {unclear} there is no clear winner" if unclear else ""
    return f"{join(named)}{among}{rest}."


def _savings(found: SweepCells) -> str:
    saved = [p.saved.value for p in _faster(found) if math.isfinite(p.saved.value)]
    if not saved:
        return ""
    least, most = (percent(share, 2) for share in (min(saved), max(saved)))
    between = least if least == most else f"between {least} and {most}"
    return f"Where another policy than bsp is fastest, it saves {between} % of bsp's time."


def _faster(found: SweepCells) -> list[Ranked]:
    """The winners that are not bsp, a point each."""
    best = [cell.best for cell in found.cells if cell.winner not in (None, BASELINE)]
    return [p for p in best if p is not None]


def _gaps(found: SweepCells) -> str:
    without = sum(not cell.best for cell in found.cells)
    missing = sum(cell.missing for cell in found.cells)
    if not without:
        return ""
    why = "every policy failed there, or its time is unknown."
    if missing:
        why = f"of {len(found.sweep.runs)} runs {_not_ended(missing)}. The same `simstrag sweep` "
        why += "goes on from there."
    text = "{without} of {of} points {without:has/have} no result: {why}"
    return say(text, without=without, of=len(found.cells), why=why)


def _unranked(found: SweepCells) -> Iterator[str]:
    """Policies without a time to compare: the points are ranked without them."""
    for what, reasons in (
        ("failed", [cell.failed for cell in found.cells]),
        ("has no time to target", [cell.unknown for cell in found.cells]),
        ("may be less accurate than bsp", [cell.inaccurate for cell in found.cells]),
    ):
        pairs = [*zip(found.cells, reasons, strict=True)]
        for policy in found.policies:
            where = [(cell, why[policy]) for cell, why in pairs if policy in why]
            if where:
                cell, reason = where[0]
                yield (
                    f"{policy} {what} at {_of(len(where), found)} and has no place there: "
                    f"{reason} ({describe(cell, found)})."
                )


def _worth(found: SweepCells) -> Iterator[str]:
    """Gains that are too little to be sure of, and what times are of."""
    if slight := sum(p.saved.value < MODEL_ERROR for p in _faster(found)):
        yield (
            f"At {slight} of {len(found.cells)} points the fastest policy saves less than {ERROR}, "
            "so real ranks may not show it."
        )
    times = found.sweep.times
    if found.sweep.study["scenario"].get("learner", {}).get("kind") == "real":
        which = "whatever accuracy they led to, as bsp is not among the policies"
        if found.has_baseline:
            which = "among the policies whose final accuracy is shown to be that of bsp, less at "
            which += "most learner.margin"
        if "makespan" in times:
            yield (
                f"Points are ranked by the time of equal samples, {which}: declare target_accuracy "
                "to rank them by the time to it."
            )
        return
    cells = [cell for cell in found.cells if times[cell.number] == "makespan"]
    if stale := dict.fromkeys(p.policy for cell in cells for p in cell.ranking if p.stale):
        yield say(STALE, who=[*stale])
    if "time_to_target" in times:
        yield "Times to target come from a model of progress; nothing was trained."


def _seeds(found: SweepCells) -> Iterator[str]:
    """Too few seeds, and what must be added or varied to know more."""
    if not all(found.sweep.certain):
        if found.seeds < 2:
            yield (
                "One seed gives no interval, so at no point with noise can a winner be shown: run "
                "more seeds; only the new ones are computed."
            )
        yield (
            "A winner is shown by the 95 % intervals of its own point; they are not corrected for "
            "the number of points or policies."
        )
    if not found.has_baseline:
        yield (
            "bsp is not among the policies, so no gain is known: add it to the study; only its "
            "runs are computed."
        )
    stated = found.sweep.study["scenario"].get("placeholders", ())
    if names := [name for name in stated if name not in found.axes]:
        text = "{names} {names:is a placeholder/are placeholders}: give your own value, or vary it."
        yield say(text, names=names)


def _not_ended(runs: int) -> str:
    return f"{runs} {'has' if runs == 1 else 'have'} not ended"


def _of(points: int, found: SweepCells) -> str:
    of = len(found.cells)
    return f"all {of} points" if points == of else f"{points} of {of} points"
