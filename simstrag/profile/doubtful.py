"""Constants of a profile that a reader must not take as they stand, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from simstrag.profile.profile import Profile, StepTimes
from simstrag.profile.quantity import Quantity

WIDE = 1.5
"""Factor between the ends of an interval from which a constant needs a caution."""

ABSURD = 10.0
"""Factor from which the ends say nothing: they come of few visits that differ, by Student's t."""

ONE_VISIT = "one visit, so no interval"
"""Ends the note of a quantity that was measured once."""


UNSTABLE = "unstable: "
"""In the note of a response, before the levels whose visits repeat no single number."""


ONCE = "was visited once"
"""Ends the note of a constant whose fit has no interval."""


class Doubt(NamedTuple):
    """A constant, in the words of a scenario, and why it is doubtful."""

    name: str
    quantity: Quantity
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def factor(quantity: Quantity) -> float:
    """The upper over the lower end of an interval; 1 without one, infinite from 0 on.

    >>> factor(Quantity(value=2.0, kind="measured", low=1.0, high=3.0))
    3.0
    """
    low, high = quantity.low, quantity.high
    if low is None or high is None or low == high:
        return 1.0
    if low > 0:
        return high / low
    return low / high if high < 0 else float("inf")


def why_doubtful(quantity: Quantity) -> str:
    """The reason in words, or "" for none."""
    wide = factor(quantity)
    if wide == float("inf"):
        return "an interval that reaches 0"
    if wide >= ABSURD:
        return "an interval too wide to be of use, from few visits that differ"
    if wide >= WIDE:
        return f"an interval that spans a factor of {wide:.2g}"
    if quantity.note.endswith(ONE_VISIT):
        return "one visit, no interval"
    if quantity.note.endswith(ONCE):
        return "a fit to values that were visited once, no interval"
    if quantity.kind == "assumed" and quantity.note.startswith("at most"):
        return "not measured; at most this long, and taken as that"
    return ""


def doubts(profile: Profile, times: StepTimes | None = None) -> list[Doubt]:
    """The doubtful constants of a profile's simulation: of step, all-reduce, server and laws.

    times: in place of the profile's own, at another batch.
    """
    found = []
    step = profile.step if times is None else times
    for part, section in (
        ("step", step), ("allreduce", profile.allreduce), ("server", profile.server),
        ("power", profile.power),
    ):  # fmt: skip
        if section is not None:
            found += list(_of_section(part, section))
    found += [*_unstable(profile, step), *_at_odds(profile)]
    for fit in profile.batches:
        where = f"batches.{fit.precision}"
        found += [*_of(f"{where}.fixed", fit.fixed), *_of(f"{where}.per_sample", fit.per_sample)]
        found += [] if fit.knee is None else _of(f"{where}.knee", fit.knee)
    for response in profile.responses:
        where = f"responses.{response.load}.{response.precision or 'all-reduce'}"
        for name, quantity in response.constants.items():
            found += _of(f"{where}.{name}", quantity)
        once = [f"{at.level:g}" for at in response.levels if at.slowdown.note.endswith(ONE_VISIT)]
        if once:
            reason = f"levels that were visited once ({', '.join(once)})"
            found.append(Doubt(where, response.levels[0].slowdown, reason))
        _, unstable, levels = response.note.partition(UNSTABLE)
        if unstable:
            reason = f"unstable levels ({levels})"
            found.append(Doubt(where, response.levels[0].slowdown, reason))
    return found


def _of(name: str, quantity: Quantity) -> list[Doubt]:
    reason = why_doubtful(quantity)
    return [Doubt(name, quantity, reason)] if reason else []


def _of_section(part: str, section: BaseModel) -> Iterator[Doubt]:
    """The doubtful quantities of a section, and of the sections in it."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Quantity):
            yield from _of(f"{part}.{name}", value)
        elif isinstance(value, BaseModel) and name in ("launch", "device"):
            yield from _of_section(f"{part}.{name}", value)


def _at_odds(profile: Profile) -> Iterator[Doubt]:
    """Measured steps on a GPU that launch and device do not explain."""
    streams = None if profile.step is None else profile.step.streams
    workload = profile.workload
    if streams is None or workload is None:
        return
    launches = {workload.full: streams[0].full, workload.amp: streams[0].amp}
    for cell in profile.cells:
        launch = launches.get(cell.precision)
        if cell.seconds.kind != "measured" or cell.device is None or launch is None:
            continue
        expected = max(launch.value, cell.device.value)
        if cell.seconds.value >= WIDE * expected:
            reason = (
                f"{1e3 * cell.seconds.value:.3g} ms were measured where launch and device take "
                f"{1e3 * expected:.3g}"
            )
            yield Doubt(f"cells.{cell.precision}.{cell.batch}", cell.seconds, reason)


def _unstable(profile: Profile, step: StepTimes | None) -> Iterator[Doubt]:
    """The constants that unstable cells are behind."""
    workload = profile.workload
    if step is None or workload is None:
        return
    precisions = {workload.full: "full", workload.amp: "amp"}
    for cell in profile.cells:
        if cell.unstable and cell.precision in precisions:
            which = f"batch {cell.batch} in {cell.precision}"
            reason = f"an unstable cell ({which}: {cell.unstable})"
            if step.launch is not None:
                name = f"step.launch.{precisions[cell.precision]}"
                yield Doubt(name, cell.seconds, reason)
            elif cell.batch == workload.batch:
                name = "step.compute" if cell.precision == workload.full else "step.amp_ratio"
                yield Doubt(name, cell.seconds, reason)
