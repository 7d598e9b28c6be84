"""Tables at the end of a page: what was asked, versions and hashes; a scenario as YAML."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from simstrag.experiments.kept_runs import KeptStudy
from simstrag.scenario.scenario import Scenario
from simstrag.trace.trace import Trace

SHORT = 600.0
"""Seconds of a log below which its ends are given to the second."""
MOST_ROWS = 300
"""Inline trace rows that a report prints in full."""


def question(scenario: Scenario) -> dict[str, str]:
    trace, inputs, seeds = scenario.trace, scenario.inputs, scenario.seed_list
    work = []
    if scenario.sample_target is not None:
        work.append(f"{scenario.sample_target} samples (makespan is the time to them)")
    if scenario.target_accuracy is not None:
        work.append(f"accuracy {scenario.target_accuracy:g} (time to target)")
    if scenario.target_progress is not None:
        work.append(f"progress {scenario.target_progress:g} noise-free updates (time to target)")
    facts = {
        "workers": f"{scenario.workers}, each with {scenario.learner.batch} samples per gradient",
        "work, the same for every policy": "; ".join(work),
        "policies": ", ".join(scenario.policies),
    }
    if inputs.trace is None:
        facts["contention"] = "none: no trace is given"
    else:
        where = inputs.trace.source if isinstance(trace, str) else "rows in the scenario"
        per_seed = {
            "same": "the same for every seed (trace_per_seed: same)",
            "shift": "every seed begins at its own offset in it (trace_per_seed: shift)",
        }[scenario.trace_per_seed]
        facts["contention trace"] = f"{where}; {per_seed}; after its end: {scenario.trace_end}"
        facts["trace sha256"] = inputs.trace.sha256
    if scenario.rank_places is not None:
        facts["node of each rank"] = ", ".join(map(str, scenario.rank_places))
    if inputs.profile is not None:
        facts |= {"profile": inputs.profile.name, "profile sha256": inputs.profile.sha256}
    listed = ", ".join(map(str, seeds))
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        listed = f"{seeds[0]} to {seeds[-1]}"
    return facts | {"seeds": f"{len(seeds)}: {listed}"}


def log_period(trace: Trace | None) -> str:
    """When the trace was recorded, as a sentence; empty where that is not known.

    >>> from dataclasses import replace
    >>> trace = Trace.from_rows([(5400, 0, "gpu", "slowdown", 1.0)])
    >>> log_period(replace(trace, began="2026-01-31T10:00:00+01:00"))
    'The log is from 2026-01-31 10:00 to 11:30 (UTC+01:00).'
    >>> log_period(trace)
    ''
    """
    period = trace and trace.period
    if not period:
        return ""
    begin, end = period
    clock = "%H:%M:%S" if (end - begin).total_seconds() < SHORT else "%H:%M"
    date = "" if end.date() == begin.date() else "%Y-%m-%d "
    zone = f" ({begin:%Z})" if begin.tzinfo else ""
    return f"The log is from {begin:%Y-%m-%d {clock}} to {end:{date}{clock}}{zone}."


def who_and_when(made: Mapping[str, str]) -> str:
    """Who wrote results and when, as far as they say."""
    return ", ".join(made[key] for key in ("by", "at") if key in made)


def about(study: KeptStudy[Any]) -> dict[str, Any]:
    """What the page of every study states: its job, who made it, and how to run it again."""
    return {
        "job": study.made.get("job", study.folder.resolve().name),
        "made": who_and_when(study.made),
        "study": as_yaml(study.study),
        "provenance": provenance(study.provenance),
    }


def provenance(found: Mapping[str, Any]) -> dict[str, str]:
    """Versions, commit and hashes by term."""
    facts: dict[str, str] = {}
    for key, value in found.items():
        if key == "sha256":
            facts |= {f"{name} sha256": digest or "none" for name, digest in value.items()}
        elif key == "commit":
            changed = " (with uncommitted changes)" if str(value).endswith("+") else ""
            facts[key] = f"{value or 'unknown: not run from a git checkout'}{changed}"
        else:
            facts[key] = str(value)
    return facts


def as_yaml(scenario: Mapping[str, Any]) -> str:
    """A scenario as a YAML file; very long inline traces are cut."""
    from ruamel.yaml import YAML

    rows, text = scenario.get("trace"), io.StringIO()
    if isinstance(rows, (list, tuple)) and len(rows) > MOST_ROWS:
        scenario = {**scenario, "trace": list(rows[:MOST_ROWS])}
        text.write(f"# {len(rows) - MOST_ROWS} more rows of the trace are left out here\n")
    YAML(typ="safe", pure=True).dump(dict(scenario), text)
    return text.getvalue()
