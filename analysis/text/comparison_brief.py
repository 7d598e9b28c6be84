"""The short answer of a comparison: what to run, what contention cost, and three alternatives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simstrag.analysis.derived.decision import Decision
from simstrag.analysis.derived.standings import NEGLIGIBLE, Standing
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.bill_text import summarize_bill
from simstrag.analysis.text.brief import Brief
from simstrag.analysis.text.cautions import deciding
from simstrag.analysis.text.gain_text import ERROR, is_slight, saved
from simstrag.analysis.text.lanes import EXAMPLES
from simstrag.analysis.text.number_format import MISSING, join, percent, plural
from simstrag.analysis.text.sensitivity_text import C_TAU, value_text
from simstrag.experiments.placeholders import Placeholders
from simstrag.policy import LANES
from simstrag.scenario.varied_constants import QUANTITIES, name_of, uses, value_of

CHANGED = {"A": "nothing", "B": "some gradients", "C": "the algorithm"}
"""What a lane changes in training, in a cell."""
MOST = 2
"""Constants that a short answer names."""
STALE = "what stale gradients cost, c_tau"
"""The cost of staleness, for a reader who has not heard of it."""


def brief(d: Decision, action: str, unseen: str) -> Brief:
    """The short answer of a comparison.

    unseen: the part of the trace that no run reaches; empty where runs see most of it.
    """
    return Brief(
        action, (summarize_bill(d.s, d.bill),), lanes_table(d), _turning(d),
        tuple(_cautions(d, unseen)),
    )  # fmt: skip


def lanes_table(d: Decision) -> Table:
    """The best policy of each lane, what it saves, and what it needs."""
    varied = len(d.states) > 1
    headers = ("changes", "policy", "time saved (%)", *["worst case"] * varied, "needs")
    rows = tuple(_row(d, lane, varied) for lane in LANES)
    return Table(headers, rows, 2, wraps=len(headers) - 1)


def _row(d: Decision, lane: str, varied: bool) -> tuple[str, ...]:
    s, best = d.s, d.best(lane)
    empty = ("",) * (2 if varied else 1)
    if best is None:
        compared = [p.policy for p in d.lanes[lane]]
        text = f"not compared, such as {EXAMPLES[lane]}"
        if compared:
            text = f"not shown to be faster: {join(compared)}"
        return CHANGED[lane], MISSING, *empty, text
    gain = Number.estimate(saved(s, best), percent=True)
    behind = [_behind(d, best.policy)] * varied
    return CHANGED[lane], best.policy, gain, *behind, _needs(d, best)


def _behind(d: Decision, policy: str) -> str:
    """How far a policy falls behind the best one at worst, over all settings."""
    if policy not in d.regrets:
        return MISSING
    worst = d.regrets[policy].worst
    return f"{percent(worst, 2)} % behind" if worst >= NEGLIGIBLE else "never behind"


def _needs(d: Decision, p: Standing) -> str:
    """What the gain of a policy needs, in a cell; `lanes` says it with its numbers."""
    s, effects = d.s, d.effects[p.policy]
    if is_slight(s, p):
        return f"nothing: the gain is below {ERROR}"
    needed = {
        "batches of different sizes": effects.rebatched,
        "a parameter server": uses({"architecture": p.architecture}, "server"),
        "reduced precision that costs no accuracy": effects.reduced,
        "harmless stale gradients": p.policy in s.stale,
    }
    return ", ".join(text for text, needs in needed.items() if needs)


def _turning(d: Decision) -> str:
    """What would change the choice, if it were known; empty where nothing was tried."""
    scenario = d.s.comparison.scenario
    texts = []
    for key, choices in d.turns.items():
        name = STALE if key == C_TAU else name_of(scenario, key)
        where: dict[str, list[float]] = {}
        for at, policy in choices.items():
            where.setdefault(policy, []).append(value_of(scenario, key) if math.isnan(at) else at)
        ways = (
            f"{policy} at {' or '.join(value_text(at, QUANTITIES[key]) for at in sorted(values))}"
            for policy, values in where.items()
        )
        texts.append(f"{name} ({', '.join(ways)})")
    if texts:
        more = f"; {len(texts) - MOST} more with --verbose" if len(texts) > MOST else ""
        return f"The choice would change if this were known: {join(texts[:MOST])}{more}."
    settings = len(d.states) - 1
    if settings < 1:
        return ""
    return f"None of {settings} other settings that were tried would change the choice."


def _cautions(d: Decision, unseen: str) -> Iterator[str]:
    """What can change the answer, the most important first: the first sentence of each."""
    found = [unseen, *deciding(d.s)]
    if d.placeholders.stated and d.placeholders.decisive != ():
        found.insert(0, _placeholders(d.placeholders))
    return (text.partition(". ")[0].rstrip(".") for text in found if text)


def _placeholders(found: Placeholders) -> str:
    n = len(found.stated)
    text = (
        f"{n} of {plural(found.numbers, 'number')} {'is' if n == 1 else 'are'} typical, not yours"
    )
    if found.decisive is None:
        return text
    decide = len(found.decisive)
    return f"{text}; {decide} of these {'decides' if decide == 1 else 'decide'} the answer"
