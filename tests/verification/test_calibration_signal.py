"""A scheduler's SIGTERM reaches every process of a calibration, as Ctrl-C does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.calibration.test_calibration_interrupted import interrupt


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="there are no signals here")
def test_sigterm_to_all_during_a_visit_beside_a_load_loses_that_visit_alone(tmp_path: Path) -> None:
    interrupt(signal.SIGTERM, 143, tmp_path)
