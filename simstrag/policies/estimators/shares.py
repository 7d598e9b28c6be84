"""Shares of a batch among ranks: by speed, or by what launching and computing take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simstrag.arrays import Floats
from simstrag.contract import OverlappingStep
from simstrag.contract.medians import medians
from simstrag.contract.ties import is_less
from simstrag.policies.estimators.columns import correctly_rounded_sum

TELLS = 0.8
"""Work over that of before from which an unchanged time tells of launching, ASSUMED: a load that
changes meanwhile seldom makes up for a fifth."""


@dataclass(slots=True)
class StreamTimes:
    """What a step of each rank takes to launch, and on its device at a nominal share.

    A time tells only the longer of the two.  A longer one is first taken to be the device's, whose
    share of samples can be made smaller; if that leaves the time as it was, it was launching.

    launch, device: seconds, shape (N,).
    fixed: share of `device` that a smaller batch does not shorten.
    before: `device` before its last increase, shape (N,).
    seconds: of the step that caused this increase, shape (N,).
    work: part of `device` in that step, shape (N,); 0 after a step with a smaller share.
    """

    launch: Floats
    device: Floats
    fixed: float
    before: Floats
    seconds: Floats
    work: Floats

    @classmethod
    def of(cls, step: OverlappingStep, n: int) -> StreamTimes:
        """Times of `n` ranks without any slowdown."""
        device = np.full(n, step.device)
        return cls(np.full(n, step.launch), device, step.fixed_share, device, device, np.zeros(n))

    def follow(self, batch: Floats, times: Floats, tolerance: float) -> bool:
        """Learn from recent steps; False while a rank has too few at its present share.

        Where a step is shorter than expected, neither stream takes longer than it.

        batch, times: shape (N, W), shares and seconds, newest last, NaN for none.
        tolerance: relative deviation that is taken as noise.

        >>> ranks = StreamTimes.of(OverlappingStep(2.0, 3.0, 2.0), 2)
        >>> longer, halved = np.array([[3.0] * 5, [9.0] * 5]), np.array([[1.0] * 5, [0.5] * 5])
        >>> ranks.follow(np.ones((2, 5)), longer, 0.05), ranks.device
        (True, array([3., 9.]))
        >>> ranks.follow(halved, longer, 0.05), ranks.device, ranks.launch  # no sooner at half
        (True, array([3., 3.]), array([2., 9.]))
        """
        share = batch[:, -1]
        present = np.where(batch == share[:, np.newaxis], times, math.nan)
        if np.count_nonzero(~np.isnan(present), axis=1).min() < (batch.shape[1] + 1) // 2:
            return False
        seconds = medians(present.T, skip=True)
        work = share + self.fixed * (1 - share)
        expected = np.maximum(self.launch, self.device * work)
        longer = is_less((1 + tolerance) * expected, seconds)
        stays = np.abs(seconds - self.seconds) <= tolerance * self.seconds
        launches = longer & stays & (work < TELLS * self.work)
        self.launch = np.where(launches, seconds, self.launch)
        self.device = np.where(launches, self.before, self.device)
        computes = longer & ~launches
        self.before = np.where(computes, self.device, self.before)
        self.device = np.where(computes, seconds / work, self.device)
        self.seconds = np.where(computes, seconds, self.seconds)
        self.work = np.where(computes, work, np.where(work < self.work, 0.0, self.work))
        shorter = is_less(seconds, (1 - tolerance) * expected)
        self.device = np.where(shorter, np.minimum(self.device, seconds / work), self.device)
        self.launch = np.where(shorter, np.minimum(self.launch, seconds), self.launch)
        return True

    def shares(self, low: float, high: float) -> Floats:
        """Shares with the sum N under which the slowest rank is done first.

        If some rank launches longer than all would compute, the others keep what they can compute
        in that time, and as nearly the nominal share as that allows.

        >>> ranks = StreamTimes.of(OverlappingStep(1.0, 3.0, 1.0), 2)
        >>> ranks.device = np.array([3.0, 9.0])
        >>> ranks.shares(0.25, 4.0)
        array([1.5, 0.5])
        >>> ranks.launch, ranks.device = np.array([1.0, 8.0]), np.array([3.0, 3.0])
        >>> ranks.shares(0.25, 4.0)
        array([1., 1.])
        """
        n, fixed = len(self.device), self.fixed
        if fixed >= 1:
            return np.ones(n)
        least, most = (share + fixed * (1 - share) for share in (low, high))
        speed = 1 / self.device
        seconds, longest = n / correctly_rounded_sum(speed), float(np.maximum.reduce(self.launch))
        work = balanced(speed, least, most)
        limits = np.minimum(np.maximum(longest * speed, least), most)
        if seconds < longest and correctly_rounded_sum(limits) > n:
            work = levelled(limits)
        shares: Floats = (work - fixed) / (1 - fixed)
        return shares


def levelled(limits: Floats) -> Floats:
    """Numbers with the sum N, each at most its limit, that are as equal as the limits allow.

    limits: shape (N,), with a sum of N or more.

    >>> levelled(np.array([0.5, 3.0, 9.0]))
    array([0.5 , 1.25, 1.25])
    """
    n = len(limits)
    order = np.argsort(limits, kind="stable")
    left = float(n)
    for place, rank in enumerate(order.tolist()):
        level = left / (n - place)
        if limits[rank] >= level:
            return np.minimum(limits, level)
        left -= float(limits[rank])
    return limits


def balanced(rate: Floats, low: float, high: float) -> Floats:
    """Shares in proportion to speed, within limits, with the sum N.

    A rank whose share would pass a limit gets the limit; the others share the rest by speed.

    rate: shape (N,), samples per second in any unit, above 0.
    low, high: the limits; low <= 1 <= high.

    >>> balanced(np.array([1.0, 0.5]), low=0.25, high=4.0).round(4)
    array([1.3333, 0.6667])
    >>> balanced(np.array([9.0, 9.0, 9.0, 1.0]), low=0.25, high=4.0)
    array([1.25, 1.25, 1.25, 0.25])
    """
    n = len(rate)
    held = np.zeros(n, dtype=bool)
    shares = rate * (n / correctly_rounded_sum(rate))  # the same in any order of the ranks
    while True:
        if np.minimum.reduce(shares) >= low and np.maximum.reduce(shares) <= high:
            return shares
        limited: Floats = np.minimum(np.maximum(shares, low), high)
        over = correctly_rounded_sum(limited) - n
        if abs(over) <= 1e-12 * n:
            return limited
        held |= (shares < low) if over > 0 else (shares > high)
        rest = n - correctly_rounded_sum(limited[held])
        shares = np.where(held, limited, rate * (rest / correctly_rounded_sum(rate[~held])))
