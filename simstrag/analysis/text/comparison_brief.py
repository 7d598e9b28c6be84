"""The short answer of a comparison: what to run, what contention cost, and three alternatives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from simstrag import policies
from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.analysis.derived.ranking import Standing
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.bill_text import summarize_bill
from simstrag.analysis.text.brief import LINES, Brief, first_sentence, height
from simstrag.analysis.text.cautions import cautions
from simstrag.analysis.text.gain_text import ERROR, is_slight, saved
from simstrag.analysis.text.lanes import CHANGED, EXAMPLES
from simstrag.analysis.text.number_format import MISSING, join, percent, plural
from simstrag.analysis.text.remark import Severity
from simstrag.analysis.text.sensitivity_text import C_TAU, value_text
from simstrag.analysis.text.spread_text import describe_one_run
from simstrag.contract.policy import LANES
from simstrag.experiments.paired_statistics import NEGLIGIBLE
from simstrag.experiments.placeholders import Placeholders
from simstrag.scenario.beyond_measured import doubts
from simstrag.scenario.varied_constants import QUANTITIES, name_of, value_of

MOST, FEW = 2, 3
"""Constants and placeholders that a short answer names."""
PLAIN = {
    C_TAU: "what stale gradients cost, c_tau",
    "contention.severity": "how severe contention is",
    "learner.noise_scale": "the noise of gradients, noise_scale",
}
"""Constants for a reader who has not heard of them."""


def brief(d: ComparisonDecision, action: str, unseen: str) -> Brief:
    """The short answer of a comparison.

    action: what to run.
    unseen: the part of the trace that no run reaches; empty where runs see most of it.
    """
    facts = (describe_one_run(d.s, d.safe), summarize_bill(d.s, d.bill))
    doubtful = tuple(_cautions(d, unseen))
    found, shorter = (
        Brief(action, facts, lanes_table(d), describe_turns(d, most), doubtful)
        for most in (MOST, 1)
    )
    return shorter if height([found.turning]) > 2 or found.lines > LINES else found


def lanes_table(d: ComparisonDecision, chosen: str = "", left_out: Sequence[str] = ()) -> Table:
    """The choice or the best policy of each lane, what it saves, and what it needs.

    chosen: a policy that stands in its lane in place of the best.
    left_out: policies that were not compared.
    """
    varied = len(d.states) > 1
    headers = ("changes", "policy", "time saved (%)", *["worst case"] * varied, "needs")
    rows = tuple(_row(d, lane, varied, chosen, left_out) for lane in LANES)
    return Table(headers, rows, 2, wraps=len(headers) - 1)


def _row(
    d: ComparisonDecision, lane: str, varied: bool, chosen: str, left_out: Sequence[str]
) -> tuple[str, ...]:
    s, best = d.s, next((p for p in d.lanes[lane] if p.policy == chosen), d.best(lane))
    empty = ("",) * (2 if varied else 1)
    if best is None:
        compared = [p.policy for p in d.lanes[lane]]
        text = f"not compared, such as {EXAMPLES[lane]}"
        out = [
            spec for spec in left_out if policies.declared_lane(policies.load(spec), spec) == lane
        ]
        if out:
            text = f"left out: {join(out[:FEW])}"
        if compared:
            text = f"not shown to be faster: {join(compared)}"
        return CHANGED[lane], MISSING, *empty, text
    gain = Number.estimate(saved(s, best), percent=True)
    behind = [_behind(d, best.policy)] * varied
    return CHANGED[lane], best.policy, gain, *behind, _needs(d, best)


def _behind(d: ComparisonDecision, policy: str) -> str:
    """How far a policy falls behind the best one at worst, over all settings."""
    if policy not in d.regrets:
        return MISSING
    worst = d.regrets[policy].worst
    return f"{percent(worst, 2) if worst >= NEGLIGIBLE else 'under 0.5'} % behind"


def _needs(d: ComparisonDecision, p: Standing) -> str:
    """What the gain of a policy needs, in a cell; `lanes` says it with its numbers."""
    s, effects = d.s, d.effects[p.policy]
    if is_slight(s, p):
        return f"nothing: the gain is below {ERROR}"
    needed = {
        "batches of different sizes": effects.rebatched,
        "a parameter server": p.uses("server"),
        "reduced precision that costs no accuracy": effects.reduced,
        "harmless stale gradients": p.policy in s.stale and (not s.costs or _loses(d, p.policy)),
    }
    return ", ".join(text for text, needs in needed.items() if needs)


def _loses(d: ComparisonDecision, policy: str) -> bool:
    """Whether a policy gains nothing at a cost of staleness that was tried."""
    return any(gain <= 0 for (key, _), gain in d.gains(policy).items() if key == C_TAU)


def describe_turns(d: ComparisonDecision, most: int | None = None) -> str:
    """What would change the choice, if it were known; empty where nothing was tried.

    most: constants that are named.
    """
    if d.turns is None:
        return ""
    texts = [_turn(d, key, choices) for key, choices in d.turns.items()]
    if texts:
        shown = texts[:most]
        more = f"; {len(texts) - len(shown)} more with --verbose" if len(shown) < len(texts) else ""
        return f"The choice would change if this were known: {join(shown)}{more}."
    settings = len(d.states) - 1
    if settings < 1:
        return ""
    return f"None of {settings} other settings that were tried would change the choice."


def _turn(d: ComparisonDecision, key: str, choices: Mapping[float, str]) -> str:
    """A constant, and the other choices by its value."""
    scenario = d.s.scenario
    where: dict[str, list[float]] = {}
    for at, policy in choices.items():
        where.setdefault(policy, []).append(value_of(scenario, key) if math.isnan(at) else at)
    ways = (
        f"{policy} at {' or '.join(value_text(at, QUANTITIES[key]) for at in sorted(values))}"
        for policy, values in where.items()
    )
    return f"{PLAIN.get(key) or name_of(scenario, key)} ({', '.join(ways)})"


def _cautions(d: ComparisonDecision, unseen: str) -> Iterator[str]:
    """What can change the answer, the most important first: the first sentence of each."""
    decide = [each for each in cautions(d.s) if each.severity is Severity.DECIDES]
    found = [unseen, *decide, *doubts(d.s.scenario)]
    if d.placeholders.stated and d.placeholders.decisive != ():
        found.insert(0, _placeholders(d.placeholders))
    return map(first_sentence, filter(None, found))


def _placeholders(found: Placeholders) -> str:
    """The placeholders that decide, or those that may."""
    n = len(found.stated)
    are = "is a placeholder" if n == 1 else "are placeholders"
    text = f"{n} of {plural(found.numbers, 'number')} {are}, not yours"
    names = found.stated if found.decisive is None else found.decisive
    decide = "may decide" if found.decisive is None else "decides" if len(names) == 1 else "decide"
    return f"{text}; {join(names, FEW)} {decide}"
