"""Write examples/logs: a small log of each kind that `simstrag trace import` reads.

Run `python -m tools.make_example_logs`.  Every number is by a formula, none was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "examples" / "logs"
HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")
BEGIN = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)
STEPS, CLEAN, TRANSFER = 120, 0.35, 0.04
SLOW = {2: (30, 80, 1.8), 0: (95, 110, 1.4)}
"""Of each slow rank: first step, end, and factor."""
MICRO = 1e6


def seconds(rank: int, k: int) -> float:
    """A local step: 0.35 s with two waves on it, times the factor of a slow stretch."""
    wave = 0.03 * math.sin(1.7 * k + rank) + 0.02 * math.sin(0.31 * k * (rank + 1))
    first, end, factor = SLOW.get(rank, (0, 0, 1.0))
    return CLEAN * (1 + wave) * (factor if first <= k < end else 1.0)


def starts() -> Iterator[tuple[int, float]]:
    """Each step and the second at which it begins on all ranks."""
    now = 0.0
    for k in range(STEPS):
        yield k, now
        now += max(seconds(rank, k) for rank in range(len(HOSTS))) + TRANSFER


def load(rank: int, k: int) -> float:
    """Percent: 55 by the job, and on the slow host as much more as it is slowed."""
    first, end, factor = SLOW.get(rank, (0, 0, 1.0))
    return 55 + 2 * math.sin(0.9 * k + rank) + (50 * (factor - 1) if first <= k < end else 0.0)


def stamp(second: float) -> str:
    """A date in ISO 8601, in UTC."""
    moment = BEGIN + timedelta(seconds=second)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def rows(header: str, lines: Iterator[str]) -> str:
    """A CSV file."""
    return "\n".join([header, *lines]) + "\n"


def steps() -> str:
    """What a training loop prints: the whole step, and the time in the all-reduce."""

    def lines() -> Iterator[str]:
        for k, start in starts():
            whole = max(seconds(rank, k) for rank in range(len(HOSTS))) + TRANSFER
            for rank, host in enumerate(HOSTS):
                waiting = whole - seconds(rank, k)
                yield f"{host},{k},{stamp(start)},{1000 * whole:.2f},{1000 * waiting:.2f}"

    return rows("hostname,iteration,start,step_time_ms,allreduce_ms", lines())


def episodes() -> str:
    """An operator's list of incidents."""
    noted = (
        (2, 30, 80, "noisy neighbour, about 1.8x"), (0, 95, 110, "backup ran, 40% slower"),
        (3, 112, 118, "again 1.5x"),
    )  # fmt: skip
    at = dict(starts())
    lines = (f'{stamp(at[a])},{stamp(at[b])},{HOSTS[r]},"{note}"' for r, a, b, note in noted)
    return rows("start,end,host,note", lines)


def utilisation() -> str:
    """What a monitoring system exports: dates with a zone, and names of hosts."""
    lines = (
        f"{stamp(start)[:-1]}+00:00,{host},{load(rank, k):.0f}"
        for k, start in starts() if k % 5 == 0
        for rank, host in enumerate(HOSTS)
    )  # fmt: skip
    return rows("timestamp,hostname,gpu_util", lines)


def prometheus() -> str:
    """The answer of /api/v1/query_range?query=DCGM_FI_DEV_GPU_UTIL."""
    result = [
        {
            "metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "Hostname": host, "gpu": "0"},
            "values": [
                [round(BEGIN.timestamp() + start, 3), f"{load(rank, k):.0f}"]
                for k, start in starts() if k % 5 == 0
            ],
        }
        for rank, host in enumerate(HOSTS)
    ]  # fmt: skip
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(document, indent=1) + "\n"


def grafana() -> str:
    """A panel of Grafana: "Download CSV", series joined by time."""
    header = ",".join(['"Time"', *(f'"{host}"' for host in HOSTS)])
    lines = (
        ",".join([stamp(start)[:19].replace("T", " "),
                  *(f"{load(rank, k):.1f}%" for rank in range(len(HOSTS)))])
        for k, start in starts() if k % 5 == 0
    )  # fmt: skip
    return rows(header, lines)


def wandb_chart() -> str:
    """A chart of Weights & Biases: "Export CSV", a column per run with its least and most."""
    columns = [f'"{host} - step_time{more}"' for host in HOSTS for more in ("", "__MIN", "__MAX")]
    lines = (
        ",".join([f'"{k}"', *(f'"{seconds(rank, k):.4f}"'
                              for rank in range(len(HOSTS)) for _ in range(3))])
        for k in range(STEPS)
    )  # fmt: skip
    return rows(",".join(['"Step"', *columns]), lines)


def wandb_history(rank: int) -> str:
    """`run.history()` of one rank's run, an entry per line."""
    entries = (
        {"_step": k, "_timestamp": round(BEGIN.timestamp() + start, 3),
         "rank": rank, "host": HOSTS[rank], "step_time": round(seconds(rank, k), 4), "loss": None}
        for k, start in starts()
    )  # fmt: skip
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def scalars(rank: int) -> list[list[float]]:
    """The triples of TensorBoard: wall time, step, value."""
    return [[round(BEGIN.timestamp() + start, 3), k, round(seconds(rank, k), 4)]
            for k, start in starts()]  # fmt: skip


def profile(rank: int) -> str:
    """A Chrome trace of torch.profiler with six steps: kernels, and a collective after them."""
    events = []
    for k, start in list(starts())[28:34]:
        whole = max(seconds(r, k) for r in range(len(HOSTS))) + TRANSFER
        computing = seconds(rank, k)
        events += [
            {"ph": "X", "cat": kind, "name": name, "ts": round((start + at) * MICRO),
             "dur": round(length * MICRO)}
            for kind, name, at, length in (
                ("user_annotation", f"ProfilerStep#{k}", 0.0, whole),
                ("kernel", "gemm", 0.0, computing),
                ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", computing, whole - computing),
            )
        ]  # fmt: skip
    return json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}, indent=0) + "\n"


def logs() -> dict[str, str]:
    """Every file of the folder by its name."""
    made = {
        "steps.csv": steps(), "episodes.csv": episodes(), "utilisation.csv": utilisation(),
        "prometheus.json": prometheus(), "gpu-utilization-data.csv": grafana(),
        "wandb-chart.csv": wandb_chart(),
        "wandb-history.jsonl": "".join(map(wandb_history, range(len(HOSTS)))),
    }  # fmt: skip
    for rank, host in enumerate(HOSTS):
        lines = (",".join(map(str, triple)) for triple in scalars(rank))
        made[f"run-{host}-tag-step_time.csv"] = rows("Wall time,Step,Value", lines)
        made[f"run-{host}-tag-step_time.json"] = json.dumps(scalars(rank)) + "\n"
        made[f"profile-rank{rank}.json"] = profile(rank)
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in logs().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
