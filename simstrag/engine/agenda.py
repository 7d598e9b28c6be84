"""The agenda of a driver: facts that it tells the rules later, in the order of rule 15."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from simstrag.engine.messages import TURNS, CollectiveEnded, Decision, Fact
from simstrag.engine.rules import Rules


class Agenda:
    """The facts that a driver keeps for later, in the order in which it tells them [15]."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._heap: list[tuple[float, int, Fact]] = []

    def add(self, time: float, fact: Fact) -> None:
        """Keep a fact until its time."""
        heapq.heappush(self._heap, (time, TURNS[type(fact)], fact))

    def clear(self) -> None:
        """Forget all facts."""
        self._heap = []

    @property
    def next(self) -> float:
        """The time of the next fact that still matters; infinity where there is none."""
        while self._heap and not self._rules.expects(self._heap[0][2], self._heap[0][0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def move(self, moved: Callable[[Fact, float], float]) -> None:
        """Give every fact that still matters the time that `moved` says, of (fact, time)."""
        kept = [entry for entry in self._heap if self._rules.expects(entry[2], entry[0])]
        self._heap = [(moved(fact, time), turn, fact) for time, turn, fact in kept]
        heapq.heapify(self._heap)

    @property
    def collectives(self) -> dict[int, float]:
        """When each collective under way ends, by the number of its closing."""
        facts = ((fact, time) for time, _, fact in self._heap)
        return {fact.closing: time for fact, time in facts if isinstance(fact, CollectiveEnded)}

    def tell(self, until: float) -> list[Decision] | None:
        """Tell the rules the next fact that still matters; None where none comes by `until`."""
        while self._heap and self._heap[0][0] <= until:
            time, _, fact = heapq.heappop(self._heap)
            if self._rules.expects(fact, time):
                return self._rules.receive(fact, time)
        return None
