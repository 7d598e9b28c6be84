"""Damaged files of every format: a record, or a refusal in one line that a user can act on."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from simstrag.records.read import read_record
from simstrag.whatif.diagnosis import diagnose
from tests.support.damage import damaged, outcome
from tests.support.record_samples import SAMPLES

MUTATIONS = 90
"""Of each format, more than 1,500 in all."""
SHARE = 10
"""One of how many is diagnosed, too, which takes longer."""


@pytest.mark.parametrize("form", SAMPLES)
def test_a_mutated_file_is_read_or_refused_in_one_line(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = SAMPLES[form](tmp_path)
    files = {file: file.read_bytes() for file in sorted(tmp_path.iterdir())}
    for number in range(MUTATIONS):
        for k, (file, data) in enumerate(files.items()):
            hit = number % len(files) == k
            file.write_bytes(damaged(data, f"mutated {form} {number}") if hit else data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            messages = [outcome(lambda: read_record(path))]
            if number % SHARE == 0:
                messages.append(outcome(lambda: diagnose(path, compare=())))
        for message in messages:
            assert "\n" not in message, number
            assert not message or str(tmp_path) in message, number
    assert capfd.readouterr() == ("", "")


def test_there_are_1500_mutations() -> None:
    assert len(SAMPLES) * MUTATIONS >= 1500
