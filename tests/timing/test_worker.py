"""Workers that are groups of ranks: what the ranks of a pipeline, or of a stage, make together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simstrag import InputError, Scenario, compare
from simstrag.engine.simulate import simulate
from simstrag.timing.worker import WorkerRanks, schedule
from tests.support.trace_rows import recorded, slowed

PIPELINE = {
    "workers": 2, "updates": 1, "microbatches": 2, "step": {"compute": 6},
    "worker": {"ranks": 2, "stages": 2},
}  # fmt: skip
"""Two replicas of two stages; forward takes 1 s, backward 2 s, and there are two micro-batches."""


def scenario(*rows: tuple[int, str, float], **more: Any) -> Scenario:
    """`PIPELINE` with a rank's resource slowed by a factor all the time."""
    trace = [slowed(node, value, resource=resource) for node, resource, value in rows]
    return Scenario(**(PIPELINE | ({"trace": trace} if rows else {}) | more))


def makespan(case: Scenario, policy: str = "bsp", engine: str = "native") -> float:
    return float(simulate(case, policy, engine=engine).summary["makespan"])


def order(**shape: int) -> str:
    return "".join(
        ("F" if each.is_forward else "B") + f"{each.micro_batch}" for each in schedule(**shape)
    )


@pytest.mark.parametrize("backward", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (4, 2), (4, 8), (8, 20)])
def test_alike_stages_take_m_plus_p_minus_1_forwards_and_backwards(
    stages: int, micro_batches: int, backward: float
) -> None:
    """1F1B: (m + p - 1) (f + b), where a rank computes for m (f + b)."""
    worker = WorkerRanks(stages, stages, micro_batches, backward=backward)
    assert worker.stretch == pytest.approx((micro_batches + stages - 1) / micro_batches, rel=1e-12)


@pytest.mark.parametrize("backward", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 6, 4), (4, 4, 2), (4, 8, 3)])
def test_v_chunks_divide_the_bubble_of_a_pipeline_by_v(
    stages: int, micro_batches: int, chunks: int, backward: float
) -> None:
    """Interleaved: (m + (p - 1) / v) (f + b)."""
    worker = WorkerRanks(stages, stages, micro_batches, chunks, backward)
    alike = (micro_batches + (stages - 1) / chunks) / micro_batches
    assert worker.stretch == pytest.approx(alike, rel=1e-12)


def test_a_stage_warms_up_takes_turns_and_drains() -> None:
    assert order(stage=0, stages=3, micro_batches=4) == "F0F1F2B0F3B1B2B3"
    assert order(stage=2, stages=3, micro_batches=4) == "F0B0F1B1F2B2F3B3"
    assert order(stage=1, stages=2, micro_batches=2, chunks=2) == "F0F1F0B0F1B1B0B1"


def test_one_slow_stage_of_two_by_hand() -> None:
    """Stage 0 does F0 F1 B0 B1 and stage 1 F0 B0 F1 B1, of 1 s and 2 s, or twice that if slow.

    Stage 1 slow: its operations end at 3, 7, 9, 13 and the last backward of stage 0 at 15.
    Stage 0 slow: stage 1 ends at 3, 5, 6, 8, stage 0 at 2, 4, 9, 13.
    """
    worker = WorkerRanks(2, stages=2, micro_batches=2)
    computing = np.array([[6.0, 6.0, 12.0], [6.0, 12.0, 6.0]])
    assert worker.step(computing).tolist() == [9, 15, 13]


def test_a_stage_is_as_slow_as_its_slowest_rank() -> None:
    worker = WorkerRanks(4, stages=2, micro_batches=2)
    computing = np.array([[6.0, 6.0], [5.0, 12.0], [6.0, 6.0], [6.0, 1.0]])
    assert worker.step(computing).tolist() == [9, 13]
    assert WorkerRanks(3).step(np.array([[1.0], [3.0], [2.0]])).tolist() == [3]


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_a_slow_rank_of_a_stage_slows_its_worker(engine: str) -> None:
    assert makespan(scenario(), engine=engine) == pytest.approx(9)
    assert makespan(scenario((3, "gpu", 2.0)), engine=engine) == pytest.approx(15)
    assert makespan(scenario((0, "step", 2.0)), engine=engine) == pytest.approx(13)


@pytest.mark.parametrize("engine", ["native", "plain"])
def test_reduced_precision_shortens_the_device_work_of_every_rank(engine: str) -> None:
    """Half of a step is the host's, and the device is twice as fast: 4.5 s of computing for 6.

    The host of stage 1 is slowed by 3: it computes 9 + 1.5 s, and stage 0 3 + 1.5 s.
    """
    step = {"compute": 6, "host_share": 0.5, "amp_ratio": 6 / 4.5}
    case = scenario((1, "host", 3.0), step=step)
    (seconds,) = WorkerRanks(2, 2, 2).step(np.array([[4.5], [10.5]])).tolist()
    assert makespan(case, "amp_all", engine) == pytest.approx(seconds)


def test_a_slowdown_holds_for_the_part_of_the_step_that_it_lasts() -> None:
    """7.5 s at 15 s a step are half of it; the rest takes half of 9 s."""
    trace = [slowed(3, 2.0), slowed(3, 1.0, time=7.5)]
    assert makespan(scenario(trace=trace)) == pytest.approx(12)


def test_recorded_durations_of_ranks_make_the_step_of_their_worker() -> None:
    trace = recorded([(6, 6), (6, 12), (12, 6), (6, 6)])
    case = scenario(trace=trace, updates=2)
    assert case.timing(0).contention.durations == {0: (9, 15), 1: (13, 9)}
    assert makespan(case) == 13 + 15
    assert makespan(case.without_contention()) == 9 + 9
    with pytest.raises(InputError, match="rank 3 has 1 recorded durations, rank 2 2; they make"):
        makespan(scenario(trace=trace[:-1]))


def test_fewer_micro_batches_do_not_shorten_the_bubble() -> None:
    """Half of two micro-batches: (1 + 1) (f + b) of (2 + 1) (f + b)."""
    assert scenario().inputs.step.effort(0.5) == pytest.approx(2 / 3)


def test_an_all_reduce_is_as_slow_as_the_slowest_network_among_all_ranks() -> None:
    case = scenario((0, "net", 2.0), (1, "net", 3.0), (3, "net", 2.5))
    timing = case.replaced(allreduce={"alpha": 0.5}).timing(0)
    assert timing.reduce((0, 1), 0.0) == 3
    assert timing.reduce((1,), 0.0) == 0


def test_reports_see_the_largest_slowdown_in_a_worker() -> None:
    contention = scenario((2, "gpu", 2.0), (3, "gpu", 3.0)).timing(0).contention
    assert {key: f.values for key, f in contention.slowdowns.items()} == {(1, "gpu"): (3.0,)}


def test_a_worker_of_one_rank_is_a_worker() -> None:
    alone = scenario((1, "gpu", 2.0), worker={"ranks": 1}, microbatches=1)
    assert makespan(alone) == makespan(alone.replaced(worker=None)) == 12


def test_ranks_are_placed_worker_by_worker() -> None:
    case = scenario((0, "gpu", 2.0), workers=4, ranks_per_node=4)
    assert case.rank_places == (0, 0, 0, 0, 1, 1, 1, 1)
    assert case.places == (0, 0, 1, 1)
    assert [case.timing(0).noise_free(k, 0, 0.0) for k in range(4)] == pytest.approx([18, 18, 9, 9])


def test_the_devices_of_a_bill_are_the_ranks_and_it_names_the_worker() -> None:
    """Contention adds 6 s to each of three steps of four devices."""
    assert scenario().gpus == 4
    assert scenario(worker=None, cost={"gpus": 3}).gpus == 6
    slow = scenario((3, "gpu", 2.0), updates=None, samples=256 * 3)
    answer = compare(slow, ["bsp"], seeds=1, sensitivity=False, jobs=1).answer
    assert answer.decision.bill.hours.value == pytest.approx(18 * 4 / 3600)
    assert "of all waiting is for worker 1" in str(answer)


def test_the_example_of_replicas_slows_the_replica_of_its_slow_gpu() -> None:
    timing = Scenario.read("examples/replicas.yaml").timing(0)
    clean, slow = (timing.noise_free(rank, 0, 60.0) for rank in (0, 1))
    assert clean == pytest.approx(0.8 * (1 + 3 / 16))
    assert clean < slow < 1.5 * clean


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"worker": {"ranks": 3, "stages": 2}}, "ranks is 3, which 2 stages do not divide"),
        ({"worker": {"ranks": 2, "chunks": 2}}, "only a pipeline has chunks; give stages"),
        (
            {"worker": {"ranks": 2, "stages": 2, "chunks": 2}, "microbatches": 3},
            "an interleaved pipeline of 2 stages needs a multiple",
        ),
        ({"cost": {"gpus": 3}}, "cost.gpus is 3, but worker.ranks 2; leave it out"),
        ({"server_load": {"host": 2}}, "server_load slows workers of one rank"),
        ({"nodes": [0, 1]}, "nodes has 2 entries for 2 workers of 2 ranks"),
    ],
)
def test_what_cannot_be_a_worker_is_refused(more: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario(**more)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_beyond_all_ranks_is_refused() -> None:
    with pytest.raises(InputError, match="node 4, but 4 ranks are on nodes 0 to 3"):
        scenario((4, "gpu", 2.0)).timing(0)
