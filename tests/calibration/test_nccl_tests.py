"""Logs of nccl-tests: read as printed, refused where they are of something else, made a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from simstrag.calibration import import_nccl_tests
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

HEAD = "# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 2(factor) validation: 1\n#\n"
COLUMNS = """#
#                                               out-of-place                  in-place
#       size       count    type   redop   time   algbw   busbw  error   time   algbw   busbw  error
#        (B)  (elements)                   (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)
"""


def log(nodes: tuple[int, ...], factor: float | None = None, root: bool = False) -> str:
    """As all_reduce_perf prints it: a ring of 5 us and 20 GB/s, in place 2 % faster.

    factor: busbw over algbw, of an all-reduce by default.  root: the column of newer versions.
    """
    n = sum(nodes)
    factor = 2 * (n - 1) / n if factor is None else factor
    ranks = [node for node, count in enumerate(nodes) for _ in range(count)]
    lines = [
        f"#   Rank {rank:2d} Pid  25524 on host-{node:03d} device  {rank % 8} [0x00] A100-SXM4-40GB"
        for rank, node in enumerate(ranks)
    ]
    rows = []
    for k in range(10, 27):
        us = (2 * max(1, n - 1) * 5e-6 + 2 * (n - 1) / n * 2**k / 20e9) * 1e6
        cells = [f"{2**k:12d}  {2**k // 4:12d}     float     sum", "     -1" if root else ""]
        for time in (us, 0.98 * us):
            speed = 2**k / time / 1e3
            cells.append(f"{time:8.2f}  {speed:6.2f}  {factor * speed:6.2f}  1e-07")
        rows.append(" ".join(cells))
    return HEAD + "\n".join(lines) + "\n" + COLUMNS + "\n".join(rows) + "\n# Avg bus bandwidth: 1\n"


def written(folder: Path, text: str, name: str = "nccl.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def tagged(text: str) -> str:
    return "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("root", [False, True])
def test_both_columns_of_times_are_read(tmp_path: Path, root: bool) -> None:
    read = import_nccl_tests.read(written(tmp_path, log((2,), root=root)))
    assert read.ranks_per_node == (2,)
    assert read.gpu == "A100-SXM4-40GB"
    assert list(read.out_of_place) == [1 << k for k in range(10, 27)]
    assert read.out_of_place[1 << 20] == pytest.approx(1e-5 + 2**20 / 20e9, abs=1e-8)
    assert read.in_place[1 << 20] == pytest.approx(0.98 * (1e-5 + 2**20 / 20e9), abs=1e-8)


def test_the_tag_of_mpirun_changes_nothing_before_a_line_or_inside_one(tmp_path: Path) -> None:
    plain = import_nccl_tests.read(written(tmp_path, log((8, 8))))
    text = tagged(log((8, 8))).replace(
        "on host-001 device  3", "on host-[1,0]<stdout>:001 device  3"
    )
    assert text.count("<stdout>") == len(text.splitlines()) + 1
    assert import_nccl_tests.read(written(tmp_path, text)) == plain


def test_gpus_are_counted_by_node(tmp_path: Path) -> None:
    assert import_nccl_tests.read(written(tmp_path, log((8, 8, 4)))).ranks_per_node == (8, 8, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step 1 loss 3.2\n", "lines '# Rank ... on HOST device ...'"),
        (HEAD + "#   Rank  0 Pid 1 on a device  0 [0x00] A100\n" * 2, "has no rows of times"),
        (log((1,), factor=0.0), "of one GPU"),
        (log((8,), factor=7 / 8), "line .*: busbw is 0.8. times algbw, and 1.75 for an all-reduce"),
    ],
    ids=["another tool", "cut off", "one GPU", "all-gather"],
)
def test_what_is_no_log_of_an_all_reduce_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        import_nccl_tests.read(written(tmp_path, text))
    assert "nccl.log" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_or_binary_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        import_nccl_tests.read(tmp_path / "none.log")
    (tmp_path / "binary.log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the log"):
        import_nccl_tests.read(tmp_path / "binary.log")


def test_two_logs_of_one_placement_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, log((8,)), name) for name in ("a.log", "b.log")]
    with pytest.raises(InputError, match=r"b.log: has the same 8 GPUs on 1 nodes as .*a.log"):
        import_nccl_tests.read_all(paths)
    with pytest.raises(InputError, match="no log given"):
        import_nccl_tests.read_all([])


def test_logs_make_a_profile_of_an_all_reduce_and_nothing_else(tmp_path: Path) -> None:
    paths = [written(tmp_path, log((n,)), f"{n}.log") for n in (2, 4, 8)]
    made = import_nccl_tests.profile(paths, "ours", gradient_bytes=1 << 24)
    assert made.allreduce.algorithm == "ring"
    assert made.allreduce.alpha.value == pytest.approx(0.98 * 5e-6, rel=0.01)
    assert made.allreduce.bandwidth.value == pytest.approx(20e9 / 0.98, rel=0.01)
    assert made.allreduce.bytes.value == 1 << 24
    assert (made.step, made.server, made.origin) == (None, None, "derived")
    assert len(made.collectives) == 3 * 17
    assert made.held_out[0].median < 0.01
    assert made.command == (
        "simstrag calibrate import nccl-tests 2.log 4.log 8.log --gradient-bytes 16777216 "
        "--out ours.json"
    )
    file = written(tmp_path, made.text, "profile.json")
    assert Profile.read(file).text == made.text


def test_an_unstated_gradient_is_said_to_be_assumed(tmp_path: Path) -> None:
    made = import_nccl_tests.profile([written(tmp_path, log((8,)))], "ours")
    assert made.allreduce.bytes.kind == "assumed"
    assert "ResNet-50" in made.allreduce.bytes.note
    assert made.held_out == ()  # one placement: none can be left out


def test_too_few_sizes_are_told_in_one_line(tmp_path: Path) -> None:
    rows = log((8,)).splitlines(keepends=True)
    few = "".join(rows[:-17]) + rows[-2]  # the largest size alone
    with pytest.raises(InputError, match=r"nccl.log: 1 times do not tell .* give logs of more"):
        import_nccl_tests.profile([written(tmp_path, few)], "ours")
