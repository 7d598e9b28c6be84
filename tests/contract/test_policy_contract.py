"""`check_policy` finds what breaks the contract, one rule at a time, and says what to do."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import simstrag
from simstrag import ALL, InputError, Plan, PlanError, Quorum, Review, Via, View, check_policy
from simstrag.contract import Block
from simstrag.policies.cgp import Cgp
from simstrag.policies.korel import Korel
from simstrag.validation.contract_rules import ENDS, RULES, RuleCheck
from simstrag.validation.policy_contract import PolicyCheck
from tests.support.commands import Call

EACH = Review(updates=1)
FINE = '''
from dataclasses import dataclass

from simstrag import Plan, Quorum, Via, View


@dataclass(frozen=True)
class AllBut:
    """Waits for all ranks but a few."""

    few: int = 1

    def plan(self, view: View) -> Plan:
        return Plan((Quorum(count=max(view.world_size - self.few, 1), via=Via.SERVER),))


class Odd(AllBut):
    def plan(self, view: View) -> Plan:
        return Plan(precision=("full",))
'''


def first_of(count: int, ranks: Any = ALL) -> Plan:
    return Plan((Quorum(ranks, count=count, via=Via.SERVER),), review=EACH)


class Loose:
    def __init__(self) -> None:
        self.few = 1

    def plan(self, view: View) -> Plan:
        return first_of(max(view.world_size - self.few, 1))


@dataclass
class Mutable:
    few: int = 1

    def plan(self, view: View) -> Plan:
        return first_of(max(view.world_size - self.few, 1))


class Astray:
    lane = "none"

    def plan(self, view: View) -> Plan:
        return first_of(1)


class Moody:
    def __init__(self) -> None:
        self.random_ = np.random.default_rng()

    def plan(self, view: View) -> Plan:
        return first_of(1 + int(self.random_.integers(view.world_size)))


class Counting:
    def __init__(self) -> None:
        self.calls_ = 0

    def plan(self, view: View) -> Plan:
        self.calls_ += 1
        return first_of(1 + (self.calls_ > 50) * (view.world_size > 1))


class Remembering:
    seen: ClassVar[set[int]] = set()

    def plan(self, view: View) -> Plan:
        self.seen.add(view.world_size)
        return first_of(min(len(self.seen), view.world_size))


class Writing:
    def plan(self, view: View) -> Plan:
        view.local_times.flags.writeable = True
        view.local_times[:] = 1.0
        return first_of(1)


class Pickled:
    def __init__(self) -> None:
        self.step_ = lambda version: version

    def plan(self, view: View) -> Plan:
        return first_of(1)


class Narrow:
    def plan(self, view: View) -> Plan:
        return first_of(3, (0, 1, 2))


class Failing:
    def plan(self, view: View) -> Plan:
        return first_of([1, 2, 3, 4, 5, 4, 3, 2][view.version % 9])


class Impatient:
    def __init__(self) -> None:
        self.version_ = -1

    def plan(self, view: View) -> Plan:
        assert view.version - self.version_ < 5, "an update is missing"
        self.version_ = view.version
        return first_of(1)


class Endless:
    def plan(self, view: View) -> Plan:
        return Plan((Quorum(steps=10**9),), average=True)


class Sleeping:
    def plan(self, view: View) -> Plan:
        return Plan(pause=1e9)


class Partial:
    def plan(self, view: View) -> Plan:
        return Plan(bound=(0, *[None] * (view.world_size - 1)), quorums=first_of(1).quorums)


class Bitwise:
    def plan(self, view: View) -> Plan:
        times = np.nan_to_num(view.local_times[:, -1])
        return first_of(2 if view.world_size > 1 and (times == times.max()).sum() > 1 else 1)


class Blind(Korel):
    """It looks at no review of a block."""

    def first_change(self, block: Block) -> int:
        return len(block)


class Tardy(Cgp):
    """It finds changes one review too late."""

    def first_change(self, block: Block) -> int:
        return min(super().first_change(block) + 1, len(block))


class Refusing:
    def plan(self, view: View) -> Plan:
        raise PlanError("Refusing has no plan for anybody")


BROKEN: dict[type, tuple[str, str]] = {
    Loose: ("parameters", "the attribute few is no field"),
    Mutable: ("parameters", "the field few can be set; make the class a frozen dataclass"),
    Astray: ("a lane", "there is no lane 'none'; known: A, B, C"),
    Moody: ("the same facts", "another copy has another quorums at version"),
    Counting: ("a second call", "key state on view.version"),
    Remembering: ("a new run", "keep state on the instance"),
    Writing: ("a view", "local_times is another at version 0; copy an array"),
    Pickled: ("a pickled copy", "keep state in plain attributes"),
    Narrow: ("it has plans", "is beyond a world of 1 ranks"),
    Impatient: ("views that come late", "an update is missing"),
    Endless: (ENDS, "private steps of one rank have more samples than the whole run, 7,680"),
    Sleeping: (ENDS, "after 10000 s of 4 ranks with steps of 0.1 s"),
    Partial: ("renaming", "another bound at version 0; choose ranks by what"),
    Blind: ("blocks of reviews", "comes at never by blocks"),
    Tardy: ("blocks of reviews", "let first_change return the first review at which plan might"),
    Bitwise: ("the last bits", "times 1e-15 apart; compare times with simstrag.contract.ties"),
}


def failed(found: PolicyCheck) -> list[str]:
    return [check.rule for check in found.checks if check.ok is False]


@pytest.mark.parametrize("policy", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_rule_is_found_with_its_remedy(policy: type) -> None:
    found = check_policy(policy, real=False)
    rule, message = BROKEN[policy]
    (broken,) = (check for check in found.checks if check.rule.startswith(rule))
    assert broken.ok is False
    assert message in broken.detail
    assert not found.ok


def test_ranks_whose_plans_differ_are_not_let_wait_for_each_other() -> None:
    """Two real ranks under a random policy once waited five minutes for each other."""
    shown: list[RuleCheck] = []
    found = check_policy(Moody, on_check=shown.append)
    assert tuple(shown) == found.checks
    assert found.checks[-1] == RuleCheck(
        "two real ranks train under it", None, "only if the same facts give the same plan"
    )


def test_a_policy_that_fails_is_tried_no_further() -> None:
    found = check_policy(Failing, real=False)
    assert failed(found) == [RULES[0].text]
    assert "IndexError" in found.checks[0].detail
    assert "test_policy_contract.py, line" in found.checks[0].detail
    assert {check.ok for check in found.checks[1:]} == {None}
    refused = check_policy(Refusing, real=False).checks[0]
    assert refused.ok is False
    assert "has no plan for anybody" in refused.detail


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the file of a policy, forgotten by Python at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("fine.py").write_text(FINE)
    yield
    sys.modules.pop("fine", None)


@pytest.mark.usefixtures("here")
def test_a_policy_that_keeps_the_contract_passes_in_every_form() -> None:
    for policy in ("fine.py:AllBut", "fine.py:AllBut:few=2", "bsp"):
        found = check_policy(policy, real=False)
        assert found.ok, found
        assert len(str(found).splitlines()) == len(found.checks) == len(RULES) - 1
    assert simstrag.simulate(
        simstrag.Scenario(workers=2, updates=3, step={"compute": 0.1}), "fine.py:AllBut"
    ).policy == ("fine.py:AllBut")


@pytest.mark.usefixtures("here")
def test_a_file_with_one_policy_needs_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("alone.py").write_text(FINE.partition("class Odd")[0])
    monkeypatch.delitem(sys.modules, "alone", raising=False)
    assert check_policy("alone.py:few=2", real=False).ok


def test_warnings_of_a_policy_that_is_checked_are_not_failures() -> None:
    class Warning:
        def plan(self, view: View) -> Plan:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                warnings.warn("odd", UserWarning, stacklevel=1)
            return first_of(1)

    assert failed(check_policy(Warning, real=False)) == ["a pickled copy goes on as the original"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("asg", "there is no policy 'asg'"),
        ("none.py:AllBut", "none.py: no such file"),
        ("none.py", "none.py: no such file"),
        (Path("none.py"), "none.py: no such file"),
        ("fine.py", "has 2 policies; choose one: fine.py:AllBut, fine.py:Odd"),
        ("fine.py:AllBu", "has no policy class 'AllBu'.*Did you mean 'AllBut'"),
        (int, "is no policy; give a spec, .* with the method `plan`"),
        (object(), "is no policy; give a spec"),
        (type("Needy", (Loose,), {"__init__": lambda self, few: None}), "needs arguments"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_is_no_policy_is_a_mistake(policy: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_policy(policy, real=False)


@pytest.mark.usefixtures("here")
def test_the_command_prints_a_line_a_rule_and_its_exit_code_tells(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.validation.contract_rules.check_torch", _no_torch)
    code, out, err = call("policies", "fine.py:AllBut", "--check")
    assert (code, err) == (0, "")
    words = [re.split("  +", line)[0] for line in out.splitlines()]
    assert words == ["ok"] * (len(RULES) - 1) + ["not tried"]
    assert out.splitlines()[-1].endswith("two real ranks train under it: torch is missing")
    code, out, _ = call("policies", "fine.py:Odd", "--check", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["ok"] is False
    assert "precision" in document["checks"][0]["detail"]
    code, _, err = call("policies", "--check")
    assert (code, err) == (2, "error: --check needs a policy, such as mine.py:Class\n")


@pytest.mark.parametrize("name", ["star_h", "star_ml"])
def test_a_policy_that_needs_a_hint_is_tried_on_real_ranks_only_without_that(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simstrag.validation.contract_rules.check_torch", _no_torch)
    monkeypatch.setattr("simstrag.validation.policy_contract.RULES", (RULES[0], RULES[-1]))
    last = [check_policy(spec).checks[-1] for spec in (f"{name}:noise=hint", name)]
    assert [each.ok for each in last] == [None, None]
    assert "the noise scale is unknown (noise=hint); give phi=..., in samples" in last[0].detail
    assert last[1].detail == "torch is missing"


def _no_torch() -> None:
    raise InputError("torch is missing")
