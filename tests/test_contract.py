"""What every policy must keep to: this suite finds each policy file and puts it to the same tests.

The facts come from a small world of its own: contended ranks, noisy times, and steps in whatever
precision the policy asked for.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from simstrag.policies import counts as ask_counts
from simstrag.policies import load, names, spec
from simstrag.policy import WINDOW, Hints, Plan, PlanError, Policy, Precision, View

ALLOWED = {
    "numpy", "numpy.typing", "simstrag.errors", "simstrag.policy", "simstrag.ties",
    *(f"simstrag.policies.estimators.{name}" for name in (
        "detectors", "gradient_noise_tables", "predictors", "time_to_progress", "windows",
    )),
}  # fmt: skip
IMPURE = {"datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "time"}
SOURCE = re.compile(r"Source: .*(19|20)\d\d", re.DOTALL)
ROWS = (
    "steps", "local_times", "amp", "batch", "lower_bound", "communication", "pending_since",
)  # fmt: skip
IMPOSSIBLE = {("backup", 1), ("p_reduce", 1)}
RHO = 1.6
BATCH = 32

every_policy = pytest.mark.parametrize("name", names())


class World:
    """Facts for one policy: ranks 0 and 1 are slow for a while, one after the other.

    Every view is what a driver would show after one update; where a quorum counts, only so many of
    its ranks, drawn anew each time, have delivered.
    """

    clean = 1.0

    def __init__(self, world_size: int, updates: int = 120, seed: int = 0) -> None:
        self.world_size = world_size
        self.updates = updates
        self.random = np.random.default_rng(seed)
        self.times = np.full((world_size, WINDOW), np.nan)
        self.amp = np.zeros((world_size, WINDOW), dtype=bool)
        self.shares = np.full((world_size, WINDOW), np.nan)
        self.communication = np.full((world_size, WINDOW), np.nan)
        self.pending = np.zeros(world_size)
        self.samples = 0
        self.steps = np.zeros(world_size, dtype=np.int64)

    def views(self, policy: Policy) -> Iterator[tuple[View, Plan]]:
        """Ask the policy after every update, and show what came of its answers."""
        view = self._view(0)
        for version in range(1, self.updates + 2):
            plan = policy.plan(view)
            yield view, plan
            self._update(version, plan.resolved(self.world_size))
            view = self._view(version)

    def _view(self, version: int) -> View:
        return View(
            self.world_size,
            version,
            samples=self.samples,
            time=float(version),
            steps=self.steps.copy(),
            local_times=self.times.copy(),
            amp=self.amp.copy(),
            batch=self.shares.copy(),
            communication=self.communication.copy(),
            pending_since=self.pending.copy(),
            noise_scale=500.0,
            hints=Hints(
                amp_ratio=RHO, host_seconds=0.0, clean_seconds=self.clean, batch=BATCH,
                microbatches=4,
                samples=self.updates * BATCH * self.world_size // 2, noise_scale=500.0,
            ),
            truth=lambda: np.array([self._slowdown(r, version) for r in range(self.world_size)]),
        )  # fmt: skip

    def _update(self, version: int, plan: Plan) -> None:
        assert isinstance(plan.precision, tuple)
        samples = plan.samples(BATCH, self.world_size)
        delivered = [
            rank
            for quorum in plan.quorums
            for rank in self.random.permutation(quorum.members)[: quorum.needed]
        ]
        self.pending[delivered] = np.nan
        for rank in delivered:
            amp, share = plan.precision[rank] is Precision.AMP, samples[rank] / BATCH
            time = self._duration(rank, version) * share
            for window, value in (
                (self.times, time / RHO if amp else time), (self.amp, amp), (self.shares, share),
                (self.communication, self._transfer()),
            ):  # fmt: skip
                window[rank] = np.append(window[rank, 1:], value)
            self.steps[rank] += 1
            self.samples += samples[rank]
        waiting = self.random.permutation(delivered)[: len(delivered) // 2]
        self.pending[waiting] = float(version)

    def _duration(self, rank: int, version: int) -> float:
        return self._slowdown(rank, version) * self.random.normal(1.0, 0.02)

    def _transfer(self) -> float:
        return self.random.uniform(0.01, 0.02)

    @staticmethod
    def _slowdown(rank: int, version: int) -> float:
        return 2.0 if 20 < version <= 70 and rank == (version - 20) // 40 else 1.0


def recorded(name: str, world_size: int = 5) -> list[tuple[View, Plan]]:
    return list(World(world_size).views(load(name)))


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"simstrag.policies.{name}")


def renamed(plan: Plan, new: list[int]) -> Plan:
    """The resolved plan in which each rank r is called new[r]."""
    assert isinstance(plan.precision, tuple)
    old = np.argsort(new)
    quorums = [
        dataclasses.replace(
            quorum,
            ranks=tuple(new[rank] for rank in quorum.members),
            riders=tuple((new[child], new[parent]) for child, parent in quorum.riders),
        )
        for quorum in plan.quorums
    ]
    return dataclasses.replace(
        plan,
        quorums=tuple(sorted(quorums, key=lambda quorum: quorum.members)),
        bound=tuple(plan.bound[r] for r in old) if isinstance(plan.bound, tuple) else plan.bound,
        batch=tuple(plan.batch[r] for r in old) if isinstance(plan.batch, tuple) else plan.batch,
        precision=tuple(plan.precision[r] for r in old),
        suspects=None if plan.suspects is None else frozenset(new[r] for r in plan.suspects),
    )


@every_policy
def test_it_needs_no_parameters_and_is_called_by_its_file(name: str) -> None:
    assert spec(load(name)) == name


@every_policy
def test_its_parameters_are_frozen_fields_with_defaults(name: str) -> None:
    policy = load(name)
    assert dataclasses.is_dataclass(policy)
    for field in dataclasses.fields(policy):
        assert field.init != field.name.endswith("_"), "learnt state ends in _, parameters do not"
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(policy, field.name, getattr(policy, field.name))


@every_policy
def test_deciding_leaves_its_parameters_as_they_were(name: str) -> None:
    policy = load(name)
    list(World(5).views(policy))
    assert policy == load(name)
    assert spec(policy) == name


@every_policy
def test_two_copies_that_see_the_same_facts_decide_alike(name: str) -> None:
    history = recorded(name)
    replica = load(name)
    assert [replica.plan(view) for view, _ in history] == [plan for _, plan in history]


@every_policy
def test_asking_twice_at_one_version_changes_nothing(name: str) -> None:
    history = recorded(name)
    insistent = load(name)
    for view, plan in history:
        answers = [insistent.plan(view) for _ in range(3)]
        assert answers[0] == plan
        assert answers[1] is answers[0]
        assert answers[2] is answers[0]


@every_policy
def test_a_plan_that_does_not_change_is_the_same_object(name: str) -> None:
    plans = [plan for _, plan in recorded(name)]
    for before, after in itertools.pairwise(plans):
        assert after is before or after.resolved(5) != before.resolved(5)


@every_policy
@pytest.mark.parametrize("moment", [0, 1, 30, 60, 100])
def test_a_pickled_copy_goes_on_as_the_original_would(name: str, moment: int) -> None:
    history = recorded(name)
    policy = load(name)
    for view, _ in history[:moment]:
        policy.plan(view)
    restored = pickle.loads(pickle.dumps(policy))
    assert [restored.plan(view) for view, _ in history[moment:]] == [
        plan for _, plan in history[moment:]
    ]


@every_policy
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 33])
def test_its_plans_fit_worlds_of_any_size(name: str, world_size: int) -> None:
    if (name, world_size) in IMPOSSIBLE:
        with pytest.raises(PlanError, match=name):
            recorded(name, world_size)
        return
    for _, plan in recorded(name, world_size):
        assert plan.resolved(world_size).quorums


@every_policy
def test_views_that_come_late_do_no_harm(name: str) -> None:
    policy = load(name)
    for view, _ in recorded(name)[::7]:
        assert policy.plan(view).resolved(5).quorums


@every_policy
def test_renaming_the_ranks_renames_them_in_the_plan(name: str) -> None:
    new, same = [1, 3, 4, 0, 2], list(range(5))
    policy = load(name)
    for view, plan in recorded(name):
        arrays = {field: getattr(view, field)[np.argsort(new)] for field in ROWS}
        truth = np.asarray(view.truth()) if view.truth is not None else np.ones(5)
        seen = dataclasses.replace(view, **arrays, truth=lambda found=truth: found[np.argsort(new)])
        answer = policy.plan(seen).resolved(5)
        assert renamed(answer, same) == renamed(plan.resolved(5), new)


class TiedWorld(World):
    """Every time is a whole multiple of .05 s and most ranks are exactly as fast as another, so
    that thresholds such as 1.05, 1.1, 1.2 and 2 times the fastest are met to the last bit.
    """

    clean = 0.1

    def _duration(self, rank: int, version: int) -> float:
        factors = (1.0, 1.0, 1.05, 1.1, 1.2, 1.25, 2.0, 3.0)
        return self.clean * factors[(rank + version // 25) % len(factors)]

    def _transfer(self) -> float:
        return 0.0


PERTURBED = ("local_times", "communication", "pending_since")


OTHER_MODES = (
    "cgp:groups=rounds", "cgp:groups=window", "cgp:max_group=2", "dropcompute:warmup=1,measure=6",
    "korel:rho=1.25", "lb_bsp:deadband=0", "star_dynamic:relative=0.05", "star_h:form=ring",
    "star_h:interval=interp", "star_h:interval=simulated,staleness=0.3", "star_ring:x=2",
    "sync_switch:stragglers=greedy", "sync_switch:stragglers=elastic",
)  # fmt: skip


@pytest.mark.parametrize("name", [*names(), *OTHER_MODES])
def test_no_decision_depends_on_the_last_bits_of_the_times(name: str) -> None:
    random, world_size = np.random.default_rng(1), 8
    original, *policies = [load(name) for _ in range(4)]
    for view, plan in TiedWorld(world_size).views(original):
        expected = decision(plan, world_size)
        for policy in policies:
            arrays = {
                field: getattr(view, field) * (1 + 4e-16 * random.integers(-2, 3, shape))
                for field in PERTURBED
                for shape in [getattr(view, field).shape]
            }
            answer = policy.plan(dataclasses.replace(view, **arrays))
            assert decision(answer, world_size) == expected
    counts, *others = [ask_counts(policy, name, taken=()) for policy in (original, *policies)]
    assert all(other == pytest.approx(counts, rel=1e-9) for other in others)


def decision(plan: Plan, world_size: int) -> Plan:
    """The resolved plan with its continuous values to ten digits, since they follow the times."""

    def rounded(value: float) -> float:
        return float(f"{value:.10g}")

    plan = plan.resolved(world_size)
    quorums = [dataclasses.replace(q, window=rounded(q.window)) for q in plan.quorums]
    samples = plan.samples(BATCH, world_size)
    return dataclasses.replace(
        plan,
        quorums=tuple(quorums),
        batch=tuple(count / BATCH for count in samples),
        deadline=None if plan.deadline is None else rounded(plan.deadline),
    )


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


def test_loading_every_policy_loads_no_framework() -> None:
    code = (
        "import sys; from simstrag.policies import load, names; [load(name) for name in names()];"
        "print(*sorted({'simpy', 'torch', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_importing_the_package_imports_no_policy() -> None:
    code = (
        "import sys, simstrag.policies as p;"
        "print(*(n for n in p.names() if f'simstrag.policies.{n}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
