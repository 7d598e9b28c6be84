"""Advice on timeouts in sentences and as a table."""

from __future__ import annotations

import numpy as np

from simstrag.advice.timeout_model import DAY
from simstrag.advice.timeouts import DEFAULTS, TimeoutAdvice
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.number_format import estimate, number, plural
from simstrag.analysis.text.remark import say

FEW = 4
"""Settings of a short answer."""
USUAL = "torch with NCCL"
"""The default that the short answer compares with."""
SPARSE = 30
"""Silences below which the choice hangs on few of them, ASSUMED."""


def brief(advice: TimeoutAdvice) -> Brief:
    """What to set, what that loses, and what would change it."""
    found = Brief(_action(advice), _facts(advice), None, _turning(advice), cautions(advice))
    return found.with_rows(settings_table(advice, named=True), FEW)


def sentences(advice: TimeoutAdvice) -> tuple[str, ...]:
    """All that is said in words, cautions apart."""
    return (_action(advice), *_facts(advice), _method(advice), _turning(advice))


def settings_table(advice: TimeoutAdvice, named: bool = False) -> Table:
    """The settings that were tried, the least loss first; named: the choice and defaults alone."""
    names = {setting: name for name, setting in advice.names.items()}
    names[advice.choice] = "the choice"
    shown = [setting for setting in advice.lost if not named or setting in names]
    shown.sort(key=lambda setting: (setting != advice.choice, advice.loss(setting).value))
    rows = tuple(
        (
            names.get(setting, "beside it"), Number.of(setting.detection),
            Number.of(setting.quorum), str(setting.workers), Number.estimate(advice.loss(setting)),
            "" if setting == advice.choice else Number.estimate(advice.excess(setting), sign=True),
        )
        for setting in shown
    )  # fmt: skip
    headers = (
        "setting", "detection (s)", "quorum (s)", "least workers", "GPU-hours lost a day",
        "beyond the choice",
    )  # fmt: skip
    seeds = len(advice.lost[advice.choice])
    note = f"Simulated, with 95 % intervals over {seeds} seeds, paired where they are differences."
    return Table(headers, rows, notes=(note,))


def _action(advice: TimeoutAdvice) -> str:
    job, choice = advice.job, advice.choice
    then = "restart all"
    if job.section.continues:
        wait = f"wait {choice.quorum:g} s more for it" if choice.quorum else "go on without it"
        then = f"{wait}, with {choice.workers} of {job.workers} workers or more"
    lost = advice.loss(choice)
    usual, price = DEFAULTS[USUAL], advice.price
    money = "" if price is None else f", {estimate(*lost, price)} {job.scenario.cost.currency}"
    return say(
        "Take a rank for lost after {detection:g} s of silence, then {then}: {lost} GPU-hours lost "
        "per day of training{money}; {usual} with {late:g} s ({name}).",
        detection=choice.detection, then=then, lost=estimate(*lost), name=USUAL,
        money=money,
        usual=estimate(*advice.loss(usual)), late=usual.detection,
    )  # fmt: skip


def _facts(advice: TimeoutAdvice) -> tuple[str, ...]:
    job, choice = advice.job, advice.choice
    expected, low, high = advice.false_positives(np.array([choice.detection]))
    why = say(
        "A day has {failures} failures, noticed {detection:g} s late, and {alarms} false alarms: "
        "ranks that live and are restarted.",
        failures=number(job.workers * job.rate * DAY), detection=choice.detection,
        alarms=estimate(float(expected[0]), float(low[0]), float(high[0])),
    )  # fmt: skip
    return why, f"Set {_keys(advice)}"


def _keys(advice: TimeoutAdvice) -> str:
    """The same values in a scenario, for real ranks and for torchft."""
    choice, section = advice.choice, advice.job.section
    own = f"`--stall-limit {choice.detection:g}` of simstrag ddp"
    if not section.continues:
        return f"{own}; timeout={choice.detection:g} s of init_process_group."
    return (
        f"{own}; in torchft timeout={choice.detection:g} s, "
        f"--join_timeout_ms {1000 * choice.quorum:g}, min_replica_size={choice.workers}."
    )


def _method(advice: TimeoutAdvice) -> str:
    modelled = advice.modelled
    if advice.choice == modelled:
        return "The closed form chose it, and the simulator shows no setting beside it as better."
    return (
        f"The closed form chose {modelled.detection:g} s, {modelled.quorum:g} s and "
        f"{modelled.workers} workers; the simulator shows that to lose "
        f"{estimate(*advice.excess(modelled))} GPU-hours more a day."
    )


def _turning(advice: TimeoutAdvice) -> str:
    turns = advice.turns()
    return (
        f"With twice as many failures {turns['twice'].detection:g} s would lose least, "
        f"with half as many {turns['half'].detection:g} s."
    )


def cautions(advice: TimeoutAdvice) -> tuple[str, ...]:
    """What makes the answer less sure, the most important first."""
    job, silences = advice.job, advice.job.silences
    seen, period = len(silences.seconds), _period(silences.observed)
    continues = job.section.continues
    declared = job.scenario.learner.model_fields_set
    tail = f"{silences.tail:.2g} ({'assumed' if silences.is_assumed else 'fitted'})"
    found = {
        f"the timeout lies beyond the longest silence of {silences.longest:.3g} s in {period}: "
        f"what comes beyond it is extrapolated, by a Pareto tail of index {tail}":
            advice.is_extrapolated,
        f"only {plural(seen, 'silence')} longer than a step in {period}; record more":
            seen < SPARSE,
        "forming the group anew costs nothing, since failures.regroup is not given; real groups "
        "take seconds to a minute": continues and not job.section.regroup,
        "the time between failures is as declared (failures.mtbf), without interval":
            job.counted is None,
        f"failures are counted from {job.counted} events":
            job.counted is not None and job.counted < SPARSE,
        "assumed: failures are silent and independent of each other, and a rank that is taken for "
        "lost is restarted then": True,
        "learner.noise_scale is a default; it says what fewer workers are worth":
            continues and "noise_scale" not in declared,
    }  # fmt: skip
    return tuple(text for text, holds in found.items() if holds)


def _period(seconds: float) -> str:
    """A time in hours, or in seconds below one.

    >>> _period(7200.0), _period(34.2)
    ('2.00 hours', '34.2 s')
    """
    return f"{number(seconds)} s" if seconds < 3600 else f"{number(seconds / 3600)} hours"
