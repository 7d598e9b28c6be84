"""Turns a recording into a Profile and a Trace, by the estimators of `estimate.py`.

`python -m simstrag.calibration.derive RECORDING --profile FILE.json --trace FILE.csv` also writes
FILE.md beside the trace: how it was recorded, and what came out.  Same recording, same files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simstrag.calibration import estimate
from simstrag.calibration.account import account
from simstrag.calibration.benches.machine import slug
from simstrag.calibration.quantities import allreduce_part, server_part, short, step_part
from simstrag.calibration.recording import Recording, read_recording

__all__ = ["disturbance", "profile", "trace_rows", "write"]

Row = tuple[float, int, str, str, float]


def profile(recording: Recording, name: str) -> dict[str, Any]:
    """The profile of the recorded machine, in the shape that `Profile` checks."""
    described, communication = recording.described, recording.communication
    workload, precisions = described["workload"], described["precisions"]
    return {
        "format": "simstrag-profile/1",
        "name": name,
        "date": described["date"],
        "command": "; ".join(
            [
                described["command"],
                communication["command"],
                "python -m simstrag.calibration.derive DIR --profile PROFILE --trace TRACE",
            ]
        ),
        "device": described["device"],
        "software": described["software"],
        "workload": {
            "name": workload["name"],
            "parameters": workload["parameters"],
            "batch": workload["shape"]["batch"],
            "full": precisions["full"],
            "amp": precisions["amp"],
            "stand_in": precisions["stand_in"],
        },
        "step": step_part(recording),
        "allreduce": allreduce_part(recording.allreduce, communication),
        "server": server_part(recording.server, communication),
        "recordings": {"files": recording.files, "disturbance": disturbance(recording)},
    }


def trace_rows(recording: Recording) -> list[Row]:
    """(time, node, resource, kind, value), sorted by time: series replayed as nodes side by side.

    One row at each episode's start, one (1.0) at its end and one at the recording's end; a slowdown
    measured below 1 is set to 1.
    """
    rows: list[Row] = []
    for series in recording.series:
        for each in estimate.episodes(series):
            value = round(max(1.0, each.slowdown), 4)
            rows.append((round(each.start, 3), series.number, "gpu", "slowdown", value))
            rows.append((round(each.stop, 3), series.number, "gpu", "slowdown", 1.0))
        rows.append((series.length, series.number, "gpu", "slowdown", 1.0))
    return sorted(rows, key=lambda row: row[:2])


def disturbance(recording: Recording) -> list[dict[str, Any]]:
    """Per series: how busy the other cores were, what undeclared load took of this one."""
    found = []
    for series in recording.series:
        shares = [
            [estimate.foreign_share(series, span) for span in spans]
            for spans in (series.spans, series.clean_stretches)
        ]
        left_out = estimate.place(series) == estimate.DISTURBED
        found.append(
            {
                "series": series.number,
                "clean_median": short(estimate.clean_median(series)),
                "other_cores_busy": round(float(series.others_busy[-1] / series.start[-1]), 4),
                "stolen_seconds": round(float(series.stolen[-1]), 2),
                "worst_foreign_share_contended": round(max(0.0, *shares[0], 0.0), 4),
                "worst_foreign_share_clean": round(max(0.0, *shares[1]), 4),
                "disturbed_steps_left_out": int(left_out.sum()),
            }
        )
    return found


def write(folder: Path, profile_path: Path, trace_path: Path) -> None:
    """Derive all three files from the recording in `folder`."""
    recording = read_recording(folder)
    made = profile(recording, profile_path.stem)
    rows = trace_rows(recording)
    for path in (profile_path, trace_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    profile_path.write_text(json.dumps(made, indent=1) + "\n")
    lines = ["time,node,resource,kind,value", *(",".join(map(str, row)) for row in rows)]
    trace_path.write_text("\n".join(lines) + "\n")
    trace_path.with_suffix(".md").write_text(account(recording, made, trace_path.stem))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simstrag.calibration.derive", description=__doc__
    )
    parser.add_argument("recording", type=Path, help="folder that record and communication wrote")
    parser.add_argument("--profile", type=Path, help="default: profiles/DEVICE.json")
    parser.add_argument("--trace", type=Path, help="default: recorded/DEVICE.csv")
    given = parser.parse_args(arguments)
    name = slug(read_recording(given.recording).described["device"])
    write(
        given.recording,
        given.profile or Path("profiles") / f"{name}.json",
        given.trace or Path("recorded") / f"{name}.csv",
    )


if __name__ == "__main__":
    main()
