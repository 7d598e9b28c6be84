"""How often one further run ends in the interval that a comparison gives for nine of ten.

    python -m benchmarks.run_spread [--jobs N] [--write]

Jobs are drawn: eight workers that compute 60 to 600 steps.  What differs between runs is noise of
single steps, noise that lasts (autocorrelation of 0.3 to 0.9), the moment of a random trace, or the
pace of a run (deviation of 3 to 30 %).  Each policy runs under `SEEDS` seeds.  Intervals are of
`DRAWS` random choices of few of these, and the runs under all other seeds count.  `--write`
replaces the table of docs/measured/run-spread.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import report
from benchmarks.tables import Table
from simstrag import Scenario, simulate
from simstrag.arrays import Floats
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.run_spread import predict_run
from simstrag.traces.generate import generate

POLICIES = (BASELINE, "lb_bsp", "asgd")
SEEDS, DRAWS, FEW = 200, 200, (3, 5, 10, 20)
WORKERS, BATCH = 8, 32
Rng = np.random.Generator


class Coverage(NamedTuple):
    """The share of held-out runs of one policy and job that ended inside, over all draws."""

    kind: str
    policy: str
    seeds: int
    inside: float


def _noise(rng: Rng) -> dict[str, Any]:
    """Steps of 0.1 s with noise of 2 to 50 % of either shape."""
    shape = str(rng.choice(["lognormal", "shifted_exponential"]))
    cv = float(np.exp(rng.uniform(np.log(0.02), np.log(0.5))))
    return {"step": {"compute": 0.1, "cv": cv, "noise": shape}}


def _lasting(rng: Rng) -> dict[str, Any]:
    return _noise(rng) | {"noise": {"lag1": float(rng.uniform(0.3, 0.9))}}


def _moments(rng: Rng) -> dict[str, Any]:
    trace = generate(nodes=WORKERS, seconds=600, seed=int(rng.integers(2**31)))
    return _noise(rng) | {"trace": trace, "trace_end": "loop", "trace_per_seed": "shift"}


def _pace(rng: Rng) -> dict[str, Any]:
    return _noise(rng) | {"noise": {"pace": float(rng.uniform(0.03, 0.3))}}


KINDS: Mapping[str, Callable[[Rng], dict[str, Any]]] = {
    "noise of single steps": _noise, "noise that lasts": _lasting, "moments of a trace": _moments,
    "pace of a run": _pace,
}  # fmt: skip
"""What differs between runs: the keys of a drawn scenario."""


def coverage(times: Floats, n: int, rng: Rng) -> float:
    """Over some draws of n runs, the share of all other runs that end in their interval."""
    shares = []
    for _ in range(DRAWS):
        order = rng.permutation(len(times))
        spread, others = predict_run(times[order[:n]]), times[order[n:]]
        shares.append(np.mean((spread.low <= others) & (others <= spread.high)))
    return float(np.mean(shares))


def measure(jobs: int) -> Iterator[Coverage]:
    """The coverage of every kind, policy and number of seeds, over some jobs of each kind."""
    rng = np.random.default_rng(0)
    for kind, keys in KINDS.items():
        for _ in range(jobs):
            samples = WORKERS * BATCH * int(rng.integers(60, 600))
            case = Scenario(workers=WORKERS, samples=samples, learner={"batch": BATCH}, **keys(rng))
            for policy in POLICIES:
                runs = (simulate(case, policy, seed, record_updates=False) for seed in range(SEEDS))
                times = np.array([run.summary["makespan"] for run in runs])
                yield from (Coverage(kind, policy, n, coverage(times, n, rng)) for n in FEW)


def table(found: Sequence[Coverage]) -> Table:
    """A row for each kind, a column for each number of seeds: mean, and range over the jobs."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        cells = []
        for n in FEW:
            of_jobs = [c.inside for c in found if (c.kind, c.seeds) == (kind, n)]
            cells.append(f"{np.mean(of_jobs):.0%} ({min(of_jobs):.0%} to {max(of_jobs):.0%})")
        rows.append((kind, *cells))
    header = ("what differs between runs", *(f"{n} seeds" for n in FEW))
    return Table("Held-out runs that end in the interval of nine of ten", header, rows)


if __name__ == "__main__":
    report(__doc__, "run-spread", measure, table, jobs={"type": int, "default": 4})
