"""Results do not depend on the vector instructions that numpy and the C library find.

Not covered are the clones that gcc makes of the native engine's loops (`target_clones` in
`simstrag/engine/native`): they ask the processor itself, which no environment variable changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from numpy._core import _multiarray_umath as numpy_core

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples/demo.yaml"
PROFILE = ROOT / "simstrag/calibration/profiles/intel-xeon-2-core-amx.json"
FOUND = [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__.get(name)]
"""What this processor has beyond what numpy was compiled for."""
LESS = {
    "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",  # its exp and log choose by it
}
COMPARE = """
import sys, simstrag
comparison = simstrag.compare(sys.argv[1], seeds=1, jobs=1)
for name in ("runs", "controls", "sensitivity", "curves", "ranking"):
    print(getattr(comparison, name).to_csv(index=False))
"""
SIMULATE = """
import sys, simstrag
steps = {
    "lognormal": {"step": {"compute": 0.1, "cv": 0.3}},
    "shifted_exponential": {"step": {"compute": 0.1, "cv": 0.3, "noise": "shifted_exponential"}},
    "quantiles": {"profile": sys.argv[1]},
}
for name, source in steps.items():
    for lag1 in (0.0, 0.56):
        scenario = simstrag.Scenario(
            workers=8, updates=1100, noise={"lag1": lag1}, learner={"batch": 8}, **source
        )
        for policy in ("bsp", "asgd"):
            run = simstrag.simulate(scenario, policy, seed=1, record_updates=True)
            print(name, lag1, policy, *(float(time).hex() for time in run.updates["time"]))
"""


def answer(program: str, file: Path, **environment: str) -> str:
    """What a program prints in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", program, str(file)]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def test_a_comparison_has_the_same_tables_with_fewer_instructions(tmp_path: Path) -> None:
    short = DEMO.read_text(encoding="utf-8")
    for long, few in (
        ("samples: 46080", "samples: 4608"),
        ("target_progress: 310", "target_progress: 30"),
        ("../", f"{ROOT}/"),
        ("lb_bsp]", "lb_bsp, star_dynamic, dssp, dropcompute]"),
    ):
        assert long in short
        short = short.replace(long, few)
    scenario = tmp_path / "short.yaml"
    scenario.write_text(short, encoding="utf-8")
    with_all = answer(COMPARE, scenario)
    assert with_all.count("\n") > 100
    assert answer(COMPARE, scenario, **LESS) == with_all


def test_every_noise_is_the_same_to_the_last_bit_with_fewer_instructions() -> None:
    """Lognormal, shifted exponential and quantiles, with and without autocorrelation."""
    with_all = answer(SIMULATE, PROFILE)
    assert len({line.split()[-1] for line in with_all.splitlines()}) == 3 * 2 * 2
    assert answer(SIMULATE, PROFILE, **LESS) == with_all
