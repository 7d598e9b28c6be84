"""The claims as data.  Their scenarios were stated before the first run, and not changed after it.

Sources of constants: the specifications of this project's policies, docs/star.md, docs/learning.md.
Where a paper's constants are not known, the scenario is `WORLD`, that of the table in
`tests/verification/test_cgp_table.py`.
"""

from __future__ import annotations

from typing import Any

from simstrag.claims.claim import SEVERITY, Claim, MapAxis
from simstrag.claims.cluster_claims import CLUSTER_CLAIMS, OWN_SETTING, STAR_PAPER
from simstrag.claims.measures import (
    ACCURACY_GAIN,
    ACCURACY_POINTS,
    DELAY_REMOVED,
    EQUAL_WORK,
    MEAN_OF_SPEEDUPS,
    MEAN_SPEEDUP,
    SAVING,
    SPEEDUP,
)

PERIOD = 120.0
"""Seconds of a turn of contention; the script released with STAR slows a worker for 60 s of it."""


def turns(
    share: float, resource: str = "gpu", slowdown: float = 2.0, node: int = 0, start: float = 0.0
) -> list[dict[str, Any]]:
    """Rows of a trace that loops: a rank takes so many times as long for a share of each period."""
    ends = [(start + share * PERIOD, 1.0), (PERIOD, 1.0)] if start + share * PERIOD < PERIOD else []
    return [
        {"time": time, "node": node, "resource": resource, "kind": "slowdown", "value": value}
        for time, value in [(start, slowdown), *ends]
    ]


BATCH = 128


def progress(rounds: int, workers: int = 8, scale: float = 500) -> dict[str, Any]:
    """The keys of a job that takes bsp so many updates."""
    samples = workers * BATCH
    return {
        "workers": workers, "samples": rounds * samples,
        "target_progress": round(rounds * samples / (scale + samples), 3),
        "learner": {"batch": BATCH, "noise_scale": scale, "c_tau": 1.0},
    }  # fmt: skip


WORLD: dict[str, Any] = {
    **progress(240),
    "step": {"compute": 1.0, "cv": 0.05, "amp_ratio": 1.48},
    "allreduce": {"bytes": 0.05, "bandwidth": 1.0},
    "server": {"service": 0.02},
    "trace": turns(0.5),
    "trace_end": "loop",
    "trace_per_seed": "shift",
}
ASSUMED = (
    "8 workers, steps of 1 s (cv 5 %), an all-reduce of 0.09 s, a server of 0.02 s a gradient, "
    "batch 128, noise scale 500, c_tau 1, one worker slowed to twice its time for 60 of 120 s: "
    "all assumed"
)
STAR: dict[str, Any] = {
    **progress(400, scale=1390),
    "step": {"compute": 0.412, "host_share": 0.697, "cv": 0.1},
    "allreduce": {"bytes": 1.13e6, "bandwidth": 1.28e9},
    "server": {"link": "cut_through"},
    "trace": turns(0.5, resource="host"),
    "trace_end": "loop",
    "trace_per_seed": "shift",
}
STAR_NEAREST = (
    "8 workers; ResNet-20's step, bytes and server as fitted to STAR's logs (docs/star.md), its "
    "tabulated noise scale 1390; assumed: one worker's host work takes twice as long for 60 of "
    "120 s (the released script's rhythm), c_tau 1"
)

SGD, MOMENTUM = {"lr": 0.8}, {"lr": 0.2, "momentum": 0.9}
"""The rates that suit bsp best on digits (docs/learning.md)."""


def training(
    optimizer: dict[str, Any], target: float | None = 0.9, batch: int = 16, **keys: Any
) -> dict[str, Any]:
    """The keys of a scenario that trains `digits`, to an accuracy or on 32,000 samples."""
    learner = {"kind": "real", "task": "digits", "batch": batch, "optimizer": optimizer}
    ends = {} if target is None else {"target_accuracy": target}
    return {"learner": learner, "samples": 32_000, **ends, **keys}


def slowdown(values: tuple[float, ...], here: float, what: str = "slowdown") -> MapAxis:
    """How many times as long a slowed worker takes; the trace has the nearest value."""
    labels = tuple(f"{value:g}\N{MULTIPLICATION SIGN}" for value in values)
    severities = tuple((value - 1) / (here - 1) for value in values)
    return MapAxis(what, SEVERITY, severities, labels, values.index(here))


def constant(name: str, key: str, values: tuple[Any, ...], here: Any) -> MapAxis:
    """A number of a scenario."""
    return MapAxis(name, key, values, tuple(f"{value:g}" for value in values), values.index(here))


SLOWDOWN = slowdown((1.25, 1.5, 2, 3, 4), 2)
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
SHARE = MapAxis(
    "share of time with contention", "trace", tuple(map(turns, SHARES)),
    tuple(f"{100 * share:g} %" for share in SHARES), 2,
)  # fmt: skip
GAINS = (1.1, 1.36, 1.48, 1.85, 2.26, 4.5)
GAIN = constant("gain of reduced precision", "step.amp_ratio", GAINS, 1.48)
"""Measured ratios (Lambda's benchmarks): ResNet-50 on H200, A100, V100; BERT on A100, V100."""
C_TAU = constant("cost of a stale sample (c_tau)", "learner.c_tau", (0.0, 0.5, 1.0, 2.0, 4.0), 1.0)
NOISE = constant("noise of a step (cv)", "step.cv", (0.02, 0.05, 0.1, 0.2, 0.4), 0.1)
GAUDI_NOISE = constant("noise of a step (cv)", "step.cv", (0.03, 0.06, 0.126, 0.25, 0.4), 0.126)
GAUDIS = constant("workers", "workers", (25, 50, 100, 200), 200)
HOP = constant(
    "seconds of a hop of the all-reduce", "allreduce.alpha", (0.005, 0.02, 0.08, 0.16), 0.08
)
UNEVENNESS = constant(
    "unevenness of the workers (1: the notebook's)", SEVERITY, (0.1, 0.25, 0.5, 1.0, 2.0), 1.0
)
HOST = slowdown((1.5, 2, 4, 10), 2, "slowdown of host work")
RATES = MapAxis(
    "optimizer", "learner.optimizer", (SGD, MOMENTUM), ("SGD", "momentum 0.9"), 1,
)  # fmt: skip
WORKERS = constant("workers", "workers", (4, 8, 16), 8)

K80 = {
    "workers": 8, "samples": 8 * BATCH * 500, "learner": {"batch": BATCH},
    "step": {"compute": 0.205, "cv": 0.05}, "allreduce": {"alpha": 0.08},
}  # fmt: skip
"""BSP took 1.325 s a round and ASP 0.205 s for as many gradients (10.6 ks and 1.64 ks): here a ring
of eight has 14 hops of 0.08 s."""
# Measured on one H200 (docs/measured.md, "On one GPU"): seconds of launching, at most those of fp16
# and fp32; the device's part by batch; and a device beside gemm at levels 1/4, 1/2, 1 and 2.
LAUNCH = {"tf32": 0.0145, "fp16": 0.0191, "bf16": 0.0184, "fp32": 0.0164}
DEVICE = {
    "tf32": (0.00697, 0.01763, 0.06022), "fp16": (0.00565, 0.01276, 0.04368),
    "bf16": (0.00643, 0.01561, 0.05522), "fp32": (0.01461, 0.04245, 0.14555),
}  # fmt: skip
H200_BATCHES = (8, 32, 128)
LEVELS = (1.21, 1.27, 1.62, 1.69)


def gpu_step(full: str, amp: str, batch: int) -> dict[str, Any]:
    """The section `step` of ResNet-50 on an H200."""
    k = H200_BATCHES.index(batch)
    return {
        "launch": {"full": LAUNCH[full], "amp": LAUNCH[amp]},
        "device": {"full": DEVICE[full][k], "amp": DEVICE[amp][k]},
        "cv": 0.001,
    }


H200_CELLS = tuple(
    (full, amp, batch)
    for full, amp in (("tf32", "bf16"), ("tf32", "fp16"), ("fp32", "fp16"))
    for batch in H200_BATCHES
)
H200_STEP = MapAxis(
    "precisions", "step", tuple(gpu_step(*cell) for cell in H200_CELLS),
    tuple(f"{full}/{amp}, batch {batch}" for full, amp, batch in H200_CELLS),
    H200_CELLS.index(("tf32", "fp16", 128)),
)  # fmt: skip
H200: dict[str, Any] = {
    **progress(8000),
    "step": gpu_step("tf32", "fp16", 128),
    "noise": {"lag1": 0.35},
    "trace": turns(0.5, slowdown=1.62),
    "trace_end": "loop",
    "trace_per_seed": "shift",
}
H200_LEVEL = slowdown(LEVELS, 1.62, "slowdown of the device")
H200_SHARE = MapAxis(
    "share of time with contention", "trace",
    tuple(turns(share, slowdown=1.62) for share in SHARES),
    tuple(f"{100 * share:g} %" for share in SHARES), 2,
)  # fmt: skip
H200_NEAREST = (
    "8 H200 with ResNet-50 at batch 128, tf32 to fp16: launching, device, noise and the slowdown "
    "beside another process are measured on one (docs/measured.md), the slowdown at batch 32 in "
    "tf32 alone; the launches of fp16 and fp32 are at most as stated; assumed: the device of one "
    "worker shared for 60 of 120 s, and free communication, because eight never ran together"
)

# Steps that sending a gradient takes: of STAR's models (`python -m benchmarks.star_models`).
SENDING = {
    "ResNet-20": 0.0021, "GoogLeNet": 0.0084, "AlexNet": 0.0377, "VGG-16": 0.1292, "LSTM": 0.1816,
}  # fmt: skip
STRAGGLERS = {
    "one at 2\N{MULTIPLICATION SIGN}": turns(0.5),
    "two at 3\N{MULTIPLICATION SIGN}": [
        row for node in (0, 1) for row in turns(0.5, slowdown=3.0, node=node)
    ],
    "one after the other at 2\N{MULTIPLICATION SIGN}": [
        row for k in range(8) for row in turns(1 / 8, node=k, start=k * PERIOD / 8)
    ],
    "graded from 1 to 2\N{MULTIPLICATION SIGN}": [
        row for node in range(1, 8) for row in turns(0.5, slowdown=1 + node / 7, node=node)
    ],
}
"""All but the third for 60 of 120 s."""
CGP_WORLD: dict[str, Any] = {
    **WORLD,
    "allreduce": {"bytes": SENDING["AlexNet"], "bandwidth": 1.0},
    "server": {"link": "cut_through"},
}
WORKLOAD = MapAxis(
    "workload", "allreduce.bytes", tuple(SENDING.values()),
    tuple(SENDING), 2,
)  # fmt: skip
DYNAMICS = MapAxis("stragglers", "trace", tuple(STRAGGLERS.values()), tuple(STRAGGLERS), 0)

UNEVEN = {
    "workers": 4,
    "step": {"compute": 0.58, "cv": 0.02},
    "trace": [
        {"time": 0, "node": rank, "resource": "step", "kind": "slowdown", "value": seconds / 0.58}
        for rank, seconds in enumerate((0.58, 0.75, 1.51, 3.33))
    ],
}  # fmt: skip
"""The four workers of google-deepmind/asyncdiloco's notebook."""

KOREL = "Jung, Kim & Yu (Korel), IEEE CLOUD 2025"
KOREL_SETTING = (
    "synchronous PyTorch DDP under multi-tenant contention; GPUs, models and load are not public"
)
CGP = "Li et al. (CGP), FGCS 168, 2025"
CGP_SETTING = "a physical testbed; rivals, models and stragglers are not public (abstract alone)"
SWITCH = "Li et al. (Sync-Switch), ICDCS 2021"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "korel-delay", KOREL, "up to 79.4 % of the straggler delay is removed [V]", 0.794,
        DELAY_REMOVED, "korel", (), KOREL_SETTING,
        f"{ASSUMED}; reduced precision 1.48 times as fast, ResNet-50's on an A100",
        WORLD, (SLOWDOWN, GAIN), training(SGD),
    ),
    Claim(
        "korel-speed", KOREL, "up to 14 % faster than BSP from start to end [V]", 1.14,
        SPEEDUP, "korel", ("bsp",), KOREL_SETTING,
        f"{ASSUMED}; reduced precision 1.48 times as fast, ResNet-50's on an A100",
        WORLD, (SLOWDOWN, SHARE), training(SGD),
    ),
    Claim(
        "korel-delay-h200", KOREL, "up to 79.4 % of the straggler delay is removed [V]", 0.794,
        DELAY_REMOVED, "korel", (), KOREL_SETTING, H200_NEAREST, H200, (H200_LEVEL, H200_STEP),
        "the claim is of time alone; korel-delay trains",
    ),
    Claim(
        "korel-speed-h200", KOREL, "up to 14 % faster than BSP from start to end [V]", 1.14,
        SPEEDUP, "korel", ("bsp",), KOREL_SETTING, H200_NEAREST, H200, (H200_SHARE, H200_STEP),
        "the claim is of time alone; korel-speed trains",
    ),
    Claim(
        "cgp-speed", CGP, "1.94 times as fast as other methods on average [V]", 1.94,
        MEAN_SPEEDUP, "cgp", ("bsp", "ssp", "asgd"), CGP_SETTING,
        f"{ASSUMED}; the other methods are bsp, ssp and asgd, assumed too",
        WORLD, (SLOWDOWN, C_TAU), training(SGD),
    ),
    Claim(
        "cgp-scenarios", CGP,
        "1.94 times as fast as other methods on average, in different scenarios [V]", 1.94,
        MEAN_OF_SPEEDUPS, "cgp", ("bsp", "ssp", "asgd"), CGP_SETTING,
        "8 workers, steps of 1 s (cv 5 %), batch 128, noise scale 500, c_tau 1, the other methods, "
        "and four kinds of stragglers: all assumed; workloads send gradients of five of STAR's "
        "models, fitted to its logs (docs/star.md), to a server with one card",
        CGP_WORLD, (WORKLOAD, DYNAMICS),
        "cgp-speed trains", is_averaged=True,
    ),
    Claim(
        "cgp-accuracy", CGP, "16.8 % more accurate than asynchronous methods [V]", 0.168,
        ACCURACY_GAIN, "cgp", ("asgd", "ssp"), CGP_SETTING,
        f"{ASSUMED}; the methods are asgd and ssp; 32,000 samples of digits, 16 a gradient, "
        "momentum 0.9: assumed",
        WORLD, (RATES, WORKERS), training(MOMENTUM, None), trained=True,
    ),
    Claim(
        "star-server", STAR_PAPER,
        "48 to 84 % less time to accuracy than LB-BSP, LGC, Sync-Switch and Zeno++, with parameter "
        "servers [V]", 0.48,
        SAVING, "star_h", ("lb_bsp", "lgc", "sync_switch:via=server"), OWN_SETTING,
        f"{STAR_NEAREST}; LB-BSP all-reduces, as it had no server form when this was stated; "
        "Zeno++ is compared where it trains, because its updates have no formula",
        STAR, (HOST, C_TAU), training(SGD), trained_rivals=("zeno",),
    ),
    Claim(
        "star-ring", STAR_PAPER,
        "51 to 70 % less time to accuracy than the same systems with all-reduce [V]", 0.51,
        SAVING, "star_ring", ("lb_bsp", "lgc:via=allreduce", "sync_switch"), OWN_SETTING,
        f"{STAR_NEAREST}; Zeno++ is left out, because it has no all-reduce form here",
        STAR, (HOST, C_TAU), training(SGD),
    ),
    *CLUSTER_CLAIMS,
    Claim(
        "sync-switch-speed", SWITCH, "up to 5.13 times as fast as BSP [V]", 5.13,
        EQUAL_WORK, "sync_switch:share=0.0625", ("bsp",),
        "ResNet-32 on CIFAR-10, 8 K80, 64,000 steps of 128 samples, 6.25 % of them BSP",
        "step and synchronization follow from the paper's pure BSP and ASP runs; the switch is "
        "predicted; a sixteenth of the steps are simulated",
        K80, (HOP, WORKERS),
        "the claim is of time alone; sync-switch-accuracy trains",
    ),
    Claim(
        "sync-switch-accuracy", SWITCH, "3.8 points more accurate than ASP [V]", 0.038,
        ACCURACY_POINTS, "sync_switch:share=0.0625", ("asgd",),
        "ResNet-32 on CIFAR-10, 8 K80, momentum 0.9, which the paper changes at the switch",
        f"{ASSUMED}; 32,000 samples of digits, 16 a gradient; no momentum is changed",
        WORLD, (RATES, WORKERS), training(MOMENTUM, None), trained=True,
    ),
    Claim(
        "backup-speed", "Chen et al. (backup workers), arXiv:1604.00981, 2016",
        "faster than synchronous and asynchronous training [V]; 96 of 100 workers [M]", 1.0,
        SPEEDUP, "backup:b=4", ("bsp:via=server", "asgd"),
        "Inception on ImageNet, K40 GPUs and parameter servers; no number in the abstract",
        "100 workers, 4 of them left out; steps of 1 s (cv 10 %), a server of 1 ms a gradient, "
        "noise scale 500, c_tau 1, no contention: all assumed",
        {**progress(60, 100), "step": {"compute": 1.0, "cv": 0.1}, "server": {"service": 0.001}},
        (NOISE, C_TAU),
        training(SGD, batch=8, samples=96_000),
    ),
    Claim(
        "dropcompute-speed", "Giladi et al. (DropCompute), NeurIPS 2023",
        "less time than synchronous training where workers' computing varies [M]", 1.0,
        SPEEDUP, "dropcompute", ("bsp",),
        "BERT-1.5B on 200 Gaudi; a micro-batch is delayed by lognormal noise (released code)",
        "200 workers, 12 micro-batches [M]; a step's cv of 12.6 % follows from that noise; "
        "all-reduce of 5 % of a step, noise scale 500 batches: assumed; trained by 16 workers",
        {**progress(120, 200, 64_000), "step": {"compute": 1.0, "cv": 0.126}, "microbatches": 12,
         "allreduce": {"bytes": 0.025, "bandwidth": 1.0}},
        (GAUDI_NOISE, GAUDIS),
        training(SGD, workers=16, microbatches=12),
    ),
    Claim(
        "ssp-speed", "Ho et al. (SSP), NIPS 2013",
        "faster than BSP and than fully asynchronous training [M]", 1.0,
        SPEEDUP, "ssp", ("bsp:via=server", "asgd"),
        "topic models, matrix factorization and Lasso on a shared cluster of CPUs",
        f"{ASSUMED}; bound 3", WORLD, (SLOWDOWN, C_TAU), training(SGD),
    ),
    Claim(
        "lb-bsp-speed", "Chen et al. (LB-BSP), SoCC 2020", "up to 54 % faster than BSP [V]", 1.54,
        SPEEDUP, "lb_bsp", ("bsp",), "non-dedicated clusters of GPUs and CPUs",
        ASSUMED, WORLD, (SLOWDOWN, SHARE), training(SGD),
    ),
    Claim(
        "async-diloco-speed", "Liu et al. (asynchronous Local-SGD), arXiv:2401.09135, 2024",
        "faster than synchronous DiLoCo in wall-clock time [M]", 1.0,
        SPEEDUP, "async_local_sgd:h=20", ("diloco:h=20",),
        "language models; the released notebook has four workers of 0.58 to 3.33 s a step",
        "that notebook's workers and H = 20; this project's default outer optimizers",
        UNEVEN,
        (UNEVENNESS,),
        training({"lr": 0.2}), trained=True,
    ),
    Claim(
        "decoupled-diloco-goodput", "Douillard et al. (Decoupled DiLoCo), arXiv:2604.21428, 2026",
        "a goodput far above that of one elastic job, among failures of a million chips "
        "(second-hand)", 0.0, EQUAL_WORK, "decoupled_diloco", (),
        "simulated clusters of 1.2 and 2.4 million chips; repair times are not known",
        "none", {}, (), "goodput needs no training",
        untestable="its rival is one elastic job, whose failures are not those of learners, and "
        "policies here share a scenario; docs/claims.md has the replay of its figures",
    ),
)  # fmt: skip
