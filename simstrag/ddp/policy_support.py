"""Which policies and plans real ranks can carry out, how, and with which hints of a profile.

There are two modes.  All-reduce: DDP overlaps it with backward, and each rank decides by a replica
of the policy.  Server: one process owns parameters, policy and engine, for the order of arrivals is
known there alone.
"""

from __future__ import annotations

import functools
import math
import os
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from simstrag import policies
from simstrag.contract import Hints, Late, OverlappingStep, Plan, Policy, Quorum, Via, View, Weigh
from simstrag.ddp.failures.diagnosis import warn
from simstrag.errors import InputError, PlanError

if TYPE_CHECKING:
    from simstrag.profile.profile import Profile, StepTimes

TORCH = ("2.11", "2.13")
"""Releases of torch on which real ranks, which use private functions of it, were tried."""

CUT = "a deadline cuts steps at a micro-batch, and a real step cannot be cut from outside"
ROUNDS = "groups with rounds need weigh WORLD: a round does not know the samples of its update"
AVERAGED = (
    "models are averaged by all-reduce, and a rank cannot take back what a late gradient or a "
    "cutoff has dropped from its model; nor does a server know the average"
)
CORRECTION = (
    "a correction or a test of single gradients needs each of them at the server, not their sums"
)
ORACLE = "it reads the true contention, which is unknown on a real cluster"
TELEMETRY = "it reads the load of nodes, which no real rank monitors"


def torch_caution(version: str) -> str:
    """What to know of an installed version of torch; empty where real ranks were tried on it.

    >>> torch_caution("2.13.0+cpu")
    ''
    >>> torch_caution("2.12.1")
    'torch 2.12.1 is installed, and real ranks were tried on 2.11 and 2.13 alone'
    """
    if ".".join(version.split(".")[:2]) in TORCH:
        return ""
    tried = " and ".join(TORCH)
    return f"torch {version} is installed, and real ranks were tried on {tried} alone"


@functools.cache
def check_torch() -> None:
    """Raise `InputError` where torch is not installed; warn once in a job of an untried release."""
    try:
        caution = torch_caution(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        remedy = "pip install 'simstrag[torch]'"
        raise InputError(f"real ranks need the package torch; {remedy}") from None
    said = "SIMSTRAG_PARENT" in os.environ or os.environ.get("LOCAL_RANK", "0") != "0"
    if caution and not said:
        warn(caution)


def is_synchronous(plan: Plan, world_size: int) -> bool:
    """Whether every update of a plan is one all-reduce of one gradient of every rank.

    >>> is_synchronous(Plan(), 4), is_synchronous(policies.load("asgd").plan(View(4)), 4)
    (True, False)
    """
    (first, *others) = plan.resolved(world_size).quorums
    return (
        not others
        and first.via is Via.ALLREDUCE
        and len(first.members) == world_size
        and waits_for_all(first)
        and not first.riders
        and not first.private
        and not plan.average
        and plan.bound is None
    )


def plan_obstacle(plan: Plan) -> str | None:
    """Why real processes cannot carry out a plan; None where they can.

    >>> plan_obstacle(Plan(deadline=0.5))
    'a deadline cuts steps at a micro-batch, and a real step cannot be cut from outside'
    """
    if plan.deadline is not None:
        return CUT
    if plan.weigh is not Weigh.WORLD and any(quorum.rounds > 1 for quorum in plan.quorums):
        return ROUNDS
    served = all(quorum.via is Via.SERVER for quorum in plan.quorums)
    if plan.average and not served and _loses_models(plan):
        return AVERAGED
    single = all(quorum.via is Via.SERVER and not quorum.parents for quorum in plan.quorums)
    if (plan.compensation is not None or plan.screen is not None) and not single:
        return CORRECTION
    return None


def _loses_models(plan: Plan) -> bool:
    """Whether some model may be left out of all averages, or stay unknown to the server."""
    late = any(quorum.late in (Late.DROP, Late.ABORT) for quorum in plan.quorums)
    served = any(quorum.via is Via.SERVER for quorum in plan.quorums)
    return late or served or plan.damping.cutoff is not None


def waits_for_all(quorum: Quorum) -> bool:
    """Whether a quorum closes with a gradient of each of its members alone."""
    return quorum.count is None and quorum.window == math.inf and not quorum.grace


def refusal_reason(policy: Policy, name: str, world: View) -> str | None:
    """Why a policy cannot run on real ranks, by its class and first plan; None where it can."""
    if getattr(policy, "oracle", False):
        return ORACLE
    if getattr(policy, "reads_telemetry", False):
        return TELEMETRY
    declared: str | None = getattr(policy, "simulated_only", None)
    return declared or plan_obstacle(policies.ask(policy, world, name))


def check_policy(policy: Policy, name: str, world: View) -> None:
    """Raise `InputError` where a policy cannot run on real ranks.

    policy: a copy, since this asks it for a plan.
    """
    try:
        reason = refusal_reason(policy, name, world)
    except PlanError as error:
        raise InputError(f"policy {name} cannot run here: {error}") from None
    if reason:
        raise InputError(
            f"policy {name} is for simulation only: {reason}; "
            "`simstrag policies` shows which others run for real"
        )


def check_plan(plan: Plan, name: str) -> None:
    """Raise `InputError` for a later plan of a policy that cannot be carried out.

    >>> check_plan(Plan(), "bsp")
    """
    if reason := plan_obstacle(plan):
        raise InputError(f"policy {name}: a plan that it made in mid-run is refused: {reason}")


def full_precision_notice(name: str, refusal: str) -> str:
    """The warning for a policy that asks for reduced precision where there is none."""
    return f"policy {name} asks for reduced precision, and all steps stay in full: {refusal}"


def mechanism(text: str) -> str:
    """The mode in which a policy runs on real ranks, or "no: why".

    >>> mechanism("korel"), mechanism("asgd")
    ('DDP', 'server')
    """
    policy = policies.load(text)
    reason = refusal_reason(policy, text, policies.WORLD)
    if reason:
        return f"no: {reason}"
    plan = policies.ask(policies.load(text), policies.WORLD, text)
    return "DDP" if is_synchronous(plan, policies.WORLD.world_size) else "server"


def profile_hints(
    profile: str | Path | Profile | None,
    batch: int | None = None,
    samples: int | None = None,
    pair: tuple[str, str] | None = None,
) -> Hints:
    """The hints of a profile for a policy, as in a simulation with the same profile.

    pair: full and reduced precision of the run, by their names in profiles; "" is none.

    Without those where the run has another batch or precision; the noise scale is the median along
    the measured training.  Raises `InputError` where the
    profile cannot be read.

    >>> profile_hints(None, batch=32).amp_ratio is None
    True
    """
    no_times = Hints(batch=batch, samples=samples)
    if profile is None:
        return no_times
    from simstrag.profile.batch_laws import times_at
    from simstrag.profile.profile import Profile

    known = profile if isinstance(profile, Profile) else Profile.read(profile)
    times, workload = known.step, known.workload
    if times is None or workload is None or batch not in (None, workload.batch):
        return no_times
    if pair is not None and pair not in ((workload.full, workload.amp), (workload.full, "")):
        return no_times
    times = times_at(known, workload.batch)
    clean, share = times.compute.value, times.host_share
    return Hints(
        amp_ratio=None if times.amp_ratio is None else times.amp_ratio.value,
        step=_overlapping_hint(times),
        host_seconds=None if share is None else clean * share.value,
        clean_seconds=clean,
        amp_switch=times.amp_switch.value,
        batch=batch or workload.batch,
        samples=samples,
        noise_scale=median(at.scale.value for at in known.learning) if known.learning else None,
    )


def _overlapping_hint(times: StepTimes) -> OverlappingStep | None:
    """Launch and device of a profile's step, in seconds; None by the serial law."""
    if times.streams is None:
        return None
    launch, device = times.streams
    return OverlappingStep(
        launch=launch.full.value,
        device=device.full.value,
        amp_launch=(launch.amp or launch.full).value,
        amp_device=None if device.amp is None else device.amp.value,
        fixed_share=0.0 if times.fixed_share is None else times.fixed_share.value,
    )
