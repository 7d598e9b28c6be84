"""Finding, loading and naming policies, and what the small ones plan."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from simstrag.errors import InputError, PlanError
from simstrag.policies import describe, load, names, spec
from simstrag.policy import Late, Plan, Precision, Quorum, Via, View


@dataclass(frozen=True)
class Sleepy:
    """A stranger's policy."""

    naps: float = 0.5
    deep: bool = False
    dreams: int | None = None

    def plan(self, view: View) -> Plan:
        return Plan()


@dataclass(frozen=True)
class Demanding:
    """One that cannot do without a parameter."""

    naps: int

    def plan(self, view: View) -> Plan:
        return Plan()


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("stranger")
    module.__dict__.update(Sleepy=Sleepy, Demanding=Demanding, number=3)
    monkeypatch.setitem(sys.modules, "stranger", module)
    monkeypatch.setattr(Sleepy, "__module__", "stranger")
    return "stranger"


def plan_of(text: str, world_size: int = 8) -> Plan:
    return load(text).plan(View(world_size)).resolved(world_size)


def test_a_policy_is_found_by_the_name_of_its_file() -> None:
    assert {"amp_all", "asgd", "backup", "bsp", "korel", "ssp"} <= set(names())


def test_every_load_is_a_fresh_instance() -> None:
    assert load("korel") is not load("korel")


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("bsp", Plan()),
        ("bsp:via=server", Plan((Quorum(via=Via.SERVER),))),
        ("asgd", Plan((Quorum(count=1, via=Via.SERVER),))),
        ("ssp", Plan((Quorum(count=1, via=Via.SERVER),), bound=3)),
        ("ssp:bound=5", Plan((Quorum(count=1, via=Via.SERVER),), bound=5)),
        ("backup", Plan((Quorum(count=7, via=Via.SERVER, late=Late.ABORT),))),
        ("backup:b=2,late=drop", Plan((Quorum(count=6, via=Via.SERVER, late=Late.DROP),))),
        ("backup:via=allreduce", Plan((Quorum(count=7, late=Late.ABORT),))),
        ("amp_all", Plan(precision=Precision.AMP)),
    ],
)
def test_a_plan_says_what_the_paper_says(text: str, plan: Plan) -> None:
    assert plan_of(text) == plan.resolved(8)


def test_an_infinite_bound_is_no_bound() -> None:
    assert plan_of("ssp:bound=inf") == plan_of("asgd")


def test_no_backup_at_all_is_bulk_synchronous() -> None:
    assert plan_of("backup:b=0") == plan_of("bsp:via=server")


def test_backup_is_refused_where_nobody_would_be_left() -> None:
    with pytest.raises(PlanError, match="b=3 of 3 ranks leaves no gradient"):
        load("backup:b=3").plan(View(3))


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("ssp:bound=3", "ssp"),
        (" ssp : bound = 5 ", "ssp:bound=5"),
        ("ssp:bound=none", "ssp:bound=inf"),
        ("backup:via=server,late=drop,b=2", "backup:b=2,late=drop"),
        ("korel:rho=1.5,probes=off,delta_on=0.2", "korel:delta_on=0.2,probes=false,rho=1.5"),
        ("simstrag.policies.ssp:Ssp:bound=7", "ssp:bound=7"),
    ],
)
def test_a_policy_has_one_spelling(written: str, canonical: str) -> None:
    assert spec(load(written)) == canonical
    assert spec(load(canonical)) == canonical


def test_a_strangers_class_takes_parameters_too(outside: str) -> None:
    policy = load(f"{outside}:Sleepy:naps=2,deep=yes,dreams=inf")
    assert policy == Sleepy(naps=2.0, deep=True, dreams=None)
    assert spec(policy) == "stranger:Sleepy:naps=2.0,deep=true"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("asg", "no policy 'asg'; known: amp_all, asgd, .* Did you mean 'asgd'?"),
        ("ssp:bond=3", "'ssp' has no parameter 'bond'; known: bound. Did you mean 'bound'?"),
        ("asgd:b=3", "'asgd' has no parameter 'b'; known: none"),
        ("ssp:bound=few", "bound must be a whole number or inf, not 'few'"),
        ("ssp:bound=2.5", "bound must be a whole number or inf, not '2.5'"),
        ("ssp:bound=-1", "bound must be 0 or more, or inf, not -1"),
        ("backup:b=-1", "b must be 0 or more, not -1"),
        ("backup:late=queue", "late must be abort or drop, not queue"),
        ("backup:late=never", "late must be drop or abort, not 'never'"),
        ("backup:via=leader", "via must be server or allreduce, not leader"),
        ("bsp:via=mail", "via must be allreduce or server, not 'mail'"),
        ("bsp:via=leader", "via must be allreduce or server, not leader"),
        ("korel:W=0", "W must be 1 or more, not 0"),
        ("korel:z_on=0", "z_on must be above 0, not 0.0"),
        ("korel:dwell=200", "dwell_cap must be 200 or more, not 160"),
        ("korel:rho=-1", "rho must be above 0 and finite, or none, not -1"),
        ("korel:rho=nan", "rho must be a number or none, not 'nan'"),
        ("korel:probes=maybe", "probes must be true or false, not 'maybe'"),
        ("ssp:5", "cannot read '5'; write ssp:parameter=value"),
        ("ssp:bound=1,bound=2", "parameter 'bound' is given twice"),
        ("", "cannot read the policy ''"),
        ("a:b:c:d", "cannot read the policy 'a:b:c:d'"),
        ("not_there.at_all:Policy", "cannot import 'not_there.at_all'"),
        ("stranger:Sleeply", "no policy class 'Sleeply'; .* Sleepy. Did you mean 'Sleepy'?"),
        ("stranger:number", "no policy class 'number'"),
        ("stranger:Demanding", "policy 'stranger:Demanding': .* 'naps'"),
    ],
)
def test_a_wrong_spec_gets_one_line_that_shows_the_way_out(
    outside: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)


def test_the_table_of_policies_says_what_each_decides_and_takes() -> None:
    table = {row.name: row for row in describe()}
    assert list(table) == list(names())
    assert table["backup"].architecture == "server"
    assert table["bsp"].architecture == "all-reduce"
    assert table["bsp"].sentence.startswith("Every update waits for one gradient of every rank")
    bound = table["ssp"].parameters[0]
    assert (bound.name, bound.default, bound.allowed) == ("bound", "3", "a whole number or inf")
