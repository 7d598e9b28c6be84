"""Draws the scenarios on which STAR-ML is trained, and others on which it is judged.

    python -m benchmarks.star_ml FOLDER
    python -m benchmarks.star_ml FOLDER runs

The folder `train` has 4, 8 or 16 ranks and traces of `simstrag trace generate`.  Held out are other
traces (`recorded-*` resample the shipped recorded trace, `on-off-*` have slowdowns without memory
and with a long tail), other numbers of ranks (6, 12, 24), and other step times, communication and
noise scales.  Each job is there for several costs of staleness, c_tau, which no policy sees: what
is learnt is the mean over them.  The held-out folders have one c_tau each, which ends their name.
All numbers are assumed.  With `runs`, whole runs of 200 rounds on the held-out ones are compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simstrag import traces
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace
from simstrag.traces.generate import generate, on_off
from simstrag.traces.resample import resample

RECORDED = Path(traces.__file__).parent / "recorded" / "intel-xeon-2-core-amx.csv"
SECONDS = 1200.0
TRAINED, HELD_OUT, RUNS = 96, 6, 3
TRAINED_C_TAUS, C_TAUS = (0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 4.0)
SEVERITIES = ("fixed:1.5", "fixed:2", "fixed:4", "uniform:1.2:3")


def job(random: np.random.Generator, ranks: int, steps: Any, moved: Any, noise: Any) -> Any:
    """The keys of a scenario without its trace and its c_tau.

    steps: seconds of a step are drawn from these.  moved: push and pull as a share of it.
    noise: bounds of the decimal logarithm of the noise scale over the samples of all ranks.
    """
    step, batch = float(random.choice(steps)), int(random.choice([32, 128]))
    each = float(random.choice(moved)) * step / 2
    return {
        "workers": ranks, "updates": 100,
        "step": {
            "compute": step, "host_share": float(random.choice([0.1, 0.3, 0.6])),
            "cv": float(random.choice([0.02, 0.05, 0.1])),
        },
        "server": {
            "push": each, "pull": each,
            "service": float(random.choice([0.0, 0.2, 0.6])) * step / ranks,
        },
        "learner": {
            "batch": batch,
            "noise_scale": float(round(ranks * batch * 10 ** random.uniform(*noise))),
        },
    }  # fmt: skip


def rows(trace: Trace) -> list[dict[str, Any]]:
    """A trace as the value of a scenario's key."""
    names = ("time", "node", "resource", "kind", "value")
    return [{name: getattr(row, name) for name in names} for row in trace.rows]


def training(k: int) -> dict[str, Any]:
    """A scenario to train on, without its c_tau."""
    random = np.random.default_rng(k)
    made = job(random, (4, 8, 16)[k % 3], (0.1, 0.3), (0.0, 0.1, 0.4), (-1.0, 1.5))
    trace = generate(
        made["workers"], SECONDS, k, str(random.choice(["gpu", "host", "net"])),
        float(random.choice([60, 240])), float(random.choice([20, 60])), 5.0, 10.0,
        SEVERITIES[int(random.integers(4))],
    )  # fmt: skip
    return made | {"trace": rows(trace), "seeds": 4}


def held_out(kind: str, k: int) -> dict[str, Any]:
    """A scenario to judge by, without its c_tau."""
    random = np.random.default_rng(1000 + k)
    ranks = (6, 12, 24)[k % 3]
    made = job(random, ranks, (0.06, 0.2, 0.5), (0.05, 0.25, 0.6), (-0.7, 1.2))
    if kind == "recorded":
        trace = resample(Trace.read(RECORDED), ranks, SECONDS, seed=k).trace
    else:
        resource = str(random.choice(["gpu", "step"]))
        trace = on_off(ranks, SECONDS, k, resource, 40.0, 80.0, "lognormal:1.6:0.8")
    return made | {"trace": rows(trace), "seeds": 12}


def compare(folder: Path) -> None:
    """Print the regret of whole runs: seconds per progress over the least of these policies."""
    lost: dict[str, list[float]] = {}
    for path in sorted(folder.glob("[or]*-*/*.yaml")):
        scenario = Scenario.read(path)
        n, samples = scenario.workers, 200 * scenario.workers * scenario.learner.batch
        scenario = scenario.replaced(
            samples=samples, updates=None, trace_end="loop", trace_per_seed="shift"
        )
        policies = {
            "star_ml": "star_ml", "star_h": "star_h", "all": "bsp:via=server",
            "x = 3N/4": f"k_async:x={round(0.75 * n)}", "x = N/4": f"k_async:x={round(n / 4)}",
            "x = 1": "asgd", "groups": "star_dynamic",
        }  # fmt: skip
        for seed in range(RUNS):
            ends = {name: simulate(scenario, spec, seed).summary for name, spec in policies.items()}
            costs = {name: end["makespan"] / end["progress"] for name, end in ends.items()}
            for name, cost in costs.items():
                lost.setdefault(name, []).append(cost / min(costs.values()) - 1)
    for name, values in lost.items():
        print(f"{name:9} mean {np.mean(values):6.1%}  worst {max(values):6.1%}  of {len(values)}")


def draw(folder: Path) -> None:
    """Write the scenarios."""
    cases = [("train", k, training(k), c_tau) for k in range(TRAINED) for c_tau in TRAINED_C_TAUS]
    for kind in ("recorded", "on-off"):
        for k in range(HELD_OUT):
            case = held_out(kind, k)
            cases += [(f"{kind}-{c_tau:g}", k, case, c_tau) for c_tau in C_TAUS]
    for where, k, case, c_tau in cases:
        path = folder / where / f"{k:02d}-{c_tau:g}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        full = case | {"learner": case["learner"] | {"c_tau": c_tau}}
        text = yaml.dump(full, Dumper=yaml.CSafeDumper, sort_keys=False)
        path.write_text(text, encoding="utf-8")
    print(f"{len(cases)} scenarios in {folder}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the scenarios")
    parser.add_argument("runs", nargs="?", choices=["runs"], help="compare whole runs on them")
    asked = parser.parse_args()
    (compare if asked.runs else draw)(asked.folder)


if __name__ == "__main__":
    main()
