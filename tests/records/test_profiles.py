"""PyTorch profiles: collectives are known by what they do, whoever's library does it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simstrag.records.log_file import LogFile
from simstrag.records.profiles import READERS, is_collective, read, steps_of
from simstrag.records.record import ALL_REDUCE, COMPUTE, Record
from simstrag.traces.of_operations import kineto

CASES = Path(__file__).parents[3] / "shared" / "records" / "cases"

COLLECTIVES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "rcclGenericKernel_1_LDS(ncclDevKernelArgsStorage<4096ul>)",
    "hcom_allReduce__123_0",
    "hcom_broadcast__45_1_1",
    "HcclAllReduce",
    "oneccl_allreduce_kernel",
    "void ccl::v1::reduce_scatter_kernel<float>",
    "mscclpp::allreduce8<float>",
    "ucc_tl_cuda_reduce",
    "void sglang::cross_device_reduce_1stage<half, 8>",
    "two_shot_all_reduce_kernel",
    "vendor::AllGatherRing",
    "my_alltoall_v",
    "_ZN4vend13reduceScatterEPf",
    "customAllReduce",
    "nvshmemi_collective_launch",
)
COMPUTING = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    "void cutlass::gemm_kernel",
    "Memcpy DtoD (Device -> Device)",
    "BroadcastTo_12",
    "ScatterReduce",
    "overall_reduce",
    "success_kernel",
    "triton_poi_fused_all_reduce_add_0",
    "splitKreduce_kernel",
    "occlusion_kernel",
    "void softmax<WarpAllReduce<float, 32>>",
    "block_all_reduce_kernel",
)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_kernel_that_moves_data_between_ranks_is_a_collective(name: str) -> None:
    assert is_collective(name)


@pytest.mark.parametrize("name", COMPUTING)
def test_other_kernels_compute(name: str) -> None:
    assert not is_collective(name)


def test_what_kineto_says_of_a_kernel_counts_whatever_its_name() -> None:
    said = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 8}
    assert is_collective("kernel_1", said)
    assert not is_collective("kernel_1", {"stream": 7})


def event(kind: str, name: str, start: float, seconds: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": 1e6 * start, "dur": 1e6 * seconds, **more}


def profile(
    folder: Path, collective: str | None, ranks: int = 4, steps: int = 20, **more: Any
) -> list[LogFile]:
    """Rank 1 computes .15 s in each step of .165 s, the others .1 s; then all wait for it."""
    random, found = np.random.default_rng(11), []
    for rank in range(ranks):
        events = []
        for k in range(steps):
            own = (0.15 if rank == 1 else 0.1) * random.lognormal(0, 0.005)
            events += [
                event("user_annotation", f"ProfilerStep#{k}", 0.165 * k, 0.165),
                event("kernel", "void cutlass::gemm_kernel", 0.165 * k, own),
            ]
            if collective is not None:
                start = 0.165 * k + own
                events.append(event("kernel", collective, start, 0.165 * (k + 1) - start, **more))
        data = {
            "schemaVersion": 1, "traceEvents": events,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        }  # fmt: skip
        found.append(LogFile(folder / f"rank{rank}.json", json.dumps(data).encode()))
    return found


def computing(record: Record) -> list[float]:
    own = record.duration[record.kind == record.kinds.index(COMPUTE)]
    return [float(x) for x in own.reshape(-1, len(np.unique(record.rank))).mean(axis=0)]


@pytest.mark.parametrize(
    ("name", "more"),
    [("hcom_allReduce__1_0", {}), ("k", {"args": {"Collective name": "allreduce"}})],
)
def test_waiting_in_any_library_is_told_from_computing(
    name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    record = read(profile(tmp_path, name, **more))
    assert computing(record) == pytest.approx([0.1, 0.15, 0.1, 0.1], rel=0.01)
    assert record.unseen == ()


@pytest.mark.skipif(not CASES.exists(), reason="shared/records is not beside this checkout")
def test_the_case_of_hccl_has_its_truth() -> None:
    folder = CASES / "11-kineto" / "e-hccl"
    record = read([LogFile.open(path) for path in sorted(folder.iterdir())])
    assert computing(record) == pytest.approx([0.1, 0.15, 0.1, 0.1], rel=0.01)


def test_without_a_collective_nothing_is_told_of_waiting(tmp_path: Path) -> None:
    record = read(profile(tmp_path, None))
    assert ALL_REDUCE not in record.kinds
    (unseen,) = record.unseen
    assert unseen.hides_ranks
    assert "no collective is in the profiles" in unseen.what
    files = profile(tmp_path, None)
    for file in files:
        file.path.write_bytes(file.data)
    assert "no collective" in kineto(*(file.path for file in files)).cautions[0]


def test_the_profile_of_one_rank_is_a_record_of_it(tmp_path: Path) -> None:
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(profile(tmp_path, "nccl")[1].data))
    record = read([LogFile.open(tmp_path / "rank1.json.gz")])
    assert np.unique(record.rank).tolist() == [1]
    assert computing(record) == pytest.approx([0.15], rel=0.01)
    assert "whether ranks without a profile were slower" in record.unseen[0].what
    assert record.missing[0].startswith("rank 0, 2, 3 of 4 has no file")


def test_calls_of_the_host_count_where_no_device_was_recorded() -> None:
    steps = [event("user_annotation", f"ProfilerStep#{k}", k, 1.0) for k in (0, 1)]
    for name in ("gloo:all_reduce", "record_param_comms", "c10d::allreduce_", "hccl:all_gather"):
        calls = [event("cpu_op", name, k + 0.5, 0.25) for k in (0, 1)]
        work = [event("cpu_op", "aten::mm", k, 0.25) for k in (0, 1)]
        assert steps_of([*steps, *calls, *work]).exposed.tolist() == [0.25, 0.25], name


def test_profiles_are_recognised_by_content(tmp_path: Path) -> None:
    (reader,) = READERS
    assert reader.recognise(profile(tmp_path, "nccl")[0])
    for data in (b"", b'{"entries": []}', b'{"traceEvents"', b"[]", b'"traceEvents"', b"\xff{"):
        assert not reader.recognise(LogFile(tmp_path / "rank0.json", data))
