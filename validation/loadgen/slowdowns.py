"""What a schedule of load does to the simulated ranks of a case, as a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.profile.responses import evaluate
from simstrag.trace.trace import Trace
from simstrag.validation.loadgen.schedule import Schedule, response_to

__all__ = ["slowdowns"]


def slowdowns(
    schedule: Schedule,
    profile: Profile,
    ranks: int,
    paces: Sequence[float],
    among: float | None = None,
    rests: Mapping[float, float] | None = None,
    loaded: Mapping[float, float] | None = None,
) -> Trace | None:
    """Slowdowns of each rank by the levels on its core; None where there are none.

    Load beside a rank is beside all ranks of its core.  paces: how many times as long steps take on
    each core anyway.  among: the same for the other ranks being there; without it each other rank
    on a core counts as one level of load.  rests: seconds of what follows a step, by the level on
    one core, by which the `net` of ranks there is slowed, on lines between these levels.  loaded:
    how many times as long a step takes among the ranks beside so many levels as beside none, on
    lines between them; beyond the last, and without it, by the response to load.  Raises
    `InputError` for load of another kind than "cpu", which is what levels on a core are.
    """
    cores = len(paces)
    for each in schedule.episodes:
        if each.kind != "cpu":
            raise InputError(
                f"rank {each.rank}: load {each.kind}: only load cpu is simulated; leave out "
                "episodes of other kinds"
            )

    def beside(level: float) -> float:
        return float(evaluate(response_to("cpu", profile), [level])[0]) if level else 1.0

    def stretched(level: float, others: int) -> float:
        known = {0.0: 1.0} | dict(sorted((loaded or {}).items()))
        last = max(known)
        by_response = beside(others + max(level, last)) / beside(others + last)
        return float(np.interp(level, list(known), list(known.values()))) * by_response

    rows: list[tuple[float, int, str, str, float]] = []
    for rank in range(ranks):
        others = sum(r % cores == rank % cores for r in range(ranks)) - 1
        always = paces[rank % cores] * (beside(others) if among is None else among)
        episodes = [each for each in schedule.episodes if each.rank % cores == rank % cores]
        edges = sorted({0.0, *(t for each in episodes for t in (each.start, each.stop))})
        for t in edges:
            level = sum(e.level for e in episodes if e.start <= t < e.stop)
            value = always * stretched(level, others)
            if t or value != 1.0:
                rows.append((t, rank, "step", "slowdown", value))
            if rests and rests[0.0] and (t or level):
                after = float(np.interp(level, sorted(rests), [rests[k] for k in sorted(rests)]))
                rows.append((t, rank, "net", "slowdown", after / rests[0.0]))
    return Trace.from_rows(sorted(rows), "load of the schedule") if rows else None
