"""Finds the slow ranks of a synchronous quorum and those whose removal raises throughput.

A rank is judged by its pace, the seconds of a step over its share of the batch, so that a change of
the shares changes no judgement.  All members of a synchronous quorum take part in every update, so
full windows hold the same updates.  A slowdown shared by all ranks flags none.

The test of one check is `detectors.find_suspects`.  All else is this project's.
"""

from __future__ import annotations

import math

import numpy as np

from simstrag.arrays import Bools, Floats, Ints
from simstrag.contract import WINDOW, Block, View
from simstrag.contract.ties import argsort, is_less
from simstrag.policies.estimators.detectors import (
    Limit,
    baseline,
    find_suspects,
    may_stand_out,
    median,
)
from simstrag.policies.estimators.windows import Windows

Z_ON = 3.5
"""Robust standard deviations above which a rank stands out, as Iglewicz & Hoaglin advise."""
FLOOR = 0.01
"""Least scale of z, as a share of the reference."""


class SlowRanks:
    """The paces of the members of a quorum, and the checks in a row that found each of them slow.

    window: recent steps of a rank whose median is its pace.
    checks: checks in a row after which a rank is slow.
    ratio: the least pace of a slow rank, relative to the reference.
    members: shape (N,), the ranks whose steps count.
    version: of the last view.
    """

    def __init__(self, members: Bools, window: int, checks: int, ratio: float) -> None:
        self.members = members.copy()
        self._checks, self._ratio, self._width = checks, ratio, window
        self._windows = Windows(len(members), window)
        self._counts: Ints = np.zeros(len(members), dtype=np.int64)
        self.version = -1

    def follow(self, view: View) -> bool:
        """Enter the steps of a view; False where it shows no update since the last one."""
        if view.version <= self.version:
            return False
        self.version = view.version
        new = self._windows.news(view.steps, WINDOW)
        if new:
            times, shares, cancelled = (
                view.newest(name, new).T for name in ("local_times", "batch", "lower_bound")
            )
            usable = ~(cancelled | np.isnan(times)) & self.members
            self._windows.follow(view.steps, times / shares, usable)
        return True

    def follow_block(self, block: Block, rows: int, judged: Bools, acts: bool) -> int:
        """Enter and check the first rows of a block, up to the one that may find a rank slow.

        rows: how many at most.
        judged: shape (N,), the ranks whose paces are checked.
        acts: whether the row that may find a rank slow is left to `plan`; else it is checked, too.

        Returns how many were entered and checked.
        """
        if rows <= 0 or np.count_nonzero(block.new > 1):
            return 0
        times, shares, cancelled = (
            block.newest(name)[:rows] for name in ("local_times", "batch", "lower_bound")
        )
        usable = ~(cancelled | np.isnan(times)) & (block.new[:rows] == 1) & self.members
        clean, on = block.hints.clean_seconds, Limit(self._ratio - 1, Z_ON, FLOOR)
        paces, ahead = times / shares, self._windows.copy()
        low, high = ahead.follow_rows(block.steps[:rows], paces, usable)
        x, ranks, entered = (low + high) / 2, np.flatnonzero(judged), 0
        x[:, ~judged] = np.nan
        for k in np.flatnonzero(
            may_stand_out(x, ranks, ranks[:0], on=on, off=on, clean=clean)
        ).tolist():
            if k > entered:
                self._counts[:] = 0
            may_be_slow = acts and np.maximum.reduce(self._counts) + 1 >= self._checks
            upto = k if may_be_slow else k + 1
            if upto > entered:
                those = slice(entered, upto)
                self._windows.follow_rows(block.steps[those], paces[those], usable[those])
                self.version, entered = int(block.versions[upto - 1]), upto
            if may_be_slow:
                return k
            self.check(x[k], clean)
        if entered < rows:
            self._counts[:] = 0
        self._windows, self.version = ahead, int(block.versions[rows - 1])
        return rows

    def paces(self, steps: int | None = None) -> Floats:
        """The median of each rank's last steps, shape (N,); NaN with fewer steps.

        steps: at most the window; None is the window.
        """
        windows = self._windows
        return windows.median(slice(None)) if steps is None else median(windows.latest(steps).T)

    def check(self, paces: Floats, clean: float | None) -> Bools:
        """Which ranks this check and those before it found slow, shape (N,); once per update.

        paces: of the ranks that are judged; NaN for all others.
        clean: seconds of an uncontended step, if known.
        """
        against = baseline(
            paces,
            lambda: self._windows.ordered.T,
            clean=clean,
            delta=self._ratio - 1,
            floor=FLOOR,
        )
        suspect = find_suspects(paces, against, Z_ON, self._ratio - 1)
        self._counts = (self._counts + 1) * suspect
        slow: Bools = self._counts >= self._checks
        return slow

    def change(self, ranks: Bools | Ints | list[int], take_part: bool) -> None:
        """Let ranks enter or leave; steps before that say nothing about those after it."""
        self.members[ranks] = take_part
        self._counts[ranks] = 0
        self._windows.clear(ranks)


def worth_leaving(paces: Floats, slow: Bools, least: int, whole: int | None = None) -> Ints:
    """The slow ranks without which the others do most samples per second; the slowest come first.

    Of equally good choices the one that leaves out the fewest is taken.

    paces: of the members, in any unit; NaN for one that is not known yet, which stays.
    slow: whether a member may be left out.
    least: members with a known pace that stay at least.
    whole: samples of an update, which the members that stay share out; the largest share is a whole
        number.  None where each does as many as ever, or where the number is unknown.

    >>> paces = np.array([1.0, 1.0, 1.0, 1.5])
    >>> worth_leaving(paces, paces > 1, least=1)
    array([3])
    >>> worth_leaving(paces, paces > 1, least=1, whole=4)  # two of three samples take 2, not 1.5
    array([], dtype=int64)
    """
    order = np.flatnonzero(slow)
    if not len(order):
        return order
    known = len(paces) - int(np.count_nonzero(np.isnan(paces)))
    order = order[argsort(paces[order])[::-1]][: max(known - least, 0)]
    stay, best, taken = paces.copy(), math.inf, 0
    for k in range(len(order) + 1):
        stay[order[:k]] = 0.0
        share = 1 / (len(stay) - k) if whole is None else math.ceil(whole / (len(stay) - k))
        seconds = float(np.fmax.reduce(stay)) * share
        if is_less(seconds, best):
            best, taken = seconds, k
    return order[:taken]
