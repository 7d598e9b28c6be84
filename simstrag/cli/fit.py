"""`simstrag fit`: the noise-scale formula's constants for a task, by training it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from simstrag.cli.console import print_line, print_table
from simstrag.cli.options import JobsOption, PoliciesOption, ScenarioFile, SeedsOption, out_option
from simstrag.cli.output import emit
from simstrag.cli.progress import show_count
from simstrag.cli.read_inputs import read_scenario
from simstrag.documents.file_io import writable, write_atomically

if TYPE_CHECKING:
    from simstrag.experiments.learner_fit import LearnerFit
    from simstrag.experiments.paired_statistics import Estimate


def fit(
    scenario: ScenarioFile,
    policy: PoliciesOption = None,
    seeds: SeedsOption = None,
    out: Annotated[Path | None, out_option("YAML of the constants.", "FILE.yaml")] = None,
    jobs: JobsOption = None,
) -> None:
    """Fit the noise scale and the cost of staleness by training."""
    from simstrag.experiments.learner_fit import fit_learner

    case = read_scenario(scenario)
    if out is not None:
        writable(out, ".yaml")
    changes = {"policies": policy, "seeds": seeds}
    case = case.replaced(**{name: value for name, value in changes.items() if value})
    with show_count() as show:
        found = fit_learner(case, jobs, show)
    if out is not None:
        write_atomically(out, lambda part: part.write_text(_keys(found), encoding="utf-8"))
    document = {
        **asdict(found), "errors": found.errors, "learner": found.section, "written": out,
    }  # fmt: skip
    emit(document, lambda: _print(found), constants=out)


def _print(found: LearnerFit) -> None:
    unit = "samples"
    rows = [
        ("noise_scale (B_noise)", *_cells(found.noise_scale), unit),
        ("c_tau", *_cells(found.c_tau), ""),
        ("target_progress", *_cells(found.progress), ""),
    ]
    print_line(f"fitted to trainings under {found.seeds} seeds, with 95 % intervals:")
    print_table(["constant", "value", "from", "to", "unit"], [list(row) for row in rows])
    if found.errors:
        print_line("error of the formula's time to target for policies that are in no fit:")
        print_table(["policy", "error"], [[p, f"{e:+.1%}"] for p, e in found.errors.items()])
    if found.unmodelled:
        print_line(f"the formula does not hold for {', '.join(found.unmodelled)}")
    if found.missed:
        print_line(f"missed the target, which no formula says: {', '.join(found.missed)}")
    print_line("in a scenario without this task:")
    for line in _keys(found).splitlines():
        print_line(line)


def _keys(found: LearnerFit) -> str:
    """Keys of a scenario with the constants, in YAML."""
    keys = ", ".join(f"{key}: {value}" for key, value in found.section.items())
    return f"learner: {{{keys}}}\ntarget_progress: {found.progress.value:.3g}\n"


def _cells(estimate: Estimate | None) -> list[str]:
    return ["not known"] + [""] * 2 if estimate is None else [f"{x:.3g}" for x in estimate]
