"""The cases of a validation: policies, world sizes and schedules of load, fixed beforehand.

Cases follow from the seed, the profile and the options alone. They are written to disk before the
first run begins.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simstrag.errors import InputError
from simstrag.profile.profile import Profile
from simstrag.validation.loadgen.schedule import Episode, Schedule

CLEAN = "clean"

SCHEDULES = {
    CLEAN: "no load",
    "one": "load that comes and goes beside rank 1",
    "both": "load that comes and goes beside ranks 0 and 1 in turn",
}

LEVELS = (0.4, 0.6, 0.9, 1.3, 1.6, 2.4)
"""Levels of load to draw from; levels used in calibration are left out."""

REST, LOADED = (0.15, 0.3), (0.4, 0.6)
"""Shortest and longest interval without and with load, in makespans of a clean run."""

LONGEST = 5.0
"""Length of a schedule in makespans of a clean run; every run must end within it."""

RULE = (
    "Intervals without and with load alternate, starting without; their lengths are uniform, "
    f"from {REST[0]:g} to {REST[1]:g} and from {LOADED[0]:g} to {LOADED[1]:g} of the makespan of a "
    "clean run as the profile predicts it. Levels that the profile was not calibrated with are "
    "drawn without repetition until all are used. The seed determines every draw."
)

DEFAULT = {
    (2, CLEAN): ("bsp", "korel", "asgd"),
    (2, "one"): ("bsp", "korel", "lb_bsp", "asgd", "ssp", "backup"),
    (2, "both"): ("bsp", "korel", "lb_bsp", "asgd"),
    (4, CLEAN): ("bsp",),
    (4, "one"): ("bsp", "korel"),
}
"""Default policies, by world size and schedule."""


@dataclass(frozen=True, slots=True)
class Case:
    """One policy at one world size under one named schedule.

    ranks: the world size.
    steps: steps of each rank, if all take equally many.
    shards: ranks of a worker of the policy, which shard its model.

    >>> Case("ssp:bound=5", 2, "one", 300).name
    'one-2-ssp-bound-5'
    """

    policy: str
    ranks: int
    schedule: str
    steps: int
    shards: int = 1

    @property
    def workers(self) -> int:
        """Workers of the policy: ranks, or replicas of several."""
        return self.ranks // self.shards

    @property
    def name(self) -> str:
        """Prefix of the names of its folders."""
        spec = "".join(
            letter if letter.isalnum() or letter in "._" else "-" for letter in self.policy
        )
        world = f"{self.workers}x{self.shards}" if self.shards > 1 else f"{self.ranks}"
        return f"{self.schedule}-{world}-{spec}"

    @property
    def place(self) -> tuple[int, str]:
        """World size and schedule: cases that share both are ranked against each other."""
        return self.ranks, self.schedule


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """Everything that a validation decides before the first run.

    schedules: by world size and name.
    batch: samples in the batch of one rank.
    precision: the argument of `simstrag.ddp.wrap`.
    cores: number of cores; rank r runs on core r modulo this number.
    profile: name of the profile.
    sha256: digest of the profile.
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
        """Applied samples of all ranks that complete a run of a case."""
        return case.steps * case.ranks * self.batch

    def schedule(self, case: Case) -> Schedule:
        """The schedule of a case."""
        return self.schedules[case.place]

    def worker_batch(self, case: Case) -> int:
        """Samples of the batch of a worker."""
        return self.batch * case.shards

    def document(self) -> dict[str, Any]:
        """JSON values of the plan, as written to disk."""
        return {
            "format": "simstrag-validation-plan/1", "workload": self.workload, "batch": self.batch,
            "precision": self.precision, "seed": self.seed, "cores": self.cores,
            "profile": {"name": self.profile, "sha256": self.sha256}, "rule": RULE,
            "cases": [_document(case) for case in self.cases],
            "schedules": [
                {"ranks": ranks, "name": name, **schedule.document()}
                for (ranks, name), schedule in self.schedules.items()
            ],
        }  # fmt: skip


def _document(case: Case) -> dict[str, Any]:
    values = asdict(case)
    return values if case.shards > 1 else {k: v for k, v in values.items() if k != "shards"}


def cases_of(
    policies: Sequence[str], ranks: Sequence[int], steps: int, cores: int, shards: int = 1
) -> tuple[Case, ...]:
    """The cases for the given policies and world sizes; empty arguments mean the defaults.

    With explicit policies: each of them under load on the core of rank 1, plus bsp with and without
    that load, which mitigation needs.  Where ranks share cores, steps are reduced in proportion.

    >>> [case.name for case in cases_of(["korel"], [2], 100, cores=2)]
    ['clean-2-bsp', 'one-2-bsp', 'one-2-korel']
    """
    if policies:
        under = {CLEAN: ("bsp",), "one": tuple(dict.fromkeys(("bsp", *policies)))}
        chosen = {(world, name): known for world in ranks or (2,) for name, known in under.items()}
    else:
        chosen = {
            (world, name): known
            for world in ranks or (2, 4)
            for (known_world, name), known in DEFAULT.items()
            if known_world == (world if world in (2, 4) else 4)
        }
    return tuple(
        Case(policy, world, name, max(1, round(steps * min(1.0, cores / world))), shards)
        for (world, name), known in chosen.items()
        for policy in known
    )


def draw_schedule(name: str, ranks: int, clean: float, seed: int, profile: Profile) -> Schedule:
    """Draw the named schedule by `RULE`.

    clean: makespan without load, in seconds.

    Raises `InputError` if calibration used every level that could be drawn.
    """
    seconds = round(LONGEST * clean, 3)
    if name == CLEAN:
        return Schedule((), seconds)
    calibrated = {level.level for each in profile.responses for level in each.levels}
    calibrated |= {each.level for each in profile.locksteps}
    levels = [level for level in LEVELS if level not in calibrated]
    if not levels:
        raise InputError(
            "the profile was calibrated at every level of load that a validation uses; "
            "calibrate with the default levels"
        )
    rng = random.Random(f"{seed} {ranks} {name}")
    beside = (1,) if name == "one" else (0, 1)
    return Schedule(tuple(_episodes(rng, beside, seconds, clean, levels)), seconds)


def _episodes(
    rng: random.Random, ranks: Sequence[int], seconds: float, clean: float, levels: Sequence[float]
) -> Iterator[Episode]:
    deck: list[float] = []
    start = clean * rng.uniform(*REST)
    for rank in itertools.cycle(ranks):
        if round(start, 3) >= seconds:
            return
        stop = start + clean * rng.uniform(*LOADED)
        deck = deck or rng.sample(levels, len(levels))
        yield Episode(rank, "cpu", deck.pop(), round(start, 3), round(min(stop, seconds), 3))
        start = stop + clean * rng.uniform(*REST)


def windows(schedule: Schedule) -> tuple[tuple[float, float, str], ...]:
    """(start, stop, load) of each interval of constant load; the last one never stops.

    >>> windows(Schedule((Episode(1, "cpu", 1.3, 2.0, 5.0),), 10.0))
    ((0.0, 2.0, ''), (2.0, 5.0, 'rank 1: 1.3'), (5.0, inf, ''))
    """
    edges = sorted({0.0, *(t for each in schedule.episodes for t in (each.start, each.stop))})
    by_rank = sorted(schedule.episodes, key=lambda each: each.rank)
    found = []
    for start, stop in itertools.pairwise([*edges, math.inf]):
        there = (each for each in by_rank if each.start <= start < each.stop)
        load = ", ".join(f"rank {each.rank}: {each.level:g}" for each in there)
        found.append((start, stop, load))
    return tuple(found)
