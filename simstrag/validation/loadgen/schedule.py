"""Schedules of load: rank, time, kind and level of each load.

An injector carries a schedule out on real ranks. The simulator turns the same schedule into
slowdowns through a profile's measured responses, never through the run to be predicted.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from simstrag.documents.file_io import write_json
from simstrag.documents.suggestions import nearest
from simstrag.documents.validation_errors import explain
from simstrag.errors import InputError
from simstrag.profile.measurements import Response
from simstrag.profile.profile import Profile
from simstrag.timing import noise

Load = Literal["cpu", "memory", "gemm", "copy", "net", "link"]

STREAMS = 2**63 + 2**62 + 2**61
"""First random stream of schedules; above the streams of drawn traces."""

MOST = 16.0
"""Largest number of load processes of one rank; protects the machine from a typing error."""

LEAST_RATE = 1e5
"""Lowest rate of a limited link in bit/s; below it, messages time out."""


class EpisodeSection(BaseModel):
    """An episode in a schedule file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rank: int
    kind: Load
    level: float
    start: float
    stop: float


class ScheduleFile(BaseModel):
    """The content of a schedule file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: float
    episodes: list[EpisodeSection]


@dataclass(frozen=True, slots=True)
class Episode:
    """One interval of load on one rank.

    level: number of load processes times their duty cycle, as in a profile; for kind "link" the
        rate limit of the link between the rank and all others, in Gbit/s.
    start, stop: seconds from the start of the schedule.
    """

    rank: int
    kind: Load
    level: float
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Episodes of load in order of time, within `seconds`.

    Raises `InputError` for an impossible episode, and for two episodes of one rank that overlap:
    their joint effect was not measured.

    >>> schedule = Schedule((Episode(1, "cpu", 1.0, 2.0, 5.0),), seconds=10.0)
    >>> Schedule.of(schedule.document()) == schedule
    True
    """

    episodes: tuple[Episode, ...]
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(f"schedule: {self.seconds:g} seconds; give a number above 0")
        ordered = tuple(sorted(self.episodes, key=lambda each: (each.start, each.rank)))
        object.__setattr__(self, "episodes", ordered)
        for each in ordered:
            _check(each, self.seconds)
        for rank in self.ranks:
            for one, other in itertools.pairwise(self.on(rank)):
                if other.start < one.stop:
                    raise InputError(
                        f"rank {rank}: load {other.kind} from {other.start:g} s on begins before "
                        f"{one.kind} ends at {one.stop:g} s; keep them apart"
                    )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with episodes, in order."""
        return tuple(sorted({each.rank for each in self.episodes}))

    def on(self, rank: int) -> tuple[Episode, ...]:
        """The episodes of one rank, in order of time."""
        return tuple(each for each in self.episodes if each.rank == rank)

    @classmethod
    def drawn(
        cls,
        ranks: Sequence[int],
        seconds: float,
        seed: int,
        kinds: Sequence[Load] = ("cpu",),
        levels: Sequence[float] = (1.0,),
        mean_on: float = 20.0,
        mean_off: float = 40.0,
        least: float = 1.0,
    ) -> Schedule:
        """Draw independent on/off load (a two-state Markov chain) for each rank.

        mean_on, mean_off: means of the exponential times with and without load, in seconds.
        kinds, levels: choices of each episode, uniform.
        least: shorter episodes are left out, in seconds.

        Ranks start in the stationary state.  A rank's load does not depend on the other ranks.

        >>> Schedule.drawn([0, 1], 300.0, seed=2) == Schedule.drawn([1, 0], 300.0, seed=2)
        True
        """
        if not (mean_on > 0 and mean_off > 0 and kinds and levels):
            raise InputError("schedule: give kinds, levels, and means above 0")
        found: list[Episode] = []
        for rank in ranks:
            pace, choice = (noise.stream(seed, STREAMS + 2 * rank + k) for k in (0, 1))
            for began, ended in _intervals(pace, seconds, mean_on, mean_off):
                kind = kinds[int(choice.integers(len(kinds)))]
                level = levels[int(choice.integers(len(levels)))]
                start, stop = round(began, 3), min(round(ended, 3), seconds)
                if stop - start >= least and stop > start:
                    found.append(Episode(rank, kind, level, start, stop))
        return cls(tuple(found), seconds)

    @classmethod
    def of(cls, document: Any, source: str = "schedule") -> Schedule:
        """The schedule of JSON values, as `document` returns them; raises `InputError`."""
        try:
            found = ScheduleFile.model_validate(document)
        except ValidationError as error:
            raise InputError(explain(error, ScheduleFile, source)) from None
        try:
            return cls(tuple(Episode(**dict(each)) for each in found.episodes), found.seconds)
        except InputError as error:
            where = "" if source == "schedule" else f"{source}: "
            raise InputError(f"{where}{error}") from None

    @classmethod
    def read(cls, path: str | Path) -> Schedule:
        """From a JSON file.  Raises `InputError` that names the mistake."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON: {error}") from None
        return cls.of(document, str(path))

    def document(self) -> dict[str, Any]:
        """JSON values."""
        return {"seconds": self.seconds, "episodes": [asdict(each) for each in self.episodes]}

    def write(self, path: str | Path) -> None:
        """Write a JSON file."""
        write_json(path, self.document())


def response_to(kind: str, profile: Profile) -> Response:
    """The measured response of full-precision steps, or of an all-reduce, to a kind of load.

    Raises `InputError` if the profile has none.
    """
    full = None if profile.workload is None else profile.workload.full
    fitting = [each for each in profile.responses if each.precision in ("", full)]
    for each in fitting:
        if each.load == kind:
            return each
    known = ", ".join(dict.fromkeys(each.load for each in fitting)) or "none"
    raise InputError(
        f"the profile has no response to load {kind}; it has {known}; calibrate with that load"
    )


def _check(each: Episode, seconds: float) -> None:
    where = f"rank {each.rank}, load {each.kind}"
    if each.kind not in (known := get_args(Load)):
        raise InputError(f"{where}: there is no such load{nearest(each.kind, known)}")
    if not (isinstance(each.rank, int) and each.rank >= 0):
        raise InputError(f"rank {each.rank!r}: give a number from 0 on")
    if not 0 < each.level <= MOST:
        raise InputError(f"{where}: level {each.level:g}; give a number above 0, {MOST:g} at most")
    if each.kind == "link" and each.level * 1e9 < LEAST_RATE:
        raise InputError(
            f"{where}: level {each.level:g} Gbit/s; give at least {LEAST_RATE / 1e9:g}"
        )
    if not 0 <= each.start < each.stop <= seconds:
        raise InputError(
            f"{where}: from {each.start:g} to {each.stop:g} s; it must begin before it ends, "
            f"within the {seconds:g} s of the schedule"
        )


def _intervals(
    rng: np.random.Generator, seconds: float, mean_on: float, mean_off: float
) -> Iterator[tuple[float, float]]:
    """(start, stop) of each interval with load, cut at the end."""
    start, loaded = 0.0, bool(rng.random() < mean_on / (mean_on + mean_off))
    while start < seconds:
        stop = start + (mean_on if loaded else mean_off) * rng.standard_exponential()
        if loaded:
            yield start, min(stop, seconds)
        start, loaded = stop, not loaded
