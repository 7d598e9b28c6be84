"""Replays of ranks that wait in several groups: by hand, and against a naive replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simstrag
from simstrag.documents.job_mesh import JobMesh
from simstrag.records.read import read_record
from simstrag.whatif.analysis import analyse, replay_of
from simstrag.whatif.job_scenario import job_scenario
from simstrag.whatif.replay import JobReplay

MESH = JobMesh(("replicate", "shard"), (3, 2), (0, 1, 2, 3, 4, 5))


def write_job(
    folder: Path, computing: Any, dims: list[int], transfer: Any, mesh: JobMesh = MESH
) -> None:
    """Write the files of a job that the naive replay runs, each rank by its own clock.

    computing: seconds before each wait, shape (steps, ranks, waits).
    dims: the dimension of the mesh in which each wait is.
    transfer: seconds of each collective, shape (steps, waits).
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text(f"world_size: {len(mesh.ranks)}\n{mesh.lines()}")
    rows = [["rank,step,stage,seconds,group"] for _ in mesh.ranks]
    now = np.zeros(len(mesh.ranks))
    for step, own in enumerate(computing):
        for each in rows:
            each.append(f"{len(rows) and rows.index(each)},{step},optimizer-and-input,0,")
        for k, dim in enumerate(dims):
            entered = now + own[:, k]
            for group in groups_of(mesh, dim):
                now[group] = entered[group].max() + transfer[step][k]
            for rank, each in enumerate(rows):
                label = f"{mesh.names[dim]}:{min(g for g in groups_of(mesh, dim) if rank in g)[0]}"
                each.append(f"{rank},{step},compute-{k + 1},{own[rank, k]:.9f},")
                waited = now[rank] - entered[rank]
                each.append(f"{rank},{step},all-reduce-{k + 1},{waited:.9f},{label}")
    for rank, each in enumerate(rows):
        (folder / f"rank-{rank}.csv").write_text("\n".join(each) + "\n")


def groups_of(mesh: JobMesh, dim: int) -> list[list[int]]:
    """The groups of a dimension, as lists of ranks."""
    return np.moveaxis(mesh.grid, dim, -1).reshape(-1, mesh.shape[dim]).tolist()  # type: ignore[no-any-return]


def by_hand(folder: Path) -> None:
    """Six steps alike of 1 s of computing, a wait among shards, 1 s, and a wait among replicas.

    Rank 1 computes 4 s in the first part, rank 2 3 s in the second; collectives take no time.
    """
    own = np.ones((6, 6, 2))
    own[:, 1, 0], own[:, 2, 1] = 4, 3
    write_job(folder, own, [1, 0], np.zeros((6, 2)))


def test_a_loss_by_hand_is_what_the_ranks_of_other_groups_do_not_hide(tmp_path: Path) -> None:
    """Without rank 1's 3 s a step takes 4 s instead of 5: replica 1 has rank 2 to wait for."""
    by_hand(tmp_path)
    found = analyse(tmp_path)
    assert found.metrics.replayed == pytest.approx(5)
    assert found.metrics.replay_error == pytest.approx(1)
    assert {each.rank for each in found.culprits} == {1, 2}
    saved = {each.name: each.seconds for each in found.fixes}
    assert saved["rank 1 like the others"] == pytest.approx(1)
    assert "rank 2 like the others" not in saved
    assert saved["both slow workers like the others"] == pytest.approx(3)


def test_who_waited_for_whom_by_hand(tmp_path: Path) -> None:
    """Rank 0 waits 3 s for rank 1 in their shards' group, ranks 3 and 5 3 s among replicas.

    There rank 2 waits 1 s for rank 0, which is late because rank 1 was, and rank 4 waits 3 s.
    """
    by_hand(tmp_path)
    assert analyse(tmp_path).late.waited == pytest.approx((24, 54, 0, 0, 0, 0))


def test_workers_of_the_scenario_are_replicas_by_hand(tmp_path: Path) -> None:
    """Replica 0 takes 4 + 1 s without the others, replica 1 1 + 3 s, replica 2 1 + 1 s."""
    by_hand(tmp_path)
    record = read_record(tmp_path)
    job = job_scenario(record, replay_of(record), (), gpus=6)
    assert pytest.approx(np.tile([5.0, 4.0, 2.0], (6, 1))) == job.durations.T
    (scenario,) = job.readings
    assert (scenario.workers, scenario.cost.gpus) == (3, 2)


def test_a_pipeline_by_hand(tmp_path: Path) -> None:
    """Stage 0 sends after 2 s; stage 1 computes 3 s and answers; stage 0 then computes 1 s.

    A step takes 2 + 3 + 1 s.  Stage 1 begins its next step while stage 0 ends this one.
    """
    (tmp_path / "meta.yaml").write_text("world_size: 2\n")
    stages = {
        0: [("compute", 2, ""), ("all-reduce", 0, "send:1"), ("compute", 0, ""),
            ("all-reduce", 0, "ask:1"), ("compute", 0, ""), ("all-reduce", 3, "recv:1"),
            ("compute", 1, ""), ("all-reduce", 0, "own:0")],
        1: [("compute", 0, ""), ("all-reduce", 0, "ask:0"), ("compute", 0, ""),
            ("all-reduce", 3, "recv:0"), ("compute", 3, ""), ("all-reduce", 0, "send:0")],
    }  # fmt: skip
    for rank, parts in stages.items():
        rows = ["rank,step,stage,seconds,group"]
        for step in range(6):
            for k, (name, seconds, group) in enumerate(parts):
                rows.append(f"{rank},{step},{name}-{k // 2 + 1},{seconds},{group}")
        (tmp_path / f"rank-{rank}.csv").write_text("\n".join(rows) + "\n")
    replay = replay_of(read_record(tmp_path))
    assert replay.layout.stages == 2
    assert replay.layout.recorded == pytest.approx(6)
    recorded = np.ones((2, *replay.layout.rank.shape), np.bool_)
    recorded[1, (replay.layout.stage == 1) & ~replay.layout.communicates] = False
    as_it_was, without = replay.step_times(recorded)
    assert as_it_was == pytest.approx(6)
    assert without == pytest.approx(2 + replay.ideal.ravel()[0] + 1)


def naive(replay: JobReplay, recorded: Any) -> Any:
    """Seconds of each step, one rank after the other; recorded: shape (operations, replicas)."""
    layout = replay.layout
    _, ranks, steps = replay.work.shape
    order = np.lexsort((layout.kind, layout.communicates, layout.number))
    found = []
    for step in range(steps):
        now = list(layout.start[:, :, step].min(axis=0))
        for k in order:
            begin = list(now)
            for rank in range(ranks):
                mates = [rank]
                if layout.communicates[k]:
                    mates = [j for j in range(ranks) if layout.group[k, j] == layout.group[k, rank]]
                ideal = replay.ideal[k, 0, 0]
                needed = replay.work[k, rank, step] if recorded[k, rank] else ideal
                now[rank] = max(begin[j] for j in mates) + needed
        found.append(max(now))
    return found


@st.composite
def jobs(draw: st.DrawFn) -> tuple[JobMesh, list[int], int]:
    """A mesh, the dimensions of its waits, and a seed."""
    shape = draw(st.sampled_from([(2, 2), (2, 3), (3, 2), (2, 2, 2), (1, 3)]))
    mesh = JobMesh(("replicate", "shard", "tp")[: len(shape)], shape, tuple(range(np.prod(shape))))
    dims = [k for k in range(len(shape)) if shape[k] > 1]
    waits = draw(st.lists(st.sampled_from(dims), min_size=2, max_size=5))
    return mesh, waits, draw(st.integers(0, 2**31))


@given(jobs())
def test_replays_by_group_are_those_of_a_naive_replay(
    tmp_path_factory: pytest.TempPathFactory, job: tuple[JobMesh, list[int], int]
) -> None:
    """As recorded, and without transfers, the job took so long: a rank begins when it did."""
    mesh, dims, seed = job
    noise, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("job")
    moves = seed % 2
    transfer = moves * noise.exponential(0.1, (4, len(dims)))
    write_job(folder, noise.exponential(1, (4, len(mesh.ranks), len(dims))), dims, transfer, mesh)
    replay = replay_of(read_record(folder))
    for share in (0.0, 0.5, 1.0):
        recorded = noise.random(replay.layout.rank.shape) < share
        (found,) = replay.step_times(recorded[None])
        assert found == pytest.approx(naive(replay, recorded))
        assert share < 1 or moves or replay.layout.recorded == pytest.approx(found)


def test_ranks_of_one_group_in_every_wait_are_replayed_as_without_groups(tmp_path: Path) -> None:
    """The column says nothing then, and the answer is the same but for rounding."""
    noise = np.random.default_rng(0)
    line = JobMesh(("shard",), (3,), (0, 1, 2))
    own = noise.lognormal(0, 0.1, (8, 3, 2))
    write_job(tmp_path / "a", own, [0, 0], np.full((8, 2), 0.1), line)
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").glob("rank-*.csv"):
        rows = [row.rpartition(",")[0] for row in path.read_text().splitlines()]
        (tmp_path / "b" / path.name).write_text("\n".join(rows) + "\n")
    grouped, plain = (analyse(tmp_path / name) for name in "ab")
    assert grouped.metrics.replayed == pytest.approx(plain.metrics.replayed)
    assert grouped.late.waited == pytest.approx(plain.late.waited)


def test_a_step_with_other_groups_than_usual_is_left_out(tmp_path: Path) -> None:
    by_hand(tmp_path)
    for rank in range(6):
        path = tmp_path / f"rank-{rank}.csv"
        rows = path.read_text().splitlines()
        rows = [
            r.replace("replicate:", "other:") if r.startswith(f"{rank},3,") else r for r in rows
        ]
        path.write_text("\n".join(rows) + "\n")
    found = simstrag.diagnose(tmp_path, compare=[])
    assert np.unique(found.record.step).tolist() == [0, 1, 2, 4, 5]
    assert any("left out: 1" in each for each in found.record.missing)


def test_files_of_two_hosts_are_one_job_whose_mesh_is_beside_one_of_them(tmp_path: Path) -> None:
    by_hand(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for rank in (0, 1, 2):
        (tmp_path / "a" / f"rank-{rank}.csv").rename(tmp_path / "b" / f"rank-{rank}.csv")
    record = read_record(*sorted(tmp_path.glob("*/rank-*.csv")))
    assert record.mesh == MESH
    assert record.missing == ()
    assert len(np.unique(record.rank)) == 6


def test_a_rank_that_was_killed_is_named_and_no_whole_step_is_lost(tmp_path: Path) -> None:
    own = np.ones((20, 6, 2))
    write_job(tmp_path, own, [1, 0], np.zeros((20, 2)))
    path = tmp_path / "rank-4.csv"
    path.write_text("\n".join(path.read_text().splitlines()[: 1 + 5 * 9 + 3]) + "\n")
    record = read_record(tmp_path)
    assert np.unique(record.step).tolist() == [*range(9)]
    assert record.missing[0].startswith("rank 4 has no step after 8, where others go on to 19")
