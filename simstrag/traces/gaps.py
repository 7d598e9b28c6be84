"""Gaps of a log: times for which a host has no sample, and what an import does there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simstrag.arrays import Reals

GAP = 3.0
"""Times without a sample count as a gap beyond this multiple of the usual time between two: one
lost sample makes 2, and its neighbours tell enough about it."""
SHOWN = 8
"""Most hosts to name."""


def describe_gaps(samples: Iterable[tuple[str, Reals]], what: str, clean: str) -> tuple[str, ...]:
    """A sentence on the gaps of a log, the host with the longest first; empty without gaps.

    samples: a host, and the times of its samples in order; a host may come several times.
    what: the value that is held through a gap.
    clean: how a host counts before its first sample.

    >>> of = {"a": np.arange(9.0), "b": np.array([0.0, 1, 2, 7, 8])}
    >>> print(*describe_gaps(of.items(), "the load", "unloaded"))
    1 gap without a sample, longer than 3 s, of b (longest 5 s): through it the load before it is \
held
    """
    series = [(host, np.unique(times)) for host, times in samples]
    steps = np.concatenate([np.diff(times) for _, times in series] or [np.zeros(0)])
    if not len(steps):
        return ()
    limit = GAP * float(np.median(steps))
    begin, end = (f(t[k] for _, t in series) for f, k in ((min, 0), (max, -1)))
    longest: dict[str, float] = {}
    count, late = 0, False
    for host, times in series:
        found = np.diff(times, prepend=begin, append=end)
        found, is_late = found[found > limit], times[0] - begin > limit
        count, late = count + len(found), late or is_late
        if len(found):
            longest[host] = max(longest.get(host, 0.0), float(found.max()))
    if not count:
        return ()
    hosts = sorted(longest, key=lambda host: -longest[host])
    named = [f"{host} (longest {longest[host]:.4g} s)" for host in hosts[:SHOWN]]
    rest = [f"{len(hosts) - SHOWN} more hosts"] if len(hosts) > SHOWN else []
    gaps, it = ("1 gap", "it") if count == 1 else (f"{count} gaps", "them")
    before = f"; before its first sample a host counts as {clean}" if late else ""
    return (
        f"{gaps} without a sample, longer than {limit:.4g} s, of {', '.join(named + rest)}: "
        f"through {it} {what} before {it} is held{before}",
    )
