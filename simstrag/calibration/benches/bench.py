"""The base class of benches, which measure the cells of some parts, visit by visit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

from simstrag.calibration.cells import MeasurementCell, VisitSeries


class Skipped(Exception):
    """A cell cannot be measured here; the message is the reason, such as too little memory."""


class Bench(ABC):
    """Measures the cells of some parts.

    A context manager: its processes and groups live from `__enter__` to `__exit__`.

    cells: the cells that it can measure, in no particular order.
    held: contexts that it needs, in the order in which they start.
    """

    cells: Sequence[MeasurementCell]
    held: Sequence[AbstractContextManager[object]] = ()

    @abstractmethod
    def seconds(self, cell: MeasurementCell) -> float:
        """Expected seconds of one visit to a cell, for the plan."""

    def later(self, cell: MeasurementCell) -> float:
        """Expected seconds of a visit after the first, for the plan."""
        return self.seconds(cell)

    @abstractmethod
    def visit(self, cell: MeasurementCell) -> tuple[VisitSeries, dict[str, Any]]:
        """Samples and facts of one more visit. Raises `Skipped` if the cell cannot be measured."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # leaves what started if the rest cannot start
            for each in self.held:
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()
