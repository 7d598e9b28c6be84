"""The scalars of a step, for the loggers that a job already has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simstrag.ddp import StepRecorder

PREFIX = "simstrag/"


def scalars(recorder: StepRecorder | None) -> dict[str, float]:
    """The newest known step of this rank by name, in seconds; empty before there is one.

    On rank 0 `simstrag/slowest_rank` names the chronically slow rank, if the tests find one.

    >>> scalars(None)
    {}
    """
    step = None if recorder is None else recorder.latest()
    if recorder is None or step is None:
        return {}
    waiting = sum(seconds for _, seconds in step.parts)
    found = {
        "step_seconds": step.own + waiting, "compute_seconds": step.own, "wait_seconds": waiting,
    }  # fmt: skip
    if (slowest := recorder.slowest()) is not None:
        found["slowest_rank"] = float(slowest[0])
    return {PREFIX + name: value for name, value in found.items()}
