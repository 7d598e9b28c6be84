"""Scripts that leave their process group in other ways than by `close`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.ddp.test_ddp_leaving import DESTROYED, JOINED, SHOWN, TRAINED, check_last_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.mark.parametrize(
    ("policy", "body"),
    [
        ("none", JOINED + SHOWN),
        ("bsp", TRAINED + SHOWN),
        ("p_reduce:p=2", TRAINED + DESTROYED),
    ],
    ids=["joined only", "by itself", "group destroyed"],
)
def test_no_thread_of_gloo_outlives_a_script(tmp_path: Path, policy: str, body: str) -> None:
    check_last_threads(tmp_path, policy, body)
