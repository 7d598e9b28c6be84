"""The origin of each number of a scenario: measured, fitted or assumed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import MISSING, number, seconds, with_unit
from simstrag.profile.quantity import Quantity
from simstrag.scenario.scenario import Scenario
from simstrag.scenario.varied_constants import DECLARED, DERIVED, kind_of, value_of

WORDS = {
    "compute": ("step in full precision, idle machine", "s"),
    "host_share": ("share of a step that precision cannot shorten", ""),
    "amp_ratio": ("full over reduced-precision time of a step", ""),
    "amp_ratio_contended": ("the same under contention (a check, not used)", ""),
    "launch.full": ("launching of a step, full precision", "s"),
    "launch.amp": ("launching of a step, reduced precision", "s"),
    "device.full": ("the device's part of a step, full precision", "s"),
    "device.amp": ("the device's part of a step, reduced precision", "s"),
    "amp_switch": ("cost of a change of precision", "s"),
    "fixed_share": ("share of a step that a smaller batch does not shorten", ""),
    "cv": ("noise of steps, coefficient of variation", ""),
    "lag1": ("noise of steps, autocorrelation of successive ones", ""),
    "pace": ("pace of whole runs, standard deviation", ""),
    "alpha": ("all-reduce, per hop", "s"),
    "bandwidth": ("all-reduce, bandwidth of a link", "bytes/s"),
    "bytes": ("all-reduce, gradient", "bytes"),
    "overlap": ("all-reduce, share hidden by backward", ""),
    "service": ("server, per gradient", "s"),
    "push": ("server, push of a gradient", "s"),
    "pull": ("server, pull of the parameters", "s"),
    "intra_alpha": ("all-reduce inside a node, per hop", "s"),
    "intra_bandwidth": ("all-reduce inside a node, bandwidth of a link", "bytes/s"),
    "shards": ("servers that share each gradient", ""),
    "load_host": ("server load, stretch of host work", ""),
    "load_net": ("server load, stretch of transfers", ""),
    "microbatches": ("micro-batches of a step", ""),
    "batch": ("batch per worker", "samples"),
    "noise_scale": ("gradient noise scale B_noise", "samples"),
    "c_tau": ("cost of a stale sample, c_tau", ""),
    "severity": ("severity of contention, times as recorded", ""),
    "response": ("response to a load u (1: 1 + u, 2: 1 / (1 - u))", ""),
    "curve": ("accuracy from progress", "points"),
    "staleness_loss": ("final accuracy lost per update of mean staleness", ""),
}
"""Name and unit of each quantity."""


class Origin(NamedTuple):
    """A quantity in force: name, value with unit, interval, kind, count and note.

    unit: the unit of the unrounded value and interval.
    """

    what: str
    value: str
    interval: str
    kind: str
    n: str
    note: str
    unit: str = ""


def origins(scenario: Scenario) -> list[Origin]:
    """Every quantity that durations and progress depend on, in the order of a step."""
    return [
        *_step(scenario),
        *_section(scenario, "allreduce", ("alpha", "bandwidth", "bytes", "overlap")),
        _all_reduce_of_all(scenario),
        *_section(scenario, "server", ("service", "push", "pull")),
        *_options(scenario),
        *_contention(scenario),
    ]


def origins_table(scenario: Scenario) -> Table:
    """The quantities as a table."""
    headers = ("quantity", "value", "95 % interval", "measured, fitted or assumed", "n", "note")
    rows = tuple(origin[:-1] for origin in origins(scenario))
    return Table(headers, rows, len(headers))


def origins_data(scenario: Scenario) -> Table:
    """The quantities with their numbers unrounded, the unit in a column of its own."""
    rows = []
    for o in origins(scenario):
        value = o.value.value if isinstance(o.value, Number) else o.value
        low, high = (isinstance(o.interval, Number) and o.interval.ends) or (None, None)
        rows.append((o.what, value, o.unit, low, high, o.kind, o.n, o.note))
    columns = ("quantity", "value", "unit", "low", "high", "kind", "n", "note")
    return Table(columns, tuple(rows))


def _step(scenario: Scenario) -> Iterator[Origin]:
    if scenario.step is not None:
        serial = ("compute", "host_share", "amp_ratio")
        streams = ("launch.full", "launch.amp", "device.full", "device.amp")
        law = streams if scenario.step.launch is not None else serial
        for name in (*law, "amp_switch", "fixed_share", "cv"):
            value = operator.attrgetter(name)(scenario.step)
            kind = kind_of(scenario, f"step.{name}")
            if value is None and name == "launch.amp":
                kind = "not given: as in full precision"
            elif value is None:
                kind = "not given: no policy here may use reduced precision"
            note = f"{scenario.step.noise}" if name == "cv" and value else ""
            yield _plain(name, value, kind, note)
        yield from _lasting(scenario)
        return
    step = scenario.inputs.times
    if step is None:
        yield Origin("step", "recorded durations", "", "given by the trace", "", "")
        return
    for name in (
        "compute", "host_share", "launch.full", "launch.amp", "device.full", "device.amp",
        "amp_ratio", "amp_ratio_contended", "amp_switch", "fixed_share",
    ):  # fmt: skip
        section, _, key = name.partition(".")
        quantity = getattr(getattr(step, section), key, None) if key else getattr(step, name)
        if quantity is not None:
            yield _of(name, quantity)
    noise = step.noise
    if noise is None:
        yield Origin("noise of steps", "none", "", "not in the profile", "", "")
        yield from _lasting(scenario)
        return
    spread = f"quantiles from {number(noise.quantiles[0])} to {number(noise.quantiles[-1])}"
    yield Origin("noise of steps", spread, "", noise.kind, str(noise.n), noise.note)
    yield from _lasting(scenario)


def _lasting(scenario: Scenario) -> Iterator[Origin]:
    noise = scenario.inputs.step.noise
    if noise is not None:
        yield _plain("lag1", noise.lag1, kind_of(scenario, "noise.lag1"))
    if scenario.pace:
        yield _plain("pace", scenario.pace, kind_of(scenario, "noise.pace"))


def _section(scenario: Scenario, section: str, names: Sequence[str]) -> Iterator[Origin]:
    """The constants of `allreduce` or `server`, from the scenario, else derived or measured."""
    declared, measured, in_force = (
        getattr(source, section, None)
        for source in (scenario, scenario.inputs.profile, scenario.inputs)
    )
    for name in names:
        stated = declared is not None and name in declared.model_fields_set
        kind = kind_of(scenario, f"{section}.{name}")
        if measured is not None and not stated and kind != DERIVED:
            yield _of(name, getattr(measured, name))
        else:
            yield _plain(name, getattr(in_force, name), kind)


def _all_reduce_of_all(scenario: Scenario) -> Origin:
    a, n = scenario.inputs.allreduce, scenario.workers
    exposed = scenario.all_reduce_seconds
    ring = "2(n-1) alpha + 2(n-1)/n bytes/bandwidth, " if a.algorithm == "ring" else ""
    kind = f"computed by the {a.algorithm.replace('_', '-')} formula"
    what = f"exposed all-reduce of all {n} ranks"
    note = f"{ring}less the share hidden by backward"
    return Origin(what, Number(seconds(exposed), exposed), "", kind, "", note, "s")


def _options(scenario: Scenario) -> Iterator[Origin]:
    """Links inside nodes, shards, server load and micro-batches, if any, and the learner."""
    a, server, load = scenario.inputs.allreduce, scenario.inputs.server, scenario.server_load
    known = None if scenario.inputs.profile is None else scenario.inputs.profile.allreduce
    stated = set() if scenario.allreduce is None else scenario.allreduce.model_fields_set
    for name in ("intra_alpha", "intra_bandwidth"):
        value = getattr(a, name)
        if value is not None and name in stated:
            yield _plain(name, value, DECLARED)
        elif value is not None:
            yield _of(name, getattr(known, name))
    if len(server.shards) > 1:
        yield _plain("shards", len(server.shards), DECLARED, f"one job {seconds(server.job)}")
    if load is not None:
        note = f"of ranks on node {load.node}, while a plan uses the server"
        yield _plain("load_host", load.host, DECLARED, note)
        yield _plain("load_net", load.net, DECLARED, note)
    if scenario.microbatches > 1:
        yield _plain("microbatches", scenario.microbatches, DECLARED)
    formula = () if scenario.learner.is_real else ("noise_scale", "c_tau")
    for name in ("batch", *formula):
        kind = kind_of(scenario, f"learner.{name}")
        yield _plain(name, getattr(scenario.learner, name), kind)
    if scenario.learner.curve is not None:
        yield _plain("curve", len(scenario.learner.curve), DECLARED)
    if scenario.learner.staleness_loss:
        yield _plain("staleness_loss", scenario.learner.staleness_loss, DECLARED)


def _contention(scenario: Scenario) -> Iterator[Origin]:
    """The trace, and the laws from its utilisations to slowdowns."""
    trace = scenario.inputs.trace
    if trace is None:
        yield Origin("contention", "none", "", DECLARED, "", "")
        return
    kind = "given by the trace file" if isinstance(scenario.trace, str) else DECLARED
    kinds = ", ".join(sorted({f"{row.resource} {row.kind}" for row in trace.rows}))
    value = f"{len(trace.nodes)} nodes, {number(trace.end)} s"
    note = f"{kinds}; the file does not say whether it was recorded or generated"
    yield Origin("contention", value, "", kind, str(len(trace.rows)), note)
    name = "contention.severity"
    yield _plain("severity", value_of(scenario, name), kind_of(scenario, name))
    name = "contention.response"
    if assumed := value_of(scenario, name):
        yield _plain("response", assumed, kind_of(scenario, name))
    for response in scenario.inputs.responses:
        constants = [f"{k} {number(q.value)}" for k, q in response.constants.items()]
        value = ", ".join([f"{response.law.replace('_', ' ')} law", *constants])
        what, n = f"slowdown by utilisation of {response.resource}", str(len(response.levels))
        note = f"beside load {response.load}: {response.note}"
        yield Origin(what, value, "", "fitted", n, note)


def _plain(name: str, value: float | None, kind: str, note: str = "") -> Origin:
    what, unit = WORDS[name]
    shown = MISSING if value is None else with_unit(value, unit)
    return Origin(what, Number(shown, value), "", kind, "", note, unit)


def _of(name: str, quantity: Quantity) -> Origin:
    what, unit = WORDS[name]
    n = "" if quantity.n is None else str(quantity.n)
    value, interval = Number(with_unit(quantity.value, unit), quantity.value), ""
    if quantity.low is not None and quantity.high is not None:
        text = f"{with_unit(quantity.low, unit)} to {with_unit(quantity.high, unit)}"
        interval = Number(text, None, (quantity.low, quantity.high))
    return Origin(what, value, interval, quantity.kind, n, quantity.note, unit)
