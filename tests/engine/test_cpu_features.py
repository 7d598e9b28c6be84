"""Results do not depend on the vector instructions that numpy and the C library find.

Not covered are the clones that gcc makes of the native engine's loops (`target_clones` in
`simstrag/engine/native`): they ask the processor itself, which no environment variable changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
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
scenario, profile = sys.argv[1:]
comparison = simstrag.compare(scenario, seeds=1, jobs=1)
for name in ("runs", "controls", "sensitivity", "curves", "ranking"):
    print(getattr(comparison, name).to_csv(index=False))
"""
MARK = "-- runs --"
SIMULATE = (
    f"print({MARK!r})"
    + """
steps = {
    "lognormal": {"step": {"compute": 0.1, "cv": 0.3}},
    "shifted_exponential": {"step": {"compute": 0.1, "cv": 0.3, "noise": "shifted_exponential"}},
    "quantiles": {"profile": profile},
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
)


class Answer(NamedTuple):
    """The tables of a comparison, and times of updates under each noise."""

    tables: str
    times: str


def answer(scenario: Path, **environment: str) -> Answer:
    """What a process of its own prints of both."""
    command = [sys.executable, "-W", "ignore", "-c", COMPARE + SIMULATE, scenario, PROFILE]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return Answer(*done.stdout.split(f"{MARK}\n"))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Answer]:
    """With all instructions of this processor, and with fewer."""
    short = DEMO.read_text(encoding="utf-8")
    for long, few in (
        ("samples: 46080", "samples: 4608"),
        ("target_progress: 310", "target_progress: 30"),
        ("../", f"{ROOT}/"),
        ("lb_bsp]", "lb_bsp, star_dynamic, dssp, dropcompute]"),
    ):
        assert long in short
        short = short.replace(long, few)
    scenario: Path = tmp_path_factory.mktemp("short") / "short.yaml"
    scenario.write_text(short, encoding="utf-8")
    return answer(scenario), answer(scenario, **LESS)


def test_a_comparison_has_the_same_tables_with_fewer_instructions(
    answers: tuple[Answer, Answer],
) -> None:
    with_all, with_fewer = answers
    assert with_all.tables.count("\n") > 100
    assert with_fewer.tables == with_all.tables


def test_every_noise_is_the_same_to_the_last_bit_with_fewer_instructions(
    answers: tuple[Answer, Answer],
) -> None:
    """Lognormal, shifted exponential and quantiles, with and without autocorrelation."""
    with_all, with_fewer = answers
    assert len({line.split()[-1] for line in with_all.times.splitlines()}) == 3 * 2 * 2
    assert with_fewer.times == with_all.times
