"""Drawn jobs whose truth is known: the seconds of every rank in every step, one kind a function.

Each function takes a seed.  `KINDS` has them by name; the truth of a kind is in its `Job`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simstrag.arrays import Reals
from simstrag.records.record import Record

STEP = 0.4
"""Seconds of a step."""
SLOWDOWN = 1.2
PAUSED = 0.05
"""Share of the time that pauses take."""
SHAPES = ("normal", "lognormal", "heavy", "correlated")
LAG = 0.6
PER_HOST = 4


class Job(NamedTuple):
    """A drawn job.

    seconds: of ranks in steps, shape (ranks, steps).
    slow: the ranks that are slow.
    kind: of the loss beside chance, as `simstrag.whatif.losses` names it; empty without one.
    share: of the time that is lost to it.
    period: of common pauses; 0 where they have none.
    start_up: how many leading steps compile.
    hosts: of ranks.
    """

    seconds: Reals
    slow: tuple[int, ...] = ()
    kind: str = ""
    share: float = 0.0
    period: int = 0
    start_up: int = 0
    hosts: Mapping[int, str] = MappingProxyType({})

    @property
    def record(self) -> Record:
        """Its seconds as a log has them: one number a rank and step."""
        ranks, steps = self.seconds.shape
        return Record.of_ranks(
            np.arange(steps), np.arange(ranks), {"compute": self.seconds.T}, "drawn", "drawn",
            is_timed=False, hosts=self.hosts,
        )  # fmt: skip


def noise(rng: np.random.Generator, shape: str, cv: float, size: tuple[int, int]) -> Reals:
    """Factors about 1 with a coefficient of variation, independent over ranks."""
    z = rng.standard_normal(size)
    if shape == "normal":
        return np.maximum(1 + cv * z, 0.1)
    if shape == "heavy":
        return np.maximum(1 + cv / math.sqrt(3) * rng.standard_t(3, size), 0.1)
    if shape == "correlated":
        for k in range(1, size[1]):
            z[:, k] = LAG * z[:, k - 1] + np.sqrt(1 - LAG**2) * z[:, k]
    return np.asarray(np.exp(cv * z))


def clean(seed: int) -> Job:
    """Ranks that differ by noise alone: of .5 to 15 %, of every shape."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([2, 4, 8, 16, 32, 64])), int(rng.choice([40, 100, 300]))
    cv = float(np.exp(rng.uniform(np.log(0.005), np.log(0.15))))
    return Job(STEP * noise(rng, str(rng.choice(SHAPES)), cv, size))


def slow_rank(seed: int) -> Job:
    """One of 4 to 32 ranks takes 1.2 times as long, always or in a third of the steps."""
    rng, seconds = _usual(seed)
    ranks, steps = seconds.shape
    rank = int(rng.integers(ranks))
    seconds[rank, _stretch(rng, steps)] *= SLOWDOWN
    return Job(seconds, (rank,), "stragglers")


def slow_node(seed: int) -> Job:
    """All four ranks of one of 3 to 8 hosts take 1.2 times as long."""
    rng, seconds = _usual(seed, ranks=PER_HOST * int(np.random.default_rng(seed).integers(3, 9)))
    ranks, steps = seconds.shape
    hosts = {rank: f"gpu{rank // PER_HOST:02d}" for rank in range(ranks)}
    first = PER_HOST * int(rng.integers(ranks // PER_HOST))
    slow = tuple(range(first, first + PER_HOST))
    seconds[first : first + PER_HOST, _stretch(rng, steps)] *= SLOWDOWN
    return Job(seconds, slow, "stragglers", hosts=hosts)


def slow_group(seed: int) -> Job:
    """Half of the ranks or more have a slower kind of card: 1.2 to 1.6 times as long."""
    rng, seconds = _usual(seed)
    ranks = len(seconds)
    fast = int(rng.integers(max(2, ranks // 4), ranks // 2 + 1))
    slow = tuple(sorted(rng.permutation(ranks)[fast:].tolist()))
    seconds[list(slow)] *= rng.uniform(SLOWDOWN, 1.6)
    return Job(seconds, slow, "stragglers")


def periodic_pauses(seed: int) -> Job:
    """All ranks pause in every 10th to 50th step: 5 % of the time."""
    rng, seconds = _usual(seed, steps=200)
    period = int(rng.integers(10, 51))
    places = np.arange(int(rng.integers(period)), 200, period)
    return _paused(seconds, places, "common pauses", period)


def single_pause(seed: int) -> Job:
    """All ranks pause in one step: 5 % of the time."""
    rng, seconds = _usual(seed)
    return _paused(seconds, np.array([rng.integers(3, seconds.shape[1])]), "common pauses")


def scattered_pauses(seed: int) -> Job:
    """Ranks pause by turns, at random steps of each: 5 % of the time."""
    rng, seconds = _usual(seed, steps=200)
    ranks, steps = seconds.shape
    cells = rng.permutation(ranks * steps)[: int(rng.integers(6, 21))]
    places = np.unravel_index(cells, seconds.shape)
    hit = len(np.unique(places[1]))
    seconds[places] += PAUSED / (1 - PAUSED) * seconds.max(axis=0).sum() / hit
    return Job(seconds, (), "scattered pauses", PAUSED)


def drift(seed: int) -> Job:
    """All ranks take longer, more and more or in a stretch: by 1.2 to 1.6 at the most."""
    rng, seconds = _usual(seed, steps=int(np.random.default_rng(seed).choice([100, 300])))
    steps = seconds.shape[1]
    height = rng.uniform(0.2, 0.6)
    if rng.random() < 0.5:
        factor = 1 + height * np.linspace(0, 1, steps)
    else:
        factor = np.ones(steps)
        begin = int(rng.integers(0, steps - steps // 3))
        factor[begin : begin + steps // 3] += height
    lost = float((seconds.max(axis=0) * (factor - 1)).sum())
    seconds *= factor
    return Job(seconds, (), "drift", lost / float(seconds.max(axis=0).sum()))


def equal_walls(seed: int) -> Job:
    """Whole steps of ranks that wait for the slowest, timed on each with noise of up to 1 %.

    Ranks compute with noise of 1 to 3 %; two of three jobs have a slow one, 1.2 to 2 times as long.
    """
    rng = np.random.default_rng(seed)
    size = int(rng.choice([2, 4, 8, 16, 32, 64])), int(rng.choice([40, 100, 300]))
    own = STEP * noise(rng, str(rng.choice(SHAPES)), rng.uniform(0.01, 0.03), size)
    where = slice(None) if rng.random() < 0.5 else _third(rng, size[1])
    own[0, where] *= rng.choice([1.0, rng.uniform(1.2, 2), rng.uniform(1.2, 2)])
    error = np.exp(rng.uniform(0.0, 0.01) * rng.standard_normal(size))
    return Job(own.max(axis=0) * error)


def start_up(seed: int) -> Job:
    """The first one to three steps compile for 20 to 60 s, on each rank as long as it takes."""
    rng, seconds = _usual(seed)
    first = int(rng.integers(1, 4))
    seconds[:, :first] += rng.uniform(20, 60, (len(seconds), first))
    return Job(seconds, start_up=first)


def restarted(seed: int) -> tuple[str, int]:
    """The text of a log of a job that restarts from a checkpoint, with a slow rank, and that rank.

    Steps since the checkpoint stand twice.
    """
    rng = np.random.default_rng(seed)
    job = slow_rank(seed)
    ranks, steps = job.seconds.shape
    crash = int(rng.integers(steps // 2, steps))
    again = crash - int(rng.integers(5, 20))
    rows = [(k, k) for k in range(crash)] + [(k, k) for k in range(again, steps)]
    lines = [
        f"{step},{rank},{job.seconds[rank, k]:.5f}" for step, k in rows for rank in range(ranks)
    ]
    return "\n".join(["step,rank,seconds", *lines]) + "\n", job.slow[0]


LOSSES: dict[str, Callable[[int], Job]] = {
    "periodic pauses": periodic_pauses, "single pause": single_pause,
    "scattered pauses": scattered_pauses, "drift": drift,
}  # fmt: skip
"""Kinds without a slow rank in which time is lost."""


def _usual(seed: int, ranks: int = 0, steps: int = 0) -> tuple[np.random.Generator, Reals]:
    """4 to 32 ranks in 40 to 200 steps, with noise of 5 to 8 %."""
    rng = np.random.default_rng(seed + 1)
    size = ranks or int(rng.choice([4, 8, 16, 32])), steps or int(rng.choice([40, 100, 200]))
    shape = str(rng.choice(["normal", "lognormal"]))
    return rng, STEP * noise(rng, shape, rng.uniform(0.05, 0.08), size)


def _stretch(rng: np.random.Generator, steps: int) -> slice:
    return slice(None) if rng.random() < 0.5 else _third(rng, steps)


def _third(rng: np.random.Generator, steps: int) -> slice:
    begin = int(rng.integers(0, steps - steps // 3))
    return slice(begin, begin + steps // 3)


def _paused(seconds: Reals, places: npt.NDArray[np.integer], kind: str, period: int = 0) -> Job:
    total = float(seconds.max(axis=0).sum())
    seconds[:, places] += PAUSED / (1 - PAUSED) * total / len(places)
    return Job(seconds, (), kind, PAUSED, period)
