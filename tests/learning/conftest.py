"""Settings of the tests of learning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch's threads cost more than they save on models this small: five times the seconds."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
