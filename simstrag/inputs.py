"""What a scenario refers to, loaded: constants that it states, else those of its profile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simstrag import noise
from simstrag.constants import AllReduce, Server, Step
from simstrag.profile import Profile
from simstrag.sections import AllReduceSection, ServerSection, StepSection
from simstrag.trace import Trace

__all__ = ["Inputs", "allreduce_of", "server_of", "step_of"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Trace, profile and the constants in force."""

    trace: Trace | None
    profile: Profile | None
    step: Step
    allreduce: AllReduce
    server: Server


def step_of(section: StepSection | None, profile: Profile | None, microbatches: int) -> Step:
    """The step of a section, or else of the profile; one of them is there."""
    if section is not None:
        host = section.compute * section.host_share
        gpu = section.compute - host
        return Step(host, gpu, section.amp_ratio, section.draw, section.amp_switch, microbatches)
    assert profile is not None
    p = profile.step
    host = p.compute.value * p.host_share.value
    gpu, draw = p.compute.value - host, noise.quantiles(p.noise.quantiles)
    return Step(host, gpu, p.amp_ratio.value, draw, p.amp_switch.value, microbatches)


def allreduce_of(section: AllReduceSection | None, profile: Profile | None) -> AllReduce:
    """Each constant of a section that states it, or else of the profile, or else free."""
    known = AllReduce()
    if profile is not None:
        a = profile.allreduce
        known = AllReduce(a.alpha.value, a.bandwidth.value, a.bytes.value, a.overlap.value)
    if section is None:
        return known
    return replace(known, **section.model_dump(include=section.model_fields_set))


def server_of(section: ServerSection | None, profile: Profile | None) -> Server:
    """Each constant of a section that states it, or else of the profile, or else free."""
    known = Server()
    if profile is not None:
        s = profile.server
        known = Server(s.service.value, s.push.value, s.pull.value)
    if section is None:
        return known
    stated = section.model_dump(include=section.model_fields_set)
    return replace(known, **stated | {"shards": section.shares})
