"""The inputs of a scenario: constants that it states, else those of its profile."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from simstrag.profile.measurements import Response
from simstrag.profile.profile import Profile, StepTimes
from simstrag.profile.quantity import ProfilePart, Quantity
from simstrag.scenario.sections import NoiseSection, Section, ServerSection, StepSection
from simstrag.timing import noise
from simstrag.timing.constants import AllReduce, ServerCost, Step
from simstrag.trace.trace import Trace

Constants = TypeVar("Constants", AllReduce, ServerCost)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Trace, profile and the constants in force.

    times: the profile's times of a step at the scenario's batch; None if the scenario states them.
    contention: the trace as simulated, with utilisations translated into slowdowns, at the severity
        of the scenario.
    responses: the laws of this translation.
    """

    trace: Trace | None
    profile: Profile | None
    times: StepTimes | None
    step: Step
    allreduce: AllReduce
    server: ServerCost
    contention: Trace | None
    responses: tuple[Response, ...] = ()

    @property
    def loads(self) -> set[str]:
        """The resources whose utilisation is in the trace, without a measured response."""
        if self.trace is None:
            return set()
        used = {resource for _, resource, kind in self.trace.keys if kind == "utilisation"}
        return used - {response.resource for response in self.responses}


def step_of(
    section: StepSection | None,
    correlation: NoiseSection | None,
    times: StepTimes | None,
    trace: Trace | None,
    microbatches: int,
) -> Step:
    """The step of a section, else of a profile, else the median of a trace's recorded durations."""
    stated = None if correlation is None else correlation.lag1
    lag1 = stated or 0.0
    if section is not None and section.launch is not None and section.device is not None:
        return Step.overlapping(
            section.launch.full, section.device.full, section.launch.amp, section.device.amp,
            section.distribution(lag1), section.amp_switch, microbatches, section.fixed_share,
        )  # fmt: skip
    if section is not None and section.compute is not None:
        host = section.compute * section.host_share
        gpu = section.compute - host
        return Step(
            host, gpu, section.amp_ratio, section.distribution(lag1), section.amp_switch,
            microbatches, section.fixed_share,
        )  # fmt: skip
    if times is None:
        assert trace is not None, "a scenario says how long a step is"
        return Step(0.0, trace.median_duration, microbatches=microbatches)
    drawn = None
    if times.noise is not None:
        measured = times.noise.lag1_autocorrelation or 0.0
        lag1 = measured if stated is None else stated
        drawn = noise.quantiles(times.noise.quantiles, lag1)
    fixed = 0.0 if times.fixed_share is None else times.fixed_share.value
    switch = times.amp_switch.value
    if times.streams is not None:
        launch, device = times.streams
        amp_launch, amp_device = (None if s.amp is None else s.amp.value for s in times.streams)
        return Step.overlapping(
            launch.full.value, device.full.value, amp_launch, amp_device, drawn, switch,
            microbatches, fixed,
        )  # fmt: skip
    assert times.host_share is not None, "the serial law has it"
    host = times.compute.value * times.host_share.value
    gpu = times.compute.value - host
    ratio = None if times.amp_ratio is None else times.amp_ratio.value
    return Step(host, gpu, ratio, drawn, switch, microbatches, fixed)


def constants_of(
    kind: type[Constants], section: Section | None, measured: ProfilePart | ServerCost | None
) -> Constants:
    """All-reduce or server: each constant of the section, else measured or derived, else free."""
    known: dict[str, Any] = {}
    for field in fields(kind):
        value = getattr(measured, field.name, None)
        if value is not None:
            known[field.name] = value.value if isinstance(value, Quantity) else value
    names = {field.name for field in fields(kind)}
    stated = {} if section is None else section.model_dump(include=names & section.model_fields_set)
    if isinstance(section, ServerSection):
        stated["shards"] = section.shares
    return kind(**known | stated)
