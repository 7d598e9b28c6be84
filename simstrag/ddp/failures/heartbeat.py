"""Who is where: marks and heartbeats of all ranks on a store that outlives the process group.

gloo's errors name an address, and a rank that is stopped looks to it like one that is slow.  So
each rank marks on the board where it is, and a thread beats as long as the process runs: what still
beats is slow, what does not is stopped or dead.  Clocks are never compared: a rank watches whether
the others' counters change, and counts the time by itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from simstrag.ddp.failures.connections import Connections
from simstrag.ddp.failures.diagnosis import PHASES, Diagnoser, Diagnosis, RankState
from simstrag.ddp.failures.process_identity import ProcessIdentity

__all__ = ["HeartbeatStore", "describe_error"]

BEATS = 40
"""Beats in a stall limit, where that makes them neither too many nor too few."""

NAP = 0.05
"""Seconds by which the end of a program is delayed at most."""

ANSWER = 5.0
"""Seconds in which the store has to answer."""


class HeartbeatStore:
    """A rank's side of the board; a context manager, which says on leaving how this rank left.

    store: of this generation of the group only.  names: the ranks as users know them, which are
    other ones after a group was made anew.  stall_limit: seconds without a beat after which a rank
    is given up: it is killed where it runs on this host, else `connections` are shut, so that a
    collective that waits for it fails at once on all others.  watch: whether that is done.
    holds: whether the store ends with this process, so that it waits for the others' verdicts.

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
        holds: bool = False,
    ) -> None:
        self.rank, self.names, self.stall_limit = rank, tuple(names), stall_limit
        self.connections, self.watch, self.holds = connections, watch, holds
        self.interval = min(0.5, max(0.05, stall_limit / BEATS))
        self.patience = max(2.0, 6 * self.interval)
        self.broken = ""
        self._store, self._place = store, f"at/{rank}"
        self._lines = Connections()
        with self._lines.made():
            self._beats: Store = store.clone()  # type: ignore[attr-defined]
            self._asks: Store = store.clone()  # type: ignore[attr-defined]
        self._asks.set_timeout(timedelta(seconds=ANSWER))
        self._asked = math.inf
        self._noticed, self._beat, self._here = False, 0, (0, PHASES[0])
        self._identities: dict[int, ProcessIdentity] = {}
        self._heard = dict.fromkeys(self._others, -1)
        self._silent = dict.fromkeys(self._others, 0.0)
        self._last, self._gap, self._woke = time.monotonic(), 0.0, 0.0
        self._over = threading.Event()
        self._identity = ProcessIdentity.here()
        self._judge = Diagnoser(self, rank, self.names, self.patience)
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
        self._here = step, phase
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

    @property
    def unanswered(self) -> float:
        """Seconds for which the store has owed an answer; 0 unless that is long."""
        seconds = time.monotonic() - self._asked
        return seconds if seconds > self.stall_limit / 2 else 0.0

    def blame(self) -> Diagnosis:
        """Who is to blame for a collective that has just failed.

        At once for one that ended, left, or is stopped on this host, and where somebody has been
        silent for long, or the store has; else after `patience` seconds, in which those that run
        must beat twice.  Who finds nobody lost, and comes after others did
        the same, says what they said: the culprit may be itself.
        """
        asleep, woke = self._slept()
        if asleep > self.stall_limit / 2 and time.monotonic() - woke < self.patience:
            return self._judge.charge((self.rank,), "stopped", {}, asleep)
        if unanswered := self.unanswered:
            return self._cut_off(f"no answer for {unanswered:.1f} s")
        with self._at_most(self.patience + ANSWER):
            try:
                before = self.read()
                self._say("noticed")
                self._noticed = True
                found = self._judge.verdict(before)
                self._say(f"noticed {json.dumps(asdict(found))}")
                self._wait_for_the_others({*found.lost, *found.ranks})
                return found
            except RuntimeError as error:
                return self._cut_off(_first_line(error))

    def _cut_off(self, reason: str) -> Diagnosis:
        self.broken = reason
        self._lines.shut()
        step, phase = self._here
        sentence = (
            f"the network to the store, or who holds it: {reason}; this one, "
            f"rank {self.names[self.rank]}, was at step {step} while {phase}"
        )
        return Diagnosis((), "network", step, phase, 0.0, (), sentence)

    @contextlib.contextmanager
    def _at_most(self, seconds: float) -> Iterator[None]:
        """What asks the store in here fails after that: its own limits end no wait for a network
        that is gone."""
        timer = threading.Timer(seconds, self._lines.shut)
        with contextlib.suppress(RuntimeError):  # at the end of the program no thread starts
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def kill(self, rank: int) -> bool:
        """Kill a rank of this job, if it runs on this host; whether it has ended."""
        found = self.who(rank)
        if found is None or found.host != self.host:
            return False
        if found.state() == "ended":
            return True
        self._asks.set(f"fate/{rank}", "stopped")  # so that nobody takes it for the cause
        return found.kill()

    @property
    def host(self) -> str:
        """Where this rank runs."""
        return self._identity.host

    def who(self, rank: int, store: Store | None = None) -> ProcessIdentity | None:
        """Its process; None before it has come.  store: where to ask, instead of this one's own."""
        if rank not in self._identities:
            store = store or self._asks
            if not store.check([f"who/{rank}"]):
                return None
            self._identities[rank] = ProcessIdentity(*json.loads(store.get(f"who/{rank}")))
        return self._identities[rank]

    def read(self) -> dict[int, RankState]:
        """Of all ranks that have come to the board; itself too."""
        there = [k for k in range(len(self.names)) if self.who(k) is not None]
        wanted = [f"{what}/{k}" for k in there for what in ("at", "beat", "fate")]
        said = self._asks.multi_get(wanted)
        found = {}
        for number, rank in enumerate(there):
            place, beat, fate = (value.decode() for value in said[3 * number : 3 * number + 3])
            step, _, phase = place.partition(" ")
            found[rank] = RankState(int(step), phase, int(beat), fate)
        return found

    def fate(self, rank: int) -> str:
        """What the board says of its fate now."""
        return self._asks.get(f"fate/{rank}").decode()

    def close(self, reason: str = "it was through") -> None:
        """Say that this rank leaves, and why; the board is not used any more."""
        self._over.set()
        with self._at_most(ANSWER):
            self._thread.join(2 * ANSWER)
        with contextlib.suppress(RuntimeError):
            if not self._noticed:
                self._say(f"left {reason}")

    def see_off(self) -> None:
        """After `close`, where this rank failed and the store ends with it: the others learn of it
        now, and may ask the store why."""
        if self.holds and self.connections is not None:
            self.connections.shut()
        with self._at_most(self.patience):
            self._wait_for_the_others(())

    def _wait_for_the_others(self, but: Collection[int]) -> None:
        if self.holds:
            with contextlib.suppress(RuntimeError):
                self._judge.await_the_others(but)

    def __enter__(self) -> HeartbeatStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.close(describe_error(error))

    def _say(self, fate: str) -> None:
        self._store.set(f"fate/{self.rank}", fate)

    def _slept(self) -> tuple[float, float]:
        """Seconds of the last time for which this process did not run, and when that ended.

        Waiting for the store is no sleep.
        """
        now = self._last if self._asked < math.inf else time.monotonic()
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
            self._asked = now
            try:
                self._beat += 1
                self._beats.set(f"beat/{self.rank}", str(self._beat))
                self._listen(min(passed, 2 * self.interval))
            except RuntimeError as error:
                self.broken = _first_line(error)
                continue
            finally:
                self._asked, self._last = math.inf, time.monotonic()
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
        there = [k for k in self._others if self.who(k, self._beats) is not None]
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


def describe_error(error: BaseException) -> str:
    """What came out, as others are told.

    >>> describe_error(ValueError("no such batch"))
    'ValueError: no such batch'
    """
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
