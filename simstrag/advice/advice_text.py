"""Advice in sentences."""

from __future__ import annotations

import math

from simstrag.advice.advice import Advice
from simstrag.analysis.derived.decision import MODEL_ERROR, OWN
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.gain_text import (
    PolicyNames,
    describe_gain,
    describe_regret,
    describe_setting,
)
from simstrag.analysis.text.number_format import join, percent, seconds
from simstrag.experiments.comparison import BASELINE
from simstrag.scenario.varied_constants import name_of

MEASURED_BY = {
    "learner": "simstrag fit",
    "step": "simstrag calibrate",
    "noise": "simstrag calibrate",
    "server": "simstrag calibrate",
    "allreduce": "simstrag calibrate, or calibrate import for a cluster's collectives",
    "contention": "a longer trace: simstrag trace import",
    "contention.response": "simstrag calibrate",
    "contention.host_share": "simstrag calibrate",
}
"""What measures a constant, or those of a section."""


def candidates_table(advice: Advice, most: int | None = None) -> Table:
    """The candidates, finalists first; most: rows.

    Regret is the worst over all settings of what is assumed; of those left out before, over the
    costs of staleness.
    """
    worst = {policy: regret.worst for policy, regret in advice.decision.regrets.items()}
    trials = sorted(advice.trials, key=lambda t: (bool(t.left_out), worst.get(t.policy, t.regret)))
    rows = tuple(
        (
            trial.policy, str(trial.seeds), Number.of(trial.seconds),
            Number.percent(worst.get(trial.policy, trial.regret)),
            trial.left_out or "compared under all seeds",
        )
        for trial in trials[:most]
    )  # fmt: skip
    notes = []
    if (more := len(advice.trials) - len(rows)) > 0:
        notes.append(f"{more} more candidates have more regret; advice.json has all.")
    if advice.excluded:
        notes.append(f"{len(advice.excluded)} were not tried; advice.json says why.")
    headers = ("candidate", "seeds", "seconds", "worst regret (%)", "how far it came")
    return Table(headers, rows, notes=tuple(notes))


def sentences(advice: Advice) -> list[str]:
    """What to do, how sure that is, what would change it, and what a trial costs."""
    answer = advice.answer
    texts = [_choice(advice), _alike(advice), _regret(advice), _assumption(advice), _safe(advice)]
    return [text for text in [*texts, _attempt(advice), answer.inputs, answer.bill] if text]


def _choice(advice: Advice) -> str:
    s = advice.decision.s
    if advice.choice in (BASELINE, advice.safe):
        return advice.answer.choice
    p = next(p for p in s.policies if p.policy == advice.choice)
    name, does = PolicyNames().of(advice.choice)
    return (
        f"If what is assumed holds, run {name}: {describe_gain(s, p)} sooner than synchronous "
        f"training ({BASELINE}).{does}"
    )


def _alike(advice: Advice) -> str:
    """Which finalists are alike, and which would take more seeds to tell."""
    own = advice.decision.states[OWN]
    gaps = {p: own[p] / own[advice.choice] - 1 for p in advice.alike}
    near = [p for p, gap in gaps.items() if abs(gap) < MODEL_ERROR]
    far = [f"{p} ({percent(gap, 2)} % in the mean)" for p, gap in gaps.items() if p not in near]
    texts = []
    if near:
        verb = "is" if len(near) == 1 else "are"
        texts.append(f"{join(near)} {verb} not shown to differ from it by more than 1 %.")
    if far:
        seeds = advice.decision.s.seeds
        texts.append(f"{seeds} seeds are too few to show that {join(far)} is slower: run more.")
    return " ".join(texts)


def _regret(advice: Advice) -> str:
    """How far the choice may be behind the best of the finalists."""
    s, finalists = advice.decision.s, len(advice.decision.states[OWN])
    tried = f"Of {len(advice.trials)} candidates, {finalists} were compared under all seeds"
    if math.isnan(advice.regret):
        return f"{tried}; these do not bound how far {advice.choice} is behind the best: run more."
    sure = "nothing in it is random" if s.certain else f"{s.seeds} seeds, 95 %"
    behind = f"at most {percent(advice.regret, 2)} % slower than"
    how = behind if advice.regret >= 0.0005 else "not slower than"
    return f"{tried}: {advice.choice} is {how} the best of these, if the scenario holds ({sure})."


def _assumption(advice: Advice) -> str:
    found = advice.assumption
    if found is None:
        return ""
    scenario = advice.comparison.scenario
    name = name_of(scenario, found.constant)
    section = found.constant.partition(".")[0]
    how = MEASURED_BY.get(found.constant) or MEASURED_BY[section]
    return (
        f"Measure {name} first ({how}): {describe_setting(advice.decision, found[:2])}, "
        f"{found.rival} is better, and {advice.choice} is {percent(found.regret, 2)} % behind it."
    )


def _safe(advice: Advice) -> str:
    """The safe choice until what is assumed is measured; empty where it is the choice."""
    d = advice.decision
    if advice.choice == advice.safe:
        return advice.answer.safety
    when = "Until then" if advice.assumption else "Where what is assumed is far off,"
    return (
        f"{when} {advice.safe} is the safe choice: over {len(d.states)} settings of what is "
        f"not measured it {describe_regret(d, advice.safe)}; {advice.choice} "
        f"{describe_regret(d, advice.choice)}."
    )


def _attempt(advice: Advice) -> str:
    found = advice.attempt
    if found is None:
        few = "These seeds do not say what a trial of it costs."
        return "" if advice.choice == BASELINE else few
    s = advice.decision.s
    first, second = (
        seconds(float(s.comparison.column(p, s.decides).mean())) for p in (BASELINE, advice.choice)
    )
    runs = "one run" if found.runs == 1 else f"{found.runs} runs"
    return (
        f"To see the gain on your cluster takes {runs} of {BASELINE} ({first} each) and of "
        f"{advice.choice} ({second} each): {found.gpu_hours:.3g} GPU-hours, if real runs scatter "
        "as these do."
    )
