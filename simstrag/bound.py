"""How far ahead of the slowest a rank may run (docs/semantics.md, rule 16)."""

from __future__ import annotations

from simstrag.filing import Filing

__all__ = ["Bound"]


class Bound:
    """Counts the steps of each rank and says who must wait."""

    def __init__(self, filing: Filing, world_size: int) -> None:
        self._filing = filing
        self._counts = [0] * world_size

    def count(self, rank: int) -> None:
        """A gradient of `rank` was applied or dropped."""
        self._counts[rank] += 1

    def change(self, new: Filing) -> None:
        """Counts begin with the bound; who enters starts at the least count of who stayed."""
        old, self._filing = self._filing, new
        if old.plan.bound is None:
            self._counts = [0] * len(self._counts)
        least = min((self._counts[rank] for rank in old.named & new.named), default=0)
        for rank in new.named - old.named:
            self._counts[rank] = least

    def waiting(self, ranks: set[int]) -> set[int]:
        """Those of `ranks` that are too far ahead of the slowest rank in a quorum."""
        bounds = self._filing.plan.bound
        if bounds is None:
            return set()
        assert isinstance(bounds, tuple), "the plan is resolved"
        least = min(self._counts[rank] for rank in self._filing.named)
        return {
            rank
            for rank in ranks
            if (bound := bounds[rank]) is not None and self._counts[rank] - least > bound
        }
