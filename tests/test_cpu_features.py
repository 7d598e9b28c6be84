"""Results do not depend on the vector instructions that numpy finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "examples" / "demo.yaml"
AVX512 = "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
COMPARE = """
import sys, simstrag
comparison = simstrag.compare(sys.argv[1], seeds=1, jobs=1)
for name in ("runs", "controls", "sensitivity", "curves", "ranking"):
    print(getattr(comparison, name).to_csv(index=False))
"""


def tables(scenario: Path, **environment: str) -> str:
    """Every table of a comparison as CSV, computed in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", COMPARE, str(scenario)]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def test_a_comparison_has_the_same_tables_without_avx_512(tmp_path: Path) -> None:
    short = DEMO.read_text(encoding="utf-8")
    for long, few in (
        ("samples: 46080", "samples: 4608"),
        ("target_progress: 310", "target_progress: 30"),
        ("../", f"{DEMO.parent.parent}/"),
        ("lb_bsp]", "lb_bsp, star_dynamic, dssp, dropcompute]"),
    ):
        assert long in short
        short = short.replace(long, few)
    scenario = tmp_path / "short.yaml"
    scenario.write_text(short, encoding="utf-8")
    with_all = tables(scenario)
    assert with_all.count("\n") > 100
    assert tables(scenario, NPY_DISABLE_CPU_FEATURES=AVX512) == with_all
