"""Records from what training loops print: one sample of each format, and its variants."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simstrag.errors import InputError
from simstrag.records import megatron, summaries, training_logs
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.record import (
    ALL_REDUCE,
    BACKWARD,
    COMPUTE,
    FORWARD,
    POWER,
    SM_CLOCK,
    TEMPERATURE,
    Record,
)

DATA = Path(__file__).parents[1] / "data" / "records"
READERS = (*megatron.READERS, *training_logs.READERS, *summaries.READERS)


def log_file(content: str | bytes, name: str = "train.log") -> LogFile:
    data = content.encode() if isinstance(content, str) else content
    return LogFile(Path(name), data)


def reader_of(file: LogFile) -> Reader:
    found = [each for each in READERS if each.recognise(file)]
    assert found, "no reader"
    return found[0]


def read(*contents: str | bytes, names: tuple[str, ...] = ("train.log",)) -> Record:
    files = [log_file(each, name) for each, name in zip(contents, names, strict=True)]
    return reader_of(files[0]).read(files, None)


def seconds_of(record: Record) -> dict[str, list[float]]:
    """Seconds of each part, by step and rank."""
    columns = record.duration.reshape(-1, len(record.kinds)).T
    return {kind: column.tolist() for kind, column in zip(record.kinds, columns, strict=True)}


TITAN = "".join(
    f"[rank0]:[titan] 2026-11-20 10:00:{second:06.3f} - root - INFO - ".replace(".", ",")
    + f"step: {step:2}  loss: {8.1:7.4f}  grad_norm:  3.6855  memory:  2.47GiB(3.12%)  "
    f"tps: {tps:,}  tflops: 1.90  mfu: 0.19%\n"
    for step, second, tps in ((1, 3.5, 350), (10, 8.0, 16384), (20, 13.0, 16380), (30, 20.0, 9000))
)
BARE_TITAN = "".join(line.partition("INFO - ")[2] for line in TITAN.splitlines(keepends=True))
MICRO = (
    "[2024-04-04 09:09:53,313] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    "fwd_microstep: 500.0 | bwd_microstep: 1000.0 | bwd_inner_microstep: 900.0 | "
    "bwd_allreduce_microstep: 100.0 | step_microstep: 50.0\n"
)
DEEPSPEED = "".join(
    "[2024-04-04 09:09:50,311] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    "optimizer_allgather: 884.11 | optimizer_gradients: 6.43 | optimizer_step: 23.44\n"
    f"[2024-04-04 09:09:53,312] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, "
    f"lr=[0.0003], mom=[(0.9, 0.999)]\n{MICRO}"
    f"[2024-04-04 09:09:5{step},313] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    "fwd: 6000.00 | bwd: 18000.00 | bwd_inner: 17700.00 | bwd_allreduce: 300.00 | step: 1100.00\n"
    for step in (1, 2, 3)
)
OLD_DEEPSPEED = (
    "[2023-02-27 23:34:53,987] [INFO] [logging.py:60:log_dist] [Rank 0] rank=0 time (ms) | "
    "train_batch: 0.00 | batch_input: 7.57 | forward: 519.08 | backward_microstep: 1815.10 | "
    "backward: 1814.87 | backward_inner_microstep: 1814.17 | backward_inner: 1813.91 | "
    "backward_allreduce_microstep: 0.35 | backward_allreduce: 0.12 | comms: 126.14 | "
    "step: 18.64 | _step_clipping: 0.10\n"
)
THROUGHPUT = "".join(
    f"[2023-08-02 00:41:{second},936] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/"
    f"global_step={step}, RunningAvgSamplesPerSec=220.69, CurrSamplesPerSec=222.88, "
    "MemAllocated=0.07GB, MaxMemAllocated=1.36GB\n"
    for step, second in ((10, 10), (20, 15), (30, 20))
)
NEMO = "".join(
    f"Training epoch 0, iteration {step}/249 | lr: 1.961e-06 | global_batch_size: 8 | "
    f"global_step: {step} | reduced_train_loss: 1.315 | train_step_timing in s: {seconds}\n"
    for step, seconds in ((0, 7.126), (1, 2.505), (2, 2.5))
)
NEMO_BAR = (
    "".join(
        f"\rEpoch 0: : {step:3}%|█████     | {step}/100 [10:48<00:00, reduced_train_loss=0.0172, "
        f"global_step={step - 1}.00, consumed_samples=25600.0, train_step_timing in s=3.130]"
        for step in (1, 2, 3)
    )
    + "\n"
)
BAR = (
    "Loading checkpoint shards: 100%|██████████| 2/2 [00:05<00:00,  2.50s/it]\n"
    + "".join(
        f"\rEpoch {epoch}:  {step}%|▍         | {step}/8 [00:09<03:23, {speed}, v_num=0]"
        for epoch, step, speed in ((0, 7, "2.00it/s"), (0, 8, "1.25s/it"), (1, 1, "4.00it/s"))
    )
    + "\n"
)
TRAINER_BAR = "".join(
    f"0: {{'loss': 3.02, 'grad_norm': 1.44, 'learning_rate': 4.9e-05, 'epoch': 0.0{k}}}\n"
    f"  2%|▏         | {18 * k}/1136 [00:08<08:31,  2.00it/s]\n"
    for k in (1, 2)
)
TRAINER = (
    "{'loss': 3.02, 'grad_norm': 1.44, 'learning_rate': 4.9e-05, 'epoch': 0.01}\n"
    "{'train_runtime': 120.5, 'train_samples_per_second': 16.8, 'train_steps_per_second': 2.1, "
    "'train_loss': 2.5, 'epoch': 1.0}\n"
)
IMAGENET = "".join(
    f"Epoch: [{epoch}][{batch:5d}/500]\tTime  0.400 ( 0.401)\tData  0.100 ( 0.050)\t"
    "Loss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (  0.10)\n"
    for epoch, batch in ((0, 490), (1, 0), (1, 10))
)
TIMM = "".join(
    f"Train: 0 [{batch:>4d}/1251 ({batch / 12.5:>3.0f}%)]  Loss: 6.9 (6.95)  Time: 0.352s,  "
    "727.27/s  (0.401s,  638.40/s)  LR: 1.000e-05  Data: 0.012 (0.050)\n"
    for batch in (0, 50, 100)
)
NANO = "step 0: train loss 10.9, val loss 10.9\n" + "".join(
    f"iter {step}: loss 2.5000, time {ms}ms, mfu 30.00%\n"
    for step, ms in ((0, "3,021.11"), (1, "345.67"), (2, "350.00"))
)
BUILD_NANO = "".join(
    f"step {step:5d} | loss: 10.938572 | lr: 6.0000e-05 | norm: 27.0145  | dt: 352.10ms | "
    "tok/sec: 143130.26\n"
    for step in (0, 1, 2)
)
PLAIN = "Step 10: 0.352 s\nStep 11: 0.360 s\nStep 12: 0.352 s\n"
PAIRS = "".join(
    f"2026-11-20 10:00:{step:02} rank={rank} step={step} step_time={0.3 + rank / 10:.3f}\n"
    for step in range(17, 20)
    for rank in range(3)
)
ACCELERATE = "".join(
    f"11/20/2026 10:00:0{step} - INFO - __main__ - epoch 0 step {step} batch_time 0.25 loss 2.1\n"
    for step in (1, 2, 3)
)
RATES = "".join(
    f"step {k}/5000 loss 2.1 {rate} tok/s tokens/s: {rate}\n"
    for k, rate in ((1, "2,000.0"), (2, "2,000.0"), (3, "1,000.0"))
)
ITERATIONS = "".join(
    f"[default7]: iteration {step:8d}/  115311 | consumed samples:      9841584 | consumed tokens: "
    f" 20155564032 | elapsed time per iteration (s): {seconds} | learning rate: 5.969E-05 | "
    "samples per second: 19.463 | TFLOPs: 149.02 |\n"
    for step, seconds in ((12695, 105.22), (12696, 110.0), (12697, 105.0))
)
NANOTRON = "".join(
    f"08/31/2024 14:37:3{step} [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 15 | consumed_tokens: "
    f"512 | elapsed_time_per_iteration_ms: {ms} | tokens_per_sec: 109 | lr: 0.00015\n"
    for step, ms in ((1, "4.71K"), (2, "512"), (3, "510"))
)
EZPZ = "".join(
    f"[2024-06-21 10:50:4{step}][INFO][training:1609] -  iteration=       {step}/  317892 | "
    "consumed_samples=         768 | elapsed_time_per_iteration_ms=108893.2 | learning_rate=1.9e-08"
    " | global_batch_size=  768 | lm loss=11.1 |\n"
    for step in (1, 2, 3)
)
SAMPLES = {
    "torchtitan": (TITAN, "torchtitan", [10, 20, 30], {COMPUTE: [0.5, 0.5, 0.7]}),
    "torchtitan, no times": (
        BARE_TITAN, "torchtitan", [1, 10, 20, 30],
        {COMPUTE: [1 / 350, 1 / 16384, 1 / 16380, 1 / 9000]},
    ),
    "DeepSpeed": (
        DEEPSPEED, "DeepSpeed", [1, 2, 3],
        {"forward": [6.0] * 3, "backward": [17.7] * 3, ALL_REDUCE: [0.3] * 3,
         "optimizer": [1.1] * 3},
    ),
    "DeepSpeed, micro steps": (
        MICRO * 2, "DeepSpeed", [0, 1],
        {"forward": [0.5] * 2, "backward": [0.9] * 2, ALL_REDUCE: [0.1] * 2,
         "optimizer": [0.05] * 2},
    ),
    "DeepSpeed's pipelines": (
        OLD_DEEPSPEED * 2, "DeepSpeed", [0, 1],
        {"input": [0.00757] * 2, "forward": [0.51908] * 2, "backward": [1.81417] * 2,
         ALL_REDUCE: [0.00035] * 2, "optimizer": [0.01864] * 2},
    ),
    "DeepSpeed's rates": (THROUGHPUT, "DeepSpeed throughput", [20, 30], {COMPUTE: [0.5, 0.5]}),
    "NeMo": (NEMO, "NeMo", [0, 1, 2], {COMPUTE: [7.126, 2.505, 2.5]}),
    "NeMo's bar": (NEMO_BAR, "NeMo", [0, 1, 2], {COMPUTE: [3.13] * 3}),
    "Lightning's bar": (BAR, "a progress bar", [7, 8, 9], {COMPUTE: [0.5, 1.25, 0.25]}),
    "Trainer's bar": (TRAINER_BAR, "a progress bar", [18, 36], {COMPUTE: [0.5, 0.5]}),
    "ImageNet": (
        IMAGENET, training_logs.FORMATS[4].name, [490, 500, 510],
        {"input": [0.1] * 3, COMPUTE: [0.3] * 3},
    ),
    "timm": (
        TIMM, training_logs.FORMATS[4].name, [0, 50, 100],
        {"input": [0.012] * 3, COMPUTE: [0.34] * 3},
    ),
    "nanoGPT": (NANO, "a step log", [0, 1, 2], {COMPUTE: [3.02111, 0.34567, 0.35]}),
    "build-nanogpt": (BUILD_NANO, "a step log", [0, 1, 2], {COMPUTE: [0.3521] * 3}),
    "plain": (PLAIN, "a step log", [10, 11, 12], {COMPUTE: [0.352, 0.36, 0.352]}),
    "pairs": (PAIRS, "a step log", [17, 18, 19], {COMPUTE: [0.3, 0.4, 0.5] * 3}),
    "Accelerate": (ACCELERATE, "a step log", [1, 2, 3], {COMPUTE: [0.25] * 3}),
    "rates": (RATES, "a step log", [1, 2, 3], {COMPUTE: [1 / 2000, 1 / 2000, 1 / 1000]}),
    "BigScience": (ITERATIONS, "Megatron-LM", [12695, 12696, 12697],
                   {COMPUTE: [105.22, 110.0, 105.0]}),
    "nanotron": (NANOTRON, "Megatron-LM", [1, 2, 3], {COMPUTE: [4.71, 0.512, 0.51]}),
    "Argonne": (EZPZ, "Megatron-LM", [1, 2, 3], {COMPUTE: [108.8932] * 3}),
}  # fmt: skip
"""What a tool prints, its name, numbers of steps, and seconds of parts by step and rank."""

SCORES = "".join(
    f"2026-11-20 10:0{k}:00 INFO:\nGPU relative performance:\n Worst performing 2/8 ranks:\n"
    f"  Rank={rank} Node=n{rank} Score={score}\n  Rank=1 Node=n1 Score=0.8\n"
    " Best performing 1/8 ranks:\n  Rank=0 Node=n0 Score=1.00\n\n"
    f"GPU individual performance:\n  Rank=5 Node=n5 Score=0.9{k}\n\n"
    for k, (rank, score) in enumerate(((3, 0.5), (3, 0.7), (4, 0.6)))
)
PRINTED = (
    "=== GPUs perf scores. Report from rank 0 ===\nGPU relative perf scores: {0: 1.0, 1: 0.55}\n"
)
SECTIONS = "".join(
    json.dumps({"rank": rank, "sections": {
        "train_step": {"median_ms": 900.0},
        "forward": {"median_ms": 100.0 + 50 * rank, "min_ms": 90.0, "max_ms": 200.0},
        "backward": {"median_ms": 200.0},
    }}) + "\n"
    for _ in range(2) for rank in range(2)
)  # fmt: skip
SECTIONS_CSV = "rank,section,median (ms),max (ms)\n" + "".join(
    f"{rank},{name},{ms + 50 * rank},500\n"
    for rank in range(2) for name, ms in (("forward", 100.0), ("backward", 200.0))
)  # fmt: skip
TRACEML = json.dumps({
    "schema_version": 1.7, "meta": {"world_size": 3}, "system": {}, "process": {},
    "step_memory": {}, "step_time": {
        "global": {"window": {"steps_analyzed": 128}},
        "groups": {"by": "global_rank", "rows": {str(rank): {
            "identity": {"global_rank": rank, "hostname": "h0"},
            "metrics": {"step_time_ms": 100.0, "input_wait_ms": 20.0, "h2d_ms": None,
                        "forward_ms": 25.0 + rank, "backward_ms": 40.0, "optimizer_ms": 5.0,
                        "residual_ms": 10.0},
        } for rank in range(2)}},
    },
})  # fmt: skip
STATE = json.dumps({"epoch": 1.0, "global_step": 2, "log_history": [{"loss": 2.1, "step": 1}]})
NSIGHT = (
    "Generating SQLite file /tmp/a.sqlite from /tmp/a.nsys-rep\nProcessing [/tmp/a.sqlite] with "
    "[/opt/nvidia/nsight-systems/host/reports/nvtx_sum.py]... \n\n"
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,"
    "Range\n27.7,9000000000,1,1.0,1.0,1,1,0.0,PushPop,:step_0\n"
    "19.3,500000000,50,1.0,1.0,1,1,0.0,PushPop,data_load\n"
    "11.8,10000000000,50,1.0,1.0,1,1,0.0,PushPop,:backward\n"
    "9.4,5000000000,50,1.0,1.0,1,1,0.0,PushPop,:forward\n"
    "9.0,4000000000,500,1.0,1.0,1,1,0.0,PushPop,:attention_forward\n"
)
SUMMARIES = {
    "scores": (SCORES, "nvidia-resiliency-ext"), "printed": (PRINTED, "nvidia-resiliency-ext"),
    "sections": (SECTIONS, "reports of sections"),
    "sections as CSV": (SECTIONS_CSV, "reports of sections"), "TraceML": (TRACEML, "TraceML"),
    "trainer_state": (STATE, "trainer_state.json"), "Nsight": (NSIGHT, "Nsight Systems"),
    "Trainer": (TRAINER, "Hugging Face's console"),
}  # fmt: skip
MORE = {
    "prose": "The loss at step 10 was 2.1 after 3 s.\nIt took time.\n",
    "CSV of steps": "rank,step,seconds\n0,1,0.35\n1,1,0.36\n",
    "nvidia-smi": "timestamp, index, utilization.gpu [%]\n2026/11/20 10:00:00.000, 0, 97 %\n",
    "JSON lines": '{"step": 1, "time": 0.5}\n{"step": 2, "time": 0.5}\n',
    "traceback": 'Traceback (most recent call last):\n  File "train.py", line 3\nKeyError: 1\n',
    "downloads": "Downloading: 100%|███| 5/5 [00:01<00:00,  3.00it/s]\n" * 3,
    "kernels": "Time (%),Total Time (ns),Instances,Avg (ns),Name\n50,10,2,5,gemm\n",
    "empty": "",
    "binary": "\0step 1: 2 s\nstep 2: 3 s\n",
}  # fmt: skip
"""Texts that no reader here may claim."""


def parts_of(record: Record) -> tuple[list[int], dict[str, list[float]]]:
    return np.unique(record.step).tolist(), seconds_of(record)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_log_has_the_seconds_that_its_tool_prints(sample: str) -> None:
    text, name, steps, parts = SAMPLES[sample]
    record = read(text)
    found = parts_of(record)
    assert record.form == name
    assert found[0] == steps
    assert found[1].keys() == parts.keys()
    for part, seconds in parts.items():
        assert found[1][part] == pytest.approx(seconds)
    assert not record.is_timed


def _coloured(text: str) -> str:
    return "\n".join(f"\x1b[31m{line}\x1b[0m" for line in text.splitlines()) + "\n"


VARIANTS: dict[str, Callable[[str], bytes]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "colours": lambda text: _coloured(text).encode(),
    "blank lines": lambda text: text.replace("\n", "\n\n").encode(),
    "other bytes": lambda text: text.encode() + b"\xff\xfe\n",
    "cut last line": lambda text: text.encode() + text.rstrip("\n").splitlines()[-1][:-1].encode(),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_variants_of_a_log_say_the_same(sample: str, variant: str) -> None:
    text, *_ = SAMPLES[sample]
    if variant == "cut last line" and text in {MICRO * 2, OLD_DEEPSPEED * 2}:
        pytest.skip("lines without numbers of steps are steps of their own")
    expected = parts_of(read(text))
    assert parts_of(read(VARIANTS[variant](text))) == expected


@pytest.mark.parametrize("prefix", ["node-3: ", "[default0]: ", "[rank0]:", "  0: ", "worker-1: "])
@pytest.mark.parametrize("sample", sorted(SAMPLES.keys() - {"pairs"}))
def test_prefixes_of_launchers_change_nothing(sample: str, prefix: str) -> None:
    text, *_ = SAMPLES[sample]
    assert parts_of(read("".join(prefix + s for s in text.splitlines(True)))) == parts_of(
        read(text)
    )


def test_each_text_is_claimed_by_one_reader_or_none() -> None:
    samples = {key: (row[0], row[1]) for key, row in SAMPLES.items()} | SUMMARIES
    for path in DATA.glob("megatron-*.log"):
        samples[path.name] = path.read_text(), "Megatron-LM"
    for key, (text, name) in samples.items():
        assert [r.name for r in READERS if r.recognise(log_file(text))] == [name], key
    for key, text in MORE.items():
        assert [r.name for r in READERS if r.recognise(log_file(text))] == [], key


def test_ranks_that_lines_name_are_ranks() -> None:
    assert np.unique(read(PAIRS).rank).tolist() == [0, 1, 2]
    assert np.unique(read(NANO).rank).tolist() == [0]


def test_a_file_of_each_rank_is_one_record() -> None:
    files = BUILD_NANO, BUILD_NANO.replace("352.10", "704.20")
    record = read(*files, names=("rank_1.log", "rank_5.log"))
    assert np.unique(record.rank).tolist() == [1, 5]
    assert seconds_of(record)[COMPUTE] == pytest.approx([0.3521, 0.7042] * 3)


def test_a_restart_counts_a_step_once_and_says_so() -> None:
    record = read(PLAIN + "Step 11: 0.5 s\nStep 12: 0.6 s\n")
    assert seconds_of(record)[COMPUTE] == pytest.approx([0.352, 0.5, 0.6])
    assert record.missing == ("steps that stand twice, after a restart, count once: 1",)


def test_means_times_and_derived_seconds_are_said() -> None:
    record = read(TITAN)
    assert record.notes[0] == "Derived: a step here is the mean of 10 iterations."
    assert record.notes[1].startswith("Derived: seconds are between the times of two lines")
    assert record.began == "2026-11-20T10:00:08"
    assert record.time is not None
    assert record.time.tolist() == pytest.approx([0, 5, 12])
    assert "Derived: relative, from the rate: seconds are 1 over it." in read(BARE_TITAN).notes
    assert read(BAR).unseen[0].what.startswith("pauses of single steps")


def test_a_log_without_times_of_steps_says_what_has_them() -> None:
    with pytest.raises(InputError, match=r"no times of steps, but the mean of 2.1 steps a second;"):
        read(TRAINER)
    with pytest.raises(InputError, match=r"trainer_state.json has losses and no times of steps;"):
        read(STATE)


# -- Megatron-LM


def megatron_log(name: str) -> Record:
    return read((DATA / f"megatron-{name}.log").read_bytes())


def test_extremes_of_ranks_are_bounds_of_unknown_ranks() -> None:
    record = megatron_log("minmax")
    bounds = {each.quantity: each for each in record.bounds}
    forward = bounds[FORWARD]
    assert forward.step.tolist() == list(range(10, 301, 10))
    assert np.median(forward.high - forward.low) == pytest.approx(1.9, abs=0.02)
    assert np.median(bounds[BACKWARD].high - bounds[BACKWARD].low) < 0.12
    assert set(forward.high_rank) == {-1}
    (unseen,) = record.unseen
    assert "--timing-log-option all" in unseen.remedy
    assert unseen.hides_ranks
    assert seconds_of(record)[COMPUTE][:2] == pytest.approx([12.3391, 12.3492])
    assert record.time is not None
    assert record.time[:3].tolist() == [0, 60, 120]
    assert record.began == "2026-11-20T10:01:15"


def test_greatest_times_alone_have_no_least() -> None:
    text = (DATA / "megatron-minmax.log").read_text()
    record = read(
        text.replace("(min, max) time", "max time")
        .replace("(3998.54, ", "")
        .replace("5899.37)", "5899.37")
    )
    (forward,) = [each for each in record.bounds if each.quantity == FORWARD and len(each.low)]
    assert np.isnan(forward.low[0])
    assert forward.high[0] == pytest.approx(5.89937)


def test_the_straggler_detector_names_ranks_and_prints_milliwatts() -> None:
    record = megatron_log("straggler")
    bounds = {each.quantity: each for each in record.bounds}
    assert np.median(bounds[FORWARD].high) == pytest.approx(4.47, abs=0.01)
    assert np.median(bounds[FORWARD].low) == pytest.approx(3.45, abs=0.01)
    assert set(bounds[FORWARD].high_rank) == set(bounds[SM_CLOCK].low_rank) == {21}
    assert bounds[SM_CLOCK].low[0] == 1290
    assert bounds[TEMPERATURE].high[0] == 88
    assert bounds[POWER].low[0] == pytest.approx(401.796)
    assert any("milliwatts" in note for note in record.notes)
    assert record.began == "2026-11-20T10:00:00"
    assert bounds[FORWARD].step[:3].tolist() == [0, 60, 120]
    assert not any(each.hides_ranks for each in record.unseen)


def test_the_ranks_of_lowest_throughput_are_counted() -> None:
    line = (
        " 0: INFO:megatron.core.utils:^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 236.02/21, "
        "296.17/2,\n"
    )
    record = read((DATA / "megatron-straggler.log").read_text() + 2 * line)
    assert record.notes[-1] == (
        "Measured: the lowest throughput has rank 21 (2 times), rank 2 (2 times)."
    )


def test_a_log_of_iterations_alone_shows_no_rank() -> None:
    record = read(ITERATIONS)
    assert record.unseen[0].what == "how long each rank computed"
    assert "--log-straggler" in record.unseen[0].remedy


# -- summaries


def test_scores_are_bounds_with_ranks() -> None:
    record = read(SCORES)
    relative, individual = record.bounds
    assert relative.quantity == "time against the best rank"
    assert relative.high == pytest.approx(1 / np.array([0.5, 0.7, 0.6]))
    assert relative.high_rank.tolist() == [3, 3, 4]
    assert relative.low.tolist() == [1, 1, 1]
    assert relative.low_rank.tolist() == [0, 0, 0]
    assert individual.high_rank.tolist() == [5, 5, 5]
    assert (
        "rank 3 on n3 has the lowest score in 2 of 3 reports, 0.60 in the median" in record.notes[1]
    )
    assert record.hosts[3] == "n3"
    assert len(record) == 0
    assert read(PRINTED).bounds[0].high_rank.tolist() == [1]
    with pytest.raises(InputError, match="without a score; set num_gpu_perf_scores_to_print"):
        read("GPU relative performance:\n")


def test_reports_of_sections_have_a_step_for_each_report() -> None:
    record = read(SECTIONS)
    assert np.unique(record.step).tolist() == [0, 1]
    assert seconds_of(record) == {
        "forward": pytest.approx([0.1, 0.15] * 2), "backward": pytest.approx([0.2] * 4),
    }  # fmt: skip
    assert seconds_of(read(SECTIONS_CSV))["backward"] == pytest.approx([0.2, 0.25])
    assert [each.what[:10] for each in record.unseen] == ["since when", "pauses of "]


def test_a_summary_of_traceml_is_one_step_of_means() -> None:
    record = read(TRACEML)
    assert seconds_of(record)["forward"] == pytest.approx([0.025, 0.026])
    assert record.kinds == ("input", "forward", "backward", "optimizer", "residual")
    assert record.missing == ("ranks that the summary does not have: 1 of 3",)
    assert "mean of 128 steps" in record.notes[0]
    assert record.hosts == {0: "h0", 1: "h0"}
    assert record.unseen[0].hides_ranks


def test_ranges_of_nsight_are_means_of_steps_by_rank() -> None:
    slow = NSIGHT.replace(",5000000000,", ",7500000000,")
    record = read(NSIGHT, slow, names=("run.rank0_nvtx_sum.csv", "run.rank1_nvtx_sum.csv"))
    assert seconds_of(record) == {
        "input": pytest.approx([0.01] * 2), "forward": pytest.approx([0.1, 0.15]),
        "backward": pytest.approx([0.2] * 2),
    }  # fmt: skip
    assert record.unseen[0].remedy == "nsys stats --report nvtx_gpu_proj_sum"
    with pytest.raises(InputError, match="no NVTX range is named like a part of a step"):
        read("Total Time (ns),Instances,Range\n5,1,:softmax\n")


def test_packed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    with gzip.open(path, "wt") as file:
        file.write(PLAIN)
    assert reader_of(LogFile.open(path)).name == "a step log"
