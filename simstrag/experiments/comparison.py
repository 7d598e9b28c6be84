"""A comparison as data: its tables, its ranking, its folder; `compare` makes one."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simstrag.documents.file_io import path_of
from simstrag.engine.summary import (
    BEYOND_WARNING,
    beyond_warning,
    unknown_warning,
    unslowed_warning,
    unused_noise_warning,
)
from simstrag.errors import InputError
from simstrag.experiments import paired_statistics
from simstrag.experiments.placeholders import Placeholders
from simstrag.experiments.run_spread import predict_run
from simstrag.experiments.runner import BASELINE, attribution
from simstrag.experiments.sensitivity import choose_seeds
from simstrag.rendering import answer, html_fragment, html_page
from simstrag.runs.run import UNITS, Run, write_directory
from simstrag.scenario.beyond_measured import BeyondMeasured, beyond_measured, doubts
from simstrag.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BASELINE", "C_TAUS", "Comparison", "origin"]

C_TAUS = (0.5, 1.0, 4.0)
"""Costs of a stale sample: tuned learning rate, theory, momentum left untuned."""


def costs_of_staleness(scenario: Scenario) -> tuple[float, ...]:
    """The costs of a stale sample under which a comparison is made, besides the one in force.

    >>> costs_of_staleness(Scenario(workers=2, updates=1, step={"compute": 0.1}))
    (0.5, 1.0, 4.0)
    """
    return scenario.learner.c_tau_range or C_TAUS


ORIGIN, MADE = "origin.txt", "made.json"
TABLES = {
    "comparison": ("variant", "policy", "seed"),
    "controls": ("variant", "policy", "seed"),
    "sensitivity": ("policy", "seed", "c_tau", "time_to_target"),
    "curves": ("variant", "policy", "seed", "progress", "time"),
    "waiting": ("variant", "seed", "rank", "seconds"),
    "evaluations": (
        "variant",
        "policy",
        "seed",
        "time",
        "updates",
        "samples",
        "accuracy",
        "loss",
    ),
}
"""Their columns; the first two also have a column for each number of a run's summary."""
SEARCHED = ("thresholds", "extremes")
"""Tables of the search for thresholds."""
WORDS = ("unit", "kind", "rival")
"""Columns of the thresholds that may be empty."""
SPREAD = ("low", "high", "law", "missed")
"""What the ranking has of the interval of one run."""
OF_RUN = (
    "accuracy",
    "samples", "mean_staleness", "effective_staleness", "deviation", "goodput", "throughput",
    "useful_throughput", "failures", "checkpoints", "lost_updates", "lost_samples", "down_seconds",
    "efficiency", "amp_share", "rebatched_share", "switches", "efficacy_stops", "probes",
    "detection_precision", "detection_recall", "beyond_trace",
)  # fmt: skip
"""Columns of the ranking that are means over seeds of a run's summary."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Policies compared; tables are DataFrames, times in seconds, units in `.attrs["units"]`.

    `print` shows the short answer.

    runs: one row per policy and seed, columns as in `run.json`.
    controls: the same columns for the reference runs: bsp without contention (`variant` clean), and
        bsp under contention if it is not among the policies.
    sensitivity: policy, seed, c_tau, time_to_target.
    curves: times at which each run reached evenly spaced levels of progress; columns variant,
        policy, seed, progress, time.
    waiting: seconds that all other ranks waited for a rank under bsp, with contention and without;
        columns variant, seed, rank, seconds.
    evaluations: of a real learner, its model at each evaluation of each run; columns variant,
        policy, seed, time, updates, samples, accuracy, loss.
    examples: the first seed's `Run` of each policy, with its steps or, of a long run, an excerpt of
    them (`Run.excerpt`); "clean" is the clean control.
    thresholds: how far each assumed or fitted constant may be off before another policy leads, as
    `simstrag.experiments.sensitivity.sensitivity` describes; None if that was not tried.
    extremes: seconds of each policy under each seed of the search with each constant at its
        outermost values; with thresholds.
    made: of a comparison in a folder, `by` and `at`: who wrote it and when; `job`: the name of the
        scenario's file, if there is one.
    """

    scenario: Scenario
    runs: pd.DataFrame
    controls: pd.DataFrame
    sensitivity: pd.DataFrame
    curves: pd.DataFrame
    waiting: pd.DataFrame
    evaluations: pd.DataFrame
    examples: dict[str, Run]
    thresholds: pd.DataFrame | None = None
    extremes: pd.DataFrame | None = None
    made: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in (self.runs, self.controls, self.sensitivity, self.curves):
            table.attrs["units"] = _units(table)

    def __repr__(self) -> str:
        policies, seeds = len(self.policies), len(self.scenario.seed_list)
        return f"<Comparison: policies {policies}, seeds {seeds}; print it for its choice>"

    def __str__(self) -> str:
        return str(self.answer.brief)

    @property
    def policies(self) -> list[str]:
        """Policies as they were written, in the order asked for."""
        return list(dict.fromkeys(self.runs["policy"]))

    @property
    def has_target(self) -> bool:
        """Whether the scenario declares a target."""
        return self.scenario.has_target

    @property
    def answer(self) -> Any:
        """The decision: what to run, what contention cost, and the best of each lane.

        `simstrag.analysis.text.answer.Answer`; its text is the sentences of the report.
        """
        return answer(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The placeholders, and the warnings of runs, each once."""
        worst = self.runs.groupby("policy", sort=False)["beyond_trace"].max()
        beyond = worst[worst > BEYOND_WARNING]
        unknown = self.runs[["policy", "progress_unknown"]].dropna().drop_duplicates("policy")
        return (
            *filter(None, [str(self.placeholders), self.unslowed, self.unused_noise]),
            *(
                [f"{', '.join(beyond.index)}: up to {beyond_warning(beyond.max())}"]
                if len(beyond)
                else []
            ),
            *(f"{p}: {unknown_warning(why)}" for p, why in unknown.itertuples(index=False)),
            *map(str, self.beyond_measured),
            *doubts(self.scenario),
        )

    @property
    def delays(self) -> dict[int, float]:
        """The share by which contention delays bsp, under each seed of the scenario."""
        whole, clean = (
            np.fmax(*(self.column(BASELINE, name, v) for name in ("makespan", "time_to_target")))
            for v in ("contended", "clean")
        )
        seeds = self.scenario.seed_list
        found = dict(zip(sorted(seeds), (whole / clean - 1).tolist(), strict=True))
        return {seed: found[seed] for seed in seeds}

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """The seeds of the search for thresholds; none without a search."""
        found = self.thresholds
        n = 0 if found is None or found.empty else int(found["seeds"].iloc[0])
        return choose_seeds(self.delays, n) if n else ()

    @property
    def placeholders(self) -> Placeholders:
        """The placeholders of the scenario, and which of them decide the answer."""
        found: Placeholders = self.answer.decision.placeholders
        return found

    @property
    def unslowed(self) -> str | None:
        """The warning of runs that the trace did not slow, if there is any."""
        runs = self.runs
        ends = {s: runs["makespan"][runs["seed"] == s].max() for s in self.scenario.seed_list}
        return unslowed_warning(self.scenario, ends)

    @property
    def unused_noise(self) -> str | None:
        """The warning of an autocorrelation that no step has, if there is any."""
        return unused_noise_warning(self.scenario)

    @property
    def beyond_measured(self) -> list[BeyondMeasured]:
        """The profile values that the runs extrapolate beyond the measured range."""
        rows = [*self.runs.to_dict("records"), *self.controls.to_dict("records")]
        return beyond_measured(self.scenario, rows)

    def column(self, policy: str, name: str, variant: str = "contended") -> Any:
        """One column of one policy over seeds, as an array in the order of the scenario's seeds."""
        for table in (self.runs, self.controls):  # the controls have bsp if the policies do not
            names, variants = table["policy"].to_numpy(), table["variant"].to_numpy()
            rows = np.flatnonzero((names == policy) & (variants == variant))
            if len(rows):
                break
        rows = rows[np.argsort(table["seed"].to_numpy()[rows])]
        return table[name].to_numpy(dtype=np.float64)[rows]

    def architecture(self, policy: str) -> str:
        """The architectures of a policy's updates, over all seeds."""
        found = self.runs.loc[self.runs["policy"] == policy, "architecture"]
        return " + ".join(dict.fromkeys(word for text in found for word in text.split(" + ")))

    @property
    def ranking(self) -> pd.DataFrame:
        """One row per policy, fastest first: by time to target if there is one, else by makespan.

        Estimates have columns `x`, `x_low`, `x_high`, the ends of a 95 % interval; units are in
        `.attrs["units"]`.  One run ends between `one_run_low` and `one_run_high` in nine of ten
        cases.
        """
        import pandas as pd

        times = ["makespan", *(["time_to_target"] if self.has_target else [])]
        trace = self.scenario.inputs.trace
        rows = []
        for policy in self.policies:
            row: dict[str, Any] = {"policy": policy, "architecture": self.architecture(policy)}
            for name in times:
                own, bsp = self.column(policy, name), self.column(BASELINE, name)
                clean = self.column(BASELINE, name, "clean")
                if trace is not None and trace.replays:  # durations have no clean run
                    clean = np.full_like(clean, math.nan)
                estimates = {
                    name: paired_statistics.mean(own),
                    f"{name}_difference": paired_statistics.difference(own, bsp),
                    f"{name}_speedup": paired_statistics.speedup(own, bsp),
                    f"{name}_mitigation": paired_statistics.mitigation(own, bsp, clean),
                }
                for key, estimate in estimates.items():
                    row |= zip((key, f"{key}_low", f"{key}_high"), estimate, strict=True)
            spread = predict_run(self.column(policy, times[-1]), self.scenario.certain)
            row |= {f"one_run_{key}": getattr(spread, key) for key in SPREAD}
            for name in OF_RUN:
                if name in self.runs:
                    values = self.column(policy, name)
                    known = values[~np.isnan(values)]
                    row[name] = float(known.mean()) if len(known) else float("nan")
            rows.append(row)
        ranking = pd.DataFrame(rows).sort_values(times[-1], kind="stable").reset_index(drop=True)
        ranking.attrs["units"] = _units(ranking)
        return ranking

    def write(
        self, folder: str | Path, command: str | None = None, of: str | Path | None = None
    ) -> Path:
        """Write tables, inputs, example runs and the report to a folder, whole or not at all.

        command: the command that the report shows; by default one that makes it from the folder.
        of: the file of the scenario, which `origin` finds again.
        """
        folder, made = path_of(folder, "a folder to write"), self.made or attribution(of)

        def fill(target: Path) -> None:
            self.scenario.write(target)
            (target / MADE).write_text(json.dumps(made, indent=2), encoding="utf-8")
            for name in TABLES:
                table = self.runs if name == "comparison" else getattr(self, name)
                table.to_csv(target / f"{name}.csv", index=False)
            self.ranking.to_csv(target / "ranking.csv", index=False)
            for name in SEARCHED:
                if (found := getattr(self, name)) is not None:
                    found.to_csv(target / f"{name}.csv", index=False)
            for name, run in self.examples.items():
                run.write(target / "examples" / _file_name(name))
            names = {name: _file_name(name) for name in self.examples}
            (target / "examples.json").write_text(json.dumps(names, indent=2), encoding="utf-8")
            page = html_page(replace(self, made=made), command)
            (target / "report.html").write_text(page, encoding="utf-8")
            if of is not None:
                path = os.path.relpath(Path(of).resolve(), folder.resolve())
                (target / ORIGIN).write_text(path + "\n", encoding="utf-8")

        return write_directory(folder, "comparison.csv", fill)

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """From a folder that `write` wrote. Raises `InputError` where it is none."""
        import pandas as pd

        folder = path_of(folder, "a comparison")
        turns = extremes = None
        try:
            names, made = (
                json.loads((folder / name).read_text(encoding="utf-8"))
                for name in ("examples.json", MADE)
            )
            tables = {name: pd.read_csv(folder / f"{name}.csv") for name in TABLES}
            if (folder / "thresholds.csv").exists():
                turns = pd.read_csv(folder / "thresholds.csv", dtype=dict.fromkeys(WORDS, str))
                turns = turns.fillna(dict.fromkeys(WORDS, ""))
                extremes = pd.read_csv(folder / "extremes.csv")
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: not a comparison: {error}") from None
        if not isinstance(names, dict):
            raise InputError(f"{folder / 'examples.json'}: does not say where each example is")
        examples = {name: Run.read(folder / "examples" / file) for name, file in names.items()}
        for name, run in examples.items():
            if run.steps is None:
                path = folder / "examples" / names[name]
                raise InputError(
                    f"{path}: not an example of a comparison: steps.parquet is missing"
                )
        numbers = sorted({key for run in examples.values() for key in run.scalars})
        for name, table in tables.items():
            expected = [*TABLES[name], *(numbers if name in ("comparison", "controls") else ())]
            if missing := [column for column in expected if column not in table]:
                path = folder / f"{name}.csv"
                raise InputError(f"{path}: not of a comparison: it has no column '{missing[0]}'")
        return cls(
            Scenario.read(folder / "scenario.yaml"), tables["comparison"], tables["controls"],
            tables["sensitivity"], tables["curves"], tables["waiting"], tables["evaluations"],
            examples, turns, extremes, made,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return html_fragment(self)


def origin(folder: Path) -> Path | None:
    """The scenario file that a comparison in a folder was made of; None where it is not known."""
    try:
        return (folder / (folder / ORIGIN).read_text(encoding="utf-8").strip()).resolve()
    except OSError:
        return None


def _units(table: pd.DataFrame) -> dict[str, str]:
    """The unit of each column whose name does not say it, a share of 1 being "share".

    >>> import pandas as pd
    >>> _units(pd.DataFrame(columns=["policy", "makespan_speedup_low", "goodput"]))
    {'makespan_speedup_low': 'ratio', 'goodput': 'samples/s'}
    """
    units = {"time": "s", "one_run": "s", **UNITS}
    for time in ("makespan", "time_to_target"):
        units |= {f"{time}_difference": "s", f"{time}_speedup": "ratio"}
        units[f"{time}_mitigation"] = "share"
    names = {column: re.sub("_(low|high)$", "", column) for column in table.columns}
    return {column: units[name] for column, name in names.items() if name in units}


def _file_name(policy: str) -> str:
    return "".join(c if c.isalnum() or c in "._-=" else "_" for c in policy)
