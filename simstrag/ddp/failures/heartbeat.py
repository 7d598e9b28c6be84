"""Heartbeats and positions of all ranks, on a store that outlives the process group.

gloo's errors name an address, and to gloo a stopped rank looks like a slow one.  So each rank
reports its step and phase here, and a thread beats while the process runs: a rank that beats is
slow, one that does not is stopped or dead.  Clocks are never compared: a rank watches the others'
counters change, and measures the time itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from simstrag.ddp.failures.abort_collectives import Connections
from simstrag.ddp.failures.diagnosis import (
    PHASES,
    Diagnoser,
    FailureDiagnosis,
    FailureKind,
    RankFailure,
    RankState,
    first_line,
)
from simstrag.ddp.failures.process_identity import ProcessIdentity
from simstrag.ddp.job_store import START, read_ended, read_entry
from simstrag.documents.printable import printable

BEATS = 40
"""Beats per stall limit; the interval between two beats is clamped to 0.05 to 0.5 s."""

NAP = 0.05
"""Longest time by which the heartbeat delays the end of a program, in seconds."""

ANSWER = 5.0
"""Timeout of requests to the store, in seconds."""


class HeartbeatStore:
    """One rank's side of the heartbeats.

    store: the store of this generation of the group.
    names: the original rank numbers, as users know them; a re-formed group renumbers its ranks.
    stall_limit: seconds without a beat after which a rank is given up: killed if it runs on this
        host; otherwise `connections` are shut, so that every rank waiting for it fails at once.
    holds: whether the store ends with this process, which then waits for the others' diagnoses.
    root: where the launcher says which ranks have ended; None without such a launcher.
    meeting: key of `root` that exists once other ranks form a smaller group; `is_called` says until
        the first step, whether they do.

    A rank whose Python is held up by one call for longer than the stall limit does not beat.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[int],
        stall_limit: float = 60.0,
        connections: Connections | None = None,
        holds: bool = False,
        root: Store | None = None,
        meeting: str = "",
    ) -> None:
        self.rank, self.names, self.stall_limit = rank, tuple(names), stall_limit
        self.connections, self.holds = connections or Connections(), holds
        self.interval = min(0.5, max(0.05, stall_limit / BEATS))
        self.patience = max(2.0, 6 * self.interval)
        self.broken = ""
        self._store = store
        self._store_connections = Connections()
        with self._store_connections.capture():  # a request that waits must not delay beats
            self._beats: Store = store.clone()  # type: ignore[attr-defined]
            self._requests: Store = store.clone()  # type: ignore[attr-defined]
            self._launcher: Store | None = root and root.clone()  # type: ignore[attr-defined]
        self._ended: frozenset[int] = frozenset()
        self._forming: tuple[Connections, ...] = ()
        self._meeting, self.is_called = meeting, False
        self._running = False
        self._requests.set_timeout(timedelta(seconds=ANSWER))
        self._requested = math.inf
        self._noticed, self._beat, self._position = False, 0, (0, PHASES[0])
        self._identities: dict[int, ProcessIdentity] = {}
        self._others = [other for other in range(len(self.names)) if other != rank]
        self._last_beats = dict.fromkeys(self._others, -1)
        self._silence = dict.fromkeys(self._others, 0.0)
        self._last, self._gap, self._woke = time.monotonic(), 0.0, 0.0
        self._over = threading.Event()
        self._identity = ProcessIdentity.here()
        self._diagnoser = Diagnoser(self, rank, self.names, self.patience)
        store.set(f"beat/{rank}", "0")
        store.set(f"fate/{rank}", "")
        store.set(f"at/{rank}", f"0 {PHASES[0]}")
        store.set(f"who/{rank}", json.dumps(self._identity))  # last: now the entry is complete
        self._thread = threading.Thread(target=self._run, name="heartbeat")
        self._thread.start()

    def mark(self, step: int, phase: str) -> None:
        """Report where this rank is, in some microseconds, without waiting for an answer.

        Training goes on if the store fails; `broken` is the error's message.
        """
        self._position = step, phase
        try:
            self._store.set(f"at/{self.rank}", f"{step} {phase}")
            if self._noticed:
                self._report("")
                self._noticed = False
        except RuntimeError as error:
            self.broken = first_line(error)

    def first_step_taken(self) -> None:
        """From the first step on, a rank that is silent for the stall limit is given up.

        Until then it has `START` seconds, since some ranks import for longer than others.
        """
        self._running = True

    def await_ranks(self, seconds: float) -> None:
        """Wait until all ranks have started.

        Raises `RankFailure` for ranks that have ended, or have not come after `seconds`.
        """
        until = time.monotonic() + seconds
        while True:
            now = self.read()
            dead, _, left = self._diagnoser.fates(now)
            if lost := tuple(sorted({*dead, *left})):
                kind: FailureKind = "dead" if dead else "left"
                found = self._diagnoser.charge(dead or left, kind, now, lost=lost)
                raise RankFailure(self._publish(found))
            absent = tuple(rank for rank in self._others if rank not in now)
            if not absent:
                return
            if time.monotonic() > until:
                found = self._diagnoser.charge(absent, "stopped", now, seconds, absent)
                raise RankFailure(self._publish(found))
            time.sleep(NAP)

    @contextlib.contextmanager
    def forming(self, store: Connections) -> Iterator[None]:
        """The group forms inside: what waits for a rank that has ended fails at once.

        store: the connections through which the group meets.
        Raises `RankFailure` where the group cannot be formed.
        """
        self._forming = self.connections, store
        try:
            yield
        except RuntimeError as error:
            found = self.diagnose()
            if not found.lost:
                found = replace(found, sentence=f"no group: {first_line(error)}; {found}")
            raise RankFailure(found) from error
        finally:
            self._forming = ()

    def has_ended(self, rank: int) -> bool:
        """Whether the launcher has said that a rank has ended."""
        return self.names[rank] in self._ended

    @property
    def some_ended(self) -> bool:
        """Whether the launcher has said that any other rank has ended."""
        return any(map(self.has_ended, self._others))

    def silent_for(self, rank: int) -> float:
        """Seconds since the last beat of a rank; time in which this process slept is left out."""
        return self._silence.get(rank, 0.0)

    @property
    def unanswered(self) -> float:
        """Seconds since a pending request to the store; 0 up to half the stall limit."""
        seconds = time.monotonic() - self._requested
        return seconds if seconds > self.stall_limit / 2 else 0.0

    def diagnose(self) -> FailureDiagnosis:
        """The cause of a collective that has just failed.

        Immediate if a rank ended, left or is stopped on this host, or if a rank or the store has
        long been silent.  Otherwise it takes `patience` seconds, in which a live rank beats twice.
        """
        asleep, woke = self._last_sleep()
        if asleep > self.stall_limit / 2 and time.monotonic() - woke < self.patience:
            return self._diagnoser.charge((self.rank,), "stopped", {}, asleep)
        if unanswered := self.unanswered:
            return self._cut_off(f"no answer for {unanswered:.1f} s")
        with self._time_limit(self.patience + ANSWER):
            try:
                before = self.read()
                self._report("noticed")
                self._noticed = True
                diagnosis = self._publish(self._diagnoser.diagnose(before))
                self._wait_for_the_others({*diagnosis.lost, *diagnosis.ranks})
                return diagnosis
            except RuntimeError as error:
                return self._cut_off(first_line(error))

    def _publish(self, diagnosis: FailureDiagnosis) -> FailureDiagnosis:
        """Let ranks that find no cause adopt a diagnosis; this rank then counts as alive."""
        self._report(f"noticed {json.dumps(asdict(diagnosis))}")
        self._noticed = True
        return diagnosis

    def _cut_off(self, reason: str) -> FailureDiagnosis:
        self.broken = reason
        self._store_connections.shut()
        step, phase = self._position
        sentence = (
            f"the network to the store, or who holds it: {reason}; this one, "
            f"rank {self.names[self.rank]}, was at step {step} while {phase}"
        )
        return FailureDiagnosis((), "network", step, phase, 0.0, (), sentence)

    @contextlib.contextmanager
    def _time_limit(self, seconds: float) -> Iterator[None]:
        """Shut the store's connections after `seconds`: the store's own timeout does not end a wait
        when the network is gone."""
        timer = threading.Timer(seconds, self._store_connections.shut)
        with contextlib.suppress(RuntimeError):  # at the end of the program no thread starts
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def kill(self, rank: int) -> bool:
        """Kill a rank if it runs on this host; return whether it has ended."""
        process = self.who(rank)
        if process is None or process.host != self.host:
            return False
        if process.state() == "ended":
            return True
        if not process.is_near():
            return False
        self._requests.set(f"fate/{rank}", "stopped")  # so that the kill is not taken for the cause
        return process.kill()

    @property
    def host(self) -> str:
        """The host or container of this rank."""
        return self._identity.host

    def who(self, rank: int, store: Store | None = None) -> ProcessIdentity | None:
        """The process of a rank; None before it has started.  store: the connection to use."""
        if rank not in self._identities:
            store = store or self._requests
            if not store.check([f"who/{rank}"]):
                return None
            key = f"who/{rank}"
            self._identities[rank] = read_entry(key, store.get(key), _read_identity)
        return self._identities[rank]

    def read(self) -> dict[int, RankState]:
        """The states of all ranks that have started, this one included."""
        ranks = [k for k in range(len(self.names)) if self.who(k) is not None]
        keys = [f"{what}/{k}" for k in ranks for what in ("at", "beat", "fate")]
        values = iter(self._requests.multi_get(keys))
        states = {}
        for rank, place, beat, fate in zip(ranks, values, values, values, strict=True):
            step, phase = read_entry(f"at/{rank}", place, _read_position)
            number = read_entry(f"beat/{rank}", beat, int)
            end = read_entry(f"fate/{rank}", fate, printable)
            states[rank] = RankState(step, phase, number, end)
        return states

    def fate(self, rank: int) -> str:
        """A rank's present fate in the store."""
        return read_entry(f"fate/{rank}", self._requests.get(f"fate/{rank}"), printable)

    @property
    def closed(self) -> bool:
        """Whether this rank has reported that it leaves."""
        return self._over.is_set()

    def close(self, reason: str = "it was through") -> None:
        """Report that this rank leaves, and why; only `linger` may be called afterwards."""
        self._over.set()
        with self._time_limit(ANSWER):
            self._thread.join(2 * ANSWER)
        with contextlib.suppress(RuntimeError):
            if not self._noticed:
                self._report(f"left {reason}")

    def linger(self) -> None:
        """After `close` of a failed rank that hosts the store: make the others notice now, and wait
        while they read the reason."""
        if self.holds:
            self.connections.shut()
        with self._time_limit(self.patience):
            self._wait_for_the_others(())

    def _wait_for_the_others(self, but: Collection[int]) -> None:
        if self.holds:
            with contextlib.suppress(RuntimeError):
                self._diagnoser.await_the_others(but)

    def _report(self, fate: str) -> None:
        self._store.set(f"fate/{self.rank}", fate)

    def _last_sleep(self) -> tuple[float, float]:
        """Seconds and end of the last sleep of this process; waiting for the store is no sleep."""
        now = self._last if self._requested < math.inf else time.monotonic()
        since = now - self._last
        return (since, now) if since > 2 * self.interval else (self._gap, self._woke)

    def _run(self) -> None:
        """Beat, and watch the others' beats, until `close` or the end of the program."""
        given_up: set[int] = set()
        while self._wait_for_next_beat():
            now = time.monotonic()
            passed, self._last = now - self._last, now
            if passed > 2 * self.interval:
                self._gap, self._woke = passed, now
            self._requested = now
            try:
                self._beat += 1
                self._beats.set(f"beat/{self.rank}", str(self._beat))
                self._watch_beats(min(passed, 2 * self.interval))
                self._watch_ends()
            except RuntimeError as error:
                self.broken = first_line(error)
                continue
            finally:
                self._requested, self._last = math.inf, time.monotonic()
            limit = self.stall_limit if self._running else max(self.stall_limit, START)
            silent = {k for k, seconds in self._silence.items() if seconds >= limit}
            if silent - given_up:
                with contextlib.suppress(RuntimeError):  # of the store: the next beat tries again
                    given_up |= self._give_up(silent - given_up)

    def _wait_for_next_beat(self) -> bool:
        """Wait until the next beat is due; false if the thread must end.

        The thread is not a daemon: a daemon thread would be killed at exit inside the store's C++
        code, and the process would abort.
        """
        until = time.monotonic() + self.interval
        while threading.main_thread().is_alive():
            if self._over.wait(max(0.0, min(NAP, until - time.monotonic()))):
                return False
            if time.monotonic() >= until:
                return True
        return False

    def _watch_beats(self, passed: float) -> None:
        ranks = [k for k in self._others if self.who(k, self._beats) is not None]
        if not ranks:
            return
        beats = self._beats.multi_get([f"beat/{k}" for k in ranks])
        for rank, content in zip(ranks, beats, strict=True):
            beat = read_entry(f"beat/{rank}", content, int)
            same = beat == self._last_beats[rank]
            self._silence[rank] = self._silence[rank] + passed if same else 0.0
            self._last_beats[rank] = beat

    def _watch_ends(self) -> None:
        """Hear of ranks that have ended; a group that is forming waits for none of them."""
        if self._launcher is not None:
            self._ended = read_ended(self._launcher)
            self.is_called = not self._running and self._launcher.check([self._meeting])
        if self._forming and any(self._is_over(rank) for rank in self._others):
            for connections in self._forming:
                connections.shut()

    def _is_over(self, rank: int) -> bool:
        process = self._identities.get(rank)
        return self.has_ended(rank) or (process is not None and process.state() == "ended")

    def _give_up(self, silent: Iterable[int]) -> set[int]:
        """End all waits for silent ranks; return the ranks given up.

        A rank that left, or has noticed a failure, may have stopped beating with good reason.
        """
        fates = {k: self._beats.get(f"fate/{k}") for k in silent}
        gone = {k for k, fate in fates.items() if not fate.startswith((b"left", b"noticed"))}
        killed = [self.kill(rank) for rank in gone]
        if not all(killed):
            self.connections.shut()
        return gone


def _read_position(text: str) -> tuple[int, str]:
    step, _, phase = text.partition(" ")
    if phase not in PHASES:
        raise ValueError(text)
    return int(step), phase


def _read_identity(text: str) -> ProcessIdentity:
    host, pid, born = json.loads(text)
    if int(pid) < 1:
        raise ValueError(text)
    return ProcessIdentity(str(host), int(pid), float(born))
