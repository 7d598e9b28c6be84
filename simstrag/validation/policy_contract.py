"""The contract of a policy, tried on one: same facts, same plan; in simulation and on real ranks.

Start with `check_policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simstrag import policies
from simstrag.contract import Policy
from simstrag.errors import InputError
from simstrag.validation.contract_rules import RULES, RuleCheck, Subject, trains_on_real_ranks


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """Every rule of the contract, tried on one policy; `print` shows a line for each.

    policy: its spec.
    """

    policy: str
    checks: tuple[RuleCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return all(check.ok is not False for check in self.checks)

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def check_policy(
    policy: str | Path | type | Policy,
    *,
    real: bool = True,
    on_check: Callable[[RuleCheck], None] = lambda check: None,
) -> PolicyCheck:
    """Try every rule of the contract on a policy.

    policy: a class whose parameters have defaults, an object, or a spec such as
        ``mine.py:AllBut:few=2``, or the path of a file with one policy.
    real: also train on two real ranks, where torch is installed; that takes up to a minute.
    on_check: receives each rule as soon as it was tried.

    Raises `InputError` where there is no such policy.

    >>> print(check_policy("asgd", real=False).checks[3])
    ok         the same facts give the same plan
    """
    subject = _subject(policy)
    checks: list[RuleCheck] = []
    for rule in RULES:
        if real or rule.attempt is not trains_on_real_ranks:
            tried = not checks or checks[0].ok
            missing = RuleCheck(rule.text, None, f"only if {RULES[0].text}")
            checks.append(rule.check(subject) if tried else missing)
            on_check(checks[-1])
    return PolicyCheck(subject.name, tuple(checks))


def _subject(policy: str | Path | type | Policy) -> Subject:
    policy = str(policy) if isinstance(policy, Path) else policy
    if not isinstance(policy, type):
        name, _ = policies.new(policy)
        return Subject(name, lambda: policies.new(policy)[1])
    try:
        first = policy()
    except TypeError as error:
        raise InputError(f"{policy!r} needs arguments: {error}; give them defaults") from None
    name, _ = policies.new(first)
    return Subject(name, policy)
