"""A short file of each format of records, as its tool prints it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.whatif.test_whatif_logs import as_json, dumps
from tests.whatif.test_whatif_records import profiles

Sample = Callable[[Path], Path]


def _draw() -> random.Random:
    return random.Random(43)


def _time(seconds: int) -> str:
    return f"10:{seconds // 60:02}:{seconds % 60:02}"


def nvidia_smi() -> Iterator[str]:
    yield (
        "timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], temperature.gpu, "
        "power.draw [W], clocks_event_reasons.active"
    )
    luck = _draw()
    for at in range(0, 150, 5):
        for gpu in range(2):
            hot = gpu == 1 and 50 <= at < 100
            clock, reason = (1200, "0x0000000000000020") if hot else (1980, "0x0000000000000000")
            yield (
                f"2026/11/20 {_time(at)}.{luck.randrange(1000):03}, {gpu}, {luck.randint(95, 99)} "
                f"%, {clock} MHz, {88 if hot else 61}, {655.1 - 200 * hot} W, {reason}"
            )


def dcgmi_dmon() -> Iterator[str]:
    for at in range(30):
        if at % 10 == 0:
            yield from (
                "#Entity   GPUTL        SMCLK        POWER        TMPTR        DVCCTR",
                "ID",
            )
        for gpu in range(2):
            clock = 1200 if gpu and 10 <= at < 20 else 1980
            yield f"GPU {gpu}     97           {clock}         655.123      61           0"


def prometheus() -> Iterator[str]:
    result = [
        {
            "metric": {
                "__name__": name,
                "Hostname": "gpu00",
                "gpu": str(gpu),
                "UUID": f"GPU-{gpu}",
            },
            "values": [[1795168800 + 15 * k, f"{value + k % 3}"] for k in range(20)],
        }
        for gpu in range(2)
        for name, value in (("DCGM_FI_DEV_GPU_UTIL", 62), ("DCGM_FI_DEV_SM_CLOCK", 1977))
    ]
    yield json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def grafana() -> Iterator[str]:
    yield '"Time","gpu01","gpu02"'
    for at in range(30):
        yield f"2026-11-20 {_time(15 * at)},{90 + at % 4} %,{40 if 10 <= at < 20 else 91} %"


def _iterations(after: Callable[[random.Random], Iterator[str]]) -> Iterator[str]:
    luck = _draw()
    for k in range(1, 9):
        yield (
            f" [2026-11-20 {_time(60 * k)}] iteration {10 * k:8}/  500000 | consumed samples: "
            f"{10240 * k:12} | elapsed time per iteration (ms): {12345 + luck.random():.1f} | "
            "throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-04 |"
        )
        yield from after(luck)


TIMERS = ("forward-backward", "forward-compute", "backward-compute", "optimizer")


def megatron_minmax() -> Iterator[str]:
    def times(luck: random.Random) -> Iterator[str]:
        yield "(min, max) time across ranks (ms):"
        for k, name in enumerate(TIMERS):
            low = 4000 / (k + 1) + luck.random()
            yield f"    {name} {'.' * (47 - len(name))}: ({low:.2f}, {low + 900:.2f})"

    return _iterations(times)


def megatron_max() -> Iterator[str]:
    def times(luck: random.Random) -> Iterator[str]:
        yield "max time across ranks (ms):"
        for name in TIMERS:
            yield f"    {name} {'.' * (47 - len(name))}: {4000 + luck.random():.2f}"

    return _iterations(times)


def megatron_all() -> Iterator[str]:
    def times(luck: random.Random) -> Iterator[str]:
        yield "times across ranks (ms):"
        for name in TIMERS:
            yield f"  {name}:"
            for rank in range(4):
                yield f"     rank {rank:2d}: {4000 + 500 * (rank == 2) + luck.random():.2f}"

    return _iterations(times)


def megatron_straggler() -> Iterator[str]:
    luck = _draw()
    for k in range(12):
        yield (
            f" 0: INFO:megatron.core.utils:[2026-11-20 {_time(60 * k)}] | MnRtt/Rnk: "
            f"{3450 + luck.random():.2f}ms/8 | MxRtt/Rnk: {4460 + luck.random():.2f}ms/21 | "
            "MnPwr/Rnk: 401796W/21 | MxPwr/Rnk: 683801W/18 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk: 88C/21 "
            "| MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6 | MnClk/Rnk: 1290MHz/21 | MxClk/Rnk: "
            "1980MHz/3 | MnDRtt/Rnk: 2.51ms/21 | MxDRtt/Rnk: 9.96ms/8 | MnEtpt/Rnk: "
            "312.10TF/21 | MxEtpt/Rnk: 404.20TF/8"
        )


def deepspeed() -> Iterator[str]:
    luck = _draw()
    for k in range(20):
        head = f"[2026-11-20 {_time(7 * k)},123] [INFO] [logging.py:96:log_dist] [Rank 0]"
        forward, backward = 120 + luck.random(), 240 + luck.random()
        yield (
            f"{head} time (ms) | fwd_microstep: {forward:.2f} | bwd_microstep: {backward:.2f} | "
            f"bwd_inner_microstep: {backward - 20:.2f} | bwd_allreduce_microstep: 19.80 | "
            "step_microstep: 33.10"
        )
        yield (
            f"{head} time (ms) | fwd: {forward:.2f} | bwd: {backward:.2f} | bwd_inner: "
            f"{backward - 20:.2f} | bwd_allreduce: 19.80 | step: 33.10"
        )
        yield f"{head} step={k + 1}, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]"


def torchtitan() -> Iterator[str]:
    luck = _draw()
    for k in range(1, 20):
        yield (
            f"[rank0]:[titan] 2026-11-20 {_time(9 * k)},512 - root - INFO - step: {10 * k:2}  "
            f"loss: {8 - k / 10:7.4f}  grad_norm:  1.2345  memory: 40.21GiB(50.81%)  tps: "
            f"{5120 + luck.randrange(99):,}  tflops: 210.12  mfu: 21.25%"
        )


def nemo() -> Iterator[str]:
    luck = _draw()
    for k in range(20):
        yield (
            f"Training epoch 0, iteration {k}/99 | lr: 1.499e-07 | global_batch_size: 512 | "
            f"global_step: {k} | reduced_train_loss: 11.03 | train_step_timing in s: "
            f"{6 + luck.random() / 10:.3f} | consumed_samples: {512 * (k + 1)}"
        )


def sacct() -> Iterator[str]:
    yield "JobID|JobName|Partition|NodeList|Start|End|State|AllocTRES"
    for job, name, nodes, start, end in (
        (1234, "pretrain", "gpu[01-04]", "10:00:00", "12:00:00"),
        (1235, "eval", "gpu03", "10:30:00", "10:50:00"),
        (1236, "preprocess", "gpu[02-03],cpu7", "11:10:00", "11:25:00"),
        (1237, "cut", "gpu01", "11:20:00", "Unknown"),
    ):
        span = f"2026-11-20T{start}|" + (f"2026-11-20T{end}" if end[0].isdigit() else end)
        yield f"{job}|{name}|gpu|{nodes}|{span}|COMPLETED|cpu=64,gres/gpu=32"


def trainer_state() -> Iterator[str]:
    history = [
        {"epoch": k / 10, "grad_norm": 1.2, "learning_rate": 5e-5, "loss": 2.5 - k / 50,
         "step": 10 * k}
        for k in range(1, 20)
    ]  # fmt: skip
    history.append({"epoch": 2.0, "step": 200, "train_runtime": 1400.2, "train_loss": 2.0})
    yield json.dumps(
        {"best_metric": None, "epoch": 2.0, "global_step": 200, "log_history": history,
         "logging_steps": 10, "max_steps": 200, "num_train_epochs": 2}, indent=2,
    )  # fmt: skip


def throughput() -> Iterator[str]:
    yield "time,host,samples_per_second"
    luck = _draw()
    for at in range(0, 400, 10):
        for host in range(2):
            slow = 0.55 if host and 100 <= at < 200 else 1.0
            yield f"{at},gpu0{host},{slow * (2000 + luck.randrange(20))}"


def steps_with_hosts() -> Iterator[str]:
    yield "timestamp,hostname,rank,step,step_time_ms,loss"
    luck = _draw()
    for step in range(40):
        for rank in range(4):
            slow = 1.8 if rank == 2 and step >= 20 else 1.0
            yield (
                f"2026-11-20T{_time(step)}+00:00,node-{rank // 2},{rank},{step},"
                f"{slow * (350 + luck.randrange(9))},2.3"
            )


def text(lines: Callable[[], Iterator[str]], suffix: str) -> Sample:
    """A sample of one file."""

    def write(folder: Path) -> Path:
        path = folder / f"{lines.__name__.replace('_', '-')}{suffix}"
        path.write_text("\n".join((*lines(), "")))
        return path

    return write


SAMPLES: dict[str, Sample] = {
    "nvidia-smi": text(nvidia_smi, ".csv"),
    "dcgmi dmon": text(dcgmi_dmon, ".txt"),
    "prometheus": text(prometheus, ".json"),
    "grafana": text(grafana, ".csv"),
    "megatron minmax": text(megatron_minmax, ".log"),
    "megatron max": text(megatron_max, ".log"),
    "megatron all": text(megatron_all, ".log"),
    "megatron straggler": text(megatron_straggler, ".log"),
    "deepspeed": text(deepspeed, ".log"),
    "torchtitan": text(torchtitan, ".log"),
    "nemo": text(nemo, ".log"),
    "sacct": text(sacct, ".txt"),
    "trainer_state": text(trainer_state, ".json"),
    "throughput": text(throughput, ".csv"),
    "steps with hosts": text(steps_with_hosts, ".csv"),
    "profiles": profiles,
    "flight recorder": lambda folder: dumps(folder, as_json),
}
"""What writes a record into a folder and returns its path: a file, or that folder."""
