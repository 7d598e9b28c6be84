"""Advice in sentences."""

from __future__ import annotations

import math

from simstrag.advice.advice import Advice
from simstrag.advice.cluster_advice import ClusterAdvice
from simstrag.advice.halving import CandidateResult
from simstrag.advice.power import PowerPoint
from simstrag.advice.recommendation import Recommendation
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.answer import describe_rivals, if_true
from simstrag.analysis.text.bill_text import summarize_bill
from simstrag.analysis.text.brief import Brief, first_sentence
from simstrag.analysis.text.comparison_brief import describe_turns, lanes_table
from simstrag.analysis.text.gain_text import (
    ERROR,
    PolicyNames,
    describe_gain,
    describe_setting,
    percent_of,
    regret_text,
)
from simstrag.analysis.text.number_format import join, percent, seconds
from simstrag.analysis.text.remark import say
from simstrag.analysis.text.spread_text import describe_one_run
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import MODEL_ERROR, OWN, Setting
from simstrag.experiments.paired_statistics import Estimate, ratio_of_times
from simstrag.scenario.varied_constants import NAMES, name_of

MEASURED_BY = {
    "learner": "simstrag fit",
    "step": "simstrag calibrate",
    "noise": "simstrag calibrate",
    "server": "simstrag calibrate",
    "allreduce": "simstrag calibrate, or calibrate import for a cluster's collectives",
    "contention": "a longer trace: simstrag trace import",
    "contention.response": "simstrag calibrate",
    "contention.host_share": "simstrag calibrate",
    "host_cores": "the use of cores while a rank prepares its batches",
    "server_cores": "the use of cores while the server applies a gradient",
}
"""The measurement that gives a constant, or those of a section."""
OF_WORKLOADS = {
    "host_cores": "the cores that the host part of a step keeps busy (host_cores)",
    "server_cores": "the cores that the service of a gradient keeps busy (server_cores)",
}
"""Names of the constants that only workloads of a cluster have."""
FEW = 4
"""Candidates in a short answer."""


def candidates_table(advice: Recommendation, most: int | None = None) -> Table:
    """The candidates, finalists first; most: rows.

    Regret is the worst over all settings of what is assumed; of those left out before, over the
    costs of staleness.
    """
    worst = {policy: regret.worst for policy, regret in advice.regrets.items()}
    trials = sorted(advice.trials, key=lambda t: (bool(t.left_out), worst.get(t.policy, t.regret)))
    rows = tuple(
        (
            trial.policy, str(_seeds(advice, trial)), _seconds(advice, trial),
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
    if any(cell.endswith("*") for _, _, cell, *_ in rows):
        notes.append(f"* Fewer than {advice.by.seeds} seeds, too few for a {advice.by}.")
    seconds = "seconds" if _by_mean(advice) else f"{advice.by} of seconds"
    headers = ("candidate", "seeds", seconds, "behind at worst (%)", "how far it came")
    return Table(headers, rows, notes=tuple(notes))


def _by_mean(advice: Recommendation) -> bool:
    return advice.by.quantile is None


def _seeds(advice: Recommendation, trial: CandidateResult) -> int:
    """Seeds behind the figures of a candidate: all of them for a finalist."""
    return advice.seeds if trial.policy in advice.times else trial.seeds


def _seconds(advice: Recommendation, trial: CandidateResult) -> Number:
    """Seconds of a candidate, with a mark where its seeds are too few for a quantile."""
    cell = Number.of(advice.states[OWN].get(trial.policy, trial.seconds))
    few = not _by_mean(advice) and not advice.certain
    few &= _seeds(advice, trial) < advice.by.seeds
    return Number(f"{cell}*", cell.value) if few else cell


def power_table(points: tuple[PowerPoint, ...]) -> Table:
    """The points that are efficient: less energy takes more time."""
    shown = [point for point in points if point.efficient]
    priced = shown[0].cost is not None
    rows = tuple(
        (
            point.policy, Number.of(point.cap), Number.of(point.seconds), Number.of(point.kwh),
            *((Number.of(point.cost),) if priced else ()),
        )
        for point in shown
    )  # fmt: skip
    headers = ("policy", "cap (W)", "seconds", "kWh", *(("cost",) if priced else ()))
    note = f"Of {len(points)} policies and caps, those that none beats in both time and energy."
    return Table(headers, rows, notes=(note,))


def sentences(advice: Recommendation) -> list[str]:
    """What to do, how sure that is, what would change it, and what a trial costs."""
    texts = [
        " ".join(_choice(advice)).rstrip(), _alike(advice), _regret(advice), _assumption(advice),
        _safe(advice), _attempt(advice), _beyond(advice),
    ]  # fmt: skip
    if isinstance(advice, Advice):
        if _by_mean(advice):
            texts.insert(1, describe_one_run(advice.answer.decision.s, advice.choice))
        texts = [_launching(advice), *texts, advice.answer.inputs, advice.answer.bill]
    return [text for text in texts if text]


def brief(advice: Recommendation) -> Brief:
    """What to run, the line that runs it, and what to measure first."""
    action, _ = _choice(advice)
    table = candidates_table(advice, FEW)
    facts, cautions = [], [_beyond(advice)]
    if isinstance(advice, Advice):
        d = advice.answer.decision
        facts = [summarize_bill(d.s, d.bill)]
        cautions += advice.answer.brief.cautions
        if _by_mean(advice):
            facts.insert(0, describe_one_run(d.s, advice.choice))
            table = lanes_table(d, advice.choice, [*advice.excluded])
        action = f"{_launching(advice)} {action}".strip()
    if advice.choice != BASELINE:
        facts.append(f"On real ranks: {advice.lines[0]}")
    turning = _assumption(advice)
    if isinstance(advice, Advice) and advice.choice == advice.safe and _by_mean(advice):
        turning = describe_turns(advice.answer.decision, 1)
    if advice.choice != advice.safe:
        when = "Until then" if turning else "Where what is assumed is far off"
        says = ", as the report says" if _by_mean(advice) else ""
        turning = f"{turning} {when}, {advice.safe} is the safe choice{says}.".strip()
    return Brief(
        action, tuple(facts), table, turning,
        tuple(map(first_sentence, filter(None, cautions))),
    )  # fmt: skip


def _launching(advice: Advice) -> str:
    """What to do first where launching costs more than any finalist gains; else empty."""
    share, step = advice.launching, advice.comparison.scenario.inputs.step
    if share is None or share < MODEL_ERROR:
        return ""
    return say(
        "First compile the model, use CUDA graphs or a larger batch: a step takes {host:s} to "
        "launch and {device:s} on the device. Without launching, bsp would take {share:%2} less, "
        "more than any policy here gains.", host=step.host, device=step.gpu, share=share,
    )  # fmt: skip


def _choice(advice: Recommendation) -> tuple[str, str]:
    """The choice, and a description of that policy."""
    name, does = PolicyNames().of(advice.choice)
    as_fast = ""
    if advice.choice != BASELINE:
        as_fast = describe_rivals(advice, advice.selection)
    if isinstance(advice, ClusterAdvice):
        return f"{_choice_of_cluster(advice, name)}{as_fast}", does.strip()
    assert isinstance(advice, Advice)
    decision = advice.answer.decision
    if not _by_mean(advice):
        choice = if_true(decision, _choice_by_quantile(advice, name))
        return f"{choice}{as_fast}", does.strip()
    if advice.choice == decision.safe:
        return advice.answer.action, advice.answer.does
    if advice.choice == BASELINE:
        return f"Change nothing yet: keep {BASELINE}.{_undecided(advice)}", ""
    gain = describe_gain(decision.s, decision.s.of(advice.choice))
    return (
        f"If what is assumed holds, run {name}: {gain} sooner than synchronous training "
        f"({BASELINE}).{as_fast}"
    ), does.strip()


def _choice_by_quantile(advice: Advice, name: str) -> str:
    """The choice by a quantile, and within which time that share of its runs ends."""
    bsp, own = advice.times[BASELINE], advice.states[OWN]
    assert advice.by.quantile is not None
    end = "end" if len(advice.answer.decision.s.times) == 1 else "reach the target"
    within = f"{100 * advice.by.quantile:g} % of runs {end} within {seconds(own[advice.choice])}"
    if not advice.certain and advice.seeds < advice.by.seeds:
        within += f" (roughly: {advice.seeds} seeds, and it takes {advice.by.seeds})"
    if advice.choice != BASELINE:
        gain = _saved(advice.by.ratio(advice.times[advice.choice], bsp))
        return f"run {name}: {within}, {gain} sooner than under {BASELINE}."
    text = f"change nothing: keep {BASELINE}, under which {within}. "
    return f"{text}{_none_better(advice)}"


def _saved(ratio: Estimate) -> str:
    """The share of time that a ratio of times saves, in percent."""
    return percent_of(Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low))


def _none_better(advice: Recommendation) -> str:
    """The reason to change nothing."""
    shown = [p for p in advice.times if p in advice.shown]
    if not shown:
        return f"No policy is shown to be faster.{_undecided(advice)}"
    return f"What {join(shown)} gains is smaller than {ERROR}."


def _undecided(advice: Recommendation) -> str:
    """The finalist that may be faster, if seeds are too few to show it."""
    own = advice.states[OWN]
    best = min(own, key=own.__getitem__)
    gain = 1 - own[best] / own[BASELINE]
    if gain < MODEL_ERROR:
        return ""
    return (
        f" {best} takes {percent(gain, 2)} % less in the {advice.by}, but of {len(advice.trials)} "
        f"candidates that may be luck: {advice.seeds} seeds are too few, run more."
    )


def _choice_of_cluster(advice: ClusterAdvice, name: str) -> str:
    """The choice for all jobs, and the change of their mean completion time."""
    own, study = advice.states[OWN], advice.study
    managed = "" if study.managers == ("none",) else f", manager {study.managers[0]}"
    where = f"(placer {study.placers[0]}{managed})"
    if advice.choice != BASELINE:
        gain = _saved(ratio_of_times(advice.times[advice.choice], advice.times[BASELINE]))
        return (
            f"Run all jobs under {name} {where}: their mean completion time is {gain} shorter than "
            f"under {BASELINE}."
        )
    text = f"Change nothing: keep {BASELINE}, under which jobs take {seconds(own[BASELINE])} in "
    return f"{text}the mean {where}. {_none_better(advice)}"


def _alike(advice: Recommendation) -> str:
    """Which finalists are alike, and which would take more seeds to tell."""
    own = advice.states[OWN]
    gaps = {p: own[p] / own[advice.choice] - 1 for p in advice.alike}
    near = [p for p, gap in gaps.items() if abs(gap) < MODEL_ERROR]
    far = [f"{p} ({percent(gaps[p], 2)} % in the {advice.by})" for p in gaps if p not in near]
    text = "{near} {near:is/are} not shown to differ from it by more than 1 %. " if near else ""
    if far:
        text += "{seeds} seeds are too few to show that {far} {far:is/are} slower: run more."
    return say(text, near=near, far=far, seeds=advice.seeds).rstrip()


def _regret(advice: Recommendation) -> str:
    """How far the choice may be behind the best of the finalists."""
    tried = f"Of {len(advice.trials)} candidates, {len(advice.times)} were compared under all seeds"
    if math.isnan(advice.regret):
        return f"{tried}; these do not bound how far {advice.choice} is behind the best: run more."
    sure = "nothing in it is random" if advice.certain else f"{advice.seeds} seeds, 95 %"
    behind = f"at most {percent(advice.regret, 2)} % slower than"
    how = behind if advice.regret >= 0.0005 else "not slower than"
    return f"{tried}: {advice.choice} is {how} the best of these, if the scenario holds ({sure})."


def _assumption(advice: Recommendation) -> str:
    found = advice.assumption
    if found is None:
        return ""
    return (
        f"Measure {_name(advice, found.constant)} first ({_measured_by(found.constant)}): "
        f"{_setting(advice, found[:2])}, {found.rival} is better, "
        f"and {advice.choice} is {percent(found.regret, 2)} % behind it."
    )


def _measured_by(constant: str) -> str:
    return MEASURED_BY.get(constant) or MEASURED_BY[constant.partition(".")[0]]


def _name(advice: Recommendation, constant: str) -> str:
    if isinstance(advice, Advice):
        return name_of(advice.comparison.scenario, constant)
    return OF_WORKLOADS.get(constant) or NAMES[constant]


def _setting(advice: Recommendation, state: Setting) -> str:
    """A setting, to follow what is true of it; of a cluster the value is a factor."""
    if isinstance(advice, Advice):
        return describe_setting(advice.answer.decision, state)
    return f"where {_name(advice, state[0])} is {state[1]:g} times the value in use"


def _behind(advice: Recommendation, policy: str) -> str:
    regret = advice.regrets[policy]
    return regret_text(regret, _setting(advice, regret.state) if regret.state[0] else "")


def _beyond(advice: Recommendation) -> str:
    if not advice.beyond:
        return ""
    return (
        "This advice goes beyond what the profile measured, and may be far off: "
        f"{join(advice.beyond)}."
    )


def _safe(advice: Recommendation) -> str:
    """The safe choice until what is assumed is measured; empty where it is the choice."""
    if advice.choice == advice.safe:
        if not isinstance(advice, Advice) or not _by_mean(advice):
            return ""
        same = advice.choice == advice.answer.decision.safe
        return str(advice.answer.safety) if same else ""
    when = "Until then" if advice.assumption else "Where what is assumed is far off,"
    return (
        f"{when} {advice.safe} is the safe choice: over {len(advice.states)} settings of what is "
        f"not measured it {_behind(advice, advice.safe)}; {advice.choice} "
        f"{_behind(advice, advice.choice)}."
    )


def _attempt(advice: Recommendation) -> str:
    found = advice.attempt
    if found is None:
        few = "These seeds do not say what a trial of it costs."
        return "" if advice.choice == BASELINE or not _by_mean(advice) else few
    return say(
        "To see the gain on your cluster takes {runs:# run}{what} under {base} ({first:s}{each}) "
        "and under {choice} ({second:s}{each}): {hours:.3g} GPU-hours, if real runs scatter as "
        "these do.",
        runs=found.runs, base=BASELINE, choice=advice.choice, hours=found.gpu_hours,
        first=float(advice.times[BASELINE].mean()),
        second=float(advice.times[advice.choice].mean()),
        what=" of all jobs" * isinstance(advice, ClusterAdvice),
        each=" in the mean" if isinstance(advice, ClusterAdvice) else " each",
    )  # fmt: skip
