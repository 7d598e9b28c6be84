"""The ranks of each replica of a training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaRanks:
    """The ranks of each replica, as FSDP2 sharded them; each has equally many.

    ranks: by replica, then by shard.

    >>> layout = ReplicaRanks(((0, 1), (2, 3)))
    >>> layout.place(3), layout.across(1)
    ((1, 1), (1, 3))
    """

    ranks: tuple[tuple[int, ...], ...]

    @property
    def shards(self) -> int:
        """Ranks of a replica."""
        return len(self.ranks[0])

    def place(self, rank: int) -> tuple[int, int]:
        """Replica and shard of a rank."""
        (found,) = [(k, own.index(rank)) for k, own in enumerate(self.ranks) if rank in own]
        return found

    def across(self, shard: int) -> tuple[int, ...]:
        """The ranks that hold this shard, by replica."""
        return tuple(own[shard] for own in self.ranks)

    def describe(self, ranks: tuple[int, ...]) -> str:
        """The replicas that are lost with some ranks; empty for none.

        >>> ReplicaRanks(((0, 1), (2, 3))).describe((3,))
        '; replica 1 (ranks 2, 3) is lost with it'
        """
        lost = sorted({self.place(rank)[0] for rank in ranks})
        shown = ", ".join(f"{k} (ranks {', '.join(map(str, self.ranks[k]))})" for k in lost)
        many, it = len(lost) > 1, "it" if len(ranks) == 1 else "them"
        return f"; replica{'s' * many} {shown} {'are' if many else 'is'} lost with {it}" * bool(
            lost
        )
