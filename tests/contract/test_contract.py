"""What every policy must keep to: this suite finds each policy file and puts it to the same tests.

The rules that hold for a user's policy too stand in `simstrag.validation.contract_rules`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import subprocess
import sys
from functools import cache, partial
from types import ModuleType

import pytest

from simstrag.contract import PlanError
from simstrag.policies import load, names, spec
from simstrag.validation.contract_rules import (
    RULES,
    Subject,
    ignores_last_bits,
    trains_on_real_ranks,
)
from simstrag.validation.policy_worlds import World

ALLOWED = {
    "numpy", "numpy.typing", "simstrag.arrays", "simstrag.errors", "simstrag.contract",
    "simstrag.contract.ties",
    *(f"simstrag.policies.estimators.{name}" for name in (
        "columns", "detectors", "gradient_noise_tables", "gradient_trees", "mode_choice", "modes",
        "predictors", "shares", "slow_ranks", "time_to_progress", "windows",
    )),
}  # fmt: skip
IMPURE = {"datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
SOURCE = re.compile(r"Source: .*(19|20)\d\d", re.DOTALL)
IMPOSSIBLE = {("backup", 1), ("fewer", 1), ("hot_spare", 1), ("p_reduce", 1)}
SIMULATED = [rule for rule in RULES if rule.attempt is not trains_on_real_ranks]

every_policy = pytest.mark.parametrize("name", names())


@cache
def subject_of(name: str) -> Subject:
    """One for all tests, with its histories."""
    return Subject(name, partial(load, name))


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"simstrag.policies.{name}")


@every_policy
def test_it_keeps_every_rule_of_the_contract(name: str) -> None:
    subject = subject_of(name)
    checks = [rule.check(subject) for rule in SIMULATED]
    assert [check for check in checks if not check.ok] == []


@every_policy
def test_it_is_called_by_its_file_and_deciding_sets_none_of_its_attributes(name: str) -> None:
    policy = load(name)
    before = dict(vars(policy))
    list(World(5).views(policy.plan))
    assert {each for each, value in vars(policy).items() if value is not before.get(each)} == set()
    assert policy == load(name)
    assert spec(policy) == name


@every_policy
def test_asking_twice_at_one_version_changes_nothing(name: str) -> None:
    history = subject_of(name).history()
    insistent = load(name)
    for view, plan in history:
        answers = [insistent.plan(view) for _ in range(3)]
        assert answers[0] == plan
        assert answers[1] is answers[0]
        assert answers[2] is answers[0]


@every_policy
def test_a_plan_that_does_not_change_is_the_same_object(name: str) -> None:
    plans = [plan for _, plan in subject_of(name).history()]
    for before, after in itertools.pairwise(plans):
        assert after is before or after.resolved(5) != before.resolved(5)


@every_policy
def test_its_plans_fit_worlds_of_any_size(name: str) -> None:
    for world_size in (1, 3, 33):
        if (name, world_size) in IMPOSSIBLE:
            with pytest.raises(PlanError, match=name):
                subject_of(name).history(world_size)
            continue
        for _, plan in subject_of(name).history(world_size):
            assert plan.resolved(world_size).quorums


OTHER_MODES = (
    "async_local_sgd:grace=0.5", "async_local_sgd:dylu=yes", "eager_sgd:start=solo",
    "cgp:groups=rounds", "cgp:groups=window", "cgp:max_group=2",
    "drain:redistribute=false,window=3,checks=1,wait=4",
    "dropcompute:warmup=1,measure=6", "fewer:measure=1", "hot_spare:window=1,checks=1,rest=4",
    "korel:rho=1.25", "lb_bsp:deadband=0", "star_dynamic:relative=0.05", "star_h:form=ring",
    "star_h:interval=interp", "star_h:interval=simulated,staleness=0.3", "star_ring:x=2",
    "sync_switch:stragglers=greedy", "sync_switch:stragglers=elastic",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHER_MODES)
def test_no_decision_depends_on_the_last_bits_of_the_times(name: str) -> None:
    assert ignores_last_bits(subject_of(name)) == ""


@every_policy
def test_its_file_opens_with_a_sentence_and_names_its_source(name: str) -> None:
    text = inspect.getdoc(module_of(name)) or ""
    first = text.splitlines()[0]
    assert first[0].isupper()
    assert first.endswith("."), "the first line is a sentence"
    assert SOURCE.search(text), "a line `Source: authors, title, where, year`"


@every_policy
def test_it_sees_nothing_but_the_view(name: str) -> None:
    tree = ast.parse(inspect.getsource(module_of(name)))
    for module in imported(tree):
        top = module.partition(".")[0]
        other = module.removeprefix("simstrag.policies.") in names()
        pure = top in sys.stdlib_module_names and top not in IMPURE
        assert module in ALLOWED or other or pure, module
    drawn = [node for node in ast.walk(tree) if getattr(node, "attr", "") == "random"]
    assert not drawn, "a policy draws no random numbers"


@every_policy
def test_only_an_oracle_looks_at_the_truth(name: str) -> None:
    tree = ast.parse(inspect.getsource(module_of(name)))
    looks = any(getattr(node, "attr", "") == "truth" for node in ast.walk(tree))
    assert looks == name.endswith("_oracle") == getattr(load(name), "oracle", False)


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_importing_the_package_imports_no_policy() -> None:
    code = (
        "import sys, simstrag.policies as p;"
        "print(*(n for n in p.names() if f'simstrag.policies.{n}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
