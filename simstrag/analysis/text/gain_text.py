"""Gains and regrets of policies in words, and the names of policies."""

from __future__ import annotations

from simstrag import policies
from simstrag.analysis.derived.comparison_decision import ComparisonDecision
from simstrag.analysis.derived.ranking import Standing, Standings, saved_share
from simstrag.analysis.text.number_format import MISSING, estimate, percent
from simstrag.analysis.text.sensitivity_text import value_text
from simstrag.errors import SimstragError
from simstrag.experiments.comparison import BASELINE
from simstrag.experiments.decision import MODEL_ERROR, Regret, Setting
from simstrag.experiments.paired_statistics import NEGLIGIBLE, Estimate
from simstrag.scenario.varied_constants import QUANTITIES, name_of

ERROR = f"the simulation's known error of {percent(MODEL_ERROR, 2)} %"


class PolicyNames:
    """Names of policies: the first mention has the full name and says what the policy does."""

    def __init__(self) -> None:
        self._named = {BASELINE}

    def of(self, policy: str) -> tuple[str, str]:
        """The name of a policy, and a sentence on it if it is the first mention."""
        if policy in self._named:
            return policy, ""
        self._named.add(policy)
        try:
            described = policies.describe(policy)
        except SimstragError:  # a policy that does not fit the world of descriptions
            return policy, ""
        name = policy if described.title == policy else f"{described.title} ({policy})"
        return name, f" {described.sentence}" if described.sentence else ""


def saved(s: Standings, p: Standing) -> Estimate:
    """The share of bsp's time that a policy saves, with its interval."""
    return saved_share(p.speedup[s.decides])


def describe_gain(s: Standings, p: Standing) -> str:
    """`saved` in percent, with more digits where fewer would hide that it is below the error."""
    gain = saved(s, p)
    text = percent_of(gain)
    shown, space, rest = text.partition(" ")
    limit = float(percent(MODEL_ERROR, 2))
    if not is_slight(s, p) or shown.startswith("−") or float(shown) < limit:  # noqa: RUF001
        return text
    finer = (percent(gain.value, digits) for digits in range(2, 17))
    return f"{next(each for each in finer if float(each) < limit)}{space}{rest}"


def describe_regret(d: ComparisonDecision, policy: str) -> str:
    """The worst regret of a policy and where it has it, as a predicate."""
    regret = d.regrets[policy]
    return regret_text(regret, describe_setting(d, regret.state) if regret.state[0] else "")


def regret_text(regret: Regret, setting: str) -> str:
    """A worst regret as a predicate; setting: where it is, in words.

    >>> regret_text(Regret(0.034, ("", 1.0)), "")
    'is at most 3.4 % behind the best policy'
    """
    if regret.worst < NEGLIGIBLE:
        return "is never more than 0.5 % behind the best policy"
    text = f"is at most {percent(regret.worst, 2)} % behind the best policy"
    return f"{text} ({setting})" if setting else text


def describe_setting(d: ComparisonDecision, state: Setting) -> str:
    """A setting, to follow what is true of it."""
    key, value = state
    name = name_of(d.s.scenario, key)
    return f"where {name} is {value_text(value, QUANTITIES[key])}"


def is_slight(s: Standings, p: Standing) -> bool:
    """Whether a gain is smaller than the known error."""
    return saved(s, p).value < MODEL_ERROR


def percent_of(e: Estimate) -> str:
    """A share in percent, with its interval if it has one."""
    value, _, interval = estimate(*e, percent=True).partition(" (")
    known = interval.removesuffix(")").strip(MISSING)
    return f"{value} % ({known} %)" if known else f"{value} %"
