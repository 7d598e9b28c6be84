"""Max-min fair shares of processors and network cards.

A share is max-min fair if no consumer can get more without taking from one that has less.
Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2.
"""

from __future__ import annotations

import math

import numpy as np

from simstrag.arrays import Floats, Ints

FULL = 1e-9
"""Demands that exceed a capacity by less than this share of it fit."""


def fair_level(demands: Floats, capacity: float) -> float:
    """The most that one consumer gets of a capacity; infinity where all demands fit.

    The share of each is the smaller of this and its demand.

    >>> fair_level(np.array([1.0, 4.0, 5.0]), 7.0), fair_level(np.array([1.0]), 7.0)
    (3.0, inf)
    """
    if demands.sum() <= capacity * (1 + FULL):
        return math.inf
    ordered = np.sort(demands)
    left = capacity - np.append(0.0, np.cumsum(ordered)[:-1])
    levels = left / np.arange(len(ordered), 0, -1)
    return float(levels[np.argmax(levels <= ordered)])  # the first that is not satisfied


def fill(demands: Floats, routes: Ints, capacities: Floats) -> Floats:
    """The fair rate of each flow, where a flow passes several resources: progressive filling.

    demands: the most that each flow takes.
    routes: shape (flows, passed): the resources of each flow; -1 for none.
    capacities: of each resource.

    The resource with the lowest level limits its flows first; what they leave is shared by others.

    >>> fill(np.array([9.0, 9.0, 9.0]), np.array([[0, 1], [0, -1], [1, -1]]), np.array([4.0, 9.0]))
    array([2., 2., 7.])
    """
    rates, left = demands.copy(), capacities.astype(float)
    open_flows = np.ones(len(demands), np.bool_)
    asked = np.bincount(
        routes[routes >= 0], np.repeat(demands, (routes >= 0).sum(axis=1)), len(capacities)
    )
    tight = np.flatnonzero(asked > capacities * (1 + FULL)).tolist()
    passing = {resource: (routes == resource).any(axis=1) for resource in tight}
    while tight:
        levels = {k: fair_level(demands[passing[k] & open_flows], left[k]) for k in tight}
        lowest = min(tight, key=lambda k: (levels[k], k))
        if levels[lowest] == math.inf:
            break
        those = passing[lowest] & open_flows
        rates[those] = np.minimum(demands[those], levels[lowest])
        open_flows &= ~those
        tight.remove(lowest)
        for k in tight:
            left[k] = max(left[k] - rates[those & passing[k]].sum(), 0.0)
    return rates


def slowdowns(demands: Floats, shares: Floats) -> Floats:
    """By how much consumers are slowed that get less than they ask for, at least 1.

    >>> slowdowns(np.array([4.0, 1.0, 0.0]), np.array([2.0, 1.0, 0.0]))
    array([2., 1., 1.])
    """
    slowed = shares < demands
    return np.where(slowed, demands / np.where(slowed, shares, 1.0), 1.0)
