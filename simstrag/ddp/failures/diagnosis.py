"""The cause of a failed collective, found in the ranks' reports in the heartbeat store.

Ranks diagnose at different times and with different views. A rank that finds no lost rank adopts
another's diagnosis: it may be the cause itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, cast, get_args

from simstrag.ddp.failures.process_identity import ProcessIdentity
from simstrag.ddp.job_store import read_entry
from simstrag.documents.printable import printable
from simstrag.errors import SimstragError

PHASES = (
    "setting up", "loading", "computing", "reducing", "talking to the server", "updating",
    "deciding", "pausing",
)  # fmt: skip
"""Phases of a step, in order, after those before the first."""

FailureKind = Literal["dead", "stopped", "left", "slow", "network", "server"]

WAITING = PHASES.index("reducing")
"""First phase in which a rank may wait for others."""

LOOK = 0.02
"""Seconds between two looks at the store during a diagnosis."""


@dataclass(frozen=True, slots=True)
class FailureDiagnosis:
    """The ranks that made a collective fail; `str` of it is the sentence for the user.

    ranks: the culprits; empty if the cause is the network between all ranks.
    kind: "dead" (the process has ended), "stopped" (it does not beat), "left" (it reported its end,
        with or without an error), "slow" (it beats, but is not where the others wait), "network"
        (all beat and wait, or nothing is heard from a whole host), "server" (only that is lost).
    step, phase: where the first culprit was.
    silent_for: seconds since its last beat, as seen from here.
    lost: all ranks that cannot be counted on, culprit or not.
    """

    ranks: tuple[int, ...]
    kind: FailureKind
    step: int
    phase: str
    silent_for: float
    lost: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class RankFailure(SimstragError, RuntimeError):
    """A rank is lost, or the network between ranks; the message names it, its step and phase."""

    def __init__(self, diagnosis: FailureDiagnosis) -> None:
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


class RankState(NamedTuple):
    """A rank's entries in the store.

    beat: number of its last heartbeat.
    fate: "", "noticed" (and its diagnosis), "left" (and why), or "stopped": another rank
        killed it because it did not beat.
    """

    step: int
    phase: str
    beat: int
    fate: str

    @property
    def position(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase)


UNKNOWN = RankState(0, PHASES[0], 0, "")


class Evidence(Protocol):
    """A rank's knowledge of the others: `HeartbeatStore`."""

    @property
    def host(self) -> str: ...

    def read(self) -> dict[int, RankState]: ...

    def fate(self, rank: int) -> str: ...

    def who(self, rank: int) -> ProcessIdentity | None: ...

    def silent_for(self, rank: int) -> float: ...

    def has_ended(self, rank: int) -> bool: ...


class Diagnoser:
    """Finds the cause of a failure for one rank.

    names: the ranks as users know them.
    patience: seconds in which a rank that runs must beat twice.
    """

    def __init__(
        self, evidence: Evidence, rank: int, names: Sequence[int], patience: float
    ) -> None:
        self.rank, self.names, self.patience = rank, tuple(names), patience
        self._evidence = evidence
        self._others = [other for other in range(len(self.names)) if other != rank]

    def diagnose(self, before: dict[int, RankState]) -> FailureDiagnosis:
        """The cause, from the states `before` and those that follow within `patience` seconds."""
        until, now = time.monotonic() + self.patience, before
        while True:
            dead, stopped, left = self.fates(now)
            if lost := tuple(sorted({*dead, *stopped, *left})):
                kind: FailureKind = "dead" if dead else "stopped" if stopped else "left"
                return self.charge(dead or stopped or left, kind, now, lost=lost)
            quiet = tuple(k for k in self._others if _is_quiet(before, now, k))
            notes = [state.fate.partition(" ")[2] for state in now.values()]
            if diagnosis := next((note for note in notes if note.startswith("{")), ""):
                return read_entry("fate", diagnosis.encode(), _read_diagnosis)
            known = all(self._evidence.silent_for(k) >= self.patience for k in quiet)
            if known or time.monotonic() >= until:
                break
            time.sleep(LOOK)
            now = self._evidence.read()
        if quiet:
            return self.charge(quiet, self._near_or_far(quiet), now, lost=quiet)
        wait = [state.step for state in before.values() if state.position[1] >= WAITING]
        step = max(wait, default=before[self.rank].step)
        late = tuple(k for k in self._others if before.get(k, UNKNOWN).position < (step, WAITING))
        return self.charge(late, "slow" if late else "network", before)

    def await_the_others(self, but: Collection[int]) -> None:
        """Wait until the others have made a diagnosis or left, for `patience` seconds at most."""
        until = time.monotonic() + self.patience
        waiting = set(self._others) - set(but)
        while waiting and time.monotonic() < until:
            now = self._evidence.read()
            for rank in tuple(waiting):
                identity, fate = self._evidence.who(rank), now.get(rank, UNKNOWN).fate
                ended = identity is not None and identity.state() == "ended"
                if ended or fate.startswith(("noticed {", "left")):
                    waiting.remove(rank)
            time.sleep(LOOK)

    def fates(
        self, now: dict[int, RankState]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The ranks known to be dead, to be stopped, and to have left.

        A rank that reported the failure before it ended is not a culprit.  The last report of an
        ended rank is read again and put into `now`, since it may be newer.
        """
        dead, stopped, left = [], [], []
        for rank in self._others:
            state, identity = now.get(rank, UNKNOWN), self._evidence.who(rank)
            process = "" if identity is None else identity.state()
            if self._evidence.has_ended(rank):
                process = "ended"
            if process == "ended" and identity is not None:
                state = state._replace(fate=self._evidence.fate(rank))
                now[rank] = state
            if state.fate.startswith("left"):
                left.append(rank)
            elif process == "stopped" or state.fate == "stopped":
                stopped.append(rank)
            elif process == "ended" and not state.fate.startswith("noticed"):
                dead.append(rank)
        return tuple(dead), tuple(stopped), tuple(left)

    def _near_or_far(self, quiet: Collection[int]) -> FailureKind:
        """The kind "network" if nothing is heard from any rank of another host, else "stopped"."""
        known = {k: who.host for k in self._others if (who := self._evidence.who(k)) is not None}
        heard = {self._evidence.host, *(host for k, host in known.items() if k not in quiet)}
        return "stopped" if {known[k] for k in quiet if k in known} <= heard else "network"

    def charge(
        self,
        ranks: tuple[int, ...],
        kind: FailureKind,
        states: Mapping[int, RankState],
        silent: float | None = None,
        lost: tuple[int, ...] = (),
    ) -> FailureDiagnosis:
        """The diagnosis against some ranks; its sentence says where the first of them was.

        silent: seconds without a beat; by default taken from the evidence.
        """
        first = ranks[0] if ranks else self.rank
        state = states.get(first, UNKNOWN)
        if silent is None:
            silent = max((self._evidence.silent_for(k) for k in ranks), default=0.0)
        who = listed([self.names[k] for k in ranks])
        where = f"at step {state.step} while {state.phase}"
        if kind == "dead":
            sentence = f"{who} {_is(ranks)} dead: the process ended {where}"
        elif ranks == (self.rank,):
            sentence = f"this one, {who}, was stopped for {silent:.1f} s, and the others went on"
            state = UNKNOWN
        elif kind == "stopped":
            sentence = f"{who} {_is(ranks)} stopped {where}: no sign of life for {silent:.1f} s"
        elif kind == "left":
            reason = state.fate.removeprefix("left ")
            sentence = f"{who} left {where}: {reason}"
        elif kind == "slow":
            sentence = f"{who} {_is(ranks)} slow: alive, but still {where}, and the others wait"
        elif ranks:
            sentence = (
                f"the network to {who}, or {who}: nothing heard for {silent:.1f} s; last {where}"
            )
        else:
            sentence = f"the network between the ranks: all are alive and wait {where}"
        return FailureDiagnosis(ranks, kind, state.step, state.phase, silent, lost, sentence)


def _read_diagnosis(text: str) -> FailureDiagnosis:
    """The diagnosis that another rank has written, as JSON, which has no tuples."""
    fields = json.loads(text)
    ranks, lost = (tuple(map(int, fields[name])) for name in ("ranks", "lost"))
    kind, phase, sentence = (printable(fields[name]) for name in ("kind", "phase", "sentence"))
    if kind not in get_args(FailureKind):
        raise ValueError(text)
    step, silent = int(fields["step"]), float(fields["silent_for"])
    return FailureDiagnosis(ranks, cast("FailureKind", kind), step, phase, silent, lost, sentence)


def _is_quiet(before: Mapping[int, RankState], now: Mapping[int, RankState], rank: int) -> bool:
    """Whether a rank has beaten fewer than twice since `before`.

    A rank that noticed the failure does not count: it may have ended properly.
    """
    then, state = before.get(rank, UNKNOWN), now.get(rank, UNKNOWN)
    return state.beat < then.beat + 2 and not state.fate.startswith("noticed")


def listed(names: Sequence[int]) -> str:
    """Ranks in words.

    >>> listed([2]), listed([0, 1, 5])
    ('rank 2', 'ranks 0, 1 and 5')
    """
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(map(str, names[:-1]))} and {names[-1]}" if names else "no rank"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def call_worker(sentence: str, word: str) -> str:
    """A sentence on a worker, which calls it a rank at its beginning, with another word for it.

    >>> call_worker("rank 1 is slow", "replica"), call_worker("ranks 0 and 1 wait", "replica")
    ('replica 1 is slow', 'ranks 0 and 1 wait')
    """
    return word + sentence[4:] if sentence.startswith("rank ") else sentence


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    print(
        f"warning: {printable(sentence)}\n", end="", file=sys.stderr, flush=True
    )  # at once, and whole


def describe_error(error: BaseException) -> str:
    """An error in one line, for other ranks.

    >>> describe_error(ValueError("no such batch"))
    'ValueError: no such batch'
    """
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, of at most 200 characters."""
    return (str(error).splitlines() or [""])[0][:200]
