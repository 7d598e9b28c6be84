"""A quorum: the ranks that one update waits for, and the treatment of late gradients.

Most policies need the first four fields of `Quorum`.  The others stand in groups, each of one idea,
and so do their checks: windows, riders, trees, private models, partial collectives.
"""

from __future__ import annotations

import enum
import functools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from simstrag.arrays import Array, Ints
from simstrag.contract.checks import choice, real, whole, wholes
from simstrag.contract.ranks import check_length
from simstrag.errors import PlanError


class Via(enum.Enum):
    """The path by which the gradients of a quorum become one update."""

    ALLREDUCE = "allreduce"
    """One collective among the contributors."""
    SERVER = "server"
    """One job of a first-in-first-out parameter server for each gradient."""
    LEADER = "leader"
    """An all-reduce inside the quorum, then one server job for its sum."""


class Late(enum.Enum):
    """The treatment of gradients that are ready after their quorum has closed."""

    QUEUE = "queue"
    """They count for the next update."""
    DROP = "drop"
    """They are dropped when they are ready."""
    ABORT = "abort"
    """Their steps are cancelled as soon as the quorum closes."""
    JOIN = "join"
    """They join the next update without counting towards it."""


class _All(enum.Enum):
    ALL = "all"

    def __repr__(self) -> str:
        return "ALL"


ALL = _All.ALL
"""Every rank of the world, except the riders of the same quorum."""

Ranks = tuple[int, ...] | Ints | _All


@dataclass(frozen=True, slots=True)
class Quorum:
    """A set of ranks and the number of their gradients that close it; a closing is one update.

    ranks: the members, or `ALL`; an array is kept as a tuple, so that quorums can be compared.
    count: gradients per update; None means one of every member.
    via: how the gradients become an update.
    late: the treatment of late gradients (there are none without count and window).

    window: seconds after the first gradient at which the quorum closes with the gradients it has.
    grace: seconds after the count-th gradient at which the quorum closes, with all that came.

    riders: (child, parent) pairs; a child outside `ranks` adds its gradient to its parent's if it
        is ready, and no update waits for it.

    parents: (child, parent) pairs of members of a SERVER quorum; a parent waits for its children's
        gradients, pushes the sum of them and its own, and relays the parameters.

    steps: private steps of one contribution, on the rank's own model; one number for all members,
        or one of each, by rank.
    overlap: private steps that a rank takes on while its contribution is under way.
    rounds: closings of a LEADER quorum on the group's own model before its sum is pushed.

    partial: whether all members take part in the collective; one without a gradient sends zeros.

    Raises `PlanError` where the quorum is impossible.

    >>> Quorum(count=1, via=Via.SERVER)  # doctest: +ELLIPSIS
    Quorum(ranks=ALL, count=1, via=<Via.SERVER: 'server'>, late=<Late.QUEUE: 'queue'>, ...)
    """

    ranks: Ranks = ALL
    count: int | None = None
    via: Via = Via.ALLREDUCE
    late: Late = Late.QUEUE
    # windows: it closes by time
    window: float = math.inf
    grace: float = 0.0
    # riders: ranks that no update waits for
    riders: tuple[tuple[int, int], ...] = ()
    # trees: some members push for others
    parents: tuple[tuple[int, int], ...] = ()
    # private models, of a rank or of the group, between updates
    steps: int | tuple[int, ...] = 1
    overlap: int = 0
    rounds: int = 1
    # partial collectives
    partial: bool = False

    _indices: Ints | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        choice("a quorum's via", self.via, Via)
        choice("a quorum's late", self.late, Late)
        if self.ranks is not ALL:
            self._check_ranks(self.ranks)
        if self.riders != ():
            self._check_riders()
        if self.count is not None:
            count = whole("a quorum's count", self.count, least=1)
            object.__setattr__(self, "count", count)
            if self.ranks is not ALL and count > len(self.members):
                raise PlanError(f"a quorum of {len(self.members)} ranks cannot count {count}")
        if self.window is not math.inf:
            self._check_window()
        if {type(self.steps), type(self.rounds)} != {int} or self.steps != 1 or self.rounds != 1:
            self._check_private_work()
        if self.overlap != 0 or type(self.overlap) is not int:
            self._check_overlap()
        if self.grace != 0 or type(self.grace) is not float:
            self._check_grace()
        if self.partial:
            self._check_partial()
        if self.parents != ():
            self._check_tree()
        if self.ranks is not ALL:
            self._normalise(len(self.ranks))

    # -- checks, in the order of the groups --------------------------------------------------------

    def _check_ranks(self, values: Iterable[int] | Ints) -> None:
        if isinstance(values, np.ndarray):
            if values.size and ascends(values):
                object.__setattr__(self, "_indices", values.copy())
                object.__setattr__(self, "ranks", tuple(values.tolist()))
                return
            values = values.tolist()
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise PlanError(f"a quorum's ranks must be ALL or several ranks, not {values!r}")
        given = tuple(wholes("a rank", values, least=0))
        ranks = tuple(sorted(given))
        if not ranks:
            raise PlanError("a quorum needs at least one rank")
        if ranks != given and not isinstance(self.steps, int):
            raise PlanError(f"ranks with steps of their own must ascend, not {given}")
        if len(set(ranks)) < len(ranks):
            raise PlanError(f"a quorum names a rank twice: {ranks}")
        object.__setattr__(self, "ranks", ranks)

    def _check_window(self) -> None:
        object.__setattr__(self, "window", real("a quorum's window", self.window))
        if self.window < 0:
            raise PlanError(f"a quorum's window must be 0 seconds or more, not {self.window:g}")

    def _check_grace(self) -> None:
        object.__setattr__(self, "grace", real("a quorum's grace", self.grace))
        if not 0 <= self.grace < math.inf:
            raise PlanError(f"a quorum's grace must be 0 or more seconds, not {self.grace:g}")
        if self.grace and (self.window < math.inf or self.riders or self.parents):
            raise PlanError("a grace cannot stand beside a window, riders or parents")

    def _check_riders(self) -> None:
        riders = self._pairs("riders", "rider")
        for child, parent in riders:
            if self.ranks is not ALL and parent not in self.members:
                raise PlanError(f"the parent {parent} of rider {child} is not in the quorum")
            if self.ranks is not ALL and child in self.members:
                raise PlanError(f"rider {child} is a member of the quorum too")

    def _check_tree(self) -> None:
        named = {rank for pair in self._pairs("parents", "child") for rank in pair}
        if self.ranks is not ALL and (outside := named - set(self.members)):
            raise PlanError(f"rank {min(outside)} of the tree is not in the quorum")
        if self.via is not Via.SERVER:
            raise PlanError("parents need via=SERVER: they save the server messages")
        if self.riders:
            raise PlanError("parents cannot stand beside riders: a parent waits for its children")
        if self.count is not None or self.window < math.inf:
            raise PlanError("parents need neither count nor window: an update waits for every rank")
        if self.late is not Late.QUEUE:
            raise PlanError("parents need late=QUEUE: no gradient of a tree is late")
        if self.private:
            raise PlanError("parents cannot stand beside private steps or rounds")

    def _pairs(self, name: str, child_name: str) -> tuple[tuple[int, int], ...]:
        """The field `name` as (child, parent) pairs of whole numbers, sorted, one level deep."""
        value = getattr(self, name)
        items = value.items() if isinstance(value, Mapping) else value
        try:
            given = [(child, parent) for child, parent in items]
        except (TypeError, ValueError):
            raise PlanError(f"{name} must be (child, parent) pairs, not {items!r}") from None
        pairs = tuple(
            sorted(
                (whole(f"a {child_name}", c, least=0), whole("a parent", p, least=0))
                for c, p in given
            )
        )
        object.__setattr__(self, name, pairs)
        children = [child for child, _ in pairs]
        if len(set(children)) < len(children):
            raise PlanError(f"a {child_name} has two parents: {pairs}")
        for child, parent in pairs:
            if parent in children:
                raise PlanError(
                    f"the parent {parent} of {child_name} {child} is itself a {child_name}"
                )
        return pairs

    def _check_private_work(self) -> None:
        steps = self.steps
        if isinstance(steps, (Sequence, np.ndarray)) and not isinstance(steps, str):
            each = tuple(wholes("a quorum's steps", steps, least=1))
            if not each:
                raise PlanError("a quorum's steps must be a number, or one of each member")
            if self.ranks is not ALL and len(each) != len(self.members):
                raise PlanError(f"{len(each)} numbers of steps for {len(self.members)} ranks")
            object.__setattr__(self, "steps", each[0] if len(set(each)) == 1 else each)
        else:
            object.__setattr__(self, "steps", whole("a quorum's steps", steps, least=1))
        object.__setattr__(self, "rounds", whole("a quorum's rounds", self.rounds, least=1))
        if self.steps != 1 and self.rounds > 1:
            raise PlanError("a quorum has private steps or rounds of its own, not both")
        if self.private and (self.riders or self.late is not Late.QUEUE):
            raise PlanError("steps or rounds above 1 need late=QUEUE and no riders")
        if self.rounds > 1 and not (
            self.via is Via.LEADER and self.count is None and self.window == math.inf
        ):
            raise PlanError("rounds above 1 need via=LEADER and neither count nor window")

    def _check_overlap(self) -> None:
        overlap = whole("a quorum's overlap", self.overlap, least=0)
        object.__setattr__(self, "overlap", overlap)
        fewest = min(self.steps) if isinstance(self.steps, tuple) else self.steps
        if overlap >= fewest:
            raise PlanError(f"an overlap of {overlap} steps needs more steps than {fewest}")
        if overlap and self.via is not Via.ALLREDUCE:
            raise PlanError("an overlap needs via=ALLREDUCE")

    def _check_partial(self) -> None:
        if self.partial is not True:
            raise PlanError(f"a quorum's partial must be True or False, not {self.partial!r}")
        if self.via is not Via.ALLREDUCE or self.riders or self.private:
            raise PlanError("partial=True needs via=ALLREDUCE, and neither riders nor steps")
        if self.late not in (Late.QUEUE, Late.JOIN):
            raise PlanError("partial=True needs late=QUEUE or JOIN: no gradient is lost")

    def _normalise(self, size: int) -> None:
        """Give equal quorums equal fields: a count of all members is None, and none is late."""
        if self.count is None or self.count == size:
            object.__setattr__(self, "count", None)
            object.__setattr__(self, "grace", 0.0)
            if self.window == math.inf:
                object.__setattr__(self, "partial", False)
                object.__setattr__(self, "late", Late.QUEUE)

    # -- what engines call and read ----------------------------------------------------------------

    def resolved(self, world_size: int) -> Quorum:
        """This quorum with explicit ranks, for a world of `world_size` ranks."""
        named = [rank for pair in (*self.riders, *self.parents) for rank in pair]
        if self.ranks is ALL and isinstance(self.steps, tuple):
            check_length("steps", self.steps, world_size - len(self.riders))
        if self.ranks is not ALL:
            named.append(self.members[-1])
        if named and max(named) >= world_size:
            raise PlanError(f"rank {max(named)} is beyond a world of {world_size} ranks")
        return _resolve_all(self, world_size) if self.ranks is ALL else self

    def without(self, lost: Set[int]) -> Quorum | None:
        """This resolved quorum without lost ranks; None where none is left.

        Riders whose parent is lost ride with the lowest member, or are the members if none is left.
        """
        left = tuple(rank for rank in self.members if rank not in lost)
        riders = [pair for pair in self.riders if pair[0] not in lost]
        if not left:
            left, riders = tuple(child for child, _ in riders), []
        if not left:
            return None
        count = None if self.count is None else min(self.count, len(left))
        kept = tuple((c, parent if parent in left else left[0]) for c, parent in riders)
        parents = tuple(pair for pair in self.parents if lost.isdisjoint(pair))
        steps = self.steps if self.riders else tuple(map(self.steps_of, left))
        return replace(self, ranks=left, count=count, riders=kept, parents=parents, steps=steps)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of a resolved quorum."""
        assert isinstance(self.ranks, tuple), "resolve the plan first"
        return self.ranks

    @property
    def indices(self) -> Ints:
        """`members` as an array."""
        if self._indices is None:
            object.__setattr__(self, "_indices", np.array(self.members, dtype=np.int64))
        assert self._indices is not None
        return self._indices

    @property
    def needed(self) -> int:
        """The number of gradients that close a resolved quorum; in a tree, those of no child."""
        return len(self.indices) - len(self.parents) if self.count is None else self.count

    @property
    def private(self) -> bool:
        """Whether its ranks compute on models of their own between updates."""
        return self.steps != 1 or self.rounds > 1

    @property
    def most_steps(self) -> int:
        """The most private steps of one contribution of any member."""
        return self.steps if isinstance(self.steps, int) else max(self.steps)

    def steps_of(self, rank: int) -> int:
        """Private steps of one contribution of a member of a resolved quorum."""
        if isinstance(self.steps, int):
            return self.steps
        return self.steps[bisect_left(self.members, rank)]


def ascends(values: Array) -> bool:
    """Whether an array holds ranks in ascending order.

    >>> ascends(np.array([0, 2])), ascends(np.array([2, 2])), ascends(np.array([-1]))
    (True, False, False)
    """
    if values.dtype != np.int64 or values.ndim != 1 or (len(values) and values[0] < 0):
        return False
    return not np.count_nonzero(values[1:] <= values[:-1])


@functools.lru_cache(maxsize=64)
def _resolve_all(quorum: Quorum, world_size: int) -> Quorum:
    """A quorum of `ALL` with explicit ranks; the same object for the same arguments."""
    riders = {child for child, _ in quorum.riders}
    return replace(quorum, ranks=tuple(r for r in range(world_size) if r not in riders))
