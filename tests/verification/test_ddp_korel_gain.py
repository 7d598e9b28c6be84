"""What Korel is for: under real load its reduced precision shortens a real training here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from simstrag import Run
from simstrag.ddp.precision import MIN_GAIN
from simstrag.experiments import paired_statistics

REPETITIONS, STEPS, RANKS = 4, 240, 2
LOAD = {"seconds": 60, "episodes": [{"rank": 1, "kind": "cpu", "level": 1, "start": 1, "stop": 60}]}
KINDS = {"clean": ("bsp", False), "bsp": ("bsp", True), "korel": ("korel", True)}


def trained(folder: Path, kind: str, precision: str, batch: int) -> Run:
    """A training of two ranks, one of which has load beside it but for its first second."""
    policy, loaded = KINDS[kind]
    schedule = folder.with_suffix(".json")
    schedule.write_text(json.dumps(LOAD))
    subprocess.run(
        [sys.executable, "-P", "-m", "simstrag", "ddp", "digits", "--policy", policy,
         "--ranks", str(RANKS), "--batch", str(batch), "--samples", str(RANKS * batch * STEPS),
         "--precision", precision, "--out", str(folder), *(["--load", str(schedule)] * loaded)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return Run.read(folder)


@pytest.mark.parametrize(("precision", "batch"), [("auto", 608), ("stand-in", 96)])
def test_korel_removes_part_of_the_delay_by_load(
    precision: str, batch: int, tmp_path: Path
) -> None:
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(REPETITIONS):
        for kind in KINDS:
            run = trained(tmp_path / f"{kind}-{number}", kind, precision, batch)
            gain = (run.recorded or {}).get("gain")
            first = (number, kind) == (0, "clean")
            if first and precision == "auto" and gain is not None and gain <= MIN_GAIN:
                pytest.skip(f"bf16 is {gain:.2f} times as fast as fp32 here: not worth a switch")
            seconds[kind].append(run.summary["makespan"])
    times = (np.array(seconds[kind]) for kind in ("korel", "bsp", "clean"))
    found = paired_statistics.mitigation(*times)
    label = (run.recorded or {})["precision"]
    print(
        f"{label}: M {100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f}); "
        + ", ".join(f"{kind} {np.mean(of):.1f} s" for kind, of in seconds.items())
    )
    assert found.low > 0
