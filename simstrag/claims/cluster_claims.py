"""STAR's claims in its own setting: jobs of ten models that share a cluster, under one policy each.

Stated before the first run, and not changed after it.  Sources: the logs and launchers released
with STAR (docs/star.md).  From there: the models, eight workers a job, five nodes of eight devices
for eight jobs, where each job's server and workers are, jobs that start at once.  Fitted to its
logs: steps, bytes and processor use of the models.  Assumed: the mix of models, the length of the
jobs, the noise of steps, c_tau.

The constants that decide: processors of a node, jobs, c_tau (`benchmarks/star_cluster.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simstrag.claims.claim import Claim, MapAxis
from simstrag.claims.measures import SAVING
from simstrag.policies.estimators.gradient_noise_tables import BATCHES, TABLES

WORKERS, BATCH, CARD = 8, 128, 1.28e9
SECONDS = 120.0
"""A job has as many rounds as SSGD made in that time in STAR's logs."""
TRAINED_BATCH, TRAINED_SAMPLES, TARGET = 16, 32_000, 0.9
"""Of the job that trains `digits`: samples of a gradient and in all, accuracy."""
DRAWS, QUICK_DRAWS = 6, 3
"""Draws of jobs; 4 in the first run, where the wider intervals of a map decided nothing."""
SHORT = {"jobs": 8, "seconds": 40.0}
"""Jobs and seconds of a quick scoreboard."""


class Model(NamedTuple):
    """A model as fitted to its row under SSGD (`benchmarks/star_models.py`).

    update: seconds of a round of SSGD in the log.
    compute, host_share, bytes_: of a step, its host part, a gradient.
    host_cores, server_cores: percent of a node's processors, of a worker and of a server.
    table: of its noise scale.
    """

    update: float
    compute: float
    host_share: float
    bytes_: float
    host_cores: float
    server_cores: float
    table: str


MODELS = {
    "alexnet": Model(0.259, 0.204, 0.725, 9.88e6, 2.6, 394, "alexnet"),
    "resnet20": Model(0.477, 0.412, 0.697, 1.13e6, 2.31, 3660, "resnet20"),
    "resnet56": Model(0.993, 0.857, 0.845, 3.9e6, 2.47, 1100, "resnet20"),
    "mobilenet": Model(1.092, 0.935, 0.785, 9.3e6, 3.45, 470, "alexnet"),
    "googlenet": Model(2.815, 2.41, 0.875, 2.58e7, 3.55, 157, "googlenet"),
    "densenet121": Model(3.009, 2.58, 0.813, 2.56e7, 5.23, 188, "densenet121"),
    "vgg13": Model(0.561, 0.35, 0.666, 3.64e7, 4.72, 131, "googlenet"),
    "vgg16": Model(0.754, 0.372, 0.666, 6.15e7, 7.21, 92.3, "googlenet"),
    "lstm": Model(0.518, 0.207, 0.699, 4.82e7, 7.01, 91.2, "googlenet"),
    "transformer": Model(0.504, 0.202, 0.658, 4.69e7, 8.76, 98, "googlenet"),
}
TRAINED = "resnet20"
"""The workload of the job that trains."""


def draw(
    number: int,
    cores: float = 1.0,
    jobs: int = 24,
    *,
    seconds: float = SECONDS,
    c_tau: float = 1.0,
    trained: bool = False,
) -> dict[str, Any]:
    """The keys of a cluster study whose jobs are drawn, each one of the ten models.

    number: of the draw, and its seed.
    cores: processors of a node over those of STAR's.
    trained: no job ends at a target, batches are small, and the first job is one that can train.
    """
    batch = TRAINED_BATCH if trained else BATCH
    drawn = np.random.default_rng(number).choice([*MODELS], jobs).tolist()
    if trained:
        drawn[0] = TRAINED
    return {
        "nodes": [{
            "count": -(-5 * jobs // 8), "gpus": 8, "cores": 100.0 * cores,
            "nic_in": CARD, "nic_out": CARD,
        }],
        "workers_per_gpu": 2,
        "workloads": {name: _workload(name, batch, c_tau) for name in MODELS},
        "jobs": [_job(k, name, batch, seconds, trained) for k, name in enumerate(drawn)],
        "constants": "star",
        "horizon": 20 * seconds,
        "seeds": [number],
    }  # fmt: skip


def noise_scale(model: str) -> float:
    """The tabulated noise scale at 1,024 samples in the first epoch, as in the row of one job."""
    return TABLES[MODELS[model].table][BATCHES.index(WORKERS * BATCH)][0]


def _workload(name: str, batch: int, c_tau: float) -> dict[str, Any]:
    """A workload; a smaller batch has a noise scale that is smaller alike, so decisions stay."""
    model = MODELS[name]
    return {
        "scenario": {
            "step": {"compute": model.compute, "host_share": model.host_share, "cv": 0.1},
            "allreduce": {"bytes": model.bytes_, "bandwidth": CARD},
            "server": {"link": "cut_through"},
            "learner": {
                "batch": batch, "noise_scale": noise_scale(name) * batch / BATCH, "c_tau": c_tau,
            },
        },
        "host_cores": model.host_cores, "server_cores": model.server_cores,
    }  # fmt: skip


def _job(number: int, name: str, batch: int, seconds: float, trained: bool) -> dict[str, Any]:
    rounds, together = round(seconds / MODELS[name].update), WORKERS * batch
    samples = TRAINED_SAMPLES if trained and not number else rounds * together
    scale = noise_scale(name)
    ends = {} if trained else {"target_progress": round(samples / (scale + together), 3)}
    return {
        "workload": name, "name": f"job-{number:02d}", "workers": WORKERS, "samples": samples,
        **ends,
    }  # fmt: skip


STAR_PAPER = "Zhang & Shen (STAR), arXiv:2512.09685, 2025"
NEAREST = (
    "24 jobs of 8 workers on 15 nodes of 8 devices, two workers a device: the release's five nodes "
    "for eight jobs; its ten models as fitted to its logs, drawn at random; each job on two "
    "workers of four nodes and a server on another, as its launchers place them, all started at "
    "once; work of 120 s of SSGD, and the progress that SSGD makes by it; noise scales as "
    "tabulated; STAR's own table of constants for its manager. Assumed: the mix, the 120 s, noise "
    "of steps (cv 10 %), c_tau 1. Time is a job's from its start to its target, the mean of all "
    "jobs; intervals are over draws of the mix. Trained: one job of ResNet-20's speed trains "
    "digits, 16 samples a gradient, to 90 % by the gradients that its run in the cluster applied"
)
OWN_SETTING = "AWS, 8 workers a job, ten models, contention of co-located jobs, plain SGD"
AXES = (
    MapAxis("processors of a node", "cores", (0.5, 1.0, 2.0), ("50 %", "100 %", "200 %"), 1),
    MapAxis("jobs", "jobs", (24, 64), ("24", "64"), 0),
)
DIGITS = {
    "learner": {
        "kind": "real", "task": "digits", "batch": TRAINED_BATCH, "optimizer": {"lr": 0.8},
    },
}  # fmt: skip
"""The rate that suits bsp best on digits (docs/learning.md)."""

CLUSTER_CLAIMS = (
    Claim(
        "star-cluster-server", STAR_PAPER,
        "48 to 84 % less time to accuracy than LB-BSP, LGC, Sync-Switch and Zeno++, with parameter "
        "servers [V]: in its own setting, jobs that share a cluster", 0.48,
        SAVING, "star_h:tree=true | star | star",
        ("lb_bsp:via=server", "lgc", "sync_switch:via=server"), OWN_SETTING,
        f"{NEAREST}. Zeno++ is compared where it trains, because its updates have no formula",
        {}, AXES, DIGITS, trained_rivals=("zeno",), draw=draw,
        beside=("bsp:via=server", "asgd"),
        parts=(
            ("modes alone", "star_h"),
            ("+ manager", "star_h | rotate | star"),
            ("+ placer", "star_h | star | star"),
            ("+ trees: whole", "star_h:tree=true | star | star"),
            ("whole, modes by learning", "star_ml:tree=true | star | star"),
            ("whole, no prediction", "star_h:tree=true,predictor=last | star | star"),
            ("whole, times known", "star_h:tree=true,predictor=oracle | star | star"),
            ("placer, no modes", "bsp:via=server | star"),
            ("placer and trees, no modes", "tree:by=node | star"),
            ("ASGD with the placer", "asgd | star"),
        ),
    ),
    Claim(
        "star-cluster-ring", STAR_PAPER,
        "51 to 70 % less time to accuracy than the same systems with all-reduce [V]: in its own "
        "setting, jobs that share a cluster", 0.51,
        SAVING, "star_h:form=ring | star | star",
        ("lb_bsp", "lgc:via=allreduce", "sync_switch"), OWN_SETTING,
        f"{NEAREST}. Zeno++ and STAR-ML have no all-reduce form here, and trees need a server",
        {}, AXES, DIGITS, draw=draw,
        beside=("bsp",),
        parts=(
            ("modes alone", "star_h:form=ring"),
            ("+ manager", "star_h:form=ring | rotate | star"),
            ("+ placer: whole", "star_h:form=ring | star | star"),
            ("whole, all stragglers ride", "star_ring | star | star"),
            ("whole, no prediction", "star_h:form=ring,predictor=last | star | star"),
            ("whole, times known", "star_h:form=ring,predictor=oracle | star | star"),
            ("placer, no modes", "bsp | star"),
        ),
    ),
)  # fmt: skip
