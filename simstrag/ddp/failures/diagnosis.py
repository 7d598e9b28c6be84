"""Who is to blame: a verdict from what ranks have marked on the board, and from whether they beat.

Ranks may come to it at different times, and see the same failure from different ends: who comes
after others and finds nobody lost says what they said.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from simstrag.ddp.failures.process_identity import ProcessIdentity

__all__ = [
    "LEAST", "PHASES", "TIMES", "UNKNOWN", "Diagnoser", "Diagnosis", "Evidence", "Kind",
    "RankState", "SlowRankDetector", "warn",
]  # fmt: skip

PHASES = (
    "loading", "computing", "reducing", "talking to the server", "updating", "deciding",
)  # fmt: skip
"""What a rank may be doing in a step, in this order."""

Kind = Literal["dead", "stopped", "left", "slow", "network", "server"]

WAITING = PHASES.index("reducing")
"""From this phase on a rank may wait for others."""

LOOK = 0.02
"""Seconds between two looks at the board while somebody is to be blamed."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Who made a collective fail; `str` of it is the sentence for the user.

    ranks: the culprits; none where it is the network between all.  kind: "dead" (the process has
    ended), "stopped" (it does not beat), "left" (it said so, with an error or when it was through),
    "slow" (it beats, but is not where the others wait), "network" (all beat and wait, or nothing is
    heard of a whole host), "server" (which is lost, and no rank).
    step, phase: where the first culprit was.  silent_for: seconds since its last beat, as seen from
    here.  lost: everybody who cannot be counted on, culprit or not.
    """

    ranks: tuple[int, ...]
    kind: Kind
    step: int
    phase: str
    silent_for: float
    lost: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class RankState(NamedTuple):
    """What the board says of a rank.

    fate: "", "noticed" (and whom it blames), "left" (and why), or "stopped": killed for that.
    """

    step: int
    phase: str
    beat: int
    fate: str

    @property
    def place(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase)


UNKNOWN = RankState(0, PHASES[0], 0, "")


class Evidence(Protocol):
    """What a rank can find out of the others."""

    @property
    def host(self) -> str:
        """Where this rank runs."""
        ...

    def read(self) -> dict[int, RankState]:
        """Of all ranks that have come to the board; itself too."""
        ...

    def fate(self, rank: int) -> str:
        """What the board says of its fate now."""
        ...

    def who(self, rank: int) -> ProcessIdentity | None:
        """Its process; None before it has come."""
        ...

    def silent_for(self, rank: int) -> float:
        """Seconds since it last beat."""
        ...


class Diagnoser:
    """Says for one rank who is to blame.

    names: the ranks as users know them.  patience: seconds in which those that run must beat twice.
    """

    def __init__(self, facts: Evidence, rank: int, names: Sequence[int], patience: float) -> None:
        self.rank, self.names, self.patience = rank, tuple(names), patience
        self._facts = facts
        self._others = [other for other in range(len(self.names)) if other != rank]

    def verdict(self, before: dict[int, RankState]) -> Diagnosis:
        """Who is to blame by what was `before`, and has come since, or has not come for long."""
        until, now = time.monotonic() + self.patience, before
        while True:
            dead, stopped, left = self.fates(now)
            if lost := tuple(sorted({*dead, *stopped, *left})):
                kind: Kind = "dead" if dead else "stopped" if stopped else "left"
                return self.charge(dead or stopped or left, kind, now, lost=lost)
            quiet = tuple(k for k in self._others if _quiet(before, now, k))
            said = [each.fate.partition(" ")[2] for each in now.values()]
            if verdict := next((each for each in said if each.startswith("{")), ""):
                return _blame(json.loads(verdict))
            known = all(self._facts.silent_for(k) >= self.patience for k in quiet)
            if known or time.monotonic() >= until:
                break
            time.sleep(LOOK)
            now = self._facts.read()
        if quiet:
            return self.charge(quiet, self._near_or_far(quiet), now, lost=quiet)
        wait = [each.step for each in before.values() if each.place[1] >= WAITING]
        step = max(wait, default=before[self.rank].step)
        late = tuple(k for k in self._others if before.get(k, UNKNOWN).place < (step, WAITING))
        return self.charge(late, "slow" if late else "network", before)

    def await_the_others(self, but: Collection[int]) -> None:
        """Until all but those have come to a verdict, or have left; at most for `patience`."""
        until = time.monotonic() + self.patience
        waiting = set(self._others) - set(but)
        while waiting and time.monotonic() < until:
            now = self._facts.read()
            waiting = {k for k in waiting if not self._through(now.get(k, UNKNOWN), k)}
            time.sleep(LOOK)

    def _through(self, entry: RankState, rank: int) -> bool:
        identity = self._facts.who(rank)
        ended = identity is not None and identity.state() == "ended"
        return ended or entry.fate.startswith(("noticed {", "left"))

    def fates(
        self, now: dict[int, RankState]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Who is dead, who stopped, who left, where that can be told at once.

        One that had noticed the failure itself, and ended after that, is no culprit.  What one that
        has ended said last is looked up again, and noted in `now`: it may have been said since.
        """
        dead, stopped, left = [], [], []
        for rank in self._others:
            entry, identity = now.get(rank, UNKNOWN), self._facts.who(rank)
            state = "" if identity is None else identity.state()
            if state == "ended":
                entry = entry._replace(fate=self._facts.fate(rank))
                now[rank] = entry
            if entry.fate.startswith("left"):
                left.append(rank)
            elif state == "stopped" or entry.fate == "stopped":
                stopped.append(rank)
            elif state == "ended" and not entry.fate.startswith("noticed"):
                dead.append(rank)
        return tuple(dead), tuple(stopped), tuple(left)

    def _near_or_far(self, quiet: Iterable[int]) -> Kind:
        """The network may be to blame where nothing is heard of all ranks of another host."""
        hosts = {each.host for rank in quiet if (each := self._facts.who(rank)) is not None}
        heard = {self._facts.host}
        heard |= {
            each.host
            for rank in self._others
            if rank not in quiet and (each := self._facts.who(rank)) is not None
        }
        return "stopped" if hosts <= heard else "network"

    def charge(
        self,
        ranks: tuple[int, ...],
        kind: Kind,
        entries: Mapping[int, RankState],
        silent: float | None = None,
        lost: tuple[int, ...] = (),
    ) -> Diagnosis:
        """A verdict on these; the sentence is of where the first of them was, by `entries`.

        silent: seconds, where they are known otherwise.
        """
        first = ranks[0] if ranks else self.rank
        entry = entries.get(first, UNKNOWN)
        if silent is None:
            silent = max((self._facts.silent_for(k) for k in ranks), default=0.0)
        who = _listed([self.names[k] for k in ranks])
        where = f"at step {entry.step} while {entry.phase}"
        if kind == "dead":
            sentence = f"{who} {_is(ranks)} dead: the process ended {where}"
        elif ranks == (self.rank,):
            sentence = f"this one, {who}, was stopped for {silent:.1f} s, and the others went on"
            entry = UNKNOWN
        elif kind == "stopped":
            sentence = f"{who} {_is(ranks)} stopped {where}: no sign of life for {silent:.1f} s"
        elif kind == "left":
            reason = entry.fate.removeprefix("left ")
            sentence = f"{who} left {where}: {reason}"
        elif kind == "slow":
            sentence = f"{who} {_is(ranks)} slow: alive, but still {where}, and the others wait"
        elif ranks:
            sentence = (
                f"the network to {who}, or {who}: nothing heard for {silent:.1f} s; last {where}"
            )
        else:
            sentence = f"the network between the ranks: all are alive and wait {where}"
        return Diagnosis(ranks, kind, entry.step, entry.phase, silent, lost, sentence)


def _quiet(before: Mapping[int, RankState], now: Mapping[int, RankState], rank: int) -> bool:
    """Whether nothing shows that it lives; who has noticed the failure may be gone by now."""
    then, entry = before.get(rank, UNKNOWN), now.get(rank, UNKNOWN)
    return entry.beat < then.beat + 2 and not entry.fate.startswith("noticed")


def _blame(said: Mapping[str, Any]) -> Diagnosis:
    """From JSON, in which there are no tuples."""
    return Diagnosis(**{**said, "ranks": tuple(said["ranks"]), "lost": tuple(said["lost"])})


def _listed(names: Sequence[int]) -> str:
    """
    >>> _listed([2]), _listed([0, 1, 5])
    ('rank 2', 'ranks 0, 1 and 5')
    """
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(map(str, names[:-1]))} and {names[-1]}" if names else "nobody"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


TIMES, LEAST = 10.0, 1.0
"""How many times as long as those of the others, and how many seconds, a step must take."""


def warn(sentence: str) -> None:
    """Tell the user on standard error."""
    print(f"warning: {sentence}\n", end="", file=sys.stderr, flush=True)  # at once, and whole


class SlowRankDetector:
    """Says who is slow, once of each rank.

    A long step is held against the longer of the last that others reported before it and the first
    after it: where everybody paused, as for an evaluation, one of them is long.  Half of the others
    are waited for.

    >>> slow = SlowRankDetector(print)
    >>> for rank, seconds in ((0, 0.05), (1, 0.05), (2, 6.0), (0, 0.05)):
    ...     slow.heard(rank, 7, seconds)
    rank 2 is slow: it took 6.0 s for step 7, the others 0.05 s
    """

    def __init__(self, say: Callable[[str], None] = warn) -> None:
        self._say, self._named = say, set[int]()
        self._last: dict[int, float] = {}
        self._long: dict[int, tuple[int, float, dict[int, float]]] = {}

    def heard(self, rank: int, step: int, seconds: float) -> None:
        """A rank took so many seconds for a step of its own."""
        longer = max(seconds, self._last.get(rank, 0.0))
        self._last[rank] = seconds
        for other in [other for other in self._long if other != rank]:
            at, took, beside = self._long[other]
            beside.setdefault(rank, longer)
            if 2 * len(beside) >= len(self._last) - 1:
                del self._long[other]
                self._judge(other, at, took, statistics.median(beside.values()))
        if seconds > LEAST and rank not in self._named:
            self._long.setdefault(rank, (step, seconds, {}))

    def left(self, rank: int) -> None:
        """A rank is no longer there to be compared with."""
        self._last.pop(rank, None)
        self._long.pop(rank, None)

    def _judge(self, rank: int, step: int, seconds: float, usual: float) -> None:
        if seconds > TIMES * usual:
            self._named.add(rank)
            self._say(
                f"rank {rank} is slow: it took {seconds:.1f} s for step {step}, the others "
                f"{usual:.2g} s"
            )
