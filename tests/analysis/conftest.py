"""A comparison that several files look at."""

from __future__ import annotations

import pytest

from simstrag.experiments.compare import compare
from simstrag.experiments.comparison import Comparison
from tests.support.slowed_comparison import scenario


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    return compare(scenario(), jobs=1)
