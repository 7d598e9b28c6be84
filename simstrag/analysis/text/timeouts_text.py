"""Advice on timeouts in sentences and as a table."""

from __future__ import annotations

import numpy as np

from simstrag.advice.timeout_model import DAY, Timeouts
from simstrag.advice.timeouts import DEFAULTS, TimeoutAdvice
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.number_format import estimate, number, plural
from simstrag.experiments.paired_statistics import Estimate

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
            Number.of(setting.quorum), str(setting.workers), _cell(advice.loss(setting)),
            "" if setting == advice.choice else _cell(advice.excess(setting), sign=True),
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


def _cell(found: Estimate, sign: bool = False) -> Number:
    text = estimate(*found, sign=sign)
    return Number(text, found.value, (found.low, found.high))


def _action(advice: TimeoutAdvice) -> str:
    job, choice = advice.job, advice.choice
    then = "restart all"
    if job.section.continues:
        wait = f"wait {choice.quorum:g} s more for it" if choice.quorum else "go on without it"
        then = f"{wait}, with {choice.workers} of {job.workers} workers or more"
    lost = advice.loss(choice)
    text = (
        f"Take a rank for lost after {choice.detection:g} s of silence, then {then}: "
        f"{estimate(*lost)} GPU-hours lost per day of training"
    )
    if advice.price is not None:
        low, high = advice.price * lost.low, advice.price * lost.high
        money = estimate(advice.price * lost.value, low, high)
        text += f", {money} {job.scenario.cost.currency}"
    usual = DEFAULTS[USUAL]
    return f"{text}; {estimate(*advice.loss(usual))} with {usual.detection:g} s ({USUAL})."


def _facts(advice: TimeoutAdvice) -> tuple[str, ...]:
    job, choice = advice.job, advice.choice
    expected, low, high = advice.false_positives(np.array([choice.detection]))
    alarms = estimate(float(expected[0]), float(low[0]), float(high[0]))
    failures = number(job.workers * job.rate * DAY)
    why = (
        f"A day has {failures} failures, noticed {choice.detection:g} s late, and {alarms} false "
        f"alarms: ranks that live and are restarted."
    )
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
    choice, modelled = advice.choice, advice.modelled
    if choice == modelled:
        return (
            "The closed form chose it, and the simulator shows no setting beside it to lose less."
        )
    return (
        f"The closed form chose {_describe(modelled)}; the simulator shows that to lose "
        f"{estimate(*advice.excess(modelled))} GPU-hours more a day."
    )


def _describe(setting: Timeouts) -> str:
    return f"{setting.detection:g} s, {setting.quorum:g} s and {setting.workers} workers"


def _turning(advice: TimeoutAdvice) -> str:
    turns = advice.turns()
    return (
        f"With twice as many failures {turns['twice'].detection:g} s would lose least, "
        f"with half as many {turns['half'].detection:g} s."
    )


def cautions(advice: TimeoutAdvice) -> tuple[str, ...]:
    """What makes the answer less sure, the most important first."""
    job, silences = advice.job, advice.job.silences
    seen, found = len(silences.seconds), list[str]()
    period = _period(silences.observed)
    if advice.is_extrapolated:
        found.append(
            f"the timeout lies beyond the longest silence of {silences.longest:.3g} s in {period}: "
            f"what comes beyond it is extrapolated, {_tail(advice)}"
        )
    if seen < SPARSE:
        found.append(f"only {plural(seen, 'silence')} longer than a step in {period}; record more")
    if job.section.continues and not job.section.regroup:
        found.append(
            "forming the group anew costs nothing, since failures.regroup is not given; real "
            "groups take seconds to a minute"
        )
    if job.counted is None:
        found.append("the time between failures is as declared (failures.mtbf), without interval")
    elif job.counted < SPARSE:
        found.append(f"failures are counted from {job.counted} events")
    found.append(
        "assumed: failures are silent and independent of each other, and a rank that is taken for "
        "lost is restarted then"
    )
    if "noise_scale" not in job.scenario.learner.model_fields_set and job.section.continues:
        found.append("learner.noise_scale is a default; it says what fewer workers are worth")
    return tuple(found)


def _period(seconds: float) -> str:
    """A time in hours, or in seconds below one.

    >>> _period(7200.0), _period(34.2)
    ('2.00 hours', '34.2 s')
    """
    return f"{number(seconds)} s" if seconds < 3600 else f"{number(seconds / 3600)} hours"


def _tail(advice: TimeoutAdvice) -> str:
    silences = advice.job.silences
    how = "assumed" if silences.is_assumed else "fitted"
    return f"by a Pareto tail of index {silences.tail:.2g} ({how})"
