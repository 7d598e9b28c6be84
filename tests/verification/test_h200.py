"""What README.md says of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from simstrag.experiments.compare import compare
from simstrag.scenario.scenario import DEMO, Scenario

ROOT = Path(__file__).parent.parent.parent


def test_the_readme_says_what_came_out_of_the_h200() -> None:
    comparison = compare(Scenario.read(DEMO))
    rows = comparison.ranking.set_index("policy")
    saved = (1 - 1 / rows["makespan_speedup"]).round(2)
    assert saved[["lb_bsp", "amp_all", "korel"]].tolist() == pytest.approx([0.22, 0.08, 0.06])
    assert rows.loc["lb_bsp", "makespan_mitigation"] == pytest.approx(0.85, abs=0.005)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Run load-balanced BSP (lb_bsp): 21.6 % (20.8–22.4 %) sooner" in readme  # noqa: RUF001
    assert 1 - 1 / rows.loc["lb_bsp", "makespan_speedup"] == pytest.approx(0.216, abs=5e-4)
