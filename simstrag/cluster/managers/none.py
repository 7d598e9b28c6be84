"""Every job leaves its barrier when its policy says so, and those beside it suffer."""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.cluster.manager import Floats, LeaveAnswer, LeaveRequest, ManagedJob


class NoManager:
    """Nobody asks it."""

    asked = False

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Granted."""
        return LeaveAnswer(granted=True)


def make() -> NoManager:
    """The manager."""
    return NoManager()
