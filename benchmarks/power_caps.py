"""The energy regret of a power cap that three measured rows choose, on public measurements.

    python -m benchmarks.power_caps FOLDER [--write]

FOLDER holds Zeus's `summary_power_v100.csv` and `summary_power_p100.csv` (ml-energy/zeus,
`examples/research_reproducibility/zeus_nsdi23/trace`, Apache-2.0), which are not part of the
project.  The shape of the law is fitted to all trainings of one GPU.  Of each training on a GPU,
the rows at its lowest, middle and highest cap choose among all its caps; the regret is the energy
measured at that cap over the least measured.  `--write` keeps the table in docs/measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.arrays import Floats
from simstrag.profile.power_caps import SHAPE, PowerCaps, PowerRow, law

GPUS = ("v100", "p100")
LEAST = 5
"""The fewest caps of a training that is used."""
PowerRows = list[PowerRow]


def read(folder: Path, gpu: str) -> list[PowerRows]:
    """The trainings on one GPU, each with its rows in the order of caps."""
    table = pd.read_csv(folder / f"summary_power_{gpu}.csv")
    keys = ["dataset", "network", "batch_size", "optimizer"]
    columns = ["power_limit", "time_per_epoch", "average_power"]
    groups = (group.sort_values("power_limit")[columns] for _, group in table.groupby(keys))
    rows = ([PowerRow(*row) for row in group.itertuples(index=False)] for group in groups)
    return [training for training in rows if len(training) >= LEAST]


def misfit(shape: Floats, trainings: list[PowerRows]) -> float:
    """Mean square of the logarithms of all rows over the law."""
    total, count = 0.0, 0
    for training in trainings:
        caps, seconds, watts = np.array(training).T
        demands = np.linspace(0.5 * watts.max(), 1.5 * watts.max(), 200)[:, None]
        slower, drawn = law(caps, demands, tuple(shape))
        time = np.log(seconds / slower)
        errors = np.var(time, axis=1) * len(caps) + np.sum(np.log(watts / drawn) ** 2, axis=1)
        total, count = total + float(errors.min()), count + 2 * len(caps)
    return total / count


def regrets(trainings: list[PowerRows], shape: tuple[float, ...] | None) -> Floats:
    """Energy regrets; shape: None for the best of the three rows alone."""
    found = []
    for training in trainings:
        energy = {row.cap: row.seconds * row.watts for row in training}
        rows = [training[0], training[len(training) // 2], training[-1]]
        if shape is None:
            cap = min((row.cap for row in rows), key=energy.__getitem__)
        else:
            cap = PowerCaps(rows, shape).most_frugal([*energy])
        found.append(energy[cap] / min(energy.values()) - 1)
    return np.array(found)


def main() -> None:
    """Fit the shape to each GPU, and judge it on both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    add_write(parser, "power-caps")
    options = parser.parse_args()
    trainings = {gpu: read(options.folder, gpu) for gpu in GPUS}
    rows = []
    for source in GPUS:
        fit = minimize(misfit, SHAPE, (trainings[source],), "Nelder-Mead", options={"maxiter": 80})
        a, g, k = fit.x
        print(f"{source}: A {a:.3f}, G {g:.3f}, K {k:.3f}, error {np.sqrt(fit.fun):.1%}")
        for gpu in GPUS:
            for how, shape in (("law and rows", tuple(fit.x)), ("best of three rows", None)):
                r = regrets(trainings[gpu], shape)
                share = f"{np.mean(r <= 0.05):.0%}"
                rows.append((source.upper(), gpu.upper(), str(len(r)), how, f"{r.mean():.2%}",
                             f"{r.max():.1%}", share))  # fmt: skip
    header = (
        "shape fitted to", "caps chosen for", "trainings", "by", "mean regret", "worst",
        "at most 5 %",
    )  # fmt: skip
    found = Table("Energy regret of a power cap", header, rows)
    show([found])
    if options.write:
        keep_tables("power-caps", [found], describe_machine())


if __name__ == "__main__":
    main()
