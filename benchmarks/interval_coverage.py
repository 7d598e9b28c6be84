"""How often the 95 % intervals of a comparison hold the truth, where times are not normal.

    python -m benchmarks.interval_coverage

The job is that of docs/advice.md: eight workers on a random trace, each seed from another moment of
it.  The truth is of `SEEDS` seeds; intervals are of `DRAWS` random choices of fewer seeds.  One
that is not defined, because it has no end, holds the truth.  The last column is of the difference
of 90 % quantiles, by which `advise --quantile 0.9` chooses.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tables import Table, show
from simstrag import Scenario, compare
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.criterion import Criterion
from simstrag.experiments.paired_statistics import Estimate, difference, mitigation, speedup
from simstrag.traces.generate import generate
from simstrag.whatif.first_scenario import JobDescription, write_first_scenario

JOB = JobDescription(step=0.35, parameters=25e6, link=25e9 / 8, batch=32)
SEEDS, DRAWS = 1000, 4000
POLICIES = (BASELINE, "lb_bsp", "asgd", "cgp")


def main() -> None:
    """Measure and print the table."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder) / "trace.csv", Path(folder) / "scenario.yaml"
        generate(nodes=8, seconds=900, seed=0).write(trace)
        write_first_scenario(trace, out, JOB)
        found = compare(Scenario.read(out), POLICIES, seeds=SEEDS, sensitivity=False)
    bsp, clean = (found.column(BASELINE, "time_to_target", v) for v in ("contended", "clean"))
    rng, rows = np.random.default_rng(0), []
    for policy in POLICIES[1:]:
        times = found.column(policy, "time_to_target")
        truth = _estimates(times, bsp, clean)
        for n in (2, 3, 5, 10, 20, 50):
            held = np.zeros(len(truth))
            for _ in range(DRAWS):
                seeds = rng.choice(SEEDS, n, replace=False)
                drawn = _estimates(times[seeds], bsp[seeds], clean[seeds])
                held += [not (e.low > t.value or e.high < t.value)
                         for e, t in zip(drawn, truth, strict=True)]  # fmt: skip
            rows.append((policy, str(n), *(f"{share:.1%}" for share in held / DRAWS)))
    columns = ("policy", "seeds", "difference", "speed-up", "mitigation", "quantiles")
    show([Table("Intervals that hold the truth of all seeds", columns, rows)])


def _estimates(*times: np.ndarray) -> list[Estimate]:
    own, bsp, clean = times
    gap = Criterion(0.9).difference(own, bsp)
    return [difference(own, bsp), speedup(own, bsp), mitigation(own, bsp, clean), gap]


if __name__ == "__main__":
    main()
