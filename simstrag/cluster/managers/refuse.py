"""No job leaves its barrier."""

from __future__ import annotations

from collections.abc import Sequence

from simstrag.cluster.manager import Floats, LeaveAnswer, LeaveRequest, ManagedJob


class RefusingManager:
    """Refuses everything."""

    asked = True

    def answer(
        self, request: LeaveRequest, spare: Floats, others: Sequence[ManagedJob]
    ) -> LeaveAnswer:
        """Refused."""
        return LeaveAnswer(granted=False)


def make() -> RefusingManager:
    """The manager."""
    return RefusingManager()
