"""The ranges in which a job's numbers can lie: outside them most likely a unit is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simstrag.errors import InputError


class Plausible(NamedTuple):
    """The range of a number.

    possible: ends that no job passes.
    usual: ends that hardly any job passes.
    why: what lies near the ends.
    """

    unit: str
    possible: tuple[float, float]
    usual: tuple[float, float]
    why: str


PLAUSIBLE = {
    "step.compute": Plausible(
        "s", (1e-7, 1e5), (1e-5, 60.0),
        "one kernel takes microseconds to start, and a day has 86,400 s; is it in milliseconds?",
    ),
    **dict.fromkeys(("step.launch", "step.device"), Plausible(
        "s", (1e-7, 1e5), (1e-5, 60.0), "one kernel takes microseconds to start; is it in ms?"
    )),
    "allreduce.bytes": Plausible(
        "bytes", (1.0, 1e16), (1.0, 1e14), "the largest models have about 1e13 parameters"
    ),
    "allreduce.bandwidth": Plausible(
        "bytes/s", (1e3, 1e15), (1e6, 1e13),
        "10 Mbit Ethernet has 1.25e6 bytes/s, and a GPU's own memory less than 1e13",
    ),
    "allreduce.alpha": Plausible(
        "s", (1e-10, 100.0), (1e-8, 1.0), "light takes 1 ns for 0.3 m, and 0.13 s round the Earth"
    ),
    "learner.batch": Plausible(
        "samples", (1.0, 1e9), (1.0, 1e7), "a batch must fit into the memory of one device"
    ),
}  # fmt: skip
"""Ranges by the scenario's key, ASSUMED and generous."""


def require_possible(key: str, value: float, source: str) -> None:
    """Raise `InputError` where a number is outside its possible range.

    source: where it was given.

    >>> require_possible("step.compute", 3e10, "--step 3e10s")
    Traceback (most recent call last):
    simstrag.errors.InputError: --step 3e10s: step.compute must lie between 1e-07 and 100000 s: one
    kernel takes microseconds to start, and a day has 86,400 s; is it in milliseconds?
    """
    unit, (low, high), _, why = PLAUSIBLE[key]
    if not low <= value <= high:
        raise InputError(f"{source}: {key} must lie between {low:g} and {high:g} {unit}: {why}")


def doubt(key: str, value: float) -> Iterator[str]:
    """A sentence where a number is outside its usual range.

    >>> list(doubt("step.compute", 0.35)), list(doubt("learner.batch", 1e8))
    ([], ['Doubtful: learner.batch is 1e+08 samples, usual are 1 to 1e+07: a batch must fit into
    the memory of one device'])
    """
    unit, _, (low, high), why = PLAUSIBLE[key]
    if not low <= value <= high:
        yield f"Doubtful: {key} is {value:g} {unit}, usual are {low:g} to {high:g}: {why}"
