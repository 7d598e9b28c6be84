"""What real training at virtual time costs, and what it says: docs/measured/learning-*.txt.

python -m benchmarks.learning speed        # gradients per second, memory
python -m benchmarks.learning six          # six policies x ten seeds to 95 % on digits
python -m benchmarks.learning momentum     # the best momentum of asgd by workers
python -m benchmarks.learning formula      # the noise-scale formula against training
python -m benchmarks.learning claims       # what papers say about accuracy
python -m benchmarks.learning precision    # accuracy in reduced precision

`--write` replaces them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.learning_claims import claims, precision
from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag import Scenario, compare, simulate
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate_into
from simstrag.errors import InputError
from simstrag.experiments.learner_fit import fit_learner
from simstrag.experiments.paired_statistics import Estimate
from simstrag.learning import tasks
from simstrag.learning.batches import Batches, iid_shards
from simstrag.learning.gradient_log import GradientLog
from simstrag.learning.gradient_replay import GradientReplay
from simstrag.learning.gradients import GradientEngine
from simstrag.learning.optimizers import OptimizerChoice

Keys = dict[str, Any]
JOB: Keys = {
    "workers": 8, "step": {"compute": 0.1, "amp_ratio": 1.5, "cv": 0.1},
    "allreduce": {"alpha": 1e-4, "bandwidth": 1e9, "bytes": 4e6}, "server": {"service": 1e-3},
    "trace": [{"time": 0, "node": 3, "resource": "gpu", "kind": "slowdown", "value": 2.0}],
}  # fmt: skip
"""Eight workers, one of which takes twice as long; all of it is assumed."""
ONE_BY_ONE = "one by one"

# -- speed ---------------------------------------------------------------------------------------


def speed() -> list[Table]:
    """Gradients computed and applied per second of processor, together and one at a time."""
    rows = []
    context = get_context("spawn")
    for name, batch, policy in itertools.product(("digits", "mixture"), (20, 32), ("bsp", "asgd")):
        if name == "digits" and batch == 32:  # 64 shards have 22 samples
            continue
        case = (name, batch, policy)
        rates: dict[str | None, float] = {}
        for way in (None, ONE_BY_ONE) * 3:
            rates[way] = max(rates.get(way, 0.0), _rate(case, way, time.process_time))
        with ProcessPoolExecutor(2, context) as pool:
            both = sum(pool.map(_rate_of_core, [case] * 2))
        together, alone = rates[None], rates[ONE_BY_ONE]
        rows.append((
            name, f"{batch}", policy, f"{both:,.0f}", f"{together:,.0f}", f"{alone:,.0f}",
            f"{together / alone:.1f}",
        ))  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    task = tasks.load("mixture")
    drawn = Batches(iid_shards(len(task.inputs), 512, 0), 16, 0)
    engine = GradientEngine(task)
    GradientReplay(_log(512, 16, 20, "asgd"), engine, drawn, OptimizerChoice()).run(1e9)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"512 workers, asgd, {engine.initial.numel():,} parameters: {after / 1024:.0f} MB, ")
    print(f"{(after - before) / 1024:.0f} MB of them since the runs above")
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        print(f"{fresh.submit(_bytes_of_gradient).result():.0f} bytes a gradient of a long run")
    header = ("task", "batch", "policy", "two cores", "one core", "one at a time", "ratio")
    return [Table("Gradients per second", header, rows)]


def _rate(case: tuple[str, int, str], way: str | None, clock: Callable[[], float]) -> float:
    """Gradients per second of a clock."""
    name, batch, policy = case
    log, task = _log(64, batch, 100, policy), tasks.load(name)
    drawn = Batches(iid_shards(len(task.inputs), 64, 0), batch, 0)
    engine = GradientEngine(task, way=way)
    if way == ONE_BY_ONE and policy == "bsp":
        found, seconds = _alone(engine, log, drawn)
    else:
        replay = GradientReplay(log, engine, drawn, OptimizerChoice("sgd", 0.1, 0.9))
        begun = clock()
        found, seconds = replay.run(1e9).gradients, clock() - begun
    return found / seconds


def _rate_of_core(case: tuple[str, int, str]) -> float:
    """Gradients per second by the wall clock; a first run brings the processor to its speed."""
    return [_rate(case, None, time.perf_counter) for _ in range(6)][-1]


def _bytes_of_gradient(count: int = 4_000_000) -> float:
    """Peak memory of the log of a run and of what a replay makes of it, over its gradients."""
    task = tasks.load("tabular")
    drawn, engine = Batches(iid_shards(len(task.inputs), 4, 0), 1, 0), GradientEngine(task)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    GradientReplay(_log(4, 1, count // 4, "asgd"), engine, drawn, OptimizerChoice())
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) * 1024 / count


@functools.cache
def _log(workers: int, batch: int, rounds: int, policy: str) -> GradientLog:
    log = GradientLog()
    scenario = Scenario(
        workers=workers, samples=workers * batch * rounds, step={"compute": 0.1, "cv": 0.1},
        server={"service": 1e-5}, learner={"batch": batch},
    )  # fmt: skip
    simulate_into(Recorder(keep_gradients=True, storage=log), scenario, policy, 0)
    return log


def _alone(engine: GradientEngine, log: GradientLog, drawn: Batches) -> tuple[int, float]:
    """How many gradients of bsp were computed one at a time, and the seconds that took."""
    import torch

    columns, count = log.gradients, 2000
    begun = time.process_time()
    for rank, step, size in zip(columns["rank"], columns["step"], columns["samples"], strict=True):
        samples = torch.from_numpy(drawn.of([rank], [step], [size]))
        engine.one(engine.initial, samples, torch.full((int(size),), 1 / int(size)), amp=False)
        count -= 1
        if not count:
            break
    return 2000 - count, time.process_time() - begun


# -- six policies --------------------------------------------------------------------------------


def six() -> list[Table]:
    """Wall clock of a comparison of six policies over ten seeds to 95 % of digits."""
    learner = {
        "kind": "real", "task": "digits", "batch": 32,
        "optimizer": {"lr": 0.2, "momentum": 0.5},
    }  # fmt: skip
    names = ["bsp", "asgd", "ssp:bound=3", "backup", "korel", "cgp"]
    case = Scenario(**JOB, samples=400_000, target_accuracy=0.95, learner=learner, seeds=10)
    begun = time.monotonic()
    comparison = compare(case, names)
    print(comparison)
    print(f"{time.monotonic() - begun:.0f} s for {len(comparison.runs)} runs and the controls")
    return []


# -- momentum ------------------------------------------------------------------------------------

MOMENTA = (0.0, 0.3, 0.5, 0.7, 0.9)


def momentum() -> list[Table]:
    """Samples that asgd needs to 90 % of digits, by momentum and workers."""
    rows = []
    for workers in (1, 2, 4, 8):
        job = {**JOB, "workers": workers, "trace": None}
        means = {}
        for mu in MOMENTA:
            learner = _learner("digits", 32, {"lr": 0.1, "momentum": mu})
            found = _to_target(job, learner, "asgd", 0.90, 200_000, range(5))
            means[mu] = float(np.mean(found))
        best = min(means, key=lambda mu: means[mu])
        rows.append((f"{workers}", *(_count(means[mu]) for mu in MOMENTA), f"{best:g}"))
    header = ("workers", *(f"momentum {mu:g}" for mu in MOMENTA), "best")
    return [Table("Samples to 90 %", header, rows)]


# -- the formula ---------------------------------------------------------------------------------

TASKS = {"digits": 0.93, "teacher": 0.9, "tabular": 0.9}
"""Target of each task."""
OPTIMIZERS: dict[str, tuple[Keys, ...]] = {
    "sgd": tuple({"lr": lr} for lr in (0.1, 0.2, 0.4, 0.8)),
    "momentum 0.9": tuple({"lr": lr, "momentum": 0.9} for lr in (0.02, 0.05, 0.1, 0.2)),
    "adam": tuple({"kind": "adam", "lr": lr} for lr in (1e-3, 2e-3, 5e-3, 1e-2)),
}
NOMINAL = 16
POLICIES = ("bsp", "asgd", "ssp:bound=2", "k_async:x=4", "backup", "cgp")
BUDGET = 400_000
SEEDS = 3


def formula() -> list[Table]:
    """What staleness costs each task and optimizer, and how well the formula ranks policies."""
    rows = []
    for name, target in TASKS.items():
        for label, choices in OPTIMIZERS.items():
            rates = {
                k: np.mean(_to_target(JOB, _learner(name, NOMINAL, each), "bsp", target, BUDGET,
                                      range(2)))
                for k, each in enumerate(choices)
            }  # fmt: skip
            optimizer = choices[min(rates, key=lambda k: rates[k])]
            rows.append((name, label, f"{optimizer['lr']:g}", *_fit(name, optimizer, target)))
            print(*rows[-1], flush=True)
    headers = (
        "task", "optimizer", "lr", "B_noise", "c_tau", "error, median", "error, worst",
        "pairs in order", "missed the target",
    )  # fmt: skip
    return [Table("The formula", headers, rows)]


def _fit(name: str, optimizer: Keys, target: float) -> tuple[str, ...]:
    """B_noise from bsp at four batches, c_tau from asgd, and the times of the other policies."""
    case = Scenario(
        **JOB, samples=BUDGET, target_accuracy=target, policies=POLICIES, seeds=SEEDS,
        learner=_learner(name, NOMINAL, optimizer),
    )  # fmt: skip
    try:
        fit = fit_learner(case, jobs=2)
    except InputError:  # bsp misses the target
        return ("-", "-", "-", "-", "-", "bsp")
    noise_scale, missed = _interval(fit.noise_scale, ".0f"), ", ".join(fit.missed) or "none"
    if fit.c_tau is None:
        return (noise_scale, "-", "-", "-", "-", missed)
    pairs = list(itertools.combinations(fit.times.values(), 2))
    ordered = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    errors = [abs(error) for error in fit.errors.values()]
    return (
        noise_scale, _interval(fit.c_tau, ".2f"), f"{100 * np.median(errors):.0f} %",
        f"{100 * max(errors):.0f} %", f"{ordered} of {len(pairs)}", missed,
    )  # fmt: skip


def _interval(found: Estimate, form: str) -> str:
    value, low, high = (format(each, form) for each in found)
    return f"{value} ({low} to {high})"


# -- runs ----------------------------------------------------------------------------------------


def _learner(task: str, batch: int, optimizer: Keys) -> Keys:
    every = 0.2 * batch / NOMINAL
    return {
        "kind": "real", "task": task, "batch": batch, "optimizer": optimizer,
        "evaluate_every": every,
    }  # fmt: skip


def _to_target(*given: Any) -> list[float]:
    """Samples to the target under each seed; infinite where it was missed."""
    return [samples for samples, _ in _runs(*given)]


def _runs(
    job: Keys, learner: Keys, policy: str, target: float, budget: int, seeds: Sequence[int]
) -> list[tuple[float, float]]:
    calls = [(job, learner, policy, target, budget, seed) for seed in seeds]
    return list(_pool().map(_run, calls))


@functools.cache
def _pool() -> ProcessPoolExecutor:
    # A forked child of a process with torch may hang.
    return ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))


def _run(call: tuple[Keys, Keys, str, float, int, int]) -> tuple[float, float]:
    job, learner, policy, target, budget, seed = call
    case = Scenario(**job, samples=budget, target_accuracy=target, learner=learner)
    summary = simulate(case, policy, seed, record_updates=False).summary
    if summary["time_to_target"] is None:
        return math.inf, math.inf
    return summary["samples"], summary["time_to_target"]


def _count(samples: float) -> str:
    return f"{samples:,.0f}" if math.isfinite(samples) else "missed"


def main() -> None:
    """Print the tables that the command line names."""
    parts: dict[str, Callable[[], list[Table]]] = {
        "speed": speed, "six": six, "momentum": momentum, "formula": formula,
        "claims": claims, "precision": precision,
    }  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning")
    parser.add_argument("what", nargs="+", choices=parts)
    add_write(parser)
    given = parser.parse_args()
    for name in given.what:
        tables = parts[name]()
        show(tables)
        if given.write and tables:
            keep_tables(f"learning-{name}", tables, describe_machine())


if __name__ == "__main__":
    main()
