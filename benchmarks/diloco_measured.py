"""Utilisation of DDP, LocalSGD and DiLoCo by H and bandwidth, from seven measured runs.

    python -m benchmarks.diloco_measured FOLDER
    python -m benchmarks.diloco_measured FOLDER --cell ALGORITHM H BITS_PER_SECOND
    python -m benchmarks.diloco_measured FOLDER --cells CELLS.csv

FOLDER holds `runs.csv`, `steps.csv` and `nccl_allreduce_unshaped.csv` of diloco-measured
(Adnan082/diloco-measured @07b7885, Apache-2.0), which are not part of the project.  The first form
predicts each run from all of them, and from the others alone.  The second predicts one cell, the
third those of a file with the columns algorithm, H and bandwidth_requested_bps; it uses further
columns of `runs.csv` where they are there: bandwidth_measured_bps, repeat, steps, warmup_steps, and
utilisation to compare with.  A link of 9 Gbit/s or more is not shaped, nor is an empty one.

Utilisation is computing over all time, of rank 0.  The data's is that of the steps after warm-up, a
window that need not hold whole rounds; unless stated, the window is that of the run with the
nearest H.  A long run has the utilisation of one round.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.tables import Table, show
from simstrag import InputError, Scenario, simulate

RANKS, BYTES = 4, 4 * 30_846_720
"""Ranks, and bytes of the parameters in fp32."""
HOPS = 2 * (RANKS - 1)
FAST, UNSHAPED = 0.9e9, 9e9
"""Bits per second from which an all-reduce takes the formula and a constant, and from which the
link is not shaped."""
REPEATED = 1.03
"""How much longer steps of first repeats take, as the notes on the data say."""
COLUMNS = ("algorithm", "H", "bandwidth_requested_bps")
"""What a file of cells must have."""
POLICIES = {"ddp": "bsp", "localsgd": "local_sgd:h={}", "diloco": "diloco:h={}"}


class Cell(NamedTuple):
    """A cell of the grid.

    bandwidth: bits per second of the link; infinite where it is not shaped.
    repeated: whether the run is not the first of its cell.
    window: the number of steps, and how many of them are warm-up.
    """

    algorithm: str
    h: int
    bandwidth: float
    repeated: bool
    window: tuple[int, int]


class Utilisation(NamedTuple):
    """Computing over all time: in the window, NaN where it holds no all-reduce; and of a round."""

    window: float
    round: float


@dataclass(frozen=True)
class Constants:
    """What the runs say; seconds and bits per second.

    compute, rest: of a step: computing, and what is neither that nor an all-reduce; by algorithm.
    connect: by which the first all-reduce of LocalSGD and DiLoCo takes longer.
    latency: by which the others exceed the ring's formula on a fast link.
    factors: by which the formula is multiplied, by bandwidth.
    hidden: seconds of DDP's all-reduce that backward hides.
    link: rate of a link that is not shaped.
    measured: rate of a shaped link over that requested.
    windows: number of steps and of those of warm-up, by H.
    """

    compute: Mapping[str, float]
    rest: Mapping[str, float]
    connect: float
    latency: float
    factors: Mapping[float, float]
    hidden: float
    link: float
    measured: float
    windows: Mapping[int, tuple[int, int]]

    def rate(self, bandwidth: float) -> float:
        """Bits per second by which the formula of an all-reduce gives its time.

        The factor is linear in the logarithm of the bandwidth, and below the slowest measured link
        it goes on as between the slowest two.
        """
        if bandwidth >= UNSHAPED:
            return self.link
        known = sorted(self.factors)
        x, y = np.log(known), [self.factors[each] for each in known]
        at = math.log(bandwidth)
        below = (y[1] - y[0]) / (x[1] - x[0]) * min(at - x[0], 0)
        return bandwidth / float(np.interp(at, x, y) + below)

    def computing(self, cell: Cell) -> float:
        """Seconds of computing in a step."""
        return self.compute[cell.algorithm] / (REPEATED if cell.repeated else 1)

    def scenario(self, cell: Cell, steps: int) -> Scenario:
        """A run of at least so many steps and three rounds."""
        step = self.computing(cell) + self.rest[cell.algorithm]
        rate = self.rate(cell.bandwidth) / 8
        link: dict[str, Any] = {"bytes": BYTES, "bandwidth": rate}
        trace = None
        if cell.algorithm == "ddp":
            share = min(self.hidden * rate / (2 * BYTES), 1.0)
            link |= {"algorithm": "tree", "overlap": max(share, 0.0)}
        else:
            link["alpha"] = self.latency / HOPS
            late = ((0.0, self.connect / HOPS), ((cell.h + 0.5) * step, 0.0))
            trace = [
                {"time": time, "node": node, "resource": "net", "kind": "delay", "value": delay}
                for node in range(RANKS) for time, delay in late
            ]  # fmt: skip
        return Scenario(
            workers=RANKS, updates=max(steps // cell.h + 1, 3), step={"compute": step},
            allreduce=link, trace=trace,
        )  # fmt: skip

    def predict(self, cell: Cell) -> Utilisation:
        """Simulate a cell."""
        steps, warmup = cell.window
        scenario = self.scenario(cell, steps)
        found = simulate(
            scenario, POLICIES[cell.algorithm].format(cell.h), record_updates=False,
            record_steps=True,
        ).steps  # fmt: skip
        starts = np.array(found["start"])[np.array(found["rank"]) == 0]

        def share(first: int, last: int) -> float:
            return float((last - first) * self.computing(cell) / (starts[last] - starts[first]))

        has_one = steps // cell.h > warmup // cell.h
        return Utilisation(share(warmup, steps) if has_one else math.nan, share(cell.h, 2 * cell.h))


def ring_seconds(bandwidth: Any) -> Any:
    """The formula of a ring all-reduce of the parameters without latency."""
    return 2 * (RANKS - 1) / RANKS * 8 * BYTES / bandwidth


def fit(runs: pd.DataFrame, syncs: Mapping[str, pd.Series], link: float) -> Constants:
    """The constants of some runs.

    syncs: seconds of the all-reduces of each run, in their order.
    An algorithm without a run has the mean of the others; without DDP nothing is hidden.
    """
    n = runs["steps"] - runs["warmup_steps"]
    measured = float((runs["bandwidth_measured_bps"] / runs["bandwidth_requested_bps"]).median())
    own = runs.assign(
        compute=runs["compute_s"] / n,
        rest=(runs["total_s"] - runs["compute_s"] - runs["sync_blocked_s"]) / n,
        blocked=runs["sync_blocked_s"] / n,
        first=[syncs[run].iloc[0] for run in runs["run_id"]],
        later=[syncs[run].iloc[1:].mean() for run in runs["run_id"]],
        shaped=runs["bandwidth_measured_bps"].fillna(measured * runs["bandwidth_requested_bps"]),
    )
    ddp, outer = own[own["algorithm"] == "ddp"], own[own["algorithm"] != "ddp"].copy()
    connect = float((outer["first"] - outer["later"]).median())
    outer["formula"] = ring_seconds(outer["shaped"])
    outer["later"] = outer["later"].fillna(outer["first"] - connect)
    fast = outer[outer["shaped"] >= FAST]
    latency = float((fast["later"] - fast["formula"]).median())
    outer["factor"] = (outer["later"] - latency) / outer["formula"]
    by_link = outer.groupby("bandwidth_requested_bps")["factor"].mean()
    seconds = {
        name: {a: float(own.loc[own["algorithm"] == a, name].mean()) for a in POLICIES}
        for name in ("compute", "rest")
    }
    for name, each in seconds.items():
        for algorithm, value in each.items():
            each[algorithm] = float(own[name].mean()) if math.isnan(value) else value
    found = Constants(
        seconds["compute"], seconds["rest"], connect, latency,
        {measured * float(rate): float(factor) for rate, factor in by_link.items()}, 0.0, link,
        measured, {row.H: (row.steps, row.warmup_steps) for row in own.itertuples()},
    )  # fmt: skip
    if ddp.empty:
        return found
    whole = [16 * BYTES / found.rate(bandwidth) for bandwidth in ddp["shaped"]]
    return replace(found, hidden=float(np.mean(whole - ddp["blocked"])))


class Runs(NamedTuple):
    """The measured runs, the seconds of their all-reduces, and the rate of the unshaped link."""

    runs: pd.DataFrame
    syncs: Mapping[str, pd.Series]
    link: float

    @classmethod
    def read(cls, folder: Path) -> Runs:
        """From the three files.

        The benchmark's rates are taken as those of the bus, which is assumed: as rates of the data
        they would be half as much again on the wire.
        """
        steps = pd.read_csv(folder / "steps.csv")
        blocked = steps.set_index("run_id")["sync_blocked_ms"] / 1e3
        blocked = blocked[blocked > 1e-3]
        nccl = pd.read_csv(folder / "nccl_allreduce_unshaped.csv")
        sizes = np.log(nccl["msg_bytes"])
        link = float(np.interp(math.log(BYTES), sizes, nccl["achieved_bps"]))
        syncs = {str(run): own for run, own in blocked.groupby(level=0)}
        return cls(pd.read_csv(folder / "runs.csv"), syncs, link)

    def constants(self, without: str = "") -> Constants:
        """Those of all runs but one."""
        return fit(self.runs[self.runs["run_id"] != without], self.syncs, self.link)


def cell_of(row: Mapping[str, Any], constants: Constants) -> Cell:
    """The cell that a row of a file names.

    Raises `InputError` for an unknown algorithm, an H below 1 and a bandwidth that is not above 0.
    """

    def number(name: str, otherwise: float) -> float:
        given = row.get(name)
        value = math.nan if given in (None, "") else float(given)
        return otherwise if math.isnan(value) else value

    algorithm = str(row["algorithm"])
    if algorithm not in POLICIES:
        raise InputError(f"there is no algorithm '{algorithm}'; known: {', '.join(POLICIES)}")
    steps_apart = 1.0 if algorithm == "ddp" else number("H", math.nan)
    if not (steps_apart >= 1 and steps_apart.is_integer()):
        raise InputError(f"H of {algorithm} is {row['H']}; want a whole number from 1 on")
    h = int(steps_apart)
    requested = number("bandwidth_requested_bps", math.inf)
    bandwidth = number("bandwidth_measured_bps", constants.measured * requested)
    if not (least := min(requested, bandwidth)) > 0:
        raise InputError(f"the bandwidth is {least:g} bit/s; want one above 0, or none")
    window = constants.windows[min(constants.windows, key=lambda known: abs(math.log(known / h)))]
    steps, warmup = (
        int(number(name, value))
        for name, value in zip(("steps", "warmup_steps"), window, strict=True)
    )
    return Cell(algorithm, h, bandwidth, number("repeat", 0) > 0, (steps, warmup))


def predict(cells: pd.DataFrame, constants: Constants) -> pd.DataFrame:
    """The cells with columns `window` and `round`, the utilisations predicted for them.

    Raises `InputError` for a column that is missing, and as `cell_of` does.
    """
    for name in COLUMNS:
        if name not in cells:
            raise InputError(f"the cells have no column {name}; they need {', '.join(COLUMNS)}")
    found = [constants.predict(cell_of(row, constants)) for row in cells.to_dict("records")]
    return cells.assign(window=[f.window for f in found], round=[f.round for f in found])


def leave_one_out(data: Runs) -> pd.DataFrame:
    """The runs, each predicted by the others."""
    parts = []
    for run in data.runs["run_id"]:
        own = data.runs[data.runs["run_id"] == run]
        parts.append(predict(own, data.constants(without=run)))
    return pd.concat(parts)


def table(title: str, cells: pd.DataFrame) -> Table:
    """The predictions as a table, with errors where the cells have a utilisation."""
    header = ("algorithm", "H", "Mbit/s", "window", "round", "published", "error")
    rows = []
    for row in cells.to_dict("records"):
        published = row.get("utilisation", math.nan)
        rate = row["bandwidth_requested_bps"] / 1e6
        error = row["window"] / published - 1
        rows.append((
            row["algorithm"], str(row["H"]), _shown(rate, "g"), _shown(row["window"], ".4f"),
            _shown(row["round"], ".4f"), _shown(published, ".4f"), _shown(error, "+.1%"),
        ))  # fmt: skip
    return Table(title, header, rows)


def _shown(value: float, shape: str) -> str:
    return "-" if math.isnan(value) else format(value, shape)


def summary(cells: pd.DataFrame) -> str:
    """Mean and largest error of the utilisations of the windows."""
    error = (cells["window"] / cells["utilisation"] - 1).abs()
    return f"{len(cells)} cells: error {error.mean():.1%} in the mean, {error.max():.1%} at worst"


def main() -> None:
    """Predict cells, or the runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cell", nargs=3, metavar=("ALGORITHM", "H", "BITS_PER_SECOND"))
    parser.add_argument("--cells", type=Path, metavar="CELLS.csv")
    options = parser.parse_args()
    try:
        data = Runs.read(options.folder)
        constants = data.constants()
        if options.cells is not None:
            found = {"Cells": predict(pd.read_csv(options.cells), constants)}
        elif options.cell is not None:
            types = {"H": int, "bandwidth_requested_bps": float}
            cell = pd.DataFrame([options.cell], columns=[*COLUMNS]).astype(types)
            found = {"Cell": predict(cell, constants)}
        else:
            print(constants)
            found = {
                "By all runs": predict(data.runs, constants),
                "Each run by the others": leave_one_out(data),
            }
    except (InputError, OSError, ValueError) as error:
        parser.error(str(error))
    for title, cells in found.items():
        show([table(title, cells)])
        if "utilisation" in cells:
            print(summary(cells))


if __name__ == "__main__":
    main()
