"""STAR's ten models: what a parameter server gains by ASGD, predicted from rows under SSGD.

    python -m benchmarks.star_models [--write]

Makes docs/measured/star-models.txt, and the workloads of examples/cluster.yaml.  The measurements
are those of the logs and launchers of github.com/pcl-projects/Training-Sync-Mode @6c596a7: eight
workers on one node with eight devices, one server on another node.

The rule of the fit, stated before it was run.  Known to it are a model's row under SSGD, and of the
nodes their card (1221.12 MiB/s, a constant of the release) and that a processor has 100 %.

1. Bytes of a gradient: bytes/s that the server received, over gradients/s.
2. Service: that many bytes through the server's card, one gradient after the other (`server.link:
   cut_through`; all workers are behind one card, so that push and reception are one transfer).
3. Processor of the server: its share under SSGD, over gradients/s, is what one gradient keeps busy.
4. Step: what makes the simulated update under SSGD as long as the measured one.  Its noise is
   assumed, lognormal with a cv of 0.1.
5. Device part of a step: `device` over `worker` of the release's table for packing.
6. Processor of a worker: from what its node freed when the server paused for a second per update
   under SSGD, which lengthened updates by `PAUSED` seconds.

The second reading of a row, `PROCESSOR`, replaces rule 2: the server's processor serves one
gradient after the other, and is idle otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from benchmarks.results import add_write, describe_machine, keep_tables
from benchmarks.tables import Table, show
from simstrag.cluster.simulate import simulate_cluster
from simstrag.cluster.study import ClusterStudy
from simstrag.contract import Plan, Quorum, Via, View
from simstrag.engine.simulate import simulate
from simstrag.scenario.scenario import Scenario

WORKERS, BATCH, UPDATES = 8, 128, 500
MIB = 2.0**20
CARD, PROCESSOR_PERCENT = 1221.12 * MIB, 100.0
CV = 0.1
PAUSED = 0.9
"""Seconds by which a pause of 1 s per update lengthened an update: 0.81 to 0.99."""
SSGD, ASGD = "k_async", "asgd"
"""All gradients make an update at the server, or each by itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model in STAR's logs.

    update: seconds of an update under SSGD.
    cpu, received: of the server's node under SSGD: percent, MiB/s.
    worker, device: milliseconds in which a worker, and its device, is active in a step.
    freed: percent of the processors of the workers' node that a worker left idle, RATIO C.
    gain: gradients/s under ASGD over those under SSGD.
    cpu_asgd, received_asgd: of the server's node under ASGD; no fit sees these three.
    """

    update: float
    cpu: float
    received: float
    worker: float
    device: float
    freed: float
    gain: float
    cpu_asgd: float
    received_asgd: float


MODELS = {
    "alexnet": Measured(0.259, 94, 291, 200, 55, 1.156, 1.06, 98, 315),
    "resnet20": Measured(0.477, 54, 18, 261, 79, 0.91, 1.18, 73, 22),
    "resnet56": Measured(0.993, 27, 30, 567, 88, 0.856, 1.11, 39, 30),
    "mobilenet": Measured(1.092, 25, 65, 609, 131, 1.048, 1.18, 30, 67),
    "googlenet": Measured(2.815, 9, 70, 1175, 147, 0.644, 1.12, 13, 64),
    "densenet121": Measured(3.009, 10, 65, 900, 168, 0.838, 1.12, 15, 86),
    "vgg13": Measured(0.561, 53, 495, 308, 103, 1.206, 1.34, 93, 672),
    "vgg16": Measured(0.754, 47, 622, 365, 122, 1.288, 1.46, 88, 806),
    "lstm": Measured(0.518, 53, 710, 475, 143, 1.244, 1.44, 90, 968),
    "transformer": Measured(0.504, 57, 710, 480, 164, 1.48, 1.35, 96, 983),
}


@dataclass(frozen=True, slots=True)
class Server:
    """What one gradient asks of the server: bytes, keys of `server`, percent of its processor."""

    bytes: float
    keys: Mapping[str, Any]
    cores: float


Reading = Callable[[Measured], Server]


def card(row: Measured) -> Server:
    """Rules 1 to 3."""
    bytes_ = row.received * MIB * row.update / WORKERS
    busy = row.cpu * row.update / WORKERS
    return Server(bytes_, {"link": "cut_through"}, busy / (bytes_ / CARD))


def processor(row: Measured) -> Server:
    """Rules 1 and 3, with the processor in place of rule 2."""
    bytes_ = row.received * MIB * row.update / WORKERS
    service = row.cpu / PROCESSOR_PERCENT * row.update / WORKERS
    return Server(bytes_, {"service": service}, PROCESSOR_PERCENT)


def fit(row: Measured, reading: Reading = card) -> dict[str, Any]:
    """The workload of a row under SSGD, as a cluster study states it."""
    server = reading(row)

    def late(compute: float) -> float:
        return _seconds(_scenario(row, server, compute), SSGD) / UPDATES - row.update

    compute = float(brentq(late, 1e-3 * row.update, row.update, rtol=1e-4))
    scenario = _scenario(row, server, compute)
    host = compute * scenario["step"]["host_share"]
    work = row.freed / (1 / row.update - 1 / (row.update + PAUSED))  # percent x s of one step
    return {"scenario": scenario, "host_cores": work / host, "server_cores": server.cores}


def _scenario(row: Measured, server: Server, compute: float) -> dict[str, Any]:
    return {
        "step": {"compute": compute, "host_share": 1 - row.device / row.worker, "cv": CV},
        "learner": {"batch": BATCH},
        "allreduce": {"bytes": server.bytes, "bandwidth": CARD},
        "server": dict(server.keys),
    }


def _seconds(scenario: Mapping[str, Any], policy: Any) -> float:
    """Of `UPDATES` updates of all workers, by themselves."""
    data = {**scenario, "workers": WORKERS, "samples": UPDATES * WORKERS * BATCH}
    return float(simulate(Scenario.of(data), policy, seed=0).summary["makespan"])


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of a model under ASGD: gain in gradients/s, percent and MiB/s of the server's node."""

    gain: float
    cpu: float
    received: float


def predict(row: Measured, reading: Reading = card) -> Predicted:
    """Both modes on two nodes, with the workers on one and the server on the other."""
    workload = fit(row, reading)
    node = {"cores": PROCESSOR_PERCENT, "nic_in": CARD, "nic_out": CARD}
    study = ClusterStudy.of({
        "nodes": [{"gpus": 1, **node}, {"gpus": WORKERS, **node}],
        "workloads": {"model": workload}, "placers": ["star"],
        "jobs": [{"workload": "model", "workers": WORKERS, "samples": UPDATES * WORKERS * BATCH}],
    })  # fmt: skip
    synchronous, asynchronous = (
        simulate_cluster(study, policy, alone=False, record=False).jobs[0]
        for policy in (SSGD, ASGD)
    )
    assert (asynchronous["nodes"], asynchronous["server_nodes"]) == ("1", "0")
    gain = synchronous["run_time"] / asynchronous["run_time"]
    gradients = WORKERS * UPDATES / asynchronous["run_time"]
    busy = row.cpu * row.update / WORKERS
    bytes_ = workload["scenario"]["allreduce"]["bytes"]
    return Predicted(gain, gradients * busy, gradients * bytes_ / MIB)


def constant_gain(name: str) -> float:
    """The mean measured gain of the nine other models: a baseline that has seen ASGD."""
    return float(np.mean([row.gain for other, row in MODELS.items() if other != name]))


def errors(predictions: Mapping[str, Predicted]) -> dict[str, tuple[float, float, float]]:
    """Relative errors of gain, processor and bytes/s, signed."""
    return {
        name: (
            made.gain / MODELS[name].gain - 1,
            made.cpu / MODELS[name].cpu_asgd - 1,
            made.received / MODELS[name].received_asgd - 1,
        )
        for name, made in predictions.items()
    }


def scaled(gain: Callable[[str], float]) -> dict[str, Predicted]:
    """Processor and bytes/s in proportion to gradients/s."""
    return {
        name: Predicted(gain(name), row.cpu * gain(name), row.received * gain(name))
        for name, row in MODELS.items()
    }


def medians(predictions: Mapping[str, Predicted]) -> tuple[float, float, float]:
    """Median absolute relative errors of gain, processor and bytes/s."""
    found = np.median(np.abs([*errors(predictions).values()]), axis=0)
    return float(found[0]), float(found[1]), float(found[2])


@dataclass(frozen=True)
class _Paused:
    """SSGD that pauses every rank before each step."""

    pause: float

    title = "paused SSGD"
    lane = "C"

    def plan(self, view: View) -> Plan:
        return Plan((Quorum(via=Via.SERVER),), pause=self.pause)


def lengthened(row: Measured, pause: float = 1.0) -> float:
    """Seconds by which a pause at the barrier lengthens an update under SSGD."""
    scenario = fit(row)["scenario"]
    return (_seconds(scenario, _Paused(pause)) - _seconds(scenario, _Paused(0.0))) / UPDATES


def rounded(workload: Mapping[str, Any]) -> dict[str, Any]:
    """With three digits, as the example has them.

    >>> rounded({"scenario": {"allreduce": {"bytes": 9878763.1}}, "host_cores": 0.012345})
    {'scenario': {'allreduce': {'bytes': 9880000.0}}, 'host_cores': 0.0123}
    """
    return {
        key: rounded(value) if isinstance(value, Mapping)
        else float(f"{value:.3g}") if isinstance(value, float) else value
        for key, value in workload.items()
    }  # fmt: skip


def main() -> None:
    """Print the tables and the workloads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_write(parser, "star-models")
    write = parser.parse_args().write
    by_card = {name: predict(row) for name, row in MODELS.items()}
    by_processor = {name: predict(row, processor) for name, row in MODELS.items()}
    off = errors(by_card)
    header = (
        "model", "gain", "predicted", "error", "processor, %", "predicted", "MiB/s", "predicted",
        "error",
    )  # fmt: skip
    rows = [
        (name, f"{row.gain:.2f}", f"{made.gain:.2f}", f"{off[name][0]:+.0%}",
         f"{row.cpu_asgd:.0f}", f"{made.cpu:.0f}", f"{row.received_asgd:.0f}",
         f"{made.received:.0f}", f"{off[name][2]:+.0%}")
        for (name, row), made in zip(MODELS.items(), by_card.values(), strict=True)
    ]  # fmt: skip
    ways = {
        "the card serves one gradient after the other": by_card,
        "the processor does": by_processor,
        "no gain": scaled(lambda name: 1.0),
        "the mean gain of the nine others": scaled(constant_gain),
    }
    median = [(name, *(f"{error:.1%}" for error in medians(made))) for name, made in ways.items()]
    found = [
        Table("Ten models under ASGD, predicted from their rows under SSGD", header, rows),
        Table("Median errors", ("median error", "gain", "processor", "MiB/s"), median),
    ]
    show(found)
    if write:
        keep_tables("star-models", found, describe_machine())
    print("lengthened by a pause of 1 s:",
          *(f"{name} {lengthened(row):.3f}" for name, row in MODELS.items()))  # fmt: skip
    for name, row in MODELS.items():
        print(f"  {name}: {rounded(fit(row))}")


if __name__ == "__main__":
    main()
