"""Laws of shared devices and processors against public measurements, with held-out errors.

    python -m benchmarks.cluster_laws [--traces ../shared/traces] [--write]

Makes docs/measured/cluster-laws.txt.  Held out are pairs with a batch size that the fit has
not seen, the pairs that ten seeds do not draw, another type of GPU, and all numbers of processors
but those that are named.

Gavel: stanford-futuredata/gavel @c4fa400, MIT.  Synergy: msr-fiddle/synergy @1bb2bed, MIT.
"""

from __future__ import annotations

import argparse
import csv
import json
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize, nnls

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.arrays import Floats
from simstrag.cluster.colocation import ColocationLaw, fit, typical

Pairs = dict[tuple[str, str], float]
"""Speed of a workload beside another on one device, over its speed alone."""
LawCurve = dict[int, float]
"""Relative throughput by processors of a device."""
TRACES = Path(__file__).parents[1].parent / "shared" / "traces"
GPUS = ("k80", "p100", "v100")
TRANSFERS = (("k80", "p100"), ("k80", "v100"), ("p100", "v100"))
SHARES, SEEDS = (0.1, 0.2, 0.4), 10
"""Shares of the pairs that a fit is given, and how often it is drawn."""
LEVELS = ((1, 3), (1, 24), (3, 24))
"""Numbers of processors that a fit is given."""


def read_pairs(traces: Path) -> dict[str, Pairs]:
    """Gavel's pairs on one device, both measured, by type of device.

    A speed of 0 says that the pair did not fit.
    """
    file = traces / "gavel-colocation" / "physical_cluster_throughputs.json"
    speeds = json.loads(file.read_text())
    return {gpu: dict(_relative_speeds(speeds[gpu])) for gpu in GPUS}


def _relative_speeds(speeds: dict[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    rows = {literal_eval(job): row for job, row in speeds.items()}
    for (workload, devices), row in rows.items():
        for job, both in row.items():
            if devices == 1 and job != "null" and min(both) > 0:
                yield (workload, literal_eval(job)[0]), both[0] / row["null"]


def read_curves(traces: Path) -> dict[str, LawCurve]:
    """Synergy's curves of one device that differ and are not flat.

    Those of 2 and 4 devices are their beginnings; a throughput of 0 says that it is not possible.
    """
    found: dict[str, LawCurve] = {}
    with (traces / "synergy-host-share" / "throughput.csv").open() as file:
        for row in csv.DictReader(file):
            if row["gpus"] == "1" and row["memory_gb_per_gpu"] in ("62.5", "125"):
                name = f"{row['model']}, {float(row['memory_gb_per_gpu']):g} GB"
                found.setdefault(name, {})[int(row["cpus_per_gpu"])] = float(
                    row["relative_throughput"]
                )
    distinct: dict[tuple[float, ...], str] = {}
    for name, curve in found.items():
        if len({*curve.values()}) > 1:
            distinct.setdefault(tuple(curve.values()), name)
    return {name: found[name] for name in distinct.values()}


# Two workloads on one device


def model(workload: str) -> str:
    """The model of a workload, without its batch size.

    >>> model("ResNet-18 (batch size 16)")
    'ResNet-18'
    """
    return workload.partition(" (")[0]


def fitted_law(pairs: Pairs, name: Callable[[str], str] = str) -> ColocationLaw:
    """Responses by workload, or by what `name` makes of it."""
    rows = [(name(own), name(other), speed) for (own, other), speed in pairs.items()]
    return ColocationLaw("fitted", typical=typical(rows), workloads=fit(rows))


def law_error(law: ColocationLaw, pairs: Pairs, name: Callable[[str], str] = str) -> Floats:
    """Absolute errors of relative speeds of always busy workloads."""
    products = [
        law.response(name(own)).sensitivity * law.response(name(other)).pressure
        for own, other in pairs
    ]
    return np.abs(1 / (1 + np.array(products)) - list(pairs.values()))


def transfer(source: Pairs, target: Pairs) -> dict[str, float]:
    """Errors on a type of GPU of what was measured on another, in pairs that both ran."""
    both = {pair: speed for pair, speed in target.items() if pair in source}
    speeds = np.array([*both.values()])
    laws = ((fitted_law(source, name), name) for name in (model, str))
    by_model, by_workload = (float(law_error(law, both, name).mean()) for law, name in laws)
    return {
        "constant": _error(np.mean([*source.values()]), speeds),
        "copied from the other GPU": _error(np.array([source[pair] for pair in both]), speeds),
        "law, by model": by_model,
        "law, by workload": by_workload,
    }


def own_device(pairs: Pairs) -> dict[str, float]:
    """Errors on the type of GPU that was measured."""
    speeds = np.array([*pairs.values()])
    return {
        "constant": _error(speeds.mean(), speeds),
        "always busy, time slicing": _error(0.5, speeds),
        **{name: one_share_error(law, pairs) for name, law in ONE_SHARE.items()},
        "law, by model": float(law_error(fitted_law(pairs, model), pairs, model).mean()),
        "law, by workload": float(law_error(fitted_law(pairs), pairs).mean()),
        "law, by model, unseen batch size": unseen_batch_error(pairs),
        **{f"law, by workload, {1 - s:.0%} unseen": unseen_pairs_error(pairs, s) for s in SHARES},
    }


def _error(predicted: Any, measured: Floats) -> float:
    return float(np.abs(predicted - measured).mean())


ONE_SHARE: dict[str, Callable[[Floats, Floats], Floats]] = {
    "time slicing, fitted busy shares": lambda own, other: 1 / np.maximum(own + other, 1),
    "max-min, fitted busy shares": lambda own, other: np.minimum(
        np.maximum(0.5, 1 - other) / own, 1
    ),
    "hinge, fitted busy shares": lambda own, other: 0.985 - 0.37 * np.maximum(own + other - 1, 0),
}
"""Relative speed by the busy share of a workload and of the one beside it."""


def one_share_error(law: Callable[[Floats, Floats], Floats], pairs: Pairs) -> float:
    """The error of a law with one number of each workload, a busy share, fitted to all pairs."""
    names = sorted({own for own, _ in pairs})
    own = np.array([names.index(pair[0]) for pair in pairs])
    other = np.array([names.index(pair[1]) for pair in pairs])
    speeds = np.array([*pairs.values()])
    found = least_squares(
        lambda shares: law(shares[own], shares[other]) - speeds,
        np.full(len(names), 0.7), bounds=(0.01, 1),
    )  # fmt: skip
    return float(np.abs(found.fun).mean())


def unseen_batch_error(pairs: Pairs) -> float:
    """The error in pairs with a batch size that the fit of its model has not seen."""
    names = sorted({own for own, _ in pairs})
    models = [model(name) for name in names]
    errors: list[float] = []
    for name in names:
        if models.count(model(name)) > 1:
            seen = {pair: speed for pair, speed in pairs.items() if name not in pair}
            unseen = {pair: speed for pair, speed in pairs.items() if name in pair}
            errors += law_error(fitted_law(seen, model), unseen, model).tolist()
    return float(np.mean(errors))


def unseen_pairs_error(pairs: Pairs, share: float) -> float:
    """The mean error in the pairs that are not drawn, of the law of those that are."""
    unordered = sorted({tuple(sorted(pair)) for pair in pairs})
    errors = []
    for seed in range(SEEDS):
        drawn = np.random.default_rng(seed).permutation(len(unordered))
        few = {unordered[k] for k in drawn[: round(share * len(unordered))]}
        seen = {pair: speed for pair, speed in pairs.items() if tuple(sorted(pair)) in few}
        unseen = {pair: speed for pair, speed in pairs.items() if pair not in seen}
        errors.append(law_error(fitted_law(seen), unseen).mean())
    return float(np.mean(errors))


# Processors of a device


def sum_form(curve: LawCurve, levels: Sequence[int]) -> tuple[float, float]:
    """Host and device part, at least 0, of steps of host / processors + device (rule 2)."""
    speeds = np.array([curve[level] for level in levels])
    columns = np.stack([speeds / levels, speeds], axis=1)
    (host, device), _ = nnls(columns, np.ones(len(levels)))
    return float(host), float(device)


def max_form(curve: LawCurve, levels: Sequence[int]) -> tuple[float, float]:
    """Host and device part of steps of max(host / processors, device), as of a pipeline.

    Two levels: the first one waits for the host; so does the second if it gains in proportion, and
    then the device part is not known and counts as 0.
    """
    few, many = levels
    if curve[many] / curve[few] >= 0.9 * many / few:
        return 0.5 * (few / curve[few] + many / curve[many]), 0.0
    return few / curve[few], 1 / curve[many]


def throughputs(form: str, parts: Sequence[float] | Floats, levels: Iterable[int]) -> Floats:
    host, device = parts
    waits = host / np.array([*levels])
    return 1 / (waits + device if form == "sum" else np.maximum(waits, device))


def held_out(curve: LawCurve, form: str, levels: Sequence[int]) -> tuple[Floats, Floats]:
    """Predicted and measured throughputs at the levels that the fit has not seen."""
    rest = [level for level in curve if level not in levels]
    parts = (sum_form if form == "sum" else max_form)(curve, levels)
    return throughputs(form, parts, rest), np.array([curve[level] for level in rest])


def curve_error(curve: LawCurve, form: str, levels: Sequence[int]) -> float:
    predicted, measured = held_out(curve, form, levels)
    return _error(predicted, measured)


def fitted_error(curve: LawCurve, form: str) -> float:
    """The least error that a form has on a whole curve: nothing is held out."""
    measured = np.array([*curve.values()])
    start = max_form(curve, (min(curve), max(curve)))
    starts = (start, (start[0] - start[1], start[1]))
    return min(
        float(minimize(
            lambda parts: _error(throughputs(form, np.abs(parts), curve), measured), each,
            method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 2000},
        ).fun)
        for each in starts
    )  # fmt: skip


def easy_error(curve: LawCurve, levels: Sequence[int]) -> float:
    """The error of min(cap, processors / 3) at the same levels."""
    rest = [level for level in curve if level not in levels]
    cap = max(curve.values())
    return float(np.mean([abs(min(cap, level / 3) - curve[level]) for level in rest]))


def unhidden(curve: LawCurve) -> Floats:
    """Predicted over measured throughput where rule 2 is given the whole work of a pipeline.

    The host part is what one processor takes alone, the device part what the device takes alone.
    """
    parts = max_form(curve, (min(curve), max(curve)))
    return throughputs("sum", parts, curve) / np.array([*curve.values()])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES)
    add_write(parser, "cluster-laws")
    options = parser.parse_args()
    pairs, curves = read_pairs(options.traces), read_curves(options.traces)
    moved = {f"{a.upper()} to {b.upper()}": transfer(pairs[a], pairs[b]) for a, b in TRANSFERS}
    found = [
        table("Errors in pairs of one GPU", {gpu.upper(): own_device(pairs[gpu]) for gpu in GPUS}),
        table("Errors in pairs of another GPU", moved),
        table("Errors of both forms of a step with fewer processors", curve_table(curves)),
    ]
    show(found)
    if options.write:
        keep_tables("cluster-laws", found, describe_machine())
    for name, curve in curves.items():
        print(f"{name}: rule 2 with the whole work over measured", *unhidden(curve).round(2))


def curve_table(curves: dict[str, LawCurve]) -> dict[str, dict[str, float]]:
    """Errors of both forms, a column for each choice of levels, and of the easy baseline."""
    columns = {
        f"{form}, {few} and {many}": {
            name: curve_error(curve, form, (few, many)) for name, curve in curves.items()
        }
        for few, many in LEVELS
        for form in ("sum", "max")
    }
    for form in ("sum", "max"):
        columns[f"{form}, all"] = {name: fitted_error(c, form) for name, c in curves.items()}
    easy = {name: easy_error(curve, LEVELS[-1]) for name, curve in curves.items()}
    columns["min(cap, c/3)"] = easy
    for column in columns.values():
        column["mean"] = float(np.mean([*column.values()]))
    return columns


def table(title: str, columns: dict[str, dict[str, float]]) -> Table:
    rows = [
        (name, *(f"{column[name]:.3f}" for column in columns.values()))
        for name in next(iter(columns.values()))
    ]
    return Table(title, ("error", *columns), rows)


if __name__ == "__main__":
    main()
