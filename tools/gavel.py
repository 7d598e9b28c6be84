"""Co-location on K80, P100 and V100 derived from Gavel: a job beside each other job on one GPU.

Slowdown = steps/s alone over steps/s beside the other, of jobs on one GPU each.  In the source 0.0
means that the two did not fit into memory: no number here, and no infinite slowdown.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np

from simstrag.calibration.fits.visit_statistics import round_digits
from simstrag.errors import InputError
from simstrag.profile.profile import Profile

FILE = "physical_cluster_throughputs.json"

SOURCE = "stanford-futuredata/gavel @c4fa400 (MIT): physical_cluster_throughputs.json"

Slowdowns = dict[str, dict[str, float | None]]
"""Job to other job to slowdown; None where the two did not fit."""


def colocation(traces: Path, gpu: str) -> Profile:
    """One GPU type ("k80", "p100", "v100") of `gavel-colocation` in a folder of public traces."""
    slowdowns = slowdowns_of(traces / "gavel-colocation" / FILE, gpu)
    values = [s for beside in slowdowns.values() for s in beside.values()]
    known = np.array([value for value in values if value is not None])
    capped = int(np.sum(known == 1.0))
    quantiles = np.quantile(known, [0, 0.1, 0.5, 0.9, 1])
    note = (
        f"{len(values)} pairs, {len(values) - len(known)} of them did not fit into memory (null); "
        f"slowdowns: least {quantiles[0]:.3g}, p10 {quantiles[1]:.3g}, median {quantiles[2]:.3g}, "
        f"p90 {quantiles[3]:.3g}, most {quantiles[4]:.4g}."
    )
    if capped:
        note += (
            f" {capped} are exactly 1: these look capped at the speed alone, and do not show that "
            "sharing was free."
        )
    return Profile(
        name=f"{gpu}-gavel",
        origin="derived",
        source=SOURCE,
        missing=(
            "steps, all-reduce, parameter server",
            "levels of load: the source says who runs beside, not what it uses",
            "spread: one value per pair",
            "reduced precision",
        ),
        note=note,
        date="2026-11-21",
        command=f"python -m tools.public_profiles {gpu}-gavel TRACES --out {gpu}-gavel.json",
        device={"kind": "cuda", "model": gpu.upper()},
        software={},
        recordings={"slowdown_beside": slowdowns},
    )


def slowdowns_of(path: Path, gpu: str) -> Slowdowns:
    """Slowdowns of all jobs on one GPU. Raises `InputError` where the file is something else."""
    try:
        cluster: dict[str, dict[str, Any]] = json.loads(path.read_text())[gpu]
        return {
            _job(name): {
                _job(other): round_digits(speeds["null"] / pair[0]) if pair[0] else None
                for other, pair in speeds.items()
                if other != "null" and _scale(other) == 1
            }
            for name, speeds in cluster.items()
            if _scale(name) == 1
        }
    except OSError as error:
        raise InputError(f"{path}: cannot read the throughputs: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise InputError(f"{path}: is no table of throughputs of Gavel: {error}") from None


def _job(name: str) -> str:
    return str(ast.literal_eval(name)[0])


def _scale(name: str) -> int:
    return int(ast.literal_eval(name)[1])
