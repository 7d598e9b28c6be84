"""Who is where: marks and heartbeats of all ranks on a store that outlives the process group.

gloo's errors name an address, and a rank that is stopped looks to it like one that is slow.  So
each rank marks on the board where it is, and a thread beats as long as the process runs: what still
beats is slow, what does not is stopped or dead.  Clocks are never compared: a rank watches whether
the others' counters change, and counts the time by itself.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from torch.distributed.distributed_c10d import Store

from simstrag.ddp.connections import Connections
from simstrag.ddp.identity import Identity

__all__ = ["PHASES", "Blame", "Board", "Kind"]

PHASES = (
    "loading", "computing", "reducing", "talking to the server", "deciding", "updating",
)  # fmt: skip
"""What a rank may be doing in a step, in this order."""

Kind = Literal["dead", "stopped", "left", "slow", "network"]

WAITING = PHASES.index("reducing")
"""From this phase on a rank may wait for others."""

BEATS = 40
"""Beats in a stall limit, where that makes them neither too many nor too few."""

LOOK = 0.02
"""Seconds between two looks at the board while somebody is to be blamed."""

NAP = 0.05
"""Seconds by which the end of a program is delayed at most."""

ANSWER = 5.0
"""Seconds in which the store has to answer."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Who made a collective fail; `str` of it is the sentence for the user.

    ranks: the culprits; none where it is the network between all.  kind: "dead" (the process has
    ended), "stopped" (it does not beat), "left" (it said so, with an error or when it was through),
    "slow" (it beats, but is not where the others wait), "network" (all beat and wait, or nothing is
    heard of a whole host).  step, phase: where the first culprit was.  silent_for: seconds since
    its last beat, as seen from here.  lost: everybody who cannot be counted on, culprit or not.
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


class Entry(NamedTuple):
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


NOWHERE = Entry(0, PHASES[0], 0, "")


class Board:
    """A rank's side of the board; a context manager, which says on leaving how this rank left.

    store: of this generation of the group only.  names: the ranks as users know them, which are
    other ones after a group was made anew.  stall_limit: seconds without a beat after which a rank
    is given up: it is killed where it runs on this host, else `connections` are shut, so that a
    collective that waits for it fails at once on all others.  watch: whether that is done.

    A rank whose Python is held up by one call for longer than the stall limit does not beat.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[int],
        stall_limit: float = 60.0,
        connections: Connections | None = None,
        watch: bool = True,
    ) -> None:
        self.rank, self.names, self.stall_limit = rank, tuple(names), stall_limit
        self.connections, self.watch = connections, watch
        self.interval = min(0.5, max(0.05, stall_limit / BEATS))
        self.patience = max(2.0, 6 * self.interval)
        self.broken = ""
        self._store, self._place = store, f"at/{rank}"
        self._beats, self._asks = _own(store), _own(store)
        self._asks.set_timeout(timedelta(seconds=ANSWER))
        self._noticed, self._beat = False, 0
        self._identities: dict[int, Identity] = {}
        self._heard = dict.fromkeys(self._others, -1)
        self._silent = dict.fromkeys(self._others, 0.0)
        self._last, self._gap, self._woke = time.monotonic(), 0.0, 0.0
        self._over = threading.Event()
        self._identity = Identity.here()
        store.set(f"beat/{rank}", "0")
        store.set(f"fate/{rank}", "")
        store.set(self._place, f"0 {PHASES[0]}")
        store.set(f"who/{rank}", json.dumps(self._identity))  # the last one: now it is complete
        self._thread = threading.Thread(target=self._live, name="board")
        self._thread.start()

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(len(self.names)) if rank != self.rank]

    def mark(self, step: int, phase: str) -> None:
        """Say where this rank is, in some microseconds; nobody waits for an answer.

        Training goes on where the store does not take it; `broken` is what it said.
        """
        try:
            self._store.set(self._place, f"{step} {phase}")
            if self._noticed:
                self._say("")
                self._noticed = False
        except RuntimeError as error:
            self.broken = _first_line(error)

    def silent_for(self, rank: int) -> float:
        """Seconds since a rank last beat, as seen from here; time in which this one slept is not
        counted."""
        return self._silent.get(rank, 0.0)

    def blame(self) -> Blame:
        """Who is to blame for a collective that has just failed.

        At once for one that ended, left, or is stopped on this host; else after `patience` seconds,
        in which those that run must beat twice.  Who finds nobody lost, and comes after others did
        the same, says what they said: the culprit may be itself.
        """
        asleep, woke = self._slept()
        if asleep > self.stall_limit / 2 and time.monotonic() - woke < self.patience:
            return self._of((self.rank,), "stopped", {}, asleep)
        try:
            before = self._read()
            self._say("noticed")
            self._noticed = True
            found = self._judged(before)
            self._say(f"noticed {json.dumps(asdict(found))}")
            return found
        except RuntimeError as error:
            self.broken = _first_line(error)
            sentence = f"the network to the store, or who holds it: {self.broken}"
            return Blame((), "network", 0, "", 0.0, (), sentence)

    def end(self, blame: Blame) -> None:
        """Kill those who are to blame for being stopped, where they run on this host.

        They cannot be told to leave, and who started them would wait for that.  One that has only
        been silent for less than the stall limit may be late, and is spared.
        """
        for rank in blame.ranks if blame.kind == "stopped" else ():
            found = self._who(rank)
            stopped = found is not None and found.state() == "stopped"
            if stopped or self.silent_for(rank) >= self.stall_limit:
                self.kill(rank)

    def kill(self, rank: int) -> bool:
        """Kill a rank of this job, if it runs on this host; whether it has ended."""
        found = self._who(rank)
        if found is None or found.host != self._identity.host:
            return False
        if found.state() == "ended":
            return True
        self._asks.set(f"fate/{rank}", "stopped")  # so that nobody takes it for the cause
        return found.kill()

    def close(self, reason: str = "it was through") -> None:
        """Say that this rank leaves, and why; the board is not used any more."""
        self._over.set()
        self._thread.join(ANSWER)
        with contextlib.suppress(RuntimeError):
            if not self._noticed:
                self._say(f"left {reason}")

    def __enter__(self) -> Board:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.close(f"{type(error).__name__}: {_first_line(error)}")

    def _say(self, fate: str) -> None:
        self._store.set(f"fate/{self.rank}", fate)

    def _who(self, rank: int, store: Store | None = None) -> Identity | None:
        if rank not in self._identities:
            store = store or self._asks
            if not store.check([f"who/{rank}"]):
                return None
            self._identities[rank] = Identity(*json.loads(store.get(f"who/{rank}")))
        return self._identities[rank]

    def _read(self) -> dict[int, Entry]:
        """Of all ranks that have come to the board; itself too."""
        there = [k for k in range(len(self.names)) if self._who(k) is not None]
        wanted = [f"{what}/{k}" for k in there for what in ("at", "beat", "fate")]
        said = self._asks.multi_get(wanted)
        found = {}
        for number, rank in enumerate(there):
            place, beat, fate = (value.decode() for value in said[3 * number : 3 * number + 3])
            step, _, phase = place.partition(" ")
            found[rank] = Entry(int(step), phase, int(beat), fate)
        return found

    def _judged(self, before: dict[int, Entry]) -> Blame:
        until, now = time.monotonic() + self.patience, before
        while True:
            dead, stopped, left = self._fates(now)
            if lost := tuple(sorted({*dead, *stopped, *left})):
                kind: Kind = "dead" if dead else "stopped" if stopped else "left"
                return self._of(dead or stopped or left, kind, now, lost=lost)
            quiet = tuple(k for k in self._others if _quiet(before, now, k))
            said = [each.fate.partition(" ")[2] for each in now.values()]
            if verdict := next((each for each in said if each.startswith("{")), ""):
                return _blame(json.loads(verdict))
            if not quiet or time.monotonic() >= until:
                break
            time.sleep(LOOK)
            now = self._read()
        if quiet:
            return self._of(quiet, self._near_or_far(quiet), now, lost=quiet)
        wait = [each.step for each in before.values() if each.place[1] >= WAITING]
        step = max(wait, default=before[self.rank].step)
        late = tuple(k for k in self._others if before[k].place < (step, WAITING))
        return self._of(late, "slow" if late else "network", before)

    def _fates(
        self, now: dict[int, Entry]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Who is dead, who stopped, who left, where that can be told at once.

        One that had noticed the failure itself, and ended after that, is no culprit.  What one that
        has ended said last is looked up again, and noted in `now`: it may have been said since.
        """
        dead, stopped, left = [], [], []
        for rank in self._others:
            entry, identity = now.get(rank, NOWHERE), self._who(rank)
            state = "" if identity is None else identity.state()
            if state == "ended":
                entry = entry._replace(fate=self._asks.get(f"fate/{rank}").decode())
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
        hosts = {each.host for rank in quiet if (each := self._who(rank)) is not None}
        heard = {self._identity.host}
        heard |= {
            each.host
            for rank in self._others
            if rank not in quiet and (each := self._who(rank)) is not None
        }
        return "stopped" if hosts <= heard else "network"

    def _of(
        self,
        ranks: tuple[int, ...],
        kind: Kind,
        entries: Mapping[int, Entry],
        silent: float | None = None,
        lost: tuple[int, ...] = (),
    ) -> Blame:
        first = ranks[0] if ranks else self.rank
        entry = entries.get(first, NOWHERE)
        silent = max((self.silent_for(k) for k in ranks), default=0.0) if silent is None else silent
        who = _listed([self.names[k] for k in ranks])
        where = f"at step {entry.step} while {entry.phase}"
        if kind == "dead":
            sentence = f"{who} {_is(ranks)} dead: the process ended {where}"
        elif ranks == (self.rank,):
            sentence = f"this one, {who}, was stopped for {silent:.1f} s, and the others went on"
            entry = NOWHERE
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
        return Blame(ranks, kind, entry.step, entry.phase, silent, lost, sentence)

    def _slept(self) -> tuple[float, float]:
        """Seconds of the last time for which this process did not run, and when that ended."""
        now = time.monotonic()
        since = now - self._last
        return (since, now) if since > 2 * self.interval else (self._gap, self._woke)

    def _live(self) -> None:
        """Beat, and listen to the others' beats, until the board is closed or its program ends."""
        given_up: set[int] = set()
        while self._rests():
            now = time.monotonic()
            passed, self._last = now - self._last, now
            if passed > 2 * self.interval:
                self._gap, self._woke = passed, now
            try:
                self._beat += 1
                self._beats.set(f"beat/{self.rank}", str(self._beat))
                self._listen(min(passed, 2 * self.interval))
            except RuntimeError as error:
                self.broken = _first_line(error)
                continue
            silent = {k for k, seconds in self._silent.items() if seconds >= self.stall_limit}
            if self.watch and silent - given_up:
                given_up |= self._give_up(silent - given_up)

    def _rests(self) -> bool:
        """Until the next beat; whether there is to be one.

        A daemon would be cut off inside the store's library, which aborts the process.
        """
        until = time.monotonic() + self.interval
        while threading.main_thread().is_alive():
            if self._over.wait(max(0.0, min(NAP, until - time.monotonic()))):
                return False
            if time.monotonic() >= until:
                return True
        return False

    def _listen(self, passed: float) -> None:
        there = [k for k in self._others if self._who(k, self._beats) is not None]
        if not there:
            return
        for rank, said in zip(
            there, self._beats.multi_get([f"beat/{k}" for k in there]), strict=True
        ):
            beat = int(said)
            self._silent[rank] = 0.0 if beat != self._heard[rank] else self._silent[rank] + passed
            self._heard[rank] = beat

    def _give_up(self, silent: Iterable[int]) -> set[int]:
        """Make an end of waiting for those of them that said nothing, and which these are.

        Who left, or has noticed a failure, may have closed its board with good reason.
        """
        fates = {k: self._beats.get(f"fate/{k}") for k in silent}
        gone = {k for k, fate in fates.items() if not fate.startswith((b"left", b"noticed"))}
        killed = [self.kill(rank) for rank in gone]
        if self.connections is not None and not all(killed):
            self.connections.shut()
        return gone


def _own(store: Store) -> Store:
    """A connection of its own, so that who waits at one does not keep the other from beating.

    torch before 2.8 has none to give: there, nobody may wait at the store for long.
    """
    found: Store = store.clone() if hasattr(store, "clone") else store
    return found


def _quiet(before: Mapping[int, Entry], now: Mapping[int, Entry], rank: int) -> bool:
    """Whether nothing shows that it lives; who has noticed the failure may be gone by now."""
    then, entry = before.get(rank, NOWHERE), now.get(rank, NOWHERE)
    return entry.beat < then.beat + 2 and not entry.fate.startswith("noticed")


def _blame(said: Mapping[str, Any]) -> Blame:
    """From JSON, in which there are no tuples."""
    return Blame(**{**said, "ranks": tuple(said["ranks"]), "lost": tuple(said["lost"])})


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


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
