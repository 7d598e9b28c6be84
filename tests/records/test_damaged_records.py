"""Damaged records of jobs: analysed, or refused in one line that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simstrag.whatif.analysis import analyse
from tests.support.damage import damaged, outcome
from tests.whatif.test_whatif_logs import as_json, as_pickle, dumps, log
from tests.whatif.test_whatif_records import SECONDS, profiles

MUTATIONS = 60
"""Of each format."""


def seconds(folder: Path) -> Path:
    (folder / "mine.csv").write_text(SECONDS)
    return folder / "mine.csv"


def recorded(folder: Path) -> Path:
    head, *rows = SECONDS.splitlines(keepends=True)
    for rank in (0, 1):
        own = [row for row in rows if row.startswith(f"{rank},")]
        (folder / f"rank-{rank}.csv").write_text(head + "".join(own))
    (folder / "meta.yaml").write_text("world_size: 2\n")
    return folder


def training_log(folder: Path) -> Path:
    (folder / "train.log").write_text(log())
    return folder / "train.log"


FORMS: dict[str, Callable[[Path], Path]] = {
    "seconds": seconds,
    "recorded": recorded,
    "training log": training_log,
    "pickled dumps": lambda folder: dumps(folder, as_pickle),
    "JSON dumps": lambda folder: dumps(folder, as_json),
    "profiles": profiles,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_record_is_analysed_or_refused_in_one_line(form: str, tmp_path: Path) -> None:
    path, refused = FORMS[form](tmp_path), 0
    files = {file: file.read_bytes() for file in sorted(tmp_path.iterdir())}
    for number in range(MUTATIONS):
        for k, (file, data) in enumerate(files.items()):
            hit = number % len(files) == k
            file.write_bytes(damaged(data, f"{form} {number}") if hit else data)
        message = outcome(lambda: analyse(path))
        assert "\n" not in message, number
        assert not message or str(tmp_path) in message, number
        refused += bool(message)
    assert refused
