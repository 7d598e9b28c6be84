"""How a plan is carried out by real processes, and which cannot be.

Two ways: *synchronous*, all ranks in one all-reduce that DDP overlaps with backward, every rank
deciding for itself by its replica of the policy; and *coordinated*, where one server process keeps
parameters, policy and books, since only somebody who sees arrivals can tell who came first.
"""

from __future__ import annotations

import math

from simstrag import policies
from simstrag.errors import InputError, PlanError
from simstrag.plan import Plan
from simstrag.policy import Policy, View
from simstrag.quorum import Via

__all__ = [
    "check", "check_later", "how", "obstacle", "refusal", "stays_full",
    "synchronous",
]  # fmt: skip

CUT = "a deadline cuts steps at a micro-batch, and a real step cannot be cut from outside"
ROUNDS = "groups with rounds of their own need an optimizer per group, which is not built"
ORACLE = "it is told the true contention, which nobody knows of a real cluster"


def synchronous(plan: Plan, world_size: int) -> bool:
    """Whether every update of a plan takes one gradient of everybody, by one all-reduce.

    >>> synchronous(Plan(), 4), synchronous(policies.load("asgd").plan(View(4)), 4)
    (True, False)
    """
    (first, *others) = plan.resolved(world_size).quorums
    return (
        not others
        and first.via is Via.ALLREDUCE
        and len(first.members) == world_size
        and first.count is None
        and first.window == math.inf
        and not first.riders
        and not first.private
        and not plan.average
        and plan.bound is None
    )


def obstacle(plan: Plan) -> str | None:
    """Why real processes cannot carry out a plan; None where they can.

    >>> obstacle(Plan(deadline=0.5))
    'a deadline cuts steps at a micro-batch, and a real step cannot be cut from outside'
    """
    if plan.deadline is not None:
        return CUT
    if any(quorum.rounds > 1 for quorum in plan.quorums):
        return ROUNDS
    return None


def refusal(policy: Policy, name: str, world: View) -> str | None:
    """Why a policy cannot run for real, as far as it and its first plan tell; None where it can."""
    if getattr(policy, "oracle", False):
        return ORACLE
    declared: str | None = getattr(policy, "simulated_only", None)
    return declared or obstacle(policies.ask(policy, world, name))


def check(policy: Policy, name: str, world: View) -> None:
    """Raise `InputError` where a policy cannot run for real, before anything has begun.

    It is asked for a plan; let it be a copy of the one that will decide.
    """
    try:
        reason = refusal(policy, name, world)
    except PlanError as error:
        raise InputError(f"policy {name} cannot run here: {error}") from None
    if reason:
        raise InputError(
            f"policy {name} is for simulation only: {reason}; "
            "`simstrag policies` shows which others run for real"
        )


def check_later(plan: Plan, name: str) -> None:
    """Raise `InputError` where a plan that a policy made in mid-run cannot be carried out.

    >>> check_later(Plan(), "bsp")
    """
    if reason := obstacle(plan):
        raise InputError(f"policy {name}: a plan that it made in mid-run is refused: {reason}")


def stays_full(name: str, refusal: str) -> str:
    """What is said of a policy that asks for reduced precision where there is none."""
    return f"policy {name} asks for reduced precision, and all steps stay in full: {refusal}"


def how(text: str) -> str:
    """How a policy runs on real processes, in a few words; "no: why" where it cannot.

    >>> how("korel"), how("asgd")
    ('DDP', 'server')
    """
    policy = policies.load(text)
    reason = refusal(policy, text, policies.WORLD)
    if reason:
        return f"no: {reason}"
    plan = policies.ask(policies.load(text), policies.WORLD, text)
    return "DDP" if synchronous(plan, policies.WORLD.world_size) else "server"
