"""What papers say about accuracy, on tasks that train here in minutes: a table of `learning`.

    python -m benchmarks.learning claims       # does each policy's accuracy do what its paper says
    python -m benchmarks.learning precision    # what reduced precision does to accuracy

Eight workers, of which one takes twice as long throughout, and another three times as long half of
the time.  All runs of a task apply equally many samples.  The learning rate is the one of four that
gives bsp the best final accuracy, under other seeds; all policies have it.
"""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tables import Table
from simstrag import Scenario, compare, simulate
from simstrag.analysis.derived.ranking import Standings, as_accurate, standings
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.paired_statistics import Estimate, ratio_of_times

Keys = dict[str, Any]
JOB: Keys = {
    "step": {"compute": 0.1, "amp_ratio": 1.5, "cv": 0.1}, "microbatches": 8,
    "allreduce": {"alpha": 1e-4, "bandwidth": 1e9, "bytes": 4e6}, "server": {"service": 1e-3},
    "trace_end": "loop",
    "trace": [
        {"time": time, "node": node, "resource": "gpu", "kind": "slowdown", "value": value}
        for time, node, value in ((0, 3, 2.0), (0, 5, 1.0), (10, 5, 3.0), (20, 5, 1.0))
    ],
}  # fmt: skip
"""All of it is assumed."""
RATES = {
    "sgd": tuple({"lr": lr} for lr in (0.1, 0.2, 0.4, 0.8)),
    "momentum 0.9": tuple({"lr": lr, "momentum": 0.9} for lr in (0.02, 0.05, 0.1, 0.2)),
}
TASKS = {"digits": (32_000, 12), "mixture": (32_000, 8), "tabular": (32_000, 6)}
"""Samples and seeds of each task."""
BATCH = 16
TUNING = (100, 101)
"""Seeds of the choice of a learning rate."""
EVERY, SGD, MOMENTUM = tuple(RATES), ("sgd",), ("momentum 0.9",)
PARTS = 20
"""Evaluations of a clean run of bsp."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That a policy is as accurate as another, or more accurate, at equal samples.

    source: of the claim: V read, D computed from published data, M from memory, I implied.
    keeps: whether as accurate; else more accurate.
    optimizers: those of the paper; all where it names none, or none of these.
    """

    policy: str
    other: str
    source: str
    keeps: bool = False
    optimizers: tuple[str, ...] = EVERY

    def __str__(self) -> str:
        relation = "as accurate as" if self.keeps else "more accurate than"
        return f"`{self.policy}` is {relation} `{self.other}`"

    def judge(self, s: Standings) -> tuple[str, str]:
        """The difference in points with its interval, and whether the claim holds."""
        gap = s.between(self.policy, self.other, "accuracy")
        own, others = (
            int(np.isfinite(s.comparison.column(name, "diverged")).sum())
            for name in (self.policy, self.other)
        )
        lost = [
            f"{name} diverged {count} of {s.seeds}"
            for name, count in ((self.policy, own), (self.other, others)) if count
        ]  # fmt: skip
        shown = "; ".join(([] if math.isnan(gap.value) else [_points(gap)]) + lost)
        if not any(_learned(s, name) for name in (self.policy, self.other)):
            return shown, "nothing was learned"
        if own or others == s.seeds:
            return shown, "no" if own >= others else "yes" if own == 0 else "not shown"
        return shown, as_accurate(gap, s.comparison.scenario.learner.margin if self.keeps else 0.0)


def _learned(s: Standings, policy: str) -> bool:
    """Whether its mean accuracy at the end is above that at the beginning by the margin."""
    table = s.comparison.evaluations
    own = (table["policy"] == policy) & (table["variant"] == "contended")
    accuracy = table[own].groupby("seed")["accuracy"]
    gain = (accuracy.last() - accuracy.first()).mean()
    return bool(gain > s.comparison.scenario.learner.margin)


CLAIMS = (
    Claim("cgp", "asgd", "CGP, abstract (+16.8 %) [V]"),
    Claim("cgp", "ssp", "CGP, abstract (+16.8 %) [V]"),
    Claim("korel", BASELINE, "Korel, times to accuracy [I]", True),
    Claim("star_h", BASELINE, "STAR, abstract [V]", True, SGD),
    Claim("star_ml", BASELINE, "STAR, abstract [V]", True, SGD),
    Claim("star_ring", BASELINE, "STAR, abstract [V]", True, SGD),
    Claim(BASELINE, "asgd", "Sync-Switch, data (.920, .892) [D]", False, MOMENTUM),
    Claim("sync_switch", "asgd", "Sync-Switch, abstract (+3.8 points) [V]", False, MOMENTUM),
    Claim("sync_switch", BASELINE, "Sync-Switch, data (.743 to .757, .746) [D]", True, MOMENTUM),
    Claim("dropcompute", BASELINE, "DropCompute [M]", True),
    Claim("backup", "asgd", "Chen et al., abstract [V]"),
)
MORE_WORKERS = (
    Claim(BASELINE, "asgd", "Sync-Switch, data (asgd diverges) [D]", False, MOMENTUM),
    Claim("sync_switch:share=0.5", "asgd", "Sync-Switch, data (.914 to .929) [D]", False, MOMENTUM),
    Claim("sync_switch:share=0.5", BASELINE, "Sync-Switch, data [D]", True, MOMENTUM),
)
"""Those on 16 workers."""


def claims() -> list[Table]:
    """Each claim on each task, by optimizer."""
    more = _table("16 workers", MORE_WORKERS, 16, ("digits", "mixture"))
    return [_table("8 workers", CLAIMS, 8, tuple(TASKS)), more]


def _table(title: str, asked: tuple[Claim, ...], workers: int, tasks: Sequence[str]) -> Table:
    rows: dict[tuple[Claim, str], list[tuple[str, str]]] = {}
    for task, optimizer in itertools.product(tasks, RATES):
        if chosen := [claim for claim in asked if optimizer in claim.optimizers]:
            found = compared(asked, workers, task, optimizer)
            for claim in chosen:
                rows.setdefault((claim, optimizer), []).append(claim.judge(found))
    table = []
    for (claim, optimizer), cells in rows.items():
        holds = sum(verdict == "yes" for _, verdict in cells)
        texts = (f"{shown}: {verdict}" for shown, verdict in cells)
        table.append((str(claim), claim.source, optimizer, *texts, f"{holds} of {len(cells)}"))
    return Table(title, ("claim", "source", "optimizer", *tasks, "holds on"), table)


def precision() -> list[Table]:
    """Accuracy and loss after equal samples with bfloat16 by autocast, against float32."""
    rows = [
        row
        for task, optimizer in itertools.product(TASKS, RATES)
        for row in _of_precision(compared(CLAIMS, 8, task, optimizer), task, optimizer)
    ]
    header = (
        "task", "optimizer", "policy", "steps in bf16 (%)", "minus bsp's accuracy (points)",
        "as accurate", "loss / bsp's",
    )  # fmt: skip
    return [Table("Reduced precision", header, rows)]


def _of_precision(s: Standings, task: str, optimizer: str) -> Iterator[tuple[str, ...]]:
    margin, column = s.comparison.scenario.learner.margin, s.comparison.column
    for policy in ("amp_all", "korel"):
        gap = s.accuracy_gap(policy)
        losses = ratio_of_times(column(policy, "loss"), column(BASELINE, "loss"))
        share = f"{100 * np.mean(column(policy, 'amp_share')):.0f}"
        verdict = as_accurate(gap, margin)
        yield task, optimizer, policy, share, _points(gap), verdict, _interval(losses, "{:.3f}")


@functools.cache
def compared(asked: tuple[Claim, ...], workers: int, task: str, optimizer: str) -> Standings:
    """The policies of some claims on a task, with the learning rate that is best for bsp."""
    samples, seeds = TASKS[task]
    every = samples / (workers * BATCH) * JOB["step"]["compute"] / PARTS
    cases = [
        Scenario(**JOB, workers=workers, samples=samples, learner={
            "kind": "real", "task": task, "batch": BATCH, "optimizer": choice,
            "evaluate_every": every,
        }) for choice in RATES[optimizer]
    ]  # fmt: skip
    spawn = multiprocessing.get_context("spawn")  # a forked child of a process with torch may hang
    with ProcessPoolExecutor(2, spawn) as pool:
        accuracies = list(pool.map(_accuracy, *zip(*itertools.product(cases, TUNING), strict=True)))
    means = np.reshape(accuracies, (len(cases), len(TUNING))).mean(1)
    best = cases[int(np.nanargmax(means))]
    lr = best.learner.optimizer.lr
    print(f"{task}, {optimizer}, {workers} workers: learning rate {lr:g}", flush=True)
    used = (claim for claim in asked if optimizer in claim.optimizers)
    names = dict.fromkeys(name for claim in used for name in (claim.policy, claim.other))
    return standings(compare(best, [*names, "amp_all"], seeds=seeds))


def _accuracy(case: Scenario, seed: int) -> float:
    """The final accuracy of bsp."""
    return float(simulate(case, BASELINE, seed, record_updates=False).summary["accuracy"])


def _points(gap: Estimate) -> str:
    return _interval(Estimate(*(100 * each for each in gap)), "{:+.2f}")


def _interval(found: Estimate, shape: str) -> str:
    return "{} ({} to {})".format(*map(shape.format, found))
