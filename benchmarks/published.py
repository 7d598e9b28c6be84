"""Published runs replayed: predicted, published and error, as docs/measured/published.txt.

    python -m benchmarks.published FOLDER [--write]

FOLDER holds public data that are not part of the project: `alibaba-pai-minibatch`,
`diloco-measured` and `published/decoupled_diloco_goodput.csv`.  Figures of Sync-Switch stand here.
A value that a constant was fitted to is marked; all others are predictions.  `--write` replaces the
table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.diloco_measured import Runs, leave_one_out
from benchmarks.results import add_write, keep_tables
from benchmarks.tables import Table, show
from simstrag import Scenario, simulate
from simstrag.traces.of_pai import alibaba_pai_minibatch


class Replay(NamedTuple):
    """A published number and what the simulation says.

    published: NaN where it is not at hand.
    fitted: whether a constant was fitted to it.
    """

    what: str
    predicted: float
    published: float
    fitted: bool = False


# Sync-Switch

MEASURED = {"asgd": (18.886, 18.041, 17.205), "bsp:via=server": (3.930, 3.706, 3.299)}
"""Updates per second of K80 workers with none, one and two late ones: Li et al., "Sync-Switch",
ICDCS 2021, curves in cake-lab/Sync-Switch @09af086 (Apache-2.0).  Each message of a late worker
takes 10 ms more."""
WORKERS, LATE = 4, 0.010
CYCLE = WORKERS / MEASURED["asgd"][0]
MESSAGES = (1 / (MEASURED["asgd"][1] - (WORKERS - 1) / CYCLE) - CYCLE) / LATE
"""Messages of a step of which each waits for the one before: 4.6.  Neither they nor the number of
workers is published: four are inferred, and the messages are fitted to asgd with one late."""


def updates_per_second(policy: str, late: int, delay: float = LATE) -> float:
    """Sync-Switch's workers; half of the messages come before a step, half after it."""
    rows = [
        {
            "time": 0, "node": node, "resource": "net", "kind": "delay",
            "value": MESSAGES / 2 * delay,
        }
        for node in range(late)
    ]  # fmt: skip
    step = CYCLE if policy == "asgd" else 1 / MEASURED[policy][0]
    scenario = Scenario.of({
        "workers": WORKERS, "updates": 4000, "step": {"compute": step}, "trace": rows or None,
    })  # fmt: skip
    run = simulate(scenario, policy, record_updates=False)
    return float(run.summary["updates"] / run.summary["makespan"])


def sync_switch(_: Path) -> Iterator[Replay]:
    """Updates per second with late workers."""
    for policy, rates in MEASURED.items():
        for late in (1, 2):
            fitted = policy == "asgd" and late == 1
            what = f"`{policy}`, {late} late by 10 ms: updates/s"
            yield Replay(what, updates_per_second(policy, late), rates[late], fitted)
    for policy in MEASURED:
        for late in (1, 2):
            predicted = updates_per_second(policy, late, 0.030)
            yield Replay(f"`{policy}`, {late} late by 30 ms: updates/s", predicted, math.nan)


# Alibaba PAI

BARRIERS = {1: 1.111, 2: 1.12}
"""Mean of the slowest worker over the mean of all, by job: alibaba/clusterdata @7a6c496,
mini-batch-time (CC-BY-4.0), each cell counting once."""


def barrier_cost(folder: Path, job: int) -> float:
    """Seconds of an update under bsp over those of a mean step, each cell being one step."""
    trace = alibaba_pai_minibatch(folder / f"job_{job}_norm.csv").trace
    series = [dict(trace.series(node, "step", "slowdown")) for node in trace.nodes]
    times = sorted(set.intersection(*map(set, series)))
    cells = np.array([[own[time] for own in series] for time in times])
    rows = [
        {"time": 10.0 * k, "node": node, "resource": "step", "kind": "duration", "value": value}
        for k, row in enumerate(cells) for node, value in enumerate(row.tolist())
    ]  # fmt: skip
    scenario = Scenario(workers=10, updates=len(cells), step={"compute": 1.0}, trace=rows)
    run = simulate(scenario, "bsp", record_updates=False)
    return float(run.summary["makespan"] / run.summary["updates"] / cells.mean())


def pai(data: Path) -> Iterator[Replay]:
    """What a barrier costs."""
    for job, published in BARRIERS.items():
        cost = barrier_cost(data / "alibaba-pai-minibatch", job)
        yield Replay(f"job {job}: slowest over mean worker", cost, published)


# diloco-measured


def diloco_measured(data: Path) -> Iterator[Replay]:
    """Utilisation of each run, predicted by the other six."""
    for row in leave_one_out(Runs.read(data / "diloco-measured")).to_dict("records"):
        what = f"{row['algorithm']}, H {row['H']}, {row['bandwidth_requested_bps'] / 1e6:g} Mbit/s"
        yield Replay(f"{what}: utilisation", row["window"], row["utilisation"])


# Decoupled DiLoCo

YEAR = 365.25 * 86_400.0
STEP, POLICY = 1.0, "decoupled_diloco:k=1,h=1,p=1,tau=0"
"""Assumed: seconds of a step, and a minimum quorum of one learner.  Communication is free, so that
to overlap it would change nothing."""
OTHERS = ((1.2e6, 2), (1.2e6, 4), (1.2e6, 16), (2.4e6, 1), (2.4e6, 8))
"""Chips and learners of cells that are not published here."""


def useful_share(mtbf: float) -> float:
    """Seconds of whole steps until a failure, in the mean: a step that fails is lost."""
    return STEP / math.expm1(STEP / mtbf)


def goodput(chips: float, learners: int, away: float, there: float = 1.0, seeds: int = 5) -> float:
    """Share of the steps of a clean cluster that count, whose chips fail once a year each.

    away: seconds from a failure of a chip until its learner goes on.
    there: share of the chips that are not in repair while their learner goes on.
    """
    scenario = Scenario(
        workers=learners, samples=20_000 * 128, step={"compute": STEP},
        failures={"mtbf": YEAR * learners / chips, "on_fault": "continue", "rejoin": away},
    )  # fmt: skip
    runs = (simulate(scenario, POLICY, seed, record_updates=False) for seed in range(seeds))
    useful = float(np.mean([run.summary["useful_throughput"] for run in runs]))
    return there * useful * STEP / (128 * learners)


def decoupled_diloco(data: Path) -> Iterator[Replay]:
    """Goodput in percent; two constants of elastic learners fitted to two cells, one to another.

    The share of useful time is there x useful_share(m) / (m + away), with m the seconds between two
    failures of a learner.
    """
    cells = pd.read_csv(data / "published" / "decoupled_diloco_goodput.csv")
    known = {
        (row.chips, row.learners_M, row.elastic): row.goodput_percent / 100
        for row in cells.itertuples()
    }
    one, eight, rigid = (
        known[key] for key in ((1_200_000, 1, "yes"), (1_200_000, 8, "yes"), (2_400_000, 1, "no"))
    )
    m = YEAR / 1.2e6
    ratio = one / eight * useful_share(8 * m)
    away = (useful_share(m) * 8 * m - ratio * m) / (ratio - useful_share(m))
    there = one * (m + away) / useful_share(m)
    alone = useful_share(m) / one - m
    repair = useful_share(m / 2) / rigid - m / 2
    what = "{:.1f}M chips, M = {}, {}: goodput, %"
    print(f"away {away:.1f} s, there {there:.3f}; alone {alone:.1f} s; not elastic {repair:.1f} s")
    for (chips, learners, elastic), published in known.items():
        constants = (away, there) if elastic == "yes" else (repair, 1.0)
        shown = what.format(chips / 1e6, learners, "elastic" if elastic == "yes" else "not elastic")
        yield Replay(shown, 100 * goodput(chips, learners, *constants), 100 * published, True)
    shown = what.format(1.2, 8, "elastic, by the cell of M = 1 alone")
    yield Replay(shown, 100 * goodput(1.2e6, 8, alone), 100 * eight)
    for chips, learners in OTHERS:
        predicted = 100 * goodput(chips, learners, away, there)
        yield Replay(what.format(chips / 1e6, learners, "elastic"), predicted, math.nan)


SOURCES: dict[str, Callable[[Path], Iterator[Replay]]] = {
    "Sync-Switch": sync_switch,
    "Alibaba PAI": pai,
    "diloco-measured": diloco_measured,
    "Decoupled DiLoCo, second-hand": decoupled_diloco,
}


def table(data: Path) -> Table:
    """All replays."""
    rows = []
    for source, replays in SOURCES.items():
        for replay in replays(data):
            is_known = not math.isnan(replay.published)
            error = f"{replay.predicted / replay.published - 1:+.1%}" if is_known else "-"
            rows.append((
                source, replay.what, f"{replay.predicted:.4g}",
                f"{replay.published:.4g}" if is_known else "not at hand",
                error + " (fitted)" * replay.fitted,
            ))  # fmt: skip
    return Table(
        "Published runs, replayed", ("source", "what", "predicted", "published", "error"), rows
    )


def main() -> None:
    """Replay all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    add_write(parser, "published")
    options = parser.parse_args()
    found = table(options.folder)
    show([found])
    if options.write:
        keep_tables("published", [found])


if __name__ == "__main__":
    main()
