"""What a validation tries: policies, numbers of ranks and schedules of load, fixed beforehand.

Everything here follows from the seed, the profile and what was asked for, by rules that know
nothing of any run; it is written down before the first run begins.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.validation.loadgen.schedule import Episode, Schedule

__all__ = ["CLEAN", "RULE", "SCHEDULES", "Case", "Plan", "cases_of", "drawn", "windows"]

CLEAN = "clean"

SCHEDULES = {
    CLEAN: "no load",
    "one": "load that comes and goes beside rank 1",
    "both": "load that comes and goes beside ranks 0 and 1 in turn",
}

LEVELS = (0.4, 0.6, 0.9, 1.3, 1.6, 2.4)
"""Of load, of which those are left out that the profile was calibrated with."""

REST, LOADED = (0.15, 0.3), (0.4, 0.6)
"""Least and longest of a time without and with load, in lengths of a clean run."""

LONGEST = 5.0
"""Length of a schedule, in lengths of a clean run: no run may outlast it."""

RULE = (
    "Times without and with load follow each other, the first without; their lengths are drawn "
    f"evenly from {REST[0]:g} to {REST[1]:g} and from {LOADED[0]:g} to {LOADED[1]:g} of the length "
    "of a clean run, which the profile predicts. Levels are drawn without repetition until all "
    "were used, from those that the profile was not calibrated with. The seed decides all of it."
)

DEFAULT = {
    (2, CLEAN): ("bsp", "korel", "asgd"),
    (2, "one"): ("bsp", "korel", "lb_bsp", "asgd", "ssp", "backup"),
    (2, "both"): ("bsp", "korel", "lb_bsp", "asgd"),
    (4, CLEAN): ("bsp",),
    (4, "one"): ("bsp", "korel"),
}
"""Policies by ranks and schedule, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Case:
    """A policy on so many ranks under the schedule of a name.

    steps: of each rank, if all take as many.

    >>> Case("ssp:bound=5", 2, "one", 300).name
    'one-2-ssp-bound-5'
    """

    policy: str
    ranks: int
    schedule: str
    steps: int

    @property
    def name(self) -> str:
        """That of its folders."""
        spec = "".join(
            letter if letter.isalnum() or letter in "._" else "-" for letter in self.policy
        )
        return f"{self.schedule}-{self.ranks}-{spec}"

    @property
    def place(self) -> tuple[int, str]:
        """What cases to be ranked against each other have in common."""
        return self.ranks, self.schedule


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before anything runs.

    batch: samples of a rank's batch.  precision: as `simstrag.ddp.wrap` takes it.  cores: how many
    the ranks share, rank r on the r-th, round about.  schedules: by ranks and name.
    """

    cases: tuple[Case, ...]
    schedules: Mapping[tuple[int, str], Schedule]
    workload: str
    batch: int
    precision: str
    seed: int
    cores: int
    profile: str
    sha256: str

    def samples(self, case: Case) -> int:
        """Of all ranks together, after which a run of a case is over."""
        return case.steps * case.ranks * self.batch

    def schedule(self, case: Case) -> Schedule:
        """Of a case."""
        return self.schedules[case.place]

    def document(self) -> dict[str, Any]:
        """As plain JSON, to be written down."""
        return {
            "format": "simstrag-validation-plan/1", "workload": self.workload, "batch": self.batch,
            "precision": self.precision, "seed": self.seed, "cores": self.cores,
            "profile": {"name": self.profile, "sha256": self.sha256}, "rule": RULE,
            "cases": [asdict(case) for case in self.cases],
            "schedules": [
                {"ranks": ranks, "name": name, **schedule.document()}
                for (ranks, name), schedule in self.schedules.items()
            ],
        }  # fmt: skip


def cases_of(
    policies: Sequence[str], ranks: Sequence[int], steps: int, cores: int
) -> tuple[Case, ...]:
    """The cases for some policies on some numbers of ranks; empty ones take what is the default.

    With policies asked for: each under load beside rank 1, and bsp without and with it, which
    mitigation is measured against.  Where ranks share cores, they take as many times fewer steps.

    >>> [case.name for case in cases_of(["korel"], [2], 100, cores=2)]
    ['clean-2-bsp', 'one-2-bsp', 'one-2-korel']
    """
    chosen = {
        (world, name): known
        for world in ranks or (2, 4)
        for (known_world, name), known in DEFAULT.items()
        if known_world == (world if world in (2, 4) else 4)
    }
    if policies:
        asked = tuple(dict.fromkeys(("bsp", *policies)))
        chosen = {
            key: each
            for world in ranks or (2,)
            for key, each in (((world, CLEAN), ("bsp",)), ((world, "one"), asked))
        }
    return tuple(
        Case(policy, world, name, max(1, round(steps * min(1.0, cores / world))))
        for (world, name), known in chosen.items()
        for policy in known
    )


def drawn(name: str, ranks: int, clean: float, seed: int, profile: Profile) -> Schedule:
    """The schedule of a name for runs that take `clean` seconds without load (see `RULE`).

    Raises `InputError` where every level that might be drawn was used in calibration.
    """
    seconds = round(LONGEST * clean, 3)
    if name == CLEAN:
        return Schedule((), seconds)
    calibrated = {level.level for each in profile.responses for level in each.levels}
    calibrated |= {each.level for each in profile.locksteps}
    levels = [level for level in LEVELS if level not in calibrated]
    if not levels:
        raise InputError("the profile was calibrated with every level of load that is tried here")
    luck = random.Random(f"{seed} {ranks} {name}")
    beside = (1,) if name == "one" else (0, 1)
    return Schedule(tuple(_episodes(luck, beside, seconds, clean, levels)), seconds)


def _episodes(
    luck: random.Random, ranks: Sequence[int], seconds: float, clean: float, levels: Sequence[float]
) -> Iterator[Episode]:
    deck: list[float] = []
    start, number = clean * luck.uniform(*REST), 0
    while round(start, 3) < seconds:
        stop = start + clean * luck.uniform(*LOADED)
        deck = deck or luck.sample(levels, len(levels))
        rank = ranks[number % len(ranks)]
        yield Episode(rank, "cpu", deck.pop(), round(start, 3), round(min(stop, seconds), 3))
        start, number = stop + clean * luck.uniform(*REST), number + 1


def windows(schedule: Schedule) -> tuple[tuple[float, float, str], ...]:
    """(start, stop, load) of each span in which nothing changes, of the last to infinity.

    >>> windows(Schedule((Episode(1, "cpu", 1.3, 2.0, 5.0),), 10.0))
    ((0.0, 2.0, ''), (2.0, 5.0, 'rank 1: 1.3'), (5.0, inf, ''))
    """
    edges = sorted({0.0, *(t for each in schedule.episodes for t in (each.start, each.stop))})
    return tuple(
        (start, stop, _load(schedule, start))
        for start, stop in zip(edges, [*edges[1:], math.inf], strict=True)
    )


def _load(schedule: Schedule, time: float) -> str:
    there = sorted((e for e in schedule.episodes if e.start <= time < e.stop), key=lambda e: e.rank)
    return ", ".join(f"rank {each.rank}: {each.level:g}" for each in there)
