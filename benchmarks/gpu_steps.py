"""Steps on one GPU: docs/measured/h200.txt, from the shipped samples and profiles.

`python -m benchmarks.gpu_steps [--write]` makes its tables: steps by precision and batch, those of
another script beside the profile's, contention, and the mitigation M of reduced precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.results import add_write, keep_tables
from benchmarks.tables import Table, show
from simstrag.analysis.text.number_format import number
from simstrag.calibration import samples
from simstrag.calibration.calibrate import derive
from simstrag.calibration.fits.device_estimates import DeviceSteps
from simstrag.profile.batch_laws import times_at
from simstrag.profile.profile import Profile
from simstrag.profile.responses import evaluate

CALIBRATION = Path(__file__).parent.parent / "simstrag" / "calibration"
NAMES = {"ResNet-50": "nvidia-h200-resnet50", "GPT-2": "nvidia-h200-gpt2"}
BY_HAND = {"tf32": 28.65, "bf16": 24.1, "clean": 17.63}
"""Milliseconds of raw steps at batch 32, beside a GEMM process of level 1 and without one; that in
bf16 is of visits after a profiler."""


def profile(name: str) -> Profile:
    """A shipped profile."""
    return Profile.read(CALIBRATION / "profiles" / f"{name}.json")


def kernels(name: str) -> dict[tuple[str, int], float]:
    """Milliseconds of kernels by precision and batch, from the shipped samples."""
    paths = samples.find_all(CALIBRATION / "measurements" / name)
    joined = samples.join([samples.read(path) for path in paths])
    found = DeviceSteps(joined, ()).kernels
    return {(cell.precision, cell.batch): 1e3 * time.value for cell, time in found.items()}


def steps() -> Table:
    """Milliseconds of steps: measured, else by the law (in brackets), kernel time after a slash."""
    rows = []
    for model, name in NAMES.items():
        known, busy = profile(name), kernels(name)
        by_precision: dict[str, dict[int, str]] = {}
        for cell in known.cells:
            ms = 1e3 * cell.seconds.value
            shown = f"{ms:.1f}" if cell.seconds.kind == "measured" else f"({ms:.1f})"
            text = f"{shown} / {busy[cell.precision, cell.batch]:.1f}"
            by_precision.setdefault(cell.precision, {})[cell.batch] = text
        batches = sorted({cell.batch for cell in known.cells})
        rows.append((f"{model}, batch", *map(str, batches)))
        rows += [(name, *(of[b] for b in batches)) for name, of in by_precision.items()]
    return Table("Milliseconds: step / kernels; in brackets computed", ("", *[""] * 5), rows)


def check() -> Table:
    """The cells of the other script beside the profile's predictions, in milliseconds."""
    known, busy = profile(NAMES["ResNet-50"]), kernels(NAMES["ResNet-50"])
    text = (CALIBRATION / "measurements/nvidia-h200-resnet50/measure-steps.jsonl").read_text()
    rows = []
    for line in map(json.loads, text.splitlines()):
        if "queued" not in line:
            continue
        precision, batch = line["precision"], line["batch"]
        cell = next(c for c in known.cells if (c.precision, c.batch) == (precision, batch))
        queued = 1e3 * statistics.median(line["queued"])
        rows.append((
            precision, str(batch), f"{1e3 * line['kernel']:.1f}", f"{busy[precision, batch]:.1f}",
            f"{queued:.1f}", f"{1e3 * cell.seconds.value:.1f}",
        ))  # fmt: skip
    header = ("precision", "batch", "kernels", "kernels, profile", "step", "step, profile")
    return Table("Milliseconds by another script, which profiled after each cell", header, rows)


def contention() -> Table:
    """Steps beside a load in tf32, batch 32: measured, and by the law, in milliseconds."""
    known = profile(NAMES["ResNet-50"])
    clean = times_at(known, 32).device
    assert clean is not None
    rows = []
    for response in known.responses:
        for level in response.levels:
            seconds = clean.full.value * level.slowdown.value
            law = clean.full.value * float(evaluate(response, level.level))
            rows.append((
                response.load, f"{level.level:g}", f"{1e3 * seconds:.2f}", f"{1e3 * law:.2f}",
                number(100 * (law / seconds - 1), 2, sign=True),
                "held out" if level.held_out else "in the fit",
            ))  # fmt: skip
    header = ("load", "level", "measured", "by the law", "off by (%)", "")
    return Table("Milliseconds of a step in tf32 at batch 32 beside load", header, rows)


def mitigation() -> Table:
    """M of reduced precision beside a GEMM process of level 1, at batch 32: predicted, by hand."""
    known = profile(NAMES["ResNet-50"])
    launch, device = times_at(known, 32).streams or (None, None)
    gemm = next(response for response in known.responses if response.load == "gemm")
    assert launch is not None
    assert device is not None
    assert launch.amp is not None
    assert device.amp is not None
    stretch = float(evaluate(gemm, 1.0))
    predicted = {
        "clean": max(launch.full.value, device.full.value),
        "tf32": max(launch.full.value, device.full.value * stretch),
        "bf16": max(launch.amp.value, device.amp.value * stretch),
    }
    rows = []
    for name, of in (
        ("by the profile", {key: 1e3 * value for key, value in predicted.items()}),
        ("by hand", BY_HAND),
    ):
        share = (of["tf32"] - of["bf16"]) / (of["tf32"] - of["clean"])
        cells = [f"{of[key]:.2f}" if key != "bf16" else f"{of[key]:.1f}" for key in of]
        named = dict(zip(of, cells, strict=True))
        rows.append((name, named["clean"], named["tf32"], named["bf16"], f"{100 * share:.0f}"))
    header = ("", "clean, tf32", "beside GEMM 1, tf32", "beside GEMM 1, bf16", "M (%)")
    return Table("What reduced precision takes back, milliseconds of a step", header, rows)


def held_out() -> Table:
    """The errors of the fits at cells that they did not see, derived anew from the samples."""
    rows = []
    for model, name in NAMES.items():
        rows += [
            (model, part.part, str(len(part.cells)), f"{100 * part.median:.1f}",
             f"{100 * part.worst:.1f}", max(part.cells, key=lambda c: abs(c.error)).cell)
            for part in derive(CALIBRATION / "measurements" / name).held_out
        ]  # fmt: skip
    header = ("", "part", "cells", "median (%)", "worst (%)", "which")
    return Table("Errors at cells that no fit saw", header, rows)


def tables() -> list[Table]:
    """All tables."""
    return [steps(), held_out(), check(), contention(), mitigation()]


def main() -> None:
    """Print the tables, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_write(parser, "h200")
    write, found = parser.parse_args().write, tables()
    show(found)
    if write:
        keep_tables("h200", found)


if __name__ == "__main__":
    main()
