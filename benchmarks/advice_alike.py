"""False positives of advice: differences of policies whose true times differ by less than 1 %.

    python -m benchmarks.advice_alike [--jobs N] [--draws N] [--write]

Jobs, by their number, have noise and a trace of their own.  The truth is of 24 seeds that the
advice does not see: alike are the policies whose 95 % interval of the time over the best one's ends
below 1 %, one of each group that makes the same runs.  `advise` is then asked about these.  Times
can also be drawn, where the truth is known: those of a candidate are up to 1 % longer than the
best's, and scatter on their own around what all have in common.  The same search and the same
decision see them, without settings of what is assumed.  `--write` replaces the table of
docs/measured/advice-alike.txt.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.results import report
from benchmarks.tables import Table
from simstrag import Scenario
from simstrag.advice.advise import advise
from simstrag.advice.halving import ALIKE, CandidateRun, Search
from simstrag.advice.recommendation import Recommendation
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import OWN
from simstrag.experiments.paired_statistics import ratio
from simstrag.experiments.runner import Runner, RunTask
from simstrag.traces.generate import generate

POLICIES = (
    BASELINE, "lb_bsp", "lb_bsp:window=16", "drain", "drain:ratio=1.1", "backup", "dropcompute",
    "star_ring", "dssp", "asgd", "k_async:x=2",
)  # fmt: skip
TRUTH = tuple(range(10_000, 10_024))
SEEDS, CANDIDATES, SCATTERS = (3, 5, 10), (3, 9, 40), (0.01, 0.03, 0.1)
COMMON = 0.1
"""Scatter over seeds that all candidates have in common."""


class Outcome(NamedTuple):
    """What advice said of policies that are alike.

    setting: where the times come from.
    candidates: how many are alike.
    winner: whether it changes training although bsp is one of them.
    false_positives: the finalists that it reports as different from its choice.
    pairs: the finalists beside its choice.
    """

    setting: str
    seeds: int
    candidates: int
    winner: bool
    false_positives: int
    pairs: int


class Drawn(Recommendation):
    """What is recommended of times that were drawn."""

    @property
    def lines(self) -> tuple[str, ...]:
        """None: nothing can be run."""
        return ()

    def hours(self, policy: str) -> float:
        """GPU-hours of a policy, which no drawn time has: 0."""
        return 0.0


def job(case: int) -> Scenario:
    """A job by its number: four or eight workers, noise and contention from slight to strong."""
    rng = np.random.default_rng(case)
    workers = int(rng.choice([4, 8]))
    return Scenario(
        workers=workers, target_progress=float(rng.choice([15, 30])),
        trace=generate(nodes=workers, seconds=600, seed=case), trace_per_seed="shift",
        trace_end="loop", policies=POLICIES,
        step={"compute": 0.2, "cv": float(rng.choice([0.02, 0.1, 0.3]))},
        server={"service": float(rng.choice([0.001, 0.01]))},
        contention={"severity": float(rng.choice([0.01, 0.05, 0.2, 1]))},
        learner={"batch": 32, "noise_scale": 256, "c_tau": float(rng.choice([0.1, 1, 4]))},
    )  # fmt: skip


def alike(scenario: Scenario) -> list[str]:
    """The policies that are alike by the seeds of the truth."""
    tasks = [RunTask("contended", p, seed, False) for p in POLICIES for seed in TRUTH]
    seconds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with Runner(scenario.replaced(seeds=TRUTH), 1, None, None) as runner:
        for task, result in runner.results(tasks):
            seconds[task.policy].append(result.row["time_to_target"])
    first = {tuple(seconds[policy]): policy for policy in reversed(POLICIES)}
    times = {policy: np.array(of) for of, policy in first.items()}
    best = min(times, key=lambda policy: float(times[policy].mean()))
    limit = 1 + ALIKE
    return [p for p, of in times.items() if p == best or ratio(of, times[best]).high < limit]


def judge(case: int, seeds: Sequence[int] = SEEDS) -> Iterator[Outcome]:
    """What advice says of a job under each number of seeds; nothing where none are alike."""
    scenario = job(case)
    names = alike(scenario)
    if len(names) > 1:
        for number in seeds:
            found = advise(scenario, names, seeds=number, jobs=1)
            yield _outcome("simulated jobs", found, names)


def draw(
    rng: np.random.Generator, seeds: int, candidates: int, scatter: float, heavy: bool,
    gain: float = 0.0,
) -> Outcome:  # fmt: skip
    """What advice says of drawn times.

    heavy: Student's t with three degrees, else normal.
    gain: the share by which the last candidate is sooner than as drawn.
    """
    names = [BASELINE, *(f"policy {k}" for k in range(1, candidates))]
    shape = (candidates, seeds)
    own = rng.standard_t(3, shape) / np.sqrt(3) if heavy else rng.normal(size=shape)
    longer = 1 + rng.uniform(0, ALIKE, (candidates, 1))
    table = 100 * longer * np.exp(rng.normal(0, COMMON, seeds) + scatter * own)
    table[-1] *= 1 - gain
    times = dict(zip(names, table, strict=True))
    search = Search(
        range(seeds), (1.0,),
        lambda missing: [CandidateRun(p, seed, {1.0: times[p][seed]}) for p, seed in missing],
    )  # fmt: skip
    finalists = search.run(names)
    found = Drawn(
        samples={OWN: {name: times[name] for name in finalists}},
        lane_of=dict.fromkeys(finalists, "A"), trials=search.ordered, excluded={},
    )  # fmt: skip
    shape_of = "Student's t" if heavy else "normal"
    return _outcome(f"drawn, scatter {scatter:.0%} ({shape_of})", found, names)


def _outcome(setting: str, found: Recommendation, names: Sequence[str]) -> Outcome:
    others = [n for n in found.times if n in names and n != found.choice]
    if found.choice not in names:  # bsp, of which nothing is said beside them
        others = []
    false_positives = sum(name not in found.alike for name in others)
    winner = BASELINE in names and found.choice != BASELINE
    return Outcome(setting, found.seeds, len(names), winner, false_positives, len(others))


def measure(jobs: int, draws: int) -> Iterator[Outcome]:
    """Outcomes of some jobs, and of some draws in each setting."""
    rng = np.random.default_rng(0)
    for heavy in (False, True):
        for scatter in SCATTERS:
            for candidates in CANDIDATES:
                for seeds in SEEDS:
                    for _ in range(draws):
                        yield draw(rng, seeds, candidates, scatter, heavy)
    for case in range(jobs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from judge(case)


def table(outcomes: Sequence[Outcome]) -> Table:
    """The table of docs/measured/advice-alike.txt: a row for each setting and number of seeds."""
    header = (
        "times", "seeds", "cases", "false winner", "any false positive", "false positives of pairs",
    )  # fmt: skip
    rows = []
    for setting, seeds in dict.fromkeys((o.setting, o.seeds) for o in outcomes):
        of = [o for o in outcomes if (o.setting, o.seeds) == (setting, seeds)]
        counts = (sum(o.winner for o in of), sum(o.false_positives > 0 for o in of))
        shares = (f"{count / len(of):.1%}" for count in counts)
        pairs = sum(o.false_positives for o in of) / max(1, sum(o.pairs for o in of))
        rows.append((setting, str(seeds), str(len(of)), *shares, f"{pairs:.1%}"))
    return Table("Policies whose true times differ by less than 1 %", header, rows)


if __name__ == "__main__":
    count = {"type": int, "default": 100}
    report(__doc__, "advice-alike", measure, table, jobs=count, draws=count)
