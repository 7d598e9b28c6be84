"""The rules of a policy's contract: what each tries, and how two plans are compared.

Facts come from a small `World` with contended ranks, noisy times, and steps in whatever precision
the policy asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simstrag import policies
from simstrag.contract import Hints, JudgesBlocks, Plan, Policy, Quorum, View
from simstrag.ddp.policy_support import check_policy, check_torch
from simstrag.engine import reviews
from simstrag.engine.native.library import LIBRARY
from simstrag.engine.recorder import Recorder
from simstrag.engine.simulate import simulate
from simstrag.engine.simulation import Simulation
from simstrag.errors import InputError, PlanError, SimstragError
from simstrag.scenario.scenario import Scenario
from simstrag.validation.policy_worlds import BATCH, RHO, TiedWorld, World

RANKS = 5
"""Ranks of the world in which most rules are tried."""
ROWS = (
    "steps", "local_times", "amp", "batch", "lower_bound", "communication", "pending_since",
)  # fmt: skip
"""Arrays of a view with a row for each rank."""
PERTURBED = ("local_times", "communication", "pending_since")
"""Arrays of times, whose last bits differ between processors."""
RENAMED = (1, 3, 4, 0, 2)
"""Other numbers for the same ranks."""
SIZES = (1, 2, 8)
MOMENTS = (0, 1, 30, 60, 100)
LIMIT = 300.0
"""Seconds in which two real ranks must have trained, on however busy a machine."""
SAMPLES = 40 * 2 * BATCH
ALIKE = "the same facts give the same plan"
ENDS = "a short simulated run ends"
LONGEST = 1e4
"""Simulated seconds in which the run of `SCENARIO` must end; one rank alone needs 60 s."""
SCENARIO: dict[str, Any] = {
    "workers": 4, "samples": 60 * 4 * BATCH, "microbatches": 4,
    "step": {"compute": 0.1, "amp_ratio": RHO, "cv": 0.1},
    "allreduce": {"alpha": 0.001, "bandwidth": 1e9, "bytes": 1e7},
    "server": {"service": 0.002, "push": 0.001, "pull": 0.001},
    "learner": {"batch": BATCH},
    "trace": [
        {"time": 1, "node": 2, "resource": "gpu", "kind": "slowdown", "value": 2.5},
        {"time": 4, "node": 2, "resource": "gpu", "kind": "slowdown", "value": 1.0},
    ],
}  # fmt: skip
"""A short run with contention, noise and costs of communication."""
BLOCKS = (3, 40)
"""Most reviews of the blocks in which a policy is tried."""
UNSTEADY: dict[str, Any] = SCENARIO | {
    "samples": 500 * 4 * BATCH,
    "trace_end": "loop",
    "trace": [
        {"time": time, "node": node, "resource": "gpu", "kind": "slowdown", "value": value}
        for node, times in enumerate(((0, 3.1), (4, 9.7), (6, 7.3), (11, 24.9)))
        for time, value in ((0.0, 1.0), *zip(times, (1.6, 1.0), strict=True))
    ],
}  # fmt: skip
"""A longer one, in which every rank is slow now and then."""


class NotTriedError(Exception):
    """A rule cannot be tried here; the message says why."""


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """One rule, tried on a policy.

    rule: what a policy must keep to.
    ok: whether it does; None where this was not tried.
    detail: what differed and what to do, or why it was not tried; empty where it is kept.
    """

    rule: str
    ok: bool | None
    detail: str = ""

    def __str__(self) -> str:
        word = {True: "ok", False: "failed", None: "not tried"}[self.ok]
        return f"{word:9}  {self.rule}{': ' * bool(self.detail)}{self.detail}"


@dataclass
class Subject:
    """A policy that is tried: its name, and a function that makes a new one."""

    name: str
    new: Callable[[], Policy]
    _histories: dict[int, list[tuple[View, Plan]]] = field(default_factory=dict)

    def ask(self, policy: Policy, view: View) -> Plan:
        """The plan of one copy of it. Raises `PlanError` where it fails."""
        return policies.ask(policy, view, self.name)

    def history(self, world_size: int = RANKS) -> list[tuple[View, Plan]]:
        """Views of a world and its plans for them."""
        if world_size not in self._histories:
            ask = functools.partial(self.ask, self.new())
            self._histories[world_size] = list(World(world_size).views(ask))
        return self._histories[world_size]


@dataclass(frozen=True, slots=True)
class ContractRule:
    """A rule of the contract.

    attempt: returns what breaks it, or an empty text. Raises `NotTriedError`.
    advice: what to do about it.
    """

    text: str
    attempt: Callable[[Subject], str]
    advice: str

    def check(self, subject: Subject) -> RuleCheck:
        """The rule, tried on a policy; whatever its code raises is a failure."""
        try:
            with policies.collect_warnings(subject.name):
                reason = self.attempt(subject)
        except NotTriedError as obstacle:
            return RuleCheck(self.text, None, str(obstacle))
        except SimstragError as error:
            return RuleCheck(self.text, False, str(error))
        except Exception as error:  # of the policy's own code, its comparison or its copy
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return RuleCheck(self.text, False, f"{text}; {self.advice}")
        return RuleCheck(self.text, not reason, reason and f"{reason}; {self.advice}")


def makes_plans(subject: Subject) -> str:
    """It answers every view of a short run with a plan that fits."""
    for view, plan in subject.history():
        plan.resolved(view.world_size)
    return ""


def has_frozen_parameters(subject: Subject) -> str:
    """Its parameters are frozen fields with defaults; learnt state has names that end in _."""
    policy = subject.new()
    own = vars(policy) if hasattr(policy, "__dict__") else {}
    kept: Any = policy
    fields: Sequence[dataclasses.Field[Any]] = ()
    if dataclasses.is_dataclass(policy):
        fields = dataclasses.fields(kept)
    for each in fields:
        if each.init == each.name.endswith("_"):
            return f"the field {each.name} is {'learnt state' if each.init else 'a parameter'}"
        try:
            setattr(policy, each.name, getattr(policy, each.name))
        except dataclasses.FrozenInstanceError:
            continue
        return f"the field {each.name} can be set"
    loose = [name for name in own if name not in {each.name for each in fields}]
    parameters = [name for name in loose if not name.endswith("_")]
    return f"the attribute {parameters[0]} is no field of a dataclass" if parameters else ""


def declares_a_lane(subject: Subject) -> str:
    """The lane that it declares exists."""
    policies.declared_lane(subject.new(), subject.name)
    return ""


def decides_alike(subject: Subject) -> str:
    """Two copies that are asked in turn about the same facts decide alike."""
    first, second = subject.new(), subject.new()
    for view, plan in subject.history():
        for copied in (first, second):
            if reason := _difference(view, plan, subject.ask(copied, view)):
                return f"another copy has {reason}"
    return ""


def begins_anew(subject: Subject) -> str:
    """A new copy decides as the first one did, whatever copies before it have seen."""
    history = subject.history()
    for view, _ in subject.history(RANKS + 1):
        subject.ask(subject.new(), view)
    later = World(RANKS).views(functools.partial(subject.ask, subject.new()))
    for (view, plan), (_, again) in zip(history, later, strict=True):
        if reason := _difference(view, plan, again):
            return f"a later run has {reason}"
    return ""


def bears_repetition(subject: Subject) -> str:
    """A second call at one version changes nothing."""
    policy = subject.new()
    for view, plan in subject.history():
        for answer in (subject.ask(policy, view) for _ in range(3)):
            if reason := _difference(view, plan, answer):
                return f"asked three times it has {reason}"
    return ""


def leaves_the_view(subject: Subject) -> str:
    """Deciding leaves the view as it was."""
    policy, changed = subject.new(), list[str]()

    def watched(view: View) -> Plan:
        before = dataclasses.replace(view)
        plan = subject.ask(policy, view)
        changed.extend(
            each.name for each in dataclasses.fields(view) if _changed(each.name, before, view)
        )
        return plan

    for view, _ in World(RANKS).views(watched):
        if changed:
            return f"{changed[0]} is another at version {view.version}"
    return ""


def survives_pickling(subject: Subject) -> str:
    """A copy that was pickled in between goes on as the original would."""
    history = subject.history()
    for moment in MOMENTS:
        policy = subject.new()
        for view, _ in history[:moment]:
            subject.ask(policy, view)
        restored = pickle.loads(pickle.dumps(policy))
        for view, plan in history[moment:]:
            if reason := _difference(view, plan, subject.ask(restored, view)):
                return f"pickled at version {moment} it has {reason}"
    return ""


def fits_any_world(subject: Subject, sizes: Sequence[int] = SIZES) -> str:
    """It has plans for few ranks and many, or refuses a number of ranks at once."""
    refused = []
    for world_size in sizes:
        try:
            subject.ask(subject.new(), View(world_size, hints=World(world_size).view(0).hints))
        except PlanError as error:
            if type(error.__cause__) not in (type(None), PlanError):
                raise
            refused.append(str(error))
            continue
        for view, plan in subject.history(world_size):
            try:
                plan.resolved(world_size)
            except PlanError as error:
                return f"{world_size} ranks, version {view.version}: {error}"
    return refused[0] if len(refused) == len(sizes) else ""


def bears_late_views(subject: Subject) -> str:
    """A policy that sees every seventh update alone still has plans."""
    policy = subject.new()
    for view, _ in subject.history()[::7]:
        subject.ask(policy, view).resolved(RANKS)
    return ""


def follows_relabelling(subject: Subject) -> str:
    """Renaming the ranks renames them in the plan, and nothing else.

    Ranks that the first plan leaves out, such as spares, keep their numbers, and so do those of
    its gradient tree: a policy must choose them before anything is known.
    """
    same = list(range(RANKS))
    history = subject.history()
    first = history[0][1].resolved(RANKS)
    in_tree = {rank for quorum in first.quorums for pair in quorum.parents for rank in pair}
    named = sorted({rank for each in first.quorums for rank in _members(each)} - in_tree)
    new = list(same)
    for place, rank in zip(named, [rank for rank in RENAMED if rank in named], strict=True):
        new[place] = rank
    old = np.argsort(new)
    policy = subject.new()
    for view, plan in history:
        rows = {name: getattr(view, name)[old] for name in ROWS}
        truth = np.ones(RANKS) if view.truth is None else np.asarray(view.truth())
        seen = dataclasses.replace(view, **rows, truth=functools.partial(truth.__getitem__, old))
        answer = subject.ask(policy, seen).resolved(RANKS)
        if reason := _difference(view, _renamed(plan.resolved(RANKS), new), _renamed(answer, same)):
            return f"with other numbers for the same ranks it has {reason}"
    return ""


def ignores_last_bits(subject: Subject) -> str:
    """The last bits of the times, which differ between processors, change no decision."""
    random, world_size = np.random.default_rng(1), 8
    original, *others = (subject.new() for _ in range(4))
    for view, plan in TiedWorld(world_size).views(functools.partial(subject.ask, original)):
        for policy in others:
            times = {
                name: getattr(view, name)
                * (1 + 4e-16 * random.integers(-2, 3, getattr(view, name).shape))
                for name in PERTURBED
            }
            answer = subject.ask(policy, dataclasses.replace(view, **times))
            if answer != plan and _rounded(answer, world_size) != _rounded(plan, world_size):
                return f"at version {view.version} it decides otherwise for times 1e-15 apart"
    counted = [policies.counts(policy, subject.name, taken=()) for policy in (original, *others)]
    for counts in counted[1:]:
        for key, value in counted[0].items():
            if not np.isclose(counts.get(key, np.nan), value, rtol=1e-9, equal_nan=True):
                return f"summary()['{key}'] is another for times 1e-15 apart"
    return ""


def ends_a_run(subject: Subject) -> str:
    """A short simulated run ends within `LONGEST`."""
    scenario = Scenario.of(SCENARIO)
    run = Simulation(scenario, subject.new(), subject.name, 0, Recorder())
    if run.advance(LONGEST):
        return ""
    samples, _ = run.kernel.applied
    seconds = SCENARIO["step"]["compute"]
    return (
        f"after {LONGEST:g} s of {scenario.workers} ranks with steps of {seconds:g} s it had "
        f"applied {samples} of {scenario.samples} samples"
    )


def _require_end(subject: Subject) -> None:
    """Raise `NotTriedError` where runs do not end."""
    try:
        reason = ends_a_run(subject)
    except SimstragError as error:
        reason = str(error)
    if reason:
        raise NotTriedError(f"only if {ENDS}")


def runs_alike_in_both_engines(subject: Subject) -> str:
    """A short simulated run is the same on both engines, and again with the same object."""
    _require_end(subject)
    scenario, policy = Scenario.of(SCENARIO), subject.new()
    engines = ("plain", "native", "native") if LIBRARY.exists() else ("plain", "plain")
    runs = [simulate(scenario, policy, engine=engine) for engine in engines]
    for engine, run in zip(engines[1:], runs[1:], strict=True):
        if run.summary != runs[0].summary or run.updates != runs[0].updates:
            return f"a run of the {engine} engine differs from one of the plain engine"
    if not LIBRARY.exists():
        raise NotTriedError("the native engine was not built; the plain one runs it")
    return ""


def judges_blocks(subject: Subject) -> str:
    """Where it judges blocks of reviews, it decides as one by one, which the plain engine asks."""
    if not isinstance(subject.new(), JudgesBlocks):
        return ""
    if not LIBRARY.exists():
        raise NotTriedError("the native engine was not built; the plain one shows no blocks")
    _require_end(subject)
    scenario = Scenario.of(UNSTEADY)
    expected = simulate(scenario, subject.new(), engine="plain")
    for most in BLOCKS:
        with reviews.always(most):
            found = simulate(scenario, subject.new())
        changes = [
            list(run.decisions["update"]) for run in (expected, found) if run.decisions is not None
        ]
        for one_by_one, in_blocks in itertools.zip_longest(*changes, fillvalue="never"):
            if one_by_one != in_blocks:
                return f"a change of plan, at version {one_by_one}, comes at {in_blocks} by blocks"
        if found.summary != expected.summary or found.updates != expected.updates:
            return f"by blocks of {most} reviews its run is another one"
    return ""


def trains_on_real_ranks(subject: Subject) -> str:
    """Two real ranks train under it to the end; ranks whose plans differ would wait for long."""
    if decides_alike(subject):
        raise NotTriedError(f"only if {ALIKE}")
    _require_end(subject)
    cls = type(subject.new())
    try:
        spec = policies.spec(subject.new())
        check_policy(subject.new(), spec, View(2, hints=Hints(batch=BATCH, samples=SAMPLES)))
        check_torch()
    except InputError as obstacle:
        raise NotTriedError(str(obstacle)) from None
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise NotTriedError("other processes cannot import it; move its class to a file")
    folder = Path(inspect.getfile(cls)).absolute().parent
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(folder))))
    command = [
        sys.executable, "-m", "simstrag", "ddp", "mlp", "--policy", spec, "--ranks", "2",
        "--batch", str(BATCH), "--samples", str(SAMPLES), "--quiet",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"two ranks had not trained {SAMPLES} samples after {LIMIT:g} s"
    if not done.returncode:
        return ""
    lines = done.stderr.splitlines() or ["no rank says why"]
    errors = [
        line
        for line in lines
        if re.match(r"error: |(\[rank\d+\]: )?[\w.]+(Error|Exception)\b", line)
    ]
    return (errors or lines)[0].removeprefix("error: ")


RULES = (
    ContractRule("it answers every view of a short run with a plan", makes_plans, "mend it first"),
    ContractRule(
        "parameters are frozen fields with defaults", has_frozen_parameters,
        "make the class a frozen dataclass, and end names of state in _, with init=False",
    ),
    ContractRule(
        "a lane that it declares is A, B or C", declares_a_lane, "declare one of them, or none",
    ),
    ContractRule(
        ALIKE, decides_alike,
        "use no randomness, clock or state that copies share",
    ),
    ContractRule(
        "a second call at one version changes nothing", bears_repetition,
        "key state on view.version, view.steps or view.samples, not on the number of calls",
    ),
    ContractRule(
        "a new run begins anew", begins_anew,
        "keep state on the instance, not on the class or the module",
    ),
    ContractRule(
        "a view stays as it was", leaves_the_view, "copy an array before you write on it",
    ),
    ContractRule(
        "a pickled copy goes on as the original", survives_pickling,
        "keep state in plain attributes of the instance",
    ),
    ContractRule(
        f"it has plans for {', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]} ranks, or refuses "
        "some at once",
        fits_any_world, "make its plans from view.world_size, or raise PlanError at the first call",
    ),
    ContractRule(
        "views that come late do no harm", bears_late_views,
        "do not count on one call for each update",
    ),
    ContractRule(
        "renaming the ranks that it trains at first renames them in the plan", follows_relabelling,
        "choose ranks by what the view shows of them, not by their numbers",
    ),
    ContractRule(
        "the last bits of times change no decision", ignores_last_bits,
        "compare times with simstrag.contract.ties",
    ),
    ContractRule(
        ENDS, ends_a_run,
        "let quorums close: plan fewer private steps, fewer rounds or a shorter pause",
    ),
    ContractRule(
        "both engines make the same run", runs_alike_in_both_engines,
        "key state on what the view shows alone",
    ),
    ContractRule(
        "blocks of reviews change no decision", judges_blocks,
        "let first_change return the first review at which plan might change its answer, and leave "
        "the state as if plan had been asked at those before it",
    ),
    ContractRule(
        "two real ranks train under it", trains_on_real_ranks,
        "declare simulated_only where real ranks cannot follow its plans",
    ),
)  # fmt: skip
"""The contract, in the order in which it is tried."""


def _difference(view: View, expected: Plan, answer: Plan) -> str:
    """What differs between two plans for one view; empty where they are equal."""
    if answer == expected:
        return ""
    expected, answer = (plan.resolved(view.world_size) for plan in (expected, answer))
    changed = sorted(answer.changes(expected))
    return f"another {' and '.join(changed)} at version {view.version}" if changed else ""


def _changed(name: str, before: View, after: View) -> bool:
    """Whether a field of a view, computed or not, differs from that of its copy."""
    old, new = (getattr(view, name, None) for view in (before, after))
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        return old.tobytes() != new.tobytes()
    return not (old is new or old == new)


def _members(quorum: Quorum) -> set[int]:
    """The members and riders of a resolved quorum."""
    return {*quorum.members, *(child for child, _ in quorum.riders)}


def _renamed(plan: Plan, new: list[int]) -> Plan:
    """The resolved plan in which each rank r is called new[r]."""
    assert isinstance(plan.precision, tuple)
    old = np.argsort(new)
    quorums = [
        dataclasses.replace(
            quorum,
            ranks=tuple(sorted(new[rank] for rank in quorum.members)),
            steps=tuple(quorum.steps_of(r) for r in sorted(quorum.members, key=new.__getitem__)),
            riders=tuple((new[child], new[parent]) for child, parent in quorum.riders),
            parents=tuple((new[child], new[parent]) for child, parent in quorum.parents),
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


def _rounded(plan: Plan, world_size: int) -> Plan:
    """The resolved plan with its continuous values to ten digits, since they follow the times."""

    def rounded(value: float) -> float:
        return float(f"{value:.10g}")

    plan = plan.resolved(world_size)
    quorums = [
        dataclasses.replace(q, window=rounded(q.window), grace=rounded(q.grace))
        for q in plan.quorums
    ]
    samples = plan.samples(BATCH, world_size)
    return dataclasses.replace(
        plan,
        quorums=tuple(quorums),
        batch=tuple(count / BATCH for count in samples),
        deadline=None if plan.deadline is None else rounded(plan.deadline),
        pause=rounded(plan.pause),
    )
