"""The regret of the safe choice: how far it falls behind the best policy on moments not looked at.

    python -m benchmarks.regret [--public FOLDER] [--write]

Every trace gets the scenario that `simstrag init` writes for one job: 0.35 s a step, 25 million
parameters, a link of 25 Gbit/s, batch 32, up to 16 workers.  `compare` chooses under a few seeds;
the times by which the choice is judged are of other seeds: other moments of the trace, and other
noise.  FOLDER holds the public data sets that are named below, which are not part of the project:
ByteDance-Seed/StragglerAnalysis and ml-energy/zeus (Apache-2.0), alibaba/clusterdata and
Azure/AzurePublicDataset (CC-BY-4.0), hal-uw/blox-pal, msr-fiddle/synergy and
stanford-futuredata/gavel (MIT).
`--write` replaces the table of docs/measured/regret.txt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from benchmarks.results import report
from benchmarks.tables import Table
from simstrag import Scenario, Trace, compare
from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import OWN
from simstrag.traces.generate import generate
from simstrag.traces.importers import import_trace
from simstrag.traces.provenance import Labelled
from simstrag.whatif.first_scenario import JobDescription, write_first_scenario

JOB = JobDescription(step=0.35, parameters=25e6, link=25e9 / 8, batch=32)
WORKERS = 16
"""The most workers; further nodes of a trace are left out."""
SEEDS, HELD_OUT = tuple(range(5)), tuple(range(1000, 1010))
"""Seeds of the choice, and those by which it is judged."""
ROOT = Path(__file__).parents[1]
LOGS = ROOT / "examples" / "logs"
FOLDER = {"type": Path, "help": "folder of the public data sets"}
T = TypeVar("T")
ROLES = ("choice", "fastest", "bsp")
Source = Callable[[Path], Trace | Labelled]
"""Makes a trace of the folder of public data."""


class Outcome(NamedTuple):
    """What the choice was worth on one trace.

    delay: additional time of bsp by contention, as a share of its time without.
    fastest: the best mean under the seeds of the choice; best: under the others.
    gain: share of the time of bsp that the choice saves under the other seeds.
    regrets: policies by role, one of `ROLES`, to their regrets under the other seeds, in the
        scenario as it is and at worst over the costs of staleness.
    """

    name: str
    workers: int
    delay: float
    safe: str
    fastest: str
    best: str
    gain: float
    regrets: Mapping[str, tuple[float, float]]


# -- traces ---------------------------------------------------------------------------------------


def _static(factors: Any, resource: str = "step") -> Trace:
    """Nodes that are slow all the time."""
    pairs = enumerate(np.maximum(1, factors).tolist())
    return Trace.from_rows([(0.0, node, resource, "slowdown", f) for node, f in pairs])


def _one_of_eight(factor: float) -> Trace:
    return _static([*[1.0] * 7, factor])


def _gpus(file: str) -> Source:
    """Sixteen GPUs at even quantiles of a fleet's median iteration times, by the fleet's median."""

    def read(folder: Path) -> Trace:
        table = pd.read_csv(folder / "pal-gpu-variability" / file)
        times = table.groupby("uuid")["perf"].median()
        return _static(times.quantile(np.linspace(0, 1, WORKERS)) / times.median(), "gpu")

    return read


def _machines(file: str) -> Source:
    """Virtual machines, eight at most: the median score over each, which holds until the next."""

    def read(folder: Path) -> Trace:
        table = pd.read_csv(folder / "azure-vm-noise" / file)
        table["starttime"] = pd.to_datetime(table["starttime"])
        most = table["VM_id"].value_counts().sort_values(ascending=False, kind="stable")
        table = table[table["VM_id"].isin(most.index[:8])].sort_values("starttime", kind="stable")
        begin = table.groupby("VM_id")["starttime"].min().max()
        seconds = (table["starttime"] - begin).dt.total_seconds().clip(lower=0)
        factors = np.maximum(1, table["value"].median() / table["value"])
        nodes = table["VM_id"].rank(method="dense").astype(int) - 1
        rows = zip(seconds, nodes, factors, strict=True)
        return Trace.from_rows([(t, int(n), "step", "slowdown", f) for t, n, f in rows])

    return read


def _host_share(folder: Path) -> Trace:
    """One worker of eight with one CPU core for its GPU instead of three: ResNet-18."""
    table = pd.read_csv(folder / "synergy-host-share" / "throughput.csv")
    row = table.query("model == 'res18' and gpus == 1 and memory_gb_per_gpu == 62.5")
    share = row.set_index("cpus_per_gpu")["relative_throughput"]
    return _one_of_eight(share[3] / share[1])


def _shared_gpu(folder: Path) -> Trace:
    """One worker of eight on a GPU that another job shares, at the median of pairs that fit."""
    table = pd.read_csv(folder / "gavel-colocation" / "pairs.csv").query("gpus == 1")
    speeds = table[["relative_a", "relative_b"]].to_numpy().ravel()
    return _one_of_eight(1 / float(np.median(speeds[speeds > 0])))


def _power_cap(folder: Path) -> Trace:
    """One worker of eight capped at 100 W instead of 250 W: the median V100 of ResNet-50."""
    table = pd.read_csv(folder / "zeus-energy" / "summary_power_v100.csv")
    table = table[table["network"] == "resnet50"]
    keys = ["dataset", "batch_size", "optimizer"]
    by_cap = table.pivot_table(index=keys, columns="power_limit", values="time_per_epoch")
    return _one_of_eight(float((by_cap[100] / by_cap[250]).median()))


def _import(name: str, file: str, **options: Any) -> Source:
    return lambda folder: import_trace(name, [folder / file], **options)


SHIPPED: dict[str, Source] = {
    "recorded: 2-core Xeon, the demo's trace": lambda _: Trace.read(
        ROOT / "simstrag" / "traces" / "recorded" / "intel-xeon-2-core-amx.csv"
    ),
    "generated: 8 nodes": lambda _: generate(nodes=8, seconds=900, seed=0),
    "generated: 16 nodes": lambda _: generate(nodes=16, seconds=900, seed=1),
    "log by formula: steps.csv": lambda _: import_trace("steps", [LOGS / "steps.csv"]),
    "log by formula: episodes.csv": lambda _: import_trace("episodes", [LOGS / "episodes.csv"]),
}
"""Traces of the project; the examples' other logs are of the same four hosts."""
PUBLIC: dict[str, Source] = {
    "ByteDance: one LLM job, 4 replicas": _import(
        "bytedance-straggler", "bytedance-straggler/trace-AR.parquet"
    ),
    **{
        f"Alibaba PAI: job {k}, 10 workers": _import(
            "alibaba-pai-minibatch", f"alibaba-pai-minibatch/job_{k}_norm.csv"
        )
        for k in (1, 2)
    },
    "PAL: V100 of Longhorn, ResNet": _gpus("resnet-longhorn-agg.csv"),
    "PAL: V100 of Longhorn, BERT": _gpus("bert-longhorn-agg.csv"),
    "PAL: A100 of LS6, ResNet": _gpus("resnet-ls6-agg.csv"),
    "Azure: CPU cache of 3 VMs": _machines("Stress_NG_Test_CPU_Cache_long_westus2_Bogo_Ops_s.csv"),
    "Azure: memory copy of 3 VMs": _machines(
        "perf_bench_Benchmark_Memcpy_1MB_long_westus2_GB_sec.csv"
    ),
    "Synergy: 1 of 8 with a third of the CPUs": _host_share,
    "Gavel: 1 of 8 on a shared GPU": _shared_gpu,
    "Zeus: 1 of 8 with a power cap": _power_cap,
}


# -- the regret -----------------------------------------------------------------------------------


def judge(name: str, scenario: Scenario) -> Outcome:
    """Choose under `SEEDS`, and judge under `HELD_OUT`."""
    comparison = compare(scenario, seeds=SEEDS)
    decision: ComparisonDecision = comparison.answer.decision
    fastest = str(comparison.ranking["policy"][0])
    later = compare(scenario, seeds=HELD_OUT, sensitivity=False).answer.decision
    own = later.states[OWN]
    roles = dict(zip(ROLES, (decision.safe, fastest, BASELINE), strict=True))
    regrets = {
        role: (own[policy] / min(own.values()) - 1, later.regrets[policy].worst)
        for role, policy in roles.items()
    }
    gain = 1 - own[decision.safe] / own[BASELINE]
    best = min(own, key=own.__getitem__)
    return Outcome(
        name, scenario.workers, later.s.delay, decision.safe, fastest, best, gain, regrets
    )


def write_scenario(file: Path) -> Scenario:
    """The scenario that `simstrag init` writes, of the first `WORKERS` nodes."""
    out = file.with_name("scenario.yaml")
    write_first_scenario(file, out, JOB)
    scenario = Scenario.read(out)
    if scenario.workers <= WORKERS:
        return scenario
    nodes = scenario.nodes or tuple(range(scenario.workers))
    share = WORKERS / scenario.workers
    work = {"samples": round((scenario.samples or 0) * share)}
    work |= {"target_progress": scenario.target_progress}
    return scenario.replaced(workers=WORKERS, nodes=nodes[:WORKERS], **work)


def each_trace(public: Path | None, judge: Callable[[str, Scenario], T]) -> Iterator[T]:
    """What a function makes of every trace's scenario, by the name of the trace."""
    for name, source in (SHIPPED | (PUBLIC if public is not None else {})).items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.csv"
            source(public or Path()).write(file)
            yield judge(name, write_scenario(file))


def measure(public: Path | None) -> Iterator[Outcome]:
    """The outcome of every trace."""
    return each_trace(public, judge)


def table(outcomes: Sequence[Outcome]) -> Table:
    """The table of docs/measured/regret.txt."""
    header = (
        "trace", "workers", "delay of bsp", "choice", "saves", "best", "regret of the choice",
        "of the fastest", "of bsp",
    )  # fmt: skip
    rows = [
        (
            o.name, str(o.workers), f"{o.delay:.0%}", f"`{o.safe}`", f"{o.gain:.1%}", f"`{o.best}`",
            *(_both(*pair) for pair in o.regrets.values()),
        )
        for o in outcomes
    ]  # fmt: skip
    for what, of in (("mean", np.mean), ("median", np.median), ("worst", max)):
        pairs = [zip(*(o.regrets[role] for o in outcomes), strict=True) for role in ROLES]
        ends = [_both(*(float(of(x)) for x in pair)) for pair in pairs]
        rows.append((what, "", "", "", "", "", *ends))
    return Table("Regret by trace", header, rows)


def _both(own: float, worst: float) -> str:
    return f"{own:.1%} ({worst:.0%})"


if __name__ == "__main__":
    report(__doc__, "regret", measure, table, public=FOLDER)
