"""Damaged files of every format: a record, or a refusal in one line that a user can act on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from simstrag.records.read import read_record
from simstrag.whatif.analysis import analyse
from simstrag.whatif.diagnosis import diagnose
from tests.records.test_gpu_metrics import DMON
from tests.records.test_training_logs import DEEPSPEED, NEMO, STATE, TITAN
from tests.support.damage import damaged, outcome
from tests.whatif.test_whatif_logs import as_json, as_pickle, dumps, log
from tests.whatif.test_whatif_records import SECONDS, profiles
from tools.make_example_logs import FOLDER

DATA = Path(__file__).parents[1] / "data/records"
MUTATIONS = 90
"""Of each format, more than 1,500 in all."""
SHARE = 10
"""One of how many is diagnosed, too, which takes longer."""


def lines(name: str, first: int, end: int) -> str:
    """The header of a file that is recorded here, and some of its lines."""
    head, *rows = (DATA / name).read_text().splitlines(keepends=True)
    return head + "".join(rows[first:end])


def recorded(folder: Path) -> Path:
    head, *rows = SECONDS.splitlines(keepends=True)
    for rank in (0, 1):
        own = [row for row in rows if row.startswith(f"{rank},")]
        (folder / f"rank-{rank}.csv").write_text(head + "".join(own))
    (folder / "meta.yaml").write_text("world_size: 2\n")
    return folder


TIMES = lines("megatron-minmax.log", 0, 63)
FILES = {
    "nvidia-smi.csv": lines("nvidia-smi.csv", 120, 184),  # a card is throttled meanwhile
    "dcgmi-dmon.txt": DMON * 4,
    "prometheus.json": (FOLDER / "prometheus.json").read_text(),
    "grafana.csv": (FOLDER / "gpu-utilization-data.csv").read_text(),
    "megatron-minmax.log": TIMES,
    "megatron-max.log": TIMES.replace("(min, max) time", "max time").replace("(3998.54, ", ""),
    "megatron-straggler.log": lines("megatron-straggler.log", 0, 12),
    "deepspeed.log": DEEPSPEED * 4,
    "torchtitan.log": TITAN * 3,
    "nemo.log": NEMO * 3,
    "seconds.csv": SECONDS,
    "train.log": log(),
    "sacct.txt": lines("sacct.txt", 0, 9),
    "trainer_state.json": STATE,
    "throughput.csv": lines("throughput.csv", 100, 260),
    "steps-with-hosts.csv": lines("steps-with-hosts.csv", 0, 160),
}
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "recorded": recorded,
    "pickled dumps": lambda folder: dumps(folder, as_pickle),
    "JSON dumps": lambda folder: dumps(folder, as_json),
    "profiles": profiles,
}
ANALYSED = {"seconds.csv", "train.log", *FOLDERS}
"""Records of whole jobs."""


@pytest.mark.parametrize("form", [*FILES, *FOLDERS])
def test_a_mutated_file_is_read_or_refused_in_one_line(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, refused = tmp_path / form, 0
    if form in FILES:
        path.write_text(FILES[form])
    else:
        path = FOLDERS[form](tmp_path)
    files = {file: file.read_bytes() for file in sorted(tmp_path.iterdir())}
    for number in range(MUTATIONS):
        for k, (file, data) in enumerate(files.items()):
            hit = number % len(files) == k
            file.write_bytes(damaged(data, f"mutated {form} {number}") if hit else data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            messages = [outcome(lambda: read_record(path))]
            if form in ANALYSED:
                messages.append(outcome(lambda: analyse(path)))
                refused += bool(messages[-1])
            if number % SHARE == 0:
                messages.append(outcome(lambda: diagnose(path, compare=())))
        for message in messages:
            assert "\n" not in message, number
            assert not message or str(tmp_path) in message, number
    assert capfd.readouterr() == ("", "")
    assert refused or form not in ANALYSED


def test_there_are_1500_mutations() -> None:
    assert len({*FILES, *FOLDERS}) * MUTATIONS >= 1500
